"""State of queries that know nothing of us, as readers see it and as Spark has it."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from haservices import open_ha_services
from nameservice import ConfigurationError, LocalProtocolError, StorageError
from queryablestate import (
    DeadlineExceededError,
    KeyTooLargeError,
    StaleWriterError,
    StateOwnedError,
    StateUnavailableError,
)
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.writer.connections import close_writer_connections
from sparkpipeline import AttachedState, attach_state
from tests.recording import wait_until
from tests.sparkpipeline.attached import (
    Attached,
    keep_state,
    plan_count,
    state_scans,
)
from tests.sparkpipeline.state_cluster import Feed, StateCluster, state_cluster
from tests.sparkpipeline.variables import (
    CLEAR,
    REWRITE,
    VARIABLES,
    last_numbers,
    variables,
    without_variables,
)


pytestmark = [pytest.mark.spark, pytest.mark.shells]

WAIT_SECONDS = 120.0
SCHEMA = "tailnum string, n long, seen timestamp"

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
    return f"trams-{next(_numbers)}"


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """Return a stream of the test's own, whose queries keep state in RocksDB."""
    keep_state(spark)
    return Feed(spark, tmp_path / "input", SCHEMA)


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Attached:
    """Return the checkpoint of the test's query."""
    return Attached(spark, tmp_path / "checkpoint")


def attach(
    query: Attached, cluster: StateCluster, job_id: str, **others: Any
) -> AttachedState:
    """Attach the state of *query*, looking often."""
    return attach_state(
        query.spark,
        cluster.config,
        str(query.checkpoint),
        **{
            "job_id": job_id,
            "state_name": "totals",
            "poll_seconds": 0.1,
            **others,
        },
    )


def row(tailnum: str, n: int, minute: int = 0) -> dict[str, Any]:
    """Return one row of input."""
    hour, minute = divmod(minute, 60)
    return {
        "tailnum": tailnum,
        "n": n,
        "seen": f"2024-01-01T{hour:02}:{minute:02}:00Z",
    }


def totals(feed: Feed) -> DataFrame:
    """Return a query that keeps one row for each key."""
    return feed.frame().groupBy("tailnum").agg(F.sum("n").alias("total"))


def copied(query: Attached, name: str) -> Attached:
    """Return a copy of the checkpoint, which goes on for itself."""
    copy = Attached(query.spark, query.checkpoint.with_name(name))
    shutil.copytree(query.checkpoint, copy.checkpoint)
    return copy


def put_in_place(copy: Attached, query: Attached) -> None:
    """Have the checkpoint be that of *copy* from now on."""
    query.checkpoint.rename(query.checkpoint.with_name("before"))
    copy.checkpoint.rename(query.checkpoint)


def as_utc(moment: datetime) -> datetime:
    """Return what Spark gives in local time as readers are given it."""
    return moment.astimezone(UTC)


def assert_as_spark(
    cluster: StateCluster, query: Attached, job_id: str, batch_id: int
) -> None:
    """Every key and value is what Spark's reader gives, under the query's batch id."""
    expected = {
        row.key.tailnum: {"sum": row.value["sum"]} for row in query.rows(batch_id)
    }
    assert cluster.rows(job_id, "totals") == expected
    assert cluster.batch_id(job_id, "totals") == batch_id


class TestAggregations:
    def test_steady_batches_read_the_feed_and_nothing_else(
        self,
        cluster: StateCluster,
        spark: SparkSession,
        feed: Feed,
        query: Attached,
        job_id: str,
    ) -> None:
        """
        Attached while it has stopped, runs, and has stopped again.

        Once the first snapshot is published, it goes on though no whole state can be
        read any more; what Spark has executed are change feeds of single batches.
        """
        windows = (
            feed.frame()
            .withWatermark("seen", "10 minutes")
            .groupBy(F.window("seen", "10 minutes"), "tailnum")
            .agg(F.sum("n"), F.avg("n"))
        )
        feed.add(row("a", 1), row("b", 2))
        first = query.run(windows)
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(first, WAIT_SECONDS)
            status = attached.status()
            assert (status.mode, status.snapshot_reason) == ("snapshot", "first")
            with query.running(windows) as running:
                feed.add(row("a", 10, minute=1))
                running.processAllAvailable()  # has loaded the state, for good
                attached.wait_for_batch(first + 1, WAIT_SECONDS)
                start = attached.status().batch_id
                assert start is not None
                with query.unreadable_until(start):
                    before = plan_count(spark)
                    for minute in (2, 80):  # the last one closes a window
                        feed.add(row("a", 100, minute), row("c", minute, minute))
                        running.processAllAvailable()
                        attached.wait_for_batch(query.newest(), WAIT_SECONDS)
                running.stop()
            newest = query.newest()
            attached.wait_for_batch(newest, WAIT_SECONDS)
            status = attached.status()
        assert status.batch_id == status.committed_batch_id == newest
        assert (status.lag_batches, status.lag_seconds) == (0, 0.0)
        assert (status.mode, status.snapshot_count) == ("feed", 1)
        assert status.last_error is None
        wait_until(lambda: bool(state_scans(spark, query.checkpoint, before)))
        scans = state_scans(spark, query.checkpoint, before)
        assert all("changeStartBatchId" in scan for scan in scans)
        assert len(scans) <= newest - start
        rows = query.rows(newest)
        assert {row.key.window.start.minute for row in rows} == {20}  # 0 is closed
        assert cluster.rows(job_id, "totals") == {
            (
                (as_utc(row.key.window.start), as_utc(row.key.window.end)),
                row.key.tailnum,
            ): {
                # Two of Spark's names are equal.
                "sum": row.value[0],
                "sum_2": row.value[1],
                "count": row.value[2],
            }
            for row in rows
        }

    def test_a_new_driver_goes_on_where_the_last_one_was(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Nothing is published twice: what comes next is read from the feed."""
        feed.add(row("a", 1), row("b", 2))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
        with pytest.raises(LocalProtocolError):
            attached.wait_for_batch(1, WAIT_SECONDS)
        for n in range(3):
            feed.add(row("b", n))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(3, WAIT_SECONDS)
            status = attached.status()
        # What has piled up is read at once.
        assert (status.feed_count, status.snapshot_count) == (1, 0)
        assert_as_spark(cluster, query, job_id, 3)
        entry = cluster.client.lookup(job_id, "totals", "b")
        assert (entry.batch_id, entry.generation) == (3, 1)


class TestWithoutFeed:
    @pytest.mark.parametrize(
        ("in_rocksdb", "mode"), [(True, "snapshot"), (False, "feed")]
    )
    @pytest.mark.nightly
    def test_other_stores(
        self,
        cluster: StateCluster,
        spark: SparkSession,
        feed: Feed,
        query: Attached,
        job_id: str,
        *,
        in_rocksdb: bool,
        mode: str,
    ) -> None:
        """RocksDB without changelog is read as a whole; state in memory has a feed."""
        keep_state(spark, in_rocksdb=in_rocksdb, has_changelog=False)
        feed.add(row("a", 1), row("b", 2))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
            feed.add(row("b", 40))
            query.run(totals(feed))
            attached.wait_for_batch(1, WAIT_SECONDS)
            status = attached.status()
        assert status.mode == mode
        if mode == "snapshot":
            assert status.snapshot_reason == "no-feed"
        assert_as_spark(cluster, query, job_id, 1)

    @pytest.mark.nightly
    def test_past_retention_and_across_a_repartition(
        self,
        cluster: StateCluster,
        spark: SparkSession,
        feed: Feed,
        query: Attached,
        job_id: str,
    ) -> None:
        """Where batches are gone, or have left no feed, all is read; then the feed."""
        feed.add(row("a", 1), row("b", 2))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
        spark.conf.set("spark.sql.streaming.minBatchesToRetain", 2)
        for n in range(4):
            feed.add(row("b", n))
        assert query.run(totals(feed)) == 4
        assert query.committed()[0] > 1
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(4, WAIT_SECONDS)
            status = attached.status()
            assert (status.snapshot_count, status.feed_count) == (1, 0)
            assert status.snapshot_reason == "no-feed"
            assert_as_spark(cluster, query, job_id, 4)
            manager = spark._streamingCheckpointManager
            manager.repartition(str(query.checkpoint), 3)
            attached.wait_for_batch(5, WAIT_SECONDS)
            status = attached.status()
            assert (status.snapshot_count, status.feed_count) == (2, 0)
            assert_as_spark(cluster, query, job_id, 5)
            feed.add(row("c", 7))
            assert query.run(totals(feed)) == 6
            attached.wait_for_batch(6, WAIT_SECONDS)
            status = attached.status()
        assert (status.snapshot_count, status.feed_count) == (2, 1)
        assert_as_spark(cluster, query, job_id, 6)
        # The rows of a batch are one step for readers, however they were read.
        assert cluster.client.lookup(job_id, "totals", "c").generation == 1

    def test_batches_that_are_gone_when_it_looks_again(
        self,
        cluster: StateCluster,
        spark: SparkSession,
        feed: Feed,
        query: Attached,
        job_id: str,
    ) -> None:
        """What Spark has purged hides nothing: readers get the newest batch at once."""
        feed.add(row("a", 1))
        query.run(totals(feed))
        ahead = copied(query, "ahead")
        spark.conf.set("spark.sql.streaming.minBatchesToRetain", 2)
        for n in range(4):
            feed.add(row("b", n))
        assert ahead.run(totals(feed)) == 4
        assert ahead.committed()[0] > 1
        with attach(query, cluster, job_id, poll_seconds=1.0) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
            put_in_place(ahead, query)
            attached.wait_for_batch(4, timeout_seconds=15.0)  # half of all looks
            assert attached.status().snapshot_reason == "no-feed"
        assert_as_spark(cluster, query, job_id, 4)

    def test_a_feed_that_cannot_be_read(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """If there is a feed, and it is of no use, all is read instead."""
        keep_state(query.spark, has_changelog=False)
        feed.add(row("a", 1), row("b", 2))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
            (query.checkpoint / "state/0/0/2.changelog").write_bytes(b"damaged")
            feed.add(row("b", 40))
            query.run(totals(feed))
            attached.wait_for_batch(1, WAIT_SECONDS)
            assert attached.status().snapshot_reason == "feed-failed"
        assert_as_spark(cluster, query, job_id, 1)

    @pytest.mark.nightly
    def test_another_format_of_checkpoints(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Spark reads it only if the session says so: so do we, before anything."""
        setting = "spark.sql.streaming.stateStore.checkpointFormatVersion"
        query.spark.conf.set(setting, "2")
        feed.add(row("a", 1), row("b", 2))
        query.run(totals(feed))
        query.spark.conf.unset(setting)
        with pytest.raises(ConfigurationError, match=f"set {setting} to 2"):
            attach(query, cluster, job_id)
        query.spark.conf.set(setting, "2")
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
            feed.add(row("a", 5))
            query.run(totals(feed))
            attached.wait_for_batch(1, WAIT_SECONDS)
            assert attached.status().mode == "feed"
        assert_as_spark(cluster, query, job_id, 1)


@contextmanager
def attached_variables(
    query: Attached, cluster: StateCluster, job_id: str
) -> Iterator[dict[str, AttachedState]]:
    """Attach all variables of `Variables` for the block, each under its own name."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                attach(query, cluster, job_id, state_name=name, state_var_name=name)
            )
            for name in VARIABLES
        }


class TestVariables:
    def test_variables_of_all_kinds(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """
        Each kind of variable becomes a state of its kind, by the feed after the first.

        The query never ends by itself: a TTL makes it go on with empty batches, which
        are many more than can be read one by one.
        """
        frame = variables(feed.frame(), "tailnum")
        feed.add(row("a", 1), row("a", 3), row("b", 5), row("c", 6))
        first = query.run_until_read(frame, 1)
        with attached_variables(query, cluster, job_id) as states:
            for attached in states.values():
                attached.wait_for_batch(first, WAIT_SECONDS)
        feed.add(row("a", 4), row("b", CLEAR), row("d", 9))
        feed.add(row("a", REWRITE), row("b", 11), row("c", CLEAR))
        newest = query.run_until_read(frame, 3)
        with attached_variables(query, cluster, job_id) as states:
            for attached in states.values():
                attached.wait_for_batch(newest, WAIT_SECONDS)
                status = attached.status()
                assert (status.snapshot_count, status.mode) == (0, "feed")
        rows = {name: query.rows(newest, stateVarName=name) for name in VARIABLES}
        assert cluster.rows(job_id, "last") == {
            row.key.tailnum: row.value.asDict() for row in rows["last"]
        }
        assert sorted(cluster.rows(job_id, "last")) == ["a", "b", "d"]
        logs: dict[str, list[dict[str, int]]] = {}
        for item in rows["log"]:
            logs.setdefault(item.key.tailnum, []).append(item.list_element.asDict())
        assert {
            key: cluster.client.get_list(job_id, "log", key) for key in logs
        } == logs
        assert [item["n"] for item in logs["a"]] == [70, 80]
        assert cluster.client.count(job_id, "log") == len(logs)
        by_parity = {
            (row.key.tailnum, row.user_map_key.parity): row.user_map_value.asDict()
            for row in rows["by_parity"]
        }
        assert cluster.rows(job_id, "by_parity") == by_parity
        assert by_parity["a", "even"] == {"n": 4}
        assert cluster.rows(job_id, "fresh") == {
            row.key.tailnum: row.value.value.asDict() for row in rows["fresh"]
        }

    @pytest.mark.proves("W5")
    @pytest.mark.nightly
    def test_a_query_that_comes_back_with_more_columns(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """The state gets them too; where there was nothing, null is read (W5)."""
        query.spark.conf.set("spark.sql.streaming.stateStore.encodingFormat", "avro")
        feed.add(row("a", 1), row("b", 2))
        query.run(last_numbers(feed.frame(), "tailnum", has_double=False))
        with attach(query, cluster, job_id, state_var_name="last") as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
            feed.add(row("a", 5))
            query.run(last_numbers(feed.frame(), "tailnum", has_double=True))
            attached.wait_for_batch(1, WAIT_SECONDS)
            assert attached.status().mode == "feed"
        assert cluster.rows(job_id, "totals") == {
            "a": {"n": 5, "double": 10},
            "b": {"n": 2, "double": None},
        }


class TestOwners:
    @pytest.mark.proves("W1")
    def test_the_one_that_came_later_goes_on(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Of two drivers that attach the same, the first one is told to stop (W1)."""
        feed.add(row("a", 1))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as first:
            first.wait_for_batch(0, WAIT_SECONDS)
            feed.add(row("a", 2))
            with attach(query, cluster, job_id) as second:
                query.run(totals(feed))
                second.wait_for_batch(1, WAIT_SECONDS)
                with pytest.raises(StaleWriterError):
                    first.wait_for_batch(2, WAIT_SECONDS)
                assert second.status().is_running
            assert isinstance(first.failure, StaleWriterError)
            assert not first.status().is_running
        assert_as_spark(cluster, query, job_id, 1)

    @pytest.mark.proves("W5")
    def test_another_query_may_replace_it_only_if_it_says_so(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """
        An attached state is owned like a query's (W5).

        A former owner that comes back begins with all that there is.
        """
        other = Attached(query.spark, query.checkpoint.with_name("other"))
        feed.add(row("a", 1), row("b", 2))
        query.run(totals(feed))
        other.run(totals(feed).where("total > 1"))
        feed.add(row("a", 2))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as first:
            first.wait_for_batch(1, WAIT_SECONDS)
            with (
                attach(other, cluster, job_id) as refused,
                pytest.raises(StateOwnedError),
            ):
                refused.wait_for_batch(0, WAIT_SECONDS)
            with attach(other, cluster, job_id, on_new_query="replace") as second:
                second.wait_for_batch(0, WAIT_SECONDS)
            assert_as_spark(cluster, other, job_id, 0)
            with pytest.raises(StateOwnedError):  # though it has nothing to publish
                first.wait_for_batch(2, WAIT_SECONDS)
        with attach(query, cluster, job_id, on_new_query="replace") as third:
            third.wait_for_batch(1, WAIT_SECONDS)
        assert_as_spark(cluster, query, job_id, 1)
        assert cluster.client.describe(job_id, "totals").generation == 3

    @pytest.mark.proves("W4")
    @pytest.mark.nightly
    def test_a_checkpoint_that_is_not_the_same_any_more(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """What was published is not mixed with what another query keeps there (W4)."""
        feed.add(row("a", 1))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
            query.checkpoint.rename(query.checkpoint.with_name("old"))
            feed.add(row("a", 2))
            query.run(totals(feed))
            with pytest.raises(ConfigurationError, match="of query"):
                attached.wait_for_batch(1, WAIT_SECONDS)


class TestCheckpointsThatWerePutBack:
    @pytest.mark.proves("W4")
    @pytest.mark.parametrize(
        ("newest", "is_followed"),
        [
            (1, True),
            (2, False),
            pytest.param(2, True, marks=pytest.mark.nightly),
            pytest.param(1, False, marks=pytest.mark.nightly),
        ],
    )
    def test_an_older_one_that_has_run_as_far_again(
        self,
        cluster: StateCluster,
        feed: Feed,
        query: Attached,
        job_id: str,
        *,
        newest: int,
        is_followed: bool,
    ) -> None:
        """
        Its batches have the numbers of those that are published, and other rows (W4).

        It is read once, whether the driver was there meanwhile, or came after it.
        """
        feed.add(row("a", 1))
        query.run(totals(feed))
        older = copied(query, "older")
        feed.add(row("b", 2))
        assert query.run(totals(feed)) == 1
        with ExitStack() as stack:
            attached = stack.enter_context(attach(query, cluster, job_id))
            attached.wait_for_batch(1, WAIT_SECONDS)
            if not is_followed:
                attached.stop()
            published = time.monotonic()
            (feed.directory / "0002.json").unlink()
            for n in range(newest):
                feed.add(row("c", n))
            # What a new driver does not tell apart is within a second.
            wait_until(lambda: time.monotonic() > published + 1.1)
            assert older.run(totals(feed)) == newest
            put_in_place(older, query)
            if not is_followed:
                attached = stack.enter_context(attach(query, cluster, job_id))
            wait_until(lambda: attached.status().snapshot_reason == "rewound")
            assert_as_spark(cluster, query, job_id, newest)
            attached.stop()
            again = stack.enter_context(attach(query, cluster, job_id))
            feed.add(row("a", 7))
            query.run(totals(feed))
            again.wait_for_batch(newest + 1, WAIT_SECONDS)
            status = again.status()
        assert (status.snapshot_count, status.feed_count) == (0, 1)
        assert_as_spark(cluster, query, job_id, newest + 1)


class TestFaults:
    @pytest.mark.proves("W7")
    def test_a_node_that_has_lost_everything_is_filled_again(
        self, feed: Feed, query: Attached, job_id: str, tmp_path: Path
    ) -> None:
        """
        The query has stopped, and readers find all keys again (W7).

        Another driver goes on after that, and a node that is away only delays.
        """
        feed.add(*(row(f"plane {n}", n) for n in range(50)))
        query.run(totals(feed))
        with (
            state_cluster() as cluster,
            open_ha_services(cluster.config) as ha,
            attach(query, cluster, job_id, commit_timeout_seconds=2.0) as attached,
        ):
            attached.wait_for_batch(0, WAIT_SECONDS)
            before = cluster.client.describe(job_id, "totals").generation
            cluster.local.nodes[1].close()
            feed.add(row("late", 1))
            query.run(totals(feed))
            wait_until(lambda: attached.status().last_error is not None)
            assert isinstance(attached.status().last_error, StateUnavailableError)
            assert attached.status().lag_batches == 1
            assert attached.status().lag_seconds > 0
            config = NodeConfig(data_dir=tmp_path / "new disk", node_id="node-2")
            with StateNode(ha, config):
                attached.wait_for_batch(1, WAIT_SECONDS)
                assert_as_spark(cluster, query, job_id, 1)
                assert attached.status().snapshot_reason == "node-lost"
            config = NodeConfig(data_dir=tmp_path / "newer disk", node_id="node-2")
            with StateNode(ha, config) as node:
                node.wait_until_registered(WAIT_SECONDS)
                # The batch is there already: it is brought again as another query's.
                wait_until(lambda: attached.status().snapshot_count == 3)
                assert_as_spark(cluster, query, job_id, 1)
                after = cluster.client.describe(job_id, "totals").generation
                assert after == before + 1
                attached.stop()
                with attach(query, cluster, job_id) as again:
                    feed.add(row("later", 1))
                    query.run(totals(feed))
                    again.wait_for_batch(2, WAIT_SECONDS)
                    assert again.status().snapshot_count == 0
                assert_as_spark(cluster, query, job_id, 2)
            close_writer_connections()

    def test_a_checkpoint_that_is_moved_away_and_put_back(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Readers have old rows from then on: why is told, until it is there again."""
        feed.add(row("a", 1))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            attached.wait_for_batch(0, WAIT_SECONDS)
            moved = query.checkpoint.rename(query.checkpoint.with_name("moved"))
            advice = "attach it where it is now"
            wait_until(lambda: advice in str(attached.status().last_error))
            status = attached.status()
            assert isinstance(status.last_error, StorageError)
            assert status.is_running
            moved.rename(query.checkpoint)
            feed.add(row("a", 2))
            query.run(totals(feed))
            attached.wait_for_batch(1, WAIT_SECONDS)
            status = attached.status()
        assert (status.last_error, status.mode) == (None, "feed")
        assert_as_spark(cluster, query, job_id, 1)

    def test_nobody_is_there(
        self, spark: SparkSession, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Without a proxy it tries again; it tells why, and stops at once."""
        feed.add(row("a", 1))
        query.run(totals(feed))
        with attach_state(
            spark,
            "embedded:nobody",
            str(query.checkpoint),
            job_id=job_id,
            state_name="totals",
        ) as attached:
            with pytest.raises(DeadlineExceededError, match="nothing is published"):
                attached.wait_for_batch(0, timeout_seconds=0.5)
            assert attached.status().is_running
        assert attached.failure is None
        assert not attached.status().is_running


class TestRefusals:
    def test_a_join_is_refused_with_the_reason(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Its stores have no change feed together."""
        left = feed.frame().withWatermark("seen", "1 minute").alias("left")
        right = feed.frame().withWatermark("seen", "1 minute").alias("right")
        feed.add(row("a", 1))
        query.run(
            left.join(
                right, F.expr("left.tailnum = right.tailnum AND left.seen = right.seen")
            ),
            "append",
        )
        with pytest.raises(ConfigurationError, match=r"join.*four stores.*change feed"):
            attach(query, cluster, job_id)

    def test_an_operator_that_keeps_no_variables_is_refused(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Spark would ask for the name of a variable, and there is none to name."""
        feed.add(row("a", 1))
        query.run(without_variables(feed.frame(), "tailnum"))
        with pytest.raises(ConfigurationError, match="keeps no variables, so there is"):
            attach(query, cluster, job_id)

    def test_what_cannot_be_stored_ends_it(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """Why a task was refused is told as the error that it is."""
        feed.add(row("a" * 600, 1))
        query.run(totals(feed))
        with attach(query, cluster, job_id) as attached:
            with pytest.raises(KeyTooLargeError):
                attached.wait_for_batch(0, WAIT_SECONDS)
            assert not attached.status().is_running

    def test_a_path_that_sparks_reader_takes_for_another_is_refused(
        self, cluster: StateCluster, spark: SparkSession, tmp_path: Path
    ) -> None:
        """At once: where a directory of the other name is, its state would be read."""
        for name in ("a b", "100%", "a%20b", "a#b", "a?b", "a[b]"):
            query = Attached(spark, tmp_path / name)
            with pytest.raises(ConfigurationError, match=r"takes .* without spaces"):
                attach(query, cluster, "trams")
        for name in ("größe", "a+b,c=d", "a@b:c"):
            query = Attached(spark, tmp_path / name)
            with pytest.raises(ConfigurationError, match="no checkpoint"):
                attach(query, cluster, "trams", start_timeout_seconds=0.1)

    def test_what_is_not_there(
        self, cluster: StateCluster, feed: Feed, query: Attached, job_id: str
    ) -> None:
        """A checkpoint, an operator or a variable is named that does not exist."""
        with pytest.raises(ConfigurationError, match="no checkpoint"):
            attach(query, cluster, job_id, start_timeout_seconds=0.1)
        feed.add(row("a", 1))
        query.run(totals(feed))
        with pytest.raises(ConfigurationError, match=r"no .*operator 3.*0 \(stateSt"):
            attach(query, cluster, job_id, operator_id=3)
        with pytest.raises(ConfigurationError, match="leave state_var_name out"):
            attach(query, cluster, job_id, state_var_name="last")
        with pytest.raises(ConfigurationError, match="value_names must name 1 col"):
            attach(query, cluster, job_id, value_names=["a", "b"])
        with pytest.raises(ConfigurationError, match="poll_seconds"):
            attach(query, cluster, job_id, poll_seconds=0)
        with pytest.raises(ConfigurationError, match="on_new_query"):
            attach(query, cluster, job_id, on_new_query="continue")
