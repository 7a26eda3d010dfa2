"""What a log source has read, asked from outside (O4, O5)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from pyspark.sql import DataFrame, SparkSession

from haservices import HAConfig, open_ha_services
from nameservice import ConfigurationError
from queryablestate import (
    LocalStateCluster,
    QueryableStateClient,
    StateOwnedError,
    UnknownStateError,
)
from rescaling import OperatorCheckpointError, RedistributionMode
from sparkpipeline import AttachedState, attach_log_state
from tests.recording import wait_until
from tests.sparkpipeline.state_cluster import TIMEOUT_SECONDS, Feed, run_to_end


pytestmark = [pytest.mark.spark, pytest.mark.shells]


@define
class PublishedLog:
    """A log, one query that reads it, and a cluster that can be asked about it."""

    spark: SparkSession
    config: HAConfig
    client: QueryableStateClient
    directory: Path
    checkpoint: Path

    def append(self, *names: str) -> None:
        """Append a record to each of the partitions *names*."""
        for name in names:
            with (self.directory / f"{name}.jsonl").open("a") as file:
                file.write('{"n": 1}\n')

    def run(self, parallelism: int, name: str | None = None) -> None:
        """Read what there is, in a new run of the query; the source may have a name."""
        reader = (
            self.spark.readStream.format("lodestar-log")
            .schema("n long")
            .option("parallelism", parallelism)
        )
        if name is not None:
            reader = reader.name(name)
        frame = reader.load(str(self.directory))
        run_to_end(frame.writeStream.foreachBatch(ignore), self.checkpoint)

    def attach(self, **others: Any) -> AttachedState:
        """Attach its state."""
        settings: dict[str, Any] = {"job_id": "flights", "poll_seconds": 0.1} | others
        return attach_log_state(
            self.spark, self.config, str(self.checkpoint), **settings
        )

    def offset(self, batch_id: int) -> list[list[tuple[str, int]]]:
        """Return what the subtasks held after a batch, as Spark keeps it."""
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        subtasks = json.loads(lines[2])["subtasks"]
        return [[tuple(item) for item in subtask] for subtask in subtasks]

    def published(self, batch_id: int, name: str = "partitions") -> Any:
        """Return the items of each subtask, as readers see them."""
        view = self.client.operator_state("flights", name, min_batch_id=batch_id)
        assert view.mode is RedistributionMode.SPLIT_DISTRIBUTE
        assert view.batch_id == batch_id
        return [list(items) for items in view.subtasks]


def ignore(batch: DataFrame, batch_id: int) -> None:
    """Be a sink that reads, and keeps nothing."""
    batch.count()


@pytest.fixture
def log(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[PublishedLog]:
    """Yield a log of the test's own."""
    config = HAConfig(url=f"embedded:{request.node.name}")
    directory = tmp_path / "log"
    directory.mkdir()
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha, nodes=2),
        QueryableStateClient(ha, deadline_seconds=30.0) as client,
    ):
        yield PublishedLog(spark, config, client, directory, tmp_path / "checkpoint")


@pytest.mark.proves("O5")
class TestOffsets:
    @pytest.mark.proves("O4")
    def test_they_are_those_of_the_offset_log_whatever_the_parallelism(
        self, log: PublishedLog
    ) -> None:
        """
        O4, O5: FLIP-8's offsets, by subtask, after each batch and each restart.

        What was published is nothing that the source ever reads.
        """
        log.append("a", "b", "c", "d")
        log.run(parallelism=2)
        with log.attach(state_name="offsets") as attached:
            attached.wait_for_batch(0, TIMEOUT_SECONDS)
            assert log.published(0, "offsets") == log.offset(0)
            assert [len(held) for held in log.offset(0)] == [2, 2]
            for batch_id, parallelism in enumerate((1, 4, 3), 1):
                log.append("a", f"new-{batch_id}")
                log.run(parallelism)
                held = log.published(batch_id, "offsets")
                assert held == log.offset(batch_id)
                assert len(held) == parallelism
            attached.wait_for_batch(3, TIMEOUT_SECONDS)  # readers see it before we do
            assert attached.status().batch_id == 3
        # Another driver goes on from where the proxy says that this one was.
        log.append("b")
        log.run(parallelism=2)
        with log.attach(state_name="offsets") as attached:
            attached.wait_for_batch(4, TIMEOUT_SECONDS)
            assert log.published(4, "offsets") == log.offset(4)
            assert dict(itertools.chain(*log.offset(4))) == {
                path.name: path.stat().st_size for path in log.directory.iterdir()
            }

    @pytest.mark.parametrize("name", [None, "flights"])
    def test_they_are_found_in_the_newer_offset_log(
        self, log: PublishedLog, name: str | None
    ) -> None:
        """O5: in which Spark writes each source with its number, or its name."""
        if name is None:
            log.spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
        else:
            setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
            log.spark.conf.set(setting, "true")
        log.append("a", "b")
        log.run(parallelism=2, name=name)
        text = (log.checkpoint / "offsets" / "0").read_text()
        assert text.startswith("v2\n")
        assert f"\n{name or 0}:{{" in text
        with log.attach() as attached:
            attached.wait_for_batch(0, TIMEOUT_SECONDS)
            assert log.published(0) == [[("a.jsonl", 9)], [("b.jsonl", 9)]]

    def test_what_cannot_be_attached_is_told_at_once(
        self, log: PublishedLog, tmp_path: Path
    ) -> None:
        """O5: another source, another index, a name that no state may have."""
        feed = Feed(log.spark, tmp_path / "input", "n long")
        feed.add({"n": 1})
        run_to_end(feed.frame().writeStream.foreachBatch(ignore), log.checkpoint)
        with pytest.raises(OperatorCheckpointError, match="no offset of"):
            log.attach()
        with pytest.raises(ConfigurationError, match="1 sources"):
            log.attach(source_index=1)
        with pytest.raises(ConfigurationError, match="1 to 255"):
            log.attach(state_name="x" * 255)

    @pytest.mark.nightly
    def test_another_query_takes_a_name_only_if_it_says_so(
        self, log: PublishedLog, tmp_path: Path
    ) -> None:
        """W5, O5: the copy belongs to a query, and its batch ids begin anew."""
        log.append("a")
        log.run(parallelism=1)
        with log.attach() as attached:
            attached.wait_for_batch(0, TIMEOUT_SECONDS)
        log.checkpoint = tmp_path / "other"
        log.run(parallelism=2)
        with log.attach() as refused:
            wait_until(
                lambda: refused.failure is not None, timeout_seconds=TIMEOUT_SECONDS
            )
            assert isinstance(refused.failure, StateOwnedError)
        with log.attach(on_new_query="replace") as attached:
            attached.wait_for_batch(0, TIMEOUT_SECONDS)
            assert log.published(0) == log.offset(0)
            assert len(log.offset(0)) == 2
        with pytest.raises(UnknownStateError):
            log.published(0, "offsets")
