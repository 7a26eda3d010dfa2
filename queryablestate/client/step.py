"""
`QueryOutbox`: what the parts of a `QueryCore` share; pure.

The time, the numbers, the effects of the present step, and who waits for what.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final, final

from nameservice.clock import NS_PER_MS
from queryablestate.client.events import CompleteRequests, QueryEffect, SendRequest
from queryablestate.client.requests import Request
from queryablestate.wire.clients import ClientRequest
from queryablestate.wire.direct import AskNode, ShowTicket


NEVER_NS: Final = 1 << 62

_PAUSE_NS_MIN: Final = 10 * NS_PER_MS
_PAUSE_NS_MAX: Final = 500 * NS_PER_MS


@final
class QueryOutbox:
    """
    The time, the numbers, the effects, and who waits.

    Attributes:
        now_ns: The time of the present step.
        requests: Everything that waits, in the order in which it came.
        expiry_ns: Nothing expires before.
        number: The last that was given out.
        has_dropped: Whether a request has failed or was given up, of which something
            may still wait to be sent.
    """

    def __init__(self, *, now_ns: int) -> None:
        self.now_ns = now_ns
        self.requests: dict[Request, None] = {}
        self.expiry_ns = NEVER_NS
        self.has_dropped = False
        self.done: list[Request] = []
        self._effects: list[QueryEffect] = []
        self.number = 0

    def next_number(self) -> int:
        """Return a number that no message had before."""
        self.number += 1
        return self.number

    def perform(self, effect: QueryEffect) -> None:
        """Have *effect* performed, after those before it."""
        self._effects.append(effect)

    def send(self, message: ClientRequest, keys: Sequence[bytes] | None = None) -> None:
        """Have *message* sent to the proxy."""
        self._effects.append(SendRequest(message, keys))

    def send_to_node(
        self,
        link: int,
        message: ShowTicket | AskNode,
        keys: Sequence[bytes] | None = None,
    ) -> None:
        """Have *message* sent to a node."""
        self._effects.append(SendRequest(message, keys, link))

    def finish(self, request: Request) -> None:
        """Have the one that waits for *request* told; once."""
        request.is_done = True
        del self.requests[request]
        self.done.append(request)

    def fail(self, request: Request, error: Exception) -> None:
        """Finish *request* with an error; what is under way for it has no asker."""
        request.error = error
        self.has_dropped = True
        self.finish(request)

    def fail_all(self, requests: Sequence[Request], error: Exception) -> None:
        """Fail those that still wait, each with an error of its own."""
        for request in requests:
            if not request.is_done:
                # One exception that many threads raise would collect their tracebacks.
                self.fail(request, copy.copy(error))

    def expires_at(self, at_ns: int) -> None:
        """Take note of a deadline."""
        self.expiry_ns = min(self.expiry_ns, at_ns)

    def take(self) -> Sequence[QueryEffect]:
        """Return the effects of this step; the answers come last."""
        if self.done:
            self._effects.append(CompleteRequests(self.done))
            self.done = []
        effects, self._effects = self._effects, []
        return effects


def longer_pause(pause_ns: int) -> int:
    """Return the pause that follows one of *pause_ns*; 0 stands for none before."""
    return min(max(_PAUSE_NS_MIN, 2 * pause_ns), _PAUSE_NS_MAX)


def milliseconds(duration_ns: int) -> int:
    """Return *duration_ns* in milliseconds, at least one."""
    return max(1, -(-duration_ns // NS_PER_MS))
