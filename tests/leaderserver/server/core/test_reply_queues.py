"""What waits for clients to read it, counted in bytes (N3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderserver.server.core.reply_queues import QueueLimits, ReplyQueues


A = b"a"
B = b"b"


def queues(
    *, per_peer: int = 1_000, total: int = 2_000, count: int = 10, window: int = 300
) -> ReplyQueues:
    """Return queues with small limits."""
    return ReplyQueues(
        QueueLimits(
            bytes_per_peer_max=per_peer,
            bytes_max=total,
            count_per_peer_max=count,
            window_bytes=window,
        )
    )


@pytest.mark.proves("N3")
class TestWindow:
    def test_zeromq_has_one_window_at_most(self) -> None:
        """N3: who reads nothing costs one window there, not a thousand replies."""
        waiting = queues()
        for _ in range(5):
            waiting.add(A, bytes(200), is_bulk=True)
        assert waiting.take(A) == bytes(200)
        assert waiting.take(A) is None
        assert waiting.is_waiting(A)

    def test_one_message_may_be_larger_than_the_window(self) -> None:
        """N3: the largest reply there is can be sent, alone."""
        waiting = queues()
        waiting.add(A, bytes(900), is_bulk=True)
        waiting.add(A, b"x", is_bulk=True)
        assert waiting.take(A) == bytes(900)
        assert waiting.take(A) is None
        waiting.written(A, 900)
        assert waiting.take(A) == b"x"

    def test_what_is_written_makes_room(self) -> None:
        """N3: what the connection has taken is counted no more."""
        waiting = queues()
        for _ in range(3):
            waiting.add(A, bytes(200), is_bulk=True)
        waiting.take(A)
        waiting.written(A, 100)
        assert waiting.queued_bytes == 500
        assert waiting.take(A) == bytes(200)
        assert waiting.take(A) is None
        waiting.written(A, 400)
        assert waiting.take(A) == bytes(200)
        waiting.written(A, 10_000)
        assert waiting.queued_bytes == 0
        assert not waiting.is_waiting(A)

    def test_without_a_kernel_that_tells_zeromq_limits(self) -> None:
        """N3: where nothing is told, all that was handed over counts as gone."""
        waiting = queues()
        for _ in range(3):
            waiting.add(A, bytes(200), is_bulk=True)
            waiting.take(A)
            waiting.written(A, None)
        assert waiting.queued_bytes == 0


@pytest.mark.proves("N3")
class TestPassing:
    def test_what_nothing_waits_before_passes_and_counts(self) -> None:
        """N3: what goes to ZeroMQ at once counts until the connection has taken it."""
        waiting = queues()
        assert waiting.hand_at_once(A, 200)
        assert waiting.queued_bytes == 200
        assert not waiting.is_waiting(A)
        assert not waiting.hand_at_once(A, 200)
        assert waiting.hand_at_once(B, 200)
        waiting.written(A, 200)
        assert waiting.hand_at_once(A, 200)
        waiting.forget(A)
        assert waiting.queued_bytes == 200

    def test_nothing_passes_what_waits(self) -> None:
        """N3: a small message does not overtake one that the window has no room for."""
        waiting = queues()
        assert waiting.hand_at_once(A, 200)
        waiting.add(A, bytes(200), is_bulk=True)
        assert waiting.take(A) is None
        assert not waiting.hand_at_once(A, 1)
        assert waiting.hand_at_once(B, 1)

    def test_one_message_of_any_size_passes_alone(self) -> None:
        """N3: the largest reply there is goes at once, and nothing after it."""
        waiting = queues(per_peer=100)
        assert waiting.hand_at_once(A, 900)
        assert not waiting.hand_at_once(A, 1)

    def test_a_client_may_have_less_than_a_window(self) -> None:
        """N3: what passes keeps to the limit of one client, too."""
        waiting = queues(per_peer=100)
        assert waiting.hand_at_once(A, 80)
        assert not waiting.hand_at_once(A, 80)

    def test_what_passed_and_could_not_be_sent_goes_first(self) -> None:
        """N3: ZeroMQ's own limit changes no order here, either."""
        waiting = queues()
        assert waiting.hand_at_once(A, 1)
        waiting.put_back(A, b"1")
        assert not waiting.hand_at_once(A, 1)
        waiting.add(A, b"2", is_bulk=False)
        assert [waiting.take(A), waiting.take(A)] == [b"1", b"2"]


class TestLanes:
    def test_what_is_urgent_goes_first_and_in_order(self) -> None:
        """E4: no acknowledgement waits behind values that somebody asked for."""
        waiting = queues()
        waiting.add(A, b"value 1", is_bulk=True)
        waiting.add(A, b"acknowledged", is_bulk=False)
        waiting.add(A, b"value 2", is_bulk=True)
        waiting.add(A, b"granted", is_bulk=False)
        taken = [waiting.take(A) for _ in range(5)]
        assert taken == [b"acknowledged", b"granted", b"value 1", b"value 2", None]

    @pytest.mark.proves("N3")
    def test_what_could_not_be_sent_goes_first(self) -> None:
        """N3: ZeroMQ's own limit loses nothing, and changes no order."""
        waiting = queues()
        waiting.add(A, b"1", is_bulk=False)
        waiting.add(A, b"2", is_bulk=False)
        waiting.put_back(A, waiting.take(A) or b"")
        assert [waiting.take(A), waiting.take(A)] == [b"1", b"2"]


class TestLimits:
    @pytest.mark.proves("N3")
    def test_bulk_is_refused_where_it_has_no_room(self) -> None:
        """N3: what one client has not read has a limit in bytes."""
        waiting = queues()
        for _ in range(5):
            assert waiting.admits(A, 200, is_bulk=True)
            waiting.add(A, bytes(200), is_bulk=True)
        assert not waiting.admits(A, 1, is_bulk=True)
        assert waiting.admits(A, 1, is_bulk=False)
        assert waiting.admits(B, 200, is_bulk=True)

    @pytest.mark.proves("N3")
    def test_one_message_of_any_size_is_admitted(self) -> None:
        """N3: the limit is on what waits, not on what can be asked for."""
        waiting = queues()
        assert waiting.admits(A, 5_000, is_bulk=True)
        waiting.add(A, b"x", is_bulk=False)
        assert not waiting.admits(A, 5_000, is_bulk=True)

    @pytest.mark.proves("N3")
    def test_messages_are_counted_too(self) -> None:
        """N3: what is urgent is small, and not without number."""
        waiting = queues(count=2)
        waiting.add(A, b"1", is_bulk=False)
        waiting.add(A, b"2", is_bulk=True)
        assert not waiting.admits(A, 1, is_bulk=False)

    @pytest.mark.proves("N3")
    def test_the_greediest_has_the_most(self) -> None:
        """N3: a flood costs its own client the connection, not those with few."""
        waiting = queues(total=700)
        waiting.add(B, b"small", is_bulk=False)
        for _ in range(4):
            waiting.add(A, bytes(200), is_bulk=True)
        assert waiting.is_over_limit
        assert waiting.greediest() == A
        waiting.forget(A)
        assert not waiting.is_over_limit
        assert waiting.greediest() == B
        assert waiting.queued_bytes == 5

    def test_nobody_is_known_at_first(self) -> None:
        """What is asked about a client without a queue has an answer."""
        waiting = queues()
        assert waiting.greediest() is None
        assert waiting.take(A) is None
        waiting.written(A, 5)
        waiting.forget(A)
        assert waiting.waiting == ()


@pytest.mark.proves("N3")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from([A, B]), st.integers(0, 600)),
            st.tuples(st.just("take"), st.sampled_from([A, B]), st.just(0)),
            st.tuples(st.just("written"), st.sampled_from([A, B]), st.integers(0, 900)),
            st.tuples(st.just("forget"), st.sampled_from([A, B]), st.just(0)),
        ),
        max_size=60,
    )
)
def test_the_sum_is_the_sum_of_all(
    steps: list[tuple[str, bytes, int]],
) -> None:
    """N3: whatever happens, the total is what waits and what ZeroMQ has, never less."""
    waiting = queues()
    queued: dict[bytes, int] = {A: 0, B: 0}
    handed: dict[bytes, int] = {A: 0, B: 0}
    seen: dict[bytes, int] = {A: 0, B: 0}
    for step, peer, number in steps:
        if step == "add" and waiting.admits(peer, number, is_bulk=True):
            waiting.add(peer, bytes(number), is_bulk=True)
            queued[peer] += number
        elif step == "take":
            payload = waiting.take(peer)
            if payload is not None:
                assert handed[peer] == 0 or handed[peer] + len(payload) <= 300
                queued[peer] -= len(payload)
                handed[peer] += len(payload)
        elif step == "written":
            if waiting.queued_bytes and (peer in waiting.holders()):
                gone = min(handed[peer], max(0, number - seen[peer]))
                handed[peer] -= gone
                seen[peer] = number
            else:
                continue
            waiting.written(peer, number)
        elif step == "forget":
            waiting.forget(peer)
            queued[peer] = handed[peer] = seen[peer] = 0
        assert waiting.queued_bytes == sum(queued.values()) + sum(handed.values())
        for name in (A, B):
            assert queued[name] + handed[name] <= 1_000
