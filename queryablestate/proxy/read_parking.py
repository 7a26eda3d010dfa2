"""
`ParkedQuestions`: what is asked of nodes that are only late; pure.

While a new proxy leader settles (rule S2), a node that is not here may come any moment;
and when a node is away whose key groups others have, too (rule S4), one of these is
asked in a moment.  Questions wait here for that, up to a number and a size: all of
them are somebody's memory.  No caller takes the room of the others.

Those that wait for the same node of the same state wait for the same thing: its route,
and whether the node counts as away.  What that was when they were looked at last stands
once for all of them.  So to find out that nothing has changed takes no look at each
one, nor does what becomes of a client or of a deadline (rule B2).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, final

from attrs import Factory, define

from queryablestate.shares import Shares


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.access import Caller
    from queryablestate.wire.questions import Ask


__all__ = ["ParkedQuestion", "ParkedQuestions", "owner_of"]

# A compaction is due when this many, and most, of the deadlines are of the past.
_DEADLINES_STALE_MIN: Final = 1_000


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
@define(eq=False)
class _Group:
    """
    What waits for one node of one state.

    Attributes:
        location: The route when it was looked at last, or None if there was none.
        is_away: Whether the node counted as away then.
        is_doubted: Whether it is to be looked at in any case.
        questions: In the order in which they came, with their numbers.
    """

    location: KvStateLocation | None
    is_away: bool
    is_doubted: bool = False
    questions: dict[ParkedQuestion, int] = Factory(dict)


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
        self._number = 0
        self._groups: dict[tuple[int, int], _Group] = {}
        self._of_client: dict[LinkId, dict[ParkedQuestion, None]] = {}
        self._by_number: dict[int, ParkedQuestion] = {}
        # With numbers.  Those of questions that are gone are thrown away when they come
        # up; the questions themselves, which may be large, are gone at once.
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._by_number)

    def next_deadline_ns(self) -> int | None:
        """Return the first deadline, or None if nothing waits."""
        return self._deadlines[0][0] if self._deadlines else None

    def park(
        self, asked: ParkedQuestion, location: KvStateLocation, *, is_away: bool
    ) -> list[ParkedQuestion]:
        """
        Have *asked* wait; return what there is no room for, be it *asked* itself.

        Args:
            asked: The question.
            location: The route that it was looked at by.
            is_away: Whether its node counts as away.
        """
        turned_away = self._shares.take(asked.owner, asked, asked.size_bytes)
        if asked in self._shares:
            self._number += 1
            key = _key_of(asked)
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(location, is_away)
            group.questions[asked] = self._number
            self._of_client.setdefault(asked.client, {})[asked] = None
            self._by_number[self._number] = asked
            heapq.heappush(self._deadlines, (asked.deadline_ns, self._number))
        self._strike([one for one in turned_away if one is not asked])
        return turned_away

    def changed(
        self,
        locations: Mapping[int, KvStateLocation],
        takes_for_away: Callable[[str], bool],
    ) -> list[ParkedQuestion]:
        """
        Return what waits for something that is another now; each waits on until `free`.

        Args:
            locations: The route table.
            takes_for_away: Returns whether a node that is not here counts as away.
        """
        found: list[tuple[int, ParkedQuestion]] = []
        for (state_number, node_index), group in self._groups.items():
            location = locations.get(state_number)
            is_away = (
                location is not None
                and location.batch_id is not None  # before it no node is waited for
                and node_index < len(location.node_ids)
                and takes_for_away(location.node_ids[node_index])
            )
            if (
                location is not group.location
                or is_away != group.is_away
                or group.is_doubted
            ):
                found += [(number, one) for one, number in group.questions.items()]
            group.location, group.is_away = location, is_away
            group.is_doubted = False
        return [one for _, one in sorted(found, key=_number_of)]

    def doubt(self) -> None:
        """Have `changed` return everything, as if something else were waited for."""
        for group in self._groups.values():
            group.is_doubted = True

    def free(self, asked: ParkedQuestion) -> None:
        """Have *asked* wait no more."""
        self._shares.free(asked)
        self._strike([asked])

    def take_all(self) -> list[ParkedQuestion]:
        """Return and forget everything that waits."""
        waiting = list(self._shares)
        self._shares.clear()
        self._groups.clear()
        self._of_client.clear()
        self._by_number.clear()
        self._deadlines.clear()
        return waiting

    def take_late(self, *, now_ns: int) -> list[ParkedQuestion]:
        """Return and forget what is past its deadline, the earliest first."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            asked = self._by_number[self._deadlines[0][1]]
            self.free(asked)
            late.append(asked)
        return late

    def forget(self, client: LinkId) -> None:
        """Forget what *client* waits for."""
        own = list(self._of_client.get(client, ()))
        for asked in own:
            self._shares.free(asked)
        self._strike(own)

    # -- parts ---------------------------------------------------------------------

    def _strike(self, gone: list[ParkedQuestion]) -> None:
        """Forget where to find those that have no place any more."""
        for asked in gone:
            key = _key_of(asked)
            group = self._groups[key]
            del self._by_number[group.questions.pop(asked)]
            if not group.questions:
                del self._groups[key]
            own = self._of_client[asked.client]
            del own[asked]
            if not own:
                del self._of_client[asked.client]
        while self._deadlines and self._deadlines[0][1] not in self._by_number:
            heapq.heappop(self._deadlines)
        stale_count = len(self._deadlines) - len(self._by_number)
        if stale_count > max(_DEADLINES_STALE_MIN, 2 * len(self._by_number)):
            self._deadlines = [
                one for one in self._deadlines if one[1] in self._by_number
            ]
            heapq.heapify(self._deadlines)


def _key_of(asked: ParkedQuestion) -> tuple[int, int]:
    return asked.ask.state_number, asked.ask.node_index


def _number_of(found: tuple[int, ParkedQuestion]) -> int:
    return found[0]
