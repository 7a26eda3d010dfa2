"""
Batches on their way from staged to applied; pure (rules W3 and W4).

Theory of operation.  A commit goes through three phases::

    VERIFYING   the nodes are asked whether they hold every chunk of the winning stages,
                and those that became copies meanwhile collect what others were sent;
                nodes that are away are asked when they are back
    DECIDING    the decision waits to be written, or is being written
    APPLYING    it is in the chain; the owners are told, and tell when they have it

Up to DECIDING nothing has happened, and the writer may run the batch again.  From
APPLYING on the batch is committed whatever happens to the writer, and asking again only
waits.  Verification costs a round trip, and buys that a decision never names rows that
no node has: a node that lacks rows of a decision can never go on.

What a node has verified holds for its process: if another one comes back before the
decision is written, with another data directory or an older state of it, the decision
is not made on the word of the first.

**While key groups move** (rule S2) a batch is decided under the assignment that is
present then, whatever it was sent by; whenever that changes, `Verification.proceed`
works out anew what is still to be asked.  So no batch fails because of a move.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    NameServiceError,
    StorageError,
)
from nameservice.clock import NS_PER_MS, NS_PER_SECOND, NS_PER_US
from queryablestate.control.chains import extend_chain, lagging_nodes, prunable_entries
from queryablestate.control.changes import Change, Turn, Write
from queryablestate.control.commit_verification import Verification
from queryablestate.control.effects import RefuseWriter
from queryablestate.control.job.batch_order import Repeated
from queryablestate.control.pending_commit import (
    CommitPhase,
    CommitWaiter,
    PendingCommit,
    key_of,
)
from queryablestate.errors import (
    CommitTimeoutError,
    StagedDataMissingError,
    UnknownJobError,
)
from queryablestate.wire.records import BatchDecided


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.pending_commit import CommitKey
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.clients import CommitBatch
    from queryablestate.wire.node_messages import StagesCollected, StagesVerified
    from queryablestate.wire.records import BatchState


__all__ = ["Commits"]


@final
class Commits:
    """
    The commits that somebody waits for, or that are being decided.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._commits: dict[CommitKey, PendingCommit] = {}
        self._now_ns = 0

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        return min(
            (
                waiter.deadline_ns
                for commit in self._commits.values()
                for waiter in commit.waiters
            ),
            default=None,
        )

    # -- what happens --------------------------------------------------------------

    def ask(
        self,
        link: LinkId,
        request: CommitBatch,
        wall_clock_us: int,
        *,
        now_ns: int,
        writable: frozenset[str] | None = None,
    ) -> list[Outcome]:
        """
        Begin a commit, or join one that is on its way.

        Raises:
            AccessDeniedError: If the query writes what the caller may not (rule C1).
            LocalProtocolError: If the run shows an epoch that was never given out.
            QueryableStateError: Why it cannot be; see `Job.decide`.
        """
        self._now_ns = now_ns
        job = self._control.job(request.job_id)
        job.check_may_write(request.query_id, writable)
        _check_epochs(request, self._control.ticket_next)
        waiter = CommitWaiter(
            link=link,
            request_id=request.request_id,
            asked_at_ns=now_ns,
            deadline_ns=now_ns + request.timeout_ms * NS_PER_MS,
        )
        key = key_of(request)
        commit = self._commits.get(key)
        if commit is not None and (
            commit.phase is not CommitPhase.VERIFYING
            or commit.request.stages == request.stages
        ):
            commit.waiters.append(waiter)
            return []
        decided = _check_decidable(job, request)
        batch_id = job.staged_batch_id(request)
        verification = Verification(
            control=self._control,
            request=request,
            batch_id=batch_id,
            states=_states_of(decided),
        )
        if commit is None:
            commit = PendingCommit(
                key=key,
                request=request,
                batch_id=batch_id,
                verification=verification,
                wall_clock_us=wall_clock_us,
                asked_at_ns=now_ns,
            )
            self._commits[key] = commit
        else:
            commit.request, commit.verification = request, verification
            commit.wall_clock_us, commit.asked_at_ns = wall_clock_us, now_ns
        commit.waiters.append(waiter)
        if isinstance(decided, Repeated):
            return [*self._await_applied(commit, decided, is_repeated=True)]
        return self._proceed(commit)

    def verified(self, node: PresentNode, message: StagesVerified) -> list[Outcome]:
        """Take note of what a node has of the stages that it was asked for."""
        outcomes: list[Outcome] = []
        for commit in self._verifying():
            try:
                if commit.verification.verified(node, message):
                    outcomes += self._proceed(commit)
            except StorageError as error:
                outcomes += self._fail(commit, error)
        return outcomes

    def collected(self, node: PresentNode, message: StagesCollected) -> list[Outcome]:
        """Take note of what a node has collected of stages that others were sent."""
        outcomes: list[Outcome] = []
        for commit in self._verifying():
            if commit.verification.collected(node, message):
                outcomes += self._proceed(commit)
        return outcomes

    def assignment_changed(self, job: Job) -> list[Outcome]:
        """
        Go by the present assignment of *job* from now on (rule S2).

        What is being decided finds out when its turn comes.
        """
        outcomes: list[Outcome] = []
        for commit in list(self._commits.values()):
            if commit.request.job_id != job.record.job_id:
                continue
            if commit.phase is CommitPhase.VERIFYING:
                outcomes += self._proceed(commit)
            elif commit.phase is CommitPhase.APPLYING:
                outcomes += self._finish_if_applied(commit)
        return outcomes

    def node_came(self) -> list[ControlEffect]:
        """Ask a node that is back what it has to verify, and see how far it is."""
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            if commit.phase is CommitPhase.APPLYING:
                effects += self._finish_if_applied(commit)
            elif commit.phase is CommitPhase.VERIFYING:
                effects += self._ask_on(commit)
        return effects

    def node_moved(self, job_id: str, *, now_ns: int) -> list[ControlEffect]:
        """
        Answer the writers whose batches every owner has applied by now.

        Args:
            job_id: Of which job; empty for all.
            now_ns: The time.
        """
        self._now_ns = now_ns
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            is_applying = commit.phase is CommitPhase.APPLYING
            if is_applying and job_id in {"", commit.request.job_id}:
                effects += self._finish_if_applied(commit)
        return effects

    def job_removed(self, job_id: str) -> list[ControlEffect]:
        """Refuse what waits for a job that is gone; what is being decided finds out."""
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            is_deciding = commit.phase is CommitPhase.DECIDING
            if commit.request.job_id == job_id and not is_deciding:
                effects += self._fail(commit, UnknownJobError(job_id))
        return effects

    def links_closed(self, links: Collection[LinkId]) -> None:
        """Forget who waited over these connections."""
        for commit in list(self._commits.values()):
            commit.forget_links(links)
            self._forget_if_unwanted(commit)

    def expire(self, *, now_ns: int) -> list[ControlEffect]:
        """Refuse those whose time is up; have collected what can be by now."""
        self._now_ns = now_ns
        effects: list[ControlEffect] = []
        for commit in self._verifying():
            if commit.verification.is_collecting:
                effects += self._ask_on(commit)
        for commit in list(self._commits.values()):
            late = commit.give_up_late(now_ns)
            if late:
                effects += [self._timeout(commit, waiter, now_ns) for waiter in late]
                self._forget_if_unwanted(commit)
        return effects

    def rights_replaced(self) -> list[ControlEffect]:
        """
        Refuse what is not decided yet: its writer may have lost the right (rule C1).

        Writers ask again by themselves, and what they may do is looked up anew.
        """
        effects: list[ControlEffect] = []
        for commit in self._verifying():
            effects += self._fail(commit, _rights_replaced())
        for commit in self._commits.values():
            commit.is_outdated = True  # what waits to be written finds out
        return effects

    def refuse_all(self, error: NameServiceError) -> list[ControlEffect]:
        """Refuse everybody who waits."""
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            effects += self._fail(commit, error)
        return effects

    # -- verifying -----------------------------------------------------------------

    def _verifying(self) -> list[PendingCommit]:
        return [
            commit
            for commit in self._commits.values()
            if commit.phase is CommitPhase.VERIFYING
        ]

    def _proceed(self, commit: PendingCommit) -> list[Outcome]:
        """Ask what is to be asked now; decide if that is nothing."""
        outcomes: list[Outcome] = [*self._ask_on(commit)]
        if commit.key in self._commits and commit.verification.is_complete:
            outcomes.append(self._decide(commit))
        return outcomes

    def _ask_on(self, commit: PendingCommit) -> list[ControlEffect]:
        """Ask what is to be asked now, and was not; fail what cannot be."""
        job = self._control.job(commit.request.job_id)
        try:
            return commit.verification.proceed(
                job, now_ns=self._now_ns, deadline_ns=commit.deadline_ns
            )
        except StagedDataMissingError as error:
            try:
                # Nodes drop the rows of a run when they apply a batch of a newer one:
                # it is not to run the batch again, it is over (rule W1).
                job.decide(commit.request, decided_at_us=0, pruned=())
            except NameServiceError as reason:
                return self._fail(commit, reason)
            return self._fail(commit, error)

    # -- deciding ------------------------------------------------------------------

    def _decide(self, commit: PendingCommit) -> Change:
        """Queue the decision until it is its turn to be written."""
        commit.phase = CommitPhase.DECIDING
        return Change(
            prepare=partial(self._decision, commit),
            refuse=partial(self._fail, commit),
            turn=Turn.WRITER,
        )

    def _decision(
        self, commit: PendingCommit, now_ns: int
    ) -> Write | Sequence[Outcome]:
        """Check once more, now that nothing can come between, and write."""
        self._now_ns = now_ns
        if commit.is_outdated:
            raise _rights_replaced()
        request, verification = commit.request, commit.verification
        problem = self._control.problem_of(request.job_id)
        if problem is not None:
            raise problem
        job = self._control.job(request.job_id)
        if not verification.is_valid(job):
            decided = _check_decidable(job, request)
            if isinstance(decided, Repeated):
                return self._await_applied(commit, decided, is_repeated=True)
            effects = verification.proceed(
                job, now_ns=now_ns, deadline_ns=commit.deadline_ns
            )
            if not verification.is_complete:
                commit.phase = CommitPhase.VERIFYING
                self._forget_if_unwanted(commit)
                return effects
        waited_us = (now_ns - commit.asked_at_ns) // NS_PER_US
        change = job.decide(
            request,
            decided_at_us=commit.wall_clock_us + waited_us,
            pruned=prunable_entries(self._control, job),
            stages=verification.stages(),
        )
        if isinstance(change, Repeated):
            return self._await_applied(commit, change, is_repeated=True)
        return Write(
            operations=job.operations(change),
            adopt=partial(self._decided, commit, change),
        )

    def _decided(
        self, commit: PendingCommit, change: JobChange, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        self._control.tally.decided_count += 1
        job = self._control.job(commit.request.job_id)
        effects = extend_chain(self._control, job, change)
        decided = Repeated(batch_id=commit.batch_id, sequence=job.record.sequence)
        return effects + self._await_applied(commit, decided, is_repeated=False)

    # -- applying ------------------------------------------------------------------

    def _await_applied(
        self, commit: PendingCommit, decided: Repeated, *, is_repeated: bool
    ) -> list[ControlEffect]:
        commit.phase = CommitPhase.APPLYING
        commit.batch_id = decided.batch_id
        commit.sequence = decided.sequence
        commit.is_repeated = is_repeated
        self._control.open_batches.decided(
            job_id=commit.request.job_id, query_id=commit.request.query_id
        )
        self._forget_if_unwanted(commit)
        return self._finish_if_applied(commit)

    def _finish_if_applied(self, commit: PendingCommit) -> list[ControlEffect]:
        """Answer the writers if every owner is as far as this commit."""
        job = self._control.job(commit.request.job_id)
        if self._waited_for(job, commit.sequence):
            return []
        self._commits.pop(commit.key, None)
        for waiter in commit.waiters:
            waited_ns = self._now_ns - waiter.asked_at_ns
            self._control.tally.latencies.add("commit", waited_ns)
        return commit.answers()

    def _waited_for(self, job: Job, sequence: int) -> Sequence[str]:
        """Return who has not applied an entry, or may answer without it (rule D5)."""
        lagging = lagging_nodes(self._control, job, sequence)
        return lagging or self._control.direct.awaited(
            job.record.job_id, now_ns=self._now_ns
        )

    # -- failing -------------------------------------------------------------------

    def _fail(
        self, commit: PendingCommit, error: NameServiceError
    ) -> list[ControlEffect]:
        self._commits.pop(commit.key, None)
        return commit.refusals(error)

    def _forget_if_unwanted(self, commit: PendingCommit) -> None:
        """Forget a commit that no caller waits for, unless it is being written."""
        if not commit.waiters and commit.phase is not CommitPhase.DECIDING:
            self._commits.pop(commit.key, None)

    def _timeout(
        self, commit: PendingCommit, waiter: CommitWaiter, now_ns: int
    ) -> ControlEffect:
        is_decided = commit.phase is CommitPhase.APPLYING
        if is_decided:
            job = self._control.job(commit.request.job_id)
            node_ids = self._waited_for(job, commit.sequence)
        else:
            node_ids = commit.verification.waiting_for()
        nodes = [self._control.nodes.present(node_id) for node_id in node_ids]
        job_id = commit.request.job_id
        error = CommitTimeoutError(
            commit.batch_id,
            (now_ns - waiter.asked_at_ns) / NS_PER_SECOND,
            node_ids,
            is_decided=is_decided,
            failures={
                node.node_id: node.failing[job_id].reason
                for node in nodes
                if node is not None and job_id in node.failing
            },
        )
        return RefuseWriter(link=waiter.link, request_id=waiter.request_id, error=error)


def _rights_replaced() -> DidNotHappenError:
    return DidNotHappenError("the rights of callers were replaced: ask again")


def _states_of(decided: JobChange | Repeated) -> tuple[BatchState, ...]:
    """Return what a batch writes, if it is to be decided."""
    entry = None if isinstance(decided, Repeated) else decided.entry
    return entry.states if isinstance(entry, BatchDecided) else ()


def _check_epochs(request: CommitBatch, ticket_next: int) -> None:
    """Return if a run that says when it was born can have been."""
    born_epoch, writer_epoch = request.born_epoch, request.writer_epoch
    if born_epoch is not None and not 0 < born_epoch <= writer_epoch < ticket_next:
        raise LocalProtocolError(
            f"a run that stages under {writer_epoch} was not born at {born_epoch}"
        )


def _check_decidable(job: Job, request: CommitBatch) -> JobChange | Repeated:
    """Return what deciding *request* would change, were it done now."""
    decided = job.decide(request, decided_at_us=0, pruned=())
    if isinstance(decided, Repeated):
        return decided
    assignment = job.assignment
    assert assignment is not None
    sent = job.assignment_of(request.assignment_version)
    if sent is None:
        # Not transient: what was staged elsewhere will not come here by itself.
        batch_id = job.staged_batch_id(request)
        raise StagedDataMissingError(batch_id, assignment.node_ids)
    for stage in request.stages:
        named = {*stage.chunk_counts, *stage.given_up}
        strangers = sorted(named.difference(sent.node_ids))
        if strangers:
            raise LocalProtocolError(
                f"nodes {', '.join(strangers)} hold no state of {request.job_id!r}"
            )
    return decided
