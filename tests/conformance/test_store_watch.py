"""L5: watching the leader store: what is there at once, then each change."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from election import (
    Delete,
    LeaderSession,
    Put,
    StoreChange,
    StoreWatch,
    VersionedValue,
)
from haservices import Guarantee
from nameservice import ConfigurationError, LocalProtocolError
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.harness import PATIENT, Harness
from tests.conformance.selection import requires
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Callable


WAIT_SECONDS = 30.0


@pytest.fixture
def leader(harness: Harness) -> Candidate:
    """A contender of a service of its own that leads."""
    candidate = Candidate(harness.open(**PATIENT), "leader:1")
    candidate.wait_for_confirm()
    return candidate


@pytest.fixture
def session(leader: Candidate) -> LeaderSession:
    """The leadership of *leader*."""
    return leader.wait_for_confirm()


def change(path: str, value: bytes | None, version: int = 1) -> StoreChange:
    """Return what a watch tells."""
    if value is None:
        return StoreChange(path=path, value=None)
    return StoreChange(path=path, value=VersionedValue(value=value, version=version))


def take(watch: StoreWatch) -> StoreChange | None:
    """Return the next change, or None at the end; fail rather than wait for ever."""
    taken: list[StoreChange | None] = []
    thread = threading.Thread(target=lambda: taken.append(next(watch, None)))
    thread.start()
    thread.join(WAIT_SECONDS)
    if thread.is_alive():
        watch.close()
        thread.join()
        message = "nothing was told"
        raise AssertionError(message)
    return taken[0]


def take_until(watch: StoreWatch, last: StoreChange) -> list[StoreChange]:
    """Return the changes up to *last*."""
    changes: list[StoreChange] = []
    while not changes or changes[-1] != last:
        taken = take(watch)
        assert taken is not None
        changes.append(taken)
    return changes


@pytest.mark.proves("L5")
class TestPath:
    def test_present_value_comes_at_once_then_each_change(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: that nothing is there is told, too; another session sees it likewise."""
        store = leader.store
        with harness.open(**PATIENT).get_leader_store(JOB).watch("a") as watch:
            assert take(watch) == change("a", None)
            store.put("a", b"1", session=session)
            assert take(watch) == change("a", b"1", 1)
            store.put("b", b"another path", session=session)
            store.put("a", b"2", session=session)
            assert take(watch) == change("a", b"2", 2)
            store.delete("a", session=session)
            assert take(watch) == change("a", None)
            store.put("a", b"", session=session)
            assert take(watch) == change("a", b"", 1)
        with store.watch("a") as watch:
            assert take(watch) == change("a", b"", 1)

    def test_latest_value_always_arrives(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: values in between may be left out; none comes twice, none is old."""
        reader = harness.open(**PATIENT).get_leader_store(JOB)

        def write() -> None:
            for number in range(1, 101):
                leader.store.put("a", str(number).encode(), session=session)

        with reader.watch("a") as watch:
            assert take(watch) == change("a", None)
            writer = threading.Thread(target=write)
            writer.start()
            changes = take_until(watch, change("a", b"100", 100))
            writer.join()
        versions = [each.value.version for each in changes if each.value is not None]
        assert versions == sorted(set(versions))

    def test_replaced_value_of_the_same_version_is_told(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: a path that was deleted and put again is at version 1 again."""
        reader = harness.open(**PATIENT).get_leader_store(JOB)
        leader.store.put("a", b"old", session=session)
        with reader.watch("a") as watch:
            assert take(watch) == change("a", b"old")
            leader.store.delete("a", session=session)
            leader.store.put("a", b"new", session=session)
            take_until(watch, change("a", b"new"))

    def test_two_watches_go_their_own_ways(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: one that is closed takes nothing from another of the same store."""
        with leader.store.watch("a") as first, leader.store.watch("a") as second:
            assert take(first) == take(second) == change("a", None)
            leader.store.put("a", b"1", session=session)
            assert take(second) == change("a", b"1")
            first.close()
            leader.store.put("a", b"2", session=session)
            assert take(second) == change("a", b"2", 2)
            assert take(first) is None


@pytest.mark.proves("L5")
class TestPrefix:
    def test_what_is_there_comes_first_in_order(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: then changes of those paths, new ones, and deletions."""
        store = leader.store
        store.commit([Put(p, p.encode()) for p in ("p/b", "p/a", "q")], session=session)
        reader = harness.open(**PATIENT).get_leader_store(JOB)
        with reader.watch_prefix("p/") as watch:
            assert take(watch) == change("p/a", b"p/a")
            assert take(watch) == change("p/b", b"p/b")
            store.put("q", b"other", session=session)
            store.put("p/c", b"1", session=session)
            assert take(watch) == change("p/c", b"1")
            store.commit([Delete("p/a"), Put("p/b", b"2")], session=session)
            both = [take(watch), take(watch)]
            assert change("p/a", None) in both
            assert change("p/b", b"2", 2) in both
            store.delete("never", session=session)
            store.put("p/a", b"again", session=session)
            assert take(watch) == change("p/a", b"again")

    def test_empty_prefix_is_all_of_this_store_and_no_other(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: stores of other components are not told of."""
        other = Candidate(leader.ha, "o:1", job_id="other")
        other_session = other.wait_for_confirm()
        with harness.open(**PATIENT).get_leader_store(JOB).watch_prefix() as watch:
            other.store.put("a", b"other", session=other_session)
            leader.store.put("b", b"1", session=session)
            assert take(watch) == change("b", b"1")

    def test_cleanup_is_told(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: watches hear when what is stored is removed, by any client."""
        leader.store.commit([Put("a", b"1"), Put("b", b"2")], session=session)
        with harness.open(**PATIENT).get_leader_store(JOB).watch_prefix() as watch:
            assert [take(watch), take(watch)] == [
                change("a", b"1"),
                change("b", b"2"),
            ]
            leader.ha.cleanup(JOB)
            told = [take(watch), take(watch)]
            assert sorted(each.path for each in told if each is not None) == ["a", "b"]
            assert all(each is not None and each.value is None for each in told)
            leader.store.put("a", b"3", session=session)
            assert take(watch) == change("a", b"3")

    def test_commits_of_any_size_are_told(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: hundreds of paths, and values that ZooKeeper does not take at once."""
        puts = [Put(f"p/{number:03}", b"x" * 2_000) for number in range(400)]
        with harness.open(**PATIENT).get_leader_store(JOB).watch_prefix("p/") as watch:
            leader.store.commit(puts, session=session)
            seen = {each.path for each in (take(watch) for _ in puts) if each}
            assert seen == {put.path for put in puts}


class TestEnd:
    @pytest.mark.proves("L5")
    def test_close_lets_go_whoever_waits(self, leader: Candidate) -> None:
        """L5: from any thread; a second close does nothing."""
        watch = leader.store.watch("a")
        assert take(watch) == change("a", None)
        self._ends(watch, watch.close)
        watch.close()
        assert list(watch) == []

    @pytest.mark.proves("L5")
    def test_services_that_close_end_their_watches(self, harness: Harness) -> None:
        """L5: nothing is left behind, and no new watch begins."""
        ha = harness.open(**PATIENT)
        store = ha.get_leader_store(JOB)
        watch = store.watch_prefix()
        self._ends(watch, ha.close)
        with pytest.raises(LocalProtocolError):
            store.watch("a")

    @pytest.mark.proves("L4")
    def test_bad_paths_are_refused(self, leader: Candidate) -> None:
        """L4: before anything is watched."""
        for bad in ("", "\n", None):
            with pytest.raises(ConfigurationError):
                leader.store.watch(bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError):
            leader.store.watch_prefix(None)  # type: ignore[arg-type]

    def _ends(self, watch: StoreWatch, close: Callable[[], None]) -> None:
        ended = threading.Event()

        def wait() -> None:
            assert list(watch) == []
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        close()
        assert ended.wait(WAIT_SECONDS)
        thread.join()


class TestAsync:
    @pytest.mark.proves("L5")
    def test_it_is_an_asynchronous_iterator_as_well(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: the event loop goes on meanwhile; cancelled, nothing is lost."""
        reader = harness.open(**PATIENT).get_leader_store(JOB)

        async def scenario() -> list[StoreChange]:
            with reader.watch("a") as watch:
                told = [await anext(watch)]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await anext(watch)
                await asyncio.to_thread(leader.store.put, "a", b"1", session=session)
                told.append(await anext(watch))
                closing = asyncio.get_running_loop().run_in_executor(None, watch.close)
                told += [each async for each in watch]
                await closing
            return told

        told = asyncio.run(asyncio.wait_for(scenario(), WAIT_SECONDS))
        assert told == [change("a", None), change("a", b"1")]


@pytest.mark.proves("L5")
class TestContact:
    @requires(Guarantee.SURVIVES_SERVER_RESTART)
    def test_watch_survives_a_restart_of_the_name_service(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: what is stored afterwards is told, and nothing that was told before."""
        leader.store.put("a", b"1", session=session)
        ha = harness.open(**PATIENT)
        with ha.get_leader_store(JOB).watch_prefix() as watch:
            assert take(watch) == change("a", b"1")
            harness.backend.restart()
            wait_until(lambda: bool(leader.election.contenders()))
            writer = Candidate(harness.open(**PATIENT), "w:1", job_id=JOB)
            leader.election.close()
            again = writer.wait_for_confirm()
            writer.store.put("b", b"2", session=again)
            assert take(watch) == change("b", b"2")

    def test_change_while_out_of_reach_is_told_afterwards(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L5: a watch waits through an outage, and goes on with the latest value."""
        ha = harness.open(
            cuttable=True,
            connect_timeout_seconds=0.5,
            session_timeout_seconds=6.0,
            lease_seconds=0.5,
        )
        with ha.get_leader_store(JOB).watch("a") as watch:
            assert take(watch) == change("a", None)
            harness.cut(ha)
            leader.store.put("a", b"1", session=session)
            leader.store.put("a", b"2", session=session)
            waiting = threading.Timer(0.5, lambda: harness.heal(ha))
            waiting.start()
            take_until(watch, change("a", b"2", 2))
            waiting.join()
