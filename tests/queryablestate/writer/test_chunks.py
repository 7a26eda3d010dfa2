"""Which rows a chunk can hold, and into which chunks rows are cut (B3)."""

from __future__ import annotations

import pytest

from nameservice import ConfigurationError
from queryablestate.wire.clients import NodeAddress
from queryablestate.wire.codec import decode_rows, encode_payload
from queryablestate.wire.staging_messages import StagedRows
from queryablestate.writer.chunks import (
    ROW_SIZE_BYTES_MAX,
    check_rows,
    chunk_payloads,
)
from queryablestate.writer.rows import StateRows


pytestmark = pytest.mark.proves("B3")

LIMIT = 65_536
SMALL = NodeAddress(node_id="small", address=None, chunk_size_bytes_max=LIMIT)
UNKNOWN = NodeAddress(node_id="n", address=None)


def rows(*sizes_bytes: int) -> StateRows:
    """Return rows whose values are so large."""
    return StateRows(
        keys=[b"%05d" % number for number in range(len(sizes_bytes))],
        values=[bytes(size) for size in sizes_bytes],
    )


def row_of(size_bytes: int) -> StateRows:
    """Return one row whose chunk is just so large."""
    row = rows(size_bytes - 100)
    lacking = size_bytes - len(encode_payload(StagedRows(1, row.keys, row.values)))
    return rows(size_bytes - 100 + lacking)


@pytest.mark.parametrize(
    ("node", "size_bytes_max"), [(SMALL, LIMIT), (UNKNOWN, ROW_SIZE_BYTES_MAX)]
)
def test_the_limit_itself_is_taken(node: NodeAddress, size_bytes_max: int) -> None:
    """B3: and travels as a chunk of its own."""
    row = row_of(size_bytes_max)
    check_rows(1, row, node)
    (payload,) = chunk_payloads(1, row, node, size_bytes_max=4 << 20)
    assert len(payload) == size_bytes_max


def test_more_than_a_node_takes_is_refused() -> None:
    """B3: with the setting, the node, its value, and how large the row is."""
    row = row_of(LIMIT + 1)
    with pytest.raises(
        ConfigurationError,
        match=r"65,537 bytes .* chunk_size_bytes_max of node small, which is 65,536",
    ):
        check_rows(1, row, SMALL)
    check_rows(1, row, UNKNOWN)


def test_more_than_any_state_holds_is_refused() -> None:
    """B3: whatever a node takes."""
    row = row_of(ROW_SIZE_BYTES_MAX + 1)
    large = NodeAddress(node_id="n", address=None, chunk_size_bytes_max=60 << 20)
    for node in (UNKNOWN, large):
        with pytest.raises(ConfigurationError, match="more than a state can hold"):
            check_rows(1, row, node)


def test_a_large_row_is_found_among_others() -> None:
    """B3: wherever it is, with a delete and with orders beside it."""
    some = StateRows(
        keys=[b"a", b"b", b"c"],
        values=[None, b"1", bytes(10)],
        orders=[b"1", b"2", bytes(LIMIT)],
    )
    with pytest.raises(ConfigurationError, match="chunk_size_bytes_max of node small"):
        check_rows(1, some, SMALL)


@pytest.mark.parametrize("size_bytes", [1, 200, 300, 900, 30_000, 65_000])
def test_no_chunk_is_larger_than_a_node_takes(size_bytes: int) -> None:
    """B3: with many small rows and with few large ones; none is left out."""
    some = rows(*[size_bytes] * (300_000 // size_bytes + 2))
    payloads = list(chunk_payloads(1, some, SMALL, size_bytes_max=4 << 20))
    assert max(map(len, payloads)) <= LIMIT
    assert [key for payload in payloads for key in decode_rows(payload).keys] == (
        some.keys
    )


def test_a_writer_may_want_smaller_ones() -> None:
    """The lesser of both limits holds."""
    payloads = list(chunk_payloads(1, rows(*[100] * 100), SMALL, size_bytes_max=1_000))
    assert max(map(len, payloads)) <= 1_000
