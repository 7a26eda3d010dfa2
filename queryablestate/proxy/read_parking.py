"""
`ParkedQuestions`: what is asked of nodes that are only late; pure.

While a new proxy leader settles (rule S2), a node that is not here may come any moment;
and when a node is away whose key groups others have, too (rule S4), one of these is
asked in a moment.  Questions wait here for that, so many and so big at most: all of
them are somebody's memory.  No caller takes the room of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import Factory, define


if TYPE_CHECKING:
    from queryablestate.control.events import Link
    from queryablestate.proxy.access import Caller
    from queryablestate.wire.questions import Ask


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

    @property
    def owner(self) -> str | Link:
        """Return whose place it takes: the caller's, or a nameless connection's."""
        return self.client if self.caller.is_anonymous else self.caller.name


@final
@define(eq=False)
class _Share:
    """What one owner has parked, in the order in which it came."""

    waiting: dict[AskedQuestion, None] = Factory(dict)
    size_bytes: int = 0


@final
class ParkedQuestions:
    """
    Questions that wait for their nodes, in the order in which they came.

    Room is shared fairly (rule B2): one owner may have all of it while nobody else
    wants any.  When it is short, whoever has most of it is turned away, the newest
    question first, until the new one fits, or belongs to whoever has most itself.

    Args:
        count_max: How many at most.
        size_bytes_max: How big their second frames may be, together.
    """

    def __init__(self, *, count_max: int, size_bytes_max: int) -> None:
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._waiting: dict[AskedQuestion, None] = {}
        self._shares: dict[str | Link, _Share] = {}
        self._size_bytes = 0
        self._deadline_ns: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def next_deadline_ns(self) -> int | None:
        """Return when `take_late` is worth calling: not after the first deadline."""
        return self._deadline_ns

    def park(self, asked: AskedQuestion) -> list[AskedQuestion]:
        """Have *asked* wait; return what there is no room for, be it *asked* itself."""
        self._add(asked)
        turned_away: list[AskedQuestion] = []
        while (
            len(self._waiting) > self._count_max
            or self._size_bytes > self._size_bytes_max
        ):
            # Of those that have as much, the newcomer goes.
            most = max(self._part_of(share) for share in self._shares.values())
            share = self._shares[asked.owner]
            if self._part_of(share) < most:
                share = next(
                    one for one in self._shares.values() if self._part_of(one) == most
                )
            newest = next(reversed(share.waiting))
            self._remove(newest)
            turned_away.append(newest)
            if newest is asked:
                break
        if asked in self._waiting and (
            self._deadline_ns is None or asked.deadline_ns < self._deadline_ns
        ):
            self._deadline_ns = asked.deadline_ns
        if not self._waiting:
            self._deadline_ns = None
        return turned_away

    def take_all(self) -> list[AskedQuestion]:
        """Return and forget everything that waits."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._shares.clear()
        self._size_bytes = 0
        self._deadline_ns = None
        return waiting

    def take_late(self, *, now_ns: int) -> list[AskedQuestion]:
        """Return and forget what is past its deadline."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return []
        return self._take([one for one in self._waiting if one.deadline_ns <= now_ns])

    def forget(self, client: Link) -> None:
        """Forget what *client* waits for."""
        if self._waiting:
            self._take([one for one in self._waiting if one.client == client])

    def _take(self, taken: list[AskedQuestion]) -> list[AskedQuestion]:
        for asked in taken:
            self._remove(asked)
        self._deadline_ns = min(
            (one.deadline_ns for one in self._waiting), default=None
        )
        return taken

    def _part_of(self, share: _Share) -> float:
        """Return which part of the room a share takes, of places or of bytes."""
        return max(
            len(share.waiting) / self._count_max,
            share.size_bytes / self._size_bytes_max,
        )

    def _add(self, asked: AskedQuestion) -> None:
        share = self._shares.get(asked.owner)
        if share is None:
            share = self._shares[asked.owner] = _Share()
        share.waiting[asked] = None
        share.size_bytes += len(asked.keys)
        self._waiting[asked] = None
        self._size_bytes += len(asked.keys)

    def _remove(self, asked: AskedQuestion) -> None:
        share = self._shares[asked.owner]
        del share.waiting[asked]
        share.size_bytes -= len(asked.keys)
        if not share.waiting:
            del self._shares[asked.owner]
        del self._waiting[asked]
        self._size_bytes -= len(asked.keys)
