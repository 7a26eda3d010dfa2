"""Bytes to messages and back; whatever does not decode is a `RemoteProtocolError`."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec
from attrs import field, frozen

from leaderserver.message_parts import Nonce, Number, PublicationRecord, Secret
from leaderserver.messages import Hello, Request, RequestBody, ToClient, ToServer
from nameservice import LocalProtocolError, RemoteProtocolError
from retrieval import LeaderInformation, Publication


__all__ = [
    "TOPIC_SIZE_BYTES",
    "Malformed",
    "MalformedHello",
    "MalformedRequest",
    "decode_to_client",
    "decode_to_server",
    "encode",
    "malformed_from",
    "publication_from_record",
    "publication_to_record",
    "publication_topic",
    "size_bytes",
]

TOPIC_SIZE_BYTES: Final = 16

_UNENCODABLE: Final = (
    msgspec.MsgspecError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
# Text that is no UTF-8 is none of msgspec's own errors.
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_SERVER: Final[msgspec.msgpack.Decoder[ToServer]] = msgspec.msgpack.Decoder(
    Hello | Request
)
_TO_CLIENT: Final[msgspec.msgpack.Decoder[ToClient]] = msgspec.msgpack.Decoder(ToClient)


def encode(message: ToServer | ToClient) -> bytes:
    """
    Return *message* as MessagePack.

    Raises:
        LocalProtocolError: If a field of it is of a type or size that no message has.
    """
    return _encode(message)


def size_bytes(body: RequestBody) -> int:
    """
    Return how long *body* is as MessagePack.

    Raises:
        LocalProtocolError: See `encode`.
    """
    return len(_encode(body))


def _encode(message: ToServer | ToClient | RequestBody) -> bytes:
    try:
        return _ENCODER.encode(message)
    except _UNENCODABLE as error:
        problem = f"a {type(message).__name__} cannot be encoded: {error}"
        raise LocalProtocolError(problem) from error


def decode_to_server(payload: bytes) -> ToServer:
    """
    Return the message of a client.

    Raises:
        RemoteProtocolError: If *payload* is none.
    """
    try:
        return _TO_SERVER.decode(payload)
    except _MALFORMED as error:
        raise RemoteProtocolError("malformed", str(error)) from error


def malformed_from(payload: bytes, detail: str) -> Malformed | None:
    """
    Return whom to answer that *payload* is malformed, or None if it does not say.

    Args:
        payload: What `decode_to_server` refused, or what is larger than is taken.
        detail: What is wrong with it.
    """
    try:
        envelope = _ENVELOPE.decode(payload)
    except _MALFORMED:
        return None
    if isinstance(envelope, _HelloEnvelope):
        return MalformedHello(nonce=envelope.nonce, detail=detail)
    return MalformedRequest(
        secret=envelope.secret, number=envelope.number, detail=detail
    )


def decode_to_client(payload: bytes) -> ToClient:
    """
    Return the message of a server.

    Raises:
        RemoteProtocolError: If *payload* is none.
    """
    try:
        return _TO_CLIENT.decode(payload)
    except _MALFORMED as error:
        raise RemoteProtocolError("malformed", str(error)) from error


@frozen(kw_only=True)
class MalformedHello:
    """A `Hello` of which no more can be read than its *nonce*."""

    nonce: bytes
    detail: str


@frozen(kw_only=True)
class MalformedRequest:
    """A `Request` of which no more can be read than *secret* and *number*."""

    secret: bytes = field(repr=False)
    number: int
    detail: str


Malformed: TypeAlias = MalformedHello | MalformedRequest


class _HelloEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """What can be read of a `Hello` whatever else is in it."""

    nonce: Nonce


class _RequestEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """What can be read of a `Request` whatever its body is."""

    secret: Secret
    number: Number


_ENVELOPE: Final[msgspec.msgpack.Decoder[_HelloEnvelope | _RequestEnvelope]] = (
    msgspec.msgpack.Decoder(_HelloEnvelope | _RequestEnvelope)
)


def publication_to_record(publication: Publication) -> PublicationRecord:
    """Return *publication* as it crosses the wire."""
    leader = publication.leader
    return PublicationRecord(
        epoch=publication.epoch,
        confirm_count=publication.confirm_count,
        address=None if leader is None else leader.address,
        leader_session_id=None if leader is None else leader.leader_session_id,
    )


def publication_from_record(record: PublicationRecord) -> Publication:
    """Return what crossed the wire as a publication."""
    leader = None
    if record.address is not None and record.leader_session_id is not None:
        leader = LeaderInformation(
            address=record.address,
            leader_session_id=record.leader_session_id,
            epoch=record.epoch,
        )
    return Publication(
        epoch=record.epoch, confirm_count=record.confirm_count, leader=leader
    )


def publication_topic(component_id: str) -> bytes:
    """
    Return the topic that changes of *component_id* are published under.

    libzmq keeps a tree of all topics with a node of some 32 bytes for each byte, so a
    topic is a digest and not the name, which may take a thousand bytes.
    """
    return blake2b(component_id.encode(), digest_size=TOPIC_SIZE_BYTES).digest()
