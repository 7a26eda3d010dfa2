"""A second connection of a node: whose answers count over it, and whose do not (B2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from msgspec.structs import replace

from queryablestate.wire.clients import ListJobs
from queryablestate.wire.node_messages import (
    ConnectionJoined,
    JoinConnection,
    NodeRegistered,
)
from queryablestate.wire.questions import Refusal, Told
from tests.queryablestate.proxy_peers import ScriptedNode, ScriptedPeer
from tests.queryablestate.proxy_stage import ProxyStage


pytestmark = [pytest.mark.shells, pytest.mark.proves("B2")]

RIGHT: Final = msgspec.msgpack.encode([b"right"])
WRONG: Final = msgspec.msgpack.encode([b"wrong"])


class Peers:
    """A proxy that leads, a node with two connections, and a client."""

    def __init__(self, stage: ProxyStage, node: ScriptedNode, second: ScriptedNode):
        self.stage = stage
        self.node = node
        self.second = second
        self.registered: NodeRegistered = node.join()
        self.join_message = JoinConnection(
            node_id=node.node_id,
            registration_id=node.registration_id,
            copy_secret=self.registered.copy_secret,
        )

    def join(self) -> None:
        """Join, and be told so."""
        self.second.send(self.join_message)
        assert self.second.receive() == ConnectionJoined()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    """Return them; the second connection has said nothing."""
    with (
        ProxyStage(tmp_path, node_count=0) as stage,
        ScriptedNode(stage.proxy.address, "node-a") as node,
        ScriptedNode(stage.proxy.address, "node-a") as second,
    ):
        yield Peers(stage, node, second)


@pytest.fixture
def client(peers: Peers) -> Iterator[ScriptedPeer]:
    """Return a client with a session."""
    with ScriptedPeer(peers.stage.proxy.address) as client:
        client.hello()
        yield client


def told(client: ScriptedPeer, number: int) -> bytes:
    """Return the values of an answer."""
    answer = client.answer(number)
    assert isinstance(answer, Told), answer
    return client.payload


def test_answers_over_it_are_those_of_the_node(
    peers: Peers, client: ScriptedPeer
) -> None:
    """B2: over either connection, whichever question came first."""
    state = client.make_state()
    peers.join()
    one, two = client.begin_get(state), client.begin_get(state)
    first, last = peers.node.receive_question(), peers.node.receive_question()
    peers.node.answer(last, RIGHT)
    assert told(client, two) == RIGHT
    peers.second.answer(first, RIGHT)
    assert told(client, one) == RIGHT


def test_refusals_count_too(peers: Peers, client: ScriptedPeer) -> None:
    """B2: it is one node."""
    state = client.make_state()
    peers.join()
    number = client.begin_get(state)
    question = peers.node.receive_question()
    peers.second.send(
        Refusal(request_id=question.question_id, code="storage", data=("worn out",))
    )
    answer = client.answer(number)
    assert isinstance(answer, Refusal)
    assert answer.code == "storage"


@pytest.mark.parametrize(
    "change",
    [
        {"copy_secret": b""},
        {"copy_secret": bytes(16)},
        {"registration_id": "another process"},
        {"node_id": "node-b"},
    ],
)
def test_who_is_not_the_node_answers_nothing(
    peers: Peers, client: ScriptedPeer, change: dict[str, object]
) -> None:
    """B2, C1: a stranger that answers for a node is passed over."""
    state = client.make_state()
    peers.second.send(replace(peers.join_message, **change))
    number = client.begin_get(state)
    question = peers.node.receive_question()
    peers.second.answer(question, WRONG)
    peers.second.send(ListJobs(request_id=1, session=b""))
    assert isinstance(peers.second.receive_frames(), list)  # all before was taken
    peers.node.answer(question, RIGHT)
    assert told(client, number) == RIGHT
    assert int(peers.stage.proxy.status()["connections_not_joined_total"]) == 1


def test_it_is_of_one_registration(peers: Peers, client: ScriptedPeer) -> None:
    """B2, Q1: what a node answers over it once it has come back is not of before."""
    state = client.make_state()
    peers.join()
    with ScriptedNode(peers.stage.proxy.address, "node-a") as again:
        again.join()
        number = client.begin_get(state)
        question = again.receive_question()
        peers.second.answer(question, WRONG)
        peers.second.send(ListJobs(request_id=1, session=b""))
        peers.second.receive_frames()
        again.answer(question, RIGHT)
        assert told(client, number) == RIGHT
