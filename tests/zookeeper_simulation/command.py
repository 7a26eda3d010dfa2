"""
``python -m tests.zookeeper_simulation``: run seeds, replay one, or try a mutation.

``--seeds N [--first S]``
    Run that many, on all processors or ``--jobs J``; ``--report FILE`` writes a page.
``--seed S [--trace]``
    Run one again, and show what happens in it.
``--store``
    Run seeds about the leader store, in place of those about who leads.
``--mutation NAME``
    Break what is shipped first; then the seeds must find it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.report import commit_name, consecutive, page, part_of, write_page
from tests.zookeeper_simulation.mutations import STORE_MUTATIONS, ZOOKEEPER_MUTATIONS
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
        description="Run what is shipped for ZooKeeper under seeded faults.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    which.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processors to use"
    )
    parser.add_argument("--trace", action="store_true", help="show what happens")
    parser.add_argument(
        "--store", action="store_true", help="run seeds about the leader store"
    )
    parser.add_argument("--report", type=Path, help="write a page about the run")
    parser.add_argument(
        "--mutation",
        choices=[one.name for one in (*ZOOKEEPER_MUTATIONS, *STORE_MUTATIONS)],
        help="break what is shipped first",
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Return 0 if every rule held, 1 if one did not."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        write = print if options.trace else None
        outcome = run_seed(options.seed, write, is_of_store=options.store)
        _print_failures(outcome, is_of_store=options.store)
        return 1 if outcome.failures else 0
    total = Outcome()
    commit = commit_name(_RUN)
    began = shown = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    for part in run_seeds(
        seeds,
        jobs=options.jobs,
        mutation=options.mutation,
        is_of_store=options.store,
    ):
        total.add(part)
        _print_failures(part, is_of_store=options.store)
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"{total.seed_count:,} of {options.seeds:,} seeds", flush=True)
        if len(total.failures) >= (1 if options.mutation else _FAILURES_MAX):
            break
    duration_seconds = time.monotonic() - began
    counts = total.counts
    faults = sum(n for name, n in counts.items() if name.startswith(_FAULT))
    happened = "commits done" if options.store else "sessions expired"
    print(
        f"{total.seed_count:,} seeds, {faults:,} faults, "
        f"{counts['leaderships granted']:,} leaderships, "
        f"{counts[happened]:,} {happened} "
        f"in {duration_seconds:.1f} s: {len(total.failures)} failed"
    )
    if options.report is not None:
        text = render(
            total,
            first=options.first,
            duration_seconds=duration_seconds,
            jobs=options.jobs,
            commit=commit,
            is_of_store=options.store,
        )
        write_page(options.report, text)
    return 1 if total.failures else 0


def _print_failures(outcome: Outcome, *, is_of_store: bool) -> None:
    store = " --store" if is_of_store else ""
    for seed, problem in outcome.failures:
        print(
            f"seed {seed} failed at {commit_name(_RUN)}: {problem}\n"
            "  replay: python -m tests.zookeeper_simulation"
            f"{store} --seed {seed} --trace",
            flush=True,
        )


_LEADERS: Final = """\
Written by `python -m tests.zookeeper_simulation --report FILE`. An
ensemble of three or five servers with touch tables, pings, rounded
deadlines, revalidation and deposed leaders, and two or three contenders
that run the shipped rule of [renewals](../explanation/election.md), on one
virtual time line.\
"""
_STORE: Final = """\
Written by `python -m tests.zookeeper_simulation --store --report FILE`. Threads
of two processes that lead in turn, and of one that reads and cleans up, run the
shipped driver of the leader store, with its guesses, turns and bundles, while
connections are lost, waits are given up and leaderships end. What the nodes hold
is compared with a dictionary after each transaction.\
"""


def render(
    outcome: Outcome,
    *,
    first: int,
    duration_seconds: float,
    jobs: int,
    commit: str,
    is_of_store: bool = False,
) -> str:
    """Return a page about a run."""
    counts = outcome.counts
    happened = Counter(
        {name: count for name, count in counts.items() if ": " not in name}
    )
    return page(
        "What the simulation of ZooKeeper's leader store has shown"
        if is_of_store
        else "What the simulation of ZooKeeper has shown",
        _STORE if is_of_store else _LEADERS,
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
