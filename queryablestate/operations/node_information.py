"""`NodeInformation`: what operators are told of nodes, and how it is made; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from attrs import field, frozen

from nameservice.clock import MS_PER_SECOND


if TYPE_CHECKING:
    from queryablestate.wire.clients import NodeSummary


__all__ = ["NodeInformation", "node_information"]


@final
@frozen(kw_only=True)
class NodeInformation:
    """
    One node as the proxy leader sees it.

    Attributes:
        node_id: Its name.
        address: Where writers reach it, or None while it is away.
        last_heard_seconds: How long ago it was heard from, or None while it is away.
        key_group_counts: For each job how many key groups it is asked for.
        behind_counts: For each job how many decided entries it has yet to apply; empty
            while it is away, since that is not known then.
        copy_counts: For each job how many copies of key groups it has that could be
            asked; with one replica as many as it is asked for.
        is_draining: Whether it is being emptied: it gets no more key groups.
        kept_batches: For each job of which it keeps rows aside, since the name service
            has lost what was stored of it, the last batch; None while that is not
            known.
    """

    node_id: str
    address: str | None
    last_heard_seconds: float | None
    key_group_counts: Mapping[str, int]
    behind_counts: Mapping[str, int]
    copy_counts: Mapping[str, int] = field(factory=dict)
    is_draining: bool = False
    kept_batches: Mapping[str, int | None] = field(factory=dict)


def node_information(node: NodeSummary) -> NodeInformation:
    """Return what the proxy says of a node as operators see it."""
    return NodeInformation(
        node_id=node.node_id,
        address=node.address,
        last_heard_seconds=(
            None if node.last_heard_ms is None else node.last_heard_ms / MS_PER_SECOND
        ),
        key_group_counts=node.key_group_counts,
        behind_counts={} if node.address is None else node.behind_counts,
        copy_counts=node.copy_counts,
        is_draining=node.is_draining,
        kept_batches=_kept_batches(node),
    )


def _kept_batches(node: NodeSummary) -> dict[str, int | None]:
    """Return the last batch of each job that is kept; of several, the newest."""
    jobs = [job for rows in node.kept for job in rows.jobs]
    jobs.sort(key=lambda job: job.decided_at_us)
    return {job.job_id: job.batch_id for job in jobs}
