"""
`ReadRouter`: how a proxy routes what readers ask, without I/O.

Theory of operation.  A question passes, in this order: the route table (does the state
exist, and is the client's route the present one?), the access list, the rate limit, the
cache; then it goes to its node, and waits here for the answer.  Keys and values are
bytes that nobody looks into, but for the count at their beginning.

What is no answer, comes at once: nothing was ever committed, the node is away, it went
away meanwhile, the deadline is over, too much is outstanding.  Three questions are
parked instead, and looked at again whenever something has changed: one that waits for
the first batch of all (``min_batch_id``); while a new leader is *settling* (rule S2),
one whose node is not here, since that is only late; and one whose node is away while
others have in-sync copies of all that it answers for (rule S4), since one of them will
be asked in its place in a moment: then the route is stale.

A question that a node was asked before it went is not kept here.  If others can answer
it, its route is called stale: the client asks again, and is parked.

A caller that may not read a state gets the same refusal as one that asks for a state
that does not exist: its route is stale.  It then asks for the description, and is told
there that access is denied, whatever exists (rule C1).  A caller that may only write a
state knows that it is there, and is told so here.
"""

from __future__ import annotations

import heapq
import sys
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import define, field, frozen

from nameservice import DidNotHappenError, RemoteProtocolError
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from queryablestate.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    RateLimitedError,
    StateUnavailableError,
)
from queryablestate.proxy.access import AccessList, Caller, Right
from queryablestate.proxy.read_answers import (
    Outgoing,
    element_count,
    failed,
    nothing_committed,
    refused,
    unavailable,
)
from queryablestate.proxy.read_parking import ParkedQuestion, ParkedQuestions
from queryablestate.wire.questions import (
    Answer,
    Ask,
    CancelQuestions,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Operation,
    Question,
    Reading,
    Refusal,
    ScanRows,
    Told,
    WalkRows,
)
from queryablestate.wire.refusals import STALE_ROUTE, error_of


if TYPE_CHECKING:
    from collections.abc import Mapping

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.cache import CacheKey, ResultCache
    from queryablestate.proxy.rate_limit import RateLimiter


__all__ = ["ReadLimits", "ReadRouter"]

_PARKED_COUNT_MAX: Final = 10_000
_PARKED_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
_CACHED_KEYS_SIZE_BYTES_MAX: Final = 64 * 1024
"""What is asked with more than that is seldom asked again, and costs memory to know."""
_CLIENT_PENDING_COUNT_MIN: Final = 1_000
# A compaction is due when this many, and most, of the deadlines are of the past.
_DEADLINES_STALE_MIN: Final = 1_000
_UNAVAILABLE: Final = "state-unavailable"
_UNPAID_COUNT_MAX: Final = 100_000
"""Questions whose askers have gone: each is settled when its node answers, or goes."""


@final
@frozen(kw_only=True)
class ReadLimits:
    """
    What a router keeps to; durations in nanoseconds.

    Attributes:
        deadline_ns_default: For questions that name no deadline.
        deadline_ns_max: Longer deadlines are shortened to this.
        pending_count_max: Questions that may be outstanding.
        keys_per_request_max: Keys of one question.
        client_pending_count_max: Of one connection: a tenth, unless that is very few.
            A client that waits for what does not come must not keep others from asking.
    """

    deadline_ns_default: int
    deadline_ns_max: int
    pending_count_max: int
    keys_per_request_max: int
    client_pending_count_max: int = field(init=False)

    @client_pending_count_max.default
    def _a_tenth(self) -> int:
        return max(self.pending_count_max // 10, _CLIENT_PENDING_COUNT_MIN)


_CacheableOperation: TypeAlias = GetValues | GetItems | GetEntries | HasRows


@final
@define
class _Pending:
    """A question that a node was asked."""

    client: LinkId
    request_id: int
    node: LinkId
    node_index: int
    location: KvStateLocation
    asked_at_ns: int
    deadline_ns: int
    cache_key: CacheKey | None
    charge: _Charge


@final
@frozen
class _Charge:
    """Who pays for the rows that a node reads, and how many are paid for."""

    caller: str
    state: str
    row_count: int


@final
class ReadRouter:
    """
    Routes questions to nodes and answers to clients; see the module docstring.

    Not thread-safe: one loop drives it.

    Args:
        access: Who may read what.
        limiter: How often.
        cache: What need not be asked again.
        limits: Of its own.
    """

    def __init__(
        self,
        *,
        access: AccessList,
        limiter: RateLimiter,
        cache: ResultCache,
        limits: ReadLimits,
    ) -> None:
        self.access = access
        self.limits = limits
        self._limiter = limiter
        self._cache = cache
        self._locations: Mapping[int, KvStateLocation] = {}
        self._leader_epoch = 0
        self._question_id = 0
        self._pending: dict[int, _Pending] = {}
        self._of_node: dict[LinkId, set[int]] = {}
        self._of_client: dict[LinkId, set[int]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._unpaid: dict[int, tuple[LinkId, _Charge]] = {}
        self._parked = ParkedQuestions(
            count_max=_PARKED_COUNT_MAX, size_bytes_max=_PARKED_SIZE_BYTES_MAX
        )

    # -- leadership ----------------------------------------------------------------

    def lead(
        self, locations: Mapping[int, KvStateLocation], *, leader_epoch: int
    ) -> None:
        """Route by *locations*, a view that stays up to date, from now on."""
        self._locations = locations
        self._leader_epoch = leader_epoch

    def stop_leading(self, code: str) -> list[Outgoing]:
        """Answer nothing more: refuse all that waits with *code*."""
        outgoing = [
            refused(pending.client, pending.request_id, code)
            for pending in self._pending.values()
        ]
        outgoing += [
            refused(parked.client, parked.ask.request_id, code)
            for parked in self._parked.take_all()
        ]
        self._locations = {}
        self._pending.clear()
        self._of_node.clear()
        self._of_client.clear()
        self._deadlines.clear()
        self._unpaid.clear()
        self._cache.clear()
        return outgoing

    # -- questions -----------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """Return how many questions wait for their answers."""
        return len(self._pending)

    @property
    def parked_count(self) -> int:
        """Return how many questions wait for their nodes."""
        return len(self._parked)

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` must be called again, or None if it need not be."""
        first = self._deadlines[0][0] if self._deadlines else None
        parked = self._parked.next_deadline_ns()
        if parked is None:
            return first
        return parked if first is None else min(first, parked)

    def ask(
        self,
        client: LinkId,
        caller: Caller,
        ask: Ask,
        keys: bytes,
        *,
        now_ns: int,
        is_settled: bool,
    ) -> list[Outgoing]:
        """
        Route a client's question.

        Args:
            client: Who asks.
            caller: As whom.
            ask: The question.
            keys: Its second frame.
            now_ns: The time.
            is_settled: Whether a node that is not here counts as away.
        """
        location = self._locations.get(ask.state_number)
        if (
            location is None
            or location.assignment_version != ask.assignment_version
            or not 0 <= ask.node_index < len(location.links)
        ):
            return [refused(client, ask.request_id, STALE_ROUTE)]
        forbidden = self._forbidden(client, caller, ask, location)
        if forbidden is not None:
            return [forbidden]
        problem = self._problem_of(client, ask, keys)
        if problem is not None:
            return [failed(client, ask.request_id, problem)]
        charge = _charge_of(caller, ask, location)
        decision = self._limiter.take(
            charge.caller, charge.state, charge.row_count, now_ns=now_ns
        )
        if not decision.is_allowed:
            error = RateLimitedError(
                decision.retry_after_ns / NS_PER_SECOND, decision.limit
            )
            return [failed(client, ask.request_id, error)]
        limits = self.limits
        deadline_ns = now_ns + (
            limits.deadline_ns_default
            if ask.deadline_ms is None
            else min(ask.deadline_ms * NS_PER_MS, limits.deadline_ns_max)
        )
        asked = ParkedQuestion(client, caller, ask, keys, now_ns, deadline_ns)
        if location.problem is not None:
            return [unavailable(client, ask.request_id, location, ask.node_index)]
        if location.batch_id is None:  # no node knows of it yet
            if ask.min_batch_id is not None:
                return self._park(asked)
            return [nothing_committed(client, ask.request_id, location, ask.node_index)]
        cache_key = self._cache_key(location, ask, keys)
        if cache_key is not None:
            told = self._from_cache(asked, location, cache_key, now_ns)
            if told is not None:
                return [told]
        if location.links[ask.node_index] is None:
            is_waited_for = (
                not is_settled or not location.sole_key_groups[ask.node_index]
            )
            if not is_waited_for:
                return [unavailable(client, ask.request_id, location, ask.node_index)]
            return self._park(asked)
        return [self._pass_on(asked, location, cache_key, now_ns)]

    def look_again(self, *, now_ns: int, is_settled: bool) -> list[Outgoing]:
        """Look again at what is parked: a node has come, or will not."""
        outgoing: list[Outgoing] = []
        for parked in self._parked.take_all():
            ask = parked.ask
            location = self._locations.get(ask.state_number)
            if (
                location is None
                or location.assignment_version != ask.assignment_version
            ):
                outgoing.append(refused(parked.client, ask.request_id, STALE_ROUTE))
                continue
            forbidden = self._forbidden(parked.client, parked.caller, ask, location)
            if forbidden is not None:
                outgoing.append(forbidden)
            elif location.problem is not None:
                outgoing.append(
                    unavailable(parked.client, ask.request_id, location, ask.node_index)
                )
            elif location.batch_id is None:
                # It waits for a batch, until its deadline.
                outgoing += self._park(parked)
            elif location.links[ask.node_index] is not None:
                cache_key = self._cache_key(location, ask, parked.keys)
                outgoing.append(self._pass_on(parked, location, cache_key, now_ns))
            elif is_settled and location.sole_key_groups[ask.node_index]:
                outgoing.append(
                    unavailable(parked.client, ask.request_id, location, ask.node_index)
                )
            else:
                outgoing += self._park(parked)
        return outgoing

    # -- answers -------------------------------------------------------------------

    def answered(
        self, node: LinkId, answer: Answer, values: bytes | memoryview, *, now_ns: int
    ) -> list[Outgoing]:
        """Pass a node's answer on to whoever asked; nothing if nobody waits."""
        self._settle(node, answer.question_id, answer.row_count, now_ns)
        pending = self._take(node, answer.question_id)
        if pending is None:
            return []
        reading = answer.reading
        if pending.cache_key is not None and reading.batch_id is not None:
            location = self._locations.get(pending.location.state_number)
            if location is not None:
                self._cache.put(
                    pending.cache_key,
                    generation=reading.generation,
                    batch_id=reading.batch_id,
                    age_ns=reading.age_ms * NS_PER_MS,
                    values=bytes(values),
                    has_missing=answer.has_missing,
                    ttl_ns=self._cache.ttl_ns(location.job_id, location.state_name),
                    valid_ns=_valid_ns(answer, now_ns - pending.asked_at_ns),
                    batch_id_known=_batch_id_known(location, None),
                    now_ns=now_ns,
                )
        told = Told(
            request_id=pending.request_id,
            reading=reading,
            next_start=answer.next_start,
        )
        return [Outgoing(pending.client, told, values)]

    def refused(self, node: LinkId, refusal: Refusal, *, now_ns: int) -> list[Outgoing]:
        """Pass a node's refusal on to whoever asked; nothing if nobody waits."""
        self._settle(node, refusal.request_id, refusal.row_count, now_ns)
        pending = self._take(node, refusal.request_id)
        if pending is None:
            return []
        if refusal.code == _UNAVAILABLE and _names_nothing(refusal):
            # Not what is asked is unavailable, but the node: it does not serve now.
            return [self._answer_for(pending, refusal)]
        return [_passed_on(pending, refusal)]

    def node_left(self, node: LinkId, *, is_settled: bool = True) -> list[Outgoing]:
        """
        Refuse what waits for a node that is gone.

        Args:
            node: Its connection.
            is_settled: Whether other nodes that are not here count as away.
        """
        outgoing = []
        for question_id in [one for one, (of, _) in self._unpaid.items() if of == node]:
            del self._unpaid[question_id]
        for question_id in sorted(self._of_node.get(node, ())):
            pending = self._take(node, question_id)
            assert pending is not None
            if is_settled:
                outgoing.append(self._answer_for(pending, None))
            else:  # whoever asks again waits for those that are late
                client, request_id = pending.client, pending.request_id
                outgoing.append(refused(client, request_id, STALE_ROUTE))
        return outgoing

    def client_left(self, client: LinkId) -> list[Outgoing]:
        """Forget what a client waits for, and have nodes do so, too (rule B2)."""
        cancelled: dict[LinkId, list[int]] = {}
        for question_id in sorted(self._of_client.get(client, ())):
            node = self._pending[question_id].node
            self._abandon(node, question_id)
            cancelled.setdefault(node, []).append(question_id)
        self._parked.forget(client)
        return [
            Outgoing(
                node,
                CancelQuestions(
                    leader_epoch=self._leader_epoch, question_ids=tuple(question_ids)
                ),
            )
            for node, question_ids in cancelled.items()
        ]

    def expire(self, *, now_ns: int) -> list[Outgoing]:
        """Refuse what is past its deadline (rule Q3)."""
        outgoing = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, question_id = heapq.heappop(self._deadlines)
            pending = self._pending.get(question_id)
            if pending is None:
                continue
            self._abandon(pending.node, question_id)
            waited_ns = now_ns - pending.asked_at_ns
            node_id = pending.location.node_ids[pending.node_index]
            error = DeadlineExceededError(
                waited_ns / NS_PER_SECOND, f"node {node_id} did not answer"
            )
            outgoing.append(failed(pending.client, pending.request_id, error))
        for parked in self._parked.take_late(now_ns=now_ns):
            waited_ns = now_ns - parked.asked_at_ns
            error = DeadlineExceededError(
                waited_ns / NS_PER_SECOND,
                "its node, or the batch it waits for, did not come",
            )
            outgoing.append(failed(parked.client, parked.ask.request_id, error))
        return outgoing

    # -- parts ---------------------------------------------------------------------

    def _park(self, asked: ParkedQuestion) -> list[Outgoing]:
        """Have a question wait; refuse what there is no room for (rule B2)."""
        outgoing = []
        for turned_away in self._parked.park(asked):
            client, ask = turned_away.client, turned_away.ask
            location = self._locations.get(ask.state_number)
            if (
                location is None
                or location.assignment_version != ask.assignment_version
            ):
                outgoing.append(refused(client, ask.request_id, STALE_ROUTE))
                continue
            refuse = nothing_committed if location.batch_id is None else unavailable
            outgoing.append(refuse(client, ask.request_id, location, ask.node_index))
        return outgoing

    def _answer_for(self, pending: _Pending, refusal: Refusal | None) -> Outgoing:
        """Return what comes of a question that its node does not answer."""
        client, request_id = pending.client, pending.request_id
        asked = pending.location
        location = self._locations.get(asked.state_number)
        if (
            location is None
            or location.assignment_version != asked.assignment_version
            or not location.sole_key_groups[pending.node_index]
        ):
            return refused(client, request_id, STALE_ROUTE)
        if refusal is not None:
            return _passed_on(pending, refusal)
        return unavailable(client, request_id, location, pending.node_index)

    def _forbidden(
        self, client: LinkId, caller: Caller, ask: Ask, location: KvStateLocation
    ) -> Outgoing | None:
        """Return how *caller* is refused, or None if it may read the state."""
        may = self.access.may
        if may(caller, Right.READ, location.job_id, location.state_name):
            return None
        if may(caller, Right.WRITE, location.job_id, location.state_name):
            # It may have the state described, and would come again by the same route.
            error = AccessDeniedError(f"read {location.job_id}/{location.state_name}")
            return failed(client, ask.request_id, error)
        return refused(client, ask.request_id, STALE_ROUTE)

    def _problem_of(
        self, client: LinkId, ask: Ask, keys: bytes
    ) -> RemoteProtocolError | DidNotHappenError | None:
        """Return why a question is not passed on, or None."""
        if isinstance(ask.operation, ScanRows | WalkRows):
            counted, is_bare = ask.operation.limit, True
        elif isinstance(ask.operation, CountKeys):
            counted, is_bare = 1, True
        else:
            counted, is_bare = element_count(keys), False
        if counted != ask.key_count or (is_bare and keys):
            detail = f"the question has {counted} keys, and says {ask.key_count}"
            return RemoteProtocolError("malformed", detail)
        if ask.key_count > self.limits.keys_per_request_max:
            return DidNotHappenError(
                f"{ask.key_count} keys are too many for one question: at most "
                f"{self.limits.keys_per_request_max}"
            )
        if len(self._pending) >= self.limits.pending_count_max:
            return DidNotHappenError(
                f"{len(self._pending)} questions wait for answers already: "
                "ask again in a moment"
            )
        own = self._of_client.get(client, ())
        if len(own) >= self.limits.client_pending_count_max:
            return DidNotHappenError(
                f"{len(own)} questions of this connection wait for answers already: "
                "ask again in a moment"
            )
        return None

    def _cache_key(
        self, location: KvStateLocation, ask: Ask, keys: bytes
    ) -> CacheKey | None:
        """Return what the answer is kept under, or None if it is not."""
        operation: Operation = ask.operation
        if (
            not isinstance(operation, _CacheableOperation)
            or len(keys) > _CACHED_KEYS_SIZE_BYTES_MAX
            or not self._cache.ttl_ns(location.job_id, location.state_name)
        ):
            return None
        node_id = location.node_ids[ask.node_index]
        return (location.state_number, location.generation, node_id, operation, keys)

    def _from_cache(
        self,
        asked: ParkedQuestion,
        location: KvStateLocation,
        cache_key: CacheKey,
        now_ns: int,
    ) -> Outgoing | None:
        ask = asked.ask
        found = self._cache.get(
            cache_key,
            batch_id_known=_batch_id_known(location, ask),
            now_ns=now_ns,
        )
        if found is None:
            return None
        reading = Reading(
            generation=found.generation,
            batch_id=found.batch_id,
            age_ms=found.age_ns(now_ns=now_ns) // NS_PER_MS,
            is_cached=True,
        )
        told = Told(request_id=ask.request_id, reading=reading)
        return Outgoing(asked.client, told, found.values)

    def _pass_on(
        self,
        asked: ParkedQuestion,
        location: KvStateLocation,
        cache_key: CacheKey | None,
        now_ns: int,
    ) -> Outgoing:
        """Ask the node."""
        ask, deadline_ns = asked.ask, asked.deadline_ns
        node = location.links[ask.node_index]
        assert node is not None
        self._question_id += 1
        question_id = self._question_id
        self._pending[question_id] = _Pending(
            asked.client,
            ask.request_id,
            node,
            ask.node_index,
            location,
            now_ns,
            deadline_ns,
            cache_key,
            _charge_of(asked.caller, ask, location),
        )
        questions = self._of_node.get(node)
        if questions is None:
            questions = self._of_node[node] = set()
        questions.add(question_id)
        own = self._of_client.get(asked.client)
        if own is None:
            own = self._of_client[asked.client] = set()
        own.add(question_id)
        heapq.heappush(self._deadlines, (deadline_ns, question_id))
        question = Question(
            leader_epoch=self._leader_epoch,
            question_id=question_id,
            state_number=ask.state_number,
            assignment_version=ask.assignment_version,
            operation=ask.operation,
            deadline_ms=max(1, (deadline_ns - now_ns) // NS_PER_MS),
            asker=_asker_of(asked),
            min_batch_id=ask.min_batch_id,
            min_generation=_generation_asked(location, ask),
        )
        return Outgoing(node, question, asked.keys)

    def _settle(
        self, node: LinkId, question_id: int, row_count: int, now_ns: int
    ) -> None:
        """Charge the rows that a node has read beyond those that are paid for."""
        pending = self._pending.get(question_id)
        if pending is not None:
            asked, charge = pending.node, pending.charge
        elif question_id in self._unpaid:
            asked, charge = self._unpaid[question_id]
        else:
            return
        if asked != node:
            return
        self._unpaid.pop(question_id, None)
        count = row_count - charge.row_count
        if count > 0:
            self._limiter.charge(charge.caller, charge.state, count, now_ns=now_ns)

    def _abandon(self, node: LinkId, question_id: int) -> None:
        """Forget a question, but for who pays for it: its node will say how much."""
        pending = self._take(node, question_id)
        assert pending is not None
        self._unpaid[question_id] = (node, pending.charge)
        if len(self._unpaid) > _UNPAID_COUNT_MAX:
            del self._unpaid[next(iter(self._unpaid))]

    def _take(self, node: LinkId, question_id: int) -> _Pending | None:
        """Return and forget a question that *node* was asked, or None."""
        questions = self._of_node.get(node)
        if questions is None or question_id not in questions:
            return None
        questions.remove(question_id)
        if not questions:
            del self._of_node[node]
        pending = self._pending.pop(question_id)
        own = self._of_client[pending.client]
        own.remove(question_id)
        if not own:
            del self._of_client[pending.client]
        stale_count = len(self._deadlines) - len(self._pending)
        if stale_count > max(_DEADLINES_STALE_MIN, 2 * len(self._pending)):
            self._deadlines = [
                (pending.deadline_ns, number)
                for number, pending in self._pending.items()
            ]
            heapq.heapify(self._deadlines)
        return pending


def _valid_ns(answer: Answer, waited_ns: int) -> int | None:
    """
    Return for how long no row in *answer* expires; None for ever (rule W6).

    The node counts from the moment at which it read: that was *waited_ns* ago at most.
    """
    if answer.valid_ms is None:
        return None
    return answer.valid_ms * NS_PER_MS - waited_ns


def _charge_of(caller: Caller, ask: Ask, location: KvStateLocation) -> _Charge:
    """Return what a question pays beforehand: a page pays for what it returns."""
    is_page = isinstance(ask.operation, ScanRows | WalkRows)
    return _Charge(
        caller.name,
        f"{location.job_id}/{location.state_name}",
        min(ask.key_count, 1) if is_page else ask.key_count,
    )


def _asker_of(asked: ParkedQuestion) -> str:
    """Return whose turn a question takes: a caller's, or a nameless connection's."""
    owner = asked.owner
    return f"caller {owner}" if isinstance(owner, str) else f"connection {owner}"


def _generation_asked(location: KvStateLocation, ask: Ask) -> int | None:
    """Return whose batch *ask* waits for, or None if it waits for none (rule Q2)."""
    if ask.min_batch_id is None:
        return None
    return location.generation if ask.min_generation is None else ask.min_generation


def _batch_id_known(location: KvStateLocation, ask: Ask | None) -> int:
    """Return from which batch of the present generation on an answer is new enough."""
    known = -1 if location.batch_id is None else location.batch_id
    if ask is None or ask.min_batch_id is None:
        return known
    generation = _generation_asked(location, ask)
    assert generation is not None
    if generation != location.generation:
        return known if generation < location.generation else sys.maxsize
    return max(known, ask.min_batch_id)


def _names_nothing(refusal: Refusal) -> bool:
    """Return whether a node's `StateUnavailableError` names no key groups."""
    error = error_of(refusal)
    return isinstance(error, StateUnavailableError) and not error.key_groups


def _passed_on(pending: _Pending, refusal: Refusal) -> Outgoing:
    passed = Refusal(
        request_id=pending.request_id, code=refusal.code, data=refusal.data
    )
    return Outgoing(pending.client, passed)
