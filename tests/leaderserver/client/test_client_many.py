"""
`ClientCore` with more contenders and retrievers than fit into one message.

What hangs on it: a thousand contenders must not stand between a leader and its
heartbeats, and must not be asked for again and again while the server works.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from leaderserver import codec
from leaderserver.client.core.events import (
    CallAsked,
    CloseAsked,
    CompleteCall,
    ContenderAdded,
    ContenderRemoved,
    LinkClosed,
    LinkOpened,
    RetrieverAdded,
    SendMessage,
)
from leaderserver.messages import (
    BATCH_COUNT_MAX,
    BatchReply,
    BatchRequest,
    DoneReply,
    FailedReply,
    Failure,
    HeartbeatRequest,
    RegisteredReply,
    RegisterRequest,
    Request,
    SnapshotReply,
    SubscribeRequest,
    WithdrawRequest,
)
from leaderserver.store_messages import GetRequest
from tests.leaderserver.client.core.test_core import Client


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leaderserver.client.core.events import ClientEffect
    from leaderserver.messages import BatchedBody, BatchedReply, RequestBody


MANY: Final = 1_000
UNKNOWN: Final = SnapshotReply(revision=0, is_undecided=False, publication=None)
UNDECIDED: Final = SnapshotReply(revision=0, is_undecided=True, publication=None)


def requests(effects: Iterable[ClientEffect]) -> list[Request]:
    """Return the requests that are sent, in their order."""
    return [
        effect.message
        for effect in effects
        if isinstance(effect, SendMessage) and isinstance(effect.message, Request)
    ]


def bodies(request: Request) -> Sequence[RequestBody]:
    """Return what a request asks for, one by one."""
    if isinstance(request.body, BatchRequest):
        return request.body.bodies
    return [request.body]


def answer_to(body: BatchedBody) -> BatchedReply:
    """Return how a server without anything to tell answers."""
    if isinstance(body, RegisterRequest):
        return RegisteredReply(ticket=1)
    return UNKNOWN if isinstance(body, SubscribeRequest) else DoneReply()


def answer(client: Client, request: Request) -> list[Request]:
    """Have the server do what *request* asks for; return what is sent then."""
    if isinstance(request.body, BatchRequest):
        answers = [answer_to(body) for body in request.body.bodies]
        return requests(client.answer(BatchReply(bodies=answers), request.number))
    assert isinstance(request.body, RegisterRequest | SubscribeRequest)
    return requests(client.answer(answer_to(request.body), request.number))


def add_contender(client: Client, index: int, name: str = "job") -> list[Request]:
    """Enter contender *index*; return what is sent."""
    added = ContenderAdded(
        contender_id=f"x{index}",
        component_id=f"c/{name}-{index}",
        confirm_timeout_ns=500,
    )
    return requests(client.step(added))


def add_retriever(client: Client, index: int) -> list[Request]:
    """Enter retriever *index*; return what is sent."""
    added = RetrieverAdded(retriever_id=index, component_id=f"c/job-{index}")
    return requests(client.step(added))


def settle(client: Client, sent: list[Request]) -> list[Request]:
    """Answer everything but heartbeats until nothing is sent any more; return it."""
    done: list[Request] = []
    while sent:
        request = sent.pop(0)
        done.append(request)
        if not isinstance(request.body, HeartbeatRequest):
            sent += answer(client, request)
    return done


@pytest.fixture
def opened() -> Client:
    """A client in contact, without contenders."""
    client = Client()
    client.step(LinkOpened())
    client.open()
    client.acknowledge()
    return client


class TestBatches:
    def test_a_thousand_of_each_are_put_into_few_messages(self) -> None:
        """N3: registrations and subscriptions go many to a message, in their order."""
        client = Client()
        for index in range(MANY):
            add_contender(client, index)
            add_retriever(client, index)
        client.step(LinkOpened())
        sent = settle(client, requests(client.open()))
        wishes = [body for request in sent[1:] for body in bodies(request)]
        registered = [b for b in wishes if isinstance(b, RegisterRequest)]
        subscribed = [b for b in wishes if isinstance(b, SubscribeRequest)]
        assert [b.component_id for b in registered] == [
            f"c/job-{index}" for index in range(MANY)
        ]
        assert [b.component_id for b in subscribed] == [
            f"c/job-{index}" for index in range(MANY)
        ]
        assert len(sent) == 1 + 2 * MANY // BATCH_COUNT_MAX
        assert not settle(client, requests(e for _, e in client.wait(19)))

    def test_what_stands_alone_is_sent_as_it_is(self, opened: Client) -> None:
        """A batch of one would only be longer."""
        _, request = add_contender(opened, 1)  # after a heartbeat
        assert isinstance(request.body, RegisterRequest)

    def test_a_batch_fits_into_the_smallest_frame(self) -> None:
        """N3: however long the names are."""
        client = Client()
        for index in range(BATCH_COUNT_MAX):
            add_contender(client, index, "\N{SNOWMAN}" * 200)
        client.step(LinkOpened())
        sent = settle(client, requests(client.open()))
        sizes = [len(codec.encode(request)) for request in sent]
        assert max(sizes) < 65_536
        assert min(sizes[1:-1]) > 50_000  # and they are not small for no reason
        assert sum(len(bodies(request)) for request in sent[1:]) == BATCH_COUNT_MAX

    def test_each_answer_is_of_its_own_request(self, opened: Client) -> None:
        """E8: one that is refused is told why; the others are entered."""
        _, first = add_contender(opened, 0)
        (second,) = add_contender(opened, 1)
        for index in range(2, 5):
            assert not add_contender(opened, index)  # two messages are under way
        (batch,) = answer(opened, first)
        assert len(bodies(batch)) == 3
        refused = FailedReply(reason=Failure.LIMIT_REACHED, detail="too many")
        told = opened.answer(
            BatchReply(
                bodies=[RegisteredReply(ticket=2), refused, RegisteredReply(ticket=4)]
            ),
            batch.number,
        )
        (report,) = told
        assert report.contender_id == "x3"  # type: ignore[union-attr]
        assert not answer(opened, second)

    def test_who_has_left_meanwhile_takes_no_answer(self, opened: Client) -> None:
        """E7: its answer is passed over; those of the others find them."""
        _, first = add_contender(opened, 0)
        add_contender(opened, 1)
        for index in range(2, 5):
            add_contender(opened, index)
        (batch,) = answer(opened, first)
        left = ContenderRemoved(contender_id="x3", call_id=7, deadline_ns=500)
        (withdraw,) = requests(opened.step(left))
        assert withdraw.body == WithdrawRequest(
            component_id="c/job-3", contender_id="x3"
        )
        assert answer(opened, batch) == []
        (completed,) = opened.answer(DoneReply(), withdraw.number)
        assert completed == CompleteCall(call_id=7, reply=DoneReply())

    def test_a_batch_that_is_refused_as_a_whole_is_asked_one_by_one(self) -> None:
        """A server that takes no batches is served all the same."""
        client = Client()
        for index in range(3):
            add_contender(client, index)
        client.step(LinkOpened())
        _, batch = requests(client.open())
        assert len(bodies(batch)) == 3
        refused = FailedReply(reason=Failure.INVALID, detail="no batches")
        assert client.answer(refused, batch.number) == []
        sent = [r for r in requests(e for _, e in client.wait(50)) if _is_wish(r)]
        assert [len(bodies(request)) for request in sent] == [1, 1]
        assert len([r for r in answer(client, sent[0]) if _is_wish(r)]) == 1


class TestHeartbeats:
    def test_they_are_sent_on_time_while_nothing_is_answered(
        self, opened: Client
    ) -> None:
        """E4: a heartbeat never waits for what a thousand contenders ask."""
        for index in range(MANY):
            add_contender(opened, index)
            add_retriever(opened, index)
        beats = [
            at
            for at, effect in opened.wait(99)
            for request in requests([effect])
            if isinstance(request.body, HeartbeatRequest)
        ]
        assert beats == [20, 40, 60, 80]

    def test_little_stands_between_them(self, opened: Client) -> None:
        """E4: what is under way at any time is a few messages, whatever waits."""
        for index in range(MANY):
            add_contender(opened, index)
            add_retriever(opened, index)
        done = requests(effect for _, effect in opened.wait(1_000))
        between = 0
        most = 0
        for request in done:
            if isinstance(request.body, HeartbeatRequest):
                most, between = max(most, between), 0
            else:
                between += 1
        assert 0 < most <= 2


class TestBackoff:
    def test_what_is_not_answered_is_asked_less_and_less(self, opened: Client) -> None:
        """Each wait is twice the one before, and two leases in the end."""
        add_contender(opened, 0)
        times = [
            at
            for at, effect in opened.wait(900)
            for request in requests([effect])
            if isinstance(request.body, RegisterRequest)
        ]
        assert times == [20, 60, 140, 300, 500, 700, 900]

    def test_what_is_not_answered_together_is_asked_in_smaller_parts(self) -> None:
        """N3: a batch that is too large for somebody does not stay so for ever."""
        client = Client()
        for index in range(BATCH_COUNT_MAX):
            add_contender(client, index)
        client.step(LinkOpened())
        _, batch = requests(client.open())
        assert len(bodies(batch)) == BATCH_COUNT_MAX
        sizes = [
            len(bodies(request))
            for request in requests(effect for _, effect in client.wait(900))
            if _is_wish(request)
        ]
        assert sizes[:2] == [25, 25]
        assert all(later <= earlier for earlier, later in pairwise(sizes))
        assert sizes[-1] == 1

    def test_a_new_connection_begins_anew(self, opened: Client) -> None:
        """What was lost with the old one is asked at once, and many to a message."""
        for index in range(10):
            add_contender(opened, index)
        opened.wait(90)
        opened.step(LinkClosed())
        _, batch = requests(opened.step(LinkOpened()))
        assert len(bodies(batch)) == 10

    def test_undecided_ones_wait_for_the_decision(self) -> None:
        """E9: asked again at once when a heartbeat's answer tells, not before."""
        client = Client()
        for index in range(MANY):
            add_retriever(client, index)
        client.step(LinkOpened())
        waiting = requests(client.open())
        beat = waiting.pop(0)
        asked = 0
        while waiting:
            request = waiting.pop(0)
            asked += len(bodies(request))
            answers: list[BatchedReply] = [UNDECIDED] * len(bodies(request))
            waiting += requests(
                client.answer(BatchReply(bodies=answers), request.number)
            )
        assert asked == MANY
        assert requests(client.acknowledge(number=beat.number, is_undecided=True)) == []
        (beat,) = requests(effect for _, effect in client.wait(19))[:1] or [beat]
        done = settle(client, requests(client.acknowledge(number=beat.number)))
        assert sum(len(bodies(request)) for request in done) == MANY
        assert len(done) == MANY // BATCH_COUNT_MAX


class TestCalls:
    def test_so_many_are_under_way_and_the_others_follow(self, opened: Client) -> None:
        """N3: an answer makes room for the next; each is answered in the end."""
        numbers = []
        for call_id in range(1, 101):
            body = GetRequest(component_id="c/job", path=str(call_id))
            asked = CallAsked(
                call_id=call_id, body=body, deadline_ns=500, is_repeatable=False
            )
            numbers += [request.number for request in requests(opened.step(asked))]
        assert len(numbers) == 64
        completed = []
        while numbers:
            effects = opened.answer(DoneReply(), numbers.pop(0))
            completed += [e.call_id for e in effects if isinstance(e, CompleteCall)]
            numbers += [request.number for request in requests(effects)]
        assert completed == list(range(1, 101))

    def test_one_that_never_had_its_turn_did_not_happen(self, opened: Client) -> None:
        """L4: a write that was not sent may be tried again."""
        for call_id in range(1, 66):
            body = GetRequest(component_id="c/job", path=str(call_id))
            opened.step(
                CallAsked(
                    call_id=call_id, body=body, deadline_ns=15, is_repeatable=False
                )
            )
        errors = {
            effect.call_id: type(effect.error).__name__
            for _, effect in opened.wait(15)
            if isinstance(effect, CompleteCall)
        }
        assert errors[64] == "MayHaveHappenedError"
        assert errors[65] == "DidNotHappenError"

    def test_closing_does_not_wait_for_what_is_under_way(self, opened: Client) -> None:
        """E5: the session ends at once, however much was asked for."""
        for index in range(MANY):
            add_contender(opened, index)
        close = requests(opened.step(CloseAsked(call_id=9, deadline_ns=50)))
        assert len(close) == 1


def _is_wish(request: Request) -> bool:
    return not isinstance(request.body, HeartbeatRequest)
