"""`QueryCore` step by step: what is sent when, and what follows from each answer."""

from __future__ import annotations

import itertools
import re
from typing import Any

import attrs
import msgspec
import pytest

from nameservice import (
    NS_PER_SECOND,
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
    RemoteProtocolError,
    UnreachableError,
)
from queryablestate import (
    AccessDeniedError,
    DeadlineExceededError,
    RateLimitedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownStateError,
    WrongKeyTypeError,
)
from queryablestate.client.config import QueryConfig
from queryablestate.client.events import (
    ClientClosed,
    ConnectionFailed,
    ConnectionMade,
    ConnectionRefused,
    ConnectTo,
    Disconnect,
    LeaderTold,
    QueryEffect,
    RequestsDropped,
    SayHello,
    SendRequest,
)
from queryablestate.client.requests import (
    UNANSWERED,
    Request,
    StaleRouteError,
    begin_anew,
)
from queryablestate.client.routes import ENTRY, EXISTS, Asking
from queryablestate.schema.schema import AtomicType
from queryablestate.wire.clients import (
    DescribeState,
    JobsListed,
    ListJobs,
    StateDescribed,
)
from queryablestate.wire.questions import (
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
    Reading,
    ScanRows,
    Told,
)
from tests.queryablestate.query_conversation import (
    ADDRESS,
    DEADLINE_NS,
    MS,
    OTHER_ADDRESS,
    SECRET,
    Conversation,
    asked,
    keys_of,
    number_of,
    operation_of,
    refusal_codes,
)
from tests.queryablestate.scripted_state import (
    LIST_SCHEMA,
    MAP_SCHEMA,
    ScriptedState,
)


ROW = {"origin": "JFK", "delay": 7}


def names(state: ScriptedState, node_index: int, count: int = 1) -> list[str]:
    """Return *count* keys that a node holds."""
    found = (
        name
        for name in (f"N{number}" for number in itertools.count())
        if state.owners[state.keys.key_group(name)] == node_index
    )
    return list(itertools.islice(found, count))


def state_of(*, node_count: int = 2, key_count: int = 40) -> ScriptedState:
    """Return a state with *key_count* equal rows, ``N0`` and so on."""
    return ScriptedState(
        rows={f"N{number}": ("JFK", 7) for number in range(key_count)},
        node_count=node_count,
    )


def describes(effects: tuple[QueryEffect, ...]) -> bool:
    """Return whether *effects* ask for a route, and for nothing else."""
    return [
        type(effect.message) for effect in effects if isinstance(effect, SendRequest)
    ] == [DescribeState]


class TestSession:
    def test_nothing_is_done_for_nobody(self) -> None:
        """A client that is not asked does not connect."""
        talk = Conversation()
        talk.told()
        assert talk.core.next_deadline_ns() is None
        talk.told(OTHER_ADDRESS, 2)
        assert talk.core.request_count == 0

    def test_the_first_question(self) -> None:
        """The first question connects, greets, finds the route, and is asked."""
        talk = Conversation(state_of())
        talk.told()
        read = talk.read("N1")
        hello = talk.greet(read)
        assert talk.core.key_count_max == 1
        (describe,) = talk.welcome(hello)
        assert talk.core.key_count_max == 1_000
        assert isinstance(describe, SendRequest)
        assert describe.message == DescribeState(
            request_id=2, session=SECRET, job_id="flights", state_name="aircraft"
        )
        (ask,) = talk.describe(describe)
        assert (operation_of(ask), keys_of(ask)) == (GetValues(), ["N1"])
        assert asked(ask).deadline_ms == 5_000
        assert talk.answer(ask) == ()
        assert talk.done == [read]
        assert read.rows == [ROW]
        assert read.reading == Reading(generation=1, batch_id=1, age_ms=7)
        assert talk.core.next_deadline_ns() is None

    def test_the_second_question_is_one_message(self) -> None:
        """Session and route are kept: what follows costs a message each."""
        talk = Conversation(state_of())
        talk.settle(talk.begin(talk.read("N1")))
        (ask,) = talk.ask(talk.read("N1"))
        assert keys_of(ask) == ["N1"]

    def test_who_asks_before_there_is_a_leader_waits(self) -> None:
        """A question that comes before any news is asked when the news come."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        assert talk.ask(read) == ()
        assert talk.step(LeaderTold(address=ADDRESS, epoch=1)) == (
            ConnectTo(address=ADDRESS),
        )
        (hello,) = talk.step(ConnectionMade())
        talk.settle(talk.welcome(hello))
        assert read.rows == [ROW]

    def test_a_proxy_that_does_not_lead_is_asked_again(self) -> None:
        """``not-leader`` is followed by pauses that grow, on the same connection."""
        talk = Conversation(state_of())
        talk.told()
        read = talk.read("N1")
        hello: QueryEffect = talk.greet(read)
        pauses = []
        for _ in range(8):
            before_ns = talk.now_ns
            assert talk.refuse(hello, "not-leader") == ()
            (hello,) = talk.wait_for_deadline()
            pauses.append((talk.now_ns - before_ns) // MS)
        assert pauses == [10, 20, 40, 80, 160, 320, 500, 500]
        talk.settle(talk.welcome(hello))
        assert read.rows == [ROW]

    def test_a_leader_that_stopped_is_left_for_the_next(self) -> None:
        """What was under way is put to the next leader, by a new session."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        assert talk.refuse(ask, "not-leader") == ()
        assert talk.step(LeaderTold(address=OTHER_ADDRESS, epoch=2)) == (
            Disconnect(),
            ConnectTo(address=OTHER_ADDRESS),
        )
        (hello,) = talk.step(ConnectionMade())
        (again,) = talk.welcome(hello)
        assert keys_of(again) == ["N1"]
        assert number_of(again) != number_of(ask)
        talk.answer(again)
        assert read.rows == [ROW]

    def test_a_leader_that_leads_again_is_asked_again(self) -> None:
        """A proxy that lost and won knows nothing of what it was asked before."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        talk.begin_routed(read)
        (hello,) = talk.step(LeaderTold(address=ADDRESS, epoch=9))
        (again,) = talk.welcome(hello)
        assert keys_of(again) == ["N1"]
        assert talk.step(LeaderTold(address=ADDRESS, epoch=9)) == ()

    def test_news_of_the_same_leader_ends_no_greeting(self) -> None:
        """
        Told once more, or told at last, who it is that we greet.

        What it answered to the greeting of before counted no more: a proxy that took
        longer than the time after which the name service is asked was asked in vain.
        """
        talk = Conversation(state_of(), first_address=ADDRESS)
        read = talk.read("N1")
        hello = talk.greet(read)
        for _ in range(3):
            assert talk.step(LeaderTold(address=ADDRESS, epoch=9)) == ()
        talk.settle(talk.welcome(hello))
        assert read.rows == [ROW]

    def test_a_welcome_of_an_earlier_leadership_is_none(self) -> None:
        """It has won anew since it said so, and knows nothing of the session."""
        talk = Conversation(state_of())
        talk.told(epoch=1)
        read = talk.read("N1")
        hello = talk.greet(read)
        assert talk.step(LeaderTold(address=ADDRESS, epoch=9)) == ()
        talk.leader_epoch = 1
        assert talk.welcome(hello) == ()
        (again,) = talk.wait_for_deadline()
        talk.leader_epoch = 9
        talk.settle(talk.welcome(again))
        assert read.rows == [ROW]

    def test_an_unknown_session_is_opened_anew(self) -> None:
        """The proxy has forgotten us: greeted at once, asked again."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        (hello,) = talk.refuse(ask, "unknown-session")
        assert isinstance(hello, SayHello)
        talk.settle(talk.welcome(hello))
        assert read.rows == [ROW]

    def test_sessions_that_come_and_go_are_not_chased(self) -> None:
        """A proxy that knows no session it has just opened gets no storm."""
        talk = Conversation(state_of())
        (ask,) = talk.begin_routed(talk.read("N1"))
        (hello,) = talk.refuse(ask, "unknown-session")
        (ask,) = talk.welcome(hello)
        assert talk.refuse(ask, "unknown-session") == ()
        assert isinstance(talk.wait_for_deadline()[0], SayHello)

    def test_a_lost_greeting_is_repeated(self) -> None:
        """A greeting without an answer is put again after two seconds."""
        talk = Conversation(state_of())
        talk.told()
        hello = talk.greet(talk.read("N1"))
        assert talk.wait_for_deadline() == (hello,)
        assert talk.now_ns == 1_000 + 2 * NS_PER_SECOND
        assert describes(talk.welcome(hello))
        assert talk.welcome(hello) == ()  # the answer to the second one

    @pytest.mark.parametrize("seconds", [1, 3])
    def test_a_proxy_that_is_slow_is_not_asked_for_ever(self, seconds: int) -> None:
        """
        A late answer counts, however often the question was put meanwhile.

        The answer to the last question alone was taken: there was none from a proxy
        that took longer than the two seconds after which it is put again.
        """
        talk = Conversation(state_of())
        talk.told()
        read = talk.read("N1")
        hello = talk.greet(read)

        def later() -> None:
            for _ in range(seconds // 2):
                talk.wait_for_deadline()

        later()
        (describe,) = talk.welcome(hello)
        later()
        talk.settle(talk.describe(describe))
        assert read.rows == [ROW]

    def test_an_overloaded_proxy_is_greeted_later(self) -> None:
        """``did-not-happen`` is no refusal: the next attempt may do."""
        talk = Conversation(state_of())
        talk.told()
        hello = talk.greet(talk.read("N1"))
        assert talk.refuse(hello, "did-not-happen", "busy") == ()
        assert isinstance(talk.wait_for_deadline()[0], SayHello)

    def test_a_credential_that_is_refused(self) -> None:
        """Everybody hears at once, and for a second none bothers the proxy."""
        talk = Conversation(state_of())
        talk.told()
        first = talk.read("N1")
        hello = talk.greet(first)
        error = ("not-authenticated", "the proxy", "unknown token")
        assert talk.refuse(hello, *error) == ()
        second = talk.read("N2")
        talk.now_ns += NS_PER_SECOND - 1
        assert talk.ask(second) == ()
        assert refusal_codes([first, second]) == ["AuthenticationError"] * 2
        assert first.error is not second.error
        talk.now_ns += 1
        (hello_again,) = talk.ask(talk.read("N3"))
        assert describes(talk.welcome(hello_again))

    def test_a_connection_that_is_refused(self) -> None:
        """Likewise where CURVE refuses us, or a key file cannot be read."""
        talk = Conversation(state_of())
        talk.told()
        first = talk.read("N1")
        assert talk.ask(first) == (ConnectTo(address=ADDRESS),)
        error = AuthenticationError(ADDRESS, "not listed")
        assert talk.step(ConnectionRefused(error=error)) == ()
        assert refusal_codes([first]) == ["AuthenticationError"]
        second = talk.read("N2")
        assert talk.ask(second) == ()
        assert refusal_codes([second]) == ["AuthenticationError"]
        talk.now_ns += NS_PER_SECOND
        assert talk.ask(talk.read("N3")) == (ConnectTo(address=ADDRESS),)

    def test_a_refusal_ends_with_the_leader_that_it_came_from(self) -> None:
        """Another leader may admit us: it is asked at once."""
        talk = Conversation(state_of())
        talk.told()
        talk.refuse(talk.greet(talk.read("N1")), "not-authenticated", "p", "no")
        assert talk.step(LeaderTold(address=OTHER_ADDRESS, epoch=2)) == (Disconnect(),)
        assert talk.ask(talk.read("N2")) == (ConnectTo(address=OTHER_ADDRESS),)

    def test_a_refusal_ends_what_was_under_way(self) -> None:
        """A connection that is refused in mid-session takes every question along."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        talk.begin_routed(read)
        error = ConfigurationError("no such key file")
        assert talk.step(ConnectionRefused(error=error)) == ()
        assert refusal_codes([read]) == ["ConfigurationError"]

    def test_a_connection_that_fails_is_made_again(self) -> None:
        """Attempts follow each other at pauses that grow, until the deadline."""
        talk = Conversation(state_of())
        talk.told()
        read = talk.read("N1", deadline_ns=100 * MS)
        assert talk.ask(read) == (ConnectTo(address=ADDRESS),)
        for pause_ms in (10, 20, 40):
            before_ns = talk.now_ns
            assert talk.step(ConnectionFailed()) == ()
            assert talk.wait_for_deadline() == (ConnectTo(address=ADDRESS),)
            assert talk.now_ns - before_ns == pause_ms * MS
        talk.step(ConnectionFailed())
        assert talk.wait_for_deadline() == ()
        assert talk.now_ns == 1_000 + 100 * MS
        with pytest.raises(DeadlineExceededError, match="cannot be reached"):
            raise read.error or AssertionError

    def test_a_connection_that_is_lost_takes_nothing_along(self) -> None:
        """What was under way is asked again under the next session."""
        talk = Conversation(state_of())
        reads = [talk.read(name) for name in names(talk.state, 0, 2)]
        (ask,) = talk.begin_routed(*reads)
        assert talk.step(ConnectionFailed()) == ()
        assert talk.core.flight_count == 0
        assert talk.wait_for_deadline() == (ConnectTo(address=ADDRESS),)
        (hello,) = talk.step(ConnectionMade())
        (again,) = talk.welcome(hello)
        assert keys_of(again) == keys_of(ask)
        talk.answer(ask)  # late: that number is not waited for
        assert talk.done == []
        talk.answer(again)
        assert talk.done == reads

    def test_what_comes_unasked_is_passed_over(self) -> None:
        """Neither late nor odd messages do anything (nor end anything)."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        reading = Reading(generation=1, batch_id=1, age_ms=0)
        number = number_of(ask)
        for message in (
            Told(request_id=999, reading=reading),
            StateDescribed(request_id=999, description=talk.state.description),
            StateDescribed(request_id=number, description=talk.state.description),
            JobsListed(request_id=number, job_ids=()),
        ):
            assert talk.say(message) == ()
        assert talk.refuse(SayHello(request_id=999), "not-leader") == ()
        assert talk.refuse(SayHello(request_id=0), "malformed", "what", "why") == ()
        talk.answer(ask)
        assert read.rows == [ROW]

    def test_a_description_is_no_answer_to_a_question(self) -> None:
        """Nor is an answer a description: numbers are not enough."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (describe,) = talk.begin(read)
        reading = Reading(generation=1, batch_id=1, age_ms=0)
        assert talk.say(Told(request_id=number_of(describe), reading=reading), []) == ()
        talk.settle(talk.describe(describe))
        assert read.rows == [ROW]


class TestDeadlines:
    def test_nobody_leads(self) -> None:
        """Without a leader, the error says so, at the deadline and not before."""
        talk = Conversation()
        read = talk.read("N1")
        assert talk.ask(read) == ()
        assert talk.core.next_deadline_ns() == talk.now_ns + DEADLINE_NS
        talk.wait(DEADLINE_NS - 1)
        assert not read.is_done
        talk.wait(1)
        assert isinstance(read.error, NoLeaderError)
        assert read.error.waited_seconds == 5.0
        assert talk.core.next_deadline_ns() is None

    def test_the_name_service_is_away(self) -> None:
        """Why nothing is known about a leader says more than that time is over."""
        talk = Conversation()
        problem = UnreachableError("leaderserver://h:1", 2.0, "nothing listens")
        talk.step(LeaderTold(address=None, problem=problem))
        read = talk.read("N1")
        talk.ask(read)
        talk.wait(DEADLINE_NS)
        assert isinstance(read.error, UnreachableError)
        assert (read.error.target, read.error.detail) == (
            "leaderserver://h:1",
            "nothing listens",
        )
        assert read.error.waited_seconds == DEADLINE_NS / NS_PER_SECOND

    def test_the_name_service_refuses(self) -> None:
        """Any other problem is told as it is."""
        talk = Conversation()
        problem = AuthenticationError("leaderserver://h:1", "no key")
        talk.step(LeaderTold(address=None, problem=problem))
        read = talk.read("N1")
        talk.ask(read)
        talk.wait(DEADLINE_NS)
        assert read.error is problem

    def test_the_name_service_has_not_answered_yet(self) -> None:
        """A deadline shorter than the connect timeout does not blame the proxy."""
        url = "leaderserver://h:1"
        talk = Conversation(name_service=url)
        read = talk.read("N1")
        talk.ask(read)
        talk.wait(DEADLINE_NS)
        assert isinstance(read.error, UnreachableError)
        assert read.error.target == url

    def test_the_name_service_has_answered_late(self) -> None:
        """Open at last, it names no leader: then that is the reason."""
        talk = Conversation(name_service="leaderserver://h:1")
        problem = UnreachableError("leaderserver://h:1", 5.0)
        talk.step(LeaderTold(address=None, problem=problem))
        talk.step(LeaderTold(address=None, is_known=False))
        read = talk.read("N1")
        talk.ask(read)
        talk.wait(DEADLINE_NS)
        assert isinstance(read.error, NoLeaderError)

    def test_a_batch_that_does_not_come(self) -> None:
        """Who waits for a batch is not told that the proxy is silent."""
        talk = Conversation()
        read = talk.read("N1", min_batch_id=100_000)
        talk.begin(read)
        talk.wait(DEADLINE_NS)
        assert isinstance(read.error, DeadlineExceededError)
        assert "batch 100000 may not be visible yet" in str(read.error)

    def test_a_batch_of_a_generation_that_does_not_come(self) -> None:
        """It is said whose batch it is: another query's may be there."""
        talk = Conversation()
        read = talk.read("N1", min_generation=2)
        talk.begin(read)
        talk.wait(DEADLINE_NS)
        assert "batch 0 of generation 2 may not be visible yet" in str(read.error)

    def test_a_leader_that_says_it_is_none(self) -> None:
        """Who is told ``not-leader`` to the end hears that there is no leader."""
        talk = Conversation()
        talk.told()
        read = talk.read("N1", deadline_ns=NS_PER_SECOND)
        talk.refuse(talk.greet(read), "not-leader")
        talk.wait(NS_PER_SECOND)
        assert isinstance(read.error, NoLeaderError)

    def test_a_leader_that_greets_nobody(self) -> None:
        """A connection without a welcome is named as what it is."""
        talk = Conversation()
        talk.told()
        read = talk.read("N1")
        talk.greet(read)
        talk.wait(DEADLINE_NS)
        with pytest.raises(DeadlineExceededError, match="does not answer"):
            raise read.error or AssertionError

    def test_a_handshake_that_fails_to_the_end(self) -> None:
        """A wrong server key looks like this: it says more than a deadline."""
        talk = Conversation()
        talk.told()
        read = talk.read("N1")
        talk.ask(read)
        problem = AuthenticationError(ADDRESS, "it closes each connection")
        talk.step(ConnectionFailed(problem=problem))
        talk.wait(DEADLINE_NS)
        assert read.error is problem

    def test_another_problem_is_told_along(self) -> None:
        """Whatever was seen last stands in the detail."""
        talk = Conversation()
        talk.told()
        read = talk.read("N1")
        talk.ask(read)
        talk.step(ConnectionFailed(problem=RemoteProtocolError("odd", "odd frame")))
        talk.wait(DEADLINE_NS)
        with pytest.raises(DeadlineExceededError, match="odd frame"):
            raise read.error or AssertionError

    def test_silence_under_a_session(self) -> None:
        """An answer that never comes ends at the deadline, and so does its flight."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        talk.wait(DEADLINE_NS - 1)
        assert not read.is_done
        talk.wait(1)
        assert isinstance(read.error, DeadlineExceededError)
        assert talk.core.flight_count == 0
        assert talk.answer(ask) == ()
        assert talk.done == [read]

    def test_each_request_has_its_own(self) -> None:
        """A short deadline ends one question of a flight, and not the others."""
        talk = Conversation(state_of())
        hasty, patient = (
            talk.read(name, deadline_ns=deadline_ns)
            for name, deadline_ns in zip(
                names(talk.state, 0, 2), (50 * MS, DEADLINE_NS), strict=True
            )
        )
        (ask,) = talk.begin_routed(hasty, patient)
        assert asked(ask).deadline_ms == 5_000
        talk.wait(50 * MS)
        assert talk.done == [hasty]
        talk.answer(ask)
        assert talk.done == [hasty, patient]
        assert patient.rows == [ROW]

    def test_a_deadline_that_is_over_when_it_is_asked(self) -> None:
        """Such a question is not even sent."""
        talk = Conversation(state_of())
        talk.settle(talk.begin(talk.read("N1")))
        late = talk.read("N1", deadline_ns=1)
        talk.now_ns += 1
        assert talk.ask(late) == ()
        assert refusal_codes([late]) == ["DeadlineExceededError"]

    def test_a_node_that_judges_the_deadline(self) -> None:
        """A refusal by the node or the proxy counts as ours (rule Q2)."""
        talk = Conversation(state_of())
        read = talk.read("N1", min_batch_id=9)
        (ask,) = talk.begin_routed(read)
        assert asked(ask).min_batch_id == 9
        talk.refuse(ask, "deadline-exceeded", 5.0, "batch 9 is not applied")
        with pytest.raises(DeadlineExceededError, match="batch 9"):
            raise read.error or AssertionError


class TestPacking:
    def test_what_is_asked_together_travels_together(self) -> None:
        """One message for each node, whatever the number of questions."""
        talk = Conversation(state_of())
        reads = [talk.read(f"N{number}") for number in range(20)]
        asks = talk.begin_routed(*reads)
        assert sorted(asked(ask).node_index for ask in asks) == [0, 1]
        assert sorted(key for ask in asks for key in keys_of(ask)) == sorted(
            f"N{number}" for number in range(20)
        )
        for ask in asks:
            talk.answer(ask)
        assert [read.rows for read in reads] == [[ROW]] * 20

    def test_what_waits_for_the_session_travels_together(self) -> None:
        """Questions that come before the session are one message, too."""
        talk = Conversation(state_of(node_count=1))
        talk.told()
        hello = talk.greet(talk.read("N1"))
        assert talk.ask(talk.read("N2")) == ()
        (describe,) = talk.welcome(hello)
        assert talk.ask(talk.read("N3")) == ()
        (ask,) = talk.describe(describe)
        assert keys_of(ask) == ["N1", "N2", "N3"]

    def test_the_third_waits_for_the_first(self) -> None:
        """Two small questions of a node may be under way; more keep company."""
        talk = Conversation(state_of(node_count=1))
        (first,) = talk.begin_routed(talk.read("N1"))
        (_second,) = talk.ask(talk.read("N2"))
        assert talk.ask(talk.read("N3")) == ()
        assert talk.ask(talk.read("N4"), talk.read("N5")) == ()
        (third,) = talk.answer(first)
        assert keys_of(third) == ["N3", "N4", "N5"]

    def test_a_lost_answer_does_not_stop_a_node(self) -> None:
        """Without any answer what waits goes after a quarter of a second."""
        talk = Conversation(state_of(node_count=1))
        talk.begin_routed(talk.read("N1", deadline_ns=60 * NS_PER_SECOND))
        talk.ask(talk.read("N2", deadline_ns=60 * NS_PER_SECOND))
        read = talk.read("N3")
        assert talk.ask(read) == ()
        before_ns = talk.now_ns
        (ask,) = talk.wait_for_deadline()
        assert talk.now_ns - before_ns == 250 * MS
        talk.answer(ask)
        assert talk.done == [read]

    def test_a_question_that_was_given_up_frees_its_place(self) -> None:
        """None waits behind those who wait no more."""
        talk = Conversation(state_of(node_count=1))
        given_up = [talk.read("N1"), talk.read("N2")]
        talk.begin_routed(given_up[0])
        talk.ask(given_up[1])
        assert talk.ask(talk.read("N3")) == ()
        (ask,) = talk.step(RequestsDropped(requests=given_up))
        assert keys_of(ask) == ["N3"]

    def test_nodes_do_not_wait_for_each_other(self) -> None:
        """A node that is slow delays what it is asked itself, and nothing else."""
        talk = Conversation(state_of())
        slow, quick = names(talk.state, 0, 4), names(talk.state, 1, 1)
        talk.begin_routed(talk.read(slow[0]))
        talk.ask(talk.read(slow[1]))
        assert talk.ask(talk.read(slow[2])) == ()
        (ask,) = talk.ask(talk.read(quick[0]))
        assert keys_of(ask) == quick

    def test_many_keys_are_cut(self) -> None:
        """A question has no more keys than the proxy allows; the last ones wait."""
        talk = Conversation(state_of(node_count=1), key_count_max=3)
        read = talk.read(*(f"N{number}" for number in range(40)))
        asks = talk.begin_routed(read)
        assert [len(keys_of(ask)) for ask in asks] == [3] * 8
        talk.settle(asks)
        assert read.rows == [ROW] * 40
        assert talk.done == [read]

    def test_big_frames_are_cut(self) -> None:
        """Neither are they bigger than the proxy takes."""
        talk = Conversation(state_of(node_count=1), frame_size_bytes_max=1_024)
        asks = talk.begin_routed(talk.read("N1", "N2", "N3"))
        assert [keys_of(ask) for ask in asks] == [["N1", "N2"], ["N3"]]

    def test_flights_are_bounded(self) -> None:
        """Not everything is under way at once, whatever the number of nodes."""
        config = QueryConfig(flight_count_max=1)
        talk = Conversation(state_of(), config=config)
        read = talk.read(*(f"N{number}" for number in range(40)))
        asks = talk.begin_routed(read)
        assert len(asks) == 1
        talk.settle(asks)
        assert read.rows == [ROW] * 40

    def test_different_questions_are_different_messages(self) -> None:
        """Least batches and operations are not mixed."""
        talk = Conversation(
            ScriptedState(LIST_SCHEMA, {"N1": [("JFK", 1), ("LAX", 2)]}, node_count=1)
        )
        reads = [
            talk.read("N1"),
            talk.read("N1", asking=EXISTS),
            talk.read("N1", asking=Asking.items(-1, None)),
            talk.read("N1", asking=Asking.items(None, 1), min_batch_id=1),
            talk.read("N1", min_batch_id=1),
        ]
        asks = talk.begin_routed(*reads)
        assert [(operation_of(ask), asked(ask).min_batch_id) for ask in asks] == [
            (GetItems(), None),
            (HasRows(), None),
            (GetItems(start=-1), None),
            (GetItems(start=0, stop=1), 1),
            (GetItems(), 1),
        ]
        talk.settle(asks)
        first, second = {"origin": "JFK", "delay": 1}, {"origin": "LAX", "delay": 2}
        assert [read.rows for read in reads] == [
            [[first, second]],
            [True],
            [[second]],
            [[first]],
            [[first, second]],
        ]

    def test_least_batches_leave_nothing_behind(self) -> None:
        """A client that names another batch each time remembers none of them."""
        talk = Conversation(state_of(node_count=1))
        talk.settle(talk.begin(talk.read("N1")))
        for batch_id in range(500):
            talk.settle(talk.ask(talk.read("N1", min_batch_id=batch_id)))
        traffic = talk.core._keys.routes.traffic["flights", "aircraft"]
        assert len(traffic._tables) <= 65

    def test_maps_and_their_entries(self) -> None:
        """A map is asked for as a whole, or for one entry."""
        rows = {"N1": {"LAX": ("JFK", 1), "JFK": ("LAX", 2)}}
        talk = Conversation(ScriptedState(MAP_SCHEMA, rows, node_count=1))
        whole, entry, nothing = (
            talk.read("N1", "N2"),
            talk.read(("N1", "JFK"), asking=ENTRY),
            talk.read(("N1", "SFO"), asking=ENTRY),
        )
        asks = talk.begin_routed(whole, entry, nothing)
        assert [operation_of(ask) for ask in asks] == [GetEntries(), GetValues()]
        talk.settle(asks)
        assert whole.rows == [
            {
                "JFK": {"origin": "LAX", "delay": 2},
                "LAX": {"origin": "JFK", "delay": 1},
            },
            None,
        ]
        assert list(whole.rows[0]) == ["JFK", "LAX"]
        assert entry.rows == [{"origin": "LAX", "delay": 2}]
        assert nothing.rows == [None]

    def test_a_wrong_key_is_wrong_alone(self) -> None:
        """Who asks for what no row could have spoils no other's question."""
        talk = Conversation(state_of(node_count=1))
        good, wrong, also_good = talk.read("N1"), talk.read(7), talk.read("N2")
        (ask,) = talk.begin_routed(good, wrong, also_good)
        assert keys_of(ask) == ["N1", "N2"]
        assert isinstance(wrong.error, WrongKeyTypeError)
        alone = talk.read(7)
        assert talk.ask(alone) == ()
        assert isinstance(alone.error, WrongKeyTypeError)
        mixed = talk.read("N1", 7)
        assert talk.ask(mixed) == ()
        assert isinstance(mixed.error, WrongKeyTypeError)

    def test_a_question_to_another_kind_of_state(self) -> None:
        """Asking a value state for items is the caller's mistake."""
        talk = Conversation(state_of())
        reads = [talk.read("N1", asking=Asking.items(0, 1)), talk.read("N1")]
        (ask,) = talk.begin_routed(*reads)
        assert isinstance(reads[0].error, LocalProtocolError)
        talk.answer(ask)
        assert reads[1].rows == [ROW]

    def test_too_many_requests_are_refused(self) -> None:
        """A client is bounded: what is too much hears so at once."""
        talk = Conversation(config=QueryConfig(request_count_max=2))
        reads = [talk.read("N1") for _ in range(3)]
        talk.ask(*reads)
        assert talk.done == [reads[2]]
        with pytest.raises(DidNotHappenError, match="get_many"):
            raise reads[2].error or AssertionError


class TestTheShortestWay:
    """`QueryCore.ask_now`: the same as a step, where that is possible."""

    def ready(self) -> Conversation:
        """Return a conversation in which a key was asked for and answered."""
        talk = Conversation(state_of())
        talk.settle(talk.begin(talk.read("N1")))
        return talk

    def test_it_sends_what_a_step_would(self) -> None:
        """The message differs by its number, and its answer is taken as any other."""
        talk = self.ready()
        talk.now_ns += 7
        short = talk.read("N2", deadline_ns=3 * MS + 1)
        effect = talk.core.ask_now(short)
        talk.core.check_invariants()
        assert effect is not None
        assert asked(effect).deadline_ms == 4
        assert talk.core.next_deadline_ns() == short.deadline_ns
        assert talk.answer(effect) == ()
        assert talk.done[-1] is short
        assert short.rows == [ROW]
        long = talk.read("N2", deadline_ns=3 * MS + 1)
        (usual,) = talk.ask(long)
        assert isinstance(usual, SendRequest)
        message = msgspec.structs.replace(asked(usual), request_id=number_of(effect))
        assert SendRequest(message, usual.keys) == effect

    def test_what_it_sent_can_go_wrong(self) -> None:
        """Its question is asked again, and ends at its deadline, as any other."""
        talk = self.ready()
        read = talk.read("N1")
        effect = talk.core.ask_now(read)
        assert effect is not None
        talk.state.version = 2
        (describe,) = talk.answer(effect)
        (again,) = talk.describe(describe)
        assert keys_of(again) == ["N1"]
        talk.wait(DEADLINE_NS)
        assert isinstance(read.error, DeadlineExceededError)

    def test_it_is_closed_to_what_is_not_usual(self) -> None:
        """Whatever needs more than a message goes the long way."""
        talk = self.ready()
        for read in (
            talk.read("N1", "N2"),
            talk.read("N1", asking=EXISTS),
            talk.read("N1", min_batch_id=1),
            talk.read("N1", state_name="another"),
            talk.read("N1", deadline_ns=0),
            talk.read(7),
        ):
            assert talk.core.ask_now(read) is None
            assert not read.is_done
        assert talk.core.request_count == 0

    def test_it_is_closed_while_anybody_waits(self) -> None:
        """Who is not alone shares messages."""
        talk = self.ready()
        talk.ask(talk.read("N1"))
        assert talk.core.ask_now(talk.read("N1")) is None

    def test_it_is_closed_behind_a_question_that_is_lost(self) -> None:
        """A flight that is not waited for still has its place."""
        talk = self.ready()
        given_up, kept = talk.read("N1"), talk.read("N1")
        talk.ask(given_up, kept)
        talk.step(RequestsDropped(requests=(given_up,)))
        kept.is_done = True
        talk.core._outbox.requests.clear()
        assert talk.core.ask_now(talk.read("N1")) is None

    def test_it_is_closed_without_a_session(self) -> None:
        """Neither before the first one, nor when it has ended, nor when closed."""
        talk = Conversation(state_of())
        assert talk.core.ask_now(talk.read("N1")) is None
        talk = self.ready()
        talk.step(ConnectionFailed())
        assert talk.core.ask_now(talk.read("N1")) is None
        talk = self.ready()
        talk.step(ClientClosed())
        assert talk.core.ask_now(talk.read("N1")) is None

    def test_it_is_closed_without_a_fresh_route(self) -> None:
        """A route that is old, stale or unused in this way is looked after first."""
        talk = self.ready()
        talk.now_ns += 10 * NS_PER_SECOND
        assert talk.core.ask_now(talk.read("N1")) is None
        talk = self.ready()
        (ask,) = talk.ask(read := talk.read("N1"))
        talk.refuse(ask, "stale-route")
        talk.step(RequestsDropped(requests=(read,)))
        assert talk.core.ask_now(talk.read("N1")) is None
        talk = Conversation(state_of())
        talk.settle(talk.begin(talk.read("N1", asking=EXISTS)))
        assert talk.core.ask_now(talk.read("N1")) is None

    def test_time_passes_as_in_a_step(self) -> None:
        """What is past its deadline is forgotten first."""
        talk = self.ready()
        given_up, kept = talk.read("N1"), talk.read("N1", deadline_ns=MS)
        talk.ask(given_up, kept)
        talk.wait(MS)
        talk.step(RequestsDropped(requests=(given_up,)))
        talk.now_ns += DEADLINE_NS
        read = talk.read("N1")
        effect = talk.core.ask_now(read)
        talk.core.check_invariants()
        assert effect is not None
        assert talk.core.flight_count == 1


class TestRoutes:
    def test_a_stale_route_is_asked_for_again(self) -> None:
        """Key groups that moved are asked for where they are now."""
        talk = Conversation(state_of())
        read = talk.read(*names(talk.state, 0, 2))
        (ask,) = talk.begin_routed(read)
        talk.state.version = 2
        talk.state.owners = (1,) * 8
        (describe,) = talk.answer(ask)
        (again,) = talk.describe(describe)
        assert asked(again).node_index == 1
        assert asked(again).assignment_version == 2
        talk.answer(again)
        assert read.rows == [ROW, ROW]

    def test_all_that_is_under_way_follows(self) -> None:
        """One description serves all questions that the old route has misled."""
        talk = Conversation(state_of())
        reads = [talk.read(name) for name in (*names(talk.state, 0), "N3", "N4")]
        first = talk.begin_routed(reads[0])
        more = talk.ask(*reads[1:])
        assert more
        talk.state.version = 2
        talk.state.owners = (1,) * 8
        (describe,) = talk.answer(first[0])
        for ask in more:
            assert talk.answer(ask) == ()
        assert talk.ask(talk.read("N7")) == ()
        talk.settle(talk.describe(describe))
        assert [read.rows for read in reads] == [[ROW]] * 3

    def test_a_late_refusal_needs_no_description(self) -> None:
        """Who is told *stale* after the new route is known is asked by that one."""
        talk = Conversation(state_of())
        name, other = names(talk.state, 0, 2)
        (first,) = talk.begin_routed(talk.read(name))
        (second,) = talk.ask(talk.read(other))
        talk.state.version = 2
        (describe,) = talk.refuse(first, "stale-route")
        (again,) = talk.describe(describe)
        assert keys_of(again) == [name]
        (second_again,) = talk.refuse(second, "stale-route")
        assert keys_of(second_again) == [other]
        assert asked(second_again).assignment_version == 2

    def test_a_route_that_stays_stale_is_not_chased(self) -> None:
        """Where the description leads to the same refusal, pauses grow."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        (describe,) = talk.refuse(ask, "stale-route")
        pauses = []
        for _ in range(7):
            (ask,) = talk.describe(describe)
            before_ns = talk.now_ns
            assert talk.refuse(ask, "stale-route") == ()
            (describe,) = talk.wait_for_deadline()
            pauses.append((talk.now_ns - before_ns) // MS)
        assert pauses == [10, 20, 40, 80, 160, 320, 500]
        talk.settle(talk.describe(describe))
        assert read.rows == [ROW]

    def test_what_waits_in_line_goes_by_the_new_route(self) -> None:
        """Keys that were not sent yet are sorted anew."""
        talk = Conversation(state_of(), key_count_max=1)
        read = talk.read(*names(talk.state, 0, 12))
        asks = talk.begin_routed(read)
        assert len(asks) == 8
        talk.state.version = 2
        talk.state.owners = (1,) * 8
        talk.settle(asks)
        assert read.rows == [ROW] * 12

    @pytest.mark.parametrize(
        ("code", "data", "error"),
        [
            ("unknown-job", ("flights",), UnknownJobError),
            ("unknown-state", ("flights", "aircraft"), UnknownStateError),
            ("access-denied", ("read flights/aircraft",), AccessDeniedError),
        ],
    )
    def test_a_state_that_is_not_there(
        self, code: str, data: tuple[str, ...], error: type[Exception]
    ) -> None:
        """The refusal is everybody's who waits, and is not remembered."""
        talk = Conversation()
        reads = [talk.read("N1"), talk.read("N2")]
        (describe,) = talk.begin(*reads)
        assert talk.refuse(describe, code, *data) == ()
        assert all(isinstance(read.error, error) for read in reads)
        assert reads[0].error is not reads[1].error
        assert talk.core.state_count == 0
        assert describes(talk.ask(talk.read("N1")))

    @pytest.mark.proves("Q3")
    def test_a_refusal_is_only_for_what_was_asked_before_it(self) -> None:
        """
        A state may come to be while the answer that there is none is under way.

        Two threads share a client.  One asks for a state, and the proxy refuses: there
        is no such job.  Before that arrives, a batch is committed, and the other asks,
        too.  The refusal is older than the commit: the route is asked for once more.
        """
        talk = Conversation(state_of())
        early: list[Request] = [talk.route_read(), talk.read("N1")]
        (describe,) = talk.begin(*early)
        talk.now_ns += 1
        late: list[Request] = [talk.route_read(), talk.read("N1")]
        assert talk.ask(*late) == ()
        (again,) = talk.refuse(describe, "unknown-job", "flights")
        assert refusal_codes(early) == ["UnknownJobError"] * 2
        assert talk.done == early
        talk.settle([again])
        assert [request.error for request in late] == [None] * 2
        assert talk.done == [*early, *late]

    @pytest.mark.proves("Q3")
    def test_a_refusal_of_what_is_asked_for_once_more(self) -> None:
        """The next refusal is for those who waited for it: it is no older."""
        talk = Conversation(state_of())
        (describe,) = talk.begin(talk.read("N1"))
        talk.now_ns += 1
        late = talk.read("N1")
        assert talk.ask(late) == ()
        (again,) = talk.refuse(describe, "unknown-job", "flights")
        assert not late.is_done
        assert talk.refuse(again, "unknown-job", "flights") == ()
        assert refusal_codes([late]) == ["UnknownJobError"]
        assert talk.core.state_count == 0

    @pytest.mark.proves("Q3")
    @pytest.mark.parametrize("code", ["unknown-job", "access-denied"])
    def test_a_refusal_is_not_for_what_stands_in_line_since(self, code: str) -> None:
        """The route is asked for in passing, and the state is made anew meanwhile."""
        talk = Conversation(state_of(node_count=1))
        talk.settle(talk.begin_routed(talk.read("N1")))
        talk.now_ns += 10 * NS_PER_SECOND
        under_way = [talk.read("N1"), talk.read("N2")]
        describe, *asks = talk.ask(under_way[0])
        asks += talk.ask(under_way[1])
        early = talk.read("N3")
        assert talk.ask(early) == ()
        talk.now_ns += 1
        late = talk.read("N4")
        assert talk.ask(late) == ()
        (again,) = talk.refuse(describe, code, "flights")
        assert early.error is not None
        assert [read.is_done for read in (*under_way, late)] == [False] * 3
        talk.settle([again, *asks])
        assert [read.rows for read in (*under_way, late)] == [[ROW]] * 3

    @pytest.mark.proves("Q3")
    def test_a_refusal_at_a_deadline(self) -> None:
        """Nothing is asked for who asked later, but waits no more."""
        talk = Conversation(state_of())
        early = talk.read("N1", deadline_ns=9 * MS)
        (describe,) = talk.begin(early)
        talk.now_ns += MS
        late = talk.read("N1", deadline_ns=MS)
        assert talk.ask(late) == ()
        talk.now_ns += MS
        assert talk.refuse(describe, "unknown-job", "flights") == ()
        errors = ["UnknownJobError", "DeadlineExceededError"]
        assert refusal_codes([early, late]) == errors
        assert talk.core.state_count == 0

    def test_a_state_that_was_made_anew(self) -> None:
        """A question to a dropped state is put to the one of the same name."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        talk.state = state_of()
        (describe,) = talk.refuse(ask, "unknown-state", "flights", "aircraft")
        (again,) = talk.describe(describe)
        assert asked(again).state_number == talk.state.state_number
        talk.answer(again)
        assert read.rows == [ROW]

    def test_a_state_that_is_unknown_twice(self) -> None:
        """A proxy that describes what no node knows does not keep us in a loop."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        (describe,) = talk.refuse(ask, "unknown-state", "flights", "aircraft")
        (again,) = talk.describe(describe)
        talk.refuse(again, "unknown-state", "flights", "aircraft")
        assert isinstance(read.error, UnknownStateError)

    def test_a_state_that_is_dropped_under_way(self) -> None:
        """Who waits in line for a state that is gone hears so, too."""
        talk = Conversation(state_of(node_count=1))
        reads = [talk.read("N1"), talk.read("N2"), talk.read("N3")]
        (first,) = talk.begin_routed(reads[0])
        (second,) = talk.ask(reads[1])
        assert talk.ask(reads[2]) == ()
        (describe,) = talk.refuse(first, "unknown-state", "flights", "aircraft")
        talk.refuse(describe, "unknown-state", "flights", "aircraft")
        assert refusal_codes([reads[0], reads[2]]) == ["UnknownStateError"] * 2
        # The second is still under way, by a route that is forgotten.
        (describe,) = talk.refuse(second, "stale-route")
        talk.refuse(describe, "unknown-state", "flights", "aircraft")
        assert refusal_codes(reads) == ["UnknownStateError"] * 3
        assert talk.core.state_count == 0

    def test_a_lost_description_is_asked_for_again(self) -> None:
        """None waits for ever for a route that got lost."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (describe,) = talk.begin(read)
        assert talk.wait_for_deadline() == (describe,)
        assert talk.now_ns == 1_000 + 2 * NS_PER_SECOND
        talk.settle(talk.describe(describe))
        assert read.rows == [ROW]
        assert talk.describe(describe) == ()  # the answer to the second one

    def test_a_description_is_asked_for_by_every_session(self) -> None:
        """A session that ends takes the question for a route along."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (describe,) = talk.begin(read)
        talk.step(ConnectionFailed())
        talk.wait_for_deadline()
        (hello,) = talk.step(ConnectionMade())
        (again,) = talk.welcome(hello)
        assert talk.describe(describe) == ()
        talk.settle(talk.describe(again))
        assert read.rows == [ROW]

    def test_what_is_under_way_by_the_former_route(self) -> None:
        """If the session ends as well, it goes by the present one."""
        talk = Conversation(state_of())
        name, other = names(talk.state, 0, 2)
        reads = [talk.read(name), talk.read(other)]
        (first,) = talk.begin_routed(reads[0])
        talk.ask(reads[1])
        talk.state.version = 2
        talk.state.owners = (1,) * 8
        (describe,) = talk.refuse(first, "stale-route")
        talk.describe(describe)
        talk.step(ConnectionFailed())
        talk.wait_for_deadline()
        (hello,) = talk.step(ConnectionMade())
        (ask,) = talk.welcome(hello)
        assert sorted(keys_of(ask)) == sorted([name, other])
        assert asked(ask).assignment_version == 2

    def test_a_state_that_was_made_anew_with_other_keys(self) -> None:
        """Keys that fitted the former state are wrong now: told once, and typed."""
        talk = Conversation(state_of())
        read = talk.read(*names(talk.state, 0), *names(talk.state, 1))
        first, second = talk.begin_routed(read)
        talk.state = state_of()
        key = (attrs.evolve(talk.state.schema.key[0], type=AtomicType.INT),)
        talk.state.schema = attrs.evolve(talk.state.schema, key=key)
        (describe,) = talk.refuse(first, "stale-route")
        talk.refuse(second, "stale-route")
        talk.describe(describe)
        assert talk.done == [read]
        assert isinstance(read.error, WrongKeyTypeError)

    @pytest.mark.proves("Q3")
    def test_keys_that_fit_a_state_that_was_made_anew(self) -> None:
        """That they fitted none of before is no answer to who asks now."""
        talk = Conversation(state_of())
        talk.settle(talk.begin_routed(talk.read("N1")))
        talk.state = with_numbers_for_keys(talk.state)
        talk.now_ns += 1
        read = talk.read(7)
        (describe,) = talk.ask(read)
        (ask,) = talk.describe(describe)
        assert asked(ask).state_number == talk.state.state_number
        assert not read.is_done

    @pytest.mark.proves("Q3")
    def test_a_route_that_was_asked_for_before_such_a_state(self) -> None:
        """It may be older, and is asked for once more: that tells what is wrong."""
        talk = Conversation(state_of())
        talk.settle(talk.begin_routed(talk.read("N1")))
        talk.now_ns += 10 * NS_PER_SECOND
        describe, _ = talk.ask(talk.read("N1"))
        talk.now_ns += 1
        read, wrong = talk.read(7), talk.read(b"7")
        assert talk.ask(read, wrong) == ()
        (again,) = talk.describe(describe)
        assert not read.is_done
        talk.state = with_numbers_for_keys(talk.state)
        (ask,) = talk.describe(again)
        assert asked(ask).state_number == talk.state.state_number
        assert not read.is_done
        assert isinstance(wrong.error, WrongKeyTypeError)

    @pytest.mark.proves("Q3")
    def test_a_route_that_is_to_be_new(self) -> None:
        """What is known, or was asked for before, will not do; others go on by it."""
        talk = Conversation(state_of())
        talk.settle(talk.begin_routed(talk.read("N1")))
        talk.now_ns += 10 * NS_PER_SECOND
        describe, ask = talk.ask(talk.read("N1"))
        talk.now_ns += 1
        new, known = talk.route_read(is_new=True), talk.route_read()
        assert talk.ask(new, known) == ()
        assert (new.is_done, known.is_done) == (False, True)
        (again,) = talk.describe(describe)
        assert not new.is_done
        read = talk.read("N2")
        talk.settle([ask, *talk.ask(read)])
        assert read.is_done
        talk.state = state_of()
        assert talk.describe(again) == ()
        assert new.route is not None
        assert new.route.state_number == talk.state.state_number

    def test_a_stale_route_that_is_being_refreshed(self) -> None:
        """Who hears *stale* while the route is on its way waits for that one."""
        talk = Conversation(state_of())
        talk.settle(talk.begin(talk.read("N1")))
        talk.now_ns += 10 * NS_PER_SECOND
        read = talk.read("N1")
        describe, ask = talk.ask(read)
        talk.state.version = 2
        assert talk.refuse(ask, "stale-route") == ()
        talk.settle(talk.describe(describe))
        assert read.rows == [ROW]

    def test_a_route_that_comes_too_late(self) -> None:
        """Who no longer waits for a route is not told of it."""
        talk = Conversation(state_of())
        given_up, read = talk.route_read(), talk.read("N1")
        (describe,) = talk.begin(given_up, read)
        talk.core._outbox.requests.pop(given_up)
        given_up.is_done = True
        talk.settle(talk.describe(describe))
        assert talk.done == [read]

    def test_what_waits_for_a_route_has_no_other_deadline(self) -> None:
        """Keys in line behind a stale route, or behind the limit, wait for answers."""
        talk = Conversation(
            state_of(node_count=1), config=QueryConfig(flight_count_max=2)
        )
        (first,) = talk.begin_routed(talk.read("N1"))
        talk.ask(talk.read("N2"))
        talk.ask(talk.read("N3"))
        assert talk.core.next_deadline_ns() == talk.now_ns + DEADLINE_NS
        talk.refuse(first, "stale-route")
        assert talk.core.next_deadline_ns() == talk.now_ns + 2 * NS_PER_SECOND

    def test_an_overloaded_proxy_describes_later(self) -> None:
        """``did-not-happen`` is no answer about the state."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (describe,) = talk.begin(read)
        (again,) = talk.refuse(describe, "did-not-happen", "busy")
        assert talk.refuse(again, "did-not-happen", "busy") == ()
        (once_more,) = talk.wait_for_deadline()
        talk.settle(talk.describe(once_more))
        assert read.rows == [ROW]

    @pytest.mark.parametrize(
        "changes",
        [
            {"owners": ()},
            {"owners": (2,) * 8},
            {"owners": (-1,) * 8},
            {"max_parallelism": 9},
            {"max_parallelism": 0, "owners": ()},
            {"schema": "{}"},
            {"job_id": "another"},
        ],
        ids=str,
    )
    def test_a_description_that_makes_no_sense(self, changes: dict[str, Any]) -> None:
        """It is an error of those who wait for it, and of no other."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (describe,) = talk.begin(read)
        description = msgspec.structs.replace(talk.state.description, **changes)
        talk.say(
            StateDescribed(request_id=number_of(describe), description=description)
        )
        assert isinstance(read.error, (RemoteProtocolError, ConfigurationError))

    def test_a_route_is_refreshed_in_passing(self) -> None:
        """An old route is used, and asked for at the same time: columns may be new."""
        talk = Conversation(state_of())
        talk.settle(talk.begin(talk.read("N1")))
        talk.now_ns += 10 * NS_PER_SECOND - 1
        (ask,) = talk.ask(talk.read("N1"))
        talk.answer(ask)
        talk.now_ns += 1
        describe, ask = talk.ask(talk.read("N1"))
        assert describes((describe,))
        talk.answer(ask)
        talk.describe(describe)
        (ask,) = talk.ask(talk.read("N1"))
        assert keys_of(ask) == ["N1"]

    def test_a_schema_that_has_grown(self) -> None:
        """New columns are seen once the route is refreshed."""
        talk = Conversation(state_of())
        talk.settle(talk.begin(talk.read("N1")))
        value = (
            *talk.state.schema.value,
            attrs.evolve(talk.state.schema.value[1], name="new"),
        )
        talk.state.schema = attrs.evolve(talk.state.schema, value=value)
        talk.state.rows = {"N1": ("JFK", 7, 8)}
        talk.now_ns += 10 * NS_PER_SECOND
        describe, ask = talk.ask(talk.read("N1"))
        talk.settle(talk.describe(describe))
        talk.answer(ask)
        read = talk.read("N1")
        talk.settle(talk.ask(read))
        assert read.rows == [{**ROW, "new": 8}]


class TestAnswers:
    def test_what_is_unavailable_is_told_at_once(self) -> None:
        """The error names the key groups of this question, and when to ask again."""
        talk = Conversation(state_of())
        name = names(talk.state, 0)[0]
        group = talk.state.keys.key_group(name)
        read = talk.read(name)
        (ask,) = talk.begin_routed(read)
        talk.refuse(
            ask, "state-unavailable", "?", None, (0, 2, 4, 6), 0.5, "node-0 is away"
        )
        error = read.error
        assert isinstance(error, StateUnavailableError)
        assert error.args == ("flights", "aircraft", (group,), 0.5, "node-0 is away")

    def test_only_what_is_named_is_unavailable(self) -> None:
        """Keys of other key groups are asked again, and answered."""
        talk = Conversation(state_of(node_count=1))
        lost, kept = names(talk.state, 0, 40)[0], "N1"
        group = talk.state.keys.key_group(lost)
        assert talk.state.keys.key_group(kept) != group
        reads = [talk.read(lost), talk.read(kept), talk.read(lost, kept)]
        (ask,) = talk.begin_routed(*reads)
        (again,) = talk.refuse(
            ask, "state-unavailable", "flights", None, (group,), 0.5, "lost"
        )
        assert keys_of(again) == [kept]
        talk.answer(again)
        assert refusal_codes([reads[0], reads[2]]) == ["StateUnavailableError"] * 2
        assert reads[1].rows == [ROW]

    @pytest.mark.proves("S4")
    def test_what_is_not_named_is_asked_again_after_a_pause(self) -> None:
        """S4: others have it, and are about to be asked for it in the node's place."""
        talk = Conversation(state_of(node_count=1))
        group = talk.state.keys.key_group("N1")
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        pauses = []
        for _ in range(3):
            before_ns = talk.now_ns
            refusal = ("state-unavailable", "flights", None, (group + 1,), 0.5, "away")
            assert talk.refuse(ask, *refusal) == ()
            (ask,) = talk.wait_for_deadline()
            pauses.append((talk.now_ns - before_ns) // MS)
        assert pauses == [10, 20, 40]
        talk.answer(ask)
        assert read.rows == [ROW]

    def test_unavailable_for_nobody(self) -> None:
        """Who has given up is not told, and not asked for again."""
        talk = Conversation(state_of(node_count=1))
        given_up, kept = talk.read("N1"), talk.read("N2")
        (ask,) = talk.begin_routed(given_up, kept)
        talk.step(RequestsDropped(requests=(given_up,)))
        assert talk.refuse(ask, "state-unavailable", "flights", None, (), 0.5) == ()
        assert talk.done == [kept]

    def test_unavailable_without_a_name_is_all(self) -> None:
        """A refusal that names no key group, or others, is about every key."""
        talk = Conversation(state_of(node_count=1))
        reads = [talk.read("N1"), talk.read("N2")]
        (ask,) = talk.begin_routed(*reads)
        assert talk.refuse(ask, "state-unavailable", "flights", None, (), 0.5) == ()
        assert refusal_codes(reads) == ["StateUnavailableError"] * 2

    def test_unavailable_without_sense(self) -> None:
        """A refusal whose data fits nothing is an error of the proxy."""
        talk = Conversation(state_of(node_count=1))
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        talk.refuse(ask, "state-unavailable")
        assert isinstance(read.error, RemoteProtocolError)

    def test_a_partial_question_takes_what_it_gets(self) -> None:
        """Values of some nodes are worth having, and the rest is named."""
        talk = Conversation(state_of())
        here, away = names(talk.state, 0), names(talk.state, 1)
        read = talk.read(*here, *away, is_partial=True)
        to_here, to_away = talk.begin_routed(read)
        talk.refuse(to_away, "state-unavailable", "flights", None, (), 0.5, "away")
        assert not read.is_done
        talk.answer(to_here)
        assert read.rows == [ROW, UNANSWERED]
        assert read.error is None
        assert isinstance(read.partial_error, StateUnavailableError)

    def test_a_partial_question_without_any_answer(self) -> None:
        """If every key is unavailable that is told, too, and is no error."""
        talk = Conversation(state_of())
        read = talk.read(*names(talk.state, 0), *names(talk.state, 1), is_partial=True)
        for ask in talk.begin_routed(read):
            talk.refuse(ask, "state-unavailable", "flights", None, (), 0.5)
        assert talk.done == [read]
        assert read.rows == [UNANSWERED, UNANSWERED]

    def test_a_partial_question_at_its_deadline(self) -> None:
        """What has come by then is returned; without any answer it is the deadline."""
        talk = Conversation(state_of())
        read = talk.read(*names(talk.state, 0), *names(talk.state, 1), is_partial=True)
        silent = talk.read(*names(talk.state, 1), is_partial=True)
        first, *_ = talk.begin_routed(read, silent)
        talk.answer(first)
        talk.wait(DEADLINE_NS)
        assert read.rows == [ROW, UNANSWERED]
        assert isinstance(read.partial_error, DeadlineExceededError)
        assert isinstance(silent.error, DeadlineExceededError)

    def test_a_rate_limit_says_when(self) -> None:
        """The error carries when to ask again; no client asks again by itself (C2)."""
        talk = Conversation(state_of())
        reads = [talk.read(name) for name in names(talk.state, 0, 2)]
        (ask,) = talk.begin_routed(*reads)
        assert talk.refuse(ask, "rate-limited", 1.5, "caller") == ()
        for read in reads:
            assert isinstance(read.error, RateLimitedError)
            assert read.error.retry_after_seconds == 1.5

    def test_overload_is_asked_again(self) -> None:
        """``did-not-happen`` holds the lane for a while, longer each time."""
        talk = Conversation(state_of(node_count=1))
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        for pause_ms in (10, 20):
            before_ns = talk.now_ns
            assert talk.refuse(ask, "did-not-happen", "busy") == ()
            assert talk.ask(talk.read("N2")) == ()
            (ask,) = talk.wait_for_deadline()
            assert talk.now_ns - before_ns == pause_ms * MS
        talk.settle((ask,))
        assert read.rows == [ROW]

    def test_an_answer_that_would_be_too_large(self) -> None:
        """Fewer keys are asked for at once, down to one if need be."""
        talk = Conversation(state_of(node_count=1))
        reads = [talk.read(f"N{number}") for number in range(40)]
        effects = list(talk.begin_routed(*reads))
        sizes = []
        while effects:
            ask = effects.pop(0)
            sizes.append(asked(ask).key_count)
            if sizes[-1] > 10:
                effects += talk.refuse(ask, "illegal", "too large")
            else:
                effects += talk.answer(ask)
        assert sizes == [40, 20, 20, 10, 10, 10, 10]
        assert all(read.rows == [ROW] for read in reads)

    def test_a_value_that_is_too_large_alone(self) -> None:
        """One that asks for it hears so; the others do not notice."""
        talk = Conversation(state_of(node_count=1))
        reads = [talk.read(f"N{number}") for number in range(8)]
        effects = list(talk.begin_routed(*reads))
        while effects:
            ask = effects.pop(0)
            if "N5" in keys_of(ask):
                effects += talk.refuse(ask, "illegal", "too large")
            else:
                effects += talk.answer(ask)
        for number, read in enumerate(reads):
            if number == 5:
                assert isinstance(read.error, LocalProtocolError)
            else:
                assert read.rows == [ROW]

    def test_more_is_asked_for_again_after_a_while(self) -> None:
        """After small answers a question grows, until it has room for all."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1", "N2", "N3", "N4"))
        talk.settle(talk.refuse(ask, "illegal", "too large"))
        read = talk.read("N1", "N2", "N3", "N4")
        asks = talk.ask(read)
        assert [asked(ask).key_count for ask in asks] == [2, 2]
        talk.settle(asks)
        for _ in range(30 * 64):
            talk.settle(talk.ask(talk.read("N1")))
        (ask,) = talk.ask(talk.read("N1", "N2", "N3", "N4"))
        assert asked(ask).key_count == 4

    def test_an_unknown_code_is_an_error(self) -> None:
        """A refusal that we do not know is told as it is."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        talk.refuse(ask, "failed", "the disk is full")
        assert "the disk is full" in str(read.error)

    @pytest.mark.parametrize(
        "values", [[], [None, None], "text", [b"\xc1"], [b"\x91\x07"], 7]
    )
    def test_an_answer_that_makes_no_sense(self, values: object) -> None:
        """It is asked once more by a new route, then it is an error of the proxy."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        told = Told(
            request_id=number_of(ask),
            reading=Reading(generation=1, batch_id=1, age_ms=0),
        )
        (describe,) = talk.say(told, values)
        (again,) = talk.describe(describe)
        assert not read.is_done
        talk.say(Told(request_id=number_of(again), reading=told.reading), values)
        assert isinstance(read.error, RemoteProtocolError)

    def test_an_answer_that_makes_sense_the_second_time(self) -> None:
        """The schema had changed: no caller notices."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        reading = Reading(generation=1, batch_id=1, age_ms=0)
        (describe,) = talk.say(Told(request_id=number_of(ask), reading=reading), [])
        talk.settle(talk.describe(describe))
        assert read.rows == [ROW]


class TestMonotoneReads:
    """Rule Q1: one client never goes back in time within a key group."""

    def told(self, ask: QueryEffect, batch_id: int | None, generation: int = 1) -> Told:
        """Return an answer as of a batch."""
        reading = Reading(generation=generation, batch_id=batch_id, age_ms=0)
        return Told(request_id=number_of(ask), reading=reading)

    def test_an_older_answer_is_asked_again(self) -> None:
        """It is asked for the batch that was seen, and not delivered."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 5), [None])
        read = talk.read("N2")
        (ask,) = talk.ask(read)
        (again,) = talk.say(self.told(ask, 4), [None])
        assert not read.is_done
        assert (asked(again).min_generation, asked(again).min_batch_id) == (1, 5)
        talk.say(self.told(again, 5), [None])
        assert read.rows == [None]

    def test_an_answer_before_the_first_batch(self) -> None:
        """No batch at all is older than batch 0."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 0), [None])
        (ask,) = talk.ask(talk.read("N2"))
        (again,) = talk.say(self.told(ask, None), [None])
        assert asked(again).min_batch_id == 0

    def test_a_node_that_insists_is_left_alone_for_a_while(self) -> None:
        """If it answers older nevertheless, the deadline decides."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 5), [None])
        read = talk.read("N2")
        (ask,) = talk.ask(read)
        (ask,) = talk.say(self.told(ask, 4), [None])
        for _ in range(20):
            assert talk.say(self.told(ask, 4), [None]) == ()
            following = talk.wait_for_deadline()
            if read.is_done:
                break
            (ask,) = following
        assert isinstance(read.error, DeadlineExceededError)

    def test_an_older_generation_is_older(self) -> None:
        """Batches count within their generation; the generation counts first."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 0, generation=2), [None])
        read = talk.read("N2")
        (ask,) = talk.ask(read)
        assert talk.say(self.told(ask, 99, generation=1), [None]) == ()
        (again,) = talk.wait_for_deadline()
        assert asked(again).min_batch_id is None
        talk.say(self.told(again, 0, generation=2), [None])
        assert read.rows == [None]

    @pytest.mark.proves("Q2")
    @pytest.mark.parametrize(
        ("wanted", "asked_for"),
        [
            ({"min_batch_id": 3}, (None, 3)),
            ({"min_batch_id": 3, "min_generation": 2}, (2, 3)),
            ({"min_generation": 2}, (2, 0)),
        ],
    )
    def test_a_batch_is_that_of_a_generation(
        self, wanted: dict[str, Any], asked_for: tuple[int | None, int]
    ) -> None:
        """Q2: the present one, or the one that is named, be it yet to come."""
        talk = Conversation(state_of(node_count=1))
        asks = talk.begin_routed(
            talk.read("N1", **wanted), talk.read("N2", min_batch_id=3)
        )
        least = {(asked(one).min_generation, asked(one).min_batch_id) for one in asks}
        assert least == {asked_for, (None, 3)}

    @pytest.mark.proves("Q2")
    @pytest.mark.parametrize(
        ("generation", "again_for"), [(1, (1, 5)), (2, (2, 3)), (3, (3, 3))]
    )
    def test_what_is_waited_for_is_not_forgotten_over_what_was_seen(
        self, generation: int, again_for: tuple[int, int]
    ) -> None:
        """Q2: an older answer is asked again, for the later one of the two."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 5), [None])
        read = talk.read("N1", min_batch_id=3, min_generation=generation)
        (ask,) = talk.ask(read)
        (again,) = talk.say(self.told(ask, 4), [None]) or talk.wait_for_deadline()
        assert (asked(again).min_generation, asked(again).min_batch_id) == again_for
        assert not read.is_done

    def test_a_floor_moves_with_its_key_group(self) -> None:
        """The new owner of a key group must have what the old one had shown."""
        talk = Conversation(state_of())
        name = names(talk.state, 0)[0]
        (ask,) = talk.begin_routed(talk.read(name))
        talk.say(self.told(ask, 5), [None])
        talk.state.version = 2
        talk.state.owners = (1,) * 8
        read = talk.read(name)
        (ask,) = talk.ask(read)
        (describe,) = talk.refuse(ask, "stale-route")
        (ask,) = talk.describe(describe)
        (again,) = talk.say(self.told(ask, 4), [None])
        assert asked(again).min_batch_id == 5
        talk.say(self.told(again, 6), [None])
        assert read.is_done
        assert read.error is None

    @pytest.mark.parametrize(
        ("code", "data"),
        [
            ("rate-limited", (0.5, "caller")),
            ("access-denied", ()),
            ("state-unavailable", ("flights", "aircraft", (0,), 0.5, "")),
        ],
    )
    def test_a_route_that_is_refused_takes_no_floor_away(
        self, code: str, data: tuple[object, ...]
    ) -> None:
        """What was seen stays seen, whatever keeps the client from a new route."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 5), [None])
        refused = talk.read("N1")
        (ask,) = talk.ask(refused)
        (describe,) = talk.refuse(ask, "stale-route")
        talk.refuse(describe, code, *data)
        assert refused.error is not None
        read = talk.read("N1")
        (describe,) = talk.ask(read)
        (ask,) = talk.describe(describe)
        (again,) = talk.say(self.told(ask, 4), [None])
        assert not read.is_done
        assert asked(again).min_batch_id == 5

    def test_an_unknown_state_takes_its_floors_along(self) -> None:
        """Another state of that name, under the same number even, begins anew."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 5, generation=3), [None])
        (ask,) = talk.ask(talk.read("N1"))
        (describe,) = talk.refuse(ask, "stale-route")
        talk.refuse(describe, "unknown-job", "flights")
        read = talk.read("N1")
        (describe,) = talk.ask(read)
        (ask,) = talk.describe(describe)
        talk.say(self.told(ask, 0), [None])
        assert read.rows == [None]

    def test_what_is_under_way_while_a_route_is_refused_goes_on(self) -> None:
        """A question that comes back meanwhile asks for the route itself."""
        talk = Conversation(state_of())
        first = talk.read(names(talk.state, 0)[0])
        second = talk.read(names(talk.state, 1)[0])
        (under_way,) = talk.begin_routed(first)
        (ask,) = talk.ask(second)
        (describe,) = talk.refuse(ask, "stale-route")
        talk.refuse(describe, "rate-limited", 0.5, "caller")
        assert second.error is not None
        (describe,) = talk.refuse(under_way, "did-not-happen", "busy")
        assert talk.describe(describe) == ()
        (again,) = talk.wait_for_deadline()  # that of the pause, not of the question
        talk.say(self.told(again, 1), [None])
        assert first.rows == [None]

    def test_nodes_have_their_own(self) -> None:
        """A node that is behind another one is not behind itself."""
        talk = Conversation(state_of())
        (first,), (second,) = names(talk.state, 0), names(talk.state, 1)
        (ask,) = talk.begin_routed(talk.read(first))
        talk.say(self.told(ask, 5), [None])
        read = talk.read(second)
        (ask,) = talk.ask(read)
        talk.say(self.told(ask, 4), [None])
        assert read.is_done

    def test_a_state_that_was_made_anew_begins_anew(self) -> None:
        """Another state of the same name has a time of its own."""
        talk = Conversation(state_of())
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 5), [None])
        talk.state = state_of()
        read = talk.read("N1")
        (ask,) = talk.ask(read)
        (describe,) = talk.refuse(ask, "stale-route")
        talk.settle(talk.describe(describe))
        assert read.reading is not None
        assert read.reading.batch_id == 1

    def test_an_answer_of_the_former_state_is_still_one(self) -> None:
        """It was true when it was read, and sets no floor for the new state."""
        talk = Conversation(state_of())
        name, other = names(talk.state, 0, 2)
        (first,) = talk.begin_routed(talk.read(name))
        late = talk.read(other)
        (second,) = talk.ask(late)
        talk.state = state_of()
        (describe,) = talk.refuse(first, "stale-route")
        (again,) = talk.describe(describe)
        talk.say(self.told(second, 9), [None])
        assert late.rows == [None]
        talk.answer(again)
        assert len(talk.done) == 2

    def test_a_repeated_read_that_wants_more(self) -> None:
        """A least batch above what was seen stays what it is."""
        talk = Conversation(state_of(node_count=1))
        (ask,) = talk.begin_routed(talk.read("N1"))
        talk.say(self.told(ask, 5), [None])
        (ask,) = talk.ask(
            talk.read("N1", min_batch_id=3), talk.read("N2", min_batch_id=3)
        )
        (again,) = talk.say(self.told(ask, 4), [None, None])
        assert asked(again).min_batch_id == 5


class TestDropping:
    def test_a_question_that_nobody_waits_for_is_not_sent(self) -> None:
        """What was given up before it was sent, is not."""
        talk = Conversation(state_of(node_count=1))
        given_up, kept = talk.read("N1"), talk.read("N2")
        (describe,) = talk.begin(given_up, kept)
        assert talk.step(RequestsDropped(requests=(given_up,))) == ()
        (ask,) = talk.describe(describe)
        assert keys_of(ask) == ["N2"]
        talk.answer(ask)
        assert talk.done == [kept]
        assert given_up.is_done

    def test_an_answer_that_nobody_waits_for(self) -> None:
        """What was given up under way is not answered."""
        talk = Conversation(state_of(node_count=1))
        given_up, kept = talk.read("N1"), talk.read("N2")
        (ask,) = talk.begin_routed(given_up, kept)
        talk.step(RequestsDropped(requests=(given_up,)))
        talk.answer(ask)
        assert talk.done == [kept]

    def test_the_last_question_for_a_state_leaves_nothing(self) -> None:
        """A state that is not asked any more, and that has no route, is forgotten."""
        talk = Conversation(state_of())
        talk.told()
        read, route = talk.read("N1"), talk.route_read()
        talk.greet(read, route)
        talk.step(RequestsDropped(requests=(read, route)))
        assert talk.core.state_count == 0
        assert talk.core.request_count == 0
        assert talk.core.next_deadline_ns() is None

    def test_a_description_that_nobody_waits_for(self) -> None:
        """It is kept for the next question, if it was asked for already."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        (describe,) = talk.begin(read)
        talk.step(RequestsDropped(requests=(read,)))
        assert talk.describe(describe) == ()
        (ask,) = talk.ask(talk.read("N1"))
        assert keys_of(ask) == ["N1"]

    def test_what_waits_in_line_is_forgotten(self) -> None:
        """Keys in a lane go with their question."""
        talk = Conversation(state_of(node_count=1))
        (first,) = talk.begin_routed(talk.read("N1"))
        talk.ask(talk.read("N2"))
        third, fourth = talk.read("N3"), talk.read("N4")
        talk.ask(third, fourth)
        talk.step(RequestsDropped(requests=(third,)))
        (ask,) = talk.answer(first)
        assert keys_of(ask) == ["N4"]

    def test_twice_is_once(self) -> None:
        """Giving up what is done already changes nothing."""
        talk = Conversation(state_of())
        read = talk.read("N1")
        talk.settle(talk.begin(read))
        assert talk.step(RequestsDropped(requests=(read,))) == ()
        assert talk.done == [read]

    def test_a_refusal_of_what_was_given_up(self) -> None:
        """A refusal that is not waited for is not told."""
        talk = Conversation(state_of(node_count=1))
        read = talk.read("N1")
        (ask,) = talk.begin_routed(read)
        talk.step(RequestsDropped(requests=(read,)))
        for code in ("stale-route", "rate-limited", "state-unavailable"):
            assert talk.refuse(ask, code, 1.0, "x") == ()
            (ask,) = talk.ask(other := talk.read("N1"))
            talk.step(RequestsDropped(requests=(other,)))
        assert talk.done == []


class TestClosing:
    def test_whoever_waits_is_told(self) -> None:
        """Closing ends every question, whatever became of it so far."""
        talk = Conversation(state_of())
        under_way, waiting = talk.read("N1"), talk.read("N2")
        call = talk.call(lambda n, s: ListJobs(request_id=n, session=s))
        talk.begin_routed(under_way, waiting)
        talk.ask(call)
        assert talk.step(ClientClosed()) == (Disconnect(),)
        assert refusal_codes([under_way, waiting, call]) == ["LocalProtocolError"] * 3
        assert talk.core.next_deadline_ns() is None

    def test_nobody_asks_a_closed_client(self) -> None:
        """What is asked later is refused at once."""
        talk = Conversation()
        assert talk.step(ClientClosed()) == ()
        read = talk.read("N1")
        assert talk.ask(read) == ()
        assert refusal_codes([read]) == ["LocalProtocolError"]


class TestCalls:
    def jobs(self, number: int, session: bytes) -> ListJobs:
        """Return a request that needs nothing."""
        return ListJobs(request_id=number, session=session)

    def test_a_call_is_one_message(self) -> None:
        """It needs a session and nothing else."""
        talk = Conversation()
        call = talk.call(self.jobs)
        (sent,) = talk.begin(call)
        assert sent == SendRequest(self.jobs(number_of(sent), SECRET))
        reply = JobsListed(request_id=number_of(sent), job_ids=("flights",))
        assert talk.say(reply) == ()
        assert (talk.done, call.reply) == ([call], reply)

    def test_a_call_is_asked_again(self) -> None:
        """A lost connection costs it a repetition, under another number."""
        talk = Conversation()
        call = talk.call(self.jobs)
        (sent,) = talk.begin(call)
        talk.step(ConnectionFailed())
        talk.wait_for_deadline()
        (hello,) = talk.step(ConnectionMade())
        (again,) = talk.welcome(hello)
        assert number_of(again) != number_of(sent)
        talk.say(JobsListed(request_id=number_of(again), job_ids=()))
        assert talk.done == [call]

    @pytest.mark.proves("B1")
    def test_no_more_are_under_way_than_a_proxy_keeps_answers_for(self) -> None:
        """B1: it drops what a client leaves unread: 3 of 1,000 were never answered."""
        talk = Conversation()
        calls = [talk.call(self.jobs) for _ in range(1_200)]
        under_way = list(talk.begin(*calls))
        assert len(under_way) == 500
        due_ns = talk.core.next_deadline_ns()
        assert due_ns is not None
        assert due_ns > talk.now_ns, "what waits for room is not looked at all the time"
        while under_way:
            sent = under_way.pop(0)
            reply = JobsListed(request_id=number_of(sent), job_ids=())
            under_way += talk.say(reply)
            assert len(under_way) <= 500
        assert talk.done == calls

    def test_a_refusal_is_its_error(self) -> None:
        """What the proxy refuses is raised."""
        talk = Conversation()
        call = talk.call(self.jobs)
        (sent,) = talk.begin(call)
        talk.refuse(sent, "access-denied", "list jobs")
        assert isinstance(call.error, AccessDeniedError)

    @pytest.mark.proves("B3")
    def test_what_the_proxy_would_not_take_is_refused_by_size(self) -> None:
        """B3: at once, by name and number; it was sent until time was up."""
        talk = Conversation(frame_size_bytes_max=500)
        call = talk.call(
            lambda number, session: DescribeState(
                request_id=number, session=session, job_id="x" * 600, state_name="s"
            )
        )
        assert talk.begin(call) == ()
        assert isinstance(call.error, ConfigurationError)
        assert re.search(
            r"'describe' request of \d+ bytes.* frame_size_bytes_max, which is 500",
            str(call.error),
        )
        other = talk.call(self.jobs)
        assert len(talk.ask(other)) == 1

    def test_overload_is_asked_again(self) -> None:
        """``did-not-happen`` costs a pause, and nothing else."""
        talk = Conversation()
        call = talk.call(self.jobs)
        (sent,) = talk.begin(call)
        assert talk.refuse(sent, "did-not-happen", "busy") == ()
        (again,) = talk.wait_for_deadline()
        talk.say(JobsListed(request_id=number_of(again), job_ids=()))
        assert talk.done == [call]

    def test_what_may_have_happened_is_asked_again(self) -> None:
        """Calls are idempotent; pauses grow, and the last reason is kept."""
        talk = Conversation()
        call = talk.call(self.jobs)
        (sent,) = talk.begin(call)
        for pause_ms in (10, 20, 40):
            before_ns = talk.now_ns
            assert talk.refuse(sent, "may-have-happened", "undecided") == ()
            assert isinstance(call.problem, MayHaveHappenedError)
            (sent,) = talk.wait_for_deadline()
            assert talk.now_ns - before_ns == pause_ms * MS
        talk.wait(DEADLINE_NS)
        assert isinstance(call.error, DeadlineExceededError)

    def test_what_could_not_be_read(self) -> None:
        """A refusal without a number is about the one message that is under way."""
        talk = Conversation()
        calls = [talk.call(self.jobs), talk.call(self.jobs)]
        first, _ = talk.begin(*calls)
        nothing = SayHello(request_id=0)
        assert talk.refuse(nothing, "malformed", "malformed", "what") == ()
        assert talk.done == []
        talk.say(JobsListed(request_id=number_of(first), job_ids=()))
        assert talk.refuse(nothing, "malformed", "malformed", "what") == ()
        assert talk.done == calls
        assert isinstance(calls[1].error, RemoteProtocolError)

    def test_a_call_that_is_given_up(self) -> None:
        """Its answer, its refusal and its deadline have no asker any more."""
        talk = Conversation()
        talk.told()
        calls = [talk.call(self.jobs) for _ in range(4)]
        hello = talk.greet(*calls)
        talk.step(RequestsDropped(requests=calls[:1]))
        sent = talk.welcome(hello)
        assert len(sent) == 3
        talk.step(RequestsDropped(requests=calls[1:]))
        talk.say(JobsListed(request_id=number_of(sent[0]), job_ids=()))
        talk.refuse(sent[1], "access-denied", "list jobs")
        talk.ask(talk.call(self.jobs))
        talk.wait(DEADLINE_NS)
        assert talk.core.flight_count == 0
        assert len(talk.done) == 1


class TestNodeReads:
    """Questions to one node, by the caller's own route."""

    SCAN = ScanRows(start=b"", stop=None, limit=100)

    def routed(self, state: ScriptedState) -> tuple[Conversation, Any]:
        """Return a conversation with a route."""
        talk = Conversation(state)
        read = talk.route_read()
        talk.settle(talk.begin(read))
        assert read.route is not None
        return talk, read.route

    def test_a_route_is_an_answer_of_its_own(self) -> None:
        """Who has no key to ask for asks for the route, and gets what is known."""
        talk, route = self.routed(state_of())
        again = talk.route_read()
        assert talk.ask(again) == ()
        assert again.route is route

    def test_a_page_is_one_message(self) -> None:
        """It says how many rows it may have; its answer is not looked into."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 1, self.SCAN)
        (ask,) = talk.ask(read)
        assert asked(ask).key_count == 100
        assert asked(ask).node_index == 1
        talk.answer(ask)
        assert (talk.done[-1], read.error, read.next_start) == (read, None, None)
        assert [key for key, _ in route.decode_page(read.result)] == sorted(
            name
            for name in talk.state.rows
            if talk.state.owners[talk.state.keys.key_group(name)] == 1
        )

    def test_a_count_is_one_message(self) -> None:
        """Counting counts as one key."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, CountKeys())
        (ask,) = talk.ask(read)
        assert asked(ask).key_count == 1
        talk.answer(ask)
        assert read.is_done
        assert read.result == sum(
            talk.state.owners[talk.state.keys.key_group(name)] == 0
            for name in talk.state.rows
        )

    @pytest.mark.parametrize(
        ("operation", "answer"),
        [(SCAN, [b"\1N1\0\0"]), (SCAN, 7), (CountKeys(), []), (CountKeys(), -1)],
    )
    def test_an_answer_that_makes_no_sense(
        self, operation: Any, answer: object
    ) -> None:
        """It is an error of this question, and sets no floor for the next one."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, operation)
        (ask,) = talk.ask(read)
        reading = Reading(generation=99, batch_id=99, age_ms=0)
        talk.say(Told(request_id=number_of(ask), reading=reading), answer)
        assert isinstance(read.error, RemoteProtocolError)
        again = talk.node_read(route, 0, operation)
        talk.settle(talk.ask(again))
        assert again.error is None

    @pytest.mark.parametrize("code", ["stale-route", "unknown-state", "unknown-job"])
    def test_a_stale_route_is_the_callers_business(self, code: str) -> None:
        """It asks for another route, and gets one that was described since."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, self.SCAN)
        (ask,) = talk.ask(read)
        talk.refuse(ask, code)
        assert isinstance(read.error, StaleRouteError)
        talk.state.version = 2
        again = talk.route_read(stale=route)
        (describe,) = talk.ask(again)
        talk.describe(describe)
        assert again.route is not None
        assert again.route.version == 2

    def test_a_route_that_was_replaced_meanwhile(self) -> None:
        """Who comes with a route that is not the present one gets the present one."""
        talk, route = self.routed(state_of())
        talk.state.version = 2
        (describe,) = talk.ask(talk.route_read(stale=route))
        talk.describe(describe)
        late = talk.route_read(stale=route)
        assert talk.ask(late) == ()
        assert late.route is not None
        assert late.route.version == 2

    def test_overload_is_asked_again(self) -> None:
        """After a pause, and until the deadline."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, self.SCAN)
        (ask,) = talk.ask(read)
        assert talk.refuse(ask, "did-not-happen", "busy") == ()
        (again,) = talk.wait_for_deadline()
        talk.answer(again)
        assert read.error is None
        assert read.is_done

    def test_a_node_that_is_away(self) -> None:
        """The error is the caller's, in the caller's words."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, self.SCAN)
        (ask,) = talk.ask(read)
        talk.refuse(ask, "state-unavailable", "?", None, (1, 2), 0.5, "away")
        assert isinstance(read.error, StateUnavailableError)
        assert read.error.args == ("flights", "aircraft", (1, 2), 0.5, "away")

    def test_another_refusal(self) -> None:
        """Whatever else is refused is raised."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, self.SCAN)
        (ask,) = talk.ask(read)
        talk.refuse(ask, "rate-limited", 0.5, "state")
        assert isinstance(read.error, RateLimitedError)

    def test_a_page_is_no_older_than_what_was_seen(self) -> None:
        """Rule Q1 holds for whole nodes, too."""
        talk, route = self.routed(state_of())
        (ask,) = talk.ask(talk.node_read(route, 0, self.SCAN))
        reading = Reading(generation=2, batch_id=5, age_ms=0)
        talk.say(Told(request_id=number_of(ask), reading=reading), [])
        read = talk.node_read(route, 0, self.SCAN)
        (ask,) = talk.ask(read)
        older = Reading(generation=2, batch_id=4, age_ms=0)
        assert talk.say(Told(request_id=number_of(ask), reading=older), []) == ()
        (again,) = talk.wait_for_deadline()
        assert asked(again).min_batch_id == 5
        oldest = Reading(generation=1, batch_id=9, age_ms=0)
        assert talk.say(Told(request_id=number_of(again), reading=oldest), []) == ()
        (again,) = talk.wait_for_deadline()
        talk.say(Told(request_id=number_of(again), reading=reading), [])
        assert read.is_done

    @pytest.mark.proves("Q1")
    def test_a_page_is_no_older_than_what_was_seen_of_a_group_that_moved(self) -> None:
        """The node that has it now may be behind the one that had answered."""
        talk, route = self.routed(state_of())
        (ask,) = talk.ask(talk.node_read(route, 0, self.SCAN))
        reading = Reading(generation=2, batch_id=5, age_ms=0)
        talk.say(Told(request_id=number_of(ask), reading=reading), [])
        talk.state.version = 2
        talk.state.owners = (1,) * 8
        refreshed = talk.route_read(stale=route)
        (describe,) = talk.ask(refreshed)
        talk.describe(describe)
        assert refreshed.route is not None
        read = talk.node_read(refreshed.route, 1, self.SCAN)
        (ask,) = talk.ask(read)
        older = Reading(generation=2, batch_id=4, age_ms=0)
        assert talk.say(Told(request_id=number_of(ask), reading=older), []) == ()
        assert not read.is_done
        (again,) = talk.wait_for_deadline()
        assert asked(again).min_batch_id == 5
        talk.say(Told(request_id=number_of(again), reading=reading), [])
        assert read.is_done

    @pytest.mark.proves("Q1")
    def test_a_route_of_before_is_held_against_the_floor(self) -> None:
        """A page that was long under way may be older than what came meanwhile."""
        talk, route = self.routed(state_of())
        slow = talk.node_read(route, 0, self.SCAN)
        (slowly_asked,) = talk.ask(slow)
        (ask,) = talk.ask(talk.node_read(route, 0, self.SCAN))
        reading = Reading(generation=2, batch_id=5, age_ms=0)
        talk.say(Told(request_id=number_of(ask), reading=reading), [])
        talk.state.version = 2
        (describe,) = talk.ask(talk.route_read(stale=route))
        talk.describe(describe)
        older = Reading(generation=2, batch_id=4, age_ms=0)
        talk.say(Told(request_id=number_of(slowly_asked), reading=older), [])
        assert not slow.is_done
        (again,) = talk.wait_for_deadline()
        talk.refuse(again, "stale-route")
        assert isinstance(slow.error, StaleRouteError)

    @pytest.mark.proves("Q1", "Q3")
    def test_a_core_that_begins_anew_remembers_what_was_seen(self) -> None:
        """After an exception amid a step, no answer is older than those before it."""
        talk = Conversation()
        seen = talk.read("N1")
        talk.state.batch_ids = [5, 5]
        (ask,) = talk.begin_routed(seen)
        talk.answer(ask)
        assert seen.is_done
        waiting = talk.read("N1")
        talk.ask(waiting)
        talk.core = talk.core.renewed(now_ns=talk.now_ns)
        begin_anew(waiting)
        assert talk.ask(waiting) == (ConnectTo(address=ADDRESS),)
        (hello,) = talk.step(ConnectionMade())
        (describe,) = talk.welcome(hello)
        (ask,) = talk.describe(describe)
        talk.state.batch_ids = [4, 4]
        (again,) = talk.answer(ask)
        assert not waiting.is_done
        assert asked(again).min_batch_id == 5
        talk.state.batch_ids = [5, 5]
        talk.answer(again)
        assert waiting.is_done
        assert waiting.error is None

    @pytest.mark.proves("Q1")
    def test_a_state_that_is_gone_is_held_against_the_floor(self) -> None:
        """A page that was long under way may be older than what came before a drop."""
        talk, route = self.routed(state_of())
        slow = talk.node_read(route, 0, self.SCAN)
        (slowly_asked,) = talk.ask(slow)
        (ask,) = talk.ask(talk.node_read(route, 0, self.SCAN))
        reading = Reading(generation=2, batch_id=5, age_ms=0)
        talk.say(Told(request_id=number_of(ask), reading=reading), [])
        (describe,) = talk.ask(talk.route_read(stale=route))
        talk.refuse(describe, "unknown-job", "flights")
        older = Reading(generation=2, batch_id=4, age_ms=0)
        talk.say(Told(request_id=number_of(slowly_asked), reading=older), [])
        assert not slow.is_done
        (again,) = talk.wait_for_deadline()
        talk.refuse(again, "stale-route")
        assert isinstance(slow.error, StaleRouteError)

    def test_a_route_of_before_is_no_reason_to_ask_again(self) -> None:
        """An answer by a route that was replaced is taken if it is new enough."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, self.SCAN)
        (ask,) = talk.ask(read)
        talk.state.version = 2
        (describe,) = talk.ask(talk.route_read(stale=route))
        talk.describe(describe)
        reading = Reading(generation=2, batch_id=5, age_ms=0)
        talk.say(Told(request_id=number_of(ask), reading=reading), [])
        assert read.reading == reading

    def test_a_lost_connection_is_a_repetition(self) -> None:
        """What was under way is asked again under the next session."""
        talk, route = self.routed(state_of())
        read = talk.node_read(route, 0, self.SCAN)
        talk.ask(read)
        talk.step(ConnectionFailed())
        talk.wait_for_deadline()
        (hello,) = talk.step(ConnectionMade())
        (again,) = talk.welcome(hello)
        talk.answer(again)
        assert read.is_done

    def test_one_that_is_given_up(self) -> None:
        """Answer, refusal and deadline find none."""
        talk, route = self.routed(state_of())
        reads = [talk.node_read(route, 0, self.SCAN) for _ in range(4)]
        asks = talk.ask(*reads)
        talk.refuse(asks[3], "did-not-happen", "busy")
        talk.step(RequestsDropped(requests=reads))
        talk.answer(asks[0])
        talk.refuse(asks[1], "rate-limited", 0.5, "state")
        last = talk.node_read(route, 0, self.SCAN)
        talk.ask(last)
        talk.wait(DEADLINE_NS)
        assert talk.core.flight_count == 0
        assert refusal_codes([last]) == ["DeadlineExceededError"]
        assert [r for r in talk.done if r in reads] == []


def with_numbers_for_keys(state: ScriptedState) -> ScriptedState:
    """Return a state of the same name with keys of another type."""
    anew = state_of()
    key = (attrs.evolve(state.schema.key[0], type=AtomicType.INT),)
    anew.schema = attrs.evolve(state.schema, key=key)
    return anew
