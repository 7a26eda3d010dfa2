"""A Spark query that goes on where a snapshot was taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from nameservice import ConfigurationError
from queryablestate import StateOperations
from queryablestate.writer.connections import close_writer_connections
from sparkpipeline import publish_state
from tests.sparkpipeline.state_cluster import (
    Feed,
    StateCluster,
    run_to_end,
    state_cluster,
)


pytestmark = [pytest.mark.spark, pytest.mark.shells]

JOB = "restored"


@pytest.fixture(scope="module")
def cluster() -> Iterator[StateCluster]:
    """Yield a cluster for all tests of this file."""
    with state_cluster() as held:
        yield held
        close_writer_connections()


def brought_back(checkpoint: Path, batch_id: int) -> Path:
    """Return a copy of a checkpoint that stands at *batch_id*, as the guide says."""
    copy = checkpoint.with_name("brought-back")
    shutil.copytree(checkpoint, copy)
    for log in ("offsets", "commits"):
        for path in (copy / log).iterdir():
            number = path.name.removeprefix(".").removesuffix(".crc")
            if number.isdecimal() and int(number) > batch_id:
                path.unlink()
    return copy


@pytest.mark.proves("W4", "S6")
def test_a_query_goes_on_exactly_once_from_a_snapshot(
    cluster: StateCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """W4: with its checkpoint brought back to there; refused with one that is ahead."""
    feed = Feed(spark, tmp_path / "input", "tailnum string, n long")
    totals = feed.frame().groupBy("tailnum").agg(F.sum("n").alias("total"))
    writer = publish_state(
        totals,
        cluster.config,
        job_id=JOB,
        state_name="totals",
        key="tailnum",
        output_mode="update",
    )
    checkpoint = tmp_path / "checkpoint"
    with StateOperations(cluster.config) as operations:
        for tailnum, n in (("a", 1), ("b", 10)):
            feed.add({"tailnum": tailnum, "n": n})
            run_to_end(writer, checkpoint)
        taken = operations.snapshot(JOB, tmp_path / "snapshot")
        (batch_id,) = taken.batch_ids.values()
        for tailnum, n in (("a", 100), ("b", 1_000)):
            feed.add({"tailnum": tailnum, "n": n})
            run_to_end(writer, checkpoint)
        operations.drop_state(JOB, "totals")
        operations.restore(JOB, tmp_path / "snapshot")
    assert cluster.rows(JOB, "totals") == {"a": {"total": 1}, "b": {"total": 10}}
    feed.add({"tailnum": "a", "n": 10_000})
    with pytest.raises(ConfigurationError, match="what is numbered above"):
        run_to_end(writer, checkpoint)
    assert cluster.rows(JOB, "totals") == {"a": {"total": 1}, "b": {"total": 10}}
    run_to_end(writer, brought_back(checkpoint, batch_id))
    assert cluster.rows(JOB, "totals") == {
        "a": {"total": 10_101},
        "b": {"total": 1_010},
    }
