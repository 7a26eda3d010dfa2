"""
`Boundary`: what every request passes, whatever it asks for.

Theory of operation.  It stands between the server and the routes.  A request that comes
in has a path that is taken apart before it is decoded, a body of a bounded size that
has to come in time, and a place among those that are answered at once.  An answer that
goes out has the headers that keep browsers safe, and goes in pieces that a client has
to take in time.  What goes wrong in between is a problem document; what goes wrong
behind the first byte of an answer ends the connection, so that no caller takes half of
an answer for the whole.

Neither headers nor parameters are logged: tokens are in the one, and keys in the other.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from nameservice import SystemClock, get_logger
from nameservice.observation import Latencies
from queryablestate.gateway.headers import HTTPS_HEADERS, SECURITY_HEADERS
from queryablestate.gateway.hosts import foreign_host, host_of
from queryablestate.gateway.http_protocol import ABORT, IS_GONE, WHEN_GONE
from queryablestate.gateway.problems import (
    GatewayError,
    Problem,
    problem_of,
    unexpected,
)


if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from queryablestate.gateway.config import GatewayConfig


__all__ = ["ENDS_WITH_CLIENT", "IS_WATCH", "KIND", "Boundary", "mark"]

_PIECE_SIZE_BYTES: Final = 64 * 1024
_BUSY_SECONDS: Final = 1.0

KIND: Final = "lodestar.kind"
IS_WATCH: Final = "lodestar.watch"
ENDS_WITH_CLIENT: Final = "lodestar.ends_with_client"
"""Of a request's scope: what it asks for, and whether it stays; what is called to have
its answer end when its client leaves."""

Headers: TypeAlias = Mapping[str, str]
ProblemPage: TypeAlias = Callable[
    ["Scope", Problem], tuple[bytes, Mapping[str, str]] | None
]
_Headers: TypeAlias = list[tuple[bytes, bytes]]


def mark(scope: Scope, kind: str, *, is_watch: bool = False) -> None:
    """Say what a request asks for; a watch gives up its place among the others."""
    scope[KIND] = kind
    if is_watch:
        scope[IS_WATCH]()


@final
class Boundary:
    """
    An ASGI application around the routes.

    Args:
        routes: What answers.
        config: Limits.
        problem_page: Returns a problem as a page and its headers, where people are to
            read it; None elsewhere.

    Attributes:
        counts: Answers by status, and what else happened, by name.
        latencies: From the head of a request to the end of its answer, without watches.
        under_way: Requests that are answered now, without watches.
        is_ending: Whether further requests are refused.
    """

    def __init__(
        self,
        routes: ASGIApp,
        config: GatewayConfig,
        problem_page: ProblemPage | None = None,
    ) -> None:
        self._routes = routes
        self._problem_page = problem_page
        self._config = config
        self._clock = SystemClock()
        self._log = get_logger(component="gateway")
        https = HTTPS_HEADERS if config.uses_https else {}
        self._headers: _Headers = _encoded({**SECURITY_HEADERS, **https})
        self._own_hosts: frozenset[str] | None = None
        if config.endpoint.is_loopback:
            self._own_hosts = frozenset({host_of(config.advertised_url or "")})
        self.counts: dict[str, int] = {"received_bytes": 0, "sent_bytes": 0}
        self.latencies = Latencies()
        self.under_way = 0
        self.is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        exchange = _Exchange(self, self._config, self._headers, scope, receive, send)
        began_ns = self._clock.now_ns()
        self.under_way += 1
        try:
            self._check(scope)
            await self._routes(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            exchange.abort()
            raise
        except ClientDisconnect:
            exchange.abort()
        except Exception as error:  # noqa: BLE001 (a mistake of ours ends no server)
            await exchange.fail(*self._told(scope, self._problem(error)))
        finally:
            exchange.leave()
            self.latencies.add(
                scope.get(KIND, "other"), self._clock.now_ns() - began_ns
            )

    def count(self, name: str, count: int = 1) -> None:
        """Count something that has happened."""
        self.counts[name] = self.counts.get(name, 0) + count

    def _told(self, scope: Scope, problem: Problem) -> tuple[int, bytes, Headers]:
        """Return status, body and headers of the answer that tells of *problem*."""
        self.count(f"problems_{problem.name.replace('-', '_')}")
        page = None
        if self._problem_page is not None:
            page = self._problem_page(scope, problem)
        if page is None:
            page = (problem.encoded(), problem.all_headers())
        return (problem.status, *page)

    def _check(self, scope: Scope) -> None:
        """Have routes see the path as it came; refuse what there is no room for."""
        raw: bytes = scope["raw_path"]
        if not raw.startswith(b"/"):
            raise GatewayError("bad-request", "the path must begin with a slash")
        head = len(raw) + len(scope["query_string"])
        head += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        # The parser bounds what it waits for; what comes all at once is for us.
        if head > self._config.header_size_bytes_max:
            raise GatewayError(
                "large-head",
                f"they have {self._config.header_size_bytes_max:,} bytes at most",
                headers={"connection": "close"},
            )
        if {b"content-length", b"transfer-encoding"} <= {
            name for name, _ in scope["headers"]
        }:
            # A proxy that reads the other one of them takes the rest of this request
            # for the next one, of someone else's (RFC 9112, 6.3).
            raise GatewayError(
                "bad-request",
                "a body has a length, or is sent in chunks; not both",
                headers={"connection": "close"},
            )
        self._check_host(scope)
        # Routes are found by parts that are still encoded: a key may hold a slash.
        scope["path"] = raw.decode("latin-1")
        scope["root_path"] = ""
        scope["app"] = self
        if self.is_ending:
            raise GatewayError(
                "ending", "ask again elsewhere", retry_after_seconds=_BUSY_SECONDS
            )
        if self.under_way > self._config.request_count_max:
            raise GatewayError(
                "busy",
                f"{self._config.request_count_max:,} requests are answered now",
                retry_after_seconds=_BUSY_SECONDS,
            )

    def _check_host(self, scope: Scope) -> None:
        """Refuse what a page of the web has this machine's browser ask."""
        if self._own_hosts is None:
            return
        for name, value in scope["headers"]:
            if name != b"host":
                continue
            host = foreign_host(value.decode("latin-1"), self._own_hosts)
            if host is not None:
                raise GatewayError(
                    "wrong-host",
                    f"it is for this machine alone, and was asked as {host[:253]}: if "
                    "that is how others reach it, start it with --advertised-url",
                )

    def _problem(self, error: Exception) -> Problem:
        if isinstance(error, HTTPException):  # of starlette's router
            if error.status_code == 405:
                given = (error.headers or {}).get("Allow", "")
                allowed = ", ".join(sorted(given.split(", ")))
                return Problem(
                    name="wrong-method",
                    detail=f"ask with {allowed}",
                    headers={"allow": allowed},
                )
            return Problem(name="unknown-path", detail="see /openapi.json, or /docs")
        found = problem_of(error)
        if found is not None:
            return found
        self.count("failures")
        # Not as exc_info: a renderer may show local variables, and one is a token.
        self._log.error(
            "request.failed",
            error=type(error).__name__,
            traceback="".join(traceback.format_tb(error.__traceback__)),
        )
        return unexpected()


@final
class _Exchange:
    """One request and its answer."""

    def __init__(  # noqa: PLR0917 (only called from here)
        self,
        boundary: Boundary,
        config: GatewayConfig,
        headers: _Headers,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._boundary = boundary
        self._config = config
        self._receive = receive
        self._send = send
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._abort: Callable[[], None] = scope.get("extensions", {}).get(
            ABORT, _no_connection
        )
        self._is_gone: Callable[[], bool] = scope.get("extensions", {}).get(
            IS_GONE, _is_there
        )
        self._deadline = self._loop.time() + config.request_seconds
        self._body_size_bytes = 0
        self._has_body = False
        self._is_begun = False
        self._is_done = False
        self._is_left = False
        scope[IS_WATCH] = self.leave
        scope[ENDS_WITH_CLIENT] = self.end_with_client
        self._when_gone: Callable[[Callable[[], object]], None] = scope.get(
            "extensions", {}
        ).get(WHEN_GONE, _never_gone)

    def leave(self) -> None:
        """Give up the place among requests."""
        if not self._is_left:
            self._is_left = True
            self._boundary.under_way -= 1

    def end_with_client(self) -> None:
        """Have the task that answers end when the client leaves."""
        self._when_gone(self._task.cancel)

    async def receive(self) -> Message:
        """Return what comes next of the request, if it comes in time."""
        if self._has_body:  # then it is the end of the connection that is waited for
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise GatewayError(
                "too-slow",
                f"the body did not come within {self._config.request_seconds:g} s",
                headers={"connection": "close"},
            ) from None
        size_bytes = len(message.get("body", b""))
        self._body_size_bytes += size_bytes
        self._boundary.count("received_bytes", size_bytes)
        if self._body_size_bytes > self._config.body_size_bytes_max:
            raise GatewayError(
                "too-large",
                f"a body has at most {self._config.body_size_bytes_max:,} bytes",
                headers={"connection": "close"},
            )
        self._has_body = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, in pieces that the client has to take in time."""
        if message["type"] == "http.response.start":
            self._is_begun = True
            self._boundary.count(f"answers_{message['status']}")
            given = message.get("headers", [])
            names = {name for name, _ in given}
            message["headers"] = [
                *given,
                *(one for one in self._headers if one[0] not in names),
            ]
            await self._take_in_time(message)
            return
        body: bytes = message.get("body", b"")
        is_last = not message.get("more_body", False)
        view = memoryview(body)
        place = 0
        while True:
            piece = bytes(view[place : place + _PIECE_SIZE_BYTES])
            place += _PIECE_SIZE_BYTES
            self._boundary.count("sent_bytes", len(piece))
            is_more = place < len(body)
            await self._take_in_time(
                {
                    "type": "http.response.body",
                    "body": piece,
                    "more_body": is_more or not is_last,
                }
            )
            if not is_more:
                break
            await asyncio.sleep(0)  # others are to be answered, too
        self._is_done = is_last

    async def _take_in_time(self, message: Message) -> None:
        # The server is told that a client has left when the loop comes to it.
        if self._is_gone():
            raise ClientDisconnect
        try:
            async with asyncio.timeout(self._config.write_seconds):
                await self._send(message)
        except TimeoutError:
            self.abort()
            raise ClientDisconnect from None

    async def fail(self, status: int, body: bytes, headers: Headers) -> None:
        """Answer what went wrong, or end the connection if an answer has begun."""
        if self._is_begun:
            if not self._is_done:
                self.abort()
            return
        headers = {**headers, "content-length": str(len(body))}
        try:
            await self.send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": _encoded(headers),
                }
            )
            await self.send({"type": "http.response.body", "body": body})
        except ClientDisconnect:
            pass  # it is gone, or too slow

    def abort(self) -> None:
        """End the connection, whatever the client has still to read."""
        if not self._is_done:
            self._abort()


def _encoded(headers: Headers) -> _Headers:
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers.items()
    ]


def _no_connection() -> None:
    """Do what `ABORT` would do, where nothing offers it."""


def _never_gone(_: Callable[[], object]) -> None:
    """Do what `WHEN_GONE` would do, where nothing offers it."""


def _is_there() -> bool:
    """Say what `IS_GONE` would say, where nothing offers it."""
    return False
