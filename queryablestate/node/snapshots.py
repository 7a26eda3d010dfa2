"""
`NodeSnapshots`: writes rows of this node to a snapshot, and loads rows of one.

Theory of operation.  What is to be written is noted, until the entry that marks the
snapshot is applied.  Right then, on the writer's thread, one read transaction is
opened: it sees what that entry left, however long it is used.  A thread of its own
writes from it to the file system, while entries go on being applied; LMDB keeps the old
pages as long as that takes.

What is loaded is read by a thread of its own, too, and put into the store by the one
that writes, a page at a time, between whatever else that one has to do.

Every command is answered, unless the node ends before: the proxy sees that it has.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never, final

from attrs import frozen

from nameservice import NameServiceError, StorageError, get_logger
from nameservice.clock import NS_PER_MS, NS_PER_US
from queryablestate.connect.snapshot_files import SnapshotDirectory
from queryablestate.store.restores import LoadMark
from queryablestate.wire.snapshot_manifest import files_with
from queryablestate.wire.snapshot_messages import (
    TIMEOUT_MS_MAX,
    DropLoaded,
    LoadSnapshot,
    SnapshotLoaded,
    SnapshotWritten,
    WriteSnapshot,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nameservice import Clock
    from queryablestate.store.copy_reader import CopyReader
    from queryablestate.store.store import StateStore
    from queryablestate.store.threads import StoreWriter
    from queryablestate.wire.copy_messages import CopiedRows
    from queryablestate.wire.records import SnapshotMarked
    from queryablestate.wire.snapshot_messages import SnapshotCommand, SnapshotReport


__all__ = ["NodeSnapshots"]

_TASK_COUNT_MAX: Final = 4
_AWAITED_COUNT_MAX: Final = 16
_PAGE_SIZE_BYTES: Final = 1 << 20


@final
@frozen(kw_only=True)
class _Command:
    """A command, and whom to tell what came of it."""

    command: SnapshotCommand
    registration_id: str
    on_report: Callable[[SnapshotReport], None]


class _CancelledError(Exception):
    """A task is to end: the node ends, or it is not wanted any more."""


@final
class _Task:
    """
    A thread that writes or loads.

    Args:
        name: What it is called: the snapshot, or the restore.
        loaded_job_id: The job that it loads rows for, or None.
    """

    def __init__(self, name: str, loaded_job_id: str | None) -> None:
        self.name = name
        self.loaded_job_id = loaded_job_id
        self._changed = threading.Condition()
        self._is_cancelled = False
        self._thread: threading.Thread | None = None

    def start(self, action: Callable[[_Task], None]) -> None:
        """Have *action* done, which sees to its own errors."""
        self._thread = threading.Thread(
            target=action, args=(self,), name="state-node-snapshot", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Have it end soon."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until it has ended."""
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise `_CancelledError` if it is to end."""
        if self._is_cancelled:
            raise _CancelledError

    def put(self, writer: StoreWriter, action: Callable[[], object]) -> None:
        """
        Have *writer* do *action*, unless the task is to end.

        Once `cancel` has returned, nothing of this task comes to the writer any more.
        """
        with self._changed:
            self.check()
            writer.run(action)

    def run(self, writer: StoreWriter, action: Callable[[], object]) -> None:
        """
        Have *writer* do *action*, and wait until it has.

        Raises:
            NameServiceError: What *action* raised.
            _CancelledError: If the task is to end; *action* may be done yet.
        """
        is_done = False
        failure: Exception | None = None

        def do() -> None:
            nonlocal is_done, failure
            try:
                action()
            except Exception as error:  # noqa: BLE001 (raised where it was asked for)
                failure = error
            with self._changed:
                is_done = True
                self._changed.notify_all()

        self.put(writer, do)
        with self._changed:
            self._changed.wait_for(lambda: is_done or self._is_cancelled)
        if not is_done:
            raise _CancelledError
        if failure is not None:
            raise failure


@final
class NodeSnapshots:
    """
    What one node does for snapshots.

    `marked` is for the thread that writes to the store, all else for the loop.

    Args:
        post: Has something called in the loop.
        clock: What the age of what is loaded is measured by.
    """

    def __init__(
        self, post: Callable[[Callable[[], None]], None], *, clock: Clock
    ) -> None:
        self._post = post
        self._clock = clock
        self._log = get_logger(component="state-node")
        self._lock = threading.Lock()  # guards what follows
        self._awaited: dict[tuple[str, int], _Command] = {}
        self._tasks: list[_Task] = []
        self._ended_count = 0
        # When this process has begun to load what, by the name of the restore.
        self._loaded_ns: dict[str, int] = {}

    def handle(
        self,
        command: SnapshotCommand,
        *,
        registration_id: str,
        store: StateStore,
        writer: StoreWriter,
        on_report: Callable[[SnapshotReport], None],
    ) -> None:
        """Do what the proxy leader wants; *on_report* is told in the loop."""
        given = _Command(
            command=command, registration_id=registration_id, on_report=on_report
        )
        match command:
            case WriteSnapshot():
                with self._lock:
                    self._awaited[command.job_id, command.sequence] = given
                    while len(self._awaited) > _AWAITED_COUNT_MAX:
                        del self._awaited[next(iter(self._awaited))]
            case LoadSnapshot():
                # What another attempt of the same job has yet to begin, it would
                # begin with nothing: it would drop what this one has loaded.
                self._cancel(lambda task: task.loaded_job_id == command.job_id)
                with self._lock:
                    self._loaded_ns[command.restore_id] = self._clock.now_ns()
                load = partial(self._load, given, command, store, writer)
                if not self._start(command.restore_id, load, command.job_id):
                    self._report(given, _loaded(given, command, 0, _BUSY))
            case DropLoaded(restore_id=restore_id):
                self._cancel(lambda task: task.name == restore_id)
                with self._lock:
                    # What cannot be dropped now is when old rows are looked for.
                    self._loaded_ns.pop(restore_id, None)
                writer.run(partial(self._drop, store, restore_id))
            case _:
                assert_never(command)

    def marked(self, store: StateStore, job_id: str, entry: SnapshotMarked) -> None:
        """Begin to write, if that was asked for: *entry* has just been applied."""
        with self._lock:
            given = self._awaited.pop((job_id, entry.sequence), None)
            ended_count = self._ended_count
        if given is None:
            return
        command = given.command
        assert isinstance(command, WriteSnapshot)
        try:
            reader = store.copy_reader(job_id, command.key_groups)
        except NameServiceError as error:
            self._report(given, _written(given, command, str(error)))
            return
        failure = _unfit(reader, command)
        write = partial(self._write, given, command, reader)
        if failure is None and self._start(
            command.snapshot_id, write, ended_count=ended_count
        ):
            return
        reader.close()
        self._report(given, _written(given, command, failure or _BUSY))

    def drop_old(self, store: StateStore, spared: Sequence[str]) -> None:
        """
        Drop what was loaded, and will not be shown; on the writer's thread.

        The node must have applied all that is decided, but for *spared* jobs, whose
        rows stay.  A proxy leader makes a job of what this process has loaded, or of
        nothing; and it may wait for other nodes for as long as a restore may take,
        whatever the retention of staged rows is, and wherever the wall clock goes.
        """
        since_ns = self._clock.now_ns() - TIMEOUT_MS_MAX * NS_PER_MS
        with self._lock:
            self._loaded_ns = {
                restore_id: began_ns
                for restore_id, began_ns in self._loaded_ns.items()
                if began_ns >= since_ns
            }
            wanted_ids = frozenset(self._loaded_ns)
        store.restores.drop(
            lambda mark: mark.job_id not in spared and mark.restore_id not in wanted_ids
        )

    def forget(self) -> None:
        """End everything, and wait for it: the store is about to be closed."""
        with self._lock:
            self._awaited.clear()
            self._ended_count += 1
            tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            task.join()

    # -- tasks ---------------------------------------------------------------------

    def _start(
        self,
        name: str,
        action: Callable[[_Task], None],
        loaded_job_id: str | None = None,
        *,
        ended_count: int | None = None,
    ) -> bool:
        """
        Start a task, and return whether that may be.

        There may be no room for it, or no thread; or everything was ended meanwhile,
        *ended_count* being how often it had been before: its store is about to be
        closed.
        """
        task = _Task(name, loaded_job_id)
        with self._lock:
            if len(self._tasks) >= _TASK_COUNT_MAX:
                return False
            if ended_count is not None and ended_count != self._ended_count:
                return False
            self._tasks.append(task)
            try:
                # Under the lock: `forget` waits for what has begun.
                task.start(partial(self._do, action))
            except RuntimeError:
                self._tasks.remove(task)
                return False
        return True

    def _do(self, action: Callable[[_Task], None], task: _Task) -> None:
        try:
            action(task)
        except _CancelledError:
            self._log.info("snapshot.cancelled", task=task.name)
        finally:
            with self._lock:
                self._tasks.remove(task)

    def _cancel(self, is_unwanted: Callable[[_Task], bool]) -> None:
        """Have these tasks end; they touch the store no more."""
        with self._lock:
            tasks = [task for task in self._tasks if is_unwanted(task)]
        for task in tasks:
            task.cancel()

    def _report(self, given: _Command, report: SnapshotReport) -> None:
        if report.failure is not None:
            self._log.warning("snapshot.failed", reason=report.failure)
        self._post(partial(given.on_report, report))

    # -- writing -------------------------------------------------------------------

    def _write(
        self, given: _Command, command: WriteSnapshot, reader: CopyReader, task: _Task
    ) -> None:
        """Write all rows of *reader*, which ends with it."""

        def pages() -> Iterator[CopiedRows]:
            for page in reader.pages(_PAGE_SIZE_BYTES):
                task.check()
                yield page

        with reader:
            try:
                directory = SnapshotDirectory(command.uri)
                files = directory.write_rows(command.directory, pages())
            except NameServiceError as error:
                report = _written(given, command, str(error))
            except _CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 (told to the proxy, not lost)
                self._log.error("loop.failed", where="snapshot", exc_info=error)
                report = _written(given, command, f"{type(error).__name__}: {error}")
            else:
                report = SnapshotWritten(
                    registration_id=given.registration_id,
                    snapshot_id=command.snapshot_id,
                    sequence=command.sequence,
                    files=files,
                )
                self._log.info(
                    "snapshot.written",
                    job_id=command.job_id,
                    sequence=command.sequence,
                    row_count=sum(file.row_count for file in files),
                    size_bytes=sum(file.size_bytes for file in files),
                )
        self._report(given, report)

    # -- loading -------------------------------------------------------------------

    def _load(
        self,
        given: _Command,
        command: LoadSnapshot,
        store: StateStore,
        writer: StoreWriter,
        task: _Task,
    ) -> None:
        try:
            row_count = self._load_rows(command, store, writer, task)
        except _CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 (told to the proxy, not lost)
            failure = str(error)
            if not isinstance(error, NameServiceError):
                self._log.error("loop.failed", where="snapshot", exc_info=error)
                failure = f"{type(error).__name__}: {error}"
            task.put(writer, partial(self._drop, store, command.restore_id))
            self._report(given, _loaded(given, command, 0, failure))
        else:
            self._log.info(
                "snapshot.loaded", job_id=command.job_id, row_count=row_count
            )
            self._report(given, _loaded(given, command, row_count, None))

    def _load_rows(
        self,
        command: LoadSnapshot,
        store: StateStore,
        writer: StoreWriter,
        task: _Task,
    ) -> int:
        """Put the rows of the key groups of *command* into the store; count them."""
        directory = SnapshotDirectory(command.uri)
        manifest, checksum = directory.read_manifest()
        if checksum != command.manifest_checksum:
            raise StorageError(
                f"this node sees another snapshot in {command.uri} than the one that "
                "is to be restored: the directory must be one that all nodes share"
            )
        area, restore_id = store.restores, command.restore_id
        mark = LoadMark(
            restore_id=restore_id,
            job_id=command.job_id,
            began_at_us=time.time_ns() // NS_PER_US,
        )
        task.run(writer, partial(area.begin, mark, command.states))
        numbers = {each.snapshot_number: each.state_number for each in command.states}
        row_count = 0
        for file in files_with(manifest, command.key_groups):
            number = numbers.get(file.state_number)
            if number is None:
                raise StorageError(f"{file.name} has rows of a state without batches")
            for keys, values in directory.read_rows(file, command.key_groups):
                task.run(writer, partial(area.put, restore_id, number, keys, values))
                row_count += len(keys)
        task.run(writer, partial(area.finish, restore_id))
        return row_count

    def _drop(self, store: StateStore, restore_id: str) -> None:
        """Drop what is loaded; on the writer's thread."""
        try:
            store.restores.drop(lambda mark: mark.restore_id == restore_id)
        except NameServiceError as error:
            self._log.warning("store.write_failed", error=str(error))


_BUSY: Final = "the node is busy with other snapshots, or ends"


def _unfit(reader: CopyReader, command: WriteSnapshot) -> str | None:
    """Return why a snapshot cannot be made of what *reader* sees, or None."""
    if reader.sequence != command.sequence:
        return f"the store is at entry {reader.sequence}, not at {command.sequence}"
    for state in reader.states.states:
        if state.lost:
            return (
                f"rows of state {state.state_number} are lost here: a batch must "
                "replace them first, or the state be dropped"
            )
    return None


def _written(given: _Command, command: WriteSnapshot, failure: str) -> SnapshotWritten:
    return SnapshotWritten(
        registration_id=given.registration_id,
        snapshot_id=command.snapshot_id,
        sequence=command.sequence,
        files=(),
        failure=failure,
    )


def _loaded(
    given: _Command, command: LoadSnapshot, row_count: int, failure: str | None
) -> SnapshotLoaded:
    return SnapshotLoaded(
        registration_id=given.registration_id,
        restore_id=command.restore_id,
        row_count=row_count,
        failure=failure,
    )
