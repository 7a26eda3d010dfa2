"""
`ContactCore`: what a client may think of its session with an ensemble, without I/O.

Theory of operation
-------------------
Contact is judged by our own heartbeats, which only the leader of the ensemble can
answer, and by nothing that kazoo believes.

::

    CONNECTED ──closed, or silent for 2/3 timeout──► SUSPENDED ──1 timeout──► LOST
        ▲                                                │                     │
        └───────────an answer, or a new session──────────┴─────────────────────┘

Times count from the *send* of the newest request that was answered.  When a connection
is silent for two thirds of the timeout it is broken: another server may answer while
the session still lives.  Lost is our own conclusion; that a session has *ended* is the
name service's word, and may never come.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias, assert_never, final

from attrs import frozen

from nameservice.clock import earliest


__all__ = [
    "Answered",
    "BreakConnection",
    "Closed",
    "Contact",
    "ContactCore",
    "ContactEffect",
    "ContactEvent",
    "ContendingChanged",
    "HeartbeatFailed",
    "Opened",
    "Over",
    "SendHeartbeat",
    "TellLost",
    "TellRestored",
    "TellSuspended",
    "TimePassed",
]

_HEARTBEATS_PER_TIMEOUT: Final = 3
_CONTENDING_HEARTBEATS_PER_TIMEOUT: Final = 10


class Contact(Enum):
    """Whether the name service hears us, as far as we know."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@frozen(kw_only=True)
class Opened:
    """
    There is a connection, and a session.

    Attributes:
        session_timeout_ns: As negotiated.
        sent_ns: When the handshake was sent.
        is_new: Whether it is another session than the last one.
    """

    session_timeout_ns: int
    sent_ns: int
    is_new: bool


@frozen(kw_only=True)
class Closed:
    """The connection is gone."""


@frozen(kw_only=True)
class Over:
    """The session is over, by the name service's own word."""


@frozen(kw_only=True)
class Answered:
    """
    The leader of the ensemble has answered what was sent at *sent_ns*.

    Attributes:
        sent_ns: When.
        is_sync: Whether that was a ``sync``, and so answers the heartbeat, too.
    """

    sent_ns: int
    is_sync: bool = False


@frozen(kw_only=True)
class HeartbeatFailed:
    """No answer will come to a ``sync`` that was sent at *sent_ns*."""

    sent_ns: int


@frozen(kw_only=True)
class ContendingChanged:
    """From now on this session has contenders, or has none any more."""

    is_contending: bool


@frozen(kw_only=True)
class TimePassed:
    """It is later than before."""


ContactEvent: TypeAlias = (
    Opened | Closed | Over | Answered | HeartbeatFailed | ContendingChanged | TimePassed
)


@frozen(kw_only=True)
class SendHeartbeat:
    """Ask the leader of the ensemble to answer."""


@frozen(kw_only=True)
class BreakConnection:
    """
    Give the connection up.

    Attributes:
        is_silent: Whether it had answered before.
    """

    is_silent: bool


@frozen(kw_only=True)
class TellRestored:
    """Tell everybody that requests are answered."""


@frozen(kw_only=True)
class TellSuspended:
    """Tell everybody that nothing can be asked for the moment."""


@frozen(kw_only=True)
class TellLost:
    """Tell everybody that the session may be over."""


ContactEffect: TypeAlias = (
    SendHeartbeat | BreakConnection | TellRestored | TellSuspended | TellLost
)


@final
class ContactCore:
    """
    Contact with the name service, from before the first session on.

    Two of them given the same sequence of ``(event, now_ns)`` return the same effects.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._contact = Contact.LOST
        self._has_session = False
        self._is_open = False
        self._is_contending = False
        self._timeout_ns = 0
        self._answered_ns = 0
        self._heartbeat_sent_ns: int | None = None
        self._heartbeat_due_ns: int | None = None
        self._silence_due_ns: int | None = None
        self._now_ns = 0

    @property
    def contact(self) -> Contact:
        """Return what is thought of the session."""
        return self._contact

    @property
    def is_connected(self) -> bool:
        """Return whether requests are sent at once, and are expected to be answered."""
        return self._is_open and self._contact is Contact.CONNECTED

    @property
    def is_open(self) -> bool:
        """Return whether there is a connection."""
        return self._is_open

    def next_deadline_ns(self) -> int | None:
        """Return when `TimePassed` is due, or None if it need not come."""
        deadlines = (self._heartbeat_due_ns, self._silence_due_ns)
        return earliest(deadlines)

    def step(self, event: ContactEvent, *, now_ns: int) -> tuple[ContactEffect, ...]:
        """Take *event* into account; return what to do, in order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects: list[ContactEffect] = []
        match event:
            case Opened():
                self._open(event, effects)
            case Closed():
                self._is_open = False
                self._suspend(effects)
            case Over():
                self._is_open = False
                self._has_session = False
                self._contact = Contact.LOST
                self._silence_due_ns = None
            case Answered(sent_ns=sent_ns, is_sync=is_sync):
                if is_sync:
                    self._forget_heartbeat(sent_ns)
                self._answer(sent_ns, effects)
            case HeartbeatFailed(sent_ns=sent_ns):
                self._forget_heartbeat(sent_ns)
            case ContendingChanged(is_contending=is_contending):
                begins = is_contending and not self._is_contending
                self._is_contending = is_contending
                if begins and self._has_session:
                    self._beat(effects)  # and more often from now on
            case TimePassed():
                if self._is_due(self._heartbeat_due_ns):
                    self._beat(effects)
                if self._is_due(self._silence_due_ns):
                    self._check_silence(effects)
            case _:
                assert_never(event)
        self.check_invariants()
        return tuple(effects)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps."""
        if self._contact is Contact.CONNECTED:
            assert self._is_open
            assert self._has_session
            assert self._silence_due_ns is not None
        if not self._has_session:
            assert self._contact is Contact.LOST

    def _is_due(self, due_ns: int | None) -> bool:
        return due_ns is not None and self._now_ns >= due_ns

    @property
    def _patience_ns(self) -> int:
        return self._timeout_ns * 2 // 3

    def _open(self, event: Opened, effects: list[ContactEffect]) -> None:
        self._is_open = True
        self._has_session = True
        self._timeout_ns = event.session_timeout_ns
        self._heartbeat_sent_ns = None
        if event.is_new:
            self._answered_ns = event.sent_ns
        # Contact counts as restored when the first heartbeat is answered: only then are
        # our credentials known to be taken.
        self._beat(effects)

    def _beat(self, effects: list[ContactEffect]) -> None:
        """Send a heartbeat, unless one is under way; come back for the next one."""
        self._heartbeat_due_ns = self._now_ns + self._timeout_ns // (
            _CONTENDING_HEARTBEATS_PER_TIMEOUT
            if self._is_contending
            else _HEARTBEATS_PER_TIMEOUT
        )
        if not self._is_open:
            return
        if self._heartbeat_sent_ns is None:
            self._heartbeat_sent_ns = self._now_ns
            effects.append(SendHeartbeat())
        elif self._now_ns - self._heartbeat_sent_ns >= self._patience_ns:
            # It has never answered, or does so no more.
            effects.append(BreakConnection(is_silent=False))

    def _forget_heartbeat(self, sent_ns: int) -> None:
        if self._heartbeat_sent_ns is not None and self._heartbeat_sent_ns <= sent_ns:
            self._heartbeat_sent_ns = None

    def _answer(self, sent_ns: int, effects: list[ContactEffect]) -> None:
        self._answered_ns = max(self._answered_ns, sent_ns)
        self._check_silence(effects)
        if (
            self._is_open
            and self._has_session
            and self._contact is not Contact.CONNECTED
            and self._now_ns - self._answered_ns < self._patience_ns
        ):
            self._contact = Contact.CONNECTED
            effects.append(TellRestored())

    def _check_silence(self, effects: list[ContactEffect]) -> None:
        """Conclude from the time what follows from it, and come back when more does."""
        self._silence_due_ns = None
        if not self._has_session:
            return
        suspended_ns = self._answered_ns + self._patience_ns
        lost_ns = self._answered_ns + self._timeout_ns
        if self._now_ns >= lost_ns:
            self._suspend(effects)
            if self._contact is not Contact.LOST:
                self._contact = Contact.LOST
                effects.append(TellLost())
            return
        if self._now_ns >= suspended_ns:
            if self.is_connected:
                # Another server may answer in time.
                effects.append(BreakConnection(is_silent=True))
            self._suspend(effects)
            self._silence_due_ns = lost_ns
        else:
            self._silence_due_ns = suspended_ns

    def _suspend(self, effects: list[ContactEffect]) -> None:
        if self._contact is Contact.CONNECTED:
            self._contact = Contact.SUSPENDED
            effects.append(TellSuspended())
