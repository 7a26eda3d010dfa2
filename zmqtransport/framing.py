"""
Frames on the wire: a header that says what follows, then the payload; pure.

A message is two frames.  Frame 0 is ``LDS`` and one byte of version; frame 1 is the
payload, whose meaning is the codec's business.  Magic and version stand in *every*
message (not only in a handshake), so that a stray peer is recognized by its first
message and a peer of another version is told so instead of being misread.

Source: zguide, chapter 4, on the Paranoid Pirate protocol: what it lacks is a protocol
version and a message type in every message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn, final

from nameservice import RemoteProtocolError


__all__ = [
    "FRAME_COUNT",
    "PROTOCOL_VERSION",
    "MalformedFrameError",
    "OversizedFrameError",
    "TruncatedMessageError",
    "WrongMagicError",
    "WrongVersionError",
    "decode",
    "encode",
    "frame_overhead_bytes",
    "overhead_bytes",
]

PROTOCOL_VERSION: Final = 1
"""The version that this code speaks: 1 to 255."""

FRAME_COUNT: Final = 2
"""Frames of one message, routing id and topic not counted."""

_MAGIC: Final = b"LDS"
_HEADER: Final = _MAGIC + bytes([PROTOCOL_VERSION])
_HEADER_SIZE_BYTES: Final = len(_HEADER)


@final
class TruncatedMessageError(RemoteProtocolError):
    """
    A message has fewer frames, or a shorter header, than every message has.

    Attributes:
        frame_count: How many frames arrived.
    """

    def __init__(self, frame_count: int, detail: str) -> None:
        super().__init__("truncated", detail)
        self.args = (frame_count, detail)
        self.frame_count = frame_count


@final
class MalformedFrameError(RemoteProtocolError):
    """
    A message has more frames, or a longer header, than any message has.

    Attributes:
        frame_count: How many frames arrived (at least).
    """

    def __init__(self, frame_count: int, detail: str) -> None:
        super().__init__("malformed", detail)
        self.args = (frame_count, detail)
        self.frame_count = frame_count


@final
class OversizedFrameError(RemoteProtocolError):
    """
    A payload is larger than the receiver takes.

    Attributes:
        size_bytes: What arrived.
        size_bytes_max: What is taken.
    """

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(
            "oversized",
            f"the payload has {size_bytes} bytes, at most {size_bytes_max} are taken",
        )
        self.args = (size_bytes, size_bytes_max)
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max


@final
class WrongMagicError(RemoteProtocolError):
    """The first frame is not ours: the peer speaks something else."""

    def __init__(self) -> None:
        super().__init__("wrong-magic", "the message does not begin with 'LDS'")
        self.args = ()


@final
class WrongVersionError(RemoteProtocolError):
    """
    The peer speaks another version of this protocol.

    Attributes:
        version: What the peer speaks.
        version_expected: What we speak.
    """

    def __init__(self, version: int) -> None:
        super().__init__(
            "wrong-version",
            f"the peer speaks protocol version {version}, "
            f"we speak version {PROTOCOL_VERSION}",
        )
        self.args = (version,)
        self.version = version
        self.version_expected = PROTOCOL_VERSION


def encode(payload: bytes) -> list[bytes]:
    """Return the frames that carry *payload*."""
    return [_HEADER, payload]


def frame_overhead_bytes(*, is_secured: bool) -> int:
    """Return what a frame of up to 255 bytes takes on the connection beside them."""
    return 2 + (8 + 8 + 16 + 1 if is_secured else 0)


def overhead_bytes(*, is_secured: bool) -> int:
    """
    Return what a message takes on the connection beside its payload, at least.

    ZMTP gives each frame two bytes, nine above 255; CURVE adds a command's name, a
    nonce, an authenticator and a byte of flags (ZeroMQ RFC 23 and 26).

    Args:
        is_secured: Whether CURVE is used.
    """
    per_frame = frame_overhead_bytes(is_secured=is_secured)
    return FRAME_COUNT * per_frame + _HEADER_SIZE_BYTES


def decode(frames: Sequence[bytes], *, size_bytes_max: int) -> bytes:
    """
    Return the payload that *frames* carry.

    Args:
        frames: One message, without routing id or topic.
        size_bytes_max: The largest payload taken, in bytes.

    Raises:
        RemoteProtocolError: One of the kinds above.  The version is judged before
            anything that another version may do otherwise: frame count and size.
    """
    header = frames[0] if frames else b""
    if header != _HEADER:
        _refuse_header(header, len(frames))
    if len(frames) != FRAME_COUNT:
        if len(frames) < FRAME_COUNT:
            raise TruncatedMessageError(len(frames), "the message has no payload")
        raise MalformedFrameError(
            len(frames), f"the message has more than {FRAME_COUNT} frames"
        )
    payload = frames[1]
    if len(payload) > size_bytes_max:
        raise OversizedFrameError(len(payload), size_bytes_max)
    return payload


def _refuse_header(header: bytes, frame_count: int) -> NoReturn:
    """Raise what *header*, which is not the right one, deserves."""
    if not header.startswith(_MAGIC):
        if _MAGIC.startswith(header):
            raise TruncatedMessageError(frame_count, "the header is too short")
        raise WrongMagicError
    if len(header) < _HEADER_SIZE_BYTES:
        raise TruncatedMessageError(frame_count, "the header is too short")
    version = header[len(_MAGIC)]
    if version != PROTOCOL_VERSION:
        raise WrongVersionError(version)
    raise MalformedFrameError(frame_count, "the header is too long")
