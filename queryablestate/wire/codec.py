"""
Bytes to messages and back; whatever does not decode is a `RemoteProtocolError`.

A message is one frame, or two: the envelope, which begins with ``LDQ`` and one byte of
version, and for questions, answers and chunks a payload.  Magic and version stand in
every message, so that a stray peer is recognized by its first one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from nameservice import RemoteProtocolError
from queryablestate.wire.clients import ToClient, ToNodeFrame, ToProxy
from queryablestate.wire.copy_messages import CopiedRows, FromCopySource, ToCopySource
from queryablestate.wire.direct import AskNode, ShowTicket
from queryablestate.wire.node_names import NAMING, with_indexes, with_names
from queryablestate.wire.staging_messages import (
    ChunkRefused,
    ChunkStaged,
    StageChunk,
    StagedRows,
)


__all__ = [
    "ENVELOPE_SIZE_BYTES_MAX",
    "FRAME_COUNT_MAX",
    "Head",
    "decode_at_node",
    "decode_at_reader",
    "decode_copied_rows",
    "decode_count",
    "decode_flags",
    "decode_from_copy_source",
    "decode_from_node",
    "decode_head",
    "decode_items",
    "decode_keys",
    "decode_rows",
    "decode_to_client",
    "decode_to_copy_source",
    "decode_to_node",
    "decode_to_proxy",
    "decode_values",
    "encode",
    "encode_payload",
]

PROTOCOL_VERSION: Final = 1
FRAME_COUNT_MAX: Final = 2
"""Frames of one message, the routing id not counted."""

ENVELOPE_SIZE_BYTES_MAX: Final = 64 << 10
"""Of an envelope that is decoded before it is known who has sent it; see `Head`."""

_HEADER: Final = b"LDQ" + bytes([PROTOCOL_VERSION])
_HEADER_SIZE_BYTES: Final = len(_HEADER)
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ENCODER: Final = msgspec.msgpack.Encoder()

T = TypeVar("T")
Frame: TypeAlias = bytes | memoryview
Decode: TypeAlias = Callable[[Frame], T]
"""Takes one kind of frame; raises `RemoteProtocolError` if it is none."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """
    Who has sent an envelope, by what it says itself; all else in it is passed over.

    To decode many small things takes a second for 15 MB, in which nothing else is done;
    to pass over them takes 30 ms at most (measured).  So of a large envelope this is
    decoded first, and the rest only once it is known that its sender may say it.

    Attributes:
        type: Which message it is.
        request_id: Of a client's request.
        copy_id: Of what another node asks for.
        session: The secret of a client's session.
        token: The credential of a node that registers.
        node_id: That node.
        registration_id: Of a node that has registered.
        secret: What the proxy leader gives to nodes.
    """

    type: str = ""
    request_id: int = 0
    copy_id: int = 0
    session: bytes = b""
    token: str | None = None
    node_id: str = ""
    registration_id: str = ""
    secret: bytes = b""


def encode(message: msgspec.Struct) -> bytes:
    """Return the envelope of *message*."""
    if type(message) in NAMING:
        message = with_indexes(message)
    return _HEADER + _ENCODER.encode(message)


def encode_payload(payload: object) -> bytes:
    """Return a second frame: keys, values or `StagedRows`."""
    return _ENCODER.encode(payload)


def _envelope(kind: object, *, size_bytes_max: int | None = None) -> Decode[Any]:
    """Return what decodes an envelope of *kind*, of that size at most."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_envelope(envelope: Frame) -> Any:
        if size_bytes_max is not None and len(envelope) > size_bytes_max:
            raise RemoteProtocolError(
                "oversized",
                f"the envelope has {len(envelope):,} bytes, at most "
                f"{size_bytes_max:,} are taken of it",
            )
        if envelope[:_HEADER_SIZE_BYTES] != _HEADER:
            raise _wrong_header(bytes(envelope[:_HEADER_SIZE_BYTES]))
        try:
            message = decode(memoryview(envelope)[_HEADER_SIZE_BYTES:])
        except _MALFORMED as error:
            raise RemoteProtocolError("malformed", str(error)) from error
        return with_names(message) if type(message) in NAMING else message

    return decode_envelope


def _payload(kind: object) -> Decode[Any]:
    """Return what decodes a second frame of *kind*."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_payload(payload: Frame) -> Any:
        try:
            return decode(payload)
        except _MALFORMED as error:
            raise RemoteProtocolError("malformed", str(error)) from error

    return decode_payload


def _wrong_header(header: bytes) -> RemoteProtocolError:
    if header[:-1] == _HEADER[:-1] and len(header) == _HEADER_SIZE_BYTES:
        return RemoteProtocolError(
            "wrong-version",
            f"the peer speaks protocol version {header[-1]}, "
            f"we speak version {PROTOCOL_VERSION}",
        )
    return RemoteProtocolError("wrong-magic", "the message does not begin with 'LDQ'")


# Envelopes, by who takes them.
decode_head: Final[Decode[Head]] = _envelope(Head)
decode_to_proxy: Final[Decode[ToProxy]] = _envelope(ToProxy)
decode_to_client: Final[Decode[ToClient]] = _envelope(ToClient)
decode_to_node: Final[Decode[ToNodeFrame]] = _envelope(ToNodeFrame)
decode_at_node: Final[Decode[StageChunk | AskNode]] = _envelope(
    StageChunk | AskNode, size_bytes_max=ENVELOPE_SIZE_BYTES_MAX
)
decode_at_reader: Final[Decode[ToCopySource | ShowTicket]] = _envelope(
    ToCopySource | ShowTicket, size_bytes_max=ENVELOPE_SIZE_BYTES_MAX
)
decode_from_node: Final[Decode[ChunkStaged | ChunkRefused]] = _envelope(
    ChunkStaged | ChunkRefused
)
decode_to_copy_source: Final[Decode[ToCopySource | ShowTicket]] = _envelope(
    ToCopySource | ShowTicket
)
decode_from_copy_source: Final[Decode[FromCopySource]] = _envelope(FromCopySource)

# Second frames: rows of a page, rows of a chunk, keys of a question, and what answers
# `GetValues`, `GetItems` or `GetEntries`, `HasRows`, and `CountKeys`.
decode_copied_rows: Final[Decode[CopiedRows]] = _payload(CopiedRows)
decode_rows: Final[Decode[StagedRows]] = _payload(StagedRows)
decode_keys: Final[Decode[list[bytes]]] = _payload(list[bytes])
decode_values: Final[Decode[list[bytes | None]]] = _payload(list[bytes | None])
decode_items: Final[Decode[list[list[bytes] | None]]] = _payload(
    list[list[bytes] | None]
)
decode_flags: Final[Decode[list[bool]]] = _payload(list[bool])
decode_count: Final[Decode[int]] = _payload(Annotated[int, msgspec.Meta(ge=0)])
