"""
`ControlState`: what the machines of `ControlCore` share; pure.

What the leader store holds, who is there, and the route table that follows from both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from queryablestate.control.direct_readers import DirectReaders
from queryablestate.control.limits import CONTROL_LIMITS, ControlLimits
from queryablestate.control.node_table import NodeTable
from queryablestate.control.open_batches import OpenBatches
from queryablestate.control.routes import RouteTable
from queryablestate.control.tally import Tally
from queryablestate.errors import StateUnavailableError, UnknownJobError


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from queryablestate.control.job.job import Job
    from queryablestate.control.present_node import PresentNode
    from queryablestate.wire.records import CountersRecord, NodeRecord


__all__ = ["ControlState", "has_node"]

_RETRY_SECONDS: Final = 0.5


@final
class ControlState:
    """
    Jobs, nodes, numbers and routes.

    Args:
        counters: From the leader store, or a fresh one.
        jobs: From the leader store.
        nodes: From the leader store.
        leader_epoch: The epoch of this leadership.
        session_timeout_ns: Silence after which a node is taken for away.
        now_ns: The time.
        limits: How much it takes on.
        copy_secret: What nodes that are taken in are given, to show each other.
        direct_reads: Whether nodes may answer clients without the proxy (rule D1).
        direct_lease_ns: How long they may after they were heard, also if an earlier
            leader has allowed it.

    Attributes:
        counters: As the store has them.
        ticket_next: The next ticket to be given out.
        jobs: By job id.
        nodes: Known and present ones.
        routes: The route table.
        leader_epoch: As above.
        session_timeout_ns: As above.
        limits: As above; may be replaced at any time.
        copy_secret: As above.
        direct_lease_ns: As above; 0 if they may not.
        direct: Tickets that were given, and nodes that may answer by them.
        settled_at_ns: When a node that is not here will not come by itself.
        open_batches: Those that were begun and may not be over.
        loading: The nodes that load rows of a snapshot, by restore: a job that is not
            there yet is to be theirs.
        tally: What was decided.
        touched: Jobs for whose assignment something may have changed (`touch`).
        is_touched: Whether anything at all may have.
    """

    def __init__(
        self,
        *,
        counters: CountersRecord,
        jobs: Iterable[Job],
        nodes: Iterable[NodeRecord],
        leader_epoch: int,
        session_timeout_ns: int,
        now_ns: int,
        limits: ControlLimits = CONTROL_LIMITS,
        copy_secret: bytes = b"",
        direct_reads: bool = True,
        direct_lease_ns: int = 0,
        tally: Tally | None = None,
    ) -> None:
        self.counters = counters
        # Whatever an earlier leader may have given out is passed over.
        self.ticket_next = counters.ticket_limit
        self.jobs = {job.record.job_id: job for job in jobs}
        self.nodes = NodeTable(nodes, counters.control_id)
        self.routes = RouteTable(self.nodes)
        self.leader_epoch = leader_epoch
        self.session_timeout_ns = session_timeout_ns
        # Two heartbeats of a node that asks for no direct lease: see `Registration`.
        self.silence_ns = session_timeout_ns * 2 // 5
        self.limits = limits
        self.copy_secret = copy_secret
        self.direct_lease_ns = direct_lease_ns if direct_reads else 0
        self.direct = DirectReaders(self.nodes, lease_ns=direct_lease_ns, now_ns=now_ns)
        self.settled_at_ns = now_ns + session_timeout_ns
        self.open_batches = OpenBatches(self.jobs, now_ns=now_ns)
        self.loading: dict[str, Collection[str]] = {}
        self.tally = Tally() if tally is None else tally
        self.touched = set(self.jobs)
        self.is_touched = True
        for job in self.jobs.values():
            self.routes.locate(job)

    @property
    def state_count(self) -> int:
        """Return how many states there are, of all jobs together."""
        return sum(len(job.states) for job in self.jobs.values())

    def touch(self, *job_ids: str) -> None:
        """Have the assignments of these jobs looked at; of all if none is named."""
        self.touched.update(job_ids or self.jobs)
        self.is_touched = True

    def job(self, job_id: str) -> Job:
        """Return that job; `UnknownJobError` if there is none."""
        job = self.jobs.get(job_id)
        if job is None:
            raise UnknownJobError(job_id)
        return job

    def problem_of(self, job_id: str) -> StateUnavailableError | None:
        """Return why a job cannot be used though nodes have rows of it, or None."""
        rolled_back = self.nodes.kept.rolled_back(job_id)
        if rolled_back is not None:
            return rolled_back
        job = self.jobs.get(job_id)
        if job is not None and job.states:
            return None
        return self.nodes.kept.problem(job_id)

    def doubt_of(self, job_id: str, *, now_ns: int) -> StateUnavailableError | None:
        """
        Return why it cannot be said yet whether there is such a job, or None (rule W7).

        A name service that knows of no node may have lost its store a moment ago.
        """
        if job_id in self.jobs or self.nodes.known_ids or now_ns >= self.settled_at_ns:
            return None
        detail = (
            "the name service knows of no state and of no node, and nodes that know "
            "better may be coming"
        )
        return StateUnavailableError(job_id, None, (), _RETRY_SECONDS, detail)

    def jobs_of(self, node_id: str) -> Sequence[Job]:
        """Return the jobs that a node has a part in, the oldest first."""
        return self.jobs_of_any({node_id})

    def jobs_of_any(self, node_ids: AbstractSet[str]) -> Sequence[Job]:
        """Return the jobs that any of these nodes has a part in, the oldest first."""
        jobs = [
            job
            for job in self.jobs.values()
            if job.assignment is not None
            and not node_ids.isdisjoint(job.assignment.node_ids)
        ]
        return sorted(jobs, key=lambda job: job.record.job_number)

    def present_of(self, job: Job) -> Sequence[PresentNode]:
        """Return the nodes of a job that are present, by name."""
        return [node for node in self.nodes if has_node(job, node.node_id)]

    def is_needed(self, node_id: str) -> bool:
        """
        Return whether a node has a part in a job, or is about to have one.

        Or may have rows of a batch.
        """
        return (
            bool(self.jobs_of(node_id))
            or any(node_id in node_ids for node_ids in self.loading.values())
            or self.open_batches.may_need(node_id, self.jobs)
        )

    def is_settled(self, *, now_ns: int) -> bool:
        """
        Return whether assignments may be changed (rule S2).

        They may once all known nodes have registered with this leader, or one session
        timeout has passed.
        """
        return now_ns >= self.settled_at_ns or not self.nodes.is_anybody_awaited

    def takes_for_away(self, now_ns: int) -> bool:
        """
        Return whether a node that is not here counts as away (rule S2).

        For one session timeout one that was known from the start is only late, though
        it has registered and left: nodes change their connections when they hear of a
        leader, which may be after they have found it.
        """
        return now_ns >= self.settled_at_ns or not self.nodes.is_anybody_late


def has_node(job: Job, node_id: str) -> bool:
    """Return whether a node has a part in a job: has, copies, or is to copy rows."""
    return job.assignment is not None and node_id in job.assignment.node_ids
