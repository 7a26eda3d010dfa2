"""What stands in the nodes of a component: JSON, so that other tools can read it."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import msgspec

from nameservice import RemoteProtocolError
from retrieval import LeaderInformation, Publication


__all__ = [
    "ContenderRecord",
    "LeaderRecord",
    "decode_contender",
    "decode_leader",
    "encode_record",
]


class ContenderRecord(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """
    What a contender's node says.

    Attributes:
        leader_session_id: The identity of its leadership, should it be granted one.
        client: Who it is, for operators: program, process and machine.
        session_timeout_ms: The timeout of its session, as negotiated.
        is_granted: Whether it has been first in the queue, and knows it.
        is_ended: Whether an operator has ended its leadership; it leaves the queue
            as soon as it has stopped leading.
        address: What it confirmed last, or None.
    """

    leader_session_id: UUID
    client: str
    session_timeout_ms: int
    is_granted: bool = False
    is_ended: bool = False
    address: str | None = None


class LeaderRecord(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """
    What the leader's node says: a publication (rule R3).

    Attributes:
        epoch: Order of this leadership.
        confirm_count: How often it was confirmed.
        leader_session_id: Its identity.
        address: Where the leader is reached.
    """

    epoch: int
    confirm_count: int
    leader_session_id: UUID
    address: str

    def to_publication(self) -> Publication:
        """Return it as retrievers take it."""
        return Publication(
            epoch=self.epoch,
            confirm_count=self.confirm_count,
            leader=LeaderInformation(
                address=self.address,
                leader_session_id=self.leader_session_id,
                epoch=self.epoch,
            ),
        )


_encoder = msgspec.json.Encoder()
_contender_decoder: msgspec.json.Decoder[ContenderRecord] = msgspec.json.Decoder(
    ContenderRecord
)
_leader_decoder: msgspec.json.Decoder[LeaderRecord] = msgspec.json.Decoder(LeaderRecord)

R = TypeVar("R")


def encode_record(record: ContenderRecord | LeaderRecord) -> bytes:
    """Return *record* as the value of a node."""
    return _encoder.encode(record)


def decode_contender(value: bytes, *, path: str) -> ContenderRecord:
    """
    Return what stands in the contender's node at *path*.

    Raises:
        RemoteProtocolError: If it is not ours.
    """
    return _decode(_contender_decoder, value, path)


def decode_leader(value: bytes, *, path: str) -> LeaderRecord:
    """
    Return what stands in the leader's node at *path*.

    Raises:
        RemoteProtocolError: If it is not ours.
    """
    return _decode(_leader_decoder, value, path)


def _decode(decoder: msgspec.json.Decoder[R], value: bytes, path: str) -> R:
    try:
        return decoder.decode(value)
    except msgspec.DecodeError as error:
        detail = f"the node {path} does not hold what Lodestar writes: {error}"
        raise RemoteProtocolError("malformed-node", detail) from error
