"""
Faults in the shipped code, on purpose: what the simulation must find.

The machinery is that of `tests.simulation.mutations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation import mutations
from tests.simulation.mutations import Mutation
from tests.state_simulation.move_mutations import MOVE_MUTATIONS
from tests.state_simulation.read_mutations import READ_MUTATIONS
from tests.state_simulation.snapshot_mutations import SNAPSHOT_MUTATIONS
from tests.state_simulation.store_mutations import STORE_MUTATIONS
from tests.state_simulation.writer_mutations import WRITER_MUTATIONS


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["MUTATIONS", "install", "install_from_arguments"]

MUTATIONS: Final = (
    Mutation(
        name="verification-skipped",
        rule="W3: no decision names rows that no node has",
        module="queryablestate.control.commit_rows",
        before="            for node_id, count in stage.chunk_counts.items()\n"
        "            if count > 0\n",
        after="            for node_id, count in stage.chunk_counts.items()\n"
        "            if count > 1_000_000\n",
    ),
    Mutation(
        name="another-process-verified",
        rule="W7: what was verified may be gone with its process",
        module="queryablestate.control.commit_verification",
        before="            if self._process_of(node_id) != process\n",
        after="            if process is None\n",
        seed=20185,
    ),
    Mutation(
        name="acknowledged-early",
        rule="W3: a commit returns when the owners have applied",
        module="queryablestate.control.chains",
        before="if nodes.applied(node_id, job_id) < sequence\n",
        after="if nodes.applied(node_id, job_id) < sequence - 1\n",
    ),
    Mutation(
        name="missed-entries-not-sent",
        rule="W3: a node that was away fetches what it missed",
        module="queryablestate.control.membership",
        before="            effects += missed\n"
        "            job_id = job.record.job_id\n",
        after="            job_id = job.record.job_id\n",
        seed=4,
    ),
    Mutation(
        name="served-behind",
        rule="W3: a node serves when it has caught up",
        module="queryablestate.node.core.core",
        before="if not self._jobs.is_caught_up(job_id):",
        after="if now_ns < 0:",
        is_rare=True,
    ),
    Mutation(
        name="lost-rows-answered",
        rule="W7: unavailable, never unknown",
        module="queryablestate.node.reads",
        before="if found.view.lost:",
        after="if found.view is None:",
        seed=127,
    ),
    Mutation(
        name="older-run-bound",
        rule="W1: a run is the newest by the epoch that it was born with",
        module="queryablestate.control.job.writer_runs",
        before="if born_epoch <= born_epoch_max or writer_epoch <= writer_epoch_max:",
        after="if born_epoch < 0:",
        seed=1,
    ),
    Mutation(
        name="fresh-tickets-count",
        rule="W1: a run that is over stays over, whatever ticket it shows",
        module="queryablestate.control.job.writer_runs",
        before="epoch = request.ticket if request.born_epoch is None "
        "else request.born_epoch",
        after="epoch = request.ticket",
        seed=5,
    ),
    Mutation(
        name="superseded-run-commits",
        rule="W1: a zombie driver cannot write",
        module="queryablestate.control.job.writer_runs",
        before="if run is not None and run.run_id == request.run_id:\n"
        "        if run.writer_epoch != request.writer_epoch:",
        after="if run is not None:\n"
        "        if run.writer_epoch < request.writer_epoch:",
        seed=3,
    ),
    Mutation(
        name="repetition-decided",
        rule="W4: a decided batch is not applied again",
        module="queryablestate.control.job.batch_order",
        before="is_repeated = all(last.batch_id == request.batch_id for last in found)",
        after="is_repeated = False",
        seed=1,
    ),
    Mutation(
        name="older-batch-decided",
        rule="W4: a lower batch is refused",
        module="queryablestate.control.job.batch_order",
        before="    if last > batch_id:\n        raise",
        after="    if last < -1:\n        raise",
        seed=12,
    ),
    Mutation(
        name="dropped-state-forgets-others",
        rule="W4: what a query wrote is remembered as long as the state lives",
        module="queryablestate.control.job.job",
        before="queries=remembered_queries((*others, mine), replaced_sequence),",
        after="queries=(mine,),",
        is_rare=True,
    ),
    Mutation(
        name="owner-unchecked",
        rule="W5: another query is refused unless it says otherwise",
        module="queryablestate.control.job.takeover",
        before="if on_new_query == REFUSE or run.writer_epoch <= owned.owner_epoch:",
        after="if run.writer_epoch <= owned.owner_epoch:",
        seed=8,
    ),
    Mutation(
        name="replaced-state-kept",
        rule="W5: cleared atomically by its first commit",
        module="queryablestate.store.apply",
        before="            if state.is_replaced:\n",
        after="            if state.generation < 0:\n",
        seed=3,
    ),
    Mutation(
        name="write-in-doubt-taken-for-failed",
        rule="W3: whoever cannot know starts over from the store",
        module="queryablestate.control.write_queue",
        before="if is_certain and under_way.index <= "
        "under_way.commits.deciding_index:\n",
        after="if is_certain or error is not None:\n",
        seed=19,
    ),
    Mutation(
        name="decision-checked-too-early",
        rule="W3: a decision is checked when it is written",
        module="queryablestate.control.write_queue",
        before="        if self._under_way is not None:\n            return None",
        after="        pass",
    ),
    Mutation(
        name="cache-outlives-commit",
        rule="C3: a commit of a newer batch invalidates",
        module="queryablestate.proxy.cache",
        before="            elif found.batch_id >= batch_id_known:",
        after="            elif found.batch_id >= 0:",
    ),
    Mutation(
        name="newer-batch-not-awaited",
        rule="Q2: min_batch_id waits for it",
        module="queryablestate.node.reads",
        before="    return view.batch_id < batch_id_min\n",
        after="    return False\n",
    ),
    Mutation(
        name="missing-rows-unnoticed",
        rule="W7: who lacks rows of a decided batch has lost its rows",
        module="queryablestate.control.membership",
        before="        if not message.lacks_rows or ",
        after="        if message.sequence >= 0 or ",
        seed=20001,
    ),
    Mutation(
        name="missing-restored-rows-unnoticed",
        rule="W7: who lacks rows of a restore has lost its rows",
        module="queryablestate.store.restores",
        before='    reason = "rows_missing"\n',
        after='    reason = "storage"\n',
        seed=20001,
    ),
    Mutation(
        name="pruned-too-early",
        rule="W3: decisions are kept until every owner has applied them",
        module="queryablestate.control.chains",
        before="last = min(*applied, record.sequence + 1 - ENTRY_KEPT_COUNT)",
        after="last = record.sequence + 1 - ENTRY_KEPT_COUNT",
        is_rare=True,
    ),
    Mutation(
        name="list-index-repeated",
        rule="W6: every item of a list once",
        module="queryablestate.store.rows",
        before="            index = index_first + count\n",
        after="            index = count\n",
    ),
    Mutation(
        name="large-write-taken-for-not-there",
        rule="W3: a large write that is decided is true for every later leader",
        module="queryablestate.control.stored_control",
        before="    values = with_large(values)\n",
        after="    with_large(values)\n",
        seed=25,
    ),
    Mutation(
        name="large-write-left-undone",
        rule="W3: what is left of a large write comes before anything else",
        module="queryablestate.control.write_queue",
        before="        self._unfinished = unfinished\n",
        after="        self._unfinished = NOTHING_LEFT\n",
        seed=12,
    ),
    Mutation(
        name="large-write-true-too-early",
        rule="W3: half of a large write is not there",
        module="queryablestate.control.large_writes",
        before="    parts = {\n",
        after="    return DividedWrite(commits=groups)\n    parts = {\n",
        seed=5,
    ),
    *MOVE_MUTATIONS,
    *READ_MUTATIONS,
    *STORE_MUTATIONS,
    *WRITER_MUTATIONS,
    *SNAPSHOT_MUTATIONS,
)


def install(name: str) -> None:
    """Make the mutation *name* part of what is imported from now on."""
    mutations.install(name, MUTATIONS)


def install_from_arguments(arguments: Sequence[str]) -> None:
    """Install what ``--mutation NAME`` asks for, if it is there."""
    mutations.install_from_arguments(arguments, MUTATIONS)
