from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from examples.flights.data import (
    FLIGHT_COUNT,
    carrier_names,
    count_flights,
    write_replay,
)
from examples.flights.job import summarise
from examples.flights.totals import flight_count


def read(directory: Path) -> pa.Table:
    """Return all files of *directory* as one table."""
    return pa.concat_tables(
        pyarrow.parquet.read_table(path) for path in sorted(directory.iterdir())
    )


@pytest.mark.parametrize("flight_count_max", [None, 1_000])
def test_the_replay_is_the_file(tmp_path: Path, flight_count_max: int | None) -> None:
    """What is replayed adds up to what a plain count of the same lines gives."""
    written = write_replay(tmp_path, file_count=7, flight_count_max=flight_count_max)
    counted = count_flights(flight_count_max)
    assert written == flight_count(counted) == (flight_count_max or FLIGHT_COUNT)
    assert len(list(tmp_path.iterdir())) == 7
    assert summarise(read(tmp_path)) == counted
    assert counted.keys() <= carrier_names().keys()


def test_unknown_delays_add_nothing() -> None:
    """A carrier whose flights were all cancelled has sums of zero, not unknown ones."""
    table = pa.table(
        {
            "carrier": ["OO", "OO"],
            "dep_time": pa.array([None, None], pa.int64()),
            "dep_delay": pa.array([None, None], pa.int64()),
            "arr_delay": pa.array([None, None], pa.int64()),
            "distance": [100, 200],
        }
    )
    summary = summarise(table)["OO"]
    assert (summary.flight_count, summary.cancelled_count) == (2, 2)
    assert (summary.departure_delay_minutes, summary.arrival_delay_minutes) == (0, 0)
    assert summary.distance_miles == 300
