"""
Tokens: what a caller shows a proxy, and the hash of it that the proxy's list holds.

A token is 32 random bytes as text.  It is too long to be guessed, and its
hash needs neither salt nor slowness (`queryablestate.proxy.access`).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from nameservice.new_file import write_new_file


if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["TOKEN_SUFFIX", "generate_token", "write_token"]

TOKEN_SUFFIX: Final = ".token"  # noqa: S105 (the end of a file's name)
"""What the names of token files end in."""

_SIZE_BYTES: Final = 32


def generate_token() -> str:
    """Return a new token: 43 letters, digits, hyphens and underscores."""
    while (token := secrets.token_urlsafe(_SIZE_BYTES)).startswith("-"):
        pass  # on a command line it would look like an option
    return token


def write_token(token: str, base: Path) -> Path:
    """
    Write *token* to ``BASE.token``, which only its owner may read; return the file.

    A file that exists is never overwritten: somebody may depend on it.

    Raises:
        ConfigurationError: If it exists or cannot be written.
    """
    path = base.with_name(base.name + TOKEN_SUFFIX)
    write_new_file(path, f"{token}\n")
    return path
