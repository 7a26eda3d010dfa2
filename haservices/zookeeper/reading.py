"""
Reading nodes: what was committed before it was asked for, whichever server answers.

A server of the ensemble may be behind its leader.  So a ``sync`` goes ahead of what is
read, and both are sent at once.  Its answer counts, too: where the connection breaks
between the two, another server answers the read, and has not caught up.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from haservices.zookeeper.nodes import NodeMissingError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from haservices.zookeeper.nodes import Node
    from haservices.zookeeper.session import ZooKeeperSession


__all__ = ["after_sync", "or_none", "read_children", "read_node"]

T = TypeVar("T")


def after_sync(session: ZooKeeperSession, ask: Callable[[], Future[T]]) -> Future[T]:
    """
    Return the answer to what *ask* asks, up to date.  For the loop alone.

    It fails as the ``sync`` does, whatever else comes: a node that was created before
    this is asked may not be on the server that answers.
    """
    synced = session.connection.sync()
    answer: Future[T] = Future()

    def done(asked: Future[T]) -> None:
        # Answers come in order.  Where the session is closed amid this, what was asked
        # last fails before the sync has its answer.
        error = (synced.exception() if synced.done() else None) or asked.exception()
        if error is None:
            answer.set_result(asked.result())
        else:
            answer.set_exception(error)

    ask().add_done_callback(done)
    return answer


def read_node(session: ZooKeeperSession, path: str) -> Node:
    """Return the node at *path*, from any thread; `NodeMissingError`."""
    return session.calls.read(
        lambda: after_sync(session, lambda: session.connection.get(path))
    )


def read_children(session: ZooKeeperSession, path: str) -> Sequence[str]:
    """Return the names of the children of *path*, from any thread; or none."""
    try:
        return session.calls.read(
            lambda: after_sync(session, lambda: session.connection.children(path))
        )
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
