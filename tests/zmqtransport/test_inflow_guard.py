"""N3: who watches what comes in leaves nothing open itself."""

from __future__ import annotations

import os
import platform
import queue
import resource
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from election import Put
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage_database import DATABASE_FILE_NAME
from nameservice import SystemClock
from tests.recording import wait_until
from zmqtransport import ConnectionId
from zmqtransport.inflow import Inflow
from zmqtransport.inflow_guard import InflowGuard


pytestmark = pytest.mark.shells


def resident_bytes() -> int:
    """Return how much memory this process has."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def opened_connection(resources: ExitStack) -> tuple[int, socket.socket, socket.socket]:
    """Return a port, and both ends of a connection to it."""
    listener = resources.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = listener.getsockname()[1]
    client = resources.enter_context(socket.create_connection(("127.0.0.1", port)))
    accepted, _ = listener.accept()
    return port, client, resources.enter_context(accepted)


@pytest.mark.proves("N3")
class TestFindConnections:
    def test_looking_leaves_no_descriptor_open(self) -> None:
        """N3: pipes and files are looked at, too, and given back as sockets are."""
        with ExitStack() as resources:
            listener = resources.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = listener.getsockname()[1]
            client = socket.create_connection(("127.0.0.1", port))
            resources.enter_context(client)
            accepted, _ = listener.accept()
            resources.enter_context(accepted)
            for descriptor in os.pipe():
                resources.callback(os.close, descriptor)
            guard = InflowGuard(
                Inflow(bytes_per_connection_max=1, bytes_max=1, frame_overhead_bytes=1),
                ports=[port],
                memory_limit_bytes=2**30,
                clock=SystemClock(),
                component="test",
                disconnect=lambda _: None,
            )
            before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - entries vanish
            for _ in range(3):
                found = guard._find_connections()
                assert accepted.fileno() in found
                assert listener.fileno() not in found
            after = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - likewise
            assert after == before

    @pytest.mark.parametrize(
        ("bytes_max", "waiting_bytes", "limit_bytes", "is_quiet", "expected"),
        [
            (256 << 20, 0, None, True, 1 / 16),  # 4 GiB/s would have filled it by then
            (256 << 20, 128 << 20, None, True, 1 / 32),
            (256 << 20, 300 << 20, None, True, 0.01),
            (256 << 20, 0, None, False, 0.01),
            (256 << 20, 0, 512 << 20, True, 0.15 / 8),  # that is urgent from 85 % on
            (19 << 20, 0, 256 << 20, True, 0.01),
            (8 << 30, 0, None, True, 0.1),
        ],
    )
    def test_it_looks_before_there_is_no_room(
        self,
        bytes_max: int,
        waiting_bytes: int,
        limit_bytes: int | None,
        expected: float,
        *,
        is_quiet: bool,
    ) -> None:
        """N3: it wakes seldom only where what comes meanwhile has room."""
        inflow = Inflow(
            bytes_per_connection_max=1, bytes_max=bytes_max, frame_overhead_bytes=1
        )
        inflow.waiting_bytes = waiting_bytes
        guard = InflowGuard(
            inflow,
            ports=[],
            memory_limit_bytes=limit_bytes,
            clock=SystemClock(),
            component="test",
            disconnect=lambda _: None,
        )
        found = guard._interval_seconds(is_quiet=is_quiet, has_grown=False)
        assert found == pytest.approx(expected)
        assert guard._interval_seconds(is_quiet=is_quiet, has_grown=True) <= 0.01

    def test_an_idle_one_heeds_another_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N3: it looks at what nothing has happened to once other limits hold."""
        with ExitStack() as resources:
            port, client, accepted = opened_connection(resources)
            inflow = Inflow(
                bytes_per_connection_max=1, bytes_max=1, frame_overhead_bytes=1
            )
            opened_ns = SystemClock().now_ns()  # each second later, more may wait
            inflow.opened(ConnectionId(accepted.fileno()), now_ns=opened_ns)
            for _ in range(64):
                client.sendall(bytes(2**16))
                accepted.recv(2**16, socket.MSG_WAITALL)
            ended: queue.SimpleQueue[int] = queue.SimpleQueue()
            guard = InflowGuard(
                inflow,
                ports=[port],
                memory_limit_bytes=None,
                clock=SystemClock(),
                component="test",
                disconnect=ended.put,
            )
            looks: queue.SimpleQueue[None] = queue.SimpleQueue()

            def unchanged() -> bytes:
                looks.put(None)
                return b"1000 1000 0 0 0 0 0"

            monkeypatch.setattr(guard, "_read_resident", unchanged)
            guard.start()
            resources.callback(guard.close)
            for _ in range(10):
                looks.get(timeout=10)
            assert ended.empty()
            guard.limit(1)
            assert ended.get(timeout=10) == accepted.fileno()

    def test_without_a_free_descriptor_it_watches_on(self) -> None:
        """N3: a flood of connections takes descriptors first, and then memory."""
        with ExitStack() as resources:
            port, client, accepted = opened_connection(resources)
            inflow = Inflow(
                bytes_per_connection_max=1, bytes_max=1, frame_overhead_bytes=1
            )
            ended: queue.SimpleQueue[int] = queue.SimpleQueue()
            guard = InflowGuard(
                inflow,
                ports=[port],
                memory_limit_bytes=1,
                clock=SystemClock(),
                component="test",
                disconnect=ended.put,
            )
            lowest_free = os.dup(client.fileno())
            os.close(lowest_free)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            guard.start()  # takes the last one
            resources.callback(guard.close)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, limits[1]))
            try:
                with pytest.raises(OSError, match="Too many open files"):
                    os.dup(client.fileno())
                assert guard._find_connections() == []
                opened_ns = SystemClock().now_ns()
                inflow.opened(ConnectionId(accepted.fileno()), now_ns=opened_ns)
                for _ in range(64):
                    client.sendall(bytes(2**16))
                    accepted.recv(2**16, socket.MSG_WAITALL)
                assert ended.get(timeout=10) == accepted.fileno()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_who_cannot_look_says_so_and_goes_on(self) -> None:
        """N3: a role that starts without a free descriptor fails for its own reason."""
        guard = InflowGuard(
            Inflow(bytes_per_connection_max=1, bytes_max=1, frame_overhead_bytes=1),
            ports=[1],
            memory_limit_bytes=None,
            clock=SystemClock(),
            component="test",
            disconnect=lambda _: None,
        )
        lowest_free = os.dup(0)
        os.close(lowest_free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with capture_logs() as lines:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
            try:
                guard.start()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        guard.close()
        assert [line["event"] for line in lines] == ["inflow.unwatched"]

    @pytest.mark.parametrize(
        ("memory_limit_bytes", "is_urgent"), [(None, False), (2**20, True)]
    )
    def test_memory_of_other_work_ends_no_connection(
        self, memory_limit_bytes: int | None, is_urgent: bool
    ) -> None:
        """N3: in a process with other work its memory says nothing of connections."""
        guard = InflowGuard(
            Inflow(bytes_per_connection_max=1, bytes_max=1, frame_overhead_bytes=1),
            ports=[1],
            memory_limit_bytes=memory_limit_bytes,
            clock=SystemClock(),
            component="test",
            disconnect=lambda _: None,
        )
        assert guard._is_above(85, 2**30) is is_urgent

    @pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="it is about glibc's allocator"
    )
    def test_what_was_freed_is_returned_where_memory_is_large(self) -> None:
        """N3: what thousands of connections have left counts against the limit, too."""
        buffers, above = [], []
        for _ in range(4_000):  # as libzmq has them, and something above each
            buffers.append(bytearray(16 << 10))
            above.append(bytes(1_000))
        before_bytes = resident_bytes()
        del buffers
        guard = InflowGuard(
            Inflow(bytes_per_connection_max=1, bytes_max=1, frame_overhead_bytes=1),
            ports=[1],
            memory_limit_bytes=2 * before_bytes,
            clock=SystemClock(),
            component="test",
            disconnect=lambda _: None,
        )
        guard.start()
        try:
            wait_until(lambda: resident_bytes() < before_bytes - (32 << 20))
        finally:
            guard.close()
        assert len(above) == 4_000

    def test_the_locks_of_the_database_stay(self, tmp_path: Path) -> None:
        """
        L2, N3: SQLite locks its files by descriptors of this process.

        POSIX takes all of a process's locks of a file away when it closes any
        descriptor of it, a copy included.  Then another process that opens the
        database takes itself for the only one, and deletes the log on its way out.
        """
        storage = SQLiteStorage(tmp_path)
        guard = InflowGuard(
            Inflow(bytes_per_connection_max=1, bytes_max=1, frame_overhead_bytes=1),
            ports=[1],
            memory_limit_bytes=2**30,
            clock=SystemClock(),
            component="test",
            disconnect=lambda _: None,
        )
        guard._find_connections()
        storage.commit("c/job", [Put("before", b"1")])
        program = (
            "import sys; from leaderserver.server.backup import back_up; "
            "back_up(*sys.argv[1:])"
        )
        subprocess.run(
            [sys.executable, "-c", program, tmp_path, tmp_path / "backup"],
            check=True,
            timeout=60,
        )
        log = tmp_path / f"{DATABASE_FILE_NAME}-wal"
        assert log.exists()
        storage.commit("c/job", [Put("after", b"2")])
        database = sqlite3.connect(tmp_path / DATABASE_FILE_NAME)
        paths = [path for (path,) in database.execute("SELECT path FROM store")]
        database.close()
        assert sorted(paths) == ["after", "before"]
        storage.close()
