"""
`Shares`: places that are few, dealt out fairly between owners; pure.

One owner may have all of them while no other one wants any.  When they are short, the
owner that has most gives some up, its newest first, until the newcomer fits, or belongs
to the owner that has most itself (rule B2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, final

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
        if (
            len(self._owners) < self._count_max
            and self.size_bytes + size_bytes <= self._size_bytes_max
        ):
            return False
        own = self._shares.get(owner)
        count = 1 if own is None else 1 + len(own.taken)
        size_bytes += 0 if own is None else own.size_bytes
        owner_count = len(self._shares) + (own is None)
        return (
            count * owner_count > self._count_max
            or size_bytes * owner_count > self._size_bytes_max
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
        while (
            len(self._owners) > self._count_max
            or self.size_bytes > self._size_bytes_max
        ):
            loser = max(self._shares.values(), key=self._part_of)
            if self._part_of(share) == self._part_of(loser):
                loser = share  # of those that have as much, the newcomer goes
            newest = next(reversed(loser.taken))
            self.free(newest)
            turned_away.append(newest)
            if newest is one:
                break
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

    def _part_of(self, share: _Share[T]) -> float:
        """Return which part of the room a share takes, of places or of bytes."""
        return max(
            len(share.taken) / self._count_max,
            share.size_bytes / self._size_bytes_max,
        )
