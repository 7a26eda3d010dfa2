"""
Which batches of a query may be decided, and which are decided already (W4); pure.

See `queryablestate.control.job.job` for what the numbers mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from nameservice import ConfigurationError, LocalProtocolError
from queryablestate.errors import CheckpointRewoundError
from queryablestate.wire.batch_digest import is_rewritten
from queryablestate.wire.job_plan import QUERY_COUNT_MAX, remembered


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.clients import CommitBatch
    from queryablestate.wire.records import QueryProgress, RunRecord, StateProgress


__all__ = [
    "QUERY_COUNT_MAX",
    "Repeated",
    "check_commit",
    "check_gapless",
    "check_not_rewritten",
    "check_rising",
    "query_progress",
    "remembered_queries",
    "repetition_of",
]


@frozen(kw_only=True)
class Repeated:
    """
    A batch that was decided before: there is nothing to change.

    Attributes:
        batch_id: Which batch.
        sequence: Its entry in the chain; the last one of them if there are several.
    """

    batch_id: int
    sequence: int


def query_progress(progress: StateProgress, query_id: str) -> QueryProgress | None:
    """Return how far a query is with a state, or None if it has not written it."""
    for one in progress.queries:
        if one.query_id == query_id:
            return one
    return None


def repetition_of(
    run: RunRecord, request: CommitBatch, done: Mapping[int, QueryProgress | None]
) -> Repeated | None:
    """Return which decided batch *request* repeats, or None if it is a new one."""
    found = [last for last in done.values() if last is not None]
    if len(found) < len(done):
        return None
    if request.batch_id is None:  # a batch job writes once in each run
        is_repeated = all(last.writer_epoch == run.writer_epoch for last in found)
    else:
        is_repeated = all(last.batch_id == request.batch_id for last in found)
    if not is_repeated:
        return None
    return Repeated(
        batch_id=found[0].batch_id, sequence=max(last.sequence for last in found)
    )


def check_not_rewritten(
    request: CommitBatch, progress: Mapping[int, StateProgress]
) -> None:
    """
    Return if no state has another batch of that number from the same query (rule W4).

    A checkpoint that is one batch old gives the number to other rows: they would be
    acknowledged, and lost.

    Raises:
        CheckpointRewoundError: If one has.
    """
    if request.batch_id is None or not request.digests:
        return
    for number, digest in zip(request.state_numbers, request.digests, strict=True):
        decided = progress[number]
        if (decided.query_id, decided.batch_id) == (
            request.query_id,
            request.batch_id,
        ) and is_rewritten(decided.digest, digest):
            raise CheckpointRewoundError(
                request.query_id, request.batch_id, request.batch_id
            )


def remembered_queries(
    queries: Sequence[QueryProgress], replaced_sequence: int
) -> tuple[QueryProgress, ...]:
    """
    Return the queries of a state that are held to what they have written.

    Raises:
        ConfigurationError: If all of them have rows there.
    """
    kept = remembered(queries, replaced_sequence)
    if len(kept) > QUERY_COUNT_MAX:
        raise ConfigurationError(
            f"{QUERY_COUNT_MAX} queries have gone on with one state, and batches of "
            "one more could not be told from theirs: begin anew with "
            "on_new_query='replace', or drop the state"
        )
    return kept


def check_rising(
    run: RunRecord,
    batch_id: int,
    done: Mapping[int, QueryProgress | None],
    *,
    is_batch_job: bool,
) -> None:
    """Return if a batch of that number may still be decided."""
    last = max((one.batch_id for one in done.values() if one is not None), default=-1)
    if is_batch_job and last >= batch_id:
        raise LocalProtocolError(
            f"query {run.query_id} is not equally far with all states that it writes: "
            "write them in batch jobs of their own"
        )
    if last > batch_id:
        raise CheckpointRewoundError(run.query_id, batch_id, last)
    if run.batch_id is not None and run.batch_id >= batch_id:
        raise LocalProtocolError(
            f"run {run.run_id} of query {run.query_id} has written batch "
            f"{run.batch_id}, and comes with other states for batch {batch_id}: "
            "write all states of a batch in one commit, and batches in their order"
        )


def check_gapless(
    run: RunRecord, batch_id: int, done: Mapping[int, QueryProgress | None]
) -> None:
    """
    Return if nothing is missing before the first batch after a restore.

    What was restored has no writer epoch.  A checkpoint may be of a later time than the
    snapshot: its next batch would go on where rows of batches between are missing.

    Raises:
        ConfigurationError: If so; says how the checkpoint is brought back.
    """
    for last in done.values():
        if last is None or last.writer_epoch != 0 or batch_id <= last.batch_id + 1:
            continue
        raise ConfigurationError(
            f"query {run.query_id} comes with batch {batch_id}, and its state was "
            f"restored as of batch {last.batch_id}: remove what is numbered above "
            f"{last.batch_id} from offsets/ and commits/ of its checkpoint, or restore "
            "a later snapshot"
        )


def check_commit(request: CommitBatch) -> None:
    """Refuse what no writer of ours sends, and what would apply something twice."""
    numbers = request.state_numbers
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigurationError(
            f"a batch writes at least one state, and each once, not {list(numbers)}"
        )
    if request.digests and len(request.digests) != len(numbers):
        raise ConfigurationError(
            f"a batch that writes {len(numbers)} states has as many digests, or none, "
            f"not {len(request.digests)}"
        )
    if request.batch_id is not None and request.batch_id < 0:
        raise ConfigurationError(f"a batch id is 0 or more, not {request.batch_id}")
    stage_ids = {stage.stage_id for stage in request.stages}
    if len(stage_ids) < len(request.stages):
        raise ConfigurationError("a batch names each stage once")
