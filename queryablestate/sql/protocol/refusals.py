"""What a tool is told that asks for what cannot be: SQLSTATE, sentence, hint; pure."""

from __future__ import annotations

from typing import Final, final

from nameservice import (
    AuthenticationError,
    ConfigurationError,
    NameServiceError,
    NoLeaderError,
    UnreachableError,
)
from queryablestate.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    KeyTooLargeError,
    RateLimitedError,
    StateUnavailableError,
    TableTooLargeError,
    UnknownJobError,
    UnknownStateError,
    WrongKeyTypeError,
)


__all__ = ["SQLError", "refusal_of"]


@final
class SQLError(Exception):
    """
    An answer to a tool.

    Attributes:
        sqlstate: Five characters, of the table in Postgres' manual.
        message: What is wrong.
        hint: What to do about it, or an empty string.
        position: The character of the statement that it is about, from 1; 0 for none.
        routine: The function of Postgres that drivers know the error by, if any.
    """

    def __init__(
        self,
        sqlstate: str,
        message: str,
        hint: str = "",
        *,
        position: int = 0,
        routine: str = "",
    ) -> None:
        super().__init__(sqlstate, message, hint)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint
        self.position = position
        self.routine = routine

    def __str__(self) -> str:
        return f"{self.message} ({self.sqlstate})"


_UNAVAILABLE: Final = "57P03"


def refusal_of(error: Exception) -> SQLError:
    """Return what a tool is told of *error*, an error of a client of states."""
    text = str(error)
    match error:
        case SQLError():
            return error
        case UnknownJobError() | UnknownStateError():
            return SQLError("42P01", text, "\\dn lists the jobs, \\dt JOB.* its states")
        case AccessDeniedError():
            return SQLError("42501", text, "ask with a token that may read it")
        case AuthenticationError():
            return SQLError("28P01", text, "the password is the caller's token")
        case RateLimitedError():
            return SQLError(
                "53400", text, f"ask again in {error.retry_after_seconds:.3g} seconds"
            )
        case StateUnavailableError():
            return SQLError(
                _UNAVAILABLE,
                text,
                f"ask again in {error.retry_after_seconds:.3g} seconds",
            )
        case NoLeaderError() | UnreachableError():
            return SQLError(
                _UNAVAILABLE, text, "see whether a 'lodestar proxy' is running"
            )
        case DeadlineExceededError():
            return SQLError("57014", text, "ask for fewer rows, or ask again")
        case WrongKeyTypeError() | KeyTooLargeError():
            return SQLError("22023", text, "compare the key with a value of its type")
        case TableTooLargeError():
            return SQLError("53200", text, "ask for fewer rows")
        case ConfigurationError():
            return SQLError("42703", text)
        case NameServiceError():
            return SQLError("58000", text)
        case _:
            return SQLError("XX000", "an internal error; the server's log has more")
