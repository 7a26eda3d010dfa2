"""
Where the rows of a batch are, and where they must be when it is decided; pure (S2).

Theory of operation.  A batch is sent by one assignment, and it may be decided under
another one: key groups have moved meanwhile.  For each key group, those it was sent to
*have* its rows, but for the nodes that *lack* them: the writer gave them up, or they
have said so themselves.  Those that the present assignment names must have them.  Who
must, and does not, fetches them from one who does, before the decision: a decision
never names rows that no node has.

What a node has fetched it keeps, so that the next change of the assignment makes it
fetch only what is new: commits come to an end while key groups go on moving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen
from msgspec.structs import replace

from queryablestate.control.assignment.assignment import destinations
from queryablestate.wire.job_assignment import CopySource
from queryablestate.wire.records import StageRecord, collected_stage_id


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from queryablestate.wire.records import AssignmentRecord


__all__ = ["BatchRows", "CollectedRows", "stages_at"]

_NO_GROUPS: Final[frozenset[int]] = frozenset()


def stages_at(node_id: str, stages: Iterable[StageRecord]) -> tuple[StageRecord, ...]:
    """
    Return of *stages* what a node has of them.

    What others have is nothing to it, and takes the more room the more nodes there are.
    """
    return tuple(
        replace(stage, chunk_counts={node_id: count}, given_up=())
        for stage in stages
        if (count := stage.chunk_counts.get(node_id, 0)) > 0
    )


@final
@frozen(kw_only=True)
class CollectedRows:
    """
    Rows that a node has fetched from others.

    Attributes:
        assignment_version: For which assignment.
        key_groups: Of which key groups; both name the rows, see `collected_stage_id`.
        chunk_counts: In how many chunks the node keeps them, by the id of the stage
            that they were brought in.
    """

    assignment_version: int
    key_groups: frozenset[int]
    chunk_counts: Mapping[bytes, int]


@final
class BatchRows:
    """
    The rows of one batch under one assignment.

    Args:
        stages: What was sent.
        sent: By which assignment.
        present: The assignment under which the batch is to be decided; of as many key
            groups.
        lacking: Nodes that turned out not to have what they were sent.
        collected: What nodes have fetched; each key group of a node once.

    Attributes:
        verifying: The nodes whose own chunks will count.
        collecting: The key groups that nodes have yet to fetch for the present
            assignment, sorted, by node.
        nobody: The key groups whose rows some nodes lack, and no node has, sorted.
    """

    def __init__(
        self,
        stages: tuple[StageRecord, ...],
        sent: AssignmentRecord,
        present: AssignmentRecord,
        *,
        lacking: AbstractSet[str],
        collected: Mapping[str, Sequence[CollectedRows]],
    ) -> None:
        self._stages = stages
        self._collected = collected
        with_rows = frozenset(
            node_id
            for stage in stages
            for node_id, count in stage.chunk_counts.items()
            if count > 0
        )
        lacking = frozenset(lacking).union(*(stage.given_up for stage in stages))
        self._is_as_sent = not lacking and sent.version == present.version
        self._due: Mapping[str, frozenset[int]] = {}
        self._sent_to: Sequence[tuple[str, ...]] = ()
        self._holders: Sequence[tuple[str, ...]] = ()
        self.verifying = with_rows
        self.collecting: Mapping[str, tuple[int, ...]] = {}
        self.nobody: tuple[int, ...] = ()
        if not self._is_as_sent:  # as a rule it is
            self._sent_to = _node_ids_of(sent)
            self._holders = [
                tuple(node_id for node_id in node_ids if node_id not in lacking)
                for node_ids in self._sent_to
            ]
            self._due = _key_groups_of(_node_ids_of(present))
            self._compare(with_rows - lacking)

    def _compare(self, with_rows: frozenset[str]) -> None:
        """Compare what there is with what there must be."""
        holders, due = self._holders, self._due
        had = _key_groups_of(holders)
        self.verifying = frozenset(
            node_id
            for node_id in with_rows
            if not due.get(node_id, _NO_GROUPS).isdisjoint(had.get(node_id, _NO_GROUPS))
        )
        collecting = {}
        nobody: set[int] = set()
        for node_id in sorted(due):
            there = had.get(node_id, _NO_GROUPS).union(
                *(rows.key_groups for rows in self._collected.get(node_id, ()))
            )
            lacks = sorted(due[node_id] - there)
            nobody.update(group for group in lacks if not holders[group])
            # Of a key group whose holders have no chunk at all, there are no rows.
            missing = [
                group for group in lacks if not with_rows.isdisjoint(holders[group])
            ]
            if missing:
                collecting[node_id] = tuple(missing)
        self.collecting = collecting
        self.nobody = tuple(sorted(nobody))

    def sources(
        self,
        key_groups: Sequence[int],
        address_of: Callable[[str], str | None],
    ) -> tuple[CopySource, ...]:
        """
        Return where the rows of *key_groups* are to be had.

        Those that are present come first, and among them the in-sync copies.

        Args:
            key_groups: Of `collecting`.
            address_of: Returns where a node is reached, or None while it is away.
        """
        addresses: dict[str, str | None] = {}
        found: dict[str, list[int]] = {}
        for group in key_groups:
            holders = self._holders[group]
            for node_id in holders:
                if node_id not in addresses:
                    addresses[node_id] = address_of(node_id)
            there = [one for one in holders if addresses[one] is not None]
            found.setdefault((*there, *holders)[0], []).append(group)
        return tuple(
            CopySource(
                node_id=node_id,
                address=addresses[node_id],
                key_groups=tuple(found[node_id]),
            )
            for node_id in sorted(found)
        )

    def stages_of(self, key_groups: Sequence[int]) -> tuple[StageRecord, ...]:
        """Return all stages that may have rows of *key_groups*."""
        holders = {node_id for group in key_groups for node_id in self._sent_to[group]}
        return tuple(
            stage
            for stage in self._stages
            if any(stage.chunk_counts.get(node_id, 0) > 0 for node_id in holders)
        )

    def decided_stages(self) -> tuple[StageRecord, ...]:
        """
        Return what the decision names, once no node is to collect anything any more.

        What was collected of a stage comes right after it: rows of one key group are
        applied in the order in which they were brought.
        """
        if self._is_as_sent:
            return self._stages
        collected: dict[tuple[int, tuple[int, ...]], dict[str, CollectedRows]] = {}
        for node_id, all_rows in sorted(self._collected.items()):
            due = self._due.get(node_id, _NO_GROUPS)
            for rows in all_rows:
                if not due.isdisjoint(rows.key_groups):
                    name = (rows.assignment_version, tuple(sorted(rows.key_groups)))
                    collected.setdefault(name, {})[node_id] = rows
        decided = []
        for stage in self._stages:
            own = {
                node_id: count
                for node_id, count in stage.chunk_counts.items()
                if node_id in self.verifying
            }
            decided.append(
                StageRecord(
                    stage_id=stage.stage_id,
                    chunk_counts=own,
                    row_count=stage.row_count,
                )
            )
            for (version, key_groups), by_node in sorted(collected.items()):
                counts = {
                    node_id: rows.chunk_counts[stage.stage_id]
                    for node_id, rows in by_node.items()
                    if rows.chunk_counts.get(stage.stage_id, 0) > 0
                }
                if counts:
                    decided.append(
                        StageRecord(
                            stage_id=collected_stage_id(
                                stage.stage_id, version, key_groups
                            ),
                            chunk_counts=counts,
                            row_count=0,  # those of single nodes were not counted
                        )
                    )
        return tuple(decided)


def _node_ids_of(assignment: AssignmentRecord) -> list[tuple[str, ...]]:
    """Return who is brought the rows of each key group, the in-sync copies first."""
    node_ids = assignment.node_ids
    return [
        tuple(node_ids[index] for index in indexes)
        for indexes in destinations(assignment)
    ]


def _key_groups_of(
    node_ids: Sequence[tuple[str, ...]],
) -> Mapping[str, frozenset[int]]:
    """Return the key groups of each node."""
    found: dict[str, list[int]] = {}
    for group, names in enumerate(node_ids):
        for node_id in names:
            found.setdefault(node_id, []).append(group)
    return {node_id: frozenset(groups) for node_id, groups in found.items()}
