"""
Dates and moments: Spark stores days and microseconds since 1970, Python has values.

Spark's years go from -5,877,641 to 294,247 (timestamps) and further (dates), Python's
from 1 to 9999.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final


__all__ = ["YearError", "date_of", "days_of", "microseconds_of", "moment_of"]

_DAY_OF_EPOCH: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NTZ: Final = _EPOCH.replace(tzinfo=None)
_MICROSECOND: Final = timedelta(microseconds=1)


class YearError(ValueError):
    """
    A date, or a moment, lies in a year that Python has not, and Spark has.

    It is no fault of the peer that sent it.
    """

    def __init__(self) -> None:
        super().__init__(
            "it holds a date before year 1 or after year 9999, for which Python has no "
            "value: read it as a table, as Parquet or with SQL"
        )


def date_of(days: int) -> date:
    """Return the date that is *days* after 1970-01-01, or raise `YearError`."""
    try:
        return date.fromordinal(days + _DAY_OF_EPOCH)
    except (OverflowError, ValueError):
        raise YearError from None


def days_of(value: date) -> int:
    """Return how many days *value* is after 1970-01-01."""
    return value.toordinal() - _DAY_OF_EPOCH


def moment_of(microseconds: int, *, is_aware: bool) -> datetime:
    """
    Return the moment that is *microseconds* after the beginning of 1970.

    Args:
        microseconds: Of UTC, or of local time.
        is_aware: Which of the two; a naive moment is of local time.

    Raises:
        YearError: If Python has no such moment.
    """
    try:
        return (_EPOCH if is_aware else _EPOCH_NTZ) + timedelta(
            microseconds=microseconds
        )
    except OverflowError:
        raise YearError from None


def microseconds_of(moment: datetime, *, is_aware: bool) -> int:
    """
    Return how many microseconds *moment* is after the beginning of 1970.

    Args:
        moment: Aware if *is_aware*, else naive.
        is_aware: Which of the two.

    Raises:
        YearError: If it has another year in UTC, which Python has not.
        TypeError: If it is no moment: ``pandas.NaT`` is a `datetime`.
        ValueError: Likewise.
        OverflowError: Likewise.
    """
    number = (moment - (_EPOCH if is_aware else _EPOCH_NTZ)) // _MICROSECOND
    moment_of(number, is_aware=is_aware)
    return number
