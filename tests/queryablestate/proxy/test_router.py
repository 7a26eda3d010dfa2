"""How a proxy routes what readers ask; no I/O (Q3, C1 to C3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import pytest
from attrs import evolve

from nameservice import NS_PER_SECOND
from queryablestate import RateLimitedError, StateUnavailableError
from queryablestate.control.events import LinkId
from queryablestate.control.routes import KvStateLocation
from queryablestate.proxy import read_charges
from queryablestate.proxy.access import (
    ANONYMOUS_CALLER,
    AccessList,
    Caller,
    CallerEntry,
    open_access,
    token_sha256,
)
from queryablestate.proxy.cache import CacheRule, ResultCache
from queryablestate.proxy.rate_limit import RateLimiter, RateLimitRule, RateLimitScope
from queryablestate.proxy.read_answers import Outgoing, element_count
from queryablestate.proxy.router import ReadLimits, ReadRouter
from queryablestate.wire.questions import (
    Answer,
    Ask,
    CancelQuestions,
    CountKeys,
    GetValues,
    Operation,
    Question,
    Reading,
    Refusal,
    ScanRows,
    Told,
    WalkRows,
)
from queryablestate.wire.refusals import (
    NOT_LEADER,
    STALE_ROUTE,
    error_of,
    refusal_of,
)


CLIENT: Final = LinkId(1)
OTHER: Final = LinkId(2)
NODE_A: Final = LinkId(10)
NODE_B: Final = LinkId(11)
KEY: Final = msgspec.msgpack.encode([b"key"])
KEYS: Final = msgspec.msgpack.encode([b"key", b"other"])
VALUES: Final = msgspec.msgpack.encode([b"value"])
EPOCH: Final = 7
SECOND: Final = NS_PER_SECOND


def location(
    *,
    links: tuple[LinkId | None, ...] = (NODE_A, NODE_B),
    batch_id: int | None = 3,
    version: int = 1,
    generation: int = 1,
    sole: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3)),
) -> KvStateLocation:
    """Return the route to one state on two nodes."""
    return KvStateLocation(
        job_id="job",
        state_name="state",
        state_number=5,
        generation=generation,
        batch_id=batch_id,
        assignment_version=version,
        node_ids=("a", "b"),
        links=links,
        key_groups=((0, 1), (2, 3)),
        sole_key_groups=sole,
    )


def ask(
    *,
    request_id: int = 1,
    node_index: int = 0,
    version: int = 1,
    state_number: int = 5,
    operation: Operation | None = None,
    key_count: int = 1,
    deadline_ms: int | None = 5_000,
    min_batch_id: int | None = None,
    min_generation: int | None = None,
) -> Ask:
    """Return a question about that state."""
    return Ask(
        request_id=request_id,
        session=b"s" * 16,
        state_number=state_number,
        assignment_version=version,
        node_index=node_index,
        operation=GetValues() if operation is None else operation,
        key_count=key_count,
        deadline_ms=deadline_ms,
        min_batch_id=min_batch_id,
        min_generation=min_generation,
    )


def reading(*, batch_id: int | None = 3, age_ms: int = 40) -> Reading:
    """Return as of what a node answers."""
    return Reading(generation=1, batch_id=batch_id, age_ms=age_ms)


class Reads:
    """A reads whose route table a test may change."""

    def __init__(
        self,
        *,
        access: AccessList | None = None,
        rules: tuple[RateLimitRule, ...] = (),
        cache_rules: tuple[CacheRule, ...] = (),
        pending_count_max: int = 100,
    ) -> None:
        self.locations = {5: location()}
        self.router = ReadRouter(
            access=open_access() if access is None else access,
            limiter=RateLimiter(rules),
            cache=ResultCache(cache_rules, size_bytes_max=1_000_000),
            limits=ReadLimits(
                deadline_ns_default=5 * SECOND,
                deadline_ns_max=60 * SECOND,
                pending_count_max=pending_count_max,
                keys_per_request_max=1_000,
            ),
        )
        self.is_settled = True
        self.router.lead(
            self.locations,
            leader_epoch=EPOCH,
            takes_for_away=lambda node_id, now_ns: self.is_settled,
        )

    def ask(
        self,
        question: Ask,
        keys: bytes = KEY,
        *,
        now_ns: int = 0,
        is_settled: bool = True,
        client: LinkId = CLIENT,
        caller: Caller = ANONYMOUS_CALLER,
    ) -> list[Outgoing]:
        """Ask as somebody who may do everything."""
        self.is_settled = is_settled
        return self.router.ask(client, caller, question, keys, now_ns=now_ns)

    def look_again(self, *, now_ns: int, is_settled: bool) -> list[Outgoing]:
        """Look again at what is parked."""
        self.is_settled = is_settled
        return self.router.look_again(now_ns=now_ns)


def question(
    question_id: int,
    *,
    deadline_ms: int = 5_000,
    operation: Operation | None = None,
    min_batch_id: int | None = None,
    min_generation: int | None = None,
) -> Question:
    """Return what a node is asked for `ask`."""
    return Question(
        leader_epoch=EPOCH,
        question_id=question_id,
        state_number=5,
        assignment_version=1,
        operation=GetValues() if operation is None else operation,
        deadline_ms=deadline_ms,
        min_batch_id=min_batch_id,
        min_generation=min_generation,
        asker="connection 1",
    )


class CountedCalls:
    """
    A method that is called as before, and counted.

    Attributes:
        count: How often.
    """

    def __init__(self, called: Callable[..., object]) -> None:
        self._called = called
        self.count = 0

    def method(self) -> Callable[..., object]:
        """Return what takes its place in the class."""

        def counted(*arguments: object) -> object:
            self.count += 1
            return self._called(*arguments)

        return counted


def refusal(outgoing: Sequence[Outgoing]) -> Refusal:
    """Return the only message, which must be a refusal to the client."""
    (only,) = outgoing
    assert only.link == CLIENT
    assert isinstance(only.message, Refusal)
    return only.message


class TestReads:
    """What goes where."""

    def test_a_question_goes_to_its_node_and_the_answer_back(self) -> None:
        """Keys and values pass as they are, under ids of the proxy's own."""
        reads = Reads()
        assert reads.ask(ask(request_id=77, node_index=1)) == [
            Outgoing(NODE_B, question(1), KEY)
        ]
        answer = Answer(question_id=1, reading=reading(), has_missing=False)
        assert reads.router.nodes.answered(NODE_B, answer, VALUES, now_ns=5) == [
            Outgoing(CLIENT, Told(request_id=77, reading=reading()), VALUES)
        ]
        assert reads.router.pending_count == 0

    def test_an_answer_counts_once_and_from_the_node_that_was_asked(self) -> None:
        """A duplicate, and the answer of a node that was not asked, go nowhere."""
        reads = Reads()
        reads.ask(ask())
        answer = Answer(question_id=1, reading=reading(), has_missing=False)
        assert reads.router.nodes.answered(NODE_B, answer, VALUES, now_ns=1) == []
        assert len(reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=1)) == 1
        assert reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=1) == []

    def test_a_refusal_of_the_node_is_passed_on(self) -> None:
        """The client hears the node's own code and data."""
        reads = Reads()
        reads.ask(ask(request_id=9))
        from_node = Refusal(request_id=1, code="storage", data=("full",))
        passed = Refusal(request_id=9, code="storage", data=("full",))
        refused = reads.router.nodes.refused(NODE_A, from_node, now_ns=1)
        assert refused == [Outgoing(CLIENT, passed)]
        assert reads.router.nodes.refused(NODE_A, from_node, now_ns=1) == []

    @pytest.mark.parametrize(
        "stale",
        [
            ask(state_number=6),
            ask(version=2),
            ask(node_index=2),
            ask(node_index=-1),
        ],
    )
    def test_a_route_that_is_not_the_present_one_is_stale(self, stale: Ask) -> None:
        """An unknown state, another assignment, a node that is none."""
        assert refusal(Reads().ask(stale)).code == STALE_ROUTE

    @pytest.mark.proves("Q4")
    def test_nothing_is_answered_after_leading(self) -> None:
        """What waits is refused, what comes later finds no route (Q4)."""
        reads = Reads()
        reads.ask(ask(request_id=1))
        reads.locations[5] = location(links=(None, NODE_B))
        reads.ask(ask(request_id=2), is_settled=False)
        refused = [
            Outgoing(CLIENT, Refusal(request_id=number, code=NOT_LEADER))
            for number in (1, 2)
        ]
        assert reads.router.stop_leading(NOT_LEADER) == refused
        answer = Answer(question_id=1, reading=reading(), has_missing=False)
        assert reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=1) == []
        assert refusal(reads.ask(ask())).code == STALE_ROUTE
        assert reads.router.next_deadline_ns() is None


class TestRefusals:
    """What is not passed on at all."""

    @pytest.mark.proves("C2")
    @pytest.mark.parametrize(
        ("bad", "keys"),
        [
            (ask(key_count=2), KEY),
            (ask(key_count=1), KEYS),
            (ask(), b""),
            (ask(), b"\xc0"),
            (ask(operation=CountKeys()), KEY),
            (ask(operation=CountKeys(), key_count=2), b""),
            (ask(operation=ScanRows(start=b"", stop=None, limit=5)), b""),
        ],
    )
    def test_a_count_that_lies_is_malformed(self, bad: Ask, keys: bytes) -> None:
        """C2: the rate limit counts keys, so their number must be true."""
        assert refusal(Reads().ask(bad, keys)).code == "malformed"

    @pytest.mark.proves("Q3")
    def test_too_many_keys_are_refused(self) -> None:
        """Q3: a question is bounded."""
        keys = msgspec.msgpack.encode([b"k"] * 1_001)
        assert refusal(Reads().ask(ask(key_count=1_001), keys)).code == "did-not-happen"

    @pytest.mark.proves("Q3")
    def test_too_many_questions_are_refused(self) -> None:
        """Q3: what is outstanding is bounded."""
        reads = Reads(pending_count_max=1)
        reads.ask(ask())
        assert refusal(reads.ask(ask())).code == "did-not-happen"

    @pytest.mark.proves("C1")
    def test_who_may_not_read_learns_nothing(self) -> None:
        """C1: a forbidden state and one that does not exist get the same words."""
        access = AccessList(
            callers=[
                CallerEntry(name="x", token_sha256=token_sha256("t"), read=["other/*"])
            ]
        )
        caller = access.authenticate(token="t")
        assert caller is not None
        reads = Reads(access=access).router
        answers = [
            reads.ask(CLIENT, caller, ask(state_number=n), KEY, now_ns=0)
            for n in (5, 6)
        ]
        assert answers[0] == answers[1]
        assert refusal(answers[0]).code == STALE_ROUTE

    @pytest.mark.proves("Q3", "C1")
    def test_who_may_only_write_is_told_so(self) -> None:
        """C1, Q3: by a stale route it would come again until its deadline."""
        access = AccessList(
            callers=[
                CallerEntry(name="x", token_sha256=token_sha256("t"), write=["job/*"])
            ]
        )
        caller = access.authenticate(token="t")
        assert caller is not None
        reads = Reads(access=access).router
        refused = refusal(reads.ask(CLIENT, caller, ask(), KEY, now_ns=0))
        assert (refused.code, refused.data) == ("access-denied", ("read job/state",))

    @pytest.mark.proves("C2")
    def test_a_limited_caller_hears_when_to_come_again(self) -> None:
        """C2: at that time the same question passes, and not before."""
        rule = RateLimitRule(scope=RateLimitScope.CALLER, keys_per_second=10, burst=1)
        reads = Reads(rules=(rule,))
        assert len(reads.ask(ask())) == 1
        limited = refusal(reads.ask(ask()))
        assert (limited.code, limited.data) == ("rate-limited", (0.1, "caller"))
        assert isinstance(reads.ask(ask(), now_ns=SECOND // 10 - 1)[0].message, Refusal)
        assert isinstance(reads.ask(ask(), now_ns=SECOND // 10)[0].message, Question)


class TestAbsentNodes:
    """Q3, Q4: typed, and in bounded time."""

    def test_a_node_that_is_away_is_told_at_once(self) -> None:
        """Its key groups are named; the others' are answered."""
        reads = Reads()
        reads.locations[5] = location(links=(None, NODE_B))
        refused = refusal(reads.ask(ask()))
        assert refused.code == "state-unavailable"
        assert refused.data[:3] == ("job", "state", (0, 1))
        assert reads.ask(ask(node_index=1))[0].link == NODE_B

    def test_what_waits_for_a_node_that_leaves_is_refused(self) -> None:
        """And what waits for another is not."""
        reads = Reads()
        reads.ask(ask(request_id=1, node_index=0))
        reads.ask(ask(request_id=2, node_index=1))
        reads.locations[5] = location(links=(None, NODE_B))
        refused = refusal(reads.router.nodes.node_left(NODE_A, now_ns=0))
        assert (refused.request_id, refused.code) == (1, "state-unavailable")
        assert reads.router.nodes.node_left(NODE_A, now_ns=0) == []
        assert reads.router.pending_count == 1

    def test_while_settling_what_waits_for_a_node_that_leaves_asks_again(self) -> None:
        """S2: those who could answer in its place may be late only."""
        reads = Reads()
        reads.ask(ask(), is_settled=False)
        left = reads.router.nodes.node_left(NODE_A, now_ns=0)
        assert refusal(left).code == STALE_ROUTE

    def test_while_settling_a_question_waits_for_its_node(self) -> None:
        """S2: under a new leader an absent node is only late."""
        reads = Reads()
        reads.locations[5] = location(links=(None, NODE_B))
        assert reads.ask(ask(request_id=4), is_settled=False) == []
        assert reads.look_again(now_ns=1, is_settled=False) == []
        reads.locations[5] = location(links=(NODE_A, NODE_B))
        came = reads.look_again(now_ns=2 * SECOND, is_settled=False)
        assert came == [Outgoing(NODE_A, question(1, deadline_ms=3_000), KEY)]

    def test_once_settled_a_late_node_is_away(self) -> None:
        """A question does not wait longer than the leader settles."""
        reads = Reads()
        reads.locations[5] = location(links=(None, NODE_B))
        reads.ask(ask(), is_settled=False)
        refused = refusal(reads.look_again(now_ns=1, is_settled=True))
        assert refused.code == "state-unavailable"

    def test_a_parked_question_may_find_its_route_gone(self) -> None:
        """Another assignment, or no state at all, makes it stale."""
        reads = Reads()
        reads.locations[5] = location(links=(None, NODE_B))
        reads.ask(ask(), is_settled=False)
        reads.locations[5] = location(version=2)
        assert refusal(reads.look_again(now_ns=1, is_settled=False)).code == (
            STALE_ROUTE
        )


class TestReplicas:
    """S4: others have in-sync copies of what a node that is away was asked for."""

    AWAY = location(links=(None, NODE_B), sole=((), (2, 3)))

    def test_a_question_waits_for_the_promotion(self) -> None:
        """It is parked, and its route is stale as soon as another one is asked."""
        reads = Reads()
        reads.locations[5] = self.AWAY
        assert reads.ask(ask(request_id=4)) == []
        assert reads.look_again(now_ns=1, is_settled=True) == []
        assert reads.router.parked_count == 1
        reads.locations[5] = location(version=2)
        refused = refusal(reads.look_again(now_ns=2, is_settled=True))
        assert (refused.request_id, refused.code) == (4, STALE_ROUTE)
        assert reads.router.parked_count == 0

    @pytest.mark.proves("Q3")
    def test_a_question_waits_no_longer_than_its_deadline(self) -> None:
        """Q3: if no promotion comes, the error comes in bounded time."""
        reads = Reads()
        reads.locations[5] = self.AWAY
        assert reads.ask(ask(deadline_ms=100)) == []
        deadline_ns = reads.router.next_deadline_ns()
        assert deadline_ns == SECOND // 10
        assert reads.router.expire(now_ns=deadline_ns - 1) == []
        refused = refusal(reads.router.expire(now_ns=deadline_ns))
        assert refused.code == "deadline-exceeded"

    def test_a_node_that_comes_back_is_asked(self) -> None:
        """Whichever is first: the node itself may be back before the promotion."""
        reads = Reads()
        reads.locations[5] = self.AWAY
        reads.ask(ask())
        reads.locations[5] = location()
        (out,) = reads.look_again(now_ns=SECOND, is_settled=True)
        assert out.link == NODE_A

    def test_who_waits_for_more_than_there_is_room_for_is_told(self) -> None:
        """What cannot be parked is refused at once, naming all that was asked for."""
        reads = Reads()
        reads.locations[5] = self.AWAY
        big = b"\x91\xc6" + bytes(64 * 1024 * 1024)
        refused = refusal(reads.ask(ask(), big))
        assert refused.code == "state-unavailable"
        assert refused.data[2] == (0, 1)

    def test_what_nobody_else_has_is_unavailable(self) -> None:
        """W7: the others are not named, so that the client asks again for them."""
        reads = Reads()
        reads.locations[5] = location(links=(None, NODE_B), sole=((1,), (2, 3)))
        refused = refusal(reads.ask(ask()))
        assert refused.code == "state-unavailable"
        assert refused.data[2] == (1,)

    def test_a_parked_question_is_refused_when_the_last_copy_goes(self) -> None:
        """No promotion can come any more: waiting would not help."""
        reads = Reads()
        reads.locations[5] = self.AWAY
        reads.ask(ask())
        reads.locations[5] = location(links=(None, None))
        refused = refusal(reads.look_again(now_ns=1, is_settled=True))
        assert refused.code == "state-unavailable"

    def test_what_waits_for_a_node_that_leaves_asks_again(self) -> None:
        """The route is stale, or will be; who asks again by it is parked."""
        reads = Reads()
        reads.ask(ask(request_id=3))
        reads.locations[5] = self.AWAY
        refused = refusal(reads.router.nodes.node_left(NODE_A, now_ns=0))
        assert (refused.request_id, refused.code) == (3, STALE_ROUTE)

    def test_what_waits_for_a_node_that_leaves_after_the_promotion(self) -> None:
        """What counts is the present route, not that by which was asked."""
        reads = Reads()
        reads.ask(ask())
        reads.locations[5] = location(version=2)
        assert (
            refusal(reads.router.nodes.node_left(NODE_A, now_ns=0)).code == STALE_ROUTE
        )
        reads.ask(ask(version=2))
        del reads.locations[5]
        assert (
            refusal(reads.router.nodes.node_left(NODE_A, now_ns=0)).code == STALE_ROUTE
        )

    def test_what_waits_is_refused_for_what_only_that_node_had(self) -> None:
        """W7: for these key groups, and for no others."""
        reads = Reads()
        reads.ask(ask())
        reads.locations[5] = location(links=(None, NODE_B), sole=((0,), (2, 3)))
        refused = refusal(reads.router.nodes.node_left(NODE_A, now_ns=0))
        assert (refused.code, refused.data[2]) == ("state-unavailable", (0,))

    @pytest.mark.parametrize(
        ("sole", "key_groups", "code"),
        [
            ((), (), STALE_ROUTE),
            ((0,), (), "state-unavailable"),
            ((), (0,), "state-unavailable"),
        ],
    )
    def test_a_node_that_cannot_answer_is_as_good_as_away(
        self, sole: tuple[int, ...], key_groups: tuple[int, ...], code: str
    ) -> None:
        """If others have all it answers for; what it names is lost, and is said so."""
        reads = Reads()
        reads.ask(ask(request_id=8))
        reads.locations[5] = location(sole=(sole, (2, 3)))
        error = StateUnavailableError("job", None, key_groups, 0.1, "not confirmed")
        out = reads.router.nodes.refused(NODE_A, refusal_of(error, 1), now_ns=1)
        refused = refusal(out)
        assert (refused.request_id, refused.code) == (8, code)


@pytest.mark.proves("B2", "C2")
class TestRows:
    """What a question costs: the rows that it has read."""

    COUNT = CountKeys()
    PAGE = ScanRows(start=b"", stop=None, limit=100)
    WALK = WalkRows(key_groups=((0, 1),), start=b"", limit=100)

    def reads(self, burst: int = 10) -> Reads:
        """Return a reads that admits that many rows, and one more per second."""
        rule = RateLimitRule(scope="caller", keys_per_second=1, burst=burst)
        return Reads(rules=(rule,))

    def counting(self, reads: Reads, *, now_ns: int = 0) -> Sequence[Outgoing]:
        """Ask for a count."""
        question = ask(operation=self.COUNT)
        return reads.ask(question, b"", now_ns=now_ns)

    def answer(self, row_count: int, question_id: int = 1) -> Answer:
        """Return what a node answers."""
        return Answer(
            question_id=question_id,
            reading=reading(),
            has_missing=False,
            row_count=row_count,
        )

    def test_a_count_is_charged_by_what_it_has_read(self) -> None:
        """B2, C2: with one row it begins; then its caller waits for all the others."""
        reads = self.reads()
        assert isinstance(self.counting(reads)[0].message, Question)
        reads.router.nodes.answered(NODE_A, self.answer(30), VALUES, now_ns=0)
        error = error_of(refusal(self.counting(reads)))
        assert isinstance(error, RateLimitedError)
        assert error.retry_after_seconds == 21.0  # a debt of 20, and one row
        assert len(self.counting(reads, now_ns=21 * SECOND)) == 1

    @pytest.mark.parametrize("operation", [PAGE, WALK])
    def test_a_page_costs_what_it_returns(self, operation: Operation) -> None:
        """B2, C2: not what it might have returned."""
        reads = self.reads()
        question = ask(operation=operation, key_count=100)
        for number in range(1, 6):
            (out,) = reads.ask(question, b"")
            assert isinstance(out.message, Question)
            reads.router.nodes.answered(
                NODE_A, self.answer(2, number), VALUES, now_ns=0
            )
        assert refusal(reads.ask(question, b"")).code == "rate-limited"

    def test_points_are_paid_for_beforehand(self) -> None:
        """C2: whether they are there or not."""
        reads = self.reads()
        for number in range(1, 11):
            reads.ask(ask())
            reads.router.nodes.answered(
                NODE_A, self.answer(1, number), VALUES, now_ns=0
            )
        assert refusal(reads.ask(ask())).code == "rate-limited"

    def test_what_came_to_nothing_is_charged(self) -> None:
        """B2: a deadline just short of the answer is no way round the limit."""
        reads = self.reads()
        self.counting(reads)
        late = Refusal(request_id=1, code="deadline-exceeded", row_count=30)
        assert len(reads.router.nodes.refused(NODE_A, late, now_ns=0)) == 1
        assert refusal(self.counting(reads)).code == "rate-limited"

    def test_it_is_charged_though_nobody_waits_any_more(self) -> None:
        """B2: the deadline has come here first, or the client has gone."""
        for end in ("deadline", "client"):
            reads = self.reads()
            self.counting(reads)
            if end == "client":
                reads.router.client_left(CLIENT)
            else:
                reads.router.expire(now_ns=5 * SECOND)
            late = Refusal(request_id=1, code="did-not-happen", row_count=60)
            assert reads.router.nodes.refused(NODE_B, late, now_ns=5 * SECOND) == []
            assert isinstance(self.counting(reads)[0].message, Question)
            assert reads.router.nodes.refused(NODE_A, late, now_ns=5 * SECOND) == []
            assert len(reads.router.nodes._charges) == 0
            out = self.counting(reads, now_ns=5 * SECOND)
            assert refusal(out).code == "rate-limited"

    def test_only_the_node_that_was_asked_can_charge(self) -> None:
        """Another one, or one that answers twice, does not."""
        reads = self.reads()
        self.counting(reads)
        reads.router.nodes.answered(NODE_B, self.answer(99), VALUES, now_ns=0)
        reads.router.nodes.answered(NODE_A, self.answer(1), VALUES, now_ns=0)
        reads.router.nodes.answered(NODE_A, self.answer(99), VALUES, now_ns=0)
        assert isinstance(self.counting(reads)[0].message, Question)

    def test_what_is_to_be_settled_ends_with_its_node(self) -> None:
        """Nothing is kept for an answer that cannot come."""
        reads = self.reads()
        self.counting(reads)
        reads.router.client_left(CLIENT)
        assert len(reads.router.nodes._charges) == 1
        reads.router.nodes.node_left(NODE_B, now_ns=0)
        assert len(reads.router.nodes._charges) == 1
        reads.router.nodes.node_left(NODE_A, now_ns=0)
        assert len(reads.router.nodes._charges) == 0

    def test_what_is_to_be_settled_is_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node that never answers is no memory of ours."""
        monkeypatch.setattr(read_charges, "_UNPAID_COUNT_MAX", 3)
        reads = Reads()
        for _ in range(5):
            self.counting(reads)
        reads.router.client_left(CLIENT)
        assert list(reads.router.nodes._charges._unpaid) == [3, 4, 5]


class TestBeforeTheFirstBatch:
    """W3: a state that is bound, and has nothing in it, is no state without keys."""

    @pytest.mark.proves("Q3")
    def test_it_is_unavailable(self) -> None:
        """Nothing may be said to be missing from what was never written (Q3)."""
        reads = Reads()
        reads.locations[5] = location(batch_id=None)
        refused = refusal(reads.ask(ask()))
        assert refused.code == "state-unavailable"
        assert refused.data[-1] == "no batch has been committed to it yet"

    @pytest.mark.proves("Q2")
    def test_who_waits_for_a_batch_is_answered_when_it_comes(self) -> None:
        """Q2: ``min_batch_id`` waits for the first one, too."""
        reads = Reads()
        reads.locations[5] = location(batch_id=None)
        assert reads.ask(ask(min_batch_id=0)) == []
        assert reads.look_again(now_ns=1, is_settled=True) == []
        reads.locations[5] = location(batch_id=0)
        (out,) = reads.look_again(now_ns=2 * SECOND, is_settled=True)
        assert out == Outgoing(
            NODE_A,
            question(1, deadline_ms=3_000, min_batch_id=0, min_generation=1),
            KEY,
        )

    @pytest.mark.proves("Q3")
    def test_who_waits_for_a_batch_waits_until_the_deadline(self) -> None:
        """Q3: and not longer."""
        reads = Reads()
        reads.locations[5] = location(batch_id=None)
        reads.ask(ask(min_batch_id=0, deadline_ms=100))
        deadline_ns = reads.router.next_deadline_ns()
        assert deadline_ns == SECOND // 10
        assert (
            refusal(reads.router.expire(now_ns=deadline_ns)).code == "deadline-exceeded"
        )


class TestDeadlines:
    """Q3: none waits for ever."""

    def test_a_question_ends_at_its_deadline_and_not_before(self) -> None:
        """The client is told which node did not answer."""
        reads = Reads()
        reads.ask(ask(deadline_ms=100))
        deadline_ns = reads.router.next_deadline_ns()
        assert deadline_ns == SECOND // 10
        assert reads.router.expire(now_ns=deadline_ns - 1) == []
        refused = refusal(reads.router.expire(now_ns=deadline_ns))
        assert refused.code == "deadline-exceeded"
        assert refused.data == (0.1, "node a did not answer")
        assert reads.router.pending_count == 0

    def test_a_parked_question_ends_at_its_deadline(self) -> None:
        """Settling makes none wait longer than asked for."""
        reads = Reads()
        reads.locations[5] = location(links=(None, None))
        reads.ask(ask(deadline_ms=100), is_settled=False)
        deadline_ns = reads.router.next_deadline_ns()
        assert deadline_ns == SECOND // 10
        assert (
            refusal(reads.router.expire(now_ns=deadline_ns)).code == "deadline-exceeded"
        )

    def test_a_question_without_a_deadline_gets_the_default(self) -> None:
        """The proxy's own setting counts for questions that name none."""
        reads = Reads()
        (out,) = reads.ask(ask(deadline_ms=None))
        assert out.message == question(1, deadline_ms=5_000)

    def test_a_deadline_is_shortened_to_the_limit(self) -> None:
        """A client cannot make the proxy remember it for hours."""
        reads = Reads()
        (out,) = reads.ask(ask(deadline_ms=10_000_000))
        assert out.message == question(1, deadline_ms=60_000)

    def test_deadlines_of_answered_questions_do_not_pile_up(self) -> None:
        """What is kept is bounded by what is outstanding."""
        reads = Reads()
        for number in range(1, 5_001):
            reads.ask(ask(request_id=number))
            answer = Answer(question_id=number, reading=reading(), has_missing=False)
            reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=0)
        assert len(reads.router.nodes.pending._deadlines) <= 1_001

    def test_a_client_that_leaves_is_forgotten(self) -> None:
        """Nothing is sent to it, and nothing is kept for it."""
        reads = Reads()
        reads.ask(ask(request_id=1))
        reads.ask(ask(request_id=2), client=OTHER)
        reads.locations[5] = location(links=(None, None))
        reads.ask(ask(request_id=3), is_settled=False)
        reads.locations[5] = location()
        reads.ask(ask(request_id=4, node_index=1))
        reads.ask(ask(request_id=5))
        # B2: their nodes need not read on.
        assert reads.router.client_left(CLIENT) == [
            Outgoing(NODE_A, CancelQuestions(leader_epoch=EPOCH, question_ids=(1, 4))),
            Outgoing(NODE_B, CancelQuestions(leader_epoch=EPOCH, question_ids=(3,))),
        ]
        assert (reads.router.pending_count, reads.router.parked_count) == (1, 0)
        assert reads.router.client_left(CLIENT) == []


class TestShares:
    @pytest.mark.proves("C2")
    def test_one_client_cannot_take_all_places(self) -> None:
        """C2: one that waits for what does not come leaves room for the others."""
        reads = Reads(pending_count_max=20_000)
        for number in range(2_000):
            (out,) = reads.ask(ask(request_id=number))
            assert isinstance(out.message, Question)
        assert refusal(reads.ask(ask(request_id=2_000))).code == "did-not-happen"
        (out,) = reads.ask(ask(request_id=1), client=OTHER)
        assert isinstance(out.message, Question)

    def test_a_place_is_free_again_after_each_end(self) -> None:
        """An answer, a deadline, and a node that leaves give it back."""
        reads = Reads(pending_count_max=1_000)
        for end in range(3):
            first = end * 1_000 + 1
            for number in range(first, first + 1_000):
                reads.ask(ask(request_id=number, deadline_ms=100))
            assert refusal(reads.ask(ask())).code == "did-not-happen"
            match end:
                case 0:
                    for number in range(first, first + 1_000):
                        answer = Answer(
                            question_id=number, reading=reading(), has_missing=False
                        )
                        reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=0)
                case 1:
                    assert len(reads.router.expire(now_ns=SECOND)) == 1_000
                case _:
                    assert len(reads.router.nodes.node_left(NODE_A, now_ns=0)) == 1_000
            assert reads.router.pending_count == 0
            assert reads.router.nodes.pending._of_client == {}
            assert reads.router.nodes.pending._of_node == {}

    @pytest.mark.proves("B2")
    def test_connections_of_one_caller_share_its_places(self) -> None:
        """B2: it had all places over a few connections, and others were refused."""
        reads = Reads(pending_count_max=2_000)
        for number in range(2_000):
            link = LinkId(100 + number // 500)
            (out,) = reads.ask(
                ask(request_id=number), client=link, caller=Caller(name="greedy")
            )
            assert isinstance(out.message, Question)
        modest = Caller(name="modest")
        refused, cancelled, asked = reads.ask(ask(), client=OTHER, caller=modest)
        assert refused.link == LinkId(103)
        assert isinstance(refused.message, Refusal)
        assert refused.message.request_id == 1_999
        assert refused.message.code == "did-not-happen"
        assert cancelled == Outgoing(
            NODE_A, CancelQuestions(leader_epoch=EPOCH, question_ids=(2_000,))
        )
        assert isinstance(asked.message, Question)
        assert reads.router.pending_count == 2_000
        # Another connection gives the greedy one nothing.
        greedy = reads.ask(ask(), client=LinkId(200), caller=Caller(name="greedy"))
        assert [type(one.message) for one in greedy] == [Refusal]
        reads.router.client_left(OTHER)
        assert len(reads.ask(ask(), caller=Caller(name="greedy"))) == 1

    @pytest.mark.proves("B2", "B4")
    def test_pending_questions_have_a_size(self) -> None:
        """B2, B4: the proxy keeps them, and kept a thousand of 16 MB of each client."""
        reads = Reads(pending_count_max=2_000)
        big = msgspec.msgpack.encode([bytes(15 << 20)])
        for number in range(17):
            (out,) = reads.ask(ask(request_id=number), big)
            assert isinstance(out.message, Question)
        assert refusal(reads.ask(ask(request_id=17), big)).code == "did-not-happen"
        refused, _, asked = reads.ask(ask(request_id=18), big, client=OTHER)
        assert (refused.link, asked.link) == (CLIENT, NODE_A)
        assert reads.router.pending_count == 17

    @pytest.mark.proves("B2")
    def test_parked_questions_take_no_more_places_than_there_are(self) -> None:
        """B2: they are asked at once when their node comes."""
        reads = Reads(pending_count_max=3)
        reads.locations[5] = location(links=(None, NODE_B))
        for number in range(5):
            assert reads.ask(ask(request_id=number), is_settled=False) == []
        reads.locations[5] = location()
        outgoing = reads.look_again(now_ns=1, is_settled=False)
        refused = [one for one in outgoing if isinstance(one.message, Refusal)]
        assert [refusal([one]).request_id for one in refused] == [3, 4]
        assert reads.router.pending_count == 3

    @pytest.mark.proves("C4")
    def test_places_can_be_made_more_and_fewer(self) -> None:
        """C4: what waits already goes on."""
        reads = Reads(pending_count_max=1)
        reads.ask(ask())
        for count, is_refused in ((2, False), (1, True)):
            reads.router.limits = evolve(reads.router.limits, pending_count_max=count)
            (out,) = reads.ask(ask())
            assert isinstance(out.message, Refusal) == is_refused
        assert reads.router.pending_count == 2

    @pytest.mark.proves("B2", "Q2")
    def test_one_reader_does_not_keep_others_from_waiting(self) -> None:
        """B2, Q2: it has parked all there is room for; another one waits as well."""
        reads = Reads()
        reads.locations[5] = location(batch_id=None)
        for number in range(10_000):
            assert reads.ask(ask(request_id=number, min_batch_id=0)) == []
        waits = ask(request_id=3, min_batch_id=0)
        (out,) = reads.ask(waits, client=OTHER)
        assert (out.link, refusal([out]).code) == (CLIENT, "state-unavailable")
        assert refusal([out]).request_id == 9_999
        (out,) = reads.ask(ask(request_id=10_000, min_batch_id=0))
        assert (out.link, refusal([out]).request_id) == (CLIENT, 10_000)

    @pytest.mark.proves("B2")
    def test_what_waits_is_not_looked_at_for_what_others_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B2: a hundred connections that close cost nothing for each that waits."""
        looked = CountedCalls(AccessList.may)
        reads = Reads()
        reads.locations[5] = location(batch_id=None)
        for number in range(1_000):
            assert reads.ask(ask(request_id=number, min_batch_id=0)) == []
        reads.locations[6] = evolve(location(), state_number=6)
        monkeypatch.setattr(AccessList, "may", looked.method())
        for number in range(100):
            assert reads.router.client_left(LinkId(100 + number)) == []
            assert reads.look_again(now_ns=number, is_settled=True) == []
        assert looked.count == 0
        reads.locations[6] = evolve(location(batch_id=4), state_number=6)
        assert reads.look_again(now_ns=100, is_settled=True) == []
        assert looked.count == 0
        reads.locations[5] = location(batch_id=0)
        asked = reads.look_again(now_ns=101, is_settled=True)
        assert (len(asked), looked.count) == (1_000, 1_000)

    @pytest.mark.proves("B2")
    def test_who_waits_on_keeps_its_place(self) -> None:
        """B2: a look makes nothing newer than what came after it."""
        reads = Reads(pending_count_max=200_000)
        reads.locations[5] = location(links=(None, None))
        for number in range(10_000):
            asked = ask(request_id=number, node_index=number % 2)
            assert reads.ask(asked, is_settled=False) == []
        reads.locations[5] = location(links=(NODE_A, None))
        gone_on = reads.look_again(now_ns=1, is_settled=False)
        assert {one.link for one in gone_on} == {NODE_A}
        for number in range(10_000, 15_000):
            later = ask(request_id=number, node_index=1)
            assert reads.ask(later, is_settled=False) == []
        (out,) = reads.ask(ask(node_index=1), client=OTHER, is_settled=False)
        assert (out.link, refusal([out]).request_id) == (CLIENT, 14_999)

    def test_parked_questions_have_a_size(self) -> None:
        """What waits for nodes takes so much memory and no more."""
        reads = Reads()
        reads.locations[5] = location(links=(None, None))
        big = msgspec.msgpack.encode([bytes(8 * 1024 * 1024)])
        for number in range(7):
            assert reads.ask(ask(request_id=number), big, is_settled=False) == []
        refused = refusal(reads.ask(ask(request_id=7), big, is_settled=False))
        assert (
            refused.code == "did-not-happen"
        )  # no node is away: it may be asked again
        reads.router.client_left(CLIENT)
        assert reads.ask(ask(request_id=8), big, is_settled=False) == []

    @pytest.mark.proves("B2", "B4")
    @pytest.mark.parametrize(
        "operation",
        [
            ScanRows(start=bytes(9 << 20), stop=None, limit=1),
            ScanRows(start=b"", stop=bytes(9 << 20), limit=1),
            WalkRows(key_groups=(), start=bytes(9 << 20), limit=1),
            WalkRows(key_groups=((0, 0),) * 32_768, start=bytes(5 << 20), limit=1),
            CountKeys(schema="x" * (9 << 20)),
        ],
        ids=["start", "stop", "from", "key groups", "schema"],
    )
    def test_the_first_frame_of_a_parked_question_has_a_size(
        self, operation: Operation
    ) -> None:
        """B2, B4: it may have megabytes, too; ten thousand of these were parked."""
        reads = Reads()
        reads.locations[5] = location(links=(None, None))
        big = ask(operation=operation)
        for _ in range(7):
            assert reads.ask(big, b"", is_settled=False) == []
        assert refusal(reads.ask(big, b"", is_settled=False)).code == "did-not-happen"

    @pytest.mark.proves("C1")
    def test_a_parked_question_needs_its_right_when_it_goes_on(self) -> None:
        """C1: a caller that was taken off the list meanwhile is told nothing."""
        reads = Reads()
        reads.locations[5] = location(links=(None, NODE_B))
        reads.ask(ask(), is_settled=False)
        reads.locations[5] = location()
        reads.router.access = AccessList(
            callers=[
                CallerEntry(name="x", token_sha256=token_sha256("x"), read=["a/b"])
            ]
        )
        refused = refusal(reads.look_again(now_ns=1, is_settled=False))
        assert refused.code == STALE_ROUTE

    @pytest.mark.proves("C1")
    def test_what_is_parked_is_judged_by_another_list(self) -> None:
        """C1: who has lost the right waits no longer, though its node is away still."""
        reads = Reads()
        reads.locations[5] = location(links=(None, NODE_B))
        reads.ask(ask(request_id=4), is_settled=False)
        assert reads.router.look_at_all(now_ns=1) == []
        entry = CallerEntry(name="x", token_sha256=token_sha256("x"), read=["a/b"])
        reads.router.replace_access(AccessList(callers=[entry]))
        refused = refusal(reads.router.look_at_all(now_ns=1))
        assert (refused.request_id, refused.code) == (4, STALE_ROUTE)
        assert reads.router.parked_count == 0

    @pytest.mark.proves("C1")
    def test_a_question_that_waits_at_its_node_needs_its_right(self) -> None:
        """C1: who loses it is refused at once; the answer of the node goes nowhere."""
        reads = Reads()
        reads.ask(ask(min_batch_id=4))
        entry = CallerEntry(name="x", token_sha256=token_sha256("x"), read=["a/b"])
        refused, told = reads.router.replace_access(AccessList(callers=[entry]))
        assert refusal([refused]).code == STALE_ROUTE
        assert told == Outgoing(
            NODE_A, CancelQuestions(leader_epoch=EPOCH, question_ids=(1,))
        )
        answer = Answer(question_id=1, reading=reading(batch_id=4), has_missing=False)
        assert reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=1) == []
        assert reads.router.pending_count == 0

    @pytest.mark.proves("C1")
    def test_who_keeps_a_right_goes_on_waiting(self) -> None:
        """C1: another list is no reason to ask again."""
        reads = Reads()
        reads.ask(ask(min_batch_id=4))
        assert reads.router.replace_access(open_access()) == []
        assert reads.router.pending_count == 1


class TestCaching:
    """C3 and Q3, as far as the reads is concerned; the rest is the cache's own."""

    def reads(self) -> Reads:
        """Return a reads that may keep everything for ten seconds."""
        return Reads(cache_rules=(CacheRule(ttl_seconds=10.0),))

    def answered(self, reads: Reads, *, has_missing: bool = False) -> None:
        """Have one question answered as of batch 3."""
        reads.ask(ask())
        answer = Answer(question_id=1, reading=reading(), has_missing=has_missing)
        reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=0)

    @pytest.mark.proves("Q2", "C3")
    def test_the_same_question_is_answered_from_the_cache(self) -> None:
        """C3, Q2: marked as cached, and as old as it is by then."""
        reads = self.reads()
        self.answered(reads)
        told = Told(
            request_id=2,
            reading=Reading(generation=1, batch_id=3, age_ms=1_040, is_cached=True),
        )
        assert reads.ask(ask(request_id=2), now_ns=SECOND) == [
            Outgoing(CLIENT, told, VALUES)
        ]

    @pytest.mark.proves("W6", "C3")
    def test_what_expires_counts_from_the_question(self) -> None:
        """The node has read before its answer came, and the proxy knows not when."""
        reads = self.reads()
        reads.ask(ask())
        answer = Answer(
            question_id=1, reading=reading(), has_missing=False, valid_ms=1_000
        )
        reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=SECOND // 2)
        kept = reads.ask(ask(request_id=2), now_ns=SECOND - 1)[0].message
        assert isinstance(kept, Told)
        asked = reads.ask(ask(request_id=3), now_ns=SECOND)[0].message
        assert isinstance(asked, Question)

    @pytest.mark.proves("Q2", "C3")
    def test_age_counts_from_the_question(self) -> None:
        """Q2: what is kept is never told as younger than it is."""
        reads = self.reads()
        reads.ask(ask())
        answer = Answer(question_id=1, reading=reading(), has_missing=False)
        reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=SECOND // 2)
        kept = reads.ask(ask(request_id=2), now_ns=SECOND)[0].message
        assert isinstance(kept, Told)
        assert kept.reading.age_ms == 1_040

    @pytest.mark.proves("Q2", "C3")
    def test_an_answer_that_took_long_is_not_kept(self) -> None:
        """Q2: the node may have read it at any time since it was asked."""
        reads = self.reads()
        reads.ask(ask())
        answer = Answer(question_id=1, reading=reading(), has_missing=False)
        reads.router.nodes.answered(NODE_A, answer, VALUES, now_ns=SECOND + 1)
        again = reads.ask(ask(request_id=2), now_ns=SECOND + 1)[0].message
        assert isinstance(again, Question)

    @pytest.mark.proves("C3")
    def test_a_newer_commit_ends_what_is_kept(self) -> None:
        """C3: from the decision on, before the node has applied it."""
        reads = self.reads()
        self.answered(reads)
        reads.locations[5] = location(batch_id=4)
        assert isinstance(reads.ask(ask(), now_ns=1)[0].message, Question)

    def test_a_new_owner_ends_what_is_kept(self) -> None:
        """W5: batch ids of two generations do not compare."""
        reads = self.reads()
        self.answered(reads)
        reads.locations[5] = location(generation=2, batch_id=0)
        assert isinstance(reads.ask(ask(), now_ns=1)[0].message, Question)

    @pytest.mark.proves("Q2")
    def test_a_batch_to_wait_for_is_not_answered_from_before_it(self) -> None:
        """Q2: ``min_batch_id`` holds for the cache, too."""
        reads = self.reads()
        self.answered(reads)
        (out,) = reads.ask(ask(min_batch_id=4), now_ns=1)
        waits = question(2, min_batch_id=4, min_generation=1)
        assert out == Outgoing(NODE_A, waits, KEY)

    @pytest.mark.proves("Q2")
    def test_a_generation_that_is_yet_to_come_is_waited_for(self) -> None:
        """Q2: by the node, and here while that is away; no earlier batch will do."""
        reads = self.reads()
        self.answered(reads)  # of generation 1, batch 3
        later = ask(min_batch_id=0, min_generation=2, deadline_ms=1_000)
        reads.locations[5] = location(links=(None, NODE_B), sole=((), (2, 3)))
        assert reads.ask(later, now_ns=1) == []
        assert reads.router.parked_count == 1
        reads.locations[5] = location(batch_id=29)
        (out,) = reads.look_again(now_ns=2, is_settled=True)
        assert isinstance(out.message, Question)
        assert (out.message.min_generation, out.message.min_batch_id) == (2, 0)

    @pytest.mark.proves("Q2")
    def test_a_batch_is_waited_for_in_a_generation(self) -> None:
        """Q2: the present one, as the control plane knows it, or the one named."""
        reads = self.reads()
        self.answered(reads)  # of generation 1, batch 3
        earlier = ask(min_batch_id=29, min_generation=0)
        assert isinstance(reads.ask(earlier, now_ns=1)[0].message, Told)
        later = ask(min_batch_id=0, min_generation=2)
        (out,) = reads.ask(later, now_ns=1)
        waits = question(2, min_batch_id=0, min_generation=2)
        assert out == Outgoing(NODE_A, waits, KEY)
        reads.locations[5] = location(generation=2, batch_id=0)
        (out,) = reads.ask(ask(min_batch_id=3), now_ns=1)
        waits = question(3, min_batch_id=3, min_generation=2)
        assert out == Outgoing(NODE_A, waits, KEY)

    @pytest.mark.proves("Q3")
    def test_a_negative_answer_is_asked_again(self) -> None:
        """Q3: it is never kept."""
        reads = self.reads()
        self.answered(reads, has_missing=True)
        assert isinstance(reads.ask(ask(), now_ns=1)[0].message, Question)

    @pytest.mark.proves("C2")
    def test_the_rate_limit_comes_before_the_cache(self) -> None:
        """C2: cached answers count as well."""
        rule = RateLimitRule(scope=RateLimitScope.STATE, keys_per_second=1, burst=1)
        reads = Reads(rules=(rule,), cache_rules=(CacheRule(ttl_seconds=10.0),))
        self.answered(reads)
        assert refusal(reads.ask(ask(), now_ns=1)).code == "rate-limited"


class TestElementCount:
    """The only look that is taken into keys."""

    @pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
    def test_it_is_what_the_encoder_wrote(self, count: int) -> None:
        """All three headers of MessagePack arrays are read."""
        assert element_count(msgspec.msgpack.encode([b""] * count)) == count

    @pytest.mark.parametrize("junk", [b"", b"\xdc\x00", b"\xdd\x00", b"\x80", b"\xc4"])
    def test_anything_else_is_no_array(self, junk: bytes) -> None:
        """Truncated headers and other types count as -1, which no question says."""
        assert element_count(junk) == -1
