"""
`ProxyConnection`: one question, one answer, to whoever is the proxy leader.

For control requests: drawing tickets, binding runs, committing batches, dropping
states.  Each is idempotent, so whatever goes wrong on the way (the leader changes, the
connection closes, the session is unknown) has one answer: ask again, until the caller's
deadline.

Theory of operation.  A call takes a *channel*, which is a socket with a session of its
own, and nobody else uses it until the answer is there: a commit that waits a minute for
its nodes delays no other thread.  There is no thread here; the caller's own waits.
Channels that have answered are kept for the next call.  A channel on which anything
went wrong is closed: a new one costs a millisecond, and has no history.

The name service is opened only if it is needed.  Tasks of Spark are told by the driver
where the proxy is (`first_address`), and most of them never open it.
"""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Final, Self, TypeAlias, final

import zmq

from nameservice import (
    NS_PER_SECOND,
    AuthenticationError,
    DeadlineExceededError,
    DidNotHappenError,
    ForkGuard,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    RemoteProtocolError,
    SystemClock,
    get_logger,
    seconds_to_ns,
)
from queryablestate.address import StateAddress, parse_address
from queryablestate.codec import FRAME_COUNT_MAX, decode_to_client, encode
from queryablestate.credentials import (
    Credentials,
    as_credentials,
    load_caller_keys,
    secure_to,
)
from queryablestate.failures import NOT_LEADER, UNKNOWN_SESSION, error_of
from queryablestate.messages import Hello, Welcome
from queryablestate.proxy_finder import ProxyFinder
from queryablestate.questions import Refusal
from transport import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionMonitor,
    CurveKeyPair,
    HandshakeFailed,
    HandshakeSucceeded,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    connect_socket,
    handshake_error,
    open_socket,
    receive_now,
    send_now,
)


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from haservices import HAConfig, HAServices
    from queryablestate.messages import ClientRequest, ToClient


__all__ = ["PROXY_SOCKET_LIMITS", "ProxyConnection"]

Build: TypeAlias = "Callable[[int, bytes], ClientRequest]"

PROXY_SOCKET_LIMITS: Final = SocketLimits(
    frame_size_bytes_max=64 * 1024 * 1024,
    heartbeat_interval_ms=3_000,
    heartbeat_timeout_ms=10_000,
    reconnect_interval_ms=3_600_000,
)
"""
Of every socket that a caller opens to a proxy; answers may be large.

libzmq is kept from connecting again by itself: each attempt is reported to a monitor
that nobody reads while the caller is idle.  A new socket is opened when there is need.
"""

_NS_PER_MS: Final = 1_000_000
_CHANNEL_COUNT_MAX: Final = 4
"""Channels kept for the next call; more are open while more threads call."""

_PATIENCE_NS: Final = 3 * NS_PER_SECOND
"""Silence at the address given first, after which the name service is asked, too."""

_PAUSE_NS: Final = NS_PER_SECOND // 20
_PAUSE_NS_MAX: Final = NS_PER_SECOND // 2

_TRANSIENT_CODES: Final = frozenset({"did-not-happen", "may-have-happened"})
"""The proxy could not do it now; what is idempotent may be tried again."""

_LASTING_PROBLEMS: Final = (
    AuthenticationError,
    DidNotHappenError,
    MayHaveHappenedError,
)
"""What says more at the deadline than that it is over."""


@final
class _Outcome(Enum):
    """Why a channel has no answer."""

    NOT_LEADER = "not-leader"
    UNREACHABLE = "unreachable"
    MOVED = "moved"
    LATE = "late"


@final
class _Channel:
    """One socket to one address, with a session; one call uses it at a time."""

    def __init__(
        self, context: ZMQContext, address: StateAddress, key_pair: CurveKeyPair | None
    ) -> None:
        self.target = str(address)
        self.problem: NameServiceError | None = None
        self._resources = ExitStack()
        self._is_open = False
        self._session: bytes | None = None
        self._numbers = itertools.count(1)
        try:
            self._socket = open_socket(context, zmq.DEALER, PROXY_SOCKET_LIMITS)
            self._resources.callback(self._socket.close)
            secure_to(self._socket, address, key_pair)
            self._monitor = ConnectionMonitor(self._socket)
            self._resources.callback(self._monitor.close)
            # A pipe, not a ZeroMQ pair: any thread may write to it.
            self._wake_reader, self._wake_writer = os.pipe()
            for descriptor in (self._wake_reader, self._wake_writer):
                os.set_blocking(descriptor, False)
                self._resources.callback(os.close, descriptor)
            connect_socket(self._socket, address.endpoint)
        except BaseException:
            self._resources.close()
            raise
        self._polled: list[tuple[ZMQSocket | int, int]] = [
            (self._monitor.socket, int(zmq.POLLIN)),
            (self._socket, int(zmq.POLLIN)),
            (self._wake_reader, int(zmq.POLLIN)),
        ]

    def is_alive(self) -> bool:
        """Return whether a channel that was kept is still connected."""
        try:
            return not self._watch()
        except NameServiceError:
            return False

    def wake(self) -> None:
        """Let a call look whether it should go on; from any thread."""
        try:
            os.write(self._wake_writer, b"\0")
        except BlockingIOError:
            return  # woken often enough

    def close(self) -> None:
        """Close the socket; nobody may use the channel then."""
        self._resources.close()

    def exchange(
        self,
        build: Build,
        *,
        token: str | None,
        deadline_ns: int,
        has_moved: Callable[[int], bool],
        clock: SystemClock,
    ) -> ToClient | _Outcome:
        """
        Send a request, opening a session if there is none; return what came of it.

        Args:
            build: Makes the request.
            token: For the session.
            deadline_ns: When to give up.
            has_moved: Is told the time, and says whether to leave this channel.
            clock: Where time comes from.

        Returns:
            The answer, which may be a `Refusal`, or why there is none.

        Raises:
            AuthenticationError: If the proxy does not let us in.
            RemoteProtocolError: If it speaks another version.
        """
        awaited = self._begin(build, token)
        while True:
            now_ns = clock.now_ns()
            if has_moved(now_ns):
                return _Outcome.MOVED
            if now_ns >= deadline_ns:
                return _Outcome.LATE
            wait_ns = min(deadline_ns - now_ns, _PATIENCE_NS)
            zmq.zmq_poll(self._polled, -(-wait_ns // _NS_PER_MS))
            self._drain_wake()
            if self._watch():
                return _Outcome.UNREACHABLE
            if self._is_open and awaited is None:
                awaited = self._begin(build, token)
            while (message := self._receive()) is not None:
                if message.request_id not in {awaited, 0}:
                    continue  # what an earlier call did not wait for
                match message:
                    case Welcome(session=session):
                        self._session = session
                    case Refusal(code=code) if code == NOT_LEADER:
                        return _Outcome.NOT_LEADER
                    case Refusal(code=code) if code == UNKNOWN_SESSION:
                        self._session = None
                    case _:
                        return message
                awaited = self._begin(build, token)

    def _begin(self, build: Build, token: str | None) -> int | None:
        """Send what comes next; return the number of the answer, None if unsent."""
        if not self._is_open:
            return None
        number = next(self._numbers)
        request: ClientRequest = (
            Hello(request_id=number, token=token)
            if self._session is None
            else build(number, self._session)
        )
        outcome = send_now(self._socket, [encode(request)])
        return number if outcome is SendOutcome.SENT else None

    def _watch(self) -> bool:
        """Take note of what happened to the connection; return whether it is over."""
        for event in self._monitor.receive():
            match event:
                case HandshakeSucceeded():
                    self._is_open = True
                case HandshakeFailed(is_final=is_final):
                    self.problem = handshake_error(event, target=self.target)
                    if is_final:
                        raise self.problem
                    return True
                case ConnectFailed() | ConnectionClosed():
                    return True
                case _:
                    pass
        return False

    def _receive(self) -> ToClient | None:
        """
        Return the next message that is one, or None if there is none.

        Raises:
            RemoteProtocolError: If the proxy speaks another version: it always will.
        """
        while True:
            try:
                frames = receive_now(self._socket, frame_count_max=FRAME_COUNT_MAX)
            except zmq.Again:
                return None
            try:
                return decode_to_client(frames[0].buffer)
            except RemoteProtocolError as error:
                self.problem = error
                if error.reason == "wrong-version":
                    raise

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_reader, 4_096)
        except BlockingIOError:
            return


@final
class ProxyConnection:
    """
    Asks whoever is the proxy leader, and waits for the answer.  Thread-safe.

    Opens nothing until the first `call`.  In a child process after ``fork()`` every
    call raises `ForkedClientError`, and `close` is silent: make one there anew.

    Args:
        config: The name service, or how to open it (a URL will do).  One that is given
            open stays its owner's.
        credentials: A token or `Credentials`.  Without CURVE keys of their own, those
            that *config* has for the name service are used with a proxy that uses
            CURVE.
        first_address: Where to ask before the name service is opened, e.g.
            `leader_address` of another connection.

    Raises:
        ConfigurationError: If *config* or *first_address* is malformed.
    """

    def __init__(
        self,
        config: HAConfig | HAServices | str,
        credentials: str | Credentials | None = None,
        *,
        first_address: str | None = None,
    ) -> None:
        self._guard = ForkGuard()
        self._clock = SystemClock()
        self._log = get_logger(component="proxy-connection")
        self._credentials = as_credentials(credentials)
        self._first_address = first_address
        if first_address is not None:
            parse_address(first_address)
        self._finder = ProxyFinder(config, on_change=self._wake)
        self._changed = threading.Condition()  # guards what follows
        self._context: ZMQContext | None = None
        self._idle: list[_Channel] = []
        self._busy: set[_Channel] = set()
        self._leader_address = first_address
        self._is_closed = False

    @property
    def leader_address(self) -> str | None:
        """Return where the last answer came from, or *first_address*, or None."""
        return self._leader_address

    def call(self, build: Build, *, timeout_seconds: float) -> ToClient:
        """
        Ask the proxy leader; return its answer, which is no `Refusal`.

        Args:
            build: Makes the request from a number and the secret of the session; may be
                called several times, for the request may be sent several times.
            timeout_seconds: How long to try.

        Raises:
            QueryableStateError: What the proxy refused the request with.
            NameServiceError: Likewise, where the refusal is not about state.
            NoLeaderError: If nobody led within *timeout_seconds*.
            UnreachableError: If the name service did not answer by then.
            DeadlineExceededError: If a leader was there, and gave no answer by then.
            AuthenticationError: If the proxy or the name service did not let us in.
            LocalProtocolError: If the connection is closed.
            ForkedClientError: In a child of the process that made it.
        """
        self._guard.check()
        began_ns = self._clock.now_ns()
        deadline_ns = began_ns + seconds_to_ns(timeout_seconds)
        token = self._credentials.read_token()
        pause_ns = _PAUSE_NS
        failed: str | None = None
        outcome: ToClient | _Outcome = _Outcome.LATE
        problem: NameServiceError | None = None
        while True:
            target = self._wait_for_target(failed, pause_ns, deadline_ns)
            if target is None:
                waited_seconds = (self._clock.now_ns() - began_ns) / NS_PER_SECOND
                raise self._error(failed, outcome, problem, waited_seconds)
            channel = self._take(target)
            is_sound = False
            try:
                outcome = channel.exchange(
                    build,
                    token=token,
                    deadline_ns=deadline_ns,
                    has_moved=self._watcher(target),
                    clock=self._clock,
                )
                is_sound = not isinstance(outcome, _Outcome)
            finally:
                self._give_back(channel, is_sound=is_sound)
            match outcome:
                case Refusal(code=code) if code in _TRANSIENT_CODES:
                    problem = error_of(outcome)
                case Refusal():
                    raise error_of(outcome)
                case _Outcome():
                    self._log.debug("proxy.left", address=target, reason=outcome.value)
                    problem = channel.problem or problem
                case _:
                    self._leader_address = target
                    return outcome
            if outcome is not _Outcome.MOVED:
                pause_ns = min(2 * pause_ns, _PAUSE_NS_MAX)
                failed = target
                self._finder.start()

    def close(self) -> None:
        """
        Close every socket.  Idempotent; silent in a forked child.

        Calls that wait in other threads end with `LocalProtocolError`.
        """
        if self._guard.is_inherited:
            return
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for channel in self._busy:
                channel.wake()
            self._changed.notify_all()
        for channel in idle:
            channel.close()
        self._finder.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout=1.0)
            context = None
            if not self._busy:  # of two that close at once, one ends the context
                context, self._context = self._context, None
        if context is not None:
            context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- whom to ask -------------------------------------------------------------------

    def _target(self) -> str | None:
        """Return where the leader is, as far as is known."""
        leader = self._finder.leader
        if leader is not None:
            return leader.address
        return None if self._finder.is_started else self._first_address

    def _wait_for_target(
        self, failed: str | None, pause_ns: int, deadline_ns: int
    ) -> str | None:
        """
        Return where to ask, or None if that is not known by the deadline.

        An address that has just *failed* is tried again after a pause; another one
        that comes up meanwhile is tried at once.
        """
        if self._first_address is None:
            self._finder.start()
        retry_ns = self._clock.now_ns() + (0 if failed is None else pause_ns)
        with self._changed:
            while True:
                self._check_open()
                target = self._target()
                now_ns = self._clock.now_ns()
                if now_ns >= deadline_ns:
                    return None
                if target is not None and (target != failed or now_ns >= retry_ns):
                    return target
                until_ns = deadline_ns if target is None else min(retry_ns, deadline_ns)
                self._changed.wait((until_ns - now_ns) / NS_PER_SECOND)

    def _watcher(self, target: str) -> Callable[[int], bool]:
        """Return what tells a call whether to leave the channel to *target*."""
        patience_ns = self._clock.now_ns() + _PATIENCE_NS

        def has_moved(now_ns: int) -> bool:
            if self._is_closed:
                return True
            if now_ns >= patience_ns:
                self._finder.start()
            leader = self._finder.leader
            return leader is not None and leader.address != target

        return has_moved

    def _error(
        self,
        failed: str | None,
        outcome: object,
        problem: NameServiceError | None,
        waited_seconds: float,
    ) -> NameServiceError:
        """Return what to raise at the deadline."""
        if isinstance(problem, _LASTING_PROBLEMS):
            return problem
        if self._target() is None or outcome is _Outcome.NOT_LEADER:
            return self._finder.error_of_silence(waited_seconds)
        where = failed or self._target()
        detail = f"the proxy at {where} does not answer"
        if outcome is _Outcome.UNREACHABLE:
            detail = f"the proxy at {where} cannot be reached"
        if problem is not None:
            detail += f" ({problem})"
        return DeadlineExceededError(waited_seconds, detail)

    def _wake(self) -> None:
        """Tell every call that the leader may have changed; on the finder's thread."""
        with self._changed:
            for channel in self._busy:
                channel.wake()
            self._changed.notify_all()

    # -- channels ----------------------------------------------------------------------

    def _take(self, target: str) -> _Channel:
        """Return a channel to *target* that nobody else uses."""
        left: list[_Channel] = []
        found: _Channel | None = None
        with self._changed:
            self._check_open()
            while self._idle and found is None:
                channel = self._idle.pop()
                if channel.target == target and channel.is_alive():
                    found = channel
                    self._busy.add(channel)
                else:
                    left.append(channel)
        for channel in left:
            channel.close()
        if found is not None:
            return found
        address = parse_address(target)
        key_pair = self._key_pair(address)
        with self._changed:
            self._check_open()  # `close` waits for what is busy, not for what will be
            if self._context is None:
                self._context = zmq.Context()
            fresh = _Channel(self._context, address, key_pair)
            self._busy.add(fresh)
        return fresh

    def _give_back(self, channel: _Channel, *, is_sound: bool) -> None:
        """Keep *channel* for the next call, or close it."""
        with self._changed:
            self._busy.discard(channel)
            is_kept = (
                is_sound
                and not self._is_closed
                and len(self._idle) < _CHANNEL_COUNT_MAX
            )
            if is_kept:
                self._idle.append(channel)
            self._changed.notify_all()
        if not is_kept:
            channel.close()

    def _key_pair(self, address: StateAddress) -> CurveKeyPair | None:
        """Return the keys for *address*: the caller's, or the name service's."""
        return load_caller_keys(self._credentials, self._finder.config, address)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LocalProtocolError("this connection is closed: make a new one")
