"""Key groups in keys: each row key begins with its key group, in two bytes."""

from __future__ import annotations

from typing import Final


__all__ = ["GROUP_SIZE_BYTES", "group_of", "group_start"]

GROUP_SIZE_BYTES: Final = 2


def group_start(key_group: int) -> bytes:
    """Return what all row keys of *key_group* begin with."""
    return key_group.to_bytes(GROUP_SIZE_BYTES, "big")


def group_of(row_key: bytes) -> int:
    """Return the key group of a row key, or of what one begins with."""
    return int.from_bytes(row_key[:GROUP_SIZE_BYTES], "big")
