"""`NodeWays` in a `QueryCore`: when a node is asked, and when the proxy is."""

from __future__ import annotations

from typing import Any

import pytest

from nameservice import NS_PER_SECOND
from queryablestate.client.config import QueryConfig, reading_config
from queryablestate.client.events import (
    ClientClosed,
    ConnectionFailed,
    ConnectNode,
    DisconnectNode,
    MessageCame,
    NodeConnected,
    NodeFailed,
    QueryEffect,
    RequestsDropped,
    SendRequest,
)
from queryablestate.client.requests import KeysRead, NodeRead
from queryablestate.wire.clients import DescribeState, StateDescribed
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.direct import (
    ASK_PROXY,
    NOT_DIRECTLY,
    TICKET_REFUSED,
    AskNode,
    DirectAccess,
    ShowTicket,
)
from queryablestate.wire.questions import (
    Ask,
    CountKeys,
    Reading,
    Refusal,
    ScanRows,
    Told,
)
from queryablestate.wire.refusals import STALE_ROUTE
from tests.queryablestate.query_conversation import (
    DEADLINE_NS,
    MS,
    Conversation,
    number_of,
)
from tests.queryablestate.scripted_state import ScriptedState, row


LIFE_MS = 10_000
ADDRESSES = ("tcp://10.0.1.1:1", "tcp://10.0.1.2:1")

pytestmark = pytest.mark.proves("D1", "D3")


def make(**changed: Any) -> Conversation:
    """Return a client that would ask nodes, and a state on one of them."""
    state = ScriptedState(
        rows={f"N{n}": (f"A{n}", n) for n in range(100)}, node_count=1
    )
    config = reading_config(QueryConfig(**changed), direct=True)
    return Conversation(state, config=config)


def route(
    talk: Conversation,
    effect: QueryEffect,
    *,
    ticket: bytes = b"ticket",
    life_ms: int = LIFE_MS,
    addresses: tuple[str | None, ...] | None = None,
) -> tuple[QueryEffect, ...]:
    """Let the proxy describe the state, and give a ticket for it."""
    if addresses is None:
        addresses = ADDRESSES[: len(talk.state.node_ids)]
    direct = DirectAccess(ticket=ticket, life_ms=life_ms, addresses=addresses)
    return talk.say(
        StateDescribed(
            request_id=number_of(effect),
            description=talk.state.description,
            direct=direct,
        )
    )


def begin(talk: Conversation) -> None:
    """Come to where the way to the node is open, and it was shown the ticket."""
    (describe,) = talk.begin(talk.read("N0"))
    connect, ask = route(talk, describe)
    assert connect == ConnectNode(link=1, address=ADDRESSES[0])
    talk.settle([ask])
    assert talk.step(NodeConnected(link=1)) == ()
    show, ask = talk.ask(talk.read("N0"))
    assert isinstance(show, SendRequest)
    assert show.message == ShowTicket(ticket_id=ticket_id(talk), ticket=b"ticket")
    answer(talk, ask)


def ticket_id(talk: Conversation) -> int:
    """Return what the node knows the ticket by."""
    (traffic,) = talk.core._keys.routes.traffic.values()
    return traffic.ticket_id


def direct(effect: QueryEffect, *, link: int = 1) -> AskNode:
    """Return what a node is asked by *effect*."""
    assert isinstance(effect, SendRequest)
    assert effect.link == link
    assert isinstance(effect.message, AskNode)
    return effect.message


def proxied(effect: QueryEffect) -> Ask:
    """Return what the proxy is asked by *effect*."""
    assert isinstance(effect, SendRequest)
    assert effect.link == 0
    assert isinstance(effect.message, Ask)
    return effect.message


def answer(
    talk: Conversation, effect: QueryEffect, *, batch_id: int = 1, link: int = 1
) -> tuple[QueryEffect, ...]:
    """Let the node answer what it was asked."""
    asked = direct(effect, link=link)
    assert isinstance(effect, SendRequest)
    assert effect.keys is not None
    flat = talk.state._stored_values()
    values = encode_payload([flat.get(key) for key in effect.keys])
    reading = Reading(generation=1, batch_id=batch_id, age_ms=5)
    told = Told(request_id=asked.request_id, reading=reading)
    return talk.step(MessageCame(told, values, link))


def refuse(
    talk: Conversation, effect: QueryEffect, code: str
) -> tuple[QueryEffect, ...]:
    """Let the node refuse what it was asked."""
    refusal = Refusal(request_id=direct(effect).request_id, code=code)
    return talk.step(MessageCame(refusal, b"", 1))


def rows(read: KeysRead) -> list[Any]:
    """Return what was found, by a read that is done."""
    assert read.is_done
    assert read.error is None
    return list(read.rows)


class TestAsking:
    """Who is asked."""

    def test_the_proxy_while_there_is_no_way(self) -> None:
        """D3: no read waits for a connection."""
        talk = make()
        first, second = talk.read("N1"), talk.read("N2")
        (describe,) = talk.begin(first)
        assert isinstance(describe, SendRequest)
        assert isinstance(describe.message, DescribeState)
        assert describe.message.wants_direct
        connect, ask = route(talk, describe)
        assert connect == ConnectNode(link=1, address=ADDRESSES[0])
        proxied(ask)
        talk.settle([ask])
        assert rows(first) == [row(1)]
        (ask,) = talk.ask(second)
        proxied(ask)
        talk.settle([ask])
        assert rows(second) == [row(2)]

    def test_the_node_when_the_way_is_open(self) -> None:
        """D1: it is shown the ticket once, and then asked: two messages for a read."""
        talk = make()
        begin(talk)
        read = talk.read("N3", "N4")
        (ask,) = talk.ask(read)
        assert direct(ask).ticket_id == ticket_id(talk)
        answer(talk, ask)
        assert rows(read) == [row(3), row(4)]
        assert read.reading == Reading(generation=1, batch_id=1, age_ms=5)

    def test_by_the_shortest_way(self) -> None:
        """D1: a single key takes no step of the core."""
        talk = make()
        begin(talk)
        read = talk.read("N5")
        effect = talk.core.ask_now(read)
        assert effect is not None
        direct(effect)
        talk.core.check_invariants()
        answer(talk, effect)
        assert rows(read) == [row(5)]

    def test_the_shortest_way_shows_no_ticket(self) -> None:
        """D1: who was not shown it yet is asked by the long way, which shows it."""
        talk = make()
        (describe,) = talk.begin(talk.read("N0"))
        _, ask = route(talk, describe)
        talk.settle([ask])
        talk.step(NodeConnected(link=1))
        read = talk.read("N1")
        assert talk.core.ask_now(read) is None
        assert len(talk.ask(read)) == 2

    def test_a_client_that_wants_none(self) -> None:
        """D2: ``direct=False`` asks the proxy for everything."""
        config = reading_config(None, direct=False)
        talk = Conversation(ScriptedState(rows={"N0": ("A0", 0)}), config=config)
        (describe,) = talk.begin(talk.read("N0"))
        assert isinstance(describe, SendRequest)
        assert isinstance(describe.message, DescribeState)
        assert not describe.message.wants_direct
        effects = route(talk, describe, addresses=ADDRESSES)
        assert [proxied(one).operation for one in effects]

    def test_a_node_without_an_address(self) -> None:
        """D3: its part is asked of the proxy."""
        talk = make()
        (describe,) = talk.begin(talk.read("N0"))
        (ask,) = route(talk, describe, addresses=(None,))
        proxied(ask)

    def test_what_is_much_goes_through_the_proxy(self) -> None:
        """B2: what takes a node long takes its turn there."""
        talk = make()
        begin(talk)
        keys = [f"N{'0' * 100}{n}" for n in range(400)]
        (ask,) = talk.ask(talk.read(*keys))
        proxied(ask)

    @pytest.mark.proves("Q1", "D5")
    def test_an_older_answer_is_not_taken(self) -> None:
        """Q1: on every way: it is asked for again, for the newest batch seen."""
        talk = make()
        begin(talk)
        (ask,) = talk.ask(talk.read("N1"))
        answer(talk, ask, batch_id=7)
        read = talk.read("N1")
        (ask,) = talk.ask(read)
        again = answer(talk, ask, batch_id=6)
        assert not read.is_done
        (ask,) = again
        assert (direct(ask).min_generation, direct(ask).min_batch_id) == (1, 7)
        # The node does not wait; the proxy has it wait.
        (ask,) = refuse(talk, ask, NOT_DIRECTLY)
        assert proxied(ask).min_batch_id == 7


class TestTickets:
    """How long a ticket is used."""

    def test_it_is_renewed_in_passing(self) -> None:
        """D1: at two thirds of its life, and shown again."""
        talk = make()
        begin(talk)
        talk.now_ns += LIFE_MS * MS * 2 // 3
        ask, describe = talk.ask(talk.read("N1"))
        if isinstance(ask, SendRequest) and isinstance(ask.message, DescribeState):
            ask, describe = describe, ask
        answer(talk, ask)
        assert route(talk, describe, ticket=b"another") == ()
        show, ask = talk.ask(talk.read("N1"))
        assert isinstance(show, SendRequest)
        assert show.message == ShowTicket(ticket_id=ticket_id(talk), ticket=b"another")
        direct(ask)

    def test_one_that_is_over_is_not_used(self) -> None:
        """D2: the proxy is asked, and for another ticket."""
        talk = make()
        begin(talk)
        talk.now_ns += LIFE_MS * MS
        effects = talk.ask(talk.read("N1"))
        assert sorted(type(one.message).__name__ for one in sent(effects)) == [
            "Ask",
            "DescribeState",
        ]

    @pytest.mark.proves("D2")
    @pytest.mark.parametrize("code", [TICKET_REFUSED, STALE_ROUTE, "not-leader"])
    def test_one_that_is_refused(self, code: str) -> None:
        """D2: the read goes to the proxy at once, and later ones until a new route."""
        talk = make()
        begin(talk)
        read = talk.read("N1")
        (ask,) = talk.ask(read)
        (ask,) = refuse(talk, ask, code)
        proxied(ask)
        talk.settle([ask])
        assert rows(read) == [row(1)]
        talk.now_ns += 20 * MS
        describe, ask = sorted(
            sent(talk.ask(talk.read("N2"))),
            key=lambda one: isinstance(one.message, Ask),
        )
        proxied(ask)
        talk.settle([ask])
        route(talk, describe, ticket=b"another")
        _, ask = talk.ask(talk.read("N2"))
        direct(ask)

    def test_it_is_not_kept_beyond_a_session(self) -> None:
        """D2: there may be another leader by then."""
        talk = make()
        begin(talk)
        (ask,) = talk.ask(talk.read("N1"))
        talk.step(ConnectionFailed())
        (traffic,) = talk.core._keys.routes.traffic.values()
        assert traffic.direct is None
        assert answer(talk, ask) == ()  # what comes late is passed over


class TestRefusing:
    """A node that does not answer."""

    def test_one_that_answers_nobody_now(self) -> None:
        """D2: the proxy is asked for everything, for a while."""
        talk = make()
        begin(talk)
        (ask,) = talk.ask(talk.read("N1"))
        (ask,) = refuse(talk, ask, ASK_PROXY)
        talk.settle([ask])
        (ask,) = talk.ask(talk.read("N2"))
        proxied(ask)
        talk.settle([ask])
        talk.now_ns += NS_PER_SECOND
        (ask,) = talk.ask(talk.read("N2"))
        direct(ask)

    def test_one_that_does_not_answer_that(self) -> None:
        """B2: the proxy is asked for the same, the node for the rest."""
        talk = make()
        begin(talk)
        (ask,) = talk.ask(talk.read("N1"))
        (ask,) = refuse(talk, ask, NOT_DIRECTLY)
        talk.settle([ask])
        (ask,) = talk.ask(talk.read("N2"))
        proxied(ask)
        talk.settle([ask])
        talk.now_ns += 2 * NS_PER_SECOND
        (ask,) = talk.ask(talk.read("N2"))
        direct(ask)

    def test_a_message_that_makes_no_sense(self) -> None:
        """N3: it answers nothing."""
        talk = make()
        begin(talk)
        read = talk.read("N1")
        (ask,) = talk.ask(read)
        number = direct(ask).request_id
        described = StateDescribed(
            request_id=number, description=talk.state.description
        )
        assert talk.step(MessageCame(described, b"", 1)) == ()
        assert not read.is_done
        # Nor does what comes over another connection.
        told = Told(
            request_id=number, reading=Reading(generation=1, batch_id=1, age_ms=1)
        )
        assert talk.step(MessageCame(told, b"\x90", 2)) == ()
        assert not read.is_done


class TestLate:
    """A node that is late, silent, or not there (D4 in the client)."""

    @pytest.mark.proves("D4")
    def test_the_proxy_is_asked_too(self) -> None:
        """D4: after the hedge delay; the first answer counts, the other is dropped."""
        talk = make()
        begin(talk)
        read = talk.read("N1")
        (ask,) = talk.ask(read)
        (hedge,) = talk.wait(20 * MS)
        assert proxied(hedge).request_id == direct(ask).request_id
        talk.settle([hedge])
        assert rows(read) == [row(1)]
        assert answer(talk, ask) == ()

    def test_the_node_may_still_be_first(self) -> None:
        """D4: likewise."""
        talk = make()
        begin(talk)
        read = talk.read("N1")
        (ask,) = talk.ask(read)
        (hedge,) = talk.wait(20 * MS)
        answer(talk, ask)
        assert rows(read) == [row(1)]
        assert talk.answer(hedge) == ()

    @pytest.mark.proves("D4")
    def test_hedges_are_few(self) -> None:
        """D4: a tenth of the reads, and some that were saved up."""
        talk = make()
        begin(talk)
        hedged = 0
        for _ in range(100):
            (ask,) = talk.ask(talk.read("N1"))
            effects = talk.wait(20 * MS)
            hedged += len(effects)
            for effect in effects:
                proxied(effect)
            answer(talk, ask)
        assert 10 <= hedged <= 20

    @pytest.mark.proves("D4")
    def test_a_silent_node_is_left(self) -> None:
        """D4: its reads go to the proxy, and it is connected to again after a while."""
        talk = make()
        begin(talk)
        reads = [talk.read(f"N{n}") for n in range(3)]
        for read in reads:
            talk.ask(read)
            talk.now_ns += MS
        effects: list[QueryEffect] = []
        for _ in range(10):
            if any(isinstance(one, DisconnectNode) for one in effects):
                break
            effects += talk.wait_for_deadline()
        assert DisconnectNode(link=1) in effects
        asked = [one for one in sent(effects) if isinstance(one.message, Ask)]
        talk.settle(asked)
        for number, read in enumerate(reads):
            assert rows(read) == [row(number)]
        (ask,) = talk.ask(talk.read("N9"))
        proxied(ask)
        talk.settle([ask])
        talk.now_ns += NS_PER_SECOND
        connect, ask = talk.ask(talk.read("N9"))
        assert connect == ConnectNode(link=2, address=ADDRESSES[0])

    def test_within_a_tenth_of_the_deadline(self) -> None:
        """D3: whatever the budget says."""
        talk = make()
        begin(talk)
        for _ in range(40):  # these use it up
            (ask,) = talk.ask(talk.read("N1"))
            talk.wait(20 * MS)
            answer(talk, ask)
        read = talk.read("N2")
        talk.ask(read)
        asked_ns = talk.now_ns
        effects: list[QueryEffect] = []
        while not [one for one in sent(effects) if isinstance(one.message, Ask)]:
            effects += talk.wait_for_deadline()
        assert talk.now_ns - asked_ns <= DEADLINE_NS // 10 + 20 * MS
        talk.settle([one for one in sent(effects) if isinstance(one.message, Ask)])
        assert rows(read) == [row(2)]

    def test_a_connection_that_is_lost(self) -> None:
        """D3: what was asked over it is asked of the proxy at once."""
        talk = make()
        begin(talk)
        read = talk.read("N1")
        talk.ask(read)
        (ask,) = talk.step(NodeFailed(link=1))
        proxied(ask)
        talk.settle([ask])
        assert rows(read) == [row(1)]

    def test_a_node_that_cannot_be_reached(self) -> None:
        """D3: it is tried again, ever more seldom, and costs no read anything."""
        talk = make()
        (describe,) = talk.begin(talk.read("N0"))
        _, ask = route(talk, describe, life_ms=3_600_000)
        talk.settle([ask])
        pauses = []
        for link in range(1, 8):
            failed_ns = talk.now_ns
            assert talk.step(NodeFailed(link=link)) == ()
            while True:
                talk.now_ns += 100 * MS
                effects = talk.ask(talk.read("N1"))
                asked = [one for one in sent(effects) if isinstance(one.message, Ask)]
                describing = [
                    one
                    for one in sent(effects)
                    if isinstance(one.message, DescribeState)
                ]
                talk.settle(asked)
                for one in describing:
                    route(talk, one, life_ms=3_600_000)
                if any(isinstance(one, ConnectNode) for one in effects):
                    break
            pauses.append(round((talk.now_ns - failed_ns) / NS_PER_SECOND))
        assert pauses == [1, 2, 4, 8, 16, 30, 30]

    def test_a_node_that_lets_us_not_in(self) -> None:
        """D3: without its CURVE keys it is left alone for a minute."""
        talk = make()
        (describe,) = talk.begin(talk.read("N0"))
        _, ask = route(talk, describe, life_ms=3_600_000)
        talk.settle([ask])
        talk.step(NodeFailed(link=1, is_refused=True))
        talk.now_ns += 59 * NS_PER_SECOND
        effects = talk.ask(talk.read("N1"))
        assert not [one for one in effects if isinstance(one, ConnectNode)]

    def test_ways_are_closed(self) -> None:
        """B4: those that no route leads over, and all of them with the client."""
        talk = make()
        begin(talk)
        talk.now_ns += LIFE_MS * MS
        (describe,) = [
            one
            for one in sent(talk.ask(talk.read("N1")))
            if isinstance(one.message, DescribeState)
        ]
        moved = route(talk, describe, addresses=("tcp://10.0.9.9:1",))
        assert DisconnectNode(link=1) in moved
        talk.ask(talk.read("N2"))
        assert DisconnectNode(link=2) in talk.step(ClientClosed())

    def test_what_is_asked_by_a_way_that_is_closed(self) -> None:
        """D3: it is asked of the proxy at once."""
        talk = make()
        begin(talk)
        talk.now_ns += LIFE_MS * MS * 2 // 3
        read = talk.read("N1")
        effects = talk.ask(read)
        (describe,) = [
            one for one in sent(effects) if isinstance(one.message, DescribeState)
        ]
        closing, ask = route(talk, describe, addresses=(None,))
        assert closing == DisconnectNode(link=1)
        proxied(ask)
        talk.settle([ask])
        assert rows(read) == [row(1)]


def sent(effects: Any) -> list[SendRequest]:
    """Return what is sent by *effects*."""
    return [one for one in effects if isinstance(one, SendRequest)]


def page_of(
    talk: Conversation, *, operation: Any = None, deadline_ns: int = DEADLINE_NS
) -> NodeRead:
    """Return a question for a page, or for what *operation* says."""
    route = talk.core._keys.routes.traffic["flights", "aircraft"].route
    scan = ScanRows(start=b"", stop=None, limit=10)
    read = talk.node_read(route, 0, scan if operation is None else operation)
    read.deadline_ns = talk.now_ns + deadline_ns
    return read


def tell_count(
    talk: Conversation, effect: QueryEffect, *, batch_id: int = 1, link: int = 1
) -> tuple[QueryEffect, ...]:
    """Have the node answer a count with 3."""
    reading = Reading(generation=1, batch_id=batch_id, age_ms=5)
    told = Told(request_id=direct(effect, link=link).request_id, reading=reading)
    return talk.step(MessageCame(told, encode_payload(3), link))


COUNT = CountKeys()


class TestPages:
    """Pages of scans, and counts (`PageReads`)."""

    def test_the_node_is_asked(self) -> None:
        """D1: under the ticket; what follows is asked from where the page has ended."""
        talk = make()
        begin(talk)
        read = page_of(talk)
        (ask,) = talk.ask(read)
        assert direct(ask).operation == read.operation
        assert isinstance(ask, SendRequest)
        assert ask.keys == ()
        told = Told(
            request_id=direct(ask).request_id,
            reading=Reading(generation=1, batch_id=1, age_ms=5),
            next_start=b"x",
        )
        assert talk.step(MessageCame(told, b"\x90", 1)) == ()
        assert (read.is_done, read.result, read.next_start) == (True, [], b"x")

    def test_the_proxy_where_there_is_no_way(self) -> None:
        """D3: no page waits for a connection; it is opened for the next one."""
        talk = make()
        (describe,) = talk.begin(talk.route_read())
        assert route(talk, describe) == ()
        connect, ask = talk.ask(page_of(talk, operation=COUNT))
        assert connect == ConnectNode(link=1, address=ADDRESSES[0])
        proxied(ask)
        talk.settle([ask])
        talk.step(NodeConnected(link=1))
        show, ask = talk.ask(page_of(talk, operation=COUNT))
        assert isinstance(show, SendRequest)
        assert isinstance(show.message, ShowTicket)
        tell_count(talk, ask)

    def test_by_a_route_that_is_over(self) -> None:
        """S3: the proxy says what is wrong with it."""
        talk = make()
        begin(talk)
        read = page_of(talk)
        talk.state.version += 1
        talk.now_ns += LIFE_MS * MS * 2 // 3
        effects = sent(talk.ask(talk.read("N1")))
        (describe,) = [e for e in effects if isinstance(e.message, DescribeState)]
        route(talk, describe)
        read.asked_ns, read.deadline_ns = talk.now_ns, talk.now_ns + DEADLINE_NS
        (ask,) = [one for one in sent(talk.ask(read)) if isinstance(one.message, Ask)]
        assert isinstance(ask.message, Ask)
        assert ask.message.operation == read.operation

    @pytest.mark.proves("B2")
    def test_a_node_has_part_of_the_time(self) -> None:
        """B2, D3: it drops what takes longer, and then the proxy is asked: not both."""
        talk = make()
        begin(talk)
        read = page_of(talk, operation=COUNT)
        (ask,) = talk.ask(read)
        assert direct(ask).deadline_ms < DEADLINE_NS // 10 // MS
        (ask,) = refuse(talk, ask, NOT_DIRECTLY)
        proxied(ask)
        talk.settle([ask])
        assert read.error is None
        # It takes longer each time, so it goes through the proxy for a while.
        (ask,) = talk.ask(page_of(talk, operation=COUNT))
        proxied(ask)
        talk.settle([ask])
        (ask,) = talk.ask(page_of(talk))
        direct(ask)  # a page of a scan is another matter

    def test_the_pause_grows_and_ends(self) -> None:
        """D3: a kind of question that is refused is asked of the proxy for longer."""
        talk = make()
        begin(talk)
        (traffic,) = talk.core._keys.routes.traffic.values()
        holds = []
        for _ in range(8):
            (ask,) = talk.ask(page_of(talk, operation=COUNT))
            (ask,) = refuse(talk, ask, NOT_DIRECTLY)
            talk.settle([ask])
            until_ns, hold_ns = traffic.page_holds[CountKeys]
            holds.append(hold_ns // NS_PER_SECOND)
            traffic.direct.until_ns += hold_ns  # type: ignore[union-attr]  # it has one
            traffic.refresh_due_ns += hold_ns
            talk.now_ns = until_ns
        assert holds == [1, 2, 4, 8, 16, 30, 30, 30]
        (ask,) = talk.ask(page_of(talk, operation=COUNT))
        tell_count(talk, ask)
        assert not traffic.page_holds

    def test_a_silent_node_is_left(self) -> None:
        """D3: within a tenth of the time, with all that it was asked."""
        talk = make()
        begin(talk)
        read, other = page_of(talk, operation=COUNT), talk.read("N1")
        (ask,) = talk.ask(read)
        effects: list[QueryEffect] = []
        talk.now_ns += DEADLINE_NS // 10 - MS
        talk.ask(other)
        effects += talk.wait(MS)
        assert DisconnectNode(link=1) in effects
        asked = [one for one in sent(effects) if isinstance(one.message, Ask)]
        assert len(asked) == 2
        talk.settle(asked)
        assert (read.is_done, read.error) == (True, None)
        assert rows(other) == [row(1)]
        assert tell_count(talk, ask) == ()  # what comes late is passed over

    def test_a_node_that_says_something_else(self) -> None:
        """D3: it is there; only what is late is asked of the proxy, too."""
        talk = make()
        begin(talk)
        read = page_of(talk, operation=COUNT)
        (ask,) = talk.ask(read)
        (point,) = talk.ask(talk.read("N1"))
        talk.now_ns += MS
        answer(talk, point)
        (again,) = talk.wait(DEADLINE_NS // 10)
        assert proxied(again).request_id == direct(ask).request_id
        tell_count(talk, ask)  # the first answer counts
        assert read.result == 3
        assert talk.answer(again) == ()

    def test_a_connection_that_breaks(self) -> None:
        """D3: the proxy is asked at once."""
        talk = make()
        begin(talk)
        read = page_of(talk)
        talk.ask(read)
        (ask,) = talk.step(NodeFailed(link=1))
        proxied(ask)
        talk.settle([ask])
        assert (read.is_done, read.error) == (True, None)

    @pytest.mark.proves("D2")
    @pytest.mark.parametrize("code", [TICKET_REFUSED, STALE_ROUTE, "not-leader"])
    def test_a_ticket_that_is_refused(self, code: str) -> None:
        """D2: the proxy is asked, and later for another ticket."""
        talk = make()
        begin(talk)
        (ask,) = talk.ask(page_of(talk, operation=COUNT))
        (ask,) = refuse(talk, ask, code)
        proxied(ask)
        talk.settle([ask])
        talk.now_ns += 20 * MS
        effects = sent(talk.ask(page_of(talk, operation=COUNT)))
        assert {type(one.message) for one in effects} <= {Ask, DescribeState}

    def test_a_ticket_is_renewed_for_pages_alone(self) -> None:
        """D1: at two thirds of its life, where no keys are asked for."""
        talk = make()
        begin(talk)
        talk.now_ns += LIFE_MS * MS * 2 // 3
        talk.ask(page_of(talk, operation=COUNT))
        effects = sent(talk.wait(MS))
        assert [type(one.message) for one in effects] == [DescribeState]

    @pytest.mark.proves("Q1", "D5")
    def test_an_older_answer_is_not_taken(self) -> None:
        """Q1: it is asked for again, for the newest batch seen."""
        talk = make()
        begin(talk)
        (ask,) = talk.ask(talk.read("N1"))
        answer(talk, ask, batch_id=7)
        read = page_of(talk, operation=COUNT)
        (ask,) = talk.ask(read)
        assert tell_count(talk, ask, batch_id=6) == ()
        assert not read.is_done
        (ask,) = talk.wait_for_deadline()
        assert (direct(ask).min_generation, direct(ask).min_batch_id) == (1, 7)
        (ask,) = refuse(talk, ask, NOT_DIRECTLY)
        assert proxied(ask).min_batch_id == 7

    def test_a_session_that_is_over(self) -> None:
        """D2: there may be another leader: the question waits for a session."""
        talk = make()
        begin(talk)
        read = page_of(talk, operation=COUNT)
        (ask,) = talk.ask(read)
        talk.step(ConnectionFailed())
        assert tell_count(talk, ask) == ()
        assert not read.is_done

    def test_one_that_is_given_up(self) -> None:
        """B4: nothing of it is kept once its time is over."""
        talk = make()
        begin(talk)
        read = page_of(talk)
        talk.ask(read)
        talk.step(RequestsDropped(requests=(read,)))
        talk.ask(talk.read("N1", deadline_ns=2 * DEADLINE_NS))
        talk.wait(DEADLINE_NS)
        assert talk.core._pages.under_way_count == 0
