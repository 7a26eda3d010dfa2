"""How tests speak to a gateway: HTTP as it is sent, and events as they come."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, final
from urllib.parse import urlsplit

from attrs import frozen


WAIT_SECONDS = 60.0
"""Bounds how long a broken test takes."""


@final
@frozen
class Answer:
    """What was answered; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Return the body, which is JSON."""
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """Return the name of the problem that it is."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.document["status"] == self.status
        kind = self.document["type"]
        assert isinstance(kind, str)
        return kind.removeprefix("urn:lodestar:problem:")


@final
class Asker:
    """
    Asks one gateway, each time on a connection of its own.

    Args:
        url: Of the gateway.
        token: What is shown, or None.
        tls: How to check its certificate, for HTTPS.
    """

    def __init__(
        self, url: str, token: str | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)
        self.token = token
        self._tls = tls

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer to a request with this path, as it is."""
        given = dict(headers or {})
        if self.token is not None:
            given.setdefault("Authorization", f"Bearer {self.token}")
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(*self.address, timeout=WAIT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(
                *self.address, timeout=WAIT_SECONDS, context=self._tls
            )
        with contextlib.closing(connection):
            connection.request(method, path, body, given)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())

    def get(self, path: str, **headers: str) -> Answer:
        """Return the answer to a GET; ``if_none_match=`` is a header."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("GET", path, headers=given)

    def post(self, path: str, document: Any, **headers: str) -> Answer:
        """Return the answer to a POST of JSON."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given.setdefault("Content-Type", "application/json")
        return self.ask("POST", path, json.dumps(document).encode(), given)

    def raw(self, request: bytes) -> bytes:
        """Return all that comes after *request*, until the gateway closes."""
        with socket.create_connection(self.address, timeout=WAIT_SECONDS) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(request)
            received = b""
            with contextlib.suppress(ConnectionError):
                while data := sock.recv(65_536):
                    received += data
            return received

    def watch(self, path: str, last_event_id: str | None = None) -> Watching:
        """Return what reads the events at *path*."""
        headers = {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        return Watching(self.address, path, headers)


@final
@frozen
class Event:
    """One event; a comment has the name ``""``."""

    name: str
    event_id: str | None
    data: Any


@final
class Watching:
    """The events of one watch; a context manager."""

    def __init__(
        self, address: tuple[str, int], path: str, headers: Mapping[str, str]
    ) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=WAIT_SECONDS)
        self._connection.request("GET", path, headers=dict(headers))
        self.response = self._connection.getresponse()
        self._events = self._read()
        self.last_event_id: str | None = headers.get("Last-Event-ID")

    def next(self) -> Event:
        """Return the next event that is no comment."""
        while not (event := next(self._events)).name:
            pass
        return event

    def next_or_comment(self) -> Event:
        """Return the next event, be it a comment."""
        return next(self._events)

    def rest(self) -> list[Event]:
        """Return what comes until the gateway ends the watch."""
        return list(self._events)

    def _read(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        for raw in self.response:
            line = raw.decode().rstrip("\n")
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif fields:
                if "id" in fields:
                    self.last_event_id = fields["id"]
                data = json.loads(fields["data"]) if "data" in fields else None
                yield Event(fields.get("event", ""), fields.get("id"), data)
                fields = {}

    def close(self) -> None:
        """Leave."""
        self._connection.close()
        self.response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
