from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from election import LeaderElection, LeaderSession, LeaderStore, Put, StoreOperation
from election.store import VersionedValue
from examples.flights.collector import Collector, read_store
from examples.flights.messages import (
    Accepted,
    CarrierSummary,
    Closed,
    Confirmed,
    Granted,
    Held,
    PartitionSummary,
    Refused,
    Report,
    Revoked,
    Serving,
)
from nameservice import DidNotHappenError, MayHaveHappenedError, StaleEpochError
from tests.election.fakes import FakeElectionDriver, session


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 30.0


class StoreDriver:
    """A store in memory that fails when it is told to, before or after it commits."""

    def __init__(self) -> None:
        self.values: dict[str, VersionedValue] = {}
        self.fail_before: Exception | None = None
        self.fail_after: Exception | None = None

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        return self.values.get(path)

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*, sorted."""
        return sorted(path for path in self.values if path.startswith(prefix))

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        """Do all of *operations*, or what it was told to."""
        failure, self.fail_before = self.fail_before, None
        if failure is not None:
            raise failure
        for operation in operations:
            assert isinstance(operation, Put)
            held = self.values.get(operation.path)
            version = 0 if held is None else held.version
            assert operation.version == version
            self.values[operation.path] = VersionedValue(
                value=operation.value, version=version + 1
            )
        failure, self.fail_after = self.fail_after, None
        if failure is not None:
            raise failure


class Scene:
    """One collector whose name service does as the test says."""

    def __init__(self, stored: dict[str, VersionedValue] | None = None) -> None:
        self.driver = FakeElectionDriver()
        self.store_driver = StoreDriver()
        self.store_driver.values = dict(stored or {})
        self.store = LeaderStore("flights", self.store_driver)
        self.reports: queue.Queue[Report] = queue.Queue()
        self.collector = Collector(
            LeaderElection("flights", self.driver),
            self.store,
            name="a",
            report=self.reports.put,
            hold_batch_id=5,
        )

    def next_report(self) -> Report:
        """Return what the collector reports next."""
        return self.reports.get(timeout=TIMEOUT_SECONDS)

    def lead(self, epoch: int = 1) -> None:
        """Grant leadership, and wait until it is confirmed."""
        self.driver.grant(session(epoch))
        while not isinstance(self.next_report(), Confirmed):
            pass

    def close(self) -> None:
        """Close the collector."""
        self.collector.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Yield a collector that has not been granted anything."""
    with closing(Scene()) as scene:
        yield scene


def summary(batch_id: int, partition_id: int = 0) -> PartitionSummary:
    """Return a delivery of one flight."""
    return PartitionSummary(
        stream_id="0" * 32,
        batch_id=batch_id,
        partition_id=partition_id,
        carriers={"UA": CarrierSummary(flight_count=1)},
    )


def stored_flights(scene: Scene) -> int:
    """Return how many flights the store holds."""
    totals = read_store(scene.store).totals
    return totals["UA"].flight_count if totals else 0


class TestCollector:
    def test_it_knows_the_store_before_anybody_finds_it(self) -> None:
        """A new leader reads what its predecessors counted, and only then confirms."""
        with closing(Scene()) as first:
            first.lead()
            first.collector.deliver(summary(0))
            left = first.store_driver.values
        with closing(Scene(left)) as second:
            second.driver.grant(session(2))
            reports = [second.next_report() for _ in range(3)]
            assert [type(report) for report in reports] == [Serving, Granted, Confirmed]
            assert isinstance(reports[1], Granted)
            assert reports[1].flight_count == 1
            repeated = second.collector.deliver(summary(0))
            assert repeated == Accepted(epoch=2, is_repeated=True)
            assert stored_flights(second) == 1

    def test_it_refuses_unless_it_leads(self, scene: Scene) -> None:
        """Before the grant, when belief has lapsed, and after the revocation."""
        waits = Refused(reason="not-leader", detail="a waits")
        assert scene.collector.deliver(summary(0)) == waits
        scene.lead()
        scene.driver.lapse()
        assert scene.collector.deliver(summary(0)) == waits
        assert stored_flights(scene) == 0

    def test_it_reports_a_revocation(self, scene: Scene) -> None:
        """One that watches hears of it, and the next delivery is refused."""
        scene.lead()
        scene.driver.revoke()
        report = scene.next_report()
        assert isinstance(report, Revoked)
        assert (report.epoch, report.is_resigned) == (1, False)
        answer = scene.collector.deliver(summary(0))
        assert answer == Refused(reason="not-leader", detail="a waits")

    def test_a_stale_commit_is_a_refusal(self, scene: Scene) -> None:
        """What the store fences (L2) is neither counted nor acknowledged."""
        scene.lead()
        scene.store_driver.fail_before = StaleEpochError("flights", 1, 2)
        answer = scene.collector.deliver(summary(0))
        assert isinstance(answer, Refused)
        assert answer.reason == "stale-epoch"
        assert stored_flights(scene) == 0

    @pytest.mark.parametrize("happened", [True, False])
    def test_an_unknown_outcome_is_found_out(
        self, scene: Scene, happened: bool
    ) -> None:
        """Whether the lost commit took effect or not, the flight counts once."""
        scene.lead()
        if happened:
            scene.store_driver.fail_after = MayHaveHappenedError()
        else:
            scene.store_driver.fail_before = MayHaveHappenedError()
        answer = scene.collector.deliver(summary(0))
        assert isinstance(answer, Refused)
        assert answer.reason == "unknown-outcome"
        answer = scene.collector.deliver(summary(0))
        assert answer == Accepted(epoch=1, is_repeated=happened)
        assert stored_flights(scene) == 1

    def test_an_undecided_store_is_asked_again(self, scene: Scene) -> None:
        """A commit that did not happen is refused, and the repetition is counted."""
        scene.lead()
        scene.store_driver.fail_before = DidNotHappenError("undecided")
        answer = scene.collector.deliver(summary(0))
        assert answer == Refused(reason="undecided", detail="undecided")
        answer = scene.collector.deliver(summary(0))
        assert answer == Accepted(epoch=1, is_repeated=False)

    def test_the_worst_moment_is_after_the_commit(self, scene: Scene) -> None:
        """In a rehearsal the answer is held back, but the store has the delivery."""
        scene.lead()
        assert isinstance(scene.collector.deliver(summary(4)), Accepted)
        scene.collector._is_closing.set()  # nothing kills it: go on at once
        assert isinstance(scene.collector.deliver(summary(5)), Accepted)
        report = scene.next_report()
        assert isinstance(report, Held)
        assert (report.batch_id, report.partition_id) == (5, 0)
        assert stored_flights(scene) == 2
        assert isinstance(scene.collector.deliver(summary(5, 1)), Accepted)
        assert scene.reports.empty()

    def test_a_successor_rehearses_nothing(self, scene: Scene) -> None:
        """One that takes over in that very batch answers: one death is enough."""
        scene.lead()
        assert isinstance(scene.collector.deliver(summary(5)), Accepted)
        assert isinstance(scene.collector.deliver(summary(5, 1)), Accepted)
        assert scene.reports.empty()

    def test_it_resigns_when_it_is_closed(self) -> None:
        """The last words are that it resigned, and that it has ended."""
        with closing(Scene()) as scene:
            scene.lead()
        revoked, closed = scene.next_report(), scene.next_report()
        assert isinstance(revoked, Revoked)
        assert revoked.is_resigned
        assert isinstance(closed, Closed)
        assert "withdraw" in scene.driver.calls
