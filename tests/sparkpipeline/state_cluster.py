"""A proxy and two nodes for Spark's tests, and streams whose batches a test decides."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen
from pyspark.accumulators import Accumulator
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate.client.client import QueryableStateClient
from queryablestate.local_cluster import LocalStateCluster
from sparkpipeline import lodestar_error


TIMEOUT_SECONDS = 120

T = TypeVar("T")


@frozen(kw_only=True)
class StateCluster:
    """What a test needs of a cluster."""

    config: HAConfig
    local: LocalStateCluster
    client: QueryableStateClient

    def rows(self, job_id: str, state_name: str) -> dict[Any, dict[str, Any]]:
        """Return all rows of a value or map state by key."""
        return dict(self.client.scan(job_id, state_name))

    def batch_id(self, job_id: str, state_name: str) -> int | None:
        """Return the last batch that was decided."""
        return self.client.describe(job_id, state_name).batch_id


@contextmanager
def state_cluster(nodes: int = 2, proxies: int = 1) -> Iterator[StateCluster]:
    """Yield a cluster that lives as long as the block."""
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        config = HAConfig(url=server.url)
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=nodes, proxies=proxies) as local,
            QueryableStateClient(ha, deadline_seconds=30.0) as client,
        ):
            yield StateCluster(config=config, local=local, client=client)


class Feed:
    """
    A stream over a directory: each `add` is a batch of its own.

    Args:
        spark: The session.
        directory: Where the rows are kept; a query's checkpoint may be beside it.
        schema: Of the rows, as SQL says it.
        is_new: Whether no other adds to it.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        schema: str,
        *,
        is_new: bool = True,
    ) -> None:
        self.spark = spark
        self.directory = directory
        self.schema = schema
        self._count = 0
        directory.mkdir(parents=True, exist_ok=not is_new)

    def add(self, *rows: dict[str, Any]) -> None:
        """Add rows; those of one call are in one micro-batch."""
        self._count += 1
        path = self.directory / f"{self._count:04}.json"
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes the oldest first, and sees no order within a second.
        os.utime(part, (self._count, self._count))
        part.replace(path)

    def frame(self) -> DataFrame:
        """Return the stream: a file per batch, the oldest first."""
        return (
            self.spark.readStream.schema(self.schema)
            .option("maxFilesPerTrigger", 1)
            .option("pathGlobFilter", "*.json")
            .json(str(self.directory))
        )


def run_to_end(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """
    Write what there is; return the query, which has ended.

    An error of ours is raised as it is, whichever way the query writes.
    """
    query = (
        writer.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT_SECONDS)
    except StreamingQueryException as failure:
        error = lodestar_error(failure)
        if error is None:
            raise
        raise error from failure
    finally:
        query.stop()
    return query


def counted(accumulator: Accumulator[int], value: T) -> T:
    """Return *value*, and count that it was computed."""
    accumulator.add(1)
    return value
