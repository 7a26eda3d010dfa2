from __future__ import annotations

import pytest

from leaderserver.exchanges import Exchange, ExchangeKey, Exchanges, Purpose
from leaderserver.messages import GetRequest


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
            exchanges.sent(asked, number, now_ns=now_ns)
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
        exchanges.sent(write, 1, now_ns=0)
        assert write.due_ns is None
        assert exchanges.earliest_ns(can_send=True) is None
        assert exchanges.answered(1) is write

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
        exchanges.sent(asked, 3, now_ns=0)
        exchanges.sent(asked, 5, now_ns=20)
        assert exchanges.answered(3) is asked
        assert exchanges.answered(5) is asked
        assert exchanges.answered(4) is None

    def test_old_numbers_are_forgotten(self) -> None:
        """An exchange that is never answered does not grow (N3)."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        for number in range(1, 18):
            exchanges.sent(asked, number, now_ns=number)
        assert asked.numbers == list(range(2, 18))
        assert exchanges.answered(1) is None
        assert exchanges.answered(2) is asked

    def test_what_has_ended_is_answered_no_more(self) -> None:
        """Its caller has gone; a late answer finds nobody."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        exchanges.sent(asked, 1, now_ns=0)
        assert exchanges.get(KEY) is asked
        assert exchanges.end(KEY) is asked
        assert exchanges.end(KEY) is None
        assert exchanges.get(KEY) is None
        assert exchanges.answered(1) is None

    def test_another_for_the_same_key_replaces_it(self) -> None:
        """Only the newest of its kind is sent, and answered."""
        exchanges = Exchanges()
        first, second = exchange(), exchange()
        exchanges.begin(first)
        exchanges.sent(first, 1, now_ns=0)
        exchanges.begin(second)
        exchanges.sent(second, 2, now_ns=0)
        assert exchanges.answered(1) is None
        assert exchanges.answered(2) is second
        assert list(exchanges) == [second]

    def test_numbers_end_with_their_session(self) -> None:
        """Numbers of a session that is over say nothing in the next."""
        exchanges = Exchanges()
        asked = exchange()
        exchanges.begin(asked)
        exchanges.sent(asked, 1, now_ns=0)
        exchanges.session_over()
        assert exchanges.answered(1) is None
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
