"""The table of all rows, and the JSON and plots that are kept of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from attrs import asdict

from benchmarks._harness import keep
from benchmarks.peers._interface import Row


__all__ = ["publish", "table"]

_HEADING = "| question | peer | n | p50 | p99 | unit | |"


def table(rows: Sequence[Row]) -> str:
    """Return *rows* as a table of Markdown."""
    lines = [_HEADING, "|---|---|---|---|---|---|---|"]
    for row in rows:
        measured = row.figure
        if measured is None or row.tail is None:
            cells = ["-"] * 4
        else:
            cells = [
                f"{measured.count:,}",
                _number(measured.median),
                _number(row.tail),
                measured.unit,
            ]
        note = " ".join(row.note.split())
        lines.append(f"| {' | '.join([row.question, row.peer, *cells, note])} |")
    return "\n".join(lines)


def publish(rows: Sequence[Row]) -> None:
    """Print the table, and keep the rows under results/."""
    print(table(rows))
    path = keep("peers", {"rows": [asdict(row) for row in rows]})
    print(f"load {os.getloadavg()[0]:.1f}; kept as {path}", flush=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
