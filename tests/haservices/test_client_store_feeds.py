from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from haservices.client_store_feeds import ClientStoreFeeds
from haservices.open_services import OpenServices
from leaderserver.client.store_watchers import StoreWatchers
from leaderserver.messages import DoneReply
from leaderserver.store_messages import StoreRevisionReply, WatchStoreRequest
from nameservice import ForkGuard, UnreachableError


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import StoreFeed
    from leaderserver.client.client import LeaderClient
    from leaderserver.messages import ReplyBody, RequestBody


JOB = "c/job"


class Client:
    """
    A client whose server tells of the next change of the one store, or does not.

    Attributes:
        store_watchers: Who is told.
        is_armed: Whether it does.
        before_unwatch: What happens before the server hears that nobody watches.
        problem: What comes of that instead of an answer, or None.
    """

    def __init__(self) -> None:
        self.is_armed = False
        self.before_unwatch: Callable[[], None] = lambda: None
        self.problem: UnreachableError | None = None
        self.store_watchers = StoreWatchers(ForkGuard())

    def call(self, body: RequestBody, *, is_repeatable: bool) -> ReplyBody:
        """Ask the server."""
        assert is_repeatable
        if isinstance(body, WatchStoreRequest):
            self.is_armed = True
            return StoreRevisionReply(incarnation=1, revision=1, paths=[])
        self.before_unwatch()
        self.is_armed = False
        if self.problem is not None:
            raise self.problem
        return DoneReply()


@pytest.mark.proves("L1")
@pytest.mark.parametrize("problem", [None, UnreachableError("h", 1.0)])
def test_who_begins_to_watch_while_the_last_one_leaves_is_told(
    problem: UnreachableError | None,
) -> None:
    """That nobody watches may reach the server after somebody does again."""
    client = Client()
    client.problem = problem
    feeds = ClientStoreFeeds(
        cast("LeaderClient", client),
        JOB,
        OpenServices(lambda: None),
        refresh_seconds=3.0,
    )
    opened: list[StoreFeed] = []

    def poll_again() -> None:
        opened[0].poll()

    def begin() -> None:
        opened.append(feeds.open(None, "", poll_again))
        opened[0].poll()

    first = feeds.open(None, "", lambda: None)
    first.poll()
    client.before_unwatch = begin
    first.close()
    assert client.is_armed
