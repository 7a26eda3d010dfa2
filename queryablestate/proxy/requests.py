"""
`RequestHandler`: what a proxy answers by itself, and who may ask for a change; pure.

Rights are looked at before anything else is: what a refused caller is told is made of
its own words alone, and is the same whether the job and the state exist or not (rule
C1).  Lists hold what the caller may read, and nothing says that there is more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from msgspec.structs import replace

from nameservice import ConfigurationError, check_component_id
from queryablestate.errors import AccessDeniedError, UnknownJobError, UnknownStateError
from queryablestate.proxy.access import Right
from queryablestate.wire.adoption_messages import (
    AdoptionRequest,
    AdoptJob,
    TakeControl,
)
from queryablestate.wire.clients import (
    BindRun,
    CommitBatch,
    DescribeState,
    DrawTicket,
    DropState,
    JobsListed,
    ListJobs,
    ListNodes,
    ListStates,
    NodesListed,
    NodeSummary,
    StateDescribed,
    StateDescription,
    StatesListed,
)
from queryablestate.wire.operation_messages import (
    DrainNode,
    ForgetAwayNode,
    ForgetJob,
    ListRescalings,
    RescaleJob,
    RescalingsListed,
)
from queryablestate.wire.snapshot_messages import (
    RestoreJob,
    SnapshotRequest,
    TakeSnapshot,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.control.core import ControlCore
    from queryablestate.proxy.access import AccessList, Caller


__all__ = ["ChangeRequest", "LookupRequest", "RequestHandler"]

LookupRequest: TypeAlias = (
    DescribeState | ListJobs | ListStates | ListNodes | ListRescalings
)
"""What the proxy answers by itself."""

ChangeRequest: TypeAlias = (
    DrawTicket
    | BindRun
    | CommitBatch
    | DropState
    | RescaleJob
    | DrainNode
    | ForgetJob
    | ForgetAwayNode
    | SnapshotRequest
    | AdoptionRequest
)
"""What the control plane answers, once it has changed something."""

_STATES_PER_REQUEST_MAX: Final = 1_000


@final
class RequestHandler:
    """
    Answers what is asked of the proxy itself.

    Attributes:
        access: Who may ask; may be replaced at any time.
    """

    def __init__(self, access: AccessList) -> None:
        self.access = access

    def answer(
        self,
        core: ControlCore,
        caller: Caller,
        request: LookupRequest,
        *,
        now_ns: int,
        wall_clock_us: int,
    ) -> StateDescribed | JobsListed | StatesListed | NodesListed | RescalingsListed:
        """
        Return the answer to *request*.

        Raises:
            AccessDeniedError: If the caller may not know.
            UnknownJobError: If there is no such job, or none that it may read.
            UnknownStateError: If there is no such state.
            StateUnavailableError: If it cannot be said what there is of the job.
        """
        request_id = request.request_id
        match request:
            case DescribeState(job_id=job_id, state_name=state_name):
                self._check_may_know(caller, job_id, state_name)
                _check_known(core, job_id, now_ns)
                description = self._described(
                    core, caller, job_id, state_name, wall_clock_us
                )
                return StateDescribed(request_id=request_id, description=description)
            case ListJobs():
                job_ids = self._jobs(core, caller)
                return JobsListed(request_id=request_id, job_ids=job_ids)
            case ListStates(job_id=job_id):
                if not self.access.may_see_job(caller, job_id):
                    raise AccessDeniedError(f"read {job_id}/*")
                _check_known(core, job_id, now_ns)
                states = self._states(core, caller, job_id, wall_clock_us)
                return StatesListed(request_id=request_id, states=states)
            case ListNodes():
                nodes = self._nodes(core, caller, now_ns)
                is_admin = self.access.may(caller, Right.ADMIN)
                return NodesListed(
                    request_id=request_id,
                    nodes=nodes,
                    control_id=core.view.control_id if is_admin else "",
                )
            case ListRescalings():
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError("list how jobs are rescaled")
                return core.rescalings(request, now_ns=now_ns)
            case _:
                assert_never(request)

    def check_change(
        self,
        core: ControlCore,
        caller: Caller,
        request: ChangeRequest,
        *,
        now_ns: int,
    ) -> None:
        """
        Return if *caller* may ask for that change, and it is one that can be named.

        Raises:
            AccessDeniedError: If it may not.
            UnknownStateError: If a batch is for a state that the job does not have, as
                far as the caller may know.
            StateUnavailableError: If it cannot be said what there is of its job.
            ConfigurationError: If a name is none that a job or a state can have.
        """
        match request:
            case DropState(job_id=job_id, state_name=state_name):
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError(f"drop {job_id}/{state_name}")
            case RescaleJob(job_id=job_id):
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError(f"rescale {job_id}")
            case DrainNode(node_id=node_id):
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError(f"drain {node_id}")
            case ForgetAwayNode(node_id=node_id):
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError(f"forget {node_id}")
            case TakeSnapshot(job_id=job_id) | RestoreJob(job_id=job_id):
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError(f"take or restore snapshots of {job_id}")
                check_component_id(job_id, what="the id of a job")
            case ForgetJob(job_id=job_id):
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError(f"forget {job_id}")
            case TakeControl():
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError("take over rows that nodes keep")
            case AdoptJob(job_id=job_id):
                if not self.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError(f"take over {job_id}")
            case CommitBatch():
                self._check_batch(core, caller, request, now_ns)
            case DrawTicket(job_id=job_id, states=()):
                # A number is no state's: it tells nothing, and names nothing.
                if not self.access.is_writer(caller):
                    raise AccessDeniedError(f"write {job_id}/*")
                check_component_id(job_id, what="the id of a job")
            case (
                DrawTicket(job_id=job_id, states=states)
                | BindRun(job_id=job_id, states=states)
            ):
                names = [state.state_name for state in states]
                if not names and not self._may_write(caller, job_id, None):
                    raise AccessDeniedError(f"write {job_id}/*")
                for name in names:
                    if not self._may_write(caller, job_id, name):
                        raise AccessDeniedError(f"write {job_id}/{name}")
                _check_names(job_id, names)
            case _:
                assert_never(request)

    def writable(
        self, core: ControlCore, caller: Caller, request: ChangeRequest
    ) -> frozenset[str] | None:
        """
        Return the states of a job that *caller* may write; None if it may write all.

        Those that there are, and those that *request* declares.
        """
        if not isinstance(request, DrawTicket | BindRun | CommitBatch):
            return None
        job_id = request.job_id
        if self._may_write(caller, job_id, None):
            return None
        names = {*core.view.state_names(job_id)}
        if not isinstance(request, CommitBatch):
            names.update(state.state_name for state in request.states)
        return frozenset(
            name for name in names if self._may_write(caller, job_id, name)
        )

    # -- parts ---------------------------------------------------------------------

    def _check_batch(
        self, core: ControlCore, caller: Caller, request: CommitBatch, now_ns: int
    ) -> None:
        """
        Return if *caller* may write the states of a batch.

        It names states by their numbers, and must not learn from a refusal whether
        there is a state of that number, and how it is called.
        """
        job_id = request.job_id
        if not self.access.may_see_job(caller, job_id):
            raise AccessDeniedError(f"write {job_id}/*")
        _check_known(core, job_id, now_ns)
        if not request.state_numbers:
            raise ConfigurationError("a batch writes at least one state")
        for number in request.state_numbers:
            location = core.locations.get(number)
            name = None
            if location is not None and location.job_id == job_id:
                name = location.state_name
                if self._may_write(caller, job_id, name):
                    continue
            if name is None or not self.access.may(caller, Right.READ, job_id, name):
                raise UnknownStateError(job_id, f"number {number}")
            raise AccessDeniedError(f"write {job_id}/{name}")

    def _jobs(self, core: ControlCore, caller: Caller) -> tuple[str, ...]:
        """Return the jobs that *caller* may read, and those that are kept, sorted."""
        readable = [
            job_id
            for job_id in core.view.job_ids()
            if self._readable(core, caller, job_id)
        ]
        kept = [
            job_id
            for job_id in core.view.kept_job_ids()
            if self.access.may(caller, Right.READ, job_id)
        ]
        return tuple(sorted((*readable, *kept)))

    def _check_may_know(self, caller: Caller, job_id: str, state_name: str) -> None:
        may = self.access.may
        if not (
            may(caller, Right.READ, job_id, state_name)
            or may(caller, Right.WRITE, job_id, state_name)
        ):
            raise AccessDeniedError(f"read {job_id}/{state_name}")

    def _described(
        self,
        core: ControlCore,
        caller: Caller,
        job_id: str,
        state_name: str,
        wall_clock_us: int,
    ) -> StateDescription:
        description = core.view.describe(
            job_id, state_name, wall_clock_us=wall_clock_us
        )
        if description is None:
            if not self._readable(core, caller, job_id):
                raise UnknownJobError(job_id)
            raise UnknownStateError(job_id, state_name)
        return description

    def _states(
        self, core: ControlCore, caller: Caller, job_id: str, wall_clock_us: int
    ) -> tuple[StateDescription, ...]:
        described = [
            core.view.describe(job_id, state_name, wall_clock_us=wall_clock_us)
            for state_name in self._readable(core, caller, job_id)
        ]
        if not described:
            raise UnknownJobError(job_id)
        return tuple(state for state in described if state is not None)

    def _nodes(
        self, core: ControlCore, caller: Caller, now_ns: int
    ) -> tuple[NodeSummary, ...]:
        """Return the nodes; to writers, who bring them rows, without their jobs."""
        nodes = core.view.node_summaries(now_ns=now_ns)
        if self.access.may(caller, Right.ADMIN):
            return tuple(nodes)
        if not self.access.is_writer(caller):
            raise AccessDeniedError("list nodes")
        return tuple(
            replace(
                node, key_group_counts={}, behind_counts={}, copy_counts={}, kept=()
            )
            for node in nodes
        )

    def _readable(
        self, core: ControlCore, caller: Caller, job_id: str
    ) -> Sequence[str]:
        """Return the states of a job that *caller* may read, sorted."""
        return [
            state_name
            for state_name in core.view.state_names(job_id)
            if self.access.may(caller, Right.READ, job_id, state_name)
        ]

    def _may_write(self, caller: Caller, job_id: str, state_name: str | None) -> bool:
        return self.access.may(caller, Right.WRITE, job_id, state_name)


def _check_known(core: ControlCore, job_id: str, now_ns: int) -> None:
    """Return if it can be said what there is of a job."""
    problem = core.view.problem_of(job_id, now_ns=now_ns)
    if problem is not None:
        raise problem


def _check_names(job_id: str, state_names: Sequence[str]) -> None:
    """Return if a job and states can be called that."""
    check_component_id(job_id, what="the id of a job")
    if len(state_names) > _STATES_PER_REQUEST_MAX:
        raise ConfigurationError(
            f"a query writes at most {_STATES_PER_REQUEST_MAX:,} states, not "
            f"{len(state_names):,}"
        )
    for state_name in state_names:
        check_component_id(state_name, what="the name of a state")
