"""
Runs of streaming queries, and which of them may write (rule W1); pure.

The run with the highest first ticket is the newest of its query.  What is older stays
over, whatever ticket it shows later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from nameservice import LocalProtocolError, StaleWriterError
from queryablestate.records import RunRecord


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.messages import CommitBatch
    from queryablestate.records import StateProgress


__all__ = ["current_run", "run_with_ticket", "runs_with"]

_SUPERSEDED_COUNT_MAX: Final = 32
_RUN_COUNT_MAX: Final = 200


def run_with_ticket(
    run: RunRecord | None, *, query_id: str, run_id: str, ticket: int
) -> RunRecord:
    """
    Return the newest run of a query, if *run_id* is that, or becomes it.

    Args:
        run: The newest one so far, or None.
        query_id: The query.
        run_id: Who shows a ticket.
        ticket: The ticket.

    Raises:
        StaleWriterError: If it is an older run.
    """
    if run is None:
        return RunRecord(
            query_id=query_id,
            run_id=run_id,
            writer_epoch=ticket,
            batch_id=None,
            superseded=(),
        )
    if run.run_id == run_id:
        return run
    epoch = dict(run.superseded).get(run_id, ticket)
    if epoch <= run.writer_epoch:
        raise StaleWriterError(query_id, epoch, run.writer_epoch)
    superseded = ((run.run_id, run.writer_epoch), *run.superseded)
    return replace(
        run,
        run_id=run_id,
        writer_epoch=ticket,
        batch_id=None,
        superseded=superseded[:_SUPERSEDED_COUNT_MAX],
    )


def current_run(run: RunRecord | None, request: CommitBatch) -> RunRecord:
    """
    Return the newest run of a query, which must be the one that asks.

    Raises:
        StaleWriterError: If it is an older one.
        LocalProtocolError: If it is one that nobody has bound.
    """
    if run is None or (
        run.run_id != request.run_id and request.writer_epoch > run.writer_epoch
    ):
        raise LocalProtocolError(
            f"run {request.run_id} of query {request.query_id} is not bound: "
            "bind it before it commits"
        )
    if (run.run_id, run.writer_epoch) != (request.run_id, request.writer_epoch):
        raise StaleWriterError(request.query_id, request.writer_epoch, run.writer_epoch)
    return run


def runs_with(
    runs: Sequence[RunRecord], run: RunRecord, progress: Sequence[StateProgress]
) -> tuple[RunRecord, ...]:
    """
    Return *runs* with *run* as the most recently active one.

    Beyond 200, queries that own no state are forgotten, the least recently active
    first.
    """
    others = [other for other in runs if other.query_id != run.query_id]
    if len(others) >= _RUN_COUNT_MAX:
        owners = {entry.query_id for entry in progress}
        idle = [other for other in others if other.query_id not in owners]
        for other in idle[: len(others) - _RUN_COUNT_MAX + 1]:
            others.remove(other)
    return (*others, run)
