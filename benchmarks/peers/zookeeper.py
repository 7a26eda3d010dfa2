"""ZooKeeper 3.9 out of pyspark's jars, one server, and kazoo with its recipes."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, final

from kazoo.client import KazooClient

from benchmarks.peers._interface import AbsentError
from benchmarks.peers._light import keep_zookeeper_sessions
from benchmarks.peers._names import COMPONENT, NamePeer, Setting, Tally, address_of
from haservices.testing import ZooKeeperServer
from nameservice import ConfigurationError


__all__ = ["ZOOKEEPER"]

_TIMEOUT_SECONDS: Final = 120.0
_LEADER: Final = f"/{COMPONENT}"


@final
class _Service:
    def __init__(self, server: ZooKeeperServer, client: Any) -> None:
        self.address = server.address
        self.server = server
        self._client = client
        client.create(_LEADER, address_of(0).encode())

    def announce(self, value: str) -> None:
        """Set the data of the node that listeners watch."""
        self._client.retry(self._client.set, _LEADER, value.encode())

    def register(self, prefix: str, count: int) -> float:
        """Create ephemeral sequential nodes, all of them under way at once."""
        root = f"/{prefix}"
        self._client.ensure_path(root)
        began = time.perf_counter()
        created = [
            self._client.create_async(
                f"{root}/{index}-", b"host:1", ephemeral=True, sequence=True
            )
            for index in range(count)
        ]
        for one in created:
            one.get(timeout=_TIMEOUT_SECONDS)
        seconds = time.perf_counter() - began
        for one in created:
            self._client.delete_async(one.get())
        return seconds


@contextmanager
def _serve() -> Iterator[_Service]:
    try:
        server = ZooKeeperServer()
    except ConfigurationError as error:
        raise AbsentError(str(error)) from error
    with server, _connected(server.address) as client:
        yield _Service(server, client)


@contextmanager
def _connected(address: str, **options: Any) -> Iterator[Any]:
    client = KazooClient(hosts=address, **options)
    client.start(timeout=_TIMEOUT_SECONDS)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@final
class _Candidate:
    def __init__(self, client: Any) -> None:
        self._client = client

    def lead(
        self,
        component: str,
        name: str,
        on_leading: Callable[[], None],
        over: threading.Event,
    ) -> None:
        """Use the recipe for elections."""

        def run() -> None:
            on_leading()
            over.wait()

        self._client.Election(f"/{component}", name).run(run)

    def is_queued(self, component: str, name: str) -> bool:
        """Ask for the contenders."""
        return name in self._client.Election(f"/{component}", name).contenders()


@contextmanager
def _candidate(address: str, seconds: float) -> Iterator[_Candidate]:
    with _connected(address, timeout=seconds) as client:
        yield _Candidate(client)


def _listen(address: str, count: int, tally: Tally) -> None:
    # Of each session that is suspended kazoo writes two lines.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(_connected(address))

            @client.DataWatch(_LEADER)  # type: ignore[untyped-decorator]
            def told(data: bytes | None, _: object) -> None:
                if data is not None:
                    tally.told(data.decode())

        sys.stdin.read()


ZOOKEEPER: Final = NamePeer(
    serve=_serve,
    settings={
        "default": Setting(seconds=10.0, label="session 10 s"),
        "short": Setting(seconds=2.0, label="session 2 s"),
    },
    candidate=_candidate,
    listen=_listen,
    keep=keep_zookeeper_sessions,
    kept="a connection each",
    listener_count_max=200,
    listener_limit="not tried: kazoo takes three threads for each session",
)
