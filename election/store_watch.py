"""
`StoreWatch`: the values of a leader store, and each change of them.

Theory of operation
-------------------
A watch belongs to the thread that iterates over it: it has none of its own, and queues
nothing but names of paths.  The backend's *feed* says that something has changed, at
once and perhaps once too often, and on being asked, what: some paths, or anything at
all.  Each such path is read when its turn comes, and handed out if it differs from what
was handed out last.  So the latest value of each path always arrives, values in between
may not, and a slow consumer costs the others nothing.

A notice may be lost with its connection.  The feed is therefore also asked after every
*refresh_seconds* in which nothing came.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from attrs import frozen

from nameservice import (
    ForkGuard,
    LocalProtocolError,
    UnreachableError,
    get_logger,
)
from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

    from election.store_values import VersionedValue


__all__ = ["StoreChange", "StoreFeed", "StoreFeeds", "StoreReader", "StoreWatch"]

_DIGEST_SIZE_BYTES: Final = 16


@frozen(kw_only=True)
class StoreChange:
    """
    What a path of the store holds now.

    Attributes:
        path: Which path.
        value: What is there, or None if nothing is.
    """

    path: str
    value: VersionedValue | None


class StoreReader(Protocol):
    """What a backend must provide so that a store can be read."""

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*, sorted."""


class StoreFeed(Protocol):
    """What a backend knows of the changes of one store, for one watch."""

    @property
    def refresh_seconds(self) -> float:
        """Return after how much silence to ask all the same."""

    def poll(self) -> Collection[str] | None:
        """
        Return the paths that may have changed since the last call, or None for any.

        What is read afterwards is no older than the answer.  Before it is given, it is
        seen to that the next change is told of.  Among the paths may be others than
        those that are watched.

        Raises:
            UnreachableError: If the name service does not answer in time.
        """

    def close(self) -> None:
        """Tell of nothing more; the name service may be told so, too."""


class StoreFeeds(Protocol):
    """What a backend must provide so that a store can be watched."""

    def open(
        self, path: str | None, prefix: str, changed: Callable[[], None]
    ) -> StoreFeed:
        """
        Return the feed of a watch.

        Args:
            path: The only path that is watched, or None.
            prefix: What the watched paths begin with, if there are more.
            changed: Called, on any thread, when `StoreFeed.poll` has news; returns at
                once.
        """

    def keep(self, watch: StoreWatch) -> None:
        """Close *watch* when the services are closed."""

    def forget(self, watch: StoreWatch) -> None:
        """Forget *watch*: it has closed."""


_State: TypeAlias = "tuple[int, bytes] | None"


@final
class StoreWatch:
    """
    An iterator over the present values of a store, and then each change.

    Get one from ``LeaderStore.watch`` or ``LeaderStore.watch_prefix``, use it as a
    context manager, or call `close`.  It is an asynchronous iterator as well.  One
    thread or task at a time takes from it; `close` may be called by any.

    While the name service is out of reach it waits, and goes on with what has changed
    meanwhile.  It ends when it is closed, or the services are.
    """

    lane: Final = None
    """No callback is ever running in it that somebody would have to wait for."""

    def __init__(
        self,
        driver: StoreReader,
        feeds: StoreFeeds,
        *,
        path: str | None,
        prefix: str,
    ) -> None:
        self._driver = driver
        self._feeds = feeds
        self._path = path
        self._prefix = prefix
        self._fork_guard = ForkGuard()
        self._log = get_logger(component="store-watch")
        self._wake = InterruptibleEvent()
        self._wake_async: Callable[[], None] | None = None
        self._step_lock = threading.Lock()
        self._told: dict[str, _State] = {}
        self._pending: dict[str, None] = {}
        self._ready: StoreChange | None = None
        self._must_list = False
        self._is_out_of_reach = False
        self._is_closed = False
        self._must_close_feed = False
        self._feed = feeds.open(path, prefix, self._changed)
        try:
            feeds.keep(self)
        except BaseException:
            self._feed.close()
            raise

    def __iter__(self) -> StoreWatch:
        return self

    def __next__(self) -> StoreChange:
        self._fork_guard.check()
        while True:
            self._advance()
            change, self._ready = self._ready, None
            if self._is_closed:
                raise StopIteration
            if change is not None:
                return change
            self._wake.wait(self._feed.refresh_seconds)

    def __aiter__(self) -> StoreWatch:
        return self

    async def __anext__(self) -> StoreChange:
        self._fork_guard.check()
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()

        def wake_up() -> None:
            # A loop that has closed meanwhile has no task left that waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake.set)

        self._wake_async = wake_up
        try:
            while True:
                # Cancelled meanwhile, what was found stays for the next call.
                await asyncio.to_thread(self._advance)
                change, self._ready = self._ready, None
                if self._is_closed:
                    raise StopAsyncIteration
                if change is not None:
                    return change
                if self._wake.is_set():
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._feed.refresh_seconds):
                        await wake.wait()
                wake.clear()
        finally:
            self._wake_async = None

    def close(self) -> None:
        """Watch no more; those that wait for a change are released.  Idempotent."""
        if self._fork_guard.is_inherited or self._is_closed:
            return
        self.begin_close()
        self._must_close_feed = True
        self._close_feed()

    def begin_close(self) -> None:
        """Do as `close`, but leave it to the end of the session to tell anybody."""
        self.announce_closing()
        self._feeds.forget(self)

    def announce_closing(self) -> None:
        """Find no change any more; who waits for one goes on."""
        self._is_closed = True
        self._changed()

    def __enter__(self) -> StoreWatch:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _changed(self) -> None:
        self._wake.set()
        wake_async = self._wake_async
        if wake_async is not None:
            wake_async()

    def _advance(self) -> None:
        """Find the next change, if there is one; ask at most once for more."""
        try:
            self._step()
        finally:
            self._close_feed()

    def _step(self) -> None:
        with self._step_lock:
            try:
                if self._ready is None and not self._is_closed:
                    self._ready = self._find()
            except UnreachableError as error:
                if not self._is_out_of_reach:
                    self._is_out_of_reach = True
                    self._log.warning("watch.interrupted", error=str(error))
            except LocalProtocolError:
                if not self._is_closed:  # the services were closed under our feet
                    raise
            else:
                self._is_out_of_reach = False

    def _close_feed(self) -> None:
        """
        Close the feed if it must be, unless it is just being asked.

        A question that is under way may yet register something.  The thread that asks
        it calls this after its step.
        """
        while self._must_close_feed and self._step_lock.acquire(blocking=False):
            try:
                must_close, self._must_close_feed = self._must_close_feed, False
                if must_close:
                    self._feed.close()
            finally:
                self._step_lock.release()

    def _find(self) -> StoreChange | None:
        change = self._read_pending()
        if change is not None:
            return change
        self._wake.clear()  # before it is asked: what comes later wakes us again
        paths = self._feed.poll()
        if paths is None:
            self._must_list = True
        else:
            self._pending |= dict.fromkeys(filter(self._is_watched, sorted(paths)))
        if self._must_list:
            self._pending |= dict.fromkeys(self._list())
            self._must_list = False
        return self._read_pending()

    def _is_watched(self, path: str) -> bool:
        if self._path is not None:
            return path == self._path
        return path.startswith(self._prefix)

    def _list(self) -> list[str]:
        if self._path is not None:
            return [self._path]
        return sorted({*self._driver.list(self._prefix), *self._told})

    def _read_pending(self) -> StoreChange | None:
        while self._pending and not self._is_closed:
            path = next(iter(self._pending))
            value = self._driver.get(path)
            del self._pending[path]
            if self._is_news(path, value):
                return StoreChange(path=path, value=value)
        return None

    def _is_news(self, path: str, value: VersionedValue | None) -> bool:
        """Return whether *value* differs from what was told, and take note of it."""
        state: _State = None
        if value is not None:
            digest = hashlib.blake2b(value.value, digest_size=_DIGEST_SIZE_BYTES)
            state = (value.version, digest.digest())
        is_new = path not in self._told
        if not is_new and self._told[path] == state:
            return False
        if state is None and self._path is None:
            self._told.pop(path, None)
            return not is_new
        self._told[path] = state
        return True
