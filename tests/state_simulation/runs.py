"""Runs of many seeds, and what came of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from attrs import Factory, define, frozen

from tests.state_simulation.mutations import install


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


__all__ = ["Failure", "Summary", "run_seed", "run_seeds"]

_CHUNK_COUNT = 20


@frozen
class Failure:
    """A seed in which a rule did not hold, and which."""

    seed: int
    problem: str


@define
class Summary:
    """
    What came of some runs.

    Attributes:
        seed_count: How many.
        counts: What happened in them, by kind.
        checks: How often each rule was checked.
        failures: Where one did not hold.
        progress_ns_max: The longest that drivers took to make progress afterwards.
    """

    seed_count: int = 0
    counts: Counter[str] = Factory(Counter)
    checks: Counter[str] = Factory(Counter)
    failures: list[Failure] = Factory(list)
    progress_ns_max: int = 0

    def add(self, other: Summary) -> None:
        """Add what came of *other* runs."""
        self.seed_count += other.seed_count
        self.counts.update(other.counts)
        self.checks.update(other.checks)
        self.failures += other.failures
        self.progress_ns_max = max(self.progress_ns_max, other.progress_ns_max)


def run_seed(seed: int, write: Callable[[str], None] | None = None) -> Summary:
    """Run one seed; *write* takes the lines of its trace."""
    # Late, so that a mutation is installed before what it changes is loaded.
    from tests.state_simulation.scenario import make_scenario  # noqa: PLC0415
    from tests.state_simulation.world import World  # noqa: PLC0415

    world = World(make_scenario(seed), write)
    summary = Summary(seed_count=1)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever breaks, breaks this seed
        summary.failures.append(Failure(seed, _problem_of(error)))
    summary.progress_ns_max = world.progress_after_ns
    summary.counts.update(world.counts)
    summary.checks.update(world.checker.counts)
    return summary


def _problem_of(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f" ({frame.filename}:{frame.lineno}: {frame.line})"
    return f"{type(error).__name__}: {error}{place}"


def _run_chunk(seeds: Sequence[int]) -> Summary:
    summary = Summary()
    for seed in seeds:
        summary.add(run_seed(seed))
    return summary


def _install(mutation: str | None) -> None:
    if mutation is not None:
        install(mutation)


def run_seeds(
    seeds: Sequence[int], *, jobs: int, mutation: str | None, failures_max: int
) -> Iterator[Summary]:
    """
    Run *seeds* on *jobs* processors; yield what came of each few.

    Args:
        seeds: Which.
        jobs: How many at once.
        mutation: What other processes must install; this one has done so.
        failures_max: Stop after that many.
    """
    chunks = [
        seeds[start : start + _CHUNK_COUNT]
        for start in range(0, len(seeds), _CHUNK_COUNT)
    ]
    failure_count = 0
    with contextlib.ExitStack() as stack:
        summaries: Iterator[Summary]
        if jobs == 1:
            summaries = (run_seed(seed) for seed in seeds)
        else:
            pool = stack.enter_context(
                ProcessPoolExecutor(
                    jobs,
                    mp_context=multiprocessing.get_context("spawn"),
                    initializer=_install,
                    initargs=(mutation,),
                )
            )
            stack.callback(pool.shutdown, cancel_futures=True)
            summaries = pool.map(_run_chunk, chunks)
        for summary in summaries:
            yield summary
            failure_count += len(summary.failures)
            if failure_count >= failures_max:
                return
