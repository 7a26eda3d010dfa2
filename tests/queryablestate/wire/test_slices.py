"""Large payloads are what they were, and no step of making one copies much."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.wire.codec import decode_items, decode_values, encode_payload
from queryablestate.wire.slices import (
    SLICE_SIZE_BYTES,
    Value,
    copy_in_slices,
    encode_in_slices,
)


T = TypeVar("T")

PARTS = st.binary(max_size=300)
VALUES = st.none() | PARTS | st.lists(PARTS, max_size=20)


def made(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Return what *steps* return, and how many there are."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result, count
        count += 1


@given(values=st.lists(VALUES, max_size=40))
def test_what_is_made_in_slices_is_what_is_made_at_once(values: list[Value]) -> None:
    """Short parts, empty ones, none, lists of parts, in any order."""
    assert made(encode_in_slices(values))[0] == encode_payload(values)


@pytest.mark.parametrize(
    "values",
    [
        [b"x" * size]
        for size in (
            *(0, 255, 256, 65_535, 65_536),
            *(SLICE_SIZE_BYTES, SLICE_SIZE_BYTES + 1, 5 * SLICE_SIZE_BYTES),
        )
    ]
    + [
        [b"ab"] * 15,
        [b"ab"] * 16,
        [b"ab"] * 70_000,
        [[b"ab"] * 70_000, None, [b"x" * (2 * SLICE_SIZE_BYTES), b""], []],
        [bytearray(b"y" * (SLICE_SIZE_BYTES + 3)), None] * 20,
    ],
    ids=lambda values: f"{len(values)} from {len(values[0])}",
)
def test_headers_are_those_of_messagepack(values: Sequence[Value]) -> None:
    """At each length at which a header is another one."""
    assert made(encode_in_slices(values))[0] == encode_payload(values)


@pytest.mark.proves("B1")
def test_what_is_encoded_is_held_no_more() -> None:
    """B1: a list of many parts is not held beside its payload."""
    parts: list[bytes | bytearray | None] = [b"x" * 40 for _ in range(10_000)]
    expected = encode_payload([parts])
    left: list[int] = []
    listed = cast("list[bytes | bytearray]", parts)
    steps = encode_in_slices([listed], is_consumed=True)
    payload, is_over = bytearray(), False
    while not is_over:
        try:
            next(steps)
        except StopIteration as end:
            payload, is_over = end.value, True
        left.append(sum(one is not None for one in parts))
    assert payload == expected
    assert left[0] < len(parts)
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


@pytest.mark.proves("B1", "B2")
def test_no_step_copies_more_than_a_slice() -> None:
    """B2: others go on in between, however large a value is."""
    slice_count = 40
    part = b"z" * (slice_count * SLICE_SIZE_BYTES)
    copy, count = made(copy_in_slices(memoryview(part)))
    assert (bytes(copy), count) == (part, slice_count)
    payload, count = made(encode_in_slices([part, None]))
    assert count >= slice_count
    assert decode_values(bytes(payload)) == [part, None]
    payload, count = made(encode_in_slices([[part[: SLICE_SIZE_BYTES // 64]] * 640]))
    assert count >= 10
    assert len(decode_items(bytes(payload))[0] or ()) == 640
