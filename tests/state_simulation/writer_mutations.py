"""Faults, on purpose, in what writers are made of: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["WRITER_MUTATIONS"]

WRITER_MUTATIONS: Final = (
    Mutation(
        name="epoch-drawn-for-each-batch",
        rule="W1: a run shows the epoch that it was born with, for life",
        module="queryablestate.writer.core",
        before="        if born_epoch is None:\n            heard",
        after="        if not self._own_runs._runs.clear():\n            heard",
        seed=5,
    ),
    Mutation(
        name="born-with-the-batch",
        rule="W1: the commit of tasks that bind says when their run was born",
        module="queryablestate.writer.core",
        before="None if born_epoch is None else min(born_epoch, origin.writer_epoch)",
        after="None if born_epoch is None else origin.writer_epoch",
        seed=72,
    ),
    Mutation(
        name="staged-when-sent",
        rule="W2: a chunk counts when its node has said that it is on disk",
        module="queryablestate.writer.sending",
        before="return not self.waiting and not self.unanswered",
        after="return not self.waiting",
    ),
    Mutation(
        name="unanswered-chunks-forgotten",
        rule="W2: what was not answered goes again over the next connection",
        module="queryablestate.writer.stage_core",
        before="        node.waiting.extendleft(reversed(node.unanswered.values()))\n",
        after="",
        seed=13,
    ),
    Mutation(
        name="chunk-turned-away-forgotten",
        rule="W2: what did not fit into a queue goes again",
        module="queryablestate.writer.stage_core",
        before="node.waiting.appendleft(node.unanswered.pop(request_id))",
        after="node.unanswered.pop(request_id)",
        seed=3,
    ),
    Mutation(
        name="given-up-with-nobody-else",
        rule="W2: of each key group one node gets all rows",
        module="queryablestate.writer.stage_core",
        before="node.index in holders and lacking.issuperset(holders)",
        after="node.index in holders and not holders",
        seed=10,
    ),
    Mutation(
        name="digest-not-shown",
        rule="W4: a repetition shows the digest of its rows",
        module="queryablestate.writer.core",
        before="digests=_digests(messages) if is_digested else (),",
        after="digests=(),",
        seed=4,
    ),
    Mutation(
        name="repetition-not-digested",
        rule="W4: a batch that comes again is read for its digest",
        module="queryablestate.writer.stage_core",
        before="self._sums.get(state_number, 0) + total\n",
        after="self._sums.get(state_number, 0)"
        " + (0 if self._is_repetition else total)\n",
        seed=3,
    ),
    Mutation(
        name="first-task-alone-digested",
        rule="W4: the digest of a batch is that of all of its tasks",
        module="queryablestate.wire.batch_digest",
        before='        total += int.from_bytes(digest[_SHAPE_SIZE_BYTES:], "big")',
        after='        total = int.from_bytes(digest[_SHAPE_SIZE_BYTES:], "big")',
        seed=3,
    ),
    Mutation(
        name="batch-job-writes-again-under-its-number",
        rule="W4: a batch job writes the batch after the last one",
        module="queryablestate.writer.batches",
        before="return 0 if self.batch_id_last is None else self.batch_id_last + 1",
        after="return self.batch_id_last or 0",
        seed=3,
    ),
)
