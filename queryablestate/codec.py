"""
Bytes to messages and back; whatever does not decode is a `RemoteProtocolError`.

A message is one frame, or two: the envelope, which begins with ``LDQ`` and one byte of
version, and for questions, answers and chunks a payload.  Magic and version stand in
every message, so that a stray peer is recognized by its first one.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from nameservice import RemoteProtocolError
from queryablestate.copy_messages import CopiedRows, FromCopySource, ToCopySource
from queryablestate.messages import ToClient, ToNodeFrame, ToProxy
from queryablestate.node_messages import (
    ChunkRefused,
    ChunkStaged,
    StageChunk,
    StagedRows,
)


__all__ = [
    "FRAME_COUNT_MAX",
    "decode_chunk",
    "decode_copied_rows",
    "decode_count",
    "decode_from_copy_source",
    "decode_from_node",
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

_HEADER: Final = b"LDQ" + bytes([PROTOCOL_VERSION])
_HEADER_SIZE_BYTES: Final = len(_HEADER)
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ENCODER: Final = msgspec.msgpack.Encoder()

T = TypeVar("T")

_TO_PROXY: Final[msgspec.msgpack.Decoder[ToProxy]] = msgspec.msgpack.Decoder(ToProxy)
_TO_CLIENT: Final[msgspec.msgpack.Decoder[ToClient]] = msgspec.msgpack.Decoder(ToClient)
_TO_NODE: Final[msgspec.msgpack.Decoder[ToNodeFrame]] = msgspec.msgpack.Decoder(
    ToNodeFrame
)
_CHUNK: Final = msgspec.msgpack.Decoder(StageChunk)
_CHUNK_REPLY: Final[msgspec.msgpack.Decoder[ChunkStaged | ChunkRefused]] = (
    msgspec.msgpack.Decoder(ChunkStaged | ChunkRefused)
)
_ROWS: Final = msgspec.msgpack.Decoder(StagedRows)
_TO_COPY_SOURCE: Final[msgspec.msgpack.Decoder[ToCopySource]] = msgspec.msgpack.Decoder(
    ToCopySource
)
_FROM_COPY_SOURCE: Final[msgspec.msgpack.Decoder[FromCopySource]] = (
    msgspec.msgpack.Decoder(FromCopySource)
)
_COPIED_ROWS: Final = msgspec.msgpack.Decoder(CopiedRows)
_KEYS: Final = msgspec.msgpack.Decoder(list[bytes])
_VALUES: Final = msgspec.msgpack.Decoder(list[bytes | None])
_ITEMS: Final = msgspec.msgpack.Decoder(list[list[bytes] | None])
_COUNT: Final[msgspec.msgpack.Decoder[int]] = msgspec.msgpack.Decoder(
    Annotated[int, msgspec.Meta(ge=0)]
)


def encode(message: msgspec.Struct) -> bytes:
    """Return the envelope of *message*."""
    return _HEADER + _ENCODER.encode(message)


def encode_payload(payload: object) -> bytes:
    """Return a second frame: keys, values or `StagedRows`."""
    return _ENCODER.encode(payload)


def decode_to_proxy(envelope: bytes | memoryview) -> ToProxy:
    """Return what came in at a proxy, or raise `RemoteProtocolError`."""
    return _decode(_TO_PROXY, envelope)


def decode_to_client(envelope: bytes | memoryview) -> ToClient:
    """Return what the proxy told a client, or raise `RemoteProtocolError`."""
    return _decode(_TO_CLIENT, envelope)


def decode_to_node(envelope: bytes | memoryview) -> ToNodeFrame:
    """Return what the proxy told a node, or raise `RemoteProtocolError`."""
    return _decode(_TO_NODE, envelope)


def decode_chunk(envelope: bytes | memoryview) -> StageChunk:
    """Return what a writer told a node, or raise `RemoteProtocolError`."""
    return _decode(_CHUNK, envelope)


def decode_from_node(envelope: bytes | memoryview) -> ChunkStaged | ChunkRefused:
    """Return what a node told a writer, or raise `RemoteProtocolError`."""
    return _decode(_CHUNK_REPLY, envelope)


def decode_to_copy_source(envelope: bytes | memoryview) -> ToCopySource:
    """Return what a node asked another, or raise `RemoteProtocolError`."""
    return _decode(_TO_COPY_SOURCE, envelope)


def decode_from_copy_source(envelope: bytes | memoryview) -> FromCopySource:
    """Return what a node was told by another, or raise `RemoteProtocolError`."""
    return _decode(_FROM_COPY_SOURCE, envelope)


def decode_copied_rows(payload: bytes | memoryview) -> CopiedRows:
    """Return the rows of a page, or raise `RemoteProtocolError`."""
    return _decode_payload(_COPIED_ROWS, payload)


def decode_rows(payload: bytes | memoryview) -> StagedRows:
    """Return the rows of a chunk, or raise `RemoteProtocolError`."""
    return _decode_payload(_ROWS, payload)


def decode_keys(payload: bytes | memoryview) -> list[bytes]:
    """Return the keys of a question, or raise `RemoteProtocolError`."""
    return _decode_payload(_KEYS, payload)


def decode_values(payload: bytes | memoryview) -> list[bytes | None]:
    """Return the values of an answer to `GetValues`, or raise `RemoteProtocolError`."""
    return _decode_payload(_VALUES, payload)


def decode_items(payload: bytes | memoryview) -> list[list[bytes] | None]:
    """Return the lists, or the maps, of an answer, or raise `RemoteProtocolError`."""
    return _decode_payload(_ITEMS, payload)


def decode_count(payload: bytes | memoryview) -> int:
    """Return the answer to `CountKeys`, or raise `RemoteProtocolError`."""
    return _decode_payload(_COUNT, payload)


def _decode(decoder: msgspec.msgpack.Decoder[T], envelope: bytes | memoryview) -> T:
    if envelope[:_HEADER_SIZE_BYTES] != _HEADER:
        raise _wrong_header(bytes(envelope[:_HEADER_SIZE_BYTES]))
    try:  # as `_decode_payload`, without its call: every message comes by here
        return decoder.decode(memoryview(envelope)[_HEADER_SIZE_BYTES:])
    except _MALFORMED as error:
        raise RemoteProtocolError("malformed", str(error)) from error


def _decode_payload(
    decoder: msgspec.msgpack.Decoder[T], payload: bytes | memoryview
) -> T:
    try:
        return decoder.decode(payload)
    except _MALFORMED as error:
        raise RemoteProtocolError("malformed", str(error)) from error


def _wrong_header(header: bytes) -> RemoteProtocolError:
    if header[:-1] == _HEADER[:-1] and len(header) == _HEADER_SIZE_BYTES:
        return RemoteProtocolError(
            "wrong-version",
            f"the peer speaks protocol version {header[-1]}, "
            f"we speak version {PROTOCOL_VERSION}",
        )
    return RemoteProtocolError("wrong-magic", "the message does not begin with 'LDQ'")
