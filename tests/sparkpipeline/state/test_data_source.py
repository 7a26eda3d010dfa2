"""``format("lodestar")`` over a real cluster, found by Spark itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from haservices import HAConfig
from nameservice import ConfigurationError
from queryablestate import StateOwnedError
from queryablestate.writer.connections import close_writer_connections
from sparkpipeline import LodestarDataSource, publish_state, source_options
from sparkpipeline.state.data_source import batch_query_id
from tests.sparkpipeline.state_cluster import (
    Feed,
    StateCluster,
    run_to_end,
    state_cluster,
)


pytestmark = [pytest.mark.spark, pytest.mark.shells]

_numbers = itertools.count(1)

ALL_TYPES = """
    select id, cast(id as tinyint) as a, cast(id as smallint) as b,
        cast(id as int) as c, cast(id as float) / 3 as d, cast(id as double) / 3 as e,
        id % 2 = 0 as f,
        cast(id as string) as g, cast(cast(id as string) as binary) as h,
        cast(id as decimal(10,2)) / 4 as i, cast(id as decimal(38,10)) as j,
        date_add(date'2024-02-28', cast(id as int)) as k,
        timestamp_micros(id * 1234567890123) as l,
        cast(timestamp_micros(id * 7654321) as timestamp_ntz) as m,
        named_struct('x', id, 'y', array(id, null, id + 1)) as n,
        map('one', id, 'two', null) as o,
        map(named_struct('p', id), array(named_struct('q', 'r'))) as p,
        if(id = 3, null, id) as q
    from range(40)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[StateCluster]:
    """Yield a cluster for all tests of this file."""
    with state_cluster() as held:
        yield held
        close_writer_connections()


@pytest.fixture
def job_id() -> str:
    """Return a job of the test's own."""
    return f"trains-{next(_numbers)}"


def save(
    frame: DataFrame, cluster: StateCluster, mode: str = "overwrite", **options: str
) -> None:
    """Write *frame* as a batch job does."""
    frame.write.format("lodestar").mode(mode).options(
        **source_options(cluster.config) | options
    ).save()


def load(spark: SparkSession, cluster: StateCluster, **options: str) -> DataFrame:
    """Read a state."""
    reader = spark.read.format("lodestar")
    return reader.options(**source_options(cluster.config.url) | options).load()


class TestBatchJobs:
    def test_every_type_comes_back(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """What is read has the very types and values of what was written."""
        names = {"job_id": job_id, "state_name": "types"}
        written = spark.sql(ALL_TYPES)
        save(written, cluster, key="id", **names)
        found = load(spark, cluster, **names)
        # Every column of a state may be null, for more may be added later.
        assert found.schema.simpleString() == written.schema.simpleString()
        assert sorted(found.collect()) == sorted(written.collect())
        assert found.where("id < 7").count() == 7
        assert found.rdd.getNumPartitions() == 2

    @pytest.mark.parametrize("kind", ["value", "map", "list"])
    def test_years_that_python_has_not_come_back(
        self, cluster: StateCluster, spark: SparkSession, job_id: str, kind: str
    ) -> None:
        """
        Spark reads what it has written, in keys, in values and inside of them.

        One date after 9999, of a timestamp in milliseconds that was taken for one in
        seconds, ended each read of the state with an error.
        """
        names = {"job_id": job_id, "state_name": "years"}
        far = spark.sql(
            "SELECT date_add(DATE'9999-12-31', 400 * day) AS day, "
            "timestamp_micros(1000000000000000000 * day) AS at, "
            "named_struct('ats', array(timestamp_micros(-100000000000000000))) AS s "
            "FROM VALUES (0), (1) AS v(day)"
        )
        options = {"map_key": "at"} if kind == "map" else {}
        mode = "append" if kind == "list" else "overwrite"
        save(far, cluster, mode, key="day", kind=kind, **options, **names)
        found = load(spark, cluster, **names)
        assert found.schema.simpleString() == far.schema.simpleString()
        as_text = [f"CAST({name} AS string)" for name in far.columns]
        assert sorted(found.selectExpr(*as_text).collect()) == sorted(
            far.selectExpr(*as_text).collect()
        )

    @pytest.mark.parametrize(
        "key", ["n", "a,f", "q", "g", "h", "j", "e", "d", "k", "l,m", "i,c,b"]
    )
    def test_keys_are_found_whatever_their_type(
        self, cluster: StateCluster, spark: SparkSession, job_id: str, key: str
    ) -> None:
        """The key groups that we compute are those that a reader computes."""
        names = {"job_id": job_id, "state_name": "keys"}
        save(spark.sql(ALL_TYPES), cluster, key=key, columns="id", **names)
        rows = cluster.rows(job_id, "keys")
        assert sorted(row["id"] for row in rows.values()) == list(range(40))
        for one in list(rows)[:10]:
            assert cluster.client.get(job_id, "keys", one) == rows[one]

    def test_append_inserts_and_overwrite_replaces(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """Each job writes one batch after the last; order_by decides in append mode."""
        names = {"job_id": job_id, "state_name": "squares", "key": "id"}
        squares = spark.range(5).selectExpr("id", "id * id as n")
        save(squares, cluster, "append", order_by="n", **names)
        save(
            spark.createDataFrame([(1, 7), (1, 9), (1, 8), (9, 81)], "id long, n long"),
            cluster,
            "append",
            order_by="n",
            **names,
        )
        assert cluster.rows(job_id, "squares") == {
            0: {"n": 0},
            1: {"n": 9},
            2: {"n": 4},
            3: {"n": 9},
            4: {"n": 16},
            9: {"n": 81},
        }
        assert cluster.batch_id(job_id, "squares") == 1
        save(squares.where("id = 2"), cluster, **names)
        assert cluster.rows(job_id, "squares") == {2: {"n": 4}}
        assert cluster.batch_id(job_id, "squares") == 2
        owner = cluster.client.describe(job_id, "squares").owner
        assert owner == f"batch:{job_id}/squares"

    def test_nothing_replaces_everything(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """Also where there is not even a partition of it."""
        names = {"job_id": job_id, "state_name": "rows", "key": "id"}
        for empty in (spark.range(3).where("id > 5"), spark.range(3).limit(0)):
            save(spark.range(3).selectExpr("id", "id as n"), cluster, **names)
            assert len(cluster.rows(job_id, "rows")) == 3
            save(empty.selectExpr("id", "id as n"), cluster, **names)
            assert cluster.rows(job_id, "rows") == {}

    @pytest.mark.nightly
    def test_lists_and_maps(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """Read as a table, each item and each entry is a row."""
        frame = spark.range(6).selectExpr("id % 2 as k", "id as n").repartition(3)
        save(
            frame,
            cluster,
            "append",
            job_id=job_id,
            state_name="list",
            key="k",
            kind="list",
            order_by="n",
        )
        found = load(spark, cluster, job_id=job_id, state_name="list")
        assert sorted(found.collect()) == sorted(frame.collect())
        items = cluster.client.get_list(job_id, "list", 1)
        assert items == [{"n": 1}, {"n": 3}, {"n": 5}]
        save(
            frame.withColumn("v", F.lit("x")),
            cluster,
            job_id=job_id,
            state_name="map",
            key="k",
            kind="map",
            map_key="n",
        )
        found = load(spark, cluster, job_id=job_id, state_name="map")
        assert found.columns == ["k", "n", "v"]
        assert sorted(found.drop("v").collect()) == sorted(frame.collect())

    def test_a_large_state_is_read_in_pages(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """No row is lost or doubled between pages, nor between nodes."""
        names = {"job_id": job_id, "state_name": "many"}
        save(
            spark.range(30_000).selectExpr("cast(id as string) k", "id"),
            cluster,
            key="k",
            **names,
        )
        found = load(spark, cluster, **names)
        (totals,) = found.agg(F.count("k"), F.countDistinct("k"), F.sum("id")).collect()
        assert tuple(totals) == (30_000, 30_000, 30_000 * 29_999 // 2)

    @pytest.mark.proves("W3")
    def test_a_failed_job_changes_nothing(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """Rows of the tasks that did not fail are staged, and never decided (W3)."""
        names = {"job_id": job_id, "state_name": "safe", "key": "id"}
        save(spark.range(3).selectExpr("id", "id as n"), cluster, **names)
        bad = spark.range(0, 1000, 1, 4).selectExpr(
            "id", "if(id = 999, raise_error('no'), id) as n"
        )
        with pytest.raises(PySparkException, match="no"):
            save(bad, cluster, **names)
        assert cluster.rows(job_id, "safe") == {0: {"n": 0}, 1: {"n": 1}, 2: {"n": 2}}


class TestStreams:
    @pytest.fixture
    def feed(self, spark: SparkSession, tmp_path: Path) -> Feed:
        """Return a stream of the test's own."""
        return Feed(spark, tmp_path / "input", "k string, n long")

    def writer(self, frame: DataFrame, cluster: StateCluster, **options: str) -> Any:
        """Return what writes a stream."""
        return frame.writeStream.format("lodestar").options(
            **source_options(cluster.config), **options
        )

    @pytest.mark.proves("W3", "W4")
    def test_append_mode(
        self,
        cluster: StateCluster,
        feed: Feed,
        job_id: str,
        tmp_path: Path,
    ) -> None:
        """Batches are applied once each, with Spark's own numbers (W3, W4)."""
        feed.add({"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3})
        feed.add({"k": "a", "n": 2})
        writer = self.writer(
            feed.frame(),
            cluster,
            job_id=job_id,
            state_name="last",
            key="k",
            order_by="n",
        )
        query = run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "last") == {"a": {"n": 2}, "b": {"n": 2}}
        description = cluster.client.describe(job_id, "last")
        assert (description.batch_id, description.owner) == (1, query.id)

    @pytest.mark.proves("W6")
    @pytest.mark.nightly
    def test_complete_mode(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Each batch is all there is; one without rows empties the state (W6)."""
        feed.add({"k": "a", "n": 1}, {"k": "b", "n": 5})
        writer = self.writer(
            feed.frame().groupBy("k").agg(F.sum("n").alias("n")).where("n < 10"),
            cluster,
            job_id=job_id,
            state_name="small",
            key="k",
        ).outputMode("complete")
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "small") == {"a": {"n": 1}, "b": {"n": 5}}
        feed.add({"k": "b", "n": 5})
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "small") == {"a": {"n": 1}}
        feed.add({"k": "a", "n": 100})
        run_to_end(writer, tmp_path / "checkpoint")
        assert cluster.rows(job_id, "small") == {}
        assert cluster.batch_id(job_id, "small") == 2

    @pytest.mark.proves("W5")
    @pytest.mark.nightly
    def test_the_sinks_agree_on_key_groups(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """Spark computes them for one, we for the other: a state can go on (W5)."""
        feed.add(*({"k": f"k{number}", "n": number} for number in range(100)))
        run_to_end(
            publish_state(
                feed.frame(),
                cluster.config,
                job_id=job_id,
                state_name="both",
                key=["k", "n"],
                columns=[],
                output_mode="update",
            ),
            tmp_path / "first",
        )
        writer = self.writer(
            feed.frame(),
            cluster,
            job_id=job_id,
            state_name="both",
            key="k,n",
            columns="",
            order_by="n",
            on_new_query="continue",
        )
        run_to_end(writer, tmp_path / "second")
        assert len(cluster.rows(job_id, "both")) == 100
        assert cluster.client.describe(job_id, "both").generation == 2

    @pytest.mark.proves("W5")
    @pytest.mark.nightly
    def test_another_query_is_refused(
        self, cluster: StateCluster, feed: Feed, job_id: str, tmp_path: Path
    ) -> None:
        """The error says what to do (W5)."""
        feed.add({"k": "a", "n": 1})
        writer = self.writer(
            feed.frame(), cluster, job_id=job_id, state_name="s", key="k", order_by="n"
        )
        run_to_end(writer, tmp_path / "first")
        with pytest.raises(StateOwnedError, match='say on_new_query="replace"'):
            run_to_end(writer, tmp_path / "second")


class TestSQL:
    """States as views of Spark SQL."""

    def test_a_view_is_read_and_written(
        self, spark: SparkSession, cluster: StateCluster, job_id: str
    ) -> None:
        """INSERT INTO inserts and replaces by key, INSERT OVERWRITE replaces all."""
        numbers = spark.range(5).selectExpr("id", "id * id as square")
        names = {"job_id": job_id, "state_name": "squares", "key": "id"}
        options = source_options(cluster.config) | names | {"order_by": "square"}
        numbers.write.format("lodestar").mode("overwrite").options(**options).save()
        told = ", ".join(f"{name} '{value}'" for name, value in options.items())
        spark.sql(f"CREATE TEMPORARY VIEW squares USING lodestar OPTIONS ({told})")
        select = "SELECT id, square FROM squares WHERE id > 2 ORDER BY id"
        assert [tuple(row) for row in spark.sql(select).collect()] == [(3, 9), (4, 16)]
        spark.sql("INSERT INTO squares VALUES (4, 0), (6, 36)")
        assert [tuple(row) for row in spark.sql(select).collect()] == [
            (3, 9),
            (4, 0),
            (6, 36),
        ]
        spark.sql("INSERT OVERWRITE squares VALUES (7, 49)")
        assert [tuple(row) for row in spark.sql(select).collect()] == [(7, 49)]

    def test_a_table_is_refused(
        self, spark: SparkSession, cluster: StateCluster, job_id: str
    ) -> None:
        """Its options would not get to those who read it: the error says what does."""
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            spark.sql(
                "CREATE TABLE squares USING lodestar OPTIONS "
                f"(url '{cluster.config.url}', job_id '{job_id}', state_name 's')"
            )


class TestMistakes:
    def test_options(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """What is wrong with the options is said as it is in Python."""
        frame = spark.range(3).selectExpr("id", "id as n")
        names = {"job_id": job_id, "state_name": "s"}
        for options, words in (
            ({}, "the option key is missing"),
            ({"key": "id", "tll": "n"}, "unknown option tll; known are"),
            ({"key": "ID"}, "is 'id' meant"),
            ({"key": "id", "max_parallelism": "many"}, "must be a number"),
            ({"key": "id", "session_timeout_seconds": "x"}, "number of seconds"),
        ):
            with pytest.raises(PySparkException, match=words):
                save(frame, cluster, **names, **options)
        with pytest.raises(PySparkException, match="say with order_by"):
            save(frame, cluster, "append", key="id", **names)

    def test_the_name_service_is_an_option(self, spark: SparkSession) -> None:
        """The settings of the session do not get there: the error says what does."""
        reader = spark.read.format("lodestar").options(job_id="j", state_name="s")
        with pytest.raises(PySparkException, match="source_options"):
            reader.load()
        with pytest.raises(PySparkException, match="use a LeaderServer instead"):
            reader.option("url", "embedded:flights").load()

    def test_what_is_not_there(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """Reading names the job or the state that is not known."""
        with pytest.raises(PySparkException, match=f"a job '{job_id}'"):
            load(spark, cluster, job_id=job_id, state_name="s").collect()
        with pytest.raises(PySparkException, match="the option state_name is missing"):
            load(spark, cluster, job_id=job_id)

    @pytest.mark.nightly
    def test_a_schema_of_ones_own_must_fit(
        self, cluster: StateCluster, spark: SparkSession, job_id: str
    ) -> None:
        """Columns are those of the state: other ones are refused, not made up."""
        names = {"job_id": job_id, "state_name": "s"}
        save(spark.range(3).selectExpr("id", "id as n"), cluster, key="id", **names)
        reader = spark.read.format("lodestar").options(
            **source_options(cluster.config), **names
        )
        assert reader.schema("id long, n long").load().count() == 3
        with pytest.raises(PySparkException, match="leave the schema out"):
            reader.schema("n long, id long").load().collect()


class TestClass:
    """What can be seen without Spark."""

    def test_options_of_a_configuration(self) -> None:
        """All settings are options, and come back as they were."""
        config = HAConfig(
            url="leaderserver://h:1", cluster_id="prod", lease_seconds=0.25
        )
        source = LodestarDataSource(source_options(config))
        assert source._config() == config
        assert source_options("leaderserver://h:1")["url"] == "leaderserver://h:1"

    def test_options_come_from_the_environment_of_the_driver(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As everywhere; options outweigh it."""
        monkeypatch.setenv("LODESTAR_URL", "leaderserver://h:1")
        monkeypatch.setenv("LODESTAR_CLUSTER_ID", "test")
        source = LodestarDataSource({"cluster_id": "prod"})
        assert source._config() == HAConfig(url="leaderserver://h:1", cluster_id="prod")

    def test_unknown_options_are_refused(self) -> None:
        """But for Spark's own."""
        LodestarDataSource({"checkpointLocation": "/tmp/c", "path": "x"})
        with pytest.raises(ConfigurationError, match="unknown option statename"):
            LodestarDataSource({"stateName": "s"})

    def test_batch_jobs_have_names_as_long_as_may_be(self) -> None:
        """Longer ones are shortened, and stay different."""
        assert batch_query_id("j", "s") == "batch:j/s"
        long = {batch_query_id("j" * 255, "s" * length) for length in (254, 255)}
        assert len(long) == 2
        assert max(map(len, long)) <= 255


def test_values_in_python(
    cluster: StateCluster, spark: SparkSession, job_id: str
) -> None:
    """What clients see of Spark's types; see docs on state types."""
    names = {"job_id": job_id, "state_name": "types"}
    save(spark.sql(ALL_TYPES), cluster, key="id", **names)
    found = cluster.client.get(job_id, "types", 2)
    assert found["i"] == Decimal("0.500000")
    assert found["k"] == date(2024, 3, 1)
    assert found["l"] == datetime(1970, 1, 29, 13, 52, 15, 780246, tzinfo=UTC)
    assert found["n"] == {"x": 2, "y": [2, None, 3]}
    assert found["p"] == {(2,): [{"q": "r"}]}
