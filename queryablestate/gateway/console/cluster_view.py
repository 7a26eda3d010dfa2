"""Nodes, key groups and copies as values for a template; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from attrs import frozen

from queryablestate.operations.node_information import NodeInformation
from queryablestate.operations.rescaling_information import RescalingInformation


__all__ = ["ClusterView", "JobView", "NodeView", "ShareView", "cluster_view"]

_MOVE_COUNT_MAX: Final = 100


@final
@frozen(kw_only=True)
class ShareView:
    """
    What one node has of one job.

    Attributes:
        node_id: The node.
        asked_count: Key groups that it is asked for.
        copy_count: Copies of key groups that it has.
        behind_count: Batches that it has yet to apply; None while it is away.
        length: Its part of all that nodes are asked for, 0 to 100.
        is_away: Whether the node is.
    """

    node_id: str
    asked_count: int
    copy_count: int
    behind_count: int | None
    length: float
    is_away: bool


@final
@frozen(kw_only=True)
class JobView:
    """
    One job, and where its key groups are.

    Attributes:
        rescaling: As operators see it.
        shares: Of each node that has or copies some of it, by name.
        done: How much of a move is done, 0 to 100; None if nothing moves.
        moves: What is copied, for people.
        is_cut: Whether there are more moves than are shown.
        problems: What is wrong, and what to do.
    """

    rescaling: RescalingInformation
    shares: Sequence[ShareView]
    done: float | None
    moves: Sequence[str]
    is_cut: bool
    problems: Sequence[str]


@final
@frozen(kw_only=True)
class NodeView:
    """
    One node.

    Attributes:
        node: As operators see it.
        status: ``there``, ``away`` or ``draining``.
        asked_count: Key groups of all jobs that it is asked for.
        copy_count: Copies of key groups of all jobs.
        behind_count: Batches of all jobs that it has yet to apply.
        problems: What is wrong, and what to do.
    """

    node: NodeInformation
    status: str
    asked_count: int
    copy_count: int
    behind_count: int
    problems: Sequence[str]


@final
@frozen(kw_only=True)
class ClusterView:
    """
    All of it.

    Attributes:
        nodes: Sorted by name.
        jobs: Sorted by name.
        away_count: Nodes that are away.
        left_count: Copies that are still to be made.
    """

    nodes: Sequence[NodeView]
    jobs: Sequence[JobView]
    away_count: int
    left_count: int

    @property
    def summary(self) -> str:
        """Return how it is, in a line."""
        parts = [f"{len(self.nodes)} {'node' if len(self.nodes) == 1 else 'nodes'}"]
        if self.away_count:
            parts.append(f"{self.away_count} away")
        if self.left_count:
            parts.append(f"{self.left_count} copies of key groups to be made")
        return ", ".join(parts)


def cluster_view(
    nodes: Sequence[NodeInformation], rescalings: Sequence[RescalingInformation]
) -> ClusterView:
    """Return what operators are told of nodes and moves as a page shows it."""
    by_name = {node.node_id: node for node in nodes}
    return ClusterView(
        nodes=[_node(node) for node in nodes],
        jobs=[_job(each, by_name) for each in rescalings],
        away_count=sum(node.address is None for node in nodes),
        left_count=sum(each.left_count for each in rescalings),
    )


def _node(node: NodeInformation) -> NodeView:
    is_away = node.address is None
    problems = []
    if is_away:
        only = ", ".join(name for name, count in node.key_group_counts.items() if count)
        problems.append(
            f"{node.node_id} is away, and is asked for key groups of {only}: what no "
            "other node has a copy of is unavailable. Start it again with its data "
            "directory."
            if only
            else f"{node.node_id} is away. Start it again, or take it from the list "
            f"with “lodestar forget-node {node.node_id}”."
        )
    for job_id, batch_id in sorted(node.kept_batches.items()):
        batch = "" if batch_id is None else f" up to batch {batch_id}"
        problems.append(
            f"{node.node_id} keeps rows of {job_id}{batch} that the name service has "
            f"forgotten. Take them over with “lodestar adopt {job_id}”."
        )
    status = "away" if is_away else "draining" if node.is_draining else "there"
    return NodeView(
        node=node,
        status=status,
        asked_count=sum(node.key_group_counts.values()),
        copy_count=sum(node.copy_counts.values()),
        behind_count=sum(node.behind_counts.values()),
        problems=problems,
    )


def _job(
    rescaling: RescalingInformation, nodes: Mapping[str, NodeInformation]
) -> JobView:
    job_id = rescaling.job_id
    asked, copies = rescaling.key_group_counts, rescaling.copy_counts
    movers = {move.node_id for move in rescaling.moves}
    whole = max(1, sum(asked.values()))
    shares = []
    for node_id in sorted({*asked, *copies} | movers):
        node = nodes.get(node_id)
        is_away = node is None or node.address is None
        shares.append(
            ShareView(
                node_id=node_id,
                asked_count=asked.get(node_id, 0),
                copy_count=copies.get(node_id, 0),
                behind_count=(
                    None
                    if node is None or is_away
                    else node.behind_counts.get(job_id, 0)
                ),
                length=round(100 * asked.get(node_id, 0) / whole, 2),
                is_away=is_away,
            )
        )
    problems = [
        f"{move.node_id} cannot copy: {move.failure}. It tries again by itself."
        for move in rescaling.moves
        if move.failure is not None
    ]
    if rescaling.missing_count:
        problems.append(
            f"{rescaling.missing_count} key groups have fewer copies than the "
            f"{rescaling.replica_count} that are wanted. Start a node, or those "
            "that are away: copies are made by themselves."
        )
    done = None
    if not rescaling.is_done:
        planned = max(rescaling.planned_count, rescaling.left_count, 1)
        done = round(100 * (planned - rescaling.left_count) / planned, 1)
    return JobView(
        rescaling=rescaling,
        shares=shares,
        done=done,
        moves=[
            f"{move.node_id} copies {move.copying_count} key groups from "
            f"{', '.join(move.source_ids) or 'others'}; {move.waiting_count} wait; "
            f"{move.row_count:,} rows so far"
            for move in rescaling.moves[:_MOVE_COUNT_MAX]
        ],
        is_cut=len(rescaling.moves) > _MOVE_COUNT_MAX,
        problems=problems,
    )
