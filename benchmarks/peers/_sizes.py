"""How much is measured: the sizes of a real run, and tiny ones for the tests."""

from __future__ import annotations

from typing import Final

from attrs import frozen


__all__ = ["FULL", "TINY", "Sizes"]


@frozen(kw_only=True)
class Sizes:
    """
    What the questions are asked with.

    Attributes:
        round_count: How often each peer has its turn.
        key_count: Keys that are held where reads are measured.
        get_count: Reads one at a time, in a turn.
        outstanding_limits: How many reads are under way at the same time.
        outstanding_count: Reads of that kind, in a turn.
        many_count: Keys of one large read.
        many_per_round: Large reads in a turn.
    """

    round_count: int
    key_count: int
    get_count: int
    outstanding_limits: tuple[int, ...]
    outstanding_count: int
    many_count: int
    many_per_round: int


FULL: Final = Sizes(
    round_count=7,
    key_count=10_000,
    get_count=500,
    outstanding_limits=(8, 64, 512),
    outstanding_count=8_000,
    many_count=1_000,
    many_per_round=10,
)
TINY: Final = Sizes(
    round_count=1,
    key_count=100,
    get_count=5,
    outstanding_limits=(8,),
    outstanding_count=40,
    many_count=10,
    many_per_round=1,
)
