"""TOML as people write it by hand: one kind of error for whatever is wrong with it."""

from __future__ import annotations

import tomllib
from typing import Any


__all__ = ["parse_toml"]


def parse_toml(content: bytes | str) -> dict[str, Any]:
    """
    Return the document that *content* is.

    A running server reads its files again, and a file that is wrong must change
    nothing: so what `tomllib` raises beside its own error is a `ValueError`, too.

    Args:
        content: What a file holds; bytes are UTF-8.

    Raises:
        ValueError: If it is not UTF-8, not TOML, nested too deeply, or has a number of
            more digits than Python reads; says which.
    """
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        document = tomllib.loads(text)
        # A hexadecimal number is read at any length, but no error could show it.
        repr(document)
    except RecursionError:
        message = "it is nested too deeply"
        raise ValueError(message) from None
    return document
