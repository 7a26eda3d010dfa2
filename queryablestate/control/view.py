"""`ControlView`: what the control plane knows, for those who ask."""

from __future__ import annotations

from hmac import compare_digest
from itertools import islice
from typing import TYPE_CHECKING, final

from nameservice.clock import NS_PER_MS
from nameservice.observation import StateFreshness
from queryablestate.control.assignment.assignment import held_by, key_groups_of
from queryablestate.control.job_standings import JobStandings
from queryablestate.wire.clients import NodeSummary, StateDescription


if TYPE_CHECKING:
    from collections.abc import Sequence

    from nameservice.observation import JobStanding
    from queryablestate.control.events import LinkId
    from queryablestate.control.state import ControlState
    from queryablestate.errors import StateUnavailableError
    from queryablestate.wire.direct import DirectAccess
    from queryablestate.wire.node_messages import JoinConnection


__all__ = ["ControlView"]


@final
class ControlView:
    """
    Questions about jobs, states and nodes; none of them changes anything.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._standings = JobStandings(control.jobs, control.nodes)

    @property
    def control_id(self) -> str:
        """Return which control plane this is."""
        return self._control.counters.control_id

    def job_ids(self) -> Sequence[str]:
        """Return the jobs that have a state, sorted."""
        jobs = self._control.jobs
        return sorted(job_id for job_id, job in jobs.items() if job.states)

    def state_names(self, job_id: str) -> Sequence[str]:
        """Return the states of a job, sorted; none for a job that is not known."""
        job = self._control.jobs.get(job_id)
        states = () if job is None else job.states.values()
        return sorted(state.state_name for state in states)

    def kept_job_ids(self) -> Sequence[str]:
        """Return the jobs that have no state, and rows that nodes keep, sorted."""
        jobs = self._control.jobs
        return [
            job_id
            for job_id in self._control.nodes.kept.job_ids
            if job_id not in jobs or not jobs[job_id].states
        ]

    def problem_of(self, job_id: str, *, now_ns: int) -> StateUnavailableError | None:
        """Return why it cannot be said what there is of a job, or None (rule W7)."""
        problem = self._control.problem_of(job_id)
        return problem or self._control.doubt_of(job_id, now_ns=now_ns)

    def describe(
        self, job_id: str, state_name: str, *, wall_clock_us: int
    ) -> StateDescription | None:
        """Return all that is known of a state, or None if there is no such state."""
        job = self._control.jobs.get(job_id)
        state = None if job is None else job.state_named(state_name)
        if job is None or state is None:
            return None
        assert job.assignment is not None
        progress = job.progress_of(state.state_number)
        age_ms = None
        if progress.batch_id is not None:
            age_ms = max(0, wall_clock_us - progress.decided_at_us) // 1_000
        return StateDescription(
            job_id=job_id,
            state_name=state_name,
            state_number=state.state_number,
            schema=state.schema,
            max_parallelism=job.record.max_parallelism,
            generation=progress.generation,
            batch_id=progress.batch_id,
            query_id=progress.query_id,
            age_ms=age_ms,
            assignment_version=job.assignment.version,
            node_ids=job.assignment.node_ids,
            owners=job.primary_indexes(),
            lost_node_ids=tuple(
                node.node_id
                for node in self._control.present_of(job)
                if state.state_number in node.lost.get(job_id, ())
            ),
        )

    def freshness(
        self, state_count_max: int, *, wall_clock_us: int
    ) -> Sequence[StateFreshness]:
        """Return how new some states are, *state_count_max* of them at most."""
        found = []
        for location in islice(
            self._control.routes.locations.values(), state_count_max
        ):
            job = self._control.jobs[location.job_id]
            progress = job.progress_of(location.state_number)
            age_us = max(0, wall_clock_us - progress.decided_at_us)
            has_batch = progress.batch_id is not None
            found.append(
                StateFreshness(
                    job_id=location.job_id,
                    state_name=location.state_name,
                    generation=progress.generation,
                    batch_id=progress.batch_id,
                    age_seconds=age_us / 1_000_000 if has_batch else None,
                )
            )
        return found

    def standings(self, job_count_max: int) -> Sequence[JobStanding]:
        """Return how jobs stand, *job_count_max* of them at most."""
        return self._standings.standings(job_count_max)

    def node_summaries(self, *, now_ns: int) -> Sequence[NodeSummary]:
        """Return every known node, sorted by name."""
        known_ids = self._control.nodes.known_ids
        return [self._summary(node_id, now_ns) for node_id in known_ids]

    def _summary(self, node_id: str, now_ns: int) -> NodeSummary:
        node = self._control.nodes.present(node_id)
        counts, copies, behind = {}, {}, {}
        for job in self._control.jobs_of(node_id):
            job_id, assignment = job.record.job_id, job.assignment
            assert assignment is not None
            counts[job_id] = len(key_groups_of(assignment, node_id))
            copies[job_id] = len(held_by(assignment, node_id))
            applied = 0 if node is None else node.sequences.get(job_id, 0)
            behind[job_id] = max(0, job.record.sequence - applied)
        last_heard_ms = None
        if node is not None:
            last_heard_ms = (now_ns - node.heard_at_ns) // NS_PER_MS
        return NodeSummary(
            node_id=node_id,
            address=None if node is None else node.address,
            last_heard_ms=last_heard_ms,
            key_group_counts=counts,
            behind_counts=behind,
            copy_counts=copies,
            is_draining=self._control.nodes.is_draining(node_id),
            is_needed=bool(copies) or self._control.is_needed(node_id),
            kept=tuple(self._control.nodes.kept.of_node(node_id)),
        )

    def direct_access(
        self,
        state_number: int,
        *,
        caller: str,
        public_key: str | None,
        life_ns: int,
        now_ns: int,
        turn: int = 0,
    ) -> DirectAccess | None:
        """
        Return how *caller*, who may, reads a state without the proxy; None if not now.

        Before the leader is settled there is no ticket: what nodes are ahead of is not
        known yet.
        """
        control = self._control
        location = self._control.routes.locations.get(state_number)
        if location is None or not control.direct_lease_ns:
            return None
        if not control.is_settled(now_ns=now_ns):
            return None
        return control.direct.access(
            location,
            caller=caller,
            public_key=public_key,
            secret=control.copy_secret,
            leader_epoch=control.leader_epoch,
            life_ns=life_ns,
            now_ns=now_ns,
            turn=turn,
        )

    def node_at(self, link: LinkId) -> str | None:
        """Return which node is registered over *link*, or None."""
        node = self._control.nodes.at(link)
        return None if node is None else node.node_id

    def link_of(self, message: JoinConnection) -> LinkId | None:
        """Return over which link the node of another connection is registered."""
        control = self._control
        node = control.nodes.present(message.node_id)
        if (
            node is None
            or node.registration_id != message.registration_id
            or not control.copy_secret
            or not compare_digest(message.copy_secret, control.copy_secret)
        ):
            return None
        return node.link
