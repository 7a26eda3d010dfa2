"""
`DirectAnswerer`: answers clients that ask the node without the proxy (rules D1, D2).

Keys that the loop finds in a moment are answered at once, as for the proxy.  Pages of
scans and counts are read by the thread that reads at length, where askers take turns
(`DirectReads`, rule B2).  Everything else that takes longer, or would have to wait, is
refused: the client asks the proxy.  So is what is large, and what is asked while too
much waits to be read (`UnreadAnswers`, rule B1).  What the ticket and the lease say is
looked at when the rows are there already (rule Q4), as in
`queryablestate.node.answering`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from nameservice import NameServiceError
from queryablestate.node.answering import read_now
from queryablestate.node.core.direct_tickets import ShownTickets
from queryablestate.node.core.jobs import ServedJob
from queryablestate.node.direct_reads import DirectReads, PageAsked
from queryablestate.node.reads import answer_of, is_long, is_too_early, problem_of
from queryablestate.wire.codec import encode
from queryablestate.wire.direct import ASK_PROXY, NOT_DIRECTLY, TICKET_REFUSED
from queryablestate.wire.questions import (
    KINDS,
    CountKeys,
    Question,
    Refusal,
    ScanRows,
    Told,
    WalkRows,
)
from queryablestate.wire.refusals import error_label
from zmqtransport import BytesInFlight, UnreadAnswers


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import Clock
    from nameservice.observation import Latencies
    from queryablestate.node.core.core import Admission
    from queryablestate.node.direct_reads import DirectStore
    from queryablestate.node.reads import Found
    from queryablestate.wire.direct import AskNode, DirectTicket, ShowTicket
    from zmqtransport import Peer


__all__ = ["DirectAnswerer"]

_ANSWER_SIZE_BYTES_MAX: Final = 2 << 20
"""Of one answer: what is larger goes by the connection that is there for it."""

_UNREAD_SIZE_BYTES_MAX: Final = 8 << 20
_UNREAD_PER_CONNECTION_SIZE_BYTES_MAX: Final = 2 << 20


@final
@frozen(eq=False)
class _Asked:
    """Who asks what, by which ticket, and since when."""

    peer: Peer
    message: AskNode
    ticket: DirectTicket
    question: Question
    asked_at_ns: int
    standing: object


@final
class DirectAnswerer:
    """
    Answers clients from a store.  Belongs to the thread of the node's loop.

    Args:
        store: What reads the rows.
        answer_size_bytes_max: Of the second frame of an answer; 2 MiB at most.
        clock: What durations are measured by.
        wall_clock_us: What ages and expiries are measured by.
        is_current: Says whether the node may answer under that ticket now; see
            `NodeCore.is_current`.
        admit: Says whether a question about a state of that job may be answered now.
        send: Sends frames to a client, now or not at all, and counts them by
            *in_flight*; returns whether it did.
        latencies: Is told how long answers took.
        standing: Returns what stands for the node's part in a job; if that is another
            one when rows have been read, they are not told.

    Attributes:
        in_flight: What clients have yet to read.
        answered_count: Answers given.
        refused_count: Refusals given, of questions and of tickets.
        errors: Those of questions by their codes, as figures.
    """

    def __init__(
        self,
        store: DirectStore,
        *,
        answer_size_bytes_max: int,
        clock: Clock,
        wall_clock_us: Callable[[], int],
        is_current: Callable[[DirectTicket], bool | None],
        admit: Callable[[Question, str | None], Admission],
        send: Callable[[bytes, Sequence[bytes]], bool],
        latencies: Latencies,
        standing: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._store = store
        self._wall_clock_us = wall_clock_us
        self._answer_size_bytes_max = min(answer_size_bytes_max, _ANSWER_SIZE_BYTES_MAX)
        self._clock = clock
        self._is_current = is_current
        self._admit = admit
        self._send = send
        self._latencies = latencies
        self._standing = standing
        self._tickets = ShownTickets()
        self.in_flight = BytesInFlight()
        self._unread = UnreadAnswers(
            self.in_flight,
            clock,
            bytes_max=_UNREAD_SIZE_BYTES_MAX,
            bytes_per_connection_max=_UNREAD_PER_CONNECTION_SIZE_BYTES_MAX,
        )
        self._pages = DirectReads(
            store,
            answer_size_bytes_max=self._answer_size_bytes_max,
            wall_clock_us=wall_clock_us,
        )
        self.answered_count = 0
        self.refused_count = 0
        self.errors: Counter[str] = Counter()

    def figures(self) -> dict[str, int]:
        """Return the figures of direct reads by name."""
        return {
            "direct_answered_total": self.answered_count,
            "direct_refused_total": self.refused_count,
            "direct_tickets": len(self._tickets),
            "direct_pages_waiting": len(self._pages),
            "direct_unsent_bytes": self._unread.total_bytes(),
        }

    def keep_secret(self, secret: bytes) -> None:
        """Take tickets of the leader that has given *secret*, and of no other."""
        self._tickets.keep_secret(secret)

    def show(
        self, peer: Peer, message: ShowTicket, public_key: str | None
    ) -> int | None:
        """
        Take a ticket; what is asked by one that is none is refused.

        Returns:
            The state that it is for, or None if it is none.
        """
        if not self._tickets.show(peer.number, message, public_key=public_key):
            self.refused_count += 1
            return None
        ticket = self._tickets.get(peer.number, message.ticket_id)
        return None if ticket is None else ticket.state_number

    def forget(self, peer: Peer) -> None:
        """Forget a client whose connection is over; read nothing more for it (B2)."""
        self._tickets.forget(peer.number)
        self._pages.forget(peer)

    def ask(self, peer: Peer, message: AskNode, keys: bytes) -> None:
        """Answer a question, now or when its answer has been read, or refuse it."""
        asked_at_ns = self._clock.now_ns()
        ticket = self._tickets.get(peer.number, message.ticket_id)
        if ticket is None:
            self._refuse(peer, message, TICKET_REFUSED)
            return
        question = Question(
            leader_epoch=ticket.leader_epoch,
            question_id=message.request_id,
            state_number=ticket.state_number,
            assignment_version=ticket.assignment_version,
            operation=message.operation,
            deadline_ms=message.deadline_ms,
            min_batch_id=message.min_batch_id,
            min_generation=message.min_generation,
        )
        standing = self._standing(ticket.job_id)
        asked = _Asked(peer, message, ticket, question, asked_at_ns, standing)
        if self._unread.is_too_much(peer.connection):
            self._refuse(peer, message, ASK_PROXY)
            return
        if isinstance(message.operation, ScanRows | WalkRows | CountKeys):
            self._read_page(asked)
            return
        if is_long(question, keys):
            self._refuse(peer, message, NOT_DIRECTLY)
            return
        now_us = self._wall_clock_us()
        try:
            found = read_now(
                self._store.reader(),
                question,
                keys,
                now_us,
                self._answer_size_bytes_max,
            )
        except NameServiceError:
            found = None  # the proxy, and the node when that asks, say what is wrong
        if found is None:
            self._refuse(peer, message, NOT_DIRECTLY)
        else:
            self._finish(asked, found, now_us)

    def _read_page(self, asked: _Asked) -> None:
        """Have a page, or a count, read in its turn, if the node may answer at all."""
        peer, message, question = asked.peer, asked.message, asked.question
        try:
            view = self._store.state(question.state_number)
        except NameServiceError:
            self._refuse(peer, message, NOT_DIRECTLY)
            return
        admitted = self._admitted(asked, None if view is None else view.job_id)
        if isinstance(admitted, str):
            self._refuse(peer, message, admitted)
            return

        def done(found: Found) -> None:
            if self._unread.is_too_much(peer.connection):
                self._refuse(peer, message, ASK_PROXY)
            else:
                self._finish(asked, found, self._wall_clock_us())

        self._pages.read(
            PageAsked(
                peer=peer,
                caller=asked.ticket.caller,
                question=question,
                key_groups=admitted.key_groups,
                asked_at_ns=asked.asked_at_ns,
                done=done,
                refused=lambda code: self._refuse(peer, message, code),
            )
        )

    def _admitted(self, asked: _Asked, job_id: str | None) -> ServedJob | str:
        """Return what the node answers for now, or why it does not (D2, Q4)."""
        is_current = self._is_current(asked.ticket)
        if not is_current:
            return TICKET_REFUSED if is_current is False else ASK_PROXY
        admitted = self._admit(asked.question, job_id)
        if isinstance(admitted, ServedJob):
            is_same = self._standing(asked.ticket.job_id) == asked.standing
            return admitted if is_same else ASK_PROXY
        return admitted.code if isinstance(admitted, Refusal) else ASK_PROXY

    def _finish(self, asked: _Asked, found: Found, now_us: int) -> None:
        """Answer with what was found, if the node may answer now."""
        peer, message, question = asked.peer, asked.message, asked.question
        job_id = None if found.view is None else found.view.job_id
        admitted = self._admitted(asked, job_id)
        if isinstance(admitted, str):
            self._refuse(peer, message, admitted)
            return
        problem = problem_of(question, found, admitted)
        if problem is not None or is_too_early(question, found):
            code = NOT_DIRECTLY if problem is None else problem.code
            self._refuse(peer, message, code)
            return
        told = Told(
            request_id=message.request_id,
            reading=answer_of(question, found, now_us).reading,
            next_start=found.next_start,
        )
        if not self._send(peer.routing_id, (encode(told), bytes(found.payload))):
            return  # its queue is full: it asks the proxy when that is late
        self.answered_count += 1
        elapsed_ns = self._clock.now_ns() - asked.asked_at_ns
        self._latencies.add(KINDS[type(question.operation)], elapsed_ns)

    def _refuse(self, peer: Peer, message: AskNode, code: str) -> None:
        self.refused_count += 1
        self.errors[f"errors_{error_label(code)}"] += 1
        frame = encode(Refusal(request_id=message.request_id, code=code))
        self._send(peer.routing_id, (frame,))
