from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from nameservice import ConfigurationError, StorageError
from queryablestate.store.environment import StoreEnvironment
from queryablestate.store.layout import (
    IDENTITY_KEY,
    META_DATABASE,
    SLOT_COUNT_MAX,
    STAGED_DATABASE,
    Identity,
    encode_record,
)
from queryablestate.store.store import StateStore
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    NOW_US,
    chunk,
    decided,
    key,
    state,
    write,
)
from tests.queryablestate.whole_reads import WholeReader


def opened(path: Path, **changes: object) -> StateStore:
    """Return a store there that does not wait for the disk."""
    settings: dict[str, object] = {"node_id": NODE, "is_durable": False}
    return StateStore.open(path, **{**settings, **changes})  # type: ignore[arg-type]  # a dict of any setting


OPEN = """
import sys
from queryablestate.store.store import StateStore
StateStore.open(sys.argv[1]).close()
"""


class TestOpen:
    def test_the_directory_is_made(self, tmp_path: Path) -> None:
        """With the directories above it, readable by its owner only."""
        path = tmp_path / "deep" / "data"
        with opened(path) as store:
            assert store.node_id == NODE
            data = path / "data.mdb"
            assert data.stat().st_mode & 0o077 == 0

    @pytest.mark.proves("W7")
    def test_ids_are_drawn(self, tmp_path: Path) -> None:
        """Two directories never have one store id; nodes may have no name yet (W7)."""
        with opened(tmp_path / "a", node_id=None) as one:
            with opened(tmp_path / "b", node_id=None) as other:
                assert one.store_id != other.store_id
                assert one.node_id != other.node_id
            node_id, store_id = one.node_id, one.store_id
        with opened(tmp_path / "a", node_id=node_id) as one:
            assert (one.node_id, one.store_id) == (node_id, store_id)

    @pytest.mark.proves("W7")
    def test_the_directory_of_another_node_is_refused(self, tmp_path: Path) -> None:
        """A copied command line must not make two nodes share rows (W7)."""
        opened(tmp_path).close()
        with pytest.raises(StorageError, match=r"belongs to node 'node-1'.*'node-2'"):
            opened(tmp_path, node_id="node-2")
        opened(tmp_path).close()

    def test_one_process_has_it(self, tmp_path: Path) -> None:
        """A second one is told so, and may have it when the first has closed."""
        with (
            opened(tmp_path),
            pytest.raises(StorageError, match="in use by another node"),
        ):
            opened(tmp_path)
        opened(tmp_path).close()

    def test_a_process_that_has_it_is_seen_from_another(self, tmp_path: Path) -> None:
        """The lock is between processes, and goes with the one that has it."""
        script = (
            "import sys; from queryablestate.store.store import StateStore;"
            "StateStore.open(sys.argv[1], node_id='node-1'); print('open', flush=True);"
            "sys.stdin.read()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            with pytest.raises(StorageError, match="in use"):
                opened(tmp_path)
        finally:
            child.kill()
            child.communicate(timeout=60)
        opened(tmp_path).close()

    def test_a_size_that_is_too_small_is_refused(self, tmp_path: Path) -> None:
        """It would not even hold the marks."""
        with pytest.raises(ConfigurationError, match="1,048,576"):
            opened(tmp_path, size_bytes_max=2**20 - 1)
        opened(tmp_path, size_bytes_max=2**20 + 12_345).close()

    def test_another_format_is_refused(self, tmp_path: Path) -> None:
        """By number, so that a person knows which program to take."""
        opened(tmp_path).close()
        identity = Identity(format=77, node_id=NODE, store_id="s", control_id=None)
        with lmdb.open(str(tmp_path), max_dbs=2) as environment:
            meta = environment.open_db(META_DATABASE)
            with environment.begin(db=meta, write=True) as transaction:
                transaction.put(IDENTITY_KEY, encode_record(identity))
        with pytest.raises(StorageError, match="has format 77"):
            opened(tmp_path)

    def test_a_damaged_directory_is_told(self, tmp_path: Path) -> None:
        """LMDB's errors do not escape, and the lock is given back (L4)."""
        (tmp_path / "data.mdb").write_bytes(b"no database" * 1_000)
        for _ in range(2):
            with pytest.raises(StorageError, match="cannot open") as caught:
                opened(tmp_path)
            assert isinstance(caught.value.__cause__, lmdb.Error)

    @pytest.mark.proves("W7")
    @pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
    def test_a_file_that_is_cut_off_is_told(self, tmp_path: Path, kept: float) -> None:
        """
        W7: by a copy onto a full disk, say; it is neither served nor taken for empty.

        LMDB opens it, and the process ends with a SIGBUS once a page is missing.
        """
        with opened(tmp_path, is_durable=True) as store:
            for _ in range(10):
                write(store, [(key(n), b"v" * 500) for n in range(200)])
        data = tmp_path / "data.mdb"
        os.truncate(data, int(data.stat().st_size * kept) // 4096 * 4096)
        done = subprocess.run(
            [sys.executable, "-c", OPEN, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done
        assert "data.mdb is cut off" in done.stderr

    def test_a_new_file_in_the_place_of_a_longer_one(self, tmp_path: Path) -> None:
        """Rows that were removed by hand begin anew, and what follows is opened."""
        with opened(tmp_path, is_durable=True) as store:
            for _ in range(10):
                write(store, [(key(n), b"v" * 500) for n in range(200)])
        for name in ("data.mdb", "lock.mdb"):
            (tmp_path / name).unlink()
        # It takes no note of how long its file is; nor does one on a full disk.
        for _ in range(2):
            with opened(tmp_path, is_durable=False) as store:
                assert store.positions() == {}

    def test_a_whole_copy_that_is_shorter_can_be_opened(self, tmp_path: Path) -> None:
        """An earlier one, say, without a note; the error says what to remove."""
        with opened(tmp_path, is_durable=True) as store:
            write(store, [(key(0), b"v")])
        earlier = (tmp_path / "data.mdb").read_bytes()
        with opened(tmp_path, is_durable=True) as store:
            for _ in range(10):
                write(store, [(key(n), b"v" * 500) for n in range(200)])
        (tmp_path / "data.mdb").write_bytes(earlier)
        with pytest.raises(StorageError, match=rf"remove {tmp_path / 'size'}"):
            opened(tmp_path)
        (tmp_path / "size").unlink()
        with opened(tmp_path, is_durable=True):
            pass

    @pytest.mark.proves("W7")
    def test_one_that_cannot_be_used_is_not_kept_open(self, tmp_path: Path) -> None:
        """
        W7: the process that failed to open it opens it later, on a full disk too.

        A node that looked into a store which was set aside kept it locked from then on,
        and took it for one in use when its control plane came back.
        """
        with opened(tmp_path):
            pass
        with lmdb.open(str(tmp_path), max_dbs=2) as environment:
            staged = environment.open_db(STAGED_DATABASE)
            with environment.begin(db=staged, write=True) as transaction:
                transaction.put(b"batch", b"no record")
        with pytest.raises(StorageError, match="cannot be read"):
            opened(tmp_path)
        with pytest.raises(StorageError, match="cannot be read"):
            opened(tmp_path)

    def test_a_path_that_cannot_be_a_directory_is_told(self, tmp_path: Path) -> None:
        """The system's errors do not escape either."""
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match="cannot open"):
            opened(tmp_path / "file")

    @pytest.mark.proves("W2")
    @pytest.mark.parametrize("is_durable", [False, True])
    def test_durable_means_that_lmdb_waits_for_the_disk(
        self, tmp_path: Path, is_durable: bool
    ) -> None:
        """Data and meta pages alike, at every commit (W2)."""
        environment = StoreEnvironment(
            tmp_path, node_id=None, size_bytes_max=2**20, is_durable=is_durable
        )
        flags = environment.environment.flags()
        environment.close()
        assert (flags["sync"], flags["metasync"]) == (is_durable, is_durable)
        assert not flags["map_async"]
        assert not flags["writemap"]

    def test_a_forked_child_does_not_keep_the_lock(self, tmp_path: Path) -> None:
        """It may live longer than the node, and has the descriptor too."""
        store = opened(tmp_path)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover (another process)
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
        try:
            store.close()
            opened(tmp_path).close()
        finally:
            os.close(writing)
            os.waitpid(child, 0)


class TestLimits:
    def test_a_full_store_is_told_and_reads_on(self, tmp_path: Path) -> None:
        """The batch is applied not at all, until there is more room (rule 4)."""
        size_bytes_max = 2**20
        rows = [(key(0, f"{n:04}"), bytes(900)) for n in range(520)]
        entry = decided(2, {"a": 1}, batch_id=2, states=[state(), state(2)])
        with opened(tmp_path, size_bytes_max=size_bytes_max) as store:
            write(store, [(key(0), b"before")])
            view = store.state(1)
            reader = WholeReader(store)
            store.stage([chunk(rows, batch_id=2)], NOW_US)
            for _ in range(3):
                with pytest.raises(StorageError, match="greater size_bytes_max"):
                    store.apply(JOB, entry)
                assert store.positions() == {JOB: 1}
                assert store.state(1) == view
                assert store.state(2) is None
                assert reader.count(1, [0], NOW_US) == (view, 1)
                assert reader.get_values(1, [key(0)], NOW_US).values == [b"before"]
            with pytest.raises(StorageError, match="greater size_bytes_max"):
                store.stage([chunk(rows, batch_id=3), chunk(rows, batch_id=4)], NOW_US)
            # What makes room still goes through.
            assert store.drop_stages_older_than(NOW_US) == 0
            write(store, [(key(1), b"small")], job_id="other")
        with opened(tmp_path, size_bytes_max=4 * size_bytes_max) as store:
            store.apply(JOB, entry)
            assert WholeReader(store).count(1, [0, 1], NOW_US)[1] == 522

    @pytest.mark.parametrize(
        ("code", "free_bytes", "is_full"),
        [
            (errno.ENOSPC, 1 << 30, True),
            (errno.EDQUOT, 1 << 30, True),
            (errno.EIO, 4_096, True),
            (errno.EIO, 1 << 30, False),
            (errno.EROFS, 4_096, False),
        ],
    )
    def test_a_full_disk_is_called_that(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
        free_bytes: int,
        is_full: bool,
    ) -> None:
        """LMDB calls a write that was cut short an error of the disk."""
        with opened(tmp_path) as store:
            error = lmdb.Error(f"mdb_txn_commit: {os.strerror(code)}")
            disk = list(os.statvfs(tmp_path))
            disk[1], disk[4] = 1, free_bytes  # f_frsize, f_bavail
            monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(disk))
            failure = store._environment.storage_error("write to", error)
        text = str(failure)
        assert failure.reason == ("disk_full" if is_full else "storage")
        assert ("is full: make room" in text) == is_full
        assert os.strerror(code) in text
        assert str(tmp_path) in text

    def test_the_number_of_states_has_a_limit(self, tmp_path: Path) -> None:
        """It is said, nothing is applied, and dropping a state makes room (rule 4)."""
        with opened(tmp_path) as store:
            states = [state(number) for number in range(1, SLOT_COUNT_MAX + 2)]
            for refused in (states, [*states, state(5_000)]):
                with pytest.raises(StorageError, match="at most 1,022 states"):
                    store.apply(JOB, decided(1, {}, states=refused))
            assert store.positions() == {}
            assert store._environment.slots == []
            store.apply(JOB, decided(1, {}, states=states[:-1]))
            write(store, [(key(0), b"last")], batch_state=states[-2])
            with pytest.raises(StorageError, match="drop states"):
                store.apply(JOB, decided(3, {}, batch_id=3, states=states[-1:]))
            with pytest.raises(StorageError, match="drop states"):
                store.reset_job("other", 1, [9_999])
            write(store, [(key(0), b"1")], batch_state=states[0])
            reader = WholeReader(store)
            number = states[-2].state_number
            assert reader.get_values(number, [key(0)], NOW_US).values == [b"last"]
            store.reset_job(JOB, 50, [1, 2])
            write(store, [(key(0), b"3")], batch_state=states[-1], job_id="other")
        with opened(tmp_path) as store:
            assert len(store._environment.slots) == SLOT_COUNT_MAX
            read = WholeReader(store).get_values(SLOT_COUNT_MAX + 1, [key(0)], NOW_US)
            assert read.values == [b"3"]
