"""
`AsyncQueryShell`: one `QueryCore` on an asyncio event loop.

Theory of operation.  Everything happens on one loop: that of the first question.  What
is asked in one turn of the loop is handed to the core together: many coroutines that
ask at once share a message.  ZeroMQ's descriptor is watched by the loop directly, and
the socket is drained in a burst (zmq.asyncio makes a future of every receive, and takes
four times as long; measured).  That descriptor signals once, and only to one who has
looked in vain: each burst, and each send, ends with looking.

The name service blocks, and has a thread of its own (`ProxyFinder`), which tells the
loop what is new.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, final

from nameservice import NS_PER_SECOND, LocalProtocolError
from queryablestate.client.driving import QueryDriver
from queryablestate.client.events import (
    TIME_WENT,
    ClientClosed,
    RequestsAsked,
    RequestsDropped,
)
from queryablestate.client.link import QueryLink
from zmqtransport import new_context


if TYPE_CHECKING:
    from collections.abc import Sequence

    from haservices import HAConfig, HAServices
    from queryablestate.client.config import QueryConfig
    from queryablestate.client.requests import Request
    from queryablestate.connect.credentials import Credentials


__all__ = ["AsyncQueryShell"]

_BURST_COUNT_MAX: Final = 100
_NEVER_NS: Final = 1 << 62
_ELSEWHERE: Final = "this client belongs to another event loop: make one for each loop"


@final
class AsyncQueryShell(QueryDriver):
    """A `QueryCore` for coroutines.  Not thread-safe: it belongs to one event loop."""

    def __init__(
        self,
        services: HAConfig | HAServices | str,
        credentials: str | Credentials | None,
        config: QueryConfig | None = None,
    ) -> None:
        super().__init__(services, credentials, config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: list[Request] = []
        self._dropped: list[Request] = []
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = _NEVER_NS
        self._is_closed = False

    def open(self) -> None:
        """
        Belong to the running loop, and begin to look for the proxy leader.

        Raises:
            LocalProtocolError: If it belongs to another loop, or is closed.
            ConfigurationError: If the process may have no more sockets; the next
                question tries again.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            if self._is_closed:
                raise LocalProtocolError("this client is closed: make a new one")
            if self._context is None:
                self._context = new_context()
            self._loop = loop  # first: news may come before `start` returns
            try:
                self._finder.start()
            except BaseException:
                self._loop = None  # the next question tries again
                raise
        elif self._loop is not loop:
            raise LocalProtocolError(_ELSEWHERE)

    def ask(self, request: Request) -> asyncio.Future[None]:
        """
        Have *request* asked; return what is done when it is, be it with an error.

        A task that stops waiting for it says so to `drop`.

        Raises:
            ForkedClientError: In a child of the process that made it.
            LocalProtocolError: If this is another event loop than before.
        """
        self._guard.check()
        if self._loop is None or self._loop is not asyncio.get_running_loop():
            self.open()
            assert self._loop is not None
        request.waiter = future = self._loop.create_future()
        self._asked.append(request)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        return future

    def drop(self, request: Request) -> None:
        """Forget *request*: no task waits for it any more."""
        if self._loop is not None and not request.is_done:
            self._dropped.append(request)
            if not self._is_flush_due:
                self._is_flush_due = True
                self._loop.call_soon(self._flush)

    async def run(self, *requests: Request) -> None:
        """Ask, and return when all of *requests* are done, be it with an error."""
        futures = [self.ask(request) for request in requests]
        try:
            for future in futures:
                await future
        except asyncio.CancelledError:
            for request in requests:
                self.drop(request)
            raise

    async def pause(self, seconds: float) -> None:
        """Return after *seconds*."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """
        Release everything.  Idempotent; silent in a forked child.

        Requests that wait fail.  Another loop may close it once its own has ended.

        Raises:
            LocalProtocolError: If its own loop runs, and is another.
        """
        if self._guard.is_inherited or self._is_closed:
            return
        loop = asyncio.get_running_loop()
        own = loop if self._loop is None else self._loop
        if own is not loop and own.is_running():
            raise LocalProtocolError(_ELSEWHERE)
        self._is_closed = True
        if not own.is_closed():
            self._flush()  # a task may wait for what was not asked yet
        self._step(ClientClosed())
        self._close_link()
        for number in list(self._node_links):
            self._close_node_link(number)
        if self._timer is not None:
            self._timer.cancel()
        self._end_context()
        if self._loop is not None:
            # It may say good-bye to the name service, and wait for the answer.
            await loop.run_in_executor(None, self._finder.close)

    # -- on the loop -------------------------------------------------------------------

    def _flush(self) -> None:
        """Hand to the core what was asked since the last time."""
        self._is_flush_due = False
        try:
            if self._dropped:
                dropped, self._dropped = self._dropped, []
                gone = set(dropped)
                self._asked = [one for one in self._asked if one not in gone]
                self._step(RequestsDropped(requests=dropped))
        finally:
            try:
                if self._asked:
                    asked, self._asked = self._asked, []
                    self._step(RequestsAsked(asked))
            finally:
                self._drain()

    def _drain(self) -> None:
        """Take what has come, a burst at most, and see to the next deadline."""
        unlooked = self._unlooked
        try:
            for _ in range(_BURST_COUNT_MAX):
                link = next(iter(unlooked), None)
                if link is None:
                    break
                message = link.receive()
                if message is not None:
                    self._step(message)
                    continue
                unlooked.pop(link, None)
                if not link.is_made:
                    self._watch_link(link)
        finally:  # whatever went wrong with one, the others are waited for
            if unlooked and not self._is_closed:
                assert self._loop is not None
                self._loop.call_soon(self._drain)  # nothing else says there is more
            self._set_timer()

    def _drain_link(self, link: QueryLink) -> None:
        """Take what has come over *link*, and over those that were sent to."""
        if self._is_present(link):
            self._unlooked[link] = None
        self._drain()

    def _set_timer(self) -> None:
        """Have time pass when the core wants it to."""
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is None or deadline_ns >= self._timer_ns or self._is_closed:
            return  # a timer that comes early does no harm
        if self._timer is not None:
            self._timer.cancel()
        assert self._loop is not None
        delay_ns = max(0, deadline_ns - self.clock.now_ns())
        self._timer_ns = deadline_ns
        self._timer = self._loop.call_later(delay_ns / NS_PER_SECOND, self._time_went)

    def _time_went(self) -> None:
        self._timer = None
        self._timer_ns = _NEVER_NS
        try:
            self._step(TIME_WENT)
        finally:
            self._drain()

    def _complete(self, requests: Sequence[Request]) -> None:
        assert self._loop is not None
        if self._loop.is_closed():
            return  # its tasks wait for ever, and it would not take the news
        for request in requests:
            future: asyncio.Future[None] = request.waiter
            if not future.done():
                future.set_result(None)

    def _link_opened(self, link: QueryLink) -> None:
        assert self._loop is not None
        messages, connection = link.descriptors
        self._loop.add_reader(messages, self._drain_link, link)
        self._loop.add_reader(connection, self._watch_and_drain, link)
        self._loop.call_soon(self._watch_and_drain, link)

    def _link_closing(self, link: QueryLink) -> None:
        assert self._loop is not None
        for descriptor in link.descriptors:
            self._loop.remove_reader(descriptor)

    def _watch_and_drain(self, link: QueryLink) -> None:
        if self._is_present(link):
            self._watch_link(link)
        self._drain_link(link)

    # -- the name service --------------------------------------------------------------

    def _leader_changed(self) -> None:
        """Take note of news; on a thread of the name service."""
        if self._loop is not None:
            # A loop that has closed meanwhile has no task left that waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_news)

    def _take_news(self) -> None:
        if not self._is_closed:
            self._step(self._leader_told())
            self._drain()
