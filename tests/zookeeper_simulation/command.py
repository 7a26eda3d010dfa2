"""
``python -m tests.zookeeper_simulation``: run seeds, replay one, or try a mutation.

``--seeds N [--first S]``
    Run that many, on all processors or ``--jobs J``; ``--report FILE`` writes a page.
``--seed S [--trace]``
    Run one again, and show what happens in it.
``--mutation NAME``
    Break the shipped rule first; then the seeds must find it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.report import commit_name, consecutive, page, part_of, write_page
from tests.zookeeper_simulation.mutations import ZOOKEEPER_MUTATIONS
from tests.zookeeper_simulation.runs import Outcome, run_seed, run_seeds


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["render", "run"]

_FAILURES_MAX: Final = 10
_PROGRESS_SECONDS: Final = 10.0
_FAULT: Final = "fault: "
_CHECKED: Final = "checked: "
_RUN: Final = (
    *("election", "haservices/zookeeper", "nameservice"),
    *("tests/simulation", "tests/zookeeper_simulation"),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zookeeper_simulation",
        description="Run the rule of ZooKeeper's renewals under seeded faults.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    which.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processors to use"
    )
    parser.add_argument("--trace", action="store_true", help="show what happens")
    parser.add_argument("--report", type=Path, help="write a page about the run")
    parser.add_argument(
        "--mutation",
        choices=[mutation.name for mutation in ZOOKEEPER_MUTATIONS],
        help="break the shipped rule first",
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Return 0 if every rule held, 1 if one did not."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        outcome = run_seed(options.seed, print if options.trace else None)
        _print_failures(outcome)
        return 1 if outcome.failures else 0
    total = Outcome()
    commit = commit_name(_RUN)
    began = shown = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    for part in run_seeds(seeds, jobs=options.jobs, mutation=options.mutation):
        total.add(part)
        _print_failures(part)
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"{total.seed_count:,} of {options.seeds:,} seeds", flush=True)
        if len(total.failures) >= (1 if options.mutation else _FAILURES_MAX):
            break
    duration_seconds = time.monotonic() - began
    counts = total.counts
    faults = sum(n for name, n in counts.items() if name.startswith(_FAULT))
    print(
        f"{total.seed_count:,} seeds, {faults:,} faults, "
        f"{counts['leaderships granted']:,} leaderships, "
        f"{counts['sessions expired']:,} sessions expired "
        f"in {duration_seconds:.1f} s: {len(total.failures)} failed"
    )
    if options.report is not None:
        text = render(
            total,
            first=options.first,
            duration_seconds=duration_seconds,
            jobs=options.jobs,
            commit=commit,
        )
        write_page(options.report, text)
    return 1 if total.failures else 0


def _print_failures(outcome: Outcome) -> None:
    for seed, problem in outcome.failures:
        print(
            f"seed {seed} failed at {commit_name(_RUN)}: {problem}\n"
            f"  replay: python -m tests.zookeeper_simulation --seed {seed} --trace",
            flush=True,
        )


def render(
    outcome: Outcome, *, first: int, duration_seconds: float, jobs: int, commit: str
) -> str:
    """Return a page about a run."""
    counts = outcome.counts
    happened = Counter(
        {name: count for name, count in counts.items() if ": " not in name}
    )
    return page(
        "What the simulation of ZooKeeper has shown",
        "Written by `python -m tests.zookeeper_simulation --report FILE`. An\n"
        "ensemble of three or five servers with touch tables, pings, rounded\n"
        "deadlines, revalidation and deposed leaders, and two or three contenders\n"
        "that run the shipped rule of [renewals](../explanation/election.md), on one\n"
        "virtual time line.",
        figures=(),
        tables=(
            ("Faults", "what", part_of(counts, _FAULT)),
            ("Checks", "what", part_of(counts, _CHECKED)),
            ("What happened", "what", happened),
        ),
        failures=outcome.failures,
        seeds=consecutive(first, outcome.seed_count),
        duration_seconds=duration_seconds,
        jobs=jobs,
        commit=commit,
    )
