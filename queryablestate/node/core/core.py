"""
`NodeCore`: a state node without I/O.

Theory of operation.  The core knows six things, each in a machine of its own:

===================  ===============================================================
`Registration`       whether the proxy leader has taken the node, and until when it
                     may answer (rules Q4, S2)
`JobTable`           what it answers for, what it has applied, what it has yet to
                     apply (rules W3, W7)
`CopyTable`          what it holds and what it has yet to copy (rules S1, S2)
`WaitingQuestions`   who waits for what is yet to be applied (rule Q2)
`OldStages`          when staged rows are dropped that no decision came for
`LeftJobs`           which jobs the store is forgetting (rule B4)
===================  ===============================================================

and `ChunkGate`, which chunks of rows may wait for the disk (rule W1).  This file alone
sequences them.

**Questions** are the hot path.  The shell reads what was asked, then asks `admit`
whether the node may answer; so the lease is looked at after the rows were read, and the
job of a state comes out of the same snapshot as its rows.  `admit` changes nothing and
costs about a microsecond.  Only what cannot be answered yet comes in as an event.

**The shell's duties**: perform effects in the order returned; one call of `step` for
each message but questions, for each change of the connection, for each thing that the
store has finished, and one when `next_deadline_ns` is reached.  Messages are checked
with `check_command` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from nameservice.observation import StoppedJob
from queryablestate.node.core.chunks import ChunkGate, chunk_refused
from queryablestate.node.core.command_checks import check_command
from queryablestate.node.core.copy_table import CopyTable
from queryablestate.node.core.effects import (
    AskAgain,
    BindStore,
    CancelReads,
    CheckStages,
    CollectRows,
    DropFences,
    EndProcess,
    ForgetJobRows,
    HandleSnapshot,
    KeepCopySecret,
    KeepJobPlan,
    NodeEffect,
    RaiseFences,
    SendToProxy,
    SendToWriter,
    StageRows,
    SwitchStore,
    TellJobPlan,
)
from queryablestate.node.core.events import (
    ChunkFinished,
    ChunkReceived,
    CommandReceived,
    CopyAdvanced,
    CopyFinished,
    EntryFinished,
    KeptChanged,
    KeyGroupsFetched,
    KeyGroupsHeld,
    LeaveAsked,
    LeftJobsForgotten,
    NodeEvent,
    ProxyConnected,
    ProxyDisconnected,
    ProxyFound,
    QuestionDeferred,
    ResetFinished,
    StoreOpened,
    TimePassed,
    Wait,
)
from queryablestate.node.core.jobs import JobTable, ServedJob
from queryablestate.node.core.left_jobs import LeftJobs
from queryablestate.node.core.limits import NodeLimits
from queryablestate.node.core.old_stages import OldStages
from queryablestate.node.core.refusals import (
    cancelled,
    stale_route,
    too_late,
    unavailable,
)
from queryablestate.node.core.registration import NodeIdentity, Registration
from queryablestate.node.core.standing import Standing
from queryablestate.node.core.waiting import WaitingQuestions
from queryablestate.wire.job_assignment import JobAssignment
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    CollectStages,
    EntriesApplied,
    FenceWriters,
    HeartbeatAcknowledged,
    JoinConnection,
    KeepPlan,
    KeyGroupsCopied,
    LeaveNode,
    NodeEmptied,
    NodeRefused,
    NodeRegistered,
    ResetJob,
    TellPlan,
    ToNode,
    VerifyStages,
)
from queryablestate.wire.questions import CancelQuestions, Question, Refusal
from queryablestate.wire.records import BatchDecided
from queryablestate.wire.refusals import NOT_LEADER
from queryablestate.wire.snapshot_messages import (
    DropLoaded,
    LoadSnapshot,
    WriteSnapshot,
)


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.direct import DirectTicket


__all__ = ["Admission", "NodeCore", "NodeLimits", "check_command"]


Admission: TypeAlias = ServedJob | Refusal | Wait
"""Answer from this job; or this is why not; or not yet, for this reason."""

_UNOPENED: Final = StoreOpened(
    store_id="", control_id=None, positions={}, fences={}, lost={}
)
"""What is known of the store before it is open."""


@final
class NodeCore:
    """
    Decides all that a state node does; see the module docstring.

    Two cores given the same sequence of ``(event, now_ns)`` return the same effects.
    Not thread-safe: one shell drives it.

    Args:
        identity: Who it is.
        limits: How long it waits, and how much may wait.
        token: The credential that it shows.
        now_ns: The time.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        limits: NodeLimits,
        *,
        token: str | None = None,
        now_ns: int,
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._token = token
        self._now_ns = now_ns
        self._registration = Registration(
            identity,
            pause_ns=limits.pause_ns,
            pause_ns_max=limits.pause_ns_max,
            answer_timeout_ns=limits.answer_timeout_ns,
        )
        self._jobs = self._job_table(_UNOPENED)
        self._copies = CopyTable(identity, limits)
        self._waiting = WaitingQuestions(
            limits.questions_waiting_max, limits.questions_size_bytes_max
        )
        self._gate = ChunkGate(
            chunks_per_writer_max=limits.chunks_per_writer_max,
            size_bytes_max=limits.chunks_size_bytes_max,
        )
        self._copy_secret = b""
        self._is_switching = False
        self._is_leaving = False
        self._old_stages = OldStages(limits.drop_stages_ns, now_ns=now_ns)
        self._left_jobs = LeftJobs()
        self._deadline_ns = self._old_stages.due_ns

    # -- questions -----------------------------------------------------------------

    @property
    def is_registered(self) -> bool:
        """Return whether the proxy leader has taken the node, as far as is known."""
        return self._registration.is_registered

    @property
    def join_message(self) -> JoinConnection | None:
        """Return what another connection to the proxy says of itself, if it may be."""
        if not self.is_registered:
            return None
        return JoinConnection(
            node_id=self._identity.node_id,
            registration_id=self._identity.registration_id,
            copy_secret=self._copy_secret,
        )

    def next_deadline_ns(self) -> int:
        """Return when `step` must be called again."""
        return self._deadline_ns

    def figures(self, *, now_ns: int) -> Mapping[str, int]:
        """Return the figures of the node, by name."""
        registration = self._registration
        return {
            "is_registered": int(registration.is_registered),
            "leader_epoch": registration.leader_epoch,
            "lease_remaining_ms": max(0, registration.lease_until_ns - now_ns)
            // 1_000_000,
            "heartbeats_total": registration.heartbeat_number,
            "jobs": len(self._jobs.positions()),
            "jobs_failed": len(self._jobs.failures()),
            "questions_waiting": len(self._waiting),
            "chunks_waiting": self._gate.chunk_count,
            "chunks_waiting_bytes": self._gate.size_bytes,
            **self._copies.figures(),
        }

    def stopped(self) -> Sequence[StoppedJob]:
        """Return the jobs that are stopped here, by name."""
        return [
            StoppedJob(job_id=job_id, reason=reason)
            for job_id, reason in self._jobs.reasons().items()
        ]

    def admit(
        self, question: Question, job_id: str | None, *, now_ns: int
    ) -> Admission:
        """
        Return whether the node may answer *question* now, and for which key groups.

        Args:
            question: What is asked.
            job_id: The job of its state as the store says, None if it has no such
                state.
            now_ns: The time, read after the store was.
        """
        registration = self._registration
        if question.leader_epoch != registration.leader_epoch:
            return self._wrong_epoch(question)
        if now_ns >= registration.lease_until_ns:
            return unavailable(
                question, job_id, "the node waits for the proxy to confirm it"
            )
        if job_id is None:
            if self._jobs.is_busy:
                return Wait.UNKNOWN_STATE
            return stale_route(question)
        served = self._jobs.served(job_id)
        if served is None:
            return unavailable(question, job_id, "the node does not serve this job")
        if served.assignment_version != question.assignment_version:
            return stale_route(question)
        if question.copies is not None:
            # An in-sync copy answers under the same conditions as a primary (D4).
            served = served.copies(question.copies)
        if served is None or not served.key_groups:
            return stale_route(question)  # nothing that it is to answer for (S1, S3)
        if not self._jobs.is_caught_up(job_id):
            return Wait.CATCHING_UP
        return served

    def is_current(self, ticket: DirectTicket, *, now_ns: int) -> bool | None:
        """
        Return whether the node may answer under *ticket* now (rules D2, Q4).

        Returns:
            False if the ticket is over, None if the node may answer no client without
            the proxy at this moment.
        """
        registration = self._registration
        if ticket.leader_epoch != registration.leader_epoch:
            return False
        if now_ns >= registration.direct_until_ns:
            return None
        return registration.leader_ms_max(now_ns=now_ns) < ticket.expires_ms

    def standing(self) -> Standing:
        """Return what `admit` and `is_current` go by, for other processes."""
        registration = self._registration
        return Standing(
            leader_epoch=registration.leader_epoch,
            secret=self._copy_secret,
            lease_until_ns=registration.lease_until_ns,
            direct_until_ns=registration.direct_until_ns,
            leader_ms=registration.leader_ms,
            leader_ms_at_ns=registration.leader_ms_at_ns,
            jobs=self._jobs.all_served(),
        )

    # -- the machine ---------------------------------------------------------------

    def step(self, event: NodeEvent, *, now_ns: int) -> tuple[NodeEffect, ...]:
        """Take *event* in, and return what is to be done, in that order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects = self._handle(event, now_ns)
        effects += self._advance(now_ns)
        if not self._registration.is_registered:
            self._waiting.clear()  # who asked is not there any more
            effects = [effect for effect in effects if not _is_report(effect)]
        self._deadline_ns = self._next_deadline_ns()
        return tuple(effects)

    def _handle(self, event: NodeEvent, now_ns: int) -> list[NodeEffect]:
        registration = self._registration
        match event:
            case StoreOpened():
                return self._store_opened(event, now_ns)
            case KeptChanged(kept=kept):
                self._registration.kept = kept
                registration.want()  # to say so
                return []
            case LeftJobsForgotten(job_ids=job_ids):
                return self._left_forgotten(job_ids)
            case ProxyFound(address=address, epoch=epoch):
                return registration.found(address, epoch, now_ns=now_ns)
            case ProxyConnected():
                registration.connected(now_ns=now_ns)
                return []
            case ProxyDisconnected():
                registration.disconnected(now_ns=now_ns)
                return []
            case CommandReceived(command=command):
                return self._command(command, now_ns)
            case QuestionDeferred():
                return self._defer(event, now_ns)
            case ChunkReceived():
                return [self._chunk(event)]
            case ChunkFinished(writer=writer, size_bytes=size_bytes):
                self._gate.finished(writer, size_bytes)
                return []
            case EntryFinished():
                self._jobs.holds(event.job_id, event.holding)
                return self._entry_finished(event, now_ns)
            case ResetFinished(job_id=job_id):
                self._jobs.holds(job_id, event.holding)
                effects = self._jobs.reset_finished(event, now_ns=now_ns)
                # An entry that has come meanwhile applies to what is held by then.
                effects = self._advance_copies(now_ns) + effects
                return effects + self._ask_again(self._waiting.take_job(job_id))
            case KeyGroupsHeld():
                self._jobs.holds(event.job_id, event.holding)
                self._copies.held(event, now_ns=now_ns)
                return []
            case CopyAdvanced():
                self._copies.advanced(event)
                return []
            case KeyGroupsFetched():
                self._copies.fetched(event, now_ns=now_ns)
                return []
            case CopyFinished():
                self._jobs.holds(event.job_id, event.holding)
                self._copies.finished(event, now_ns=now_ns)
                return []
            case LeaveAsked():
                self._is_leaving = True
                return self._leave() if registration.is_registered else []
            case TimePassed():
                return []
            case _:
                assert_never(event)

    def _next_deadline_ns(self) -> int:
        moments = [
            self._old_stages.due_ns,
            self._registration.next_deadline_ns(is_held=self._is_held()),
            self._jobs.next_deadline_ns(),
            self._copies.next_deadline_ns(),
            self._waiting.next_deadline_ns(),
        ]
        return min(moment for moment in moments if moment is not None)

    def _advance(self, now_ns: int) -> list[NodeEffect]:
        """Do what is due."""
        effects: list[NodeEffect] = [
            SendToProxy(message=too_late(waiting, now_ns))
            for waiting in self._waiting.take_due(now_ns=now_ns)
        ]
        if self._jobs.wants_more(now_ns=now_ns):
            self._registration.want()
        if self._old_stages.due_ns <= now_ns:
            effects += self._drop_old_stages(now_ns)
        effects += self._advance_copies(now_ns)
        effects += self._registration.advance(
            self._jobs.positions,
            holdings=self._jobs.holdings,
            token=self._token,
            is_held=self._is_held(),
            now_ns=now_ns,
        )
        return effects

    def _drop_old_stages(self, now_ns: int) -> list[NodeEffect]:
        """Have old stages dropped, and forgotten what is left of jobs."""
        registration = self._registration
        effects, is_round = self._old_stages.drop(
            self._jobs.unapplied(),
            is_registered=registration.is_registered,
            now_ns=now_ns,
        )
        if is_round:
            is_asking = registration.is_asking
            effects += self._left_jobs.forget(self._jobs, is_asking=is_asking)
        return effects

    def _left_forgotten(self, job_ids: Sequence[str]) -> list[NodeEffect]:
        """Know the jobs no more that are gone, and tell the proxy."""
        self._left_jobs.forgotten()
        effects: list[NodeEffect] = []
        for job_id in job_ids:
            effects += self._forget_job(job_id)
        if job_ids:
            self._registration.want()
        return effects

    def _forget_job(self, job_id: str) -> list[NodeEffect]:
        """Know the job no more."""
        self._jobs.forget(job_id)
        self._gate.forget(job_id)
        return self._copies.forget_job(job_id)

    def _advance_copies(self, now_ns: int) -> list[NodeEffect]:
        registration = self._registration
        return self._copies.advance(
            self._jobs.applied,
            is_heard=registration.is_registered and not registration.is_asking,
            now_ns=now_ns,
        )

    # -- the store -----------------------------------------------------------------

    def _store_opened(self, event: StoreOpened, now_ns: int) -> list[NodeEffect]:
        self._registration.store_id = event.store_id
        self._registration.kept = event.kept
        self._registration.control_id = event.control_id
        self._jobs = self._job_table(event)
        effects = self._copies.forget()
        self._gate.open(event.fences)
        self._is_switching = False
        self._left_jobs.store_opened()
        return effects + self._registration.reconnect(now_ns=now_ns)

    def _job_table(self, opened: StoreOpened) -> JobTable:
        return JobTable(
            self._identity.registration_id,
            opened.positions,
            opened.lost,
            origins=opened.origins,
            holdings=opened.holdings,
            entries_waiting_max=self._limits.entries_waiting_max,
            retry_ns=self._limits.retry_ns,
        )

    def _is_held(self) -> bool:
        """Return whether registering has to wait for the store."""
        return (
            self._is_switching
            or self._left_jobs.is_under_way
            or self._jobs.is_unsettled
            or (self._registration.is_registered and self._jobs.is_draining)
        )

    # -- the proxy -----------------------------------------------------------------

    def _command(self, command: ToNode, now_ns: int) -> list[NodeEffect]:
        registration = self._registration
        match command:
            case NodeRegistered():
                return self._registered(command, now_ns)
            case NodeRefused():
                return registration.refused(command, now_ns=now_ns)
            case HeartbeatAcknowledged():
                # The proxy sent all that was missed before it heard this heartbeat;
                # unless the node has asked again meanwhile, and passed it over.
                is_ours = registration.acknowledged(command, now_ns=now_ns)
                if is_ours and not registration.is_asking:
                    self._copies.missed_came()
                    if self._jobs.missed_came():
                        return self._ask_again(self._waiting.take_all())
                return []
            case _:
                pass
        effects, is_taken = registration.takes(command.leader_epoch)
        if not is_taken:
            return effects
        match command:
            case FenceWriters(fences=fences):
                raised = self._gate.raise_fences(fences)
                return [RaiseFences(fences=raised)] if raised else []
            case VerifyStages():
                return [CheckStages(command=command)]
            case CollectStages():
                return [CollectRows(command=command)]
            case WriteSnapshot() | LoadSnapshot() | DropLoaded():
                return [HandleSnapshot(command=command)]
            case CancelQuestions(question_ids=question_ids):
                return self._cancel(question_ids)
            case TellPlan(job_id=job_id):
                return [TellJobPlan(job_id=job_id)]
            case NodeEmptied(reason=reason):
                self._is_leaving = False
                return [EndProcess(reason=reason)]
            case _ if registration.is_asking:
                return []  # the answer will say it again
            case _ if self._left_jobs.passes_over(command):
                registration.want()
                return []  # likewise
            case KeepPlan(plan=plan):
                self._jobs.planned(plan)
                return [KeepJobPlan(plan=plan)]
            case AssignJob(job=job):
                self._jobs.assign(job)
                registration.hasten(now_ns=now_ns)
                return self._fence(job) + self._copies.assign(job)
            case ApplyEntries():
                effects, is_whole = self._jobs.receive(command)
                if not is_whole:
                    registration.want()
                return effects
            case ResetJob():
                # No row that was fetched before may be written after the reset.
                effects = self._copies.reset(command.job_id)
                return effects + self._jobs.reset(command)
            case _:
                assert_never(command)

    def _registered(self, message: NodeRegistered, now_ns: int) -> list[NodeEffect]:
        effects, is_taken = self._registration.registered(message, now_ns=now_ns)
        if not is_taken:
            return effects
        if self._registration.control_id not in {None, message.control_id}:
            # The rows of another control plane have numbers of their own, which mean
            # something else here.
            self._is_switching = True
            self._jobs.dismiss()
            self._registration.disconnected(now_ns=now_ns)
            effects = self._copies.forget()
            return [*effects, SwitchStore(control_id=message.control_id)]
        if self._registration.control_id is None:
            self._registration.control_id = message.control_id
            effects.append(BindStore(control_id=message.control_id))
        if message.copy_secret != self._copy_secret:
            self._copy_secret = message.copy_secret
            effects.append(KeepCopySecret(secret=message.copy_secret))
        for job_id in message.forgotten:
            effects += self._forget_job(job_id)
            effects.append(ForgetJobRows(job_id=job_id))
        self._left_jobs.registered(message.untouched)
        self._jobs.assign_all(message.jobs)
        for job in message.jobs:
            effects += self._fence(job)
        known = [position.job_id for position in self._jobs.positions()]
        effects += self._copies.assign_all(message.jobs, known, message.untouched)
        return effects + self._leave() if self._is_leaving else effects

    def _leave(self) -> list[NodeEffect]:
        message = LeaveNode(registration_id=self._identity.registration_id)
        return [SendToProxy(message=message)]

    def _fence(self, job: JobAssignment) -> list[NodeEffect]:
        effects: list[NodeEffect] = []
        gone = self._gate.keep_fences(job.job_id, job.fences)
        if gone:
            effects.append(DropFences(job_id=job.job_id, query_ids=gone))
        raised = self._gate.raise_fences(job.fences)
        if raised:
            effects.append(RaiseFences(fences=raised))
        return effects

    # -- entries -------------------------------------------------------------------

    def _entry_finished(self, event: EntryFinished, now_ns: int) -> list[NodeEffect]:
        effects = self._jobs.entry_finished(event, now_ns=now_ns)
        entry, job_id = event.entry, event.job_id
        if event.failure is not None:
            return effects + self._ask_again(self._waiting.take_job(job_id))
        if isinstance(entry, BatchDecided):
            self._gate.raise_fence(job_id, entry.query_id, entry.writer_epoch)
        ready = self._waiting.take_applied(
            job_id, entry, is_caught_up=self._jobs.is_caught_up(job_id)
        )
        return effects + self._ask_again(ready)

    # -- questions that wait -------------------------------------------------------

    def _defer(self, event: QuestionDeferred, now_ns: int) -> list[NodeEffect]:
        if event.asked.deadline_ns <= now_ns:
            return [SendToProxy(message=too_late(event, now_ns))]
        return [
            SendToProxy(
                message=unavailable(
                    refused.asked.question, refused.job_id, "too many questions wait"
                )
            )
            for refused in self._waiting.add(event)
        ]

    def _cancel(self, question_ids: Sequence[int]) -> list[NodeEffect]:
        """Answer these questions no more: no client waits for that."""
        effects: list[NodeEffect] = [
            SendToProxy(message=cancelled(waiting.asked.question))
            for waiting in self._waiting.take_cancelled(question_ids)
        ]
        return [*effects, CancelReads(question_ids=tuple(question_ids))]

    def _ask_again(self, ready: Sequence[QuestionDeferred]) -> list[NodeEffect]:
        return [AskAgain(asked=waiting.asked) for waiting in ready]

    def _wrong_epoch(self, question: Question) -> Refusal:
        if self._registration.is_stale(question.leader_epoch):
            return Refusal(request_id=question.question_id, code=NOT_LEADER)
        return unavailable(question, None, "the node is not registered")

    # -- chunks --------------------------------------------------------------------

    def _chunk(self, event: ChunkReceived) -> NodeEffect:
        error = self._gate.admit(event)
        if error is None:
            return StageRows(writer=event.writer, chunk=event.chunk, rows=event.rows)
        message = chunk_refused(error, event.chunk.request_id)
        return SendToWriter(writer=event.writer, message=message)


def _is_report(effect: NodeEffect) -> bool:
    """Return whether *effect* tells the proxy what it is told in registering."""
    return isinstance(effect, SendToProxy) and isinstance(
        effect.message, EntriesApplied | KeyGroupsCopied
    )
