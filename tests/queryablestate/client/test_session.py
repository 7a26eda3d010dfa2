"""`QuerySession`, as a `QueryCore` that was told where to ask first drives it."""

from __future__ import annotations

import pytest

from nameservice import NS_PER_SECOND, NoLeaderError, UnreachableError
from queryablestate.client.events import (
    AskWhoLeads,
    ConnectionFailed,
    ConnectionMade,
    ConnectTo,
    Disconnect,
    LeaderTold,
    SayHello,
)
from queryablestate.client.requests import Call
from queryablestate.wire.clients import JobsListed, ListJobs
from tests.queryablestate.query_conversation import (
    ADDRESS,
    DEADLINE_NS,
    MS,
    OTHER_ADDRESS,
    Conversation,
    number_of,
)


PATIENCE_NS = 3 * NS_PER_SECOND


def jobs(number: int, session: bytes) -> ListJobs:
    """Return a request that needs nothing."""
    return ListJobs(request_id=number, session=session)


def asked() -> tuple[Conversation, Call]:
    """Return a conversation in which the first address has been asked."""
    talk = Conversation(first_address=ADDRESS)
    call = talk.call(jobs)
    assert talk.ask(call) == (ConnectTo(address=ADDRESS),)
    return talk, call


def greeted() -> tuple[Conversation, Call]:
    """Return one in which the first address has admitted us, and has the request."""
    talk, call = asked()
    (hello,) = talk.step(ConnectionMade())
    (sent,) = talk.welcome(hello)
    assert number_of(sent) == 2
    return talk, call


class TestTheFirstAddress:
    def test_the_name_service_is_spared(self) -> None:
        """Where the first address answers, no other is asked."""
        talk, call = greeted()
        talk.say(JobsListed(request_id=2, job_ids=()))
        assert talk.done == [call]
        again = talk.call(jobs)
        (sent,) = talk.ask(again)
        talk.say(JobsListed(request_id=number_of(sent), job_ids=()))
        assert talk.done == [call, again]

    def test_a_failed_connection_is_doubt(self) -> None:
        """The name service is asked at once, and once; both are tried."""
        talk, _ = asked()
        assert talk.step(ConnectionFailed()) == (AskWhoLeads(),)
        assert talk.wait_for_deadline() == (ConnectTo(address=ADDRESS),)
        assert talk.step(ConnectionFailed()) == ()

    def test_no_leader_is_doubt(self) -> None:
        """A first address that does not lead sends us to the name service."""
        talk, _ = asked()
        (hello,) = talk.step(ConnectionMade())
        assert talk.refuse(hello, "not-leader") == (AskWhoLeads(),)

    def test_no_leader_any_more_is_doubt(self) -> None:
        """Also where it has led until a moment ago."""
        talk, _ = greeted()
        sent = SayHello(request_id=2)
        assert talk.refuse(sent, "not-leader") == (AskWhoLeads(),)

    def test_what_did_not_happen_is_doubt(self) -> None:
        """A proxy that cannot may have a successor that can."""
        talk, _ = greeted()
        sent = SayHello(request_id=2)
        assert talk.refuse(sent, "did-not-happen", "undecided") == (AskWhoLeads(),)

    @pytest.mark.parametrize("begin", [asked, greeted])
    def test_silence_is_doubt(self, begin: object) -> None:
        """After a while; a request that is answered in time asks no other."""
        assert callable(begin)
        talk, _ = begin()
        began_ns = talk.now_ns
        assert talk.wait(PATIENCE_NS - 1) in {(), (SayHello(request_id=2),)}
        assert talk.core.next_deadline_ns() == began_ns + PATIENCE_NS
        assert talk.wait(1) == (AskWhoLeads(),)

    def test_an_unknown_session_is_none(self) -> None:
        """A proxy that forgot us leads all the same."""
        talk, _ = greeted()
        hello = talk.refuse(SayHello(request_id=2), "unknown-session")
        assert hello == (SayHello(request_id=3),)


class TestWhatTheNameServiceSaysThen:
    def test_the_same(self) -> None:
        """What is under way at the first address goes on."""
        talk, call = greeted()
        talk.wait(PATIENCE_NS)
        assert talk.step(LeaderTold(address=ADDRESS, epoch=1)) == ()
        talk.say(JobsListed(request_id=2, job_ids=()))
        assert talk.done == [call]

    def test_another(self) -> None:
        """It is asked instead, at once."""
        talk, _ = greeted()
        talk.wait(PATIENCE_NS)
        moved = talk.step(LeaderTold(address=OTHER_ADDRESS, epoch=2))
        assert moved == (Disconnect(), ConnectTo(address=OTHER_ADDRESS))

    def test_nothing(self) -> None:
        """The first address may answer yet; if it goes, it is not tried again."""
        talk, _ = greeted()
        talk.wait(PATIENCE_NS)
        assert talk.step(LeaderTold(address=None)) == ()
        assert talk.core.flight_count == 1
        assert talk.step(ConnectionFailed()) == ()
        assert talk.wait(100 * MS) == ()
        told = talk.step(LeaderTold(address=ADDRESS, epoch=1))
        assert told == (ConnectTo(address=ADDRESS),)

    def test_nothing_between_two_attempts(self) -> None:
        """None is tried while none is known to lead."""
        talk, call = asked()
        talk.step(ConnectionFailed())
        assert talk.step(LeaderTold(address=None)) == ()
        talk.wait(DEADLINE_NS)
        assert isinstance(call.error, NoLeaderError)

    def test_that_it_cannot_be_asked(self) -> None:
        """That is what is told at the deadline."""
        talk, call = greeted()
        talk.wait(PATIENCE_NS)
        error = UnreachableError("leaderserver://", 1.0)
        talk.step(LeaderTold(address=None, problem=error))
        talk.wait(DEADLINE_NS)
        assert isinstance(call.error, UnreachableError)

    def test_later_news_are_as_ever(self) -> None:
        """Once a leader was named, without a leader none is asked."""
        talk, _ = greeted()
        talk.wait(PATIENCE_NS)
        talk.step(LeaderTold(address=ADDRESS, epoch=1))
        assert talk.step(LeaderTold(address=None)) == (Disconnect(),)
