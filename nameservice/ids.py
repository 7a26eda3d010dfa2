"""The identifiers that every package shares, and the rules for their text."""

from __future__ import annotations

from typing import Final, NewType
from uuid import UUID

from nameservice.errors import ConfigurationError


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

COMPONENT_ID_LENGTH_MAX: Final = 255


def check_component_id(text: str, *, what: str = "a component id") -> ComponentId:
    """
    Return *text* as a component id.

    Args:
        text: 1 to 255 printable characters, without ``/``.
        what: How the error names it, e.g. ``"cluster_id"``.

    Raises:
        ConfigurationError: If *text* breaks that rule.
    """
    if not isinstance(text, str):
        message = f"{what} must be text, not {type(text).__name__}"
        raise ConfigurationError(message)
    if not 1 <= len(text) <= COMPONENT_ID_LENGTH_MAX:
        message = (
            f"{what} must have 1 to {COMPONENT_ID_LENGTH_MAX} characters, "
            f"not {len(text)}"
        )
        raise ConfigurationError(message)
    if "/" in text or not text.isprintable():
        message = f"{what} must be printable and without '/', not {text!r}"
        raise ConfigurationError(message)
    return ComponentId(text)
