"""Operator state of real queries, asked from outside while they run (O5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen
from pyspark.sql import DataFrame, SparkSession
from structlog.testing import capture_logs

from haservices import HAConfig, open_ha_services
from nameservice import ConfigurationError, NoLeaderError
from queryablestate import (
    LocalStateCluster,
    OperatorStateView,
    QueryableStateClient,
    StaleWriterError,
    StateOwnedError,
    UnknownJobError,
    UnknownStateError,
)
from queryablestate.writer import writer as writer_module
from queryablestate.writer.own_runs import OwnRuns
from rescaling import RedistributionMode
from rescaling.operator_state import encode_snapshot
from sparkpipeline import (
    OperatorContext,
    OperatorFunction,
    OperatorStatePublication,
    run_operator,
)
from sparkpipeline.operators.publication import (
    PublishedBatch,
    PublishingRun,
    publish_batch,
)
from tests.sparkpipeline.operator_app import Remember
from tests.sparkpipeline.sleeping_driver import SleepingDriver
from tests.sparkpipeline.state_cluster import TIMEOUT_SECONDS, Feed, run_to_end


pytestmark = [pytest.mark.spark, pytest.mark.shells]

SCHEMA = "n long"


@frozen(kw_only=True)
class Published:
    """A cluster, and a query that publishes its operator state there."""

    feed: Feed
    checkpoint: Path
    client: QueryableStateClient
    publication: OperatorStatePublication

    def run(
        self,
        parallelism: int,
        function: OperatorFunction | None = None,
        **others: Any,
    ) -> None:
        """Run what there is to its end."""
        settings: dict[str, Any] = {
            "sink": ignore,
            "output_schema": Remember.SCHEMA,
            "publication": self.publication,
        } | others
        writer = run_operator(
            self.feed.frame(),
            Remember() if function is None else function,
            parallelism=parallelism,
            **settings,
        )
        run_to_end(writer, self.checkpoint)

    def add(self, *numbers: int) -> None:
        """Add a batch."""
        self.feed.add(*({"n": number} for number in numbers))

    def ask(self, name: str, min_batch_id: int | None = None) -> OperatorStateView:
        """Ask for one of the states of `Remember`."""
        return self.client.operator_state("job", name, min_batch_id=min_batch_id)


class LongName(Remember):
    """Has a state whose name is one of an operator's, and none of the nodes'."""

    def open(self, context: OperatorContext) -> None:
        """Keep something in it."""
        super().open(context)
        context.operator_state.list_state("n" * 250).add(1)


def ignore(batch: DataFrame, batch_id: int) -> None:
    """Be a sink that wants nothing."""


def seen(view: OperatorStateView) -> list[int]:
    """Return the numbers that all subtasks have seen, sorted."""
    return sorted(number for _, (number, _) in view.items)


@pytest.fixture
def published(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Published]:
    """Yield a query of the test's own, and who may be asked about it."""
    config = HAConfig(url=f"embedded:{request.node.name}")
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha, nodes=2),
        QueryableStateClient(ha, deadline_seconds=30.0) as client,
    ):
        yield Published(
            feed=Feed(spark, tmp_path / "input", SCHEMA),
            checkpoint=tmp_path / "checkpoint",
            client=client,
            publication=OperatorStatePublication(config=config, job_id="job"),
        )


@pytest.mark.proves("O5")
class TestAsking:
    def test_all_modes_are_told_by_subtask_over_restarts_and_another_parallelism(
        self, published: Published
    ) -> None:
        """O5: items and their subtasks, of the last batch; subtasks that go vanish."""
        published.add(0, 1, 2, 3)
        published.run(parallelism=2)
        first = published.ask("seen")
        assert first.mode is RedistributionMode.SPLIT_DISTRIBUTE
        assert (first.parallelism, first.batch_id) == (2, 0)
        assert [len(items) for items in first.subtasks] == [2, 2]
        # Tuples and dicts come back as what they were.
        assert first.items[0][1] == (first.items[0][1][0], {"batch": 0})
        assert seen(first) == [0, 1, 2, 3]
        union = published.ask("first_seen_by")
        assert union.mode is RedistributionMode.UNION
        assert union.items == ((0, ("subtask", 0)), (1, ("subtask", 1)))
        broadcast = published.ask("newest")
        assert broadcast.mode is RedistributionMode.BROADCAST
        assert broadcast.subtasks == ((("batch_id", 0),),) * 2

        # A restart: union state is not merged by it.
        published.add(4, 5)
        published.run(parallelism=2)
        assert published.ask("first_seen_by", 1).items == union.items
        assert seen(published.ask("seen", 1)) == [0, 1, 2, 3, 4, 5]

        published.add(6)
        published.run(parallelism=3)
        more = published.ask("first_seen_by", 2)
        assert more.subtasks == ((("subtask", 0), ("subtask", 1)),) * 3
        published.add(7)
        published.run(parallelism=1)
        last = published.ask("seen", 3)
        assert (last.parallelism, last.batch_id) == (1, 3)
        assert seen(last) == list(range(8))
        assert published.ask("newest").subtasks == ((("batch_id", 3),),)

    def test_it_can_be_asked_while_the_query_runs(self, published: Published) -> None:
        """
        O5: behind the sink of a batch its state is there; else errors are typed.

        Every batch has one subtask more.
        """
        with pytest.raises(UnknownJobError):
            published.ask("seen")
        writer = run_operator(
            published.feed.frame(),
            Remember(),
            parallelism=iter(range(1, 9)).__next__,
            sink=ignore,
            output_schema=Remember.SCHEMA,
            publication=published.publication,
        )
        published.add(0)
        query = writer.option("checkpointLocation", str(published.checkpoint)).start()
        try:
            for batch_id in range(3):
                query.processAllAvailable()
                view = published.ask("seen")
                assert (view.batch_id, view.parallelism) == (batch_id, batch_id + 1)
                assert seen(view) == list(range(batch_id + 1))
                published.add(batch_id + 1)
            with pytest.raises(UnknownStateError):
                published.ask("sen")
        finally:
            query.stop()
        assert published.client.states("job") == [
            "operator-state:first_seen_by",
            "operator-state:newest",
            "operator-state:seen",
        ]

    @pytest.mark.proves("O3")
    @pytest.mark.nightly
    def test_a_batch_that_is_run_again_is_published_by_its_manifest(
        self, published: Published
    ) -> None:
        """O3, O5: a driver that died before it published does so when it is back."""
        published.add(0, 1)
        published.run(parallelism=2, publication=None)
        for path in (published.checkpoint / "commits").glob("*0*"):
            path.unlink()
        published.run(parallelism=4)
        view = published.ask("seen")
        # As it was: nothing was run again, and the next batch alone has four subtasks.
        assert (view.batch_id, view.parallelism, seen(view)) == (0, 2, [0, 1])


@pytest.mark.proves("O5")
class TestFailures:
    def test_nobody_to_publish_to_delays_a_query_once(
        self, published: Published, tmp_path: Path
    ) -> None:
        """
        O5: a query is worth more than the copy of its state.

        It waits for one batch as long as it was told to, and for the others not at
        all; the copy is there as soon as there is somebody to have it.
        """
        config = HAConfig(url="embedded:later")
        delivered: list[int] = []
        publication = OperatorStatePublication(
            config=config, job_id="job", wait_seconds=0.2, commit_timeout_seconds=1.0
        )
        for number in range(3):
            published.add(number)
        with capture_logs() as logs, open_ha_services(config) as ha:
            published.run(
                parallelism=1,
                publication=publication,
                sink=lambda _, batch_id: delivered.append(batch_id),
            )
            assert delivered == [0, 1, 2]
            events = [one["event"] for one in logs]
            assert events.count("operator_state.delayed") == 1
            with (
                LocalStateCluster(ha, nodes=1),
                QueryableStateClient(ha, deadline_seconds=60.0) as client,
            ):
                client.wait_for_state(
                    "job", "operator-state:seen", TIMEOUT_SECONDS, min_batch_id=2
                )
                assert seen(client.operator_state("job", "seen")) == [0, 1, 2]

    def test_a_batch_fails_with_its_publication_where_that_is_required(
        self, published: Published
    ) -> None:
        """O5: it is run again with the next start, and is counted once all the same."""
        published.add(0, 1)
        nobody = HAConfig(url="embedded:nobody")
        publication = OperatorStatePublication(
            config=nobody, job_id="job", is_required=True, commit_timeout_seconds=1.0
        )
        with open_ha_services(nobody), pytest.raises(NoLeaderError):
            published.run(parallelism=1, publication=publication)
        published.run(
            parallelism=1,
            publication=evolve(published.publication, is_required=True),
        )
        view = published.ask("seen")
        assert (view.batch_id, seen(view)) == (0, [0, 1])

    def test_a_name_that_cannot_be_published_is_left_by_no_batch(
        self, published: Published
    ) -> None:
        """
        O5: it fails its batch before the manifest is there, so another name helps.

        A name that was left once is in every snapshot from then on.
        """
        published.add(0, 1)
        with pytest.raises(ConfigurationError, match="published operator state"):
            published.run(1, LongName())
        published.run(1)
        assert seen(published.ask("seen")) == [0, 1]

    @pytest.mark.nightly
    def test_a_name_that_another_query_owns_fails_the_first_batch(
        self, published: Published, tmp_path: Path
    ) -> None:
        """W5, O5: what would never work is told at once, and a copy can be taken."""
        published.add(0)
        published.run(parallelism=1)
        other = evolve(published, checkpoint=tmp_path / "other")
        with pytest.raises(StateOwnedError, match="belongs to query"):
            other.run(parallelism=2)
        other.run(
            parallelism=2,
            publication=evolve(published.publication, on_new_query="replace"),
        )
        view = published.ask("seen")
        assert (view.parallelism, view.generation) == (2, 2)


@pytest.mark.proves("W1", "O5")
def test_a_driver_that_slept_before_its_first_batch_fences_no_run_of_another(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1, O5: a run is as old as its start, whatever it comes to publish later."""
    published.add(0, 1)
    publication = evolve(published.publication, is_required=True)
    writer = run_operator(
        published.feed.frame(),
        Remember(),
        parallelism=1,
        sink=ignore,
        output_schema=Remember.SCHEMA,
        publication=publication,
    )
    driver = SleepingDriver()
    checkpoint = str(published.checkpoint)
    query = driver.start(writer.option("checkpointLocation", checkpoint))
    try:
        driver.wait_until_asleep()
        successor = PublishedBatch(
            run=PublishingRun(
                query_id=f"{query.id}:operator-state", run_id="successor"
            ),
            batch_id=0,
            snapshots=[
                encode_snapshot({"seen": (RedistributionMode.SPLIT_DISTRIBUTE, [])})
            ],
        )
        with monkeypatch.context() as other_process:
            other_process.setattr(writer_module, "OWN_RUNS", OwnRuns())
            publish_batch(publication, successor)
        driver.wake()
        with pytest.raises(StaleWriterError):
            query.processAllAvailable()
    finally:
        driver.wake()
        query.stop()
