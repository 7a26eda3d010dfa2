"""Publishing operator state to real nodes, without Spark (O5)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from haservices import HAConfig, open_ha_services
from nameservice import ConfigurationError, NameServiceError
from queryablestate import (
    AsyncQueryableStateClient,
    CheckpointRewoundError,
    LocalStateCluster,
    OperatorStateView,
    QueryableStateClient,
    SchemaMismatchError,
    StaleWriterError,
    StateOwnedError,
)
from queryablestate.writer import writer as writer_module
from queryablestate.writer.connections import close_writer_connections
from queryablestate.writer.own_runs import OwnRuns
from rescaling import RedistributionMode
from rescaling.operator_state import encode_snapshot
from sparkpipeline.operators.publication import (
    OperatorStatePublication,
    PublishedBatch,
    PublishingRun,
    publish_batch,
)
from sparkpipeline.operators.publisher import OperatorStatePublisher
from tests.exhausted_threads import no_more_threads
from tests.recording import WAIT_SECONDS, wait_until
from tests.tiers import nightly_after


pytestmark = pytest.mark.shells

SPLIT = RedistributionMode.SPLIT_DISTRIBUTE

TRY_SECONDS = WAIT_SECONDS / 2

EMPTY = PublishedBatch(
    run=PublishingRun(query_id="query", run_id="run", start_number=9),
    batch_id=9,
    snapshots=[encode_snapshot({})],
)


def batch(
    batch_id: int,
    *items: Any,
    run_id: str = "run",
    query_id: str = "query",
    start_number: int = 0,
) -> PublishedBatch:
    """Return a batch that left *items* in one subtask."""
    return PublishedBatch(
        run=PublishingRun(query_id=query_id, run_id=run_id, start_number=start_number),
        batch_id=batch_id,
        snapshots=[encode_snapshot({"offsets": (SPLIT, list(items))})],
    )


def delayed(logs: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the batches of which *logs* say that they have waited in vain."""
    return [one["batch_id"] for one in logs if one["event"] == "operator_state.delayed"]


@contextmanager
def nodes(config: HAConfig) -> Iterator[QueryableStateClient]:
    """Yield who can ask two nodes, as long as the block."""
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha, nodes=2),
        QueryableStateClient(ha, deadline_seconds=30.0) as client,
    ):
        yield client


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Iterator[HAConfig]:
    """Yield a name service of the test's own, which is empty yet."""
    config = HAConfig(url=f"embedded:{request.node.name}")
    with open_ha_services(config):
        yield config
        close_writer_connections()


class Publishers:
    """
    Makes publishers for one test, and ends them.

    A publisher tries a batch for an hour.  One that is left behind by a test opens
    connections in the midst of later ones.

    Args:
        config: Where they publish.
    """

    def __init__(self, config: HAConfig) -> None:
        self._config = config
        self._threads_before = set(threading.enumerate())
        self._made: list[OperatorStatePublisher] = []

    def make(self, **options: Any) -> OperatorStatePublisher:
        """Return one for the job, of which no try outlasts the wait for its end."""
        options = {"commit_timeout_seconds": TRY_SECONDS} | options
        publisher = OperatorStatePublisher(
            OperatorStatePublication(config=self._config, job_id="job", **options)
        )
        self._made.append(publisher)
        return publisher

    def are_idle(self) -> bool:
        """Return whether none of their threads is left."""
        return not any(
            one.name == "operator-state"
            for one in set(threading.enumerate()) - self._threads_before
        )

    def close(self) -> None:
        """Have them give up what they still try, and wait for their threads."""
        for one in self._made:
            one.begin(EMPTY.run)  # is the newest, so that it is not refused,
            one.offer(EMPTY)  # and takes the place of what waits
        wait_until(self.are_idle)


@pytest.fixture
def publishers(config: HAConfig) -> Iterator[Publishers]:
    """Yield what makes publishers, which end with the test, also if it fails."""
    made = Publishers(config)
    yield made
    made.close()


@pytest.mark.proves("O5")
class TestPublishBatch:
    def test_a_large_state_is_read_by_both_clients(self, config: HAConfig) -> None:
        """O5: parts on both nodes are one state again; the last batch counts."""
        items = [bytes([number]) * 300_000 for number in range(20)]
        publication = OperatorStatePublication(config=config, job_id="job")
        with nodes(config) as client:
            publish_batch(publication, batch(0, *items))
            publish_batch(publication, batch(1, *reversed(items)))
            view = client.operator_state("job", "offsets", min_batch_id=1)
            assert view.subtasks == (tuple(reversed(items)),)
            assert view.batch_id == 1
            assert 0 <= view.age_seconds < 60
            assert client.count("job", "operator-state:offsets") == 12

            async def ask() -> OperatorStateView:
                async with AsyncQueryableStateClient(config) as other:
                    return await other.operator_state("job", "offsets")

            assert asyncio.run(ask()).subtasks == view.subtasks
            # What is smaller leaves no parts of what was larger.
            publish_batch(publication, batch(2))
            assert client.operator_state("job", "offsets").items == ()
            assert client.count("job", "operator-state:offsets") == 1

    @pytest.mark.parametrize("part_count", nightly_after(1, [4, 1]))
    def test_who_asks_while_batches_are_published_sees_one_of_them(
        self, config: HAConfig, part_count: int
    ) -> None:
        """Q1, O5: all of a batch, none twice, and never an older one than before."""
        publication = OperatorStatePublication(config=config, job_id="job")
        last = 40

        def publish() -> None:
            for batch_id in range(1, last + 1):
                filler = bytes([batch_id]) * 450_000
                publish_batch(publication, batch(batch_id, *[filler] * part_count))

        with nodes(config) as client:
            publish_batch(publication, batch(0, *[bytes(450_000)] * part_count))
            writer = threading.Thread(target=publish)
            writer.start()
            seen: list[int] = []
            while not seen or seen[-1] < last:
                view = client.operator_state("job", "offsets")
                assert len(view.items) == part_count
                assert {byte for _, item in view.items for byte in item} == {
                    view.batch_id
                }
                seen.append(view.batch_id)
            writer.join()
        assert seen == sorted(seen)
        assert len(set(seen)) > 2

    def test_a_batch_is_published_once_and_by_the_newest_run(
        self, config: HAConfig
    ) -> None:
        """W1, W4, O5: repeated, it changes nothing; an older one is an error."""
        publication = OperatorStatePublication(config=config, job_id="job")
        with nodes(config) as client:
            publish_batch(publication, batch(0, "first"))
            publish_batch(publication, batch(0, "not this"))
            assert client.operator_state("job", "offsets").items == ((0, "first"),)
            publish_batch(publication, batch(2, "third", run_id="newer run"))
            with pytest.raises(StaleWriterError):
                publish_batch(publication, batch(3, "zombie"))
            with pytest.raises(CheckpointRewoundError):
                publish_batch(publication, batch(1, "rewound", run_id="newest run"))
            assert client.operator_state("job", "offsets").items == ((0, "third"),)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"job_id": "a/b"}, "job_id"),
            ({"max_parallelism": 0}, "max_parallelism"),
            ({"on_new_query": "continue"}, "on_new_query"),
            ({"wait_seconds": -1}, "wait_seconds"),
            ({"commit_timeout_seconds": 0}, "commit_timeout_seconds"),
        ],
    )
    def test_what_cannot_be_is_told_at_once(
        self, changes: dict[str, Any], message: str
    ) -> None:
        """O5: before a query starts."""
        with pytest.raises(ConfigurationError, match=message):
            OperatorStatePublication(
                **({"config": "embedded:any", "job_id": "job"} | changes)
            )


class TestPublisher:
    @pytest.mark.proves("O5")
    def test_the_newest_counts_when_there_is_somebody_again(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """O5: only the first batch waits, and what came last is published, once."""
        publisher = publishers.make(wait_seconds=0.1, commit_timeout_seconds=0.5)
        with capture_logs() as logs:
            offers = [publisher.offer(batch(number, number)) for number in range(3)]
            for offer in offers:
                publisher.wait(offer)
        assert len(delayed(logs)) == 1
        with nodes(config) as client:
            wait_until(lambda: offers[-1].is_over)
            view = client.operator_state("job", "offsets")
            assert (view.batch_id, view.items) == (2, ((0, 2),))
        # Once something was published a batch waits again: only that is told.
        with capture_logs() as logs:
            for number in (3, 4):
                publisher.wait(publisher.offer(batch(number, number)))
        assert delayed(logs) == [3]

    @pytest.mark.proves("O5")
    @pytest.mark.parametrize("is_required", [False, True])
    def test_what_never_works_fails_the_first_batch_of_a_run(
        self, config: HAConfig, publishers: Publishers, *, is_required: bool
    ) -> None:
        """W5, O5: at once, and not after a timeout; nothing goes on trying."""
        publisher = publishers.make(wait_seconds=60, is_required=is_required)
        with nodes(config), ExitStack() as stack:
            other = OperatorStatePublication(config=config, job_id="job")
            publish_batch(other, batch(0, query_id="other"))
            stack.enter_context(capture_logs())
            with pytest.raises(StateOwnedError):
                publisher.wait(publisher.offer(batch(0)))
            # Its thread has nothing left to do.
            wait_until(publishers.are_idle)

    @pytest.mark.proves("W5", "O5")
    def test_a_run_that_was_behind_hides_no_failure_of_the_next(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """W5, O5: a query that is started again is told like one that never ran."""
        publisher = publishers.make(wait_seconds=WAIT_SECONDS)
        other = OperatorStatePublication(
            config=config, job_id="job", on_new_query="replace"
        )
        with nodes(config), capture_logs() as logs:
            publisher.begin(batch(0).run)
            publisher.wait(publisher.offer(batch(0)))
            publish_batch(other, batch(0, query_id="other"))
            refused = publisher.offer(batch(1))
            wait_until(lambda: refused.error is not None)
            publisher.offer(EMPTY)
            wait_until(publishers.are_idle)
            publisher.wait(refused)
            assert delayed(logs) == [1]
            publisher.begin(batch(1, run_id="next run").run)
            with pytest.raises(StateOwnedError):
                publisher.wait(publisher.offer(batch(1, run_id="next run")))

    @pytest.mark.proves("W1", "O5")
    def test_what_an_ended_run_still_tries_fences_no_newer_run(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """W1, O5: it had reached no proxy, and began only after the newer one."""
        ended = publishers.make(wait_seconds=0, commit_timeout_seconds=0.5)
        publisher = publishers.make(wait_seconds=WAIT_SECONDS)
        left = ended.offer(batch(5, "of the ended run", run_id="ended run"))
        wait_until(lambda: left.error is not None)
        with nodes(config) as client:
            for number in (5, 6):
                publisher.wait(publisher.offer(batch(number, number)))
            wait_until(lambda: left.is_over)
            assert isinstance(left.error, StaleWriterError)
            newest = publisher.offer(batch(7, 7))
            publisher.wait(newest)
            assert newest.error is None
            assert client.operator_state("job", "offsets").items == ((0, 7),)

    @pytest.mark.proves("W1", "O5")
    def test_a_stopped_run_takes_the_place_of_no_newer_one(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """
        W1, O5: it was still in its batch when the same writer was started again.

        What it offered took the place of the batch of the newer run, which was told
        that it is published, and went on; the nodes had nothing of it.
        """
        publisher = publishers.make(is_required=True, commit_timeout_seconds=0.5)
        publisher.begin(batch(4, run_id="stopped").run)
        early = publisher.offer(batch(4, run_id="stopped"))
        publisher.begin(batch(5, run_id="newer").run)
        newer = publisher.offer(batch(5, "newer", run_id="newer"))
        with pytest.raises(StaleWriterError):
            publisher.offer(batch(5, "stopped", run_id="stopped"))
        with pytest.raises(StaleWriterError):
            publisher.wait(early)
        with pytest.raises(NameServiceError):
            publisher.wait(newer)  # there is no node yet
        with nodes(config) as client:
            again = publisher.offer(batch(5, "newer", run_id="newer"))
            wait_until(lambda: again.is_over)
            assert client.operator_state("job", "offsets").items == ((0, "newer"),)

    @pytest.mark.proves("W1", "O5")
    def test_a_stopped_run_that_begins_late_is_not_the_newer_one(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """
        W1, O5: it was stopped before its first batch had got as far as to begin.

        It was taken for the newest one then, and the run that was started after it
        failed with its batch.
        """
        publisher = publishers.make(wait_seconds=WAIT_SECONDS)
        newer = batch(5, "newer", run_id="newer", start_number=2)
        publisher.begin(newer.run)
        stopped = batch(5, "stopped", run_id="stopped", start_number=1)
        with pytest.raises(StaleWriterError):
            publisher.begin(stopped.run)
        with nodes(config) as client:
            publisher.wait(publisher.offer(newer))
            assert client.operator_state("job", "offsets").items == ((0, "newer"),)

    @pytest.mark.proves("O5")
    def test_a_stopped_run_does_not_say_that_the_newer_one_is_behind(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """O5: the batch of the newer one did not wait, as if one had been in vain."""
        publisher = publishers.make(wait_seconds=WAIT_SECONDS)
        publisher.begin(batch(4, run_id="stopped").run)
        early = publisher.offer(batch(4, run_id="stopped"))
        newer = batch(5, "newer", run_id="newer")
        publisher.begin(newer.run)
        with pytest.raises(StaleWriterError):
            publisher.wait(early)
        with nodes(config):
            offer = publisher.offer(newer)
            publisher.wait(offer)
            assert offer.is_over
            assert offer.error is None

    @pytest.mark.proves("W1", "O5")
    def test_a_driver_that_slept_fences_no_run_of_another(
        self,
        config: HAConfig,
        publishers: Publishers,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """W1, O5: it was replaced before it had computed what it had to publish."""
        slept = publishers.make(wait_seconds=0)
        publisher = publishers.make(wait_seconds=WAIT_SECONDS)
        own_runs = OwnRuns()
        with nodes(config) as client:
            with monkeypatch.context() as other_process:
                other_process.setattr(writer_module, "OWN_RUNS", own_runs)
                slept.begin(batch(5, run_id="replaced").run)
                wait_until(publishers.are_idle)
            publisher.wait(publisher.offer(batch(5, "mine")))
            with monkeypatch.context() as other_process:
                other_process.setattr(writer_module, "OWN_RUNS", own_runs)
                left = slept.offer(batch(5, "theirs", run_id="replaced"))
                wait_until(lambda: left.is_over)
            assert isinstance(left.error, StaleWriterError)
            newest = publisher.offer(batch(6, "mine"))
            publisher.wait(newest)
            assert newest.error is None
            assert client.operator_state("job", "offsets").items == ((0, "mine"),)

    @pytest.mark.proves("O5")
    def test_a_later_failure_of_any_kind_costs_the_query_nothing(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """O5: once a batch of the run is published, the query outlives the copy."""
        publisher = publishers.make(wait_seconds=0.2)
        with nodes(config) as client:
            first = publisher.offer(batch(0))
            wait_until(lambda: first.is_over)
            other = OperatorStatePublication(
                config=config, job_id="job", on_new_query="replace"
            )
            publish_batch(other, batch(0, "theirs", query_id="other"))
            with capture_logs() as logs:
                refused = publisher.offer(batch(1))
                wait_until(lambda: refused.error is not None)
                publisher.wait(refused)
                publisher.wait(publisher.offer(batch(2)))
            assert client.operator_state("job", "offsets").items == ((0, "theirs"),)
            publisher.offer(EMPTY)  # which is never refused: no thread is left behind
            wait_until(publishers.are_idle)
        assert delayed(logs) == [1]
        assert "belongs to query other" in str(refused.error)

    @pytest.mark.proves("O5")
    def test_a_batch_without_a_thread_does_not_hold_the_next_one_back(
        self, config: HAConfig, publishers: Publishers
    ) -> None:
        """O5: a process may have no more threads for a moment."""
        publisher = publishers.make()
        with nodes(config):
            with (
                no_more_threads("operator-state"),
                pytest.raises(RuntimeError, match="new thread"),
            ):
                publisher.offer(batch(0, "first"))
            offer = publisher.offer(batch(0, "first"))
            publisher.wait(offer)
            assert offer.is_over

    def test_a_required_batch_says_why_it_is_not_published(
        self, publishers: Publishers
    ) -> None:
        """O5: after the timeout, with the last error there was, or that of time."""
        publisher = publishers.make(is_required=True, commit_timeout_seconds=0.3)
        with pytest.raises(NameServiceError):
            publisher.wait(publisher.offer(batch(0)))

    @pytest.mark.proves("O5")
    def test_an_operator_without_states_publishes_nothing(
        self, publishers: Publishers
    ) -> None:
        """O5: and waits for none."""
        publisher = publishers.make(wait_seconds=60)
        offer = publisher.offer(EMPTY)
        publisher.wait(offer)
        assert offer.is_over
        assert offer.error is None

    def test_the_number_of_key_groups_is_the_job_s(self, config: HAConfig) -> None:
        """W5: as for any other state of it."""
        with nodes(config):
            publish_batch(
                OperatorStatePublication(config=config, job_id="job"), batch(0)
            )
            other = OperatorStatePublication(
                config=config, job_id="job", max_parallelism=7
            )
            with pytest.raises(SchemaMismatchError, match="max_parallelism is 128"):
                publish_batch(other, batch(1))
