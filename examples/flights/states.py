"""
The states of the demo: what each aircraft, route and carrier has flown until now.

Three streaming aggregations over the same replay, kept queryable as they grow, and the
same three computed once over the whole file by a batch job, which they must come to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.collector import JOB_ID
from haservices import HAConfig
from sparkpipeline import publish_state


__all__ = [
    "AIRCRAFT",
    "CARRIERS",
    "STATES",
    "FlightState",
    "compute_state",
    "start_state_stream",
]


@frozen(kw_only=True)
class FlightState:
    """
    A state, and the columns whose values are its keys.

    Attributes:
        name: Of the state.
        key: The key columns.
    """

    name: str
    key: tuple[str, ...]


AIRCRAFT: Final = FlightState(name="aircraft", key=("tailnum",))
CARRIERS: Final = FlightState(name="carriers", key=("carrier",))
STATES: Final = (
    AIRCRAFT,
    FlightState(name="routes", key=("origin", "dest")),
    CARRIERS,
)


def start_state_stream(
    replay: DataFrame,
    state: FlightState,
    config: HAConfig,
    checkpoint: Path,
    *,
    job_id: str = JOB_ID,
    goes_on: bool = False,
) -> StreamingQuery:
    """
    Start to aggregate *replay* by the keys of *state*, and to publish that.

    The query ends by itself when it has read everything, unless it *goes_on*.
    """
    writer = publish_state(
        _aggregated(replay, state),
        config,
        job_id=job_id,
        state_name=state.name,
        key=state.key,
        output_mode="update",
    )
    if not goes_on:
        writer = writer.trigger(availableNow=True)
    return (
        writer.option("checkpointLocation", str(checkpoint))
        .queryName(state.name)
        .start()
    )


def compute_state(
    spark: SparkSession, directory: Path, state: FlightState
) -> Mapping[Any, Mapping[str, Any]]:
    """Return what *state* must hold in the end, by key: a batch job over the files."""
    rows = _aggregated(spark.read.parquet(str(directory)), state).collect()
    computed: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        values = row.asDict(recursive=True)
        key = tuple(values.pop(name) for name in state.key)
        computed[key if len(key) > 1 else key[0]] = values
    return computed


def _aggregated(flights: DataFrame, state: FlightState) -> DataFrame:
    """Return what is known of each key: counts, sums and extremes."""
    return (
        flights.where(F.col(state.key[0]).isNotNull())
        .groupBy(*state.key)
        .agg(
            F.count(F.lit(1)).alias("flights"),
            _flown(F.col("distance")).alias("miles"),
            F.count(F.when(F.col("dep_time").isNull(), 1)).alias("cancelled"),
            F.count("arr_delay").alias("arrived"),
            F.sum("arr_delay").alias("arrival_delay"),
            F.max("arr_delay").alias("longest_arrival_delay"),
        )
    )


def _flown(distance: Column) -> Column:
    """Return the sum of *distance* over the flights that took place."""
    return F.coalesce(
        F.sum(F.when(F.col("dep_time").isNotNull(), distance)), F.lit(0)
    ).cast("long")
