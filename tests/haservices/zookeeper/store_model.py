"""A tree of nodes as ZooKeeper keeps it, and what the leader store in it is to hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never, final

import attrs

from election.store import Put
from haservices.zookeeper.nodes import (
    ANY_VERSION,
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeStat,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper.packing import unpack
from haservices.zookeeper.paths import ancestors_of, decode_name


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election.store import StoreOperation
    from haservices.zookeeper.nodes import NodeOperation
    from haservices.zookeeper.paths import ComponentPaths


__all__ = ["Contents", "Tree", "expected"]

Contents: TypeAlias = dict[str, tuple[bytes, int]]
"""What a store holds: by path the value, and its version."""


@final
class Tree:
    """
    All nodes; not the root.

    Args:
        paths: Of a component; the nodes above those that it names are there.

    Attributes:
        nodes: By path; replaced, and never changed, by what is done.
    """

    def __init__(self, paths: ComponentPaths) -> None:
        self.nodes: dict[str, Node] = {}
        self._zxid = 0
        for one in (paths.node, paths.store, paths.bundles):
            for path in ancestors_of(one)[:-1]:
                if path not in self.nodes:
                    self.transact([CreateNode(path=path, value=b"")])

    def transact(self, operations: Sequence[NodeOperation]) -> None:
        """
        Do all of *operations*, or none.

        Raises:
            TransactionFailedError: One of them failed.
        """
        nodes = self.nodes.copy()
        self._zxid += 1
        for index, operation in enumerate(operations):
            try:
                self._do(operation, nodes)
            except (
                NodeExistsError,
                NodeMissingError,
                NodeNotEmptyError,
                NodeVersionError,
            ) as error:
                raise TransactionFailedError(index, error) from None
        self.nodes = nodes

    def _do(self, operation: NodeOperation, nodes: dict[str, Node]) -> None:
        path = operation.path
        node = nodes.get(path)
        if isinstance(operation, CreateNode):
            above, _, _ = path.rpartition("/")
            if above and above not in nodes:
                raise NodeMissingError(path)
            if node is not None:
                raise NodeExistsError(path)
            stat = NodeStat(
                version=0,
                owner_session_id=0,
                created_zxid=self._zxid,
                children_zxid=0,
            )
            nodes[path] = Node(value=operation.value, stat=stat)
            return
        if node is None:
            raise NodeMissingError(path)
        if operation.version not in (ANY_VERSION, node.stat.version):
            raise NodeVersionError(path)
        match operation:
            case CheckNode():
                pass
            case SetNode(value=value):
                stat = attrs.evolve(node.stat, version=node.stat.version + 1)
                nodes[path] = Node(value=value, stat=stat)
            case DeleteNode():
                if any(one.startswith(f"{path}/") for one in nodes):
                    raise NodeNotEmptyError(path)
                del nodes[path]
            case _:
                assert_never(operation)

    def names_in(self, path: str) -> list[str]:
        """Return the names of what is below *path*."""
        return [
            one[len(path) + 1 :] for one in self.nodes if one.startswith(f"{path}/")
        ]

    def contents(self, paths: ComponentPaths) -> Contents:
        """
        Return the values of the store of *paths*, and our versions.

        Raises:
            AssertionError: If one refers to a bundle that is not there.
        """
        found: Contents = {}
        for name in self.names_in(paths.store):
            node = self.nodes[f"{paths.store}/{name}"]
            value = unpack(node.value)
            if not isinstance(value, bytes):
                bundle = self.nodes.get(f"{paths.bundles}/{value.name}")
                assert bundle is not None, f"the value of {name} is gone"
                value = bundle.value[value.start : value.stop]
            found[decode_name(name)] = (value, node.stat.version + 1)
        return found


def expected(
    contents: Contents, operations: Sequence[StoreOperation]
) -> Contents | None:
    """Return what *operations* make of *contents*, or None if they are refused."""
    result = contents.copy()
    for each in operations:
        present = result[each.path][1] if each.path in result else 0
        if each.version not in (None, present):
            return None
        if isinstance(each, Put):
            result[each.path] = (each.value, present + 1)
        else:
            result.pop(each.path, None)
    return result
