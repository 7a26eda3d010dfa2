"""Schemas of states that tests of several folders publish."""

from __future__ import annotations

from typing import Final

from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema


__all__ = ["AIRCRAFT", "NUMBERS", "TEXTS"]

AIRCRAFT: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("delay", AtomicType.INT),),
)
NUMBERS: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("k", AtomicType.INT),),
    value=(Field("v", AtomicType.INT),),
)
TEXTS: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("k", AtomicType.INT),),
    value=(Field("v", AtomicType.STRING),),
)
