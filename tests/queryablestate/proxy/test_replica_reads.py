"""A proxy over sockets, and two nodes of which one says nothing (D4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from queryablestate.proxy.config import ProxyConfig
from queryablestate.schema.key_groups import group_start
from queryablestate.wire.clients import StateDescription
from queryablestate.wire.questions import CancelQuestions, Told
from tests.queryablestate.proxy_peers import ScriptedNode, ScriptedPeer
from tests.queryablestate.proxy_stage import ProxyStage


pytestmark = pytest.mark.shells

KEY: Final = group_start(0) + b"key"
VALUES: Final = msgspec.msgpack.encode([b"value"])


class Two:
    """A proxy, two nodes that each have a copy of everything, and a reader."""

    def __init__(self, stage: ProxyStage, peer: ScriptedPeer, *nodes: ScriptedNode):
        self.stage = stage
        self.peer = peer
        self.first, self.second = nodes
        self.state: StateDescription = peer.make_state()
        assert self.state.owners[0] == 0

    def ask(self) -> int:
        """Ask the first node for a key; return the number of the request."""
        return self.peer.begin_get(self.state, keys=(KEY,))

    def figures(self) -> tuple[int, int]:
        """Return how many reads were hedged, and how many of these were won."""
        status = self.stage.proxy.status()
        return int(status["hedged_total"]), int(status["hedges_won_total"])


@contextmanager
def two_nodes(directory: Path, config: ProxyConfig) -> Iterator[Two]:
    """Yield them."""
    with (
        ProxyStage(directory, config, node_count=0) as stage,
        ScriptedNode(stage.proxy.address, "node-a") as first,
        ScriptedNode(stage.proxy.address, "node-b") as second,
        ScriptedPeer(stage.proxy.address) as peer,
    ):
        first.join()
        second.join()
        peer.hello()
        yield Two(stage, peer, first, second)


@pytest.mark.proves("D4")
def test_a_silent_node_costs_no_read(tmp_path: Path) -> None:
    """D4: the other copy is asked for what it has, and the first told to forget it."""
    with two_nodes(tmp_path, ProxyConfig(replica_count=2)) as two:
        number = two.ask()
        first = two.first.receive_question()
        hedge = two.second.receive_question()
        assert (first.copies, hedge.copies) == (None, ((0, 0),))
        two.second.answer(hedge, VALUES)
        assert isinstance(two.peer.answer(number), Told)
        while not isinstance(cancelled := two.first.receive(), CancelQuestions):
            pass
        assert cancelled.question_ids == (first.question_id,)
        assert two.figures() == (1, 1)


@pytest.mark.proves("D4", "S4")
def test_a_node_that_is_gone_costs_no_read(tmp_path: Path) -> None:
    """D4, S4: what it was asked is asked of the other, before anything is written."""
    config = ProxyConfig(replica_count=2)
    with two_nodes(tmp_path, config) as two:
        number = two.ask()
        two.first.receive_question()
        two.first.close()
        two.second.answer(two.second.receive_question(), VALUES)
        assert isinstance(two.peer.answer(number), Told)


@pytest.mark.proves("D4", "C4")
def test_it_is_switched_off_and_on_in_a_running_proxy(tmp_path: Path) -> None:
    """D4, C4: switched off, only the primary is asked, however late it is."""
    off = ProxyConfig(replica_count=2, replica_reads=False)
    with two_nodes(tmp_path, off) as two:
        number = two.ask()
        question = two.first.receive_question()
        two.stage.proxy.reconfigure(ProxyConfig(replica_count=2))
        hedged = two.ask()
        two.second.answer(two.second.receive_question(), VALUES)
        assert isinstance(two.peer.answer(hedged), Told)
        assert two.figures() == (1, 1)  # the first one was not among them
        two.first.answer(question, VALUES)
        assert isinstance(two.peer.answer(number), Told)
