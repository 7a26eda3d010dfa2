"""`Heartbeats`: when they are sent, and which were answered (part of `ClientCore`)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

from leaderserver.client.core.outbox import RETRY_DIVISOR


if TYPE_CHECKING:
    from leaderserver.client.core.contenders import ClientContenders
    from leaderserver.client.core.outbox import ClientOutbox


__all__ = ["Heartbeats"]


@final
class Heartbeats:
    """
    The heartbeats of a client's present session.

    They come often while there are contenders, whose belief they keep, and for a
    moment after a session has begun or a leader was told.

    Attributes:
        due_ns: When the next one is sent.
        acknowledged: The newest that was answered, or 0.
    """

    def __init__(self, outbox: ClientOutbox, contenders: ClientContenders) -> None:
        self.due_ns = outbox.now_ns
        self.acknowledged = 0
        self._outbox = outbox
        self._contenders = contenders
        # (number, when) of the opening, as 0, and of those of the last timeout.
        self._sent: deque[tuple[int, int]] = deque()
        self._settling_until_ns = outbox.now_ns
        self._settling_interval_ns = 0

    @property
    def interval_ns(self) -> int:
        """Return how often they are sent now."""
        if len(self._contenders):
            return self._outbox.lease_ns // RETRY_DIVISOR
        interval_ns = self._outbox.session_timeout_ns // 3
        is_new = self._outbox.has_session and not self.acknowledged
        if is_new or self._outbox.now_ns < self._settling_until_ns:
            return min(self._settling_interval_ns, interval_ns)
        return interval_ns

    def sent_ns(self, number: int) -> int | None:
        """Return when heartbeat *number* was sent, if that is known."""
        for known, sent_ns in reversed(self._sent):
            if known == number:
                return sent_ns
        return None

    def session_begins(self, asked_ns: int) -> None:
        """Begin anew; the session was asked for at *asked_ns*."""
        self.acknowledged = 0
        self._sent.clear()
        self._sent.append((0, asked_ns))
        self.due_ns = self._outbox.now_ns
        # The first heartbeat may be lost: until one is answered, more follow soon.
        self._settling_interval_ns = self._outbox.lease_ns // RETRY_DIVISOR

    def hurry(self) -> None:
        """Send the next one now."""
        self.due_ns = self._outbox.now_ns

    def broadcasts_reached(self) -> None:
        """Ask now, and for a moment, what was published before it could be heard."""
        if self._outbox.now_ns >= self._settling_until_ns:
            self.settle()
        self.hurry()

    def settle(self) -> None:
        """
        Send them more often for a moment: who leads was just told.

        A subscription takes its time to reach the server's broadcast socket, and what
        is published meanwhile is not heard; the answers to these heartbeats tell.
        What was published before the answer to the subscription is in that answer.
        Each comes after twice the time of the one before.  What was missed is noticed
        after twice the time that the subscription took, and thousands of clients that
        come back at once leave the server time to answer.
        """
        interval_ns = self._outbox.lease_ns // RETRY_DIVISOR
        self._settling_interval_ns = interval_ns
        self._settling_until_ns = self._outbox.now_ns + 2 * self._outbox.lease_ns
        self.due_ns = min(self.due_ns, self._outbox.now_ns + interval_ns)

    def sent(self, number: int) -> None:
        """Record that heartbeat *number* is sent now."""
        now_ns = self._outbox.now_ns
        oldest_ns = now_ns - self._outbox.session_timeout_ns
        while self._sent and self._sent[0][1] < oldest_ns:
            self._sent.popleft()
        self._sent.append((number, now_ns))
        self.due_ns = now_ns + self.interval_ns
        self._settling_interval_ns *= 2

    def answered(self, number: int) -> None:
        """Record that heartbeat *number* was answered."""
        is_first = not self.acknowledged
        self.acknowledged = max(self.acknowledged, number)
        if is_first and not len(self._contenders):
            self.due_ns = self._outbox.now_ns + self.interval_ns
