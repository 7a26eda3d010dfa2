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

from functools import partial
from typing import TYPE_CHECKING, assert_never, final

from attrs import field, frozen

from election.holder import Ended, RevokeDelivered
from leaderserver.client.core.contact import ServerContact
from leaderserver.client.core.contenders import ClientContenders
from leaderserver.client.core.events import (
    AnnounceSession,
    BroadcastsReached,
    CallAsked,
    ClientEffect,
    ClientEvent,
    CloseAsked,
    ConfirmAsked,
    ContenderAdded,
    ContenderRemoved,
    DeliverStoreChange,
    FailOpening,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    RetrieverAdded,
    RetrieverRemoved,
    RevokeReturned,
    SendFailed,
    SendMessage,
    TimeWentBy,
)
from leaderserver.client.core.exchanges import Purpose
from leaderserver.client.core.failures import error_of_refusal
from leaderserver.client.core.greeting import Greeting
from leaderserver.client.core.heartbeats import Heartbeats
from leaderserver.client.core.outbox import ClientOutbox
from leaderserver.client.core.requests import ClientRequests
from leaderserver.client.core.server_watch import ServerWatch
from leaderserver.client.core.subscriptions import ClientSubscriptions
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    CloseSessionRequest,
    Granted,
    HeartbeatRequest,
    Hindered,
    Published,
    RefusedHello,
    Reply,
    Request,
    RequestBody,
    Revoked,
    SessionEnded,
    SessionUnknown,
    Welcome,
)
from leaderserver.store_messages import StoreChanged
from nameservice.clock import earliest
from nameservice.errors import (
    SeveralServersError,
    StorageError,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election.holder import HolderCore
    from leaderserver.client.core.config import ClientConfig
    from leaderserver.messages import ToClient


__all__ = ["ClientCore"]


@frozen(kw_only=True)
class _ClientSession:
    """
    The session as the client knows it.

    Attributes:
        secret: What names us to the server.
        session_id: What names us to operators.
        incarnation: Of the server that opened it.
        number_first: Our first number in this session, less one.
    """

    secret: bytes = field(repr=False)
    session_id: str
    incarnation: int
    number_first: int


@final
class ClientCore:
    """
    One client: its session, its contenders, its retrievers, its calls.

    Not thread-safe: one shell drives it.  `HolderCore.believes` of what `holder`
    returns may be called by any thread.
    """

    def __init__(self, config: ClientConfig, *, now_ns: int) -> None:
        self._config = config
        self._outbox = ClientOutbox(
            now_ns=now_ns,
            lease_ns=config.lease_ns,
            session_timeout_ns=config.session_timeout_ns,
        )
        self._contenders = ClientContenders(
            self._outbox, clears_on_suspended=config.clears_on_suspended
        )
        self._subscriptions = ClientSubscriptions(self._outbox)
        self._number = 0
        self._greeting = Greeting(config, self._outbox)
        self._heartbeats = Heartbeats(self._outbox, self._contenders)
        self._is_link_open = False
        self._session: _ClientSession | None = None
        self._contact = ServerContact(
            self._outbox, self._contenders, self._subscriptions
        )
        self._requests = ClientRequests(
            config.target,
            self._outbox,
            self._contenders,
            self._subscriptions,
            self._contact,
            on_snapshot=self._heartbeats.settle,
        )
        self._watch = ServerWatch()
        self._is_closing = False
        # A step moves the deadline, and nothing else does; it is asked for twice.
        self._is_deadline_known = False
        self._deadline_ns: int | None = None

    # -- queries -------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        """Return the present session's id, or None while there is none."""
        return None if self._session is None else self._session.session_id

    @property
    def heartbeat_interval_ns(self) -> int:
        """Return how often heartbeats are sent now."""
        return self._heartbeats.interval_ns

    @property
    def has_claim(self) -> bool:
        """Return whether one of its contenders leads, as far as it knows."""
        return self._contenders.has_claim

    def holder(self, contender_id: str) -> HolderCore:
        """Return what a contender believes; it must be there."""
        contender = self._contenders.get(contender_id)
        assert contender is not None
        return contender.holder

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        if not self._is_deadline_known:
            self._deadline_ns = self._find_deadline_ns()
            self._is_deadline_known = True
        return self._deadline_ns

    def _find_deadline_ns(self) -> int | None:
        can_send = self._session is not None and self._is_link_open
        moments = [self._outbox.exchanges.earliest_ns(can_send=can_send)]
        if not self._is_closing:
            asks = self._greeting if self._session is None else self._heartbeats
            moments.append(asks.due_ns)
            moments.append(self._contact.deadline_ns())
        return earliest(moments)

    # -- the step ------------------------------------------------------------------

    def step(self, event: ClientEvent, *, now_ns: int) -> Sequence[ClientEffect]:
        """Move time on to *now_ns*, then take *event*; return what to do."""
        assert now_ns >= self._outbox.now_ns
        self._outbox.now_ns = now_ns
        self._is_deadline_known = False
        self._contact.watch()
        match event:  # the frequent ones first
            case MessageReceived(message=message):
                self._take(message)
            case CallAsked():
                self._outbox.begin(
                    (Purpose.CALL, str(event.call_id)),
                    event.body,
                    call_id=event.call_id,
                    deadline_ns=event.deadline_ns,
                    is_repeatable=event.is_repeatable,
                )
            case TimeWentBy():
                pass
            case LinkOpened():
                self._link_opened()
            case LinkClosed():
                self._link_closed()
            case BroadcastsReached():
                self._heartbeats.broadcasts_reached()
            case SendFailed(number=number, error=error):
                self._requests.failed(number, error)
            case ContenderAdded():
                self._add_contender(event)
            case ContenderRemoved():
                self._contenders.remove(event)
            case ConfirmAsked():
                self._contenders.confirm(event)
            case RevokeReturned(contender_id=contender_id):
                contender = self._contenders.get(contender_id)
                if contender is not None:
                    self._contenders.hold(contender, RevokeDelivered())
            case RetrieverAdded():
                self._subscriptions.add(event, has_contact=self.has_contact)
            case RetrieverRemoved(retriever_id=retriever_id):
                self._subscriptions.remove(retriever_id)
            case CloseAsked():
                self._close(event)
            case _:
                assert_never(event)
        self._send_what_is_due()
        return self._outbox.take()

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        assert self._outbox.has_session == (self._session is not None)
        for contender in self._contenders:
            assert self._session is not None or contender.registered_number is None
        self._subscriptions.check_invariants(has_contact=self.has_contact)
        self._outbox.exchanges.check_invariants()

    # -- the link and the session --------------------------------------------------

    @property
    def has_contact(self) -> bool:
        """Return whether the server was heard from lately."""
        return self._contact.is_connected

    def _link_opened(self) -> None:
        self._is_link_open = True
        self._greeting.hurry()
        self._heartbeats.hurry()
        self._outbox.exchanges.hurry(now_ns=self._outbox.now_ns)

    def _link_closed(self) -> None:
        self._is_link_open = False
        if self._session is None:
            self._greeting.begin()
        self._contact.suspend()

    def _take(self, message: ToClient) -> None:
        match message:
            case Reply(number=number, body=body):
                if isinstance(body, AcknowledgedHeartbeat):
                    self._take_acknowledgement(number, body)
                else:
                    self._requests.answered(number, body)
            case Welcome():
                self._take_welcome(message)
            case RefusedHello():
                self._take_refusal(message)
            case SessionUnknown(number=number, incarnation=incarnation):
                session = self._session
                if session is not None and number > session.number_first:
                    self._session_over(session, incarnation)
            case SessionEnded(session_id=session_id, incarnation=incarnation):
                session = self._session
                if session is not None and session.session_id == session_id:
                    self._session_over(session, incarnation)
            case Granted():
                self._take_grant(message)
            case Revoked(session_id=session_id, affirmation=affirmation):
                contender = self._contenders.get(affirmation.contender_id)
                if contender is not None and self.session_id == session_id:
                    self._contenders.hold(contender, Ended(epoch=affirmation.epoch))
            case Hindered(session_id=session_id):
                if self.session_id == session_id:
                    detail = f"{self._config.target}: {message.detail}"
                    self._contenders.hindered(
                        message.component_id, StorageError(detail)
                    )
            case Published(incarnation=incarnation):
                session = self._session
                is_numbered = session is not None and (
                    incarnation is None or incarnation == session.incarnation
                )
                self._subscriptions.take_broadcast(message, is_numbered=is_numbered)
            case StoreChanged(session_id=session_id, component_id=component_id):
                if self.session_id == session_id:
                    self._outbox.emit(DeliverStoreChange(component_id=component_id))
            case _:
                assert_never(message)

    def _report_several(self, proof: str | None) -> None:
        """Tell all contenders and retrievers that there are several servers."""
        if proof is not None:
            error = SeveralServersError(self._config.target, proof)
            self._contenders.report(error)
            self._subscriptions.report(error)

    def _take_welcome(self, welcome: Welcome) -> None:
        asked_ns = self._greeting.sent_ns(welcome.nonce)
        if self._session is not None or asked_ns is None or self._is_closing:
            return
        outbox = self._outbox
        outbox.session_timeout_ns = welcome.session_timeout_ns
        outbox.lease_ns = welcome.lease_ns
        outbox.has_session = True
        self._session = _ClientSession(
            secret=welcome.secret,
            session_id=welcome.session_id,
            incarnation=welcome.incarnation,
            number_first=self._number,
        )
        outbox.emit(AnnounceSession(welcome=welcome))
        self._report_several(
            self._watch.session_begins(
                welcome.server_id,
                uptime_ns=welcome.uptime_ns,
                silence_ns=outbox.now_ns - self._contact.last_ns,
            )
        )
        self._heartbeats.session_begins(asked_ns)
        self._contenders.session_begins()
        self._subscriptions.session_begins()
        outbox.exchanges.hurry(now_ns=outbox.now_ns)
        self._contact.answered(asked_ns)

    def _take_refusal(self, refused: RefusedHello) -> None:
        if self._session is None and self._greeting.refused(refused.nonce):
            error = error_of_refusal(refused, self._config.target)
            self._outbox.emit(FailOpening(error=error))

    def _session_over(self, session: _ClientSession, incarnation: int) -> None:
        """Begin anew; *incarnation* tells if the session was judged, or forgotten."""
        was_ended = incarnation == session.incarnation
        self._session = None
        self._outbox.has_session = False
        if was_ended:
            self._contact.lose()
        else:
            self._contact.suspend()
        self._contenders.session_over(was_ended=was_ended)
        self._requests.session_over()
        self._greeting.begin()

    def _close(self, event: CloseAsked) -> None:
        self._is_closing = True
        for exchange in self._outbox.exchanges:
            self._requests.give_up(exchange)
            self._outbox.exchanges.end(exchange.key)
        if self._session is None or not self._is_link_open:
            self._outbox.complete_call(event.call_id)
            return
        self._outbox.begin(
            (Purpose.CLOSE, ""),
            CloseSessionRequest(),
            call_id=event.call_id,
            deadline_ns=event.deadline_ns,
        )

    # -- heartbeats ----------------------------------------------------------------

    def _add_contender(self, event: ContenderAdded) -> None:
        if not len(self._contenders):
            # Heartbeats come more often from now on.
            self._contact.contending_begins()
            self._heartbeats.hurry()
            self._greeting.contending_begins()
        self._contenders.add(event)

    def _send_heartbeat(self, session: _ClientSession) -> None:
        body = HeartbeatRequest(acknowledged=self._heartbeats.acknowledged)
        self._heartbeats.sent(self._send(session, body))

    def _take_acknowledgement(self, number: int, body: AcknowledgedHeartbeat) -> None:
        sent_ns = self._heartbeats.sent_ns(number)
        if self._session is None or sent_ns is None:
            return
        self._heartbeats.answered(number)
        self._contact.answered(sent_ns)
        for record in body.affirmations:
            self._contenders.affirm(record, number=number, sent_ns=sent_ns)
        if not body.is_undecided:
            affirmed = {record.contender_id for record in body.affirmations}
            for contender in self._contenders:
                if contender.contender_id not in affirmed:
                    self._contenders.miss(contender, number)
            self._outbox.exchanges.unpark(now_ns=self._outbox.now_ns)
        self._subscriptions.take_revisions(body.revisions)

    def _take_grant(self, granted: Granted) -> None:
        if self.session_id != granted.session_id:
            return
        sent_ns = self._heartbeats.sent_ns(granted.heartbeat_number)
        if sent_ns is not None:
            self._contenders.affirm(
                granted.affirmation, number=granted.heartbeat_number, sent_ns=sent_ns
            )

    # -- requests and replies ------------------------------------------------------

    def _send_what_is_due(self) -> None:
        now_ns = self._outbox.now_ns
        self._requests.give_up_overdue()
        if self._session is None:
            if not self._is_closing and now_ns >= self._greeting.due_ns:
                self._greeting.send(is_contending=len(self._contenders) > 0)
            return
        if not self._is_closing and now_ns >= self._heartbeats.due_ns:
            # Before what else is due: a contender that registers has been heard from.
            self._send_heartbeat(self._session)
        if self._is_link_open:
            self._requests.send_due(partial(self._send, self._session))

    def _send(self, session: _ClientSession, body: RequestBody) -> int:
        self._number += 1
        request = Request(secret=session.secret, number=self._number, body=body)
        self._outbox.emit(SendMessage(message=request))
        return self._number
