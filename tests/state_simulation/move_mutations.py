"""Faults, on purpose, in what moves key groups: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["MOVE_MUTATIONS"]

MOVE_MUTATIONS: Final = (
    Mutation(
        name="copies-answer-too",
        rule="S3: one node at most answers for a key group at any one time",
        module="queryablestate.node.core.job",
        before="prefixes=_prefixes(job.key_groups),",
        after="prefixes=_prefixes((*job.key_groups, *job.copies)),",
    ),
    Mutation(
        name="answers-by-a-newer-assignment",
        rule="S3: a node that was not told yet answers nothing by what is new",
        module="queryablestate.node.core.core",
        before="if served.assignment_version != question.assignment_version:",
        after="if served.assignment_version > question.assignment_version:",
        seed=4,
    ),
    Mutation(
        name="copy-complete-before-replay",
        rule="S1: a copy is in sync only when it has all that was decided",
        module="queryablestate.store.copies",
        before="return entry, not cursor.next() or cursor.key() >= end",
        after="return entry, True",
        seed=15,
    ),
    Mutation(
        name="replay-skips-an-entry",
        rule="S2: the entries after the copied one are applied, from the first",
        module="queryablestate.store.copies",
        before="cursor.set_range(kept_key(job_id, applied + 1))",
        after="cursor.set_range(kept_key(job_id, applied + 2))",
        seed=15,
    ),
    Mutation(
        name="entries-not-kept",
        rule="S2: what is decided while rows are copied is kept for them",
        module="queryablestate.store.copies",
        before="if mark is None or needed is None or entry.sequence <= needed:",
        after="if mark is None or needed is None or entry.sequence > needed:",
        seed=15,
    ),
    Mutation(
        name="kept-entries-not-released",
        rule="S2: entries are kept as long as they are needed",
        module="queryablestate.store.copies",
        before="            if needed is not None and entry.sequence > needed:",
        after="            if needed is None or entry.sequence > needed:",
        seed=9,
    ),
    Mutation(
        name="half-fetch-kept",
        rule="S2: a fetch begins with nothing",
        module="queryablestate.store.copies",
        before="is_first = page.state_number == 0",
        after="is_first = False",
        is_rare=True,
        seed=154,
    ),
    Mutation(
        name="lost-rows-copied-as-sound",
        rule="W7: a copy is as lost as its source",
        module="queryablestate.store.copies",
        before="lost = union(state.lost, intersection(copied.lost, groups))",
        after="lost = state.lost",
        seed=92,
    ),
    Mutation(
        name="rows-given-away-kept",
        rule="S1: a node holds what it is assigned, and nothing else",
        module="queryablestate.store.holdings",
        before="return self._remove_some(job_id, difference(ALL_GROUPS, kept))",
        after="return True",
        seed=15,
    ),
    Mutation(
        name="unfinished-copy-promoted",
        rule="S1: only copies that are finished are put into use",
        module="queryablestate.control.assignment.reassignment",
        before="if key_group in self.standings[copy.node_index].copied",
        after="if self.standings[copy.node_index].is_present",
        seed=4,
    ),
    Mutation(
        name="surplus-dropped-early",
        rule="S1: what is to be given up stays until others have it",
        module="queryablestate.control.assignment.reassignment",
        before="            if len(in_sync) == len(wanted):",
        after="            if len(in_sync) <= len(wanted):",
    ),
    Mutation(
        name="dead-copy-stays",
        rule="S1: a copy is taken out before a commit that it missed is acknowledged",
        module="queryablestate.control.assignment.reassignment",
        before="                if left and left != owners:",
        after="                if left and left is None:",
        seed=47,
    ),
    Mutation(
        name="unsettled-leader-moves",
        rule="S2: a new leader changes nothing before those who are late have come",
        module="queryablestate.control.core",
        before="if not control.is_touched or not control.is_settled(now_ns=now_ns):",
        after="if not control.is_touched:",
        seed=9,
    ),
    Mutation(
        name="joining-node-not-brought-rows",
        rule="S2: whoever is to have rows is brought what is decided",
        module="queryablestate.control.assignment.assignment",
        before="    if not assignment.joining:\n",
        after="    if assignment.joining is not None:\n",
    ),
    Mutation(
        name="promise-forgotten",
        rule="S2: nobody answers before it is as far as its assignment",
        module="queryablestate.node.core.jobs",
        before="job.promised = max(job.promised, assignment.sequence)",
        after="job.promised = max(job.promised, 0)",
        seed=54,
    ),
    Mutation(
        name="collected-rows-dropped",
        rule="S2: no batch loses rows because of a move",
        module="queryablestate.control.commit_rows",
        before="                if counts:\n",
        after="                if counts is None:\n",
        seed=13,
    ),
    Mutation(
        name="given-up-ignored",
        rule="S4: whom a writer gave up has to fetch what it lacks",
        module="queryablestate.control.commit_rows",
        before=".union(*(stage.given_up for stage in stages))",
        after="",
        seed=174,
    ),
    Mutation(
        name="collected-rows-repeated",
        rule="S2: what was collected counts only where nothing was sent",
        module="queryablestate.control.commit_rows",
        before="            lacks = sorted(due[node_id] - there)\n",
        after="            lacks = sorted(due[node_id])\n",
        seed=24,
    ),
    Mutation(
        name="uneven-plan-kept",
        rule="S1: what was left uneven is made even",
        module="queryablestate.control.assignment.reassignment",
        before="            and self._is_wanted_even(chosen)\n",
        after="",
        is_rare=True,
        seed=2453,
    ),
)
