"""
``python -m tests.state_simulation``: run seeds, replay one, or see mutations found.

``--seeds N [--first S] [--every-kind]``
    Run that many from S on, or in turn of each kind, without the first S of it; on all
    processors or ``--jobs J``; ``--counts`` says what happened; ``--report FILE``
    writes a page about it.
``--seed S [--trace]``
    Run one again, and show everything that happens in it.
``--mutation NAME``
    Break the shipped code first; then the seeds must find it.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.report import commit_name, consecutive, page, part_of, write_page
from tests.state_simulation.kinds import seeds_of_every_kind
from tests.state_simulation.mutations import MUTATIONS
from tests.state_simulation.runs import Summary, run_seed, run_seeds


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["render", "run"]

_FAILURES_MAX: Final = 10
_PROGRESS_SECONDS: Final = 10.0
_NS_PER_SECOND: Final = 1_000_000_000
_FAULT: Final = "fault: "
_RUN: Final = (
    *("election", "nameservice", "queryablestate", "rescaling", "retrieval"),
    *("zmqtransport", "tests/simulation", "tests/state_simulation"),
)
_FIGURES: Final = (
    "entries decided",
    "batches committed",
    "readers told",
    "answers without the proxy",
    "copies asked instead of primaries",
    "copies promoted",
    "primaries changed",
    "snapshots taken",
    "jobs restored",
)
_PREFACE: Final = """\
Written by `python -m tests.state_simulation --report FILE`
(`tests/state_simulation`).  The shipped cores of proxies, nodes and clients, and the
shipped stores on real data directories, run on one virtual time line, with drivers
that commit batches and operators that move key groups, take snapshots and restore
them; in seven of ten seeds under all the faults below, in one under moves alone, in
two with one node away at a time.  In four of ten seeds rows expire.  There are four
kinds of seeds (`tests/state_simulation/kinds.py`): in one of them nodes are cut off
again and again while clients ask them, in another states are taken over, too.\
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.state_simulation",
        description="Run the shipped cores of queryable state under seeded faults.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    which.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--every-kind",
        action="store_true",
        help="take the seeds in turn of each kind; leave out the first of each",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processors to use"
    )
    parser.add_argument("--trace", action="store_true", help="show what happens")
    parser.add_argument("--report", type=Path, help="write a page about the run")
    parser.add_argument("--counts", action="store_true", help="say what happened")
    parser.add_argument(
        "--mutation",
        choices=[mutation.name for mutation in MUTATIONS],
        help="break the shipped code first",
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Return 0 if every rule held, 1 if one did not."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        summary = run_seed(options.seed, print if options.trace else None)
        _print_failures(summary)
        if options.counts:
            _print_counts(summary)
        return 1 if summary.failures else 0
    return _run_many(options)


def _run_many(options: argparse.Namespace) -> int:
    summary = Summary()
    commit = commit_name(_RUN)
    began = time.monotonic()
    shown = began
    seeds: Sequence[int] = range(options.first, options.first + options.seeds)
    if options.every_kind:
        seeds = seeds_of_every_kind(options.first, options.seeds)
    for part in run_seeds(
        seeds,
        jobs=options.jobs,
        mutation=options.mutation,
        failures_max=1 if options.mutation else _FAILURES_MAX,
    ):
        summary.add(part)
        _print_failures(part)
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"{summary.seed_count:,} of {options.seeds:,} seeds", flush=True)
    duration_seconds = time.monotonic() - began
    faults = sum(n for name, n in summary.counts.items() if name.startswith(_FAULT))
    if options.counts:
        _print_counts(summary)
    print(
        f"{summary.seed_count:,} seeds, {faults:,} faults, "
        f"{summary.counts['entries decided']:,} entries, "
        f"{summary.counts['readers told']:,} answers, "
        f"{sum(summary.checks.values()):,} checks in {duration_seconds:.1f} s: "
        f"{len(summary.failures)} failed"
    )
    if options.report is not None:
        text = render(
            summary,
            seeds=_named(options, summary.seed_count),
            duration_seconds=duration_seconds,
            jobs=options.jobs,
            commit=commit,
        )
        write_page(options.report, text)
    return 1 if summary.failures else 0


def _named(options: argparse.Namespace, count: int) -> str:
    first: int = options.first
    if not options.every_kind:
        return consecutive(first, count)
    return f"{count:,} (in turn of each kind, {first:,} of it left out)"


def render(
    summary: Summary, *, seeds: str, duration_seconds: float, jobs: int, commit: str
) -> str:
    """Return a page about a run."""
    counts = summary.counts
    faults = part_of(counts, _FAULT)
    progress_seconds = summary.progress_ns_max / _NS_PER_SECOND
    return page(
        "What the simulation of queryable state has shown",
        _PREFACE,
        figures=(
            ("faults injected", f"{sum(faults.values()):,}"),
            *((name, f"{counts[name]:,}") for name in _FIGURES),
            ("checks made", f"{sum(summary.checks.values()):,}"),
            (
                "longest time until drivers made progress again",
                f"{progress_seconds:.1f} s of virtual time",
            ),
        ),
        tables=(
            ("Faults", "fault", faults),
            ("Checks", "rule", summary.checks),
        ),
        failures=[(failure.seed, failure.problem) for failure in summary.failures],
        seeds=seeds,
        duration_seconds=duration_seconds,
        jobs=jobs,
        commit=commit,
    )


def _print_counts(summary: Summary) -> None:
    for title, counts in (("happened", summary.counts), ("checked", summary.checks)):
        print(f"{title}:")
        for name, count in sorted(counts.items()):
            print(f"  {count:10,} {name}")
    seconds = summary.progress_ns_max / _NS_PER_SECOND
    print(f"drivers made progress within {seconds:.1f} s of virtual time")


def _print_failures(summary: Summary) -> None:
    for failure in summary.failures:
        print(
            f"seed {failure.seed} failed at {commit_name(_RUN)}: {failure.problem}\n"
            f"  replay: python -m tests.state_simulation --seed {failure.seed} --trace",
            flush=True,
        )
