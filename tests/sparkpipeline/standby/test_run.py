"""`run_with_standby` within one process: what it checks, how it ends."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from haservices import HAConfig, HAServices, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from nameservice import ConfigurationError, LocalProtocolError
from sparkpipeline import (
    OperatorFunction,
    StandbyLeadership,
    get_leader_retriever,
    run_operator,
    run_with_standby,
)
from sparkpipeline.standby.checks import (
    FORMAT_SETTING,
    MANAGER_SETTING,
    PROVIDER_SETTING,
    check_checkpoint,
    check_settings,
)
from sparkpipeline.standby.leadership import CLAIMS
from sparkpipeline.standby.record import DRIVER, DriverRecord
from tests.recording import WAIT_SECONDS


pytestmark = pytest.mark.spark

JOB: Final = "flights"
ROCKSDB: Final = (
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
)
FILE_SYSTEM_BASED: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager"
)


class PassOn(OperatorFunction):
    """Gives the rows that it gets."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give them on."""
        return batches


Application = Callable[[SparkSession, StandbyLeadership], Any]


@pytest.fixture
def ready(spark: SparkSession) -> SparkSession:
    """Return a session with what a standby needs."""
    spark.conf.set(FORMAT_SETTING, "2")
    spark.conf.set(PROVIDER_SETTING, ROCKSDB)
    return spark


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Yield services of a LeaderServer of this test's own."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
        open_ha_services(HAConfig(url=server.url)) as services,
    ):
        yield services


def run(
    application: Application, ha: HAServices, spark: SparkSession, **options: Any
) -> None:
    """Be a driver whose warm-up is cut short."""
    given: dict[str, Any] = {"address": "here", "warm_up_seconds": 0.001}
    given |= options
    run_with_standby(application, ha.config, job_id=JOB, spark=spark, **given)


def numbers(spark: SparkSession) -> DataFrame:
    """Return a stream of three rows, in one batch."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()


@pytest.mark.proves("H4")
class TestChecks:
    def test_state_store_format_1_is_refused(self, spark: SparkSession) -> None:
        """H4: it is Spark's default, and the error says what to set."""
        with pytest.raises(ConfigurationError, match=re.escape(f"{FORMAT_SETTING}=2")):
            check_settings(spark)

    def test_a_store_without_format_2_is_refused(self, ready: SparkSession) -> None:
        """H4: Spark's default provider has no such format."""
        ready.conf.unset(PROVIDER_SETTING)
        with pytest.raises(ConfigurationError, match=f"{PROVIDER_SETTING}=.*RocksDB"):
            check_settings(ready)

    def test_a_local_checkpoint_passes(
        self, ready: SparkSession, tmp_path: Path
    ) -> None:
        """H4: it is tried, nothing is left of that, and it has one name."""
        check_settings(ready)
        names = {
            check_checkpoint(ready, str(tmp_path / "checkpoint")),
            check_checkpoint(ready, f"file://{tmp_path}/checkpoint"),
        }
        assert names == {f"file:{tmp_path}/checkpoint"}
        assert list((tmp_path / "checkpoint").iterdir()) == []

    def test_an_object_store_is_refused(self, ready: SparkSession) -> None:
        """H4: a scheme that cannot be guarded."""
        with pytest.raises(ConfigurationError, match=r"s3a://, where .* hdfs://"):
            check_checkpoint(ready, "s3a://bucket/checkpoint")

    def test_a_manager_that_replaces_files_is_refused(
        self, ready: SparkSession, tmp_path: Path
    ) -> None:
        """H4: a faster one, which is not atomic."""
        ready.conf.set(MANAGER_SETTING, FILE_SYSTEM_BASED)
        with pytest.raises(ConfigurationError, match="replaces files: unset it"):
            check_checkpoint(ready, str(tmp_path))

    def test_a_place_that_cannot_be_written_is_refused(
        self, ready: SparkSession, tmp_path: Path
    ) -> None:
        """H4: below a file there is no directory."""
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match="cannot be used"):
            check_checkpoint(ready, str(tmp_path / "file" / "checkpoint"))

    def test_all_is_checked_before_anything_runs(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """H4: the application is not called, and nothing is stored."""

        def application(*_: object) -> StreamingQuery:
            pytest.fail("it was called")

        with pytest.raises(ConfigurationError, match="s3a"):
            run(application, ha, ready, checkpoint_locations=["s3a://bucket/x"])
        with pytest.raises(ConfigurationError, match="s3a"):
            run(application, ha, ready, checkpoint_locations="s3a://bucket/x")
        with pytest.raises(ConfigurationError, match="pass address="):
            run(application, ha, ready, address=None)
        with pytest.raises(ConfigurationError, match="stop_seconds must be above 0"):
            run(application, ha, ready, stop_seconds=0)
        with pytest.raises(ConfigurationError, match="on_other_version must be"):
            run(application, ha, ready, on_other_version="ask")
        with pytest.raises(ConfigurationError, match="application is a function"):
            run("application", ha, ready)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="a standby is another"):
            run_with_standby(application, "embedded:x", job_id=JOB, spark=ready)
        with pytest.raises(ConfigurationError, match="there is no job id"):
            run_with_standby(application, ha.config, spark=ready)
        ready.conf.set(FORMAT_SETTING, "1")
        with pytest.raises(ConfigurationError, match=FORMAT_SETTING):
            run(application, ha, ready, checkpoint_locations=[str(tmp_path)])
        assert ha.get_leader_store(JOB).list() == []

    def test_a_temporary_checkpoint_is_refused(
        self, ready: SparkSession, ha: HAServices
    ) -> None:
        """H4: no batch of a query whose checkpoint no other finds is run."""

        def application(
            spark: SparkSession, leadership: StandbyLeadership
        ) -> StreamingQuery:
            guarded = leadership.guard(lambda _batch, _id: pytest.fail("it was called"))
            return numbers(spark).writeStream.foreachBatch(guarded).start()

        with pytest.raises(ConfigurationError, match='option\\("checkpointLocation"'):
            run(application, ha, ready)

    @pytest.mark.parametrize("is_guarded", [True, False])
    def test_it_is_the_session_of_the_query_that_is_checked(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path, *, is_guarded: bool
    ) -> None:
        """H4: a new session has none of the settings that were set on another one."""
        called: list[None] = []

        def application(
            spark: SparkSession, leadership: StandbyLeadership
        ) -> StreamingQuery:
            other = spark.newSession()
            writer = numbers(other).writeStream.format("noop")
            if is_guarded:
                writer = numbers(other).writeStream.foreachBatch(
                    leadership.guard(lambda _batch, _id: called.append(None))
                )
            query = (
                writer.option("checkpointLocation", str(tmp_path))
                .trigger(availableNow=True)
                .start()
            )
            if is_guarded:
                # Its first batch comes while the application still starts.
                query.awaitTermination(int(WAIT_SECONDS))
            return query

        with pytest.raises(ConfigurationError, match=re.escape(f"{FORMAT_SETTING}=2")):
            run(application, ha, ready)
        assert called == []


@pytest.mark.proves("H6")
class TestKinds:
    """H6: what cannot be stood by for is refused."""

    def test_a_query_without_batches_is_refused(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """H6: a continuous query has no batch that a guard could refuse."""

        def application(spark: SparkSession, _: StandbyLeadership) -> StreamingQuery:
            return (
                spark.readStream.format("rate")
                .load()
                .writeStream.format("noop")
                .trigger(continuous="1 second")
                .option("checkpointLocation", str(tmp_path))
                .start()
            )

        with pytest.raises(ConfigurationError, match="has no batches"):
            run(application, ha, ready)
        assert ready.streams.active == []

    def test_a_session_without_a_jvm_is_refused(self, ha: HAServices) -> None:
        """H6: with Spark Connect the queries are where they cannot be ended."""
        without: Any = object()
        with pytest.raises(ConfigurationError, match="which Spark Connect does not"):
            run(lambda _spark, _leadership: None, ha, without)


@pytest.mark.proves("H1")
class TestEnds:
    def test_queries_that_end_by_themselves_end_the_driver(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """H1: two queries run under one leadership, which is given up at the end."""
        leaders: list[str] = []
        batches: list[int] = []

        def application(
            spark: SparkSession, leadership: StandbyLeadership
        ) -> Sequence[StreamingQuery]:
            leader = get_leader_retriever(JOB, ha.config).wait_for_leader(30.0)
            leaders.append(leader.address)
            spark.range(3).write.parquet(str(tmp_path / "input"))
            rows = spark.readStream.schema("id long").parquet(str(tmp_path / "input"))
            return [
                rows.writeStream.foreachBatch(
                    leadership.guard(lambda batch, _id: batches.append(batch.count()))
                )
                .option("checkpointLocation", str(tmp_path / name))
                .trigger(availableNow=True)
                .start()
                for name in ("a", "b")
            ]

        run(application, ha, ready)
        assert leaders == ["here"]
        assert batches == [3, 3]
        assert len(ha.get_leader_store(JOB).list(CLAIMS)) == 2
        with ha.get_leader_retriever(JOB) as retriever:
            assert retriever.leader is None

    @pytest.mark.proves("H3")
    def test_sinks_of_ours_are_guarded_wherever_they_are_made(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """H3: before there is a leadership, and by a thread of the application."""
        ready.range(3).write.parquet(str(tmp_path / "input"))
        rows = ready.readStream.schema("id long").parquet(str(tmp_path / "input"))

        def start(writer: DataStreamWriter, name: str) -> StreamingQuery:
            return (
                writer.option("checkpointLocation", str(tmp_path / name))
                .trigger(availableNow=True)
                .start()
            )

        def make() -> DataStreamWriter:
            return run_operator(
                rows, PassOn(), parallelism=1, sink=lambda _batch, _id: None
            )

        made_before = make()

        def application(
            _spark: SparkSession, _leadership: StandbyLeadership
        ) -> Sequence[StreamingQuery]:
            with ThreadPoolExecutor() as threads:
                in_thread = threads.submit(lambda: start(make(), "a"))
                return [in_thread.result(), start(made_before, "b")]

        run(application, ha, ready)
        assert len(ha.get_leader_store(JOB).list(CLAIMS)) == 2
        # The driver has ended: what is started now is under no leadership.
        query = start(make(), "c")
        query.processAllAvailable()
        query.stop()
        assert len(ha.get_leader_store(JOB).list(CLAIMS)) == 2

    def test_a_query_that_fails_fails_the_driver(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """The error is raised as it was, when the other queries have been stopped."""

        def fail(batch: DataFrame, batch_id: int) -> None:
            raise LocalProtocolError(f"batch {batch_id} of {batch.count()} rows")

        def application(
            spark: SparkSession, leadership: StandbyLeadership
        ) -> Sequence[StreamingQuery]:
            return [
                numbers(spark)
                .writeStream.foreachBatch(leadership.guard(function))
                .option("checkpointLocation", str(tmp_path / name))
                .start()
                for name, function in (("a", fail), ("b", lambda _batch, _id: None))
            ]

        with pytest.raises(LocalProtocolError, match="batch 0 of 3 rows"):
            run(application, ha, ready, checkpoint_locations=[str(tmp_path / "a")])
        assert ready.streams.active == []

    @pytest.mark.proves("H3")
    def test_queries_are_stopped_together(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """
        H3: one whose batch takes long does not keep the others running.

        Its batch is over here when another query is, which no guard refuses.
        """
        is_in_batch, is_other_over = threading.Event(), threading.Event()
        waited: list[bool] = []

        def wait_for_other(_batch: DataFrame, _id: int) -> None:
            is_in_batch.set()
            waited.append(is_other_over.wait(WAIT_SECONDS))

        def fail(_batch: DataFrame, _id: int) -> None:
            assert is_in_batch.wait(WAIT_SECONDS)
            raise LocalProtocolError("now all are to stop")

        def application(
            spark: SparkSession, leadership: StandbyLeadership
        ) -> Sequence[StreamingQuery]:
            slow = numbers(spark).writeStream.foreachBatch(
                leadership.guard(wait_for_other)
            )
            noop = numbers(spark).writeStream.format("noop")
            failing = numbers(spark).writeStream.foreachBatch(leadership.guard(fail))
            queries = [
                writer.option("checkpointLocation", str(tmp_path / name)).start()
                for name, writer in (("a", slow), ("b", noop), ("c", failing))
            ]

            def watch_other() -> None:
                queries[1].awaitTermination()
                is_other_over.set()

            threading.Thread(target=watch_other, daemon=True).start()
            return queries

        with pytest.raises(LocalProtocolError, match="now all are to stop"):
            run(application, ha, ready, stop_seconds=3 * WAIT_SECONDS)
        assert waited == [True]

    def test_an_application_must_return_its_queries(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """What it has started all the same is stopped."""

        def application(spark: SparkSession, _: StandbyLeadership) -> None:
            (
                numbers(spark)
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path))
                .start()
            )

        with pytest.raises(ConfigurationError, match="must return the streaming query"):
            run(application, ha, ready)
        assert ready.streams.active == []

    @pytest.mark.proves("H3")
    def test_queries_of_other_sessions_are_stopped_too(
        self, ready: SparkSession, ha: HAServices, tmp_path: Path
    ) -> None:
        """H3: a session tells of its own alone, and an application may make more."""
        queries: list[StreamingQuery] = []

        def application(spark: SparkSession, _: StandbyLeadership) -> None:
            queries.append(
                numbers(spark.newSession())
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path))
                .start()
            )
            raise LocalProtocolError("before it could return its query")

        with pytest.raises(LocalProtocolError, match="before it could return"):
            run(application, ha, ready)
        [query] = queries
        is_active = query.isActive
        query.stop()
        assert not is_active

    def test_a_guard_is_for_batches_of_a_query(
        self, ready: SparkSession, ha: HAServices
    ) -> None:
        """Called by hand, it has no batch to claim."""

        def application(spark: SparkSession, leadership: StandbyLeadership) -> None:
            leadership.guard(lambda _batch, _id: None)(spark.range(1), 0)

        with pytest.raises(LocalProtocolError, match="no micro-batch"):
            run(application, ha, ready)

    def test_a_leader_of_another_version_is_told_before_warming(
        self, ready: SparkSession, ha: HAServices
    ) -> None:
        """A standby of another version of the code does not contend."""

        def application(spark: SparkSession, leadership: StandbyLeadership) -> None:
            record = DriverRecord(
                application=spark.sparkContext.appName or "",
                version="2",
                contender_id=None,
                epoch=leadership.epoch,
            )
            leadership.store.put(DRIVER, record.to_bytes(), session=leadership.session)

        for said in ("must return", "runs version 2"):
            with pytest.raises(ConfigurationError, match=said):
                run(application, ha, ready)
