"""What a run of many seeds has shown, as a page of the documentation."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from tests.simulation.runs import Summary


__all__ = ["commit_name", "render"]

_ROOT = Path(__file__).parent.parent.parent
# What a run imports.
_RUN = (
    *("election", "leaderserver", "nameservice", "retrieval", "zmqtransport"),
    "tests/simulation",
)
_FAULT = "fault: "
_EPILOGUE = "epilogue: "


def commit_name() -> str:
    """Return the commit that is checked out, and whether what runs differs from it."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return "an unknown commit"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_RUN)
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
    faults = _part(counts, _FAULT)
    messages = Counter(
        {name: count for name, count in counts.items() if name.startswith("messages ")}
    )
    last = first + summary.seed_count - 1
    lines = [
        "# What the simulation has shown",
        "",
        "Written by `python -m tests.simulation --report FILE` (`tests/simulation`).",
        "The shipped server and client cores run on one virtual time line, under the",
        "faults below; the rules below are checked throughout.",
        "",
        "| | |",
        "|---|---|",
        f"| commit | {commit} |",
        f"| seeds | {summary.seed_count:,} ({first:,} to {last:,}) |",
        f"| seeds in which a rule did not hold | {len(summary.failures)} |",
        f"| faults injected | {sum(faults.values()):,} |",
        f"| servers started | {counts['servers started']:,} |",
        f"| leaderships granted | {counts['leaderships granted']:,} |",
        f"| leaderships confirmed | {counts['leaderships confirmed']:,} |",
        f"| commits to the store: attempted | {counts['commits attempted']:,} |",
        f"| commits to the store: accepted | {counts['commits accepted']:,} |",
        f"| checks made | {sum(summary.checks.values()):,} |",
        (
            f"| longest time to agree, of what is allowed | "
            f"{summary.agreed_share_max:.0%} |"
        ),
        f"| duration | {duration_seconds:.0f} s on {jobs} processor(s) |",
        "",
        *_table("Faults", "fault", faults),
        *_table("The network", "what became of messages", messages),
        *_table("Afterwards, one fault alone", "fault", _part(counts, _EPILOGUE)),
        *_table("Checks", "rule", summary.checks),
    ]
    for failure in summary.failures:
        lines += [f"Seed {failure.seed}: {failure.problem}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _part(counts: Counter[str], prefix: str) -> Counter[str]:
    return Counter(
        {
            name.removeprefix(prefix): count
            for name, count in counts.items()
            if name.startswith(prefix)
        }
    )


def _table(title: str, heading: str, counts: Counter[str]) -> list[str]:
    rows = [f"| {name} | {count:,} |" for name, count in sorted(counts.items())]
    return [f"## {title}", "", f"| {heading} | times |", "|---|---:|", *rows, ""]
