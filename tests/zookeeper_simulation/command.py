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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.report import commit_name
from tests.zookeeper_simulation.mutations import ZOOKEEPER_MUTATIONS
from tests.zookeeper_simulation.runs import Outcome, run_seed, run_seeds


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["render", "run"]

_FAILURES_MAX: Final = 10
_PROGRESS_SECONDS: Final = 10.0
_FAULT: Final = "fault: "
_CHECKED: Final = "checked: "


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
        options.report.write_text(
            render(
                total,
                first=options.first,
                duration_seconds=duration_seconds,
                jobs=options.jobs,
                commit=commit_name(),
            ),
            encoding="utf-8",
        )
    return 1 if total.failures else 0


def _print_failures(outcome: Outcome) -> None:
    for seed, problem in outcome.failures:
        print(
            f"seed {seed} failed at {commit_name()}: {problem}\n"
            f"  replay: python -m tests.zookeeper_simulation --seed {seed} --trace",
            flush=True,
        )


def render(
    outcome: Outcome, *, first: int, duration_seconds: float, jobs: int, commit: str
) -> str:
    """Return a page about a run."""
    last = first + outcome.seed_count - 1
    lines = [
        "# What the simulation of ZooKeeper has shown",
        "",
        "Written by `python -m tests.zookeeper_simulation --report FILE`. An",
        "ensemble of three or five servers with touch tables, pings, rounded",
        "deadlines, revalidation and deposed leaders, and two or three contenders",
        "that run the shipped rule of [renewals](../explanation/election.md), on one",
        "virtual time line.",
        "",
        "| | |",
        "|---|---|",
        f"| commit | {commit} |",
        f"| seeds | {outcome.seed_count:,} ({first:,} to {last:,}) |",
        f"| seeds in which a rule did not hold | {len(outcome.failures)} |",
        f"| duration | {duration_seconds:.0f} s on {jobs} processor(s) |",
        "",
    ]
    for title, prefix in (
        ("Faults", _FAULT),
        ("Checks", _CHECKED),
        ("What happened", ""),
    ):
        lines += [f"## {title}", "", "| what | times |", "|---|---:|"]
        lines += [
            f"| {name.removeprefix(prefix)} | {count:,} |"
            for name, count in sorted(outcome.counts.items())
            if (name.startswith(prefix) if prefix else ": " not in name)
        ]
        lines.append("")
    lines += [f"Seed {seed}: {problem}" for seed, problem in outcome.failures]
    return "\n".join(lines).rstrip() + "\n"
