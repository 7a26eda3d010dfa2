from __future__ import annotations

import errno
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from election import Delete, Put
from election.epochs import EVERY_COMPONENT, IncarnationEpochs
from leaderserver.server import backup as backup_module
from leaderserver.server.backup import BackupInformation, back_up, restore_backup
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage_database import DATABASE_FILE_NAME
from nameservice import ConfigurationError, StorageError, VersionMismatchError
from nameservice.durable_files import sync_file


if TYPE_CHECKING:
    from contextlib import ExitStack


JOB = "c/job"
OTHER = "c/other"
ORIGIN_SECONDS = 1_577_836_800
DAY_SECONDS = 24 * 60 * 60


def seconds_since_2020() -> int:
    """Return the least incarnation of a server that is started now."""
    return int(time.time()) - ORIGIN_SECONDS


def names_in(directory: Path) -> list[str]:
    """Return the names of what is in *directory*, sorted."""
    return sorted(each.name for each in directory.iterdir())


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a data directory with a few values in it."""
    directory = tmp_path / "data"
    storage = SQLiteStorage(directory)
    storage.next_incarnation(at_least=5)
    storage.record_epoch(JOB, 5 << 32 | 1)
    storage.commit(JOB, [Put("a", b"one"), Put("b", b"two")])
    storage.commit(OTHER, [Put("c", b"")])
    storage.close()
    return directory


@pytest.fixture
def backup(tmp_path: Path, data_dir: Path) -> Path:
    """Return a backup of *data_dir*."""
    back_up(data_dir, tmp_path / "backup")
    return tmp_path / "backup"


class TestBackUp:
    def test_it_says_what_is_in_it(self, tmp_path: Path, data_dir: Path) -> None:
        """Of how many jobs how much; only its owner may read it; nothing else stays."""
        before = int(time.time())
        information = back_up(data_dir, tmp_path / "backup")
        assert before <= information.taken_seconds <= time.time()
        assert information == BackupInformation(
            taken_seconds=information.taken_seconds,
            component_count=2,
            value_count=3,
            value_size_bytes=6,
        )
        assert names_in(tmp_path) == ["backup", "data"]
        assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600

    def test_a_server_that_runs_is_not_disturbed(
        self, tmp_path: Path, data_dir: Path
    ) -> None:
        """The lock stays where it is, and each backup is of one moment (L1)."""
        storage = SQLiteStorage(data_dir)
        is_over = threading.Event()
        committed = []

        def write() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                value = str(number).encode()
                storage.commit(JOB, [Put("a", value), Put("b", value)])
                committed.append(number)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(5):
                back_up(data_dir, tmp_path / f"backup-{number}")
        finally:
            is_over.set()
            writer.join()
        with pytest.raises(ConfigurationError, match="in use"):
            SQLiteStorage(data_dir)
        storage.commit(JOB, [Put("a", b"last")])
        storage.close()
        assert committed
        for number in range(5):
            restored = tmp_path / f"restored-{number}"
            restore_backup(tmp_path / f"backup-{number}", restored)
            copy = SQLiteStorage(restored)
            a, b = copy.get(JOB, "a"), copy.get(JOB, "b")
            copy.close()
            assert a is not None
            assert b is not None
            assert a.value == b.value or (a.value, b.value) == (b"one", b"two")

    def test_what_a_killed_server_left_in_its_log_is_in_it(
        self, tmp_path: Path, data_dir: Path
    ) -> None:
        """L4: what was acknowledged is durable, be it in the file or in the log."""
        storage = SQLiteStorage(data_dir)
        storage.commit(JOB, [Put("d", b"in the log")])
        killed = tmp_path / "killed"
        killed.mkdir()
        for name in (DATABASE_FILE_NAME, f"{DATABASE_FILE_NAME}-wal"):
            (killed / name).write_bytes((data_dir / name).read_bytes())
        storage.close()
        back_up(killed, tmp_path / "backup")
        restore_backup(tmp_path / "backup", tmp_path / "restored")
        copy = SQLiteStorage(tmp_path / "restored")
        found = copy.get(JOB, "d")
        copy.close()
        assert found is not None
        assert found.value == b"in the log"

    def test_nothing_is_overwritten(self, tmp_path: Path, data_dir: Path) -> None:
        """Not even by mistake: the last backup may be the only one."""
        (tmp_path / "backup").write_bytes(b"precious")
        with pytest.raises(ConfigurationError, match="exists"):
            back_up(data_dir, tmp_path / "backup")
        assert (tmp_path / "backup").read_bytes() == b"precious"

    @pytest.mark.proves("L1")
    def test_two_into_one_file_do_not_mix(
        self, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        L1: what is reported is what was written and checked, not what another writes.

        A second backup begins before the first one has its name: one that cron starts,
        say, while a person makes one.
        """
        target = tmp_path / "backup"
        has_begun, goes_on = threading.Event(), threading.Event()
        refusals: list[Exception] = []
        sync, make_file = sync_file, backup_module._make_file

        def second() -> None:
            try:
                back_up(data_dir, target)
            except (ConfigurationError, StorageError) as error:
                refusals.append(error)

        other = threading.Thread(target=second)

        def begin_second(path: Path) -> None:
            if not other.ident:
                other.start()
                assert has_begun.wait(10)
            sync(path)

        def make_and_wait(file: Path, stack: ExitStack) -> None:
            make_file(file, stack)
            if threading.current_thread() is other:
                has_begun.set()
                assert goes_on.wait(10)

        monkeypatch.setattr(backup_module, "sync_file", begin_second)
        monkeypatch.setattr(backup_module, "_make_file", make_and_wait)
        back_up(data_dir, target)
        reported = target.read_bytes()
        goes_on.set()
        other.join()
        assert target.read_bytes() == reported
        assert [type(error) for error in refusals] == [ConfigurationError]
        assert restore_backup(target, tmp_path / "restored").value_count == 3
        assert names_in(tmp_path) == ["backup", "data", "restored"]

    def test_a_file_system_without_links_will_do(
        self, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a stick, or on a share of another system."""

        def refuse(target: Path, fresh: Path) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted", target, fresh)

        monkeypatch.setattr(Path, "hardlink_to", refuse)
        back_up(data_dir, tmp_path / "backup")
        assert names_in(tmp_path) == ["backup", "data"]
        assert restore_backup(tmp_path / "backup", tmp_path / "new").value_count == 3

    def test_what_is_no_data_directory_is_told(self, tmp_path: Path) -> None:
        """Nor is one made by asking."""
        (tmp_path / "empty").mkdir()
        for directory in (tmp_path / "empty", tmp_path / "nothing"):
            with pytest.raises(ConfigurationError, match="no data directory"):
                back_up(directory, tmp_path / "backup")
        assert names_in(tmp_path) == ["empty"]

    def test_a_directory_that_cannot_be_written_is_told(
        self, tmp_path: Path, data_dir: Path
    ) -> None:
        """The error names it."""
        with pytest.raises(StorageError, match="nowhere"):
            back_up(data_dir, tmp_path / "nowhere" / "backup")

    def test_a_damaged_database_is_not_backed_up(
        self, tmp_path: Path, data_dir: Path
    ) -> None:
        """A backup is checked before it has its name."""
        file = data_dir / DATABASE_FILE_NAME
        content = bytearray(file.read_bytes())
        content[4096 + 8 : 4096 + 108] = b"x" * 100
        file.write_bytes(content)
        with pytest.raises(StorageError):
            back_up(data_dir, tmp_path / "backup")
        assert names_in(tmp_path) == ["data"]


class TestRestore:
    def test_what_was_stored_is_there_again(self, tmp_path: Path, backup: Path) -> None:
        """L1: every value, each at a version that its path has never been at."""
        information = restore_backup(backup, tmp_path / "new" / "data")
        assert information.value_count == 3
        storage = SQLiteStorage(tmp_path / "new" / "data")
        found = storage.get(JOB, "b")
        assert found is not None
        assert found.value == b"two"
        assert 2**32 < found.version < 2**53
        storage.commit(JOB, [Delete("b", found.version), Put("a", b"more")])
        assert list(storage.list(JOB, "", after="", count_max=9)) == ["a"]
        storage.close()

    def test_epochs_go_on_above_all_that_may_have_been_granted(
        self, tmp_path: Path, data_dir: Path, backup: Path
    ) -> None:
        """E2: those after the backup too, and those that reports made a day ahead."""
        storage = SQLiteStorage(data_dir)
        incarnation = storage.next_incarnation(at_least=seconds_since_2020())
        epochs = IncarnationEpochs(incarnation, started_ns=0)
        reported = (incarnation + DAY_SECONDS - 2) << 32
        assert epochs.admits(reported, now_ns=0)
        epochs.observe(reported)
        granted = epochs.draw(above=reported)
        storage.record_epoch(OTHER, granted)
        storage.close()
        restore_backup(backup, tmp_path / "restored")
        copy = SQLiteStorage(tmp_path / "restored")
        recorded = copy.recorded_epochs()
        number = copy.next_incarnation(at_least=seconds_since_2020())
        copy.close()
        assert recorded[JOB] == 5 << 32 | 1
        assert recorded[EVERY_COMPONENT] > granted
        first = IncarnationEpochs(number, started_ns=0).draw(above=0)
        assert first > recorded[EVERY_COMPONENT]

    def test_the_longest_lease_on_record_is_waited_for(
        self, tmp_path: Path, data_dir: Path
    ) -> None:
        """E9: though epochs are on record since, and a shorter lease as well."""
        storage = SQLiteStorage(data_dir)
        first = storage.next_incarnation(at_least=100)
        storage.admit_leases(first, lease_ns=5_000, unrecorded_ns=1_000)
        storage.record_epoch(JOB, first << 32 | 1)
        second = storage.next_incarnation(at_least=200)
        assert storage.admit_leases(second, lease_ns=10, unrecorded_ns=1_000) == 5_000
        storage.close()
        back_up(data_dir, tmp_path / "backup")
        restore_backup(tmp_path / "backup", tmp_path / "restored")
        number = 0
        for lease_ns, longest_ns in ((20, 5_000), (6_000, 6_000)):
            copy = SQLiteStorage(tmp_path / "restored")
            number = copy.next_incarnation(at_least=1)
            assert (
                copy.admit_leases(number, lease_ns=lease_ns, unrecorded_ns=1_000)
                == longest_ns
            )
            copy.close()
        # Once one has granted, it had waited for all of them.
        copy = SQLiteStorage(tmp_path / "restored")
        copy.record_epoch(JOB, number << 32 | 1)
        number = copy.next_incarnation(at_least=1)
        assert copy.admit_leases(number, lease_ns=20, unrecorded_ns=1_000) == 6_000
        copy.close()

    def test_without_a_lease_on_record_the_limit_is_waited_for(
        self, tmp_path: Path, backup: Path
    ) -> None:
        """E9: as by any server that finds no record."""
        restore_backup(backup, tmp_path / "restored")
        copy = SQLiteStorage(tmp_path / "restored")
        number = copy.next_incarnation(at_least=1)
        assert copy.admit_leases(number, lease_ns=20, unrecorded_ns=1_000) == 1_000
        copy.close()

    @given(ahead_seconds=st.integers(0, 2 * DAY_SECONDS), counter=st.integers(0, 9))
    def test_a_server_whose_clock_was_ahead_is_outdone_too(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        ahead_seconds: int,
        counter: int,
    ) -> None:
        """E2: whatever the backup has on record, what is restored begins above."""
        directory = tmp_path_factory.mktemp("ahead")
        storage = SQLiteStorage(directory / "data")
        number = storage.next_incarnation(at_least=seconds_since_2020() + ahead_seconds)
        storage.record_epoch(JOB, number << 32 | counter)
        storage.close()
        back_up(directory / "data", directory / "backup")
        restore_backup(directory / "backup", directory / "restored")
        copy = SQLiteStorage(directory / "restored")
        assert copy.recorded_epochs()[EVERY_COMPONENT] >> 32 >= number
        assert copy.next_incarnation(at_least=1) > number
        copy.close()

    @pytest.mark.proves("E2")
    def test_a_clock_that_is_far_behind_the_backup_is_refused(
        self, tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        E2: the machine has no time yet; what it grants could be below earlier grants.

        A day from now, which is where epochs go on, would be before the backup.
        """
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 2 * DAY_SECONDS)
        with pytest.raises(ConfigurationError, match="set the clock"):
            restore_backup(backup, tmp_path / "restored")
        monkeypatch.setattr(time, "time", lambda: now - DAY_SECONDS / 2)
        restore_backup(backup, tmp_path / "restored")

    def test_it_may_be_done_again(self, tmp_path: Path, backup: Path) -> None:
        """E2, L1: a backup of what was restored is restored like any other."""
        restore_backup(backup, tmp_path / "once")
        back_up(tmp_path / "once", tmp_path / "second")
        restore_backup(tmp_path / "second", tmp_path / "twice")
        versions = []
        for name in ("once", "twice"):
            storage = SQLiteStorage(tmp_path / name)
            found = storage.get(JOB, "a")
            storage.close()
            assert found is not None
            assert found.value == b"one"
            versions.append(found.version)
        assert versions[0] < versions[1] < 2**53

    @pytest.mark.proves("L1")
    def test_a_second_try_gives_no_version_again(
        self, tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        L1: the first one was served for a while, and given up.

        A job that remembered a version from there overwrote what another had written.
        """
        restore_backup(backup, tmp_path / "first")
        first = SQLiteStorage(tmp_path / "first")
        first.commit(JOB, [Put("a", b"remembered")])
        remembered = first.get(JOB, "a")
        first.close()
        assert remembered is not None
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 1)
        restore_backup(backup, tmp_path / "second")
        second = SQLiteStorage(tmp_path / "second")
        second.commit(JOB, [Put("a", b"another")])
        with pytest.raises(VersionMismatchError):
            second.commit(JOB, [Put("a", b"stale", remembered.version)])
        second.close()

    def test_nothing_is_overwritten(
        self, tmp_path: Path, data_dir: Path, backup: Path
    ) -> None:
        """A data directory, or anything else that is there, stays as it is."""
        before = (data_dir / DATABASE_FILE_NAME).read_bytes()
        with pytest.raises(ConfigurationError, match="not empty"):
            restore_backup(backup, data_dir)
        assert (data_dir / DATABASE_FILE_NAME).read_bytes() == before
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "notes.txt").touch()
        with pytest.raises(ConfigurationError, match=r"notes\.txt"):
            restore_backup(backup, tmp_path / "full")

    def test_a_directory_that_a_server_uses_is_left_alone(
        self, tmp_path: Path, backup: Path
    ) -> None:
        """The server's lock keeps it."""
        storage = SQLiteStorage(tmp_path / "used")
        with pytest.raises(ConfigurationError, match="in use"):
            restore_backup(backup, tmp_path / "used")
        storage.close()

    def test_a_restore_that_was_cut_short_may_be_repeated(
        self, tmp_path: Path, backup: Path
    ) -> None:
        """What it has left behind is nothing of a server's."""
        cut = tmp_path / "cut"
        cut.mkdir()
        (cut / "lock").touch()
        (cut / f"{DATABASE_FILE_NAME}.restoring").write_bytes(b"half")
        restore_backup(backup, cut)
        SQLiteStorage(cut).close()

    @pytest.mark.proves("L1")
    def test_a_restore_that_was_cut_short_is_no_beginning(self, tmp_path: Path) -> None:
        """
        L1: a server that is started then says so, and loses nothing.

        It began with an empty store, to which the backup could not be restored any
        more.
        """
        cut = tmp_path / "cut"
        cut.mkdir()
        (cut / f"{DATABASE_FILE_NAME}.restoring").write_bytes(b"half")
        with pytest.raises(ConfigurationError, match="repeat 'lodestar restore"):
            SQLiteStorage(cut)
        assert names_in(cut) == [f"{DATABASE_FILE_NAME}.restoring", "lock"]

    @pytest.mark.parametrize("kept", [0, 1, 100, 4096, -4096])
    def test_half_a_backup_is_refused(
        self, tmp_path: Path, backup: Path, kept: int
    ) -> None:
        """Whatever is missing of it; no data directory comes of it."""
        half = tmp_path / "half"
        half.write_bytes(backup.read_bytes()[:kept])
        with pytest.raises((ConfigurationError, StorageError)):
            restore_backup(half, tmp_path / "restored")
        assert not (tmp_path / "restored" / DATABASE_FILE_NAME).exists()

    @pytest.mark.proves("L1")
    def test_a_value_that_has_changed_is_found(
        self, tmp_path: Path, backup: Path
    ) -> None:
        """
        L1: a bit that has flipped in a value, on a tape say, is no value of a leader.

        To SQLite the file is sound.
        """
        content = bytearray(backup.read_bytes())
        content[content.rindex(b"two")] ^= 1
        backup.write_bytes(content)
        with pytest.raises(StorageError, match="backup is damaged"):
            restore_backup(backup, tmp_path / "restored")
        assert not (tmp_path / "restored").exists()

    def test_damaged_text_of_a_table_is_told(
        self, tmp_path: Path, backup: Path
    ) -> None:
        """SQLite quotes it, and Python cannot read what is no UTF-8."""
        content = backup.read_bytes()
        damaged = content.replace(b"CREATE TABLE store", b"CREATE T\xc3BLE store")
        assert damaged != content
        backup.write_bytes(damaged)
        with pytest.raises(StorageError, match="cannot restore"):
            restore_backup(backup, tmp_path / "restored")

    @pytest.mark.parametrize(
        "column", ["backup SET taken_seconds", "incarnation SET number"]
    )
    def test_what_we_never_write_is_damage(
        self, tmp_path: Path, backup: Path, column: str
    ) -> None:
        """SQLite takes any value in any column."""
        database = sqlite3.connect(backup, isolation_level=None)
        database.execute(f"UPDATE {column} = 'text'")
        database.close()
        with pytest.raises(StorageError, match="is damaged"):
            restore_backup(backup, tmp_path / "restored")

    def test_a_backup_of_an_earlier_version_is_restored(
        self, tmp_path: Path, backup: Path
    ) -> None:
        """It has no checksum of its rows."""
        database = sqlite3.connect(backup)
        database.execute("ALTER TABLE backup DROP COLUMN checksum")
        database.commit()
        database.close()
        assert restore_backup(backup, tmp_path / "restored").value_count == 3

    def test_what_is_no_backup_is_refused(
        self, tmp_path: Path, data_dir: Path, backup: Path
    ) -> None:
        """Not there, not ours, of another format, or without what must be in it."""
        for file in (tmp_path / "nothing", data_dir / DATABASE_FILE_NAME):
            with pytest.raises(ConfigurationError):
                restore_backup(file, tmp_path / "restored")
        for statement, error in (
            ("PRAGMA user_version = 99", ConfigurationError),
            ("DROP TABLE epochs", StorageError),
            ("DELETE FROM incarnation", StorageError),
        ):
            changed = tmp_path / "changed"
            changed.write_bytes(backup.read_bytes())
            database = sqlite3.connect(changed)
            database.execute(statement)
            database.commit()
            database.close()
            with pytest.raises(error):
                restore_backup(changed, tmp_path / "restored")
        assert not (tmp_path / "restored" / DATABASE_FILE_NAME).exists()
