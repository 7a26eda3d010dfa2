from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderserver import codec
from leaderserver.message_parts import AffirmationRecord, PublicationRecord
from leaderserver.messages import (
    FailedReply,
    Granted,
    HeartbeatRequest,
    Hello,
    Published,
    Reply,
    Request,
    RequestBody,
    SnapshotReply,
    SubscribeRequest,
    ToClient,
    ToServer,
    Welcome,
)
from leaderserver.operator_messages import StatusRequest
from leaderserver.store_messages import CommitRequest, DeleteRecord, PutRecord
from nameservice import RemoteProtocolError
from retrieval import LeaderInformation, Publication


SECRET = b"s" * 32
LEADER = UUID(int=7)

HELLO = Hello(nonce=b"n" * 16, session_timeout_ns=10, lease_ns=5, client="me")


def request(body: RequestBody, number: int = 1) -> Request:
    """Return *body* as a client sends it."""
    return Request(secret=SECRET, number=number, body=body)


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        request(HeartbeatRequest(acknowledged=0)),
        request(SubscribeRequest(component_id="c/j", epoch_seen=3, is_ended_seen=True)),
        request(
            CommitRequest(
                component_id="c/j",
                leader_session_id=LEADER,
                epoch=1 << 62,
                operations=[
                    PutRecord(path="a", value=b"\0" * 70_000, version=None),
                    DeleteRecord(path="b", version=0),
                ],
            )
        ),
        request(StatusRequest(), number=2**63 - 1),
    ],
)
def test_what_a_client_sends_arrives(message: ToServer) -> None:
    """Bytes and back give the same message."""
    assert codec.decode_to_server(codec.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Welcome(
            nonce=b"n" * 16,
            secret=SECRET,
            session_id="s1",
            session_timeout_ns=10,
            lease_ns=5,
            incarnation=3,
            publish_port=5171,
            publish_address=None,
            is_durable=True,
        ),
        Granted(
            session_id="s1",
            heartbeat_number=4,
            affirmation=AffirmationRecord(
                component_id="c/j", contender_id="x", leader_session_id=LEADER, epoch=9
            ),
        ),
        Reply(number=4, body=FailedReply(reason="stale", detail="", epoch_max=7)),
        Reply(
            number=4,
            body=SnapshotReply(revision=0, is_undecided=False, publication=None),
        ),
        Published(
            component_id="c/j",
            revision=3,
            publication=PublicationRecord(
                epoch=9, confirm_count=1, address="h:1", leader_session_id=LEADER
            ),
        ),
    ],
)
def test_what_a_server_sends_arrives(message: ToClient) -> None:
    """Bytes and back give the same message."""
    assert codec.decode_to_client(codec.encode(message)) == message


def _fields(message: ToServer, **changes: Any) -> bytes:
    """Return *message* as MessagePack, with some fields changed, or left out."""
    fields = {**msgspec.to_builtins(message), **changes}
    fields["nonce"] = changes.get("nonce", getattr(message, "nonce", b""))
    kept = {name: value for name, value in fields.items() if value is not ...}
    return msgspec.msgpack.encode(kept)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="no MessagePack"),
        pytest.param(msgspec.msgpack.encode("hello"), id="no map"),
        pytest.param(_fields(HELLO)[:-1], id="truncated"),
        pytest.param(_fields(HELLO) + b"\0", id="something behind it"),
        pytest.param(_fields(HELLO, type="no-such"), id="unknown type"),
        pytest.param(_fields(HELLO, type=...), id="no type"),
        pytest.param(_fields(HELLO, client=...), id="a field is missing"),
        pytest.param(_fields(HELLO, more=1), id="an unknown field"),
        pytest.param(_fields(HELLO, nonce=b"n" * 15), id="a short nonce"),
        pytest.param(_fields(HELLO, nonce=b"n" * 17), id="a long nonce"),
        pytest.param(_fields(HELLO, nonce=3), id="a nonce of another type"),
        pytest.param(_fields(HELLO, lease_ns=0), id="no lease"),
        pytest.param(_fields(HELLO, lease_ns=-1), id="a negative lease"),
        pytest.param(_fields(HELLO, lease_ns=2**63), id="an endless lease"),
        pytest.param(_fields(HELLO, lease_ns=1.5), id="half a nanosecond"),
        pytest.param(_fields(HELLO, client="x" * 256), id="a long name"),
        pytest.param(
            msgspec.msgpack.encode({"type": "hello", "client": b"\xff"}).replace(
                b"\xc4\x01\xff", b"\xa1\xff"
            ),
            id="text that is no UTF-8",
        ),
        pytest.param(b"\x91" * 100_000 + b"\x90", id="nested too deeply"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list of four billion"),
    ],
)
def test_whatever_is_malformed_is_a_remote_error(payload: bytes) -> None:
    """A peer's mistake is never ours: it has one type, and a reason (N3)."""
    for decode in (codec.decode_to_server, codec.decode_to_client):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(payload)
        assert caught.value.reason == "malformed"


def test_each_side_takes_only_what_the_other_sends() -> None:
    """A server's message sent to a server is refused, and the reverse."""
    with pytest.raises(RemoteProtocolError):
        codec.decode_to_client(codec.encode(HELLO))
    with pytest.raises(RemoteProtocolError):
        codec.decode_to_server(
            codec.encode(Reply(number=1, body=FailedReply(reason="r", detail="")))
        )


@given(payload=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    """Random bytes decode, or are a remote error."""
    for decode in (codec.decode_to_server, codec.decode_to_client):
        try:
            decode(payload)
        except RemoteProtocolError:
            continue


@given(data=st.data())
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    """One wrong byte, or a cut, in a good message decodes, or is a remote error."""
    good = codec.encode(
        request(SubscribeRequest(component_id="c/j", epoch_seen=3, is_ended_seen=False))
    )
    index = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255))
    for damaged in (good[:index], good[:index] + bytes([byte]) + good[index + 1 :]):
        try:
            codec.decode_to_server(damaged)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize(
    "publication",
    [
        Publication(epoch=3, confirm_count=0, leader=None),
        Publication(
            epoch=3,
            confirm_count=2,
            leader=LeaderInformation(address="h:1", leader_session_id=LEADER, epoch=3),
        ),
    ],
)
def test_publications_cross_the_wire(publication: Publication) -> None:
    """A publication and its record say the same (R3)."""
    record = codec.publication_to_record(publication)
    assert codec.publication_from_record(record) == publication


@pytest.mark.parametrize(
    ("address", "leader_session_id"), [("h:1", None), (None, LEADER)]
)
def test_half_a_leader_is_none(
    address: str | None, leader_session_id: UUID | None
) -> None:
    """A record with an address alone, or an id alone, names no leader."""
    record = PublicationRecord(
        epoch=3,
        confirm_count=1,
        address=address,
        leader_session_id=leader_session_id,
    )
    assert codec.publication_from_record(record).leader is None
