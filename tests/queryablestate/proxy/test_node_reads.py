"""How a proxy asks other copies in place of a primary; no I/O (D4, D5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from nameservice import DidNotHappenError
from nameservice.clock import NS_PER_MS
from queryablestate import StateUnavailableError
from queryablestate.control.events import LinkId
from queryablestate.control.routes import KvStateLocation
from queryablestate.hedging import HedgeLimits
from queryablestate.proxy.access import ANONYMOUS_CALLER, open_access
from queryablestate.proxy.cache import CacheRule, ResultCache
from queryablestate.proxy.rate_limit import RateLimiter, RateLimitRule, RateLimitScope
from queryablestate.proxy.read_answers import Outgoing
from queryablestate.proxy.router import ReadLimits, ReadRouter
from queryablestate.schema.key_groups import group_start
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
    Told,
)
from queryablestate.wire.refusals import NOT_LEADER, STALE_ROUTE, refusal_of


CLIENT: Final = LinkId(1)
A: Final = LinkId(10)
B: Final = LinkId(11)
C: Final = LinkId(12)
AGAIN: Final = LinkId(13)
SOLE: Final = ((0, 1), (), ())
MS: Final = NS_PER_MS
LATE: Final = 20 * MS
encode: Final = msgspec.msgpack.encode
decode: Final = msgspec.msgpack.decode
LIMITS: Final = HedgeLimits(delay_ns_min=20 * MS, saved_count_max=2)
# Key group 0 has its copies on A and B, key group 1 on A and C.
ONE: Final = encode([group_start(0) + b"x"])
TWO: Final = encode([group_start(0) + b"x", group_start(1) + b"y"])
VALUES: Final = encode([b"value"])
UNAVAILABLE: Final = StateUnavailableError("job", None, (), 0.1, "not now")


def location(**changes: Any) -> KvStateLocation:
    """Return a route by which node A is the primary of both key groups."""
    return evolve(
        KvStateLocation(
            job_id="job",
            state_name="state",
            state_number=5,
            generation=1,
            batch_id=3,
            assignment_version=1,
            node_ids=("a", "b", "c"),
            links=(A, B, C),
            key_groups=((0, 1), (), ()),
            sole_key_groups=((), (), ()),
            owners=((0, 1), (0, 2)),
            copy_links=(A, B, C),
        ),
        **changes,
    )


def answer(question_id: int, batch_id: int = 3, **fields: Any) -> Answer:
    """Return the first frame of an answer."""
    reading = Reading(generation=1, batch_id=batch_id, age_ms=0)
    fields = {"has_missing": False, **fields}
    return Answer(question_id=question_id, reading=reading, **fields)


class Stage:
    """A router, one client, and what was asked of whom."""

    def __init__(self, **settings: Any) -> None:
        self.locations = {5: location()}
        self.router = ReadRouter(
            access=open_access(),
            limiter=RateLimiter(settings.pop("rules", ())),
            cache=ResultCache(settings.pop("cache_rules", ()), size_bytes_max=1 << 20),
            limits=ReadLimits(
                deadline_ns_default=5_000 * MS,
                deadline_ns_max=5_000 * MS,
                pending_count_max=1_000,
                keys_per_request_max=100,
            ),
            hedging=LIMITS,
            **settings,
        )
        self.is_settled = True
        self.router.lead(
            self.locations,
            leader_epoch=7,
            takes_for_away=lambda node_id, now_ns: self.is_settled,
        )
        self.number = 0

    def ask(
        self,
        keys: bytes = ONE,
        *,
        now_ns: int = 0,
        operation: Operation | None = None,
        key_count: int | None = None,
        min_batch_id: int | None = None,
    ) -> list[Outgoing]:
        """Ask node A something."""
        self.number += 1
        question = Ask(
            request_id=self.number,
            session=b"s" * 16,
            state_number=5,
            assignment_version=1,
            node_index=0,
            operation=GetValues() if operation is None else operation,
            key_count=len(decode(keys)) if key_count is None else key_count,
            min_batch_id=min_batch_id,
        )
        return self.router.ask(CLIENT, ANONYMOUS_CALLER, question, keys, now_ns=now_ns)

    def hush(self, now_ns: int = 60 * MS) -> None:
        """Have A found unresponsive; what it was asked is answered by B."""
        for _ in range(3):
            self.ask()
        asked = questions(self.router.expire(now_ns=now_ns))
        for node, question in asked:
            assert node == B
            self.answered(B, answer(question.question_id), now_ns=now_ns)
        assert self.router.nodes.unresponsive_count == 1
        assert self.router.pending_count == 0

    def answered(
        self, node: LinkId, told: Answer, values: bytes = VALUES, now_ns: int = LATE
    ) -> list[Outgoing]:
        """Have *node* answer."""
        return self.router.nodes.answered(node, told, values, now_ns=now_ns)


def questions(outgoing: Sequence[Outgoing]) -> list[tuple[LinkId, Question]]:
    """Return what is asked of whom."""
    return [
        (one.link, one.message) for one in outgoing if isinstance(one.message, Question)
    ]


def told(outgoing: Sequence[Outgoing]) -> list[Any]:
    """Return what the client is told: the values, or the code of a refusal."""
    found = []
    for one in outgoing:
        if isinstance(one.message, Told):
            assert one.payload is not None
            found.append(decode(one.payload))
        elif isinstance(one.message, Refusal):
            found.append(one.message.code)
    return found


def cancelled(outgoing: Sequence[Outgoing]) -> list[tuple[LinkId, tuple[int, ...]]]:
    """Return which questions are cancelled with whom."""
    return [
        (one.link, one.message.question_ids)
        for one in outgoing
        if isinstance(one.message, CancelQuestions)
    ]


@pytest.mark.proves("D4")
class TestHedges:
    """A read that is late is asked of another copy."""

    def test_the_first_good_answer_wins(self) -> None:
        """D4: not before the hedge delay; the other question is cancelled."""
        stage = Stage()
        assert questions(stage.ask()) == [(A, stage_question(1))]
        assert stage.router.next_deadline_ns() == LATE
        assert stage.router.expire(now_ns=LATE - 1) == []
        hedges = questions(stage.router.expire(now_ns=LATE))
        assert hedges == [(B, stage_question(2, copies=((0, 0),), left_ms=4_980))]
        outgoing = stage.answered(B, answer(2))
        assert told(outgoing) == [[b"value"]]
        assert cancelled(outgoing) == [(A, (1,))]
        assert stage.answered(A, answer(1)) == []
        nodes = stage.router.nodes
        assert (nodes.hedged_count, nodes.hedge_won_count, len(nodes)) == (1, 1, 0)
        assert stage.router.next_deadline_ns() != LATE

    def test_the_primary_may_win_all_the_same(self) -> None:
        """D4: it was only late; the copy is told to forget it."""
        stage = Stage()
        stage.ask()
        stage.router.expire(now_ns=LATE)
        outgoing = stage.answered(A, answer(1))
        assert told(outgoing) == [[b"value"]]
        assert cancelled(outgoing) == [(B, (2,))]
        nodes = stage.router.nodes
        assert (nodes.hedged_count, nodes.hedge_won_count) == (1, 0)

    def test_hedges_are_limited(self) -> None:
        """D4: what the budget does not allow waits, and is looked at again."""
        stage = Stage()
        for _ in range(5):
            stage.ask()
        assert len(questions(stage.router.expire(now_ns=LATE))) == 2
        assert stage.router.next_deadline_ns() == 2 * LATE
        assert questions(stage.router.expire(now_ns=2 * LATE - 1)) == []

    def test_it_can_be_switched_off(self) -> None:
        """D4: then only primaries are asked, whatever happens to them."""
        stage = Stage(asks_copies=False)
        stage.ask()
        assert stage.router.expire(now_ns=1_000 * MS) == []
        assert told(stage.router.nodes.node_left(A, now_ns=0)) == [STALE_ROUTE]
        stage.locations[5] = location(links=(None, B, C))
        assert stage.ask() == []
        assert stage.router.parked_count == 1

    def test_what_takes_its_time_has_more_time(self) -> None:
        """D4: a count, and a question that waits for a batch that is to come."""
        stage = Stage()
        stage.ask(b"", operation=CountKeys(), key_count=1)
        stage.ask(min_batch_id=4)
        assert stage.router.next_deadline_ns() == 2_000 * MS
        assert stage.router.expire(now_ns=1_999 * MS) == []
        stage.ask(min_batch_id=3, now_ns=1_979 * MS)  # that is decided: it is due
        assert len(questions(stage.router.expire(now_ns=1_999 * MS))) == 1

    def test_a_lone_scan_does_not_wait_for_its_deadline(self) -> None:
        """D4: where no client asks for keys, too, a stopped node is found out."""
        stage = Stage()
        stage.ask(b"", operation=CountKeys(), key_count=1)
        moved = questions(stage.router.expire(now_ns=2_000 * MS))
        assert [node for node, _ in moved] == [B, C]
        assert stage.router.nodes.unresponsive_count == 1

    def test_nothing_is_asked_by_a_route_of_before(self) -> None:
        """D5: a copy may have been taken out of the set meanwhile."""
        stage = Stage()
        stage.ask()
        stage.locations[5] = location(assignment_version=2)
        assert stage.router.expire(now_ns=LATE) == []
        assert told(stage.router.nodes.node_left(A, now_ns=LATE)) == [STALE_ROUTE]

    def test_a_copy_that_is_not_here_is_not_asked(self) -> None:
        """D4: nor one whose rows are lost: the route has no connection to it then."""
        stage = Stage()
        stage.ask()
        stage.locations[5] = location(copy_links=(A, None, C))
        assert stage.router.expire(now_ns=LATE) == []


@pytest.mark.proves("D4", "Q1")
class TestParts:
    """Keys whose copies are on several nodes."""

    def hedged(self) -> Stage:
        """Return a stage where both copies are asked for a read of two keys."""
        stage = Stage()
        stage.ask(TWO)
        asked = questions(stage.router.expire(now_ns=LATE))
        assert [node for node, _ in asked] == [B, C]
        return stage

    def test_they_are_one_answer(self) -> None:
        """D4: when all parts are there, in the order of the keys."""
        stage = self.hedged()
        assert stage.answered(C, answer(3), encode([b"of c"])) == []
        outgoing = stage.answered(B, answer(2), encode([b"of b"]))
        assert told(outgoing) == [[b"of b", b"of c"]]
        assert cancelled(outgoing) == [(A, (1,))]

    def test_they_are_of_one_batch(self) -> None:
        """Q1: who is behind is asked again, and waits for what the other had."""
        stage = self.hedged()
        stage.answered(C, answer(3, batch_id=4), encode([b"new"]))
        again = questions(stage.answered(B, answer(2, batch_id=3), encode([b"old"])))
        ((node, question),) = again
        assert (node, question.min_batch_id, question.min_generation) == (B, 4, 1)
        final = answer(question.question_id, batch_id=4)
        assert told(stage.answered(B, final, encode([b"new too"]))) == [
            [b"new too", b"new"]
        ]

    def test_one_that_does_not_answer_spoils_all(self) -> None:
        """D4: then the primary is waited for, and the copies asked again later."""
        stage = self.hedged()
        refused = refusal_of(UNAVAILABLE, 3)
        outgoing = stage.router.nodes.refused(C, refused, now_ns=LATE)
        assert (told(outgoing), cancelled(outgoing)) == ([], [(B, (2,))])
        for _ in range(20):
            stage.router.nodes._policy.earn()
        again = questions(stage.router.expire(now_ns=2 * LATE))
        assert [node for node, _ in again] == [B, C]
        assert told(stage.answered(A, answer(1), encode([b"1", b"2"]))) == [
            [b"1", b"2"]
        ]

    def test_nonsense_is_no_answer(self) -> None:
        """A copy that says something else leaves it to the primary."""
        stage = self.hedged()
        stage.answered(C, answer(3), encode([]))
        assert told(stage.answered(B, answer(2), VALUES)) == []
        assert told(stage.answered(A, answer(1), encode([b"1", b"2"]))) != []


@pytest.mark.proves("D4")
class TestUnresponsive:
    """A stopped node costs no budget."""

    def test_all_that_it_was_asked_is_asked_of_others(self) -> None:
        """D4: at once, whatever it is, and beyond the budget."""
        stage = Stage()
        for _ in range(10):
            stage.ask()
        stage.ask(b"", operation=CountKeys(), key_count=1)
        stage.router.expire(now_ns=LATE)
        stage.router.expire(now_ns=2 * LATE)
        moved = questions(stage.router.expire(now_ns=3 * LATE))
        assert [node for node, _ in moved] == [B] * 8 + [B, C]
        assert stage.router.nodes.moved_count == 9
        assert stage.router.nodes.hedged_count == 2

    def test_it_is_asked_second(self) -> None:
        """D4: others are asked at once, and it is probed now and then."""
        stage = Stage()
        stage.hush()
        asked = [
            [node for node, _ in questions(stage.ask(now_ns=(61 + at_ms) * MS))]
            for at_ms in (0, 1, 199, 200)
        ]
        assert asked == [[B, A], [B], [B], [B, A]]

    def test_it_is_asked_first_again_once_it_is_heard(self) -> None:
        """D4: its answer to what was cancelled long ago suffices."""
        stage = Stage()
        stage.hush()
        stage.answered(A, answer(1), now_ns=70 * MS)
        assert [node for node, _ in questions(stage.ask(now_ns=71 * MS))] == [A]

    def test_it_is_asked_itself_when_others_do_not_answer(self) -> None:
        """D4: if the copy refuses, it is better than no node."""
        stage = Stage()
        stage.hush()
        stage.ask(now_ns=61 * MS)  # and a probe
        ((_, question),) = questions(stage.ask(now_ns=62 * MS))
        refused = refusal_of(UNAVAILABLE, question.question_id)
        asked = questions(stage.router.nodes.refused(B, refused, now_ns=62 * MS))
        assert [node for node, _ in asked] == [A]

    def test_a_copy_that_is_late_is_hedged_with_the_primary(self) -> None:
        """D4: both nodes have been stopped, one after the other."""
        stage = Stage()
        stage.hush()
        stage.ask(now_ns=61 * MS)  # and a probe
        stage.ask(now_ns=62 * MS)
        for _ in range(20):
            stage.router.nodes._policy.earn()
        asked = questions(stage.router.expire(now_ns=90 * MS))
        assert [node for node, _ in asked] == [A]

    def test_a_full_queue_is_no_word_of_the_node(self) -> None:
        """D4: what cannot even be sent goes elsewhere, and proves no life."""
        stage = Stage()
        stage.hush()
        stage.ask(now_ns=61 * MS)
        refused = refusal_of(DidNotHappenError("full"), stage.number)
        stage.router.nodes.not_asked(A, refused, now_ns=61 * MS)
        assert stage.router.nodes.unresponsive_count == 1


@pytest.mark.proves("D4", "S4")
class TestGone:
    """A node that is gone, or refuses."""

    def test_others_are_asked_for_what_it_was_asked(self) -> None:
        """S4: no client has to come again, and the budget is not touched."""
        stage = Stage()
        for _ in range(5):
            stage.ask()
        stage.locations[5] = location(links=(None, B, C), copy_links=(None, B, C))
        moved = questions(stage.router.nodes.node_left(A, now_ns=MS))
        assert [node for node, _ in moved] == [B] * 5

    def test_others_are_asked_while_it_is_away(self) -> None:
        """S4: no question waits for the next assignment."""
        stage = Stage()
        stage.locations[5] = location(links=(None, B, C), copy_links=(None, B, C))
        assert [node for node, _ in questions(stage.ask())] == [B]
        outgoing = stage.router.nodes.node_left(B, now_ns=0)
        assert told(outgoing) == [STALE_ROUTE]
        assert stage.router.pending_count == 0

    def test_a_hedge_outlives_it(self) -> None:
        """S4: the copy that was asked already goes on."""
        stage = Stage()
        stage.ask()
        stage.router.expire(now_ns=LATE)
        stage.locations[5] = location(links=(None, B, C), copy_links=(None, B, C))
        assert stage.router.nodes.node_left(A, now_ns=LATE) == []
        assert told(stage.answered(B, answer(2))) == [[b"value"]]

    def test_it_is_asked_again_when_it_is_back(self) -> None:
        """S4: the copy that was asked meanwhile may go, too, one after the other."""
        stage = Stage()
        stage.ask()
        stage.locations[5] = location(links=(AGAIN, B, C), copy_links=(AGAIN, B, C))
        assert [
            node for node, _ in questions(stage.router.nodes.node_left(A, now_ns=MS))
        ] == [B]
        stage.locations[5] = location(
            links=(AGAIN, None, None),
            copy_links=(AGAIN, None, None),
            sole_key_groups=SOLE,
        )
        again = questions(stage.router.nodes.node_left(B, now_ns=2 * MS))
        assert [node for node, _ in again] == [AGAIN]
        assert told(stage.answered(AGAIN, answer(1))) == [[b"value"]]

    def test_what_only_it_has_is_asked_again_when_it_is_back(self) -> None:
        """Q4: a connection that was replaced is no failure."""
        stage = Stage()
        stage.ask()
        stage.locations[5] = location(
            links=(AGAIN, None, None),
            copy_links=(AGAIN, None, None),
            sole_key_groups=SOLE,
        )
        assert told(stage.router.nodes.node_left(A, now_ns=MS)) == [STALE_ROUTE]

    @pytest.mark.parametrize("is_refused", [False, True])
    def test_while_settling_none_is_away(self, is_refused: bool) -> None:
        """S2: neither a primary that has not come yet, nor a copy that fails."""
        stage = Stage()
        stage.is_settled = False
        stage.locations[5] = location(links=(None, B, C), copy_links=(None, B, C))
        ((_, asked),) = questions(stage.ask())
        stage.locations[5] = location(
            links=(None,) * 3, copy_links=(None,) * 3, sole_key_groups=SOLE
        )
        nodes = stage.router.nodes
        if is_refused:
            error = StateUnavailableError("", None, (), 0.1, "it is not registered")
            refusal = refusal_of(error, asked.question_id)
            outgoing = nodes.refused(B, refusal, now_ns=MS)
        else:
            outgoing = nodes.node_left(B, now_ns=MS)
        assert told(outgoing) == [STALE_ROUTE]

    def test_the_primary_outlives_a_hedge(self) -> None:
        """S4: likewise, when the copy goes."""
        stage = Stage()
        stage.ask()
        stage.router.expire(now_ns=LATE)
        stage.locations[5] = location(links=(A, None, C), copy_links=(A, None, C))
        assert told(stage.router.nodes.node_left(B, now_ns=LATE)) == []
        assert told(stage.answered(A, answer(1))) == [[b"value"]]

    def test_others_are_asked_for_what_it_refuses(self) -> None:
        """D4: its lease is over, its disk does not read, or its rows are lost."""
        stage = Stage()
        stage.ask()
        moved = questions(
            stage.router.nodes.refused(A, refusal_of(UNAVAILABLE, 1), now_ns=MS)
        )
        assert [node for node, _ in moved] == [B]
        refused = stage.router.nodes.refused(B, refusal_of(UNAVAILABLE, 2), now_ns=MS)
        assert told(refused) == [STALE_ROUTE]

    @pytest.mark.parametrize("code", [STALE_ROUTE, NOT_LEADER, "illegal"])
    def test_what_others_would_say_too_is_passed_on(self, code: str) -> None:
        """D4: a copy would not know better; it is not asked, or asked no more."""
        stage = Stage()
        stage.ask()
        stage.router.expire(now_ns=LATE)
        outgoing = stage.router.nodes.refused(
            A, Refusal(request_id=1, code=code), now_ns=LATE
        )
        assert (told(outgoing), cancelled(outgoing)) == ([code], [(B, (2,))])

    def test_an_asker_that_goes_takes_everything_along(self) -> None:
        """B2: both nodes are told to forget it."""
        stage = Stage()
        stage.ask()
        stage.router.expire(now_ns=LATE)
        outgoing = stage.router.client_left(CLIENT)
        assert sorted(cancelled(outgoing)) == [(A, (1,)), (B, (2,))]
        assert stage.router.pending_count == 0

    def test_both_are_over_with_the_leadership(self) -> None:
        """Q4: one refusal, and no answer any more."""
        stage = Stage()
        stage.ask()
        stage.router.expire(now_ns=LATE)
        assert told(stage.router.stop_leading(NOT_LEADER)) == [NOT_LEADER]
        assert stage.answered(B, answer(2)) == []
        assert stage.answered(A, answer(1)) == []
        assert stage.router.next_deadline_ns() is None


@pytest.mark.proves("D5")
class TestAnswersOfCopies:
    """They count like any other."""

    def test_they_are_cached_if_they_are_new_enough(self) -> None:
        """Q3: not one that is older than the last known commit."""
        stage = Stage(cache_rules=[CacheRule(state="*/*", ttl_seconds=60.0)])
        stage.ask()
        stage.router.expire(now_ns=LATE)
        stage.answered(B, answer(2, batch_id=2))
        assert questions(stage.ask(now_ns=LATE)) != []
        stage.router.expire(now_ns=2 * LATE)
        stage.answered(B, answer(4))
        (again,) = stage.ask(now_ns=2 * LATE)
        assert isinstance(again.message, Told)
        assert again.message.reading.is_cached

    def test_a_reader_pays_once(self) -> None:
        """C2: that two nodes were asked is the proxy's own decision."""
        rule = RateLimitRule(
            scope=RateLimitScope.STATE, state="*/*", keys_per_second=0.001, burst=4
        )
        stage = Stage(rules=[rule])
        stage.ask()
        stage.router.expire(now_ns=LATE)
        stage.answered(B, answer(2, row_count=2))
        stage.answered(A, answer(1, row_count=2))
        assert questions(stage.ask(now_ns=LATE)) != []
        assert questions(stage.ask(now_ns=LATE)) != []
        assert told(stage.ask(now_ns=LATE)) == ["rate-limited"]


@pytest.mark.proves("D4", "Q3")
@given(st.data())
def test_every_read_ends_once(data: st.DataObject) -> None:
    """Q3, D4: whatever nodes do, each read is answered or refused once, in time."""
    stage = Stage()
    now_ns = 0
    open_questions: list[tuple[LinkId, int]] = []
    ended: list[int] = []
    links: list[LinkId | None] = [A, B, C]

    def take(outgoing: Sequence[Outgoing]) -> None:
        for one in outgoing:
            if isinstance(one.message, Question):
                assert one.link in links
                open_questions.append((one.link, one.message.question_id))
            elif isinstance(one.message, Told | Refusal):
                ended.append(one.message.request_id)

    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["ask", "time", "answer", "refuse", "leave"])):
            case "ask":
                keys = data.draw(st.sampled_from([ONE, TWO]))
                take(stage.ask(keys, now_ns=now_ns))
            case "time":
                now_ns += data.draw(st.sampled_from([MS, LATE, 3 * LATE, 2_000 * MS]))
                take(stage.router.expire(now_ns=now_ns))
            case "leave":
                index = data.draw(st.integers(0, 2))
                link, links[index] = links[index], None
                here = tuple(links)
                stage.locations[5] = location(links=here, copy_links=here)
                if link is not None:
                    open_questions = [one for one in open_questions if one[0] != link]
                    take(stage.router.nodes.node_left(link, now_ns=now_ns))
            case what if open_questions:
                index = data.draw(st.integers(0, len(open_questions) - 1))
                node, question_id = open_questions.pop(index)
                if what == "answer":
                    batch_id = data.draw(st.integers(3, 5))
                    values = encode([b"v"] * data.draw(st.integers(1, 2)))
                    told_to = answer(question_id, batch_id)
                    take(stage.answered(node, told_to, values, now_ns=now_ns))
                else:
                    code = data.draw(
                        st.sampled_from([UNAVAILABLE, DidNotHappenError("no")])
                    )
                    refused = refusal_of(code, question_id)
                    take(stage.router.nodes.refused(node, refused, now_ns=now_ns))
    take(stage.router.expire(now_ns=now_ns + 5_000 * MS))
    assert sorted(ended) == list(range(1, stage.number + 1))
    assert stage.router.pending_count == 0
    pending = stage.router.nodes.pending
    assert (pending._parts, pending._of_node, pending._of_client) == ({}, {}, {})


def stage_question(
    question_id: int,
    *,
    copies: tuple[tuple[int, int], ...] | None = None,
    left_ms: int = 5_000,
) -> Question:
    """Return what a node is asked for `Stage.ask`."""
    return Question(
        leader_epoch=7,
        question_id=question_id,
        state_number=5,
        assignment_version=1,
        operation=GetValues(),
        deadline_ms=left_ms,
        asker="connection 1",
        copies=copies,
    )
