"""
Batches on their way from staged to applied; pure (rules W3 and W4).

Theory of operation.  A commit goes through three phases::

    VERIFYING   the nodes are asked whether they hold every chunk of the winning stages;
                nodes that are away are asked when they are back
    DECIDING    the decision waits to be written, or is being written
    APPLYING    it is in the chain; the owners are told, and tell when they have it

Up to DECIDING nothing has happened, and the writer may run the batch again.  From
APPLYING on the batch is committed whatever happens to the writer, and asking again only
waits.  Verification costs a round trip, and buys that a decision never names rows that
nobody has: a node that lacks rows of a decision can never go on.

What a node has verified holds for the data directory that it had: if it comes back with
another one before the decision is written, the decision is not made.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import Factory, define, frozen

from nameservice import (
    CommitTimeoutError,
    LocalProtocolError,
    StagedDataMissingError,
)
from queryablestate.batch_order import Repeated
from queryablestate.chains import extend_chain, lagging_nodes, prunable_entries
from queryablestate.control_changes import Change, Write
from queryablestate.control_effects import AnswerWriter, RefuseWriter, SendToNode
from queryablestate.messages import BatchCommitted
from queryablestate.node_messages import VerifyStages


if TYPE_CHECKING:
    from collections.abc import Sequence

    from nameservice import NameServiceError
    from queryablestate.control_changes import Outcome
    from queryablestate.control_effects import ControlEffect
    from queryablestate.control_events import Link
    from queryablestate.control_state import ControlState
    from queryablestate.decisions import Job
    from queryablestate.job_changes import JobChange
    from queryablestate.messages import CommitBatch
    from queryablestate.node_messages import StagesVerified
    from queryablestate.node_table import PresentNode
    from queryablestate.records import StageRecord


__all__ = ["Commits", "verify_id_of"]

_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000
_VERIFY_ID_SIZE_BYTES: Final = 7

_CommitKey: TypeAlias = "tuple[str, str, int, int | None, tuple[int, ...]]"


class _Phase(Enum):
    """How far a commit is; see the module docstring."""

    VERIFYING = "verifying"
    DECIDING = "deciding"
    APPLYING = "applying"


@frozen(kw_only=True)
class _Waiter:
    """A writer that waits for a commit."""

    link: Link
    request_id: int
    asked_at_ns: int
    deadline_ns: int


@final
@define(kw_only=True)
class _Commit:
    """
    A batch on its way.

    Attributes:
        key: What names it.
        request: As it was asked for last.
        batch_id: The number that its rows are staged under.
        phase: How far it is.
        waiters: Who is to be told.
        verify_id: Names the answers of the nodes.
        unverified: The nodes that have yet to answer.
        store_ids: The data directories of those that have.
        sequence: Its place in the chain, from APPLYING on.
        is_repeated: Whether it had been decided before it was asked for.
    """

    key: _CommitKey
    request: CommitBatch
    batch_id: int
    phase: _Phase = _Phase.VERIFYING
    waiters: list[_Waiter] = Factory(list)
    verify_id: int = 0
    unverified: set[str] = Factory(set)
    store_ids: dict[str, str] = Factory(dict)
    sequence: int = 0
    is_repeated: bool = False


def verify_id_of(
    job_id: str, writer_epoch: int, batch_id: int, stages: Sequence[StageRecord]
) -> int:
    """
    Return what names a verification of these stages.

    It follows from what is verified, not from a count: an answer to another leader that
    comes late cannot be taken for an answer to something else.
    """
    digest = blake2b(digest_size=_VERIFY_ID_SIZE_BYTES)
    digest.update(f"{writer_epoch} {batch_id} {job_id}".encode())
    for stage in stages:
        digest.update(stage.stage_id)
    return int.from_bytes(digest.digest(), "big")


@final
class Commits:
    """
    The commits that somebody waits for, or that are being decided.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._commits: dict[_CommitKey, _Commit] = {}

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
        self, link: Link, request: CommitBatch, wall_clock_us: int, *, now_ns: int
    ) -> list[Outcome]:
        """
        Begin a commit, or join one that is on its way.

        Raises:
            QueryableStateError: Why it cannot be; see `Job.decide`.
        """
        job = self._control.job(request.job_id)
        waiter = _Waiter(
            link=link,
            request_id=request.request_id,
            asked_at_ns=now_ns,
            deadline_ns=now_ns + request.timeout_ms * _NS_PER_MS,
        )
        key = _key_of(request)
        commit = self._commits.get(key)
        if commit is not None and (
            commit.phase is not _Phase.VERIFYING
            or commit.request.stages == request.stages
        ):
            commit.waiters.append(waiter)
            return []
        decided = _check_decidable(job, request)
        if commit is None:
            commit = _Commit(
                key=key, request=request, batch_id=job.staged_batch_id(request)
            )
            self._commits[key] = commit
        commit.waiters.append(waiter)
        if isinstance(decided, Repeated):
            return [*self._await_applied(commit, decided, is_repeated=True)]
        outcomes: list[Outcome] = [*self._verify(commit, request, job)]
        if not commit.unverified:
            outcomes.append(self._decide(commit, wall_clock_us))
        return outcomes

    def verified(
        self, node: PresentNode, message: StagesVerified, wall_clock_us: int
    ) -> list[Outcome]:
        """Take note of what a node has of the stages that it was asked for."""
        outcomes: list[Outcome] = []
        for commit in list(self._commits.values()):
            if (
                commit.phase is not _Phase.VERIFYING
                or commit.verify_id != message.verify_id
                or node.node_id not in commit.unverified
            ):
                continue
            if message.missing:
                error = StagedDataMissingError(commit.batch_id, [node.node_id])
                outcomes += self._fail(commit, error)
                continue
            commit.unverified.remove(node.node_id)
            commit.store_ids[node.node_id] = node.store_id
            if not commit.unverified:
                outcomes.append(self._decide(commit, wall_clock_us))
        return outcomes

    def node_registered(self, node: PresentNode) -> list[ControlEffect]:
        """Ask a node that is back what it has to verify, and see how far it is."""
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            if commit.phase is _Phase.APPLYING:
                effects += self._finish_if_applied(commit)
            elif node.node_id in commit.unverified:
                effects.append(self._verification(commit, node))
        return effects

    def node_moved(self, job_id: str) -> list[ControlEffect]:
        """Answer the writers whose batches every owner has applied by now."""
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            is_applying = commit.phase is _Phase.APPLYING
            if is_applying and commit.request.job_id == job_id:
                effects += self._finish_if_applied(commit)
        return effects

    def link_closed(self, link: Link) -> None:
        """Forget who waited over that connection."""
        for commit in list(self._commits.values()):
            commit.waiters = [
                waiter for waiter in commit.waiters if waiter.link != link
            ]
            self._forget_if_unwanted(commit)

    def expire(self, *, now_ns: int) -> list[ControlEffect]:
        """Refuse those whose time is up."""
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            late = [waiter for waiter in commit.waiters if waiter.deadline_ns <= now_ns]
            if not late:
                continue
            commit.waiters = [
                waiter for waiter in commit.waiters if waiter.deadline_ns > now_ns
            ]
            effects += [self._timeout(commit, waiter, now_ns) for waiter in late]
            self._forget_if_unwanted(commit)
        return effects

    def refuse_all(self, error: NameServiceError) -> list[ControlEffect]:
        """Refuse everybody who waits."""
        effects: list[ControlEffect] = []
        for commit in list(self._commits.values()):
            effects += self._fail(commit, error)
        return effects

    # -- verifying -----------------------------------------------------------------

    def _verify(
        self, commit: _Commit, request: CommitBatch, job: Job
    ) -> list[ControlEffect]:
        """Ask the nodes for the chunks of *request*."""
        commit.request = request
        commit.verify_id = verify_id_of(
            request.job_id, request.writer_epoch, commit.batch_id, request.stages
        )
        commit.store_ids = {}
        commit.unverified = {
            node_id
            for stage in request.stages
            for node_id, count in stage.chunk_counts.items()
            if count > 0
        }
        return [
            self._verification(commit, node)
            for node in self._control.present_of(job)
            if node.node_id in commit.unverified
        ]

    def _verification(self, commit: _Commit, node: PresentNode) -> ControlEffect:
        request = commit.request
        message = VerifyStages(
            leader_epoch=self._control.leader_epoch,
            verify_id=commit.verify_id,
            job_id=request.job_id,
            writer_epoch=request.writer_epoch,
            batch_id=commit.batch_id,
            stages=tuple(
                stage
                for stage in request.stages
                if stage.chunk_counts.get(node.node_id, 0) > 0
            ),
        )
        return SendToNode(link=node.link, message=message)

    # -- deciding ------------------------------------------------------------------

    def _decide(self, commit: _Commit, wall_clock_us: int) -> Change:
        """Let the decision wait for its turn to be written."""
        commit.phase = _Phase.DECIDING
        return Change(
            prepare=partial(self._decision, commit, wall_clock_us),
            refuse=partial(self._fail, commit),
        )

    def _decision(
        self, commit: _Commit, wall_clock_us: int, now_ns: int
    ) -> Write | Sequence[Outcome]:
        """Check once more, now that nothing can come between, and write."""
        del now_ns
        request = commit.request
        job = self._control.job(request.job_id)
        decided = _check_decidable(job, request)
        if isinstance(decided, Repeated):
            return self._await_applied(commit, decided, is_repeated=True)
        nodes = self._control.nodes
        replaced = [
            node_id
            for node_id, store_id in sorted(commit.store_ids.items())
            if nodes.store_id_of(node_id) != store_id
        ]
        if replaced:
            raise StagedDataMissingError(commit.batch_id, replaced)
        change = job.decide(
            request,
            decided_at_us=wall_clock_us,
            pruned=prunable_entries(self._control, job),
        )
        assert not isinstance(change, Repeated)
        return Write(
            operations=change.operations(),
            adopt=partial(self._decided, commit, change),
        )

    def _decided(
        self, commit: _Commit, change: JobChange, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        job = self._control.job(commit.request.job_id)
        effects = extend_chain(self._control, job, change)
        decided = Repeated(batch_id=commit.batch_id, sequence=job.record.sequence)
        return effects + self._await_applied(commit, decided, is_repeated=False)

    # -- applying ------------------------------------------------------------------

    def _await_applied(
        self, commit: _Commit, decided: Repeated, *, is_repeated: bool
    ) -> list[ControlEffect]:
        commit.phase = _Phase.APPLYING
        commit.batch_id = decided.batch_id
        commit.sequence = decided.sequence
        commit.is_repeated = is_repeated
        self._forget_if_unwanted(commit)
        return self._finish_if_applied(commit)

    def _finish_if_applied(self, commit: _Commit) -> list[ControlEffect]:
        """Answer the writers if every owner is as far as this commit."""
        job = self._control.job(commit.request.job_id)
        if lagging_nodes(self._control, job, commit.sequence):
            return []
        self._commits.pop(commit.key, None)
        return [
            AnswerWriter(
                link=waiter.link,
                message=BatchCommitted(
                    request_id=waiter.request_id,
                    batch_id=commit.batch_id,
                    is_repeated=commit.is_repeated,
                ),
            )
            for waiter in commit.waiters
        ]

    # -- failing -------------------------------------------------------------------

    def _fail(self, commit: _Commit, error: NameServiceError) -> list[ControlEffect]:
        self._commits.pop(commit.key, None)
        return [
            RefuseWriter(link=waiter.link, request_id=waiter.request_id, error=error)
            for waiter in commit.waiters
        ]

    def _forget_if_unwanted(self, commit: _Commit) -> None:
        """Forget a commit that nobody waits for, unless it is being written."""
        if not commit.waiters and commit.phase is not _Phase.DECIDING:
            self._commits.pop(commit.key, None)

    def _timeout(self, commit: _Commit, waiter: _Waiter, now_ns: int) -> ControlEffect:
        is_decided = commit.phase is _Phase.APPLYING
        if is_decided:
            job = self._control.job(commit.request.job_id)
            node_ids = lagging_nodes(self._control, job, commit.sequence)
        else:
            node_ids = sorted(commit.unverified)
        error = CommitTimeoutError(
            commit.batch_id,
            (now_ns - waiter.asked_at_ns) / _NS_PER_SECOND,
            node_ids,
            is_decided=is_decided,
        )
        return RefuseWriter(link=waiter.link, request_id=waiter.request_id, error=error)


def _key_of(request: CommitBatch) -> _CommitKey:
    return (
        request.job_id,
        request.query_id,
        request.writer_epoch,
        request.batch_id,
        request.state_numbers,
    )


def _check_decidable(job: Job, request: CommitBatch) -> JobChange | Repeated:
    """Return what deciding *request* would change, were it done now."""
    decided = job.decide(request, decided_at_us=0, pruned=())
    if isinstance(decided, Repeated):
        return decided
    assignment = job.assignment
    assert assignment is not None
    if request.assignment_version != assignment.version:
        # Not transient: what was staged elsewhere will not come here by itself.
        batch_id = job.staged_batch_id(request)
        raise StagedDataMissingError(batch_id, assignment.node_ids)
    for stage in request.stages:
        strangers = sorted(set(stage.chunk_counts) - set(assignment.node_ids))
        if strangers:
            raise LocalProtocolError(
                f"nodes {', '.join(strangers)} hold no state of {request.job_id!r}"
            )
    return decided
