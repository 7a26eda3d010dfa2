from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nameservice import StorageError
from queryablestate.node.config import NodeConfig
from queryablestate.node.directory import NodeDirectory
from queryablestate.store.store import StateStore
from queryablestate.wire.kept_rows import KeptJob, KeptRows
from queryablestate.wire.records import BatchDecided, BatchState


@pytest.fixture
def directory(tmp_path: Path) -> NodeDirectory:
    """Return the data directory of a node, not made yet."""
    return NodeDirectory(
        NodeConfig(data_dir=tmp_path / "data", node_id="n", is_durable=False)
    )


class TestFirst:
    def test_it_is_made(self, directory: NodeDirectory, tmp_path: Path) -> None:
        """A first store belongs to none yet, and is the one in use."""
        with directory.open() as store:
            assert store.node_id == "n"
            assert store.control_id is None
        assert (tmp_path / "data" / "current").read_text() == "rows-1\n"

    def test_it_is_opened_again(self, directory: NodeDirectory) -> None:
        """The same rows, by the same id."""
        with directory.open() as store:
            store_id = store.store_id
        with directory.open() as store:
            assert store.store_id == store_id

    def test_two_cannot_have_it(self, directory: NodeDirectory) -> None:
        """The second is told that another process has it."""
        with directory.open(), pytest.raises(StorageError):
            directory.open()

    def test_another_node_cannot_have_it(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """Rows are told of under the name of the node that they are of."""
        with directory.open():
            pass
        other = NodeDirectory(NodeConfig(data_dir=tmp_path / "data", node_id="m"))
        with pytest.raises(StorageError):
            other.open()


class TestControlPlanes:
    def test_each_has_its_own_rows(self, directory: NodeDirectory) -> None:
        """W7: the numbers of one control plane mean nothing in another."""
        with directory.open() as first:
            first.bind_control("a")
            first.reset_job("job", 3, [1])
            with directory.open_for("b", first) as second:
                assert second.store_id != first.store_id
                assert second.node_id == "n"
                assert second.positions() == {}
                second.bind_control("b")
        with directory.open() as store:
            assert store.control_id == "b"
            with directory.open_for("a", store) as again:
                assert again.positions() == {"job": 3}
        with directory.open() as store:
            assert store.control_id == "a"

    def test_one_that_was_never_bound_is_left_alone(
        self, directory: NodeDirectory
    ) -> None:
        """Only the store that says whose it is, is taken for that control plane."""
        with directory.open() as first:
            pass
        with directory.open_for("a", first) as store:
            assert store.control_id is None
            with directory.open_for("b", store) as other:
                assert other.store_id != store.store_id

    def test_one_that_cannot_be_chosen_is_not_kept_open(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """None could ever open it again while the node runs."""
        with directory.open() as first:
            first.bind_control("a")
            pointer = tmp_path / "data" / "current"
            pointer.unlink()
            pointer.mkdir()
            with pytest.raises(StorageError):
                directory.open_for("b", first)
            with StateStore.open(tmp_path / "data" / "rows-2") as second:
                assert second.node_id == "n"

    @pytest.mark.proves("W7")
    def test_one_that_cannot_be_opened_now_is_waited_for(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """
        W7: no empty store takes its place, which would be taken for it from then on.

        Another process has it open, or it belongs to another user by mistake.
        """
        with directory.open() as first:
            first.bind_control("a")
            applied(first, "job", 7)
            second = directory.open_for("b", first)
        second.close()
        with StateStore.open(tmp_path / "data" / "rows-1"):
            with pytest.raises(StorageError, match=r"rows-1 is in use"):
                directory.open_for("a", second)
            assert (tmp_path / "data" / "current").read_text() == "rows-2\n"
        with directory.open_for("a", second) as store:
            assert store.name == "rows-1"
            assert store.positions() == {"job": 1}

    @pytest.mark.proves("W7")
    def test_one_that_the_system_refuses_lmdb_is_waited_for(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """
        W7: also when only LMDB is told, as by a disk that is not mounted.

        It is no damage that a file cannot be read now, for want of a right, of memory,
        or of open files.
        """
        with directory.open() as first:
            first.bind_control("a")
            second = directory.open_for("b", first)
        second.close()
        data, disk = tmp_path / "data" / "rows-1" / "data.mdb", tmp_path / "disk"
        disk.mkdir()
        data.rename(disk / data.name)
        data.symlink_to(disk / data.name)
        disk.rename(tmp_path / "away")
        with pytest.raises(StorageError, match=r"rows-1: No such file"):
            directory.open_for("a", second)
        (tmp_path / "away").rename(disk)
        with directory.open_for("a", second) as store:
            assert store.name == "rows-1"

    def test_one_that_is_damaged_is_told_of(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """It keeps no node from work; it stays, for those who may mend it."""
        with directory.open() as first:
            first.bind_control("a")
            second = directory.open_for("b", first)
        second.close()
        (tmp_path / "data" / "rows-1" / "data.mdb").write_bytes(b"no rows" * 2_000)
        with capture_logs() as logs, directory.open_for("a", second) as store:
            assert store.name == "rows-3"
        assert ("store.unreadable", "rows-1") in [
            (log["event"], log["sub_directory"]) for log in logs
        ]


def applied(store: StateStore, job_id: str, batch_id: int) -> None:
    """Apply a first batch without rows."""
    entry = BatchDecided(
        sequence=1,
        query_id="q",
        writer_epoch=1,
        batch_id=batch_id,
        assignment_version=1,
        decided_at_us=10 + batch_id,
        states=(
            BatchState(
                state_number=len(job_id),
                kind="value",
                has_ttl=False,
                generation=1,
                is_replaced=False,
            ),
        ),
        stages=(),
    )
    store.apply(job_id, entry)


class TestKept:
    """W7: what is set aside is told of."""

    @pytest.mark.proves("W7")
    def test_jobs_with_rows_are_named(self, directory: NodeDirectory) -> None:
        """By batch and key groups; a job that has no rows is no loss."""
        with directory.open() as first:
            first.bind_control("a")
            applied(first, "job", 7)
            applied(first, "other", 8)
            first.hold("other", [0, 1, 5], ())
            first.reset_job("empty", 3, [])
            assert directory.kept_rows(first) == ()
            with directory.open_for("b", first) as second:
                first.close()
                (kept,) = directory.kept_rows(second)
        assert kept == KeptRows(
            control_id="a",
            store_id=first.store_id,
            jobs=(
                KeptJob(
                    job_id="job",
                    sequence=1,
                    batch_id=7,
                    decided_at_us=17,
                    key_groups=((0, 65_535),),
                ),
                KeptJob(
                    job_id="other",
                    sequence=1,
                    batch_id=8,
                    decided_at_us=18,
                    key_groups=((0, 1), (5, 5)),
                ),
            ),
        )

    def test_stores_without_rows_are_not(self, directory: NodeDirectory) -> None:
        """One of a control plane that has never written, and one of none."""
        with directory.open() as first:
            first.bind_control("a")
            with directory.open_for("b", first) as second:
                second.bind_control("b")
                first.close()
                with directory.open_for("c", second) as third:
                    second.close()
                    assert directory.kept_rows(third) == ()

    def test_the_newest_come_first_and_not_too_many(
        self, directory: NodeDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a registration holds is bounded."""
        monkeypatch.setattr(
            "queryablestate.node.directory.KEPT_JOB_COUNT_MAX", 2, raising=True
        )
        with directory.open() as store:
            store.bind_control("a")
            applied(store, "x", 1)
        for control_id in "bcd":
            with directory.open_for(control_id, store) as store:
                store.bind_control(control_id)
                applied(store, "x", 1)
        with directory.open_for("e", store) as store:
            kept = directory.kept_rows(store)
        assert [rows.control_id for rows in kept] == ["d", "c"]

    def test_one_that_cannot_be_read_is_passed_over(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """What it holds cannot be used either; the log says so."""
        with directory.open() as store:
            store.bind_control("a")
        (tmp_path / "data" / "rows-7").write_text("a file")
        with directory.open() as store, capture_logs() as logs:
            assert directory.kept_rows(store) == ()
        assert [(log["event"], log["sub_directory"]) for log in logs] == [
            ("store.unreadable", "rows-7")
        ]


class TestDamage:
    @pytest.mark.proves("B4")
    def test_one_that_is_damaged_keeps_no_other_from_forgetting(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """
        B4: what the sound ones hold of a job goes, and is not adopted again.

        That of the damaged one cannot be used either.
        """
        with directory.open() as first:
            first.bind_control("a")
            applied(first, "job", 7)
            directory.open_for("b", first).close()
        (tmp_path / "data" / "rows-0").write_text("a file")
        with directory.open() as store, capture_logs() as logs:
            store.bind_control("b")
            directory.forget_kept("job", store)
            assert directory.kept_rows(store) == ()
        assert logs[0]["sub_directory"] == "rows-0"

    @pytest.mark.proves("B4")
    def test_one_that_is_in_use_elsewhere_is_forgotten_last(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """B4: the others are not kept for it; it is told, and tried again."""
        (tmp_path / "data").mkdir()
        with StateStore.open(tmp_path / "data" / "rows-0", node_id="n"):
            with directory.open() as first:
                first.bind_control("a")
                applied(first, "job", 7)
            (tmp_path / "data" / "current").write_text("rows-2\n")
            with directory.open() as store:
                store.bind_control("b")
                with pytest.raises(StorageError, match="rows-0 is in use"):
                    directory.forget_kept("job", store)
                assert directory.kept_rows(store) == ()

    @pytest.mark.parametrize("text", ["", "../../etc", "rows-x", "rows-1\nrows-2"])
    def test_a_pointer_that_names_nothing_is_told(
        self, directory: NodeDirectory, tmp_path: Path, text: str
    ) -> None:
        """Nothing is guessed, and nothing outside is opened."""
        with directory.open():
            pass
        (tmp_path / "data" / "current").write_text(text)
        with pytest.raises(StorageError, match="does not name a sub-directory"):
            directory.open()

    def test_a_pointer_that_is_no_text_is_told(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """The error is of ours, and names the directory."""
        with directory.open():
            pass
        (tmp_path / "data" / "current").write_bytes(b"\xff\xff")
        with pytest.raises(StorageError, match="cannot use the data directory"):
            directory.open()

    def test_a_file_in_its_place_is_told(self, tmp_path: Path) -> None:
        """What cannot be a directory is refused at the start."""
        path = tmp_path / "data"
        path.write_text("a file")
        with pytest.raises(StorageError, match="cannot use the data directory"):
            NodeDirectory(NodeConfig(data_dir=path)).open()


@pytest.mark.proves("W7")
class TestForgettingMeanwhile:
    """The writing thread forgets a job in a store that is not in use."""

    @pytest.fixture
    def forgetting(self, directory: NodeDirectory) -> Iterator[StateStore]:
        """Yield the store in use; another one has rows of control plane ``a``."""
        with directory.open() as first:
            first.bind_control("a")
            applied(first, "job", 7)
            directory.open_for("b", first).close()
        with directory.open() as store:
            store.bind_control("b")
            yield store

    @staticmethod
    def meanwhile(
        directory: NodeDirectory,
        store: StateStore,
        monkeypatch: pytest.MonkeyPatch,
        action: Callable[[], None],
    ) -> None:
        """Do *action* in a thread of its own while ``other`` is being forgotten."""
        thread = threading.Thread(target=action)

        def forget_job(_: StateStore, job_id: str) -> None:
            assert job_id == "other"
            thread.start()
            thread.join(timeout=0.2)

        monkeypatch.setattr(StateStore, "forget_job", forget_job)
        directory.forget_kept("other", store)
        thread.join()

    def test_its_control_plane_finds_its_rows(
        self,
        directory: NodeDirectory,
        forgetting: StateStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """An empty store in their place would be taken for them from then on."""
        positions: list[dict[str, int]] = []

        def switch() -> None:
            with directory.open_for("a", forgetting) as store:
                positions.append(store.positions())

        self.meanwhile(directory, forgetting, monkeypatch, switch)
        assert positions == [{"job": 1}]

    def test_it_is_said_to_be_kept(
        self,
        directory: NodeDirectory,
        forgetting: StateStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Else its other jobs would be begun anew unasked."""
        kept: list[KeptRows] = []

        def look() -> None:
            kept.extend(directory.kept_rows(forgetting))

        self.meanwhile(directory, forgetting, monkeypatch, look)
        assert [job.job_id for rows in kept for job in rows.jobs] == ["job"]
