"""
`JobStandings`: how the key groups of each job stand, for metrics; pure.

What is counted follows from an assignment and from who is there.  A job may have 32,768
key groups, and is looked at some times a second: so it is counted again only when one
of the two has changed.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, final

from attrs import evolve

from nameservice.observation import JobStanding


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.control.job.job import Job
    from queryablestate.control.node_table import NodeTable


__all__ = ["JobStandings"]

_Seen: TypeAlias = "tuple[int, tuple[bool, ...]]"


@final
class JobStandings:
    """
    Counts key groups and copies of jobs.

    Args:
        jobs: All of them; a view that stays up to date.
        nodes: Who is there, likewise.
    """

    def __init__(self, jobs: Mapping[str, Job], nodes: NodeTable) -> None:
        self._jobs = jobs
        self._nodes = nodes
        self._counted: dict[str, tuple[_Seen, JobStanding]] = {}

    def standings(self, job_count_max: int) -> Sequence[JobStanding]:
        """Return how jobs with states stand, *job_count_max* of them at most."""
        with_states = (job for job in self._jobs.values() if job.states)
        found = [self._standing(job) for job in islice(with_states, job_count_max)]
        for job_id in self._counted.keys() - {one.job_id for one in found}:
            del self._counted[job_id]
        return found

    def _standing(self, job: Job) -> JobStanding:
        job_id, assignment = job.record.job_id, job.assignment
        assert assignment is not None
        nodes = [self._nodes.present(node_id) for node_id in assignment.node_ids]
        are_usable = tuple(
            node is not None
            and node.store_id == store_id
            and job_id not in node.lost_jobs
            and not node.lost.get(job_id)  # rows of one of its states (rule W7)
            for node, store_id in zip(nodes, assignment.store_ids, strict=True)
        )
        seen = (assignment.version, are_usable)
        counted = self._counted.get(job_id)
        if counted is None or counted[0] != seen:
            counted = (seen, _count(job, are_usable))
            self._counted[job_id] = counted
        stopped = sum(node is not None and job_id in node.failing for node in nodes)
        sequences = [
            node.sequences.get(job_id, 0) for node in nodes if node is not None
        ]
        sequence = job.record.sequence
        behind = max(0, sequence - min(sequences, default=sequence))
        standing = evolve(counted[1], nodes_stopped=stopped, entries_behind=behind)
        if self._nodes.kept.rolled_back(job_id) is not None:
            # No node is asked before somebody has decided what its rows are.
            return evolve(standing, key_groups_unavailable=standing.key_groups)
        return standing


def _count(job: Job, are_usable: Sequence[bool]) -> JobStanding:
    """Count key groups with the same owners at once: there are few such sets."""
    assignment = job.assignment
    assert assignment is not None
    unavailable = short = copies = 0
    for owners, count in Counter(assignment.owners).items():
        here = sum(are_usable[index] for index in owners)
        copies += here * count
        unavailable += count if here == 0 else 0
        short += count if here < assignment.replica_count else 0
    wanted = assignment.wanted or assignment.owners
    pairs = Counter(zip(assignment.owners, wanted, strict=True))
    left = sum(
        sum(index not in owners for index in group_wanted) * count
        for (owners, group_wanted), count in pairs.items()
    )
    return JobStanding(
        job_id=job.record.job_id,
        key_groups=len(assignment.owners),
        key_groups_unavailable=unavailable,
        key_groups_short=short,
        copies=copies,
        copies_left=left,
        nodes_stopped=0,
        entries_behind=0,
    )
