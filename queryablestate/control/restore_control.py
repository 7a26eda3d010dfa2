"""
Jobs that are being restored from a snapshot; pure.

Theory of operation.  A restore goes through three phases::

    RESERVING   numbers for the states wait to be written: they name rows on nodes, and
                must never name others
    LOADING     the nodes that are there load their key groups, out of sight
    CREATING    the job waits to be written, or is being written: with its states,
                progress and assignment, and with one entry (`SnapshotRestored`)

All of the job is one write.  Before it there is no job, and after it there is all of
it: the entry makes each node show what it has loaded, in one transaction, as a decision
does with staged rows.  What was loaded for a job that came to nothing is dropped.
What the job is made of is told in `queryablestate.control.restored_job`.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import define, field
from msgspec.structs import replace

from election import Put
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    MayHaveHappenedError,
    StorageError,
)
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from queryablestate.control.announcements import tell_assignment
from queryablestate.control.assignment.assignment import first_assignment, held_by
from queryablestate.control.changes import Change, Write
from queryablestate.control.effects import AnswerWriter, RefuseWriter, SendToNode
from queryablestate.control.job.leader_paths import COUNTERS, encode_record
from queryablestate.control.new_jobs import new_job
from queryablestate.control.restored_job import restored_job
from queryablestate.control.restored_states import check_states, loaded_states
from queryablestate.control.room import check_room_for_key_groups, check_schemas
from queryablestate.control.unused_jobs import check_room_for_job, removed
from queryablestate.control.waiters import Waiter
from queryablestate.errors import DeadlineExceededError, StateUnavailableError
from queryablestate.wire.records import SnapshotRestored
from queryablestate.wire.snapshot_messages import (
    DropLoaded,
    JobRestored,
    LoadSnapshot,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from election import StoreOperation
    from nameservice import NameServiceError
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.control.unused_jobs import Removal
    from queryablestate.wire.records import AssignmentRecord, CountersRecord
    from queryablestate.wire.snapshot_messages import RestoreJob, SnapshotLoaded


__all__ = ["Restores"]

_RUNNING_COUNT_MAX: Final = 4
_SEPARATOR: Final = "-"


class _Phase(Enum):
    """How far a restore is; see the module docstring."""

    RESERVING = "reserving"
    LOADING = "loading"
    CREATING = "creating"


@final
@define(kw_only=True)
class _Restore:
    """
    One that is under way.

    Attributes:
        request: As it was asked for first.
        asked_at_ns: When.
        deadline_ns: Until when all must be loaded.
        waiters: Who is to be told; those who have left may come again.
        phase: How far it is.
        load_id: What nodes call what they load: another one for each attempt, for what
            is said of an earlier one may come late.
        numbers: The state numbers from now on, by those of the snapshot.
        links: The connections of the nodes that have a part in it.
        assignment: Who loads what; its version and its sequence are none yet.
        awaited: Those that have yet to load their key groups.
    """

    request: RestoreJob
    asked_at_ns: int
    deadline_ns: int
    waiters: list[Waiter] = field(factory=list)
    phase: _Phase = _Phase.RESERVING
    load_id: str = ""
    numbers: dict[int, int] = field(factory=dict)
    links: dict[str, LinkId] = field(factory=dict)
    assignment: AssignmentRecord | None = None
    awaited: set[str] = field(factory=set)


@final
class Restores:
    """
    The restores that are under way.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._running: dict[str, _Restore] = {}

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        return min(
            (
                each.deadline_ns
                for each in self._running.values()
                if each.phase is _Phase.LOADING
            ),
            default=None,
        )

    # -- what happens --------------------------------------------------------------

    def ask(self, link: LinkId, request: RestoreJob, *, now_ns: int) -> list[Outcome]:
        """
        Begin a restore, or wait for one that is under way, or tell that it is done.

        Raises:
            ConfigurationError: If the job has states.
            StateUnavailableError: If it cannot be begun now.
            DidNotHappenError: If nodes are only late: the caller tries again.
        """
        waiter = Waiter(link=link, request_id=request.request_id)
        running = self._running.get(request.restore_id)
        if running is not None:
            running.waiters.append(waiter)
            return []
        done = self._done_before(request)
        if done is not None:
            return [AnswerWriter(link=link, message=done)]
        self._check_may_begin(request, now_ns)
        restore = _Restore(
            request=request,
            asked_at_ns=now_ns,
            deadline_ns=now_ns + request.timeout_ms * NS_PER_MS,
            waiters=[waiter],
        )
        self._running[request.restore_id] = restore
        return [
            Change(
                prepare=partial(self._reserve, restore),
                refuse=partial(self._fail, restore),
            )
        ]

    def loaded(self, node: PresentNode, message: SnapshotLoaded) -> list[Outcome]:
        """Take note of what a node has loaded."""
        restore = self._running.get(message.restore_id.partition(_SEPARATOR)[0])
        if (
            restore is None
            or restore.load_id != message.restore_id
            or restore.phase is not _Phase.LOADING
            or node.node_id not in restore.awaited
        ):
            return []  # of one that has failed
        if message.failure is not None:
            error = StorageError(
                f"node {node.node_id} could not load its part: {message.failure}"
            )
            return [*self._fail(restore, error)]
        restore.awaited.remove(node.node_id)
        if restore.awaited:
            return []
        restore.phase = _Phase.CREATING
        return [
            Change(
                prepare=partial(self._create, restore),
                refuse=partial(self._fail, restore),
            )
        ]

    def links_closed(self, links: Collection[LinkId]) -> None:
        """Forget who waited over these connections."""
        for restore in self._running.values():
            restore.waiters = [one for one in restore.waiters if one.link not in links]

    def expire(self, *, now_ns: int) -> list[ControlEffect]:
        """Give up what takes too long, and what a node has left."""
        effects: list[ControlEffect] = []
        for restore in list(self._running.values()):
            if restore.phase is not _Phase.LOADING:
                continue
            gone = self._gone(restore)
            if gone:
                effects += self._fail(restore, _left(restore, gone))
            elif now_ns >= restore.deadline_ns:
                waited_seconds = (now_ns - restore.asked_at_ns) / NS_PER_SECOND
                detail = f"{', '.join(sorted(restore.awaited))} has yet to load"
                error = DeadlineExceededError(waited_seconds, detail)
                effects += self._fail(restore, error)
        return effects

    def refuse_all(self, error: NameServiceError) -> list[ControlEffect]:
        """Refuse everybody who waits."""
        effects: list[ControlEffect] = []
        for restore in list(self._running.values()):
            effects += self._fail(restore, error)
        return effects

    # -- reserving -----------------------------------------------------------------

    def _done_before(self, request: RestoreJob) -> JobRestored | None:
        """Return the answer to a request that was carried out, and not answered."""
        job = self._control.jobs.get(request.job_id)
        if job is None or job.assignment is None:
            return None
        for entry in job.entries.values():
            if (
                isinstance(entry, SnapshotRestored)
                and entry.restore_id.partition(_SEPARATOR)[0] == request.restore_id
            ):
                return _answer(request.request_id, job.assignment, entry.sequence)
        return None

    def _check_may_begin(self, request: RestoreJob, now_ns: int) -> None:
        control = self._control
        check_states(request.states)
        self._check_empty(request.job_id)
        if len(self._running) >= _RUNNING_COUNT_MAX:
            detail = f"{_RUNNING_COUNT_MAX} jobs are being restored already"
            raise _unavailable(request.job_id, detail)
        if any(
            other.request.job_id == request.job_id for other in self._running.values()
        ):
            raise _unavailable(request.job_id, "it is being restored already")
        if not control.is_settled(now_ns=now_ns):
            raise DidNotHappenError(
                "this proxy leads since a moment ago, and nodes are still coming"
            )
        if not control.nodes.free_stores():
            raise _unavailable(request.job_id, control.nodes.why_none_is_free)
        self._check_room(request)

    def _check_room(self, request: RestoreJob) -> None:
        """Return if the job may be made now, or room for it."""
        control, limits = self._control, self._control.limits
        check_room_for_job(control, request.job_id)
        check_room_for_key_groups(control, request.job_id, request.max_parallelism)
        check_schemas(control, request.job_id, [each.state for each in request.states])
        count = len(request.states)
        if control.state_count + count > limits.state_count_max:
            raise ConfigurationError(
                f"this proxy keeps {control.state_count:,} states, and takes "
                f"{limits.state_count_max:,}; the snapshot has {count:,}: raise its "
                "state_count_max"
            )

    def _check_empty(self, job_id: str) -> None:
        job = self._control.jobs.get(job_id)
        if job is not None and job.states:
            names = ", ".join(sorted(s.state_name for s in job.states.values())[:3])
            raise ConfigurationError(
                f"job {job_id!r} has state already ({names}): restore it under another "
                "name, or drop that with 'lodestar drop-state' first"
            )

    def _reserve(self, restore: _Restore, now_ns: int) -> Write:
        """Take numbers for the states, durably: they will name rows on nodes."""
        self._check_empty(restore.request.job_id)
        del now_ns
        counters = self._control.counters
        # Numbers of states are never given out twice, and so this is not either.
        attempt = counters.state_number + 1
        restore.load_id = f"{restore.request.restore_id}{_SEPARATOR}{attempt}"
        for number, each in enumerate(
            restore.request.states, counters.state_number + 1
        ):
            restore.numbers[each.state.state_number] = number
        counters = replace(
            counters, state_number=counters.state_number + len(restore.numbers)
        )
        return Write(
            operations=[Put(COUNTERS, encode_record(counters))],
            adopt=partial(self._load, restore, counters),
        )

    # -- loading -------------------------------------------------------------------

    def _load(
        self, restore: _Restore, counters: CountersRecord, now_ns: int
    ) -> Sequence[Outcome]:
        """Have the nodes that are there now load what they will hold."""
        del now_ns
        control, request = self._control, restore.request
        control.counters = counters
        stores = control.nodes.free_stores()
        if not stores:
            error = _unavailable(request.job_id, "the last state node has gone")
            return self._fail(restore, error)
        restore.phase = _Phase.LOADING
        assignment = restore.assignment = first_assignment(
            stores,
            max_parallelism=request.max_parallelism,
            version=1,
            sequence=0,
            replica_count=control.limits.replica_count,
        )
        control.loading[request.restore_id] = assignment.node_ids
        effects: list[ControlEffect] = []
        for node_id in assignment.node_ids:
            node = control.nodes.present(node_id)
            assert node is not None
            restore.links[node_id] = node.link
            restore.awaited.add(node_id)
            message = LoadSnapshot(
                leader_epoch=control.leader_epoch,
                restore_id=restore.load_id,
                job_id=request.job_id,
                uri=request.uri,
                manifest_checksum=request.manifest_checksum,
                key_groups=tuple(held_by(assignment, node_id)),
                states=loaded_states(request.states, restore.numbers),
            )
            effects.append(SendToNode(link=node.link, message=message))
        return effects

    def _gone(self, restore: _Restore) -> Sequence[str]:
        """Return the nodes of a restore that are away, or begin anew."""
        return [
            node_id
            for node_id, link in sorted(restore.links.items())
            if not self._control.nodes.is_at(node_id, link)
        ]

    # -- creating ------------------------------------------------------------------

    def _create(self, restore: _Restore, now_ns: int) -> Write:
        """Write the job, now that nothing can come between."""
        del now_ns
        control, request = self._control, restore.request
        self._check_empty(request.job_id)
        gone = self._gone(restore)
        if gone:
            raise _left(restore, gone)
        self._check_room(request)  # others may have taken it meanwhile
        job = control.jobs.get(request.job_id)
        counters = control.counters
        operations: list[StoreOperation] = []
        unused: Removal | None = None
        if job is None:
            new = new_job(
                control, request.job_id, max_parallelism=request.max_parallelism
            )
            job, counters, unused = new.job, new.counters, new.gone
            if unused is not None:
                operations += unused.operations
            operations.append(Put(COUNTERS, encode_record(counters)))
        assert restore.assignment is not None
        change = restored_job(
            job,
            request,
            load_id=restore.load_id,
            numbers=restore.numbers,
            assignment=restore.assignment,
        )
        return Write(
            operations=[*operations, *job.operations(change)],
            adopt=partial(
                self._created, restore, job, change, counters=counters, unused=unused
            ),
        )

    def _created(
        self,
        restore: _Restore,
        job: Job,
        change: JobChange,
        now_ns: int,
        *,
        counters: CountersRecord,
        unused: Removal | None,
    ) -> list[Outcome]:
        control, request = self._control, restore.request
        control.counters = counters
        effects: list[Outcome] = [] if unused is None else removed(control, unused)
        former = job.assignment
        control.jobs[request.job_id] = job
        job.adopt(change)
        control.routes.locate(job)
        self._end(restore)
        effects += tell_assignment(control, job, former, now_ns=now_ns)
        assert job.assignment is not None
        for waiter in restore.waiters:
            answer = _answer(waiter.request_id, job.assignment, job.record.sequence)
            effects.append(AnswerWriter(link=waiter.link, message=answer))
        return effects

    def _end(self, restore: _Restore) -> None:
        """Forget a restore that is done, or has failed."""
        self._running.pop(restore.request.restore_id, None)
        if self._control.loading.pop(restore.request.restore_id, None) is not None:
            self._control.is_touched = True  # a node that is empty may end now

    # -- failing -------------------------------------------------------------------

    def _fail(self, restore: _Restore, error: NameServiceError) -> list[ControlEffect]:
        self._end(restore)
        effects: list[ControlEffect] = [
            RefuseWriter(link=waiter.link, request_id=waiter.request_id, error=error)
            for waiter in restore.waiters
        ]
        if isinstance(error, MayHaveHappenedError):
            return effects  # the job may be there, and need what was loaded
        message = DropLoaded(
            leader_epoch=self._control.leader_epoch,
            restore_id=restore.load_id,
        )
        for node_id in sorted(restore.links):
            node = self._control.nodes.present(node_id)
            if node is not None:
                effects.append(SendToNode(link=node.link, message=message))
        return effects


def _answer(
    request_id: int, assignment: AssignmentRecord, sequence: int
) -> JobRestored:
    return JobRestored(
        request_id=request_id,
        node_ids=tuple(sorted(assignment.node_ids)),
        sequence=sequence,
    )


def _left(restore: _Restore, node_ids: Sequence[str]) -> StateUnavailableError:
    detail = f"{', '.join(node_ids)} went away while it was restored"
    return _unavailable(restore.request.job_id, detail)


def _unavailable(job_id: str, detail: str) -> StateUnavailableError:
    return StateUnavailableError(job_id, None, (), 1.0, detail)
