"""What a `ReadRouter` sends, and how it says that there is no answer; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from nameservice import DidNotHappenError, RemoteProtocolError
from queryablestate.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    RateLimitedError,
    StateUnavailableError,
)
from queryablestate.wire.questions import CancelQuestions, Question, Refusal, Told
from queryablestate.wire.refusals import refusal_of


if TYPE_CHECKING:
    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.read_parking import ParkedQuestion


__all__ = [
    "Outgoing",
    "element_count",
    "failed",
    "no_room_error",
    "nothing_committed",
    "passed_on",
    "refused",
    "unavailable",
]

_RETRY_SECONDS: Final = 0.5


@final
@frozen
class Outgoing:
    """
    A message that is to be sent.

    Attributes:
        link: To whom.
        message: What.
        payload: The second frame, or None.
    """

    link: LinkId
    message: Question | CancelQuestions | Told | Refusal
    payload: bytes | memoryview | None = None


def element_count(keys: bytes) -> int:
    """Return how many elements the MessagePack array *keys* says it has, or -1."""
    first = keys[0] if keys else 0
    if 0x90 <= first <= 0x9F:
        return first - 0x90
    if first == 0xDC and len(keys) >= 3:
        return int.from_bytes(keys[1:3], "big")
    if first == 0xDD and len(keys) >= 5:
        return int.from_bytes(keys[1:5], "big")
    return -1


def refused(client: LinkId, request_id: int, code: str) -> Outgoing:
    """Return that a question is refused with a code that clients act on."""
    return Outgoing(client, Refusal(request_id=request_id, code=code))


def failed(
    client: LinkId,
    request_id: int,
    error: (
        AccessDeniedError
        | RemoteProtocolError
        | DidNotHappenError
        | RateLimitedError
        | DeadlineExceededError
        | StateUnavailableError
    ),
) -> Outgoing:
    """Return that a question has failed."""
    return Outgoing(client, refusal_of(error, request_id))


def no_room_error(pending_count: int) -> DidNotHappenError:
    """Return why a question is not passed on: *pending_count* of them wait."""
    return DidNotHappenError(
        f"{pending_count} questions wait for answers already: ask again in a moment"
    )


def nothing_committed(
    client: LinkId, request_id: int, location: KvStateLocation, node_index: int
) -> Outgoing:
    """Refuse a question about a state that a query has bound, and not written yet."""
    error = StateUnavailableError(
        location.job_id,
        location.state_name,
        location.key_groups[node_index],
        _RETRY_SECONDS,
        "no batch has been committed to it yet",
    )
    return failed(client, request_id, error)


def unavailable(
    client: LinkId, request_id: int, location: KvStateLocation, node_index: int
) -> Outgoing:
    """Refuse a question to a node that is away, or that must not be asked."""
    node_id = location.node_ids[node_index]
    error = StateUnavailableError(
        location.job_id,
        location.state_name,
        location.sole_key_groups[node_index] or location.key_groups[node_index],
        _RETRY_SECONDS,
        location.problem or f"node {node_id} is away",
    )
    return failed(client, request_id, error)


def passed_on(asked: ParkedQuestion, refusal: Refusal) -> Outgoing:
    """Return what a node has refused with, as the asker is told it."""
    passed = Refusal(
        request_id=asked.ask.request_id, code=refusal.code, data=refusal.data
    )
    return Outgoing(asked.client, passed)
