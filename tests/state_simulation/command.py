"""
``python -m tests.state_simulation``: run seeds, replay one, or see mutations found.

``--seeds N [--first S]``
    Run that many, on all processors or ``--jobs J``; ``--counts`` says what happened.
``--seed S [--trace]``
    Run one again, and show everything that happens in it.
``--mutation NAME``
    Break the shipped code first; then the seeds must find it.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, Final

from tests.simulation.report import commit_name
from tests.state_simulation.mutations import MUTATIONS
from tests.state_simulation.runs import Summary, run_seed, run_seeds


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["run"]

_FAILURES_MAX: Final = 10
_PROGRESS_SECONDS: Final = 10.0
_NS_PER_SECOND: Final = 1_000_000_000
_FAULT: Final = "fault: "


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
        "--jobs", type=int, default=os.cpu_count() or 1, help="processors to use"
    )
    parser.add_argument("--trace", action="store_true", help="show what happens")
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
    began = time.monotonic()
    shown = began
    for part in run_seeds(
        range(options.first, options.first + options.seeds),
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
    return 1 if summary.failures else 0


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
            f"seed {failure.seed} failed at {commit_name()}: {failure.problem}\n"
            f"  replay: python -m tests.state_simulation --seed {failure.seed} --trace",
            flush=True,
        )
