"""
Watching leader stores on ZooKeeper.

A thin shell: what is looked at, and what has changed, is decided by `FeedCore`
(feed_core.py).  A watch asks again when contact is restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never, final

from haservices.zookeeper.feed_core import (
    FeedCore,
    FeedEvent,
    Finish,
    ListStore,
    LookAt,
    NodeWatched,
    PathsLooked,
    StoreListed,
)
from haservices.zookeeper.paths import decode_name
from haservices.zookeeper.reading import after_sync, read_children


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from election import StoreFeed, StoreWatch
    from haservices.open_services import OpenServices
    from haservices.zookeeper.nodes import NodeStat
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.session import ZooKeeperSession
    from nameservice import NameServiceError


__all__ = ["ZooKeeperStoreFeeds"]


@final
class ZooKeeperStoreFeeds:
    """
    The `StoreFeeds` of one store.

    Args:
        session: Where to look.
        paths: Of the component.
        services: What closes the watches in the end.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        paths: ComponentPaths,
        services: OpenServices,
    ) -> None:
        self._session = session
        self._paths = paths
        self._services = services

    def open(
        self, path: str | None, prefix: str, changed: Callable[[], None]
    ) -> StoreFeed:
        """Return the feed of a watch."""
        return _ZooKeeperStoreFeed(self._session, self._paths, path, prefix, changed)

    def keep(self, watch: StoreWatch) -> None:
        """Close *watch* when the services are closed."""
        self._services.keep(watch)

    def forget(self, watch: StoreWatch) -> None:
        """Forget *watch*."""
        self._services.forget(watch)


@final
class _ZooKeeperStoreFeed:
    """A `StoreFeed`, and a listener of the session it looks through."""

    def __init__(
        self,
        session: ZooKeeperSession,
        paths: ComponentPaths,
        path: str | None,
        prefix: str,
        changed: Callable[[], None],
    ) -> None:
        self._session = session
        self._paths = paths
        self._core = FeedCore(path=path, prefix=prefix)
        self._watched = paths.store if path is None else paths.stored(path)
        self._tell = changed
        session.loop.call(lambda: session.add_listener(self))

    @property
    def refresh_seconds(self) -> float:
        """Return after how much silence to ask all the same."""
        return self._session.config.session_timeout_seconds / 3

    def poll(self) -> Collection[str] | None:
        """Return the paths that may have changed since the last call, or None."""
        session = self._session
        stat = session.calls.read(
            lambda: after_sync(
                session, lambda: session.watches.add(self._watched, self._changed)
            )
        )
        event: FeedEvent = NodeWatched(stat=stat)
        while True:
            match effect := self._core.step(event):
                case ListStore():
                    names = read_children(self._session, self._paths.store)
                    event = StoreListed(paths=tuple(map(decode_name, names)))
                case LookAt(paths=paths):
                    event = PathsLooked(stats=self._look_at(paths))
                case Finish(paths=paths):
                    return paths
                case _:
                    assert_never(effect)

    def _look_at(self, paths: Sequence[str]) -> tuple[NodeStat | None, ...]:
        return tuple(
            self._session.calls.read_all(
                [
                    lambda path=path: self._session.connection.exists(  # type: ignore[misc]
                        self._paths.stored(path)
                    )
                    for path in paths
                ]
            )
        )

    def close(self) -> None:
        """Tell of nothing more."""

        def leave() -> None:
            self._session.remove_listener(self)
            self._session.watches.remove(self._watched, self._changed)

        self._session.loop.call(leave)

    def _changed(self) -> None:
        self._tell()

    # -- as a SessionListener ----------------------------------------------------------

    def contact_restored(self) -> None:
        """Look again: what was watched is watched no more."""
        self._tell()

    def contact_suspended(self) -> None:
        """Do nothing: what is asked waits."""

    def contact_lost(self) -> None:
        """Do nothing."""

    def session_ended(self) -> None:
        """Do nothing: contact comes back with another."""

    def session_refused(self, error: NameServiceError) -> None:
        """Note that the next question will be refused."""
        del error
        self._tell()
