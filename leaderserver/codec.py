"""Bytes to messages and back; whatever does not decode is a `RemoteProtocolError`."""

from __future__ import annotations

from typing import Final

import msgspec

from leaderserver.messages import (
    Hello,
    PublicationRecord,
    Request,
    ToClient,
    ToServer,
)
from nameservice import RemoteProtocolError
from retrieval import LeaderInformation, Publication


__all__ = [
    "decode_to_client",
    "decode_to_server",
    "encode",
    "publication_from_record",
    "publication_to_record",
]

# Text that is no UTF-8 is none of msgspec's own errors.
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_SERVER: Final[msgspec.msgpack.Decoder[ToServer]] = msgspec.msgpack.Decoder(
    Hello | Request
)
_TO_CLIENT: Final[msgspec.msgpack.Decoder[ToClient]] = msgspec.msgpack.Decoder(ToClient)


def encode(message: ToServer | ToClient) -> bytes:
    """Return *message* as MessagePack."""
    return _ENCODER.encode(message)


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
