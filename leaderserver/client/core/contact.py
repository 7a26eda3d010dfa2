"""
`ServerContact`: whether the server is heard from (`ClientCore`, *contact*).

Listeners and contenders are told of a change; what it is judged by is when the newest
answered message was sent.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, assert_never, final

from election.holder import Lost, Suspended


if TYPE_CHECKING:
    from leaderserver.client.core.contenders import ClientContenders
    from leaderserver.client.core.outbox import ClientOutbox
    from leaderserver.client.core.subscriptions import ClientSubscriptions


__all__ = ["ServerContact"]


class _Contact(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@final
class ServerContact:
    """
    Contact with the server; there is none at first.

    Attributes:
        last_ns: When the newest message was sent that was answered.
    """

    def __init__(
        self,
        outbox: ClientOutbox,
        contenders: ClientContenders,
        subscriptions: ClientSubscriptions,
    ) -> None:
        self._outbox = outbox
        self._contenders = contenders
        self._subscriptions = subscriptions
        self._contact = _Contact.LOST
        self._contending_since_ns = outbox.now_ns
        self.last_ns = outbox.now_ns

    @property
    def is_connected(self) -> bool:
        """Return whether the server was heard from lately."""
        return self._contact is _Contact.CONNECTED

    def deadline_ns(self) -> int | None:
        """Return when `watch` must be called, or None if it need not be."""
        match self._contact:
            case _Contact.CONNECTED:
                return min(self._silence_ns(), self._loss_ns())
            case _Contact.SUSPENDED:
                return self._loss_ns()
            case _Contact.LOST:
                return None
            case _:
                assert_never(self._contact)

    def contending_begins(self) -> None:
        """Expect heartbeats to be answered more often; what was quiet is not silent."""
        self._contending_since_ns = self._outbox.now_ns

    def watch(self) -> None:
        """Judge the silence until now."""
        outbox = self._outbox
        quiet_ns = outbox.now_ns - self.last_ns
        if quiet_ns < min(outbox.lease_ns, outbox.session_timeout_ns * 2 // 3):
            return  # neither is over, whether there are contenders or not
        if self._outbox.now_ns >= self._loss_ns():
            self.lose()
        elif self._outbox.now_ns >= self._silence_ns():
            self.suspend()

    def suspend(self) -> None:
        """Tell of a suspension, if there was contact."""
        if self._contact is _Contact.CONNECTED:
            self._contact = _Contact.SUSPENDED
            self._contenders.hold_all(Suspended())
            self._subscriptions.contact_suspended()

    def lose(self) -> None:
        """Tell that what the session held is lost, once."""
        if self._contact is not _Contact.LOST:
            self._contact = _Contact.LOST
            self._contenders.hold_all(Lost())
            self._subscriptions.contact_lost()

    def answered(self, sent_ns: int) -> None:
        """Record that what was sent at *sent_ns* is answered: there is contact."""
        self.last_ns = max(self.last_ns, sent_ns)
        now_ns = self._outbox.now_ns
        is_fresh = now_ns < self._silence_ns() and now_ns < self._loss_ns()
        if is_fresh and not self.is_connected:
            self._contact = _Contact.CONNECTED
            self._subscriptions.contact_restored()

    def _silence_ns(self) -> int:
        """Return when silence becomes a suspension."""
        outbox = self._outbox
        if len(self._contenders):
            return max(self.last_ns, self._contending_since_ns) + outbox.lease_ns
        return self.last_ns + outbox.session_timeout_ns * 2 // 3

    def _loss_ns(self) -> int:
        """Return when silence becomes the loss of the session."""
        return self.last_ns + self._outbox.session_timeout_ns
