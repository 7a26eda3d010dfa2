from __future__ import annotations

from pathlib import Path

import pytest

from nameservice import StorageError
from queryablestate.node.config import NodeConfig
from queryablestate.node.directory import NodeDirectory
from queryablestate.store.store import StateStore


@pytest.fixture
def directory(tmp_path: Path) -> NodeDirectory:
    """Return the data directory of a node, not made yet."""
    return NodeDirectory(
        NodeConfig(data_dir=tmp_path / "data", node_id="n", is_durable=False)
    )


class TestFirst:
    def test_it_is_made(self, directory: NodeDirectory, tmp_path: Path) -> None:
        """A first store belongs to nobody yet, and is the one in use."""
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
            with directory.open_for("b", "n") as second:
                assert second.store_id != first.store_id
                assert second.node_id == "n"
                assert second.positions() == {}
                second.bind_control("b")
        with directory.open() as store:
            assert store.control_id == "b"
            with directory.open_for("a", "n") as again:
                assert again.positions() == {"job": 3}
        with directory.open() as store:
            assert store.control_id == "a"

    def test_one_that_was_never_bound_is_left_alone(
        self, directory: NodeDirectory
    ) -> None:
        """Only the store that says whose it is, is taken for that control plane."""
        with directory.open(), directory.open_for("a", "n") as store:
            assert store.control_id is None
            with directory.open_for("b", "n") as other:
                assert other.store_id != store.store_id

    def test_one_that_cannot_be_chosen_is_not_kept_open(
        self, directory: NodeDirectory, tmp_path: Path
    ) -> None:
        """Nobody could ever open it again while the node runs."""
        with directory.open() as first:
            first.bind_control("a")
            pointer = tmp_path / "data" / "current"
            pointer.unlink()
            pointer.mkdir()
            with pytest.raises(StorageError):
                directory.open_for("b", "n")
            with StateStore.open(tmp_path / "data" / "rows-2") as second:
                assert second.node_id == "n"


class TestDamage:
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
