"""A ``transformWithState`` with variables of all kinds, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
)


VARIABLES = ("last", "log", "by_parity", "fresh")

HOUR_MS = 3_600_000

CLEAR = -1
"""The number in a row that has all variables of its key cleared."""

REWRITE = -2
"""The number in a row that has a list put anew, and an entry of a map removed."""


class Variables(StatefulProcessor):
    """Keeps each number of a key in a value, a list, a map, and a value with TTL."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the variables."""
        self._last = handle.getValueState("last", "n long, text string")
        self._log = handle.getListState("log", "n long")
        self._by_parity = handle.getMapState("by_parity", "parity string", "n long")
        self._fresh = handle.getValueState("fresh", "n long", HOUR_MS)

    def handleInputRows(  # noqa: N802 (Spark's interface)
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 (Spark's interface)
    ) -> Iterator[Row]:
        """Take the rows of one key; give nothing."""
        for row in rows:
            if row.n == CLEAR:
                for state in (self._last, self._log, self._by_parity, self._fresh):
                    state.clear()
            elif row.n == REWRITE:
                self._log.put([(70,), (80,)])
                self._by_parity.removeKey(("odd",))
            else:
                self._last.update((row.n, f"number {row.n}"))
                self._log.appendValue((row.n,))
                self._by_parity.updateValue(("odd" if row.n % 2 else "even",), (row.n,))
                self._fresh.update((row.n,))
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


def variables(frame: DataFrame, key: str) -> DataFrame:
    """Return the query that keeps the numbers of *frame* by *key*."""
    return frame.groupBy(key).transformWithState(
        statefulProcessor=Variables(),
        outputStructType=f"{key} string",
        outputMode="update",
        timeMode="processingTime",  # a TTL needs it
    )


class Number(StatefulProcessor):
    """
    Keeps the last number of a key, and with *has_double* twice of it as well.

    Args:
        has_double: Whether the variable has another column than it had before.
    """

    def __init__(self, *, has_double: bool) -> None:
        self._has_double = has_double

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the variable."""
        columns = "n long, double long" if self._has_double else "n long"
        self._last = handle.getValueState("last", columns)

    def handleInputRows(  # noqa: N802 (Spark's interface)
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 (Spark's interface)
    ) -> Iterator[Row]:
        """Take the rows of one key; give nothing."""
        for row in rows:
            self._last.update((row.n, 2 * row.n) if self._has_double else (row.n,))
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


def last_numbers(frame: DataFrame, key: str, *, has_double: bool) -> DataFrame:
    """Return the query that keeps the last number of *frame* by *key*."""
    return frame.groupBy(key).transformWithState(
        statefulProcessor=Number(has_double=has_double),
        outputStructType=f"{key} string",
        outputMode="update",
        timeMode="none",
    )


class NoVariables(StatefulProcessor):
    """Keeps nothing."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare nothing."""

    def handleInputRows(  # noqa: N802 (Spark's interface)
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 (Spark's interface)
    ) -> Iterator[Row]:
        """Give nothing."""
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


def without_variables(frame: DataFrame, key: str) -> DataFrame:
    """Return a query that has such an operator, which keeps nothing of *frame*."""
    return frame.groupBy(key).transformWithState(
        statefulProcessor=NoVariables(),
        outputStructType=f"{key} string",
        outputMode="update",
        timeMode="none",
    )
