"""
A poll loop for one thread: sockets, one deadline, and calls from other threads.

Theory of operation.  A turn of the loop waits until a socket is readable, another
thread calls, or the deadline comes; then

1.  each readable socket is drained, in the order in which they were added, up to a
    burst: a flood on one delays the others and the deadline by one burst only.  Where
    single messages take milliseconds, a burst is limited in time, too;
2.  what other threads asked for is called;
3.  if the deadline has come, *on_deadline* is called.

So what had arrived before the loop looked is handled before time is judged: after a
pause, heartbeats that wait are seen first.

A ZeroMQ socket belongs to one thread.  Sockets are added before the loop starts or from
inside it; all else comes in through `call_soon_threadsafe`.

An exception in a handler is a mistake of ours, and no reason to stop serving everybody
else: it is logged as ``loop.failed`` and counted, and the loop goes on.  If the loop
itself cannot go on (a socket was closed under it), it says so in the log, to
*on_failure* and in `failure`, and ends as after `stop`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar, final

import zmq

from nameservice import (
    Clock,
    DidNotHappenError,
    ForkGuard,
    LocalProtocolError,
    SystemClock,
    UnreachableError,
    get_logger,
)
from nameservice.answer import Answer
from nameservice.interruptible import InterruptibleEvent
from nameservice.open_files import OPEN_FILES_LEFT_MIN, require_open_files
from nameservice.uninterrupted import detached
from zmqtransport.loop_deadline import LoopDeadline
from zmqtransport.sockets import (
    ZMQSocket,
    is_readable,
    receive_now,
    translate_zmq_errors,
)
from zmqtransport.wake_pipe import WakePipe


__all__ = ["MessageHandler", "PollLoop"]

MessageHandler: TypeAlias = Callable[[list[zmq.Frame]], None]
"""Is told each message; see `receive_now` for its frames."""

T = TypeVar("T")


@final
class PollLoop:
    """
    Serves sockets, one deadline and other threads' calls, all in one thread.

    Use: add sockets, set the deadline, then `start` (a thread of its own) or `run`
    (this thread); finally `stop`, and `join`.  *Thread-safe*: `call_soon_threadsafe`,
    `stop`, `join` and the properties; everything else is for the loop's own thread, or
    for any before it has started.

    In a child process after ``fork()`` the loop does not exist: calls raise
    `ForkedClientError`, `stop` and `join` do nothing.
    """

    def __init__(
        self,
        *,
        name: str,
        clock: Clock | None = None,
        burst_count_max: int = 100,
        burst_ns_max: int | None = None,
        call_count_max: int = 100_000,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        """
        Make a loop that is not running yet.

        Args:
            name: For the log, and as the name of its thread.
            clock: What the deadline is measured by.
            burst_count_max: Messages taken from a socket before others have their turn.
            burst_ns_max: After so long they have it, too; None where each message takes
                little.
            call_count_max: Calls of other threads that may wait.
            on_failure: Is told, in the loop's thread, that the loop cannot go on.

        Raises:
            ConfigurationError: If the process may have too few more open files.
        """
        assert burst_count_max >= 1
        require_open_files(OPEN_FILES_LEFT_MIN, what="a new client or server")
        self._name = name
        self._burst_count_max = burst_count_max
        self._burst_ns_max = burst_ns_max
        self._call_count_max = call_count_max
        self._on_failure = on_failure
        self._guard = ForkGuard()
        self._log = get_logger(component="poll-loop", loop=name)

        self._drains: dict[ZMQSocket | int, Callable[[], None]] = {}
        self._polled: list[tuple[ZMQSocket | int, int]] = []
        self._sockets: list[ZMQSocket] = []
        self._clock = SystemClock() if clock is None else clock
        self._deadline = LoopDeadline(self._clock)
        self._at_end: list[Callable[[], None]] = []
        self._failure: Exception | None = None
        self._failure_count = 0

        # Not held by who calls, nor taken in the loop's thread; see `WakePipe`.
        self._lock = threading.RLock()  # guards whether it is started and stopping
        self._calls: deque[Callable[[], None]] = deque()
        self._is_stopping = False
        self._is_started = False
        self._is_over = False
        self._over = InterruptibleEvent()
        self._thread: threading.Thread | None = None
        self._thread_id: int | None = None

        self._wake_pipe: WakePipe | None = WakePipe()
        self._add(self._wake_pipe.reader, self._wake_pipe.drain)

    # What is served.

    def add_socket(
        self, socket: ZMQSocket, on_message: MessageHandler, *, frame_count_max: int = 8
    ) -> None:
        """
        Serve *socket*: tell *on_message* each message that it receives.

        Args:
            socket: Stays its owner's: remove it before closing it.
            on_message: Must not block.
            frame_count_max: Longer messages are cut; see `receive_now`.
        """
        drain = partial(self._drain_socket, socket, on_message, frame_count_max)
        self._add_socket(socket, drain)

    def add_readable(self, socket: ZMQSocket, on_readable: Callable[[], None]) -> None:
        """
        Serve *socket*: call *on_readable*, which receives from it, a burst at most.

        For sockets whose messages are worth taking together, such as a
        `ConnectionMonitor`'s.
        """

        def drain() -> None:
            try:
                on_readable()
            except Exception as exc:  # noqa: BLE001 (one socket, not the loop)
                self._report(exc, where="readable")

        self._add_socket(socket, drain)

    def remove_socket(self, socket: ZMQSocket) -> None:
        """Serve *socket* no more; nothing if it was not served."""
        self._check_thread()
        if self._drains.pop(socket, None) is not None:
            self._polled = [entry for entry in self._polled if entry[0] is not socket]
            self._sockets.remove(socket)

    def drain(self, socket: ZMQSocket) -> None:
        """
        Handle what waits on *socket* now, one burst at most; nothing if not served.

        For a handler that must see those messages before it goes on, however long they
        take.
        """
        self._check_thread()
        handle = self._drains.get(socket)
        if handle is None:
            return
        burst_ns_max, self._burst_ns_max = self._burst_ns_max, None
        try:
            handle()
        finally:
            self._burst_ns_max = burst_ns_max

    def set_deadline(
        self,
        next_deadline_ns: Callable[[], int | None],
        on_deadline: Callable[[], None],
    ) -> None:
        """
        Call *on_deadline* whenever the time that *next_deadline_ns* returns has come.

        Args:
            next_deadline_ns: Asked in each turn; by the loop's clock, None for never.
            on_deadline: Must move the deadline, or it is called in each turn.
        """
        self._check_thread()
        self._deadline.set(next_deadline_ns, on_deadline)

    def at_end(self, callback: Callable[[], None]) -> None:
        """
        Call *callback* in the loop's thread when it ends, the latest first.

        The place to close sockets.  It is called in every case, once the loop has run.
        """
        self._check_thread()
        self._at_end.append(callback)

    # For every thread.

    @property
    def failure(self) -> Exception | None:
        """Return why the loop could not go on, or None."""
        return self._failure

    @property
    def failure_count(self) -> int:
        """Return how many exceptions handlers and calls have raised."""
        return self._failure_count

    @property
    def is_over(self) -> bool:
        """Return whether the loop has ended, its `at_end` callbacks included."""
        return self._over.is_set()

    @property
    def is_in_loop(self) -> bool:
        """Return whether the caller runs in the loop's thread."""
        return self._thread_id == threading.get_ident()

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """
        Have *callback* called in the loop's thread, after those given before it.

        Every callback that is taken is called, if need be while the loop ends.

        Raises:
            LocalProtocolError: If the loop has ended: it would never be called.
            DidNotHappenError: If too many calls wait.
            ForkedClientError: In a child process.
        """
        self._guard.check()
        wake_pipe = self._wake_pipe
        if wake_pipe is None or self._is_over:
            raise self._ended()
        if len(self._calls) >= self._call_count_max:
            raise DidNotHappenError(
                f"loop {self._name!r} is overloaded: {self._call_count_max} calls "
                "wait already"
            )
        self._calls.append(callback)
        if self._is_over:
            try:
                self._calls.remove(callback)
            except ValueError:
                return  # it was called while the loop ended
            raise self._ended()
        wake_pipe.wake()

    def call(
        self, action: Callable[[], T], *, target: str, timeout_seconds: float = 30.0
    ) -> T:
        """
        Return what *action* returns, or raise what it raises, in the loop's thread.

        For other threads: the loop's own would wait for itself.

        Args:
            action: Must not block.
            target: How the error names whose loop this is.
            timeout_seconds: How long to wait for its turn.

        Raises:
            LocalProtocolError: If the loop has ended.
            DidNotHappenError: If too many calls wait.
            UnreachableError: If *action* did not have its turn in time; it may still.
        """
        assert not self.is_in_loop
        answer: Answer[T] = Answer()

        def run() -> None:
            try:
                answer.set_result(action())
            except Exception as error:  # noqa: BLE001 (it is the caller's)
                answer.set_exception(error)

        self.call_soon_threadsafe(run)
        try:
            return answer.result(timeout_seconds)
        except TimeoutError:
            raise UnreachableError(
                target, timeout_seconds, "its thread hangs"
            ) from None

    def start(self) -> None:
        """
        Run the loop in a daemon thread of its own.

        Raises:
            LocalProtocolError: If it was started before.
            RuntimeError: If the process may have no more threads.  It can be started
                again then; `stop` ends it all the same.
        """
        self._take_start()
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            self._thread = None
            with self._lock:
                is_stopping = self._is_stopping
                self._is_started = is_stopping
            if is_stopping:
                self._finish()  # who stopped it meanwhile has left that to the thread
            raise

    def run(self) -> None:
        """
        Run the loop in this thread, until it is stopped.

        Raises:
            LocalProtocolError: If it was started before.
            Exception: Why the loop could not go on.
        """
        self._take_start()
        self._run()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask the loop to end after this turn; do not wait.  Idempotent."""
        if self._guard.is_inherited:
            return
        with self._lock:
            self._is_stopping = True
            wake_pipe = self._wake_pipe
            if wake_pipe is not None:
                wake_pipe.wake()
            is_started = self._is_started
            self._is_started = True  # a loop that was stopped is not started any more
        if not is_started:
            self._finish()

    def fail(self, error: Exception) -> None:
        """
        End the loop after this turn, *error* being why it could not go on.

        For a handler, in the loop's thread, that finds the loop's purpose lost.
        """
        self._check_thread()
        if self._failure is None:
            self._failure = error
            self._log.error("loop.failed", where="loop", error=str(error))
            if self._on_failure is not None:
                self._call(partial(self._on_failure, error), where="on_failure")
        self._is_stopping = True

    def join(self, timeout_seconds: float | None = None) -> None:
        """
        Wait until the loop has ended; in the loop's own thread return at once.

        Returns, too, when *timeout_seconds* are over: see `is_over`.
        """
        if not self._guard.is_inherited and not self.is_in_loop:
            detached(lambda: self._join(timeout_seconds))

    def _join(self, timeout_seconds: float | None) -> None:
        if not self._over.wait(timeout_seconds):
            return
        thread = self._thread  # it may have come while this waited
        if thread is not None:
            thread.join(timeout_seconds)
            if not thread.is_alive():
                # Freed here, not where its finalizer swallows what a handler raises.
                self._thread = None

    # The loop.

    def _take_start(self) -> None:
        """Note that the loop starts; it does so once."""
        self._guard.check()
        with self._lock:
            if self._is_started:
                raise LocalProtocolError(f"loop {self._name!r} was started before")
            self._is_started = True

    def _run(self) -> None:
        """Turn until stopped or until that is not possible any more."""
        self._thread_id = threading.get_ident()
        try:
            with translate_zmq_errors(f"loop {self._name!r}"):
                while not self._is_stopping:
                    self._turn()
        except Exception as exc:  # noqa: BLE001 (told to the owner, who may be elsewhere)
            self._failure = exc
            self._log.error("loop.failed", where="loop", exc_info=exc)
            if self._on_failure is not None:
                self._call(partial(self._on_failure, exc), where="on_failure")
        finally:
            self._finish()
            self._thread_id = None

    def _turn(self) -> None:
        """Wait, then serve who is ready."""
        # First: what is due may open sockets and close others.
        try:
            wait_ms = self._deadline.wait_ms()
        except Exception as exc:  # noqa: BLE001 (sockets must still be served)
            self._report(exc, where="deadline")
            wait_ms = self._deadline.rest()
        for socket in self._sockets:
            # pyzmq would poll standard input in place of a closed socket.
            if socket.closed:
                raise LocalProtocolError(
                    f"a socket was closed while loop {self._name!r} served it: "
                    "remove it first"
                )
        for source, _ in zmq.zmq_poll(self._polled, wait_ms):
            drain = self._drains.get(source)
            if drain is not None:  # an earlier handler may have removed it
                drain()
        if self._calls:
            self._run_calls()

    def _drain_socket(
        self, socket: ZMQSocket, on_message: MessageHandler, frame_count_max: int
    ) -> None:
        """Tell *on_message* what waits on *socket*, a burst at most."""
        drain = self._drains[socket]
        began_ns = 0 if self._burst_ns_max is None else self._clock.now_ns()
        for index in range(self._burst_count_max):
            try:
                frames = receive_now(socket, frame_count_max=frame_count_max)
            except zmq.Again:
                return
            try:
                on_message(frames)
            except Exception as exc:  # noqa: BLE001 (one message, not the loop)
                self._report(exc, where="message")
            if self._drains.get(socket) is not drain:
                return  # the handler has removed it
            if index == 0 and not is_readable(socket):
                return  # mostly one comes alone, and `Again` costs more than asking
            if (
                self._burst_ns_max is not None
                and self._clock.now_ns() - began_ns >= self._burst_ns_max
            ):
                return

    def _add_socket(self, socket: ZMQSocket, drain: Callable[[], None]) -> None:
        """Have *drain* called when *socket* is readable."""
        self._add(socket, drain)
        self._sockets.append(socket)

    def _add(self, source: ZMQSocket | int, drain: Callable[[], None]) -> None:
        """Have *drain* called when *source* is readable."""
        self._check_thread()
        assert source not in self._drains, "served already"
        self._drains[source] = drain
        self._polled.append((source, int(zmq.POLLIN)))

    def _run_calls(self) -> None:
        """Call what other threads asked for until now; what they add waits its turn."""
        for _ in range(len(self._calls)):
            try:
                callback = self._calls.popleft()
            except IndexError:
                return  # the loop ends, and who asked for it has taken it back
            self._call(callback, where="call")

    def _call(self, callback: Callable[[], None], *, where: str) -> None:
        try:
            callback()
        except Exception as exc:  # noqa: BLE001 (one call, not the loop)
            self._report(exc, where=where)

    def _report(self, error: Exception, *, where: str) -> None:
        self._failure_count += 1
        self._log.error("loop.failed", where=where, exc_info=error)

    def _finish(self) -> None:
        """Take no more calls, run those taken, close what is to be closed."""
        if self._is_over:
            return  # a signal handler has stopped it amid `start`
        self._is_over = True  # before the last look for calls
        while self._calls:
            self._run_calls()
        for callback in reversed(self._at_end):
            self._call(callback, where="at_end")
        for held in (self._drains, self._polled, self._sockets, self._at_end):
            held.clear()
        self._wake_pipe = None
        self._over.set()

    def _ended(self) -> LocalProtocolError:
        return LocalProtocolError(f"loop {self._name!r} has ended")

    def _check_thread(self) -> None:
        """Assert that the caller may touch what belongs to the loop's thread."""
        assert self._thread_id in (None, threading.get_ident()), "not the loop's thread"
