"""
`Liveness`: which clients are there, and what follows for what they lead (E5).

A session begins when it is requested, is prolonged by heartbeats, and ends when it is
closed or nothing was heard of it for too long.  With it go its contenders and what they
lead.  A heartbeat is answered with all leaderships that the session holds; a contender
of it may then be granted what is vacant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from election.effects import (
    AcknowledgeHeartbeat,
    CloseSession,
    ElectionEffect,
    OpenSession,
    RefuseSession,
    SessionEnd,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election.config import ElectionConfig
    from election.deadlines import Deadlines
    from election.events import HeartbeatReceived, SessionRequested
    from election.leaderships import Leaderships
    from election.patience import PatientClock
    from election.sessions import Session, SessionTable


__all__ = ["SESSION", "Liveness"]

SESSION: Final = "session"


@final
class Liveness:
    """
    The sessions, as they come and go.

    Args:
        config: The limits.
        sessions: The table; sessions are opened, prolonged and closed here alone.
        leaderships: What their contenders lead.
        clock: What time it is.
        waits: What is waited for with patience: `review` is to be called when a
            deadline of kind `SESSION` is reached.

    Attributes:
        config: The limits of the moment.
    """

    def __init__(
        self,
        config: ElectionConfig,
        *,
        sessions: SessionTable,
        leaderships: Leaderships,
        clock: PatientClock,
        waits: Deadlines,
    ) -> None:
        self.config = config
        self._sessions = sessions
        self._leaderships = leaderships
        self._components = leaderships.components  # the same table
        self._clock = clock
        self._waits = waits

    def open(self, event: SessionRequested) -> ElectionEffect:
        """Open a session, if there is room for one more."""
        if len(self._sessions) >= self.config.session_count_max:
            return RefuseSession(session_id=event.session_id)
        session = self._sessions.open(
            event.session_id,
            client=event.client,
            session_timeout_ns=event.session_timeout_ns,
            lease_ns=event.lease_ns,
            now=self._clock.now,
        )
        self._arm(session)
        return OpenSession(session_id=event.session_id)

    def heartbeat(self, event: HeartbeatReceived) -> Sequence[ElectionEffect]:
        """Prolong a session, and affirm what it leads."""
        session = self._sessions.get(event.session_id)
        if session is None:
            return ()
        now = self._clock.now
        if not self._sessions.heartbeat(
            session,
            number=event.number,
            acknowledged=event.acknowledged,
            is_late=event.is_late,
            now=now,
        ):
            return ()
        self._arm(session)
        now_ns = now.real_ns
        affirmations = []
        vacant = []
        for component_id in dict.fromkeys(name for name, _ in session.contenders):
            component = self._components[component_id]
            leadership = component.leadership
            if leadership is None:
                vacant.append(component)
            elif leadership.session_id == session.session_id:
                leadership.last_affirmed_ns = now_ns
                # Its deadline is later now. It is not armed anew, which would cost a
                # step for each leadership: a look at the old deadline sees the new one.
                affirmations.append(component.affirmation())
        effects: list[ElectionEffect] = [
            AcknowledgeHeartbeat(
                session_id=session.session_id,
                number=event.number,
                affirmations=tuple(affirmations),
                is_undecided=self._leaderships.is_undecided,
            )
        ]
        for component in vacant:
            effects += self._leaderships.grant(component)
        return effects

    def suspect(self, session_id: str) -> None:
        """Wait less long for a session whose connection has closed."""
        session = self._sessions.get(session_id)
        if session is not None and session.close_evidence is None:
            session.close_evidence = self._clock.now
            self._arm(session)

    def review(self, session_id: str) -> Sequence[ElectionEffect]:
        """End a session that nothing was heard of for too long."""
        session = self._sessions.get(session_id)
        assert session is not None
        now = self._clock.now
        if now.patient_ns < session.deadline_ns(now):
            self._arm(session)
            return ()
        if session.close_evidence is None:
            return self.end(session_id, SessionEnd.SILENT)
        return self.end(session_id, SessionEnd.CONNECTION_CLOSED)

    def end(self, session_id: str, reason: SessionEnd) -> Sequence[ElectionEffect]:
        """End a session, and with it what its contenders lead."""
        session = self._sessions.get(session_id)
        if session is None:
            return ()
        effects: list[ElectionEffect] = []
        has_stopped = reason is SessionEnd.CLOSED
        left = [self._components[name] for name, _ in session.contenders]
        for component in left:
            leadership = component.leadership
            if leadership is not None and leadership.session_id == session_id:
                effects += component.end(has_stopped=has_stopped, is_told=False)
        for component_id, contender_id in session.contenders:
            component = self._components[component_id]
            effects += self._leaderships.leave(component, contender_id)
        self._sessions.close(session_id)
        self._waits.set((SESSION, session_id), None)
        effects.append(CloseSession(session_id=session_id, reason=reason))
        for component in left:
            effects += self._leaderships.grant(component)
        return effects

    def _arm(self, session: Session) -> None:
        deadline_ns = session.deadline_ns(self._clock.now)
        self._waits.set((SESSION, session.session_id), deadline_ns)
