"""What tests/sparkpipeline/standby_app.py writes, and must have; needs no Spark."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, final

import pyarrow.parquet as pq
from attrs import frozen


ROW_COUNT: Final = 20
KEY_COUNT: Final = 7

HoldPoint = Literal["claimed", "transaction", "written"]
"""Of a batch: before its transaction, within it, and before Spark's own commit."""


def expected_totals(batch_count: int) -> dict[str, int]:
    """Return the total of each key after that many batches, computed at once."""
    totals: Counter[str] = Counter()
    for value in range(batch_count * ROW_COUNT):
        totals[f"k{value % KEY_COUNT}"] += value
    return dict(totals)


def hold_path(directory: Path, name: str, point: HoldPoint) -> Path:
    """Return the file that has driver *name* wait at *point* while it is there."""
    return directory / f"hold-{name}-{point}"


def make_database(directory: Path) -> None:
    """Make the tables that the drivers write."""
    with _database(directory) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(
            "CREATE TABLE batches (batch_id INTEGER PRIMARY KEY, epoch INTEGER, name)"
        )
        database.execute("CREATE TABLE calls (batch_id INTEGER, epoch INTEGER)")
        database.execute("CREATE TABLE totals (key PRIMARY KEY, total INTEGER)")
        database.execute(
            "CREATE TABLE operator (batch_id INTEGER PRIMARY KEY, total INTEGER)"
        )


@final
@frozen(kw_only=True)
class Written:
    """
    What became of a batch.

    Attributes:
        is_admitted: Whether no newer leadership had written.
        is_new: Whether the batch was not there yet.
    """

    is_admitted: bool
    is_new: bool


def write_batch(
    directory: Path,
    name: str,
    batch_id: int,
    epoch: int,
    rows: Sequence[tuple[str, int]],
    *,
    before_commit: Callable[[], None] = lambda: None,
) -> Written:
    """
    Add *rows* to the totals, once, unless a newer epoch has written.

    One transaction compares the epoch and the batch id, and writes.
    """
    with _database(directory) as database:
        database.execute("BEGIN IMMEDIATE")
        (newest,) = database.execute("SELECT max(epoch) FROM calls").fetchone()
        if newest is not None and newest > epoch:
            database.execute("ROLLBACK")
            return Written(is_admitted=False, is_new=False)
        database.execute(
            "INSERT INTO calls (batch_id, epoch) VALUES (?, ?)", (batch_id, epoch)
        )
        inserted = database.execute(
            "INSERT OR IGNORE INTO batches (batch_id, epoch, name) VALUES (?, ?, ?)",
            (batch_id, epoch, name),
        )
        is_new = inserted.rowcount == 1
        if is_new:
            database.executemany(
                "INSERT INTO totals (key, total) VALUES (?, ?) ON CONFLICT (key) "
                "DO UPDATE SET total = total + excluded.total",
                rows,
            )
        before_commit()
        database.execute("COMMIT")
    return Written(is_admitted=True, is_new=is_new)


def write_operator_total(directory: Path, batch_id: int, total: int) -> None:
    """Write what the operator says after a batch; the same if it says so again."""
    with _database(directory) as database:
        database.execute(
            "INSERT OR REPLACE INTO operator (batch_id, total) VALUES (?, ?)",
            (batch_id, total),
        )


def sink_calls(directory: Path) -> list[tuple[int, int]]:
    """Return batch id and epoch of each call of the guarded sink, in order."""
    return _read(directory, "SELECT batch_id, epoch FROM calls ORDER BY rowid")[0]


def check_database(directory: Path) -> int:
    """Assert that every batch is there once, and that the totals are theirs."""
    batches, totals = _read(directory, _BATCHES, _TOTALS)
    assert [batch_id for batch_id, _, _ in batches] == list(range(len(batches)))
    epochs = [epoch for _, epoch, _ in batches]
    assert epochs == sorted(epochs)
    assert dict(totals) == expected_totals(len(batches))
    return len(batches)


def check_operator(directory: Path) -> int:
    """Assert that the operator has seen each row of each batch once."""
    (written,) = _read(directory, "SELECT batch_id, total FROM operator ORDER BY 1")
    assert written == [
        (batch_id, sum(expected_totals(batch_id + 1).values()))
        for batch_id in range(len(written))
    ]
    return len(written)


def check_files(directory: Path) -> int:
    """Assert the same of what Spark's file sink has committed to its log."""
    log = directory / "rows" / "_spark_metadata"
    numbered = {int(path.name.split(".")[0]): path for path in log.glob("[0-9]*")}
    # A compacted log has the batches before it, too, whose own logs go at some time.
    first = max((n for n, path in numbered.items() if path.suffix), default=0)
    newest = max(numbered)
    totals: Counter[str] = Counter()
    for number in range(first, newest + 1):
        _, *lines = numbered[number].read_text().splitlines()  # a version comes first
        for line in lines:
            path = json.loads(line)["path"].removeprefix("file://")
            for row in pq.read_table(path).to_pylist():
                totals[row["key"]] += row["value"]
    assert dict(totals) == expected_totals(newest + 1)
    return newest + 1


_BATCHES: Final = "SELECT batch_id, epoch, name FROM batches ORDER BY 1"
_TOTALS: Final = "SELECT key, total FROM totals"


def _read(directory: Path, *queries: str) -> list[list[Any]]:
    """Return what *queries* find, all at one moment."""
    with _database(directory) as database:
        database.execute("BEGIN")
        return [database.execute(query).fetchall() for query in queries]


@contextlib.contextmanager
def _database(directory: Path) -> Iterator[sqlite3.Connection]:
    # A driver that is paused within a transaction keeps the lock until it is woken.
    path = directory / "totals.sqlite"
    database = sqlite3.connect(path, timeout=60.0, isolation_level=None)
    try:
        yield database
    finally:
        database.close()
