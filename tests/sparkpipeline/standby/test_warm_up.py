"""The throw-away query by which a standby gets warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkpipeline.standby.warm_up import WarmUp


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

pytestmark = [pytest.mark.shells, pytest.mark.spark]


@pytest.mark.proves("H1")
def test_its_size_is_its_own(spark: SparkSession) -> None:
    """H1: with Spark's default of 200 partitions it would take a minute."""
    spark.conf.set("spark.sql.shuffle.partitions", 200)
    spark.conf.set(PROVIDER, ROCKSDB)  # set so late, it is the session's alone
    seen: list[SparkSession] = []
    warm_up = WarmUp(spark, seen.append)
    try:
        warm_up.run()
        assert spark.conf.get("spark.sql.shuffle.partitions") == "200"
    finally:
        spark.conf.unset("spark.sql.shuffle.partitions")
        spark.conf.unset(PROVIDER)
    query = warm_up._query
    assert query is not None
    progress = query.lastProgress
    assert progress is not None
    (state,) = progress["stateOperators"]
    assert state["numShufflePartitions"] == 2
    assert any("rocksdb" in name for name in state["customMetrics"])
    assert seen == [spark]
    assert not spark.streams.active
