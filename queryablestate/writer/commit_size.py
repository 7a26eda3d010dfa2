"""
How large a request for a commit becomes; pure (rule B3).

A commit that is larger than the proxy takes is refused.  How many tasks stage is known
before one of them runs, so that nothing need be staged in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nameservice import ConfigurationError
from queryablestate.wire.clients import CommitBatch
from queryablestate.wire.codec import encode
from queryablestate.wire.records import StageRecord


if TYPE_CHECKING:
    from queryablestate.writer.batches import WriteRun


__all__ = ["check_task_count"]

# Of what a request for a commit is reckoned to hold: not less than it does.
_STAGE_ID_SIZE_BYTES: Final = 16
_SESSION_SIZE_BYTES: Final = 64
_DIGEST_SIZE_BYTES: Final = 64
_CHUNK_COUNT_RECKONED: Final = 255


def check_task_count(
    run: WriteRun, task_count: int, size_bytes_max: int | None
) -> None:
    """
    Return if what that many tasks stage can be committed in one request.

    Args:
        run: As it was begun.
        task_count: How many tasks there will be.
        size_bytes_max: How large a request the proxy takes, or None if that is unknown.

    Raises:
        ConfigurationError: If not; says what to change.
    """
    if size_bytes_max is None or task_count < 1:
        return
    one, two = (_commit_size_bytes(run, count) for count in (1, 2))
    size_bytes = one + (task_count - 1) * (two - one)
    if size_bytes > size_bytes_max:
        node_count = len(run.plan.nodes)
        raise ConfigurationError(
            f"a batch of {task_count:,} tasks on {node_count:,} nodes takes a "
            f"'commit' request of up to {size_bytes:,} bytes, and the proxy takes "
            f"{size_bytes_max:,}: write with at most "
            f"{1 + (size_bytes_max - one) // (two - one):,} tasks "
            "(DataFrame.coalesce), or raise its frame_size_bytes_max"
        )


def _commit_size_bytes(run: WriteRun, task_count: int) -> int:
    """Return how large the request for a commit is, if each node gets from each."""
    counts = {node.node_id: _CHUNK_COUNT_RECKONED for node in run.plan.nodes}
    stage = StageRecord(
        stage_id=bytes(_STAGE_ID_SIZE_BYTES), chunk_counts=counts, row_count=1 << 40
    )
    origin = run.origin
    request = CommitBatch(
        request_id=1 << 40,
        session=bytes(_SESSION_SIZE_BYTES),
        job_id=origin.job_id,
        query_id=origin.query_id,
        run_id=origin.run_id,
        writer_epoch=origin.writer_epoch,
        batch_id=1 << 40,
        assignment_version=origin.assignment_version,
        state_numbers=origin.state_numbers,
        is_complete=True,
        on_new_query=origin.on_new_query,
        stages=(stage,) * task_count,
        digests=(bytes(_DIGEST_SIZE_BYTES),) * len(origin.state_numbers),
        timeout_ms=1 << 40,
        born_epoch=origin.writer_epoch,
    )
    return len(encode(request))
