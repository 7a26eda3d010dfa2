"""The thread in which a proxy reads and writes the leader store."""

from __future__ import annotations

import threading
from typing import Final

import pytest
from structlog.testing import capture_logs

from election import Put
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
    StaleEpochError,
    StorageError,
    UnreachableError,
    VersionMismatchError,
)
from queryablestate.control.job.leader_paths import assignment_path
from queryablestate.control.stored_control import StoredControl
from queryablestate.proxy.leader_store import LeaderStoreThread, load_control
from tests.queryablestate.control_plane import APP, VALUE, Plane, commit
from tests.queryablestate.stored_control import FakeStore, leader_session
from tests.recording import WAIT_SECONDS, Record


ASSIGNMENT: Final = assignment_path(1, 1)

SESSION: Final = leader_session()


@pytest.fixture
def filled() -> FakeStore:
    """A store with two nodes, two jobs and a chain, as a leader leaves it."""
    plane = Plane()
    epoch = plane.start_job({"aircraft": VALUE, "delays": VALUE})
    for batch_id in range(3):
        plane.decide(commit(epoch, batch_id))
    plane.bind(plane.draw(job_id="other"), job_id="other")
    return FakeStore(dict(plane.store))


class TestLoading:
    def test_nothing_is_nothing(self) -> None:
        """The first leader of all finds an empty store."""
        assert load_control(FakeStore().store) == StoredControl(
            counters=None, jobs=[], nodes=[]
        )

    def test_everything_is_read(self, filled: FakeStore) -> None:
        """The next leader knows what the last one knew."""
        stored = load_control(filled.store)
        assert stored.counters is not None
        assert stored.counters.state_number == 3
        assert sorted(node.node_id for node in stored.nodes) == ["a", "b"]
        first, second = stored.jobs
        assert (first.record.job_id, second.record.job_id) == (APP, "other")
        assert [state.state_name for state in first.states.values()] == [
            "aircraft",
            "delays",
        ]
        assert sorted(first.entries) == [1, 2, 3]
        assert first.assignment is not None

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("counters", b"rubbish"),
            ("nodes/x", b"rubbish"),
            ("jobs/1", b"rubbish"),
            (ASSIGNMENT, b""),
            ("jobs/1/states/1", b"\xc1"),
            ("jobs/1/entries/0000000000000002", b"\x80"),
            ("jobs/x", b""),
            ("jobs/٣", b""),
            (ASSIGNMENT.replace("1", "9", 1), None),
            ("jobs/1/other", b""),
            ("jobs/1/states/1/more", b""),
        ],
    )
    def test_what_cannot_be_read_is_an_error(
        self, filled: FakeStore, path: str, value: bytes | None
    ) -> None:
        """It names what it is about, and nothing else escapes."""
        filled.values[path] = filled.values[ASSIGNMENT] if value is None else value
        with pytest.raises(StorageError):
            load_control(filled.store)

    @pytest.mark.parametrize(
        "path",
        [ASSIGNMENT, "jobs/1/entries/0000000000000002", "jobs/1/states/1"],
    )
    def test_records_that_do_not_fit_are_an_error(
        self, filled: FakeStore, path: str
    ) -> None:
        """They were written together: somebody else has been there since."""
        del filled.values[path]
        with pytest.raises(StorageError, match="jobs/1"):
            load_control(filled.store)

    def test_what_vanishes_meanwhile_is_an_error(self, filled: FakeStore) -> None:
        """Then another leads, and writes."""

        def vanish(path: str) -> None:
            if path.startswith("jobs/"):
                filled.values.pop("jobs/2", None)

        filled.before_get = vanish
        with pytest.raises(StorageError, match="vanished"):
            load_control(filled.store)

    def test_it_ends_when_it_is_not_wanted(self, filled: FakeStore) -> None:
        """At the next record, however many there are."""
        asked: list[str] = []
        filled.before_get = asked.append
        with pytest.raises(DidNotHappenError):
            load_control(filled.store, is_wanted=lambda: len(asked) < 2)
        assert len(asked) < 12  # those that were under way


class Outcomes:
    """What a thread has told, in order."""

    def __init__(self) -> None:
        self.record: Record[object] = Record()

    def loaded(self, stored: StoredControl) -> None:
        """Take note of what was loaded."""
        self.record.add(stored)

    def failed(self, error: NameServiceError) -> None:
        """Take note of an error."""
        self.record.add(error)

    def write(self, thread: LeaderStoreThread, path: str) -> None:
        """Have *thread* write, and take note of what comes of it."""
        thread.write(
            [Put(path, b"value")],
            SESSION,
            lambda: self.record.add((path, "written")),
            lambda error: self.record.add((path, "refused", type(error))),
            lambda error: self.record.add((path, "uncertain", type(error))),
        )


@pytest.fixture
def outcomes() -> Outcomes:
    """Nothing so far."""
    return Outcomes()


class TestLeaderStoreThread:
    def test_it_does_one_thing_after_the_other(
        self, filled: FakeStore, outcomes: Outcomes
    ) -> None:
        """What was written before is there when it is read."""
        thread = LeaderStoreThread(filled.store)
        outcomes.write(thread, "x")
        thread.load(outcomes.loaded, outcomes.failed)
        outcomes.write(thread, "y")
        first, second, third = outcomes.record.wait_for_count(3)
        assert first == ("x", "written")
        assert isinstance(second, StoredControl)
        assert third == ("y", "written")
        assert filled.values["x"] == b"value"
        thread.close()

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (StaleEpochError("c", 1, 2), "refused"),
            (DidNotHappenError("no"), "refused"),
            (MayHaveHappenedError("who knows"), "uncertain"),
        ],
    )
    def test_it_tells_what_is_certain_from_what_is_not(
        self, outcomes: Outcomes, error: NameServiceError, outcome: str
    ) -> None:
        """L4: did not happen, and may have happened, are different answers."""
        store = FakeStore()

        def fail() -> None:
            raise error

        store.before_commit = fail
        thread = LeaderStoreThread(store.store)
        outcomes.write(thread, "x")
        assert outcomes.record.wait_for_count(1) == (("x", outcome, type(error)),)
        thread.close()

    def test_nothing_is_written_to_another_store(
        self, filled: FakeStore, outcomes: Outcomes
    ) -> None:
        """A store that was lost meanwhile must be read before anything goes there."""
        thread = LeaderStoreThread(filled.store)
        thread.load(outcomes.loaded, outcomes.failed)
        outcomes.write(thread, "x")
        outcomes.write(thread, "y")
        _, *written = outcomes.record.wait_for_count(3)
        assert written == [("x", "written"), ("y", "written")]
        filled.values.clear()
        outcomes.write(thread, "z")
        *_, refused = outcomes.record.wait_for_count(4)
        assert refused == ("z", "uncertain", VersionMismatchError)
        assert filled.values == {}
        thread.load(outcomes.loaded, outcomes.failed)
        outcomes.write(thread, "z")
        *_, stored, again = outcomes.record.wait_for_count(6)
        assert stored == StoredControl(counters=None, jobs=[], nodes=[])
        assert again == ("z", "written")
        thread.close()

    def test_a_mistake_of_ours_is_told_as_uncertain(self, outcomes: Outcomes) -> None:
        """One that waits is told something, and the next task has its turn."""
        store = FakeStore()

        def fail() -> None:
            store.before_commit = lambda: None
            raise ValueError("a mistake")

        store.before_commit = fail
        thread = LeaderStoreThread(store.store)
        with capture_logs() as logs:
            outcomes.write(thread, "x")
            outcomes.write(thread, "y")
            first, second = outcomes.record.wait_for_count(2)
        assert first == ("x", "uncertain", MayHaveHappenedError)
        assert second == ("y", "written")
        assert [line["event"] for line in logs] == ["write.failed"]
        thread.close()

    @pytest.mark.parametrize("error", [UnreachableError("url", 1.0), ValueError("bug")])
    def test_a_store_that_cannot_be_read_is_told(
        self, filled: FakeStore, outcomes: Outcomes, error: Exception
    ) -> None:
        """Whatever the reason: none waits for what will not come."""

        def fail(path: str) -> None:
            raise error

        filled.before_get = fail
        thread = LeaderStoreThread(filled.store)
        with capture_logs():
            thread.load(outcomes.loaded, outcomes.failed)
            (told,) = outcomes.record.wait_for_count(1)
        assert isinstance(told, NameServiceError)
        thread.close()

    def test_only_the_newest_load_is_finished(
        self, filled: FakeStore, outcomes: Outcomes
    ) -> None:
        """A leadership that is over does not keep the next one waiting."""
        is_reading, may_go_on = threading.Event(), threading.Event()

        def wait(path: str) -> None:
            is_reading.set()
            assert may_go_on.wait(WAIT_SECONDS)

        filled.before_get = wait
        thread = LeaderStoreThread(filled.store)
        thread.load(outcomes.loaded, outcomes.failed)
        assert is_reading.wait(WAIT_SECONDS)
        thread.load(outcomes.loaded, outcomes.failed)
        may_go_on.set()
        first, second = outcomes.record.wait_for_count(2)
        assert isinstance(first, DidNotHappenError)
        assert isinstance(second, StoredControl)
        thread.close()

    def test_a_load_can_be_cancelled(
        self, filled: FakeStore, outcomes: Outcomes
    ) -> None:
        """Who resigns need not know what it would have led."""
        is_reading, may_go_on = threading.Event(), threading.Event()

        def wait(path: str) -> None:
            is_reading.set()
            assert may_go_on.wait(WAIT_SECONDS)

        filled.before_get = wait
        thread = LeaderStoreThread(filled.store)
        thread.load(outcomes.loaded, outcomes.failed)
        assert is_reading.wait(WAIT_SECONDS)
        thread.cancel_load()
        may_go_on.set()
        (told,) = outcomes.record.wait_for_count(1)
        assert isinstance(told, DidNotHappenError)
        thread.close()

    def test_closing_waits_for_what_is_being_done_and_leaves_the_rest(
        self, outcomes: Outcomes
    ) -> None:
        """So that nothing is written after it has returned."""
        store = FakeStore()
        is_writing, may_go_on = threading.Event(), threading.Event()

        def wait() -> None:
            is_writing.set()
            assert may_go_on.wait(WAIT_SECONDS)

        store.before_commit = wait
        thread = LeaderStoreThread(store.store)
        outcomes.write(thread, "x")
        outcomes.write(thread, "y")
        assert is_writing.wait(WAIT_SECONDS)
        closer = threading.Thread(target=thread.close)
        closer.start()
        closer.join(0.05)
        assert closer.is_alive()
        may_go_on.set()
        closer.join(WAIT_SECONDS)
        assert not closer.is_alive()
        assert outcomes.record.items == (("x", "written"),)
        assert store.values == {"x": b"value"}
        thread.close()

    def test_a_callback_that_fails_ends_nothing(self, outcomes: Outcomes) -> None:
        """It is logged; the next task has its turn."""

        def fail() -> None:
            raise ValueError("a mistake")

        def fail_with(error: NameServiceError) -> None:
            raise AssertionError(error)

        thread = LeaderStoreThread(FakeStore().store)
        with capture_logs() as logs:
            thread.write([Put("x", b"")], SESSION, fail, fail_with, fail_with)
            outcomes.write(thread, "y")
            outcomes.record.wait_for_count(1)
        assert [line["event"] for line in logs] == ["loop.failed"]
        thread.close()
