"""Errors of ours come through Spark as what they are, out of every process."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from nameservice import (
    ConfigurationError,
    NameServiceError,
    NoLeaderError,
    UnreachableError,
    WrongServiceError,
)
from queryablestate import (
    CommitTimeoutError,
    KeyTooLargeError,
    StateOwnedError,
    UnknownKeyError,
    UnknownStateError,
)
from queryablestate.writer.connections import close_writer_connections
from rescaling import LogRecordError, SnapshotTooLargeError
from sparkpipeline import lodestar_error, publish_state, source_options
from sparkpipeline.failures import through_spark
from tests.queryablestate.wire.test_refusals import one_of_each
from tests.sparkpipeline.state_cluster import (
    TIMEOUT_SECONDS,
    Feed,
    StateCluster,
    state_cluster,
)


SCHEMA = "k string, n long"

_numbers = itertools.count(1)


@through_spark
def fail_with(error: Exception) -> None:
    """Fail as a callback of Spark does."""
    raise error


def told_by_text(error: Exception) -> NameServiceError | None:
    """Return what is left of *error* when nothing but its traceback has travelled."""
    with pytest.raises(type(error)) as caught:
        fail_with(error)
    text = "".join(traceback.format_exception(caught.value))
    return lodestar_error(RuntimeError(f"[STREAM_FAILED] Query failed: {text}\n\tat …"))


class TestText:
    @pytest.mark.proves("L4")
    @pytest.mark.parametrize(
        "error",
        [
            *one_of_each(),
            CommitTimeoutError(7, 60.0, ["node-1"], is_decided=True),
            LogRecordError("/log/a.jsonl", 54, "no\nobject"),
            NoLeaderError("QUERY_PROXY", 5.0),
            SnapshotTooLargeError("seen", 7, 9, 8),
            UnknownKeyError("flights", "aircraft", ("é", 1)),
            UnreachableError("leaderserver://h:1", 5.0, "nothing listens"),
            WrongServiceError("leaderserver://h:1", "a ZooKeeper", "a LeaderServer"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_an_error_of_ours_has_its_type_and_data(
        self, error: NameServiceError
    ) -> None:
        """Text is all that Spark carries (L4)."""
        data = dict(vars(error))
        told = told_by_text(error)
        assert type(told) is type(error)
        assert str(told) == str(error)
        assert vars(told) == data

    def test_others_are_none_of_ours(self) -> None:
        """Nor is text that looks like a note, and names nothing of ours."""
        assert lodestar_error(None) is None
        assert told_by_text(ValueError("not yet")) is None
        for note in ('{"type":"OSError","args":[]}', '{"type":7}', "{"):
            assert lodestar_error(ValueError(f"lodestar-error: {note}}}")) is None
        note = '{"type":"KeyTooLargeError","args":[1]}'
        assert lodestar_error(ValueError(f"lodestar-error: {note}")) is None

    def test_the_last_of_several_counts(self) -> None:
        """A traceback tells of causes first."""

        @through_spark
        def call() -> None:
            try:
                fail_with(NoLeaderError("QUERY_PROXY", 5.0))
            except NoLeaderError as error:
                raise UnknownStateError("flights", "aircraft") from error

        with pytest.raises(UnknownStateError) as caught:
            call()
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("lodestar-error: ") == 2
        assert isinstance(lodestar_error(RuntimeError(text)), UnknownStateError)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StateCluster]:
    """Yield a cluster for all tests of this file."""
    with state_cluster() as held:
        yield held
        close_writer_connections()


@pytest.fixture
def job_id() -> str:
    """Return a job of the test's own."""
    return f"trams-{next(_numbers)}"


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """Return a stream of the test's own."""
    return Feed(spark, tmp_path / "input", SCHEMA)


def published(frame: DataFrame, cluster: StateCluster, job_id: str) -> DataStreamWriter:
    """Return what writes value state ``last``, for what there is."""
    writer = publish_state(
        frame,
        cluster.config,
        job_id=job_id,
        state_name="last",
        key="k",
        output_mode="update",
    )
    return writer.trigger(availableNow=True)


@pytest.mark.spark
@pytest.mark.shells
class TestQueries:
    @pytest.mark.proves("W5")
    @pytest.mark.nightly
    def test_a_second_start_without_a_checkpoint_names_the_cause(
        self, cluster: StateCluster, feed: Feed, job_id: str
    ) -> None:
        """Spark makes a new checkpoint: the error says how to go on (W5)."""
        feed.add({"k": "a", "n": 1})
        first = published(feed.frame(), cluster, job_id).start()
        assert first.awaitTermination(TIMEOUT_SECONDS)
        second = published(feed.frame(), cluster, job_id).start()
        with pytest.raises(
            StateOwnedError, match=r"^trams-.* checkpointLocation of the"
        ):
            second.awaitTermination(TIMEOUT_SECONDS)

    @pytest.mark.proves("L4")
    def test_a_query_fails_with_the_error_of_its_driver(
        self, cluster: StateCluster, feed: Feed, job_id: str
    ) -> None:
        """Its type, its data, its sentence; Spark's own is there for who asks (L4)."""
        feed.add({"k": "a", "n": 1})
        first = published(feed.frame(), cluster, job_id).start()
        assert first.awaitTermination(TIMEOUT_SECONDS)
        query = published(feed.frame(), cluster, job_id).start()
        with pytest.raises(StateOwnedError) as caught:
            query.awaitTermination(TIMEOUT_SECONDS)
        error = caught.value
        assert (error.job_id, error.state_name) == (job_id, "last")
        assert (error.owner, error.query_id) == (first.id, query.id)
        assert "Py4J" not in "".join(traceback.format_exception(error))
        assert isinstance(error.__context__, StreamingQueryException)
        assert str(lodestar_error(query.exception())) == str(error)
        with pytest.raises(StateOwnedError):
            query.processAllAvailable()

    @pytest.mark.proves("L4")
    def test_a_query_fails_with_the_error_of_a_task(
        self, cluster: StateCluster, feed: Feed, job_id: str
    ) -> None:
        """The tracebacks of the worker and of the JVM are no part of it (L4)."""
        feed.add({"k": "x" * 500, "n": 1})
        query = published(feed.frame(), cluster, job_id).start()
        with pytest.raises(KeyTooLargeError) as caught:
            query.awaitTermination(TIMEOUT_SECONDS)
        assert caught.value.size_bytes_max == 480
        assert "Job aborted" not in str(caught.value.__context__)

    def test_an_error_of_the_user_stays_one_of_spark(
        self, cluster: StateCluster, feed: Feed, job_id: str
    ) -> None:
        """Nothing is made of what is not ours."""
        feed.add({"k": "a", "n": 1})
        frame = feed.frame().withColumn(
            "n", F.raise_error(F.lit("not yet")).cast("long")
        )
        query = published(frame, cluster, job_id).start()
        with pytest.raises(StreamingQueryException, match="not yet") as caught:
            query.awaitTermination(TIMEOUT_SECONDS)
        assert lodestar_error(caught.value) is None


@pytest.mark.spark
@pytest.mark.shells
@pytest.mark.proves("L4")
class TestDataSource:
    def test_a_task_that_fails_is_told(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Of a query over ``format("lodestar")`` (L4)."""
        feed.add({"k": "x" * 500, "n": 1})
        query = (
            feed.frame()
            .writeStream.format("lodestar")
            .options(**source_options(cluster.config))
            .options(job_id=job_id, state_name="last", key="k", order_by="n")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(TIMEOUT_SECONDS)
        error = lodestar_error(caught.value)
        assert isinstance(error, KeyTooLargeError)
        assert error.size_bytes_max == 480

    def test_planning_and_reading_are_told(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """Of batch jobs, before any task runs (L4)."""
        options = source_options(cluster.config) | {"job_id": job_id}
        reader = spark.read.format("lodestar").options(**options)
        with pytest.raises(PySparkException) as caught:
            reader.option("state_name", "none").load()
        assert isinstance(lodestar_error(caught.value), NameServiceError)
        with pytest.raises(PySparkException) as caught:
            reader.option("state_nam", "none").load()
        assert isinstance(lodestar_error(caught.value), ConfigurationError)
