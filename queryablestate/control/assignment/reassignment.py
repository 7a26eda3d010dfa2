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
    some are missing (`queryablestate.control.assignment.planning`).
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
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING, Final, final

from attrs import define, field
from msgspec.structs import replace

from queryablestate.control.assignment.node_standing import NodeStanding
from queryablestate.control.assignment.placement import copy_count, node_count_max
from queryablestate.control.assignment.planning import Planner
from queryablestate.wire.records import JoiningCopy


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.records import AssignmentRecord


__all__ = ["next_assignment"]

_AWAY: Final = NodeStanding(store_id="", is_present=False, is_silent=True)


class _Rank(IntEnum):
    """Which nodes are chosen first."""

    PLANNED = 0
    AWAY = 1
    HOLDS = 2
    SPARE = 3


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
        copied: The newest version that began a copy of each that is in sync.
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
    copied: list[int]
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
            copied=list(record.copied_versions) or [0] * len(record.node_ids),
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
        # Also those that have gone since: others may have copied of them before.
        losers = {
            index
            for index, standing in enumerate(self.standings)
            if standing.store_id and self._has_lost(index)
        }
        lost = [standing.lost for standing in self.standings]
        if not all(reliable) or not all(makes) or any(lost):
            for key_group, owners in enumerate(self.owners):
                whole = [index for index in owners if key_group not in lost[index]]
                sound = kept if any(heard[index] for index in whole) else not_lost
                left = tuple(index for index in whole if sound[index])
                if left and left != owners:
                    self.owners[key_group] = left
                    self.has_dropped = True
                    gone = set(owners) - set(left)
                    if any(i in losers or key_group in lost[i] for i in gone):
                        # Who copies may have copied what was lost: not in this
                        # version, and anew in the next.
                        self.joining[key_group] = ()
                        self.paused.add(key_group)
                joining = self.joining[key_group]
                if joining:
                    self.joining[key_group] = tuple(
                        copy
                        for copy in joining
                        if makes[copy.node_index]
                        and key_group not in lost[copy.node_index]
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
                copy
                for copy in joining
                if key_group in self.standings[copy.node_index].copied
            ]
            for copy in done:
                index = copy.node_index
                self.owners[key_group] += (index,)
                self.copied[index] = max(self.copied[index], copy.version)
            if done:
                self.joining[key_group] = tuple(
                    copy for copy in joining if copy not in done
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
        planner = Planner(
            owners=self.owners,
            joining=self.joining,
            standings=self.standings,
            expected=frozenset(filter(self._is_expected, range(len(self.node_ids)))),
            chosen=chosen,
            replica_count=self.before.replica_count,
        )
        # Without a plan what is there is what was wanted: now it is not all of it.
        is_broken = self.has_dropped and not self.before.wanted
        if is_broken or not planner.is_good(self.wanted):
            self.wanted = planner.plan()
        elif not self.has_dropped:
            return
        self.planned_count = copy_count(self.owners, self.wanted)

    def _chosen(self) -> list[int]:
        """
        Return the nodes that are to have the job, sorted.

        Those that have it go first, then others by name.  A node that is away, and has
        the only copy of something or is expected, counts as long as it is in the plan.
        But a draining node need not wait for those that are not expected: others take
        the places of the last of them, as many as it takes to hold all its copies.
        """
        copies = Counter(index for owners in self.owners for index in owners)
        planned = {index for nodes in self.wanted for index in nodes}
        ranked: list[tuple[_Rank, int, str]] = []
        indexes = {node_id: index for index, node_id in enumerate(self.node_ids)}
        away_ids: set[str] = set()
        is_emptied = False
        for node_id in sorted({*self.known, *self.node_ids}):
            standing = self.known.get(node_id, _AWAY)
            index = indexes.get(node_id, -1)
            if standing.is_draining:
                is_emptied |= standing.is_present and bool(copies[index])
                continue
            if standing.is_present and not standing.is_failing:
                begun = _Rank.HOLDS if copies[index] else _Rank.SPARE
                rank = _Rank.PLANNED if index in planned else begun
            elif index in planned and (copies[index] or self._is_expected(index)):
                rank = _Rank.AWAY
                if not self._is_expected(index):
                    away_ids.add(node_id)
            else:
                continue
            ranked.append((rank, -copies[index], node_id))
        count_max = node_count_max(
            len(self.owners), replica_count=self.before.replica_count
        )
        count = min(self.before.node_count, count_max)
        ranked.sort()
        first = [node_id for _, _, node_id in ranked[:count]]
        if is_emptied:
            away = [node_id for node_id in first if node_id in away_ids]
            able_count = len(first) - len(away)
            missing_count = max(0, min(self.before.replica_count, count) - able_count)
            others = [one for rank, _, one in ranked[count:] if rank is not _Rank.AWAY]
            stand_ins = others[:missing_count]
            left = set(away[len(away) - len(stand_ins) :])
            first = [one for one in first if one not in left] + stand_ins
        chosen = []
        for node_id in first:
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
        self.copied.append(0)
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
            standing = self.standings[index]
            is_anew = standing.is_anew or key_group in standing.lost
            is_able = self._is_reliable(index) and not is_anew
            if counts[index] < joining_count_max and is_able:
                counts[index] += 1
                copy = JoiningCopy(
                    node_index=index,
                    since=self.sequence,
                    version=self.before.version + 1,
                )
                self.joining[key_group] += (copy,)

    # -- the result ----------------------------------------------------------------

    def record(self) -> AssignmentRecord:
        """Return it as a record of the same version, without who has no part."""
        is_done = self.wanted == self.owners
        owning = {index for nodes in self.owners for index in nodes}
        parts = set(owning)
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
                    replace(copy, node_index=indexes[copy.node_index])
                    for copy in copies
                )
                for copies in self.joining
            )
        copied = tuple(self.copied[index] * (index in owning) for index in kept)
        return replace(
            self.before,
            node_ids=tuple(self.node_ids[index] for index in kept),
            store_ids=tuple(self.store_ids[index] for index in kept),
            since_sequences=tuple(self.sinces[index] for index in kept),
            copied_versions=copied if any(copied) else (),
            owners=numbers(self.owners),
            joining=joining,
            wanted=() if is_done else numbers(self.wanted),
            planned_count=self.planned_count,
        )
