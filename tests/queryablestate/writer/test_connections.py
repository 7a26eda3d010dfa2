"""Connections that a process keeps for its writers, closed at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
import zmq

from queryablestate.writer.connections import WriterConnections
from tests.interrupting import Closed, close_amid


pytestmark = [pytest.mark.shells, pytest.mark.proves("Q3")]

PLACES: Final = ("/queryablestate/writer/connections.py",)


@pytest.fixture
def address() -> Iterator[str]:
    """Return where one listens who never answers."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        yield f"tcp://127.0.0.1:{port}"


def begin(address: str, *, is_sound: bool) -> Closed:
    """Return one that takes a link which is kept, and gives it back."""
    connections = WriterConnections()
    connections.give_back(connections.take_link(address, None), is_sound=True)

    def take_and_give_back() -> None:
        connections.give_back(connections.take_link(address, None), is_sound=is_sound)

    def check() -> None:
        assert connections._context is None

    return Closed(action=take_and_give_back, close=connections.close, check=check)


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_handler_closes_them(address: str, *, is_sound: bool) -> None:
    """It waited for ever for a socket that was between two hands."""
    close_amid(
        lambda: begin(address, is_sound=is_sound), places=PLACES, first=0, step=1
    )


def test_none_is_left(address: str) -> None:
    """Once all was given back, all is closed."""
    connections = WriterConnections()
    link = connections.take_link(address, None)
    connections.close()  # it is in use
    assert connections._context is not None
    connections.give_back(link, is_sound=True)
    assert connections.take_link(address, None) is link
    connections.give_back(link, is_sound=False)
    connections.close()
    assert connections._context is None
