"""Who waits for an answer in a thread has it, or its error, when that is due."""

from __future__ import annotations

import select
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from haservices import HAServices
from nameservice import (
    NS_PER_SECOND,
    LocalProtocolError,
    NoLeaderError,
    SystemClock,
)
from queryablestate import (
    DeadlineExceededError,
    QueryableStateClient,
)
from queryablestate.client import threads
from queryablestate.client.config import QueryConfig
from queryablestate.client.events import RequestsDropped
from queryablestate.client.requests import Call
from queryablestate.client.threads import QueryShell
from queryablestate.wire.clients import ListJobs
from tests.interrupting import handling
from tests.queryablestate.client.held_answers import Held, PausedPoll
from tests.queryablestate.scripted_proxy import Reply, ScriptedProxy
from tests.queryablestate.scripted_state import STATE, ScriptedState, row
from tests.recording import WAIT_SECONDS, wait_until


pytestmark = pytest.mark.shells


def is_asleep(shell: Any) -> bool:
    """Return whether a thread drives, and nothing wakes it."""
    if shell._driver is None or shell._is_amid_turn or shell._is_news:
        return False
    poll = select.poll()
    poll.register(shell._wake_pipe.reader, select.POLLIN)
    return bool(shell._polling_until_ns) and not poll.poll(0)


def interrupt_main() -> None:
    """Have the handler of SIGUSR1 run in the main thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


def raise_interrupt(*_: object) -> None:
    """Do as Ctrl-C does."""
    raise KeyboardInterrupt


def swallow(*_: object) -> Reply:
    """Answer with what is no message."""
    return [b"LDQ"]


@pytest.mark.proves("Q3")
@pytest.mark.parametrize("end", ["waits", "has its answer", "is interrupted"])
def test_a_driver_whose_answer_another_thread_receives(
    proxy: ScriptedProxy,
    state: ScriptedState,
    client: QueryableStateClient,
    end: str,
) -> None:
    """
    It has the answer at once, whatever becomes of the other thread's question.

    It slept on, for the message was gone: to the next message, or its deadline.
    """
    client.get(*STATE, "N1")
    held = Held(proxy, state)
    shell: Any = client._shell
    shell._poll = driver = PausedPoll(shell._poll)
    receive = shell._receive

    def has_received_all() -> bool:
        shell._unlooked[shell._link] = None
        receive()
        return not shell._driver.open_count

    def receive_late(numbers: tuple[int, ...], *_: object) -> None:
        shell._receive = receive
        held.wait_for_one()  # or the other's would be answered as it comes
        held.answer(*numbers)  # the driver's is the last
        wait_until(has_received_all)

    def interrupt() -> None:
        wait_until(lambda: bool(shell._waiters))
        shell._receive = partial(receive_late, (0,))
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGUSR1)

    waiting: Future[Any] | None = None
    with ThreadPoolExecutor(2) as pool:
        driving = pool.submit(client.get, *STATE, "N3")
        assert driver.is_paused.wait(WAIT_SECONDS)
        held.wait_for_one()
        if end == "waits":
            shell._receive = partial(receive_late, (0,))
            waiting = pool.submit(client.get, *STATE, "N2")
            wait_until(lambda: bool(shell._waiters))
        elif end == "has its answer":
            shell._receive = partial(receive_late, (1, 0))
            assert client.get(*STATE, "N2") == row(2)
        else:
            interrupting = pool.submit(interrupt)
            with (
                handling(signal.SIGUSR1, raise_interrupt),
                pytest.raises(KeyboardInterrupt),
            ):
                client.get(*STATE, "N2")
            interrupting.result(WAIT_SECONDS)
        driver.go_on.set()
        assert driving.result(WAIT_SECONDS / 3) == row(3)
        if waiting is not None:
            held.answer(1)
            assert waiting.result(WAIT_SECONDS) == row(2)


@pytest.mark.proves("Q3")
def test_the_answer_that_comes_as_another_thread_gives_up(
    proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
) -> None:
    """
    It is received, though what gives up sends a question that had waited for room.

    That takes the signal of a message that has just come.  The next one to drive slept.
    """
    client.get(*STATE, "N1")
    held = Held(proxy, state)
    shell: Any = client._shell
    step, clock = shell._step, SystemClock()

    def step_late(event: object) -> None:
        if isinstance(event, RequestsDropped):
            shell._step = step
            held.answer(1)
            held.hold()
            poll = select.poll()
            poll.register(shell._link.descriptors[0], select.POLLIN)
            assert poll.poll(WAIT_SECONDS * 1_000)
            # libzmq takes note of signals in a send once a millisecond at most.
            due_ns = clock.now_ns() + NS_PER_SECOND // 50
            wait_until(lambda: clock.now_ns() > due_ns)
        step(event)

    with ThreadPoolExecutor(3) as pool:
        others: list[Future[Any]] = []

        def follow() -> None:
            held.wait_for_one()
            for count in (1, 2):  # a lane has room for two questions, and not for three
                others.append(pool.submit(client.get, *STATE, "N1"))
                if count == 1:
                    held.wait_for_one()
                wait_until(lambda c=count: len(shell._waiters) == c)  # type: ignore[misc]  # a default binds
            wait_until(partial(is_asleep, shell))
            shell._step = step_late
            interrupt_main()

        following = pool.submit(follow)
        with (
            handling(signal.SIGUSR1, raise_interrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            client.get(*STATE, "N1")
        following.result(WAIT_SECONDS)
        assert others[0].result(WAIT_SECONDS / 3) == row(1)
        held.wait_for_one()
        held.answer(2)
        assert others[1].result(WAIT_SECONDS) == row(1)


class TestDeadline:
    """It comes when it is due, whatever else does or does not."""

    def test_beyond_the_longest_sleep(
        self, services: HAServices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thread sleeps for a minute at most; a minute and a second became two."""
        monkeypatch.setattr(threads, "_WAIT_MS_MAX", 1_500)
        with QueryableStateClient(services) as client:
            began = time.monotonic()
            with pytest.raises(NoLeaderError):
                client.get(*STATE, "N1", deadline_seconds=1.6)
            assert time.monotonic() - began < 2.8

    def test_while_what_comes_is_no_message(
        self, proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """What is dropped began the wait anew, for as long as it came."""
        client.get(*STATE, "N1")
        state.on_ask = swallow
        is_over = threading.Event()

        def babble() -> bool:
            for _ in range(100):
                if is_over.wait(0.1):
                    return True
                proxy.call(lambda: proxy.send(proxy.last_routing_id, [b"rubbish"]))
            return False

        with ThreadPoolExecutor(1) as pool:
            babbling = pool.submit(babble)
            with pytest.raises(DeadlineExceededError):
                client.get(*STATE, "N2", deadline_seconds=0.5)
            is_over.set()
            assert babbling.result(WAIT_SECONDS)

    def test_while_a_signal_handler_takes_its_time(
        self, proxy: ScriptedProxy, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """What another thread is answered in time it has in time."""
        client.get(*STATE, "N1")
        held = Held(proxy, state)
        shell: Any = client._shell
        is_handling, is_over = threading.Event(), threading.Event()

        def handle(*_: object) -> None:
            is_handling.set()
            is_over.wait(WAIT_SECONDS)

        def follow() -> Any:
            held.wait_for_one()
            waiting = pool.submit(client.get, *STATE, "N2", deadline_seconds=0.8)
            held.wait_for_one()
            wait_until(lambda: bool(shell._waiters) and is_asleep(shell))
            interrupt_main()
            assert is_handling.wait(WAIT_SECONDS)
            held.answer(1, 0)
            try:
                return waiting.result(WAIT_SECONDS)
            finally:
                is_over.set()

        with ThreadPoolExecutor(2) as pool:
            following = pool.submit(follow)
            with handling(signal.SIGUSR1, handle):
                assert client.get(*STATE, "N3") == row(3)
            assert following.result(WAIT_SECONDS) == row(2)

    @pytest.mark.parametrize("is_driving", [True, False])
    def test_while_a_signal_handler_waits_for_the_thread(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
        *,
        is_driving: bool,
    ) -> None:
        """The main thread cannot drive then, be it in the middle of that or next."""
        client.get(*STATE, "N1")
        held = Held(proxy, state)
        shell: Any = client._shell
        has_joined = threading.Event()
        with ThreadPoolExecutor(3) as pool:
            workers: list[Future[Any]] = []
            ended: list[bool] = []

            def ask(key: str) -> None:
                workers.append(
                    pool.submit(client.get, *STATE, key, deadline_seconds=0.8)
                )

            def join(*_: object) -> None:
                for worker in workers:
                    with suppress(DeadlineExceededError, TimeoutError):
                        worker.result(4)
                    ended.append(worker.done())
                has_joined.set()

            def wait_for_threads(count: int) -> None:
                wait_until(lambda: shell._driver is not None)
                wait_until(lambda: 1 + len(shell._waiters) == count)

            def follow() -> None:
                wait_for_threads(1 + len(workers))
                ask("N4")
                wait_for_threads(1 + len(workers))
                wait_until(partial(is_asleep, shell))
                interrupt_main()
                assert has_joined.wait(WAIT_SECONDS)
                held.answer(0 if is_driving else 1)

            if not is_driving:
                ask("N2")
                wait_for_threads(1)
            following = pool.submit(follow)
            with handling(signal.SIGUSR1, join):
                assert client.get(*STATE, "N3") == row(3)
            following.result(WAIT_SECONDS)
            assert ended == [True] * len(workers)


class TestDriver:
    """There is always one that lives, and it knows what it waits for."""

    def test_of_one_that_cannot_give_up(self, services: HAServices) -> None:
        """Where no thread can be started, each is told so; none waits for the dead."""
        with ScriptedProxy() as mute:
            mute.is_silent = True
            shell: Any = QueryShell(
                services,
                None,
                QueryConfig(patience_ns=NS_PER_SECOND // 3),
                first_address=mute.address,
            )
            start = shell._finder.start

            def fail() -> None:
                message = "can't start new thread"
                raise RuntimeError(message)

            shell._finder.start = fail
            now_ns = SystemClock().now_ns()
            calls = [jobs_call(now_ns + NS_PER_SECOND) for _ in range(3)]
            asking = [
                threading.Thread(target=partial(_run, shell, call), daemon=True)
                for call in calls
            ]
            for one in asking:
                one.start()
            for one in asking:
                one.join(WAIT_SECONDS / 3)
            assert not any(one.is_alive() for one in asking)
            shell._finder.start = start
            late = jobs_call(SystemClock().now_ns() + NS_PER_SECOND // 2)
            shell.run(late)
            assert late.error is not None
            shell.close()

    def test_of_a_client_that_is_closed(self, services: HAServices) -> None:
        """It is told at once, be the closing broken off right after that."""
        client = QueryableStateClient(services)
        shell: Any = client._shell
        turn = shell._turn

        def break_off(*arguments: Any, **options: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                turn(*arguments, **options)
                return
            shell._turn = turn
            raise KeyboardInterrupt

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                client.get, *STATE, "N1", deadline_seconds=WAIT_SECONDS
            )
            wait_until(partial(is_asleep, shell))
            shell._turn = break_off
            with pytest.raises(KeyboardInterrupt):
                client.close()
            with pytest.raises(LocalProtocolError):
                waiting.result(WAIT_SECONDS / 3)
        client.close()


def jobs_call(deadline_ns: int) -> Call:
    """Return a call for the jobs that there are."""

    def request(request_id: int, session: bytes) -> ListJobs:
        return ListJobs(request_id=request_id, session=session)

    return Call(None, request, SystemClock().now_ns(), deadline_ns)


def _run(shell: QueryShell, call: Call) -> None:
    with suppress(RuntimeError):
        shell.run(call)
