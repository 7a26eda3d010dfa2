"""A LeaderServer whose disk fails: what is acknowledged is there, refused is not."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from election import LeaderSession, Put
from haservices import HAConfig, campaign, open_ha_services
from leaderserver.messages import (
    HeartbeatRequest,
    Hindered,
    RegisteredReply,
    Welcome,
)
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage import UncertainWriteError
from leaderserver.server.storage_database import DATABASE_FILE_NAME
from nameservice import DidNotHappenError, MayHaveHappenedError, StorageError
from tests.faults.disk import FaultyDisk
from tests.faults.server import ServerOnFaultyDisk
from tests.leaderserver.scripted_client import ScriptedClient
from tests.recording import wait_until
from tests.tiers import nightly_after


pytestmark = pytest.mark.shells

JOB = "job"
WIRE_ID = "default/job"


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    """Return the disk of a server's data directory."""
    return FaultyDisk(tmp_path / "data", tmp_path / "faults")


def config(server: ServerOnFaultyDisk) -> HAConfig:
    """Return how to reach *server*."""
    return HAConfig(url=server.url, lease_seconds=0.4, session_timeout_seconds=5.0)


def stored(disk: FaultyDisk, path: str) -> bytes | None:
    """Return what the next server would find."""
    disk.heal()
    storage = SQLiteStorage(disk.directory)
    found = storage.get(WIRE_ID, path)
    storage.close()
    return None if found is None else found.value


class TestFailedSync:
    def test_a_commit_may_have_happened(self, disk: FaultyDisk) -> None:
        """What could not be synced may be there after a restart: that is said (L4)."""
        with (
            ServerOnFaultyDisk(disk) as server,
            open_ha_services(config(server)) as ha,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
        ):
            store = ha.get_leader_store(JOB)
            store.put("a", b"acknowledged", session=leadership.session)
            disk.fail("sync")
            with pytest.raises(MayHaveHappenedError):
                store.put("a", b"uncertain", session=leadership.session)
            server.wait_for_end()
        assert stored(disk, "a") in (b"acknowledged", b"uncertain")

    def test_the_server_stops_and_says_why(self, disk: FaultyDisk) -> None:
        """Nothing that it would write later could be relied on."""
        with (
            ServerOnFaultyDisk(disk) as server,
            open_ha_services(config(server)) as ha,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
        ):
            disk.fail("sync")
            with pytest.raises(MayHaveHappenedError):
                ha.get_leader_store(JOB).put("a", b"", session=leadership.session)
            assert server.wait_for_end() == 1
            assert "check the disk, then start the server again" in server.log

    def test_an_epoch_is_not_granted(self, disk: FaultyDisk) -> None:
        """What may be forgotten must not have been granted (E2)."""
        with (
            ServerOnFaultyDisk(disk) as server,
            open_ha_services(config(server)) as ha,
        ):
            disk.fail("sync")
            with (
                pytest.raises(StorageError, match="failed while it wrote"),
                campaign(ha, JOB, "h:1", timeout_seconds=30),
            ):
                pass
            assert server.wait_for_end() == 1

    def test_a_busy_client_still_reads_why(self, disk: FaultyDisk) -> None:
        """The connections outlast the last words by more than a moment (E8)."""
        with (
            ServerOnFaultyDisk(disk) as server,
            ScriptedClient(
                server.url.replace("leaderserver", "tcp"), is_immediate=True
            ) as client,
        ):
            assert isinstance(client.hello(lease_seconds=0.4), Welcome)
            disk.fail("sync")
            assert isinstance(client.register(WIRE_ID, "c-1"), RegisteredReply)
            heartbeat = HeartbeatRequest(acknowledged=0)
            wait_until(
                lambda: client.say(heartbeat) > 0 and "epoch.unrecorded" in server.log
            )
            time.sleep(0.1)  # noqa: TID251 (the time for which a client is busy)
            messages = iter(lambda: client.receive(timeout_seconds=1), None)
            assert any(isinstance(message, Hindered) for message in messages)
            assert server.wait_for_end() == 1


class TestFailedWrite:
    def test_a_full_disk_refuses_for_certain(self, disk: FaultyDisk) -> None:
        """What found no room did not happen, and the server goes on (L4)."""
        with (
            ServerOnFaultyDisk(disk) as server,
            open_ha_services(config(server)) as ha,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
        ):
            store = ha.get_leader_store(JOB)
            store.put("a", b"acknowledged", session=leadership.session)
            disk.fail("write", code=errno.ENOSPC)
            with pytest.raises(DidNotHappenError):
                store.put("a", b"refused", session=leadership.session)
            disk.heal()
            store.put("b", b"acknowledged", session=leadership.session)
            server.kill()
        assert stored(disk, "a") == b"acknowledged"
        assert stored(disk, "b") == b"acknowledged"


class TestSlowDisk:
    def test_nothing_else_waits_for_it(self, disk: FaultyDisk) -> None:
        """The server answers, and affirms leaders, while a write hangs (E4)."""
        with (
            ServerOnFaultyDisk(disk) as server,
            open_ha_services(config(server)) as ha,
            open_ha_services(config(server)) as other,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
            ThreadPoolExecutor() as threads,
        ):
            store = ha.get_leader_store(JOB)
            disk.delay("sync", 3.0)  # six leases
            put = threads.submit(store.put, "a", b"v", session=leadership.session)
            answered_count = 0
            while not put.done():
                figures = other.operations.status()
                answered_count += figures["storage_waiting"] == 1
                assert other.get_leader_store("another").get("a") is None
            assert put.exception() is None
            assert answered_count > 1
            assert not leadership.lost.is_set()
            disk.heal()

    def test_a_lock_of_somebody_else_freezes_nothing(self, disk: FaultyDisk) -> None:
        """What it keeps from being written is refused; the rest goes on (L4)."""
        with (
            ServerOnFaultyDisk(disk) as server,
            open_ha_services(config(server)) as ha,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
            ThreadPoolExecutor() as threads,
            contextlib.closing(
                sqlite3.connect(
                    disk.directory / DATABASE_FILE_NAME, isolation_level=None
                )
            ) as intruder,
        ):
            store = ha.get_leader_store(JOB)
            store.put("a", b"v", session=leadership.session)
            intruder.execute("BEGIN IMMEDIATE")
            put = threads.submit(store.put, "a", b"w", session=leadership.session)
            while not put.done():
                found = store.get("b")  # of another path: it waits for the put
                assert found is None
            error = put.exception()
            assert isinstance(error, DidNotHappenError)
            assert "locked" in str(error)
            intruder.execute("ROLLBACK")
            store.put("a", b"x", session=leadership.session)
            assert not leadership.lost.is_set()


class Waiting:
    """A contender that keeps what it is told."""

    def __init__(self, grants: SimpleQueue[LeaderSession]) -> None:
        self.errors: SimpleQueue[Exception] = SimpleQueue()
        self._grants = grants

    def grant_leadership(self, session: LeaderSession) -> None:
        """Keep the grant."""
        self._grants.put(session)

    def revoke_leadership(self) -> None:
        """Do nothing: nothing was begun."""

    def handle_error(self, error: Exception) -> None:
        """Keep the error."""
        self.errors.put(error)


class TestContenders:
    def test_who_waits_in_vain_is_told(self, disk: FaultyDisk) -> None:
        """E8: none waits in silence; a grant comes when the disk takes it again."""
        with (
            ServerOnFaultyDisk(disk) as server,
            open_ha_services(config(server)) as ha,
        ):
            with campaign(ha, "other", "h:1", timeout_seconds=60):
                pass  # the server has decided who leads
            disk.fail("write", code=errno.ENOSPC)
            grants: SimpleQueue[LeaderSession] = SimpleQueue()
            contenders = [Waiting(grants), Waiting(grants)]
            elections = [ha.get_leader_election(JOB) for _ in contenders]
            for election, contender in zip(elections, contenders, strict=True):
                election.start(contender)
            for contender in contenders:
                error = contender.errors.get(timeout=60)
                assert isinstance(error, StorageError)
                assert "cannot write to the data directory" in str(error)
            figures = ha.operations.status()
            assert int(figures["storage_failures_total"]) >= 1
            assert int(figures["epochs_unrecorded_total"]) >= 1
            disk.heal()
            assert grants.get(timeout=60).epoch > 0
            for election in elections:
                election.close()


def test_a_storage_that_failed_writes_nothing_more(tmp_path: Path) -> None:
    """After a failed sync a later one that succeeds proves nothing."""
    storage = SQLiteStorage(tmp_path)
    storage._database._fatal_error = UncertainWriteError("it failed")
    with pytest.raises(StorageError, match="it failed"):
        storage.commit(WIRE_ID, [Put("a", b"")])
    with pytest.raises(StorageError, match="it failed"):
        storage.record_epoch(WIRE_ID, 1)
    assert storage.get(WIRE_ID, "a") is None
    storage.close()


_FIRST_START = """
import sys
from leaderserver.server.sqlite_storage import SQLiteStorage
from nameservice import ConfigurationError, StorageError
try:
    storage = SQLiteStorage(sys.argv[1])
    try:
        print(storage.next_incarnation(at_least=1))
    finally:
        storage.close()
except (ConfigurationError, StorageError) as error:
    print(f"refused: {error}")
"""


def start(disk: FaultyDisk) -> str:
    """Open the storage in a process of its own; return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_START, str(disk.directory)],
        cwd=Path(__file__).parents[3],
        env=disk.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("call", nightly_after(1, ["rename", "sync", "write", "size"]))
def test_a_first_start_that_fails_can_be_repeated(tmp_path: Path, call: str) -> None:
    """Whichever call fails, it says so, and the directory is usable afterwards."""
    failed_count = 0
    for after in range(0, 12, 2):
        disk = FaultyDisk(tmp_path / f"data{after}", tmp_path / "faults")
        disk.fail(call, after=after, count=1)
        first = start(disk)
        disk.heal()
        storage = SQLiteStorage(disk.directory)
        second = storage.next_incarnation(at_least=1)
        storage.close()
        if first.startswith("refused: "):
            failed_count += 1
            assert second in (1, 2)
        else:
            assert (first, second) == ("1\n", 2)
    assert failed_count
