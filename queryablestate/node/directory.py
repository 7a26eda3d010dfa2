"""
The data directory of a node: one `StateStore` for each control plane it has served.

A name service that has lost its store begins a new control plane, whose numbers mean
something else.  The rows of the old one are not used, and not thrown away either: they
stay in their own sub-directory, and are used again if that control plane comes back.
The node says what they are when it registers (`NodeDirectory.kept_rows`).

A store can be open once.  So the two threads of a node that look into stores which are
not in use wait for each other: one that is just being looked into is not damaged, nor
another node's.

::

    DATA_DIR/current    the name of the sub-directory in use
    DATA_DIR/rows-1     the first store
    DATA_DIR/rows-2     …
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from nameservice import StorageError, get_logger
from nameservice.durable_files import make_directory, replace_text
from queryablestate.store.environment import is_damage
from queryablestate.store.store import StateStore
from queryablestate.wire.kept_rows import KEPT_JOB_COUNT_MAX


if TYPE_CHECKING:
    from collections.abc import Iterator

    from queryablestate.node.config import NodeConfig
    from queryablestate.wire.kept_rows import KeptRows


__all__ = ["NodeDirectory"]

_CURRENT: Final = "current"
_ROWS: Final = re.compile(r"rows-([0-9]{1,9})")


@final
class NodeDirectory:
    """
    Opens the stores of one node.

    Args:
        config: Where they are, and how they are opened.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._path = Path(config.data_dir)
        self._lock = threading.Lock()  # is held by who has one open that is not in use
        self._log = get_logger(component="state-node", data_dir=os.fspath(self._path))

    def open(self) -> StateStore:
        """
        Open the store that was in use last, or a first one.

        Raises:
            StorageError: If another process has it, it belongs to a node of another
                name, or it cannot be used.
        """
        with self._translated():
            make_directory(self._path)
            pointer = self._path / _CURRENT
            name = pointer.read_text("utf-8").strip() if pointer.exists() else "rows-1"
            if not _ROWS.fullmatch(name):
                raise StorageError(
                    f"{pointer} does not name a sub-directory: write rows-1 into it, "
                    "or the one with the highest number"
                )
        store = self._open(name, self._config.node_id)
        self._select(name)
        return store

    def open_for(self, control_id: str, opened: StateStore) -> StateStore:
        """
        Open the store that holds rows of *control_id*, or a new one for it.

        Args:
            control_id: The control plane.
            opened: The one that is in use.

        Raises:
            StorageError: If that cannot be had, or a store that is there cannot be
                looked into now: it may be the one.
        """
        with self._lock:
            return self._open_for(control_id, opened)

    def _open_for(self, control_id: str, opened: StateStore) -> StateStore:
        with self._translated():
            numbers = self._numbers()
        for number in reversed(numbers):
            name = f"rows-{number}"
            try:
                store = self._open(name, opened.node_id)
            except StorageError as error:
                if name == opened.name:
                    continue
                if not is_damage(error):
                    # An empty store in its place would be taken for it from then on.
                    raise
                self._log.warning(
                    "store.unreadable", sub_directory=name, error=str(error)
                )
                continue
            if store.control_id == control_id:
                break
            store.close()
        else:
            name = f"rows-{numbers[-1] + 1 if numbers else 1}"
            store = self._open(name, opened.node_id)
        try:
            self._select(name)
        except BaseException:
            store.close()  # it will be asked for again
            raise
        self._log.warning("store.switched", control_id=control_id, sub_directory=name)
        return store

    def kept_rows(self, opened: StateStore) -> tuple[KeptRows, ...]:
        """
        Return what the stores that are not in use hold, the newest first.

        One that cannot be read is passed over, and told of in the log: what it holds
        cannot be used either.

        Args:
            opened: The one that is in use.
        """
        kept: list[KeptRows] = []
        job_count = 0
        try:
            with self._translated():
                numbers = self._numbers()
                name_in_use = (self._path / _CURRENT).read_text("utf-8").strip()
        except StorageError as error:
            self._log.warning("store.unreadable", sub_directory="", error=str(error))
            return ()
        for number in reversed(numbers):
            name = f"rows-{number}"
            if name == name_in_use:
                continue
            try:
                with self._lock, self._open(name, opened.node_id) as store:
                    rows = store.kept_rows()
            except StorageError as error:
                self._log.warning(
                    "store.unreadable", sub_directory=name, error=str(error)
                )
                continue
            if rows is None or rows.control_id == opened.control_id:
                continue
            room = KEPT_JOB_COUNT_MAX - job_count
            rows = replace(rows, jobs=rows.jobs[:room])
            job_count += len(rows.jobs)
            if rows.jobs:
                kept.append(rows)
        return tuple(kept)

    def forget_kept(self, job_id: str, opened: StateStore) -> None:
        """
        Remove what the stores that are not in use hold of a job.

        Raises:
            StorageError: If one of them cannot be written to; the others are.
        """
        with self._translated():
            names = [f"rows-{number}" for number in self._numbers()]
            name_in_use = (self._path / _CURRENT).read_text("utf-8").strip()
        failure: StorageError | None = None
        for name in names:
            if name == name_in_use:
                continue
            try:
                with self._lock, self._open(name, opened.node_id) as store:
                    store.forget_job(job_id)
            except StorageError as error:
                # What is damaged is never used, as in `kept_rows`; the others are.
                self._log.warning(
                    "store.unreadable", sub_directory=name, error=str(error)
                )
                if not is_damage(error):
                    failure = error
        if failure is not None:
            raise failure

    def _numbers(self) -> list[int]:
        """Return the numbers of the stores that there are, sorted."""
        return sorted(
            int(match[1])
            for path in self._path.iterdir()
            if (match := _ROWS.fullmatch(path.name))
        )

    def _open(self, name: str, node_id: str | None) -> StateStore:
        config = self._config
        return StateStore.open(
            self._path / name,
            node_id=node_id,
            size_bytes_max=config.size_bytes_max,
            is_durable=config.is_durable,
        )

    def _select(self, name: str) -> None:
        """Have *name* opened first from now on."""
        pointer = self._path / _CURRENT
        with self._translated():
            if pointer.exists() and pointer.read_text("utf-8").strip() == name:
                return
            replace_text(pointer, f"{name}\n")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(
                f"cannot use the data directory {self._path}: {error}"
            ) from error
