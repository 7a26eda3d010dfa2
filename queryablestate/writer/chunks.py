"""
Rows as the chunks that a node takes, and rows that no chunk can hold; pure (rule B3).

A row travels in one chunk.  Nodes say how large a chunk they take, each for itself: one
that would be larger is never sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nameservice import ConfigurationError
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.staging_messages import StagedRows
from queryablestate.writer.rows import cut_rows, rows_larger_than


if TYPE_CHECKING:
    from collections.abc import Iterator

    from queryablestate.wire.clients import NodeAddress
    from queryablestate.writer.rows import StateRows


__all__ = ["ROW_SIZE_BYTES_MAX", "check_rows", "chunk_payloads"]

ROW_SIZE_BYTES_MAX: Final = (16 << 20) - (64 << 10)
"""An answer with it takes 16 MiB: what is larger is for files."""

_OVERHEAD_BYTES: Final = 32
"""What a chunk takes besides its rows, at most: four headers and a number."""


def check_rows(state_number: int, rows: StateRows, node: NodeAddress) -> None:
    """
    Return if *node* takes each of *rows*.

    Raises:
        ConfigurationError: Which limit a row exceeds, and by how much.
    """
    size_bytes_max = _chunk_size_bytes_max(node)
    for row in rows_larger_than(rows, size_bytes_max - _OVERHEAD_BYTES):
        size_bytes = len(_encoded(state_number, row))
        if size_bytes <= size_bytes_max:
            continue
        if size_bytes_max == ROW_SIZE_BYTES_MAX:
            raise ConfigurationError(
                f"a row of {size_bytes:,} bytes is more than a state can hold "
                f"({ROW_SIZE_BYTES_MAX:,}): keep a reference to it instead"
            )
        raise ConfigurationError(
            f"a row of {size_bytes:,} bytes is larger than a chunk may be: raise "
            f"chunk_size_bytes_max of node {node.node_id}, which is "
            f"{size_bytes_max:,}, or keep a reference to it instead"
        )


def chunk_payloads(
    state_number: int, rows: StateRows, node: NodeAddress, *, size_bytes_max: int
) -> Iterator[bytes]:
    """
    Yield *rows*, which `check_rows` has seen, as second frames of chunks.

    Args:
        state_number: The state.
        rows: Sorted by key.
        node: Where they go.
        size_bytes_max: Of a chunk with more than one row, if the node takes it.
    """
    taken = min(size_bytes_max, _chunk_size_bytes_max(node))
    for piece in cut_rows(rows, size_bytes_max=taken - _OVERHEAD_BYTES):
        yield _encoded(state_number, piece)


def _chunk_size_bytes_max(node: NodeAddress) -> int:
    told = node.chunk_size_bytes_max
    return ROW_SIZE_BYTES_MAX if told is None else min(told, ROW_SIZE_BYTES_MAX)


def _encoded(state_number: int, rows: StateRows) -> bytes:
    return encode_payload(StagedRows(state_number, rows.keys, rows.values, rows.orders))
