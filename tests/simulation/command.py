"""
``python -m tests.simulation``: run seeds, replay one, or see that mutations are found.

``--seeds N [--first S]``
    Run that many, on all processors or ``--jobs J``; ``--report FILE`` writes a page
    about it.
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

from tests.simulation.mutations import MUTATIONS
from tests.simulation.report import commit_name, render, write_page
from tests.simulation.runs import Summary, run_seed, run_seeds


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["run"]

_FAILURES_MAX: Final = 10
_PROGRESS_SECONDS: Final = 10.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Run the shipped cores under seeded faults.",
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
        return 1 if summary.failures else 0
    return _run_many(options)


def _run_many(options: argparse.Namespace) -> int:
    summary = Summary()
    commit = commit_name()
    began = time.monotonic()
    shown = began
    seeds = range(options.first, options.first + options.seeds)
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
    faults = sum(n for name, n in summary.counts.items() if name.startswith("fault: "))
    print(
        f"{summary.seed_count:,} seeds, {faults:,} faults, "
        f"{summary.counts['leaderships granted']:,} leaderships, "
        f"{sum(summary.checks.values()):,} checks in {duration_seconds:.1f} s: "
        f"{len(summary.failures)} failed"
    )
    if options.report is not None:
        text = render(
            summary,
            first=options.first,
            duration_seconds=duration_seconds,
            jobs=options.jobs,
            commit=commit,
        )
        write_page(options.report, text)
    return 1 if summary.failures else 0


def _print_failures(summary: Summary) -> None:
    for failure in summary.failures:
        print(
            f"seed {failure.seed} failed at {commit_name()}: {failure.problem}\n"
            f"  replay: python -m tests.simulation --seed {failure.seed} --trace",
            flush=True,
        )
