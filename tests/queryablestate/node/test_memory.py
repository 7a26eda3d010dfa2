"""The memory of a node's process under questions for large values (rule B1)."""

from __future__ import annotations

import platform
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import pytest

from nameservice import NameServiceError
from queryablestate import QueryableStateClient
from queryablestate.wire.clients import DescribeState, StateDescribed
from queryablestate.wire.direct import AskNode, ShowTicket
from queryablestate.wire.questions import ScanRows
from tests.drills.soak_peers import LARGE, large_schema
from tests.drills.state_processes import StateProcesses
from tests.lodestar.publishing import Publisher
from tests.queryablestate.proxy_peers import ScriptedPeer
from tests.recording import wait_until


pytestmark = [
    pytest.mark.shells,
    pytest.mark.proves("B1"),
    pytest.mark.nightly,
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="looks at what Linux and glibc tell"
    ),
]

LARGE_KEYS: Final = tuple(range(4))
LARGE_SIZE_BYTES: Final = 10_000_000
SMALL_SIZE_BYTES: Final = 1_000
SMALL_COUNT: Final = 3_000
ROUND_COUNT: Final = 4
DEAF_COUNT: Final = 6
DEAF_PAGE_COUNT: Final = 12

ABOVE_REST_SIZE_BYTES_MAX: Final = 64 << 20
LEFT_SIZE_BYTES_MAX: Final = 16 << 20


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process that no file stands behind."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    (line,) = (one for one in status.splitlines() if one.startswith("RssAnon:"))
    return int(line.split()[1]) << 10


class Peak:
    """Watches the memory of a process; a context manager, and a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.size_bytes = 0

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            self.size_bytes = max(self.size_bytes, anonymous_bytes(self._pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def ask_deaf(peer: ScriptedPeer, ticket: bytes) -> None:
    """Ask a node for many pages, and read none of them."""
    peer.send(ShowTicket(ticket_id=1, ticket=ticket))
    for number in range(DEAF_PAGE_COUNT):
        page = AskNode(
            request_id=number + 1,
            ticket_id=1,
            operation=ScanRows(start=b"", stop=None, limit=10_000),
            deadline_ms=30_000,
        )
        peer.send(page, b"")


def ask_all(client: QueryableStateClient) -> None:
    """Ask for all large values in every manner."""
    for _ in range(ROUND_COUNT):
        found = client.get_many(LARGE, LARGE, LARGE_KEYS)
        assert {len(row["text"]) for row in found.values()} == {LARGE_SIZE_BYTES}
        assert sum(1 for _ in client.scan(LARGE, LARGE)) == SMALL_COUNT + len(
            LARGE_KEYS
        )
        assert client.lookup(LARGE, LARGE, LARGE_KEYS[0]).value is not None


def test_readers_of_large_values(tmp_path: Path) -> None:
    """B1: 64 MiB above rest at most, on both ways at once; and it is given back."""
    with (
        StateProcesses(tmp_path, node_count=1) as processes,
        ExitStack() as peers,
    ):
        config, node = processes.config, processes.nodes["node-1"]
        publisher = Publisher(config, LARGE, {LARGE: large_schema()})
        large = [(key, "x" * LARGE_SIZE_BYTES) for key in LARGE_KEYS]
        small = [(100 + n, "y" * SMALL_SIZE_BYTES) for n in range(SMALL_COUNT)]
        publisher.write({LARGE: [*large, *small]})
        pid = node.process.pid
        rest_bytes = anonymous_bytes(pid)

        asker = peers.enter_context(ScriptedPeer(processes.leader().address))
        asker.hello()
        tickets: list[bytes] = []

        def has_ticket() -> bool:
            told = asker.ask(
                DescribeState, job_id=LARGE, state_name=LARGE, wants_direct=True
            )
            assert isinstance(told, StateDescribed)
            if told.direct is not None:
                tickets.append(told.direct.ticket)
            return bool(tickets)

        wait_until(has_ticket)
        failures: list[NameServiceError] = []

        def read(*, is_direct: bool) -> None:
            try:
                with QueryableStateClient(
                    config, deadline_seconds=60.0, direct=is_direct
                ) as client:
                    ask_all(client)
            except NameServiceError as error:
                failures.append(error)

        with Peak(pid) as peak:
            for _ in range(DEAF_COUNT):
                peer = peers.enter_context(ScriptedPeer(node.address))
                ask_deaf(peer, tickets[0])
            readers = [
                threading.Thread(target=read, kwargs={"is_direct": is_direct})
                for is_direct in (True, True, False, False)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        assert not failures
        above_bytes = peak.size_bytes - rest_bytes
        assert 0 < above_bytes <= ABOVE_REST_SIZE_BYTES_MAX
        peers.close()
        wait_until(lambda: anonymous_bytes(pid) - rest_bytes <= LEFT_SIZE_BYTES_MAX)
