"""`StoreWatch` by itself; tests/conformance holds what it tells on each backend."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from election import StoreWatch


if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from election import StoreFeed, VersionedValue


class EmptyStore:
    """A `StoreReader` of a store that has nothing."""

    def get(self, path: str) -> VersionedValue | None:
        """Return None."""

    def list(self, prefix: str) -> list[str]:
        """Return no paths."""
        del prefix
        return []


class SlowFeed:
    """A `StoreFeed`, and the `StoreFeeds` that it is of, whose answer takes a while."""

    refresh_seconds = 60.0

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()
        self.calls: list[str] = []

    def open(
        self, path: str | None, prefix: str, changed: Callable[[], None]
    ) -> StoreFeed:
        """Return itself."""
        del path, prefix, changed
        return self

    def keep(self, watch: StoreWatch) -> None:
        """Keep nothing."""

    def forget(self, watch: StoreWatch) -> None:
        """Forget nothing."""

    def poll(self) -> Collection[str] | None:
        """Tell of nothing, once it may."""
        self.is_asked.set()
        self.may_answer.wait()
        self.calls.append("poll")
        return ()

    def close(self) -> None:
        """Note that it is closed."""
        self.calls.append("close")


@pytest.fixture
def feed() -> SlowFeed:
    """Return a feed that was not asked yet."""
    return SlowFeed()


@pytest.fixture
def watch(feed: SlowFeed) -> StoreWatch:
    """Return a watch that asks *feed*."""
    return StoreWatch(EmptyStore(), feed, path="a", prefix="")


@pytest.mark.proves("L5")
class TestClosing:
    def test_a_feed_that_is_just_asked_is_closed_after_its_answer(
        self, watch: StoreWatch, feed: SlowFeed
    ) -> None:
        """L5: what the question registers would be left behind otherwise."""
        taken: list[object] = []
        taking = threading.Thread(target=lambda: taken.append(next(watch, None)))
        taking.start()
        feed.is_asked.wait()
        watch.close()
        feed.may_answer.set()
        taking.join()
        assert taken == [None]
        assert feed.calls == ["poll", "close"]

    def test_a_feed_that_is_not_asked_is_closed_at_once_and_once(
        self, watch: StoreWatch, feed: SlowFeed
    ) -> None:
        """L5: a second close changes nothing, nor does asking for more."""
        watch.close()
        watch.close()
        assert next(watch, None) is None
        assert feed.calls == ["close"]

    def test_the_end_of_the_services_closes_no_feed(
        self, watch: StoreWatch, feed: SlowFeed
    ) -> None:
        """L5: all feeds end with the session."""
        watch.begin_close()
        watch.close()
        assert next(watch, None) is None
        assert feed.calls == []
