"""
`LeaderService`: one request in, answers out; what a LeaderServer is without sockets.

Theory of operation
-------------------
A service sits between messages and the `ElectionCore`.  It knows which secret is which
session, and where its client is reached; it checks rights and limits, turns requests
into events, and the core's effects into messages.  It opens no socket, reads no clock
and starts no thread: the LeaderServer, the embedded backend and the simulation are
three shells around this one class.  Its storage and its source of secrets are given to
it, so with a deterministic pair of those the same history has the same outcome.

Three rules keep strangers out.  A session is named by a secret that the server drew,
never by a routing id; under CURVE the secret is worth nothing under another key.  A
request is taken only if its number is above all earlier ones of its session, so what
was recorded can not be played again.  And every answer goes to where the newest
request of its session came from.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from attrs import Factory, define, field, frozen, validators

from election.core import ElectionConfig, ElectionCore
from election.effects import (
    AcceptConfirmation,
    AcceptRegistration,
    AcknowledgeHeartbeat,
    Affirmation,
    CloseSession,
    ElectionEffect,
    GrantLeadership,
    OpenSession,
    PublishLeader,
    RecordEpoch,
    RefuseConfirmation,
    RefuseEpoch,
    RefuseRegistration,
    RefuseSession,
    RegistrationRefusal,
    RevokeLeadership,
)
from election.events import (
    ClaimReported,
    ConnectionClosed,
    ContenderRegistered,
    ContenderWithdrawn,
    ElectionEvent,
    EpochReported,
    HeartbeatReceived,
    LeadershipConfirmed,
    RevocationAcknowledged,
    RevokeRequested,
    SessionCloseRequested,
    SessionExpireRequested,
    SessionRequested,
    TimePassed,
)
from leaderserver.client_table import ClientTable, ServedClient
from leaderserver.codec import publication_to_record
from leaderserver.inspection import (
    inspect_components,
    inspect_contenders,
    inspect_sessions,
)
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    AffirmationRecord,
    CleanupRequest,
    CloseSessionRequest,
    CommitRequest,
    ConfirmRequest,
    ContendersRequest,
    DoneReply,
    ExpireRequest,
    FailedReply,
    Failure,
    GetRequest,
    Granted,
    HeartbeatRequest,
    Hello,
    LeadersRequest,
    ListRequest,
    Published,
    RefusedHello,
    RegisteredReply,
    RegisterRequest,
    Reply,
    ReplyBody,
    RequestBody,
    RevocationFinishedRequest,
    Revoked,
    RevokedReply,
    RevokeRequest,
    SessionEnded,
    SessionsRequest,
    SessionUnknown,
    SnapshotReply,
    StatusReply,
    StatusRequest,
    SubscribeRequest,
    ToClient,
    ToServer,
    UnsubscribeRequest,
    Welcome,
    WithdrawRequest,
)
from leaderserver.store_desk import StoreDesk
from leaderserver.subscriptions import Subscriptions
from nameservice import StorageError, get_logger
from transport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from election.epochs import EpochSource
    from leaderserver.storage import LeaderStorage
    from transport import Principal


__all__ = ["Broadcast", "LeaderService", "Outgoing", "Send", "ServiceConfig"]


@frozen(kw_only=True)
class ServiceConfig:
    """
    The limits of a `LeaderService`, and what it tells its clients of itself.

    Attributes:
        lease_ns_min: Shorter leases are lengthened to this.
        lease_ns_max: Longer ones are shortened to this; also how long the service is
            undecided after its start.
        session_timeout_ns_min: Shorter session timeouts are lengthened to this.
        session_timeout_ns_max: Longer ones are shortened to this.
        subscription_count_max: Subscriptions of one session.
        session_count_per_connection_max: Sessions over one connection; a client needs
            one at a time.
        publish_port: Where changes are published, on the host of the request channel.
        publish_address: Where they are published instead, or None.
    """

    lease_ns_min: int = field(validator=validators.ge(1))
    lease_ns_max: int = field(validator=validators.ge(1))
    session_timeout_ns_min: int = field(validator=validators.ge(1))
    session_timeout_ns_max: int = field(validator=validators.ge(1))
    subscription_count_max: int = field(default=10_000, validator=validators.ge(1))
    session_count_per_connection_max: int = field(
        default=16, validator=validators.ge(1)
    )
    publish_port: int = 0
    publish_address: str | None = None


@frozen(kw_only=True)
class Send:
    """Send *message* to the client that is reached at *peer*."""

    peer: Hashable
    message: ToClient


@frozen(kw_only=True)
class Broadcast:
    """Send *message* once, to all who subscribed to its component."""

    message: Published


Outgoing: TypeAlias = Send | Broadcast


@define(kw_only=True)
class _Turn:
    """
    One call of the service: what it sends, and whom it answers.

    Attributes:
        now_ns: When it is.
        outgoing: What to send so far.
        answer_to: The client and number of the request being handled, or None.
    """

    now_ns: int
    outgoing: list[Outgoing] = Factory(list)
    answer_to: tuple[ServedClient, int] | None = None


@final
class LeaderService:
    """
    Sessions, rights, elections and stores, without I/O of its own.

    Not thread-safe: one shell drives it.

    Args:
        config: Limits.
        election_config: Limits of the election core.
        epochs: Where epochs come from.
        storage: What outlives the service, or pretends to.
        draw_secret: Returns that many bytes nobody can guess.
        now_ns: When it starts.
    """

    def __init__(
        self,
        config: ServiceConfig,
        election_config: ElectionConfig,
        *,
        epochs: EpochSource,
        storage: LeaderStorage,
        draw_secret: Callable[[int], bytes],
        now_ns: int,
    ) -> None:
        self._config = config
        self._storage = storage
        self._draw_secret = draw_secret
        self._core = ElectionCore(
            election_config,
            epochs=epochs,
            recorded_epochs=storage.recorded_epochs(),
            now_ns=now_ns,
        )
        # What names this server to its clients: the core's own moves on when somebody
        # reports an epoch above it.
        self._incarnation = self._core.incarnation
        self._started_ns = now_ns
        self._subscriptions = Subscriptions(count_max=config.subscription_count_max)
        self._clients = ClientTable()
        self._store_desk = StoreDesk(self._core, storage)
        self._counts: Counter[str] = Counter()
        self._log_budget = LogBudget()
        self._log = get_logger(component="leaderserver")

    @property
    def core(self) -> ElectionCore:
        """Return the election, to be read."""
        return self._core

    @property
    def session_count(self) -> int:
        """Return how many sessions there are."""
        return len(self._clients)

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` must be called, or None if it need not be."""
        return self._core.next_deadline_ns()

    def count(self, name: str) -> None:
        """Count something that the shell saw, such as a malformed frame."""
        self._counts[name] += 1

    # -- what the shell tells ------------------------------------------------------

    def advance(self, *, now_ns: int) -> Sequence[Outgoing]:
        """Let time pass; return what to send, in order."""
        turn = _Turn(now_ns=now_ns)
        self._step(TimePassed(), turn)
        return turn.outgoing

    def connection_closed(
        self, connection: Hashable, *, now_ns: int
    ) -> Sequence[Outgoing]:
        """Take note that *connection* closed; return what to send, in order."""
        turn = _Turn(now_ns=now_ns)
        for client in self._clients.connection_closed(connection):
            self._step(ConnectionClosed(session_id=client.session_id), turn)
        return turn.outgoing

    def receive(
        self,
        message: ToServer,
        *,
        peer: Hashable,
        connection: Hashable,
        principal: Principal,
        now_ns: int,
    ) -> Sequence[Outgoing]:
        """
        Take one message.

        Args:
            message: What came.
            peer: Where an answer goes: a routing id.
            connection: Over which connection it came.
            principal: Who sent it, as the transport has authenticated it.
            now_ns: When it is.

        Returns:
            What to send, in order.
        """
        turn = _Turn(now_ns=now_ns)
        if isinstance(message, Hello):
            self._hello(message, peer, connection, principal, turn)
            return turn.outgoing
        client = self._clients.by_secret(message.secret)
        if client is None or client.principal != principal:
            if client is not None:
                self._counts["requests_foreign_key"] += 1
                if self._may_log("request.foreign-key", turn):
                    self._log.warning(
                        "request.foreign-key",
                        client=principal.name,
                        session_id=client.session_id,
                    )
            self._counts["requests_session_unknown"] += 1
            unknown = SessionUnknown(
                number=message.number, incarnation=self._incarnation
            )
            turn.outgoing.append(Send(peer=peer, message=unknown))
            return turn.outgoing
        if message.number <= client.number:
            self._counts["requests_repeated"] += 1
            return turn.outgoing
        client.number = message.number
        self._clients.move(client, peer, connection)
        self._counts["requests"] += 1
        turn.answer_to = (client, message.number)
        self._request(client, message.number, message.body, turn)
        return turn.outgoing

    def inject(self, event: ElectionEvent, *, now_ns: int) -> Sequence[Outgoing]:
        """Let *event* happen; how leadership control reaches the election."""
        turn = _Turn(now_ns=now_ns)
        self._step(event, turn)
        return turn.outgoing

    # -- sessions ------------------------------------------------------------------

    def _hello(
        self,
        message: Hello,
        peer: Hashable,
        connection: Hashable,
        principal: Principal,
        turn: _Turn,
    ) -> None:
        known = self._clients.by_nonce(peer, message.nonce)
        if known is not None:
            if known.principal == principal:
                self._welcome(known, turn)
            return
        if not principal.may_observe:
            self._refuse_hello(
                message,
                peer,
                Failure.NOT_ALLOWED,
                f"{principal.name} may do nothing",
                turn,
            )
            return
        config = self._config
        if (
            self._clients.count_over(connection)
            >= config.session_count_per_connection_max
        ):
            self._refuse_hello(
                message,
                peer,
                Failure.LIMIT_REACHED,
                "this connection has as many sessions as it may have",
                turn,
            )
            return
        session_timeout_ns = min(
            max(message.session_timeout_ns, config.session_timeout_ns_min),
            config.session_timeout_ns_max,
        )
        lease_ns = min(
            max(message.lease_ns, config.lease_ns_min),
            config.lease_ns_max,
            session_timeout_ns // 2,
        )
        client = ServedClient(
            session_id=self._draw_secret(8).hex(),
            secret=self._draw_secret(32),
            nonce=message.nonce,
            principal=principal,
            opened_by=peer,
            peer=peer,
        )
        shown = message.client if message.client.isprintable() else repr(message.client)
        name = f"{principal.name}, {shown}" if principal.public_key else shown
        event = SessionRequested(
            session_id=client.session_id,
            session_timeout_ns=session_timeout_ns,
            lease_ns=lease_ns,
            client=name,
        )
        self._clients.add(client)
        self._clients.move(client, peer, connection)
        self._step(event, turn)

    def _welcome(self, client: ServedClient, turn: _Turn) -> None:
        session = self._core.session(client.session_id)
        assert session is not None
        welcome = Welcome(
            nonce=client.nonce,
            secret=client.secret,
            session_id=client.session_id,
            session_timeout_ns=session.session_timeout_ns,
            lease_ns=session.lease_ns,
            incarnation=self._incarnation,
            publish_port=self._config.publish_port,
            publish_address=self._config.publish_address,
            is_durable=self._storage.is_durable,
        )
        turn.outgoing.append(Send(peer=client.peer, message=welcome))

    def _refuse_hello(
        self, message: Hello, peer: Hashable, reason: str, detail: str, turn: _Turn
    ) -> None:
        self._counts["sessions_refused"] += 1
        refused = RefusedHello(nonce=message.nonce, reason=reason, detail=detail)
        turn.outgoing.append(Send(peer=peer, message=refused))

    # -- requests ------------------------------------------------------------------

    def _request(
        self, client: ServedClient, number: int, body: RequestBody, turn: _Turn
    ) -> None:
        match body:
            case HeartbeatRequest(acknowledged=acknowledged):
                self._step(
                    HeartbeatReceived(
                        session_id=client.session_id,
                        number=number,
                        acknowledged=acknowledged,
                        is_late=client.is_late,
                    ),
                    turn,
                )
                return
            case CloseSessionRequest():
                self._answer(DoneReply(), turn)
                self._step(SessionCloseRequested(session_id=client.session_id), turn)
                return
            case LeadersRequest() | SessionsRequest() | StatusRequest():
                self._step(TimePassed(), turn)
                self._answer(self._list(body, turn), turn)
                return
            case ExpireRequest(session_id=session_id):
                self._expire(client, session_id, turn)
                return
        problem = _component_problem(body.component_id)
        if problem is not None:
            self._fail(Failure.INVALID, problem, turn)
            return
        match body:
            case RegisterRequest():
                self._register(client, body, turn)
            case WithdrawRequest():
                self._step(
                    ContenderWithdrawn(
                        session_id=client.session_id,
                        component_id=body.component_id,
                        contender_id=body.contender_id,
                    ),
                    turn,
                )
                self._answer(DoneReply(), turn)
            case ConfirmRequest():
                self._confirm(client, body, turn)
            case RevocationFinishedRequest():
                self._step(
                    RevocationAcknowledged(
                        session_id=client.session_id,
                        component_id=body.component_id,
                        contender_id=body.contender_id,
                        epoch=body.epoch,
                    ),
                    turn,
                )
                self._answer(DoneReply(), turn)
            case SubscribeRequest():
                self._subscribe(client, body, turn)
            case UnsubscribeRequest():
                self._subscriptions.unsubscribe(client.session_id, body.component_id)
                self._answer(DoneReply(), turn)
            case ContendersRequest():
                self._step(TimePassed(), turn)
                contenders = inspect_contenders(
                    self._core, body.component_id, now_ns=turn.now_ns
                )
                self._answer(contenders, turn)
            case GetRequest() | ListRequest() | CommitRequest() | CleanupRequest():
                self._step(TimePassed(), turn)
                self._answer(self._store_desk.answer(client, body), turn)
            case RevokeRequest():
                self._revoke(client, body.component_id, turn)
            case _:
                assert_never(body)

    def _register(
        self, client: ServedClient, body: RegisterRequest, turn: _Turn
    ) -> None:
        if not client.principal.may_contend(body.component_id):
            self._fail(
                Failure.NOT_ALLOWED,
                f"{client.principal.name} may not contend for {body.component_id}",
                turn,
            )
            return
        if body.epoch_ended:
            self._step(
                EpochReported(
                    component_id=body.component_id,
                    epoch=body.epoch_ended,
                    is_ended=True,
                ),
                turn,
            )
        claim = body.claim
        self._step(
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

    def _confirm(self, client: ServedClient, body: ConfirmRequest, turn: _Turn) -> None:
        if not body.address.isprintable():
            self._fail(Failure.INVALID, "an address must be printable", turn)
            return
        self._step(
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
        self, client: ServedClient, body: SubscribeRequest, turn: _Turn
    ) -> None:
        if body.epoch_seen:
            self._step(
                EpochReported(
                    component_id=body.component_id,
                    epoch=body.epoch_seen,
                    is_ended=body.is_ended_seen,
                ),
                turn,
            )
        else:
            self._step(TimePassed(), turn)
        if self._clients.get(client.session_id) is None:
            return  # time has ended the session that asks
        revision = self._subscriptions.subscribe(client.session_id, body.component_id)
        if revision is None:
            self._fail(
                Failure.LIMIT_REACHED,
                f"a session has at most {self._config.subscription_count_max} "
                "subscriptions",
                turn,
            )
            return
        publication = self._core.publication(body.component_id)
        self._answer(
            SnapshotReply(
                revision=revision,
                is_undecided=self._core.is_undecided,
                publication=None
                if publication is None
                else publication_to_record(publication),
            ),
            turn,
        )

    # -- operators -----------------------------------------------------------------

    def _expire(self, client: ServedClient, session_id: str, turn: _Turn) -> None:
        if not client.principal.is_admin:
            self._fail_not_admin(client, turn)
        elif self._clients.get(session_id) is None:
            self._fail(Failure.UNKNOWN_SESSION, f"no session {session_id}", turn)
        else:
            self._answer(DoneReply(), turn)
            self._step(SessionExpireRequested(session_id=session_id), turn)

    def _revoke(self, client: ServedClient, component_id: str, turn: _Turn) -> None:
        if not client.principal.is_admin:
            self._fail_not_admin(client, turn)
            return
        self._step(TimePassed(), turn)
        component = self._core.component(component_id)
        leadership = None if component is None else component.leadership
        if leadership is None:
            self._fail(Failure.NO_LEADER, f"nobody leads {component_id}", turn)
            return
        self._answer(
            RevokedReply(
                leader_session_id=leadership.leader_session_id, epoch=leadership.epoch
            ),
            turn,
        )
        self._step(RevokeRequested(component_id=component_id), turn)

    def _fail_not_admin(self, client: ServedClient, turn: _Turn) -> None:
        self._fail(
            Failure.NOT_ALLOWED, f"{client.principal.name} is not an admin", turn
        )

    def _list(
        self, body: LeadersRequest | SessionsRequest | StatusRequest, turn: _Turn
    ) -> ReplyBody:
        match body:
            case LeadersRequest(prefix=prefix, after=after):
                return inspect_components(self._core, prefix=prefix, after=after)
            case SessionsRequest(after=after):
                return inspect_sessions(self._core, after=after, now_ns=turn.now_ns)
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
            "subscriptions": len(self._subscriptions),
            "grants_total": self._core.grant_count,
            "stalls_total": self._core.stall_count,
            **{f"{name}_total": count for name, count in sorted(self._counts.items())},
        }

    # -- from the core -------------------------------------------------------------

    def _step(self, event: ElectionEvent, turn: _Turn) -> None:
        """Take one step of the core and perform its effects, in their order."""
        effects = self._core.step(event, now_ns=turn.now_ns)
        unrecorded: dict[str, None] = {}
        for effect in effects:
            if isinstance(effect, RecordEpoch):
                try:
                    self._storage.record_epoch(effect.component_id, effect.epoch)
                except StorageError as error:
                    # An epoch that is not on record must not be granted: a restart
                    # could grant it twice.  The core tries again in a lease.
                    self._log.error(
                        "epoch.unrecorded",
                        component_id=effect.component_id,
                        error=str(error),
                    )
                    unrecorded[effect.component_id] = None
            elif (
                isinstance(effect, GrantLeadership)
                and effect.affirmation.component_id in unrecorded
            ) or (
                isinstance(effect, PublishLeader)
                and effect.component_id in unrecorded
                and effect.publication.leader is not None
            ):
                continue
            else:
                self._perform(effect, turn)
        for component_id in unrecorded:
            self._step(RevokeRequested(component_id=component_id), turn)

    def _perform(self, effect: ElectionEffect, turn: _Turn) -> None:
        match effect:
            case OpenSession(session_id=session_id):
                self._log.info("session.opened", session_id=session_id)
                self._welcome(self._client(session_id), turn)
            case RefuseSession(session_id=session_id):
                client = self._client(session_id)
                self._counts["sessions_refused"] += 1
                refused = RefusedHello(
                    nonce=client.nonce,
                    reason=Failure.LIMIT_REACHED,
                    detail="the server has as many sessions as it may have",
                )
                turn.outgoing.append(Send(peer=client.peer, message=refused))
                self._clients.remove(client)
            case CloseSession(session_id=session_id, reason=reason):
                self._log.info(
                    "session.closed", session_id=session_id, reason=reason.value
                )
                client = self._client(session_id)
                ended = SessionEnded(
                    session_id=session_id,
                    reason=reason.value,
                    incarnation=self._incarnation,
                )
                turn.outgoing.append(Send(peer=client.peer, message=ended))
                self._subscriptions.drop(session_id)
                self._clients.remove(client)
            case AcknowledgeHeartbeat():
                self._acknowledge(effect, turn)
            case GrantLeadership(session_id=session_id, affirmation=affirmation):
                self._log.info(
                    "leadership.granted",
                    session_id=session_id,
                    component_id=affirmation.component_id,
                    epoch=affirmation.epoch,
                )
                granted = Granted(
                    session_id=session_id,
                    heartbeat_number=effect.heartbeat_number,
                    affirmation=_to_record(affirmation),
                )
                self._push(session_id, granted, turn)
            case RevokeLeadership(session_id=session_id, affirmation=affirmation):
                self._log.info(
                    "leadership.revoked",
                    session_id=session_id,
                    component_id=affirmation.component_id,
                    epoch=affirmation.epoch,
                )
                revoked = Revoked(
                    session_id=session_id, affirmation=_to_record(affirmation)
                )
                self._push(session_id, revoked, turn)
            case PublishLeader():
                self._publish(effect, turn)
            case AcceptRegistration(ticket=ticket):
                self._answer(RegisteredReply(ticket=ticket), turn)
            case RefuseRegistration(reason=reason):
                self._fail(_REGISTRATION_FAILURES[reason], reason.value, turn)
            case AcceptConfirmation():
                self._answer(DoneReply(), turn)
            case RefuseConfirmation(is_undecided=is_undecided):
                reason_text = Failure.UNDECIDED if is_undecided else Failure.STALE
                self._fail(reason_text, "the leadership is not yours", turn)
            case RefuseEpoch():
                self._counts["epochs_refused"] += 1
                if self._may_log("epoch.refused", turn):
                    self._log.warning(
                        "epoch.refused",
                        component_id=effect.component_id,
                        epoch=effect.epoch,
                    )
            case RecordEpoch():
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    def _acknowledge(self, effect: AcknowledgeHeartbeat, turn: _Turn) -> None:
        session = self._core.session(effect.session_id)
        assert session is not None
        acknowledged = session.acknowledged_number
        revisions = self._subscriptions.changed(
            effect.session_id, number=effect.number, acknowledged=acknowledged
        )
        self._answer(
            AcknowledgedHeartbeat(
                affirmations=[_to_record(a) for a in effect.affirmations],
                is_undecided=effect.is_undecided,
                revisions=dict(revisions),
            ),
            turn,
        )

    def _publish(self, effect: PublishLeader, turn: _Turn) -> None:
        leader = effect.publication.leader
        self._log.info(
            "leader.published",
            component_id=effect.component_id,
            epoch=effect.publication.epoch,
            address=None if leader is None else leader.address,
        )
        revision = self._subscriptions.publish(effect.component_id)
        if revision is not None:
            published = Published(
                component_id=effect.component_id,
                revision=revision,
                publication=publication_to_record(effect.publication),
            )
            turn.outgoing.append(Broadcast(message=published))

    def _may_log(self, event: str, turn: _Turn) -> bool:
        """Return whether what a stranger causes may fill another line of the log."""
        return self._log_budget.admits(event, now_ns=turn.now_ns)

    def _client(self, session_id: str) -> ServedClient:
        client = self._clients.get(session_id)
        assert client is not None
        return client

    def _push(self, session_id: str, message: ToClient, turn: _Turn) -> None:
        client = self._clients.get(session_id)
        if client is not None:
            turn.outgoing.append(Send(peer=client.peer, message=message))

    def _answer(self, body: ReplyBody, turn: _Turn) -> None:
        assert turn.answer_to is not None
        client, number = turn.answer_to
        message = Reply(number=number, body=body)
        turn.outgoing.append(Send(peer=client.peer, message=message))

    def _fail(self, reason: str, detail: str, turn: _Turn) -> None:
        self._counts["requests_failed"] += 1
        self._answer(FailedReply(reason=reason, detail=detail), turn)


_REGISTRATION_FAILURES: Final = {
    RegistrationRefusal.UNKNOWN_SESSION: Failure.UNKNOWN_SESSION,
    RegistrationRefusal.TOO_MANY_CONTENDERS: Failure.LIMIT_REACHED,
    RegistrationRefusal.TOO_MANY_COMPONENTS: Failure.LIMIT_REACHED,
    RegistrationRefusal.TAKEN_BY_ANOTHER_SESSION: Failure.TAKEN,
}


def _to_record(affirmation: Affirmation) -> AffirmationRecord:
    return AffirmationRecord(
        component_id=affirmation.component_id,
        contender_id=affirmation.contender_id,
        leader_session_id=affirmation.leader_session_id,
        epoch=affirmation.epoch,
    )


def _component_problem(component_id: str) -> str | None:
    """Return what is wrong with the component id of a request, or None."""
    cluster_id, slash, name = component_id.partition("/")
    if not slash or not cluster_id or not name or "/" in name:
        return "a component is named cluster/component"
    if not component_id.isprintable():
        return "a component's name must be printable"
    return None
