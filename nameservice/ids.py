"""The identifiers that every package shares, and the rules for their text."""

from __future__ import annotations

from typing import Final, NewType
from uuid import UUID

from nameservice.errors import ConfigurationError, UnknownContenderError
from nameservice.fields import (
    COMPONENT_ID_LENGTH_MAX,
    check_identifier,
    check_name,
    check_text,
)


__all__ = [
    "COMPONENT_ID_LENGTH_MAX",
    "DISPATCHER",
    "QUERY_PROXY",
    "RESOURCE_MANAGER",
    "REST_ENDPOINT",
    "ComponentId",
    "ContenderId",
    "Epoch",
    "LeaderSessionId",
    "SessionId",
    "check_component_id",
    "check_contender_id",
]

ComponentId = NewType("ComponentId", str)
"""What is being led, e.g. a job id; see `check_component_id`."""

ContenderId = NewType("ContenderId", str)
"""One contender, from its registration to its withdrawal; never used twice."""

Epoch = NewType("Epoch", int)
"""Order of leaderships: at least 1, rises with every grant of a component."""

LeaderSessionId = NewType("LeaderSessionId", UUID)
"""Identity of one leadership; says "same or not", carries no order."""

SessionId = NewType("SessionId", str)
"""A client's session with the name service; shown to operators, no secret."""

RESOURCE_MANAGER: Final = ComponentId("RESOURCE_MANAGER")
DISPATCHER: Final = ComponentId("DISPATCHER")
REST_ENDPOINT: Final = ComponentId("REST_ENDPOINT")
QUERY_PROXY: Final = ComponentId("QUERY_PROXY")


def check_component_id(text: str, *, what: str = "a component id") -> ComponentId:
    """
    Return *text* as a component id, an exact `str`.

    Args:
        text: 1 to 255 printable characters, without ``/``; of a subclass of `str`,
            too (``numpy.str_``).
        what: How the error names it, e.g. ``"cluster_id"``.

    Raises:
        ConfigurationError: If *text* breaks that rule.
    """
    return ComponentId(check_name(text, what=what))


def check_contender_id(text: str, *, component_id: str) -> ContenderId:
    """
    Return *text* as the id of a contender for *component_id*.

    Args:
        text: What an operator wrote.
        component_id: What it is to lead.

    Raises:
        ConfigurationError: If *text* is no text.
        UnknownContenderError: If no contender is ever called that: an id has 1 to 64
            printable characters.
    """
    checked = check_text(text, what="a contender id")
    try:
        return ContenderId(check_identifier(checked, what="a contender id"))
    except ConfigurationError:
        raise UnknownContenderError(component_id, checked) from None
