"""The route table: which node serves which key groups of a named state; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

from attrs import frozen

from queryablestate.control.assignment.assignment import key_groups_of


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.node_table import NodeTable
    from queryablestate.wire.records import AssignmentRecord


__all__ = ["KvStateLocation", "RouteTable"]

_KeyGroups: TypeAlias = "tuple[tuple[int, ...], ...]"


@final
@frozen(kw_only=True)
class KvStateLocation:
    """
    The route to one state: a row of the proxy's route table.

    Attributes:
        job_id: The job.
        state_name: Its name within the job.
        state_number: What names it in questions.
        generation: The present ownership.
        batch_id: The last batch decided in it, or None before the first.
        assignment_version: The assignment that the links are of.
        node_ids: The nodes of that assignment, in its order.
        links: The connection to each of them, None while it is away, or has lost what
            it had while others have that, or may come back with it.
        key_groups: For each node the key groups it is asked for: of which it has the
            primary copy.
        sole_key_groups: For each node those of them that no other could answer for
            now: none that is there has another in-sync copy.  The others are about to
            get another primary when the node has gone (rule S4).
        problem: Why no node is asked, or None; then there are no links.
        owners: For each key group the indexes of the nodes that have an in-sync copy,
            the primary first; nothing at all if no key group has a second one.
        copy_links: The connection to each node whose in-sync copies may be asked (rule
            D4); None while it is away, or has lost what it had.
    """

    job_id: str
    state_name: str
    state_number: int
    generation: int
    batch_id: int | None
    assignment_version: int
    node_ids: tuple[str, ...]
    links: tuple[LinkId | None, ...]
    key_groups: tuple[tuple[int, ...], ...]
    sole_key_groups: tuple[tuple[int, ...], ...]
    problem: str | None = None
    owners: tuple[tuple[int, ...], ...] = ()
    copy_links: tuple[LinkId | None, ...] = ()


@final
class RouteTable:
    """
    A route for each state, made from assignments and from who is there.

    Args:
        nodes: Who is there; looked at in `locate` only.

    Attributes:
        locations: The routes by state number; always the same mapping.  A route that is
            as it was stays the same object.
        version: Another number whenever a route is another one, has come or has gone.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._locations: dict[int, KvStateLocation] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._key_groups: dict[str, tuple[int, _KeyGroups]] = {}
        self._sole: dict[str, tuple[int, tuple[bool, ...], _KeyGroups]] = {}
        self.locations: Mapping[int, KvStateLocation] = self._locations
        self.version = 0

    def locate(self, job: Job) -> None:
        """Make the routes of a job anew."""
        job_id = job.record.job_id
        former = {
            number: self._locations.pop(number)
            for number in self._numbers.pop(job_id, ())
        }
        located = self._located(job)
        if located:
            self._numbers[job_id] = tuple(located)
        for number, location in located.items():
            is_same = former.get(number) == location
            self._locations[number] = former[number] if is_same else location
            self.version += not is_same
        self.version += not former.keys() <= located.keys()

    def _located(self, job: Job) -> dict[int, KvStateLocation]:
        """Return the routes of a job by state number, in that order."""
        job_id, assignment = job.record.job_id, job.assignment
        if assignment is None:
            return {}
        present = [self._nodes.present(node_id) for node_id in assignment.node_ids]
        key_groups = self._key_groups_of(job_id, assignment)
        are_usable = tuple(
            node is not None and node.store_id == store_id
            for node, store_id in zip(present, assignment.store_ids, strict=True)
        )
        sole = self._sole_key_groups_of(job_id, assignment, are_usable)
        copy_links = tuple(
            node.link
            if node is not None and usable and job_id not in node.lost_jobs
            else None
            for node, usable in zip(present, are_usable, strict=True)
        )
        losers = {
            index
            for index, node in enumerate(present)
            if node is not None and copy_links[index] is None
        }
        asked_losers = (
            _asked_losers(assignment, losers, copy_links) if losers else set()
        )
        links = tuple(
            node.link
            if node is not None and (index not in losers or index in asked_losers)
            else None
            for index, node in enumerate(present)
        )
        rolled_back = self._nodes.kept.rolled_back(job_id)
        if rolled_back is not None:
            sole, links = key_groups, (None,) * len(links)
            copy_links = links
        has_copies = any(len(owners) > 1 for owners in assignment.owners)
        located: dict[int, KvStateLocation] = {}
        for number in sorted(job.states):
            progress = job.progress_of(number)
            located[number] = KvStateLocation(
                job_id=job_id,
                state_name=job.states[number].state_name,
                state_number=number,
                generation=progress.generation,
                batch_id=progress.batch_id,
                assignment_version=assignment.version,
                node_ids=assignment.node_ids,
                links=links,
                key_groups=key_groups,
                sole_key_groups=sole,
                problem=None if rolled_back is None else rolled_back.detail,
                owners=assignment.owners if has_copies else (),
                copy_links=copy_links if has_copies else (),
            )
        return located

    def _key_groups_of(self, job_id: str, assignment: AssignmentRecord) -> _KeyGroups:
        """Return the key groups of each node; kept, since batches come often."""
        version, key_groups = self._key_groups.get(job_id, (None, ()))
        if version != assignment.version:
            key_groups = tuple(
                tuple(key_groups_of(assignment, node_id))
                for node_id in assignment.node_ids
            )
            self._key_groups[job_id] = (assignment.version, key_groups)
        return key_groups

    def _sole_key_groups_of(
        self, job_id: str, assignment: AssignmentRecord, are_usable: tuple[bool, ...]
    ) -> _KeyGroups:
        """Return for each node what only it can answer for; kept likewise."""
        version, earlier, sole = self._sole.get(job_id, (None, (), ()))
        if version != assignment.version or earlier != are_usable:
            found: list[list[int]] = [[] for _ in assignment.node_ids]
            for key_group, (primary, *others) in enumerate(assignment.owners):
                if not any(are_usable[index] for index in others):
                    found[primary].append(key_group)
            sole = tuple(tuple(key_groups) for key_groups in found)
            self._sole[job_id] = (assignment.version, are_usable, sole)
        return sole


def _asked_losers(
    assignment: AssignmentRecord,
    losers: set[int],
    copy_links: Sequence[LinkId | None],
) -> set[int]:
    """
    Return which nodes are asked though they have lost what they had.

    They say that it is lost (rule W7), which must be true: it is not as long as another
    has it that is away.  A new leader waits for that one, and has it answer then.
    """
    alone: set[int] = set()
    awaiting: set[int] = set()
    for primary, *others in assignment.owners:
        if any(copy_links[index] is not None for index in others):
            continue
        is_lost = losers.issuperset(others)
        (alone if is_lost else awaiting).add(primary)
    return (alone - awaiting).intersection(losers)
