"""`Watches`: the callbacks of nodes that are watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from haservices.zookeeper.connection import ZooKeeperConnection
    from haservices.zookeeper.nodes import NodeStat


__all__ = ["Watches"]


class _Session(Protocol):
    @property
    def connection(self) -> ZooKeeperConnection: ...

    @property
    def is_connected(self) -> bool: ...


@final
class Watches:
    """
    The watches of one session.  For the event loop alone.

    Args:
        session: Whose connection watches.
    """

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._callbacks: dict[str, dict[Callable[[], None], None]] = {}

    def add(self, path: str, changed: Callable[[], None]) -> Future[NodeStat | None]:
        """
        Call *changed* when the node at *path* is created, set or deleted.

        ZooKeeper tells once: watch again to be told again.  A watch does not outlive
        the connection: watch again when contact is restored.
        """
        self._callbacks.setdefault(path, {})[changed] = None
        return self._session.connection.watch(path)

    def remove(self, path: str, changed: Callable[[], None]) -> None:
        """Call *changed* no more; the server forgets the watch if it was the last."""
        callbacks = self._callbacks.get(path)
        if callbacks is not None:
            callbacks.pop(changed, None)
            if not callbacks:
                del self._callbacks[path]
                if self._session.is_connected:
                    self._session.connection.unwatch(path)

    def node_changed(self, path: str) -> None:
        """Tell everything that watches the node at *path*."""
        for changed in tuple(self._callbacks.get(path, ())):
            changed()
