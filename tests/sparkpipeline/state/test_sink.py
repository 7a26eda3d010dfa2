"""`publish_state` over a real cluster: what is written is what readers see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from haservices import HAConfig, open_ha_services
from nameservice import ConfigurationError, LocalProtocolError
from queryablestate import KeyTooLargeError
from queryablestate.client.client import QueryableStateClient
from queryablestate.connect.credentials import NO_CREDENTIALS
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.writer.connections import close_writer_connections
from sparkpipeline import StateSpec, publish_state, publish_states
from sparkpipeline.state.options import WriteOptions
from sparkpipeline.state.sink import _Publisher
from tests.sparkpipeline.state_cluster import (
    Feed,
    StateCluster,
    counted,
    run_to_end,
    state_cluster,
)


pytestmark = [pytest.mark.spark, pytest.mark.shells]

SCHEMA = "tailnum string, n long, seen timestamp, is_gone boolean"

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StateCluster]:
    """Yield a cluster for all tests of this file."""
    with state_cluster() as held:
        yield held
        close_writer_connections()


@pytest.fixture
def job_id() -> str:
    """Return a job of the test's own."""
    return f"flights-{next(_numbers)}"


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """Return a stream of the test's own."""
    return Feed(spark, tmp_path / "input", SCHEMA)


def row(tailnum: str | None, n: int, **others: Any) -> dict[str, Any]:
    """Return one row."""
    return {"tailnum": tailnum, "n": n} | others


class TestValues:
    @pytest.mark.proves("W6")
    def test_update_mode_inserts_and_replaces(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Each batch is one step, and what it does not name stays (W6)."""
        counts = feed.frame().groupBy("tailnum").agg(F.sum("n").alias("total"))
        writer = publish_state(
            counts,
            cluster.config,
            job_id=job_id,
            state_name="totals",
            key="tailnum",
            output_mode="update",
        )
        feed.add(row("a", 1), row("b", 2), row(None, 9))
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "totals") == {
            None: {"total": 9},
            "a": {"total": 1},
            "b": {"total": 2},
        }
        assert cluster.batch_id(job_id, "totals") == 0
        feed.add(row("a", 10))
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "totals") == {
            None: {"total": 9},
            "a": {"total": 11},
            "b": {"total": 2},
        }
        entry = cluster.client.lookup(job_id, "totals", "a", min_batch_id=1)
        assert (entry.value, entry.batch_id, entry.generation) == ({"total": 11}, 1, 1)

    @pytest.mark.proves("W6")
    @pytest.mark.nightly
    def test_complete_mode_replaces_everything(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """What a batch does not name is gone (W6)."""
        feed.add(row("a", 1), row("b", 2))
        feed.add(row("b", 3))
        best = (
            feed.frame()
            .groupBy("tailnum")
            .agg(F.sum("n").alias("total"))
            .orderBy(F.desc("total"))
            .limit(1)
        )
        writer = publish_state(
            best,
            cluster.config,
            job_id=job_id,
            state_name="best",
            key="tailnum",
            output_mode="complete",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "best") == {"b": {"total": 5}}

    @pytest.mark.proves("W6")
    def test_the_greatest_of_one_key_stays(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """In append mode ``order_by`` decides, wherever the rows were (W6)."""
        rows = [
            row(f"t{number % 5}", number, seen="2024-01-01T00:00:00Z")
            for number in range(200)
        ]
        feed.add(*rows[100:], *rows[:100])
        writer = publish_state(
            feed.frame().repartition(4),
            cluster.config,
            job_id=job_id,
            state_name="last",
            key="tailnum",
            columns="n",
            output_mode="append",
            order_by=["seen", "n"],
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "last") == {
            f"t{number}": {"n": 195 + number} for number in range(5)
        }

    @pytest.mark.proves("W6")
    def test_rows_are_deleted_and_expire(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """A true ``delete`` removes the key, a past ``ttl`` hides it (W6)."""
        now = datetime.now(UTC)
        past = (now - timedelta(hours=1)).isoformat()
        future = (now + timedelta(hours=1)).isoformat()
        feed.add(
            row("stays", 1, seen=None),
            row("expired", 2, seen=past),
            row("expires", 3, seen=future, is_gone=False),
            row("deleted", 4, seen=future),
            row("never", 5, is_gone=True),
        )
        feed.add(row("deleted", 4, seen=None, is_gone=True))
        writer = publish_state(
            feed.frame(),
            cluster.config,
            job_id=job_id,
            state_name="seen",
            key="tailnum",
            output_mode="append",
            order_by="n",
            delete="is_gone",
            ttl="seen",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "seen") == {"expires": {"n": 3}, "stays": {"n": 1}}

    def test_a_batch_without_rows_is_one(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Its id is decided all the same, and nothing else changes."""
        feed.add(row("a", 1))
        feed.add(row("b", -1))
        writer = publish_state(
            feed.frame().where("n > 0"),
            cluster.config,
            job_id=job_id,
            state_name="some",
            key="tailnum",
            columns="n",
            output_mode="update",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.batch_id(job_id, "some") == 1
        assert cluster.rows(job_id, "some") == {"a": {"n": 1}}


@pytest.mark.proves("W6")
class TestKinds:
    def test_lists_grow(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Items come in the order of their batches, and in a batch as sorted (W6)."""
        feed.add(row("a", 3), row("a", 1), row("b", 7))
        feed.add(row("a", 2))
        writer = publish_state(
            feed.frame().repartition(3),
            cluster.config,
            job_id=job_id,
            state_name="log",
            key="tailnum",
            columns="n",
            kind="list",
            output_mode="append",
            order_by="n",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        items = cluster.client.get_list(job_id, "log", "a")
        assert items == [{"n": 1}, {"n": 3}, {"n": 2}]
        assert cluster.client.get_list(job_id, "log", "b") == [{"n": 7}]

    def test_maps_have_entries(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """An entry is inserted, replaced and deleted by both of its keys (W6)."""
        feed.add(row("a", 1), row("a", 2), row("b", 1))
        feed.add(row("a", 1, is_gone=True), row("b", 2))
        writer = publish_state(
            feed.frame().withColumn("square", F.col("n") * F.col("n")),
            cluster.config,
            job_id=job_id,
            state_name="squares",
            key="tailnum",
            columns="square",
            kind="map",
            map_key="n",
            output_mode="update",
            delete="is_gone",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.client.get(job_id, "squares", "a") == {2: {"square": 4}}
        assert cluster.client.get_map_entry(job_id, "squares", "b", 2) == {"square": 4}


class TestSeveralStates:
    def test_they_change_together_in_one_pass(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """The batch is computed once, and committed once for all of them."""
        feed.add(row("a", 1), row("b", 2), row("a", 3))
        accumulator = feed.spark.sparkContext.accumulator(0)

        # Counts the rows that Spark computes.
        see = F.udf(lambda n: counted(accumulator, n), "long")
        writer = publish_states(
            feed.frame().withColumn("n", see("n")),
            cluster.config,
            [
                StateSpec(
                    state_name="latest", key="tailnum", columns="n", order_by="n"
                ),
                StateSpec(state_name="by n", key=["n", "tailnum"], columns=[]),
                StateSpec(
                    state_name="entries",
                    key="tailnum",
                    columns=[],
                    kind="map",
                    map_key="n",
                ),
            ],
            job_id=job_id,
            output_mode="update",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert accumulator.value == 3
        assert cluster.rows(job_id, "latest") == {"a": {"n": 3}, "b": {"n": 2}}
        assert cluster.rows(job_id, "by n") == {
            (1, "a"): {},
            (2, "b"): {},
            (3, "a"): {},
        }
        assert cluster.client.get(job_id, "entries", "a") == {1: {}, 3: {}}
        generations = {
            cluster.client.describe(job_id, name).batch_id
            for name in ("latest", "by n", "entries")
        }
        assert generations == {0}

    def test_columns_may_have_any_name(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Dots, quotes, and names that we use ourselves."""
        feed.add(row("a", 1))
        frame = feed.frame().select(
            F.col("tailnum").alias("tail.num"),
            F.col("n").alias("`n`"),
            F.lit(7).alias("key_group_0"),
            F.lit(8).alias("Key_Group_1"),
        )
        writer = publish_state(
            frame,
            cluster.config,
            job_id=job_id,
            state_name="odd",
            key=["tail.num", "`n`"],
            output_mode="update",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "odd") == {
            ("a", 1): {"key_group_0": 7, "Key_Group_1": 8}
        }

    @pytest.mark.parametrize("is_case_sensitive", ["false", "true"])
    def test_names_may_differ_in_case_alone(
        self,
        cluster: StateCluster,
        feed: Feed,
        job_id: str,
        tmp_path: Path,
        is_case_sensitive: str,
    ) -> None:
        """As a session is by default, Spark finds neither of them by its name."""
        feed.spark.conf.set("spark.sql.caseSensitive", is_case_sensitive)
        feed.add(row("a", 1))
        writer = publish_state(
            feed.frame().select(
                "tailnum", "n", F.lit("b").alias("TailNum"), "seen", "seen"
            ),
            cluster.config,
            job_id=job_id,
            state_name="cases",
            key=["tailnum", "TailNum"],
            columns="n",
            output_mode="update",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.client.get(job_id, "cases", ("a", "b")) == {"n": 1}


def test_an_embedded_name_service_will_do(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """Everything in the driver's process: tasks need no name service to stage."""
    config = HAConfig(url="embedded:test-sink")
    feed.add(row("a", 1), row("b", 2))
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha),
        QueryableStateClient(config) as client,
    ):
        writer = publish_state(
            feed.frame(),
            config,
            job_id="flights",
            state_name="embedded",
            key="tailnum",
            columns="n",
            output_mode="update",
        )
        run_to_end(writer, tmp_path / "checkpoint")
        assert client.get("flights", "embedded", "b") == {"n": 2}
        close_writer_connections()


class TestMistakes:
    @pytest.mark.proves("W6")
    def test_they_are_told_before_the_query_starts(
        self, cluster: StateCluster, feed: Feed, spark: SparkSession
    ) -> None:
        """Where the query is defined (W6)."""

        def publish(frame: DataFrame, **settings: Any) -> None:
            chosen: dict[str, Any] = {
                "job_id": "flights",
                "state_name": "aircraft",
                "key": "tailnum",
                "output_mode": "update",
            } | settings
            publish_state(frame, cluster.config, **chosen)

        with pytest.raises(ConfigurationError, match="say with order_by"):
            publish(feed.frame(), output_mode="append")
        with pytest.raises(ConfigurationError, match="is 'tailnum' meant"):
            publish(feed.frame(), key="tail_num")
        with pytest.raises(ConfigurationError, match="cannot hash a map"):
            publish(feed.frame().withColumn("tailnum", F.create_map("n", "n")))
        with pytest.raises(
            ConfigurationError, match=r'df\.write\.format\("lodestar"\)'
        ):
            publish(spark.range(3))

    def test_a_key_that_is_too_large_is_told(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """The batch fails with the size and the limit; nothing of it is seen."""
        feed.add(row("x" * 500, 1), row("a", 2))
        writer = publish_state(
            feed.frame(),
            cluster.config,
            job_id=job_id,
            state_name="large",
            key="tailnum",
            columns="n",
            output_mode="update",
        )
        with pytest.raises(KeyTooLargeError, match="at most 480 can be stored"):
            run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.batch_id(job_id, "large") is None

    @pytest.mark.proves("B3")
    @pytest.mark.nightly
    def test_more_tasks_than_a_commit_can_name_are_told(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """B3: before one of them runs; the error says how many there may be."""
        feed.add(row("a", 1))
        writer = publish_state(
            feed.frame().repartition(1_000_000),
            cluster.config,
            job_id=job_id,
            state_name="scattered",
            key="tailnum",
            columns="n",
            output_mode="update",
        )
        with pytest.raises(ConfigurationError, match="a batch of 1,000,000 tasks on"):
            run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.batch_id(job_id, "scattered") is None

    def test_it_is_for_micro_batches(
        self, cluster: StateCluster, spark: SparkSession
    ) -> None:
        """Called by hand there is neither query nor run to bind."""
        options = WriteOptions(
            job_id="flights",
            states=[StateSpec(state_name="aircraft", key="id")],
            output_mode="update",
        )
        publisher = _Publisher(
            config=cluster.config,
            credentials=NO_CREDENTIALS,
            options=options,
            layouts=options.layouts(spark.range(1).schema),
        )
        with pytest.raises(LocalProtocolError, match="no micro-batch"):
            publisher.begin()(spark.range(1), 0)
