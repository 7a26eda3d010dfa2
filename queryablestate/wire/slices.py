"""
Large payloads, made in slices; pure.

What copies many megabytes in one call holds the interpreter's lock as long as that
takes, and every other thread of the process waits: 15 MB take three to four
milliseconds.  Here each call copies a slice of a fraction of a millisecond, and what
drives the steps may yield to others in between.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, TypeAlias

from queryablestate.wire.codec import encode_payload


__all__ = ["SLICE_SIZE_BYTES", "copy_in_slices", "encode_in_slices"]

SLICE_SIZE_BYTES: Final = 256 << 10
"""About a twentieth of a millisecond."""

_GROUP_COUNT: Final = 1_024
_NIL: Final = b"\xc0"
_FIXED_COUNT_MAX: Final = 15
_SHORT_COUNT_MAX: Final = 0xFFFF

_FLAT: Final = frozenset({bytes, bytearray, type(None)})

Part: TypeAlias = bytes | bytearray
Value: TypeAlias = Part | Sequence[Part] | None


def copy_in_slices(part: memoryview) -> Generator[None, None, bytearray]:
    """Return a copy of *part*."""
    copy = bytearray()
    for first in range(0, len(part), SLICE_SIZE_BYTES):
        copy += part[first : first + SLICE_SIZE_BYTES]
        yield
    return copy


def encode_in_slices(
    values: Sequence[Value], *, is_consumed: bool = False
) -> Generator[None, None, bytearray]:
    """
    Return what `encode_payload` returns for *values*.

    Args:
        values: What is encoded.
        is_consumed: Drop each part of a list when it is encoded, so that not all of
            them are held beside the payload; no list may be in *values* twice.
    """
    payload = bytearray()
    yield from _add_array(payload, values, is_consumed=is_consumed)
    return payload


def _add_array(
    payload: bytearray, values: Sequence[Value], *, is_consumed: bool
) -> Generator[None, None, None]:
    payload += _array_header(len(values))
    for first in range(0, len(values), _GROUP_COUNT):
        group = values[first : first + _GROUP_COUNT]
        if is_consumed and isinstance(values, list):
            values[first : first + _GROUP_COUNT] = [None] * len(group)
        if _is_small(group):
            # Thousands of short parts are encoded at once, as the rest of an array.
            payload += encode_payload(group)[len(_array_header(len(group))) :]
            yield
            continue
        for value in group:
            if value is None:
                payload += _NIL
            elif isinstance(value, bytes | bytearray):
                yield from _add(payload, value)
            else:
                yield from _add_array(payload, value, is_consumed=is_consumed)


def _is_small(group: Sequence[Value]) -> bool:
    """Return whether all of *group* can be encoded at once."""
    if not _FLAT.issuperset(map(type, group)):
        return False
    return sum(map(len, filter(None, group))) <= SLICE_SIZE_BYTES


def _add(payload: bytearray, part: Part) -> Generator[None, None, None]:
    if len(part) <= SLICE_SIZE_BYTES:
        payload += encode_payload(part)
        yield
        return
    payload += b"\xc6" + len(part).to_bytes(4, "big")
    with memoryview(part) as view:
        for first in range(0, len(view), SLICE_SIZE_BYTES):
            payload += view[first : first + SLICE_SIZE_BYTES]
            yield


def _array_header(count: int) -> bytes:
    if count <= _FIXED_COUNT_MAX:
        return bytes([0x90 | count])
    if count <= _SHORT_COUNT_MAX:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")
