"""
`LeaderClient`: the thread-safe face of a `ClientCore`, over whatever link it is given.

A link is the part that touches the world: sockets and a thread for a LeaderServer in
another process, a queue for one embedded in this process.  All steps of the core, and
all its effects, happen on the link's thread; callers on other threads post an event
and, where they want an answer, wait for a future.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Final, Protocol, assert_never, final

from leaderserver.client.audience import ClientAudience
from leaderserver.client.calls import PendingCalls
from leaderserver.client.core.core import ClientCore
from leaderserver.client.core.events import (
    AnnounceSession,
    BroadcastsReached,
    CallAsked,
    ClientEffect,
    ClientEvent,
    CloseAsked,
    CompleteCall,
    ConfirmAsked,
    ContenderAdded,
    ContenderRemoved,
    DeliverStoreChange,
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
    SendFailed,
    SendMessage,
    TimeWentBy,
)
from leaderserver.client.store_watchers import StoreWatchers
from leaderserver.messages import Request
from nameservice import (
    ForkGuard,
    LocalProtocolError,
    NameServiceError,
    UnreachableError,
    get_logger,
    seconds_to_ns,
)
from nameservice.answer import Answer
from nameservice.clock import NS_PER_MS
from zmqtransport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from election.holder import DeliverGrant, DeliverRevoke, HolderCore
    from leaderserver.client.calls import CallReply
    from leaderserver.client.core.config import ClientConfig
    from leaderserver.messages import (
        ReplyBody,
        RequestBody,
        ToClient,
        ToServer,
        Welcome,
    )
    from nameservice import Clock
    from retrieval import RetrieverEvent


__all__ = ["ClientLink", "LeaderClient"]

# A caller's own wait is this much longer than the core's deadline: the core answers.
_GRACE_SECONDS: Final = 5.0
_CLOSE_SECONDS_MAX: Final = 1.0
# A client that is late by more than this many heartbeats has stalled.
_STALL_HEARTBEAT_COUNT: Final = 2


class ClientLink(Protocol):
    """
    What carries a client's messages, and the one thread on which its core runs.

    The link calls `LeaderClient.opened`, `closed`, `received` and `advance` on that
    thread: `advance` as soon as `LeaderClient.next_deadline_ns` is reached, which it
    asks for after every call.
    """

    def post(self, action: Callable[[], None]) -> None:
        """Run *action* on the link's thread soon; thread-safe, returns at once."""

    def send(self, message: ToServer) -> None:
        """
        Send now, or not at all; on the link's thread.

        Raises:
            LocalProtocolError: If *message* cannot be encoded; nothing was sent.
        """

    def connect_publisher(self, welcome: Welcome) -> None:
        """Listen for broadcasts where *welcome* says; on the link's thread."""

    def join_topic(self, component_id: str) -> None:
        """Hear broadcasts of *component_id*; on the link's thread."""

    def leave_topic(self, component_id: str) -> None:
        """Hear them no more; on the link's thread."""

    def stop(self) -> None:
        """End the thread and release everything; from any other thread."""


@final
class LeaderClient:
    """
    One session with a LeaderServer, kept alive and renewed.  Thread-safe.

    Args:
        config: How to live with the server.
        clock: Where time comes from.
        link_factory: Makes the link, which must not call back before it is started
            by its own first `post`.
        connect_timeout_seconds: How long opening and single requests may take.

    Attributes:
        is_publisher_reached: Whether broadcasts can arrive, as far as the link knows;
            without them changes are asked for with each heartbeat.
        store_watchers: Who is told that a leader store may have changed.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Clock,
        link_factory: Callable[[LeaderClient], ClientLink],
        connect_timeout_seconds: float,
    ) -> None:
        self._config = config
        self._clock = clock
        self._timeout_seconds = connect_timeout_seconds
        self._now_ns = clock.now_ns()
        self._core = ClientCore(config, now_ns=self._now_ns)
        self._fork_guard = ForkGuard()
        self._log = get_logger(component="leaderserver-client", target=config.target)
        self._lock = threading.Lock()  # guards _is_closed
        self._retriever_ids = itertools.count(1)
        self._calls = PendingCalls()
        self._audience = ClientAudience()
        self._opened: Answer[Welcome] = Answer()
        self._last_problem: NameServiceError | None = None
        self._is_refused = False  # since messages could flow last
        self._is_leaving = False
        self._is_closed = False
        self._budget = LogBudget()
        self.is_publisher_reached = True
        self.store_watchers = StoreWatchers(self._fork_guard)
        self._link = link_factory(self)

    # -- for the application, on any thread ------------------------------------------

    @property
    def fork_guard(self) -> ForkGuard:
        """Return what tells whether this process may use the client."""
        return self._fork_guard

    @property
    def session_id(self) -> str | None:
        """Return the present session's id, or None while there is none."""
        return self._core.session_id

    @property
    def has_claim(self) -> bool:
        """Return whether a contender leads; on the link's thread."""
        return self._core.has_claim

    def open(self) -> Welcome:
        """
        Wait for the first session; return what the server said of itself.

        Raises:
            UnreachableError: If no server answered within the connect timeout.
            AuthenticationError: If we were refused.
        """
        self._post(TimeWentBy())
        try:
            return self._opened.result(self._timeout_seconds)
        except TimeoutError:
            problem = self._last_problem
            raise UnreachableError(
                self._config.target,
                self._timeout_seconds,
                "" if problem is None else str(problem),
            ) from problem

    def add_contender(
        self,
        contender_id: str,
        component_id: str,
        *,
        confirm_timeout_ns: int,
        on_added: Callable[[HolderCore], None],
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """
        Enter a contender; does not wait.

        Args:
            contender_id: Names it in this client; the caller's, who may be interrupted
                amid this and removes it then.
            component_id: What it wants to lead.
            confirm_timeout_ns: How long it may take to confirm.
            on_added: Takes what it believes, before anything is delivered: that may be
                before this returns.
            deliver: Takes its grants and revocations.
            fail: Takes what it should hear of.
        """
        self._fork_guard.check()
        self._audience.add_contender(contender_id, deliver=deliver, fail=fail)
        added = ContenderAdded(
            contender_id=contender_id,
            component_id=component_id,
            confirm_timeout_ns=confirm_timeout_ns,
        )
        self._link.post(
            lambda: self._step(
                added,
                before_effects=lambda: on_added(self._core.holder(contender_id)),
            )
        )

    def remove_contender(self, contender_id: str) -> None:
        """Withdraw a contender; wait until the server knows, within bounds."""
        if self._fork_guard.is_inherited:
            return
        self._audience.remove_contender(contender_id)
        timeout_seconds = self._timeout_seconds
        if self._is_leaving:
            # The entry ends with the session, which is about to end: whether or not
            # the silence of the server has been noticed yet.
            timeout_seconds = min(timeout_seconds, _CLOSE_SECONDS_MAX)
        with contextlib.suppress(LocalProtocolError):  # it went with the session
            self._ask(
                lambda call_id, deadline_ns: ContenderRemoved(
                    contender_id=contender_id, call_id=call_id, deadline_ns=deadline_ns
                ),
                timeout_seconds=timeout_seconds,
            )

    def confirm(self, contender_id: str, leader_session_id: UUID, address: str) -> None:
        """Confirm a leadership; see `LeaderElection.confirm_leadership`."""
        self._fork_guard.check()
        self._ask(
            lambda call_id, deadline_ns: ConfirmAsked(
                contender_id=contender_id,
                leader_session_id=leader_session_id,
                address=address,
                call_id=call_id,
                deadline_ns=deadline_ns,
            )
        )

    def revoke_returned(self, contender_id: str) -> None:
        """Record that a revoke callback has returned; does not wait."""
        self._post(RevokeReturned(contender_id=contender_id))

    def new_retriever_id(self) -> int:
        """Return what names a retriever in this client."""
        return next(self._retriever_ids)

    def add_retriever(
        self,
        retriever_id: int,
        component_id: str,
        *,
        deliver: Callable[[RetrieverEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Enter a retriever under an id of `new_retriever_id`; does not wait."""
        self._fork_guard.check()
        self._audience.add_retriever(retriever_id, deliver=deliver, fail=fail)
        self._post(RetrieverAdded(retriever_id=retriever_id, component_id=component_id))

    def remove_retriever(self, retriever_id: int) -> None:
        """Take a retriever out; does not wait."""
        if self._fork_guard.is_inherited:
            return
        self._audience.remove_retriever(retriever_id)
        self._post(RetrieverRemoved(retriever_id=retriever_id))

    def call(self, body: RequestBody, *, is_repeatable: bool) -> ReplyBody:
        """
        Ask the server; wait for its answer.

        Raises:
            NameServiceError: What the server refused with, or what its silence means.
            LocalProtocolError: If the client is closed.
        """
        self._fork_guard.check()
        reply = self._ask(
            lambda call_id, deadline_ns: CallAsked(
                call_id=call_id,
                body=body,
                deadline_ns=deadline_ns,
                is_repeatable=is_repeatable,
            )
        )
        assert reply is not None
        return reply

    def begin_closing(self) -> None:
        """Expect every contender to withdraw, and then the end of the session."""
        self._is_leaving = True

    def close(self) -> None:
        """End the session and release everything.  Idempotent; silent after a fork."""
        if self._fork_guard.is_inherited:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        timeout_seconds = min(self._timeout_seconds, _CLOSE_SECONDS_MAX)
        try:
            self._ask(
                lambda call_id, deadline_ns: CloseAsked(
                    call_id=call_id, deadline_ns=deadline_ns
                ),
                timeout_seconds=timeout_seconds,
            )
        finally:
            self._link.stop()
            stopped = UnreachableError(self._config.target, 0.0, "closed")
            self._calls.stop(stopped)

    def _ask(
        self,
        event_of: Callable[[int, int], ClientEvent],
        *,
        timeout_seconds: float | None = None,
    ) -> CallReply:
        """Post an event that completes a call, and wait for that."""
        if timeout_seconds is None:
            timeout_seconds = self._timeout_seconds
        call = self._calls.begin()
        deadline_ns = self._clock.now_ns() + seconds_to_ns(timeout_seconds)
        try:
            self._post(event_of(call.call_id, deadline_ns))
            return call.wait(timeout_seconds + _GRACE_SECONDS)
        except TimeoutError:
            raise UnreachableError(
                self._config.target, timeout_seconds, "the client's own thread is stuck"
            ) from None
        finally:
            self._calls.end(call)

    def _post(self, event: ClientEvent) -> None:
        self._link.post(lambda: self._step(event))

    # -- for the link, on its thread -------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` must be called, or None if it need not be."""
        return self._core.next_deadline_ns()

    def advance(self) -> None:
        """Take note of the time."""
        self._step(TimeWentBy())

    def opened(self) -> None:
        """Record that messages can flow."""
        self._is_refused = False
        self._audience.admitted()
        self._step(LinkOpened())
        self.store_watchers.wake(None)  # a notice may have gone with the connection

    def broadcasts_reached(self) -> None:
        """Record that broadcasts are heard from now on."""
        self._step(BroadcastsReached())

    def closed(self) -> None:
        """Record that the connection closed."""
        self._step(LinkClosed())

    def received(self, message: ToClient) -> None:
        """Take a message of the server."""
        self._step(MessageReceived(message=message))

    def refused(self, error: NameServiceError) -> None:
        """Record that the server did not admit us; each hears why, once."""
        untold = self._audience.untold_of_refusal()
        if self._is_refused and not untold:
            return
        self._is_refused = True
        self._fail_opening(error, untold)

    def noticed(self, problem: NameServiceError) -> None:
        """Keep what an `UnreachableError` should say if nothing better comes."""
        self._last_problem = problem

    def _step(
        self,
        event: ClientEvent,
        *,
        before_effects: Callable[[], None] | None = None,
    ) -> None:
        # The embedded clock excuses stalls: it may have fallen since the core was made.
        self._now_ns = max(self._now_ns, self._clock.now_ns())
        self._note_stall()
        effects = self._core.step(event, now_ns=self._now_ns)
        if before_effects is not None:
            before_effects()
        for effect in effects:
            self._perform(effect)

    def _note_stall(self) -> None:
        """Log how long this thread should have run, and did not."""
        due_ns = self._core.next_deadline_ns()
        if due_ns is None:
            return
        late_ns = self._now_ns - due_ns
        if late_ns <= 0:
            return
        tolerated_ns = _STALL_HEARTBEAT_COUNT * self._core.heartbeat_interval_ns
        if late_ns > tolerated_ns and self._budget.admits("stall", now_ns=self._now_ns):
            self._log.warning("client.stalled", duration_ms=late_ns // NS_PER_MS)

    def _perform(self, effect: ClientEffect) -> None:
        match effect:
            case SendMessage(message=message):
                self._send(message)
            case CompleteCall(call_id=call_id, reply=reply, error=error):
                self._calls.complete(call_id, reply=reply, error=error)
            case AnnounceSession(welcome=welcome):
                self._log.info("session.opened", session_id=welcome.session_id)
                self._link.connect_publisher(welcome)
                if not self._opened.done():
                    self._opened.set_result(welcome)
                self.store_watchers.wake(None)  # the server knows of none of them
            case DeliverStoreChange(component_id=component_id):
                self.store_watchers.wake(component_id)
            case FailOpening(error=error):
                self._fail_opening(error, self._audience.all_failing())
            case JoinTopic(component_id=component_id):
                self._link.join_topic(component_id)
            case LeaveTopic(component_id=component_id):
                self._link.leave_topic(component_id)
            case (
                DeliverToContender()
                | ReportToContender()
                | DeliverToRetriever()
                | ReportToRetriever()
            ):
                self._audience.tell(effect)
            case _:
                assert_never(effect)

    def _send(self, message: ToServer) -> None:
        """Send now, or not at all; what cannot be encoded fails alone."""
        try:
            self._link.send(message)
        except LocalProtocolError as error:
            self._log.error("message.unencodable", error=str(error))
            if isinstance(message, Request):
                # When what is being done is done: the core is not entered twice.
                failed = SendFailed(number=message.number, error=error)
                self._link.post(lambda: self._step(failed))
            else:
                self._fail_opening(error, self._audience.all_failing())

    def _fail_opening(
        self, error: NameServiceError, told: Iterable[Callable[[Exception], None]]
    ) -> None:
        self._log.warning("session.refused", error=str(error))
        if not self._opened.done():
            self._opened.set_exception(error)
            return
        # The server admitted us once and does so no more: everybody must hear why.
        for fail in told:
            fail(error)
