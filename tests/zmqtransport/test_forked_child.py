"""What a forked child must not keep of its parent (E10)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket as stdlib_socket
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from tests.forking import run_in_child
from tests.leaderserver.scripted_client import ScriptedClient
from zmqtransport import (
    close_in_child,
    close_socket_in_child,
    keep_in_child,
    new_context,
)


if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.shells


def open_ports() -> set[int]:
    """Return the ports at both ends of all TCP sockets of this process."""
    ports: set[int] = set()
    for path in tuple(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            view = stdlib_socket.socket(fileno=os.dup(int(path.name)))
            with view:
                if view.family is stdlib_socket.AF_INET:
                    ports.add(view.getsockname()[1])
                    ports.add(view.getpeername()[1])
    return ports


@contextlib.contextmanager
def living_child() -> Iterator[int]:
    """Fork a child that does nothing until the end of the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        read_end, write_end = os.pipe()
        pid = os.fork()
    if pid == 0:
        os.write(write_end, b"x")
        signal.pause()
        os._exit(0)
    assert os.read(read_end, 1) == b"x"  # it has done what a child does first
    os.close(read_end)
    os.close(write_end)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.proves("E10")
def test_a_child_has_no_socket_of_a_server_or_a_client() -> None:
    """E10: neither the ports nor the connections of its parent live on in a child."""
    context = new_context()
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        port = int(server.endpoint.rpartition(":")[2])
        socket = context.socket(zmq.DEALER)
        socket.connect(server.endpoint)
        with ScriptedClient(server) as client:
            client.hello()
            assert {port, server.publish_port} <= open_ports()
            ports = run_in_child(lambda: sorted(open_ports()))
            assert str(port) not in ports
            assert str(server.publish_port) not in ports
            client.heartbeat()  # the parent is not disturbed
        socket.close()
    context.term()


@pytest.mark.proves("E10")
def test_a_server_is_restarted_while_a_child_lives(
    tmp_path: Path, reserved: ReservedPort
) -> None:
    """E10: a child holds neither the ports nor the data directory."""
    config = ServerConfig(bind=f"tcp://127.0.0.1:{reserved.port}", data_dir=tmp_path)
    with LeaderServer(config) as server, living_child():
        server.close()
        with LeaderServer(config) as second, ScriptedClient(second) as client:
            client.hello()


@pytest.mark.proves("E10")
def test_a_lock_is_released_with_its_owner(tmp_path: Path) -> None:
    """E10: ``flock`` belongs to all copies; the child's is gone, the parent's holds."""
    path = tmp_path / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    close_in_child(descriptor)
    other = os.open(path, os.O_RDWR)
    with living_child():
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        keep_in_child(descriptor)
        os.close(descriptor)  # as the death of the owner does
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@pytest.mark.proves("E10")
def test_a_socket_is_closed_in_the_child_alone() -> None:
    """E10: the other end sees the parent's close though the child lives."""
    mine, other = stdlib_socket.socketpair()
    close_socket_in_child(mine)
    assert run_in_child(mine.fileno) == "-1"
    with living_child(), other:
        mine.send(b"x")
        assert other.recv(1) == b"x"
        mine.close()
        other.settimeout(30.0)
        assert other.recv(1) == b""


@pytest.mark.proves("E10")
def test_others_keep_what_they_wait_with() -> None:
    """E10: a child goes on with selectors and events that are none of ours."""
    selector = selectors.EpollSelector()
    mine, other = stdlib_socket.socketpair()
    selector.register(mine, selectors.EVENT_READ)
    foreign = zmq.Context()
    with foreign.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        context = new_context()

        def wait() -> int:
            other.send(b"x")
            return len(selector.select(5.0))

        assert run_in_child(wait) == "1"
        assert str(port) in run_in_child(lambda: sorted(open_ports()))
        context.term()
    foreign.term()
    selector.close()
    mine.close()
    other.close()


@pytest.mark.proves("E10")
def test_a_closed_context_is_forgotten() -> None:
    """E10: descriptors that somebody else has by now are not closed in a child."""
    context = new_context()
    context.term()
    selectors_ = [selectors.EpollSelector() for _ in range(5)]
    assert run_in_child(lambda: [len(s.select(0)) for s in selectors_]) == str([0] * 5)
    for selector in selectors_:
        selector.close()


@pytest.mark.proves("E10")
def test_contexts_are_made_by_many_threads() -> None:
    """E10: each context knows its own, however many are made at once."""
    made: list[zmq.Context[zmq.Socket[bytes]]] = []
    ports: list[int] = []

    def make() -> None:
        context = new_context()
        made.append(context)
        socket = context.socket(zmq.ROUTER)
        ports.append(socket.bind_to_random_port("tcp://127.0.0.1"))
        kept.append(socket)

    kept: list[zmq.Socket[bytes]] = []
    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with contextlib.ExitStack() as connections:
        for port in ports:
            # It greets once its listener and the connection are registered; what is
            # being opened or closed in the moment of a fork may escape.
            connection = connections.enter_context(
                stdlib_socket.create_connection(("127.0.0.1", port), 30.0)
            )
            close_socket_in_child(connection)
            assert connection.recv(1) == b"\xff"
        left = run_in_child(lambda: sorted(set(ports) & open_ports()))
    assert left == "[]"
    for socket in kept:
        socket.close()
    for context in made:
        context.term()
