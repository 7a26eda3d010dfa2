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
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, final

from attrs import Factory, define


if TYPE_CHECKING:
    from collections.abc import Iterator


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
        last_contact_ns: When it was heard from; a stall of the server moves it.
        heartbeat_number: The newest heartbeat; 0 is the opening.
        acknowledged_number: The newest heartbeat whose answer the client has.
        close_evidence_ns: When its connection closed, or None; a heartbeat clears it.
        contenders: The (component id, contender id) of its contenders, in the order
            of their registration.
        acknowledgements: (number, when) of what was acknowledged within the last
            session timeout, oldest first.
    """

    session_id: str
    client: str
    session_timeout_ns: int
    lease_ns: int
    opened_ns: int
    last_contact_ns: int
    heartbeat_number: int = 0
    acknowledged_number: int = 0
    close_evidence_ns: int | None = None
    contenders: dict[tuple[str, str], None] = Factory(dict)
    acknowledgements: deque[tuple[int, int]] = Factory(
        lambda: deque(maxlen=ACKNOWLEDGEMENT_COUNT_MAX)
    )

    def is_heard(self, now_ns: int) -> bool:
        """Return whether it was heard from within its lease."""
        return now_ns < self.last_contact_ns + self.lease_ns

    def may_be_granted(self, now_ns: int) -> bool:
        """Return whether it was heard from within its lease, and since it was cut."""
        return self.close_evidence_ns is None and self.is_heard(now_ns)

    def deadline_ns(self) -> int:
        """Return when it ends if nothing is heard."""
        silent_ns = self.last_contact_ns + self.session_timeout_ns
        if self.close_evidence_ns is None:
            return silent_ns
        return min(silent_ns, self.close_evidence_ns + self.lease_ns)


@final
class SessionTable:
    """All sessions, in the order in which they were opened."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._leases: Counter[int] = Counter()
        self._lease_ns_min = 0
        self._lease_ns_max = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    @property
    def lease_ns_min(self) -> int:
        """Return the shortest lease of a session, or 0 if there is none."""
        return self._lease_ns_min

    @property
    def lease_ns_max(self) -> int:
        """Return the longest lease of a session, or 0 if there is none."""
        return self._lease_ns_max

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
        now_ns: int,
    ) -> Session:
        """Open a session; *session_id* must be new."""
        assert session_id not in self._sessions
        session = Session(
            session_id=session_id,
            client=client,
            session_timeout_ns=session_timeout_ns,
            lease_ns=lease_ns,
            opened_ns=now_ns,
            last_contact_ns=now_ns,
        )
        session.acknowledgements.append((0, now_ns))
        self._sessions[session_id] = session
        self._count_lease(lease_ns, 1)
        return session

    def close(self, session_id: str) -> Session:
        """Take the session out of the table and return it."""
        session = self._sessions.pop(session_id)
        self._count_lease(session.lease_ns, -1)
        return session

    def _count_lease(self, lease_ns: int, change: int) -> None:
        """Keep the shortest and the longest lease; few of them differ."""
        self._leases[lease_ns] += change
        if not self._leases[lease_ns]:
            del self._leases[lease_ns]
        self._lease_ns_min = min(self._leases, default=0)
        self._lease_ns_max = max(self._leases, default=0)

    def heartbeat(
        self,
        session: Session,
        *,
        number: int,
        acknowledged: int,
        now_ns: int,
        is_late: bool = False,
    ) -> bool:
        """
        Take note of a heartbeat.

        Args:
            session: Whose.
            number: Its number.
            acknowledged: The heartbeat whose answer its client had.
            now_ns: When it arrived.
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
        oldest_ns = now_ns - session.session_timeout_ns
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
            session.last_contact_ns = max(session.last_contact_ns, now_ns)
            closed_ns = session.close_evidence_ns
            if closed_ns is not None and not (is_late and named_ns <= closed_ns):
                session.close_evidence_ns = None
        acknowledgements.append((number, now_ns))
        return True

    def shift(self, duration_ns: int, *, latest_ns: int) -> None:
        """
        Let everything of a session have happened *duration_ns* later (rule E9).

        Args:
            duration_ns: For how long the core did not run, and a lease.
            latest_ns: Nothing is made to have happened later than this.
        """
        for session in self._sessions.values():
            session.last_contact_ns = min(
                session.last_contact_ns + duration_ns, latest_ns
            )
            if session.close_evidence_ns is not None:
                session.close_evidence_ns = min(
                    session.close_evidence_ns + duration_ns, latest_ns
                )
            session.acknowledgements = deque(
                (
                    (number, min(sent_ns + duration_ns, latest_ns))
                    for number, sent_ns in session.acknowledgements
                ),
                maxlen=ACKNOWLEDGEMENT_COUNT_MAX,
            )
