"""
Errors as HTTP answers: problem documents (RFC 9457) with a status; pure.

What a client of queryable state raises has one status each.  A problem says what to
change or when to ask again; it holds no stack and no credential.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, final

from attrs import field, frozen

from nameservice.errors import (
    AuthenticationError,
    ConfigurationError,
    LocalProtocolError,
    NameServiceError,
    NoLeaderError,
    RemoteProtocolError,
    UnreachableError,
)
from queryablestate.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    KeyTooLargeError,
    RateLimitedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
    WrongKeyTypeError,
)


__all__ = [
    "PROBLEMS",
    "PROBLEM_TYPE",
    "GatewayError",
    "Problem",
    "problem_of",
    "unexpected",
]

PROBLEM_TYPE: Final = "application/problem+json"
_PREFIX: Final = "urn:lodestar:problem:"
_RETRY_SECONDS: Final = 1.0
_DETAIL_LENGTH_MAX: Final = 2_000

PROBLEMS: Final[Mapping[str, tuple[int, str]]] = {
    "bad-request": (400, "The request cannot be understood"),
    "wrong-key": (400, "No row can have this key"),
    "wrong-question": (400, "This state cannot be asked this"),
    "not-authenticated": (401, "The proxy does not know this caller"),
    "not-allowed": (403, "This caller may not do this"),
    "unknown-path": (404, "There is nothing at this path"),
    "unknown-job": (404, "There is no state of this job"),
    "unknown-state": (404, "The job has no such state"),
    "unknown-key": (404, "The state holds nothing under this key"),
    "no-leader": (404, "This component has no leader"),
    "wrong-method": (405, "This path takes another method"),
    "not-acceptable": (406, "The answer cannot be had in this form"),
    "too-slow": (408, "The request did not come in time"),
    "too-large": (413, "The request is too large"),
    "wrong-content": (415, "The body has another form than it says"),
    "wrong-host": (421, "The gateway is not reached by this name"),
    "large-head": (431, "Path or headers are too large"),
    "rate-limited": (429, "This is asked too often"),
    "too-many-watches": (429, "This caller watches or reads too much at once"),
    "failed": (500, "The gateway failed"),
    "not-understood": (502, "The answer of the cluster made no sense"),
    "unavailable": (503, "No node can answer for some key groups now"),
    "no-proxy": (503, "No proxy serves queryable state now"),
    "unreachable": (503, "The name service does not answer"),
    "busy": (503, "The gateway has too much to do"),
    "ending": (503, "The gateway is about to end"),
    "late": (504, "There was no answer in time"),
}
"""Every problem by name: its status and its title."""


@final
@frozen(kw_only=True)
class Problem:
    """
    What went wrong with a request.

    Attributes:
        name: One of `PROBLEMS`.
        detail: What it is about, and what to do, for a person.
        members: More of it, for programs.
        retry_after_seconds: When asking again is worth it, or None.
        headers: Further headers of the answer.
    """

    name: str
    detail: str
    members: Mapping[str, Any] = field(factory=dict)
    retry_after_seconds: float | None = None
    headers: Mapping[str, str] = field(factory=dict)

    @property
    def status(self) -> int:
        """Return the status of the answer."""
        return PROBLEMS[self.name][0]

    def document(self) -> dict[str, Any]:
        """Return it as a problem document."""
        status, title = PROBLEMS[self.name]
        found: dict[str, Any] = {
            "type": f"{_PREFIX}{self.name}",
            "title": title,
            "status": status,
            "detail": self.detail[:_DETAIL_LENGTH_MAX],
        }
        if self.retry_after_seconds is not None:
            found["retry_after_seconds"] = round(self.retry_after_seconds, 3)
        return found | dict(self.members)

    def encoded(self) -> bytes:
        """Return that document as JSON."""
        text = json.dumps(self.document(), ensure_ascii=False)
        return text.encode(errors="replace")

    def all_headers(self) -> dict[str, str]:
        """Return the headers that the answer has because of it."""
        found = {"content-type": PROBLEM_TYPE, "cache-control": "no-store"}
        if self.retry_after_seconds is not None:
            # Whole seconds alone are allowed there (RFC 9110, 10.2.3).
            seconds = max(1, math.ceil(self.retry_after_seconds))
            found["retry-after"] = str(seconds)
        if self.status == 401:
            found["www-authenticate"] = 'Bearer realm="lodestar"'
        return found | dict(self.headers)


@final
class GatewayError(Exception):
    """
    A request that the gateway itself refuses.

    Attributes:
        problem: Why.
    """

    def __init__(self, name: str, detail: str, **attributes: Any) -> None:
        super().__init__(name, detail)
        self.problem = Problem(name=name, detail=detail, **attributes)


def problem_of(error: Exception) -> Problem | None:
    """Return what *error* is as an answer, or None if it is a mistake of ours."""
    detail = str(error)
    match error:
        case GatewayError(problem=problem):
            return problem
        case WrongKeyTypeError() | KeyTooLargeError():
            return Problem(name="wrong-key", detail=detail)
        case UnknownJobError():
            return Problem(name="unknown-job", detail=detail)
        case UnknownStateError():
            return Problem(name="unknown-state", detail=detail)
        case UnknownKeyError():
            return Problem(name="unknown-key", detail=detail)
        case AccessDeniedError():
            return Problem(name="not-allowed", detail=detail)
        case RateLimitedError():
            return Problem(
                name="rate-limited",
                detail=detail,
                members={"limit": error.limit},
                retry_after_seconds=error.retry_after_seconds,
            )
        case StateUnavailableError():
            return Problem(
                name="unavailable",
                detail=detail,
                members={"key_groups": list(error.key_groups)},
                retry_after_seconds=error.retry_after_seconds,
            )
        case DeadlineExceededError():
            return Problem(name="late", detail=detail)
        case AuthenticationError():
            # A proxy's address says that it is about the caller; else it is about us.
            if error.target.startswith("tcp://"):
                return Problem(
                    name="not-authenticated",
                    detail="the proxy does not take these credentials: send "
                    "'Authorization: Bearer TOKEN' with a token of its access list",
                )
            return _unreachable("the name service does not let the gateway in")
        case NoLeaderError():
            return Problem(
                name="no-proxy",
                detail="the name service answers, but no proxy serves queryable state",
                retry_after_seconds=_RETRY_SECONDS,
            )
        case UnreachableError():
            return _unreachable(detail)
        case LocalProtocolError():
            return Problem(name="wrong-question", detail=detail)
        case ConfigurationError():
            return Problem(name="bad-request", detail=detail)
        case RemoteProtocolError(reason="no-python-value"):
            return Problem(name="not-acceptable", detail=error.detail)
        case NameServiceError():
            return Problem(name="not-understood", detail=detail)
        case TimeoutError():
            return Problem(name="late", detail="there was no answer in time")
        case _:
            return None


def unexpected() -> Problem:
    """Return the answer where we have failed: the log says how."""
    return Problem(name="failed", detail="this is a defect; the gateway's log has more")


def _unreachable(detail: str) -> Problem:
    return Problem(
        name="unreachable", detail=detail, retry_after_seconds=_RETRY_SECONDS
    )
