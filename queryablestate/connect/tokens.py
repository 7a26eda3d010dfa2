"""
Tokens: what a caller shows a proxy, and the hash of it that the proxy's list holds.

A token is 32 random bytes as text.  It is too long to be guessed, and its
hash needs neither salt nor slowness (`queryablestate.proxy.access`).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from nameservice import ConfigurationError


__all__ = ["TOKEN_SUFFIX", "generate_token", "write_token"]

TOKEN_SUFFIX: Final = ".token"  # noqa: S105 (the end of a file's name)
"""What the names of token files end in."""

_SIZE_BYTES: Final = 32
_OWNER_ONLY: Final = 0o600
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


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
    try:
        descriptor = os.open(path, _CREATE, _OWNER_ONLY)
    except FileExistsError as error:
        raise ConfigurationError(
            f"{path} exists and is not overwritten: choose another name, or remove it "
            "if it is not in use"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}"
        ) from error
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (O_EXCL)
            file.write(f"{token}\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}"
        ) from error
    return path
