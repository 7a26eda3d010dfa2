"""
Snapshots and restores in a run: the shipped code, and what must hold of them.

The threads of operators and nodes run one at a time, at random moments of virtual time.
Files are real; what is synced is written down, and a file that is named by a manifest
before it is synced breaks rule S5.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, TypeVar, final

from attrs import evolve
from msgspec import Struct

from nameservice import NameServiceError, durable_files
from queryablestate.connect.snapshot_files import SnapshotDirectory
from queryablestate.node import snapshots as node_snapshots
from queryablestate.operations import snapshots as operations
from queryablestate.schema.key_groups import group_of
from queryablestate.wire.records import SnapshotRestored
from queryablestate.wire.snapshot_manifest import MANIFEST_NAME
from tests.simulation.timeline import MS
from tests.state_simulation.calls import Call
from tests.state_simulation.content import live_at
from tests.state_simulation.scenario import COMMIT_TIMEOUT_NS, MAX_PARALLELISM
from tests.state_simulation.virtual_threads import VirtualThread


if TYPE_CHECKING:
    from collections.abc import Callable

    from queryablestate.client.calls import Build
    from queryablestate.store.threads import StoreWriter
    from queryablestate.wire.snapshot_manifest import SnapshotManifest
    from tests.state_simulation.disk import Disk
    from tests.state_simulation.model import JobModel, Version
    from tests.state_simulation.world import World


__all__ = ["SnapshotOperators"]

_ALL_GROUPS: Final = tuple(range(MAX_PARALLELISM))
_INDEX_SIZE_BYTES: Final = 8
_INTERVAL_NS_MAX: Final = 1_600 * MS
_PAGE_SIZE_BYTES: Final = 60
_SESSION: Final = b"session"
_STEP_NS_MAX: Final = 40 * MS
_WRITTEN: Final = 0.6
_TIMEOUT_SECONDS: Final = COMMIT_TIMEOUT_NS / 1_000_000_000

T = TypeVar("T", bound=Struct)


class InterruptedCallError(BaseException):
    """An operator has pressed Ctrl-C."""


@final
class _Task:
    """A thread of a node that writes or loads, in place of the shipped one."""

    def __init__(
        self, operators: SnapshotOperators, name: str, loaded_job_id: str | None
    ) -> None:
        self._operators = operators
        self.name = name
        self.loaded_job_id = loaded_job_id
        self._thread: VirtualThread | None = None
        self._is_cancelled = False
        self._is_woken = False

    def start(self, action: Callable[[_Task], None]) -> None:
        """Have *action* done, from some time on."""
        self._thread = VirtualThread(partial(action, self))
        self._wake()

    def cancel(self) -> None:
        """Let it end soon."""
        self._is_cancelled = True
        self._wake()

    def join(self) -> None:
        """Have it end, once it is cancelled."""
        while self._thread is not None and not self._thread.is_over:
            self._thread.resume()

    def check(self) -> None:
        """Let time pass; raise if it is to end."""
        assert self._thread is not None
        self._wake()
        self._thread.pause()
        self._check()

    def put(self, writer: StoreWriter, action: Callable[[], object]) -> None:
        """Have *writer* do *action*, unless the task is to end."""
        self._check()
        writer.run(action)

    def run(self, writer: StoreWriter, action: Callable[[], object]) -> None:
        """Have *writer* do *action*, and wait until it has."""
        assert self._thread is not None
        is_done = False
        failure: Exception | None = None

        def do() -> None:
            nonlocal is_done, failure
            try:
                action()
            except Exception as error:  # noqa: BLE001 (raised where it was asked for)
                failure = error
            is_done = True
            self._operators.look()
            self._wake()

        self.put(writer, do)
        while not (is_done or self._is_cancelled):
            self._thread.pause()
        if not is_done:
            raise node_snapshots._CancelledError
        if failure is not None:
            raise failure

    def _check(self) -> None:
        if self._is_cancelled:
            raise node_snapshots._CancelledError

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._operators.later(self._resume)

    def _resume(self) -> None:
        self._is_woken = False
        if self._thread is not None:
            self._thread.resume()


@final
class _Operator:
    """
    Somebody at a terminal, whose call of the shipped code takes virtual time.

    Args:
        world: The run.
        uri: Which snapshot it is about.
        action: Calls the shipped code, with what asks the proxy.

    Attributes:
        uri: As above.
        snapshot_id: Of what has come of it; empty if nothing has.
    """

    def __init__(
        self, world: World, uri: str, action: Callable[[_Operator], str]
    ) -> None:
        self._world = world
        self.uri = uri
        self.snapshot_id = ""
        self._is_interrupted = False
        self._thread = VirtualThread(partial(self._act, action))

    def begin(self) -> None:
        """Call it."""
        self._thread.resume()

    def interrupt(self) -> None:
        """Press Ctrl-C, if it is not over."""
        self._is_interrupted = True
        self._thread.resume()

    @property
    def is_over(self) -> bool:
        """Return whether it has come to an end."""
        return self._thread.is_over

    def call(self, expected: type[T], build: Build) -> T:
        """Ask the proxy, as `StateOperations` does; on the operator's thread."""
        answers: list[Struct | NameServiceError] = []

        def done(answer: Struct | NameServiceError) -> None:
            answers.append(answer)
            self._thread.resume()

        Call(
            self._world,
            self._world.network.new_link(),
            lambda request_id, _: build(request_id, _SESSION),  # type: ignore[arg-type,return-value]  # what operators ask
            done,
            timeout_ns=COMMIT_TIMEOUT_NS,
            is_alive=lambda: not self.is_over,
        )
        while not answers:
            self._thread.pause()
            if self._is_interrupted:
                raise InterruptedCallError
        (answer,) = answers
        if isinstance(answer, NameServiceError):
            raise answer
        assert isinstance(answer, expected)
        return answer

    def _act(self, action: Callable[[_Operator], str]) -> None:
        world = self._world
        try:
            self.snapshot_id = action(self)
        except NameServiceError as error:
            world.counts["snapshots and restores that failed"] += 1
            world.trace("operator", "fails with", self.uri, error)
        except InterruptedCallError:
            world.counts["fault: operator interrupted"] += 1


@final
class SnapshotOperators:
    """
    All operators who take snapshots, and restore them, in one run.

    Args:
        world: The run.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/snapshots of")
        self._takers: list[_Operator] = []
        self._restorers: list[_Operator] = []
        self._origins: dict[str, str] = {}
        self._is_written = False
        self._synced: dict[int, tuple[int, int] | frozenset[str]] = {}

    def install(self, resources: ExitStack) -> None:
        """Have the shipped code run in virtual time, until *resources* are released."""
        clock = SimpleNamespace(time_ns=lambda: self._world.wall_clock_us * 1_000)
        ids = SimpleNamespace(token_hex=lambda size: self._rng.randbytes(size).hex())
        for module, name, value in (
            (node_snapshots, "_Task", partial(_Task, self)),
            (node_snapshots, "_PAGE_SIZE_BYTES", _PAGE_SIZE_BYTES),
            (node_snapshots, "time", clock),
            (operations, "secrets", ids),
            (durable_files, "_sync", self._sync),
        ):
            resources.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        resources.callback(self._end)

    def begin(self) -> None:
        """Take snapshots, now and then, as long as there are faults."""
        delay_ns = self._rng.randrange(1, _INTERVAL_NS_MAX)
        self._world.timeline.after(delay_ns, self._take)

    def later(self, action: Callable[[], None]) -> None:
        """Have something done in a moment."""
        self._world.timeline.after(1 + self._rng.randrange(_STEP_NS_MAX), action)

    def origin_of(self, job_id: str) -> str:
        """Return the job that a job was restored from, or that job."""
        return self._origins.get(job_id, job_id)

    def _take(self) -> None:
        if self._world.network.is_calm:
            return
        uri = str(self._world.directory / f"snapshot-{len(self._takers)}")
        job_id = self._rng.choice(self._world.scenario.queries).job_id
        take = partial(self._snapshot, job_id)
        self._begin(self._takers, _Operator(self._world, uri, take))
        if self._rng.random() < 0.3:  # two at once, into one place
            other = _Operator(self._world, uri, take)
            delay_ns = self._rng.randrange(1, 200 * MS)
            begin = partial(self._begin, self._takers, other)
            self._world.timeline.after(delay_ns, begin)
        self.begin()

    def _begin(self, operators: list[_Operator], operator: _Operator) -> None:
        operators.append(operator)
        operator.begin()
        if self._rng.random() < 0.15:
            delay_ns = self._rng.randrange(1, 400 * MS)
            self._world.timeline.after(delay_ns, operator.interrupt)

    def _snapshot(self, job_id: str, operator: _Operator) -> str:
        """Take a snapshot; on the operator's thread."""
        uri = operator.uri
        taken = operations.take_snapshot(
            operator.call, job_id, uri, timeout_seconds=_TIMEOUT_SECONDS
        )
        self._world.counts["snapshots taken"] += 1
        self._taken(job_id, uri)
        if self._rng.random() < 0.6:
            restored_id = f"{job_id}~{len(self._origins)}"
            self._origins[restored_id] = job_id
            manifest, _ = SnapshotDirectory(uri).read_manifest()
            origin = self._world.checker.job(job_id)
            versions = _versions_at(origin, manifest.sequence)
            self._world.checker.job(restored_id).restored = {
                origin.states[number].plan.state_name: version
                for number, version in versions.items()
            }
            restore = partial(self._restore, restored_id)
            restorer = _Operator(self._world, uri, restore)
            self.later(partial(self._begin, self._restorers, restorer))
        return taken.snapshot_id

    def _restore(self, job_id: str, operator: _Operator) -> str:
        """Restore a snapshot as *job_id*; on the operator's thread."""
        restored = operations.restore_snapshot(
            operator.call, job_id, operator.uri, timeout_seconds=_TIMEOUT_SECONDS
        )
        self._world.counts["jobs restored"] += 1
        self._world.checker.require(
            "S6 what is reported as restored is there",
            job_id in self._world.moves.present,
            job_id,
        )
        if not self._is_written and self._rng.random() < _WRITTEN:
            # One is enough: each costs every node as much as the job that it was.
            self._is_written = True
            self.later(partial(self._write, job_id))
        return restored.snapshot.snapshot_id

    def _write(self, job_id: str) -> None:
        """Have a query go on with a job that was restored."""
        plan = self._rng.choice(
            [
                query
                for query in self._world.scenario.queries
                if query.job_id == self.origin_of(job_id)
            ]
        )
        label = f"{plan.label}-{job_id}-"
        on_new_query = self._rng.choice(("continue", "replace"))
        self._world.counts["restored jobs written"] += 1
        self._world.write(evolve(plan, label=label, job_id=job_id), on_new_query)

    def _end(self) -> None:
        """Let nobody wait any longer: the run is over."""
        for operator in (*self._takers, *self._restorers):
            if not operator.is_over:
                operator.interrupt()

    # -- what must hold ----------------------------------------------------------------

    def check(self) -> None:
        """Look at all places, when all is over."""
        for uri in sorted({taker.uri for taker in self._takers}):
            takers = [taker for taker in self._takers if taker.uri == uri]
            taken = [taker.snapshot_id for taker in takers if taker.snapshot_id]
            self._world.checker.require(
                "S5 two into one place: one is refused", len(taken) <= 1, uri, taken
            )
            if not all(taker.is_over for taker in takers):
                continue
            directory = SnapshotDirectory(uri)
            found = (
                [directory.read_manifest()[0].snapshot_id]
                if directory.has_manifest()
                else []
            )
            self._world.checker.require(
                "S5 a snapshot is there, or it was not taken", found == taken, uri
            )
        for job_id in self._origins:
            chain = self._world.checker.job(job_id).chain
            self._world.checker.require(
                "S6 a job is restored once, or not at all",
                all(isinstance(entry, SnapshotRestored) for entry in chain[:1])
                and not any(isinstance(entry, SnapshotRestored) for entry in chain[1:]),
                chain,
            )

    def look(self) -> None:
        """See to it that nobody sees what is loaded, before all of it is there."""
        for job_id in self._origins:
            chain = self._world.checker.job(job_id).chain
            for disk in self._world.checker.disks.values():
                is_applied = bool(chain) and disk.position(job_id) >= chain[0].sequence
                self._world.checker.require(
                    "S6 what is loaded is not visible before the job is there",
                    is_applied or not disk.has_states(job_id),
                    disk,
                    job_id,
                )

    def applied(self, disk: Disk, job_id: str, entry: SnapshotRestored) -> None:
        """Look at a node that has just been told to show what it has loaded."""
        job, now_us = self._world.checker.job(job_id), self._world.wall_clock_us
        key_groups = disk.complete(job_id)
        # The chain may be further than this node.  A state without rows in the snapshot
        # has none before its first batch, which may be decided, but is not applied.
        shown = _versions_at(job, entry.sequence)
        for number, state in job.states.items():
            version = shown.get(number)
            contents = {} if version is None else version.contents
            expected = {
                key: values
                for key, values in live_at(contents, state.plan, now_us).items()
                if group_of(key) in key_groups
            }
            found = disk.contents(number, state.plan, key_groups, now_us)
            self._world.checker.require(
                "S6 a restore becomes visible at once",
                (found or {}) == expected and (found is None or version is not None),
                disk,
                state.plan.state_name,
                found,
                "instead of",
                expected,
            )

    def _taken(self, job_id: str, uri: str) -> None:
        """Look at a snapshot at the moment that an operator is told of it."""
        directory = SnapshotDirectory(uri)
        manifest, _ = directory.read_manifest()
        self._check_durable(Path(uri), manifest)
        job = self._world.checker.job(job_id)
        expected = _versions_at(job, manifest.sequence)
        progress = {
            one.state.state_number: one.progress.batch_id
            for one in manifest.states
            if one.progress.batch_id is not None
        }
        self._world.checker.require(
            "S5 a snapshot is of one moment",
            progress
            == {number: version.batch_id for number, version in expected.items()},
            manifest,
            expected,
        )
        for number, version in expected.items():
            self._check_rows(directory, manifest, job, number, version)

    def _check_rows(
        self,
        directory: SnapshotDirectory,
        manifest: SnapshotManifest,
        job: JobModel,
        number: int,
        version: Version,
    ) -> None:
        plan = job.states[number].plan
        found: dict[bytes, tuple[bytes, ...]] = {}
        for file in manifest.files:
            if file.state_number != number:
                continue
            for keys, values in directory.read_rows(file, _ALL_GROUPS):
                for key, value in zip(keys, values, strict=True):
                    bare = key[:-_INDEX_SIZE_BYTES] if plan.kind == "list" else key
                    found[bare] = (*found.get(bare, ()), value)
        now_us = self._world.wall_clock_us
        # What has expired may have been removed.
        self._world.checker.require(
            "S5 a snapshot has all rows of all nodes, as of its moment",
            live_at(found, plan, now_us) == live_at(version.contents, plan, now_us),
            plan.state_name,
            version.sequence,
            found,
            "instead of",
            version.contents,
        )

    def _check_durable(self, root: Path, manifest: SnapshotManifest) -> None:
        for name in (*(file.name for file in manifest.files), MANIFEST_NAME):
            path = root / name
            self._world.checker.require(
                "S5 a snapshot is durable when it is reported",
                self._is_synced(path)
                and all(
                    self._is_synced(parent, child.name)
                    for child, parent in zip(
                        (path, *path.parents), path.parents, strict=False
                    )
                    if parent == root.parent or root in (parent, *parent.parents)
                ),
                path,
            )

    def _is_synced(self, path: Path, child: str = "") -> bool:
        """Return whether a file is synced as it is, or a directory with *child*."""
        status = path.stat()
        synced = self._synced.get(status.st_ino)
        if isinstance(synced, frozenset):
            return child in synced
        return synced == (status.st_size, status.st_mtime_ns)

    def _sync(self, path: Path, flags: int) -> None:
        """Write down what is synced, in place of it."""
        status = path.stat()
        self._synced[status.st_ino] = (
            frozenset(one.name for one in path.iterdir())
            if flags & os.O_DIRECTORY
            else (status.st_size, status.st_mtime_ns)
        )


def _versions_at(job: JobModel, sequence: int) -> dict[int, Version]:
    """Return what each state holds once *sequence* is applied, by number."""
    return {
        number: [one for one in state.versions if one.sequence <= sequence][-1]
        for number, state in job.states.items()
        if state.has_rows_at(sequence)
    }
