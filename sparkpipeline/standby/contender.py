"""A driver's part in the election of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from haservices.campaign import confirm_until_certain
from nameservice.interruptible import InterruptibleEvent
from sparkpipeline.standby.core import Granted, LeadershipRevoked


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import LeaderElection, LeaderSession
    from sparkpipeline.standby.core import StandbyEvent


__all__ = ["DriverContender"]


@final
class DriverContender:
    """
    Confirms what it is granted, and leaves a leadership when the queries have stopped.

    Attributes:
        is_idle: To be set when no query runs under a leadership of ours, nor will: what
            is granted from then on is not told, and left at once.
        leadership_lost: Set when the last leadership that was granted is revoked.

    Args:
        election: Not started yet.
        address: What it confirms.
        tell: Takes what happens, on any thread.
    """

    def __init__(
        self,
        election: LeaderElection,
        address: str,
        tell: Callable[[StandbyEvent | Exception], None],
    ) -> None:
        self._election = election
        self._address = address
        self._tell = tell
        self._is_closing = InterruptibleEvent()
        self._has_told = False
        self.is_idle = InterruptibleEvent()
        self.leadership_lost = InterruptibleEvent()
        election.when_closing(self._is_closing.set)

    def grant_leadership(self, session: LeaderSession) -> None:
        """Confirm, and tell that we lead."""
        is_confirmed = confirm_until_certain(
            self._election, session, self._address, is_closing=self._is_closing
        )
        if is_confirmed and not self.is_idle.is_set():
            self.leadership_lost = InterruptibleEvent()
            self._has_told = True
            self._tell(Granted(session=session))

    def revoke_leadership(self) -> None:
        """Tell, and return when the queries have stopped."""
        self._tell(LeadershipRevoked())
        self.leadership_lost.set()
        if self._has_told:
            self.is_idle.wait()  # else no query was ever begun: we contend on

    def handle_error(self, error: Exception) -> None:
        """Tell."""
        self._tell(error)
