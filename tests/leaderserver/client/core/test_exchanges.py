from __future__ import annotations

import pytest

from leaderserver.client.core.exchanges import Exchange, ExchangeKey, Exchanges, Purpose
from leaderserver.store_messages import GetRequest


KEY: ExchangeKey = (Purpose.CALL, "1")


def exchange(
    key: ExchangeKey = KEY,
    *,
    call_id: int | None = 1,
    deadline_ns: int | None = None,
    retry_ns_max: int = 80,
    is_repeatable: bool = True,
    due_ns: int | None = 0,
) -> Exchange:
    """Return an exchange that was begun at 0 and waits 20 before it is repeated."""
    return Exchange(
        key=key,
        body=GetRequest(component_id="c/job", path="p"),
        call_id=call_id,
        began_ns=0,
        deadline_ns=deadline_ns,
        retry_ns=20,
        retry_ns_max=retry_ns_max,
        is_repeatable=is_repeatable,
        due_ns=due_ns,
    )


class TestSending:
    def test_waits_double_up_to_a_limit(self) -> None:
        """A slow answer is asked for less and less often, but never given up (E8)."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        due = []
        now_ns = 0
        for number in range(1, 6):
            exchanges.sent([asked], number, now_ns=now_ns)
            assert asked.due_ns is not None
            due.append(asked.due_ns - now_ns)
            now_ns = asked.due_ns
        assert due == [20, 40, 80, 80, 80]
        assert asked.was_sent

    def test_what_must_not_be_repeated_is_sent_once(self) -> None:
        """A write that may have taken effect is not sent again (L4)."""
        exchanges = Exchanges()
        write = exchange(is_repeatable=False)
        exchanges.begin(write)
        exchanges.sent([write], 1, now_ns=0)
        assert write.due_ns is None
        assert exchanges.earliest_ns(can_send=True) is None
        assert exchanges.answered(1, now_ns=0) == [write]

    def test_they_keep_the_order_in_which_they_were_begun(self) -> None:
        """What was asked for first is sent first."""
        exchanges = Exchanges()
        keys: list[ExchangeKey] = [(Purpose.CALL, name) for name in ("2", "1", "3")]
        for key in keys:
            exchanges.begin(exchange(key))
        assert [each.key for each in exchanges] == keys
        assert len(exchanges) == 3


class TestAnswers:
    def test_an_answer_to_any_number_answers(self) -> None:
        """An answer that was late is as good as one to the repetition (N1)."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        exchanges.sent([asked], 3, now_ns=0)
        exchanges.sent([asked], 5, now_ns=20)
        assert exchanges.answered(3, now_ns=0) == [asked]
        assert exchanges.answered(5, now_ns=0) == [asked]
        assert exchanges.answered(4, now_ns=0) == ()

    def test_old_numbers_are_forgotten(self) -> None:
        """An exchange that is never answered does not grow (N3)."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        for number in range(1, 18):
            exchanges.sent([asked], number, now_ns=number)
        assert asked.numbers == list(range(2, 18))
        assert exchanges.answered(1, now_ns=0) == ()
        assert exchanges.answered(2, now_ns=0) == [asked]

    def test_what_has_ended_is_answered_no_more(self) -> None:
        """Its caller has gone; a late answer finds none."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        exchanges.sent([asked], 1, now_ns=0)
        assert exchanges.get(KEY) is asked
        assert exchanges.end(KEY) is asked
        assert exchanges.end(KEY) is None
        assert exchanges.get(KEY) is None
        assert exchanges.answered(1, now_ns=0) == ()

    def test_another_for_the_same_key_replaces_it(self) -> None:
        """Only the newest of its kind is sent, and answered."""
        exchanges = Exchanges()
        first, second = exchange(), exchange()
        exchanges.begin(first)
        exchanges.sent([first], 1, now_ns=0)
        exchanges.begin(second)
        exchanges.sent([second], 2, now_ns=0)
        assert exchanges.answered(1, now_ns=0) == ()
        assert exchanges.answered(2, now_ns=0) == [second]
        assert list(exchanges) == [second]

    def test_numbers_end_with_their_session(self) -> None:
        """Numbers of a session that is over say nothing in the next."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        exchanges.sent([asked], 1, now_ns=0)
        exchanges.session_over()
        assert exchanges.answered(1, now_ns=0) == ()
        assert asked.was_sent
        assert exchanges.end(KEY) is asked


class TestDeadlines:
    @pytest.mark.parametrize(
        ("call_id", "deadline_ns", "due_ns", "can_send", "earliest_ns"),
        [
            (1, 50, 20, True, 20),
            (1, 10, 20, True, 10),
            (1, 50, 20, False, 50),
            (None, 10, 20, True, 20),
            (None, 10, 20, False, None),
            (1, None, None, True, None),
        ],
    )
    def test_earliest(
        self,
        call_id: int | None,
        deadline_ns: int | None,
        due_ns: int | None,
        can_send: bool,
        earliest_ns: int | None,
    ) -> None:
        """Nothing is due while it cannot be sent; a deadline counts for a caller."""
        exchanges = Exchanges()
        exchanges.begin(
            exchange(call_id=call_id, deadline_ns=deadline_ns, due_ns=due_ns)
        )
        assert exchanges.earliest_ns(can_send=can_send) == earliest_ns

    def test_the_earliest_of_many_counts(self) -> None:
        """One wake-up serves all exchanges."""
        exchanges = Exchanges()
        assert exchanges.earliest_ns(can_send=True) is None
        exchanges.begin(exchange((Purpose.CALL, "1"), due_ns=30))
        exchanges.begin(exchange((Purpose.CALL, "2"), due_ns=20))
        assert exchanges.earliest_ns(can_send=True) == 20


class TestStreams:
    def batch(self, exchanges: Exchanges, number: int, now_ns: int = 0) -> list[str]:
        """Send what is due under *number*; return the names."""
        due = exchanges.take_due(now_ns=now_ns)
        if due:
            exchanges.sent(due, number, now_ns=now_ns)
        exchanges.check_invariants()
        return [each.key[1] for each in due]

    def wishes(self, count: int) -> Exchanges:
        """Return that many subscriptions, none of them sent."""
        exchanges = Exchanges()
        for index in range(count):
            key = (Purpose.SUBSCRIBE, str(index))
            exchanges.begin(exchange(key, call_id=None))
        return exchanges

    def test_few_messages_are_under_way(self) -> None:
        """N3: the third waits until one of the first two is answered."""
        exchanges = self.wishes(250)
        assert len(self.batch(exchanges, 1)) == 100
        assert len(self.batch(exchanges, 2)) == 100
        assert self.batch(exchanges, 3) == []
        assert exchanges.earliest_ns(can_send=True) == 20  # when they are repeated
        assert len(exchanges.answered(1, now_ns=0)) == 100
        assert self.batch(exchanges, 3) == [str(index) for index in range(200, 250)]

    def test_a_message_is_answered_when_all_in_it_have_left(self) -> None:
        """Who withdraws makes room, too."""
        exchanges = self.wishes(201)
        self.batch(exchanges, 1)
        self.batch(exchanges, 2)
        for index in range(99):
            exchanges.end((Purpose.SUBSCRIBE, str(index)))
        assert self.batch(exchanges, 3) == []
        exchanges.end((Purpose.SUBSCRIBE, "99"))
        assert self.batch(exchanges, 3) == ["200"]

    def test_who_leaves_goes_before_who_comes(self) -> None:
        """E7: a successor waits for it; each stream has its own room."""
        exchanges = self.wishes(250)
        exchanges.begin(exchange((Purpose.CALL, "call")))
        exchanges.begin(exchange((Purpose.WITHDRAW, "leaving"), call_id=None))
        assert self.batch(exchanges, 1) == ["leaving"]
        assert self.batch(exchanges, 2) == ["call"]
        assert len(self.batch(exchanges, 3)) == 100

    def test_what_was_not_answered_makes_room(self) -> None:
        """A lost message does not keep the others waiting for ever."""
        exchanges = self.wishes(201)
        self.batch(exchanges, 1)
        self.batch(exchanges, 2)
        assert self.batch(exchanges, 3, now_ns=19) == []
        assert self.batch(exchanges, 3, now_ns=20) == ["200", *map(str, range(24))]

    def test_a_late_answer_is_as_good(self) -> None:
        """N1: it ends the exchange, whatever was sent since."""
        exchanges = self.wishes(2)
        self.batch(exchanges, 1)
        self.batch(exchanges, 2, now_ns=20)
        answered = exchanges.answered(1, now_ns=0)
        assert [each.key[1] for each in answered if each is not None] == ["0", "1"]
        exchanges.end((Purpose.SUBSCRIBE, "0"))
        assert [each is None for each in exchanges.answered(2, now_ns=0)] == [
            True,
            False,
        ]
        exchanges.check_invariants()

    def test_a_step_costs_the_same_however_many_wait(self) -> None:
        """N3: nothing is looked through; heaps hold no more than twice what waits."""
        exchanges = Exchanges()
        for index in range(20_000):
            key = (Purpose.CALL, str(index))
            exchanges.begin(exchange(key, deadline_ns=1_000_000))
            exchanges.sent(exchanges.take_due(now_ns=0), index + 1, now_ns=0)
            exchanges.end(key)
        assert len(exchanges._due) < 1_000
        assert len(exchanges._deadlines) < 1_000
        assert exchanges.earliest_ns(can_send=True) is None
        exchanges.check_invariants()
