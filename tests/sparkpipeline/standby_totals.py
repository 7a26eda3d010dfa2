"""What tests/sparkpipeline/standby_app.py must have written; needs no Spark."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, Final


ROW_COUNT: Final = 20
KEY_COUNT: Final = 7


def expected_totals(batch_count: int) -> dict[str, int]:
    """Return the total of each key after that many batches, computed at once."""
    totals: Counter[str] = Counter()
    for value in range(batch_count * ROW_COUNT):
        totals[f"k{value % KEY_COUNT}"] += value
    return dict(totals)


def make_database(directory: Path) -> None:
    """Make the tables that the drivers write."""
    with sqlite3.connect(directory / "totals.sqlite") as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(
            "CREATE TABLE batches (batch_id INTEGER PRIMARY KEY, epoch INTEGER, name)"
        )
        database.execute("CREATE TABLE calls (batch_id INTEGER, epoch INTEGER)")
        database.execute("CREATE TABLE totals (key PRIMARY KEY, total INTEGER)")


def written_batches(directory: Path) -> list[tuple[int, int, str]]:
    """Return batch id, epoch and driver of each batch, by the order of batch ids."""
    return _read(directory, "SELECT batch_id, epoch, name FROM batches ORDER BY 1")


def sink_calls(directory: Path) -> list[tuple[int, int]]:
    """Return batch id and epoch of each call of the guarded sink, in order."""
    return _read(directory, "SELECT batch_id, epoch FROM calls ORDER BY rowid")


def written_totals(directory: Path) -> dict[str, int]:
    """Return the total of each key."""
    return dict(_read(directory, "SELECT key, total FROM totals"))


def _read(directory: Path, query: str) -> list[Any]:
    with sqlite3.connect(directory / "totals.sqlite", timeout=60.0) as database:
        return database.execute(query).fetchall()
