"""
How much a control plane takes on: jobs, states, nodes; pure.

All of it is kept in the leader store, read by every new leader, and never forgotten by
itself: without a limit one caller that may write could fill it with names.
"""

from __future__ import annotations

from typing import Final, final

from attrs import field, frozen, validators


__all__ = ["CONTROL_LIMITS", "ControlLimits"]


@final
@frozen(kw_only=True)
class ControlLimits:
    """
    The limits of a control plane.

    Attributes:
        job_count_max: Jobs that are known; one whose states were dropped is one.
        state_count_max: States of all jobs together.
        node_count_max: Nodes that are known; one that is away is one.
    """

    job_count_max: int = field(default=1_000, validator=validators.ge(1))
    state_count_max: int = field(default=1_000, validator=validators.ge(1))
    node_count_max: int = field(default=1_000, validator=validators.ge(1))


CONTROL_LIMITS: Final = ControlLimits()
"""The limits of a control plane that is told of no others."""
