"""
Reading nodes from any thread.

Reads are preceded by a ``sync``, so that they show what was committed before they were
asked for, whichever server answers.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from haservices.zookeeper.nodes import NodeMissingError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from haservices.zookeeper.nodes import Node
    from haservices.zookeeper.session import ZooKeeperSession


__all__ = ["or_none", "read_children", "read_node"]

T = TypeVar("T")


def read_node(session: ZooKeeperSession, path: str) -> Node:
    """Return the node at *path*, up to date; `NodeMissingError`."""

    def ask() -> Future[Node]:
        session.connection.sync()
        return session.connection.get(path)

    return session.calls.read(ask)


def read_children(session: ZooKeeperSession, path: str) -> Sequence[str]:
    """Return the names of the children of *path*; none if it is not there."""

    def ask() -> Future[list[str]]:
        session.connection.sync()
        return session.connection.children(path)

    try:
        return session.calls.read(ask)
    except NodeMissingError:
        return ()


def or_none(asked: Future[T]) -> Future[T | None]:
    """Return a future of the same, or of None where there is no such node."""
    answer: Future[T | None] = Future()

    def done(future: Future[T]) -> None:
        error = future.exception()
        if error is None:
            answer.set_result(future.result())
        elif isinstance(error, NodeMissingError):
            answer.set_result(None)
        else:
            answer.set_exception(error)

    asked.add_done_callback(done)
    return answer
