"""
`ReadRouter`: how a proxy routes what readers ask, without I/O.

Theory of operation.  A question passes, in this order: the route table (does the state
exist, and is the client's route the present one?), the access list, the rate limit, the
cache; then it goes to its node, and waits here for the answer.  Keys and values are
bytes that are not looked into, but for the count at their beginning.

What is no answer, comes at once: nothing was ever committed, the node is away, it went
away meanwhile, the deadline is over, too much is outstanding.  Three questions are
parked instead, and looked at again when what they wait for has changed, and only then:
one that waits for the first batch of all (``min_batch_id``); while a new leader is
*settling* (rule S2), one whose node is not here, since that is only late, or changes
its connection; and one whose node is away while others have in-sync copies of all that
it answers for (rule S4), and cannot be asked for them yet: one of them is the primary
in a moment, and then the route is stale.

Which nodes are asked, and what becomes of it, is the matter of `NodeReads`.

A caller that may not read a state gets the same refusal as one that asks for a state
that does not exist: its route is stale.  It then asks for the description, and is told
there that access is denied, whatever exists (rule C1).  A caller that may only write a
state knows that it is there, and is told so here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import field, frozen

from nameservice import DidNotHappenError, RemoteProtocolError
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from queryablestate.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    RateLimitedError,
)
from queryablestate.hedging import HEDGE_LIMITS
from queryablestate.proxy.access import AccessList, Caller, Right
from queryablestate.proxy.cached_answers import cache_key_of, find_answer
from queryablestate.proxy.node_reads import NodeReads
from queryablestate.proxy.read_answers import (
    Outgoing,
    element_count,
    failed,
    no_room_error,
    nothing_committed,
    refused,
    unavailable,
)
from queryablestate.proxy.read_charges import charge_of
from queryablestate.proxy.read_parking import (
    ParkedQuestion,
    ParkedQuestions,
    owner_of,
)
from queryablestate.wire.questions import (
    KINDS,
    CountKeys,
    ScanRows,
    WalkRows,
    size_bytes_of,
)
from queryablestate.wire.refusals import STALE_ROUTE


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queryablestate.control.events import LinkId
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.hedging import HedgeLimits
    from queryablestate.proxy.cache import CacheKey, ResultCache
    from queryablestate.proxy.pending_reads import PendingRead
    from queryablestate.proxy.rate_limit import RateLimiter
    from queryablestate.proxy.read_charges import Charge
    from queryablestate.wire.questions import Ask


__all__ = ["ReadLimits", "ReadRouter"]

_PARKED_COUNT_MAX: Final = 10_000
_PARKED_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
_CLIENT_PENDING_COUNT_MIN: Final = 1_000


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
        hedging: When other copies than the primary are asked (rule D4).
        asks_copies: Whether they are at all.

    Attributes:
        access: Who may read what.
        nodes: What nodes are asked.
    """

    def __init__(
        self,
        *,
        access: AccessList,
        limiter: RateLimiter,
        cache: ResultCache,
        limits: ReadLimits,
        hedging: HedgeLimits = HEDGE_LIMITS,
        asks_copies: bool = True,
    ) -> None:
        self.access = access
        self._limits = limits
        self.nodes = NodeReads(
            limiter=limiter,
            cache=cache,
            hedging=hedging,
            asks_copies=asks_copies,
            pending_count_max=limits.pending_count_max,
        )
        self._limiter = limiter
        self._cache = cache
        self._locations: Mapping[int, KvStateLocation] = {}
        self._parked = ParkedQuestions(
            count_max=_PARKED_COUNT_MAX, size_bytes_max=_PARKED_SIZE_BYTES_MAX
        )

    # -- leadership ----------------------------------------------------------------

    def lead(
        self,
        locations: Mapping[int, KvStateLocation],
        *,
        leader_epoch: int,
        takes_for_away: Callable[[str, int], bool],
    ) -> None:
        """
        Route by *locations* from now on.

        Args:
            locations: The route table, a view that stays up to date.
            leader_epoch: The epoch of this leadership.
            takes_for_away: Returns whether that node, which is not here, counts as away
                at that time: otherwise it may be coming, and is waited for.
        """
        self._locations = locations
        self.nodes.lead(
            locations, leader_epoch=leader_epoch, takes_for_away=takes_for_away
        )

    def stop_leading(self, code: str) -> list[Outgoing]:
        """Answer nothing more: refuse all that waits with *code*."""
        waiting = self.nodes.stop_leading() + self._parked.take_all()
        self._locations = {}
        self._cache.clear()
        return [refused(one.client, one.ask.request_id, code) for one in waiting]

    # -- limits --------------------------------------------------------------------

    @property
    def limits(self) -> ReadLimits:
        """Return its own limits."""
        return self._limits

    @limits.setter
    def limits(self, limits: ReadLimits) -> None:
        self._limits = limits
        self.nodes.limit(limits.pending_count_max)

    # -- rights --------------------------------------------------------------------

    def replace_access(self, access: AccessList) -> list[Outgoing]:
        """
        Go by *access* from now on, and refuse what nodes were asked against it.

        A question may wait for a batch that is yet to be written: who has lost the
        right by then is not told of it.  What is parked is judged when it goes on, or
        by `look_at_all`.
        """
        self.access = access

        def judge(read: PendingRead) -> Outgoing | None:
            asked = read.asked
            return self._forbidden(asked.client, asked.caller, asked.ask, read.location)

        return self.nodes.forbid(judge)

    # -- questions -----------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """Return how many questions wait for their answers."""
        return len(self.nodes)

    @property
    def parked_count(self) -> int:
        """Return how many questions wait for their nodes."""
        return len(self._parked)

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` must be called again, or None if it need not be."""
        first = self.nodes.next_deadline_ns()
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
    ) -> list[Outgoing]:
        """
        Route a client's question.

        Args:
            client: Who asks.
            caller: As whom.
            ask: The question.
            keys: Its second frame.
            now_ns: The time.
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
        owner = owner_of(client, caller)
        size_bytes = size_bytes_of(ask.operation, keys)
        problem = self._problem_of(client, owner, ask, keys, size_bytes)
        if problem is not None:
            return [failed(client, ask.request_id, problem)]
        charge = charge_of(caller, ask, location)
        decision = self._limiter.take(
            charge.caller, charge.state, charge.row_count, now_ns=now_ns
        )
        if not decision.is_allowed:
            error = RateLimitedError(
                decision.retry_after_ns / NS_PER_SECOND, decision.limit
            )
            return [failed(client, ask.request_id, error)]
        limits = self._limits
        deadline_ns = now_ns + (
            limits.deadline_ns_default
            if ask.deadline_ms is None
            else min(ask.deadline_ms * NS_PER_MS, limits.deadline_ns_max)
        )
        asked = ParkedQuestion(
            client, caller, ask, keys, now_ns, deadline_ns, owner, size_bytes
        )
        if location.problem is not None:
            return [unavailable(client, ask.request_id, location, ask.node_index)]
        if location.batch_id is None:  # no node knows of it yet
            if ask.min_batch_id is not None:
                return self._park(asked, location, now_ns)
            return [nothing_committed(client, ask.request_id, location, ask.node_index)]
        cache_key = cache_key_of(self._cache, location, ask, keys)
        if cache_key is not None:
            told = find_answer(self._cache, asked, location, cache_key, now_ns)
            if told is not None:
                self.nodes.latencies.add(KINDS[type(ask.operation)], 0)
                return [told]
        outgoing = self._route(asked, location, cache_key, charge, now_ns)
        return outgoing or self._park(asked, location, now_ns)

    def look_again(self, *, now_ns: int) -> list[Outgoing]:
        """Look again at what is parked, where a node has come, or will not."""
        outgoing: list[Outgoing] = []
        for parked in self._parked.changed(
            self._locations, partial(self._takes_for_away, now_ns=now_ns)
        ):
            told = self._look_at(parked, now_ns)
            if told:
                self._parked.free(parked)
                outgoing += told
        return outgoing

    def look_at_all(self, *, now_ns: int) -> list[Outgoing]:
        """Look again at everything that is parked: it is judged in another way."""
        self._parked.doubt()
        return self.look_again(now_ns=now_ns)

    # -- ends -------------------------------------------------------------------

    def client_left(self, client: LinkId) -> list[Outgoing]:
        """Forget what a client waits for, and have nodes do so, too (rule B2)."""
        self._parked.forget(client)
        return self.nodes.client_left(client)

    def expire(self, *, now_ns: int) -> list[Outgoing]:
        """Ask others for what is late; refuse what is past its deadline (rule Q3)."""
        outgoing = self.nodes.expire(now_ns=now_ns)
        for parked in self._parked.take_late(now_ns=now_ns):
            waited_ns = now_ns - parked.asked_at_ns
            error = DeadlineExceededError(
                waited_ns / NS_PER_SECOND,
                "its node, or the batch it waits for, did not come",
            )
            outgoing.append(failed(parked.client, parked.ask.request_id, error))
        return outgoing

    # -- parts ---------------------------------------------------------------------

    def _look_at(self, parked: ParkedQuestion, now_ns: int) -> list[Outgoing]:
        """Return what becomes of a question that is parked; nothing if it waits on."""
        client, ask = parked.client, parked.ask
        location = self._locations.get(ask.state_number)
        if location is None or location.assignment_version != ask.assignment_version:
            return [refused(client, ask.request_id, STALE_ROUTE)]
        forbidden = self._forbidden(client, parked.caller, ask, location)
        if forbidden is not None:
            return [forbidden]
        if location.problem is not None:
            return [unavailable(client, ask.request_id, location, ask.node_index)]
        if location.batch_id is None:
            return []  # it waits for a batch, until its deadline
        cache_key = cache_key_of(self._cache, location, ask, parked.keys)
        charge = charge_of(parked.caller, ask, location)
        return self._route(parked, location, cache_key, charge, now_ns)

    def _takes_for_away(self, node_id: str, *, now_ns: int) -> bool:
        return self.nodes.takes_for_away(node_id, now_ns)

    def _route(
        self,
        asked: ParkedQuestion,
        location: KvStateLocation,
        cache_key: CacheKey | None,
        charge: Charge,
        now_ns: int,
    ) -> list[Outgoing]:
        """Have a question asked, or refuse it; nothing if it waits for its node."""
        outgoing = self.nodes.ask(asked, location, cache_key, charge, now_ns)
        if outgoing:
            return outgoing
        ask = asked.ask
        is_sole = bool(location.sole_key_groups[ask.node_index])
        node_id = location.node_ids[ask.node_index]
        if is_sole and self.nodes.takes_for_away(node_id, now_ns):
            client = asked.client
            return [unavailable(client, ask.request_id, location, ask.node_index)]
        return []

    def _park(
        self, asked: ParkedQuestion, location: KvStateLocation, now_ns: int
    ) -> list[Outgoing]:
        """
        Have a question wait; refuse what there is no room for (rule B2).

        Args:
            asked: The question.
            location: The present route, by which it waits.
            now_ns: The time.
        """
        outgoing = []
        node_id = location.node_ids[asked.ask.node_index]
        is_away = location.batch_id is not None and self.nodes.takes_for_away(
            node_id, now_ns
        )
        for turned_away in self._parked.park(asked, location, is_away=is_away):
            client, ask = turned_away.client, turned_away.ask
            present = self._locations.get(ask.state_number)
            if present is None or present.assignment_version != ask.assignment_version:
                outgoing.append(refused(client, ask.request_id, STALE_ROUTE))
                continue
            node_id = present.node_ids[ask.node_index]
            is_away = self.nodes.takes_for_away(node_id, now_ns)
            if present.batch_id is not None and not is_away:
                error = DidNotHappenError(
                    "too many questions wait for nodes already: ask again in a moment"
                )
                outgoing.append(failed(client, ask.request_id, error))
                continue
            refuse = nothing_committed if present.batch_id is None else unavailable
            outgoing.append(refuse(client, ask.request_id, present, ask.node_index))
        return outgoing

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
        self,
        client: LinkId,
        owner: str | LinkId,
        ask: Ask,
        keys: bytes,
        size_bytes: int,
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
        limits = self._limits
        if ask.key_count > limits.keys_per_request_max:
            return DidNotHappenError(
                f"{ask.key_count} keys are too many for one question: at most "
                f"{limits.keys_per_request_max}"
            )
        if self.nodes.pending.has_part(owner, size_bytes):
            return no_room_error(len(self.nodes))
        own_count = self.nodes.pending.count_of_client(client)
        if own_count >= limits.client_pending_count_max:
            return DidNotHappenError(
                f"{own_count} questions of this connection wait for answers already: "
                "ask again in a moment"
            )
        return None
