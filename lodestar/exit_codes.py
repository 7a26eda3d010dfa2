"""What the exit codes of ``lodestar`` mean (rule N5)."""

from __future__ import annotations

from enum import IntEnum, unique

from nameservice import (
    AuthenticationError,
    ConfigurationError,
    NoLeaderError,
    UnknownContenderError,
    UnknownSessionError,
    UnreachableError,
    WrongServiceError,
)
from queryablestate import (
    AccessDeniedError,
    DeadlineExceededError,
    KeyTooLargeError,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
    WrongKeyTypeError,
)


__all__ = ["ExitCode", "exit_code_of"]


@unique
class ExitCode(IntEnum):
    """How a verb ended; scripts may rely on the numbers."""

    DONE = 0
    FAILED = 1
    BAD_USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    NOT_REACHABLE = 5


def exit_code_of(error: Exception) -> ExitCode:
    """Return the exit code for a verb that *error* ended."""
    match error:
        case ConfigurationError() | WrongServiceError():
            return ExitCode.BAD_USAGE
        case WrongKeyTypeError() | KeyTooLargeError():
            return ExitCode.BAD_USAGE
        case NoLeaderError() | UnknownSessionError() | UnknownContenderError():
            return ExitCode.NOT_FOUND
        case UnknownJobError() | UnknownStateError() | UnknownKeyError():
            return ExitCode.NOT_FOUND
        case AuthenticationError() | AccessDeniedError():
            return ExitCode.NOT_ALLOWED
        case UnreachableError() | DeadlineExceededError() | StateUnavailableError():
            return ExitCode.NOT_REACHABLE
        case _:
            return ExitCode.FAILED
