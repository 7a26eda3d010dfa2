"""Tickets for direct reads: what opens them, and what does not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import RemoteProtocolError
from queryablestate.wire.codec import decode_at_node, decode_to_copy_source, encode
from queryablestate.wire.direct import (
    AskNode,
    DirectTicket,
    ShowTicket,
    open_ticket,
    seal_ticket,
)
from queryablestate.wire.questions import GetValues
from queryablestate.wire.staging_grant import staging_grant


SECRET = bytes(range(32))
TICKET = DirectTicket(
    caller="dashboard",
    public_key=None,
    job_id="flights",
    state_number=7,
    leader_epoch=3,
    assignment_version=2,
    expires_ms=12_345,
)
SEALED = seal_ticket(SECRET, TICKET)

pytestmark = pytest.mark.proves("D2")


def test_what_was_sealed_is_read() -> None:
    """D2: with the secret that it was made with."""
    assert open_ticket(SECRET, SEALED) == TICKET


@pytest.mark.parametrize("secret", [b"", bytes(32), SECRET[:-1], SECRET + b"0"])
def test_the_ticket_of_another_leader(secret: bytes) -> None:
    """D2: another leader has another secret; who has none takes no ticket."""
    assert open_ticket(secret, SEALED) is None


def test_every_byte_counts() -> None:
    """D2: whatever is changed in a ticket, it is none any more."""
    for index in range(len(SEALED)):
        forged = bytearray(SEALED)
        forged[index] ^= 1
        assert open_ticket(SECRET, bytes(forged)) is None
    for size in range(len(SEALED)):
        assert open_ticket(SECRET, SEALED[:size]) is None
    assert open_ticket(SECRET, SEALED + b"\0") is None


def test_what_the_secret_is_used_for_besides() -> None:
    """D2: a grant to stage rows opens nothing, and is no digest of a ticket."""
    content = SEALED[32:]
    grant = staging_grant(SECRET, "flights", "q", 1)
    assert open_ticket(SECRET, grant + grant + content) is None


@given(content=st.binary(max_size=200))
def test_a_leader_of_another_version(content: bytes) -> None:
    """N3: what the leader has sealed, and this version cannot read, is no ticket."""
    from queryablestate.wire.direct import _digest  # noqa: PLC0415 (for this test alone)

    opened = open_ticket(SECRET, _digest(SECRET, content) + content)
    assert opened is None or isinstance(opened, DirectTicket)


@given(sealed=st.binary(max_size=300))
def test_fuzz(sealed: bytes) -> None:
    """N3, D2: no bytes make a ticket, or an error, but those that were sealed."""
    assert open_ticket(SECRET, sealed) is None


@given(index=st.integers(0, len(SEALED) - 1), byte=st.integers(0, 255))
def test_fuzz_of_a_ticket(index: int, byte: int) -> None:
    """D2: a byte that is another one is noticed."""
    forged = SEALED[:index] + bytes([byte]) + SEALED[index + 1 :]
    assert (open_ticket(SECRET, forged) == TICKET) == (forged == SEALED)


def test_messages_come_back() -> None:
    """What a client says to a node is understood there."""
    show = ShowTicket(ticket_id=1, ticket=SEALED)
    assert decode_to_copy_source(encode(show)) == show
    ask = AskNode(request_id=1, ticket_id=1, operation=GetValues(), deadline_ms=5_000)
    assert decode_at_node(encode(ask)) == ask


@pytest.mark.proves("N3")
def test_what_is_out_of_bounds_is_no_message() -> None:
    """N3, B1: a ticket has a limit, and so has what is asked."""
    large = ShowTicket(ticket_id=1, ticket=bytes(5_000))
    with pytest.raises(RemoteProtocolError):
        decode_to_copy_source(encode(large))
    ask = AskNode(request_id=1, ticket_id=0, operation=GetValues(), deadline_ms=1)
    with pytest.raises(RemoteProtocolError):
        decode_at_node(encode(ask))


@pytest.mark.proves("N3")
@given(envelope=st.binary(max_size=100))
def test_fuzz_of_messages(envelope: bytes) -> None:
    """N3: what does not decode is a `RemoteProtocolError`, and nothing else."""
    for decode in (decode_at_node, decode_to_copy_source):
        try:
            decode(b"LDQ\x01" + envelope)
        except RemoteProtocolError:
            continue


def test_a_ticket_is_for_reading() -> None:
    """D1: the right stands in it; there is one."""
    content = msgspec.msgpack.decode(SEALED[32:])
    assert content["right"] == "read"
