"""
How an assignment changes, one write after the other; pure (rules S1, S2 and S4).

Theory of operation.  `next_assignment` looks at the present assignment and at who is
there, and says what it should be next.  It is called again when that is written, or
when something has happened, until there is nothing to be done.  In this order, and all
of it at once:

1.  *Dead copies go.*  The in-sync copies of a node that is away, that has lost its rows
    or that reports a failure: but only those of which there is another one that can be
    relied upon.  Lost rows also go where the other one is of a node that is away or
    reports a failure: it has what no other node has.  A copy that is being made goes in
    any case.  All copies of a node that is away and expected stay: it had them.  A node
    that was not heard from lately cannot be relied upon so far: it may be gone as well.
2.  *Finished copies are in sync.*
3.  *The plan is made anew*, if the nodes that are to have the job are others now, or
    some are missing.
4.  *Surplus copies go*, where all that are wanted are in sync, none of their nodes is
    expected, and one of them at least was heard from lately, and is not doubted: the
    others may be gone, which is only known when their sessions are over (rule S4).
5.  *The primary is one that is here*, as long as the one that is wanted is away, or is
    back and has yet to apply what it missed.
6.  *Copies begin*, a limited number for each node at once.
7.  *Nodes without a part are left out.*

**No node loses a copy that is the only one.**  A node that is away, and has the only
copy of something, keeps it, and its place in the plan: it may be back in a moment, and
there is nowhere else to get it from.

**No draining node waits for one that is away.**  A node that is not here, or cannot go
on, keeps what only it has, and gets no more while another one is here: those that are
here share all else evenly (`_Draft.plan` and what it calls).  Two kinds of plans count
as good, so that none is made anew without need: the one that is even over all nodes,
and that one.  The first stays when a node of it goes away, unless a draining node would
have to wait: other moves do, and go on when it is back.  When it is, the first is made.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from attrs import define, field, frozen
from msgspec.structs import replace

from queryablestate.control.assignment.placement import (
    copy_count,
    node_count_max,
    place,
)
from queryablestate.wire.records import JoiningCopy


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from queryablestate.wire.records import AssignmentRecord


__all__ = ["NodeStanding", "next_assignment"]


@final
@frozen(kw_only=True)
class NodeStanding:
    """
    What there is to know of a node for the assignment of one job.

    Attributes:
        store_id: Its data directory, as known last.
        is_present: Whether it is registered now.
        is_expected: Whether it is not, and may be again in a moment with what it had.
        is_silent: Whether nothing was heard of it for longer than it should be.
        is_doubted: Whether nothing was heard of it since copies were to be given up
            last: see `PresentNode`.
        is_draining: Whether it is to be emptied.
        is_failing: Whether it has said that it cannot go on.
        is_lost: Whether it has lost its rows of the job since it was assigned.
        is_anew: Whether it has begun the job anew since it was assigned, with nothing
            lost: its in-sync copies count, and those that it makes are begun anew.
        is_behind: Whether it was expected and is back, and has yet to apply what it
            missed.
        has_begun: Whether it has said how far it is with the job.
        copied: The key groups that it has copied for the present assignment.
    """

    store_id: str
    is_present: bool = True
    is_expected: bool = False
    is_silent: bool = False
    is_doubted: bool = False
    is_draining: bool = False
    is_failing: bool = False
    is_lost: bool = False
    is_anew: bool = False
    is_behind: bool = False
    has_begun: bool = True
    copied: Collection[int] = frozenset()


_AWAY: Final = NodeStanding(store_id="", is_present=False, is_silent=True)


def next_assignment(
    record: AssignmentRecord,
    nodes: Mapping[str, NodeStanding],
    *,
    sequence: int,
    joining_count_max: int,
    node_count: int | None = None,
    replica_count: int | None = None,
) -> AssignmentRecord | None:
    """
    Return what the assignment should be next, or None if it should stay.

    Args:
        record: The present assignment.
        nodes: Those that are known, by node id.
        sequence: The last entry of the job's chain now.
        joining_count_max: Key groups that one node copies at once; those that no node
            is there to be copied from are not counted.
        node_count: How many nodes the job is to have from now on; None changes nothing.
        replica_count: Likewise, how many copies of each key group.
    """
    wish = replace(
        record,
        node_count=record.node_count if node_count is None else node_count,
        replica_count=record.replica_count if replica_count is None else replica_count,
    )
    draft = _Draft.of(wish, nodes, sequence)
    draft.drop_dead()
    draft.promote()
    draft.plan()
    draft.order_owners()
    draft.stand_in()
    draft.begin(joining_count_max)
    changed = draft.record()
    if changed == record:
        return None
    return replace(changed, version=record.version + 1, sequence=sequence)


@final
@define(kw_only=True)
class _Draft:
    """
    An assignment that is being changed; nodes are indexes, as in the record.

    Attributes:
        before: The record that it began as.
        sequence: The last entry of the chain now.
        known: Every known node, by node id.
        node_ids: The nodes; new ones come at the end.
        store_ids: Their data directories, as assigned.
        sinces: Where each of them joined.
        standings: What there is to know of each.
        owners: The in-sync copies of each key group, the primary first.
        joining: The copies that are being made of each.
        wanted: The copies that are to be.
        planned_count: How many were to be made for that.
        has_dropped: Whether in-sync copies were taken out.
        paused: Key groups of which no copy is begun now.
    """

    before: AssignmentRecord
    sequence: int
    known: Mapping[str, NodeStanding]
    node_ids: list[str]
    store_ids: list[str]
    sinces: list[int]
    standings: list[NodeStanding]
    owners: list[tuple[int, ...]]
    joining: list[tuple[JoiningCopy, ...]]
    wanted: list[tuple[int, ...]]
    planned_count: int
    has_dropped: bool = False
    paused: set[int] = field(factory=set)

    @classmethod
    def of(
        cls,
        record: AssignmentRecord,
        known: Mapping[str, NodeStanding],
        sequence: int,
    ) -> _Draft:
        """Return a draft that is like *record*."""
        owners = list(record.owners)
        return cls(
            before=record,
            sequence=sequence,
            known=known,
            node_ids=list(record.node_ids),
            store_ids=list(record.store_ids),
            sinces=list(record.since_sequences),
            standings=[known.get(node_id, _AWAY) for node_id in record.node_ids],
            owners=owners,
            joining=list(record.joining) or [()] * len(owners),
            wanted=list(record.wanted) or list(owners),
            planned_count=record.planned_count,
        )

    def _is_reliable(self, index: int) -> bool:
        """Return whether what that node has can be relied upon, and goes on."""
        standing = self.standings[index]
        return (
            standing.is_present
            and not standing.is_failing
            and not standing.is_lost
            and standing.store_id == self.store_ids[index]
        )

    def _is_expected(self, index: int) -> bool:
        """Return whether that node may be back in a moment with what it has."""
        standing = self.standings[index]
        return standing.is_expected and standing.store_id == self.store_ids[index]

    def _has_lost(self, index: int) -> bool:
        """Return whether that node has nothing of what it was assigned."""
        standing = self.standings[index]
        return standing.is_lost or standing.store_id != self.store_ids[index]

    # -- the steps -----------------------------------------------------------------

    def drop_dead(self) -> None:
        """Take out the copies that cannot be relied upon, where there are others."""
        indexes = range(len(self.node_ids))
        reliable = [self._is_reliable(index) for index in indexes]
        heard = [reliable[i] and not self.standings[i].is_silent for i in indexes]
        kept = [reliable[index] or self._is_expected(index) for index in indexes]
        makes = [kept[index] and not self.standings[index].is_anew for index in indexes]
        not_lost = [not self._has_lost(index) for index in indexes]
        losers = {
            index
            for index, standing in enumerate(self.standings)
            if standing.is_present and self._has_lost(index)
        }
        if not all(reliable) or not all(makes):
            for key_group, owners in enumerate(self.owners):
                sound = kept if any(heard[index] for index in owners) else not_lost
                left = tuple(index for index in owners if sound[index])
                if left and left != owners:
                    self.owners[key_group] = left
                    self.has_dropped = True
                    if any(index in losers for index in set(owners) - set(left)):
                        # Who copies may have copied what was lost: not in this
                        # version, and anew in the next.
                        self.joining[key_group] = ()
                        self.paused.add(key_group)
                joining = self.joining[key_group]
                if joining:
                    self.joining[key_group] = tuple(
                        copy for copy in joining if makes[copy.node_index]
                    )
        owning = {index for owners in self.owners for index in owners}
        for index, standing in enumerate(self.standings):
            is_other = standing.store_id != self.store_ids[index]
            if not standing.is_present or not (is_other or standing.is_lost):
                continue
            if index not in owning:
                # Whatever it has is nothing: it begins where it is now, if at all.
                self.store_ids[index] = standing.store_id
                self.sinces[index] = self.sequence
            elif standing.has_begun:
                # It has been told which rows it has lost (rule W7), and goes on.
                self.store_ids[index] = standing.store_id

    def promote(self) -> None:
        """Take the copies that are finished for in sync."""
        for key_group, joining in enumerate(self.joining):
            done = [
                copy.node_index
                for copy in joining
                if key_group in self.standings[copy.node_index].copied
            ]
            if done:
                self.owners[key_group] += tuple(done)
                self.joining[key_group] = tuple(
                    copy for copy in joining if copy.node_index not in done
                )

    def plan(self) -> None:
        """Say anew who is to have what, if that is not what it should be."""
        if not self.before.wanted:
            self.wanted = list(self.owners)
        chosen = self._chosen()
        if not chosen:
            # No node is there: each one keeps what it has.
            self.wanted = list(self.owners)
            self.joining = [()] * len(self.owners)
            self.planned_count = 0
            return
        degree = min(self.before.replica_count, len(chosen))
        away = self._unable(chosen)
        # Without a plan what is there is what was wanted: now it is not all of it.
        is_broken = self.has_dropped and not self.before.wanted
        is_as_planned = not is_broken and (
            (
                {index for nodes in self.wanted for index in nodes} == set(chosen)
                and all(len(nodes) == degree for nodes in self.wanted)
                and _are_even(self.wanted, chosen)
                and not self._is_drain_held_up(away)
            )
            or self._is_planned_around(away, chosen, degree)
        )
        if is_as_planned:
            if self.has_dropped:
                self.planned_count = copy_count(self.owners, self.wanted)
            return
        self.wanted = self._placed(range(len(self.owners)), chosen)
        if any(
            set(nodes) & away - set(self.owners[key_group])
            for key_group, nodes in enumerate(self.wanted)
        ):
            self._plan_around(away, chosen, degree)
        self.planned_count = copy_count(self.owners, self.wanted)

    def _placed(
        self, key_groups: Sequence[int], chosen: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return where the copies of *key_groups* are to be, evenly on *chosen*."""
        places = {index: place_ for place_, index in enumerate(chosen)}
        wanted = place(
            [
                tuple(places[index] for index in self.owners[one] if index in places)
                for one in key_groups
            ],
            joining=[
                tuple(
                    places[copy.node_index]
                    for copy in self.joining[one]
                    if copy.node_index in places
                )
                for one in key_groups
            ],
            node_count=len(chosen),
            replica_count=min(self.before.replica_count, len(chosen)),
        )
        return [tuple(chosen[number] for number in nodes) for nodes in wanted]

    # -- the steps: planning around nodes that are away ----------------------------

    def _unable(self, chosen: Sequence[int]) -> frozenset[int]:
        """
        Return those of *chosen* that are away or cannot go on, if not all are.

        One that is expected is none of them: it may be back in a moment.
        """
        unable = frozenset(
            index
            for index in chosen
            if not self._is_expected(index)
            and (
                not self.standings[index].is_present or self.standings[index].is_failing
            )
        )
        return unable if len(unable) < len(chosen) else frozenset()

    def _is_drain_held_up(self, away: frozenset[int]) -> bool:
        """
        Return whether a draining node would have to wait for one of *away*.

        Other moves wait: what they are about is at a node that keeps it, and planning
        anew would move it twice if the one that is away is back soon.
        """
        return bool(away) and any(
            any(self.standings[index].is_draining for index in owners)
            and any(index in away and index not in owners for index in nodes)
            for owners, nodes in zip(self.owners, self.wanted, strict=True)
        )

    def _kept(self, away: frozenset[int], degree: int) -> dict[int, tuple[int, ...]]:
        """Return the key groups that only *away* have, with those that have them."""
        present = {i for i, one in enumerate(self.standings) if one.is_present}
        return {
            key_group: tuple(index for index in owners if index in away)[:degree]
            for key_group, owners in enumerate(self.owners)
            if any(index in away for index in owners)
            and not any(
                index not in away and (index in present or self._is_expected(index))
                for index in owners
            )
        }

    def _is_planned_around(
        self, away: frozenset[int], chosen: Sequence[int], degree: int
    ) -> bool:
        """Return whether the plan is one that `_plan_around` could have made."""
        if not away:
            return False
        able = [index for index in chosen if index not in away]
        kept = self._kept(away, degree)
        others = [nodes for one, nodes in enumerate(self.wanted) if one not in kept]
        able_degree = min(degree, len(able))
        return (
            all(
                self.wanted[one][: len(nodes)] == nodes
                and len(self.wanted[one]) == min(degree, len(nodes) + len(able))
                and set(self.wanted[one][len(nodes) :]) <= set(able)
                for one, nodes in kept.items()
            )
            and all(
                len(nodes) == able_degree and set(nodes) <= set(able)
                for nodes in others
            )
            and _are_even(others, able)
        )

    def _plan_around(
        self, away: frozenset[int], chosen: Sequence[int], degree: int
    ) -> None:
        """
        Have *away* keep what only they have, and the others share the rest.

        It is made even when they are back.
        """
        able = [index for index in chosen if index not in away]
        kept = self._kept(away, degree)
        others = [one for one in range(len(self.owners)) if one not in kept]
        for one, nodes in zip(others, self._placed(others, able), strict=True):
            self.wanted[one] = nodes
        for one, nodes in kept.items():
            # There is nowhere to copy it from now, but it is missing, and counts.
            more_count = min(degree - len(nodes), len(able))
            more = (able[(one + n) % len(able)] for n in range(more_count))
            self.wanted[one] = (*nodes, *more)

    def _chosen(self) -> list[int]:
        """
        Return the nodes that are to have the job, sorted.

        Those that have it go first, then others by name.  A node that is away, and has
        the only copy of something or is expected, counts as long as it is in the plan.
        """
        copies = Counter(index for owners in self.owners for index in owners)
        planned = {index for nodes in self.wanted for index in nodes}
        ranked: list[tuple[int, int, str]] = []
        indexes = {node_id: index for index, node_id in enumerate(self.node_ids)}
        for node_id in sorted({*self.known, *self.node_ids}):
            standing = self.known.get(node_id, _AWAY)
            index = indexes.get(node_id, -1)
            if standing.is_draining:
                continue
            if standing.is_present and not standing.is_failing:
                rank = 0 if index in planned else 2 if copies[index] else 3
            elif index in planned and (copies[index] or self._is_expected(index)):
                rank = 1
            else:
                continue
            ranked.append((rank, -copies[index], node_id))
        count_max = node_count_max(
            len(self.owners), replica_count=self.before.replica_count
        )
        count = min(self.before.node_count, count_max)
        chosen = []
        for _, _, node_id in sorted(ranked)[:count]:
            if node_id not in indexes:
                indexes[node_id] = len(self.node_ids)
                self._add(node_id)
            chosen.append(indexes[node_id])
        return sorted(chosen)

    def _add(self, node_id: str) -> None:
        standing = self.known[node_id]
        self.node_ids.append(node_id)
        self.store_ids.append(standing.store_id)
        self.sinces.append(self.sequence)
        self.standings.append(standing)

    def order_owners(self) -> None:
        """Drop surplus copies, and have the primary that is wanted as soon as it is."""
        for key_group, wanted in enumerate(self.wanted):
            owners = self.owners[key_group]
            if owners == wanted:
                continue
            in_sync = tuple(index for index in wanted if index in owners)
            if len(in_sync) == len(wanted):
                is_surplus = len(wanted) < len(owners)
                standings = [self.standings[index] for index in wanted]
                are_silent = all(one.is_silent or one.is_doubted for one in standings)
                is_early = are_silent or any(map(self._is_expected, wanted))
                if not (is_surplus and is_early):
                    self.owners[key_group] = wanted
                continue
            primary = wanted[0] if wanted[0] in owners else owners[0]
            others = tuple(index for index in in_sync if index != primary)
            surplus = tuple(index for index in owners if index not in in_sync)
            self.owners[key_group] = (
                primary,
                *others,
                *(index for index in surplus if index != primary),
            )

    def stand_in(self) -> None:
        """Have another copy be the primary where the one that is wanted cannot be."""
        # What is here is asked before what is not, though it takes a moment.
        ranks = [
            (not self._is_reliable(index), standing.is_behind)
            for index, standing in enumerate(self.standings)
        ]
        unable = {
            index
            for index, standing in enumerate(self.standings)
            if standing.is_behind or not standing.is_present
        }
        is_other = False
        for key_group, owners in enumerate(self.owners):
            if owners[0] in unable:
                first = min(owners, key=ranks.__getitem__)
                if ranks[first] < ranks[owners[0]]:
                    others = (index for index in owners if index != first)
                    self.owners[key_group] = (first, *others)
                    is_other = True
        if is_other and not self.before.wanted:
            # It has a plan from now on: to be as it was.
            self.planned_count = copy_count(self.owners, self.wanted)

    def begin(self, joining_count_max: int) -> None:
        """Begin copies that are wanted, those first of which there are the fewest."""
        has_source = [
            any(self.standings[index].is_present for index in owners)
            for owners in self.owners
        ]
        counts: Counter[int] = Counter()
        missing: list[tuple[int, int, int]] = []
        for key_group, wanted in enumerate(self.wanted):
            owners = self.owners[key_group]
            joining = tuple(
                copy
                for copy in self.joining[key_group]
                if copy.node_index in wanted and copy.node_index not in owners
            )
            self.joining[key_group] = joining
            if not has_source[key_group] or key_group in self.paused:
                continue
            counts.update(copy.node_index for copy in joining)
            begun = {copy.node_index for copy in joining}
            missing += [
                (len(owners), key_group, index)
                for index in wanted
                if index not in owners and index not in begun
            ]
        for _, key_group, index in sorted(missing):
            is_able = self._is_reliable(index) and not self.standings[index].is_anew
            if counts[index] < joining_count_max and is_able:
                counts[index] += 1
                copy = JoiningCopy(node_index=index, since=self.sequence)
                self.joining[key_group] += (copy,)

    # -- the result ----------------------------------------------------------------

    def record(self) -> AssignmentRecord:
        """Return it as a record of the same version, without who has no part."""
        is_done = self.wanted == self.owners
        parts = {index for nodes in self.owners for index in nodes}
        if not is_done:
            parts.update(index for nodes in self.wanted for index in nodes)
        kept = sorted(parts)
        indexes = {index: number for number, index in enumerate(kept)}
        is_same = kept == list(range(len(self.node_ids)))

        def numbers(groups: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
            if is_same:
                return tuple(groups)
            return tuple(tuple(indexes[one] for one in nodes) for nodes in groups)

        joining: tuple[tuple[JoiningCopy, ...], ...] = ()
        if any(self.joining):
            joining = tuple(
                tuple(
                    JoiningCopy(node_index=indexes[copy.node_index], since=copy.since)
                    for copy in copies
                )
                for copies in self.joining
            )
        return replace(
            self.before,
            node_ids=tuple(self.node_ids[index] for index in kept),
            store_ids=tuple(self.store_ids[index] for index in kept),
            since_sequences=tuple(self.sinces[index] for index in kept),
            owners=numbers(self.owners),
            joining=joining,
            wanted=() if is_done else numbers(self.wanted),
            planned_count=self.planned_count,
        )


def _are_even(wanted: Sequence[tuple[int, ...]], indexes: Sequence[int]) -> bool:
    """
    Return whether none of *indexes* is to have more than another.

    It may be that one has: a plan is forgotten when no node is there any more.
    """
    copies = Counter(index for nodes in wanted for index in nodes)
    primaries = Counter(nodes[0] for nodes in wanted)
    return all(
        max(counts[index] for index in indexes)
        - min(counts[index] for index in indexes)
        <= 1
        for counts in (copies, primaries)
    )
