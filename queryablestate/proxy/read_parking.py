"""
`ParkedQuestions`: what is asked of nodes that are only late; pure.

While a new proxy leader settles (rule S2), a node that is not here may come any moment;
and when a node is away whose key groups others have, too (rule S4), one of these is
asked in a moment.  Questions wait here for that, up to a number and a size: all of
them are somebody's memory.  No caller takes the room of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define

from queryablestate.shares import Shares


if TYPE_CHECKING:
    from queryablestate.control.events import LinkId
    from queryablestate.proxy.access import Caller
    from queryablestate.wire.questions import Ask


__all__ = ["ParkedQuestion", "ParkedQuestions", "owner_of"]


def owner_of(client: LinkId, caller: Caller) -> str | LinkId:
    """Return whose place a question takes: the caller's, or a nameless connection's."""
    return client if caller.is_anonymous else caller.name


@final
@define(eq=False)
class ParkedQuestion:
    """
    A question as it came in.

    Attributes:
        client: Who asks.
        caller: As whom.
        ask: The question.
        keys: Its second frame.
        asked_at_ns: When it came.
        deadline_ns: When an answer is worth nothing any more.
        owner: Whose place it takes (`owner_of`).
        size_bytes: About how much memory it takes (`size_bytes_of`).
    """

    client: LinkId
    caller: Caller
    ask: Ask
    keys: bytes
    asked_at_ns: int
    deadline_ns: int
    owner: str | LinkId
    size_bytes: int


@final
class ParkedQuestions:
    """
    Questions that wait for their nodes, in the order in which they came.

    Room is shared fairly between callers (`Shares`, rule B2).

    Args:
        count_max: How many at most.
        size_bytes_max: How much memory they may take, together.
    """

    def __init__(self, *, count_max: int, size_bytes_max: int) -> None:
        self._shares: Shares[ParkedQuestion] = Shares(
            count_max=count_max, size_bytes_max=size_bytes_max
        )
        self._deadline_ns: int | None = None

    def __len__(self) -> int:
        return len(self._shares)

    def next_deadline_ns(self) -> int | None:
        """Return when `take_late` is worth calling: not after the first deadline."""
        return self._deadline_ns

    def park(self, asked: ParkedQuestion) -> list[ParkedQuestion]:
        """Have *asked* wait; return what there is no room for, be it *asked* itself."""
        turned_away = self._shares.take(asked.owner, asked, asked.size_bytes)
        if asked in self._shares and (
            self._deadline_ns is None or asked.deadline_ns < self._deadline_ns
        ):
            self._deadline_ns = asked.deadline_ns
        if not self._shares:
            self._deadline_ns = None
        return turned_away

    def take_all(self) -> list[ParkedQuestion]:
        """Return and forget everything that waits."""
        waiting = list(self._shares)
        self._shares.clear()
        self._deadline_ns = None
        return waiting

    def take_late(self, *, now_ns: int) -> list[ParkedQuestion]:
        """Return and forget what is past its deadline."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return []
        return self._take([one for one in self._shares if one.deadline_ns <= now_ns])

    def forget(self, client: LinkId) -> None:
        """Forget what *client* waits for."""
        if self._shares:
            self._take([one for one in self._shares if one.client == client])

    def _take(self, taken: list[ParkedQuestion]) -> list[ParkedQuestion]:
        for asked in taken:
            self._shares.free(asked)
        self._deadline_ns = min((one.deadline_ns for one in self._shares), default=None)
        return taken
