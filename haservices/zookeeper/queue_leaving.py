"""
How an entry leaves its queue: its node is deleted, and what it has published; pure.

Whether the leader's node is the entry's own is not always known: a publication that was
never answered may be there, and a successor may have replaced it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from haservices.zookeeper.nodes import CheckNode, DeleteNode
from haservices.zookeeper.queue_effects import Transact


if TYPE_CHECKING:
    from haservices.zookeeper.nodes import Node, NodeStat
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.queue_entry import QueueEntry


__all__ = ["leave", "unpublish"]


def leave(entry: QueueEntry, paths: ComponentPaths) -> Transact:
    """Return how to delete our node, and what we have published."""
    operations = [DeleteNode(path=entry.node)]
    if entry.may_have_published:
        operations.append(DeleteNode(path=paths.leader))
    return Transact(operations=tuple(operations))


def unpublish(
    entry: QueueEntry, node: Node, component: NodeStat | None, paths: ComponentPaths
) -> Transact | None:
    """
    Return how to delete the leader's node if it is ours, though our own node is gone.

    Our successor may replace it at the same time.  Each new leader counts up the
    version of the component's node, so that we do not delete its publication.

    Args:
        entry: Ours.
        node: The leader's node.
        component: The component's, or None if it is gone.
        paths: Of the component.

    Returns:
        None if it is not ours.
    """
    if component is None or not entry.known().has_published(node):
        return None
    operations = (
        CheckNode(path=paths.node, version=component.version),
        DeleteNode(path=paths.leader),
    )
    return Transact(operations=operations)
