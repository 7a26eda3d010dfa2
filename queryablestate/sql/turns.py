"""`Turns`: whose statement is next, so that no caller takes all workers; pure."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Any, Final, final

from queryablestate.sql.protocol.refusals import SQLError


__all__ = ["Turns"]

_WAITING_COUNT_MAX: Final = 500


@final
class Turns:
    """
    Hands out places to statements, caller by caller.

    A caller has at most all places but one, so that others need not wait for the end of
    a long statement; where there is one place, it is shared in turns.

    Args:
        place_count: How many statements run at once.
        waiting_count_max: How many of one caller may wait.

    Attributes:
        caller_count_max: How many of one caller run at once.
    """

    def __init__(self, place_count: int, *, waiting_count_max: int = 20) -> None:
        self._free_count = place_count
        self.caller_count_max = max(1, place_count - 1)
        self._waiting_count_max = waiting_count_max
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Any]] = OrderedDict()

    @property
    def waiting_count(self) -> int:
        """Return how many statements wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def running_count(self) -> int:
        """Return how many statements run."""
        return self._running.total()

    def ask(self, caller: str, ticket: Any) -> None:
        """
        Have a statement wait; `next_tickets` tells when it is its turn.

        Raises:
            SQLError: If too many wait already.
        """
        queue = self._waiting.get(caller)
        if (
            queue is not None and len(queue) >= self._waiting_count_max
        ) or self.waiting_count >= _WAITING_COUNT_MAX:
            raise SQLError(
                "53300",
                "too many statements wait to be run",
                "ask again later, or with fewer connections",
            )
        if queue is None:
            queue = self._waiting[caller] = deque()
        queue.append(ticket)

    def next_tickets(self) -> list[Any]:
        """Return those whose turn it is now; each is to be given back with `done`."""
        found = []
        while self._free_count:
            caller = next(
                (
                    caller
                    for caller in self._waiting
                    if self._running[caller] < self.caller_count_max
                ),
                None,
            )
            if caller is None:
                break
            queue = self._waiting.pop(caller)
            found.append(queue.popleft())
            if queue:  # behind all others
                self._waiting[caller] = queue
            self._running[caller] += 1
            self._free_count -= 1
        return found

    def withdraw(self, caller: str, ticket: Any) -> bool:
        """Forget a statement that waits; return whether it did."""
        queue = self._waiting.get(caller)
        if queue is None or ticket not in queue:
            return False
        queue.remove(ticket)
        if not queue:
            del self._waiting[caller]
        return True

    def done(self, caller: str) -> None:
        """Take the place of a statement back."""
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._free_count += 1
