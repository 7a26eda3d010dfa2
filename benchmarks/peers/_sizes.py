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
        listener_counts: How many listeners are told of a leader.
        change_count: How often, each number of them.
        registration_count: Contenders that are entered in a turn.
        pair_count: Leaders that are killed, for each setting.
        failover_settings: Which settings.
        hand_over_count: How often a leadership is handed over.
        idle_count: Sessions that do nothing.
        idle_seconds: How long they are looked at, each time.
        idle_rounds: How often.
        restart_counts: How many listeners must come back.
        publishings: Rows of a batch, and how many of such batches are measured.
        fresh_count: Events that are waited for.
        stored_count: How often stored state is read.
        growth_key_counts: Keys among which reads are measured.
        growth_node_counts: Nodes that hold the second of those.
        growth_round_count: Turns for each of them.
    """

    round_count: int
    key_count: int
    get_count: int
    outstanding_limits: tuple[int, ...]
    outstanding_count: int
    many_count: int
    many_per_round: int
    listener_counts: tuple[int, ...]
    change_count: int
    registration_count: int
    pair_count: int
    failover_settings: tuple[str, ...]
    hand_over_count: int
    idle_count: int
    idle_seconds: float
    idle_rounds: int
    restart_counts: tuple[int, ...]
    publishings: tuple[tuple[int, int], ...]
    fresh_count: int
    stored_count: int
    growth_key_counts: tuple[int, ...]
    growth_node_counts: tuple[int, ...]
    growth_round_count: int


FULL: Final = Sizes(
    round_count=7,
    key_count=10_000,
    get_count=500,
    outstanding_limits=(8, 64, 512),
    outstanding_count=8_000,
    many_count=1_000,
    many_per_round=10,
    listener_counts=(1, 200, 1_000, 5_000),
    change_count=10,
    registration_count=500,
    pair_count=5,
    failover_settings=("short", "default"),
    hand_over_count=20,
    idle_count=10_000,
    idle_seconds=5.0,
    idle_rounds=3,
    restart_counts=(1_000, 5_000),
    publishings=((10, 5), (1_000, 5), (100_000, 5), (1_000_000, 2)),
    fresh_count=20,
    stored_count=5,
    growth_key_counts=(10_000, 100_000, 1_000_000, 10_000_000),
    growth_node_counts=(1, 2, 4),
    growth_round_count=3,
)
TINY: Final = Sizes(
    round_count=1,
    key_count=100,
    get_count=5,
    outstanding_limits=(8,),
    outstanding_count=40,
    many_count=10,
    many_per_round=1,
    listener_counts=(2,),
    change_count=1,
    registration_count=3,
    pair_count=1,
    failover_settings=("short",),
    hand_over_count=1,
    idle_count=3,
    idle_seconds=0.1,
    idle_rounds=1,
    restart_counts=(2,),
    publishings=((10, 1),),
    fresh_count=1,
    stored_count=1,
    growth_key_counts=(50, 100),
    growth_node_counts=(1,),
    growth_round_count=1,
)
