"""
The published form of operator state: its name among states, and its rows (rule O5).

Each name of operator state is a value state of its job, called `published_name`, that
every batch replaces as a whole.  The items of all subtasks, as the snapshots have them,
make one text of bytes, which is cut into parts; a part is a row.  Part 0 says how many
there are.
"""

from __future__ import annotations

from typing import Final

from nameservice import ConfigurationError, check_component_id
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema


__all__ = [
    "OPERATOR_STATE_SCHEMA",
    "PART_SIZE_BYTES_MAX",
    "RESERVED_STATE_PREFIX",
    "published_name",
]

RESERVED_STATE_PREFIX: Final = "operator-state:"
"""What the names of published operator state begin with, and no other state's."""

OPERATOR_STATE_SCHEMA: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("part", AtomicType.BIGINT),),
    value=(
        Field("writer_epoch", AtomicType.BIGINT),
        Field("batch_id", AtomicType.BIGINT),
        Field("mode", AtomicType.STRING),
        Field("parallelism", AtomicType.INT),
        Field("part_count", AtomicType.INT),
        Field("content", AtomicType.BINARY),
    ),
)

PART_SIZE_BYTES_MAX: Final = 512 * 1024
"""Of what a row holds: far below what a row may have, and what an answer may."""


def published_name(name: str) -> str:
    """
    Return what the published copy of an operator state is called among states.

    Characters that no state may have in its name, and ``%``, stand as ``%`` and the
    two digits of each byte.

    Raises:
        ConfigurationError: If *name* is empty, or too long for that.
    """
    given: object = name
    if not isinstance(given, str) or not given:
        raise ConfigurationError(
            f"an operator state is called by 1 or more characters, not {name!r}"
        )
    encoded = "".join(
        one
        if one.isprintable() and one not in "/%"
        else "".join(f"%{byte:02x}" for byte in one.encode("utf-8", "surrogatepass"))
        for one in name
    )
    return check_component_id(
        RESERVED_STATE_PREFIX + encoded, what="the name of a published operator state"
    )
