"""What a role keeps is there after a loss of power, under its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

from leaderserver.server.backup import back_up, restore_backup
from leaderserver.server.sqlite_storage import SQLiteStorage
from lodestar.state_export import whole_file
from nameservice.new_file import write_new_file
from queryablestate.connect.snapshot_claims import claimed
from queryablestate.node.config import NodeConfig
from queryablestate.node.directory import NodeDirectory
from queryablestate.store.store import StateStore
from tests.durability import names_at_risk


def _open_storage(directory: Path) -> None:
    SQLiteStorage(directory / "made" / "for" / "it").close()


def _restore(directory: Path) -> None:
    back_up(directory / "server", directory / "backup")
    restore_backup(directory / "backup", directory / "made" / "for" / "it")


def _open_node(directory: Path) -> None:
    NodeDirectory(NodeConfig(data_dir=directory / "made" / "for" / "it")).open().close()


def _open_store(directory: Path) -> None:
    StateStore.open(
        directory / "made" / "for" / "it",
        node_id="node-1",
        size_bytes_max=1 << 20,
        is_durable=True,
    ).close()


def _switch_store(directory: Path) -> None:
    node = NodeDirectory(NodeConfig(data_dir=directory / "node"))
    with node.open() as opened:
        opened.bind_control("one")
        node.open_for("another", opened).close()


def _claim_place(directory: Path) -> None:
    place = directory / "made" / "for" / "it"
    with claimed(pa, LocalFileSystem(), str(place), "snapshot"):
        (place / "claim").unlink()  # it need not outlive who made it


def _write_key(directory: Path) -> None:
    write_new_file(directory / "key", "secret\n")


def _export(directory: Path) -> None:
    with whole_file(str(directory / "export")) as file:
        file.write(b"rows")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with the data directory of a server."""
    SQLiteStorage(tmp_path / "server").close()
    return tmp_path


@pytest.mark.parametrize(
    "action",
    [
        _claim_place,
        _export,
        _open_node,
        _open_storage,
        _open_store,
        _restore,
        _switch_store,
        _write_key,
    ],
)
def test_whatever_is_kept(action: Callable[[Path], None], directory: Path) -> None:
    """Each role's names are durable once it has what it asked for."""
    with names_at_risk() as names:
        action(directory)
        assert not names
