"""
What the messages of a LeaderServer are made of: kinds of fields, and shared records.

What a field may hold is said in `nameservice.fields`, which every public call checks.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias
from uuid import UUID

from msgspec import Meta, Struct

from nameservice.fields import (
    ADDRESS_LENGTH_MAX,
    COMPONENT_ID_LENGTH_MAX,
    IDENTIFIER_LENGTH_MAX,
    INTEGER_MAX,
    STORE_PATH_LENGTH_MAX,
)


__all__ = [
    "NAME_LENGTH_MAX",
    "NONCE_SIZE_BYTES",
    "SECRET_SIZE_BYTES",
    "Address",
    "AffirmationRecord",
    "ClaimRecord",
    "Count",
    "Duration",
    "Identifier",
    "Name",
    "Nonce",
    "Number",
    "Path",
    "Prefix",
    "PublicationRecord",
    "Secret",
    "WireStruct",
]

NONCE_SIZE_BYTES: Final = 16
SECRET_SIZE_BYTES: Final = 32
# A component id on the wire is "cluster/component".
NAME_LENGTH_MAX: Final = 2 * COMPONENT_ID_LENGTH_MAX + 1

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Identifier: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=IDENTIFIER_LENGTH_MAX)
]
Address: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ADDRESS_LENGTH_MAX)]
Path: TypeAlias = Annotated[str, Meta(min_length=1, max_length=STORE_PATH_LENGTH_MAX)]
Prefix: TypeAlias = Annotated[str, Meta(max_length=STORE_PATH_LENGTH_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Duration: TypeAlias = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Nonce: TypeAlias = Annotated[
    bytes, Meta(min_length=NONCE_SIZE_BYTES, max_length=NONCE_SIZE_BYTES)
]
Secret: TypeAlias = Annotated[
    bytes, Meta(min_length=SECRET_SIZE_BYTES, max_length=SECRET_SIZE_BYTES)
]


class WireStruct(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all messages share."""


class AffirmationRecord(WireStruct, frozen=True, kw_only=True, tag="affirmation"):
    """One leadership that the session holds."""

    component_id: Name
    contender_id: Identifier
    leader_session_id: UUID
    epoch: Count


class ClaimRecord(WireStruct, frozen=True, kw_only=True, tag="claim"):
    """A leadership that was granted before and not ended since."""

    leader_session_id: UUID
    epoch: Count
    confirm_count: Count
    address: Address | None


class PublicationRecord(WireStruct, frozen=True, kw_only=True, tag="publication"):
    """What is published of a component; without an address there is no leader."""

    epoch: Count
    confirm_count: Count
    address: Address | None
    leader_session_id: UUID | None
