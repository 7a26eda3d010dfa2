from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import pytest

from nameservice import CallbackLane, callbacks
from tests.exhausted_threads import no_more_threads
from tests.forking import run_in_child
from tests.recording import WAIT_SECONDS, Record, wait_until


MANY: Final = 1_000

# A thread carries the name of the lane that it runs.
IDLE: Final = "callbacks of a test"
POOL_NAMES: Final = frozenset({IDLE, "counting", "short"})


class CountingLane:
    """A lane whose turns count, and block if they are told to."""

    def __init__(self, *, blocks: bool = False) -> None:
        self.counts: Record[int] = Record()
        self.names: Record[str] = Record()
        self.may_return = threading.Event()
        self._blocks = blocks
        self._is_closed = False
        self.lane = CallbackLane("counting", self._turn)

    def _turn(self) -> bool:
        if self._is_closed:
            return True
        self.names.add(threading.current_thread().name)
        self.counts.add(len(self.counts.items))
        if self._blocks:
            assert self.may_return.wait(2 * WAIT_SECONDS)
        return False

    def close(self) -> None:
        """Have it return and end; wait for that."""
        self.may_return.set()
        self._is_closed = True
        self.lane.wake()
        self.lane.join()


def pool_threads() -> list[threading.Thread]:
    """Return the threads of the pool, whatever they run."""
    return [one for one in threading.enumerate() if one.name in POOL_NAMES]


def idle_threads() -> list[threading.Thread]:
    """Return those of them that wait."""
    return [one for one in pool_threads() if one.name == IDLE]


@pytest.fixture(autouse=True)
def own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lanes run on a pool of the test's own: others in this process count, too."""
    monkeypatch.setattr(callbacks, "_pool", callbacks._CallbackPool(IDLE))


class TestCallbackLane:
    def test_turns_follow_each_other_under_the_name_of_the_lane(self) -> None:
        """E6: each wake is followed by a turn; threads tell whose it is."""
        one = CountingLane()
        for count in range(10):
            one.lane.wake()
            one.counts.wait_for_count(count + 1)
        one.close()
        assert one.names.items == ("counting",) * 10
        assert "counting" not in {thread.name for thread in threading.enumerate()}

    def test_a_thousand_that_block_delay_no_other(self) -> None:
        """R2: every lane has its turn while all others stay in theirs."""
        blocked = [CountingLane(blocks=True) for _ in range(MANY)]
        for one in blocked:
            one.lane.wake()
        for one in blocked:
            one.counts.wait_for_count(1)
        other = CountingLane()
        other.lane.wake()
        other.counts.wait_for_count(1)
        for one in (other, *blocked):
            one.close()
        wait_until(lambda: not pool_threads())

    def test_a_thousand_that_are_short_share_a_few_threads(self) -> None:
        """One pool instead of a thread for each."""
        lanes = [CountingLane() for _ in range(MANY)]
        most = 0
        for one in lanes:
            one.lane.wake()
            most = max(most, threading.active_count())
        for one in lanes:
            one.counts.wait_for_count(1)
        for one in lanes:
            one.close()
        assert most < MANY // 2

    @pytest.mark.proves("E6")
    def test_one_thread_waits_for_all_lanes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """E6: where no thread can be started any more a turn comes all the same."""
        monkeypatch.setattr(callbacks, "_IDLE_SECONDS", 0.0)
        one, other = CountingLane(), CountingLane()
        for each in (one, other):
            each.lane.wake()
            each.counts.wait_for_count(1)
        wait_until(lambda: len(pool_threads()) == 1)
        with no_more_threads(IDLE):
            for count in range(2, 5):
                for each in (one, other):
                    each.lane.wake()
                    each.counts.wait_for_count(count)
        one.close()
        other.close()
        wait_until(lambda: not pool_threads())

    @pytest.mark.proves("E6")
    def test_one_thread_stays_beside_one_that_blocks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """E6: of those that become idle together not all go."""
        monkeypatch.setattr(callbacks, "_IDLE_SECONDS", 0.5)  # time to see all three
        turns = threading.Barrier(3)
        is_over = False

        def turn() -> bool:
            if not is_over:
                turns.wait(WAIT_SECONDS)
            return is_over

        lanes = [CallbackLane("short", turn) for _ in range(3)]
        other = CountingLane()
        for count in range(1, 3):
            for lane in lanes:
                lane.wake()
            wait_until(lambda: len(idle_threads()) == 3)
            blocked = CountingLane(blocks=True)
            blocked.lane.wake()
            blocked.counts.wait_for_count(1)
            wait_until(lambda: len(idle_threads()) < 2)
            with no_more_threads(IDLE):
                other.lane.wake()
                other.counts.wait_for_count(count)
            blocked.close()
        is_over = True
        for lane in lanes:
            lane.wake()
            lane.join()
        other.close()

    def test_no_thread_waits_for_no_lane(self) -> None:
        """Lanes that end by themselves, and are joined by no one, leave no thread."""
        turns = threading.Barrier(2)

        def turn() -> bool:
            turns.wait(WAIT_SECONDS)
            return True

        for lane in [CallbackLane("short", turn) for _ in range(2)]:
            lane.wake()
        wait_until(lambda: not pool_threads())

    def test_a_turn_that_raises_is_no_end(self) -> None:
        """A mistake of ours is logged; the lane and the others go on."""
        turns: Record[str] = Record()

        def turn() -> bool:
            turns.add("turn")
            if len(turns.items) == 1:
                raise RuntimeError("ours")
            return len(turns.items) == 3

        lane = CallbackLane("faulty", turn)
        for count in range(1, 4):
            lane.wake()
            turns.wait_for_count(count)
        lane.join()

    def test_join_inside_its_own_turn_does_not_wait(self) -> None:
        """E6: who closes inside a callback goes on at once."""
        joined: Record[bool] = Record()

        def turn() -> bool:
            assert lane.thread_id == threading.get_ident()
            lane.join()
            joined.add(lane.thread_id == threading.get_ident())
            return True

        lane = CallbackLane("joining", turn)
        assert lane.thread_id != threading.get_ident()
        lane.wake()
        lane.join()
        assert joined.items == (True,)

    def test_a_lane_may_be_joined_in_the_turn_of_another(self) -> None:
        """E7: a callback of one election may close another."""
        inner = CountingLane(blocks=True)

        def turn() -> bool:
            inner.lane.wake()
            inner.counts.wait_for_count(1)
            inner.close()
            return True

        outer = CallbackLane("outer", turn)
        outer.wake()
        outer.join()

    def test_the_last_join_waits_for_the_threads(self) -> None:
        """What closes leaves nothing behind, not even for a moment."""
        lanes = [CountingLane() for _ in range(20)]
        for one in lanes:
            one.lane.wake()
        for one in lanes:
            one.close()
        assert not pool_threads()

    @pytest.mark.proves("E7")
    def test_a_join_does_not_wait_for_lanes_that_come_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """E7: what is opened amid the last close keeps a thread, and the close ends."""
        ended, other = CountingLane(), CountingLane()
        pool = callbacks._pool
        over, is_other_there = ended.lane.over, threading.Event()
        set_over, dismiss = over.set, pool._dismiss

        def set_and_wait() -> None:
            set_over()
            assert is_other_there.wait(WAIT_SECONDS)

        def dismiss_and_add() -> Sequence[threading.Thread]:
            threads = dismiss()
            if over.is_set() and not is_other_there.is_set():
                assert threads
                other.lane.wake()
                is_other_there.set()
            return threads

        other.lane.wake()
        other.counts.wait_for_count(1)
        other.close()
        monkeypatch.setattr(over, "set", set_and_wait)
        monkeypatch.setattr(pool, "_dismiss", dismiss_and_add)
        closing = threading.Thread(target=ended.close, daemon=True)
        closing.start()
        closing.join(WAIT_SECONDS)
        assert not closing.is_alive()
        other.lane.wake()
        wait_until(lambda: not pool_threads())

    def test_a_forked_child_has_lanes_of_its_own(self) -> None:
        """E10: the threads of the parent are not there; new ones are."""
        parents = CountingLane()
        parents.lane.wake()
        parents.counts.wait_for_count(1)

        def use() -> int:
            childs = CountingLane()
            childs.lane.wake()
            childs.counts.wait_for_count(1)
            childs.close()
            return len(childs.counts.items)

        assert run_in_child(use) == "1"
        parents.lane.wake()
        parents.counts.wait_for_count(2)
        parents.close()
