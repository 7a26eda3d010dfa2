"""Watching leader stores over a `LeaderClient`, whatever its link."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, final

from leaderserver.store_messages import (
    StoreRevisionReply,
    UnwatchStoreRequest,
    WatchStoreRequest,
)
from nameservice import NameServiceError


if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from election import StoreFeed, StoreWatch
    from haservices.open_services import OpenServices
    from leaderserver.client.client import LeaderClient


__all__ = ["ClientStoreFeeds"]


@final
class ClientStoreFeeds:
    """
    The `StoreFeeds` of one store.

    Args:
        client: Whom to ask.
        component_id: Whose store, as it is named on the wire.
        services: What closes the watches in the end.
        refresh_seconds: How long a watch relies on being told.
    """

    def __init__(
        self,
        client: LeaderClient,
        component_id: str,
        services: OpenServices,
        *,
        refresh_seconds: float,
    ) -> None:
        self._client = client
        self._component_id = component_id
        self._services = services
        self._refresh_seconds = refresh_seconds

    def open(
        self,
        path: str | None,
        prefix: str,
        changed: Callable[[], None],
    ) -> StoreFeed:
        """Return the feed of a watch."""
        return _ClientStoreFeed(
            self._client, self._component_id, changed, self._refresh_seconds
        )

    def keep(self, watch: StoreWatch) -> None:
        """Close *watch* when the services are closed."""
        self._services.keep(watch)

    def forget(self, watch: StoreWatch) -> None:
        """Forget *watch*."""
        self._services.forget(watch)


@final
class _ClientStoreFeed:
    """A `StoreFeed`: asks the server, which tells once of the next change."""

    def __init__(
        self,
        client: LeaderClient,
        component_id: str,
        changed: Callable[[], None],
        refresh_seconds: float,
    ) -> None:
        self._client = client
        self._component_id = component_id
        self._refresh_seconds = refresh_seconds
        self._incarnation = 0
        self._revision: int | None = None
        self._watcher_id = client.store_watchers.add(component_id, changed)

    @property
    def refresh_seconds(self) -> float:
        """Return after how much silence to ask all the same."""
        return self._refresh_seconds

    def poll(self) -> Collection[str] | None:
        """Return the paths that may have changed since the last call, or None."""
        reply = self._client.call(
            WatchStoreRequest(
                component_id=self._component_id,
                incarnation_seen=self._incarnation,
                revision_seen=self._revision,
            ),
            is_repeatable=True,
        )
        assert isinstance(reply, StoreRevisionReply)
        self._incarnation, self._revision = reply.incarnation, reply.revision
        return reply.paths

    def close(self) -> None:
        """Tell of nothing more."""
        if self._client.store_watchers.remove(self._watcher_id):
            with contextlib.suppress(NameServiceError):  # it ends with the session
                self._client.call(
                    UnwatchStoreRequest(component_id=self._component_id),
                    is_repeatable=True,
                )
            # It may have reached the server after the question of one that has begun to
            # watch meanwhile, who asks again.
            self._client.store_watchers.wake(self._component_id)
