"""`campaign`: lead for the length of a ``with`` block."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, final

from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    NoLeaderError,
)


if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from election import LeaderElection, LeaderSession
    from haservices.interface import HAServices


__all__ = ["Leadership", "campaign"]


@final
class Leadership:
    """
    One confirmed leadership, from `campaign`.

    Attributes:
        session: The leadership, as the leader store takes it.
        lost: Set once the leadership is revoked.  Belief may lapse before that, and
            come back: ask `check` where it matters.
    """

    def __init__(self, election: LeaderElection, session: LeaderSession) -> None:
        self._election = election
        self.session = session
        self.lost = threading.Event()

    @property
    def leader_session_id(self) -> UUID:
        """Return the identity of this leadership."""
        return self.session.leader_session_id

    @property
    def epoch(self) -> int:
        """Return the fencing token of this leadership."""
        return self.session.epoch

    def check(self) -> None:
        """
        Return while we lead.

        Raises:
            LeadershipLostError: While we do not believe that we lead.
        """
        if self.lost.is_set() or not self._election.has_leadership(
            self.leader_session_id
        ):
            raise LeadershipLostError(self._election.component_id, self.epoch)


@final
class _Campaigner:
    """Confirms whatever it is granted, and keeps the first that took."""

    def __init__(self, election: LeaderElection, address: str) -> None:
        self._election = election
        self._address = address
        self._changed = threading.Condition()
        self.leadership: Leadership | None = None
        self.error: Exception | None = None

    def grant_leadership(self, session: LeaderSession) -> None:
        try:
            self._election.confirm_leadership(session.leader_session_id, self._address)
        except LeadershipLostError:
            return  # revoked meanwhile: our turn comes again
        except MayHaveHappenedError:
            # Confirming is safe to repeat, and nothing else tells us whether it took.
            self._election.confirm_leadership(session.leader_session_id, self._address)
        with self._changed:
            self.leadership = Leadership(self._election, session)
            self._changed.notify_all()

    def revoke_leadership(self) -> None:
        with self._changed:
            if self.leadership is None:
                return
            self.leadership.lost.set()
        # The block holds a leadership that stays lost.  Contending on would win turns
        # that nobody takes up, and keep the others waiting.
        self._election.close()

    def handle_error(self, error: Exception) -> None:
        with self._changed:
            is_passing = isinstance(
                error, DidNotHappenError | MayHaveHappenedError | LeadershipLostError
            )
            if self.leadership is None and not is_passing:
                self.error = error
                self._changed.notify_all()

    def wait(self, timeout_seconds: float | None) -> Leadership:
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(
                lambda: self.leadership is not None or self.error is not None,
                timeout_seconds,
            )
            if self.leadership is not None:
                return self.leadership
            if self.error is not None:
                raise self.error
        raise NoLeaderError(self._election.component_id, time.monotonic() - began)


@contextlib.contextmanager
def campaign(
    ha: HAServices,
    job_id: str,
    address: str,
    timeout_seconds: float | None = None,
) -> Iterator[Leadership]:
    """
    Block until we lead *job_id* and have confirmed, and lead for the ``with`` block.

    On exit the leadership is resigned, and the next contender granted.  A leadership
    that is lost meanwhile does not come back within the block: watch ``lost``, or
    call ``check`` before what must not be done by two.

    Args:
        ha: The name service.
        job_id: What to lead.
        address: Where we are reached while we lead.
        timeout_seconds: How long to wait for our turn; None waits as long as it takes.

    Raises:
        NoLeaderError: If our turn did not come within *timeout_seconds*.
        AuthenticationError: If we may not contend for *job_id*.
    """
    election = ha.get_leader_election(job_id)
    try:
        campaigner = _Campaigner(election, address)
        election.start(campaigner)
        yield campaigner.wait(timeout_seconds)
    finally:
        election.close()
