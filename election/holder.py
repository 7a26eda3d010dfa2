"""
What the holder of a leadership believes, without I/O, on every backend.

Theory of operation
-------------------
A contender believes that it leads until ``until_ns``, which its driver computes from
the moment *it sent* what the name service then acknowledged: 0.9 lease after the send
of a heartbeat on a LeaderServer, at most two thirds of the session timeout after the
send of a committed write on ZooKeeper (rule E4).  The clock alone ends belief; no
message is needed for that, so a process that wakes from a pause knows at once.

Belief and what the contender has been told are two things.  Belief may lapse and come
back with the contender none the wiser (``on_suspended="keep"``).  The contender is
told on a grant, and again when the name service has ended the leadership, when the
session is lost, or, under ``"clear"``, when contact is suspended.

The *claim* (the leadership as it was granted, with what was confirmed) outlives local
loss: if the session turns out to have survived, the same leadership is granted again
(E5), and after a restart of the name service the claim is what gets the leadership
reinstated (E9).  Only the name service's own word ends a claim.

::

    no claim ──Affirmed──► told ──Suspended (clear), Lost──► claim, not told
        ▲                   │  ▲                                   │
        │                   │  └────────────Affirmed───────────────┤
        └───────Ended───────┴───────────────Ended──────────────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never, final
from uuid import UUID

from attrs import frozen


if TYPE_CHECKING:
    from election.contender import LeaderSession


__all__ = [
    "AcknowledgeRevocation",
    "Affirmed",
    "Claim",
    "ConfirmRequested",
    "DeliverGrant",
    "DeliverRevoke",
    "Ended",
    "HolderCore",
    "HolderEffect",
    "HolderEvent",
    "Lost",
    "RefuseConfirm",
    "RevokeDelivered",
    "SendConfirm",
    "Suspended",
]


@frozen(kw_only=True)
class Claim:
    """
    A leadership that was granted to us and not ended by the name service.

    Attributes:
        session: The leadership.
        confirm_count: How often we have confirmed it (sent, not answered).
        address: What we confirmed last, or None.
    """

    session: LeaderSession
    confirm_count: int = 0
    address: str | None = None


@frozen(kw_only=True)
class Affirmed:
    """
    The name service granted or affirmed *session*.

    Attributes:
        session: The leadership.
        until_ns: When belief ends, on the holder's clock, if nothing else comes.
    """

    session: LeaderSession
    until_ns: int


@frozen(kw_only=True)
class Ended:
    """The name service has ended the leadership with *epoch*, if we hold it."""

    epoch: int


@frozen(kw_only=True)
class Suspended:
    """The name service has not been heard from for a while."""


@frozen(kw_only=True)
class Lost:
    """Our session may be over: nothing was acknowledged for a session timeout."""


@frozen(kw_only=True)
class ConfirmRequested:
    """The contender confirms *leader_session_id* under *address*."""

    leader_session_id: UUID
    address: str


@frozen(kw_only=True)
class RevokeDelivered:
    """The contender's revoke callback has returned."""


HolderEvent: TypeAlias = (
    Affirmed | Ended | Suspended | Lost | ConfirmRequested | RevokeDelivered
)


@frozen(kw_only=True)
class DeliverGrant:
    """Tell the contender that it leads under *session*."""

    session: LeaderSession


@frozen(kw_only=True)
class DeliverRevoke:
    """Tell the contender that it leads under *session* no longer."""

    session: LeaderSession


@frozen(kw_only=True)
class AcknowledgeRevocation:
    """Tell the name service that the contender has stopped leading *session*."""

    session: LeaderSession


@frozen(kw_only=True)
class SendConfirm:
    """Send the *confirm_count*-th confirmation of *session*."""

    session: LeaderSession
    confirm_count: int
    address: str


@frozen(kw_only=True)
class RefuseConfirm:
    """Answer the contender that the leadership it confirms is over."""


HolderEffect: TypeAlias = (
    DeliverGrant | DeliverRevoke | AcknowledgeRevocation | SendConfirm | RefuseConfirm
)


@final
class HolderCore:
    """
    What one contender believes, and what it has been told.

    Not thread-safe but for `believes` and `belief_left_ns`, which any thread may call
    at any time: they read one immutable tuple.

    Args:
        clears_on_suspended: Whether the contender is told of a suspension
            (``on_suspended="clear"``).
    """

    def __init__(self, *, clears_on_suspended: bool) -> None:
        self._clears_on_suspended = clears_on_suspended
        self._claim: Claim | None = None
        self._is_told = False
        self._revokes_under_way = 0
        self._unacknowledged: LeaderSession | None = None
        self._ended_epoch_max = 0
        self._belief: tuple[UUID, int] | None = None
        self._now_ns = 0

    @property
    def claim(self) -> Claim | None:
        """Return the leadership that the name service has not ended, if any."""
        return self._claim

    @property
    def ended_epoch_max(self) -> int:
        """Return the highest epoch that the name service has ended, or 0."""
        return self._ended_epoch_max

    def believes(self, leader_session_id: UUID, *, now_ns: int) -> bool:
        """Return whether the leadership *leader_session_id* is ours at *now_ns*."""
        belief = self._belief
        return (
            belief is not None and belief[0] == leader_session_id and now_ns < belief[1]
        )

    def belief_left_ns(self, leader_session_id: UUID, *, now_ns: int) -> int:
        """
        Return how long `believes` will go on being true if nothing else comes.

        Any thread may call it at any time, like `believes`.

        Returns:
            0 if *leader_session_id* is not ours at *now_ns*.
        """
        belief = self._belief
        if belief is None or belief[0] != leader_session_id:
            return 0
        return max(belief[1] - now_ns, 0)

    def step(self, event: HolderEvent, *, now_ns: int) -> tuple[HolderEffect, ...]:
        """Record *event*; return what to do, in order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects: list[HolderEffect] = []
        match event:
            case Affirmed(session=session, until_ns=until_ns):
                self._affirm(session, until_ns, effects)
            case Ended(epoch=epoch):
                self._end(epoch, effects)
            case Suspended():
                if self._clears_on_suspended:
                    self._untell(effects)
            case Lost():
                self._untell(effects)
            case ConfirmRequested(leader_session_id=wanted, address=address):
                effects.append(self._confirm(wanted, address))
            case RevokeDelivered():
                self._revokes_under_way -= 1
                self._acknowledge(effects)
            case _:
                assert_never(event)
        self.check_invariants()
        return tuple(effects)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps."""
        assert self._revokes_under_way >= 0
        if self._claim is None:
            assert not self._is_told
        if not self._is_told:
            assert self._belief is None
        if self._claim is not None:
            assert self._claim.session.epoch > self._ended_epoch_max

    def _affirm(
        self, session: LeaderSession, until_ns: int, effects: list[HolderEffect]
    ) -> None:
        if session.epoch <= self._ended_epoch_max:
            return  # late news of a leadership that is over
        if (
            self._claim is not None
            and session != self._claim.session
            and session.epoch <= self._claim.session.epoch
        ):
            return  # older, or an epoch that the name service may not give twice
        if until_ns <= self._now_ns:
            return  # came after its own lease: the next heartbeat's answer decides
        if self._claim is None or self._claim.session != session:
            if self._claim is not None:
                self._end(self._claim.session.epoch, effects)
            self._claim = Claim(session=session)
        if not self._is_told:
            self._is_told = True
            effects.append(DeliverGrant(session=session))
        ours = session.leader_session_id
        known_ns = 0 if self._belief is None else self._belief[1]
        self._belief = (ours, max(known_ns, until_ns))

    def _end(self, epoch: int, effects: list[HolderEffect]) -> None:
        if self._claim is None or self._claim.session.epoch > epoch:
            self._ended_epoch_max = max(self._ended_epoch_max, epoch)
            return
        session = self._claim.session
        self._untell(effects)
        self._claim = None
        self._ended_epoch_max = max(self._ended_epoch_max, session.epoch, epoch)
        self._unacknowledged = session
        self._acknowledge(effects)

    def _untell(self, effects: list[HolderEffect]) -> None:
        """Stop believing, and tell the contender unless it knows."""
        self._belief = None
        if self._is_told:
            assert self._claim is not None
            self._is_told = False
            self._revokes_under_way += 1
            effects.append(DeliverRevoke(session=self._claim.session))

    def _acknowledge(self, effects: list[HolderEffect]) -> None:
        """Acknowledge an ended leadership once no callback is busy leaving it."""
        if self._unacknowledged is not None and self._revokes_under_way == 0:
            effects.append(AcknowledgeRevocation(session=self._unacknowledged))
            self._unacknowledged = None

    def _confirm(self, leader_session_id: UUID, address: str) -> HolderEffect:
        claim = self._claim
        if (
            claim is None
            or not self._is_told
            or claim.session.leader_session_id != leader_session_id
        ):
            return RefuseConfirm()
        self._claim = Claim(
            session=claim.session,
            confirm_count=claim.confirm_count + 1,
            address=address,
        )
        return SendConfirm(
            session=claim.session,
            confirm_count=claim.confirm_count + 1,
            address=address,
        )
