"""
`ZooKeeperSession`: one session with an ensemble, and what we may think of it.

Theory of operation
-------------------
Contact is judged by our own heartbeats, not by kazoo's state (contact.py).  A
heartbeat is a ``sync``, which only the leader of the ensemble can answer: a follower
that is cut off cannot.  It is sent every third of the negotiated timeout, one at a
time; every tenth while somebody contends, so that a grant finds the session's renewals
proven.

What contenders believe is another matter, and follows from their own writes
(contender.py) and from the renewals that are proven (renewals.py).

Everything but the methods under "from any thread" is for the event loop alone.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, assert_never, final

from haservices.event_loop import EventLoop
from haservices.zookeeper.calls import BlockingCalls
from haservices.zookeeper.connection import (
    Connected,
    ConnectionEvent,
    Disconnected,
    Ended,
    Expired,
    ZooKeeperConnection,
)
from haservices.zookeeper.contact import (
    Answered,
    BreakConnection,
    Closed,
    Contact,
    ContactCore,
    ContendingChanged,
    HeartbeatFailed,
    Opened,
    Over,
    SendHeartbeat,
    TellLost,
    TellRestored,
    TellSuspended,
    TimePassed,
)
from haservices.zookeeper.nodes import format_session_id
from haservices.zookeeper.parents import Parents
from haservices.zookeeper.probe import ZooKeeperProbe
from haservices.zookeeper.renewals import (
    ConnectionClosed,
    ConnectionOpened,
    Renewals,
    SyncAnswered,
    WriteCommitted,
)
from haservices.zookeeper.watches import Watches
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    NameServiceError,
    RemoteProtocolError,
    UnreachableError,
    get_logger,
)
from nameservice.answer import Answer
from nameservice.clock import NS_PER_MS, NS_PER_SECOND


if TYPE_CHECKING:
    from haservices.config import HAConfig
    from haservices.event_loop import Timer
    from haservices.zookeeper.contact import ContactEffect, ContactEvent
    from nameservice import Clock


__all__ = [
    "SessionListener",
    "ZooKeeperSession",
]

# How long to wait before a connection that could not be made is tried again.
_REPLACING_PAUSE_NS: Final = NS_PER_SECOND

T = TypeVar("T")


class SessionListener(Protocol):
    """Is told of a session, on the event loop."""

    def contact_restored(self) -> None:
        """Go on: there is a session; it may be another than the last one."""

    def contact_suspended(self) -> None:
        """Wait: nothing can be asked for the moment."""

    def contact_lost(self) -> None:
        """Assume the worst: the session may be over."""

    def session_ended(self) -> None:
        """Begin anew: the session is over, and all that was ours in it is gone."""

    def session_refused(self, error: NameServiceError) -> None:
        """Give up: we are not taken any more, for a reason that will not pass."""


@final
class ZooKeeperSession:
    """
    The one session of a `ZooKeeperHAServices`.

    Args:
        config: Whom to connect to, and how.
        clock: What every deadline goes by.

    Attributes:
        calls: What other threads ask for.
        parents: Creates the nodes above others.
        watches: Tells when a node changes.
        cut_off: Completed when the services close and are out of contact: what ends
            with the session need not be told any more.
        closed: Completed when the loop has ended: no answer comes any more.

    Raises:
        ConfigurationError: If a file that *config* names cannot be used.
    """

    def __init__(self, config: HAConfig, clock: Clock) -> None:
        self.config: Final = config
        self.clock: Final = clock
        self.loop: Final = EventLoop("zookeeper-session", clock)
        self._log = get_logger(component="zookeeper", url=config.url)
        self.calls: Final = BlockingCalls(
            config, self.loop, lambda: self._connection.last_messages
        )
        self.parents: Final = Parents(lambda: self._connection)
        self.watches: Final = Watches(self)
        self._connection: ZooKeeperConnection = self._make_connection()
        self._listeners: dict[SessionListener, None] = {}
        self._contenders: set[SessionListener] = set()
        self._renewals = Renewals()
        self._contact = ContactCore()
        self._contact_timer: Timer | None = None
        self._contact_due_ns: int | None = None
        # Of no use any more, whatever is thought of the session.
        self._is_gone = False
        self._session_id: int | None = None
        self._timeout_ns = 0
        self._probe: ZooKeeperProbe | None = None
        self._is_leaving = False
        self.cut_off: Final[Answer[None]] = Answer()
        self.closed: Final[Answer[None]] = Answer()
        self._is_silent = False

    # -- from any thread -----------------------------------------------------------

    def open(self) -> None:
        """
        Return as soon as there is a session.

        Raises:
            UnreachableError: If there is none within the connect timeout.
            AuthenticationError: If our credentials were refused.
        """
        self.loop.start()
        try:
            self._open()
        except BaseException:  # who interrupts this has nothing to close
            self.close()
            raise

    def _open(self) -> None:
        self.loop.call(self._connection.start)
        if not self.calls.is_reachable.wait(self.config.connect_timeout_seconds):
            raise UnreachableError(
                self.config.url,
                self.config.connect_timeout_seconds,
                self._connection.last_messages,
            )
        if self.calls.refusal is not None:
            raise self.calls.refusal

    @property
    def session_id_text(self) -> str | None:
        """Return the present session's id as operators know it, or None."""
        session_id = self._session_id
        return None if session_id is None else format_session_id(session_id)

    def begin_closing(self) -> None:
        """Expect every contender to withdraw, and then the end of the session."""
        self._is_leaving = True
        self.loop.call(self._note_cut_off)

    def seconds_to_wait(self) -> float:
        """
        Return how long a withdrawal may wait for its answer.

        When the services close, the first that was not answered is the last that waits:
        entries that are left end with the session.
        """
        if self._is_leaving and (self._is_silent or not self.is_connected):
            return 0.0
        return self.config.connect_timeout_seconds

    def withdrawal_unanswered(self) -> None:
        """Conclude that the name service does not answer at the moment."""
        self._is_silent = self._is_leaving

    def close(self) -> None:
        """End the session, and release everything.  Idempotent."""
        if not self.calls.is_closed:
            self.begin_closing()
            self.calls.is_closed = True
            try:
                self._connection.stop(self.seconds_to_wait())
            finally:
                self._is_gone = True
                self.loop.stop()
                self.calls.end()
                if self._probe is not None:
                    self._probe.stop()
                self.closed.set_result(None)

    # -- on the loop ---------------------------------------------------------------

    @property
    def connection(self) -> ZooKeeperConnection:
        """Return what requests are made of."""
        return self._connection

    @property
    def is_connected(self) -> bool:
        """Return whether requests are sent at once, to the session of `session_id`."""
        return self._contact.is_connected and not self._is_gone

    @property
    def session_id(self) -> int | None:
        """Return the present session, or None if the last one has ended."""
        return self._session_id

    @property
    def timeout_ns(self) -> int:
        """Return the session timeout as negotiated."""
        return self._timeout_ns

    @property
    def renewals(self) -> Renewals:
        """Return what is proven of the session's renewals; its writers add to it."""
        return self._renewals

    def sync(self) -> Future[None]:
        """Return once our server has caught up with the leader of the ensemble."""
        return self._connection.sync()

    def add_listener(
        self, listener: SessionListener, *, is_contender: bool = False
    ) -> None:
        """
        Tell *listener* of the session; if there is contact now, at once.

        Args:
            listener: Whom.
            is_contender: Whether it may come to believe that it leads.
        """
        self._listeners[listener] = None
        if is_contender:
            self._contenders.add(listener)
            self._step(ContendingChanged(is_contending=True))
        if self.calls.refusal is not None:
            listener.session_refused(self.calls.refusal)
        elif self._contact.contact is Contact.CONNECTED:
            listener.contact_restored()

    def remove_listener(self, listener: SessionListener) -> None:
        """Tell *listener* no more."""
        self._listeners.pop(listener, None)
        self._contenders.discard(listener)
        self._step(ContendingChanged(is_contending=bool(self._contenders)))

    # -- what the connection tells -------------------------------------------------

    def _make_connection(self) -> ZooKeeperConnection:
        return ZooKeeperConnection(
            self.config,
            loop=self.loop,
            clock=self.clock,
            on_event=self._take,
            on_node_changed=self.watches.node_changed,
        )

    def _take(self, event: ConnectionEvent) -> None:
        if self.calls.is_closed or self.calls.refusal is not None:
            self._is_gone = True
            return
        if not isinstance(event, Connected):
            self._renewals.step(ConnectionClosed(), now_ns=self.clock.now_ns())
        match event:
            case Connected():
                self._connected(event)
            case Disconnected():
                self._step(Closed())
            case Expired():
                self._end_session()
            case Ended(is_refused=is_refused):
                self._connection_ended(is_refused=is_refused)
            case _:
                assert_never(event)

    def _connected(self, event: Connected) -> None:
        if self._session_id is not None and self._session_id != event.session_id:
            self._end_session()
        is_new = self._session_id is None
        self._session_id = event.session_id
        self._timeout_ns = event.session_timeout_ms * NS_PER_MS
        self._renewals.step(
            ConnectionOpened(
                session_id=event.session_id,
                session_timeout_ns=self._timeout_ns,
                sent_ns=event.sent_ns,
            ),
            now_ns=self.clock.now_ns(),
        )
        if is_new:
            self._log.info(
                "session.opened",
                session_id=format_session_id(event.session_id),
                session_timeout_ms=event.session_timeout_ms,
            )
        self._step(
            Opened(
                session_timeout_ns=self._timeout_ns,
                sent_ns=event.sent_ns,
                is_new=is_new,
            )
        )

    def _end_session(self) -> None:
        if self._session_id is None:
            return
        self._log.info(
            "session.expired", session_id=format_session_id(self._session_id)
        )
        self._session_id = None
        self.calls.is_reachable.clear()
        self._step(Over())
        for listener in tuple(self._listeners):
            listener.session_ended()

    def _connection_ended(self, *, is_refused: bool) -> None:
        self._end_session()
        if is_refused:
            self._refuse(
                AuthenticationError(
                    self.config.url,
                    "the credentials of zookeeper_auth_file are not taken",
                )
            )
            return
        # kazoo gave up though it was told not to: something in it broke.
        self._log.error("session.broken", detail=self._connection.last_messages)
        self._replace_connection()

    def _replace_connection(self) -> None:
        """Go on with another connection, as soon as there can be one."""
        # Who closes says so first, and then ends the connection that is there.
        if self.calls.is_closed:
            return
        broken = self._connection
        try:
            self._connection = self._make_connection()
            if not self.calls.is_closed:
                self._connection.start()
        except (ConfigurationError, OSError, RuntimeError) as error:
            # A file is just being replaced; or there are no descriptors, or threads.
            self._log.error("session.broken", detail=str(error))
            due_ns = self.clock.now_ns() + _REPLACING_PAUSE_NS
            self.loop.call_at(due_ns, self._replace_connection)
        if self._connection is not broken:
            broken.abandon()

    def _refuse(self, refusal: NameServiceError) -> None:
        """Give up, and tell everybody who asks from now on."""
        self.calls.refusal = refusal
        self._log.error("session.refused", error=str(refusal))
        self.calls.is_reachable.set()
        for listener in tuple(self._listeners):
            listener.session_refused(refusal)

    # -- an ensemble that has lost its data ------------------------------------------

    def _look_for_lost_data(self) -> None:
        """Ask, again and again while the session is lost, what the ensemble knows."""
        if (
            self._contact.contact is not Contact.LOST
            or self.calls.is_closed
            or self.calls.refusal is not None
        ):
            return
        # First: an attempt that fails is made again, as long as the session is lost.
        self.loop.call_at(
            self.clock.now_ns() + self._timeout_ns, self._look_for_lost_data
        )
        if not self._contact.is_open and (self._probe is None or self._probe.is_over):
            # What is seen from here on may be newer than the answer, which comes late.
            seen_zxid = self._connection.last_zxid
            try:
                self._probe = ZooKeeperProbe(
                    self.config,
                    self.clock,
                    tell=lambda zxid: self.loop.call(
                        lambda: self._compare(zxid, seen_zxid)
                    ),
                )
            except ConfigurationError as error:  # a file is just being replaced
                self._log.warning("probe.failed", error=str(error))

    def _compare(self, zxid: int, seen_zxid: int) -> None:
        """Give up if *zxid* is the newest transaction, and *seen_zxid* was before."""
        if self._contact.is_open or self.calls.refusal is not None or zxid >= seen_zxid:
            return
        self._end_session()
        detail = (
            f"{self.config.url} has lost its data, or is another ensemble than it was: "
            f"its newest transaction is {zxid:#x}, and it had been {seen_zxid:#x}. "
            "Epochs begin anew there: close these services, check what relies on their "
            "epochs, and open new ones"
        )
        self._refuse(RemoteProtocolError("data-lost", detail))

    # -- contact -------------------------------------------------------------------

    def _step(self, event: ContactEvent) -> None:
        """Have the core decide what to think of the session, and do what follows."""
        for effect in self._contact.step(event, now_ns=self.clock.now_ns()):
            self._perform(effect)
        due_ns = self._contact.next_deadline_ns()
        if due_ns != self._contact_due_ns:
            if self._contact_timer is not None:
                self._contact_timer.cancel()
            self._contact_due_ns = due_ns
            self._contact_timer = (
                None if due_ns is None else self.loop.call_at(due_ns, self._wake)
            )

    def _wake(self) -> None:
        self._contact_timer = self._contact_due_ns = None
        if not self._is_gone:
            self._step(TimePassed())

    def _perform(self, effect: ContactEffect) -> None:
        listeners = tuple(self._listeners)
        match effect:
            case SendHeartbeat():
                self.witness()
            case BreakConnection(is_silent=is_silent):
                if is_silent:
                    self._log.info("connection.silent")
                self._connection.abort()
            case TellRestored():
                self.calls.is_reachable.set()
                for listener in listeners:
                    listener.contact_restored()
            case TellSuspended():
                self.calls.is_reachable.clear()
                self._log.info("session.suspended")
                self._note_cut_off()
                for listener in listeners:
                    listener.contact_suspended()
            case TellLost():
                self._log.info("session.lost")
                for listener in listeners:
                    listener.contact_lost()
                self._look_for_lost_data()
            case _:
                assert_never(effect)

    def _note_cut_off(self) -> None:
        if self._is_leaving and not self.is_connected and not self.cut_off.done():
            self.cut_off.set_result(None)

    def witness(self) -> Future[None]:
        """Return once the leader of the ensemble has answered a ``sync``."""
        connection = self._connection
        sent_ns = self.clock.now_ns()
        witnessed = connection.sync()
        witnessed.add_done_callback(
            lambda answer: self._sync_answered(connection, answer, sent_ns)
        )
        return witnessed

    def _sync_answered(
        self, connection: ZooKeeperConnection, answer: Future[None], sent_ns: int
    ) -> None:
        if connection is not self._connection:
            return
        if answer.exception() is None and self._contact.is_open:
            self._renewals.step(
                SyncAnswered(sent_ns=sent_ns), now_ns=self.clock.now_ns()
            )
            self._step(Answered(sent_ns=sent_ns, is_sync=True))
        else:
            self._step(HeartbeatFailed(sent_ns=sent_ns))

    def write_committed(self, sent_ns: int) -> None:
        """Record that a write of ours, sent at *sent_ns*, has committed."""
        self._renewals.step(WriteCommitted(sent_ns=sent_ns), now_ns=self.clock.now_ns())
        self.acknowledge(sent_ns)

    def acknowledge(self, sent_ns: int) -> None:
        """Record that what was sent at *sent_ns* was answered."""
        self._step(Answered(sent_ns=sent_ns))
