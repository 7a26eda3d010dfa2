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

Its parts, of which each knows only those below it:

===============  =====================================================================
`Batches`        what waits until the requests that arrived with it are taken
`DecisionNews`   who is told, once, that the server is decided
`Requests`       what sessions ask for: rights, limits, registrations, subscriptions
`Operators`      what operators ask for, and what they are shown
`ElectionSteps`  the election goes on; its effects become messages, epochs are recorded
`StoreRequests`  leader stores: what is asked, what is answered, who watches
`Greeting`       which client gets a session
`Answering`      answers, messages to sessions, and the log
===============  =====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from election.config import ElectionConfig
from election.core import ElectionCore
from election.events import (
    ConnectionClosed,
    ElectionEvent,
    LimitsChanged,
    SessionExpireRequested,
    TimePassed,
)
from leaderserver.codec import Malformed, MalformedHello, MalformedRequest
from leaderserver.messages import (
    BatchRequest,
    FailedReply,
    Failure,
    Hello,
    RefusedHello,
    Reply,
    SessionUnknown,
    ToServer,
)
from leaderserver.server.answering import Answering
from leaderserver.server.batches import Batches, Ordered
from leaderserver.server.core.audit import AuditedRequest
from leaderserver.server.core.client_table import ClientTable
from leaderserver.server.core.state_budget import StateBudget
from leaderserver.server.core.state_cost import state_cost_bytes
from leaderserver.server.core.storage_queue import StorageQueue
from leaderserver.server.core.subscriptions import Subscriptions
from leaderserver.server.core.turn import Outgoing, Send, Turn
from leaderserver.server.decision_news import DecisionNews
from leaderserver.server.election_steps import ElectionSteps
from leaderserver.server.greeting import Greeting
from leaderserver.server.operators import Operators
from leaderserver.server.requests import Requests
from leaderserver.server.service_config import ServiceConfig
from leaderserver.server.store_requests import StoreRequests
from nameservice import get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from election.component import Component
    from election.epochs import EpochSource
    from leaderserver.server.core.storage_queue import StorageWork
    from leaderserver.server.storage import LeaderStorage
    from leaderserver.server.storage_work import Outcome
    from zmqtransport import Principal


__all__ = ["LeaderService"]


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
        draw_secret: Returns that many bytes that cannot be guessed.
        now_ns: When it starts.
        is_storage_apart: Whether the shell does what `next_storage_work` returns,
            wherever it likes.  Otherwise the service does it before it returns.
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
        is_storage_apart: bool = False,
    ) -> None:
        recorded_epochs = dict(storage.recorded_epochs())
        self._core = ElectionCore(
            election_config,
            epochs=epochs,
            recorded_epochs=recorded_epochs,
            now_ns=now_ns,
        )
        # What names this server to its clients: the core's own moves on when somebody
        # reports an epoch above it.
        self._incarnation = self._core.incarnation
        self._clients = ClientTable()
        self._subscriptions = Subscriptions(count_max=config.subscription_count_max)
        self._budget = StateBudget(
            config.state_bytes_max,
            lambda: state_cost_bytes(
                self._clients, self._core, self._subscriptions, self._stores.watches
            ),
        )
        self._is_storage_apart = is_storage_apart
        self._storage_queue = StorageQueue()
        self._answering = Answering(self._core, self._clients)
        self._counts = self._answering.counts
        self._greeting = Greeting(
            config,
            core=self._core,
            clients=self._clients,
            budget=self._budget,
            answering=self._answering,
            is_durable=storage.is_durable,
            draw_secret=draw_secret,
            now_ns=now_ns,
        )
        self._stores = StoreRequests(
            core=self._core,
            clients=self._clients,
            answering=self._answering,
            budget=self._budget,
            queue=self._storage_queue,
            storage=None if is_storage_apart else storage,
            watch_count_max=_watch_count_max(config.subscription_count_max),
            cached_bytes_max=config.cached_bytes_max,
        )
        self._steps = ElectionSteps(
            self._core,
            recorded_epochs=recorded_epochs,
            clients=self._clients,
            subscriptions=self._subscriptions,
            answering=self._answering,
            greeting=self._greeting,
            stores=self._stores,
            storage=storage,
            queue=self._storage_queue,
            is_storage_apart=is_storage_apart,
        )
        self._operators = Operators(
            self._core,
            steps=self._steps,
            clients=self._clients,
            subscriptions=self._subscriptions,
            budget=self._budget,
            answering=self._answering,
            stores=self._stores,
            storage=storage,
            queue=self._storage_queue,
            now_ns=now_ns,
        )
        self._news = DecisionNews(self._core, self._clients)
        self._requests = Requests(
            self._core,
            news=self._news,
            steps=self._steps,
            clients=self._clients,
            subscriptions=self._subscriptions,
            budget=self._budget,
            answering=self._answering,
            stores=self._stores,
            operators=self._operators,
        )
        self._batches = Batches(
            self._requests, clients=self._clients, answering=self._answering
        )
        self._log = get_logger(component="leaderserver")

    @property
    def core(self) -> ElectionCore:
        """Return the election, to be read."""
        return self._core

    @property
    def session_count(self) -> int:
        """Return how many sessions there are."""
        return len(self._clients)

    def is_subscribed(self, session_id: str, component_id: str) -> bool:
        """Return whether a session is told of what becomes of a component."""
        return self._subscriptions.has(session_id, component_id)

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` must be called, or None if it need not be."""
        waits_since_ns = self._batches.first_arrived_ns
        if waits_since_ns is None:
            waits_since_ns = self._news.due_ns
        if waits_since_ns is not None:
            return waits_since_ns
        return self._core.next_deadline_ns()

    def count(self, name: str) -> None:
        """Count something that the shell saw, such as a malformed frame."""
        self._counts[name] += 1

    def figures(self, *, now_ns: int) -> dict[str, str | int | float]:
        """Return the service's figures by name, as ZooKeeper's ``mntr`` has them."""
        return self._operators.figures(now_ns=now_ns)

    # -- what the shell tells ------------------------------------------------------

    def advance(self, *, now_ns: int) -> Sequence[Outgoing]:
        """Take note of the time; return what to send, in order."""
        turn = Turn(now_ns=now_ns)
        self._steps.step(TimePassed(), turn)
        self._batches.take_next(turn)
        self._news.tell_some(turn)
        return turn.outgoing

    def connection_closed(
        self, connection: Hashable, *, now_ns: int
    ) -> Sequence[Outgoing]:
        """Record that *connection* closed; return what to send, in order."""
        turn = Turn(now_ns=now_ns)
        for client in self._clients.connection_closed(connection):
            self._steps.step(ConnectionClosed(session_id=client.session_id), turn)
        return turn.outgoing

    def receive(
        self,
        message: ToServer | Malformed,
        *,
        peer: Hashable,
        connection: Hashable,
        principal: Principal,
        now_ns: int,
    ) -> Sequence[Outgoing]:
        """
        Take one message.

        Args:
            message: What came, or what could be read of it.
            peer: Where an answer goes: a routing id.
            connection: Over which connection it came.
            principal: Who sent it, as the transport has authenticated it.
            now_ns: When it is.

        Returns:
            What to send, in order.
        """
        turn = Turn(now_ns=now_ns)
        if isinstance(message, Hello):
            requested = self._greeting.admit(message, peer, connection, principal, turn)
            if requested is not None:
                self._steps.step(requested, turn)
                if self._clients.get(requested.session_id) is None:
                    self._greeting.refused(message)
            return turn.outgoing
        if isinstance(message, MalformedHello):
            self._counts["sessions_refused"] += 1
            invalid = RefusedHello(
                nonce=message.nonce, reason=Failure.INVALID, detail=message.detail
            )
            turn.outgoing.append(Send(peer=peer, message=invalid))
            return turn.outgoing
        client = self._clients.by_secret(message.secret)
        if client is None or (
            client.principal is not principal and client.principal != principal
        ):
            if client is not None:
                self._counts["requests_foreign_key"] += 1
                if self._answering.may_log("request.foreign-key", turn):
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
        if isinstance(message, MalformedRequest):
            # Answered where it came from, so that its sender need not wait, and nothing
            # else: it moves neither the session nor its number.
            failed = FailedReply(
                reason=Failure.INVALID, detail=f"malformed: {message.detail}"
            )
            self._answering.count(failed)
            reply = Reply(number=message.number, body=failed)
            turn.outgoing.append(Send(peer=peer, message=reply))
            return turn.outgoing
        client.number = message.number
        self._clients.move(client, peer, connection)
        self._counts["requests"] += 1
        turn.answer_to = (client, message.number)
        if isinstance(message.body, AuditedRequest):
            turn.audited = message.body
        if isinstance(message.body, BatchRequest) or (
            client.batch_count and isinstance(message.body, Ordered)
        ):
            self._batches.put_off(client, message.number, message.body, turn)
        else:
            self._requests.take(client, message.number, message.body, turn)
        return turn.outgoing

    def component(self, component_id: str) -> Component | None:
        """Return what the election knows of a component, or None."""
        return self._core.component(component_id)

    def inject(self, event: ElectionEvent, *, now_ns: int) -> Sequence[Outgoing]:
        """Have *event* happen; how leadership control reaches the election."""
        turn = Turn(now_ns=now_ns)
        self._steps.step(event, turn)
        return turn.outgoing

    def apply_limits(
        self,
        limits: LimitsChanged,
        *,
        subscription_count_max: int,
        state_bytes_max: int,
        cached_bytes_max: int,
        now_ns: int,
    ) -> Sequence[Outgoing]:
        """Take other limits from now on; return what to send, in order."""
        self._budget.limit(state_bytes_max)
        self._stores.cache.limit(cached_bytes_max)
        self._subscriptions.count_max = subscription_count_max
        self._stores.watches.count_max = _watch_count_max(subscription_count_max)
        return self.inject(limits, now_ns=now_ns)

    def apply_rights(
        self, principal_of: Callable[[str], Principal | None], *, now_ns: int
    ) -> Sequence[Outgoing]:
        """
        End the sessions of all who may less than when they came; return what to send.

        Who may as much or more goes on.

        Args:
            principal_of: Returns who holds a public key now, or None.
            now_ns: When it is.
        """
        turn = Turn(now_ns=now_ns)
        for client in self._clients.all():
            before = client.principal
            if (
                before.public_key is None
                or self._clients.get(client.session_id) is None
            ):
                continue  # without keys all is allowed; or time has just ended it
            principal = principal_of(before.public_key)
            if principal is not None and principal.includes(before):
                client.principal = principal
                continue
            self._counts["sessions_ended_by_rights"] += 1
            self._log.info(
                "session.rights_lost", session_id=client.session_id, client=before.name
            )
            self._steps.step(SessionExpireRequested(session_id=client.session_id), turn)
        return turn.outgoing

    # -- the storage ---------------------------------------------------------------

    def next_storage_work(self) -> StorageWork | None:
        """
        Return what to do next with the storage, or None: asked after every call.

        What came of it is told to `storage_done`.  Only for a shell that keeps the
        storage apart.
        """
        assert self._is_storage_apart
        return self._storage_queue.next_work()

    def storage_done(
        self, work: StorageWork, outcomes: Sequence[Outcome], *, now_ns: int
    ) -> Sequence[Outgoing]:
        """Take what came of *work*; return what to send, in order."""
        turn = Turn(now_ns=now_ns)
        self._steps.catch_up(turn)  # what has ended by now is not granted
        self._steps.storage_done(work, outcomes, turn)
        return turn.outgoing


_STORE_WATCH_COUNT_MAX: Final = 1_000


def _watch_count_max(subscription_count_max: int) -> int:
    """Return how many stores one session may watch."""
    return min(subscription_count_max, _STORE_WATCH_COUNT_MAX)
