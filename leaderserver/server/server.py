"""
`LeaderServer`: a name service for leaders that runs as a thread of this process.

What the thread does is told in `leaderserver.server.loop`; here is what other threads
may ask of it.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Self, TypeVar, final

from leaderserver.server.config import ServerConfig
from leaderserver.server.limits import changed_settings, with_reloadable
from leaderserver.server.loop import ServerLoop
from nameservice import (
    Clock,
    ForkGuard,
    LocalProtocolError,
    SystemClock,
    UnreachableError,
    get_logger,
)
from nameservice.interruptible import InterruptibleEvent
from nameservice.observation import Observation
from nameservice.parameters import check_timeout_seconds
from nameservice.uninterrupted import detached, uninterrupted
from zmqtransport import load_key_files


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from election.events import ElectionEvent
    from zmqtransport import AllowList, CurveKeyPair


__all__ = ["LeaderServer"]

T = TypeVar("T")

_CALL_TIMEOUT_SECONDS: Final = 30.0


@final
class LeaderServer:
    """
    A name service for leaders, run by one thread of this process.  Thread-safe.

    A context manager: ``with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as
    server: server.url``.  After ``fork()`` a child's use raises `ForkedClientError`,
    and its `close` is silent (rule E10).

    Args:
        config: Where it listens, and its limits.
        clock: What leases are measured by.
        is_alone: Whether the process does nothing else.  Then its memory, too, says
            when connections must go of which too much waits (rule N3).
    """

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        self._config = config
        self._is_alone = is_alone
        self._clock = SystemClock() if clock is None else clock
        self._guard = ForkGuard()
        self._reloading = Lock()  # held for the whole of a reload
        self._lock = Lock()  # guards the three that follow
        self._is_started = False
        self._is_closed = False
        self._resumed = InterruptibleEvent()
        self._resumed.set()
        self._log = get_logger(component="leaderserver")
        self._running: ServerLoop | None = None

    # -- life ----------------------------------------------------------------------

    def start(self) -> None:
        """
        Bind, and begin to serve.

        Raises:
            ConfigurationError: If a port, a key or the data directory cannot be used;
                says what to change.
            LocalProtocolError: If it was started or closed before.
        """
        self._guard.check()
        detached(self._start, undo=lambda _: self.close())

    def _start(self) -> None:
        with self._lock:
            if self._is_started or self._is_closed:
                raise LocalProtocolError("a LeaderServer is started once")
            self._is_started = True
            running = ServerLoop(self._config, self._clock, is_alone=self._is_alone)
            try:
                running.loop.start()
            except BaseException:
                running.loop.stop()  # closes what was opened
                raise
            self._running = running
        self._log.info("server.started", url=self.url, publish_port=self.publish_port)

    def join(self, timeout_seconds: float | None = None) -> bool:
        """
        Wait until it serves no more: it was closed, or has failed.

        Returns:
            Whether it is over; False after *timeout_seconds*.
        """
        loop = self._started().loop
        loop.join(check_timeout_seconds(timeout_seconds))
        return loop.is_over

    def close(self) -> None:
        """
        Stop serving, keep what is stored.  Idempotent.

        Clients see their connections close; their sessions end with this server.
        """
        closed = None if self._guard.is_inherited else detached(self._close)
        if closed is not None:
            # Here: a signal handler may have interrupted a log that holds its lock.
            self._log.info("server.closed", url=closed.url)

    def _close(self) -> ServerLoop | None:
        """Return what was running, the first time."""
        with self._lock:
            is_first = not self._is_closed
            self._is_closed = True
            running = self._running
            self._resumed.set()
        if running is not None:
            running.loop.stop()
            running.loop.join()
        return running if is_first else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def reload(self, config: ServerConfig | None = None) -> bool:
        """
        Read the allow-list and the server's keys again; they hold from now on.

        Sessions of clients that may less than before end at once, with what they lead;
        a client that is not listed any more is disconnected.  Where the key is another
        one, all connections end: clients that know it are back within a moment, and
        their sessions go on.  What cannot be read changes nothing.

        Args:
            config: Other limits, if any.  Those that a running server can change
                (``RELOADABLE_LIMITS``) hold from now on, and end nothing: who is there
                stays.  Of each other setting that differs the log says that it needs a
                restart (`server.restart_needed`).

        Returns:
            Whether there was anything to read; False without CURVE and *config*.

        Raises:
            ConfigurationError: If a file cannot be read, or there is no file descriptor
                left for a new key; what was read earlier goes on to hold then.
        """
        self._started()
        return detached(lambda: self._reload(config))

    def _reload(self, config: ServerConfig | None) -> bool:
        running = self._started()
        with self._reloading:
            before = self._config
            after = before if config is None else with_reloadable(before, config)
            access = self._read_access()
            is_key_new = access is not None and (
                access[1].public_key != running.public_key
            )
            if is_key_new:
                running.prepare_keys()
            changed = changed_settings(before, after)

            def apply(running: ServerLoop) -> None:
                if changed:
                    running.apply_limits(after)
                if access is not None:
                    running.reload(*access)

            self._call(apply)
            self._config = after
        if access is not None:
            allow_list, key_pair = access
            self._log.info("server.reloaded", client_count=len(allow_list.principals))
            if is_key_new:
                self._log.info("server.key_replaced", public_key=key_pair.public_key)
        if changed:
            self._log.info(
                "server.limits_changed", **{n: getattr(after, n) for n in changed}
            )
        for name in () if config is None else changed_settings(after, config):
            self._log.warning("server.restart_needed", setting=name)
        return access is not None or config is not None

    def _read_access(self) -> tuple[AllowList, CurveKeyPair] | None:
        """Return who may do what, and our keys; None without CURVE."""
        key_pair, allow_list = load_key_files(
            self._config.curve_secret_key_file,
            self._config.curve_public_key_file,
            self._config.allow_list_file,
        )
        return (
            None if key_pair is None or allow_list is None else (allow_list, key_pair)
        )

    # -- questions -----------------------------------------------------------------

    @property
    def url(self) -> str:
        """
        Return what clients on this machine put into their configuration.

        Where every interface is bound this is the loopback address; clients elsewhere
        write the name of this machine instead.
        """
        return self._started().url

    @property
    def endpoint(self) -> str:
        """Return where requests come in: ``tcp://host:port``, with the real port."""
        return str(self._started().endpoint)

    @property
    def publish_port(self) -> int:
        """Return the port on which changes are published."""
        return self._started().publish_endpoint.port

    @property
    def failure(self) -> Exception | None:
        """Return why it serves no more though it was not closed, or None."""
        return None if self._running is None else self._running.loop.failure

    def status(self) -> Mapping[str, str | int | float]:
        """
        Return the server's figures by name.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer.
        """
        return self._call(lambda running: running.figures())

    def observe(
        self, *, timeout_seconds: float = 30.0, state_count_max: int = 0
    ) -> Observation:
        """
        Return what metrics and health are made of.

        Args:
            timeout_seconds: How long to wait for its thread.
            state_count_max: Of no meaning here.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer in time.
        """
        running = self._started()
        figures = running.loop.call(
            running.figures, target=running.url, timeout_seconds=timeout_seconds
        )
        problem = None
        if figures["is_undecided"]:
            problem = "it waits until what an earlier server granted has ended"
        return Observation(role="server", figures=figures, problem=problem)

    # -- control, for tests and for services in the same process ---------------------

    def inject(self, event: ElectionEvent) -> None:
        """
        Have *event* happen to the election, as if a client had asked for it.

        For leadership control; component ids are ``cluster/component`` here.
        """
        self._call(lambda running: running.inject(event))

    def pause(self) -> None:
        """
        Stop doing anything, like a stopped process, until `resume` or `close`.

        Returns once it has stopped.  Idempotent.
        """
        self._started()
        detached(self._pause)

    def _pause(self) -> None:
        running = self._started()
        paused = InterruptibleEvent()

        def wait() -> None:
            paused.set()
            self._resumed.wait()

        with self._lock:  # a close that comes later wakes what waits
            if not self._resumed.is_set():
                return
            if not self._is_closed:
                self._resumed.clear()
            running.loop.call_soon_threadsafe(wait)
        if not paused.wait(_CALL_TIMEOUT_SECONDS):
            raise UnreachableError(self.url, _CALL_TIMEOUT_SECONDS, "its thread hangs")

    def resume(self) -> None:
        """Go on after `pause`.  Idempotent."""
        self._guard.check()
        uninterrupted(self._resumed.set)

    def _call(self, action: Callable[[ServerLoop], T]) -> T:
        """Return what *action* returns in the server's thread."""
        running = self._started()
        return running.loop.call(lambda: action(running), target=running.url)

    def _started(self) -> ServerLoop:
        self._guard.check()
        if self._running is None:
            raise LocalProtocolError("the LeaderServer is not started")
        return self._running
