"""Peers that fill a proxy or a node with what comes to nothing (N3)."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from queryablestate import QueryableStateClient
from tests.drills.memory import MEBIBYTE, Memory
from tests.drills.state_processes import StateProcesses
from tests.lodestar.publishing import Publisher
from tests.queryablestate.proxy_stage import JOB, SCHEMA, STATE
from tests.recording import wait_until
from tests.zmqtransport.raw_peer import raw_peer, send_without_end


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.drills.reporting import Report


# What may wait of all connections, and as much again for what comes within a look.
GROWTH_BYTES_MAX: Final = (256 + 128) * MEBIBYTE
PART_SIZE_BYTES: Final = 30 * MEBIBYTE
PEER_COUNT: Final = 30
SECONDS: Final = 20.0


def messages_that_never_end(port: int) -> None:
    """Send frame after frame of messages that have no last one."""
    send_without_end(port, until=time.monotonic() + SECONDS / 2)


def frames_that_lack_their_end(port: int) -> None:
    """Send all of a large frame but its last megabyte, over many connections."""
    head = b"\x02" + PART_SIZE_BYTES.to_bytes(8, "big")
    part = bytes(MEBIBYTE)
    with contextlib.ExitStack() as connections:
        for _ in range(PEER_COUNT):
            connection = connections.enter_context(raw_peer(port))
            with contextlib.suppress(OSError):
                connection.sendall(head)
                for _ in range(PART_SIZE_BYTES // len(part) - 1):
                    connection.sendall(part)


GREEDY: Final = (messages_that_never_end, frames_that_lack_their_end)


@pytest.mark.proves("N3")
@pytest.mark.drill
@pytest.mark.parametrize("role", ["proxy", "node"])
@pytest.mark.parametrize("greedy", GREEDY, ids=lambda greedy: greedy.__name__)
def test_what_waits_inside_a_role_is_bounded(
    greedy: Callable[[int], None], role: str, tmp_path: Path, report: Report
) -> None:
    """N3: its memory stays in bounds and is given back, and readers are answered."""
    with (
        StateProcesses(tmp_path, node_count=1) as processes,
        QueryableStateClient(processes.config) as client,
    ):
        publisher = Publisher(processes.config, JOB, {STATE: SCHEMA})
        publisher.write({STATE: [("a", 1)]})
        service = {"proxy": processes.leader(), "node": processes.nodes["node-1"]}[role]
        port = int(service.address.partition("?")[0].rpartition(":")[2])
        done = threading.Event()
        failures: list[Exception] = []
        count = 0

        def read() -> None:
            nonlocal count
            while not done.wait(0.01):
                try:
                    client.get(JOB, STATE, "a")
                except Exception as error:  # noqa: BLE001 (the drill raises it)
                    failures.append(error)
                count += 1

        reader = threading.Thread(target=read)
        reader.start()
        try:
            with Memory(service.process.pid) as memory:
                greedy(port)
                grown_bytes = memory.peak_bytes - memory.before_bytes
            wait_until(
                lambda: memory.now() < memory.before_bytes + 64 * MEBIBYTE,
                timeout_seconds=SECONDS,
            )
        finally:
            done.set()
            reader.join()
        name = f"{role}, {greedy.__name__.replace('_', ' ')}"
        report.say(
            f"{name}: {memory.before_bytes / MEBIBYTE:.0f} MiB before, at most "
            f"{memory.peak_bytes / MEBIBYTE:.0f} MiB; {count} reads meanwhile",
            **{f"peak_mebibytes ({name})": memory.peak_bytes / MEBIBYTE},
        )
        assert not failures, failures[:3]
        assert count
        assert grown_bytes < GROWTH_BYTES_MAX
