"""Faults, on purpose, in what moves key groups: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["MOVE_MUTATIONS"]

MOVE_MUTATIONS: Final = (
    Mutation(
        name="copy-complete-before-replay",
        rule="S1: a copy is in sync only when it has all that was decided",
        module="queryablestate.store_copies",
        before="return entry, not cursor.next() or cursor.key() >= end",
        after="return entry, True",
    ),
    Mutation(
        name="replay-skips-an-entry",
        rule="S2: the entries after the copied one are applied, from the first",
        module="queryablestate.store_copies",
        before="cursor.set_range(kept_key(job_id, applied + 1))",
        after="cursor.set_range(kept_key(job_id, applied + 2))",
    ),
    Mutation(
        name="entries-not-kept",
        rule="S2: what is decided while rows are copied is kept for them",
        module="queryablestate.store_copies",
        before="if mark is None or needed is None or entry.sequence <= needed:",
        after="if mark is None or needed is None or entry.sequence > needed:",
    ),
    Mutation(
        name="kept-entries-not-released",
        rule="S2: entries are kept as long as they are needed",
        module="queryablestate.store_copies",
        before="            if needed is not None and entry.sequence > needed:",
        after="            if needed is None or entry.sequence > needed:",
    ),
    Mutation(
        name="half-fetch-kept",
        rule="S2: a fetch begins with nothing",
        module="queryablestate.store_copies",
        before="is_first = page.state_number == 0",
        after="is_first = False",
        is_rare=True,
    ),
    Mutation(
        name="lost-rows-copied-as-sound",
        rule="W7: a copy is as lost as its source",
        module="queryablestate.store_copies",
        before="lost = union(state.lost, intersection(copied.lost, groups))",
        after="lost = state.lost",
    ),
    Mutation(
        name="old-copy-trusted",
        rule="S1: a copy that was begun under another *since* is begun anew",
        module="queryablestate.store_holdings",
        before="if copy is None or copy.since != one.since:",
        after="if copy is None:",
        is_rare=True,
    ),
    Mutation(
        name="rows-given-away-kept",
        rule="S1: a node holds what it is assigned, and nothing else",
        module="queryablestate.store_holdings",
        before="        self._remove_others(job_id, difference(ALL_GROUPS, sound))\n",
        after="",
    ),
    Mutation(
        name="copies-ahead-cleared",
        rule="S2: an entry that replaces leaves copies alone that are ahead of it",
        module="queryablestate.store_apply",
        before="        if copying:\n            others",
        after="        if copying is None:\n            others",
        is_rare=True,
    ),
    Mutation(
        name="unfinished-copy-promoted",
        rule="S1: only copies that are finished are put into use",
        module="queryablestate.reassignment",
        before="if key_group in self.standings[copy.node_index].copied",
        after="if self.standings[copy.node_index].is_present",
    ),
    Mutation(
        name="surplus-dropped-early",
        rule="S1: what is to be given up stays until others have it",
        module="queryablestate.reassignment",
        before="            if len(in_sync) == len(wanted):",
        after="            if len(in_sync) <= len(wanted):",
    ),
    Mutation(
        name="dead-copy-stays",
        rule="S1: a copy is taken out before a commit that it missed is acknowledged",
        module="queryablestate.reassignment",
        before="                if left and left != owners:",
        after="                if left and left is None:",
    ),
    Mutation(
        name="another-disk-trusted",
        rule="S1: what comes back with another disk has no copies",
        module="queryablestate.reassignment",
        before="            and standing.store_id == self.store_ids[index]\n",
        after="",
        is_rare=True,
    ),
    Mutation(
        name="unsettled-leader-moves",
        rule="S2: a new leader changes nothing before those who are late have come",
        module="queryablestate.moves",
        before="        if not control.is_settled(now_ns=now_ns):\n"
        "            return []\n",
        after="",
    ),
    Mutation(
        name="joining-node-not-brought-rows",
        rule="S2: whoever is to have rows is brought what is decided",
        module="queryablestate.assignment",
        before="    if not assignment.joining:\n",
        after="    if assignment.joining is not None:\n",
    ),
    Mutation(
        name="promise-forgotten",
        rule="S2: nobody answers before it is as far as its assignment",
        module="queryablestate.node_jobs",
        before="job.promised = max(job.promised, assignment.sequence)",
        after="job.promised = max(job.promised, 0)",
        is_rare=True,
    ),
    Mutation(
        name="collected-rows-dropped",
        rule="S2: no batch loses rows because of a move",
        module="queryablestate.commit_rows",
        before="                if counts:\n",
        after="                if counts is None:\n",
    ),
    Mutation(
        name="collected-rows-repeated",
        rule="S2: what was collected counts only where nothing was sent",
        module="queryablestate.commit_rows",
        before="            lacks = sorted(due[node_id] - there)\n",
        after="            lacks = sorted(due[node_id])\n",
    ),
    Mutation(
        name="given-up-ignored",
        rule="S4: whom a writer gave up has to fetch what it lacks",
        module="queryablestate.commit_rows",
        before=".union(*(stage.given_up for stage in stages))",
        after="",
    ),
    Mutation(
        name="earlier-leader-obeyed",
        rule="S2: nodes refuse commands of earlier epochs",
        module="queryablestate.node_registration",
        before="        if self.is_stale(leader_epoch):\n"
        "            return [self._stale(leader_epoch)], False\n"
        "        if leader_epoch == self.leader_epoch:",
        after="        if leader_epoch <= self.leader_epoch:",
        is_rare=True,
    ),
    Mutation(
        name="failing-copy-is-no-reason",
        rule="S4: questions wait for a copy that is about to be asked",
        module="queryablestate.read_desk",
        before="            or not location.sole_key_groups[pending.node_index]\n",
        after="",
    ),
)
