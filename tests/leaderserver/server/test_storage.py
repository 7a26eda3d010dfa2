from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from election import Delete, Put, StoreOperation, VersionedValue
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage import LeaderStorage, MemoryStorage
from leaderserver.server.storage_database import DATABASE_FILE_NAME
from nameservice import ConfigurationError, StorageError, VersionMismatchError


JOB = "c/job"
OTHER = "c/other"


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaderStorage]:
    """Yield an empty storage of each kind."""
    made: LeaderStorage
    made = MemoryStorage() if request.param == "memory" else SQLiteStorage(tmp_path)
    yield made
    made.close()


class TestEitherStorage:
    @pytest.mark.proves("E2")
    def test_incarnations_rise(self, storage: LeaderStorage) -> None:
        """Each is above every recorded one, and at least what was asked for (E2)."""
        assert storage.next_incarnation(at_least=5) == 5
        assert storage.next_incarnation(at_least=5) == 6
        assert storage.next_incarnation(at_least=1) == 7
        assert storage.next_incarnation(at_least=100) == 100

    @pytest.mark.proves("E2")
    def test_the_highest_epoch_is_recorded(self, storage: LeaderStorage) -> None:
        """Each component has one, and a newer one takes its place (E2)."""
        assert storage.recorded_epochs() == {}
        storage.record_epoch(JOB, 3)
        storage.record_epoch(OTHER, 7)
        storage.record_epoch(JOB, 4)
        assert storage.recorded_epochs() == {JOB: 4, OTHER: 7}

    @pytest.mark.proves("L1")
    def test_versions_count_the_puts_of_a_path(self, storage: LeaderStorage) -> None:
        """1 when it is made, one more with each put, 1 again when made anew (L1)."""
        assert storage.get(JOB, "a") is None
        storage.commit(JOB, [Put("a", b"one")])
        assert storage.get(JOB, "a") == VersionedValue(value=b"one", version=1)
        storage.commit(JOB, [Put("a", b"two", 1), Put("b", b"")])
        assert storage.get(JOB, "a") == VersionedValue(value=b"two", version=2)
        assert storage.get(JOB, "b") == VersionedValue(value=b"", version=1)
        assert storage.get(OTHER, "a") is None
        storage.commit(JOB, [Delete("a", 2)])
        storage.commit(JOB, [Delete("a")])
        assert storage.get(JOB, "a") is None
        storage.commit(JOB, [Put("a", b"three", 0)])
        assert storage.get(JOB, "a") == VersionedValue(value=b"three", version=1)

    @pytest.mark.proves("L1")
    @pytest.mark.parametrize(
        ("operation", "version"),
        [
            (Put("a", b"new", 0), 1),
            (Put("a", b"new", 2), 1),
            (Delete("a", 2), 1),
            (Put("none", b"new", 1), 0),
            (Delete("none", 1), 0),
        ],
    )
    def test_a_commit_is_all_or_nothing(
        self, storage: LeaderStorage, operation: StoreOperation, version: int
    ) -> None:
        """One path at another version, and nothing is written at all (L1)."""
        storage.commit(JOB, [Put("a", b"old")])
        with pytest.raises(VersionMismatchError) as caught:
            storage.commit(JOB, [Put("first", b"new"), operation, Put("last", b"new")])
        assert caught.value.path == operation.path
        assert caught.value.version_expected == operation.version
        assert caught.value.version == version
        assert storage.list(JOB, "", after="", count_max=9) == ["a"]
        assert storage.get(JOB, "a") == VersionedValue(value=b"old", version=1)

    @pytest.mark.proves("L1")
    def test_paths_are_listed_in_order_and_in_pages(
        self, storage: LeaderStorage
    ) -> None:
        """A prefix is a string prefix, without wildcards; pages follow *after* (L1)."""
        paths = ["a", "a%", "a/1", "a/2", "a_", "ab", "b", "ä"]
        storage.commit(JOB, [Put(path, b"") for path in reversed(paths)])
        assert storage.list(JOB, "", after="", count_max=99) == sorted(paths)
        assert storage.list(JOB, "a%", after="", count_max=99) == ["a%"]
        assert storage.list(JOB, "a_", after="", count_max=99) == ["a_"]
        assert storage.list(JOB, "a/", after="", count_max=1) == ["a/1"]
        assert storage.list(JOB, "a/", after="a/1", count_max=9) == ["a/2"]
        assert storage.list(JOB, "A", after="", count_max=9) == []
        assert storage.list(OTHER, "", after="", count_max=9) == []

    @pytest.mark.proves("L3")
    def test_cleanup_removes_values_and_never_epochs(
        self, storage: LeaderStorage
    ) -> None:
        """An epoch outlives whatever is stored under it (L3)."""
        storage.record_epoch(JOB, 3)
        storage.commit(JOB, [Put("a", b"")])
        storage.commit(OTHER, [Put("a", b"")])
        storage.cleanup(JOB)
        storage.cleanup(JOB)
        assert storage.list(JOB, "", after="", count_max=9) == []
        assert storage.list(OTHER, "", after="", count_max=9) == ["a"]
        assert storage.recorded_epochs() == {JOB: 3}

    @pytest.mark.proves("L3")
    def test_a_large_value_is_kept_as_it_is(self, storage: LeaderStorage) -> None:
        """Bytes are bytes: the largest value comes back as it went in (L3)."""
        value = bytes(range(256)) * 3_906 + bytes(64)
        assert len(value) == 1_000_000
        storage.commit(JOB, [Put("a", value)])
        assert storage.get(JOB, "a") == VersionedValue(value=value, version=1)


def test_memory_is_not_durable() -> None:
    """What a server promises depends on it (``SURVIVES_SERVER_RESTART``)."""
    storage = MemoryStorage()
    assert not storage.is_durable
    storage.close()


_OPERATIONS = st.lists(
    st.builds(
        lambda is_put, path, version: (
            Put(path, b"x", version) if is_put else Delete(path, version)
        ),
        st.booleans(),
        st.sampled_from("ab"),
        st.sampled_from([None, 0, 1, 2]),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda operation: operation.path,
)


@given(commits=st.lists(_OPERATIONS, max_size=12))
@settings(max_examples=60)
def test_both_storages_do_the_same(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[StoreOperation]]
) -> None:
    """A data directory changes what lasts, never what happens."""
    memory = MemoryStorage()
    durable = SQLiteStorage(tmp_path_factory.mktemp("data"))

    def outcome(storage: LeaderStorage, operations: list[StoreOperation]) -> object:
        try:
            storage.commit(JOB, operations)
        except VersionMismatchError as error:
            return error.args
        return [storage.get(JOB, path) for path in "ab"]

    try:
        for operations in commits:
            assert outcome(memory, operations) == outcome(durable, operations)
    finally:
        durable.close()


class TestSQLiteStorage:
    @pytest.mark.proves("E2", "L3")
    def test_everything_is_there_again(self, tmp_path: Path) -> None:
        """Epochs, incarnation and values outlive the server (E2, L3)."""
        storage = SQLiteStorage(tmp_path / "deep" / "data")
        assert storage.is_durable
        assert storage.next_incarnation(at_least=5) == 5
        storage.record_epoch(JOB, 17)
        storage.commit(JOB, [Put("a", b"one"), Put("a2", b"two")])
        storage.close()
        storage.close()
        again = SQLiteStorage(str(tmp_path / "deep" / "data"))
        assert again.next_incarnation(at_least=1) == 6
        assert again.recorded_epochs() == {JOB: 17}
        assert again.get(JOB, "a") == VersionedValue(value=b"one", version=1)
        again.close()

    @pytest.mark.proves("E2")
    def test_an_incarnation_is_above_every_recorded_epoch(self, tmp_path: Path) -> None:
        """Also above those that a client reported to an earlier server (E2)."""
        storage = SQLiteStorage(tmp_path)
        storage.record_epoch(JOB, 9 << 32 | 4)
        assert storage.next_incarnation(at_least=3) == 10
        storage.close()

    @pytest.mark.proves("E9")
    def test_earlier_leases_are_waited_for(self, tmp_path: Path) -> None:
        """E9: until a server is known to have waited for them, over any restarts."""
        waits = []
        for lease_ns in (50, 90, 20, 10, 10, 30):
            storage = SQLiteStorage(tmp_path)
            incarnation = storage.next_incarnation(at_least=1)
            waits.append(
                storage.admit_leases(incarnation, lease_ns=lease_ns, unrecorded_ns=70)
            )
            if lease_ns in (90, 20):
                storage.record_epoch(JOB, incarnation << 32 | 1)  # it has decided
            storage.close()
        # Unrecorded servers before the first two; then 90, 20 and all that followed.
        assert waits == [70, 90, 90, 20, 20, 30]

    @pytest.mark.proves("E9")
    def test_directory_of_before_has_no_record_of_leases(self, tmp_path: Path) -> None:
        """E9: what an older version admitted is not known, though it has granted."""
        storage = SQLiteStorage(tmp_path)
        storage.record_epoch(JOB, 9 << 32 | 4)
        incarnation = storage.next_incarnation(at_least=1)
        assert storage.admit_leases(incarnation, lease_ns=20, unrecorded_ns=70) == 70
        storage.close()

    @pytest.mark.proves("E9")
    def test_memory_knows_of_no_earlier_lease(self) -> None:
        """E9: then it is what a server without a record may have admitted."""
        storage = MemoryStorage()
        assert storage.admit_leases(7, lease_ns=20, unrecorded_ns=70) == 70
        assert storage.admit_leases(8, lease_ns=90, unrecorded_ns=70) == 90

    @pytest.mark.proves("E2")
    def test_a_lower_epoch_never_takes_the_place_of_a_higher(
        self, tmp_path: Path
    ) -> None:
        """What is on record only rises (E2)."""
        storage = SQLiteStorage(tmp_path)
        storage.record_epoch(JOB, 9)
        storage.record_epoch(JOB, 8)
        assert storage.recorded_epochs() == {JOB: 9}
        storage.close()

    def test_two_servers_do_not_share_a_directory(self, tmp_path: Path) -> None:
        """They would grant the same epochs; the error says what to do."""
        storage = SQLiteStorage(tmp_path)
        with pytest.raises(ConfigurationError, match="in use by another LeaderServer"):
            SQLiteStorage(tmp_path)
        storage.close()
        SQLiteStorage(tmp_path).close()

    def test_a_dead_server_leaves_no_lock(self, tmp_path: Path) -> None:
        """What a killed process held is free, and what it wrote is there."""
        script = (
            "import os, signal\n"
            "from leaderserver.server.sqlite_storage import SQLiteStorage\n"
            f"storage = SQLiteStorage({str(tmp_path)!r})\n"
            f"storage.record_epoch({JOB!r}, 5)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        killed = subprocess.run(
            [sys.executable, "-c", script],
            check=False,
            cwd=Path(__file__).parents[3],
            timeout=60,
        )
        assert killed.returncode == -9
        storage = SQLiteStorage(tmp_path)
        assert storage.recorded_epochs() == {JOB: 5}
        storage.close()

    def test_others_cannot_read_it(self, tmp_path: Path) -> None:
        """What leaders store, and who they are, is the server's alone."""
        storage = SQLiteStorage(tmp_path)
        for name in (DATABASE_FILE_NAME, f"{DATABASE_FILE_NAME}-wal"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        storage.close()

    def test_a_child_keeps_no_lock(self, tmp_path: Path) -> None:
        """A process forked meanwhile may outlive the server, without a claim (E10)."""
        storage = SQLiteStorage(tmp_path)
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write_end)
            os.read(read_end, 1)  # until the parent closes its end
            os._exit(0)
        try:
            storage.close()
            SQLiteStorage(tmp_path).close()
        finally:
            os.close(write_end)
            os.close(read_end)
            os.waitpid(pid, 0)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda directory: directory.write_text("a file"),
            lambda directory: (directory / "lock").mkdir(parents=True),
            lambda directory: (directory / DATABASE_FILE_NAME).mkdir(parents=True),
        ],
        ids=["a file", "a lock that is none", "a database that is none"],
    )
    def test_what_cannot_be_used_is_an_error(
        self, tmp_path: Path, spoil: Callable[[Path], object]
    ) -> None:
        """A directory that cannot be used is named, and left as it is."""
        directory = tmp_path / "data"
        spoil(directory)
        with pytest.raises(ConfigurationError, match="cannot use the data directory"):
            SQLiteStorage(directory)

    def test_a_damaged_database_is_an_error(self, tmp_path: Path) -> None:
        """A file that is no database is not taken for an empty one."""
        (tmp_path / DATABASE_FILE_NAME).write_bytes(b"not a database" * 1_000)
        with pytest.raises(ConfigurationError, match="not a database"):
            SQLiteStorage(tmp_path)

    @pytest.mark.parametrize("is_marked", [True, False])
    def test_an_empty_database_is_not_a_new_one(
        self, tmp_path: Path, *, is_marked: bool
    ) -> None:
        """It was cut off; also where an older version has left no mark."""
        SQLiteStorage(tmp_path).close()
        (tmp_path / DATABASE_FILE_NAME).write_bytes(b"")
        if not is_marked:
            (tmp_path / "format").unlink()
        with pytest.raises(ConfigurationError, match="is empty: restore it from a"):
            SQLiteStorage(tmp_path)
        assert (tmp_path / DATABASE_FILE_NAME).read_bytes() == b""

    def test_a_database_that_is_gone_is_not_made_anew(self, tmp_path: Path) -> None:
        """The directory says that there was one."""
        SQLiteStorage(tmp_path).close()
        (tmp_path / DATABASE_FILE_NAME).unlink()
        with pytest.raises(ConfigurationError, match="is gone: restore it from a"):
            SQLiteStorage(tmp_path)
        (tmp_path / "format").unlink()
        SQLiteStorage(tmp_path).close()

    @pytest.mark.proves("E2")
    @pytest.mark.parametrize(
        ("statement", "problem"),
        [
            ("DELETE FROM incarnation", "the record of incarnations is missing"),
            ("DROP TABLE incarnation", "the table 'incarnation' is missing"),
            ("DROP TABLE epochs", "the table 'epochs' is missing"),
            ("DROP TABLE store", "the table 'store' is missing"),
        ],
    )
    def test_what_is_missing_is_an_error_with_a_way_out(
        self, tmp_path: Path, statement: str, problem: str
    ) -> None:
        """No traceback, and nothing is guessed (E2)."""
        SQLiteStorage(tmp_path).close()
        database = sqlite3.connect(tmp_path / DATABASE_FILE_NAME, isolation_level=None)
        database.execute(statement)
        database.close()
        with pytest.raises(
            ConfigurationError, match=f"{problem}; restore it from a backup, or move"
        ):
            SQLiteStorage(tmp_path)

    @pytest.mark.proves("E2")
    def test_damaged_epochs_are_an_error(self, tmp_path: Path) -> None:
        """They are checked before anything is granted (E2)."""
        storage = SQLiteStorage(tmp_path)
        for number in range(500):
            storage.record_epoch(f"c/{number}", number)
        storage.close()
        content = bytearray((tmp_path / DATABASE_FILE_NAME).read_bytes())
        for page in range(5, len(content) // 4_096):
            content[page * 4_096 : page * 4_096 + 64] = b"\xff" * 64
        (tmp_path / DATABASE_FILE_NAME).write_bytes(content)
        with pytest.raises(ConfigurationError, match="restore it from a backup"):
            SQLiteStorage(tmp_path)

    @pytest.mark.proves("L1")
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE store SET value = 'text'",
            "UPDATE store SET value = 1",
            "UPDATE store SET version = 'one'",
            "UPDATE epochs SET epoch = 'one'",
            "UPDATE epochs SET component_id = x'61'",
            "UPDATE incarnation SET number = 'one'",
            "UPDATE leases SET lease_ns = 'one'",
        ],
    )
    def test_what_we_never_write_is_damage(
        self, tmp_path: Path, statement: str
    ) -> None:
        """
        L1: no answer and no traceback comes of a bit that has flipped in a row's head.

        SQLite takes any value in any column.  A value of text was answered as it was,
        and no client could read that; other rows ended the server with a `TypeError`.
        """
        with contextlib.closing(SQLiteStorage(tmp_path)) as storage:
            storage.next_incarnation(at_least=1)
            storage.admit_leases(1, lease_ns=1, unrecorded_ns=1)
            storage.record_epoch(JOB, 1 << 32)
            storage.commit(JOB, [Put("a", b"value")])
        database = sqlite3.connect(tmp_path / DATABASE_FILE_NAME, isolation_level=None)
        database.execute(statement)
        database.close()

        def use_all() -> None:
            with contextlib.closing(SQLiteStorage(tmp_path)) as storage:
                storage.next_incarnation(at_least=1)
                storage.admit_leases(2, lease_ns=1, unrecorded_ns=1)
                for path in storage.list(JOB, "", after="", count_max=2):
                    storage.get(JOB, path)

        with pytest.raises(
            (ConfigurationError, StorageError), match="restore it from a backup"
        ):
            use_all()

    @pytest.mark.proves("L1")
    def test_a_version_that_we_never_write_is_not_counted_on(
        self, tmp_path: Path
    ) -> None:
        """L1: a commit over it did not happen, and says why."""
        with contextlib.closing(SQLiteStorage(tmp_path)) as storage:
            storage.commit(JOB, [Put("a", b"value")])
            storage._database._connection.execute("UPDATE store SET version = 'one'")
            with pytest.raises(StorageError, match="restore it from a backup"):
                storage.commit(JOB, [Put("a", b"other")])

    def test_damaged_text_of_a_table_is_an_error(self, tmp_path: Path) -> None:
        """SQLite quotes it, and Python cannot read what is no UTF-8."""
        SQLiteStorage(tmp_path).close()
        content = (tmp_path / DATABASE_FILE_NAME).read_bytes()
        damaged = content.replace(b"CREATE TABLE store", b"CREATE T\xc3BLE store")
        assert damaged != content
        (tmp_path / DATABASE_FILE_NAME).write_bytes(damaged)
        with pytest.raises(ConfigurationError, match="restore it from a backup"):
            SQLiteStorage(tmp_path)

    def test_a_directory_of_an_earlier_version_goes_on(self, tmp_path: Path) -> None:
        """It has no mark and no reserve; both are added."""
        storage = SQLiteStorage(tmp_path)
        storage.record_epoch(JOB, 7)
        storage.close()
        (tmp_path / "format").unlink()
        (tmp_path / "reserve").unlink()
        storage = SQLiteStorage(tmp_path)
        assert storage.recorded_epochs() == {JOB: 7}
        storage.close()
        assert {path.name for path in tmp_path.iterdir()} == {
            DATABASE_FILE_NAME,
            "format",
            "lock",
            "reserve",
        }

    def test_a_first_start_that_was_cut_short(self, tmp_path: Path) -> None:
        """A database without a name is no database yet."""
        (tmp_path / f"{DATABASE_FILE_NAME}.new").write_bytes(b"half of it")
        storage = SQLiteStorage(tmp_path)
        assert storage.next_incarnation(at_least=3) == 3
        storage.close()

    def test_a_newer_format_is_an_error(self, tmp_path: Path) -> None:
        """An older server does not guess at what a newer one wrote."""
        SQLiteStorage(tmp_path).close()
        database = sqlite3.connect(tmp_path / DATABASE_FILE_NAME)
        database.execute("PRAGMA user_version = 7")
        database.close()
        with pytest.raises(ConfigurationError, match="has format 7"):
            SQLiteStorage(tmp_path)
        with pytest.raises(ConfigurationError, match="has format 7"):
            SQLiteStorage(tmp_path)  # and the first try left no lock behind

    def test_what_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        """SQLite's errors do not escape, and the next transaction is a new one (L4)."""
        storage = SQLiteStorage(tmp_path)
        storage.record_epoch(JOB, 1)
        storage._database._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StorageError, match="cannot write to the data directory"):
            storage.record_epoch(JOB, 2)
        with pytest.raises(StorageError, match="cannot write"):
            storage.commit(JOB, [Put("a", b"")])
        assert storage.recorded_epochs() == {JOB: 1}
        storage._database._connection.execute("PRAGMA query_only = OFF")
        storage.record_epoch(JOB, 2)
        storage.close()

    def test_a_commit_that_fails_is_rolled_back(self, tmp_path: Path) -> None:
        """A database that is locked by somebody else for good is told, too (L4)."""
        storage = SQLiteStorage(tmp_path)
        storage._database._connection.execute("PRAGMA busy_timeout = 0")
        intruder = sqlite3.connect(tmp_path / DATABASE_FILE_NAME, isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked"):
            storage.commit(JOB, [Put("a", b"")])
        intruder.execute("ROLLBACK")
        intruder.close()
        storage.commit(JOB, [Put("a", b"")])
        storage.close()

    def test_what_cannot_be_read_is_told(self, tmp_path: Path) -> None:
        """A table that is gone is an error of the storage, not of SQLite (L4)."""
        storage = SQLiteStorage(tmp_path)
        storage._database._connection.execute("DROP TABLE store")
        with pytest.raises(StorageError, match="cannot read the data directory"):
            storage.get(JOB, "a")
        storage.close()

    def test_only_its_owner_may_lock_it(self, tmp_path: Path) -> None:
        """The lock file invites no other."""
        SQLiteStorage(tmp_path).close()
        assert os.stat(tmp_path / "lock").st_mode & 0o077 == 0  # noqa: PTH116
