"""etcd 3.4, Debian's, one server; by its JSON gateway, as it has no Python client."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from benchmarks.peers._install import debian_program
from benchmarks.peers._names import COMPONENT, NamePeer, Setting, Tally, address_of, say
from benchmarks.peers._processes import Guarded, free_ports, guarded, wait_until


__all__ = ["ETCD"]

_TIMEOUT_SECONDS: Final = 180.0
_LEASE_SECONDS: Final = 60
_KEEPING_CONNECTION_COUNT: Final = 10
_RECONNECT_SECONDS: Final = 0.1
_INTERVAL_SECONDS: Final = 0.02
_CONNECTION_COUNT: Final = 64


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@final
class _Connection:
    """One connection of a blocking client."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._http = http.client.HTTPConnection(
            host, int(port), timeout=_TIMEOUT_SECONDS
        )

    def post(self, path: str, body: object) -> dict[str, Any]:
        """Return the answer to one request."""
        self._http.request("POST", f"/v3/{path}", json.dumps(body))
        response = self._http.getresponse()
        answer = json.loads(response.read())
        if response.status != http.client.OK:
            raise RuntimeError(f"etcd: {path}: {answer}")
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


class _AsyncConnection:
    """One connection by asyncio."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> _AsyncConnection:
        host, _, port = address.partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def _ask(self, path: str, body: object) -> int | None:
        """Send a request and read the head of the answer; return its length."""
        payload = json.dumps(body).encode()
        head = (
            f"POST /v3/{path} HTTP/1.1\r\nHost: etcd\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        )
        self._writer.write(head.encode() + payload)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = answer.splitlines()
        if " 200 " not in status:
            raise RuntimeError(f"etcd: {path}: {status}")
        for line in lines:
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                return int(value)
        return None

    async def post(self, path: str, body: object) -> Any:
        """Return the answer to one request."""
        length = await self._ask(path, body)
        assert length is not None
        return json.loads(await self._reader.readexactly(length))

    async def stream(self, path: str, body: object) -> AsyncIterator[Any]:
        """Yield the answers to one request: a line of JSON in a chunk each."""
        await self._ask(path, body)
        while line := await self._reader.readline():
            if line.startswith(b"{"):
                yield json.loads(line)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


@final
class _Service:
    def __init__(self, address: str, server: Guarded, connection: _Connection) -> None:
        self.address = address
        self.server = server
        self._connection = connection
        self.announce(address_of(0))

    def announce(self, value: str) -> None:
        """Put the key that listeners watch."""
        body = {"key": _encoded(COMPONENT), "value": _encoded(value)}
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                self._connection.post("kv/put", body)
            except (OSError, http.client.HTTPException, RuntimeError):
                # The server does not serve yet.
                self._connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_INTERVAL_SECONDS)  # noqa: TID251 (a foreign server)
            else:
                return

    def register(self, prefix: str, count: int) -> float:
        """Campaign by one lease, with some requests under way."""
        lease = self._connection.post("lease/grant", {"TTL": 60})["ID"]
        seconds = asyncio.run(self._campaign(lease, prefix, count))
        self._connection.post("lease/revoke", {"ID": lease})
        return seconds

    async def _campaign(self, lease: str, prefix: str, count: int) -> float:
        connections = [
            await _AsyncConnection.open(self.address) for _ in range(_CONNECTION_COUNT)
        ]

        async def campaign(connection: _AsyncConnection, part: Sequence[int]) -> None:
            for index in part:
                body = {
                    "name": _encoded(f"{prefix}-{index}"),
                    "lease": lease,
                    "value": _encoded("host:1"),
                }
                await connection.post("election/campaign", body)

        began = time.perf_counter()
        await asyncio.gather(
            *(
                campaign(connection, range(first, count, _CONNECTION_COUNT))
                for first, connection in enumerate(connections)
            )
        )
        seconds = time.perf_counter() - began
        for connection in connections:
            connection.close()
        return seconds


@contextmanager
def _serve() -> Iterator[_Service]:
    program = debian_program("etcd", "etcd-server")
    port, peer_port = free_ports(2)
    client_url, peer_url = (f"http://127.0.0.1:{one}" for one in (port, peer_port))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        command = [
            *(program, "--data-dir", f"{directory}/data", "--log-level", "error"),
            *("--listen-client-urls", client_url),
            *("--advertise-client-urls", client_url),
            *("--listen-peer-urls", peer_url),
            *("--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"default={peer_url}", "--logger", "zap"),
        ]
        address = f"127.0.0.1:{port}"
        with guarded(command, Path(directory) / "log") as server:
            wait_until(lambda: _is_healthy(address), server)
            connection = _Connection(address)
            try:
                yield _Service(address, server, connection)
            finally:
                connection.close()


def _is_healthy(address: str) -> bool:
    connection = _Connection(address)
    try:
        connection.post("maintenance/status", {})
    except (OSError, RuntimeError, ValueError):
        return False
    finally:
        connection.close()
    return True


@final
class _Candidate:
    """A lease that is kept alive, as etcd's own client does, every third of it."""

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._asking = _Connection(address)
        granted = self._asking.post("lease/grant", {"TTL": round(seconds)})
        self._lease = granted["ID"]
        self._is_over = threading.Event()
        self._seconds = seconds
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def _keep_alive(self) -> None:
        connection = _Connection(self._address)
        while not self._is_over.wait(self._seconds / 3):
            connection.post("lease/keepalive", {"ID": self._lease})

    def lead(
        self,
        component: str,
        name: str,
        on_leading: Callable[[], None],
        over: threading.Event,
    ) -> None:
        """Use the election service."""
        connection = _Connection(self._address)
        body = {
            "name": _encoded(component),
            "lease": self._lease,
            "value": _encoded(name),
        }
        leader = connection.post("election/campaign", body)["leader"]
        on_leading()
        over.wait()
        connection.post("election/resign", {"leader": leader})
        connection.close()

    def is_queued(self, component: str, name: str) -> bool:
        """Look for the key that the election service makes of our lease."""
        key = f"{component}/{int(self._lease):x}"
        answer = self._asking.post("kv/range", {"key": _encoded(key)})
        return int(answer.get("count", 0)) > 0

    def close(self) -> None:
        """End the lease."""
        self._is_over.set()
        self._asking.post("lease/revoke", {"ID": self._lease})
        self._asking.close()


@contextmanager
def _candidate(address: str, seconds: float) -> Iterator[_Candidate]:
    candidate = _Candidate(address, seconds)
    try:
        yield candidate
    finally:
        candidate.close()


def _keep(address: str, count: int) -> None:
    """Grant leases, say ``idle``, and keep them alive until the input ends."""
    asyncio.run(_keep_all(address, count))


async def _keep_all(address: str, count: int) -> None:
    connections = [
        await _AsyncConnection.open(address)
        for _ in range(min(count, _KEEPING_CONNECTION_COUNT))
    ]
    leases: dict[_AsyncConnection, list[str]] = {one: [] for one in connections}

    async def grant(connection: _AsyncConnection, share: int) -> None:
        for _ in range(share):
            answer = await connection.post("lease/grant", {"TTL": _LEASE_SECONDS})
            leases[connection].append(answer["ID"])

    async def keep(connection: _AsyncConnection) -> None:
        while True:
            for lease in leases[connection]:
                await connection.post("lease/keepalive", {"ID": lease})
                await asyncio.sleep(_LEASE_SECONDS / 3 / len(leases[connection]))

    await asyncio.gather(
        *(
            grant(one, len(range(index, count, len(connections))))
            for index, one in enumerate(connections)
        )
    )
    keeping = [asyncio.create_task(keep(one)) for one in connections]
    say("idle")
    await asyncio.to_thread(sys.stdin.read)
    for task in keeping:
        task.cancel()


def _listen(address: str, count: int, tally: Tally) -> None:
    asyncio.run(_watch_all(address, count, tally))


async def _watch_all(address: str, count: int, tally: Tally) -> None:
    async def watch_once(revision: int) -> int:
        connection = await _AsyncConnection.open(address)
        key = {"key": _encoded(COMPONENT), "start_revision": revision}
        try:
            async for message in connection.stream("watch", {"create_request": key}):
                for event in message["result"].get("events", ()):
                    tally.told(base64.b64decode(event["kv"]["value"]).decode())
                    revision = int(event["kv"]["mod_revision"]) + 1
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            pass
        finally:
            connection.close()
        return revision

    async def watch() -> None:
        revision = 1
        while True:
            try:
                revision = await watch_once(revision)
            except OSError:
                await asyncio.sleep(_RECONNECT_SECONDS)

    watching = [asyncio.create_task(watch()) for _ in range(count)]
    await asyncio.to_thread(sys.stdin.read)
    for task in watching:
        task.cancel()


ETCD: Final = NamePeer(
    serve=_serve,
    settings={
        "default": Setting(seconds=60.0, label="lease 60 s"),
        "short": Setting(seconds=2.0, label="lease 2 s"),
    },
    candidate=_candidate,
    listen=_listen,
    keep=_keep,
    kept="leases of 60 s over ten connections",
)
