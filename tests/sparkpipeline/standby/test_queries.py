"""Which queries run, while some of them end (H3)."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from sparkpipeline.standby.queries import active_queries


if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


pytestmark = pytest.mark.spark

# Each round ends a query at another moment of a look; one in three hit the gap.
ROUND_COUNT = 12


def start(spark: SparkSession, checkpoint: Path) -> StreamingQuery:
    """Start a query that goes on until it is stopped."""
    return (
        spark.readStream.format("rate")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="100 milliseconds")
        .start()
    )


@pytest.mark.proves("H3")
def test_a_query_may_end_while_it_is_looked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """H3: a driver that lost its leadership stops what runs, and is not hindered."""
    stays = start(spark, tmp_path / "stays")
    try:
        for number in range(ROUND_COUNT):
            goes = start(spark.newSession(), tmp_path / str(number))
            has_ended = Event()

            def stop(query: StreamingQuery = goes, ended: Event = has_ended) -> None:
                query.stop()
                ended.set()

            thread = Thread(target=stop)
            thread.start()
            while not has_ended.is_set():
                found = {query.id for query in active_queries(spark)}
                assert stays.id in found
                assert found <= {stays.id, goes.id}
            thread.join()
            assert [query.id for query in active_queries(spark)] == [stays.id]
    finally:
        stays.stop()
