"""
`LeaderStoreThread`: the thread in which a proxy reads and writes the leader store.

The store belongs to the name service, and a write may take as long as that does.  The
proxy's own thread must not wait meanwhile: readers are asking.  So what is to be loaded
or written is handed over here, one thing at a time, and what came of it is handed back.

A proxy that begins to lead reads a record for each entry that is kept of each chain.
One after the other that took 0.8 ms each (measured, LeaderServer, busy machine), and a
new leader has to confirm in time: so they are read some at a time.

**A store that was lost.**  A LeaderServer without a data directory comes back with an
empty store, and its leader goes on leading.  What that knows must not be written there
piece by piece: the next leader could make nothing of it.  So every write counts up the
version of one path, the *witness*, and is refused where that is not as it was left;
then everything is read anew, and what is there is what there is.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from election import Put
from haservices.event_loop import EventLoop
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
    StorageError,
    SystemClock,
    VersionMismatchError,
    get_logger,
)
from queryablestate.control.job import leader_paths as paths
from queryablestate.control.job.job import Job


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import LeaderSession, LeaderStore, StoreOperation
    from queryablestate.wire.records import CountersRecord, NodeRecord


__all__ = ["LeaderStoreThread", "StoredControl", "load_control"]

_READER_COUNT: Final = 8


@final
@frozen(kw_only=True)
class StoredControl:
    """
    What the leader store holds of the control plane.

    Attributes:
        counters: The numbers that were given out, or None before the first.
        jobs: In the order in which they were made.
        nodes: Every node that was ever taken in.
    """

    counters: CountersRecord | None
    jobs: Sequence[Job]
    nodes: Sequence[NodeRecord]


def load_control(
    store: LeaderStore, *, is_wanted: Callable[[], bool] = lambda: True
) -> StoredControl:
    """
    Return everything that the control plane has left in *store*.

    Only its leader may rely on that: nobody else writes meanwhile.

    Args:
        store: The leader store of the proxies.
        is_wanted: Asked before each record is read.

    Raises:
        StorageError: If a record cannot be read, or does not fit the others.
        DidNotHappenError: If it is not wanted any more.
        UnreachableError: If the name service does not answer in time.
    """

    def read(path: str) -> bytes:
        if not is_wanted():
            raise DidNotHappenError("what the proxies have stored is not wanted now")
        found = store.get(path)
        if found is None:
            raise StorageError(
                f"{path!r} vanished from the leader store while it was read"
            )
        return found.value

    found = store.get(paths.COUNTERS)
    counters = None if found is None else paths.decode_counters(found.value)
    node_paths = store.list("nodes/")
    job_paths = store.list("jobs/")
    readers = ThreadPoolExecutor(_READER_COUNT, thread_name_prefix="control-reader")
    try:
        nodes = [paths.decode_node(value) for value in readers.map(read, node_paths)]
        jobs = _to_jobs(job_paths, list(readers.map(read, job_paths)))
    finally:
        readers.shutdown(cancel_futures=True)
    return StoredControl(counters=counters, jobs=jobs, nodes=nodes)


def _to_jobs(job_paths: Sequence[str], values: Sequence[bytes]) -> Sequence[Job]:
    """Return the jobs that these records make up, in the order of their numbers."""
    jobs: dict[int, Job] = {}
    parts: list[tuple[int, list[str], bytes]] = []
    for path, value in zip(job_paths, values, strict=True):
        _, number_text, *rest = path.split("/")
        if not (number_text.isascii() and number_text.isdecimal()):
            raise StorageError(f"{path!r} is nothing that proxies store")
        number = int(number_text)
        if rest:
            parts.append((number, rest, value))
        else:
            jobs[number] = Job(record=paths.decode_job(value))
    for number, rest, value in parts:
        job = jobs.get(number)
        if job is None:
            raise StorageError(f"the leader store of the proxies lacks jobs/{number}")
        match rest:
            case ["assignments", _]:
                job.keep_assignment(paths.decode_assignment(value))
            case ["states", _]:
                state = paths.decode_state(value)
                job.states[state.state_number] = state
            case ["entries", _]:
                entry = paths.decode_entry(value)
                job.entries[entry.sequence] = entry
            case _:
                path = "/".join(["jobs", str(number), *rest])
                raise StorageError(f"{path!r} is nothing that proxies store")
    for number, job in jobs.items():
        _check_whole(number, job)
    return [jobs[number] for number in sorted(jobs)]


def _check_whole(number: int, job: Job) -> None:
    """Return if the records of a job fit each other: they were written together."""
    try:
        job.check_invariants()
    except AssertionError as error:
        raise StorageError(
            f"the records under jobs/{number} in the leader store of the proxies do "
            "not fit each other: did somebody else write there?"
        ) from error
    if job.assignment is None:
        raise StorageError(f"the leader store lacks jobs/{number}/assignments")


@final
class LeaderStoreThread:
    """
    Loads from and writes to one leader store, in a thread of its own, in order.

    Thread-safe.  Callbacks are called in its thread: they hand over.
    """

    def __init__(self, store: LeaderStore) -> None:
        self._store = store
        self._log = get_logger(component="leader-store")
        self._load_number = 0
        self._witness_version: int | None = None  # None before anything was read
        self._is_closed = False
        self._loop = EventLoop("leader-store", SystemClock())
        self._loop.start()

    def load(
        self,
        on_loaded: Callable[[StoredControl], None],
        on_failed: Callable[[NameServiceError], None],
    ) -> None:
        """
        Read everything; one of the two is told.

        A load that was asked for before, and is not over, fails.
        """
        self._load_number += 1
        number = self._load_number

        def is_wanted() -> bool:
            return number == self._load_number and not self._is_closed

        def load() -> None:
            try:
                # First: a write that arrives meanwhile makes the next one fail.
                witness = self._store.get(paths.WITNESS)
                stored = load_control(self._store, is_wanted=is_wanted)
            except NameServiceError as error:
                on_failed(error)
            except Exception as error:  # noqa: BLE001 (ours; who waits must be told)
                self._log.error("load.failed", exc_info=error)
                on_failed(StorageError(f"the leader store cannot be read: {error!r}"))
            else:
                self._witness_version = 0 if witness is None else witness.version
                on_loaded(stored)

        self._do(load)

    def cancel_load(self) -> None:
        """Let a load that is under way end soon: nobody wants it any more."""
        self._load_number += 1

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
            on_uncertain: Nobody can say whether they are, or the store is not the one
                that was read; and why.
        """

        def write() -> None:
            version = self._witness_version
            witness = [] if version is None else [Put(paths.WITNESS, b"", version)]
            try:
                self._store.commit([*operations, *witness], session=session)
            except (MayHaveHappenedError, VersionMismatchError) as error:
                on_uncertain(error)
            except NameServiceError as error:
                on_refused(error)
            except Exception as error:  # noqa: BLE001 (ours; who waits must be told)
                self._log.error("write.failed", exc_info=error)
                on_uncertain(
                    MayHaveHappenedError(f"the leader store failed: {error!r}")
                )
            else:
                if version is not None:
                    self._witness_version = version + 1
                on_written()

        self._do(write)

    def close(self) -> None:
        """
        End after what is being done now, and wait for it.  Idempotent.

        What was asked for and has not begun is not done, and nobody is told.
        """
        self._is_closed = True
        if not self._loop.is_current:
            self._loop.stop()

    def _do(self, task: Callable[[], None]) -> None:
        """Do *task* on the thread, after what was asked for before."""
        self._loop.call(lambda: None if self._is_closed else task())
