"""
Jobs of which nodes keep rows of another control plane (rule W7); pure.

A name service that has lost its store knows no job any more.  Nodes do: they have set
the rows aside, and say so when they register.  Of such a job it must not be said that
there is none, and it must not be begun anew unasked: the rows of its next batch would
be all that there is.

**An older copy of the store** is another thing (a backup was restored).  The control
plane is the same, and nodes have applied what it knows nothing of.  To go on from there
would be to give numbers twice, and to have those rows thrown away.  So a node that is
*ahead* keeps what it has, and the job is not used until somebody has decided.

What nodes keep is written down with them (`NodeRecord.kept`), so that it is known while
they are away, too; of a node that is ahead as rows of this control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen
from msgspec.structs import replace

from queryablestate.errors import StateUnavailableError
from queryablestate.wire.job_plan import entry_digest
from queryablestate.wire.kept_rows import KeptJob, KeptRows


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from queryablestate.control.job.job import Job
    from queryablestate.wire.node_messages import JobPosition, RegisterNode
    from queryablestate.wire.records import NodeRecord


__all__ = ["Keeping", "KeptJobs", "is_ahead", "kept_by", "serves_another"]

_RETRY_SECONDS: Final = 60.0
"""A person has to decide; one who asks again at once learns nothing new."""
_NODES_NAMED_MAX: Final = 3


@final
@frozen(kw_only=True)
class Keeping:
    """That a node keeps rows of a job: which node, of which control plane."""

    node_id: str
    control_id: str
    job: KeptJob


@final
class KeptJobs:
    """
    What the known nodes keep, by job.

    Args:
        records: The known nodes.
        control_id: This control plane.
    """

    def __init__(self, records: Iterable[NodeRecord], control_id: str = "") -> None:
        self._control_id = control_id
        self._by_node: dict[str, tuple[KeptRows, ...]] = {}
        self._by_job: dict[str, dict[str, list[Keeping]]] = {}
        for record in records:
            self.record(record)

    @property
    def job_ids(self) -> Sequence[str]:
        """Return the jobs of which something is kept, sorted."""
        return sorted(self._by_job)

    @property
    def control_ids(self) -> frozenset[str]:
        """Return the control planes of which something is kept."""
        return frozenset(
            rows.control_id for kept in self._by_node.values() for rows in kept
        )

    def of_job(self, job_id: str) -> Sequence[Keeping]:
        """Return who keeps rows of a job, by node."""
        by_node = self._by_job.get(job_id, {})
        return [one for node_id in sorted(by_node) for one in by_node[node_id]]

    def of_node(self, node_id: str) -> Sequence[KeptRows]:
        """Return what a node keeps."""
        return self._by_node.get(node_id, ())

    def record(self, record: NodeRecord) -> None:
        """Take note of what is recorded of a node."""
        if self._by_node.get(record.node_id, ()) == record.kept:
            return
        self.forget(record.node_id)
        self._by_node[record.node_id] = record.kept
        for rows in record.kept:
            for job in rows.jobs:
                keeping = Keeping(
                    node_id=record.node_id, control_id=rows.control_id, job=job
                )
                by_node = self._by_job.setdefault(job.job_id, {})
                by_node.setdefault(record.node_id, []).append(keeping)

    def forget(self, node_id: str) -> None:
        """Know nothing any more of a node."""
        for rows in self._by_node.pop(node_id, ()):
            for job in rows.jobs:
                by_node = self._by_job.get(job.job_id, {})
                by_node.pop(node_id, None)
                if not by_node:
                    self._by_job.pop(job.job_id, None)

    def ahead_of(self, node_id: str) -> frozenset[str]:
        """Return the jobs that a node is ahead with."""
        return frozenset(
            job.job_id
            for rows in self.of_node(node_id)
            if rows.control_id == self._control_id
            for job in rows.jobs
        )

    def rolled_back(self, job_id: str) -> StateUnavailableError | None:
        """Return what is said of a job that a node is ahead with; None if none is."""
        if job_id not in self._by_job:
            return None
        keepings = [
            one for one in self.of_job(job_id) if one.control_id == self._control_id
        ]
        if not keepings:
            return None
        sequence = max(one.job.sequence for one in keepings)
        named = _named(keepings)
        verb = "has" if len({one.node_id for one in keepings}) == 1 else "have"
        detail = (
            "what the name service holds of this job is older than what nodes have, "
            f"as after the restore of a backup: {named} {verb} applied entry "
            f"{sequence} of another history; 'lodestar adopt' takes that over"
        )
        return StateUnavailableError(job_id, None, (), _RETRY_SECONDS, detail)

    def problem(self, job_id: str) -> StateUnavailableError | None:
        """Return what is said of a job without state here; None if no node knows it."""
        keepings = self.of_job(job_id)
        if not keepings:
            return None
        node_ids = {one.node_id for one in keepings}
        named = _named(keepings)
        last = max((one.job.decided_at_us, one.job.batch_id or 0) for one in keepings)
        batch = "rows" if not last[0] else f"its rows as of batch {last[1]}"
        detail = (
            "the name service has lost what was stored of this job, and "
            f"{named} {'keeps' if len(node_ids) == 1 else 'keep'} {batch} aside: "
            "'lodestar adopt' takes them over, 'lodestar forget-job' gives them up"
        )
        return StateUnavailableError(job_id, None, (), _RETRY_SECONDS, detail)


def _named(keepings: Sequence[Keeping]) -> str:
    """Return the names of who keeps something, or of some of them."""
    node_ids = sorted({one.node_id for one in keepings})
    named = ", ".join(node_ids[:_NODES_NAMED_MAX])
    if len(node_ids) > _NODES_NAMED_MAX:
        named += f" and {len(node_ids) - _NODES_NAMED_MAX} more"
    return named


def is_ahead(position: JobPosition, job: Job | None) -> bool:
    """
    Return whether a node has applied what this control plane knows nothing of.

    Args:
        position: What the node says of a job, of this control plane.
        job: What the leader store holds of it, or None.
    """
    if job is None:
        return position.sequence > 0
    origin, record = position.origin, job.record
    if origin.job_number not in {0, record.job_number}:
        return position.sequence > 0
    if position.sequence > record.sequence:
        return True
    if job.assignment is not None and (
        origin.assignment_version > job.assignment.version
    ):
        return True
    entry = job.entries.get(position.sequence)
    return (
        entry is not None
        and origin.entry_digest != b""
        and origin.entry_digest != entry_digest(entry)
    )


def serves_another(message: RegisterNode, control_id: str) -> bool:
    """Return whether a node that registers has yet to set its rows aside."""
    return message.control_id not in {None, control_id}


def kept_by(
    message: RegisterNode, control_id: str, jobs: Mapping[str, Job]
) -> tuple[KeptRows, ...]:
    """Return what a node that registers keeps, and does not or must not use."""
    kept = tuple(
        rows
        for rows in (
            _still_aside(rows, jobs) if rows.control_id == control_id else rows
            for rows in message.kept
        )
        if rows.control_id != control_id
        or (rows.jobs and serves_another(message, control_id))
    )
    if message.control_id is None:
        return kept
    is_own = message.control_id == control_id
    kept_jobs = tuple(
        KeptJob(
            job_id=position.job_id,
            sequence=position.sequence,
            batch_id=None,
            decided_at_us=0,
            key_groups=(),
        )
        for position in message.positions
        if (
            is_ahead(position, jobs.get(position.job_id))
            if is_own
            else position.sequence > 0
        )
    )
    if not kept_jobs:
        return kept
    serving = KeptRows(
        control_id=message.control_id, store_id=message.store_id, jobs=kept_jobs
    )
    return (serving, *kept)


def _still_aside(rows: KeptRows, jobs: Mapping[str, Job]) -> KeptRows:
    """
    Return what of *rows* this control plane knows nothing of.

    They are its own, and a node is about to open them again: an operator has taken them
    over.  Until the node has, it must not be said that there is no such job.  What the
    leader store knows of as well, as when it was only away for a while, is no news.
    """

    def is_known(one: KeptJob) -> bool:
        job = jobs.get(one.job_id)
        return job is not None and one.sequence <= job.record.sequence

    return replace(rows, jobs=tuple(one for one in rows.jobs if not is_known(one)))
