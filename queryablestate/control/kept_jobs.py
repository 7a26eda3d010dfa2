"""
Jobs of which nodes keep rows of another control plane (rule W7); pure.

A name service that has lost its store knows no job any more.  Nodes do: they have set
the rows aside, and say so when they register.  Of such a job nobody may say that there
is none, and nobody may begin it anew unasked: the rows of its next batch would be all
that there is.

What nodes keep is written down with them (`NodeRecord.kept`), so that it is known while
they are away, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from queryablestate.errors import StateUnavailableError
from queryablestate.wire.kept_rows import KeptJob, KeptRows


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queryablestate.wire.node_messages import RegisterNode
    from queryablestate.wire.records import NodeRecord


__all__ = ["Keeping", "KeptJobs", "kept_by", "serves_another"]

_RETRY_SECONDS: Final = 60.0
"""A person has to decide; whoever asks again at once learns nothing new."""
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
    """

    def __init__(self, records: Iterable[NodeRecord]) -> None:
        self._by_node: dict[str, tuple[KeptRows, ...]] = {}
        self._by_job: dict[str, dict[str, list[Keeping]]] = {}
        for record in records:
            self.record(record)

    @property
    def job_ids(self) -> Sequence[str]:
        """Return the jobs of which something is kept, sorted."""
        return sorted(self._by_job)

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

    def problem(self, job_id: str) -> StateUnavailableError | None:
        """Return what is said of a job that has no state here; None if nobody knows."""
        keepings = self.of_job(job_id)
        if not keepings:
            return None
        node_ids = sorted({one.node_id for one in keepings})
        named = ", ".join(node_ids[:_NODES_NAMED_MAX])
        if len(node_ids) > _NODES_NAMED_MAX:
            named += f" and {len(node_ids) - _NODES_NAMED_MAX} more"
        last = max((one.job.decided_at_us, one.job.batch_id or 0) for one in keepings)
        batch = "rows" if not last[0] else f"its rows as of batch {last[1]}"
        detail = (
            "the name service has lost what was stored of this job, and "
            f"{named} {'keeps' if len(node_ids) == 1 else 'keep'} {batch} aside"
        )
        return StateUnavailableError(job_id, None, (), _RETRY_SECONDS, detail)


def serves_another(message: RegisterNode, control_id: str) -> bool:
    """Return whether a node that registers has yet to set its rows aside."""
    return message.control_id not in {None, control_id}


def kept_by(message: RegisterNode, control_id: str) -> tuple[KeptRows, ...]:
    """Return what a node that registers keeps, or is about to, of other ones."""
    kept = tuple(rows for rows in message.kept if rows.control_id != control_id)
    if message.control_id is None or message.control_id == control_id:
        return kept
    jobs = tuple(
        KeptJob(
            job_id=position.job_id,
            sequence=position.sequence,
            batch_id=None,
            decided_at_us=0,
            key_groups=(),
        )
        for position in message.positions
        if position.sequence > 0
    )
    if not jobs:
        return kept
    serving = KeptRows(
        control_id=message.control_id, store_id=message.store_id, jobs=jobs
    )
    return (serving, *kept)
