"""Faults, on purpose, in what stores write at once: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["STORE_MUTATIONS"]

STORE_MUTATIONS: Final = (
    Mutation(
        name="position-written-by-itself",
        rule="W3: a node applies an entry in one transaction",
        module="queryablestate.store.apply",
        before="        self._environment.write(write)\n",
        after="        with self._environment.writing() as transaction:\n"
        "            move_position(transaction, self._meta, job_id, entry.sequence)\n"
        "        self._environment.write(write)\n",
        seed=9,
    ),
    Mutation(
        name="slots-known-before-they-are-there",
        rule="W3: a write that fails leaves everything as it was",
        module="queryablestate.store.environment",
        before="            self.slots += opened\n",
        after="                self.slots += opened\n",
        seed=64,
    ),
)
