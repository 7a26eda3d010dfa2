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

from election import Delete, Put
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
from leaderserver.codec import publication_to_record
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    AffirmationRecord,
    CleanupRequest,
    CloseSessionRequest,
    CommitRequest,
    ComponentRecord,
    ComponentsReply,
    ConfirmRequest,
    ContenderRecord,
    ContendersReply,
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
    PathsReply,
    Published,
    PutRecord,
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
    SessionRecord,
    SessionsReply,
    SessionsRequest,
    SessionUnknown,
    SnapshotReply,
    StatusReply,
    StatusRequest,
    SubscribeRequest,
    ToClient,
    ToServer,
    UnsubscribeRequest,
    ValueReply,
    Welcome,
    WithdrawRequest,
)
from leaderserver.subscriptions import Subscriptions
from nameservice import StorageError, VersionMismatchError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from election import StoreOperation
    from election.component import Component
    from election.epochs import EpochSource
    from election.sessions import Session
    from leaderserver.storage import LeaderStorage
    from transport import Principal


__all__ = ["Broadcast", "LeaderService", "Outgoing", "Send", "ServiceConfig"]

_PAGE_SIZE: Final = 1_000
_SIZE_BYTES_MAX: Final = 1_000_000


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
        publish_port: Where changes are published, on the host of the request channel.
        publish_address: Where they are published instead, or None.
    """

    lease_ns_min: int = field(validator=validators.ge(1))
    lease_ns_max: int = field(validator=validators.ge(1))
    session_timeout_ns_min: int = field(validator=validators.ge(1))
    session_timeout_ns_max: int = field(validator=validators.ge(1))
    subscription_count_max: int = field(default=10_000, validator=validators.ge(1))
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
class _Client:
    """
    What the service knows of a session beside what the core does.

    Attributes:
        session_id: The session.
        secret: Its secret.
        nonce: What it was asked for with.
        principal: Who asked for it.
        opened_by: Where it was asked for from.
        peer: Where its newest request came from.
        connection: Over which connection that was.
        number: Its newest request.
    """

    session_id: str
    secret: bytes = field(repr=False)
    nonce: bytes = field(repr=False)
    principal: Principal
    opened_by: Hashable
    peer: Hashable
    connection: Hashable
    number: int = 0


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
    answer_to: tuple[_Client, int] | None = None


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
        self._started_ns = now_ns
        self._subscriptions = Subscriptions(count_max=config.subscription_count_max)
        self._clients: dict[str, _Client] = {}
        self._by_secret: dict[bytes, _Client] = {}
        self._by_nonce: dict[tuple[Hashable, bytes], _Client] = {}
        self._by_connection: dict[Hashable, dict[str, None]] = {}
        self._counts: Counter[str] = Counter()
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
        for session_id in self._by_connection.pop(connection, ()):
            self._clients[session_id].connection = None
            self._step(ConnectionClosed(session_id=session_id), turn)
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
        client = self._by_secret.get(message.secret)
        if client is None or client.principal != principal:
            if client is not None:
                self._counts["requests_foreign_key"] += 1
                self._log.warning(
                    "request.foreign-key",
                    client=principal.name,
                    session_id=client.session_id,
                )
            self._counts["requests_session_unknown"] += 1
            unknown = SessionUnknown(
                number=message.number, incarnation=self._core.incarnation
            )
            turn.outgoing.append(Send(peer=peer, message=unknown))
            return turn.outgoing
        if message.number <= client.number:
            self._counts["requests_repeated"] += 1
            return turn.outgoing
        client.number = message.number
        self._move(client, peer, connection)
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
        known = self._by_nonce.get((peer, message.nonce))
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
        session_timeout_ns = min(
            max(message.session_timeout_ns, config.session_timeout_ns_min),
            config.session_timeout_ns_max,
        )
        lease_ns = min(
            max(message.lease_ns, config.lease_ns_min),
            config.lease_ns_max,
            session_timeout_ns // 2,
        )
        client = _Client(
            session_id=self._draw_secret(8).hex(),
            secret=self._draw_secret(32),
            nonce=message.nonce,
            principal=principal,
            opened_by=peer,
            peer=peer,
            connection=None,
        )
        shown = message.client if message.client.isprintable() else repr(message.client)
        name = f"{principal.name}, {shown}" if principal.public_key else shown
        event = SessionRequested(
            session_id=client.session_id,
            session_timeout_ns=session_timeout_ns,
            lease_ns=lease_ns,
            client=name,
        )
        self._clients[client.session_id] = client
        self._by_secret[client.secret] = client
        self._by_nonce[peer, message.nonce] = client
        self._move(client, peer, connection)
        self._step(event, turn)

    def _welcome(self, client: _Client, turn: _Turn) -> None:
        session = self._core.session(client.session_id)
        assert session is not None
        welcome = Welcome(
            nonce=client.nonce,
            secret=client.secret,
            session_id=client.session_id,
            session_timeout_ns=session.session_timeout_ns,
            lease_ns=session.lease_ns,
            incarnation=self._core.incarnation,
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

    def _move(self, client: _Client, peer: Hashable, connection: Hashable) -> None:
        """Take note of where the client is now."""
        client.peer = peer
        if client.connection != connection:
            self._leave_connection(client)
            client.connection = connection
            self._by_connection.setdefault(connection, {})[client.session_id] = None

    def _leave_connection(self, client: _Client) -> None:
        sessions = self._by_connection.get(client.connection)
        if sessions is not None:
            sessions.pop(client.session_id, None)
            if not sessions:
                del self._by_connection[client.connection]

    def _forget(self, client: _Client) -> None:
        self._subscriptions.drop(client.session_id)
        self._leave_connection(client)
        del self._clients[client.session_id]
        del self._by_secret[client.secret]
        del self._by_nonce[client.opened_by, client.nonce]

    # -- requests ------------------------------------------------------------------

    def _request(
        self, client: _Client, number: int, body: RequestBody, turn: _Turn
    ) -> None:
        match body:
            case HeartbeatRequest(acknowledged=acknowledged):
                self._step(
                    HeartbeatReceived(
                        session_id=client.session_id,
                        number=number,
                        acknowledged=acknowledged,
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
                self._answer(self._contenders(body.component_id, turn), turn)
            case GetRequest() | ListRequest() | CommitRequest() | CleanupRequest():
                self._step(TimePassed(), turn)
                try:
                    self._store(client, body, turn)
                except StorageError as error:
                    self._log.error("storage.failed", error=str(error))
                    self._fail(Failure.STORAGE, str(error), turn)
            case RevokeRequest():
                self._revoke(client, body.component_id, turn)
            case _:
                assert_never(body)

    def _register(self, client: _Client, body: RegisterRequest, turn: _Turn) -> None:
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

    def _confirm(self, client: _Client, body: ConfirmRequest, turn: _Turn) -> None:
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

    def _subscribe(self, client: _Client, body: SubscribeRequest, turn: _Turn) -> None:
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
        if client.session_id not in self._clients:
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

    def _store(
        self,
        client: _Client,
        body: GetRequest | ListRequest | CommitRequest | CleanupRequest,
        turn: _Turn,
    ) -> None:
        match body:
            case GetRequest():
                found = self._storage.get(body.component_id, body.path)
                self._answer(
                    ValueReply(value=b"", version=0)
                    if found is None
                    else ValueReply(value=found.value, version=found.version),
                    turn,
                )
            case ListRequest():
                paths = self._storage.list(
                    body.component_id,
                    body.prefix,
                    after=body.after,
                    count_max=_PAGE_SIZE,
                )
                self._answer(
                    PathsReply(paths=list(paths), is_complete=len(paths) < _PAGE_SIZE),
                    turn,
                )
            case CommitRequest():
                self._commit(client, body, turn)
            case CleanupRequest():
                if not client.principal.may_contend(body.component_id):
                    self._fail(
                        Failure.NOT_ALLOWED,
                        f"{client.principal.name} may not clean up {body.component_id}",
                        turn,
                    )
                    return
                self._storage.cleanup(body.component_id)
                self._answer(DoneReply(), turn)
            case _:
                assert_never(body)

    def _commit(self, client: _Client, body: CommitRequest, turn: _Turn) -> None:
        if self._core.is_undecided:
            self._fail(
                Failure.UNDECIDED, "the server does not know yet who leads", turn
            )
            return
        if not self._core.leads(
            client.session_id, body.component_id, body.leader_session_id, body.epoch
        ):
            component = self._core.component(body.component_id)
            self._answer(
                FailedReply(
                    reason=Failure.STALE,
                    detail=f"epoch {body.epoch} does not lead",
                    epoch_max=0 if component is None else component.epoch_max,
                ),
                turn,
            )
            return
        operations = [
            Put(record.path, record.value, record.version)
            if isinstance(record, PutRecord)
            else Delete(record.path, record.version)
            for record in body.operations
        ]
        problem = _operations_problem(operations)
        if problem is not None:
            self._fail(Failure.INVALID, problem, turn)
            return
        try:
            self._storage.commit(body.component_id, operations)
        except VersionMismatchError as error:
            self._answer(
                FailedReply(
                    reason=Failure.VERSION_MISMATCH,
                    detail=str(error),
                    path=error.path,
                    version=error.version,
                    version_expected=error.version_expected,
                ),
                turn,
            )
            return
        self._answer(DoneReply(), turn)

    # -- operators -----------------------------------------------------------------

    def _expire(self, client: _Client, session_id: str, turn: _Turn) -> None:
        if not client.principal.is_admin:
            self._fail_not_admin(client, turn)
        elif session_id not in self._clients:
            self._fail(Failure.UNKNOWN_SESSION, f"no session {session_id}", turn)
        else:
            self._answer(DoneReply(), turn)
            self._step(SessionExpireRequested(session_id=session_id), turn)

    def _revoke(self, client: _Client, component_id: str, turn: _Turn) -> None:
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

    def _fail_not_admin(self, client: _Client, turn: _Turn) -> None:
        self._fail(
            Failure.NOT_ALLOWED, f"{client.principal.name} is not an admin", turn
        )

    def _list(
        self, body: LeadersRequest | SessionsRequest | StatusRequest, turn: _Turn
    ) -> ReplyBody:
        match body:
            case LeadersRequest(prefix=prefix, after=after):
                components = [
                    self._component_record(component)
                    for component in self._core.components
                    if component.component_id.startswith(prefix)
                    and component.component_id > after
                    and (component.contenders or component.leadership)
                ]
                return ComponentsReply(
                    components=components[:_PAGE_SIZE],
                    is_complete=len(components) <= _PAGE_SIZE,
                )
            case SessionsRequest(after=after):
                sessions = sorted(
                    (s for s in self._core.sessions if s.session_id > after),
                    key=lambda session: session.session_id,
                )
                return SessionsReply(
                    sessions=[
                        self._session_record(session, turn.now_ns)
                        for session in sessions[:_PAGE_SIZE]
                    ],
                    is_complete=len(sessions) <= _PAGE_SIZE,
                )
            case StatusRequest():
                return StatusReply(figures=self.figures(now_ns=turn.now_ns))
            case _:
                assert_never(body)

    def _component_record(self, component: Component) -> ComponentRecord:
        publication = component.publication
        return ComponentRecord(
            component_id=component.component_id,
            publication=None
            if publication is None
            else publication_to_record(publication),
            contender_count=len(component.contenders),
            epoch=component.epoch_max,
        )

    def _session_record(self, session: Session, now_ns: int) -> SessionRecord:
        component_ids = sorted({name for name, _ in session.contenders})
        leads = []
        for component_id in component_ids:
            component = self._core.component(component_id)
            leadership = None if component is None else component.leadership
            if leadership is not None and leadership.session_id == session.session_id:
                leads.append(component_id)
        return SessionRecord(
            session_id=session.session_id,
            client=session.client,
            component_ids=component_ids,
            leads_component_ids=leads,
            age_ns=now_ns - session.opened_ns,
            last_heard_ns=max(0, now_ns - session.last_contact_ns),
            timeout_ns=session.session_timeout_ns,
        )

    def _contenders(self, component_id: str, turn: _Turn) -> ContendersReply:
        component = self._core.component(component_id)
        if component is None:
            return ContendersReply(contenders=[])
        leadership = component.leadership
        leader_id = None if leadership is None else leadership.contender_id
        in_order = sorted(
            component.in_order(), key=lambda c: c.contender_id != leader_id
        )
        records = []
        for contender in in_order:
            session = self._core.session(contender.session_id)
            assert session is not None
            is_leader = contender.contender_id == leader_id
            records.append(
                ContenderRecord(
                    contender_id=contender.contender_id,
                    session_id=contender.session_id,
                    address=leadership.address
                    if is_leader and leadership is not None
                    else None,
                    is_leader=is_leader,
                    session_age_ns=turn.now_ns - session.opened_ns,
                    last_heard_ns=max(0, turn.now_ns - session.last_contact_ns),
                )
            )
        return ContendersReply(contenders=records)

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
                self._welcome(self._clients[session_id], turn)
            case RefuseSession(session_id=session_id):
                client = self._clients[session_id]
                self._counts["sessions_refused"] += 1
                refused = RefusedHello(
                    nonce=client.nonce,
                    reason=Failure.LIMIT_REACHED,
                    detail="the server has as many sessions as it may have",
                )
                turn.outgoing.append(Send(peer=client.peer, message=refused))
                self._forget(client)
            case CloseSession(session_id=session_id, reason=reason):
                self._log.info(
                    "session.closed", session_id=session_id, reason=reason.value
                )
                client = self._clients[session_id]
                ended = SessionEnded(
                    session_id=session_id,
                    reason=reason.value,
                    incarnation=self._core.incarnation,
                )
                turn.outgoing.append(Send(peer=client.peer, message=ended))
                self._forget(client)
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


def _operations_problem(operations: Sequence[StoreOperation]) -> str | None:
    """Return what is wrong with a commit, or None: clients check, others may not."""
    paths = {operation.path for operation in operations}
    if len(paths) < len(operations):
        return "a commit names a path once"
    if not all(path.isprintable() for path in paths):
        return "a path must be printable"
    size_bytes = sum(len(o.value) for o in operations if isinstance(o, Put))
    if size_bytes > _SIZE_BYTES_MAX:
        return f"a commit is at most {_SIZE_BYTES_MAX} bytes"
    return None
