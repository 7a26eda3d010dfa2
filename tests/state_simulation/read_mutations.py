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
        seed=68,
    ),
    Mutation(
        name="client-goes-back-by-a-generation",
        rule="Q1: an earlier generation is older, whatever its batch",
        module="queryablestate.client.floors",
        before="        if seen < floor:\n",
        after="        if seen[0] == floor[0] and seen < floor:\n",
        seed=30_013,
    ),
    Mutation(
        name="refusals-of-before",
        rule="Q3: a refusal is only for what was asked before its question",
        module="queryablestate.client.state_routes",
        before="[one for one in requests if one.asked_ns <= asked_ns]",
        after="requests",
        is_rare=True,
        seed=20_340,
    ),
    Mutation(
        name="pages-may-go-back",
        rule="Q1: a count is held against what was seen before, too",
        module="queryablestate.client.page_reads",
        before="        if floor is not None:\n            if told",
        after="        if floor is not None and read is None:\n            if told",
        seed=103,
    ),
    Mutation(
        name="copies-not-awaited",
        rule="D5: a batch is acknowledged when every in-sync copy has applied it",
        module="queryablestate.control.chains",
        before="        for node_id in job.holder_ids()\n        if nodes.applied",
        after="        for node_id in {\n"
        "            job.assignment.node_ids[owners[0]]\n"
        "            for owners in job.assignment.owners\n"
        "        }\n"
        "        if nodes.applied",
        seed=101,
    ),
    Mutation(
        name="batch-of-any-generation",
        rule="Q2: the batch that is waited for is of one generation",
        module="queryablestate.client.floors",
        before="return None if generation == PRESENT else generation, batch_id",
        after="return None, batch_id",
        seed=308,
    ),
    Mutation(
        name="decided-when-asked",
        rule="Q2: a batch is as old as its decision, not as its question",
        module="queryablestate.control.commits",
        before="decided_at_us=commit.wall_clock_us + waited_us,",
        after="decided_at_us=commit.wall_clock_us,",
    ),
    Mutation(
        name="described-in-seconds",
        rule="Q2: the control plane tells the age in milliseconds",
        module="queryablestate.control.view",
        before="age_ms = max(0, wall_clock_us - progress.decided_at_us) // 1_000",
        after="age_ms = max(0, wall_clock_us - progress.decided_at_us) // 1_000_000",
    ),
    Mutation(
        name="as-old-as-the-batch-before",
        rule="Q2: a store keeps when its last batch was decided",
        module="queryablestate.store.apply",
        before="decided_at_us=entry.decided_at_us,",
        after="decided_at_us=mark.decided_at_us or entry.decided_at_us,",
    ),
    Mutation(
        name="copied-without-age",
        rule="Q2: a copy is as old as its source",
        module="queryablestate.store.copies",
        before="decided_at_us=copied.decided_at_us,",
        after="decided_at_us=mark.decided_at_us,",
        seed=11,
    ),
    Mutation(
        name="node-rounds-age",
        rule="Q2: a node tells the age in milliseconds",
        module="queryablestate.node.reads",
        before="age_ms=max(0, now_us - view.decided_at_us) // US_PER_MS,",
        after="age_ms=max(0, now_us - view.decided_at_us) // 100_000 * 100,",
    ),
    Mutation(
        name="kept-answers-stay-young",
        rule="Q2: an answer that is kept grows older",
        module="queryablestate.proxy.cache",
        before="        return now_ns - self.decided_ns\n",
        after="        return 0\n",
    ),
    Mutation(
        name="entry-without-age",
        rule="Q2: an entry carries its age",
        module="queryablestate.client.builder",
        before="age_seconds=reading.age_ms / MS_PER_SECOND,",
        after="age_seconds=0.0,",
    ),
    Mutation(
        name="late-answers-may-go-back",
        rule="Q1: an answer by an older route is held against the present nodes",
        module="queryablestate.client.floors",
        before="        if seen < max(floors):\n",
        after="        if seen < floors[0]:\n",
        is_rare=True,
        seed=4664,
    ),
    Mutation(
        name="former-owners-not-awaited",
        rule="D5: a batch waits for nodes that may answer clients without it",
        module="queryablestate.control.direct_readers",
        before="            if now_ns < one.until_ns\n",
        after="            if now_ns < one.until_ns < 0\n",
        seed=20_073,
    ),
    Mutation(
        name="drop-not-awaited",
        rule="D5: a drop waits for nodes that may answer clients by what was",
        module="queryablestate.control.direct_readers",
        before="        if self._is_ready(held, now_ns):\n",
        after="        if held is not None:\n",
        seed=10_184,
    ),
    Mutation(
        name="earlier-tickets-forgotten",
        rule="D5: a drop waits for nodes that have tickets of an earlier leader",
        module="queryablestate.control.direct_readers",
        before="        return max([held.until_ns, *earlier])\n",
        after="        return held.until_ns\n",
        is_rare=True,
    ),
    Mutation(
        name="waiting-questions-overlooked",
        rule="S4: a question that waits goes on when its route is another",
        module="queryablestate.control.core",
        before="            self._control.routes.version,\n",
        after="            0,\n",
        seed=46,
    ),
    Mutation(
        name="direct-lease-forgotten",
        rule="D2: a node answers clients within its direct lease only",
        module="queryablestate.node.core.core",
        before="        if now_ns >= registration.direct_until_ns:\n",
        after="        if now_ns >= registration.lease_until_ns:\n",
        seed=30_013,
    ),
    Mutation(
        name="last-greeting-alone-counts",
        rule="S3: every key group is answered for again, also for clients far away",
        module="queryablestate.client.session",
        before="        if self._hello_id is None:  # a late answer counts, too\n",
        after="        if self._outbox is not None:\n",
        seed=10_009,
    ),
)
