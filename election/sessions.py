"""
The session table: who is there, who was heard from when, who is over (rules E4, E5).

A heartbeat counts as contact only if its number is above all earlier ones, and if the
acknowledgement that it names was sent within the last session timeout.  The second
condition keeps heartbeats that were under way for a long time, or queued by a client
that had given up, from keeping a session alive that its client believes lost.

That a connection closed is often known before the last heartbeat that came over it is
read.  Such a heartbeat refutes nothing: it was sent by a process that may have died
since.  Only one that came over another connection does, or one that names an answer
sent after the connection is said to have closed.

Silence is counted on the patient clock (`election.patience`): time in which the core
did not run is no client's silence.  The grace of a session is its own lease.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from attrs import Factory, define


if TYPE_CHECKING:
    from collections.abc import Iterator

    from election.patience import Moment


__all__ = ["ACKNOWLEDGEMENT_COUNT_MAX", "Session", "SessionTable"]

# A client names the newest acknowledgement that it has, so few are ever looked up; a
# peer that floods us with heartbeats must not make us remember them all.
ACKNOWLEDGEMENT_COUNT_MAX: Final = 1024


@define(kw_only=True)
class Session:
    """
    One client's session.

    Attributes:
        session_id: Its id.
        client: Who it is, for operators.
        session_timeout_ns: Silence after which it ends.
        lease_ns: How long its holders believe, at the most.
        opened_ns: When it was opened.
        last_contact: When it was heard from.
        heartbeat_number: The newest heartbeat; 0 is the opening.
        acknowledged_number: The newest heartbeat whose answer the client has.
        close_evidence: When its connection closed, or None; a heartbeat clears it.
        contenders: The (component id, contender id) of its contenders, in the order
            of their registration.
        acknowledgements: (number, when on the patient clock) of what was acknowledged
            within the last session timeout, oldest first.
    """

    session_id: str
    client: str
    session_timeout_ns: int
    lease_ns: int
    opened_ns: int
    last_contact: Moment
    heartbeat_number: int = 0
    acknowledged_number: int = 0
    close_evidence: Moment | None = None
    contenders: dict[tuple[str, str], None] = Factory(dict)
    acknowledgements: deque[tuple[int, int]] = Factory(
        lambda: deque(maxlen=ACKNOWLEDGEMENT_COUNT_MAX)
    )

    @property
    def last_contact_ns(self) -> int:
        """Return when it was heard from, in real time."""
        return self.last_contact.real_ns

    def silent_ns(self, now: Moment) -> int:
        """Return when, on the patient clock, its silence is longer than its lease."""
        return self.last_contact.due_ns(self.lease_ns, grace_ns=self.lease_ns, now=now)

    def is_heard(self, now: Moment) -> bool:
        """Return whether it was heard from within its lease."""
        return now.patient_ns < self.silent_ns(now)

    def may_be_granted(self, now: Moment) -> bool:
        """Return whether it was heard from within its lease, and since it was cut."""
        return self.close_evidence is None and self.is_heard(now)

    def deadline_ns(self, now: Moment) -> int:
        """Return when, on the patient clock, it ends if nothing is heard."""
        lease_ns = self.lease_ns
        ends_ns = self.last_contact.due_ns(
            self.session_timeout_ns, grace_ns=lease_ns, now=now
        )
        if self.close_evidence is None:
            return ends_ns
        return min(
            ends_ns, self.close_evidence.due_ns(lease_ns, grace_ns=lease_ns, now=now)
        )


@final
class SessionTable:
    """All sessions, in the order in which they were opened."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def get(self, session_id: str) -> Session | None:
        """Return the session, or None if it is over or never was."""
        return self._sessions.get(session_id)

    def open(
        self,
        session_id: str,
        *,
        client: str,
        session_timeout_ns: int,
        lease_ns: int,
        now: Moment,
    ) -> Session:
        """Open a session; *session_id* must be new."""
        assert session_id not in self._sessions
        session = Session(
            session_id=session_id,
            client=client,
            session_timeout_ns=session_timeout_ns,
            lease_ns=lease_ns,
            opened_ns=now.real_ns,
            last_contact=now,
        )
        session.acknowledgements.append((0, now.patient_ns))
        self._sessions[session_id] = session
        return session

    def close(self, session_id: str) -> Session:
        """Take the session out of the table and return it."""
        return self._sessions.pop(session_id)

    def heartbeat(
        self,
        session: Session,
        *,
        number: int,
        acknowledged: int,
        now: Moment,
        is_late: bool = False,
    ) -> bool:
        """
        Record a heartbeat.

        Args:
            session: Whose.
            number: Its number.
            acknowledged: The heartbeat whose answer its client had.
            now: When it arrived.
            is_late: Whether it came over a connection that is said to have closed.

        Returns:
            Whether it is to be acknowledged: False for one that is not newer than
            all before.  Whether it counted as contact shows in the session.
        """
        if number <= session.heartbeat_number:
            return False
        session.heartbeat_number = number
        session.acknowledged_number = max(session.acknowledged_number, acknowledged)
        acknowledgements = session.acknowledgements
        oldest_ns = now.patient_ns - session.session_timeout_ns
        while len(acknowledgements) > 1 and acknowledgements[0][1] < oldest_ns:
            acknowledgements.popleft()
        named_ns = next(
            (
                sent_ns
                for known, sent_ns in reversed(acknowledgements)
                if known == acknowledged
            ),
            None,
        )
        if named_ns is not None and named_ns >= oldest_ns:
            session.last_contact = now
            cut = session.close_evidence
            if cut is not None and not (is_late and named_ns <= cut.patient_ns):
                session.close_evidence = None
        acknowledgements.append((number, now.patient_ns))
        return True
