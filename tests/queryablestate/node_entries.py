"""Entries, assignments and questions for the tests of a node, as short as can be."""

from __future__ import annotations

from queryablestate.node.core.events import AskedQuestion
from queryablestate.wire.job_assignment import (
    CopySource,
    JobAssignment,
    JoiningGroup,
    WriterFence,
)
from queryablestate.wire.questions import GetValues, Operation, Question
from queryablestate.wire.records import (
    BatchDecided,
    BatchState,
    SnapshotMarked,
    SnapshotRestored,
    StageRecord,
    StateDropped,
)


def batch(
    sequence: int,
    *,
    batch_id: int | None = None,
    generation: int = 1,
    writer_epoch: int = 1,
    state_number: int = 1,
    stages: tuple[StageRecord, ...] = (),
    kind: str = "value",
    has_ttl: bool = False,
    is_replaced: bool = False,
) -> BatchDecided:
    """Return an entry that decides a batch of query ``q``."""
    return BatchDecided(
        sequence=sequence,
        query_id="q",
        writer_epoch=writer_epoch,
        batch_id=sequence if batch_id is None else batch_id,
        assignment_version=1,
        decided_at_us=0,
        states=(
            BatchState(
                state_number=state_number,
                kind=kind,
                has_ttl=has_ttl,
                generation=generation,
                is_replaced=is_replaced,
            ),
        ),
        stages=stages,
    )


def drop(sequence: int, state_number: int = 1) -> StateDropped:
    """Return an entry that drops a state."""
    return StateDropped(sequence=sequence, state_number=state_number)


def snapshot(sequence: int) -> SnapshotMarked:
    """Return an entry at which a snapshot is taken."""
    return SnapshotMarked(sequence=sequence, snapshot_id="x")


def restored(sequence: int, *state_numbers: int) -> SnapshotRestored:
    """Return an entry that brings the rows of a snapshot."""
    return SnapshotRestored(
        sequence=sequence, restore_id="x", state_numbers=state_numbers
    )


def assignment(
    job_id: str = "job",
    *,
    version: int = 1,
    key_groups: tuple[int, ...] = (0, 1),
    max_parallelism: int = 4,
    fences: tuple[WriterFence, ...] = (),
    sequence: int = 0,
    copies: tuple[int, ...] = (),
    joining: tuple[JoiningGroup, ...] = (),
    sources: tuple[CopySource, ...] = (),
) -> JobAssignment:
    """Return what a node answers for, and what it holds besides."""
    return JobAssignment(
        job_id=job_id,
        assignment_version=version,
        max_parallelism=max_parallelism,
        key_groups=key_groups,
        fences=fences,
        sequence=sequence,
        copies=copies,
        joining=joining,
        sources=sources,
    )


def joining(since: dict[int, int]) -> tuple[JoiningGroup, ...]:
    """Return key groups that are to be copied, and since when each is."""
    return tuple(JoiningGroup(group, one) for group, one in sorted(since.items()))


def source(node_id: str, *key_groups: int) -> CopySource:
    """Return a node that has copies and is there."""
    address = f"tcp://10.0.1.{ord(node_id[0])}:1"
    return CopySource(node_id=node_id, address=address, key_groups=key_groups)


def question(
    question_id: int = 1,
    *,
    leader_epoch: int = 3,
    state_number: int = 1,
    version: int = 1,
    operation: Operation | None = None,
    deadline_ms: int = 5_000,
    min_batch_id: int | None = None,
    min_generation: int | None = None,
    asker: str = "",
    copies: tuple[tuple[int, int], ...] | None = None,
) -> Question:
    """Return a question of the proxy leader."""
    return Question(
        leader_epoch=leader_epoch,
        question_id=question_id,
        state_number=state_number,
        assignment_version=version,
        operation=GetValues() if operation is None else operation,
        deadline_ms=deadline_ms,
        min_batch_id=min_batch_id,
        min_generation=min_generation,
        asker=asker,
        copies=copies,
    )


def asked(one: Question, asked_at_ns: int = 0) -> AskedQuestion:
    """Return *one* as it came in."""
    return AskedQuestion(question=one, keys=b"keys", asked_at_ns=asked_at_ns)
