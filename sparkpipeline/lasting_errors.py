"""Errors of publishing that trying again would not mend."""

from __future__ import annotations

from typing import Final

from nameservice import AuthenticationError, ConfigurationError, LocalProtocolError
from queryablestate import (
    AccessDeniedError,
    CheckpointRewoundError,
    KeyTooLargeError,
    SchemaMismatchError,
    StaleWriterError,
    StateOwnedError,
)


__all__ = ["LASTING_ERRORS"]

LASTING_ERRORS: Final = (
    AccessDeniedError,
    AuthenticationError,
    CheckpointRewoundError,
    ConfigurationError,
    KeyTooLargeError,
    LocalProtocolError,
    SchemaMismatchError,
    StaleWriterError,
    StateOwnedError,
)
"""What trying again would not mend."""
