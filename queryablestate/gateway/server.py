"""
`GatewayServer`: the gateway as a thread of this process, with its server.

Theory of operation.  One event loop on one thread answers everything: uvicorn reads
HTTP, `Boundary` bounds it, and the clients of queryable state ask the proxy.  It keeps
nothing: any number of gateways answer alike, and one that is killed costs its callers a
retry with another.

On `close` it is not found any more, takes no further requests, ends its watches, whose
watchers come back elsewhere with the id of the last event, and answers what is under
way within `GatewayConfig.drain_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Final, Self, final

import uvicorn
from attrs import evolve

from nameservice import (
    ConfigurationError,
    ForkGuard,
    LocalProtocolError,
    SystemClock,
    get_logger,
)
from nameservice.clock import NS_PER_SECOND
from nameservice.interruptible import InterruptibleEvent
from nameservice.loop_observation import observe_on_loop
from nameservice.observation import Observation
from nameservice.open_files import OPEN_FILES_LEFT_MIN, require_open_files
from nameservice.uninterrupted import detached
from nameservice.version import package_version
from queryablestate.gateway.announcement import Announcement
from queryablestate.gateway.app import GatewayApp
from queryablestate.gateway.config import GatewayConfig
from queryablestate.gateway.http_protocol import BoundedProtocol, protocol_for
from zmqtransport import connection_limit, open_files_bound


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from haservices import HAServices


__all__ = ["GatewayServer"]

_BACKLOG: Final = 1_024
_TICK_SECONDS: Final = 1.0
_START_SECONDS: Final = 30.0


@final
class GatewayServer:
    """
    Answers over HTTP.  A context manager; thread-safe.

    After ``fork()`` a child's use raises `ForkedClientError`, and its `close` does
    nothing.

    Args:
        services: The name service; stays its owner's, and open as long as this is.
        config: Where to listen, and limits.

    Raises:
        ConfigurationError: If the process may have too few more open files.
    """

    def __init__(
        self, services: HAServices, config: GatewayConfig | None = None
    ) -> None:
        require_open_files(OPEN_FILES_LEFT_MIN, what="a gateway")
        self._services = services
        self._config = GatewayConfig() if config is None else config
        self._guard = ForkGuard()
        self._clock = SystemClock()
        self._log = get_logger(component="gateway")
        self._version = package_version()
        self._lock = threading.Lock()  # guards what follows
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._url = ""
        self._began_ns = 0
        self._announcement: Announcement | None = None
        # Made in the thread.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: GatewayApp | None = None
        self._server: uvicorn.Server | None = None
        self._started = InterruptibleEvent()
        self.failure: BaseException | None = None

    @property
    def url(self) -> str:
        """Return how it is reached from this machine, with the real port."""
        return self._url

    @property
    def advertised_url(self) -> str:
        """Return how others reach it, as far as it was told."""
        return self._config.advertised_url or self._url

    def start(self) -> None:
        """
        Listen, and return when requests are answered.

        Raises:
            ConfigurationError: If the address is taken, or the certificates cannot be
                used; says what to change.
            LocalProtocolError: If it was started or closed before.
            RuntimeError: If the process may have no more threads.
        """
        self._guard.check()
        detached(self._start, undo=lambda _: self.close())

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._is_closed:
                raise LocalProtocolError("a GatewayServer is started once")
            config = self._server_config()
            listener = self._listen()
            self._began_ns = self._clock.now_ns()
            thread = threading.Thread(
                target=self._run, args=(listener, config), name="gateway", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                listener.close()
                raise
            self._thread = thread
        if not self._started.wait(_START_SECONDS) or self.failure is not None:
            self.close()
            why = self.failure or f"it has not started in {_START_SECONDS:g} s"
            raise ConfigurationError(f"cannot serve {self._url}: {why}")
        try:
            self._announce()
        except BaseException:
            self.close()  # who was not started is closed by no one
            raise
        self._log.info("gateway.serving", url=self._url)

    def close(self) -> None:
        """Answer what is under way, and end.  Idempotent; silent in a forked child."""
        if not self._guard.is_inherited and detached(self._close):
            # Here: a signal handler may have interrupted a log that holds its lock.
            self._log.info("gateway.closed", url=self._url)

    def _close(self) -> bool:
        """Return whether it was running, the first time."""
        with self._lock:
            is_first = not self._is_closed
            self._is_closed = True
        if self._thread is None:
            return False
        if is_first:
            if self._announcement is not None:
                self._announcement.close()
            loop = self._loop
            if loop is not None:
                # A loop that has ended has nothing to be told.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._begin_end)
        self._thread.join()
        return is_first

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        thread = self._thread
        assert thread is not None
        detached(lambda: thread.join(timeout_seconds))
        return not thread.is_alive()

    def observe(
        self, *, timeout_seconds: float = 30.0, state_count_max: int = 0
    ) -> Observation:
        """
        Return what metrics and health are made of.

        Args:
            timeout_seconds: How long to wait for its thread.
            state_count_max: Of no meaning here: the proxy tells how new states are.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer in time.
        """
        self._guard.check()
        loop = self._loop
        if loop is None or self._thread is None or not self._thread.is_alive():
            raise LocalProtocolError("the GatewayServer is not running")
        return observe_on_loop(
            self._observe, loop, target=self._url, timeout_seconds=timeout_seconds
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _announce(self) -> None:
        with self._lock:
            # One that was closed meanwhile would be found, with nothing there.
            if self._config.is_announced and not self._is_closed:
                self._announcement = Announcement(self._services, self.advertised_url)

    # -- before the thread -------------------------------------------------------------

    def _listen(self) -> socket.socket:
        endpoint = self._config.endpoint
        host = "" if endpoint.host == "*" else endpoint.host
        try:
            found = socket.getaddrinfo(
                host or None,
                endpoint.port,
                type=socket.SOCK_STREAM,
                flags=socket.AI_PASSIVE,
            )
            family, _, _, _, address = found[0]
            listener = socket.create_server(
                address, family=family, backlog=_BACKLOG, reuse_port=False
            )
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(
                f"cannot listen at {self._config.bind}: {error}; name another address, "
                "or end what listens there"
            ) from error
        host, port = listener.getsockname()[:2]
        if endpoint.is_wildcard:
            host = "127.0.0.1"
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if self._config.uses_https else "http"
        self._url = f"{scheme}://{shown}:{port}"
        return listener

    def _server_config(self) -> uvicorn.Config:
        # Without a free descriptor no connection is taken, and none makes room for it.
        connection_count_max = connection_limit(
            self._config.connection_count_max,
            open_files_bound(fifth_count=4),  # those to the proxy and to nodes on top
            log=self._log,
        )
        limits = evolve(self._config, connection_count_max=connection_count_max)
        config = uvicorn.Config(
            self._answer,
            http=protocol_for(limits),
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=self._config.header_size_bytes_max,
            timeout_keep_alive=max(1, round(self._config.idle_seconds)),
            timeout_graceful_shutdown=max(1, round(self._config.drain_seconds)),
            ssl_certfile=self._config.certificate_file,
            ssl_keyfile=self._config.certificate_key_file,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"the certificates cannot be used: {error}; correct certificate_file "
                "and certificate_key_file"
            ) from error
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        return config

    # -- in the thread -----------------------------------------------------------------

    def _run(self, listener: socket.socket, config: uvicorn.Config) -> None:
        try:
            asyncio.run(self._serve(listener, config))
        except BaseException as error:  # noqa: BLE001 (a thread has no one to tell)
            self.failure = error
            self._log.error("gateway.failed", error=repr(error))
        finally:
            listener.close()
            self._started.set()

    async def _serve(self, listener: socket.socket, config: uvicorn.Config) -> None:
        self._loop = asyncio.get_running_loop()
        self._app = GatewayApp(self._services, self._config)
        self._server = server = _Server(config, self._started.set)
        ticking = asyncio.ensure_future(self._tick(self._app))
        try:
            if self._is_closed:
                server.should_exit = True
            await server.serve(sockets=[listener])
        finally:
            ticking.cancel()
            for connection in list(server.server_state.connections):
                assert isinstance(connection, BoundedProtocol)
                connection.reset()
            await self._app.close()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._app is not None
        await self._app.boundary(scope, receive, send)

    async def _tick(self, app: GatewayApp) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            app.callers.end_idle()

    def _begin_end(self) -> None:
        if self._app is not None:
            self._app.end()
        if self._server is not None:
            self._server.should_exit = True

    async def _observe(self) -> Observation:
        app, server = self._app, self._server
        assert app is not None
        boundary = app.boundary
        figures: dict[str, str | int | float] = {
            "url": self.advertised_url,
            "uptime_seconds": (self._clock.now_ns() - self._began_ns) / NS_PER_SECOND,
            "connections": 0
            if server is None
            else len(server.server_state.connections),
            "requests": boundary.under_way,
            "callers": len(app.callers),
            "callers_refused_total": app.callers.refused_count,
            "watches": app.watches.watch_count,
            "watched_keys": app.callers.watched_key_count,
            "watched_components": app.leaders.watched_count,
            "failures_total": 0,
            "version": self._version,
        }
        for name, count in boundary.counts.items():
            figures[f"{name}_total"] = count
        if server is not None:
            protocol = server.config.http_protocol_class
            for reason, count in protocol.ended_counts.items():  # type: ignore[attr-defined]
                figures[f"ended_{reason}_total"] = count
        return Observation(
            role="gateway",
            figures=figures,
            problem="it is about to end" if boundary.is_ending else None,
            latencies=boundary.latencies.buckets(),
        )


class _Server(uvicorn.Server):
    """Says when it has started."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()
