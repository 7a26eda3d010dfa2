"""What seeds are about, by their numbers."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


__all__ = ["Kind", "seeds_of_every_kind"]

_ROW_COUNT: Final = 10_000


class Kind(IntEnum):
    """What a seed is about: each has 10,000 seeds in a row, then comes the next."""

    MIXED = 0
    """Everything, with readers of either way."""

    DIRECT = 1
    """Readers always ask nodes without the proxy (rule D1)."""

    CUT_OFF = 2
    """
    Nodes are cut off from the proxy again and again and do not notice.

    Readers go on asking them, while others have their key groups and batches are
    committed there: what direct answers must be kept from.
    """

    TAKE_OVER = 3
    """
    States are taken over by other queries again and again, too.

    Little else goes wrong: batches are committed quickly, and readers are answered.  So
    it is generations that go on while copies are behind, and batches while a node is
    cut off.
    """

    @classmethod
    def of(cls, seed: int) -> Kind:
        """Return what *seed* is about."""
        return cls(seed // _ROW_COUNT % len(cls))

    def seed(self, index: int) -> int:
        """Return the seed of this kind that *index* others of it come before."""
        row, place = divmod(index, _ROW_COUNT)
        return (row * len(Kind) + self) * _ROW_COUNT + place


def seeds_of_every_kind(first: int, count: int) -> list[int]:
    """Return *count* seeds, in turn of each kind, but for the *first* of each."""
    return [
        Kind(index % len(Kind)).seed(first + index // len(Kind))
        for index in range(count)
    ]
