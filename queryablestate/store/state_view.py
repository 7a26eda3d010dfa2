"""`StateView`: what a node knows of a state, as readers are told it; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import frozen


if TYPE_CHECKING:
    from queryablestate.store.layout import Runs, StateMark


__all__ = ["StateView", "view_of"]


@final
@frozen(kw_only=True)
class StateView:
    """
    What a node knows of a state, as of one moment.

    Attributes:
        job_id: The job that it belongs to.
        generation: The ownership that the last applied batch belongs to; 0 before one.
        batch_id: The last batch applied, or None before the first.
        decided_at_us: When that was decided, microseconds since 1970 UTC; 0 before.
        kind: ``value``, ``list`` or ``map``; an empty string before the first batch.
        has_ttl: Whether rows carry an expiry.
        lost: Key groups whose rows were lost, and that no batch has replaced yet (W7):
            the first and the last one of each run, sorted.
    """

    job_id: str
    generation: int
    batch_id: int | None
    decided_at_us: int
    kind: str
    has_ttl: bool
    lost: Runs


def view_of(mark: StateMark) -> StateView:
    """Return what *mark* says, but for where the rows are."""
    return StateView(
        job_id=mark.job_id,
        generation=mark.generation,
        batch_id=mark.batch_id,
        decided_at_us=mark.decided_at_us,
        kind=mark.kind,
        has_ttl=mark.has_ttl,
        lost=mark.lost,
    )
