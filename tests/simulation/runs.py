"""Runs of many seeds, and what came of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import structlog
from attrs import Factory, define, frozen

from tests.simulation.mutations import install


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


__all__ = ["Failure", "Summary", "run_seed", "run_seeds"]

_CHUNK_COUNT = 50
_CRITICAL = 50


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
        agreed_share_max: The largest part of its bound that a run took to agree.
    """

    seed_count: int = 0
    counts: Counter[str] = Factory(Counter)
    checks: Counter[str] = Factory(Counter)
    failures: list[Failure] = Factory(list)
    agreed_share_max: float = 0.0

    def add(self, other: Summary) -> None:
        """Add what came of *other* runs."""
        self.seed_count += other.seed_count
        self.counts.update(other.counts)
        self.checks.update(other.checks)
        self.failures += other.failures
        self.agreed_share_max = max(self.agreed_share_max, other.agreed_share_max)


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep the shipped code's warnings of broken connections to itself."""
    config = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**config)


def run_seed(seed: int, write: Callable[[str], None] | None = None) -> Summary:
    """Run one seed; *write* takes the lines of its trace."""
    # Late, so that a mutation is installed before what it changes is loaded.
    from tests.simulation.scenario import make_scenario  # noqa: PLC0415
    from tests.simulation.world import World  # noqa: PLC0415

    world = World(make_scenario(seed), write)
    summary = Summary(seed_count=1)
    with _quiet_logs():
        try:
            result = world.run()
        except Exception as error:  # noqa: BLE001 - whatever breaks, breaks this seed
            summary.failures.append(Failure(seed, _problem_of(error)))
        else:
            summary.agreed_share_max = result.agreed_after_ns / result.bound_ns
    summary.counts.update(world.counts)
    summary.checks.update(world.checker.counts)
    return summary


def _problem_of(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if str(error) else f" ({frame.filename}:{frame.lineno}: {frame.line})"
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
