"""The limits of an `ElectionCore`."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from attrs import field, frozen, validators


__all__ = ["ElectionConfig"]

_TICK_NS: Final = 10_000_000


@frozen(kw_only=True)
class ElectionConfig:
    """
    The limits of an `ElectionCore`.

    Attributes:
        namespace: Random; what the core's leader session ids are derived from.
        undecided_ns: How long after its start the core neither grants nor affirms:
            the longest lease that it or its predecessor admits.
        session_count_max: How many sessions there may be.
        contender_count_max: How many contenders one component may have.
        contender_count_per_session_max: How many contenders one session may have: the
            answer to its heartbeats names every leadership.
        component_count_max: How many components may have contenders.
        is_durable: Whether all epochs that were granted are on record: then no report
            of a higher one ends a leadership, it only raises the next epoch (E9).
        tick_ns: How often the core asks to be stepped while anybody could suffer from
            a stall, and what is later by more than that is one: a fifth of the
            shortest lease that the server admits, whichever leases its clients have.
    """

    namespace: UUID
    undecided_ns: int = field(validator=validators.ge(0))
    session_count_max: int = field(default=10_000, validator=validators.ge(1))
    contender_count_max: int = field(default=1_000, validator=validators.ge(1))
    contender_count_per_session_max: int = field(
        default=1_000, validator=validators.ge(1)
    )
    component_count_max: int = field(default=100_000, validator=validators.ge(1))
    is_durable: bool = False
    tick_ns: int = field(default=_TICK_NS, validator=validators.ge(1))
