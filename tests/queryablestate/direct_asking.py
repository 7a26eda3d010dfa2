"""Asking nodes without the proxy, as a client and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queryablestate import QueryableStateClient
from queryablestate.proxy.config import ProxyConfig
from queryablestate.schema.keys import KeyCodec
from queryablestate.wire.clients import DescribeState, StateDescribed
from queryablestate.wire.codec import decode_to_client, encode_payload
from queryablestate.wire.direct import AskNode, DirectAccess, ShowTicket
from queryablestate.wire.questions import GetValues, Operation, Refusal, Told
from tests.queryablestate.proxy_peers import ScriptedPeer
from tests.queryablestate.proxy_stage import JOB, SCHEMA, STATE, ProxyStage
from tests.recording import wait_until


__all__ = [
    "KEYS",
    "ROWS",
    "access_of",
    "ask",
    "ask_page",
    "code_of",
    "count",
    "given_access",
    "published",
    "read_until_direct",
    "send_page",
    "ticket_of",
]

ROWS = [(f"N{n}", n) for n in range(200)]
KEYS = [key for key, _ in ROWS]
CODEC = KeyCodec(SCHEMA.key, max_parallelism=128)


@contextmanager
def published(
    directory: Path, proxy: ProxyConfig | None = None, **settings: Any
) -> Iterator[ProxyStage]:
    """Yield a proxy and nodes that have a state."""
    with ProxyStage(directory, proxy, **settings) as stage:
        stage.publisher().write({STATE: ROWS})
        yield stage


def count(stage: ProxyStage, name: str = "direct_answered_total") -> int:
    """Return what all nodes have counted."""
    return sum(int(node.status()[name]) for node in stage.nodes)


def read_until_direct(stage: ProxyStage, client: QueryableStateClient) -> None:
    """Ask until nodes answer themselves; what a reader process counts is told later."""
    before = count(stage)

    def asks() -> bool:
        assert client.get(JOB, STATE, "N7") == {"delay": 7}
        return count(stage) > before

    wait_until(asks)


def access_of(
    peer: ScriptedPeer, state_name: str = STATE, *, job_id: str = JOB
) -> DirectAccess | None:
    """Return what the proxy gives a peer with the route."""
    told = peer.ask(
        DescribeState, job_id=job_id, state_name=state_name, wants_direct=True
    )
    assert isinstance(told, StateDescribed), told
    return told.direct


def ticket_of(stage: ProxyStage) -> bytes:
    """Return a ticket as a client gets it."""
    return given_access(stage).ticket


def given_access(
    stage: ProxyStage, state_name: str = STATE, *, job_id: str = JOB
) -> DirectAccess:
    """Return what a client gets to ask nodes itself."""
    with ScriptedPeer(stage.proxy.address) as peer:
        peer.hello()
        found: list[DirectAccess] = []

        def given() -> bool:
            access = access_of(peer, state_name, job_id=job_id)
            if access is not None:
                found.append(access)
            return access is not None

        wait_until(given)  # not before the leader is settled
    return found[0]


def ask(
    peer: ScriptedPeer, ticket: bytes | None, *, key: str = "N7", ticket_id: int = 1
) -> tuple[Told | Refusal, bytes]:
    """Show a node a ticket, if there is one, and ask it for a key."""
    if ticket is not None:
        peer.send(ShowTicket(ticket_id=ticket_id, ticket=ticket))
    question = AskNode(
        request_id=9, ticket_id=ticket_id, operation=GetValues(), deadline_ms=5_000
    )
    peer.send(question, encode_payload(CODEC.storage_keys([key])))
    envelope, *payload = peer.receive_frames()
    answer = decode_to_client(envelope)
    assert isinstance(answer, Told | Refusal)
    return answer, payload[0] if payload else b""


def send_page(
    peer: ScriptedPeer, operation: Operation, *, min_batch_id: int | None = None
) -> None:
    """Ask a node for what is no key, by the ticket that it was shown."""
    question = AskNode(
        request_id=9,
        ticket_id=1,
        operation=operation,
        deadline_ms=5_000,
        min_batch_id=min_batch_id,
    )
    peer.send(question, b"")


def ask_page(
    peer: ScriptedPeer, operation: Operation, *, min_batch_id: int | None = None
) -> tuple[Told | Refusal, bytes]:
    """Do so, and return what it says."""
    send_page(peer, operation, min_batch_id=min_batch_id)
    envelope, *payload = peer.receive_frames()
    answer = decode_to_client(envelope)
    assert isinstance(answer, Told | Refusal)
    return answer, payload[0] if payload else b""


def code_of(answer: tuple[Told | Refusal, bytes]) -> str:
    """Return why there is no answer; empty if there is one."""
    message, _ = answer
    return message.code if isinstance(message, Refusal) else ""
