"""What `publish_state` says before a query is started, of all that surrounds it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from structlog.testing import capture_logs

from haservices import HAConfig, open_ha_services
from nameservice import ConfigurationError, UnreachableError
from sparkpipeline import publish_state
from sparkpipeline.spark_session import check_session
from tests.sparkpipeline.state_cluster import Feed


pytestmark = [pytest.mark.spark, pytest.mark.shells]

NAME_SERVICE = HAConfig(url="embedded:test-starting")


@pytest.fixture(autouse=True)
def name_service() -> Iterator[None]:
    """Keep the name service open that queries are published by."""
    with open_ha_services(NAME_SERVICE):
        yield


@pytest.fixture
def delays(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Return a stream of delays with a watermark."""
    feed = Feed(spark, tmp_path / "input", "origin string, at timestamp, delay long")
    return feed.frame().withWatermark("at", "1 minute")


def warnings_of(frame: DataFrame, **settings: Any) -> list[str]:
    """Return the columns that are warned of when *frame* is published."""
    chosen: dict[str, Any] = {
        "job_id": "flights",
        "state_name": "delays",
        "key": ["origin", "window"],
        "output_mode": "update",
    } | settings
    with capture_logs() as lines:
        publish_state(frame, NAME_SERVICE, **chosen)
    return [line["column"] for line in lines if line["event"] == "ttl.missing"]


class TestNameService:
    def test_a_wrong_port_is_told_at_once(self, delays: DataFrame) -> None:
        """Not by the first batch, after the commit timeout: by the call."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and does not listen
            config = HAConfig(
                url=f"leaderserver://127.0.0.1:{taken.getsockname()[1]}",
                connect_timeout_seconds=0.5,
            )
            with pytest.raises(UnreachableError) as caught:
                publish_state(
                    delays,
                    config,
                    job_id="flights",
                    state_name="delays",
                    key="origin",
                    output_mode="update",
                )
        assert caught.value.waited_seconds == 0.5


@pytest.mark.proves("W6")
class TestWindows:
    """A watermark makes Spark forget a window; a state keeps it without a TTL (W6)."""

    @pytest.fixture
    def windows(self, delays: DataFrame) -> DataFrame:
        """Return the number of delays by origin and minute."""
        return delays.groupBy("origin", F.window("at", "1 minute")).count()

    def test_they_are_warned_of_once(self, windows: DataFrame) -> None:
        """W6: with the column; a second call in the same process says it no more."""
        assert warnings_of(windows, job_id="once") == ["window"]
        assert warnings_of(windows, job_id="once") == []

    def test_so_are_their_ends_as_keys(self, windows: DataFrame) -> None:
        """W6: a part of the window alone, and a key of a map."""
        frame = windows.select("origin", F.col("window.end").alias("until"), "count")
        settings: dict[str, Any] = {"kind": "map", "key": "origin", "map_key": "until"}
        assert warnings_of(frame, job_id="ends", **settings) == ["until"]

    def test_what_goes_by_itself_is_not(
        self, windows: DataFrame, delays: DataFrame
    ) -> None:
        """W6: by a TTL, by deletes, by complete mode; and keys that are no times."""
        frame = windows.select(
            "*",
            (F.col("window.end") + F.expr("interval 1 day")).alias("until"),
            (F.col("count") == 0).alias("is_gone"),
        )
        assert warnings_of(frame, job_id="ttl", ttl="until") == []
        assert warnings_of(frame, job_id="delete", delete="is_gone") == []
        assert warnings_of(windows, job_id="all", output_mode="complete") == []
        assert warnings_of(windows, job_id="keys", key="origin") == []

    def test_without_a_watermark_no_window_is_ever_over(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """W6: Spark keeps them all, too."""
        feed = Feed(spark, tmp_path / "other", "origin string, at timestamp")
        frame = feed.frame().groupBy("origin", F.window("at", "1 minute")).count()
        assert warnings_of(frame, job_id="unbounded") == []


class TestSparkConnect:
    def test_a_session_without_a_jvm_is_refused(self) -> None:
        """It is told where to run what needs one."""
        without: Any = object()
        with pytest.raises(ConfigurationError, match="start_nodes needs the driver's"):
            check_session(without, "start_nodes")

    def test_its_client_is_refused(self) -> None:
        """By the call, not by the first batch; where the client's packages are."""
        pytest.importorskip("grpc", reason="Spark Connect needs it")
        from pyspark.sql.connect.session import (  # noqa: PLC0415 (imports grpc)
            SparkSession as ConnectSession,
        )

        # Nothing listens there: the refusal asks no server.
        remote = ConnectSession.builder.remote("sc://127.0.0.1:1").create()
        frame: Any = remote.readStream.format("rate").load()
        with pytest.raises(ConfigurationError, match="Spark Connect"):
            warnings_of(frame, key="value")
