"""A node that is to end, and has others take over first (S1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nameservice import LocalProtocolError
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.wire.node_messages import LeaveNode, NodeEmptied
from tests.queryablestate.copying_nodes import ALL_GROUPS, CopyingNode
from tests.queryablestate.proxy_for_nodes import TIMEOUT_SECONDS, rows, storage_key


pytestmark = pytest.mark.shells


@pytest.fixture
def a(tmp_path: Path) -> Iterator[CopyingNode]:
    """Return a node that holds something."""
    with CopyingNode("a", tmp_path) as one:
        one.register(one.assignment(held=ALL_GROUPS))
        one.write(1, rows(x=b"1"))
        yield one


class Leaving:
    """A thread that waits until a node may end."""

    def __init__(self, node: CopyingNode, timeout_seconds: float | None) -> None:
        self.reason: str | None = "not over"
        self.seconds = 0.0
        self._node = node
        self._timeout_seconds = timeout_seconds
        self._thread = threading.Thread(target=self._leave)
        self._thread.start()

    def _leave(self) -> None:
        began = time.monotonic()
        self.reason = self._node.node.leave(self._timeout_seconds)
        self.seconds = time.monotonic() - began

    def join(self) -> str | None:
        """Return what was said."""
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()
        return self.reason


def emptied(node: CopyingNode, reason: str) -> None:
    """Say that a node may end."""
    node.proxy.send(NodeEmptied(leader_epoch=node.proxy.leader_epoch, reason=reason))


@pytest.mark.proves("S1")
def test_it_serves_until_others_have_what_is_here(a: CopyingNode) -> None:
    """S1: it asks, and answers meanwhile and afterwards, until it is closed."""
    leaving = Leaving(a, TIMEOUT_SECONDS)
    a.proxy.receive(LeaveNode)
    assert a.get(storage_key("x")) == [b"1"]
    emptied(a, "empty")
    assert leaving.join() == "empty"
    assert a.get(storage_key("x")) == [b"1"]


@pytest.mark.proves("S1")
def test_nobody_to_take_it_over_ends_the_wait(a: CopyingNode) -> None:
    """S1: a node that is alone ends at once, and keeps its rows."""
    leaving = Leaving(a, TIMEOUT_SECONDS)
    a.proxy.receive(LeaveNode)
    emptied(a, "nobody")
    assert leaving.join() == "nobody"


@pytest.mark.proves("S1")
def test_it_does_not_wait_for_ever(a: CopyingNode) -> None:
    """S1: who has no answer in time ends as it is."""
    assert Leaving(a, 0.1).join() is None


@pytest.mark.proves("S1")
def test_nobody_is_asked_if_it_may_not_wait(tmp_path: Path) -> None:
    """S1: with a timeout of 0, from the configuration, it just ends."""
    with CopyingNode("a", tmp_path, drain_timeout_seconds=0.0) as node:
        node.register(node.assignment(held=ALL_GROUPS))
        assert node.node.leave() is None
        with pytest.raises(TimeoutError):
            node.proxy.receive(LeaveNode, 0.2)


@pytest.mark.proves("S1")
def test_to_close_it_ends_the_wait(a: CopyingNode) -> None:
    """S1: a second signal need not wait for the first."""
    leaving = Leaving(a, TIMEOUT_SECONDS)
    a.proxy.receive(LeaveNode)
    a.node.close()
    assert leaving.join() is None
    assert leaving.seconds < TIMEOUT_SECONDS / 2
    assert a.node.leave(TIMEOUT_SECONDS) is None


def test_who_was_not_started_has_nothing_to_leave(
    a: CopyingNode, tmp_path: Path
) -> None:
    """It is a mistake, as all questions are."""
    one = StateNode(a._ha, NodeConfig(data_dir=tmp_path / "other"))
    with pytest.raises(LocalProtocolError):
        one.leave(1.0)
