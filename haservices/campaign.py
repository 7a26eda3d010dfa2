"""`campaign`: lead for the length of a ``with`` block."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, final

from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    UnreachableError,
    get_logger,
)
from nameservice.fields import check_address
from nameservice.interruptible import InterruptibleEvent
from nameservice.parameters import check_timeout_seconds


if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from election import LeaderElection, LeaderSession
    from haservices.interface import HAServices


__all__ = ["Campaigner", "Leadership", "campaign", "confirm_until_certain"]

_CONFIRM_PAUSE_SECONDS: Final = 0.1


@final
class Leadership:
    """
    One confirmed leadership, from `campaign`.

    Attributes:
        session: The leadership, as the leader store takes it.
        lost: Set once the leadership is revoked; a signal handler may close the
            services while it is waited for.  Belief may lapse before that, and come
            back: ask `check` where it matters.
    """

    def __init__(self, election: LeaderElection, session: LeaderSession) -> None:
        self._election = election
        self.session = session
        self.lost: threading.Event = InterruptibleEvent()

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
class Campaigner:
    """
    Confirms whatever it is granted, and keeps the first that took.

    Args:
        election: Not started yet.
        address: What it confirms.
        on_changed: Called on any thread when there may be an outcome, and when the
            leadership is lost.
    """

    def __init__(
        self,
        election: LeaderElection,
        address: str,
        *,
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._election = election
        self._address = address
        self._on_changed = on_changed
        self._is_decided = InterruptibleEvent()
        self._is_closing = InterruptibleEvent()
        self.leadership: Leadership | None = None
        self.error: Exception | None = None
        election.when_closing(self._closing)

    def grant_leadership(self, session: LeaderSession) -> None:
        """Confirm, and keep what took."""
        if confirm_until_certain(
            self._election, session, self._address, is_closing=self._is_closing
        ):
            self.leadership = Leadership(self._election, session)
            self._announce()

    def _closing(self) -> None:
        self._is_closing.set()
        self._announce()

    def revoke_leadership(self) -> None:
        """Say that it is lost, and contend no more."""
        if self.leadership is None:
            return
        self.leadership.lost.set()
        self._announce()
        # The block holds a leadership that stays lost.  Contending on would win turns
        # that it does not take up, and keep the others waiting.
        self._election.close()

    def handle_error(self, error: Exception) -> None:
        """Keep what ends the wait for our turn."""
        is_passing = isinstance(
            error, DidNotHappenError | MayHaveHappenedError | LeadershipLostError
        )
        if self.leadership is None and not is_passing:
            self.error = error
            self._announce()

    @property
    def is_lost(self) -> bool:
        """Return whether there was a leadership, and is no more."""
        return self.leadership is not None and self.leadership.lost.is_set()

    @property
    def outcome(self) -> Leadership | None:
        """
        Return the leadership that took, or None as long as there is none.

        Raises:
            LocalProtocolError: If there will be none: the services were closed.
        """
        if self.leadership is not None:
            return self.leadership
        if self.error is not None:
            raise self.error
        if self._is_closing.is_set():
            message = "the services were closed before our turn to lead came"
            raise LocalProtocolError(message)
        return None

    def wait(self, timeout_seconds: float | None) -> Leadership:
        """Return the leadership that took, waiting for it."""
        began = time.monotonic()
        self._is_decided.wait(timeout_seconds)
        leadership = self.outcome
        if leadership is None:
            raise NoLeaderError(self._election.component_id, time.monotonic() - began)
        return leadership

    def _announce(self) -> None:
        self._is_decided.set()
        self._on_changed()


def confirm_until_certain(
    election: LeaderElection,
    session: LeaderSession,
    address: str,
    *,
    is_closing: threading.Event,
) -> bool:
    """
    Confirm until the answer is certain; return whether we lead.

    A confirm that was not answered may have published us.  To stop there would
    leave a leader that does no work, and that the others wait for.  To repeat it is
    safe, and ends: with an answer, with the leadership, or with the election, which
    resigns.

    Args:
        election: Whose callback this is.
        session: As it was granted.
        address: Where we are reached.
        is_closing: Set when *election* begins to close.
    """
    while not is_closing.is_set():
        try:
            election.confirm_leadership(session.leader_session_id, address)
        except LeadershipLostError:
            return False  # revoked meanwhile: our turn comes again
        except (DidNotHappenError, MayHaveHappenedError, UnreachableError) as error:
            get_logger(
                component="campaign", component_id=election.component_id
            ).warning("leadership.unconfirmed", epoch=session.epoch, error=str(error))
            is_closing.wait(_CONFIRM_PAUSE_SECONDS)
        else:
            return True
    return False


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
        LocalProtocolError: If *ha* is closed, or is closed while we wait.
        AuthenticationError: If we may not contend for *job_id*.
        ConfigurationError: If *job_id* or *address* breaks its rule; nothing was sent.
    """
    address = check_address(address)  # before we contend: it could not be confirmed
    timeout_seconds = check_timeout_seconds(timeout_seconds)
    election = ha.get_leader_election(job_id)
    try:
        campaigner = Campaigner(election, address)
        election.start(campaigner)
        yield campaigner.wait(timeout_seconds)
    finally:
        election.close()
