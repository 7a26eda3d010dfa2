"""
`CallFlights`: requests to the proxy itself; pure.

One message, one answer.  What the proxy could not do is asked again after a pause that
grows; every other refusal is the error of its request.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, final

from queryablestate.client.requests import Call
from queryablestate.client.session import QuerySession
from queryablestate.client.step import NEVER_NS, QueryOutbox, longer_pause
from queryablestate.wire.clients import ToClient
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import error_of


__all__ = ["CallFlights"]

_UNDER_WAY_COUNT_MAX: Final = 500
"""Half of what a proxy keeps for a client that does not read: it drops no answer."""
_TRANSIENT: Final = frozenset({"did-not-happen", "may-have-happened"})


@final
class CallFlights:
    """
    Everything that the proxy itself is asked.

    Not thread-safe; a `QueryCore` owns it, and calls `send` while there is a session.

    Args:
        outbox: Shared with the core.
        session: Likewise.

    Attributes:
        waiting: What waits to be sent.
        under_way: What was sent, by its number.
    """

    def __init__(self, outbox: QueryOutbox, session: QuerySession) -> None:
        self._outbox = outbox
        self._session = session
        self.waiting: dict[Call, None] = {}
        self.under_way: dict[int, Call] = {}

    def due_ns(self) -> int:
        """Return when `send` must be called again."""
        if len(self.under_way) >= _UNDER_WAY_COUNT_MAX:
            return NEVER_NS
        return min((call.hold_until_ns for call in self.waiting), default=NEVER_NS)

    def ask(self, call: Call) -> None:
        """Take a request."""
        self.waiting[call] = None

    def forget_dropped(self) -> None:
        """Have nothing asked that no request waits for."""
        self.waiting = {call: None for call in self.waiting if not call.is_done}

    def expire(self) -> None:
        """Forget what was never answered."""
        self.under_way = {n: c for n, c in self.under_way.items() if not c.is_done}

    def session_ended(self) -> None:
        """Queue whatever is under way again, before what waits already."""
        under_way = [call for call in self.under_way.values() if not call.is_done]
        self.waiting = dict.fromkeys((*under_way, *self.waiting))
        self.under_way.clear()

    def send(self) -> None:
        """Send what is due, as far as there is room."""
        secret = self._session.secret
        assert secret is not None
        now_ns = self._outbox.now_ns
        room = _UNDER_WAY_COUNT_MAX - len(self.under_way)
        ready = (call for call in self.waiting if call.hold_until_ns <= now_ns)
        for call in list(islice(ready, max(room, 0))):
            del self.waiting[call]
            number = self._outbox.next_number()
            message = call.build(number, secret)
            error = self._session.oversize_of(message)
            if error is not None:
                self._outbox.fail(call, error)
                continue
            self.under_way[number] = call
            self._outbox.send(message)

    def answered(self, message: ToClient) -> None:
        """Take the answer to a request that is under way."""
        call = self.under_way.pop(message.request_id)
        if not call.is_done:
            call.reply = message
            self._outbox.finish(call)

    def refused(self, refusal: Refusal, number: int) -> None:
        """Take the refusal of the request *number*, which is under way."""
        call = self.under_way.pop(number)
        if call.is_done:
            return
        if refusal.code not in _TRANSIENT:
            self._outbox.fail(call, error_of(refusal))
            return
        call.problem = error_of(refusal)
        call.pause_ns = longer_pause(call.pause_ns)
        call.hold_until_ns = self._outbox.now_ns + call.pause_ns
        self.waiting[call] = None
        self._session.doubt()
