"""
Snapshots that are being taken; pure.

Theory of operation.  A snapshot is an entry of the job's chain (`SnapshotMarked`): it
has its place among the batches, and every node comes by it.  Just before the entry goes
to the nodes, each primary is told to write its key groups as they are right after it.
So one moment is the same for all of them, and no batch waits for anybody: nodes write
while the chain goes on.

What the leader knows of a snapshot under way is in its memory alone.  If it changes, a
node goes, or time is up, the snapshot has failed, and the caller asks again:
files of an attempt that failed are in a directory of their own, which no manifest
names.  It is also given up when its callers have left and none is back within half a
minute: there is room for a few at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import define, field
from msgspec.structs import replace

from nameservice import DidNotHappenError, StorageError
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from queryablestate.control.assignment.assignment import key_groups_of
from queryablestate.control.chains import extend_chain, prunable_entries
from queryablestate.control.changes import Change, Write
from queryablestate.control.effects import AnswerWriter, RefuseWriter, SendToNode
from queryablestate.control.events import LinkId
from queryablestate.control.job.job_changes import JobChange
from queryablestate.control.waiters import Waiter
from queryablestate.errors import (
    DeadlineExceededError,
    StateUnavailableError,
    UnknownJobError,
)
from queryablestate.wire.records import SnapshotMarked
from queryablestate.wire.snapshot_manifest import (
    MANIFEST_FORMAT,
    SnapshotFile,
    SnapshotManifest,
    SnapshotState,
)
from queryablestate.wire.snapshot_messages import SnapshotTaken, WriteSnapshot


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nameservice import NameServiceError
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.job.job import Job
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.snapshot_messages import SnapshotWritten, TakeSnapshot


__all__ = ["Snapshots"]

_RUNNING_COUNT_MAX: Final = 4
_NOWHERE: Final = LinkId(-1)
_LEFT_NS: Final = 30 * NS_PER_SECOND
"""How long a caller may be away whose connection was cut: it asks again at once."""


@final
@define(kw_only=True)
class _Snapshot:
    """
    One that is being taken.

    Attributes:
        request: As it was asked for first.
        asked_at_ns: When.
        deadline_ns: Until when it must be done.
        wall_clock_us: Likewise, for people.
        waiters: Who is to be told; those who have left may come again.
        left_at_ns: When the last of them left; None while there is one.
        awaited: The connections of the nodes that have yet to write their part.
        manifest: Without files; None until the entry is written.
        files: What has been written.
        is_done: Whether all is, and no caller was there to be told.
    """

    request: TakeSnapshot
    asked_at_ns: int
    deadline_ns: int
    wall_clock_us: int
    waiters: list[Waiter] = field(factory=list)
    left_at_ns: int | None = None
    awaited: dict[str, LinkId] = field(factory=dict)
    manifest: SnapshotManifest | None = None
    files: list[SnapshotFile] = field(factory=list)

    @property
    def is_done(self) -> bool:
        return self.manifest is not None and not self.awaited

    @property
    def due_ns(self) -> int:
        """Return when it is given up."""
        if self.left_at_ns is None:
            return self.deadline_ns
        return min(self.deadline_ns, self.left_at_ns + _LEFT_NS)


@final
class Snapshots:
    """
    The snapshots that are being taken.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._running: dict[str, _Snapshot] = {}

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        return min((each.due_ns for each in self._running.values()), default=None)

    # -- what happens --------------------------------------------------------------

    def ask(
        self, link: LinkId, request: TakeSnapshot, wall_clock_us: int, *, now_ns: int
    ) -> list[Outcome]:
        """
        Begin a snapshot, or wait for one that is being taken.

        Raises:
            StateUnavailableError: If too many are being taken.
        """
        waiter = Waiter(link=link, request_id=request.request_id)
        running = self._running.get(request.snapshot_id)
        if running is not None:
            running.waiters.append(waiter)
            running.left_at_ns = None
            return [*self._finish_if_done(running)]
        if len(self._running) >= _RUNNING_COUNT_MAX:
            detail = f"{_RUNNING_COUNT_MAX} snapshots are being taken already"
            raise _unavailable(request.job_id, (), detail)
        snapshot = _Snapshot(
            request=request,
            asked_at_ns=now_ns,
            deadline_ns=now_ns + request.timeout_ms * NS_PER_MS,
            wall_clock_us=wall_clock_us,
            waiters=[waiter],
        )
        self._running[request.snapshot_id] = snapshot
        return [
            Change(
                prepare=partial(self._mark, snapshot),
                refuse=partial(self._fail, snapshot),
            )
        ]

    def written(
        self, node: PresentNode, message: SnapshotWritten
    ) -> list[ControlEffect]:
        """Take note of what a node has written."""
        snapshot = self._running.get(message.snapshot_id)
        if (
            snapshot is None
            or snapshot.manifest is None
            or snapshot.manifest.sequence != message.sequence
            or node.node_id not in snapshot.awaited
        ):
            return []  # of an attempt that has failed
        if message.failure is not None:
            return self._fail(snapshot, _storage_error(node, message.failure))
        del snapshot.awaited[node.node_id]
        snapshot.files += message.files
        return self._finish_if_done(snapshot)

    def links_closed(self, links: Collection[LinkId], *, now_ns: int) -> None:
        """Forget who waited over these connections."""
        for snapshot in self._running.values():
            snapshot.waiters = [
                one for one in snapshot.waiters if one.link not in links
            ]
            if not snapshot.waiters and snapshot.left_at_ns is None:
                snapshot.left_at_ns = now_ns

    def expire(self, *, now_ns: int) -> list[ControlEffect]:
        """Give up what takes too long, and what a node has left."""
        effects: list[ControlEffect] = []
        for snapshot in list(self._running.values()):
            gone = [
                node_id
                for node_id, link in sorted(snapshot.awaited.items())
                if not self._control.nodes.is_at(node_id, link)
            ]
            if gone:
                detail = f"{', '.join(gone)} went away while it wrote its part"
                job = self._control.job(snapshot.request.job_id)
                error = _unavailable(
                    snapshot.request.job_id, _groups(job, gone), detail
                )
                effects += self._fail(snapshot, error)
            elif now_ns >= snapshot.due_ns:
                effects += self._fail(snapshot, _too_late(snapshot, now_ns))
        return effects

    def job_removed(self, job_id: str) -> list[ControlEffect]:
        """Refuse what waits for a job that is gone."""
        effects: list[ControlEffect] = []
        for snapshot in list(self._running.values()):
            if snapshot.request.job_id == job_id:
                effects += self._fail(snapshot, UnknownJobError(job_id))
        return effects

    def refuse_all(self, error: NameServiceError) -> list[ControlEffect]:
        """Refuse everybody who waits."""
        effects: list[ControlEffect] = []
        for snapshot in list(self._running.values()):
            effects += self._fail(snapshot, error)
        return effects

    # -- steps ---------------------------------------------------------------------

    def _mark(self, snapshot: _Snapshot, now_ns: int) -> Write:
        """
        Write the entry, if everybody who has rows is there.

        Raises:
            UnknownJobError: If the job has no state.
            DidNotHappenError: If a node is only late: the caller tries again.
            StateUnavailableError: If a node is away.
            DeadlineExceededError: If its turn has come too late.
        """
        if now_ns >= snapshot.deadline_ns:
            raise _too_late(snapshot, now_ns)
        request = snapshot.request
        job = self._control.job(request.job_id)
        if not job.states:
            raise UnknownJobError(request.job_id)
        away = [
            node_id
            for node_id in _primaries(job)
            if self._control.nodes.present(node_id) is None
        ]
        if away and not self._control.takes_for_away(now_ns):
            raise DidNotHappenError(
                "this proxy leads since a moment ago, and nodes are still coming"
            )
        if away:
            detail = f"{', '.join(away)} is away, and must write its part"
            raise _unavailable(request.job_id, _groups(job, away), detail)
        change = _marked(job, request.snapshot_id, prunable_entries(self._control, job))
        return Write(
            operations=job.operations(change),
            adopt=partial(self._marked, snapshot, change),
        )

    def _marked(
        self, snapshot: _Snapshot, change: JobChange, now_ns: int
    ) -> list[ControlEffect]:
        """Tell the nodes what to write, and then when."""
        del now_ns
        request = snapshot.request
        job = self._control.job(request.job_id)
        sequence = change.record.sequence
        effects: list[ControlEffect] = []
        for index, node_id in enumerate(_primaries(job)):
            node = self._control.nodes.present(node_id)
            if node is None:  # it has gone meanwhile: `expire` finds out
                snapshot.awaited[node_id] = _NOWHERE
                continue
            snapshot.awaited[node_id] = node.link
            message = WriteSnapshot(
                leader_epoch=self._control.leader_epoch,
                snapshot_id=request.snapshot_id,
                job_id=request.job_id,
                sequence=sequence,
                uri=request.uri,
                directory=f"data-{request.snapshot_id}/at-{sequence}/node-{index}",
                key_groups=_groups(job, [node_id]),
            )
            effects.append(SendToNode(link=node.link, message=message))
        snapshot.manifest = SnapshotManifest(
            format=MANIFEST_FORMAT,
            snapshot_id=request.snapshot_id,
            job_id=request.job_id,
            max_parallelism=job.record.max_parallelism,
            sequence=sequence,
            taken_at_us=snapshot.wall_clock_us,
            states=tuple(
                SnapshotState(state=state, progress=job.progress_of(number))
                for number, state in sorted(job.states.items())
            ),
            files=(),
        )
        return effects + extend_chain(self._control, job, change)

    def _finish_if_done(self, snapshot: _Snapshot) -> list[ControlEffect]:
        """Answer the callers that wait, if all is written."""
        if not snapshot.is_done or not snapshot.waiters:
            return []
        assert snapshot.manifest is not None
        del self._running[snapshot.request.snapshot_id]
        files = sorted(
            snapshot.files,
            key=lambda file: (file.state_number, file.key_group_first, file.name),
        )
        manifest = replace(snapshot.manifest, files=tuple(files))
        return [
            AnswerWriter(
                link=waiter.link,
                message=SnapshotTaken(request_id=waiter.request_id, manifest=manifest),
            )
            for waiter in snapshot.waiters
        ]

    def _fail(
        self, snapshot: _Snapshot, error: NameServiceError
    ) -> list[ControlEffect]:
        self._running.pop(snapshot.request.snapshot_id, None)
        return [
            RefuseWriter(link=waiter.link, request_id=waiter.request_id, error=error)
            for waiter in snapshot.waiters
        ]


def _marked(job: Job, snapshot_id: str, pruned: Sequence[int]) -> JobChange:
    """Return what puts a mark into the chain of a job."""
    record = job.record
    sequence = record.sequence + 1
    return JobChange(
        record=replace(
            record,
            sequence=sequence,
            sequence_first=record.sequence_first + len(pruned),
        ),
        entry=SnapshotMarked(sequence=sequence, snapshot_id=snapshot_id),
        pruned=tuple(pruned),
    )


def _primaries(job: Job) -> Sequence[str]:
    """Return the nodes of a job that are asked for key groups of it, in order."""
    assignment = job.assignment
    assert assignment is not None
    return [
        node_id for node_id in assignment.node_ids if key_groups_of(assignment, node_id)
    ]


def _groups(job: Job, node_ids: Sequence[str]) -> tuple[int, ...]:
    """Return the key groups that these nodes are asked for, sorted."""
    assert job.assignment is not None
    groups: list[int] = []
    for node_id in node_ids:
        groups += key_groups_of(job.assignment, node_id)
    return tuple(sorted(groups))


def _unavailable(
    job_id: str, key_groups: Sequence[int], detail: str
) -> StateUnavailableError:
    return StateUnavailableError(job_id, None, key_groups, 1.0, detail)


def _too_late(snapshot: _Snapshot, now_ns: int) -> DeadlineExceededError:
    waited_seconds = (now_ns - snapshot.asked_at_ns) / NS_PER_SECOND
    detail = "the snapshot waited for its turn"
    if snapshot.manifest is not None:
        detail = f"{', '.join(sorted(snapshot.awaited))} has yet to write its part"
    return DeadlineExceededError(waited_seconds, detail)


def _storage_error(node: PresentNode, failure: str) -> StorageError:
    return StorageError(f"node {node.node_id} could not write its part: {failure}")
