"""What is in ZooKeeper, and what may be done to it, in types of ours."""

from __future__ import annotations

from typing import Final, TypeAlias

from attrs import frozen

from nameservice import DidNotHappenError


__all__ = [
    "ANY_VERSION",
    "CheckNode",
    "CreateNode",
    "DeleteNode",
    "Node",
    "NodeExistsError",
    "NodeMissingError",
    "NodeNotEmptyError",
    "NodeOperation",
    "NodeStat",
    "NodeVersionError",
    "SetNode",
    "TransactionFailedError",
    "check_absent",
    "format_session_id",
]

ANY_VERSION: Final = -1


class NodeMissingError(DidNotHappenError):
    """A node that was to be there is not."""


class NodeExistsError(DidNotHappenError):
    """A node that was to be created is there already."""


class NodeVersionError(DidNotHappenError):
    """A node is at another version."""


class NodeNotEmptyError(DidNotHappenError):
    """A node that was to be deleted has children."""


class TransactionFailedError(DidNotHappenError):
    """
    One operation of a transaction failed, so that none was done.

    Attributes:
        index: Which, from 0.
        error: Why.
    """

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error

    def __str__(self) -> str:
        return f"operation {self.index} of a transaction failed: {self.error!r}"


@frozen(kw_only=True)
class NodeStat:
    """
    What ZooKeeper knows of a node.

    Attributes:
        version: How often its value was set since it was created.
        owner_session_id: Whose ephemeral node it is, or 0.
        created_zxid: The transaction that created it.
        children_zxid: The last transaction that created or deleted a child of it.
    """

    version: int
    owner_session_id: int
    created_zxid: int
    children_zxid: int


@frozen(kw_only=True)
class Node:
    """A node's value and what ZooKeeper knows of it."""

    value: bytes
    stat: NodeStat


@frozen(kw_only=True)
class CheckNode:
    """Fail the transaction unless *path* is at *version*."""

    path: str
    version: int = ANY_VERSION


@frozen(kw_only=True)
class CreateNode:
    """Create *path*."""

    path: str
    value: bytes
    is_ephemeral: bool = False


@frozen(kw_only=True)
class SetNode:
    """Set the value of *path*."""

    path: str
    value: bytes
    version: int = ANY_VERSION


@frozen(kw_only=True)
class DeleteNode:
    """Delete *path*."""

    path: str
    version: int = ANY_VERSION


NodeOperation: TypeAlias = CheckNode | CreateNode | SetNode | DeleteNode


def check_absent(path: str) -> tuple[NodeOperation, ...]:
    """Return what fails the transaction if *path* is there: no one check does."""
    return CreateNode(path=path, value=b""), DeleteNode(path=path)


def format_session_id(session_id: int) -> str:
    """Return a session's id as ZooKeeper's own tools write it."""
    return f"{session_id & (1 << 64) - 1:#x}"
