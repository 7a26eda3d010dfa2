from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
import zmq
from structlog.testing import capture_logs

from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    ManualClock,
    SystemClock,
    UnreachableError,
)
from nameservice.clock import NS_PER_MS
from tests.exhausted_threads import no_more_threads
from tests.forking import run_in_child
from tests.leaks import assert_closed, no_collection, process_figures, settled
from tests.recording import wait_until
from zmqtransport import loop as loop_module
from zmqtransport import new_context
from zmqtransport.endpoints import parse_endpoint
from zmqtransport.loop import PollLoop
from zmqtransport.sockets import (
    SendOutcome,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connect_socket,
    open_socket,
    send_now,
)


pytestmark = pytest.mark.shells

WAIT_SECONDS = 20.0
WAIT_MS = 20_000
MS = 1_000_000


@pytest.fixture
def loop() -> Iterator[PollLoop]:
    """Yield a loop that is not running; stop it at the end."""
    loop = PollLoop(name="test")
    yield loop
    loop.stop()
    loop.join(WAIT_SECONDS)
    assert loop.is_over


@pytest.fixture
def pair(context: ZMQContext) -> tuple[ZMQSocket, ZMQSocket]:
    """Return two connected sockets: one for the loop, one for the test."""
    return connected(context, "pair")


def connected(context: ZMQContext, name: str) -> tuple[ZMQSocket, ZMQSocket]:
    """Return another two, by a name that no other two have."""
    served = open_socket(context, zmq.PAIR, SocketLimits(is_immediate=False))
    served.bind(f"inproc://{name}")
    driver = open_socket(context, zmq.PAIR, SocketLimits(is_immediate=False))
    driver.connect(f"inproc://{name}")
    return served, driver


def call(loop: PollLoop, callback: Callable[[], None]) -> None:
    """Have *callback* called in the loop, and wait until it was."""
    done = threading.Event()

    def run() -> None:
        try:
            callback()
        finally:
            done.set()

    loop.call_soon_threadsafe(run)
    assert done.wait(WAIT_SECONDS)


def nothing() -> None:
    """Do nothing."""


class TestMessages:
    def test_every_message_is_handled_in_order(
        self, loop: PollLoop, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """More messages than a burst holds arrive one by one, none twice."""
        served, driver = pair
        received: list[bytes] = []
        done = threading.Event()

        def on_message(frames: list[zmq.Frame]) -> None:
            received.append(frames[-1].bytes)
            if len(received) == 950:
                done.set()

        loop.add_socket(served, on_message)
        loop.start()
        for number in range(950):
            driver.send_multipart([b"x", b"%d" % number])
        assert done.wait(WAIT_SECONDS)
        assert received == [b"%d" % number for number in range(950)]

    @pytest.mark.proves("N3")
    def test_an_exception_costs_one_message(
        self, loop: PollLoop, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """Rule N3: a handler that fails is logged and counted; the loop goes on."""
        served, driver = pair
        done = threading.Event()

        def on_message(frames: list[zmq.Frame]) -> None:
            if frames[0].bytes == b"bad":
                raise ZeroDivisionError("by a bad message")
            done.set()

        loop.add_socket(served, on_message)
        with capture_logs() as logs:
            loop.start()
            driver.send(b"bad")
            driver.send(b"good")
            assert done.wait(WAIT_SECONDS)
            loop.stop()
            loop.join(WAIT_SECONDS)
        assert loop.failure_count == 1
        assert loop.failure is None
        (entry,) = logs
        assert entry["event"] == "loop.failed"
        assert entry["where"] == "message"
        assert isinstance(entry["exc_info"], ZeroDivisionError)

    def test_a_flood_does_not_starve_the_others(
        self, context: ZMQContext, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """A burst is bounded: the other socket and the deadline have their turn."""
        flooded, driver = pair
        other, other_driver = connected(context, "other")
        for _ in range(500):
            driver.send(b"flood")
        other_driver.send(b"other")
        clock = ManualClock()
        loop = PollLoop(name="test", clock=clock, burst_count_max=7)
        log: list[str] = []
        loop.add_socket(flooded, lambda _: log.append("flood"))
        loop.add_socket(other, lambda _: log.append("other"))
        loop.set_deadline(
            lambda: None if "deadline" in log else 0,
            lambda: log.append("deadline"),
        )
        loop.call_soon_threadsafe(lambda: log.append("call"))

        def stop_at_the_end(_: list[zmq.Frame]) -> None:
            loop.stop()

        last, last_driver = connected(context, "last")
        last_driver.send(b"last")
        loop.add_socket(last, stop_at_the_end)
        loop.run()
        assert log == ["deadline", *["flood"] * 7, "other", "call"]

    @pytest.mark.proves("B2")
    def test_messages_that_take_long_do_not_starve_the_others(
        self, context: ZMQContext, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """B2: a burst ends when its time is over; `drain` takes all of it."""
        slow, driver = pair
        other, other_driver = connected(context, "other")
        for _ in range(7):
            driver.send(b"slow")
        for _ in range(4):
            other_driver.send(b"other")
        clock = ManualClock()
        loop = PollLoop(name="test", clock=clock, burst_ns_max=2 * NS_PER_MS)
        log: list[str] = []

        def on_slow(_: list[zmq.Frame]) -> None:
            log.append("slow")
            clock.advance(NS_PER_MS)

        def on_other(_: list[zmq.Frame]) -> None:
            log.append("other")
            clock.advance(2 * NS_PER_MS)
            if log.count("other") == 2:
                loop.drain(slow)
            if log.count("other") == 4:
                loop.stop()

        loop.add_socket(slow, on_slow)
        loop.add_socket(other, on_other)
        loop.run()
        one_turn = ["slow", "slow", "other"]
        assert log == [*one_turn, *one_turn, *["slow"] * 3, "other", "other"]

    def test_a_handler_may_remove_and_close_its_own_socket(
        self, loop: PollLoop, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """What else waits on a removed socket is left alone, and the loop goes on."""
        served, driver = pair
        received: list[bytes] = []

        def on_message(frames: list[zmq.Frame]) -> None:
            received.append(frames[0].bytes)
            loop.remove_socket(served)
            loop.remove_socket(served)
            served.close()

        driver.send(b"first")
        driver.send(b"second")
        loop.add_socket(served, on_message)
        loop.start()
        call(loop, nothing)
        call(loop, nothing)
        assert received == [b"first"]
        assert loop.failure_count == 0

    def test_a_handler_may_remove_another_socket_that_is_ready(
        self, context: ZMQContext, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """A socket that was removed in this turn is not served in this turn."""
        served, driver = pair
        other, other_driver = connected(context, "other")
        driver.send(b"x")
        other_driver.send(b"y")
        loop = PollLoop(name="test")
        log: list[str] = []

        def on_message(_: list[zmq.Frame]) -> None:
            log.append("served")
            loop.remove_socket(other)
            loop.stop()

        loop.add_socket(served, on_message)
        loop.add_socket(other, lambda _: log.append("other"))
        loop.run()
        assert log == ["served"]

    def test_drain_lets_a_handler_see_what_came_before(
        self, context: ZMQContext, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """Rule E5: what a connection brought is handled before its end is."""
        news, news_driver = pair
        messages, driver = connected(context, "messages")
        driver.send(b"heartbeat")
        news_driver.send(b"closed")
        loop = PollLoop(name="test")
        log: list[str] = []

        def on_readable() -> None:
            event = news.recv().decode()
            loop.drain(messages)
            log.append(event)
            loop.stop()

        loop.add_readable(news, on_readable)  # served before the messages
        loop.add_socket(messages, lambda frames: log.append(frames[0].bytes.decode()))
        loop.run()
        assert log == ["heartbeat", "closed"]

    def test_draining_what_is_not_served_is_nothing(
        self, loop: PollLoop, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """A handler need not know whether a socket is still there."""
        loop.drain(pair[0])

    @pytest.mark.parametrize("is_late", [False, True])
    def test_a_readable_is_looked_at_until_nothing_waits(
        self, pair: tuple[ZMQSocket, ZMQSocket], *, is_late: bool
    ) -> None:
        """Also at those that came before it was served."""
        served, driver = pair
        loop = PollLoop(name="test")
        received: list[bytes] = []

        def on_readable() -> None:
            received.append(served.recv(zmq.NOBLOCK))
            if len(received) == 1_000:
                loop.remove_socket(served)
                loop.stop()

        def send() -> None:
            for index in range(1_000):
                driver.send(b"%d" % index)

        if not is_late:
            send()
            received.append(served.recv())  # its descriptor tells of no other
        loop.add_readable(served, on_readable)
        if is_late:
            loop.call_soon_threadsafe(send)
        loop.run()
        assert received == [b"%d" % index for index in range(1_000)]
        assert loop.failure_count == 0

    def test_a_flood_has_one_burst_in_each_turn(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """However much comes meanwhile."""
        served, driver = pair
        loop = PollLoop(name="test")
        turns: list[int] = []

        def on_readable() -> None:
            served.recv(zmq.NOBLOCK)
            turns[-1] += 1
            driver.send(b"more")

        def count_turn() -> None:
            turns.append(0)
            loop.call_soon_threadsafe(loop.stop if len(turns) == 50 else count_turn)

        for _ in range(100):
            driver.send(b"first")
        loop.call_soon_threadsafe(count_turn)
        turns.append(0)
        loop.add_readable(served, on_readable)
        loop.run()
        assert set(turns) == {1}

    def test_another_handler_takes_over(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """The one before is called no more, though more waits."""
        served, driver = pair
        loop = PollLoop(name="test")
        received: list[str] = []

        def receive(name: str) -> None:
            served.recv(zmq.NOBLOCK)
            received.append(name)
            if name == "first":
                loop.remove_socket(served)
                loop.add_readable(served, lambda: receive("second"))
            elif len(received) == 5:
                loop.stop()

        for _ in range(5):
            driver.send(b"x")
        loop.add_readable(served, lambda: receive("first"))
        loop.run()
        assert received == ["first", *["second"] * 4]

    def test_a_readable_that_is_closed_amid_service_ends_the_loop(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """What is polled in its place would be readable for ever."""
        served, driver = pair
        loop = PollLoop(name="test")
        driver.send(b"x")
        loop.add_readable(served, served.close)
        with pytest.raises(LocalProtocolError, match="remove it first"):
            loop.run()
        assert loop.is_over

    def test_a_readable_that_closes_is_served_no_more(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """What waits in it is lost with it."""
        served, driver = pair
        loop = PollLoop(name="test")
        received: list[bytes] = []

        def on_readable() -> None:
            received.append(served.recv(zmq.NOBLOCK))
            loop.remove_socket(served)
            served.close()
            loop.call_soon_threadsafe(loop.stop)

        driver.send(b"first")
        driver.send(b"second")
        loop.add_readable(served, on_readable)
        loop.run()
        assert received == [b"first"]
        assert loop.failure_count == 0

    def test_an_exception_when_readable_is_logged(
        self, loop: PollLoop, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """The loop goes on after it, as after any other."""
        served, driver = pair

        def on_readable() -> None:
            served.recv()
            raise ZeroDivisionError

        loop.add_readable(served, on_readable)
        with capture_logs() as logs:
            loop.start()
            driver.send(b"x")
            assert served.context is not None
            while loop.failure_count == 0:
                call(loop, nothing)
        assert logs[0]["where"] == "readable"


class TestDeadline:
    def test_it_is_met_and_not_early(self, loop: PollLoop) -> None:
        """The callback runs once the clock shows the deadline, never before."""
        clock = SystemClock()
        deadlines = [clock.now_ns() + number * 3 * MS // 2 for number in range(1, 21)]
        met: list[tuple[int, int]] = []
        done = threading.Event()

        def on_deadline() -> None:
            met.append((deadlines.pop(0), clock.now_ns()))
            if not deadlines:
                done.set()

        loop.set_deadline(lambda: deadlines[0] if deadlines else None, on_deadline)
        loop.start()
        assert done.wait(WAIT_SECONDS)
        assert len(met) == 20
        assert all(now_ns >= deadline_ns for deadline_ns, now_ns in met)

    def test_waiting_does_not_spin(self, loop: PollLoop) -> None:
        """Milliseconds are rounded up: a wait takes one turn or two, not thousands."""
        clock = SystemClock()
        deadline_ns = clock.now_ns() + 200 * MS
        asked = 0
        done = threading.Event()

        def next_deadline_ns() -> int | None:
            nonlocal asked
            asked += 1
            return None if done.is_set() else deadline_ns

        loop.set_deadline(next_deadline_ns, done.set)
        loop.start()
        assert done.wait(WAIT_SECONDS)
        assert asked <= 10

    def test_sockets_that_a_deadline_brings_are_served_at_once(
        self,
        loop: PollLoop,
        context: ZMQContext,
        pair: tuple[ZMQSocket, ZMQSocket],
    ) -> None:
        """To connect anew when time is up need not wait for the next deadline."""
        served, driver = pair
        done = threading.Event()
        deadlines = [0]
        former = open_socket(context, zmq.PAIR, SocketLimits())
        loop.add_socket(former, lambda frames: None)

        def on_deadline() -> None:
            deadlines.clear()
            loop.remove_socket(former)
            loop.add_socket(served, lambda frames: done.set())

        driver.send(b"x")
        loop.set_deadline(lambda: deadlines[0] if deadlines else None, on_deadline)
        loop.start()  # and nothing else wakes it
        assert done.wait(WAIT_SECONDS)

    def test_a_deadline_moved_by_a_call_is_seen(self, loop: PollLoop) -> None:
        """A loop that waits for ever learns of a deadline by being woken."""
        deadline_ns: int | None = None
        done = threading.Event()

        def on_deadline() -> None:
            nonlocal deadline_ns
            deadline_ns = None
            done.set()

        def move() -> None:
            nonlocal deadline_ns
            deadline_ns = SystemClock().now_ns() + MS

        loop.set_deadline(lambda: deadline_ns, on_deadline)
        loop.start()
        call(loop, nothing)
        loop.call_soon_threadsafe(move)
        assert done.wait(WAIT_SECONDS)

    def test_an_exception_does_not_spin_nor_end_the_loop(self, loop: PollLoop) -> None:
        """A deadline that cannot be served is tried again later; sockets are served."""
        done = threading.Event()
        attempts = 0

        def on_deadline() -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 3:
                done.set()
            raise ZeroDivisionError

        loop.set_deadline(lambda: None if done.is_set() else 0, on_deadline)
        with capture_logs() as logs:
            loop.start()
            for _ in range(100):
                call(loop, nothing)
            assert done.wait(WAIT_SECONDS)
            loop.stop()
            loop.join(WAIT_SECONDS)
        assert [entry["where"] for entry in logs] == ["deadline"] * 3
        assert loop.failure_count == 3

    def test_what_had_arrived_is_handled_before_time_is_judged(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """Rule E9's ground: after a pause, heartbeats that wait are seen first."""
        served, driver = pair
        clock = ManualClock()
        loop = PollLoop(name="test", clock=clock)
        log: list[str] = []

        def on_message(frames: list[zmq.Frame]) -> None:
            if not log:
                driver.send(b"heartbeat")
                clock.advance(1_000)  # the pause, in which the deadline passes
            log.append(frames[0].bytes.decode())

        def on_deadline() -> None:
            log.append("deadline")
            loop.stop()

        loop.add_socket(served, on_message)
        loop.set_deadline(lambda: 1_000, on_deadline)
        driver.send(b"first")
        loop.run()
        assert log == ["first", "heartbeat", "deadline"]


class TestCalls:
    def test_calls_of_a_thread_run_in_order_in_the_loop(self, loop: PollLoop) -> None:
        """Many threads may call; none of their calls is lost or runs elsewhere."""
        loop.start()
        ran: list[tuple[int, int]] = []
        threads_seen = set()
        all_done = threading.Barrier(5)

        def record(thread: int, number: int) -> None:
            ran.append((thread, number))
            threads_seen.add((threading.get_ident(), loop.is_in_loop))

        def caller(thread: int) -> None:
            for number in range(500):
                loop.call_soon_threadsafe(
                    lambda number=number: record(thread, number)  # type: ignore[misc]  # mypy cannot infer it
                )
            all_done.wait(WAIT_SECONDS)

        threads = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        all_done.wait(WAIT_SECONDS)
        for thread in threads:
            thread.join(WAIT_SECONDS)
        call(loop, nothing)
        for number in range(4):
            assert [n for thread, n in ran if thread == number] == list(range(500))
        assert len(threads_seen) == 1
        assert threads_seen.pop()[1]
        assert not loop.is_in_loop

    def test_no_call_waits_for_another_to_wake_the_loop(self, loop: PollLoop) -> None:
        """A call that comes while the loop wakes for another one is called as well."""
        loop.start()
        problems: list[BaseException] = []

        def ask() -> None:
            try:
                for _ in range(500):
                    call(loop, nothing)
            except BaseException as error:  # noqa: BLE001 (told to the test)
                problems.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems

    def test_calls_that_call_again_do_not_starve_sockets(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """What a call adds waits for the next turn, in which sockets come first."""
        served, driver = pair
        loop = PollLoop(name="test")
        calls = 0

        def again() -> None:
            nonlocal calls
            calls += 1
            if calls == 10:
                driver.send(b"enough")
            if not loop.failure_count and calls < 1_000:
                loop.call_soon_threadsafe(again)

        loop.add_socket(served, lambda _: loop.stop())
        loop.call_soon_threadsafe(again)
        loop.run()
        assert calls < 20

    def test_an_exception_costs_one_call(self, loop: PollLoop) -> None:
        """The next call runs all the same."""
        loop.start()

        def fail() -> None:
            raise ZeroDivisionError

        with capture_logs() as logs:
            loop.call_soon_threadsafe(fail)
            call(loop, nothing)
        assert [entry["where"] for entry in logs] == ["call"]

    def test_a_call_returns_what_the_action_returns(self, loop: PollLoop) -> None:
        """And it has run in the loop's thread."""
        loop.start()
        assert loop.call(lambda: loop.is_in_loop, target="test") is True

    def test_a_call_raises_what_the_action_raises(self, loop: PollLoop) -> None:
        """It is the caller's mistake, and not counted as one of the loop's."""
        loop.start()

        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            loop.call(fail, target="test")
        assert loop.failure_count == 0

    def test_a_call_to_a_loop_that_hangs_ends(self, loop: PollLoop) -> None:
        """The caller is told who did not answer, and for how long it waited."""
        loop.start()
        hangs, may_go_on = threading.Event(), threading.Event()

        def hang() -> None:
            hangs.set()
            may_go_on.wait(WAIT_SECONDS)

        loop.call_soon_threadsafe(hang)
        assert hangs.wait(WAIT_SECONDS)
        try:
            with pytest.raises(UnreachableError) as caught:
                loop.call(nothing, target="somebody", timeout_seconds=0.01)
        finally:
            may_go_on.set()
        assert (caught.value.target, caught.value.waited_seconds) == ("somebody", 0.01)

    @pytest.mark.proves("N3")
    def test_too_many_calls_are_refused(self) -> None:
        """Rule N3: the queue of calls is bounded, and a refused call never runs."""
        loop = PollLoop(name="test", call_count_max=2)
        ran: list[int] = []
        loop.call_soon_threadsafe(lambda: ran.append(1))
        loop.call_soon_threadsafe(lambda: ran.append(2))
        with pytest.raises(DidNotHappenError, match="overloaded"):
            loop.call_soon_threadsafe(lambda: ran.append(3))
        loop.stop()
        assert ran == [1, 2]


class TestEnd:
    def test_accepted_calls_run_and_later_ones_are_refused(
        self, loop: PollLoop
    ) -> None:
        """No thread waits for a call that will never come."""
        ran: list[str] = []
        entered = threading.Event()
        release = threading.Event()

        def block() -> None:
            entered.set()
            release.wait(WAIT_SECONDS)

        loop.start()
        loop.call_soon_threadsafe(block)
        assert entered.wait(WAIT_SECONDS)
        loop.stop()
        loop.call_soon_threadsafe(lambda: ran.append("late"))
        release.set()
        loop.join(WAIT_SECONDS)
        assert ran == ["late"]
        with pytest.raises(LocalProtocolError, match="has ended"):
            loop.call_soon_threadsafe(nothing)

    def test_end_callbacks_run_in_the_loop_latest_first(self, loop: PollLoop) -> None:
        """What was opened last is closed first, and one failure hides no other."""
        log: list[tuple[str, bool]] = []

        def fail() -> None:
            raise ZeroDivisionError

        loop.at_end(lambda: log.append(("first", loop.is_in_loop)))
        loop.at_end(fail)
        loop.at_end(lambda: log.append(("last", loop.is_in_loop)))
        loop.start()
        loop.stop()
        loop.join(WAIT_SECONDS)
        assert log == [("last", True), ("first", True)]
        assert loop.failure_count == 1

    def test_stop_is_idempotent_and_may_come_from_inside(self, loop: PollLoop) -> None:
        """Joining inside the loop returns at once instead of waiting for itself."""

        def stop_inside() -> None:
            loop.stop()
            loop.stop()
            loop.join()

        loop.start()
        loop.call_soon_threadsafe(stop_inside)
        loop.join(WAIT_SECONDS)
        assert loop.is_over
        loop.stop()
        loop.join()

    def test_a_loop_starts_once(self, loop: PollLoop) -> None:
        """A second start, and a start after the stop, are mistakes of the caller."""
        loop.start()
        with pytest.raises(LocalProtocolError, match="started before"):
            loop.start()
        loop.stop()
        loop.join(WAIT_SECONDS)
        with pytest.raises(LocalProtocolError, match="started before"):
            loop.run()

    def test_a_loop_that_a_signal_handler_stops_amid_its_start_ends_once(self) -> None:
        """Before any line of `start`: what it closes was closed twice."""
        ended: list[int] = []
        line_index = 0
        is_interrupted = True
        while is_interrupted:
            loop = PollLoop(name="test")
            loop.at_end(partial(ended.append, line_index))
            left = line_index

            def trace(
                frame: FrameType, event: str, _: Any, loop: PollLoop = loop
            ) -> Any:
                nonlocal left
                if frame.f_code.co_filename != loop_module.__file__:
                    return None
                if event == "line":
                    left -= 1
                    if left == -1:
                        sys.settrace(None)
                        loop.stop()
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                with contextlib.suppress(LocalProtocolError):
                    loop.start()
            finally:
                sys.settrace(before)
            loop.stop()
            loop.join(WAIT_SECONDS)
            is_interrupted = left < 0
            line_index += 1
        assert ended == list(range(line_index))

    def test_a_loop_stopped_before_it_starts_is_over(self) -> None:
        """Its end callbacks have run, and it cannot be started."""
        loop = PollLoop(name="test")
        ran: list[int] = []
        loop.at_end(lambda: ran.append(1))
        loop.stop()
        assert loop.is_over
        assert ran == [1]
        with pytest.raises(LocalProtocolError):
            loop.start()
        loop.stop()
        loop.join()

    def test_a_loop_that_has_got_no_thread_can_be_started_again(
        self, loop: PollLoop
    ) -> None:
        """A process may have no more threads: the caller is told, and may try again."""
        called = threading.Event()
        loop.call_soon_threadsafe(called.set)
        with no_more_threads("test"), pytest.raises(RuntimeError, match="new thread"):
            loop.start()
        loop.start()
        assert called.wait(WAIT_SECONDS)

    def test_a_loop_that_has_got_no_thread_can_be_closed(self) -> None:
        """What is to be closed is closed, and who joins the loop does not hang."""
        ended: list[str] = []
        loop = PollLoop(name="test")
        loop.at_end(lambda: ended.append("closed"))
        with no_more_threads("test"), pytest.raises(RuntimeError, match="new thread"):
            loop.start()
        loop.stop()
        loop.join(WAIT_SECONDS)
        assert loop.is_over
        assert ended == ["closed"]

    def test_a_loop_stopped_while_it_gets_no_thread_is_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stop that comes while the thread is refused leaves no one waiting, too."""
        loop = PollLoop(name="test")

        def refuse(_: threading.Thread) -> None:
            loop.stop()
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                loop.start()
        loop.join(WAIT_SECONDS)
        assert loop.is_over

    def test_a_socket_closed_under_the_loop_is_told(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """A loop that cannot go on says so in three places, and still cleans up."""
        served, _ = pair
        told: list[Exception] = []
        ended = threading.Event()
        loop = PollLoop(name="test", on_failure=told.append)
        loop.add_socket(served, lambda _: None)
        loop.at_end(ended.set)
        with capture_logs() as logs:
            loop.start()
            loop.call_soon_threadsafe(served.close)
            loop.join(WAIT_SECONDS)
        assert ended.is_set()
        assert isinstance(loop.failure, LocalProtocolError)
        assert told == [loop.failure]
        assert [(entry["event"], entry["where"]) for entry in logs] == [
            ("loop.failed", "loop")
        ]

    def test_a_context_closed_under_the_loop_is_told(self) -> None:
        """Closing the context ends the loop, which closes the sockets: no deadlock."""
        context: ZMQContext = zmq.Context()
        socket = open_socket(context, zmq.ROUTER, SocketLimits())
        loop = PollLoop(name="test")
        loop.add_socket(socket, lambda _: None)
        loop.at_end(socket.close)
        with capture_logs():
            loop.start()
            context.term()
            loop.join(WAIT_SECONDS)
        assert loop.is_over
        assert isinstance(loop.failure, LocalProtocolError)

    def test_run_raises_why_it_could_not_go_on(
        self, pair: tuple[ZMQSocket, ZMQSocket]
    ) -> None:
        """One that runs the loop in its own thread gets the exception itself."""
        loop = PollLoop(name="test")
        loop.add_socket(pair[0], lambda _: None)
        loop.call_soon_threadsafe(pair[0].close)
        with pytest.raises(LocalProtocolError, match="was closed"):
            loop.run()
        assert loop.is_over

    def test_nothing_is_left_behind(self) -> None:
        """A hundred loops leave neither threads nor file descriptors."""
        before = settled(process_figures)
        for _ in range(100):
            loop = PollLoop(name="test")
            loop.start()
            call(loop, nothing)
            loop.stop()
            loop.join(WAIT_SECONDS)
        assert_closed(before)


@contextlib.contextmanager
def joining(loop: PollLoop) -> Iterator[None]:
    """Have another thread join *loop*, from before this to after it."""
    joins = threading.Thread(target=loop.join, args=[WAIT_SECONDS])
    joins.start()
    wait_until(lambda: bool(loop._over._waiters))
    yield
    joins.join(WAIT_SECONDS)
    assert not joins.is_alive()


class TestFreed:
    """
    What a loop served is freed with it, and not when the main thread collects.

    pyzmq and `threading` finalize in Python: amid that, what a signal handler of the
    main thread raises is lost.
    """

    def test_a_served_socket_is_freed_by_who_drops_it(self, loop: PollLoop) -> None:
        """What serves it refers to it, and must not refer to itself."""
        with new_context() as context, no_collection():
            socket = open_socket(context, zmq.PAIR, SocketLimits())
            is_gone = weakref.ref(socket)
            loop.add_socket(socket, lambda _: None)
            loop.remove_socket(socket)
            socket.close()
            del socket
            assert is_gone() is None

    def test_its_thread_is_freed_by_who_joins_it(self) -> None:
        """Which is none that a signal handler interrupts."""
        loop = PollLoop(name="test")
        loop.start()
        (thread,) = (one for one in threading.enumerate() if one.name == "test")
        is_gone = weakref.ref(thread)
        del thread
        with no_collection():
            loop.stop()
            loop.join(WAIT_SECONDS)
            assert is_gone() is None

    def test_who_joins_before_it_starts_waits_for_its_thread(self) -> None:
        """And frees it: the thread comes while that waits."""
        loop = PollLoop(name="test")
        with no_collection(), joining(loop):
            loop.start()
            (thread,) = (one for one in threading.enumerate() if one.name == "test")
            is_gone = weakref.ref(thread)
            del thread
            loop.stop()
        assert is_gone() is None


class TestFork:
    @pytest.mark.proves("E10")
    def test_the_child_has_no_loop_and_the_parent_keeps_its_own(
        self, loop: PollLoop
    ) -> None:
        """Rule E10: calls raise in the child, closing is silent, the parent goes on."""
        loop.start()
        call(loop, nothing)

        def stop_and_join() -> None:
            loop.stop()
            loop.join()

        def start_again() -> None:
            loop.start()

        assert run_in_child(stop_and_join) == "None"
        assert run_in_child(lambda: loop.call_soon_threadsafe(nothing)) == (
            "ForkedClientError"
        )
        assert run_in_child(start_again) == "ForkedClientError"
        call(loop, nothing)
        assert not loop.is_over


def test_an_echo_over_tcp(context: ZMQContext, client_context: ZMQContext) -> None:
    """A ROUTER in the loop answers each of many requests of two clients."""
    router = open_socket(context, zmq.ROUTER, SocketLimits())
    endpoint = bind_socket(router, parse_endpoint("tcp://127.0.0.1:0"))
    loop = PollLoop(name="echo")

    def on_message(frames: list[zmq.Frame]) -> None:
        assert send_now(router, frames) is SendOutcome.SENT

    loop.add_socket(router, on_message)
    loop.at_end(router.close)
    loop.start()
    clients = [open_socket(client_context, zmq.DEALER, SocketLimits()) for _ in "ab"]
    for client in clients:
        connect_socket(client, endpoint)
        assert client.poll(WAIT_MS, zmq.POLLOUT)
    for number in range(500):
        for client in clients:
            client.send_multipart([b"header", b"%d" % number])
    for number in range(500):
        for client in clients:
            assert client.poll(WAIT_MS)
            assert client.recv_multipart() == [b"header", b"%d" % number]
    loop.stop()
    loop.join(WAIT_SECONDS)
    assert router.closed
