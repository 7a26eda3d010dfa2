"""Charts as numbers and shapes, for a template to draw; pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, final

from attrs import frozen

from queryablestate.schema.schema import AtomicType, DataType, DecimalType, Field


__all__ = [
    "Bar",
    "bars_of",
    "histogram_of",
    "is_numeric",
    "number_of",
    "number_text",
    "numeric_columns",
]

_NUMERIC: Final = frozenset(
    {
        AtomicType.TINYINT,
        AtomicType.SMALLINT,
        AtomicType.INT,
        AtomicType.BIGINT,
        AtomicType.FLOAT,
        AtomicType.DOUBLE,
    }
)
_WIDTH_MIN: Final = 1e-300
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


def is_numeric(data_type: DataType) -> bool:
    """Return whether a column of this type can be charted."""
    return isinstance(data_type, DecimalType) or data_type in _NUMERIC


def numeric_columns(fields: Iterable[Field]) -> list[str]:
    """Return the names of those *fields* that can be charted."""
    return [one.name for one in fields if is_numeric(one.type)]


def number_of(value: Any) -> float | None:
    """Return *value* as a finite number; None if it is null or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def number_text(number: float) -> str:
    """Return *number* for people, with six digits that matter."""
    if number.is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.6g}"


@final
@frozen
class Bar:
    """
    One bar, which begins at zero.

    Attributes:
        label: What it is of.
        text: Its number, for people.
        start: Where it begins, 0 to 100.
        length: How long it is, 0 to 100.
    """

    label: str
    text: str
    start: float
    length: float


def bars_of(rows: Iterable[tuple[str, float]], count: int) -> list[Bar]:
    """Return the *count* rows with the largest numbers as bars, the largest first."""
    top = heapq.nlargest(count, rows, key=lambda row: row[1])
    return _bars([(label, number_text(number), number) for label, number in top])


def histogram_of(numbers: Sequence[float], count_max: int) -> list[Bar]:
    """
    Return how many *numbers* there are in each of equal ranges, as bars.

    Args:
        numbers: Finite.
        count_max: How many ranges at most; their borders are round numbers.
    """
    if not numbers:
        return []
    least, most = min(numbers), max(numbers)
    # Half of each first: the difference of two doubles need not be one.
    span = most / 2 - least / 2
    if 2 * span / count_max < _WIDTH_MIN or not math.isfinite(2 * span):
        return _bars([(number_text(least), f"{len(numbers):,}", float(len(numbers)))])
    width = _round_up(2 * span / count_max)
    first = math.floor(least / width)
    last = math.floor(most / width)
    counts = [0] * (last - first + 1)
    for number in numbers:
        counts[min(max(math.floor(number / width) - first, 0), len(counts) - 1)] += 1
    return _bars(
        [
            (
                _range_text((first + place) * width, (first + place + 1) * width),
                f"{count:,}",
                float(count),
            )
            for place, count in enumerate(counts)
        ]
    )


def _range_text(least: float, below: float) -> str:
    return f"{number_text(least)} to below {number_text(below)}"


def _round_up(width: float) -> float:
    """Return the least of 1, 2, 2.5 and 5, times a power of ten, from *width* on."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(step * power for step in _STEPS if step * power >= width * (1 - 1e-12))


def _bars(rows: Sequence[tuple[str, str, float]]) -> list[Bar]:
    least = min((number for _, _, number in rows), default=0.0)
    most = max((number for _, _, number in rows), default=0.0)
    low, high = min(least, 0.0), max(most, 0.0)
    span = high / 2 - low / 2  # as above
    if span <= 0:
        return [Bar(label, text, 0.0, 0.0) for label, text, _ in rows]

    def place(number: float) -> float:
        return round(100 * ((number / 2 - low / 2) / span), 3)

    zero = place(0.0)
    return [
        Bar(label, text, min(zero, place(number)), round(abs(place(number) - zero), 3))
        for label, text, number in rows
    ]
