"""`QueryableStateClient` over real sockets, against proxies of every temper."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest
import zmq

from haservices import HAServices, open_ha_services
from nameservice import ConfigurationError, LocalProtocolError, NoLeaderError
from nameservice.interruptible import InterruptibleEvent
from queryablestate import (
    DeadlineExceededError,
    QueryableStateClient,
    StateUnavailableError,
    UnknownJobError,
)
from queryablestate.wire.questions import Ask
from tests.exhausted_descriptors import no_more_descriptors
from tests.forking import run_in_child
from tests.interrupting import bounded, handling, interrupted
from tests.leaks import assert_closed, process_figures, settled
from tests.queryablestate.client.held_answers import Held
from tests.queryablestate.scripted_proxy import Lead, Reply, ScriptedProxy, error_frame
from tests.queryablestate.scripted_state import (
    STATE,
    ScriptedState,
    row,
)
from tests.recording import WAIT_SECONDS, wait_until
from tests.tiers import nightly_after


pytestmark = pytest.mark.shells

LINE_STEP: Final = 5
PLACES: Final = ("/queryablestate/client/", "/queryablestate/wire/", "/zmqtransport/")
INTERRUPTED_COUNT: Final = 1_000


def _ask_until_interrupted(
    client: QueryableStateClient, follow: Callable[[], object]
) -> None:
    """Ask on this thread until a Ctrl-C, while another one does what *follow* does."""
    helper = threading.Thread(target=follow)
    helper.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            client.get(*STATE, "N3")
    finally:
        helper.join()


class TestWhatThereIs:
    def test_wait_for_a_state(self, services: HAServices, state: ScriptedState) -> None:
        """Who comes before the first batch waits for it, and for no more."""
        state.batch_ids = [None, None]
        exists = threading.Event()

        def answer(message: msgspec.Struct, payload: bytes) -> Reply:
            if not exists.is_set():
                return error_frame("unknown-job", message.request_id, "flights")  # type: ignore[attr-defined]  # every request has one
            return state(message, payload)

        with (
            ScriptedProxy(answer) as proxy,
            Lead(services, proxy.address),
            QueryableStateClient(services) as client,
            ThreadPoolExecutor(2) as pool,
        ):
            with pytest.raises(UnknownJobError):
                client.wait_for_state(*STATE, 0.2)
            first = pool.submit(client.wait_for_state, *STATE, WAIT_SECONDS)
            third = pool.submit(
                client.wait_for_state, *STATE, WAIT_SECONDS, min_batch_id=3
            )
            exists.set()
            with pytest.raises(StateUnavailableError):
                client.wait_for_state(*STATE, 0.2)
            assert not first.done()
            state.batch_ids = [0, 0]
            assert first.result(WAIT_SECONDS).batch_id == 0
            assert not third.done()
            state.batch_ids = [3, 3]
            assert third.result(WAIT_SECONDS).batch_id == 3


class TestTrouble:
    @pytest.mark.proves("S3")
    def test_key_groups_that_move(
        self, proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """Rule S3: no read fails because of a move."""
        stop = threading.Event()
        answers: list[Any] = []

        def ask() -> None:
            while not stop.is_set():
                answers.append(client.get(*STATE, "N7"))

        def move() -> None:
            state.version += 1
            state.owners = tuple(1 - owner for owner in state.owners)

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            for _ in range(20):
                proxy.call(move)
                client.get(*STATE, "N8")
            stop.set()
            asking.result(WAIT_SECONDS)
        assert answers == [row(7)] * len(answers)

    def test_the_proxy_dies_with_a_question(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """The question is put to the successor, and no caller notices."""
        with (
            ScriptedProxy(state) as dying,
            ScriptedProxy(state) as successor,
            QueryableStateClient(services, deadline_seconds=WAIT_SECONDS) as client,
            ThreadPoolExecutor(8) as pool,
        ):
            asked = threading.Event()

            def swallow(ask: Ask, _: bytes) -> Reply:
                asked.set()
                return [b"LDQ"]  # nothing that is an answer

            with Lead(services, dying.address):
                assert client.get(*STATE, "N1") == row(1)
                state.on_ask = swallow
                futures = [
                    pool.submit(client.get, *STATE, f"N{number}") for number in range(8)
                ]
                assert asked.wait(WAIT_SECONDS)
                dying.close()
                state.on_ask = None
            with Lead(services, successor.address):
                assert [f.result(WAIT_SECONDS) for f in futures] == [
                    row(number) for number in range(8)
                ]

    @pytest.mark.parametrize("left_count", [0, 2])
    def test_a_process_without_descriptors(
        self, services: HAServices, proxy: ScriptedProxy, left_count: int
    ) -> None:
        """A client that cannot be made says why, and leaves nothing open."""
        QueryableStateClient(services).close()
        before = settled(process_figures)
        with (
            no_more_descriptors(left_count=left_count),
            pytest.raises(ConfigurationError, match=r"open files|ulimit -n"),
        ):
            QueryableStateClient(services)
        assert_closed(before)

    def test_a_leader_that_is_not_ready(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """Who is told ``not-leader`` by the leader waits until it is one."""
        with (
            ScriptedProxy(state, is_leading=False) as proxy,
            Lead(services, proxy.address),
            QueryableStateClient(services, deadline_seconds=WAIT_SECONDS) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            future = pool.submit(client.get, *STATE, "N1")
            proxy.requests.wait_for_count(3)
            proxy.is_leading = True
            assert future.result(WAIT_SECONDS) == row(1)


class TestThreads:
    def test_thirty_two_threads(
        self, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """Every thread gets its own answers; they share messages."""
        barrier = threading.Barrier(32)

        def ask(thread: int) -> list[Any]:
            barrier.wait(WAIT_SECONDS)
            return [
                client.get(*STATE, f"N{(thread * 7 + number) % 100}")
                for number in range(100)
            ]

        with ThreadPoolExecutor(32) as pool:
            results = list(pool.map(ask, range(32)))
        for thread, answers in enumerate(results):
            assert answers == [
                row((thread * 7 + number) % 100) for number in range(100)
            ]
        assert state.ask_count < 3_200
        assert client._shell._core.request_count == 0
        assert client._shell._driver is None
        assert not client._shell._waiters

    def test_threads_with_deadlines_of_their_own(
        self, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """A short deadline is kept, whichever thread waits for the socket."""
        client.get(*STATE, "N1")
        state.on_ask = lambda *_: [b"LDQ"]
        with ThreadPoolExecutor(8) as pool:
            began = time.monotonic()
            patient = pool.submit(client.get, *STATE, "N1", deadline_seconds=3.0)
            hasty = [
                pool.submit(client.get, *STATE, f"N{n}", deadline_seconds=0.1 + n / 50)
                for n in range(6)
            ]
            for future in hasty:
                with pytest.raises(DeadlineExceededError):
                    future.result(WAIT_SECONDS)
            assert time.monotonic() - began < 2.5
            with pytest.raises(DeadlineExceededError):
                patient.result(WAIT_SECONDS)

    def test_a_slow_question_delays_nobody_else(
        self, proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """A question that waits for a batch does not hold the others up."""
        held: list[tuple[bytes, Ask, bytes]] = []
        came = threading.Event()

        def hold(ask: Ask, payload: bytes) -> Reply:
            if ask.min_batch_id is None:
                return None
            held.append((proxy.last_routing_id, ask, payload))
            came.set()
            return [b"LDQ"]

        state.on_ask = hold
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(client.get, *STATE, "N1", min_batch_id=9)
            assert came.wait(WAIT_SECONDS)
            for number in range(50):
                assert client.get(*STATE, f"N{number}") == row(number)
            ((routing_id, ask, payload),) = held
            state.on_ask = None
            proxy.call(lambda: proxy.send(routing_id, state.answer(ask, payload)))
            assert slow.result(WAIT_SECONDS) == row(1)

    def test_an_interrupted_question(
        self, proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """Ctrl-C ends the question that it met, and leaves the others whole."""
        client.get(*STATE, "N1")
        came = threading.Event()
        release = threading.Event()

        def hold(ask: Ask, _: bytes) -> Reply:
            came.set()
            return None if release.is_set() else [b"LDQ"]

        state.on_ask = hold
        before = signal.signal(signal.SIGUSR1, _raise_interrupt)
        try:
            with ThreadPoolExecutor(2) as pool:
                other = pool.submit(client.get, *STATE, "N2", deadline_seconds=0.5)
                assert came.wait(WAIT_SECONDS)
                main = threading.main_thread().ident
                assert main is not None
                timer = threading.Timer(
                    0.2, signal.pthread_kill, (main, signal.SIGUSR1)
                )
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    client.get(*STATE, "N3")
                timer.join()
                with pytest.raises(DeadlineExceededError):
                    other.result(WAIT_SECONDS)
        finally:
            signal.signal(signal.SIGUSR1, before)
        release.set()
        assert client.get(*STATE, "N4") == row(4)
        assert client._shell._core.request_count == 0

    def test_an_interrupted_driver_hands_over(
        self, proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """One that waited for it goes on without the thread that received for all."""
        client.get(*STATE, "N1")
        held = Held(proxy, state)
        with ThreadPoolExecutor(1) as pool:
            other: list[Any] = []

            def follow() -> None:
                held.wait_for_one()  # the main thread drives
                other.append(pool.submit(client.get, *STATE, "N2"))
                held.wait_for_one()
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGUSR1)

            with handling(signal.SIGUSR1, _raise_interrupt):
                _ask_until_interrupted(client, follow)
            held.answer(0, 1)
            assert other[0].result(WAIT_SECONDS) == row(2)

    @pytest.mark.proves("Q3")
    def test_a_driver_that_is_interrupted_while_it_hands_over(
        self, proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """
        Another one drives all the same.

        None did, so those that waited did so for ever, unless another asked something.
        """
        client.get(*STATE, "N1")

        class InterruptedOnce(dict[Any, None]):
            is_over = False

            def __iter__(self) -> Iterator[Any]:
                if not self.is_over and client._shell._driver is None and self:
                    self.is_over = True
                    raise KeyboardInterrupt
                return super().__iter__()

        client._shell._waiters = waiters = InterruptedOnce()
        held = Held(proxy, state)
        with ThreadPoolExecutor(1) as pool:
            other: list[Any] = []

            def follow() -> None:
                held.wait_for_one()  # the main thread drives
                other.append(pool.submit(client.get, *STATE, "N2"))
                held.wait_for_one()
                held.answer(0)

            _ask_until_interrupted(client, follow)
            assert waiters.is_over
            try:
                assert other[0].result(WAIT_SECONDS / 3) == row(2)
            finally:
                client.get(*STATE, "N4")  # it drives for all, if none did

    @pytest.mark.proves("Q3")
    def test_a_driver_that_is_interrupted_twice(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """
        A second Ctrl-C, amid what the first one brings about, leaves the client usable.

        It left a driver that was gone: every later question waited for it, for ever.
        """
        client.get(*STATE, "N1")
        came = threading.Event()

        def swallow(*_: object) -> Reply:
            came.set()
            return [b"LDQ"]

        def interrupt_again(**_: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        def interrupt(*_: object) -> None:
            monkeypatch.setattr(client._shell, "_turn", interrupt_again)
            raise KeyboardInterrupt

        def follow() -> None:
            assert came.wait(WAIT_SECONDS)
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGUSR1)

        state.on_ask = swallow
        before = signal.signal(signal.SIGUSR1, interrupt)
        helper = threading.Thread(target=follow)
        helper.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                client.get(*STATE, "N2")
        finally:
            helper.join()
            signal.signal(signal.SIGUSR1, before)
        state.on_ask = None
        assert client._shell._driver is None
        assert client.get(*STATE, "N3") == row(3)

    @pytest.mark.proves("Q3")
    @pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
    @pytest.mark.usefixtures("proxy")
    def test_an_exception_before_any_line_costs_no_answer(
        self, services: HAServices, first: int
    ) -> None:
        """
        What Ctrl-C breaks off, another thread and the next question do not notice.

        Half a message was left in the socket, and an answer for another thread was
        taken and told to none: both waited until their deadlines.
        """
        with QueryableStateClient(services, deadline_seconds=5) as client:
            client.get(*STATE, "N1")
            over = threading.Event()

            def ask_on() -> None:
                while not over.is_set():
                    assert client.get(*STATE, "N2") == row(2)
                    over.wait(0.001)

            with ThreadPoolExecutor(1) as pool:
                asking = pool.submit(ask_on)
                try:
                    with handling(signal.SIGUSR1, _raise_interrupt):
                        line_index = first
                        while _is_broken_off(client, line_index):
                            assert client.get(*STATE, "N4") == row(4)
                            line_index += LINE_STEP
                finally:
                    over.set()
                asking.result(WAIT_SECONDS)
            assert client._shell._core.request_count == 0

    @pytest.mark.proves("Q3")
    @pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
    @pytest.mark.parametrize("line_index", [60, 90, 120])
    @pytest.mark.usefixtures("proxy")
    def test_an_exception_amid_what_another_brings_about(
        self, services: HAServices, line_index: int, first: int
    ) -> None:
        """
        A second Ctrl-C before any line of giving up leaves the client usable.

        It left a driver that was gone, or what was half begun anew.
        """
        with QueryableStateClient(services, deadline_seconds=5) as client:
            give_up = client._shell._give_up
            where: str | None = ""
            again_index = first

            def give_up_amid(waiter: Any) -> None:
                nonlocal where
                del client._shell._give_up  # once
                where = "before it is protected"
                where = interrupted(
                    lambda: give_up(waiter), places=PLACES, line_index=again_index
                )

            with handling(signal.SIGUSR1, _raise_interrupt):
                while where is not None:
                    client.get(*STATE, "N1")
                    client._shell._give_up = give_up_amid  # type: ignore[method-assign]
                    where = ""
                    assert _is_broken_off(client, line_index)
                    assert where != "", "that line is no part of a turn"
                    assert client.get(*STATE, "N4") == row(4)
                    again_index += LINE_STEP
            assert again_index > LINE_STEP
            assert client._shell._driver is None
            assert client._shell._core.request_count == 0

    @pytest.mark.proves("Q3")
    @pytest.mark.usefixtures("proxy")
    def test_a_close_that_is_broken_off_is_done_once_more(
        self, services: HAServices
    ) -> None:
        """It released nothing any more, and left a thread and its sockets."""
        line_index = 0
        where: str | None = ""
        while where is not None:
            client = QueryableStateClient(services)
            client.get(*STATE, "N1")
            context = client._shell._context
            assert context is not None
            with handling(signal.SIGUSR1, _raise_interrupt):
                try:
                    where = interrupted(
                        client.close, places=PLACES, line_index=line_index
                    )
                except KeyboardInterrupt:
                    client.close()
            assert context.closed
            line_index += LINE_STEP
        assert line_index > LINE_STEP

    @pytest.mark.proves("Q3")
    @pytest.mark.usefixtures("proxy")
    def test_no_frame_is_freed_where_signals_are_handled(
        self, client: QueryableStateClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A Ctrl-C ends a question, also amid what ZeroMQ does.

        What was raised while pyzmq freed a `zmq.Frame` was printed, and not raised.
        """
        threads: set[int] = set()

        class Frame(zmq.Frame):
            def __init__(self, *args: Any, **options: Any) -> None:
                threads.add(threading.get_ident())
                super().__init__(*args, **options)

        monkeypatch.setattr(zmq, "Frame", Frame)
        client.get(*STATE, "N1")
        client.get_many(*STATE, ["N1", "N2"])
        assert threads, "the proxy receives frames"
        assert threading.get_ident() not in threads

    @pytest.mark.proves("Q3")
    @pytest.mark.usefixtures("proxy")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_exceptions_at_any_moment_leave_the_client_usable(
        self, client: QueryableStateClient
    ) -> None:
        """They come amid what Python calls, too, and amid what others have begun."""
        durations: list[float] = []
        for _ in range(100):
            begun = time.perf_counter()
            client.get(*STATE, "N1")
            durations.append(time.perf_counter() - begun)
        duration = statistics.median(durations)
        raised_count = 0

        def interrupt(*_: object) -> None:
            nonlocal raised_count
            raised_count += 1
            raise KeyboardInterrupt

        with handling(signal.SIGALRM, interrupt):
            for count in range(1, INTERRUPTED_COUNT + 1):
                part = 0.1 + 1.9 * count / INTERRUPTED_COUNT
                with suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, part * duration)
                    while raised_count < count:
                        client.get(*STATE, "N1")
        assert client.get(*STATE, "N2") == row(2)

    @pytest.mark.proves("Q3")
    @pytest.mark.parametrize("is_driving", [True, False])
    def test_a_question_of_a_signal_handler(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
        *,
        is_driving: bool,
    ) -> None:
        """
        A handler that interrupts a wait for an answer may not ask, and is told so.

        It waited for what its own thread was to receive, or was to be told to: for
        ever, and every other thread with it.
        """
        client.get(*STATE, "N1")
        came = threading.Semaphore(0)
        told: list[Exception] = []

        def swallow(*_: object) -> Reply:
            came.release()
            return [b"LDQ"]

        def ask(*_: object) -> None:
            try:
                client.get(*STATE, "N2")
            except LocalProtocolError as error:
                told.append(error)
            state.on_ask = None

        def interrupt() -> None:
            assert came.acquire(timeout=WAIT_SECONDS)  # the main thread has asked
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGUSR1)

        state.on_ask = swallow
        before = signal.signal(signal.SIGUSR1, ask)
        try:
            with ThreadPoolExecutor(2) as pool:
                others = []
                if not is_driving:
                    others = [pool.submit(client.get, *STATE, "N4", deadline_seconds=1)]
                    assert came.acquire(timeout=WAIT_SECONDS)
                helper = pool.submit(interrupt)
                with pytest.raises(DeadlineExceededError):
                    client.get(*STATE, "N3", deadline_seconds=1)
                helper.result(WAIT_SECONDS)
                for other in others:
                    with pytest.raises(DeadlineExceededError):
                        other.result(WAIT_SECONDS)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [str(error) for error in told] == [
            "a signal handler may close a client, not ask it"
        ]
        assert client.get(*STATE, "N5") == row(5)


class TestClosing:
    def test_by_a_signal_handler(
        self,
        services: HAServices,
        proxy: ScriptedProxy,
        state: ScriptedState,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """SIGTERM may close a client in the midst of what its thread does with it."""
        client = QueryableStateClient(services, deadline_seconds=WAIT_SECONDS)
        client.get(*STATE, "N1")
        state.on_ask = lambda *_: [b"LDQ"]
        asked: list[Exception] = []
        turn = client._shell._turn

        def interrupted(*args: Any, **options: Any) -> None:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGUSR1)
            turn(*args, **options)

        def end(*_: object) -> None:
            client.close()
            try:
                client.get(*STATE, "N2")
            except LocalProtocolError as error:
                asked.append(error)

        monkeypatch.setattr(client._shell, "_turn", interrupted)
        before = signal.signal(signal.SIGUSR1, end)
        try:
            with pytest.raises(LocalProtocolError, match="closed"):
                client.get_many(*STATE, ["N1", "N3"])  # which the proxy swallows
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(asked) == 1
        client.close()

    @pytest.mark.proves("Q3")
    def test_of_services_by_a_signal_handler_amid_a_wake(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """
        It waits for the callback that tells the client of another leader.

        That callback waited for a lock which the interrupted thread held.
        """
        with (
            open_ha_services("embedded:closed-amid-a-wake") as own,
            Lead(own, proxy.address) as lead,
            QueryableStateClient(own, deadline_seconds=WAIT_SECONDS) as client,
            pytest.MonkeyPatch.context() as patch,
        ):
            finder = client._shell._finder
            wait_until(lambda: finder.has_heard)
            write = os.write

            def interrupted(descriptor: int, data: bytes) -> int:
                if threading.current_thread() is threading.main_thread():
                    patch.undo()
                    signal.raise_signal(signal.SIGUSR1)
                return write(descriptor, data)

            def end(*_: object) -> None:
                lead.close()
                wait_until(lambda: finder.leader is None)
                own.close()
                closed.set()

            closed = threading.Event()
            patch.setattr(os, "write", interrupted)
            with (
                handling(signal.SIGUSR1, end),
                bounded(),
                suppress(NoLeaderError),  # that leader may answer before it is missed
            ):
                client.get(*STATE, "N1", deadline_seconds=0.5)
            assert closed.is_set()

    def test_by_a_signal_handler_while_it_waits_for_a_state(
        self,
        services: HAServices,
        proxy: ScriptedProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """
        SIGTERM may do so when its thread is about to pause until it looks again.

        The handler waited for ever for the lock of the event that ends the pause.
        """
        client = QueryableStateClient(services, deadline_seconds=WAIT_SECONDS)
        wait = InterruptibleEvent.wait

        def interrupted(
            event: InterruptibleEvent, timeout: float | None = None
        ) -> bool:
            if event is client._shell._closed:
                monkeypatch.undo()
                signal.raise_signal(signal.SIGUSR1)
            return wait(event, timeout)

        client.jobs()
        before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
        monkeypatch.setattr(InterruptibleEvent, "wait", interrupted)
        try:
            with pytest.raises(LocalProtocolError, match="closed"):
                client.wait_for_state("flights", "no such", WAIT_SECONDS)
        finally:
            signal.signal(signal.SIGUSR1, before)
        client.close()

    def test_whoever_waits_is_told(
        self, services: HAServices, state: ScriptedState, proxy: ScriptedProxy
    ) -> None:
        """Closing ends the questions of all threads; later ones are refused."""
        client = QueryableStateClient(services, deadline_seconds=WAIT_SECONDS)
        client.get(*STATE, "N1")
        came = threading.Semaphore(0)

        def swallow(ask: Ask, _: bytes) -> Reply:
            came.release()
            return [b"LDQ"]

        state.on_ask = swallow
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(client.get, *STATE, f"N{n}") for n in range(4)]
            assert came.acquire(timeout=WAIT_SECONDS)
            client.close()
            for future in futures:
                with pytest.raises(LocalProtocolError):
                    future.result(WAIT_SECONDS)
        client.close()
        with pytest.raises(LocalProtocolError):
            client.get(*STATE, "N1")
        with pytest.raises(LocalProtocolError):
            client.wait_for_state(*STATE)

    def test_nothing_is_left(self, services: HAServices, proxy: ScriptedProxy) -> None:
        """A client leaves neither threads nor open files behind."""
        for _ in range(2):
            with QueryableStateClient(services) as client:
                client.get(*STATE, "N1")
        before = settled(process_figures)
        for _ in range(10):
            with QueryableStateClient(services) as client:
                client.get(*STATE, "N1")
        assert_closed(before)

    def test_a_child_is_refused(self, client: QueryableStateClient) -> None:
        """After ``fork()`` a client is the parent's alone (rule E10)."""
        client.get(*STATE, "N1")
        assert run_in_child(lambda: client.get(*STATE, "N1")) == "ForkedClientError"
        assert run_in_child(lambda: list(client.scan(*STATE))) == "ForkedClientError"
        assert run_in_child(client.jobs) == "ForkedClientError"
        assert run_in_child(client.close) == "None"
        assert client.get(*STATE, "N2") == row(2)


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _is_broken_off(client: QueryableStateClient, line_index: int) -> bool:
    """Ask, and be interrupted before that line; return whether there are as many."""
    try:
        where = interrupted(
            lambda: client.get(*STATE, "N3"), places=PLACES, line_index=line_index
        )
    except KeyboardInterrupt:
        return True
    return where is not None
