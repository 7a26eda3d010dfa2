"""
`NodeReads`: what nodes are asked for readers, until it is answered; without I/O.

Theory of operation.  A question goes to the primary of its key groups.  It goes to
nodes that have other in-sync copies, too, when the primary is late (`HedgePolicy` says
when): then the first good answer counts, and the other question is cancelled.  It goes
to those alone while the primary is unresponsive or away, and when the primary has gone,
or refused it, meanwhile (rule D4).

What is not prompt by its nature has more time: a page or a count is late only after two
seconds, and a question that waits for a batch never is.  Each node is
asked under the version of the assignment that the question came by, and only while that
is the present one: so a copy that was taken out of it is asked no more before a batch
is acknowledged without it (docs/decisions/0025-in-sync-copies-answer.md).

A question that a node was asked before it went is not kept here if no other copy can be
asked.  Its route is called stale: the client asks again, and is parked.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, assert_never, final

from nameservice import RemoteProtocolError
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from queryablestate.errors import DeadlineExceededError
from queryablestate.proxy.copy_reads import behind, divide, is_by_key, unite
from queryablestate.proxy.hedging import HedgePolicy, Verdict
from queryablestate.proxy.pending_reads import PendingRead, PendingReads
from queryablestate.proxy.read_answers import Outgoing, failed, refused, unavailable
from queryablestate.proxy.read_questions import (
    batch_id_known,
    is_awaited,
    names_nothing,
    question_of,
)
from queryablestate.wire.questions import (
    Answer,
    CancelQuestions,
    Reading,
    Refusal,
    Told,
)
from queryablestate.wire.refusals import STALE_ROUTE


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.cache import CacheKey, ResultCache
    from queryablestate.proxy.copy_reads import CopyPart
    from queryablestate.proxy.hedging import HedgeLimits
    from queryablestate.proxy.pending_reads import Charge, CopyAttempt
    from queryablestate.proxy.rate_limit import RateLimiter
    from queryablestate.proxy.read_parking import ParkedQuestion


__all__ = ["NodeReads"]

_UNAVAILABLE: Final = "state-unavailable"
_ELSEWHERE_PERHAPS: Final = frozenset({_UNAVAILABLE, "storage", "did-not-happen"})
"""What a node says that cannot answer, where another one may."""
_ATTEMPT_COUNT_MAX: Final = 3
_KEPT_WAITED_NS_MAX: Final = NS_PER_SECOND
"""An answer that took longer is not kept: its age is not known well enough."""
_UNPAID_COUNT_MAX: Final = 100_000
"""Questions whose askers have gone: each is settled when its node answers, or goes."""


@final
class NodeReads:
    """
    Asks nodes; see the module docstring.

    Not thread-safe: a `ReadRouter` owns it.

    Args:
        limiter: Is told what reads have cost.
        cache: Is told answers.
        hedging: When other copies are asked.
        asks_copies: Whether they are at all.

    Attributes:
        asks_copies: Likewise; may be changed.
        hedged_count: Reads that a second one was asked for, since the first was late.
        hedge_won_count: Those of them that the second one has answered.
        moved_count: Reads that others were asked for, since the primary was
            unresponsive, away, or had refused.
    """

    def __init__(
        self,
        *,
        limiter: RateLimiter,
        cache: ResultCache,
        hedging: HedgeLimits,
        asks_copies: bool,
    ) -> None:
        self.asks_copies = asks_copies
        self.hedged_count = 0
        self.hedge_won_count = 0
        self.moved_count = 0
        self._limiter = limiter
        self._cache = cache
        self._locations: Mapping[int, KvStateLocation] = {}
        self._leader_epoch = 0
        self._policy = HedgePolicy(hedging)
        self._pending = PendingReads()
        # Since when it is waited for reads; True at the first look at one.
        self._prompt: deque[tuple[int, int, bool]] = deque()
        self._slow: deque[tuple[int, int, bool]] = deque()
        self._slow_delay_ns = hedging.slow_delay_ns
        self._unpaid: dict[int, tuple[LinkId, Charge]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    # -- leadership ----------------------------------------------------------------

    def lead(
        self, locations: Mapping[int, KvStateLocation], *, leader_epoch: int
    ) -> None:
        """Ask by *locations*, a view that stays up to date, from now on."""
        self._locations = locations
        self._leader_epoch = leader_epoch

    def stop_leading(self) -> list[ParkedQuestion]:
        """Forget everything; return what waits for answers."""
        waiting = [read.asked for read in self._pending.reads.values()]
        self._locations = {}
        self._pending.clear()
        self._policy.clear()
        self._prompt.clear()
        self._slow.clear()
        self._unpaid.clear()
        return waiting

    # -- questions -----------------------------------------------------------------

    @property
    def unresponsive_count(self) -> int:
        """Return how many nodes are asked second, since they do not answer."""
        return self._policy.unresponsive_count

    def count_of_client(self, client: LinkId) -> int:
        """Return how many answers *client* waits for."""
        return self._pending.count_of_client(client)

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` must be called again, or None if it need not be."""
        due_ns = self._pending.next_deadline_ns()
        for watched, delay_ns in self._watches():
            if watched:
                late_ns = watched[0][0] + delay_ns
                if due_ns is None or late_ns < due_ns:
                    due_ns = late_ns
        return due_ns

    def ask(
        self,
        asked: ParkedQuestion,
        location: KvStateLocation,
        cache_key: CacheKey | None,
        charge: Charge,
        now_ns: int,
    ) -> list[Outgoing]:
        """Ask the primary, or others in its place; return nothing if none is here."""
        ask = asked.ask
        node = location.links[ask.node_index]
        parts: tuple[CopyPart, ...] = ()
        if node is None or self._policy.is_unresponsive(node):
            parts = self._parts(location, asked)
            if node is None and not parts:
                return []
        read = PendingRead(
            asked,
            location,
            cache_key,
            charge,
            is_prompt=is_by_key(ask.operation),
            is_watched=bool(location.owners)
            and self.asks_copies
            and not is_awaited(location, ask),
        )
        self._policy.earn()
        read_id = self._pending.begin(read)
        if not parts:
            assert node is not None
            return [self._ask_primary(read_id, read, node, now_ns)]
        self.moved_count += 1
        outgoing = self._ask_copies(read_id, read, parts, now_ns)
        if node is not None and self._policy.take_probe(node, now_ns=now_ns):
            outgoing.append(self._ask_primary(read_id, read, node, now_ns))
        return outgoing

    # -- answers -------------------------------------------------------------------

    def answered(
        self, node: LinkId, answer: Answer, values: bytes | memoryview, *, now_ns: int
    ) -> list[Outgoing]:
        """Pass a node's answer on to its asker; nothing if no asker waits."""
        self._policy.heard(node, now_ns=now_ns)
        found = self._pending.find(node, answer.question_id)
        if found is None:
            self._settle(node, answer.question_id, answer.row_count, now_ns)
            return []
        read_id, read, index = found
        if index is None:
            assert read.node_asked_at_ns is not None
            if read.is_prompt and read.is_watched:
                self._policy.took(node, now_ns - read.node_asked_at_ns)
            self._pending.primary_replied(read_id, read)
            waited_ns = now_ns - read.node_asked_at_ns
            return self._told(read_id, read, answer, values, waited_ns, now_ns=now_ns)
        attempt = self._pending.part_replied(read, index)
        attempt.answers[index] = answer
        attempt.payloads[index] = values
        if read.is_prompt and read.is_watched:
            self._policy.took(node, now_ns - attempt.asked_at_ns)
        return self._copies_answered(read_id, read, attempt, now_ns)

    def refused(self, node: LinkId, refusal: Refusal, *, now_ns: int) -> list[Outgoing]:
        """Ask others, or pass a node's refusal on to its asker, if one waits."""
        self._policy.heard(node, now_ns=now_ns)
        return self.not_asked(node, refusal, now_ns=now_ns)

    def not_asked(
        self, node: LinkId, refusal: Refusal, *, now_ns: int
    ) -> list[Outgoing]:
        """Refuse likewise what a node could not even be asked."""
        found = self._pending.find(node, refusal.request_id)
        if found is None:
            self._settle(node, refusal.request_id, refusal.row_count, now_ns)
            return []
        read_id, read, index = found
        if index is not None:
            self._pending.part_replied(read, index)
            return self._copies_failed(read_id, read, now_ns)
        self._pay(read, refusal.row_count, now_ns)
        self._pending.primary_replied(read_id, read)
        if refusal.code in _ELSEWHERE_PERHAPS:
            outgoing = self._move(read_id, read, now_ns)
            if read.attempt is not None:
                read.refusal = refusal
                return outgoing
        cancelled = self._cancelled(self._pending.close(read_id))
        return [self._refusal_of(read, refusal), *cancelled]

    def node_left(
        self, node: LinkId, *, now_ns: int, is_settled: bool = True
    ) -> list[Outgoing]:
        """
        Ask others, or refuse, what waits for a node that is gone.

        Args:
            node: Its connection.
            now_ns: The time.
            is_settled: Whether other nodes that are not here count as away.
        """
        outgoing: list[Outgoing] = []
        self._policy.forget(node)
        for question_id in [one for one, (of, _) in self._unpaid.items() if of == node]:
            del self._unpaid[question_id]
        for question_id in self._pending.of_node(node):
            found = self._pending.find(node, question_id)
            if found is None:
                continue  # it was of a read that is over by now
            read_id, read, index = found
            if index is not None:
                self._pending.part_replied(read, index)
                outgoing += self._copies_failed(read_id, read, now_ns)
                continue
            self._pending.primary_replied(read_id, read)
            outgoing += self._move(read_id, read, now_ns)
            if read.attempt is not None:
                continue
            self._pending.close(read_id)
            if is_settled:
                outgoing.append(self._answer_for(read, None))
            else:  # a client that asks again waits for nodes that are late
                asked = read.asked
                outgoing.append(
                    refused(asked.client, asked.ask.request_id, STALE_ROUTE)
                )
        return outgoing

    def client_left(self, client: LinkId) -> list[Outgoing]:
        """Forget what a client waits for, and have nodes do so, too (rule B2)."""
        waiting: list[tuple[LinkId, int]] = []
        for read_id in self._pending.of_client(client):
            waiting += self._abandon(read_id)
        return self._cancelled(waiting)

    def expire(self, *, now_ns: int) -> list[Outgoing]:
        """Ask others for what is late; refuse what is past its deadline (rule Q3)."""
        outgoing = self._hedge(now_ns)
        for read_id in self._pending.take_late(now_ns=now_ns):
            read = self._pending.reads[read_id]
            self._abandon(read_id)
            asked = read.asked
            node_id = read.location.node_ids[asked.ask.node_index]
            error = DeadlineExceededError(
                (now_ns - asked.asked_at_ns) / NS_PER_SECOND,
                f"node {node_id} did not answer",
            )
            outgoing.append(failed(asked.client, asked.ask.request_id, error))
        return outgoing

    # -- asking --------------------------------------------------------------------

    def _parts(
        self, location: KvStateLocation, asked: ParkedQuestion
    ) -> tuple[CopyPart, ...]:
        """Return what others can be asked in place of the primary; none if nothing."""
        if not location.owners or not self.asks_copies:
            return ()
        ask = asked.ask
        return divide(
            location,
            ask.node_index,
            ask.operation,
            asked.keys,
            is_unfit=self._policy.is_unresponsive,
        )

    def _ask_primary(
        self, read_id: int, read: PendingRead, node: LinkId, now_ns: int
    ) -> Outgoing:
        self._pending.ask_primary(read_id, read, node, now_ns=now_ns)
        if read.is_watched:
            self._watch(read_id, read, now_ns, is_first=True)
        asked = read.asked
        question = question_of(
            read_id,
            asked,
            read.location,
            leader_epoch=self._leader_epoch,
            now_ns=now_ns,
        )
        return Outgoing(node, question, asked.keys)

    def _ask_copies(
        self,
        read_id: int,
        read: PendingRead,
        parts: tuple[CopyPart, ...],
        now_ns: int,
    ) -> list[Outgoing]:
        attempt = self._pending.ask_copies(read_id, read, parts, now_ns=now_ns)
        if read.is_watched and read.node is None:
            self._watch(read_id, read, now_ns, is_first=True)
        return [
            self._part_question(question_id, read, part, None, now_ns)
            for part, question_id in zip(parts, attempt.question_ids, strict=True)
            if question_id is not None
        ]

    def _part_question(
        self,
        question_id: int,
        read: PendingRead,
        part: CopyPart,
        newest: Reading | None,
        now_ns: int,
    ) -> Outgoing:
        """Return what a node is asked; *newest* is what it is to wait for."""
        question = question_of(
            question_id,
            read.asked,
            read.location,
            leader_epoch=self._leader_epoch,
            now_ns=now_ns,
            part=part,
            newest=newest,
        )
        return Outgoing(part.node, question, part.keys)

    def _ask_other(
        self, read_id: int, read: PendingRead, now_ns: int
    ) -> list[Outgoing]:
        """Ask those who were not asked yet, if there are any; nothing if not."""
        asked, location = read.asked, self._present(read)
        if location is None or location.problem is not None:
            return []
        if read.attempt is None and read.attempt_count < _ATTEMPT_COUNT_MAX:
            parts = self._parts(location, asked)
            if parts:
                return self._ask_copies(read_id, read, parts, now_ns)
        node = location.links[asked.ask.node_index]
        if read.node_asked_at_ns is None and node is not None:
            return [self._ask_primary(read_id, read, node, now_ns)]
        return []

    def _present(self, read: PendingRead) -> KvStateLocation | None:
        """Return the present route, if it is of the assignment that a read came by."""
        location = self._locations.get(read.asked.ask.state_number)
        version = read.location.assignment_version
        if location is None or location.assignment_version != version:
            return None
        return location

    def _move(self, read_id: int, read: PendingRead, now_ns: int) -> list[Outgoing]:
        """Ask others for what the primary does not answer, unless they are asked."""
        if read.attempt is not None:
            return []
        outgoing = self._ask_other(read_id, read, now_ns)
        self.moved_count += bool(outgoing)
        return outgoing

    # -- reads that are late -------------------------------------------------------

    def _watch(
        self, read_id: int, read: PendingRead, now_ns: int, *, is_first: bool
    ) -> None:
        """Have it looked at when it is late."""
        watched = self._prompt if read.is_prompt else self._slow
        watched.append((now_ns, read_id, is_first))

    def _watches(self) -> Iterator[tuple[deque[tuple[int, int, bool]], int]]:
        """Yield what is watched, without what is over, and how late is late there."""
        reads = self._pending.reads
        for watched, delay_ns in (
            (self._prompt, self._policy.delay_ns),
            (self._slow, self._slow_delay_ns),
        ):
            while watched and watched[0][1] not in reads:
                watched.popleft()
            yield watched, delay_ns

    def _hedge(self, now_ns: int) -> list[Outgoing]:
        """Ask others for what is not answered within the hedge delay (rule D4)."""
        outgoing: list[Outgoing] = []
        for watched, delay_ns in self._watches():
            while watched and watched[0][0] + delay_ns <= now_ns:
                _, read_id, is_first = watched.popleft()
                read = self._pending.reads.get(read_id)
                if read is None or not (read.node is None or read.attempt is None):
                    continue  # it is over, or both are asked
                outgoing += self._late(read_id, read, now_ns, is_first=is_first)
        return outgoing

    def _late(
        self, read_id: int, read: PendingRead, now_ns: int, *, is_first: bool
    ) -> list[Outgoing]:
        """Do what the policy says of a read that is late."""
        policy = self._policy
        if read.node is not None:
            node, asked_at_ns = read.node, read.node_asked_at_ns
        else:
            assert read.attempt is not None
            node, asked_at_ns = read.attempt.first_waiting(), read.attempt.asked_at_ns
        assert asked_at_ns is not None
        is_known = policy.is_unresponsive(node)
        verdict = policy.late(
            node, asked_at_ns=asked_at_ns, now_ns=now_ns, is_first=is_first
        )
        match verdict:
            case Verdict.WAIT:
                self._watch(read_id, read, now_ns, is_first=False)
                return []
            case Verdict.HEDGE:
                hedges = self._ask_other(read_id, read, now_ns)
                if hedges:
                    policy.spend(len(hedges))
                    self.hedged_count += not read.is_hedged
                    read.is_hedged = True
                return hedges
            case Verdict.MOVE:
                if is_known:
                    return self._ask_other(read_id, read, now_ns)
                return self._move_all(node, now_ns)
            case _:
                assert_never(verdict)

    def _move_all(self, node: LinkId, now_ns: int) -> list[Outgoing]:
        """Ask others for all that an unresponsive node was asked."""
        outgoing: list[Outgoing] = []
        for question_id in self._pending.of_node(node):
            found = self._pending.find(node, question_id)
            assert found is not None
            read_id, read, index = found
            if index is None:
                outgoing += self._move(read_id, read, now_ns)
            elif read.node is None:
                outgoing += self._ask_other(read_id, read, now_ns)
        return outgoing

    # -- what comes back -----------------------------------------------------------

    def _copies_answered(
        self, read_id: int, read: PendingRead, attempt: CopyAttempt, now_ns: int
    ) -> list[Outgoing]:
        """Answer with what other copies say, when all parts are there."""
        answers = [one for one in attempt.answers if one is not None]
        if len(answers) < len(attempt.parts):
            return []
        late, newest = behind(answers)
        if late:
            location = self._present(read)
            here = () if location is None else location.copy_links
            if newest.reading.batch_id is None or not all(
                attempt.parts[one].node in here for one in late
            ):
                return self._copies_failed(read_id, read, now_ns)
            return [
                self._part_question(
                    self._pending.ask_part(read_id, attempt, one),
                    read,
                    attempt.parts[one],
                    newest.reading,
                    now_ns,
                )
                for one in late
            ]
        try:
            answer, values = unite(
                read.asked.ask.operation, attempt.parts, answers, attempt.payloads
            )
        except RemoteProtocolError:
            return self._copies_failed(read_id, read, now_ns)
        self.hedge_won_count += read.is_hedged
        if read.node is not None and read.is_prompt and read.is_watched:
            assert read.node_asked_at_ns is not None
            self._policy.took(read.node, now_ns - read.node_asked_at_ns)
        waited_ns = now_ns - attempt.asked_at_ns
        return self._told(read_id, read, answer, values, waited_ns, now_ns=now_ns)

    def _copies_failed(
        self, read_id: int, read: PendingRead, now_ns: int
    ) -> list[Outgoing]:
        """Go on without the others that were asked: one of them does not answer."""
        outgoing = self._cancelled(self._pending.drop_copies(read))
        location = self._present(read)
        if location is not None:
            if read.node is not None:
                if read.is_watched:
                    self._watch(read_id, read, now_ns, is_first=False)
                return outgoing
            node = location.links[read.asked.ask.node_index]
            if read.node_asked_at_ns is None and node is not None:
                return [*outgoing, self._ask_primary(read_id, read, node, now_ns)]
        outgoing += self._cancelled(self._pending.close(read_id))
        return [*outgoing, self._refusal_of(read, read.refusal)]

    def _told(
        self,
        read_id: int,
        read: PendingRead,
        answer: Answer,
        values: bytes | memoryview,
        waited_ns: int,
        *,
        now_ns: int,
    ) -> list[Outgoing]:
        """Answer a read; cancel what else was asked for it."""
        self._pay(read, answer.row_count, now_ns)
        waiting = self._pending.close(read_id)
        reading = answer.reading
        if read.cache_key is not None and reading.batch_id is not None:
            location = self._locations.get(read.location.state_number)
            if location is not None and waited_ns <= _KEPT_WAITED_NS_MAX:
                self._cache.put(
                    read.cache_key,
                    generation=reading.generation,
                    batch_id=reading.batch_id,
                    # The node read it at any time since: never said to be too young.
                    age_ns=reading.age_ms * NS_PER_MS + waited_ns,
                    values=bytes(values),
                    has_missing=answer.has_missing,
                    ttl_ns=self._cache.ttl_ns(location.job_id, location.state_name),
                    valid_ns=_valid_ns(answer, waited_ns),
                    batch_id_known=batch_id_known(location, None),
                    now_ns=now_ns,
                )
        asked = read.asked
        told = Told(
            request_id=asked.ask.request_id,
            reading=reading,
            next_start=answer.next_start,
        )
        outgoing = [Outgoing(asked.client, told, values)]
        if waiting:
            outgoing += self._cancelled(waiting)
        return outgoing

    def _refusal_of(self, read: PendingRead, refusal: Refusal | None) -> Outgoing:
        """Return what comes of a read; *refusal* is its primary's, or None."""
        if refusal is None or (refusal.code == _UNAVAILABLE and names_nothing(refusal)):
            # Not what is asked is unavailable, but the node: it does not serve now.
            return self._answer_for(read, refusal)
        return _passed_on(read, refusal)

    def _answer_for(self, read: PendingRead, refusal: Refusal | None) -> Outgoing:
        """Return what comes of a question that its node does not answer."""
        client, ask = read.asked.client, read.asked.ask
        location = self._present(read)
        if location is None or not location.sole_key_groups[ask.node_index]:
            return refused(client, ask.request_id, STALE_ROUTE)
        if refusal is not None:
            return _passed_on(read, refusal)
        return unavailable(client, ask.request_id, location, ask.node_index)

    def _cancelled(self, waiting: Iterable[tuple[LinkId, int]]) -> list[Outgoing]:
        """Have nodes forget what they were asked."""
        by_node: dict[LinkId, list[int]] = {}
        for node, question_id in waiting:
            by_node.setdefault(node, []).append(question_id)
        return [
            Outgoing(
                node,
                CancelQuestions(
                    leader_epoch=self._leader_epoch, question_ids=tuple(question_ids)
                ),
            )
            for node, question_ids in by_node.items()
        ]

    def _settle(
        self, node: LinkId, question_id: int, row_count: int, now_ns: int
    ) -> None:
        """Charge for a question whose asker has gone; its node says how much it was."""
        asked, charge = self._unpaid.get(question_id, (None, None))
        if charge is None or asked != node:
            return
        del self._unpaid[question_id]
        self._charge(charge, row_count, now_ns)

    def _pay(self, read: PendingRead, row_count: int, now_ns: int) -> None:
        """Charge the rows that were read beyond those that are paid for."""
        self._charge(read.charge, row_count, now_ns)

    def _charge(self, charge: Charge, row_count: int, now_ns: int) -> None:
        count = row_count - charge.row_count
        if count > 0:
            self._limiter.charge(charge.caller, charge.state, count, now_ns=now_ns)

    def _abandon(self, read_id: int) -> list[tuple[LinkId, int]]:
        """Forget a read, but for who pays for it: its node will say how much."""
        read = self._pending.reads[read_id]
        waiting = self._pending.close(read_id)
        if waiting:
            # One of them: that several were asked is the proxy's own decision.
            node, question_id = waiting[-1]
            self._unpaid[question_id] = (node, read.charge)
            if len(self._unpaid) > _UNPAID_COUNT_MAX:
                del self._unpaid[next(iter(self._unpaid))]
        return waiting


def _valid_ns(answer: Answer, waited_ns: int) -> int | None:
    """
    Return for how long no row in *answer* expires; None for ever (rule W6).

    The node counts from the moment at which it read: that was *waited_ns* ago at most.
    """
    if answer.valid_ms is None:
        return None
    return answer.valid_ms * NS_PER_MS - waited_ns


def _passed_on(read: PendingRead, refusal: Refusal) -> Outgoing:
    asked = read.asked
    passed = Refusal(
        request_id=asked.ask.request_id, code=refusal.code, data=refusal.data
    )
    return Outgoing(asked.client, passed)
