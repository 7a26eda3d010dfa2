"""
`Shares`: places that are few, dealt out fairly between owners; pure.

One owner may have all of them while no other one wants any.  When they are short, the
owner that has most gives some up, its newest first, until the newcomer fits, or belongs
to the owner that has most itself (rule B2).  Most of what is short: who has many small
ones makes no room for bytes that others take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from attrs import Factory, define


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


__all__ = ["Shares"]

T = TypeVar("T")


@final
@define(eq=False)
class _Share(Generic[T]):
    """What one owner has, in the order in which it came."""

    taken: dict[T, int] = Factory(dict)
    size_bytes: int = 0


@final
class Shares(Generic[T]):
    """
    Who has which places, in the order in which they were taken.

    Args:
        count_max: How many there are.
        size_bytes_max: How big what has a place may be, together.

    Attributes:
        size_bytes: How big it is.
    """

    def __init__(self, *, count_max: int, size_bytes_max: int) -> None:
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._owners: dict[T, Hashable] = {}
        self._shares: dict[Hashable, _Share[T]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, one: T) -> bool:
        return one in self._owners

    def __iter__(self) -> Iterator[T]:
        return iter(self._owners)

    def limit(self, count_max: int) -> None:
        """Have *count_max* places from the next `take` on."""
        self._count_max = count_max

    def has_part(self, owner: Hashable, size_bytes: int) -> bool:
        """
        Return whether *owner* has what it may have, now that places are short.

        If not, `take` gives it a place for that much: some other one has more.
        """
        is_count_short = len(self._owners) >= self._count_max
        is_size_short = self.size_bytes + size_bytes > self._size_bytes_max
        if not (is_count_short or is_size_short):
            return False
        own = self._shares.get(owner)
        count = 1 if own is None else 1 + len(own.taken)
        size_bytes += 0 if own is None else own.size_bytes
        owner_count = len(self._shares) + (own is None)
        return (is_count_short and count * owner_count > self._count_max) or (
            is_size_short and size_bytes * owner_count > self._size_bytes_max
        )

    def take(self, owner: Hashable, one: T, size_bytes: int) -> list[T]:
        """Give *one* a place; return what has none any more, be it *one* itself."""
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Share()
        share.taken[one] = size_bytes
        share.size_bytes += size_bytes
        self._owners[one] = owner
        self.size_bytes += size_bytes
        turned_away: list[T] = []
        while True:
            if len(self._owners) > self._count_max:
                part_of = _count_of
            elif self.size_bytes > self._size_bytes_max:
                part_of = _size_bytes_of
            else:
                return turned_away
            loser = max(self._shares.values(), key=part_of)
            if part_of(share) == part_of(loser):
                loser = share  # of those that have as much, the newcomer goes
            newest = next(reversed(loser.taken))
            self.free(newest)
            turned_away.append(newest)
            if newest is one:
                return turned_away

    def free(self, one: T) -> None:
        """Take the place of *one* back, if it has one."""
        if one not in self._owners:
            return
        owner = self._owners.pop(one)
        share = self._shares[owner]
        size_bytes = share.taken.pop(one)
        share.size_bytes -= size_bytes
        self.size_bytes -= size_bytes
        if not share.taken:
            del self._shares[owner]

    def clear(self) -> None:
        """Take all places back."""
        self._owners.clear()
        self._shares.clear()
        self.size_bytes = 0


def _count_of(share: _Share[Any]) -> int:
    return len(share.taken)


def _size_bytes_of(share: _Share[Any]) -> int:
    return share.size_bytes
