from __future__ import annotations

import pytest

from leaderserver.client.core.events import CompleteCall, JoinTopic, LeaveTopic
from leaderserver.client.core.exchanges import Purpose
from leaderserver.client.core.outbox import ClientOutbox
from leaderserver.messages import DoneReply
from leaderserver.store_messages import GetRequest
from nameservice import DidNotHappenError


GET = GetRequest(component_id="c/job", path="p")


@pytest.fixture
def outbox() -> ClientOutbox:
    """Return an outbox at 5 ns; a lease is 100 ns, a session 999."""
    return ClientOutbox(now_ns=5, lease_ns=100, session_timeout_ns=999)


class TestEffects:
    def test_they_are_taken_once_and_in_order(self, outbox: ClientOutbox) -> None:
        """What follows from an event is done in the order in which it followed."""
        outbox.emit(JoinTopic(component_id="c/job"))
        outbox.emit(LeaveTopic(component_id="c/job"))
        assert outbox.take() == [
            JoinTopic(component_id="c/job"),
            LeaveTopic(component_id="c/job"),
        ]
        assert outbox.take() == []


class TestBegin:
    def test_it_is_due_at_once(self, outbox: ClientOutbox) -> None:
        """What is wished for is asked as soon as there is somebody to ask."""
        outbox.begin((Purpose.SUBSCRIBE, "c/job"), None)
        (exchange,) = outbox.exchanges
        assert exchange.due_ns == 5
        assert exchange.began_ns == 5
        assert exchange.call_id is None
        assert exchange.deadline_ns is None
        assert exchange.is_repeatable

    def test_an_election_is_asked_for_within_two_leases(
        self, outbox: ClientOutbox
    ) -> None:
        """What leadership hangs on is repeated less and less, but soon (E9)."""
        outbox.begin((Purpose.CONFIRM, "x"), GET)
        (exchange,) = outbox.exchanges
        assert (exchange.retry_ns, exchange.retry_ns_max) == (20, 200)

    def test_a_call_is_asked_for_less_and_less(self, outbox: ClientOutbox) -> None:
        """A slow answer must not be asked for ever more often."""
        outbox.begin(
            (Purpose.CALL, "1"), GET, call_id=1, deadline_ns=9, is_repeatable=False
        )
        (exchange,) = outbox.exchanges
        assert (exchange.retry_ns, exchange.retry_ns_max) == (20, 333)
        assert (exchange.call_id, exchange.deadline_ns) == (1, 9)
        assert not exchange.is_repeatable


class TestComplete:
    def test_a_caller_is_answered(self, outbox: ClientOutbox) -> None:
        """A call ends with what the server said, or with an error."""
        outbox.begin((Purpose.CALL, "3"), GET, call_id=3, deadline_ns=9)
        (exchange,) = outbox.exchanges
        error = DidNotHappenError("no")
        outbox.complete(exchange, reply=DoneReply())
        outbox.complete(exchange, error=error)
        outbox.complete_call(4)
        assert outbox.take() == [
            CompleteCall(call_id=3, reply=DoneReply()),
            CompleteCall(call_id=3, error=error),
            CompleteCall(call_id=4),
        ]

    def test_what_nobody_waits_for_is_answered_to_nobody(
        self, outbox: ClientOutbox
    ) -> None:
        """A wish of our own has no caller."""
        outbox.begin((Purpose.SUBSCRIBE, "c/job"), None)
        (exchange,) = outbox.exchanges
        outbox.complete(exchange, reply=DoneReply())
        assert outbox.take() == []
