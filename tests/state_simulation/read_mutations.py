"""Faults, on purpose, in what readers ask by: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["READ_MUTATIONS"]

READ_MUTATIONS: Final = (
    Mutation(
        name="client-goes-back",
        rule="Q1: one client never goes back in time within a key group",
        module="queryablestate.client.floors",
        before="        if seen < floor:\n",
        after="        if seen[0] < floor[0]:\n",
        seed=31,
    ),
    Mutation(
        name="client-goes-back-by-a-generation",
        rule="Q1: an earlier generation is older, whatever its batch",
        module="queryablestate.client.floors",
        before="        if seen < floor:\n",
        after="        if seen[0] == floor[0] and seen < floor:\n",
        seed=8,
    ),
    Mutation(
        name="pages-may-go-back",
        rule="Q1: a count is held against what was seen before, too",
        module="queryablestate.client.core",
        before="        if floor is not None:\n            if told",
        after="        if floor is not None and read is None:\n            if told",
        seed=8,
    ),
    Mutation(
        name="batch-of-any-generation",
        rule="Q2: the batch that is waited for is of one generation",
        module="queryablestate.client.floors",
        before="return None if generation == PRESENT else generation, batch_id",
        after="return None, batch_id",
        seed=63,
    ),
)
