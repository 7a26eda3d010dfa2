"""
Runs of streaming queries, and which of them may write (rule W1); pure.

Theory of operation.  A run is born with an epoch, the first ticket that it has shown,
and shows it for life.  The youngest run that is known of a query is its newest, and
whatever was born before is refused, for ever: one number tells, and no run id need be
remembered (rule B4).

Most writers say with their first bind when their run was born.  Tasks of Spark's own
writers do not know it: they *bind for now*, which permits them to stage under a
ticket of the batch and changes nothing for others; their commit says when the run was
born.

Queries that are forgotten leave one number for all of them, the highest: a query that
is not known has no run at it or below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nameservice import LocalProtocolError
from queryablestate.errors import StaleWriterError
from queryablestate.wire.records import RunRecord


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.wire.clients import BindRun, CommitBatch
    from queryablestate.wire.records import StateProgress


__all__ = ["bound_run", "committing_run", "runs_with"]

_RUN_COUNT_MAX: Final = 200


def bound_run(run: RunRecord | None, request: BindRun, *, fence: int) -> RunRecord:
    """
    Return the run of *request*; it is the newest one if it says when it was born.

    Args:
        run: The newest run of the query so far, or None.
        request: A run shows a ticket.
        fence: No run of a query that is not known is younger than that.

    Raises:
        StaleWriterError: If it is older than the newest.
    """
    if run is not None and run.run_id == request.run_id:
        return run
    epoch = request.ticket if request.born_epoch is None else request.born_epoch
    return _younger(
        run,
        query_id=request.query_id,
        run_id=request.run_id,
        born_epoch=epoch,
        writer_epoch=epoch,
        fence=fence,
    )


def committing_run(
    run: RunRecord | None, request: CommitBatch, *, fence: int
) -> RunRecord:
    """
    Return the run that wants a batch decided, which must be the newest of its query.

    Raises:
        StaleWriterError: If it is an older one.
        LocalProtocolError: If it is one that was never bound, and that does not say
            when it was born.
    """
    if run is not None and run.run_id == request.run_id:
        if run.writer_epoch != request.writer_epoch:
            raise StaleWriterError(
                request.query_id, request.writer_epoch, run.writer_epoch
            )
        return run
    if request.born_epoch is not None:
        return _younger(
            run,
            query_id=request.query_id,
            run_id=request.run_id,
            born_epoch=request.born_epoch,
            writer_epoch=request.writer_epoch,
            fence=fence,
        )
    if run is not None and request.writer_epoch <= run.writer_epoch:
        raise StaleWriterError(request.query_id, request.writer_epoch, run.writer_epoch)
    raise LocalProtocolError(
        f"run {request.run_id} of query {request.query_id} is not bound: bind it "
        "before it commits, with the epoch that it was born with; a writer of an "
        "earlier version does not know that, and is to be upgraded"
    )


def runs_with(
    runs: Sequence[RunRecord],
    run: RunRecord,
    progress: Sequence[StateProgress],
    *,
    fence: int,
) -> tuple[tuple[RunRecord, ...], int]:
    """
    Return *runs* with *run* as the most recently active one, and the fence of the rest.

    Beyond 200, queries that own no state are forgotten, the least recently active
    first: the fence rises above them.
    """
    others = [other for other in runs if other.query_id != run.query_id]
    if len(others) >= _RUN_COUNT_MAX:
        owners = {entry.query_id for entry in progress}
        idle = [other for other in others if other.query_id not in owners]
        for other in idle[: len(others) - _RUN_COUNT_MAX + 1]:
            others.remove(other)
            fence = max(fence, other.writer_epoch)
    return (*others, run), fence


def _younger(
    run: RunRecord | None,
    *,
    query_id: str,
    run_id: str,
    born_epoch: int,
    writer_epoch: int,
    fence: int,
) -> RunRecord:
    """Return a run that is younger than *run*; `StaleWriterError` if it is not."""
    if run is None:
        born_epoch_max, writer_epoch_max = fence, fence
    else:
        born_epoch_max = run.born_epoch or run.writer_epoch
        writer_epoch_max = run.writer_epoch
    if born_epoch <= born_epoch_max or writer_epoch <= writer_epoch_max:
        raise StaleWriterError(query_id, born_epoch, writer_epoch_max)
    return RunRecord(
        query_id=query_id,
        run_id=run_id,
        writer_epoch=writer_epoch,
        batch_id=None,
        state_numbers=() if run is None else run.state_numbers,
        born_epoch=born_epoch,
    )
