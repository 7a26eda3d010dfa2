"""
An `ElectionCore` to play with: its clock is set by hand, its ids are plain.

A lease is 100 nanoseconds, a session 1,000: the core wants to be stepped every 20.
Sessions are called by their clients, contenders by their sessions: "alice/1".
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid5

from election.config import ElectionConfig
from election.core import ElectionCore
from election.effects import (
    AcceptConfirmation,
    AcceptRegistration,
    AcknowledgeHeartbeat,
    Affirmation,
    CloseSession,
    ElectionEffect,
    GrantLeadership,
    PublishLeader,
    RecordEpoch,
    RefuseConfirmation,
    RefuseRegistration,
    RegistrationRefusal,
    RevokeLeadership,
    SessionEnd,
)
from election.epochs import IncarnationEpochs
from election.events import (
    ClaimReported,
    ContenderRegistered,
    ContenderWithdrawn,
    ElectionEvent,
    HeartbeatReceived,
    LeadershipConfirmed,
    SessionRequested,
    TimePassed,
)
from retrieval.information import LeaderInformation, Publication


JOB = "c/job"
LEASE_NS = 100
TIMEOUT_NS = 1_000
TICK_NS = LEASE_NS // 5
INCARNATION = 7
_NAMESPACE = UUID(int=1)


def epoch_of(counter: int, incarnation: int = INCARNATION) -> int:
    """Return an epoch of this core, or of another incarnation; tickets are alike."""
    return incarnation * 2**32 + counter


class Stage:
    """A core, and a clock that is set by hand; invariants are checked at each step."""

    def __init__(
        self,
        *,
        undecided_ns: int = 0,
        recorded_epochs: Mapping[str, int] | None = None,
        session_count_max: int = 9,
        contender_count_max: int = 9,
        contender_count_per_session_max: int = 9,
        component_count_max: int = 9,
        is_durable: bool = False,
    ) -> None:
        self.now_ns = 0
        self.core = ElectionCore(
            ElectionConfig(
                namespace=_NAMESPACE,
                undecided_ns=undecided_ns,
                session_count_max=session_count_max,
                contender_count_max=contender_count_max,
                contender_count_per_session_max=contender_count_per_session_max,
                component_count_max=component_count_max,
                is_durable=is_durable,
                tick_ns=TICK_NS,
            ),
            epochs=IncarnationEpochs(INCARNATION, started_ns=0),
            recorded_epochs=recorded_epochs or {},
            now_ns=0,
        )

    def step(self, event: ElectionEvent) -> tuple[ElectionEffect, ...]:
        """Have the core take *event* now."""
        effects = self.core.step(event, now_ns=self.now_ns)
        self.core.check_invariants()
        return effects

    def jump(self) -> tuple[ElectionEffect, ...]:
        """Move time on until the core wants to be called."""
        deadline_ns = self.core.next_deadline_ns()
        assert deadline_ns is not None
        self.now_ns = max(self.now_ns, deadline_ns)
        return self.step(TimePassed())

    def pass_until(
        self, until_ns: int, *, heard: tuple[str, ...] = ()
    ) -> tuple[ElectionEffect, ...]:
        """
        Move time on, deadline by deadline, as a shell would.

        Args:
            until_ns: When to stop; the core is stepped then, too.
            heard: Who sends a heartbeat at every one of these steps.

        Returns:
            What the core did, but for the answers to these heartbeats.
        """
        effects: list[ElectionEffect] = []
        while self.now_ns < until_ns:
            deadline_ns = self.core.next_deadline_ns()
            self.now_ns = (
                until_ns if deadline_ns is None else min(deadline_ns, until_ns)
            )
            effects += self.step(TimePassed())
            for session_id in heard:
                effects += (
                    effect
                    for effect in self.beat(session_id)
                    if not isinstance(effect, AcknowledgeHeartbeat)
                )
        return tuple(effects)

    def stall_until(self, now_ns: int) -> tuple[ElectionEffect, ...]:
        """Move time on in one go, as a shell does that was stopped."""
        self.now_ns = now_ns
        return self.step(TimePassed())

    def heartbeat_number(self, session_id: str) -> int:
        """Return the number of the newest heartbeat of *session_id*."""
        session = self.core.session(session_id)
        return 0 if session is None else session.heartbeat_number

    # -- what clients say ----------------------------------------------------------

    def open(
        self,
        *session_ids: str,
        lease_ns: int = LEASE_NS,
        session_timeout_ns: int = TIMEOUT_NS,
    ) -> tuple[ElectionEffect, ...]:
        """Open sessions."""
        effects: list[ElectionEffect] = []
        for session_id in session_ids:
            effects += self.step(
                SessionRequested(
                    session_id=session_id,
                    session_timeout_ns=session_timeout_ns,
                    lease_ns=lease_ns,
                    client=f"client of {session_id}",
                )
            )
        return tuple(effects)

    def beat(
        self, session_id: str, *, is_late: bool = False
    ) -> tuple[ElectionEffect, ...]:
        """Send the next heartbeat, which names the answer to the one before."""
        last = self.heartbeat_number(session_id)
        return self.step(
            HeartbeatReceived(
                session_id=session_id,
                number=last + 1,
                acknowledged=last,
                is_late=is_late,
            )
        )

    def register(
        self,
        session_id: str,
        number: int = 1,
        *,
        component_id: str = JOB,
        confirm_timeout_ns: int = 500,
        ticket: int | None = None,
        claim: ClaimReported | None = None,
    ) -> tuple[ElectionEffect, ...]:
        """Enter the contender of *session_id* with that number."""
        return self.step(
            ContenderRegistered(
                session_id=session_id,
                component_id=component_id,
                contender_id=f"{session_id}/{number}",
                confirm_timeout_ns=confirm_timeout_ns,
                ticket=ticket,
                claim=claim,
            )
        )

    def gather(self, *session_ids: str) -> None:
        """Open sessions, and enter a contender of each, in this order."""
        self.open(*session_ids)
        for session_id in session_ids:
            self.register(session_id)

    def withdraw(
        self, session_id: str, number: int = 1, *, component_id: str = JOB
    ) -> tuple[ElectionEffect, ...]:
        """Withdraw that contender."""
        return self.step(
            ContenderWithdrawn(
                session_id=session_id,
                component_id=component_id,
                contender_id=f"{session_id}/{number}",
            )
        )

    def confirm(
        self,
        session_id: str,
        epoch: int,
        number: int = 1,
        *,
        confirm_count: int = 1,
        address: str = "h:1",
        component_id: str = JOB,
    ) -> tuple[ElectionEffect, ...]:
        """Confirm the leadership of *epoch*."""
        return self.step(
            LeadershipConfirmed(
                session_id=session_id,
                component_id=component_id,
                contender_id=f"{session_id}/{number}",
                leader_session_id=identity_of(epoch, component_id),
                confirm_count=confirm_count,
                address=address,
            )
        )


# -- what the core answers ---------------------------------------------------------


def identity_of(epoch: int, component_id: str = JOB) -> UUID:
    """Return the leader session id that goes with *epoch*."""
    return uuid5(_NAMESPACE, f"{component_id}/{epoch}")


def claim_of(
    epoch: int, *, confirm_count: int = 1, address: str | None = "h:1"
) -> ClaimReported:
    """Return the claim to have been granted *epoch*."""
    return ClaimReported(
        leader_session_id=identity_of(epoch),
        epoch=epoch,
        confirm_count=confirm_count,
        address=address,
    )


def affirmation(
    session_id: str, epoch: int, number: int = 1, *, component_id: str = JOB
) -> Affirmation:
    """Return how *session_id* hears that its contender leads."""
    return Affirmation(
        component_id=component_id,
        contender_id=f"{session_id}/{number}",
        leader_session_id=identity_of(epoch, component_id),
        epoch=epoch,
    )


def accepted(
    session_id: str, ticket: int, number: int = 1, *, component_id: str = JOB
) -> AcceptRegistration:
    """Return the answer to a registration."""
    return AcceptRegistration(
        session_id=session_id,
        component_id=component_id,
        contender_id=f"{session_id}/{number}",
        ticket=ticket,
    )


def refused(
    session_id: str,
    reason: RegistrationRefusal,
    number: int = 1,
    *,
    component_id: str = JOB,
) -> RefuseRegistration:
    """Return the other answer to a registration."""
    return RefuseRegistration(
        session_id=session_id,
        component_id=component_id,
        contender_id=f"{session_id}/{number}",
        reason=reason,
    )


def granted(
    session_id: str,
    epoch: int,
    number: int = 1,
    *,
    heartbeat_number: int = 0,
    component_id: str = JOB,
) -> tuple[ElectionEffect, ElectionEffect]:
    """Return both parts of a grant: it is recorded, then told."""
    return (
        RecordEpoch(component_id=component_id, epoch=epoch),
        GrantLeadership(
            session_id=session_id,
            affirmation=affirmation(
                session_id, epoch, number, component_id=component_id
            ),
            heartbeat_number=heartbeat_number,
        ),
    )


def revoked(session_id: str, epoch: int, number: int = 1) -> RevokeLeadership:
    """Return how *session_id* hears that its leadership is over."""
    return RevokeLeadership(
        session_id=session_id, affirmation=affirmation(session_id, epoch, number)
    )


def published(
    epoch: int,
    *,
    confirm_count: int = 1,
    address: str = "h:1",
    component_id: str = JOB,
) -> PublishLeader:
    """Return how everybody hears who leads."""
    return PublishLeader(
        component_id=component_id,
        publication=Publication(
            epoch=epoch,
            confirm_count=confirm_count,
            leader=LeaderInformation(
                address=address,
                leader_session_id=identity_of(epoch, component_id),
                epoch=epoch,
            ),
        ),
    )


def nobody(epoch: int, *, component_id: str = JOB) -> PublishLeader:
    """Return how everybody hears that there is no leader."""
    return PublishLeader(
        component_id=component_id,
        publication=Publication(epoch=epoch, confirm_count=0, leader=None),
    )


def confirmation_accepted(session_id: str) -> AcceptConfirmation:
    """Return the answer to a confirmation."""
    return AcceptConfirmation(session_id=session_id, component_id=JOB)


def confirmation_refused(
    session_id: str, *, is_undecided: bool = False
) -> RefuseConfirmation:
    """Return the other answer to a confirmation."""
    return RefuseConfirmation(
        session_id=session_id, component_id=JOB, is_undecided=is_undecided
    )


def acknowledged(
    session_id: str,
    number: int,
    *affirmations: Affirmation,
    is_undecided: bool = False,
) -> AcknowledgeHeartbeat:
    """Return the answer to a heartbeat."""
    return AcknowledgeHeartbeat(
        session_id=session_id,
        number=number,
        affirmations=affirmations,
        is_undecided=is_undecided,
    )


def closed(session_id: str, reason: SessionEnd) -> CloseSession:
    """Return the end of a session."""
    return CloseSession(session_id=session_id, reason=reason)
