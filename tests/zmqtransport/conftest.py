"""What these tests share: a server, and contexts whose sockets are always closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from haservices.testing.reserved_port import ReservedPort
from tests.zmqtransport.monitored_server import MonitoredServer
from zmqtransport import Endpoint, ZMQContext, ZMQSocket


class KeepingContext(zmq.Context[ZMQSocket]):
    """A context that keeps its sockets alive until it is destroyed."""

    _kept: list[ZMQSocket]

    def socket(self, *args: Any, **kwargs: Any) -> Any:
        """Return a new socket that is closed at the end of the test."""
        socket: ZMQSocket = super().socket(*args, **kwargs)
        self._kept.append(socket)
        return socket


def _context() -> Iterator[ZMQContext]:
    """Yield a context; close its sockets, then itself."""
    context = KeepingContext()
    context._kept = []
    yield context
    context.destroy(linger=0)


@pytest.fixture
def context() -> Iterator[ZMQContext]:
    """Yield a server's context."""
    yield from _context()


@pytest.fixture
def client_context() -> Iterator[ZMQContext]:
    """Yield a client's context, apart from the server's."""
    yield from _context()


@pytest.fixture
def server(context: ZMQContext, reserved: ReservedPort) -> Iterator[MonitoredServer]:
    """Yield a server that anybody may connect to; closed, it refuses connections."""
    endpoint = Endpoint(host=reserved.host, port=reserved.port)
    server = MonitoredServer(context, endpoint)
    yield server
    server.monitor.close()
