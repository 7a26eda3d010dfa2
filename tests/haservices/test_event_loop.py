from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from haservices.event_loop import EventLoop
from nameservice import SystemClock
from tests.recording import Record


TIMEOUT_SECONDS = 30.0


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """Return a loop that runs."""
    loop = EventLoop("test-loop", SystemClock())
    loop.start()
    yield loop
    loop.stop()


class TestEventLoop:
    """One thread that does one thing after the other."""

    def test_things_are_done_in_the_order_in_which_they_were_handed_in(
        self, loop: EventLoop
    ) -> None:
        """One that hands in two things finds the first done before the second."""
        done: Record[int] = Record()
        for number in range(100):
            loop.call(lambda number=number: done.add(number))  # type: ignore[misc]
        assert done.wait_for_count(100) == tuple(range(100))

    def test_a_result_or_an_error_comes_back(self, loop: EventLoop) -> None:
        """A caller on another thread gets what the action returned or raised."""
        assert loop.submit(threading.current_thread).result(TIMEOUT_SECONDS) is not (
            threading.current_thread()
        )
        assert loop.submit(lambda: loop.is_current).result(TIMEOUT_SECONDS)
        assert not loop.is_current
        with pytest.raises(ZeroDivisionError):
            loop.submit(lambda: 1 // 0).result(TIMEOUT_SECONDS)

    def test_timers_fire_in_the_order_of_their_times(self, loop: EventLoop) -> None:
        """Timers fire by the clock, at equal times in the order of their making."""
        fired: Record[str] = Record()

        def arm() -> None:
            now_ns = SystemClock().now_ns()
            for delay_ms, label in ((20, "c"), (0, "a"), (20, "d"), (10, "b")):
                at_ns = now_ns + delay_ms * 1_000_000
                loop.call_at(at_ns, lambda label=label: fired.add(label))  # type: ignore[misc]
            loop.call_at(now_ns, lambda: fired.add("cancelled")).cancel()

        loop.call(arm)
        assert fired.wait_for_count(4) == ("a", "b", "c", "d")

    def test_a_timer_that_fired_or_was_cancelled_may_be_cancelled(
        self, loop: EventLoop
    ) -> None:
        """Cancelling is idempotent, and too late is no error."""
        fired: Record[str] = Record()
        timer = loop.submit(lambda: loop.call_at(0, lambda: fired.add("once"))).result(
            TIMEOUT_SECONDS
        )
        fired.wait_for_count(1)
        loop.submit(timer.cancel).result(TIMEOUT_SECONDS)
        loop.submit(timer.cancel).result(TIMEOUT_SECONDS)
        assert fired.items == ("once",)

    def test_many_cancelled_timers_are_forgotten(self, loop: EventLoop) -> None:
        """A timer far in the future that is cancelled does not stay for so long."""

        def churn() -> int:
            far_ns = SystemClock().now_ns() + 3_600_000_000_000
            for _ in range(10_000):
                loop.call_at(far_ns, lambda: None).cancel()
            return len(loop._timers)

        assert loop.submit(churn).result(TIMEOUT_SECONDS) < 1_000

    def test_a_mistake_in_one_thing_does_not_end_the_loop(
        self, loop: EventLoop
    ) -> None:
        """What fails is logged as an error; everything else goes on."""
        with capture_logs() as logs:
            loop.call(lambda: 1 // 0)
            assert loop.submit(lambda: 7).result(TIMEOUT_SECONDS) == 7
        assert [entry["event"] for entry in logs] == ["loop.failed"]

    def test_what_was_handed_in_before_the_stop_is_done(self) -> None:
        """Stopping waits for it; the thread is gone then."""
        loop = EventLoop("test-loop", SystemClock())
        loop.start()
        done: Record[int] = Record()
        for number in range(100):
            loop.call(lambda number=number: done.add(number))  # type: ignore[misc]
        loop.stop()
        assert len(done.items) == 100
        assert "test-loop" not in {thread.name for thread in threading.enumerate()}
