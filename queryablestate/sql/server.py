"""
`SQLServer`: answers tools that speak the Postgres protocol, as their callers.

Theory of operation.  One thread runs an event loop with all connections, and with the
clients of their callers; queries run in processes (`Workers`).  The server has no
rights of its own: what a tool gives as a password is the token of a caller, which the
proxy judges anew for each session.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import threading
from typing import TYPE_CHECKING, Final, Self, final

from attrs import evolve

from nameservice import (
    QUERY_PROXY,
    ConfigurationError,
    ForkGuard,
    LocalProtocolError,
    SystemClock,
    get_logger,
)
from nameservice.interruptible import InterruptibleEvent
from nameservice.loop_observation import observe_on_loop
from nameservice.observation import Observation
from nameservice.open_files import OPEN_FILES_LEFT_MIN, require_open_files
from nameservice.uninterrupted import detached
from queryablestate.sql.clients import CallerClients
from queryablestate.sql.config import SQLConfig, split_address
from queryablestate.sql.connection import Connection, Shared
from queryablestate.sql.desk import Desk
from queryablestate.sql.jobs import Setup
from queryablestate.sql.workers import Workers
from zmqtransport import connection_limit, open_files_bound


if TYPE_CHECKING:
    from collections.abc import Mapping

    from haservices import HAServices
    from queryablestate.sql.engine import Parser


__all__ = ["SQLServer"]

_STREAM_LIMIT_BYTES: Final = 65_536
_DEADLINE_SECONDS: Final = 5.0
_CLOSING_SECONDS: Final = 10.0


@final
class SQLServer:
    """
    Serves states as tables.  A context manager; thread-safe.

    Args:
        ha: The name service; stays its owner's, and open as long as the server is.
            Workers open the same one: it cannot be an embedded one.
        config: Its settings.

    Raises:
        ConfigurationError: If a setting cannot be used, DuckDB or pyarrow is not
            installed, or the process may have no more open files; says what to do.
    """

    def __init__(self, ha: HAServices, config: SQLConfig | None = None) -> None:
        self._ha = ha
        self._config = SQLConfig() if config is None else config
        if ha.config.url.startswith("embedded:"):
            raise ConfigurationError(
                "queries run in processes of their own, which an embedded name service "
                "cannot be reached from: use a LeaderServer"
            )
        self._tls = _tls_context(self._config)
        self._make_parser = _find_parser()
        require_open_files(OPEN_FILES_LEFT_MIN, what="a server of SQL")
        self._guard = ForkGuard()
        self._clock = SystemClock()
        self._log = get_logger(component="sql")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sql", daemon=True)
        self._stop = asyncio.Event()
        self._started: threading.Event = InterruptibleEvent()
        self._proxies = ha.get_leader_retriever(QUERY_PROXY)
        self._failure: BaseException | None = None
        self._is_closed = False
        self._address = ""
        self._ids = itertools.count(1)

    def start(self) -> None:
        """
        Listen, and return when tools may connect.

        Raises:
            ConfigurationError: If the address cannot be used, or the process may have
                no more open files or processes.
            LocalProtocolError: If it was started or closed before.
        """
        self._guard.check()
        detached(self._start, undo=lambda _: self.close())

    def _start(self) -> None:
        if self._thread.ident is not None or self._is_closed:
            raise LocalProtocolError("a SQLServer is started once")
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            if isinstance(self._failure, OSError):
                bind, reason = self._config.bind, self._failure.strerror
                message = f"cannot serve SQL at {bind}: {reason}"
                raise ConfigurationError(message) from self._failure
            raise self._failure
        try:
            self._proxies.start()
        except BaseException:
            self.close()  # who was not started is closed by no one
            raise

    @property
    def address(self) -> str:
        """Return where it listens: ``HOST:PORT``."""
        return self._address

    def close(self) -> None:
        """Tell sessions that it ends.  Idempotent; silent in a forked child."""
        if not self._guard.is_inherited:
            detached(self._close)

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._proxies.close()
        if self._thread.ident is not None and self._thread.is_alive():
            # One that has just ended by itself has nothing to be told.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        elif self._thread.ident is None:
            self._loop.close()

    def join(self) -> None:
        """Wait until it has ended, by `close` or by a failure."""
        detached(self._thread.join)

    @property
    def failure(self) -> BaseException | None:
        """Return why it ended by itself, or None."""
        return self._failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def observe(
        self, *, timeout_seconds: float = 2.0, state_count_max: int = 0
    ) -> Observation:
        """
        Return what it tells of itself; see `nameservice.observation.Observable`.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer in time.
        """
        self._guard.check()
        if not self._thread.is_alive():
            raise LocalProtocolError("this SQLServer is not running")

        is_led = self._proxies.leader is not None
        problem = None if is_led else "no proxy leads: no state can be asked"

        async def look() -> Observation:
            return Observation(role="sql", figures=self._figures(), problem=problem)

        return observe_on_loop(
            look, self._loop, target=self._address, timeout_seconds=timeout_seconds
        )

    def _figures(self) -> Mapping[str, int]:
        return {
            "connections": len(self._shared.connections),
            "queries_running": self._workers.running_count,
            "queries_waiting": self._workers.waiting_count,
            "workers_restarted_total": self._workers.restart_count,
            **self._shared.desk.counts,
            **self._shared.counts,
        }

    # -- the thread --------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 (told by `start`, or the log)
            self._failure = error
            if self._started.is_set():
                self._log.exception("server.failed")
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        config = self._config
        self._clients = CallerClients(
            self._ha,
            count_max=config.client_count_max,
            deadline_seconds=_DEADLINE_SECONDS,
        )
        self._workers = Workers(
            Setup(
                settings=self._ha.config.to_settings(),
                memory_limit_bytes=config.memory_limit_bytes,
                thread_count=config.thread_count,
            ),
            config.worker_count,
        )
        desk = Desk(
            self._make_parser,
            self._workers,
            text_size_max=config.text_size_max,
            now_ns=self._clock.now_ns,
        )
        with contextlib.closing(desk):
            # Without a free descriptor no connection is taken, and none makes room.
            connection_count_max = connection_limit(
                config.connection_count_max,
                open_files_bound(fifth_count=2),  # as many have yet to begin a session
                log=self._log,
            )
            limits = evolve(config, connection_count_max=connection_count_max)
            self._shared = Shared(limits, self._tls, self._clients, desk)
            await self._listen()

    async def _listen(self) -> None:
        config = self._config
        host, port = split_address(config.bind)
        try:
            server = await asyncio.start_server(
                self._connected, host, port, limit=_STREAM_LIMIT_BYTES
            )
        except OSError as error:
            raise ConfigurationError(
                f"bind {config.bind} cannot be used: {error.strerror or error}"
            ) from error
        try:
            self._workers.start()
            found_host, found_port = server.sockets[0].getsockname()[:2]
            shown = f"[{found_host}]" if ":" in found_host else found_host
            self._address = f"{shown}:{found_port}"
            self._log.info("sql.serving", address=self._address)
            self._started.set()
            await self._stop.wait()
        finally:
            # asyncio loses what it has accepted, and not made a connection of, when it
            # is closed: first no more is accepted, then there is a turn for that.
            for listener in server.sockets:
                self._loop.remove_reader(listener.fileno())
            await asyncio.sleep(0)
            server.close()
            await self._end_connections()
            await self._workers.close()
            await self._clients.close()

    async def _end_connections(self) -> None:
        connections = list(self._shared.connections.values())
        for end in (Connection.shut_down, Connection.abort):
            left = [one for one in connections if not one.task.done()]
            for one in left:
                end(one)
            if left:
                await asyncio.wait([one.task for one in left], timeout=_CLOSING_SECONDS)

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._stop.is_set():  # it was not among those that have been ended
            writer.close()
            return
        process_id = next(self._ids) & 0x7FFFFFFF
        connection = Connection(self._shared, reader, writer, process_id)
        self._shared.connections[process_id] = connection
        self._shared.make_room()
        try:
            await connection.serve()
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the tool is gone, or we end
        except Exception:  # noqa: BLE001 (one connection's defect is not another's)
            self._log.exception("connection.failed")
        finally:
            # It counts, and is ended with the others, for as long as it has a socket.
            await connection.close()
            del self._shared.connections[process_id]


def _find_parser() -> type[Parser]:
    try:
        from queryablestate.sql.engine import Parser  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigurationError(
            "SQL needs DuckDB and pyarrow, which are not installed here: "
            "pip install 'spark-lodestar[sql]'"
        ) from error
    return Parser


def _tls_context(config: SQLConfig) -> ssl.SSLContext | None:
    if config.certificate_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate_file, config.certificate_key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"certificate_file and certificate_key_file cannot be used: {error}"
        ) from error
    return context
