"""
`ZooKeeperSession`: one session with an ensemble, and what we may think of it.

Theory of operation
-------------------
Contact is judged by our own heartbeats, not by kazoo's state.  A heartbeat is a
``sync``, which only the leader of the ensemble can answer: a follower that is cut off
cannot.  It is sent every third of the negotiated timeout, one at a time.

::

    CONNECTED ──closed, or silent for 2/3 timeout──► SUSPENDED ──1 timeout──► LOST
        ▲                                                │                     │
        └───────────an answer, or a new session──────────┴─────────────────────┘

Times count from the *send* of the last heartbeat that was answered.  When a connection
is silent for two thirds of the timeout we break it ourselves: another server may answer
while the session still lives.  Lost is our own conclusion; that a session has *ended*
is the name service's word, and may never come.

What contenders believe is another matter, and follows from their own writes
(zookeeper_contender.py).

Everything but the methods under "from any thread" is for the event loop alone.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, assert_never, final

from haservices.event_loop import EventLoop
from haservices.zookeeper_connection import (
    Connected,
    ConnectionEvent,
    Disconnected,
    Ended,
    Expired,
    ZooKeeperConnection,
)
from haservices.zookeeper_nodes import NodeExistsError
from haservices.zookeeper_paths import ancestors_of
from nameservice import (
    AuthenticationError,
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    SessionExpiredError,
    UnreachableError,
    get_logger,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from haservices.config import HAConfig
    from haservices.event_loop import Timer
    from haservices.zookeeper_nodes import NodeStat
    from nameservice import Clock


__all__ = [
    "SessionListener",
    "ZooKeeperSession",
    "format_session_id",
    "when_done",
]

T = TypeVar("T")

_NS_PER_MS: Final = 1_000_000
_HEARTBEATS_PER_TIMEOUT: Final = 3
_KNOWN_PARENT_COUNT_MAX: Final = 10_000


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

    def session_refused(self, error: AuthenticationError) -> None:
        """Give up: our credentials are not taken any more."""


class _Contact(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@final
class ZooKeeperSession:
    """
    The one session of a `ZooKeeperHAServices`.

    Args:
        config: Whom to connect to, and how.
        clock: What every deadline goes by.

    Raises:
        ConfigurationError: If a file that *config* names cannot be used.
    """

    def __init__(self, config: HAConfig, clock: Clock) -> None:
        self.config: Final = config
        self.clock: Final = clock
        self.loop: Final = EventLoop("zookeeper-session", clock)
        self._log = get_logger(component="zookeeper", url=config.url)
        self._connection = self._make_connection()
        self._listeners: dict[SessionListener, None] = {}
        self._known_parents: OrderedDict[str, None] = OrderedDict()
        self._node_watchers: dict[str, dict[Callable[[], None], None]] = {}
        self._is_connected = False
        self._contact = _Contact.LOST
        self._session_id: int | None = None
        self._timeout_ns = 0
        self._acknowledged_ns = 0
        self._heartbeat_sent_ns: int | None = None
        self._heartbeat_timer: Timer | None = None
        self._silence_timer: Timer | None = None
        self._refusal: AuthenticationError | None = None
        self._is_reachable = threading.Event()
        self._is_closing = False
        self._closing_deadline: float | None = None

    # -- from any thread -----------------------------------------------------------

    def open(self) -> None:
        """
        Return as soon as there is a session.

        Raises:
            UnreachableError: If there is none within the connect timeout.
            AuthenticationError: If our credentials were refused.
        """
        self.loop.start()
        self.loop.call(self._connection.start)
        if not self._is_reachable.wait(self.config.connect_timeout_seconds):
            detail = self._connection.last_messages
            self.close()
            raise UnreachableError(
                self.config.url, self.config.connect_timeout_seconds, detail
            )
        if self._refusal is not None:
            self.close()
            raise self._refusal

    @property
    def session_id_text(self) -> str | None:
        """Return the present session's id as operators know it, or None."""
        session_id = self._session_id
        return None if session_id is None else format_session_id(session_id)

    def begin_closing(self) -> None:
        """Let whoever still withdraws something wait one connect timeout in all."""
        self._closing_deadline = time.monotonic() + self.config.connect_timeout_seconds

    def seconds_to_wait(self) -> float:
        """Return how long a withdrawal may wait for its answer."""
        deadline = self._closing_deadline
        if deadline is None:
            return self.config.connect_timeout_seconds
        if not self.is_connected:
            return 0.0
        return max(0.0, deadline - time.monotonic())

    def close(self) -> None:
        """End the session, and let everything go.  Idempotent."""
        if not self._is_closing:
            self.begin_closing()
            self._is_closing = True
            self._connection.stop(self.seconds_to_wait())
            self._is_connected = False
            self.loop.stop()

    def read(self, request: Callable[[], Future[T]]) -> T:
        """
        Ask until there is an answer, and return it.

        Args:
            request: Called on the loop; asks for something that changes nothing.

        Raises:
            UnreachableError: If there is no answer within the connect timeout.
        """
        (answer,) = self.read_all([request])
        return answer

    def read_all(self, requests: Sequence[Callable[[], Future[T]]]) -> list[T]:
        """Do as `read` does for many requests, which are on their way together."""
        began = time.monotonic()
        limit_seconds = self.config.connect_timeout_seconds
        while True:
            self._wait_until_reachable(began)
            futures = [self.request(request) for request in requests]
            try:
                return [
                    future.result(max(0.0, began + limit_seconds - time.monotonic()))
                    for future in futures
                ]
            except TimeoutError:
                raise self._unreachable() from None
            except (MayHaveHappenedError, SessionExpiredError) as error:
                lost: Exception = error  # it was only a question: ask again
            except DidNotHappenError as error:
                if type(error) is not DidNotHappenError:
                    raise  # it is the answer
                lost = error
            if time.monotonic() - began >= limit_seconds:
                raise self._unreachable() from lost

    def write(self, request: Callable[[], Future[T]]) -> T:
        """
        Ask for a change once, and return the answer.

        Raises:
            UnreachableError: If it could not be sent within the connect timeout.
            MayHaveHappenedError: If it was sent, and not answered.
        """
        began = time.monotonic()
        self._wait_until_reachable(began)
        try:
            return self.request(request).result(self.config.connect_timeout_seconds)
        except TimeoutError:
            message = f"{self.config.url} did not answer in time"
            raise MayHaveHappenedError(message) from None
        except SessionExpiredError as error:
            message = f"{self.config.url} ended the session before it answered"
            raise MayHaveHappenedError(message) from error

    def request(self, request: Callable[[], Future[T]]) -> Future[T]:
        """Call *request* on the loop; return a future of the answer."""
        answer: Future[T] = Future()

        def ask() -> None:
            when_done(request(), lambda asked: _hand_on(asked, answer))

        self.loop.call(ask)
        return answer

    def _wait_until_reachable(self, began: float) -> None:
        if self._is_closing:
            message = "these services are closed: open new ones"
            raise LocalProtocolError(message)
        left_seconds = began + self.config.connect_timeout_seconds - time.monotonic()
        if not self._is_reachable.wait(max(0.0, left_seconds)):
            raise self._unreachable()
        if self._refusal is not None:
            raise self._refusal

    def _unreachable(self) -> UnreachableError:
        return UnreachableError(
            self.config.url,
            self.config.connect_timeout_seconds,
            self._connection.last_messages,
        )

    # -- on the loop ---------------------------------------------------------------

    @property
    def connection(self) -> ZooKeeperConnection:
        """Return what requests are made of."""
        return self._connection

    @property
    def is_connected(self) -> bool:
        """Return whether requests are sent at once, to the session of `session_id`."""
        return self._is_connected and self._contact is _Contact.CONNECTED

    @property
    def session_id(self) -> int | None:
        """Return the present session, or None if the last one has ended."""
        return self._session_id

    @property
    def timeout_ns(self) -> int:
        """Return the session timeout as negotiated."""
        return self._timeout_ns

    def sync(self) -> Future[None]:
        """Return once our server has caught up with the leader of the ensemble."""
        return self._connection.sync()

    def add_listener(self, listener: SessionListener) -> None:
        """Tell *listener* of the session; if there is contact now, at once."""
        self._listeners[listener] = None
        if self._refusal is not None:
            listener.session_refused(self._refusal)
        elif self._contact is _Contact.CONNECTED:
            listener.contact_restored()

    def remove_listener(self, listener: SessionListener) -> None:
        """Tell *listener* no more."""
        self._listeners.pop(listener, None)

    def create_parents(self, path: str) -> Future[None]:
        """
        Create the node at *path*, and all above it, where they may be missing.

        They are asked for all at once.  What was created, or was there, before is not
        asked for again until `forget_parents`.
        """
        done: Future[None] = Future()
        if path in self._known_parents:
            done.set_result(None)
            return done
        created = [self._connection.create(node) for node in ancestors_of(path)]
        when_done(created[-1], lambda _: self._parents_created(path, created, done))
        return done

    def _parents_created(
        self, path: str, created: Sequence[Future[None]], done: Future[None]
    ) -> None:
        # Answers come in order: with the last one, all of them are there.
        errors = [future.exception() for future in created]
        error = errors[-1]
        if error is None or isinstance(error, NodeExistsError):
            self._known_parents[path] = None
            while len(self._known_parents) > _KNOWN_PARENT_COUNT_MAX:
                self._known_parents.popitem(last=False)
            done.set_result(None)
        else:
            # Where one above was refused, that is why this one failed.
            refused = (one for one in errors if isinstance(one, AuthenticationError))
            done.set_exception(next(refused, error))

    def forget_parents(self, path: str) -> None:
        """Take the node at *path* for missing."""
        self._known_parents.pop(path, None)

    def watch(self, path: str, changed: Callable[[], None]) -> Future[NodeStat | None]:
        """
        Call *changed* when the node at *path* is created, set or deleted.

        ZooKeeper tells once: watch again to be told again.  A watch does not outlive
        the connection: watch again when contact is restored.
        """
        self._node_watchers.setdefault(path, {})[changed] = None
        return self._connection.watch(path)

    def unwatch(self, path: str, changed: Callable[[], None]) -> None:
        """Call *changed* no more; the server forgets the watch if it was the last."""
        watchers = self._node_watchers.get(path)
        if watchers is not None:
            watchers.pop(changed, None)
            if not watchers:
                del self._node_watchers[path]
                if self.is_connected:
                    self._connection.unwatch(path)

    def _node_changed(self, path: str) -> None:
        for changed in tuple(self._node_watchers.get(path, ())):
            changed()

    # -- what the connection tells -------------------------------------------------

    def _make_connection(self) -> ZooKeeperConnection:
        return ZooKeeperConnection(
            self.config,
            loop=self.loop,
            clock=self.clock,
            on_event=self._take,
            on_node_changed=self._node_changed,
        )

    def _take(self, event: ConnectionEvent) -> None:
        if self._is_closing:
            self._is_connected = False
            return
        match event:
            case Connected():
                self._connected(event)
            case Disconnected():
                self._is_connected = False
                self._suspend()
            case Expired():
                self._is_connected = False
                self._end_session()
            case Ended(is_refused=is_refused):
                self._is_connected = False
                self._connection_ended(is_refused=is_refused)
            case _:
                assert_never(event)

    def _connected(self, event: Connected) -> None:
        if self._session_id is not None and self._session_id != event.session_id:
            self._end_session()
        is_new = self._session_id is None
        self._is_connected = True
        self._session_id = event.session_id
        self._timeout_ns = event.session_timeout_ms * _NS_PER_MS
        self._heartbeat_sent_ns = None
        if is_new:
            self._acknowledged_ns = event.sent_ns
            self._log.info(
                "session.opened",
                session_id=format_session_id(event.session_id),
                session_timeout_ms=event.session_timeout_ms,
            )
        # Contact counts as restored when the first heartbeat is answered: only then are
        # our credentials known to be taken.
        self._heartbeat()

    def _end_session(self) -> None:
        if self._session_id is None:
            return
        self._log.info(
            "session.expired", session_id=format_session_id(self._session_id)
        )
        self._session_id = None
        self._is_reachable.clear()
        self._contact = _Contact.LOST
        for listener in tuple(self._listeners):
            listener.session_ended()

    def _connection_ended(self, *, is_refused: bool) -> None:
        self._end_session()
        if is_refused:
            self._refusal = AuthenticationError(
                self.config.url, "the credentials of zookeeper_auth_file are not taken"
            )
            self._log.error("session.refused")
            self._is_reachable.set()
            for listener in tuple(self._listeners):
                listener.session_refused(self._refusal)
            return
        # kazoo gave up though it was told not to: something in it broke.
        self._log.error("session.broken", detail=self._connection.last_messages)
        broken = self._connection
        self._connection = self._make_connection()
        self._connection.start()
        broken.abandon()

    # -- contact -------------------------------------------------------------------

    def _heartbeat(self) -> None:
        interval_ns = self._timeout_ns // _HEARTBEATS_PER_TIMEOUT
        now_ns = self.clock.now_ns()
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._heartbeat_timer = self.loop.call_at(now_ns + interval_ns, self._heartbeat)
        if not self._is_connected:
            return
        if self._heartbeat_sent_ns is not None:
            if now_ns - self._heartbeat_sent_ns >= self._timeout_ns * 2 // 3:
                self._connection.abort()  # it has never answered, or no more
        else:
            self._heartbeat_sent_ns = now_ns
            connection = self._connection
            when_done(
                connection.sync(),
                lambda answer: self._heartbeat_answered(connection, answer, now_ns),
            )

    def _heartbeat_answered(
        self, connection: ZooKeeperConnection, answer: Future[None], sent_ns: int
    ) -> None:
        if connection is not self._connection:
            return
        if self._heartbeat_sent_ns == sent_ns:
            self._heartbeat_sent_ns = None
        if answer.exception() is None and self._is_connected:
            self.acknowledge(sent_ns)

    def acknowledge(self, sent_ns: int) -> None:
        """Take note that what was sent at *sent_ns* was answered."""
        self._acknowledged_ns = max(self._acknowledged_ns, sent_ns)
        self._check_silence()
        silence_ns = self.clock.now_ns() - self._acknowledged_ns
        if (
            self._contact is not _Contact.CONNECTED
            and silence_ns < self._timeout_ns * 2 // 3
        ):
            self._contact = _Contact.CONNECTED
            self._is_reachable.set()
            for listener in tuple(self._listeners):
                listener.contact_restored()

    def _check_silence(self) -> None:
        """Conclude from the time what follows from it, and come back when more does."""
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        if self._session_id is None:
            return
        suspended_ns = self._acknowledged_ns + self._timeout_ns * 2 // 3
        lost_ns = self._acknowledged_ns + self._timeout_ns
        now_ns = self.clock.now_ns()
        if now_ns >= lost_ns:
            self._lose()
            return
        if now_ns >= suspended_ns:
            if self._is_connected and self._contact is _Contact.CONNECTED:
                self._log.info("connection.silent")
                self._connection.abort()  # another server may answer in time
            self._suspend()
        due_ns = lost_ns if now_ns >= suspended_ns else suspended_ns
        self._silence_timer = self.loop.call_at(due_ns, self._check_silence)

    def _suspend(self) -> None:
        if self._contact is _Contact.CONNECTED:
            self._contact = _Contact.SUSPENDED
            self._is_reachable.clear()
            self._log.info("session.suspended")
            for listener in tuple(self._listeners):
                listener.contact_suspended()

    def _lose(self) -> None:
        if self._contact is not _Contact.LOST:
            self._suspend()
            self._contact = _Contact.LOST
            self._log.info("session.lost")
            for listener in tuple(self._listeners):
                listener.contact_lost()


def format_session_id(session_id: int) -> str:
    """Return a session's id as ZooKeeper's own tools write it."""
    return f"{session_id & (1 << 64) - 1:#x}"


def when_done(future: Future[T], callback: Callable[[Future[T]], None]) -> None:
    """Call *callback* when *future*, which is completed on the loop, is done."""
    future.add_done_callback(callback)


def _hand_on(asked: Future[T], answer: Future[T]) -> None:
    error = asked.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(asked.result())
