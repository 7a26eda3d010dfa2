"""
`ParkedQuestions`: what is asked of nodes that are only late; pure.

While a new proxy leader settles (rule S2), a node that is not here may come any moment;
and when a node is away whose key groups others have, too (rule S4), one of these is
asked in a moment.  Questions wait here for that, so many and so big at most: all of
them are somebody's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define


if TYPE_CHECKING:
    from queryablestate.access import Caller
    from queryablestate.control_events import Link
    from queryablestate.questions import Ask


__all__ = ["AskedQuestion", "ParkedQuestions"]


@final
@define(eq=False)
class AskedQuestion:
    """
    A question as it came in.

    Attributes:
        client: Who asks.
        caller: As whom.
        ask: The question.
        keys: Its second frame.
        asked_at_ns: When it came.
        deadline_ns: When an answer is worth nothing any more.
    """

    client: Link
    caller: Caller
    ask: Ask
    keys: bytes
    asked_at_ns: int
    deadline_ns: int


@final
class ParkedQuestions:
    """
    Questions that wait for their nodes, in the order in which they came.

    Args:
        count_max: How many at most.
        size_bytes_max: How big their second frames may be, together.
    """

    def __init__(self, *, count_max: int, size_bytes_max: int) -> None:
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._waiting: list[AskedQuestion] = []
        self._size_bytes = 0
        self._deadline_ns: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def next_deadline_ns(self) -> int | None:
        """Return when `take_late` is worth calling: not after the first deadline."""
        return self._deadline_ns

    def park(self, asked: AskedQuestion) -> bool:
        """Let *asked* wait; return whether there is room for it."""
        size_bytes = self._size_bytes + len(asked.keys)
        if len(self._waiting) >= self._count_max or size_bytes > self._size_bytes_max:
            return False
        self._waiting.append(asked)
        self._size_bytes = size_bytes
        if self._deadline_ns is None or asked.deadline_ns < self._deadline_ns:
            self._deadline_ns = asked.deadline_ns
        return True

    def take_all(self) -> list[AskedQuestion]:
        """Return and forget everything that waits."""
        waiting = self._waiting
        self._keep([])
        return waiting

    def take_late(self, *, now_ns: int) -> list[AskedQuestion]:
        """Return and forget what is past its deadline."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return []
        late = [asked for asked in self._waiting if asked.deadline_ns <= now_ns]
        self._keep([asked for asked in self._waiting if asked.deadline_ns > now_ns])
        return late

    def forget(self, client: Link) -> None:
        """Forget what *client* waits for."""
        if self._waiting:
            self._keep([asked for asked in self._waiting if asked.client != client])

    def _keep(self, waiting: list[AskedQuestion]) -> None:
        self._waiting = waiting
        self._size_bytes = sum(len(asked.keys) for asked in waiting)
        self._deadline_ns = min((asked.deadline_ns for asked in waiting), default=None)
