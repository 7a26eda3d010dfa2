"""`LeaderRetriever`: the thread-safe shell around a driver and a `RetrieverCore`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, final

from nameservice import (
    CallbackLane,
    ForkGuard,
    LocalProtocolError,
    NoLeaderError,
    get_logger,
)
from nameservice.callback_errors import call_back
from nameservice.interruptible import InterruptibleEvent
from nameservice.parameters import check_callbacks, check_timeout_seconds
from nameservice.uninterrupted import uninterrupted
from retrieval.core import RetrieverCore


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from types import TracebackType

    from retrieval.core import RetrieverEvent
    from retrieval.driver import LeaderRetrievalDriver
    from retrieval.information import LeaderInformation
    from retrieval.listener import LeaderRetrievalListener


__all__ = ["LeaderRetriever"]


@final
class LeaderRetriever:
    """
    Finds the leader of one component, and keeps finding it.

    Get one from ``HAServices.get_leader_retriever``; use it as a context manager, or
    call `start` and `close`.  Thread-safe.

    It does **not** promise that the leader it names still leads when you act on it:
    show the leader its epoch, and have it checked by all that must not be written
    twice.
    """

    def __init__(
        self,
        component_id: str,
        driver: LeaderRetrievalDriver,
        *,
        clears_on_suspended: bool,
        on_closed: Callable[[LeaderRetriever], None] | None = None,
    ) -> None:
        self._component_id = component_id
        self._driver = driver
        self._core = RetrieverCore(clears_on_suspended=clears_on_suspended)
        self._on_closed = on_closed
        self._fork_guard = ForkGuard()
        self._log = get_logger(component="retriever", component_id=component_id)
        # Not taken where a signal handler may interrupt.
        self._delivering = threading.Lock()
        self._wakers: set[Callable[[], None]] = set()
        self._errors: deque[Exception] = deque()
        self._listener: LeaderRetrievalListener | None = None
        self._lane: CallbackLane | None = None
        self._told: LeaderInformation | None = None  # to the listener
        self._starts = deque((None,))  # a start takes the one that there is
        self._is_started = False
        self._is_closed = False
        self._is_withdrawn = False

    @property
    def component_id(self) -> str:
        """Return whose leader it finds."""
        return self._component_id

    @property
    def lane(self) -> CallbackLane | None:
        """Return where its listener is called, once it is started with one."""
        return self._lane

    def start(self, listener: LeaderRetrievalListener | None = None) -> None:
        """
        Begin to look for the leader; return without waiting for one.

        Args:
            listener: Is told of the present leader, if any, and of each change; one
                call at a time, on some thread of ours.

        Raises:
            ConfigurationError: If *listener* lacks one of its two methods, or one of
                them is a coroutine.
            LocalProtocolError: If it was started or closed before.
            ForkedClientError: In a child of the process that made it.
        """
        self._fork_guard.check()
        if listener is not None:
            check_callbacks(
                listener, "notify_leader", "handle_error", what="a listener"
            )
        try:
            self._starts.pop()
        except IndexError:
            raise self._unstartable() from None
        if self._is_closed:
            raise self._unstartable()
        # One step after the other: an exception between any two leaves what `close`
        # withdraws.
        self._listener = listener
        if listener is not None:
            self._lane = CallbackLane(f"retriever-{self._component_id}", self._turn)
        self._is_started = True
        try:
            self._driver.open(self._deliver, self._fail)
        finally:
            if self._is_closed:  # by another thread or a handler, before it was opened
                try:
                    self._driver.close()
                finally:
                    if self._lane is not None:
                        self._lane.wake()

    def _unstartable(self) -> LocalProtocolError:
        message = "a retriever is started once, and not after it was closed"
        return LocalProtocolError(message)

    @property
    def leader(self) -> LeaderInformation | None:
        """Return the latest leader known, or None; never blocks."""
        self._fork_guard.check()
        return self._core.told

    def wait_for_leader(
        self, timeout_seconds: float | None = None
    ) -> LeaderInformation:
        """
        Return the leader, as soon as there is one.

        Args:
            timeout_seconds: How long to wait; None waits for as long as it takes.

        Raises:
            NoLeaderError: If no leader was known within *timeout_seconds*.
            ConfigurationError: If *timeout_seconds* is negative or not finite.
            LocalProtocolError: If the retriever is not started, or is closed.
            ForkedClientError: In a child of the process that made it.
        """
        self._fork_guard.check()
        timeout_seconds = check_timeout_seconds(timeout_seconds)
        began = time.monotonic()
        self._check_running()
        self._wait_for_change(None, timeout_seconds)
        self._check_running()
        leader = self._core.told
        if leader is None:
            raise NoLeaderError(self._component_id, time.monotonic() - began)
        return leader

    def changes(self) -> Iterator[LeaderInformation | None]:
        """
        Iterate over the present leader, if any, and then each change.

        Each iterator goes its own way.  Values that were out of date before the
        caller came back for them are left out.  It ends when the retriever closes.

        Raises:
            LocalProtocolError: If the retriever is not started.
            ForkedClientError: In a child of the process that made it, at the next one.
        """
        self._fork_guard.check()
        self._check_started()
        return self._iterate()

    def _iterate(self) -> Iterator[LeaderInformation | None]:
        held: LeaderInformation | None = None
        while True:
            self._fork_guard.check()  # it may be a child that goes on with a loop
            held = self._wait_for_change(held)
            if self._is_closed:
                return
            yield held

    def _wait_for_change(
        self, held: LeaderInformation | None, timeout_seconds: float | None = None
    ) -> LeaderInformation | None:
        """
        Return the leader once it is not *held*, or we are closed, or time is up.

        No lock is held meanwhile: it may be interrupted by a signal, whose handler
        closes the services.
        """
        until = None
        if timeout_seconds is not None:
            until = time.monotonic() + timeout_seconds
        wake = InterruptibleEvent()
        self._wakers.add(wake.set)
        try:
            while self._core.told == held and not self._is_closed:
                left = None if until is None else max(until - time.monotonic(), 0.0)
                if not wake.wait(left):
                    break
                wake.clear()  # before the next look
        finally:
            self._wakers.discard(wake.set)
        return self._core.told

    async def wait_for_leader_async(
        self, timeout_seconds: float | None = None
    ) -> LeaderInformation:
        """Do as `wait_for_leader` does, without blocking the event loop."""
        self._fork_guard.check()
        timeout_seconds = check_timeout_seconds(timeout_seconds)
        began = time.monotonic()
        self._check_running()
        try:
            async with asyncio.timeout(timeout_seconds):
                async with contextlib.aclosing(self._iterate_async()) as changes:
                    async for leader in changes:
                        if leader is not None:
                            return leader
        except TimeoutError:
            raise NoLeaderError(self._component_id, time.monotonic() - began) from None
        message = "the retriever was closed while its leader was waited for"
        raise LocalProtocolError(message)

    def changes_async(self) -> AsyncIterator[LeaderInformation | None]:
        """Do as `changes` does, without blocking the event loop."""
        self._fork_guard.check()
        self._check_started()
        return self._iterate_async()

    async def _iterate_async(self) -> AsyncGenerator[LeaderInformation | None, None]:
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()

        def wake_up() -> None:
            # A loop that has closed meanwhile has no task left that waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake.set)

        self._wakers.add(wake_up)
        try:
            held: LeaderInformation | None = None
            while True:
                self._fork_guard.check()
                wake.clear()
                if self._is_closed:
                    return
                leader = self._core.told
                if leader != held:
                    held = leader
                    yield held
                else:
                    await wake.wait()
        finally:
            self._wakers.discard(wake_up)

    def close(self) -> None:
        """
        Stop looking.  Idempotent; silent in a forked child.

        Nothing is delivered after it has returned.  Called by the listener itself, or
        inside a callback for which the listener waits, it does not wait for that call
        to end.  A signal handler may call it at any moment; what one raises while this
        waits does not break the closing off.
        """
        if self._fork_guard.is_inherited:
            return
        lane = self._lane  # one that comes later is left to who starts
        self.begin_close()
        if lane is not None:
            lane.join()

    def begin_close(self) -> None:
        """Do as `close` does, and do not wait for the listener."""
        if self._fork_guard.is_inherited:
            return
        self.announce_closing()
        if self._lane is None:
            self._begin_close()
        else:
            uninterrupted(self._begin_close)  # it wakes the lane

    def announce_closing(self) -> None:
        """Know and tell of no leader from now on; who waits for one goes on."""
        self._is_closed = True
        self._wake_waiting()

    def _begin_close(self) -> None:
        """Do so; done again, it does what an exception may have left undone."""
        if self._is_withdrawn:
            return
        try:
            if self._is_started:
                self._driver.close()
        finally:
            if self._lane is None:
                self._end()
            self._is_withdrawn = True
            if self._lane is not None:  # it may have come meanwhile
                self._lane.wake()

    def _end(self) -> None:
        """Release everything: the listener, if there was one, hears no more."""
        if self._on_closed is not None:
            self._on_closed(self)

    def __enter__(self) -> LeaderRetriever:
        if not self._is_started:
            self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- the driver's side ---------------------------------------------------------

    def _deliver(self, event: RetrieverEvent) -> None:
        with self._delivering:
            if self._is_closed or not self._core.step(event):
                return
        self._announce()

    def _fail(self, error: Exception) -> None:
        if self._is_closed:
            return
        if self._listener is None:
            self._log.warning("retrieval.failed", error=str(error))
            return
        self._errors.append(error)
        self._announce()

    def _announce(self) -> None:
        """Wake everybody who waits, and have the listener told."""
        self._wake_waiting()
        if self._lane is not None:
            self._lane.wake()

    def _wake_waiting(self) -> None:
        for wake_up in list(self._wakers):
            wake_up()

    # -- in the listener's lane ----------------------------------------------------

    def _turn(self) -> bool:
        """Do one thing; return whether there is nothing more to be done, ever."""
        self._tell()
        if not self._is_withdrawn:
            return False
        self._end()
        return True

    def _tell(self) -> None:
        """Tell the listener what is new, unless it is to hear no more."""
        listener = self._listener
        assert listener is not None
        for _ in range(len(self._errors)):
            error = self._errors.popleft()
            if self._is_closed:  # by the listener itself: it hears no more (R5)
                return
            self._call_handle_error(listener, error)
        leader = self._core.told
        if leader != self._told and not self._is_closed:
            self._told = leader
            call_back(
                lambda: listener.notify_leader(leader),
                partial(self._call_handle_error, listener),
                what="the listener",
            )

    def _call_handle_error(
        self, listener: LeaderRetrievalListener, error: Exception
    ) -> None:
        try:
            listener.handle_error(error)
        except BaseException:  # noqa: BLE001 - there is no other place to hand it to
            self._log.exception("listener.failed", error=str(error))

    def _check_started(self) -> None:
        if not self._is_started:
            message = "start the retriever first, or use it in a 'with' statement"
            raise LocalProtocolError(message)

    def _check_running(self) -> None:
        self._check_started()
        if self._is_closed:
            message = "the retriever is closed"
            raise LocalProtocolError(message)
