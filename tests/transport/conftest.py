"""What transport's tests share: contexts that are closed whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from transport import ZMQContext


@pytest.fixture
def context() -> Iterator[ZMQContext]:
    """Yield a server's context; its sockets are closed at the end."""
    context: ZMQContext = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def client_context() -> Iterator[ZMQContext]:
    """Yield a client's context, apart from the server's."""
    context: ZMQContext = zmq.Context()
    yield context
    context.destroy(linger=0)
