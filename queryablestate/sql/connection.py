"""`Connection`: one tool, from its first byte to its last."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, final

from attrs import define, field

from nameservice import (
    AuthenticationError,
    ConfigurationError,
    NameServiceError,
    get_logger,
)
from queryablestate.sql.desk import Desk
from queryablestate.sql.protocol.conversation import (
    CancelAsked,
    Conversation,
    Ended,
    LoginAsked,
    PasswordGiven,
    QueryAsked,
    TLSAsked,
)
from queryablestate.sql.protocol.refusals import SQLError, refusal_of
from queryablestate.sql.session import Session
from queryablestate.sql.settings import SessionSettings


if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from queryablestate.client.async_client import AsyncQueryableStateClient
    from queryablestate.sql.clients import CallerClients
    from queryablestate.sql.config import SQLConfig


__all__ = ["Connection", "Shared"]

_READ_SIZE_BYTES: Final = 65_536
_UNSENT_SIZE_BYTES_MAX: Final = 65_536


@final
@define
class Shared:
    """
    What all connections of a server share.

    Attributes:
        config: The settings.
        tls: What TLS begins with, if it is offered.
        clients: Of the callers.
        desk: Where statements are answered.
        connections: By what their sessions are called.
        counts: Figures.
        log: Of the server.
    """

    config: SQLConfig
    tls: ssl.SSLContext | None
    clients: CallerClients
    desk: Desk
    connections: dict[int, Connection] = field(factory=dict)
    counts: dict[str, int] = field(
        factory=lambda: dict.fromkeys(
            (
                "connections_refused_total",
                "logins_refused_total",
                "statements_failed_total",
                "cancels_total",
            ),
            0,
        )
    )
    log: Any = field(factory=lambda: get_logger(component="sql"))

    @property
    def session_count(self) -> int:
        """Return how many sessions there are."""
        return sum(one.is_in for one in self.connections.values())

    def make_room(self) -> None:
        """
        End the connections that came first of those that are not in, if they are many.

        They hold no place of a session: a stranger could take all of them, and say
        nothing.  So a flood of them drives out itself.
        """
        newcomers = [one for one in self.connections.values() if not one.is_in]
        for one in newcomers[: -self.config.connection_count_max]:
            self.counts["connections_refused_total"] += 1
            one.abort()

    def cancel(self, process_id: int, secret: int) -> None:
        """Have the statement of a session end, if *secret* is the session's."""
        connection = self.connections.get(process_id)
        if connection is not None and secrets.compare_digest(
            connection.secret.to_bytes(4, "big"), secret.to_bytes(4, "big")
        ):
            self.counts["cancels_total"] += 1
            connection.cancel()


@final
class Connection:
    """
    One connection of a tool.

    Args:
        shared: What all connections share.
        reader: What it sends.
        writer: What it is sent.
        process_id: What its session is called in a cancel request.
    """

    def __init__(
        self,
        shared: Shared,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process_id: int,
    ) -> None:
        self._shared = shared
        self._config = shared.config
        self._reader = reader
        self._writer = writer
        self._process_id = process_id
        self._is_encrypted = False
        self._is_ending = False
        self._talk = Conversation(
            message_size_bytes_max=self._config.message_size_bytes_max
        )
        self._session: Session | None = None
        self._settings: SessionSettings | None = None
        self._held = contextlib.AsyncExitStack()
        self._doing: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[bytes] | None = None
        self.secret = secrets.randbits(32)
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task

    def cancel(self) -> None:
        """Have the present statement end."""
        if self._doing is not None:
            self._doing.cancel()

    @property
    def is_in(self) -> bool:
        """Return whether a session has begun."""
        return self._session is not None

    def shut_down(self) -> None:
        """Have the connection end, with a word to the tool."""
        self._is_ending = True
        self.cancel()
        if self._waiting is not None:
            self._waiting.cancel()

    def abort(self) -> None:
        """End the connection at once: its tool does not take its last word."""
        self._writer.transport.abort()
        self.task.cancel()

    async def close(self) -> None:
        """Close it, and do not wait for ever until the tool has read its last word."""
        self._writer.close()
        try:
            async with asyncio.timeout(self._config.statement_timeout_seconds):
                await self._writer.wait_closed()
        except (OSError, asyncio.CancelledError):  # TimeoutError is an OSError
            self._writer.transport.abort()

    async def serve(self) -> None:
        """Do what the tool wants, until it is gone."""
        async with self._held:
            try:
                async with asyncio.timeout(self._config.login_timeout_seconds):
                    is_in = await self._log_in()
            except TimeoutError:
                return
            except (SQLError, NameServiceError) as error:
                self._talk.end(refusal_of(error))
                await self._flush()
                return
            try:
                if is_in:
                    await self._work()
            finally:
                # However it ends: what its portals hold are places of others.
                self._talk.end()
                if self._session is not None:
                    await self._session.free()

    # -- logging in --------------------------------------------------------------------

    async def _log_in(self) -> bool:
        while True:
            step = await self._step()
            match step:
                case TLSAsked():
                    await self._begin_tls()
                case CancelAsked(process_id=process_id, secret=secret):
                    self._shared.cancel(process_id, secret)
                    return False
                case LoginAsked(parameters=parameters):
                    self._check(parameters)
                    self._settings = SessionSettings(
                        parameters["user"],
                        parameters.get("database") or parameters["user"],
                        parameters,
                        timeout_seconds_max=self._config.statement_timeout_seconds,
                    )
                    # Where the proxy lists no callers there is nothing to show.
                    if await self._enter(None):
                        return True
                    self._talk.want_password()
                case PasswordGiven(password=password):
                    try:
                        if await self._enter(password or None):
                            return True
                    except ConfigurationError:
                        pass  # it cannot be a token
                    raise SQLError(
                        "28P01",
                        "no caller has this token",
                        "give the caller's token as the password",
                    )
                case _:
                    await self._flush()
                    return False

    def _check(self, parameters: Mapping[str, str]) -> None:
        """Refuse a session that cannot begin, whatever its caller is."""
        if self._config.is_tls_required and not self._is_encrypted:
            raise SQLError(
                "28000", "TLS is required here", "connect with sslmode=require"
            )
        self._check_room()
        if parameters.get("replication", "false") not in {"false", "off", "no", "0"}:
            raise SQLError("0A000", "there is no replication")

    def _check_room(self) -> None:
        """Refuse a session if there are as many as may be."""
        if self._shared.session_count >= self._config.connection_count_max:
            self._shared.counts["connections_refused_total"] += 1
            raise SQLError("53300", "there are too many connections", "close some")

    async def _enter(self, token: str | None) -> bool:
        """Begin the session as the caller of *token*, if the proxy knows one."""
        clients = self._shared.clients
        async with contextlib.AsyncExitStack() as held:
            client = await held.enter_async_context(clients.client_of(token))
            try:
                await client.jobs()
            except AuthenticationError:
                await held.aclose()
                await clients.forget(token)
                if token is not None:
                    self._shared.counts["logins_refused_total"] += 1
                return False
            self._check_room()  # others have begun since
            self._held.push_async_callback(held.pop_all().aclose)
        self._begin(client, token)
        return True

    def _begin(self, client: AsyncQueryableStateClient, token: str | None) -> None:
        assert self._settings is not None
        self._session = Session(
            self._shared.desk,
            self._talk,
            client,
            caller="" if token is None else sha256(token.encode()).hexdigest(),
            token=token,
            settings=self._settings,
            process_id=self._process_id,
            flush=self._flush,
        )
        self._talk.let_in(self._process_id, self.secret, self._settings.reported())

    async def _begin_tls(self) -> None:
        tls = self._shared.tls
        if tls is None or self._is_encrypted:
            self._talk.say(b"N")
            return
        # What was sent in the clear may be another's (CVE-2021-23214).
        if self._talk.has_unread or await self._has_received_more():
            raise EOFError
        self._writer.write(b"S")
        await self._writer.drain()
        await self._writer.start_tls(tls)
        self._is_encrypted = True

    async def _has_received_more(self) -> bool:
        """Return whether more has come since; until TLS begins nothing else does."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        reading = asyncio.create_task(self._reader.read(1))
        await asyncio.sleep(0)  # what is there is read at once
        if reading.done():
            return True
        reading.cancel()
        return False

    # -- working -----------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._is_ending:
            step = await self._step()
            if isinstance(step, Ended):
                break
            await self._do(step)
        if self._is_ending:
            self._talk.end(
                SQLError("57P01", "the server is shutting down", "connect again")
            )
        await self._flush()

    async def _do(self, step: Any) -> None:
        assert self._session is not None
        self._doing = asyncio.create_task(self._session.do(step))
        try:
            await self._doing
        except asyncio.CancelledError:
            if self.task.cancelling():
                raise
            self._fail(SQLError("57014", "canceling statement due to user request"))
        except (SQLError, NameServiceError) as error:
            self._fail(refusal_of(error))
        except (OSError, EOFError):
            raise
        except Exception as error:
            self._shared.log.exception(
                "statement.failed", error_type=type(error).__name__
            )
            self._fail(refusal_of(error))
        finally:
            self._doing = None
        if isinstance(step, QueryAsked):
            self._talk.query_done()
        await self._session.free()

    def _fail(self, refusal: SQLError) -> None:
        self._shared.counts["statements_failed_total"] += 1
        self._talk.fail(refusal)

    # -- bytes -------------------------------------------------------------------------

    async def _step(self) -> Any:
        while True:
            step = self._talk.step()
            if self._session is not None:
                # Before what is next: it may need the place that a portal held.
                await self._session.free()
            if step is not None:
                # A question of seven bytes may be answered with a megabyte.
                if self._talk.unsent_size > _UNSENT_SIZE_BYTES_MAX:
                    await self._flush()
                return step
            await self._flush()
            if self._is_ending:  # since before there was a wait to be cancelled
                return Ended()
            self._waiting = asyncio.create_task(self._reader.read(_READ_SIZE_BYTES))
            try:
                data = await self._waiting
            except asyncio.CancelledError:
                if self._is_ending and not self.task.cancelling():
                    return Ended()
                raise
            finally:
                self._waiting = None
            if not data:
                raise EOFError
            self._talk.feed(data)

    async def _flush(self) -> None:
        """Send what is to be sent; a tool that does not read is given up."""
        output = self._talk.take_output()
        if output:
            self._writer.write(output)
        try:
            async with asyncio.timeout(self._config.statement_timeout_seconds):
                await self._writer.drain()
        except TimeoutError:
            transport = self._writer.transport
            transport.abort()
            raise EOFError from None
