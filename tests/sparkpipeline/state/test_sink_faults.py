"""Exactly once, whatever fails: tasks, drivers, servers, checkpoints (W1 to W5)."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias, final

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate import (
    CheckpointRewoundError,
    LocalStateCluster,
    StaleWriterError,
    StateOwnedError,
)
from queryablestate.client.calls import ProxyConnection
from queryablestate.client.client import QueryableStateClient
from queryablestate.connect.credentials import NO_CREDENTIALS
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.writer.connections import close_writer_connections
from queryablestate.writer.own_runs import OwnRuns
from queryablestate.writer.writer import StateWriter
from sparkpipeline import StateSpec, publish_state, source_options
from sparkpipeline.state.options import WriteOptions
from tests.recording import wait_until
from tests.sparkpipeline.sleeping_driver import SleepingDriver, is_drawn
from tests.sparkpipeline.state_cluster import (
    Feed,
    StateCluster,
    run_to_end,
    state_cluster,
)
from tests.tiers import nightly_after


pytestmark = [pytest.mark.spark, pytest.mark.shells]

Batches: TypeAlias = Iterable[pa.RecordBatch]
Publish: TypeAlias = Callable[..., DataStreamWriter]

ROOT = Path(__file__).parents[3]
SCHEMA = "k string, n long"

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StateCluster]:
    """Yield a cluster for most tests of this file."""
    with state_cluster() as held:
        yield held
        close_writer_connections()


@pytest.fixture
def job_id() -> str:
    """Return a job of the test's own."""
    return f"buses-{next(_numbers)}"


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """Return a stream of the test's own."""
    return Feed(spark, tmp_path / "input", SCHEMA)


@pytest.fixture(params=nightly_after(1, ["publish_state", "format"]))
def publish(
    request: pytest.FixtureRequest, cluster: StateCluster, job_id: str
) -> Publish:
    """Return what writes list state ``log`` in either way; lists show doubled rows."""

    def by_function(frame: DataFrame, **others: Any) -> DataStreamWriter:
        return publish_state(
            frame,
            cluster.config,
            **{
                "job_id": job_id,
                "state_name": "log",
                "key": "k",
                "kind": "list",
                "output_mode": "append",
                "order_by": "n",
            }
            | others,
        )

    def by_format(frame: DataFrame, **others: str) -> DataStreamWriter:
        return frame.writeStream.format("lodestar").options(
            **source_options(cluster.config),
            **{
                "job_id": job_id,
                "state_name": "log",
                "key": "k",
                "kind": "list",
                "order_by": "n",
            }
            | others,
        )

    return by_function if request.param == "publish_state" else by_format


def logged(cluster: StateCluster, job_id: str, key: str = "a") -> list[int]:
    """Return the items of a list."""
    return [item["n"] for item in cluster.client.get_list(job_id, "log", key)]


def fail_at_the_end(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Give all rows, and then fail, unless it was tried before."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


class TestTasks:
    @pytest.mark.proves("W2")
    def test_a_task_that_fails_is_run_again(
        self,
        cluster: StateCluster,
        spark: SparkSession,
        job_id: str,
        publish: Publish,
        tmp_path: Path,
    ) -> None:
        """What its first attempt had staged durably is never seen (W2)."""
        spark.range(0, 600_000, 1, 2).selectExpr(
            "cast(id % 5000 as string) as k", "id as n"
        ).write.parquet(str(tmp_path / "input"))
        stream = spark.readStream.schema("k string, n long").parquet(
            str(tmp_path / "input")
        )
        frame = stream.mapInArrow(fail_at_the_end, "k string, n long")
        run_to_end(publish(frame), tmp_path / "checkpoint")
        assert logged(cluster, job_id, "7") == [7 + 5000 * i for i in range(120)]
        counts = [
            len(cluster.client.get_list(job_id, "log", str(number)))
            for number in range(0, 5000, 97)
        ]
        assert set(counts) == {120}

    @pytest.mark.proves("W3", "W4")
    @pytest.mark.nightly
    def test_a_batch_whose_tasks_keep_failing_is_run_again_after_a_restart(
        self,
        cluster: StateCluster,
        feed: Feed,
        job_id: str,
        publish: Publish,
        tmp_path: Path,
    ) -> None:
        """It is nowhere until then, and there once afterwards (W3, W4)."""
        may_pass = tmp_path / "may-pass"
        marker = str(may_pass)

        def fail(batches: Batches) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if 2 in batch.column("n").to_pylist() and not Path(marker).exists():
                    raise RuntimeError("not yet")
                yield batch

        frame = feed.frame().mapInArrow(fail, SCHEMA)
        feed.add({"k": "a", "n": 1})
        feed.add({"k": "a", "n": 2}, {"k": "a", "n": 3})
        with pytest.raises(StreamingQueryException, match="not yet"):
            run_to_end(publish(frame), tmp_path / "checkpoint")
        assert logged(cluster, job_id) == [1]
        may_pass.touch()
        run_to_end(publish(frame), tmp_path / "checkpoint")
        assert logged(cluster, job_id) == [1, 2, 3]
        assert cluster.batch_id(job_id, "log") == 1


class TestCheckpoints:
    def test_a_decided_batch_is_not_applied_again(
        self,
        cluster: StateCluster,
        feed: Feed,
        job_id: str,
        publish: Publish,
        tmp_path: Path,
    ) -> None:
        """Spark died after our commit and before its own: it runs the batch again."""
        feed.add({"k": "a", "n": 1})
        feed.add({"k": "a", "n": 2})
        checkpoint = tmp_path / "checkpoint"
        run_to_end(publish(feed.frame()), checkpoint)
        for path in (checkpoint / "commits").glob("*1*"):
            path.unlink()
        query = run_to_end(publish(feed.frame()), checkpoint)
        assert query.lastProgress is not None
        assert query.lastProgress["batchId"] == 1
        assert logged(cluster, job_id) == [1, 2]
        feed.add({"k": "a", "n": 3})
        run_to_end(publish(feed.frame()), checkpoint)
        assert logged(cluster, job_id) == [1, 2, 3]

    @pytest.mark.proves("W4")
    @pytest.mark.nightly
    def test_an_older_checkpoint_is_told(
        self,
        cluster: StateCluster,
        feed: Feed,
        job_id: str,
        publish: Publish,
        tmp_path: Path,
    ) -> None:
        """A restored copy would write what is there already: an error (W4)."""
        checkpoint = tmp_path / "checkpoint"
        feed.add({"k": "a", "n": 1})
        run_to_end(publish(feed.frame()), checkpoint)
        shutil.copytree(checkpoint, tmp_path / "older")
        for number in (2, 3):
            feed.add({"k": "a", "n": number})
            run_to_end(publish(feed.frame()), checkpoint)
        with pytest.raises(CheckpointRewoundError, match="its checkpoint is an older"):
            run_to_end(publish(feed.frame()), tmp_path / "older")
        assert logged(cluster, job_id) == [1, 2, 3]

    @pytest.mark.proves("W5")
    @pytest.mark.nightly
    def test_a_new_checkpoint_is_another_query(
        self,
        cluster: StateCluster,
        feed: Feed,
        job_id: str,
        publish: Publish,
        tmp_path: Path,
    ) -> None:
        """It is refused unless it says what becomes of the state (W5)."""
        feed.add({"k": "a", "n": 1}, {"k": "b", "n": 1})
        run_to_end(publish(feed.frame()), tmp_path / "first")
        with pytest.raises(StateOwnedError, match='on_new_query="replace"'):
            run_to_end(publish(feed.frame()), tmp_path / "second")
        assert logged(cluster, job_id) == [1]
        feed.add({"k": "a", "n": 2})
        run_to_end(publish(feed.frame(), on_new_query="continue"), tmp_path / "second")
        assert logged(cluster, job_id) == [1, 1, 2]
        assert cluster.client.describe(job_id, "log").generation == 2
        only_new = feed.frame().where("n > 1")
        run_to_end(publish(only_new, on_new_query="replace"), tmp_path / "third")
        assert logged(cluster, job_id) == [2]
        assert not cluster.client.exists(job_id, "log", "b")
        assert cluster.client.describe(job_id, "log").generation == 3
        # Its owner before is another query now.
        feed.add({"k": "a", "n": 3})
        with pytest.raises(StateOwnedError, match="belongs to query"):
            run_to_end(publish(feed.frame()), tmp_path / "first")
        run_to_end(publish(only_new), tmp_path / "third")
        assert logged(cluster, job_id) == [2, 3]

    @pytest.mark.proves("W4")
    @pytest.mark.nightly
    def test_an_offline_repartition_is_invisible(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Spark skips a batch id, and deals the rows anew: key groups stay (W4)."""
        spark = feed.spark
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        checkpoint = tmp_path / "checkpoint"
        totals = feed.frame().groupBy("k").agg(F.sum("n").alias("total"))

        def publish() -> None:
            writer = publish_state(
                totals,
                cluster.config,
                job_id=job_id,
                state_name="totals",
                key="k",
                output_mode="update",
            )
            run_to_end(writer, checkpoint)

        feed.add(*({"k": f"k{number}", "n": number} for number in range(50)))
        publish()
        spark._streamingCheckpointManager.repartition(str(checkpoint), 5)
        feed.add(*({"k": f"k{number}", "n": 1} for number in range(0, 50, 2)))
        publish()
        assert cluster.rows(job_id, "totals") == {
            f"k{number}": {"total": number + 1 - number % 2} for number in range(50)
        }
        assert cluster.batch_id(job_id, "totals") == 2


class TestDrivers:
    @pytest.mark.proves("W1")
    def test_a_zombie_driver_cannot_write(
        self, cluster: StateCluster, job_id: str, tmp_path: Path
    ) -> None:
        """A driver that was replaced while its batch ran is told to stop (W1)."""

        def start(name: str) -> subprocess.Popen[str]:
            arguments = [cluster.config.url, job_id, str(tmp_path), name]
            with (tmp_path / f"{name}.log").open("w") as log:
                return subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.sparkpipeline.zombie_app",
                        *arguments,
                    ],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )

        zombie = start("zombie")
        successor: subprocess.Popen[str] | None = None
        try:
            # Its second batch has begun, and waits for a word that never came.
            wait_until((tmp_path / "zombie.waits").exists, timeout_seconds=90)
            successor = start("successor")
            client = cluster.client
            wait_until(
                lambda: client.describe(job_id, "log").batch_id == 1,
                timeout_seconds=90,
            )
            # It is decided, and read when the node has applied it.
            wait_until(lambda: logged(cluster, job_id) == [1, 2])
            (tmp_path / "zombie.go").touch()
            said, _ = zombie.communicate(timeout=90)
            assert "a newer run of query" in said
            successor_said, _ = successor.communicate(timeout=90)
            assert successor_said.strip().endswith("done")
            assert logged(cluster, job_id) == [1, 2]
        finally:
            for process in (zombie, successor):
                if process is not None and process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()


@final
class _AnotherDriver:
    """
    Begins batches of a query as a driver in another process would.

    Args:
        cluster: Where to.
        job_id: The job.
        frame: What the query publishes.
    """

    def __init__(self, cluster: StateCluster, job_id: str, frame: DataFrame) -> None:
        self._writer = StateWriter(ProxyConnection(cluster.config, NO_CREDENTIALS))
        self._writer._core._own_runs = OwnRuns()
        self._job_id = job_id
        options = WriteOptions(
            job_id=job_id,
            states=[StateSpec(state_name="log", key="k", kind="list", order_by="n")],
            output_mode="append",
        )
        self._schemas = {
            one.state_name: one.schema for one in options.layouts(frame.schema)
        }

    def begin(self, query_id: str) -> None:
        """Begin a batch; raise `StaleWriterError` if a newer run writes."""
        self._writer.begin(
            self._job_id,
            self._schemas,
            query_id=query_id,
            run_id="successor",
            max_parallelism=128,
            on_new_query="refuse",
            timeout_seconds=30.0,
        )

    def close(self) -> None:
        """Close what it has opened."""
        self._writer._proxy.close()


@pytest.mark.proves("W1")
class TestBirths:
    """A run is as old as its start, however late its first batch comes (W1)."""

    def test_a_driver_that_slept_before_its_first_batch_fences_nobody(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Spark had read the checkpoint; then another driver has begun (W1)."""
        feed.add({"k": "a", "n": 1})
        writer = publish_list(cluster, feed.frame(), job_id)
        with closing(_AnotherDriver(cluster, job_id, feed.frame())) as successor:
            driver = SleepingDriver()
            checkpoint = str(tmp_path / "checkpoint")
            query = driver.start(writer.option("checkpointLocation", checkpoint))
            try:
                driver.wait_until_asleep()
                successor.begin(str(query.id))
                driver.wake()
                with pytest.raises(StaleWriterError):
                    query.processAllAvailable()
                successor.begin(str(query.id))
            finally:
                driver.wake()
                query.stop()

    def test_each_start_of_one_writer_is_a_run_of_its_own(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """The one that was started last writes, each with an epoch of its own (W1)."""
        writer = publish_list(cluster, feed.frame(), job_id)
        for number in range(3):
            feed.add({"k": "a", "n": number})
            run_to_end(writer, tmp_path / "checkpoint")
        assert logged(cluster, job_id) == [0, 1, 2]

    def test_to_start_waits_for_no_proxy(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """The first batch does, which comes after it (W1)."""
        feed = Feed(spark, tmp_path / "input", SCHEMA)
        feed.add({"k": "a", "n": 1})
        with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
            config = HAConfig(url=server.url)
            query = (
                publish_state(
                    feed.frame(),
                    config,
                    job_id="buses",
                    state_name="log",
                    key="k",
                    output_mode="update",
                )
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .start()
            )
            try:
                assert not is_drawn()
                with open_ha_services(config) as ha, LocalStateCluster(ha, nodes=1):
                    query.processAllAvailable()
                    query.stop()
            finally:
                query.stop()
            close_writer_connections()


def publish_list(
    cluster: StateCluster, frame: DataFrame, job_id: str
) -> DataStreamWriter:
    """Return what writes list state ``log``."""
    return publish_state(
        frame,
        cluster.config,
        job_id=job_id,
        state_name="log",
        key="k",
        kind="list",
        output_mode="append",
        order_by="n",
    )


@pytest.mark.proves("W3")
class TestServers:
    @pytest.mark.proves("W7")
    def test_a_batch_waits_for_a_node(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """A node that is away comes back, elsewhere: the batch goes on (W3, W7)."""
        feed = Feed(spark, tmp_path / "input", SCHEMA)
        with state_cluster() as cluster:
            writer = publish_state(
                feed.frame(),
                cluster.config,
                job_id="buses",
                state_name="log",
                key="k",
                kind="list",
                output_mode="append",
            )
            rows = [{"k": f"k{number}", "n": number} for number in range(100)]
            feed.add(*rows)
            run_to_end(writer, tmp_path / "checkpoint")
            feed.add(*rows)
            first = cluster.local.nodes[0]
            config = first._config
            first.close()
            query = writer.option(
                "checkpointLocation", str(tmp_path / "checkpoint")
            ).start()
            try:
                # It cannot have been written, and has not failed.
                assert not query.awaitTermination(3)
                assert cluster.batch_id("buses", "log") == 0
                with (
                    open_ha_services(cluster.config) as ha,
                    StateNode(
                        ha,
                        NodeConfig(data_dir=config.data_dir, node_id=config.node_id),
                    ),
                ):
                    query.processAllAvailable()
                    assert cluster.batch_id("buses", "log") == 1
                    with QueryableStateClient(cluster.config) as client:
                        for number in range(100):
                            items = client.get_list(
                                "buses",
                                "log",
                                f"k{number}",
                                min_batch_id=1,
                                deadline_seconds=30,
                            )
                            assert items == [{"n": number}] * 2
                    query.stop()
            finally:
                query.stop()
            close_writer_connections()

    def test_another_proxy_goes_on(self, spark: SparkSession, tmp_path: Path) -> None:
        """The leader goes between two batches, and in the middle of one (W3)."""
        feed = Feed(spark, tmp_path / "input", SCHEMA)
        with state_cluster(proxies=3) as cluster:
            writer = publish_state(
                feed.frame(),
                cluster.config,
                job_id="buses",
                state_name="log",
                key="k",
                kind="list",
                output_mode="append",
            ).option("checkpointLocation", str(tmp_path / "checkpoint"))
            feed.add({"k": "a", "n": 0})
            query = writer.start()
            try:
                query.processAllAvailable()
                leaders = iter(cluster.local.proxies)
                for number in range(1, 9):
                    feed.add({"k": "a", "n": number})
                    if number in {3, 6}:
                        next(leaders).close()
                query.processAllAvailable()
            finally:
                query.stop()
            with QueryableStateClient(cluster.config) as client:
                items = client.get_list("buses", "log", "a", deadline_seconds=30)
            assert items == [{"n": number} for number in range(9)]
            close_writer_connections()
