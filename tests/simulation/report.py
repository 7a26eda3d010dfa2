"""What a run of many seeds has shown, as a page of the documentation."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.simulation.runs import Summary


__all__ = ["commit_name", "consecutive", "page", "part_of", "render", "write_page"]

_ROOT = Path(__file__).parent.parent.parent
_RUN: Final = (
    *("election", "leaderserver", "nameservice", "retrieval", "zmqtransport"),
    "tests/simulation",
)
_FAULT = "fault: "
_EPILOGUE = "epilogue: "


def commit_name(run: Sequence[str] = _RUN) -> str:
    """
    Return the commit that is checked out, and whether what runs differs from it.

    Args:
        run: The folders that a run imports.
    """
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return "an unknown commit"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *run)
    return f"{commit} with local changes" if changed else commit


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def render(
    summary: Summary, *, first: int, duration_seconds: float, jobs: int, commit: str
) -> str:
    """Return the report."""
    counts = summary.counts
    faults = part_of(counts, _FAULT)
    messages = Counter(
        {name: count for name, count in counts.items() if name.startswith("messages ")}
    )
    return page(
        "What the simulation has shown",
        "Written by `python -m tests.simulation --report FILE` (`tests/simulation`).\n"
        "The shipped server and client cores run on one virtual time line, under the\n"
        "faults below; the rules below are checked throughout.",
        figures=(
            ("faults injected", f"{sum(faults.values()):,}"),
            ("servers started", f"{counts['servers started']:,}"),
            ("leaderships granted", f"{counts['leaderships granted']:,}"),
            ("leaderships confirmed", f"{counts['leaderships confirmed']:,}"),
            ("commits to the store: attempted", f"{counts['commits attempted']:,}"),
            ("commits to the store: accepted", f"{counts['commits accepted']:,}"),
            ("checks made", f"{sum(summary.checks.values()):,}"),
            (
                "longest time to agree, of what is allowed",
                f"{summary.agreed_share_max:.0%}",
            ),
        ),
        tables=(
            ("Faults", "fault", faults),
            ("The network", "what became of messages", messages),
            ("Afterwards, one fault alone", "fault", part_of(counts, _EPILOGUE)),
            ("Checks", "rule", summary.checks),
        ),
        failures=[(failure.seed, failure.problem) for failure in summary.failures],
        seeds=consecutive(first, summary.seed_count),
        duration_seconds=duration_seconds,
        jobs=jobs,
        commit=commit,
    )


def consecutive(first: int, count: int) -> str:
    """Return how a page names *count* seeds from *first* on."""
    return f"{count:,} ({first:,} to {first + count - 1:,})"


def page(
    title: str,
    preface: str,
    *,
    figures: Iterable[tuple[str, str]],
    tables: Iterable[tuple[str, str, Counter[str]]],
    failures: Sequence[tuple[int, str]],
    seeds: str,
    duration_seconds: float,
    jobs: int,
    commit: str,
) -> str:
    """
    Return a page about a run.

    Args:
        title: Its heading.
        preface: What was run, and how to run it again.
        figures: What was counted in all: names and values.
        tables: Title, heading of the first column, and how often what happened.
        failures: Each seed in which a rule did not hold, and what was wrong.
        seeds: Which were run.
        duration_seconds: How long it took.
        jobs: On how many processors.
        commit: Of what.
    """
    lines = [
        f"# {title}",
        "",
        preface,
        "",
        "| | |",
        "|---|---|",
        f"| commit | {commit} |",
        f"| seeds | {seeds} |",
        f"| seeds in which a rule did not hold | {len(failures)} |",
        *(f"| {name} | {value} |" for name, value in figures),
        f"| duration | {duration_seconds:.0f} s on {jobs} processor(s) |",
        "",
    ]
    for heading, column, counts in tables:
        lines += [f"## {heading}", "", f"| {column} | times |", "|---|---:|"]
        lines += [f"| {name} | {count:,} |" for name, count in sorted(counts.items())]
        lines.append("")
    for seed, problem in failures:
        lines += [f"Seed {seed}: {problem}", ""]
    return "\n".join(lines).rstrip() + "\n"


def write_page(path: Path, text: str) -> None:
    """Write a page about a run where it was asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def part_of(counts: Counter[str], prefix: str) -> Counter[str]:
    """Return the counts whose names begin with *prefix*, without it."""
    return Counter(
        {
            name.removeprefix(prefix): count
            for name, count in counts.items()
            if name.startswith(prefix)
        }
    )
