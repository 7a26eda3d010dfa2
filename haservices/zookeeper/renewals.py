"""
What a client can know of when the leader of the ensemble renewed its session, pure.

Theory of operation
-------------------
Only the leader of a ZooKeeper ensemble ends sessions: a whole timeout after it was last
told of the session.  It is told in three ways: by a request of a client that is
connected to the leader itself; by a handshake, which a follower passes on before it
answers; and by a follower's answer to a ping.  The leader pings each follower twice a
tick, and the answer names the sessions that the follower has heard from since the last
one.  A write through a follower commits without renewing anything.

A follower is heard, and hears, in order.  So there are two proofs:

::

    handshake ──► write that commits
        renewed after the send of the handshake

    exchange ──► answer ── a ping ──► witness ──► answer ──► write that commits
        renewed after the send of the first exchange

All on one connection.  The second proof holds for this reason.  The leader sent a ping
between the first answer and the witness.  The follower had heard from us by then.  It
answered that ping before it passed the witness's answer on to us, and it passed our
write on after that.  So the leader read the follower's answer before it read the write.

The write must commit: only a leader that a majority still follows can do that, and a
later leader begins every timeout anew, after that commit.  The first exchange and the
witness may also be a ``sync``, which the leader answers in order.  What a follower can
answer alone proves nothing.

The whole derivation is in docs/explanation/election.md.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias, assert_never, final

from attrs import frozen


__all__ = [
    "ConnectionClosed",
    "ConnectionOpened",
    "RenewalEvent",
    "Renewals",
    "SyncAnswered",
    "WriteCommitted",
]

# A follower is pinged every half tick, and by default no session timeout is below two
# ticks: a ping comes at least every quarter of the timeout.  The rest is for clocks
# whose rates differ by 5 %, and for a leader that is a little late.
_PING_PERCENT: Final = 28

# The leader counts the whole timeout, on a clock that may run 5 % faster than ours.
_RENEWED_PERCENT: Final = 90

# Exchanges that end closer together than this part of the timeout prove as good as the
# same: what is kept is bounded, however many contenders write.
_SPACING_DIVISOR: Final = 100

# E4: never longer than that after the send of our own last write.
_WRITTEN_NUMERATOR: Final = 2
_WRITTEN_DENOMINATOR: Final = 3


@frozen(kw_only=True)
class ConnectionOpened:
    """
    A server has answered a handshake.

    Attributes:
        session_id: The session that it opened, or that it found alive.
        session_timeout_ns: As negotiated.
        sent_ns: When the handshake was sent.
    """

    session_id: int
    session_timeout_ns: int
    sent_ns: int


@frozen(kw_only=True)
class ConnectionClosed:
    """The connection is gone: what was seen on it proves nothing more."""


@frozen(kw_only=True)
class SyncAnswered:
    """The leader has answered a ``sync`` that was sent at *sent_ns*."""

    sent_ns: int


@frozen(kw_only=True)
class WriteCommitted:
    """A write that was sent at *sent_ns* has committed."""

    sent_ns: int


RenewalEvent: TypeAlias = (
    ConnectionOpened | ConnectionClosed | SyncAnswered | WriteCommitted
)


@frozen
class _Exchange:
    """A request that the leader answered, when it was sent and answered."""

    sent_ns: int
    answered_ns: int


@final
class Renewals:
    """
    The renewals of one client's session, as far as they are proven.

    Two of them given the same sequence of ``(event, now_ns)`` prove the same.  Not
    thread-safe.
    """

    def __init__(self) -> None:
        self._session_id: int | None = None
        self._timeout_ns = 0
        self._is_open = False
        self._renewed_ns: int | None = None
        self._handshake_ns: int | None = None
        # Exchanges in the order of their answers, that may become the first of a proof.
        self._firsts: deque[_Exchange] = deque()
        self._newest_first_ns: int | None = None
        # What is proven by a write that is sent once the witness was answered.
        self._witnessed: deque[_Exchange] = deque()
        self._now_ns = 0

    @property
    def timeout_ns(self) -> int:
        """Return the session timeout as negotiated last, or 0."""
        return self._timeout_ns

    @property
    def renewed_ns(self) -> int | None:
        """Return the latest moment after which a renewal is proven, or None."""
        return self._renewed_ns

    def belief_ends_ns(self, sent_ns: int) -> int:
        """
        Return until when a holder may believe whose own write has committed.

        Args:
            sent_ns: When that write was sent.

        Returns:
            A time that may have passed: then the write is no ground for belief.
        """
        if self._renewed_ns is None:
            return 0
        return min(
            sent_ns + self._timeout_ns * _WRITTEN_NUMERATOR // _WRITTEN_DENOMINATOR,
            self._renewed_ns + self._timeout_ns * _RENEWED_PERCENT // 100,
        )

    def step(self, event: RenewalEvent, *, now_ns: int) -> None:
        """Take *event* into account, which we hear of now."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        match event:
            case ConnectionOpened():
                self._open(event)
            case ConnectionClosed():
                self._forget_connection()
            case SyncAnswered(sent_ns=sent_ns):
                if self._is_open:
                    self._witness(_Exchange(sent_ns, now_ns))
            case WriteCommitted(sent_ns=sent_ns):
                if self._is_open:
                    self._prove(sent_ns)
                    self._witness(_Exchange(sent_ns, now_ns))
            case _:
                assert_never(event)
        self.check_invariants()

    def check_invariants(self) -> None:
        """Assert what holds between any two steps."""
        assert self._renewed_ns is None or self._renewed_ns <= self._now_ns
        assert self._session_id is not None or self._renewed_ns is None

    def _open(self, event: ConnectionOpened) -> None:
        self._forget_connection()
        if event.session_id != self._session_id:
            self._session_id = event.session_id
            self._renewed_ns = None
        self._timeout_ns = event.session_timeout_ns
        self._handshake_ns = event.sent_ns
        self._is_open = True

    def _forget_connection(self) -> None:
        self._is_open = False
        self._handshake_ns = None
        self._firsts.clear()
        self._newest_first_ns = None
        self._witnessed.clear()

    def _prove(self, sent_ns: int) -> None:
        """Conclude from a write that committed what was only waiting for one."""
        if self._handshake_ns is not None:
            self._renew(self._handshake_ns)
            self._handshake_ns = None
        while self._witnessed and self._witnessed[0].answered_ns <= sent_ns:
            self._renew(self._witnessed.popleft().sent_ns)

    def _renew(self, after_ns: int) -> None:
        if self._renewed_ns is None or self._renewed_ns < after_ns:
            self._renewed_ns = after_ns

    def _witness(self, exchange: _Exchange) -> None:
        """Make *exchange* the witness of earlier ones, and later a first itself."""
        ping_ns = self._timeout_ns * _PING_PERCENT // 100
        newest_ns = self._newest_first_ns
        while (
            self._firsts and self._firsts[0].answered_ns + ping_ns <= exchange.sent_ns
        ):
            sent_ns = self._firsts.popleft().sent_ns
            newest_ns = sent_ns if newest_ns is None else max(newest_ns, sent_ns)
        if newest_ns is not None and newest_ns != self._newest_first_ns:
            self._newest_first_ns = newest_ns
            self._witnessed.append(_Exchange(newest_ns, exchange.answered_ns))
            self._forget_witnessed()
        spacing_ns = self._timeout_ns // _SPACING_DIVISOR
        if (
            not self._firsts
            or self._firsts[-1].answered_ns + spacing_ns <= exchange.answered_ns
        ):
            self._firsts.append(exchange)

    def _forget_witnessed(self) -> None:
        """Forget what only a write could use that is too old to be a ground itself."""
        oldest_ns = self._now_ns - self._timeout_ns
        while len(self._witnessed) > 1 and self._witnessed[1].answered_ns <= oldest_ns:
            self._witnessed.popleft()
