"""
How much a control plane takes on: jobs, states, nodes, copies; pure.

What it knows is kept in the leader store, and read by every new leader: without a limit
one caller that may write could fill it with names.
"""

from __future__ import annotations

from typing import Final, final

from attrs import field, frozen, validators


__all__ = ["CONTROL_LIMITS", "ControlLimits"]

_WAVE_COUNT: Final = 64


@final
@frozen(kw_only=True)
class ControlLimits:
    """
    The limits of a control plane.

    Attributes:
        job_count_max: Jobs that are known; one that has no state is one for an hour,
            and makes room for another (`queryablestate.control.unused_jobs`).
        state_count_max: States of all jobs together.
        node_count_max: Nodes that are known; one that is away is one, and makes room
            for another if it has nothing.
        replica_count: How many copies the key groups of a new job have, as far as there
            are nodes (rule S4).
        schema_size_bytes_max: The schemas of one job, as text: its nodes are told all
            of them in one message.
        joining_key_groups_max: Key groups of one job that a node copies at once; see
            `joining_count_max`.
        key_group_count_max: Key groups of all jobs together, as `told_count` counts
            them: a node that registers is told all of them in one message, of 64 MiB at
            most.
    """

    job_count_max: int = field(default=1_000, validator=validators.ge(1))
    state_count_max: int = field(default=1_000, validator=validators.ge(1))
    node_count_max: int = field(default=1_000, validator=validators.ge(1))
    replica_count: int = field(default=1, validator=validators.ge(1))
    schema_size_bytes_max: int = field(default=8 << 20, validator=validators.ge(1))
    joining_key_groups_max: int = field(default=64, validator=validators.ge(1))
    key_group_count_max: int = field(default=16 << 20, validator=validators.ge(1))

    def joining_count_max(self, max_parallelism: int) -> int:
        """
        Return how many of that many key groups a node copies at once.

        A 64th of them at least: every wave is a version of the assignment, and only a
        limited number of versions is kept for the batches that were begun under them.
        """
        return max(self.joining_key_groups_max, -(-max_parallelism // _WAVE_COUNT))

    def told_count(self, max_parallelism: int) -> int:
        """
        Return as how many key groups those of a job count in what a node is told.

        One that is being copied takes as much room as four that are there.
        """
        joining_count = min(max_parallelism, self.joining_count_max(max_parallelism))
        return max_parallelism + 3 * joining_count


CONTROL_LIMITS: Final = ControlLimits()
"""The limits of a control plane that is told of no others."""
