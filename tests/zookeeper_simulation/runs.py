"""Runs of many seeds of the ensemble, and what came of them."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from attrs import Factory, define

from tests.simulation.mutations import install
from tests.zookeeper_simulation.mutations import STORE_MUTATIONS, ZOOKEEPER_MUTATIONS


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.zookeeper_simulation.store_world import StoreWorld
    from tests.zookeeper_simulation.world import World


__all__ = ["Outcome", "run_seed", "run_seeds"]

_CHUNK_COUNT = 20


@define
class Outcome:
    """
    What came of some seeds.

    Attributes:
        seed_count: How many.
        counts: What happened, and what was checked, by kind.
        failures: The seeds in which a rule did not hold, and which.
    """

    seed_count: int = 0
    counts: Counter[str] = Factory(Counter)
    failures: list[tuple[int, str]] = Factory(list)

    def add(self, other: Outcome) -> None:
        """Add what came of *other* seeds."""
        self.seed_count += other.seed_count
        self.counts.update(other.counts)
        self.failures += other.failures


def run_seed(
    seed: int,
    write: Callable[[str], None] | None = None,
    *,
    is_of_store: bool = False,
) -> Outcome:
    """
    Run one seed.

    Args:
        seed: Which.
        write: Takes the lines of its trace.
        is_of_store: Whether it is about the leader store; else it is about who leads.
    """
    # Late, so that a mutation is installed before what it changes is loaded.
    world: World | StoreWorld
    if is_of_store:
        from tests.zookeeper_simulation.store_world import StoreWorld  # noqa: PLC0415

        world = StoreWorld(seed, write)
    else:
        from tests.zookeeper_simulation.world import World  # noqa: PLC0415

        world = World(seed, write)
    outcome = Outcome(seed_count=1, counts=world.counts)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever breaks, breaks this seed
        outcome.failures.append((seed, f"{type(error).__name__}: {error}"))
    return outcome


def _run_chunk(seeds: Sequence[int], *, is_of_store: bool) -> Outcome:
    outcome = Outcome()
    for seed in seeds:
        outcome.add(run_seed(seed, is_of_store=is_of_store))
    return outcome


def _install(mutation: str | None) -> None:
    if mutation is not None:
        install(mutation, (*ZOOKEEPER_MUTATIONS, *STORE_MUTATIONS))


def run_seeds(
    seeds: Sequence[int], *, jobs: int, mutation: str | None, is_of_store: bool = False
) -> Iterator[Outcome]:
    """Run *seeds* on *jobs* processors; yield what came of each few."""
    if jobs == 1:
        yield from (run_seed(seed, is_of_store=is_of_store) for seed in seeds)
        return
    chunks = [
        seeds[start : start + _CHUNK_COUNT]
        for start in range(0, len(seeds), _CHUNK_COUNT)
    ]
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(
            ProcessPoolExecutor(
                jobs,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_install,
                initargs=(mutation,),
            )
        )
        stack.callback(pool.shutdown, cancel_futures=True)
        yield from pool.map(partial(_run_chunk, is_of_store=is_of_store), chunks)
