"""Schemas of states that tests of several folders publish."""

from __future__ import annotations

from typing import Final

from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema


__all__ = ["AIRCRAFT", "DAY", "DELAY", "DELAYS_BY_DAY", "NUMBERS", "TAILNUM", "TEXTS"]

TAILNUM: Final = Field("tailnum", AtomicType.STRING)
DAY: Final = Field("day", AtomicType.DATE)
DELAY: Final = Field("delay", AtomicType.DOUBLE)

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
DELAYS_BY_DAY: Final = StateSchema(
    kind=StateKind.MAP,
    key=(TAILNUM,),
    map_key=(DAY,),
    value=(DELAY,),
    has_ttl=True,
)
