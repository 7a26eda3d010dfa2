"""Tasks of ``format("lodestar")`` that are more than a commit can name; no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

from leaderserver import LeaderServer, ServerConfig
from nameservice import ConfigurationError
from queryablestate.writer.connections import close_writer_connections
from sparkpipeline import LodestarDataSource
from sparkpipeline.state.data_source import BATCH_ID_PROPERTY
from sparkpipeline.state.sink import QUERY_ID_PROPERTY, RUN_ID_PROPERTY
from tests.queryablestate.proxy_stage import ProxyStage


pytestmark = [pytest.mark.shells, pytest.mark.proves("B3")]

SCHEMA = StructType([StructField("key", LongType()), StructField("n", LongType())])
PROPERTIES = {QUERY_ID_PROPERTY: "q", RUN_ID_PROPERTY: "r", BATCH_ID_PROPERTY: "0"}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ProxyStage]:
    """Yield a proxy and a node, over a name service that other processes reach."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
        ProxyStage(tmp_path, url=server.url) as held,
    ):
        yield held
        close_writer_connections()


@pytest.fixture
def _no_task() -> Iterator[None]:
    yield
    TaskContext._setTaskContext(None)


def be_task(number: int) -> None:
    """Have this process be that task, as Spark's worker does."""
    task = TaskContext(partitionId=number, localProperties=PROPERTIES)
    TaskContext._setTaskContext(task)


def staged_bytes(stage: ProxyStage) -> int:
    """Return what the node holds that is not decided."""
    return int(stage.nodes[0].status()["staged_bytes"])


@pytest.mark.usefixtures("_no_task")
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_task_beyond_what_a_commit_names(
    stage: ProxyStage, *, is_stream: bool
) -> None:
    """B3: it stages nothing, and says what to change; one below it stages."""
    names = {"job_id": "j", "state_name": "s", "key": "key", "kind": "list"}
    source = LodestarDataSource({"url": stage.config.url, **names})
    make = source.streamWriter if is_stream else source.writer
    writer = make(SCHEMA, overwrite=False)
    rows = pa.RecordBatch.from_pydict({"key": [1, 2], "n": [3, 4]})
    be_task(10_000_000)
    with pytest.raises(ConfigurationError, match=r"10,000,001 tasks.*at most .* tasks"):
        writer.write(iter([rows]))
    assert staged_bytes(stage) == 0
    be_task(1_000)
    assert writer.write(iter([rows])) is not None
    assert staged_bytes(stage) > 0
