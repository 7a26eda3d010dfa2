"""
`ClientCore`: a client of a LeaderServer without I/O.

Theory of operation
-------------------
The core keeps one session with the server, and for every contender a `HolderCore`.
What the application wants (contenders, retrievers) is held here as *wishes*; whenever
a session begins, every wish is put to the server again.  So a reconnection, a restart
of the server and the loss of a message are all the same thing: something is not
acknowledged yet, and is sent again.

::

    GREETING ──Welcome──► session ──SessionUnknown, SessionEnded──► GREETING

Beside the session runs *contact*, which is what listeners and contenders hear of:

::

    LOST ──answer──► CONNECTED ──link closed, or silence──► SUSPENDED
      ▲                  ▲                                      │ │
      │                  └──────────────answer──────────────────┘ │
      └─────one session timeout after the last answered send──────┘

*Silence* is judged from the send of the last heartbeat that was answered, never from
the arrival of the answer: what the server counts began no earlier (rules E4, E5).

A session that the server ended (same incarnation) ends every claim.  A server of
another incarnation has judged nothing yet: claims are kept, put to it, and the
contender hears only of the verdict, or of the loss of contact (rule E9).

**The shell's duties**, for every effect in the order returned:

1. ``SendMessage``: encode and send if the link takes it now; never queue.
2. ``AnnounceSession``: connect the broadcast socket; it may be where it was.
3. ``DeliverTo…``, ``CompleteCall``: hand on; these callees return at once.

and besides: one call of `step` for each message, for each change of the link, for each
request of the application, and one when `next_deadline_ns` is reached.
"""

from __future__ import annotations

import hashlib
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final, assert_never, final

from attrs import Factory, define, field, frozen, validators

from election.contender import LeaderSession
from election.holder import (
    AcknowledgeRevocation,
    Affirmed,
    ConfirmRequested,
    DeliverGrant,
    DeliverRevoke,
    Ended,
    HolderCore,
    Lost,
    RefuseConfirm,
    RevokeDelivered,
    SendConfirm,
    Suspended,
)
from leaderserver.client_events import (
    AnnounceSession,
    CallAsked,
    ClientEffect,
    ClientEvent,
    CloseAsked,
    CompleteCall,
    ConfirmAsked,
    ContenderAdded,
    ContenderRemoved,
    DeliverToContender,
    DeliverToRetriever,
    FailOpening,
    JoinTopic,
    LeaveTopic,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    ReportToContender,
    ReportToRetriever,
    RetrieverAdded,
    RetrieverRemoved,
    RevokeReturned,
    SendMessage,
    TimeWentBy,
)
from leaderserver.codec import publication_from_record
from leaderserver.exchanges import Exchange, ExchangeKey, Exchanges, Purpose
from leaderserver.failures import error_of_failure, error_of_refusal, error_of_silence
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    AffirmationRecord,
    ClaimRecord,
    CloseSessionRequest,
    ConfirmRequest,
    FailedReply,
    Failure,
    Granted,
    HeartbeatRequest,
    Hello,
    Published,
    RefusedHello,
    RegisteredReply,
    RegisterRequest,
    Reply,
    ReplyBody,
    Request,
    RequestBody,
    RevocationFinishedRequest,
    Revoked,
    SessionEnded,
    SessionUnknown,
    SnapshotReply,
    SubscribeRequest,
    UnsubscribeRequest,
    Welcome,
    WithdrawRequest,
)
from nameservice.errors import DidNotHappenError, LeadershipLostError
from retrieval.core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    PublicationReceived,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election.holder import HolderEffect, HolderEvent
    from leaderserver.messages import ToClient
    from retrieval import Publication


__all__ = ["ClientConfig", "ClientCore"]

RETRY_DIVISOR: Final = 5
_NONCE_SIZE_BYTES: Final = 16


@frozen(kw_only=True)
class ClientConfig:
    """
    How a client lives with its server.

    Attributes:
        target: The server's URL, for errors.
        client: Who we are, for operators; at most 255 characters.
        session_timeout_ns: Asked for; the server may agree on another.
        lease_ns: Asked for likewise; at most half the session timeout.
        clears_on_suspended: Whether contenders are told of a suspension.
        seed: Random, 32 bytes: what nonces are derived from.
    """

    target: str
    client: str
    session_timeout_ns: int = field(validator=validators.ge(1))
    lease_ns: int = field(validator=validators.ge(1))
    clears_on_suspended: bool
    seed: bytes = field(repr=False, validator=validators.min_len(16))


class _Contact(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@define(kw_only=True)
class _ClientSession:
    """
    The session as the client knows it.

    Attributes:
        secret: What names us to the server.
        session_id: What names us to operators.
        lease_ns: As agreed.
        incarnation: Of the server that opened it.
        number_first: Our first number in this session, less one.
        sent: (number, when) of the opening, as 0, and of the heartbeats of the last
            session timeout.
        acknowledged: The newest heartbeat that was answered.
    """

    secret: bytes = field(repr=False)
    session_id: str
    lease_ns: int
    incarnation: int
    number_first: int
    sent: deque[tuple[int, int]] = Factory(deque)
    acknowledged: int = 0

    def sent_ns(self, number: int) -> int | None:
        """Return when heartbeat *number* was sent, if that is known."""
        for known, sent_ns in reversed(self.sent):
            if known == number:
                return sent_ns
        return None


@define(kw_only=True)
class _ClientContender:
    """
    A contender as its own client knows it.

    Attributes:
        contender_id: Its id.
        component_id: What it wants to lead.
        confirm_timeout_ns: How long it may take to confirm.
        holder: What it believes.
        ticket: Its place in the queue, as the server named it; None for the end.
        registered_number: The request that entered it in this session, or None.
        affirmed_number: The newest heartbeat in whose answer it was affirmed.
        failure_told: The refusal that it was told of last.
    """

    contender_id: str
    component_id: str
    confirm_timeout_ns: int
    holder: HolderCore
    ticket: int | None = None
    registered_number: int | None = None
    affirmed_number: int = -1
    failure_told: str | None = None


@define(kw_only=True)
class _ClientSubscription:
    """
    What is known of one component that somebody retrieves.

    Attributes:
        component_id: The component.
        retriever_ids: Who wants to hear of it.
        revision: The newest change known.
        newest: The highest publication known.
        is_current: Whether it was asked for since contact was last restored.
    """

    component_id: str
    retriever_ids: dict[int, None] = Factory(dict)
    revision: int = 0
    newest: Publication | None = None
    is_current: bool = False


@final
class ClientCore:
    """
    One client: its session, its contenders, its retrievers, its calls.

    Not thread-safe: one shell drives it.  `HolderCore.believes` of what `holder`
    returns may be called by any thread.
    """

    def __init__(self, config: ClientConfig, *, now_ns: int) -> None:
        self._config = config
        self._now_ns = now_ns
        self._number = 0
        self._nonce_count = 0
        self._nonce = b""
        self._hello_ns: int | None = None
        self._hello_due_ns: int | None = now_ns
        self._is_link_open = False
        self._session: _ClientSession | None = None
        self._session_timeout_ns = config.session_timeout_ns
        self._lease_ns = config.lease_ns
        self._contact = _Contact.LOST
        self._contact_ns = now_ns
        self._contending_since_ns = now_ns
        self._heartbeat_due_ns = now_ns
        self._contenders: dict[str, _ClientContender] = {}
        self._subscriptions: dict[str, _ClientSubscription] = {}
        self._retrievers: dict[int, str] = {}
        self._exchanges = Exchanges()
        self._is_closing = False
        self._effects: list[ClientEffect] = []
        self._renew_nonce()

    # -- queries -------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        """Return the present session's id, or None while there is none."""
        return None if self._session is None else self._session.session_id

    def holder(self, contender_id: str) -> HolderCore:
        """Return what a contender believes."""
        return self._contenders[contender_id].holder

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        moments = [self._exchanges.earliest_ns(can_send=self._can_send)]
        if not self._is_closing:
            if self._session is None:
                moments.append(self._hello_due_ns)
            else:
                moments.append(self._heartbeat_due_ns)
            moments.append(self._contact_deadline_ns())
        return min((m for m in moments if m is not None), default=None)

    # -- the step ------------------------------------------------------------------

    def step(self, event: ClientEvent, *, now_ns: int) -> Sequence[ClientEffect]:
        """Let time pass until *now_ns*, then take *event*; return what to do."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        self._effects = []
        self._watch_contact()
        match event:
            case TimeWentBy():
                pass
            case LinkOpened():
                self._link_opened()
            case LinkClosed():
                self._link_closed()
            case MessageReceived(message=message):
                self._take(message)
            case ContenderAdded():
                self._add_contender(event)
            case ContenderRemoved():
                self._remove_contender(event)
            case ConfirmAsked():
                self._ask_confirm(event)
            case RevokeReturned(contender_id=contender_id):
                contender = self._contenders.get(contender_id)
                if contender is not None:
                    self._hold(contender, RevokeDelivered())
            case RetrieverAdded():
                self._add_retriever(event)
            case RetrieverRemoved(retriever_id=retriever_id):
                self._remove_retriever(retriever_id)
            case CallAsked():
                self._ask(event)
            case CloseAsked():
                self._ask_close(event)
            case _:
                assert_never(event)
        self._send_what_is_due()
        effects, self._effects = self._effects, []
        return effects

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        if self._session is None:
            for contender in self._contenders.values():
                assert contender.registered_number is None
        for retriever_id, component_id in self._retrievers.items():
            assert retriever_id in self._subscriptions[component_id].retriever_ids
        for subscription in self._subscriptions.values():
            assert subscription.retriever_ids
            if subscription.is_current:
                assert self._contact is _Contact.CONNECTED

    # -- the link and the session --------------------------------------------------

    @property
    def _can_send(self) -> bool:
        return self._session is not None and self._is_link_open

    def _renew_nonce(self) -> None:
        self._nonce_count += 1
        text = self._nonce_count.to_bytes(8, "big")
        digest = hashlib.blake2b(
            text, key=self._config.seed, digest_size=_NONCE_SIZE_BYTES
        )
        self._nonce = digest.digest()
        self._hello_ns = None
        self._hello_due_ns = self._now_ns

    def _link_opened(self) -> None:
        self._is_link_open = True
        if self._session is None:
            self._hello_due_ns = self._now_ns
            return
        self._heartbeat_due_ns = self._now_ns
        for exchange in self._exchanges:
            if exchange.is_repeatable:
                exchange.due_ns = self._now_ns

    def _link_closed(self) -> None:
        self._is_link_open = False
        if self._session is None:
            # The server knows a nonce by the connection that it came over.
            self._renew_nonce()
        self._suspend()

    def _take(self, message: ToClient) -> None:
        match message:
            case Welcome():
                self._take_welcome(message)
            case RefusedHello():
                if message.nonce in (self._nonce, b"") and self._session is None:
                    self._effects.append(
                        FailOpening(
                            error=error_of_refusal(message, self._config.target)
                        )
                    )
                    self._renew_nonce()
                    self._hello_due_ns = self._now_ns + self._session_timeout_ns // 3
            case SessionUnknown(number=number, incarnation=incarnation):
                session = self._session
                if session is not None and number > session.number_first:
                    self._session_over(incarnation)
            case SessionEnded(session_id=session_id, incarnation=incarnation):
                if self.session_id == session_id:
                    self._session_over(incarnation)
            case Granted():
                self._take_grant(message)
            case Revoked(session_id=session_id, affirmation=affirmation):
                contender = self._contenders.get(affirmation.contender_id)
                if contender is not None and self.session_id == session_id:
                    self._hold(contender, Ended(epoch=affirmation.epoch))
            case Reply(number=number, body=body):
                self._take_reply(number, body)
            case Published():
                self._take_broadcast(message)
            case _:
                assert_never(message)

    def _take_welcome(self, welcome: Welcome) -> None:
        if (
            self._session is not None
            or welcome.nonce != self._nonce
            or self._hello_ns is None
            or self._is_closing
        ):
            return
        self._session_timeout_ns = welcome.session_timeout_ns
        self._lease_ns = welcome.lease_ns
        self._session = _ClientSession(
            secret=welcome.secret,
            session_id=welcome.session_id,
            lease_ns=welcome.lease_ns,
            incarnation=welcome.incarnation,
            number_first=self._number,
        )
        self._session.sent.append((0, self._hello_ns))
        self._effects.append(AnnounceSession(welcome=welcome))
        self._heartbeat_due_ns = self._now_ns
        for contender in self._contenders.values():
            self._begin_register(contender)
        for subscription in self._subscriptions.values():
            self._effects.append(JoinTopic(component_id=subscription.component_id))
        for exchange in self._exchanges:
            if exchange.is_repeatable or not exchange.was_sent:
                exchange.due_ns = self._now_ns
        self._answered_ns(self._hello_ns)

    def _session_over(self, incarnation: int) -> None:
        """Begin anew; *incarnation* tells if the session was judged, or forgotten."""
        session = self._session
        assert session is not None
        was_ended = incarnation == session.incarnation
        self._session = None
        for contender in self._contenders.values():
            contender.registered_number = None
            contender.affirmed_number = -1
            if was_ended:
                contender.ticket = None
        for exchange in self._exchanges:
            self._exchange_without_session(exchange)
        self._exchanges.session_over()
        if was_ended:
            self._lose_contact()
            for contender in self._contenders.values():
                claim = contender.holder.claim
                if claim is not None:
                    self._hold(contender, Ended(epoch=claim.session.epoch))
            # What the server ended needs no acknowledgement.
            for exchange in self._exchanges:
                if exchange.key[0] is Purpose.REVOCATION:
                    self._exchanges.end(exchange.key)
        else:
            self._suspend()
        self._renew_nonce()

    def _exchange_without_session(self, exchange: Exchange) -> None:
        """Settle what the end of the session settles."""
        purpose = exchange.key[0]
        if purpose in (Purpose.WITHDRAW, Purpose.CLOSE):
            self._exchanges.end(exchange.key)
            self._complete(exchange, CompleteCall(call_id=exchange.call_id or 0))
        elif purpose in (Purpose.REGISTER, Purpose.REVOCATION, Purpose.UNSUBSCRIBE):
            self._exchanges.end(exchange.key)
        elif not exchange.is_repeatable and exchange.was_sent:
            self._give_up(exchange)

    # -- contact -------------------------------------------------------------------

    def _silence_ns(self) -> int:
        """Return when silence becomes a suspension."""
        if self._contenders:
            return max(self._contact_ns, self._contending_since_ns) + self._lease_ns
        return self._contact_ns + self._session_timeout_ns * 2 // 3

    def _contact_deadline_ns(self) -> int | None:
        lost_ns = self._contact_ns + self._session_timeout_ns
        match self._contact:
            case _Contact.CONNECTED:
                return min(self._silence_ns(), lost_ns)
            case _Contact.SUSPENDED:
                return lost_ns
            case _Contact.LOST:
                return None
            case _:
                assert_never(self._contact)

    def _watch_contact(self) -> None:
        if self._now_ns >= self._contact_ns + self._session_timeout_ns:
            self._lose_contact()
        elif self._now_ns >= self._silence_ns():
            self._suspend()

    def _suspend(self) -> None:
        if self._contact is _Contact.CONNECTED:
            self._contact = _Contact.SUSPENDED
            for contender in self._contenders.values():
                self._hold(contender, Suspended())
            for subscription in self._subscriptions.values():
                subscription.is_current = False
                for retriever_id in subscription.retriever_ids:
                    self._tell(retriever_id, ContactSuspended())

    def _lose_contact(self) -> None:
        if self._contact is _Contact.LOST:
            return
        self._contact = _Contact.LOST
        for contender in self._contenders.values():
            self._hold(contender, Lost())
        for subscription in self._subscriptions.values():
            subscription.is_current = False
            for retriever_id in subscription.retriever_ids:
                self._tell(retriever_id, ContactLost())

    def _answered_ns(self, sent_ns: int) -> None:
        """Take note that what was sent at *sent_ns* is answered: there is contact."""
        self._contact_ns = max(self._contact_ns, sent_ns)
        if (
            self._contact is not _Contact.CONNECTED
            and self._now_ns < self._silence_ns()
            and self._now_ns < self._contact_ns + self._session_timeout_ns
        ):
            self._contact = _Contact.CONNECTED
            for subscription in self._subscriptions.values():
                self._begin_subscribe(subscription)

    # -- heartbeats ----------------------------------------------------------------

    def _heartbeat_interval_ns(self) -> int:
        if self._contenders:
            return self._lease_ns // RETRY_DIVISOR
        return self._session_timeout_ns // 3

    def _send_heartbeat(self, session: _ClientSession) -> None:
        number = self._send(
            session, HeartbeatRequest(acknowledged=session.acknowledged)
        )
        oldest_ns = self._now_ns - self._session_timeout_ns
        while session.sent and session.sent[0][1] < oldest_ns:
            session.sent.popleft()
        session.sent.append((number, self._now_ns))
        self._heartbeat_due_ns = self._now_ns + self._heartbeat_interval_ns()

    def _take_acknowledgement(self, number: int, body: AcknowledgedHeartbeat) -> None:
        session = self._session
        sent_ns = None if session is None else session.sent_ns(number)
        if session is None or sent_ns is None:
            return
        session.acknowledged = max(session.acknowledged, number)
        self._answered_ns(sent_ns)
        affirmed = {record.contender_id: record for record in body.affirmations}
        for contender in tuple(self._contenders.values()):
            record = affirmed.get(contender.contender_id)
            if record is not None:
                self._affirm(contender, record, number=number, sent_ns=sent_ns)
            elif not body.is_undecided:
                self._miss(contender, number)
        for component_id, revision in body.revisions.items():
            subscription = self._subscriptions.get(component_id)
            if subscription is not None and revision > subscription.revision:
                self._begin_subscribe(subscription)

    def _affirm(
        self,
        contender: _ClientContender,
        record: AffirmationRecord,
        *,
        number: int,
        sent_ns: int,
    ) -> None:
        contender.affirmed_number = max(contender.affirmed_number, number)
        session = LeaderSession(
            leader_session_id=record.leader_session_id, epoch=record.epoch
        )
        # 0.9 of the lease: clocks that differ by 5 % still leave a gap before the
        # server, which waits for all of it, grants to another (rule E4).
        until_ns = sent_ns + self._lease_ns * 9 // 10
        self._hold(contender, Affirmed(session=session, until_ns=until_ns))

    def _miss(self, contender: _ClientContender, number: int) -> None:
        """Judge a leadership that the answer to heartbeat *number* does not affirm."""
        claim = contender.holder.claim
        if (
            claim is not None
            and contender.registered_number is not None
            and number > contender.registered_number
            and number > contender.affirmed_number
        ):
            self._hold(contender, Ended(epoch=claim.session.epoch))

    def _take_grant(self, granted: Granted) -> None:
        session = self._session
        contender = self._contenders.get(granted.affirmation.contender_id)
        if (
            session is None
            or contender is None
            or session.session_id != granted.session_id
        ):
            return
        sent_ns = session.sent_ns(granted.heartbeat_number)
        if sent_ns is not None:
            self._affirm(
                contender,
                granted.affirmation,
                number=granted.heartbeat_number,
                sent_ns=sent_ns,
            )

    # -- contenders ----------------------------------------------------------------

    def _add_contender(self, event: ContenderAdded) -> None:
        contender = _ClientContender(
            contender_id=event.contender_id,
            component_id=event.component_id,
            confirm_timeout_ns=event.confirm_timeout_ns,
            holder=HolderCore(clears_on_suspended=self._config.clears_on_suspended),
        )
        if not self._contenders:
            # Heartbeats come more often from now on; what was quiet is not silent.
            self._contending_since_ns = self._now_ns
            self._heartbeat_due_ns = self._now_ns
        self._contenders[event.contender_id] = contender
        if self._session is not None:
            self._begin_register(contender)

    def _begin_register(self, contender: _ClientContender) -> None:
        self._begin((Purpose.REGISTER, contender.contender_id), None)

    def _remove_contender(self, event: ContenderRemoved) -> None:
        contender = self._contenders.pop(event.contender_id, None)
        was_sent = contender is not None and contender.registered_number is not None
        register = self._exchanges.end((Purpose.REGISTER, event.contender_id))
        if register is not None:
            was_sent = was_sent or register.was_sent
        self._exchanges.end((Purpose.REVOCATION, event.contender_id))
        if contender is None or self._session is None or not was_sent:
            self._effects.append(CompleteCall(call_id=event.call_id))
            return
        body = WithdrawRequest(
            component_id=contender.component_id, contender_id=contender.contender_id
        )
        key = (Purpose.WITHDRAW, contender.contender_id)
        self._begin(key, body, call_id=event.call_id, deadline_ns=event.deadline_ns)

    def _ask_confirm(self, event: ConfirmAsked) -> None:
        contender = self._contenders.get(event.contender_id)
        if contender is None:
            error = LeadershipLostError("", None)
            self._effects.append(CompleteCall(call_id=event.call_id, error=error))
            return
        effects = contender.holder.step(
            ConfirmRequested(
                leader_session_id=event.leader_session_id, address=event.address
            ),
            now_ns=self._now_ns,
        )
        (effect,) = effects
        if isinstance(effect, RefuseConfirm):
            error = LeadershipLostError(_job_id(contender.component_id), None)
            self._effects.append(CompleteCall(call_id=event.call_id, error=error))
            return
        assert isinstance(effect, SendConfirm)
        superseded = self._exchanges.end((Purpose.CONFIRM, contender.contender_id))
        if superseded is not None:
            message = "another confirmation overtook this one"
            self._complete(
                superseded,
                CompleteCall(
                    call_id=superseded.call_id or 0, error=DidNotHappenError(message)
                ),
            )
        self._begin(
            (Purpose.CONFIRM, contender.contender_id),
            ConfirmRequest(
                component_id=contender.component_id,
                contender_id=contender.contender_id,
                leader_session_id=effect.session.leader_session_id,
                confirm_count=effect.confirm_count,
                address=effect.address,
            ),
            call_id=event.call_id,
            deadline_ns=event.deadline_ns,
        )

    def _hold(self, contender: _ClientContender, event: HolderEvent) -> None:
        """Tell a holder what happened, and do what it says."""
        for effect in contender.holder.step(event, now_ns=self._now_ns):
            self._perform(contender, effect)
        if isinstance(event, Ended):
            self._confirm_is_over(contender)

    def _perform(self, contender: _ClientContender, effect: HolderEffect) -> None:
        match effect:
            case DeliverGrant() | DeliverRevoke():
                self._effects.append(
                    DeliverToContender(
                        contender_id=contender.contender_id, effect=effect
                    )
                )
            case AcknowledgeRevocation(session=session):
                if self._session is not None:
                    body = RevocationFinishedRequest(
                        component_id=contender.component_id,
                        contender_id=contender.contender_id,
                        epoch=session.epoch,
                    )
                    self._begin((Purpose.REVOCATION, contender.contender_id), body)
            case SendConfirm() | RefuseConfirm():
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    def _confirm_is_over(self, contender: _ClientContender) -> None:
        """Answer a confirmation that still waits: its leadership has ended."""
        key = (Purpose.CONFIRM, contender.contender_id)
        exchange = self._exchanges.get(key)
        if exchange is None or contender.holder.claim is not None:
            return
        self._exchanges.end(key)
        error = LeadershipLostError(_job_id(contender.component_id), None)
        self._complete(
            exchange, CompleteCall(call_id=exchange.call_id or 0, error=error)
        )

    # -- retrievers ----------------------------------------------------------------

    def _add_retriever(self, event: RetrieverAdded) -> None:
        self._retrievers[event.retriever_id] = event.component_id
        subscription = self._subscriptions.get(event.component_id)
        if subscription is None:
            subscription = _ClientSubscription(component_id=event.component_id)
            self._subscriptions[event.component_id] = subscription
            self._exchanges.end((Purpose.UNSUBSCRIBE, event.component_id))
            if self._session is not None:
                self._effects.append(JoinTopic(component_id=event.component_id))
            subscription.retriever_ids[event.retriever_id] = None
            if self._contact is _Contact.CONNECTED:
                self._begin_subscribe(subscription)
            return
        subscription.retriever_ids[event.retriever_id] = None
        if subscription.is_current:
            self._tell(
                event.retriever_id, ContactRestored(publication=subscription.newest)
            )

    def _remove_retriever(self, retriever_id: int) -> None:
        component_id = self._retrievers.pop(retriever_id, None)
        if component_id is None:
            return
        subscription = self._subscriptions[component_id]
        del subscription.retriever_ids[retriever_id]
        if subscription.retriever_ids:
            return
        del self._subscriptions[component_id]
        self._exchanges.end((Purpose.SUBSCRIBE, component_id))
        self._effects.append(LeaveTopic(component_id=component_id))
        if self._session is not None:
            body = UnsubscribeRequest(component_id=component_id)
            self._begin((Purpose.UNSUBSCRIBE, component_id), body)

    def _begin_subscribe(self, subscription: _ClientSubscription) -> None:
        if self._session is not None:
            self._begin((Purpose.SUBSCRIBE, subscription.component_id), None)

    def _take_snapshot(self, component_id: str, body: SnapshotReply) -> None:
        subscription = self._subscriptions[component_id]
        if body.is_undecided:
            return  # asked again when the exchange is due
        self._exchanges.end((Purpose.SUBSCRIBE, component_id))
        publication = None
        if body.publication is not None:
            publication = publication_from_record(body.publication)
        is_first = not subscription.is_current
        if is_first:
            subscription.revision = body.revision
        else:
            subscription.revision = max(subscription.revision, body.revision)
        self._keep_newest(subscription, publication)
        if is_first and self._contact is _Contact.CONNECTED:
            subscription.is_current = True
            for retriever_id in subscription.retriever_ids:
                self._tell(retriever_id, ContactRestored(publication=publication))
        elif publication is not None:
            for retriever_id in subscription.retriever_ids:
                self._tell(retriever_id, PublicationReceived(publication=publication))

    def _take_broadcast(self, message: Published) -> None:
        subscription = self._subscriptions.get(message.component_id)
        if subscription is None:
            return
        publication = publication_from_record(message.publication)
        if message.revision > subscription.revision + 1 and subscription.is_current:
            self._begin_subscribe(subscription)  # something was lost
        subscription.revision = max(subscription.revision, message.revision)
        self._keep_newest(subscription, publication)
        for retriever_id in subscription.retriever_ids:
            self._tell(retriever_id, PublicationReceived(publication=publication))

    def _keep_newest(
        self, subscription: _ClientSubscription, publication: Publication | None
    ) -> None:
        if publication is not None and (
            subscription.newest is None or publication.rank > subscription.newest.rank
        ):
            subscription.newest = publication

    def _tell(
        self,
        retriever_id: int,
        event: PublicationReceived | ContactSuspended | ContactLost | ContactRestored,
    ) -> None:
        self._effects.append(DeliverToRetriever(retriever_id=retriever_id, event=event))

    # -- calls ---------------------------------------------------------------------

    def _ask(self, event: CallAsked) -> None:
        self._begin(
            (Purpose.CALL, str(event.call_id)),
            event.body,
            call_id=event.call_id,
            deadline_ns=event.deadline_ns,
            is_repeatable=event.is_repeatable,
        )

    def _ask_close(self, event: CloseAsked) -> None:
        self._is_closing = True
        for exchange in self._exchanges:
            if exchange.call_id is not None:
                self._give_up(exchange)
            else:
                self._exchanges.end(exchange.key)
        if not self._can_send:
            self._effects.append(CompleteCall(call_id=event.call_id))
            return
        self._begin(
            (Purpose.CLOSE, ""),
            CloseSessionRequest(),
            call_id=event.call_id,
            deadline_ns=event.deadline_ns,
        )

    # -- exchanges -----------------------------------------------------------------

    def _begin(
        self,
        key: ExchangeKey,
        body: RequestBody | None,
        *,
        call_id: int | None = None,
        deadline_ns: int | None = None,
        is_repeatable: bool = True,
    ) -> None:
        retry_ns = self._lease_ns // RETRY_DIVISOR
        is_call = key[0] is Purpose.CALL
        self._exchanges.begin(
            Exchange(
                key=key,
                body=body,
                call_id=call_id,
                began_ns=self._now_ns,
                deadline_ns=deadline_ns,
                retry_ns=retry_ns,
                retry_ns_max=self._session_timeout_ns // 3 if is_call else retry_ns,
                is_repeatable=is_repeatable,
                due_ns=self._now_ns,
            )
        )

    def _send_what_is_due(self) -> None:
        for exchange in self._exchanges:
            deadline_ns = None if exchange.call_id is None else exchange.deadline_ns
            if deadline_ns is not None and self._now_ns >= deadline_ns:
                self._give_up(exchange)
        if self._session is None:
            self._send_hello()
            return
        session = self._session
        if not self._is_closing and self._now_ns >= self._heartbeat_due_ns:
            # Before what else is due: a contender that registers has been heard from.
            self._send_heartbeat(session)
        if not self._is_link_open:
            return
        for exchange in self._exchanges:
            if exchange.due_ns is not None and self._now_ns >= exchange.due_ns:
                number = self._send(session, self._body(exchange))
                self._exchanges.sent(exchange, number, now_ns=self._now_ns)

    def _send_hello(self) -> None:
        if (
            self._is_closing
            or self._hello_due_ns is None
            or self._now_ns < self._hello_due_ns
        ):
            return
        if self._hello_ns is None:
            self._hello_ns = self._now_ns
        config = self._config
        hello = Hello(
            nonce=self._nonce,
            session_timeout_ns=config.session_timeout_ns,
            lease_ns=config.lease_ns,
            client=config.client,
        )
        self._effects.append(SendMessage(message=hello))
        self._hello_due_ns = self._now_ns + self._lease_ns // RETRY_DIVISOR

    def _send(self, session: _ClientSession, body: RequestBody) -> int:
        self._number += 1
        request = Request(secret=session.secret, number=self._number, body=body)
        self._effects.append(SendMessage(message=request))
        return self._number

    def _body(self, exchange: Exchange) -> RequestBody:
        """Return what to send: some requests say what is so at the time."""
        purpose, name = exchange.key
        if purpose is Purpose.REGISTER:
            contender = self._contenders[name]
            claim = contender.holder.claim
            return RegisterRequest(
                component_id=contender.component_id,
                contender_id=contender.contender_id,
                confirm_timeout_ns=contender.confirm_timeout_ns,
                ticket=contender.ticket,
                epoch_ended=contender.holder.ended_epoch_max,
                claim=None
                if claim is None
                else ClaimRecord(
                    leader_session_id=claim.session.leader_session_id,
                    epoch=claim.session.epoch,
                    confirm_count=claim.confirm_count,
                    address=claim.address,
                ),
            )
        if purpose is Purpose.SUBSCRIBE:
            newest = self._subscriptions[name].newest
            return SubscribeRequest(
                component_id=name,
                epoch_seen=0 if newest is None else newest.epoch,
                is_ended_seen=newest is not None and newest.leader is None,
            )
        assert exchange.body is not None
        return exchange.body

    def _take_reply(self, number: int, body: ReplyBody) -> None:
        if isinstance(body, AcknowledgedHeartbeat):
            self._take_acknowledgement(number, body)
            return
        exchange = self._exchanges.answered(number)
        if exchange is None:
            return
        purpose, name = exchange.key
        if isinstance(body, FailedReply):
            self._take_failure(exchange, body)
        elif purpose is Purpose.SUBSCRIBE:
            if isinstance(body, SnapshotReply):
                self._take_snapshot(name, body)
        elif purpose is Purpose.REGISTER:
            if isinstance(body, RegisteredReply):
                self._exchanges.end(exchange.key)
                contender = self._contenders[name]
                contender.ticket = body.ticket
                contender.registered_number = number
                contender.failure_told = None
        else:
            self._exchanges.end(exchange.key)
            self._complete(
                exchange, CompleteCall(call_id=exchange.call_id or 0, reply=body)
            )
            if purpose is Purpose.CLOSE:
                self._session = None

    def _take_failure(self, exchange: Exchange, body: FailedReply) -> None:
        purpose, name = exchange.key
        error = error_of_failure(body, self._body(exchange), self._config.target)
        if purpose in (Purpose.REGISTER, Purpose.SUBSCRIBE):
            is_final = body.reason in (Failure.NOT_ALLOWED, Failure.INVALID)
            exchange.due_ns = (
                None if is_final else self._now_ns + self._session_timeout_ns // 3
            )
            if purpose is Purpose.REGISTER:
                contender = self._contenders[name]
                if contender.failure_told != body.reason:
                    contender.failure_told = body.reason
                    self._effects.append(
                        ReportToContender(contender_id=name, error=error)
                    )
            else:
                for retriever_id in self._subscriptions[name].retriever_ids:
                    self._effects.append(
                        ReportToRetriever(retriever_id=retriever_id, error=error)
                    )
            return
        if purpose is Purpose.CONFIRM and body.reason == Failure.UNDECIDED:
            return  # asked again when it is due: nobody knows yet who leads
        self._exchanges.end(exchange.key)
        self._complete(
            exchange, CompleteCall(call_id=exchange.call_id or 0, error=error)
        )

    def _give_up(self, exchange: Exchange) -> None:
        """Let the caller go at its deadline; what must reach the server goes on."""
        error = error_of_silence(
            exchange,
            target=self._config.target,
            waited_ns=self._now_ns - exchange.began_ns,
        )
        if exchange.key[0] is Purpose.WITHDRAW:
            self._complete(exchange, CompleteCall(call_id=exchange.call_id or 0))
            exchange.call_id = None  # goes on until the server or the session's end
            return
        self._exchanges.end(exchange.key)
        if exchange.key[0] is Purpose.CLOSE:
            self._complete(exchange, CompleteCall(call_id=exchange.call_id or 0))
            return
        self._complete(
            exchange, CompleteCall(call_id=exchange.call_id or 0, error=error)
        )

    def _complete(self, exchange: Exchange, effect: CompleteCall) -> None:
        if exchange.call_id is not None:
            self._effects.append(effect)


def _job_id(component_id: str) -> str:
    """Return the component id as the application knows it, without its cluster."""
    return component_id.rpartition("/")[2]
