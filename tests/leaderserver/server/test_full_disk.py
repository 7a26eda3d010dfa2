"""A LeaderServer whose disk is full: deleting works, and room is found again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from election import LeaderSession, LeaderStore, Put
from haservices import HAConfig, HAServices, campaign, open_ha_services
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage_directory import (
    RESERVE_FILE_NAME,
    RESERVE_SIZE_BYTES,
    Reserve,
)
from nameservice import DidNotHappenError
from tests.faults.disk import FaultyDisk
from tests.faults.server import ServerOnFaultyDisk


JOB = "job"
VALUE = bytes(range(256)) * 3_000  # 768,000 bytes


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    """Return the disk of a server's data directory."""
    return FaultyDisk(tmp_path / "data", tmp_path / "faults")


def services(server: ServerOnFaultyDisk) -> HAServices:
    """Return what a client of *server* has."""
    return open_ha_services(
        HAConfig(url=server.url, lease_seconds=0.4, session_timeout_seconds=5.0)
    )


def put_until_refused(store: LeaderStore, session: LeaderSession) -> None:
    """Put value after value; the disk is full long before it returns."""
    for number in range(20):
        store.put(f"more{number}", VALUE, session=session)


@pytest.mark.shells
class TestServer:
    @pytest.mark.proves("L3")
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_what_is_stored_can_be_deleted(self, disk: FaultyDisk, code: int) -> None:
        """
        L3: one large value after the other, with no byte left on the disk.

        Or of the quota of the server's user: SQLite calls that a failed write, and the
        server took it for a broken disk, and ended.
        """
        with (
            ServerOnFaultyDisk(disk) as server,
            services(server) as ha,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
        ):
            store, session = ha.get_leader_store(JOB), leadership.session
            for number in range(12):
                store.put(f"p{number}", VALUE, session=session)
            disk.fill(code=code)
            with pytest.raises(DidNotHappenError, match="full"):
                put_until_refused(store, session)
            for number in range(12):
                store.delete(f"p{number}", session=session)
            assert all(path.startswith("more") for path in store.list(""))
            # What was freed in the file takes values again, though the disk is full.
            store.put("again", VALUE, session=session)
            found = store.get("again")
            assert found is not None
            assert found.value == VALUE

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_cleanup_works_and_so_do_grants(self, disk: FaultyDisk, code: int) -> None:
        """A full disk keeps no contender from leading (E2, L3)."""
        with ServerOnFaultyDisk(disk) as server, services(server) as ha:
            with campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership:
                store, session = ha.get_leader_store(JOB), leadership.session
                for number in range(6):
                    store.put(f"p{number}", VALUE, session=session)
                disk.fill(code=code)
                with pytest.raises(DidNotHappenError):
                    put_until_refused(store, session)
            ha.cleanup(JOB)
            assert ha.get_leader_store(JOB).list("") == []
            for name in ("other", "third"):
                with campaign(ha, name, "h:1", timeout_seconds=60):
                    pass

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_server_starts_on_a_full_disk(self, disk: FaultyDisk, code: int) -> None:
        """The reserve has room for that, too, and is whole when there is room again."""
        with (
            ServerOnFaultyDisk(disk) as server,
            services(server) as ha,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
        ):
            store = ha.get_leader_store(JOB)
            store.put("a", VALUE, session=leadership.session)
            server.kill()
        disk.fill(code=code)
        with (
            ServerOnFaultyDisk(disk) as server,
            services(server) as ha,
            campaign(ha, JOB, "h:1", timeout_seconds=60) as leadership,
        ):
            store = ha.get_leader_store(JOB)
            assert store.get("a") is not None
            store.delete("a", session=leadership.session)
            disk.heal()
            store.put("a", VALUE, session=leadership.session)
        reserve = disk.directory / RESERVE_FILE_NAME
        assert reserve.stat().st_size == RESERVE_SIZE_BYTES


class TestReserve:
    def test_it_is_given_back_and_taken_again(self, tmp_path: Path) -> None:
        """All of it, once there is room."""
        reserve = Reserve(tmp_path / "reserve")
        assert not reserve.is_whole
        reserve.restore()
        assert reserve.is_whole
        assert Reserve(tmp_path / "reserve").is_whole
        assert reserve.give_back()
        assert not reserve.give_back()
        assert (tmp_path / "reserve").stat().st_size == 0
        reserve.restore()
        assert reserve.size_bytes == RESERVE_SIZE_BYTES

    @pytest.mark.proves("L1")
    def test_one_that_was_removed_is_given_back(self, tmp_path: Path) -> None:
        """
        L1: a write on a full disk fails as one that did not happen, or is made.

        People make room with what looks useless.  It is made again when there is room.
        """
        reserve = Reserve(tmp_path / "reserve")
        reserve.restore()
        (tmp_path / "reserve").unlink()
        assert reserve.give_back()
        assert not reserve.is_whole
        reserve.restore()
        assert (tmp_path / "reserve").stat().st_size == RESERVE_SIZE_BYTES

    def test_one_that_cannot_be_given_back_is_kept(self, tmp_path: Path) -> None:
        """The write that needed it fails as it would without a reserve."""
        reserve = Reserve(tmp_path / "reserve")
        reserve.restore()
        (tmp_path / "reserve").unlink()
        (tmp_path / "reserve").mkdir()
        assert not reserve.give_back()

    def test_where_there_can_be_none_nothing_is_refused(self, tmp_path: Path) -> None:
        """A file system without it is no full one."""
        reserve = Reserve(tmp_path / "reserve")
        (tmp_path / "reserve").mkdir()
        reserve.restore()
        assert reserve.is_whole
        assert reserve.size_bytes == 0


def test_deleting_does_not_overwrite(tmp_path: Path) -> None:
    """Some builds of SQLite do so by default, and need as much room as is freed."""
    storage = SQLiteStorage(tmp_path)
    storage.commit("c/a", [Put("a", VALUE)])
    assert storage._database._connection.execute("PRAGMA secure_delete").fetchone() == (
        0,
    )
    storage.close()
