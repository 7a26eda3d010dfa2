"""
From errors to codes on the wire and back: one table.

A `Refusal` carries a code and the data that the error of that code is built from, in
the order of its constructor.  What is no business of a caller (``not-leader``,
``unknown-session``, ``stale-route``) has a code and no error: clients act on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    RemoteProtocolError,
    StorageError,
)
from queryablestate.errors import (
    AccessDeniedError,
    CheckpointRewoundError,
    CommitTimeoutError,
    DeadlineExceededError,
    KeyTooLargeError,
    RateLimitedError,
    SchemaMismatchError,
    StagedDataMissingError,
    StagingQuotaError,
    StaleWriterError,
    StateOwnedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownStateError,
)
from queryablestate.wire.direct import ASK_PROXY, NOT_DIRECTLY, TICKET_REFUSED
from queryablestate.wire.questions import Refusal
from queryablestate.wire.schema_digest import DeclarationWantedError


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = [
    "NOT_LEADER",
    "STALE_ROUTE",
    "UNKNOWN_SESSION",
    "error_label",
    "error_of",
    "refusal_of",
]

NOT_LEADER: Final = "not-leader"
"""Another proxy leads, or none does: find it by the name service, and ask again."""

UNKNOWN_SESSION: Final = "unknown-session"
"""Say `Hello` again, and repeat the request."""

STALE_ROUTE: Final = "stale-route"
"""Describe the state again, and ask by the new route."""

_CODES: Final[dict[type[NameServiceError], str]] = {
    AccessDeniedError: "access-denied",
    AuthenticationError: "not-authenticated",
    CheckpointRewoundError: "checkpoint-rewound",
    CommitTimeoutError: "commit-timeout",
    ConfigurationError: "invalid",
    DeadlineExceededError: "deadline-exceeded",
    DidNotHappenError: "did-not-happen",
    KeyTooLargeError: "key-too-large",
    LocalProtocolError: "illegal",
    MayHaveHappenedError: "may-have-happened",
    RateLimitedError: "rate-limited",
    RemoteProtocolError: "malformed",
    SchemaMismatchError: "schema-mismatch",
    DeclarationWantedError: "declaration-wanted",
    StagedDataMissingError: "staged-data-missing",
    StagingQuotaError: "staging-quota",
    StaleWriterError: "stale-writer",
    StateOwnedError: "state-owned",
    StateUnavailableError: "state-unavailable",
    StorageError: "storage",
    UnknownJobError: "unknown-job",
    UnknownStateError: "unknown-state",
}

_FAILED: Final = "failed"
"""An error that has no code of its own."""

_LABELS: Final = {
    code: code.replace("-", "_")
    for code in (
        *(*_CODES.values(), _FAILED, NOT_LEADER, STALE_ROUTE, UNKNOWN_SESSION),
        *(ASK_PROXY, NOT_DIRECTLY, TICKET_REFUSED),
    )
}


def error_label(code: str) -> str:
    """
    Return what refusals with a code are counted as in figures.

    Codes that are none of ours are counted together: a peer may say anything.
    """
    return _LABELS.get(code, "other")


def _commit_timeout(
    batch_id: int,
    waited_seconds: float,
    node_ids: tuple[str, ...],
    is_decided: bool,  # noqa: FBT001 (positional on the wire)
    *failures: str,
) -> CommitTimeoutError:
    return CommitTimeoutError(
        batch_id,
        waited_seconds,
        node_ids,
        is_decided=is_decided,
        failures=dict(zip(failures[::2], failures[1::2], strict=False)),
    )


_ERRORS: Final[dict[str, Callable[..., NameServiceError]]] = {
    **{code: error_type for error_type, code in _CODES.items()},
    "commit-timeout": _commit_timeout,
}


def refusal_of(error: NameServiceError, request_id: int) -> Refusal:
    """
    Return how *error* is told to a peer.

    An error that has no code of its own is told as ``failed``, with its sentence.
    """
    code = _CODES.get(type(error))
    if code is None:
        return Refusal(request_id=request_id, code=_FAILED, data=(str(error),))
    data = error.args
    if isinstance(error, CommitTimeoutError):
        failures = [part for pair in error.failures.items() for part in pair]
        data = (*data[:3], error.is_decided, *failures)
    return Refusal(request_id=request_id, code=code, data=tuple(data))


def error_of(refusal: Refusal) -> NameServiceError:
    """
    Return the error that a peer told of.

    A code that we do not know, or data that does not fit it, is an error of its own:
    the peer is of another version, or lies.
    """
    make = _ERRORS.get(refusal.code, NameServiceError)
    try:
        return make(*refusal.data)
    except TypeError:
        data = ", ".join(str(item) for item in refusal.data)
        return RemoteProtocolError("malformed", f"a refusal {refusal.code}: {data}")
