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

from typing import TYPE_CHECKING, Final, assert_never, final

from nameservice import RemoteProtocolError
from nameservice.clock import NS_PER_SECOND
from nameservice.observation import Latencies
from queryablestate.errors import DeadlineExceededError
from queryablestate.hedging import HedgePolicy, Verdict
from queryablestate.proxy.cached_answers import keep_answer
from queryablestate.proxy.copy_reads import behind, is_by_key, unite
from queryablestate.proxy.node_questions import NodeQuestions
from queryablestate.proxy.pending_reads import PendingRead, PendingReads
from queryablestate.proxy.read_answers import (
    Outgoing,
    failed,
    no_room_error,
    passed_on,
    refused,
    unavailable,
)
from queryablestate.proxy.read_charges import ReadCharges
from queryablestate.proxy.read_questions import is_awaited, names_nothing
from queryablestate.proxy.read_watch import ReadWatch
from queryablestate.wire.questions import KINDS, Answer, Refusal, Told
from queryablestate.wire.refusals import STALE_ROUTE


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.hedging import HedgeLimits
    from queryablestate.proxy.cache import CacheKey, ResultCache
    from queryablestate.proxy.copy_reads import CopyPart
    from queryablestate.proxy.pending_reads import CopyAttempt
    from queryablestate.proxy.rate_limit import RateLimiter
    from queryablestate.proxy.read_charges import Charge
    from queryablestate.proxy.read_parking import ParkedQuestion


__all__ = ["NodeReads"]

_UNAVAILABLE: Final = "state-unavailable"
_ELSEWHERE_PERHAPS: Final = frozenset({_UNAVAILABLE, "storage", "did-not-happen"})
"""What a node says that cannot answer, where another one may."""


def _none_is_away(node_id: str, now_ns: int) -> bool:
    """Return whether nodes that are not here are away, before there is a leader."""
    del node_id, now_ns
    return False


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
        pending_count_max: How many reads may wait for their answers.

    Attributes:
        pending: What waits for their answers; not to be changed by others.
        questions: What they are asked.
        hedged_count: Reads that a second one was asked for, since the first was late.
        hedge_won_count: Those of them that the second one has answered.
        moved_count: Reads that others were asked for, since the primary was
            unresponsive, away, or had refused.
        latencies: How long it took from a question to its answer.
        takes_for_away: Returns whether that node, which is not here, counts as away at
            a time.  Every refusal for such a node asks it at that moment.
    """

    def __init__(
        self,
        *,
        limiter: RateLimiter,
        cache: ResultCache,
        hedging: HedgeLimits,
        asks_copies: bool,
        pending_count_max: int,
    ) -> None:
        self.hedged_count = 0
        self.hedge_won_count = 0
        self.moved_count = 0
        self.latencies = Latencies()
        self._cache = cache
        self._policy = HedgePolicy(hedging)
        self.pending = PendingReads(pending_count_max)
        self._watch = ReadWatch(self.pending.reads, slow_delay_ns=hedging.slow_delay_ns)
        self._charges = ReadCharges(limiter)
        self.takes_for_away: Callable[[str, int], bool] = _none_is_away
        self.questions = NodeQuestions(
            self.pending,
            self._watch,
            is_unfit=self._policy.is_unresponsive,
            asks_copies=asks_copies,
        )

    def __len__(self) -> int:
        return len(self.pending)

    # -- leadership ----------------------------------------------------------------

    def lead(
        self,
        locations: Mapping[int, KvStateLocation],
        *,
        leader_epoch: int,
        takes_for_away: Callable[[str, int], bool],
    ) -> None:
        """Ask by *locations* from now on; the arguments are those of `ReadRouter`."""
        self.takes_for_away = takes_for_away
        self.questions.lead(locations, leader_epoch=leader_epoch)

    def stop_leading(self) -> list[ParkedQuestion]:
        """Forget everything; return what waits for answers."""
        waiting = [read.asked for read in self.pending.reads.values()]
        self.takes_for_away = _none_is_away
        self.questions.stop_leading()
        self.pending.clear()
        self._policy.clear()
        self._watch.clear()
        self._charges.clear()
        return waiting

    # -- questions -----------------------------------------------------------------

    @property
    def unresponsive_count(self) -> int:
        """Return how many nodes are asked second, since they do not answer."""
        return self._policy.unresponsive_count

    def limit(self, pending_count_max: int) -> None:
        """Have *pending_count_max* reads wait for answers, from the next one on."""
        self.pending.limit(pending_count_max)

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` must be called again, or None if it need not be."""
        due_ns = self.pending.next_deadline_ns()
        late_ns = self._watch.next_deadline_ns(delay_ns=self._policy.delay_ns)
        if late_ns is None:
            return due_ns
        return late_ns if due_ns is None else min(due_ns, late_ns)

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
            parts = self.questions.copies_of(location, asked)
            if node is None and not parts:
                return []
        read = PendingRead(
            asked,
            location,
            cache_key,
            charge,
            is_prompt=is_by_key(ask.operation),
            is_watched=self.questions.may_ask_copies(location)
            and not is_awaited(location, ask),
        )
        read_id, turned_away = self.pending.begin(read)
        outgoing = self._turn_away(turned_away) if turned_away else []
        if read_id in turned_away:
            return outgoing
        self._policy.earn()
        if not parts:
            assert node is not None
            return [*outgoing, self.questions.ask_primary(read_id, read, node, now_ns)]
        self.moved_count += 1
        outgoing += self.questions.ask_copies(read_id, read, parts, now_ns)
        if node is not None and self._policy.take_probe(node, now_ns=now_ns):
            outgoing.append(self.questions.ask_primary(read_id, read, node, now_ns))
        return outgoing

    # -- answers -------------------------------------------------------------------

    def answered(
        self, node: LinkId, answer: Answer, values: bytes | memoryview, *, now_ns: int
    ) -> list[Outgoing]:
        """Pass a node's answer on to its asker; nothing if no asker waits."""
        self._policy.heard(node, now_ns=now_ns)
        found = self.pending.find(node, answer.question_id)
        if found is None:
            self._charges.settle(node, answer.question_id, answer.row_count, now_ns)
            return []
        read_id, read, index = found
        if index is None:
            assert read.node_asked_at_ns is not None
            if read.is_prompt and read.is_watched:
                self._policy.took(node, now_ns - read.node_asked_at_ns)
            self.pending.primary_replied(read_id, read)
            waited_ns = now_ns - read.node_asked_at_ns
            return self._told(read_id, read, answer, values, waited_ns, now_ns=now_ns)
        attempt = self.pending.part_replied(read, index)
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
        found = self.pending.find(node, refusal.request_id)
        if found is None:
            row_count = refusal.row_count
            self._charges.settle(node, refusal.request_id, row_count, now_ns)
            return []
        read_id, read, index = found
        if index is not None:
            self.pending.part_replied(read, index)
            return self._copies_failed(read_id, read, now_ns)
        self._charges.pay(read.charge, refusal.row_count, now_ns)
        self.pending.primary_replied(read_id, read)
        if refusal.code in _ELSEWHERE_PERHAPS:
            outgoing = self._move(read_id, read, now_ns)
            if read.attempt is not None:
                read.refusal = refusal
                return outgoing
        cancelled = self.questions.cancel(self.pending.close(read_id))
        return [self._refusal_of(read, refusal, now_ns), *cancelled]

    def node_left(self, node: LinkId, *, now_ns: int) -> list[Outgoing]:
        """Ask others, or refuse, what waits for a node whose connection is over."""
        outgoing: list[Outgoing] = []
        self._policy.forget(node)
        self._charges.forget(node)
        for question_id in self.pending.of_node(node):
            found = self.pending.find(node, question_id)
            if found is None:
                continue  # it was of a read that is over by now
            read_id, read, index = found
            if index is not None:
                self.pending.part_replied(read, index)
                outgoing += self._copies_failed(read_id, read, now_ns)
                continue
            self.pending.primary_replied(read_id, read)
            outgoing += self._move(read_id, read, now_ns)
            read.node_asked_at_ns = None  # it may come back while others are asked
            if read.attempt is not None:
                continue
            self.pending.close(read_id)
            outgoing.append(self._answer_for(read, None, now_ns))
        return outgoing

    def client_left(self, client: LinkId) -> list[Outgoing]:
        """Forget what a client waits for, and have nodes do so, too (rule B2)."""
        waiting: list[tuple[LinkId, int]] = []
        for read_id in self.pending.of_client(client):
            waiting += self._abandon(read_id)
        return self.questions.cancel(waiting)

    def forbid(self, judge: Callable[[PendingRead], Outgoing | None]) -> list[Outgoing]:
        """Refuse what *judge* returns a refusal for, and have nodes forget it."""
        refusals: list[Outgoing] = []
        waiting: list[tuple[LinkId, int]] = []
        for read_id, read in list(self.pending.reads.items()):
            refusal = judge(read)
            if refusal is not None:
                refusals.append(refusal)
                waiting += self._abandon(read_id)
        return [*refusals, *self.questions.cancel(waiting)]

    def expire(self, *, now_ns: int) -> list[Outgoing]:
        """Ask others for what is late; refuse what is past its deadline (rule Q3)."""
        outgoing = self._hedge(now_ns)
        for read_id in self.pending.take_late(now_ns=now_ns):
            read = self.pending.reads[read_id]
            self._abandon(read_id)
            asked = read.asked
            node_id = read.location.node_ids[asked.ask.node_index]
            error = DeadlineExceededError(
                (now_ns - asked.asked_at_ns) / NS_PER_SECOND,
                f"node {node_id} did not answer",
            )
            outgoing.append(failed(asked.client, asked.ask.request_id, error))
        return outgoing

    # -- reads that are late -------------------------------------------------------

    def _move(self, read_id: int, read: PendingRead, now_ns: int) -> list[Outgoing]:
        """Ask others for what the primary does not answer, unless they are asked."""
        if read.attempt is not None:
            return []
        outgoing = self.questions.ask_other(read_id, read, now_ns)
        self.moved_count += bool(outgoing)
        return outgoing

    def _hedge(self, now_ns: int) -> list[Outgoing]:
        """Ask others for what is not answered within the hedge delay (rule D4)."""
        outgoing: list[Outgoing] = []
        late = self._watch.take_late(delay_ns=self._policy.delay_ns, now_ns=now_ns)
        for read_id, read, is_first in late:
            if read.node is None or read.attempt is None:  # not both are asked
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
                self._watch.begin(read_id, read, now_ns, is_first=False)
                return []
            case Verdict.HEDGE:
                hedges = self.questions.ask_other(read_id, read, now_ns)
                if hedges:
                    policy.spend(len(hedges))
                    self.hedged_count += not read.is_hedged
                    read.is_hedged = True
                return hedges
            case Verdict.MOVE:
                if is_known:
                    return self.questions.ask_other(read_id, read, now_ns)
                return self._move_all(node, now_ns)
            case _:
                assert_never(verdict)

    def _move_all(self, node: LinkId, now_ns: int) -> list[Outgoing]:
        """Ask others for all that an unresponsive node was asked."""
        outgoing: list[Outgoing] = []
        for question_id in self.pending.of_node(node):
            found = self.pending.find(node, question_id)
            assert found is not None
            read_id, read, index = found
            if index is None:
                outgoing += self._move(read_id, read, now_ns)
            elif read.node is None:
                outgoing += self.questions.ask_other(read_id, read, now_ns)
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
            location = self.questions.present(read)
            here = () if location is None else location.copy_links
            if newest.reading.batch_id is None or not all(
                attempt.parts[one].node in here for one in late
            ):
                return self._copies_failed(read_id, read, now_ns)
            return [
                self.questions.ask_part(read_id, read, one, newest.reading, now_ns)
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
        outgoing = self.questions.cancel(self.pending.drop_copies(read))
        location = self.questions.present(read)
        if location is not None:
            if read.node is not None:
                if read.is_watched:
                    self._watch.begin(read_id, read, now_ns, is_first=False)
                return outgoing
            node = location.links[read.asked.ask.node_index]
            if read.node_asked_at_ns is None and node is not None:
                return [
                    *outgoing,
                    self.questions.ask_primary(read_id, read, node, now_ns),
                ]
        outgoing += self.questions.cancel(self.pending.close(read_id))
        return [*outgoing, self._refusal_of(read, read.refusal, now_ns)]

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
        self._charges.pay(read.charge, answer.row_count, now_ns)
        waiting = self.pending.close(read_id)
        if read.cache_key is not None:
            location = self.questions.location_of(read)
            if location is not None:
                keep_answer(
                    self._cache,
                    read.cache_key,
                    location,
                    answer,
                    values,
                    waited_ns=waited_ns,
                    now_ns=now_ns,
                )
        asked = read.asked
        self.latencies.add(KINDS[type(asked.ask.operation)], now_ns - asked.asked_at_ns)
        told = Told(
            request_id=asked.ask.request_id,
            reading=answer.reading,
            next_start=answer.next_start,
        )
        outgoing = [Outgoing(asked.client, told, values)]
        if waiting:
            outgoing += self.questions.cancel(waiting)
        return outgoing

    def _refusal_of(
        self, read: PendingRead, refusal: Refusal | None, now_ns: int
    ) -> Outgoing:
        """Return what comes of a read; *refusal* is its primary's, or None."""
        if refusal is None or (refusal.code == _UNAVAILABLE and names_nothing(refusal)):
            # Not what is asked is unavailable, but the node: it does not serve now.
            return self._answer_for(read, refusal, now_ns)
        return passed_on(read.asked, refusal)

    def _answer_for(
        self, read: PendingRead, refusal: Refusal | None, now_ns: int
    ) -> Outgoing:
        """Return what comes of a question that its node does not answer."""
        client, ask = read.asked.client, read.asked.ask
        location = self.questions.present(read)
        is_sole = location is not None and location.sole_key_groups[ask.node_index]
        is_back = (
            refusal is None
            and location is not None
            and (location.links[ask.node_index] is not None)
        )
        if (
            location is None
            or not is_sole
            or is_back
            or not self.takes_for_away(location.node_ids[ask.node_index], now_ns)
        ):
            # A client that asks again waits for nodes that are late, or asks this one.
            return refused(client, ask.request_id, STALE_ROUTE)
        if refusal is not None:
            return passed_on(read.asked, refusal)
        return unavailable(client, ask.request_id, location, ask.node_index)

    def _turn_away(self, read_ids: Sequence[int]) -> list[Outgoing]:
        """Refuse reads whose places are others' now, and have nodes forget them."""
        error = no_room_error(len(self.pending) - len(read_ids))
        refusals: list[Outgoing] = []
        waiting: list[tuple[LinkId, int]] = []
        for read_id in read_ids:
            asked = self.pending.reads[read_id].asked
            waiting += self._abandon(read_id)
            refusals.append(failed(asked.client, asked.ask.request_id, error))
        return [*refusals, *self.questions.cancel(waiting)]

    def _abandon(self, read_id: int) -> list[tuple[LinkId, int]]:
        """Forget a read, but for who pays for it: its node will say how much."""
        read = self.pending.reads[read_id]
        waiting = self.pending.close(read_id)
        if waiting:
            # One of them: that several were asked is the proxy's own decision.
            node, question_id = waiting[-1]
            self._charges.owe(node, question_id, read.charge)
        return waiting
