"""`Requests`: what sessions ask for, taken one by one."""

from __future__ import annotations

from typing import assert_never, final

from election.core import ElectionCore
from election.effects import RefuseEpoch
from election.events import (
    ClaimReported,
    ContenderRegistered,
    ContenderWithdrawn,
    EpochReported,
    HeartbeatReceived,
    LeadershipConfirmed,
    RevocationAcknowledged,
    SessionCloseRequested,
    TimePassed,
)
from leaderserver.codec import publication_to_record
from leaderserver.message_parts import AffirmationRecord
from leaderserver.messages import (
    BatchRequest,
    CloseSessionRequest,
    ConfirmRequest,
    DoneReply,
    FailedReply,
    Failure,
    HeartbeatRequest,
    RegisterRequest,
    RequestBody,
    RevocationFinishedRequest,
    Revoked,
    SnapshotReply,
    SubscribeRequest,
    UnsubscribeRequest,
    WithdrawRequest,
)
from leaderserver.operator_messages import (
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
    RevokeRequest,
    SessionsRequest,
    StatusRequest,
    TransferRequest,
)
from leaderserver.server.answering import Answering
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.inspection import inspect_contenders
from leaderserver.server.core.memory_plan import (
    COMPONENT_COST_BYTES,
    CONTENDER_COST_BYTES,
    SUBSCRIPTION_COST_BYTES,
    name_cost_bytes,
)
from leaderserver.server.core.state_budget import StateBudget
from leaderserver.server.core.state_cost import NO_ROOM
from leaderserver.server.core.subscriptions import Subscriptions
from leaderserver.server.core.turn import Turn
from leaderserver.server.decision_news import DecisionNews
from leaderserver.server.election_steps import ElectionSteps
from leaderserver.server.operators import Operators
from leaderserver.server.store_requests import StoreRequests
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    GetRequest,
    ListRequest,
    UnwatchStoreRequest,
    WatchStoreRequest,
)
from retrieval.information import Publication


__all__ = ["Requests"]


@final
class Requests:
    """
    Requests of sessions: their rights and limits, and what they do to the election.

    Args:
        core: The election, to be read.
        news: Tells who asked too early.
        steps: How it goes on.
        clients: Where clients are reached.
        subscriptions: Who hears of which component.
        budget: What contenders and subscriptions may cost.
        answering: How clients are answered.
        stores: The leader stores.
        operators: What operators ask for.
    """

    def __init__(
        self,
        core: ElectionCore,
        *,
        news: DecisionNews,
        steps: ElectionSteps,
        clients: ClientTable,
        subscriptions: Subscriptions,
        budget: StateBudget,
        answering: Answering,
        stores: StoreRequests,
        operators: Operators,
    ) -> None:
        self._core = core
        self._news = news
        self._steps = steps
        self._clients = clients
        self._subscriptions = subscriptions
        self._budget = budget
        self._answering = answering
        self._counts = answering.counts
        self._stores = stores
        self._operators = operators

    def take(
        self, client: ServedClient, number: int, body: RequestBody, turn: Turn
    ) -> None:
        """Do what one request asks for, or answer why not."""
        match body:
            case HeartbeatRequest(acknowledged=acknowledged):
                self._steps.step(
                    HeartbeatReceived(
                        session_id=client.session_id,
                        number=number,
                        acknowledged=acknowledged,
                        is_late=client.is_late,
                    ),
                    turn,
                )
                return
            case BatchRequest():
                raise AssertionError(body)  # see `Batches`
            case CloseSessionRequest():
                self._answering.answer(DoneReply(), turn)
                self._steps.step(
                    SessionCloseRequested(session_id=client.session_id), turn
                )
                return
            case LeadersRequest() | SessionsRequest() | StatusRequest():
                self._steps.step(TimePassed(), turn)
                self._answering.answer(
                    self._operators.list(body, client.principal, turn), turn
                )
                return
            case ExpireRequest(session_id=session_id):
                self._operators.expire(client, session_id, turn)
                return
        problem = _component_problem(body.component_id)
        if problem is not None:
            self._answering.fail(Failure.INVALID, problem, turn)
            return
        if not client.principal.may_see(body.component_id):
            # Whether there is such a component is not told, either.
            self._answering.fail(
                Failure.NOT_ALLOWED,
                f"{client.principal.name} may not observe {body.component_id}",
                turn,
            )
            return
        match body:
            case GetRequest() | ListRequest() | CommitRequest() | CleanupRequest():
                self._steps.catch_up(turn)
                if self._stores.ask(client, number, body, turn):
                    self._steps.work_on_storage(turn)
            case RegisterRequest():
                self._register(client, body, turn)
            case WithdrawRequest():
                self._steps.step(
                    ContenderWithdrawn(
                        session_id=client.session_id,
                        component_id=body.component_id,
                        contender_id=body.contender_id,
                    ),
                    turn,
                )
                self._answering.answer(DoneReply(), turn)
            case ConfirmRequest():
                self._confirm(client, body, turn)
            case RevocationFinishedRequest():
                self._steps.step(
                    RevocationAcknowledged(
                        session_id=client.session_id,
                        component_id=body.component_id,
                        contender_id=body.contender_id,
                        epoch=body.epoch,
                    ),
                    turn,
                )
                self._answering.answer(DoneReply(), turn)
            case SubscribeRequest():
                self._subscribe(client, body, turn)
            case UnsubscribeRequest():
                self._subscriptions.unsubscribe(client.session_id, body.component_id)
                self._answering.answer(DoneReply(), turn)
            case ContendersRequest():
                self._steps.step(TimePassed(), turn)
                contenders = inspect_contenders(
                    self._core, body.component_id, now_ns=turn.now_ns
                )
                self._answering.answer(contenders, turn)
            case WatchStoreRequest():
                self._steps.step(TimePassed(), turn)
                if self._clients.get(client.session_id) is None:
                    return  # time has ended the session that asks
                self._stores.watch(client, body, turn)
            case UnwatchStoreRequest():
                self._stores.watches.unwatch(client.session_id, body.component_id)
                self._answering.answer(DoneReply(), turn)
            case RevokeRequest():
                self._operators.revoke(client, body.component_id, turn)
            case TransferRequest():
                self._operators.transfer(client, body, turn)
            case _:
                assert_never(body)

    def _register(
        self, client: ServedClient, body: RegisterRequest, turn: Turn
    ) -> None:
        if not client.principal.may_contend(body.component_id):
            self._answering.fail(
                Failure.NOT_ALLOWED,
                f"{client.principal.name} may not contend for {body.component_id}",
                turn,
            )
            return
        claimed = 0 if body.claim is None else body.claim.epoch
        epoch_known = max(body.epoch_ended, claimed)
        self._steps.step(TimePassed(), turn)
        if not self._core.admits(epoch_known):
            # It would take no grant of ours, and keep others waiting at each (E8).
            self._refuse_epoch(client, body, epoch_known, turn)
            return
        cost_bytes = self._cost_bytes(body)
        if cost_bytes and not self._budget.admits(cost_bytes, now_ns=turn.now_ns):
            self._answering.fail(Failure.LIMIT_REACHED, NO_ROOM, turn)
            return
        if body.epoch_ended:
            self._steps.step(
                EpochReported(
                    component_id=body.component_id,
                    epoch=body.epoch_ended,
                    is_ended=True,
                ),
                turn,
            )
        claim = body.claim
        self._steps.step(
            ContenderRegistered(
                session_id=client.session_id,
                component_id=body.component_id,
                contender_id=body.contender_id,
                confirm_timeout_ns=body.confirm_timeout_ns,
                ticket=body.ticket,
                claim=None
                if claim is None
                else ClaimReported(
                    leader_session_id=claim.leader_session_id,
                    epoch=claim.epoch,
                    confirm_count=claim.confirm_count,
                    address=claim.address,
                ),
            ),
            turn,
        )
        if cost_bytes and not self._is_registered(body):
            self._budget.give_back(cost_bytes)  # the election has refused it

    def _refuse_epoch(
        self, client: ServedClient, body: RegisterRequest, epoch: int, turn: Turn
    ) -> None:
        """Refuse a contender that is ahead of us; what it claims is void here."""
        self._steps.perform(
            RefuseEpoch(component_id=body.component_id, epoch=epoch), turn
        )
        component = self._core.component(body.component_id)
        if self._clients.get(client.session_id) is None:
            return  # time has ended the session that asks
        self._answering.answer(
            FailedReply(
                reason=Failure.EPOCH_AHEAD,
                detail=f"epoch {epoch} is more than a day ahead of this server's clock",
                epoch_max=None if component is None else component.epoch_max,
            ),
            turn,
        )
        if body.claim is not None:
            affirmation = AffirmationRecord(
                component_id=body.component_id,
                contender_id=body.contender_id,
                leader_session_id=body.claim.leader_session_id,
                epoch=body.claim.epoch,
            )
            revoked = Revoked(session_id=client.session_id, affirmation=affirmation)
            self._answering.push(client.session_id, revoked, turn)

    def _is_registered(self, body: RegisterRequest) -> bool:
        component = self._core.component(body.component_id)
        return component is not None and body.contender_id in component.contenders

    def _cost_bytes(self, body: RegisterRequest) -> int:
        """Return what a contender costs that may be added; 0 if it is there."""
        if self._is_registered(body):
            return 0  # it asks again
        cost_bytes = CONTENDER_COST_BYTES + name_cost_bytes(body.component_id)
        if self._core.component(body.component_id) is None:
            cost_bytes += COMPONENT_COST_BYTES + name_cost_bytes(body.component_id)
        return cost_bytes

    def _confirm(self, client: ServedClient, body: ConfirmRequest, turn: Turn) -> None:
        if not body.address.isprintable():
            self._answering.fail(Failure.INVALID, "an address must be printable", turn)
            return
        self._steps.step(
            LeadershipConfirmed(
                session_id=client.session_id,
                component_id=body.component_id,
                contender_id=body.contender_id,
                leader_session_id=body.leader_session_id,
                confirm_count=body.confirm_count,
                address=body.address,
            ),
            turn,
        )

    def _subscribe(
        self, client: ServedClient, body: SubscribeRequest, turn: Turn
    ) -> None:
        is_heard = client.principal.may_contend(body.component_id)
        if body.epoch_seen and is_heard:
            self._steps.step(
                EpochReported(
                    component_id=body.component_id,
                    epoch=body.epoch_seen,
                    is_ended=body.is_ended_seen,
                ),
                turn,
            )
        else:
            self._steps.step(TimePassed(), turn)
        if self._clients.get(client.session_id) is None:
            return  # time has ended the session that asks
        subscriptions, session_id = self._subscriptions, client.session_id
        is_new = not subscriptions.has(session_id, body.component_id)
        if is_new and not subscriptions.is_full(session_id):
            cost_bytes = SUBSCRIPTION_COST_BYTES + name_cost_bytes(body.component_id)
            if not self._budget.admits(cost_bytes, now_ns=turn.now_ns):
                self._answering.fail(Failure.LIMIT_REACHED, NO_ROOM, turn)
                return
        revision = subscriptions.subscribe(session_id, body.component_id)
        if revision is None:
            self._answering.fail(
                Failure.LIMIT_REACHED,
                f"a session has at most {subscriptions.count_max} subscriptions",
                turn,
            )
            return
        if self._core.is_undecided:
            self._news.wait(client, turn)
        publication = self._core.publication(body.component_id)
        if (
            body.epoch_seen
            and not is_heard
            and not self._core.is_undecided
            and (publication is None or publication.leader is None)
            and (publication is None or publication.epoch < body.epoch_seen)
        ):
            # It holds a leader of an earlier server's time.  Its report changes nothing
            # for others; that there is no leader, it is told alone.
            publication = Publication(
                epoch=body.epoch_seen, confirm_count=0, leader=None
            )
        self._answering.answer(
            SnapshotReply(
                revision=revision,
                is_undecided=self._core.is_undecided,
                publication=None
                if publication is None
                else publication_to_record(publication),
            ),
            turn,
        )


def _component_problem(component_id: str) -> str | None:
    """Return what is wrong with the component id of a request, or None."""
    cluster_id, slash, name = component_id.partition("/")
    if not slash or not cluster_id or not name or "/" in name:
        return "a component is named cluster/component"
    if not component_id.isprintable():
        return "a component's name must be printable"
    return None
