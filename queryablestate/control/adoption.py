"""
Taking over what nodes kept, when an operator wants it; pure (rule W7).

Theory of operation.  Two steps; see `queryablestate.wire.adoption_messages`.

*   **The control plane** of which rows are kept becomes this one: one write, which
    gives it that name.  It must have no state of its own.  Then it starts over: nodes
    are told the name when they register, and open the rows that they had set aside.
*   **A job** that nodes are ahead with (`queryablestate.control.kept_jobs`) is brought
    up to what they have.  They are asked what they keep (`TellPlan`); what follows from
    that (`queryablestate.control.adopted_job`) is one write; and the control plane
    starts over, so that everybody registers with what is true now.

Whatever goes wrong between, the next attempt begins with what is there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import define, field
from msgspec.structs import replace

from election import Delete, Put
from nameservice import ConfigurationError, DidNotHappenError
from queryablestate.control.adopted_job import adopted_job
from queryablestate.control.changes import Change, Write
from queryablestate.control.effects import (
    AnswerWriter,
    RefuseWriter,
    SendToNode,
    StartOver,
)
from queryablestate.control.job.entry_parts import entry_parts
from queryablestate.control.job.job_records import changed_records, record_paths
from queryablestate.control.job.leader_paths import (
    COUNTERS,
    assignment_path,
    encode_record,
    node_path,
    state_path,
)
from queryablestate.errors import DeadlineExceededError, UnknownJobError
from queryablestate.wire.adoption_messages import (
    AdoptedState,
    ControlTaken,
    JobAdopted,
)
from queryablestate.wire.node_messages import TellPlan
from queryablestate.wire.records import NodeRecord


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from election import StoreOperation
    from nameservice import NameServiceError
    from queryablestate.control.adopted_job import AdoptedJob
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.adoption_messages import AdoptJob, TakeControl
    from queryablestate.wire.node_messages import PlanTold
    from queryablestate.wire.records import AssignmentRecord, CountersRecord


__all__ = ["Adoptions", "deleted_job"]

_TICKETS_PASSED_OVER: Final = 1_000_000
_STATE_NUMBERS_PASSED_OVER: Final = 1_000
"""What was given out and is known no more must not be given out again."""
_TIMEOUT_NS: Final = 30 * 1_000_000_000
_NS_PER_SECOND: Final = 1_000_000_000
_RUNNING_COUNT_MAX: Final = 4


@final
@define(kw_only=True)
class _Adoption:
    """
    One that is under way.

    Attributes:
        link: Who waits.
        request: For what.
        asked_at_ns: Since when.
        awaited: Nodes that have yet to tell what they keep, by name.
        told: What the others have told.
    """

    link: LinkId
    request: AdoptJob
    asked_at_ns: int
    awaited: dict[str, LinkId] = field(factory=dict)
    told: dict[str, PlanTold] = field(factory=dict)


@final
class Adoptions:
    """
    Takes over what nodes kept.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._running: list[_Adoption] = []

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        times = (one.asked_at_ns + _TIMEOUT_NS for one in self._running)
        return min(times, default=None)

    # -- a control plane -----------------------------------------------------------

    def take_control(self, link: LinkId, request: TakeControl, now_ns: int) -> Write:
        """
        Be the control plane that rows are kept of.

        Raises:
            ConfigurationError: If no node keeps rows of it, or there is state here.
            DidNotHappenError: If nodes are only late: the caller tries again.
        """
        control = self._control
        if request.control_id == control.counters.control_id:
            return Write(operations=[], adopt=partial(self._taken, link, request))
        if not control.is_settled(now_ns=now_ns):
            raise DidNotHappenError(
                "this proxy leads since a moment ago, and nodes are still coming"
            )
        if request.control_id not in control.nodes.kept.control_ids:
            raise ConfigurationError(
                f"no node keeps rows of a control plane {request.control_id!r}"
            )
        begun = sorted(job_id for job_id, job in control.jobs.items() if job.states)
        if begun:
            raise ConfigurationError(
                f"there is state here already ({', '.join(begun[:3])}), and it would "
                "be set aside in its turn: drop it first"
            )
        counters = replace(
            control.counters,
            control_id=request.control_id,
            ticket_limit=control.counters.ticket_limit + _TICKETS_PASSED_OVER,
        )
        operations: list[StoreOperation] = [Put(COUNTERS, encode_record(counters))]
        for job in control.jobs.values():
            operations += deleted_job(job)
        return Write(operations=operations, adopt=partial(self._taken, link, request))

    def _taken(
        self, link: LinkId, request: TakeControl, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        done = ControlTaken(request_id=request.request_id)
        effects: list[ControlEffect] = [AnswerWriter(link=link, message=done)]
        if request.control_id != self._control.counters.control_id:
            reason = DidNotHappenError("it is another control plane from now on")
            effects.append(StartOver(reason=reason))
        return effects

    # -- a job ---------------------------------------------------------------------

    def ask(self, link: LinkId, request: AdoptJob, *, now_ns: int) -> list[Outcome]:
        """
        Ask nodes what they keep of a job.

        Raises:
            UnknownJobError: If no node is ahead with such a job.
            DidNotHappenError: If it cannot be begun now.
        """
        control, job_id = self._control, request.job_id
        if control.nodes.kept.rolled_back(job_id) is None:
            raise UnknownJobError(job_id)
        if not control.is_settled(now_ns=now_ns):
            raise DidNotHappenError(
                "this proxy leads since a moment ago, and nodes are still coming"
            )
        if len(self._running) >= _RUNNING_COUNT_MAX:
            raise DidNotHappenError("other jobs are being taken over")
        adoption = _Adoption(link=link, request=request, asked_at_ns=now_ns)
        message = TellPlan(leader_epoch=control.leader_epoch, job_id=job_id)
        effects: list[Outcome] = []
        for node in control.nodes:
            if job_id in node.sequences:
                adoption.awaited[node.node_id] = node.link
                effects.append(SendToNode(link=node.link, message=message))
        if not adoption.awaited:
            raise DidNotHappenError(f"every node that has rows of {job_id} is away")
        self._running.append(adoption)
        return effects

    def told(self, node: PresentNode, message: PlanTold) -> list[Outcome]:
        """Take note of what a node keeps."""
        outcomes: list[Outcome] = []
        for adoption in list(self._running):
            if (
                adoption.request.job_id != message.job_id
                or adoption.awaited.get(node.node_id) != node.link
            ):
                continue
            if message.failure is not None:
                error = DidNotHappenError(f"node {node.node_id}: {message.failure}")
                outcomes += self._fail(adoption, error)
                continue
            del adoption.awaited[node.node_id]
            adoption.told[node.node_id] = message
            if adoption.awaited:
                continue
            self._running.remove(adoption)
            outcomes.append(
                Change(
                    prepare=partial(self._adoption, adoption),
                    refuse=partial(self._fail, adoption),
                )
            )
        return outcomes

    def links_closed(self, links: Collection[LinkId]) -> None:
        """Forget who waited over these connections."""
        self._running = [one for one in self._running if one.link not in links]

    def expire(self, *, now_ns: int) -> list[ControlEffect]:
        """Give up what takes too long, and what a node has left."""
        effects: list[ControlEffect] = []
        for adoption in list(self._running):
            gone = [
                node_id
                for node_id, link in adoption.awaited.items()
                if self._control.nodes.at(link) is None
            ]
            if gone:
                error: NameServiceError = DidNotHappenError(
                    f"node {gone[0]} went away before it told what it keeps"
                )
            elif now_ns >= adoption.asked_at_ns + _TIMEOUT_NS:
                waited_seconds = (now_ns - adoption.asked_at_ns) / _NS_PER_SECOND
                detail = f"{', '.join(sorted(adoption.awaited))} did not tell"
                error = DeadlineExceededError(waited_seconds, detail)
            else:
                continue
            effects += self._fail(adoption, error)
        return effects

    def refuse_all(self, error: NameServiceError) -> list[ControlEffect]:
        """Refuse everybody who waits."""
        effects: list[ControlEffect] = []
        for adoption in list(self._running):
            effects += self._fail(adoption, error)
        return effects

    # -- parts ---------------------------------------------------------------------

    def _adoption(
        self, adoption: _Adoption, now_ns: int
    ) -> Write | Sequence[ControlEffect]:
        """Work out what the job becomes, now that nothing can come between."""
        del now_ns
        control, request = self._control, adoption.request
        stored = control.jobs.get(request.job_id)
        adopted = adopted_job(adoption.told, stored)
        answer = self._answer(request, adopted, stored)
        if request.is_preview:
            return [AnswerWriter(link=adoption.link, message=answer)]
        if answer.away_ids and not request.is_forced:
            raise DidNotHappenError(
                f"{', '.join(answer.away_ids)} of job {request.job_id} "
                f"{'is' if len(answer.away_ids) == 1 else 'are'} away, and may have "
                "more than those that are here: start them, or say that what is "
                "here is to be taken"
            )
        number = adopted.record.job_number
        for job_id, other in control.jobs.items():
            if job_id != request.job_id and other.record.job_number == number:
                raise ConfigurationError(
                    f"job {job_id!r} was begun since, in the place of "
                    f"{request.job_id!r}: drop its states first"
                )
        operations = self._operations(adopted, stored)
        adopt = partial(self._adopted, adoption, answer)
        return Write(operations=operations, adopt=adopt)

    def _answer(
        self, request: AdoptJob, adopted: AdoptedJob, stored: Job | None
    ) -> JobAdopted:
        nodes = self._control.nodes
        progress = {one.state_number: one for one in adopted.record.progress}
        states = [
            AdoptedState(
                state_name=state.state_name,
                batch_id=progress[state.state_number].batch_id,
                decided_at_us=progress[state.state_number].decided_at_us,
            )
            for state in adopted.states
        ]
        node_ids = tuple(sorted(adopted.assignment.node_ids))
        return JobAdopted(
            request_id=request.request_id,
            job_id=request.job_id,
            known_sequence=0 if stored is None else stored.record.sequence,
            sequence=adopted.record.sequence,
            states=tuple(sorted(states, key=lambda state: state.state_name)),
            node_ids=node_ids,
            away_ids=tuple(
                node_id for node_id in node_ids if nodes.present(node_id) is None
            ),
            lost_ids=adopted.lost_ids,
        )

    def _operations(
        self, adopted: AdoptedJob, stored: Job | None
    ) -> list[StoreOperation]:
        """Return what makes the leader store hold *adopted* instead of *stored*."""
        record, number = adopted.record, adopted.record.job_number
        puts: dict[str, bytes] = {
            COUNTERS: encode_record(self._counters(adopted)),
            assignment_path(number, adopted.assignment.version): encode_record(
                adopted.assignment
            ),
        }
        for state in adopted.states:
            puts[state_path(number, state.state_number)] = encode_record(state)
        for entry in adopted.entries:
            puts.update(entry_parts(number, entry))
        node_records = [
            *self._settled_nodes(record.job_id),
            *self._unknown_nodes(adopted.assignment),
        ]
        for node_record in node_records:
            puts[node_path(node_record.node_id)] = encode_record(node_record)
        operations = [*changed_records(None, record)]
        operations += [Put(path, value) for path, value in puts.items()]
        written = {operation.path for operation in operations}
        if stored is not None:
            operations += [
                delete for delete in deleted_job(stored) if delete.path not in written
            ]
        return operations

    def _settled_nodes(self, job_id: str) -> list[NodeRecord]:
        """Return the nodes that are ahead with a job, as ones that are not any more."""
        nodes = self._control.nodes
        control_id = self._control.counters.control_id
        settled = []
        for node_id in nodes.known_ids:
            record = nodes.record_of(node_id)
            if record is None or job_id not in nodes.kept.ahead_of(node_id):
                continue
            kept = []
            for rows in record.kept:
                jobs = rows.jobs
                if rows.control_id == control_id:
                    jobs = tuple(job for job in jobs if job.job_id != job_id)
                if jobs:
                    kept.append(replace(rows, jobs=jobs))
            settled.append(replace(record, kept=tuple(kept)))
        return settled

    def _unknown_nodes(self, assignment: AssignmentRecord) -> list[NodeRecord]:
        """Return those that have never registered here: they can be emptied, too."""
        known = self._control.nodes.known_ids
        return [
            NodeRecord(node_id=node_id, store_id=store_id)
            for node_id, store_id in zip(
                assignment.node_ids, assignment.store_ids, strict=True
            )
            if node_id not in known
        ]

    def _counters(self, adopted: AdoptedJob) -> CountersRecord:
        """Return counters that give out nothing that may have been given out."""
        counters = self._control.counters
        numbers = [state.state_number for state in adopted.states]
        runs = [run.writer_epoch for run in adopted.record.runs]
        return replace(
            counters,
            ticket_limit=max(
                counters.ticket_limit, adopted.ticket_limit, *(e + 1 for e in runs)
            )
            + _TICKETS_PASSED_OVER,
            state_number=max(
                counters.state_number,
                *(number + _STATE_NUMBERS_PASSED_OVER for number in numbers),
            ),
            job_number=max(counters.job_number, adopted.record.job_number),
        )

    def _adopted(
        self, adoption: _Adoption, answer: JobAdopted, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        reason = DidNotHappenError(f"job {answer.job_id} was taken over from its nodes")
        return [
            AnswerWriter(link=adoption.link, message=answer),
            StartOver(reason=reason),
        ]

    def _fail(
        self, adoption: _Adoption, error: NameServiceError
    ) -> list[ControlEffect]:
        if adoption in self._running:
            self._running.remove(adoption)
        request_id = adoption.request.request_id
        return [RefuseWriter(link=adoption.link, request_id=request_id, error=error)]


def deleted_job(job: Job) -> list[Delete]:
    """Return what removes all records of a job."""
    number = job.record.job_number
    paths = record_paths(job.record)
    paths += [assignment_path(number, version) for version in sorted(job.assignments)]
    paths += [state_path(number, state) for state in sorted(job.states)]
    for sequence in sorted(job.entries):
        paths += entry_parts(number, job.entries[sequence])
    return [Delete(path) for path in paths]
