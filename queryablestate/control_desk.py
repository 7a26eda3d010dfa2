"""
`ControlDesk`: the thread in which a proxy reads and writes the leader store.

The store belongs to the name service, and a write may take as long as that does.  The
proxy's own thread must not wait meanwhile: readers are asking.  So what is to be loaded
or written is handed over here, one thing at a time, and what came of it is handed back.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, final

from nameservice import (
    MayHaveHappenedError,
    NameServiceError,
    StorageError,
    get_logger,
)
from queryablestate import paths
from queryablestate.decisions import Job


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import LeaderSession, LeaderStore, StoreOperation
    from queryablestate.records import CountersRecord, NodeRecord


__all__ = ["ControlDesk", "StoredControl", "load_control"]


@final
class StoredControl:
    """What the leader store holds of the control plane."""

    def __init__(
        self,
        counters: CountersRecord | None,
        jobs: Sequence[Job],
        nodes: Sequence[NodeRecord],
    ) -> None:
        self.counters = counters
        self.jobs = jobs
        self.nodes = nodes


def load_control(store: LeaderStore) -> StoredControl:
    """
    Return everything that the control plane has left in *store*.

    Only its leader may rely on that: nobody else writes meanwhile.

    Raises:
        StorageError: If a record cannot be read.
        UnreachableError: If the name service does not answer in time.
    """
    found = store.get(paths.COUNTERS)
    counters = None if found is None else paths.decode_counters(found.value)
    nodes = [paths.decode_node(_value(store, path)) for path in store.list("nodes/")]
    jobs: dict[int, Job] = {}
    parts: list[tuple[int, list[str], str]] = []
    for path in store.list("jobs/"):
        _, number_text, *rest = path.split("/")
        number = int(number_text)
        if rest:
            parts.append((number, rest, path))
        else:
            jobs[number] = Job(record=paths.decode_job(_value(store, path)))
    for number, rest, path in parts:
        job = jobs.get(number)
        if job is None:
            raise StorageError(f"the leader store of the proxies lacks jobs/{number}")
        value = _value(store, path)
        match rest:
            case ["assignment"]:
                job.assignment = paths.decode_assignment(value)
            case ["states", _]:
                state = paths.decode_state(value)
                job.states[state.state_number] = state
            case ["entries", _]:
                entry = paths.decode_entry(value)
                job.entries[entry.sequence] = entry
            case _:
                raise StorageError(f"{path!r} is nothing that proxies store")
    for job in jobs.values():
        job.check_invariants()
    return StoredControl(counters, [jobs[number] for number in sorted(jobs)], nodes)


def _value(store: LeaderStore, path: str) -> bytes:
    found = store.get(path)
    if found is None:
        raise StorageError(f"{path!r} vanished from the leader store while it was read")
    return found.value


@final
class ControlDesk:
    """
    Loads from and writes to one leader store, in a thread of its own, in order.

    Thread-safe.  Callbacks are called in the desk's thread: they hand over.
    """

    def __init__(self, store: LeaderStore) -> None:
        self._store = store
        self._log = get_logger(component="control-desk")
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, name="control-desk", daemon=True
        )
        self._thread.start()

    def load(
        self,
        on_loaded: Callable[[StoredControl], None],
        on_failed: Callable[[NameServiceError], None],
    ) -> None:
        """Read everything; one of the two is told."""

        def load() -> None:
            try:
                stored = load_control(self._store)
            except NameServiceError as error:
                on_failed(error)
            else:
                on_loaded(stored)

        self._tasks.put(load)

    def write(
        self,
        operations: Sequence[StoreOperation],
        session: LeaderSession,
        on_written: Callable[[], None],
        on_refused: Callable[[NameServiceError], None],
        on_uncertain: Callable[[NameServiceError], None],
    ) -> None:
        """
        Commit *operations*; one of the three is told.

        Args:
            operations: All of them, or none.
            session: The leadership under which they are written.
            on_written: They are.
            on_refused: Nothing was written, for sure, and why not.
            on_uncertain: Nobody can say whether they are, and why not.
        """

        def write() -> None:
            try:
                self._store.commit(operations, session=session)
            except MayHaveHappenedError as error:
                on_uncertain(error)
            except NameServiceError as error:
                on_refused(error)
            else:
                on_written()

        self._tasks.put(write)

    def close(self) -> None:
        """End, after what was asked for before; wait for it.  Idempotent."""
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            try:
                task()
            except Exception as error:  # noqa: BLE001 (a mistake of ours; the next task)
                self._log.error("task.failed", exc_info=error)
