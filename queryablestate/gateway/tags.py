"""
What tells answers apart: entity tags, page tokens, ids of events; pure.

None of them is a secret, and none belongs to one gateway: what one has given, another
one understands.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, final

from attrs import frozen

from queryablestate.client.floors import Floor
from queryablestate.gateway.problems import GatewayError


__all__ = [
    "EventId",
    "LeaderEventId",
    "digest",
    "entity_tag",
    "matches",
    "page_token",
    "parse_event_id",
    "parse_leader_event_id",
    "parse_page_token",
]

_BINDING_SIZE_BYTES: Final = 8
_DIGEST_LENGTH: Final = 16
_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e]*")')
_EVENT_ID: Final = re.compile(r"(\d{1,19})\.(-|\d{1,19})\.([0-9a-f]{16}|-)")
_LEADER_EVENT_ID: Final = re.compile(r"(\d{1,19})\.([0-9a-f]{16}|-)")
_HEADER_LENGTH_MAX: Final = 4_000


def digest(*parts: bytes) -> str:
    """Return what stands for *parts*: 16 hexadecimal digits."""
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.hexdigest()[:_DIGEST_LENGTH]


# -- entity tags -----------------------------------------------------------------------


def entity_tag(generation: int | None, *parts: bytes) -> str:
    """
    Return the entity tag of an answer.

    It is a weak one: batch and age may differ between two answers with the same values.
    """
    return f'W/"{digest(str(generation).encode(), *parts)}"'


def matches(if_none_match: str | None, tag: str) -> bool:
    """Return whether the header ``If-None-Match`` names *tag* (RFC 9110, 13.1.2)."""
    if if_none_match is None or len(if_none_match) > _HEADER_LENGTH_MAX:
        return False
    if if_none_match.strip() == "*":
        return True
    return tag.removeprefix("W/") in _TAG.findall(if_none_match)


# -- page tokens -----------------------------------------------------------------------


def page_token(after: bytes, asked: Sequence[Any]) -> str:
    """
    Return where the next page begins, as text for a URL.

    Args:
        after: `StatePage.next_after`.
        asked: What was asked for, without the token.
    """
    return base64.urlsafe_b64encode(_binding(asked) + after).decode().rstrip("=")


def parse_page_token(text: str, asked: Sequence[Any]) -> bytes:
    """
    Return where a page begins.

    Raises:
        GatewayError: If *text* is no token, or one of another question.
    """
    try:
        found = base64.b64decode(
            text + "=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        found = b""
    if found[:_BINDING_SIZE_BYTES] != _binding(asked):
        raise GatewayError(
            "bad-request",
            "page_token: it must be that of the page before, and everything else of "
            "the question as it was then",
            members={"parameter": "page_token"},
        )
    return found[_BINDING_SIZE_BYTES:]


def _binding(asked: Sequence[Any]) -> bytes:
    text = json.dumps(asked, separators=(",", ":"))
    return sha256(text.encode()).digest()[:_BINDING_SIZE_BYTES]


# -- ids of events ---------------------------------------------------------------------


@final
@frozen
class EventId:
    """
    What a watcher of a key has seen last; ``str()`` gives the text.

    Attributes:
        floor: As of which batch.
        value: The `digest` of the value, or ``-`` if nothing was there.
    """

    floor: Floor
    value: str

    def __str__(self) -> str:
        generation, batch_id = self.floor
        batch = "-" if batch_id < 0 else str(batch_id)
        return f"{generation}.{batch}.{self.value}"


@final
@frozen
class LeaderEventId:
    """
    What a watcher of a leader has seen last; ``str()`` gives the text.

    Attributes:
        epoch: The highest epoch it was told, or 0.
        leader: The `digest` of the leader, or ``-`` if there was none.
    """

    epoch: int
    leader: str

    def __str__(self) -> str:
        return f"{self.epoch}.{self.leader}"


def parse_event_id(text: str | None) -> EventId | None:
    """Return what ``Last-Event-ID`` says; None for what none of us has given."""
    found = _EVENT_ID.fullmatch(text or "")
    if found is None:
        return None
    batch_id = -1 if found[2] == "-" else int(found[2])
    return EventId((int(found[1]), batch_id), found[3])


def parse_leader_event_id(text: str | None) -> LeaderEventId | None:
    """Return what ``Last-Event-ID`` says; None for what none of us has given."""
    found = _LEADER_EVENT_ID.fullmatch(text or "")
    return None if found is None else LeaderEventId(int(found[1]), found[2])
