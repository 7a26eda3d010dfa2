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
        seed=16,
    ),
    Mutation(
        name="late-abort-kept",
        rule="W2: of what fails in the middle nothing is kept",
        module="queryablestate.store.environment",
        before="            self.environment.begin(write=True) as transaction,\n"
        "        ):\n"
        "            yield transaction\n",
        after="            self.environment.begin(write=True) as transaction,\n"
        "        ):\n"
        "            late = None\n"
        "            try:\n"
        "                yield transaction\n"
        "            except lmdb.Error as error:\n"
        "                late = error\n"
        "        if late is not None:\n"
        "            raise self.storage_error('write to', late)\n",
        seed=1,
    ),
    Mutation(
        name="failed-stage-acknowledged",
        rule="W2: rows are on disk before they are acknowledged",
        module="queryablestate.store.staging",
        before="        cursor.putmulti(\n",
        after="        import contextlib\n"
        "        with contextlib.suppress(Exception): cursor.putmulti(\n",
        seed=9,
    ),
    Mutation(
        name="slots-known-before-they-are-there",
        rule="W3: a write that fails leaves everything as it was",
        module="queryablestate.store.environment",
        before="            self.slots += opened\n",
        after="                self.slots += opened\n",
        seed=50,
    ),
    Mutation(
        name="expired-rows-answered",
        rule="W6: rows that are expired are absent for every reader",
        module="queryablestate.store.rows",
        before="            if expiry <= self._now:\n",
        after="            if expiry <= self._now[:-3]:\n",
        seed=2,
    ),
    Mutation(
        name="rows-removed-too-early",
        rule="W6: a row is there until it expires",
        module="queryablestate.store.expiry",
        before="live = LiveValues(has_ttl=True, now_us=now_us)",
        after="live = LiveValues(has_ttl=True, now_us=now_us + 1_000_000)",
        seed=2,
    ),
    Mutation(
        name="kept-beyond-expiry",
        rule="C3: an answer is not kept longer than a row in it is there",
        module="queryablestate.proxy.cache",
        before="lifetime_ns = ttl_ns if valid_ns is None else min(ttl_ns, valid_ns)",
        after="lifetime_ns = ttl_ns",
        seed=11,
    ),
)
