"""The configuration reaches drivers and tasks, or an error says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import udf

from haservices import HAConfig
from nameservice import ConfigurationError
from sparkpipeline import (
    get_leader_retriever,
    ha_config,
    to_spark_settings,
    use_ha_config,
)
from sparkpipeline.configuration import _config_of_task


pytestmark = [
    pytest.mark.spark,
]

URL = "leaderserver://127.0.0.1:5170"
CONFIGS = [
    HAConfig(
        url=URL,
        cluster_id="prod",
        session_timeout_seconds=7.25,
        lease_seconds=0.125,
        confirm_timeout_seconds=3.0,
        connect_timeout_seconds=1.0,
        on_suspended="clear",
        curve_public_key_file="/keys/own.key",
        curve_secret_key_file="/keys/own.key_secret",
        curve_server_key_file="/keys/server.key",
    ),
    HAConfig(
        url="zookeeper://h1:2181,h2:2181/chroot",
        zookeeper_auth_file="/keys/auth",
        zookeeper_tls_ca_file="/keys/ca.pem",
        zookeeper_tls_cert_file="/keys/own.pem",
        zookeeper_tls_key_file="/keys/own-key.pem",
    ),
    HAConfig(url="embedded:flights"),
]


def url_in_task() -> str:
    """Return which name service the present task finds, or why it finds none."""
    task = TaskContext.get()
    assert task is not None
    try:
        return _config_of_task(task).url
    except ConfigurationError as error:
        return str(error)


def in_task_of(frame: DataFrame) -> set[str]:
    """Return what `url_in_task` says in the tasks of a query over *frame*."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"url": [url_in_task()]})

    return {row.url for row in frame.mapInArrow(run, "url string").collect()}


class TestSettings:
    @pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.url)
    def test_a_configuration_comes_back_as_it_was(
        self, spark: SparkSession, config: HAConfig
    ) -> None:
        """Every field of `HAConfig` has a Spark setting, and none is lost."""
        for key, value in to_spark_settings(config).items():
            spark.conf.set(key, value)
        assert ha_config(spark) == config

    def test_an_unknown_setting_is_named(self, spark: SparkSession) -> None:
        """A misspelt setting is an error that names it, never a silent default."""
        spark.conf.set("spark.lodestar.url", URL)
        spark.conf.set("spark.lodestar.sesion_timeout_seconds", "3")
        with pytest.raises(
            ConfigurationError, match=r"spark\.lodestar\.sesion_timeout_seconds"
        ):
            ha_config(spark)

    def test_a_missing_url_is_asked_for(self, spark: SparkSession) -> None:
        """Without a URL the error says which setting to set."""
        spark.conf.set("spark.lodestar.cluster_id", "prod")
        with pytest.raises(ConfigurationError, match=r"spark\.lodestar\.url"):
            ha_config(spark)

    def test_a_time_must_be_a_number(self, spark: SparkSession) -> None:
        """Spark's own "10s" is refused, and the setting named."""
        spark.conf.set("spark.lodestar.url", URL)
        spark.conf.set("spark.lodestar.lease_seconds", "10s")
        with pytest.raises(
            ConfigurationError, match=r"spark\.lodestar\.lease_seconds .*'10s'"
        ):
            ha_config(spark)

    def test_use_replaces_what_was_there(self, spark: SparkSession) -> None:
        """What the new configuration leaves out does not linger from the old."""
        use_ha_config(spark, CONFIGS[0])
        use_ha_config(spark, CONFIGS[1])
        assert ha_config(spark) == CONFIGS[1]
        context = spark.sparkContext
        assert context.getLocalProperty("spark.lodestar.url") == CONFIGS[1].url
        assert context.getLocalProperty("spark.lodestar.lease_seconds") == "0.5"
        assert context.getLocalProperty("spark.lodestar.curve_public_key_file") is None


class TestInTasks:
    """Where a task finds the configuration of its session."""

    @pytest.fixture(autouse=True)
    def without_thread_properties(self, spark: SparkSession) -> None:
        """Forget what an earlier test left on this thread."""
        for name in to_spark_settings(CONFIGS[0]) | to_spark_settings(CONFIGS[1]):
            spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]

    def test_queries_carry_it(self, spark: SparkSession) -> None:
        """A session's settings reach functions over Arrow batches and plain UDFs."""
        spark.conf.set("spark.lodestar.url", URL)
        assert in_task_of(spark.range(4)) == {URL}
        find = udf(lambda _: url_in_task(), "string")
        rows = spark.range(2).select(find("id").alias("url")).collect()
        assert {row.url for row in rows} == {URL}

    def test_streams_carry_what_the_session_had_at_their_start(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """Micro-batches see it: in foreachBatch, RDD jobs in there, and foreach."""
        spark.range(4).write.parquet(str(tmp_path / "input"))
        spark.conf.set("spark.lodestar.url", URL)
        found: dict[str, set[str]] = {}

        def take(batch: DataFrame, batch_id: int) -> None:
            context = batch.sparkSession.sparkContext
            found["session"] = {ha_config(batch.sparkSession).url}
            found["query"] = in_task_of(batch)
            found["RDD"] = set(
                context.range(2).map(lambda _: url_in_task()).distinct().collect()
            )

        stream = spark.readStream.schema("id long").parquet(str(tmp_path / "input"))
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        spark.conf.set("spark.lodestar.url", "leaderserver://127.0.0.1:1")
        assert query.awaitTermination(60)
        assert found == {"session": {URL}, "query": {URL}, "RDD": {URL}}

        spark.conf.set("spark.lodestar.url", URL)
        directory = tmp_path / "foreach"
        directory.mkdir()

        def write(row: Row) -> None:
            (directory / str(row.id)).write_text(url_in_task(), encoding="utf-8")

        query = (
            stream.writeStream.foreach(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint-foreach"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        texts = {path.read_text(encoding="utf-8") for path in directory.iterdir()}
        assert texts == {URL}

    def test_rdd_jobs_say_what_to_do(self, spark: SparkSession) -> None:
        """RDD jobs carry no session settings: the error names both ways out."""
        spark.conf.set("spark.lodestar.url", URL)

        def run(_: Any) -> Iterator[str]:
            yield url_in_task()

        for rdd in (spark.sparkContext.range(2), spark.range(2).rdd):
            (text,) = set(rdd.mapPartitions(run).collect())
            assert "sparkpipeline.use_ha_config(spark, config)" in text
            assert "config=…" in text
        use_ha_config(spark, HAConfig(url=URL))
        for rdd in (spark.sparkContext.range(2), spark.range(2).rdd):
            assert set(rdd.mapPartitions(run).collect()) == {URL}

    def test_an_embedded_name_service_does_not_reach_tasks(
        self, spark: SparkSession
    ) -> None:
        """The error says to use a LeaderServer; pickling one says the same."""
        spark.conf.set("spark.lodestar.url", "embedded:flights")
        with pytest.raises(PythonException, match="use a LeaderServer instead"):
            run_in_task(spark, lambda: get_leader_retriever("flights"))
        config = HAConfig(url="embedded:flights")
        with pytest.raises(Exception, match="use a LeaderServer instead"):
            run_in_task(spark, lambda: get_leader_retriever("flights", config))


def run_in_task(spark: SparkSession, action: Callable[[], object]) -> str:
    """Return in words what *action* returned inside a task."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"result": [repr(action())]})

    frame = spark.range(1, numPartitions=1).mapInArrow(run, "result string")
    (row,) = frame.collect()
    return str(row.result)
