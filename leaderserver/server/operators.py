"""`Operators`: what operators ask of a LeaderServer, and what they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never, final

from election.core import ElectionCore
from election.events import (
    RevokeRequested,
    SessionExpireRequested,
    TimePassed,
    TransferRequested,
)
from leaderserver.messages import DoneReply, Failure, ReplyBody
from leaderserver.operator_messages import (
    LeadersRequest,
    RevokedReply,
    SessionsRequest,
    StatusReply,
    StatusRequest,
    TransferredReply,
    TransferRequest,
)
from leaderserver.server.answering import Answering
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.inspection import inspect_components, inspect_sessions
from leaderserver.server.core.state_budget import StateBudget
from leaderserver.server.core.storage_queue import StorageQueue
from leaderserver.server.core.subscriptions import Subscriptions
from leaderserver.server.core.turn import Turn
from leaderserver.server.election_steps import ElectionSteps
from leaderserver.server.store_requests import StoreRequests


if TYPE_CHECKING:
    from leaderserver.server.storage import LeaderStorage
    from zmqtransport import Principal


__all__ = ["Operators"]


@final
class Operators:
    """
    What operators ask for: lists and figures, and ends of sessions and leaderships.

    Args:
        core: The election, to be read.
        steps: How it goes on.
        clients: Where clients are reached.
        subscriptions: Who hears of which component.
        budget: What clients cost.
        answering: How clients are answered.
        stores: The leader stores.
        storage: What outlives the service.
        queue: What waits for it.
        now_ns: When the service starts.
    """

    def __init__(
        self,
        core: ElectionCore,
        *,
        steps: ElectionSteps,
        clients: ClientTable,
        subscriptions: Subscriptions,
        budget: StateBudget,
        answering: Answering,
        stores: StoreRequests,
        storage: LeaderStorage,
        queue: StorageQueue,
        now_ns: int,
    ) -> None:
        self._core = core
        self._steps = steps
        self._clients = clients
        self._subscriptions = subscriptions
        self._budget = budget
        self._answering = answering
        self._counts = answering.counts
        self._stores = stores
        self._storage = storage
        self._storage_queue = queue
        self._started_ns = now_ns

    def expire(self, client: ServedClient, session_id: str, turn: Turn) -> None:
        """End a session."""
        if not client.principal.is_admin:
            self._answering.fail_not_admin(client, turn)
        elif self._clients.get(session_id) is None:
            self._answering.fail(
                Failure.UNKNOWN_SESSION, f"no session {session_id}", turn
            )
        else:
            self._answering.answer(DoneReply(), turn)
            self._steps.step(SessionExpireRequested(session_id=session_id), turn)

    def revoke(self, client: ServedClient, component_id: str, turn: Turn) -> None:
        """End the leadership of a component."""
        if not client.principal.is_admin:
            self._answering.fail_not_admin(client, turn)
            return
        self._steps.step(TimePassed(), turn)
        component = self._core.component(component_id)
        leadership = None if component is None else component.leadership
        if leadership is None:
            self._answering.fail(
                Failure.NO_LEADER, f"{component_id} has no leader", turn
            )
            return
        self._answering.answer(
            RevokedReply(
                leader_session_id=leadership.leader_session_id, epoch=leadership.epoch
            ),
            turn,
        )
        self._steps.step(RevokeRequested(component_id=component_id), turn)

    def transfer(self, client: ServedClient, body: TransferRequest, turn: Turn) -> None:
        """End the leadership of a component, and grant it to another contender."""
        if not client.principal.is_admin:
            self._answering.fail_not_admin(client, turn)
            return
        self._steps.step(TimePassed(), turn)
        if self._core.is_undecided:
            # Who is to be revoked first is not known yet.
            self._answering.fail(Failure.UNDECIDED, "it is not known yet who led", turn)
            return
        component = self._core.component(body.component_id)
        contender = (
            None if component is None else component.contenders.get(body.contender_id)
        )
        if component is None or contender is None:
            self._answering.fail(
                Failure.UNKNOWN_CONTENDER,
                f"{body.contender_id} does not contend for {body.component_id}",
                turn,
            )
            return
        leadership = component.leadership
        if leadership is not None and leadership.contender_id == body.contender_id:
            self._answering.answer(
                TransferredReply(leader_session_id=None, epoch=0), turn
            )
            return
        if not self._core.may_be_granted(contender.session_id):
            # Asked before anything is ended: a leader is better than none.
            self._answering.fail(
                Failure.NOT_HEARD,
                f"{body.contender_id} was not heard from within its lease",
                turn,
            )
            return
        self._answering.answer(
            TransferredReply(
                leader_session_id=None
                if leadership is None
                else leadership.leader_session_id,
                epoch=0 if leadership is None else leadership.epoch,
            ),
            turn,
        )
        self._steps.step(
            TransferRequested(
                component_id=body.component_id, contender_id=body.contender_id
            ),
            turn,
        )

    def list(
        self,
        body: LeadersRequest | SessionsRequest | StatusRequest,
        principal: Principal,
        turn: Turn,
    ) -> ReplyBody:
        """Return what there is, as far as *principal* may see it."""
        match body:
            case LeadersRequest(prefix=prefix, after=after):
                return inspect_components(
                    self._core, prefix=prefix, after=after, may_see=principal.may_see
                )
            case SessionsRequest(after=after):
                return inspect_sessions(
                    self._core,
                    after=after,
                    now_ns=turn.now_ns,
                    may_see=None if principal.observes_all else principal.may_see,
                )
            case StatusRequest():
                return StatusReply(figures=self.figures(now_ns=turn.now_ns))
            case _:
                assert_never(body)

    def figures(self, *, now_ns: int) -> dict[str, str | int | float]:
        """Return the service's figures by name, as ZooKeeper's ``mntr`` has them."""
        components = self._core.components
        return {
            "uptime_seconds": round((now_ns - self._started_ns) / 1e9, 3),
            "incarnation": self._core.incarnation,
            "is_undecided": int(self._core.is_undecided),
            "is_durable": int(self._storage.is_durable),
            "sessions": len(self._clients),
            "components": len(components),
            "contenders": sum(len(c.contenders) for c in components),
            "leaders": sum(c.leadership is not None for c in components),
            "leaderless": sum(
                bool(c.contenders) and c.leadership is None for c in components
            ),
            "subscriptions": len(self._subscriptions),
            "state_bytes": self._budget.counted(),
            "store_watches": len(self._stores.watches),
            "storage_waiting": len(self._storage_queue),
            "storage_is_short": int(self._storage.is_short),
            "grants_total": self._core.grant_count,
            "stalls_total": self._core.stall_count,
            "stalled_seconds_total": round(self._core.excused_ns / 1e9, 3),
            **{f"{name}_total": count for name, count in sorted(self._counts.items())},
        }
