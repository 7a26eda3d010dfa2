"""The table of all rows, and the JSON and plots that are kept of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

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
    plot(rows, path)
    print(f"load {os.getloadavg()[0]:.1f}; kept as {path}", flush=True)


def plot(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draw how cost grows, an SVG for each curve beside the JSON; return them."""
    import matplotlib as mpl  # noqa: PLC0415 (slow, and not wanted by tests)

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (as above)

    curves: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
    units = {}
    for row in rows:
        if row.at is not None and row.figure is not None:
            what, grows, amount = row.at
            curve = curves.setdefault((what, grows), {})
            curve.setdefault(row.peer, []).append((amount, row.figure.median))
            units[what] = row.figure.unit
    drawn = []
    for (what, grows), curve in curves.items():
        if all(len(points) < 2 for points in curve.values()):
            continue
        figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
        for peer, points in curve.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=peer)
        axes.set(xscale="log", yscale="log", xlabel=grows, ylabel=units[what])
        axes.set_title(what)
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend()
        name = "-".join(f"{what} by {grows}".replace(",", "").split())
        drawn.append(path.with_name(f"{path.stem}-{name}.svg"))
        figure.savefig(drawn[-1])
        plt.close(figure)
    return drawn


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
