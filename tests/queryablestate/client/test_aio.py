"""`AsyncQueryableStateClient` over real sockets; what differs from its twin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from haservices import HAConfig, HAServices
from nameservice import ConfigurationError, LocalProtocolError, UnreachableError
from queryablestate import AsyncQueryableStateClient, DeadlineExceededError
from queryablestate.client.events import RequestsDropped, TimeWent
from queryablestate.wire.questions import Ask
from tests.exhausted_descriptors import no_more_descriptors
from tests.forking import run_in_child
from tests.leaks import assert_closed, process_figures, settled
from tests.queryablestate.scripted_proxy import Lead, Reply, ScriptedProxy
from tests.queryablestate.scripted_state import (
    STATE,
    ScriptedState,
    row,
)
from tests.recording import WAIT_SECONDS, wait_until


pytestmark = pytest.mark.shells

T = TypeVar("T")


def run(
    services: HAServices | HAConfig | str,
    action: Callable[[AsyncQueryableStateClient], Coroutine[Any, Any, T]],
    **settings: Any,
) -> T:
    """Do *action* with a client, on an event loop of its own."""

    async def act() -> T:
        settings.setdefault("deadline_seconds", WAIT_SECONDS)
        async with AsyncQueryableStateClient(services, **settings) as client:
            result = await action(client)
            assert not client._shell._asked
            return result

    # A loop that hangs is found out by the test, not by the suite.
    async def act_in_time() -> T:
        async with asyncio.timeout(2 * WAIT_SECONDS):
            return await act()

    return asyncio.run(act_in_time(), debug=False)


class TestCoroutines:
    def test_what_is_asked_together_travels_together(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """A thousand coroutines are a few messages."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N0")
            before = state.ask_count
            found = await asyncio.gather(
                *(client.get(*STATE, f"N{n % 100}") for n in range(1_000))
            )
            assert found == [row(n % 100) for n in range(1_000)]
            assert state.ask_count - before <= 10

        run(services, ask)

    def test_cancelled_questions_leave_nothing(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """One that is cancelled is forgotten; the others get their answers."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")
            state.on_ask = lambda *_: [b"LDQ"]
            tasks = [
                asyncio.create_task(client.get(*STATE, f"N{n}")) for n in range(50)
            ]
            others = [
                asyncio.create_task(client.count(*STATE)),
                asyncio.create_task(client.jobs()),
            ]
            await asyncio.wait(tasks, timeout=0.05)
            for task in (*tasks[:25], others[0]):
                task.cancel()
            early = asyncio.create_task(client.get(*STATE, "N1"))
            await asyncio.sleep(0)
            early.cancel()  # it has not been sent
            done, _ = await asyncio.wait((*tasks[:25], others[0], early))
            assert all(task.cancelled() for task in done)
            assert client._shell._core.request_count <= 26
            state.on_ask = None
            proxy.call(proxy.forget_sessions)
            # The proxy forgets what it was asked, and the name service tells of it.
            await asyncio.wait(tasks[25:], timeout=0.05)
            for task in tasks[25:]:
                task.cancel()
            await asyncio.wait(tasks)
            await others[1]
            assert await client.get(*STATE, "N1") == row(1)
            assert client._shell._core.request_count == 0

        run(services, ask)

    def test_timeouts_of_the_callers_own(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """``asyncio.timeout`` ends a question; a storm of them leaves nothing."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")
            state.on_ask = lambda *_: [b"LDQ"]

            async def give_up() -> None:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await client.get(*STATE, "N1")

            for _ in range(3):
                await asyncio.gather(*(give_up() for _ in range(300)))
            assert client._shell._core.request_count == 0
            state.on_ask = None
            assert await client.get(*STATE, "N2", deadline_seconds=20) == row(2)

        run(services, ask)

    def test_a_scan_that_is_left(
        self, services: HAServices, proxy: ScriptedProxy
    ) -> None:
        """Leaving a scan half way leaves nothing behind."""
        proxy.keys_per_request_max = 4

        async def ask(client: AsyncQueryableStateClient) -> None:
            async for key, _ in client.scan(*STATE):
                assert key == "N0"
                break
            assert client._shell._core.request_count == 0

        run(services, ask)

    def test_deadlines(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """Each question ends at its own, the earlier ones first."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")
            state.on_ask = lambda *_: [b"LDQ"]
            ended: list[float] = []

            async def wait(seconds: float) -> None:
                with pytest.raises(DeadlineExceededError):
                    await client.get(*STATE, "N1", deadline_seconds=seconds)
                ended.append(seconds)

            await asyncio.gather(*(wait(s) for s in (0.3, 0.1, 0.2)))
            assert ended == [0.1, 0.2, 0.3]

        run(services, ask)

    def test_another_loop(self, services: HAServices, proxy: ScriptedProxy) -> None:
        """A client belongs to one loop, and says so."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")

            def elsewhere() -> None:
                with pytest.raises(LocalProtocolError, match="event loop"):
                    asyncio.run(client.get(*STATE, "N1"))

            await asyncio.to_thread(elsewhere)
            assert await client.get(*STATE, "N1") == row(1)

        run(services, ask)


class TestTrouble:
    def test_no_name_service(self) -> None:
        """The loop is not blocked while the name service does not answer."""
        nowhere = HAConfig(
            url="leaderserver://127.0.0.1:1", connect_timeout_seconds=0.3
        )

        async def ask(client: AsyncQueryableStateClient) -> None:
            turns = 0

            async def turn() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0.01)
                    turns += 1

            turning = asyncio.create_task(turn())
            with pytest.raises(UnreachableError):
                await client.get(*STATE, "N1", deadline_seconds=1.0)
            turning.cancel()
            assert turns > 10

        run(nowhere, ask)

    def test_news_that_come_while_it_opens(
        self,
        services: HAServices,
        proxy: ScriptedProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A leader that is told before the client has opened is not missed."""

        async def act() -> Any:
            client = AsyncQueryableStateClient(services)
            finder = client._shell._finder
            start = finder.start

            def start_late() -> None:
                start()
                wait_until(lambda: finder.leader is not None)

            monkeypatch.setattr(finder, "start", start_late)
            async with client:
                return await client.get(*STATE, "N1")

        assert asyncio.run(act()) == row(1)

    def test_a_process_without_descriptors(
        self, services: HAServices, proxy: ScriptedProxy
    ) -> None:
        """A client that could not be opened says why, and is opened later."""

        async def ask() -> None:
            client = AsyncQueryableStateClient(services, deadline_seconds=WAIT_SECONDS)
            with (
                no_more_descriptors(),
                pytest.raises(ConfigurationError, match="ulimit -n"),
            ):
                await client.get(*STATE, "N1")
            assert await client.get(*STATE, "N1") == row(1)
            await client.close()

        asyncio.run(ask())

    def test_the_proxy_dies_with_questions(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """They are put to the successor, and no caller notices."""
        asked = threading.Event()

        def swallow(ask: Ask, _: bytes) -> Reply:
            asked.set()
            return [b"LDQ"]

        with (
            ScriptedProxy(state) as dying,
            ScriptedProxy(state) as successor,
            Lead(services, dying.address) as first,
        ):

            async def ask(client: AsyncQueryableStateClient) -> None:
                await client.get(*STATE, "N1")
                state.on_ask = swallow
                tasks = [
                    asyncio.create_task(client.get(*STATE, f"N{n}")) for n in range(30)
                ]
                await asyncio.to_thread(asked.wait, WAIT_SECONDS)
                await asyncio.to_thread(dying.close)
                state.on_ask = None
                await asyncio.to_thread(first.close)
                second = Lead(services, successor.address)
                await asyncio.to_thread(second.__enter__)
                assert await asyncio.gather(*tasks) == [row(n) for n in range(30)]
                await asyncio.to_thread(second.close)

            run(services, ask)

    def test_stale_routes_and_forgotten_sessions(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """Neither costs a question anything but time."""

        def disturb() -> None:
            proxy.forget_sessions()
            state.version += 1
            state.owners = tuple(1 - owner for owner in state.owners)

        async def ask(client: AsyncQueryableStateClient) -> None:
            for _ in range(10):
                await asyncio.to_thread(proxy.call, disturb)
                found = await asyncio.gather(
                    *(client.get(*STATE, f"N{n}") for n in range(20))
                )
                assert found == [row(n) for n in range(20)]

        run(services, ask)


class TestSteps:
    """What goes wrong with one, and nothing else."""

    @pytest.mark.parametrize("kind", [TimeWent, RequestsDropped])
    def test_the_others_go_on(
        self,
        services: HAServices,
        proxy: ScriptedProxy,
        state: ScriptedState,
        kind: type[object],
    ) -> None:
        """Who waits has its deadline, and who asks now is asked for."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            shell: Any = client._shell
            step = shell._step
            is_over = False

            def fail_once(event: object) -> None:
                nonlocal is_over
                if isinstance(event, kind) and not is_over:
                    is_over = True
                    raise ZeroDivisionError
                step(event)

            came = asyncio.Event()
            loop = asyncio.get_running_loop()

            def swallow(*_: object) -> Reply:
                loop.call_soon_threadsafe(came.set)
                return [b"LDQ"]

            state.on_ask = swallow
            waiting = asyncio.create_task(
                client.get(*STATE, "N2", deadline_seconds=0.5)
            )
            await came.wait()
            shell._step = fail_once
            if kind is RequestsDropped:
                state.on_ask = None
                waiting.cancel()
                async with asyncio.timeout(WAIT_SECONDS / 3):
                    assert await client.get(*STATE, "N3") == row(3)
            else:
                with pytest.raises(DeadlineExceededError):
                    async with asyncio.timeout(WAIT_SECONDS / 3):
                        await waiting
            assert is_over

        run(services, ask)


class TestClosing:
    def test_whoever_waits_is_told(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """Closing ends every question; later ones are refused."""
        state.on_ask = lambda *_: [b"LDQ"]

        async def ask(client: AsyncQueryableStateClient) -> None:
            tasks = [asyncio.create_task(client.get(*STATE, "N1")) for _ in range(5)]
            await asyncio.wait(tasks, timeout=0.1)
            await client.close()
            await asyncio.wait(tasks)
            assert all(
                isinstance(task.exception(), LocalProtocolError) for task in tasks
            )
            await client.close()
            with pytest.raises(LocalProtocolError):
                await client.get(*STATE, "N1")

        run(services, ask)

    def test_a_client_that_was_never_used(self, services: HAServices) -> None:
        """It can be closed, and is not opened after that."""

        async def use() -> None:
            client = AsyncQueryableStateClient(services)
            await client.close()
            with pytest.raises(LocalProtocolError):
                await client.get(*STATE, "N1")

        asyncio.run(use())

    def test_a_client_whose_loop_has_ended(
        self, services: HAServices, proxy: ScriptedProxy
    ) -> None:
        """Another loop closes it, and nothing is left of it."""

        def use() -> None:
            client = AsyncQueryableStateClient(services, deadline_seconds=WAIT_SECONDS)
            assert asyncio.run(client.get(*STATE, "N1")) == row(1)
            asyncio.run(client.close())
            asyncio.run(client.close())

        use()
        before = settled(process_figures)
        for _ in range(8):
            use()
        assert_closed(before)

    @pytest.mark.parametrize("turn_count", [1, 20])
    def test_a_client_whose_loop_has_ended_with_questions(
        self,
        services: HAServices,
        proxy: ScriptedProxy,
        state: ScriptedState,
        turn_count: int,
    ) -> None:
        """
        So it is if tasks of that loop wait, for ever, for what they have asked.

        To tell them failed, as the loop takes nothing more, and what the client had
        open stayed open: it was closed by half, and could not be closed again.
        """
        client = AsyncQueryableStateClient(services, deadline_seconds=WAIT_SECONDS)
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(client.get(*STATE, "N1")) == row(1)
        state.on_ask = lambda *_: [b"LDQ"]
        left: list[asyncio.Task[Any]] = []

        async def leave() -> None:
            left.append(asyncio.create_task(client.get(*STATE, "N1")))
            for _ in range(turn_count):
                await asyncio.sleep(0)

        loop.run_until_complete(leave())
        loop.close()
        context = client._shell._context
        assert context is not None
        asyncio.run(client.close())
        assert context.closed
        assert not left[0].done()
        left[0]._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_a_client_whose_loop_runs_elsewhere(
        self, services: HAServices, proxy: ScriptedProxy
    ) -> None:
        """No other loop closes it meanwhile: it would be used by two threads."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")

            def elsewhere() -> None:
                with pytest.raises(LocalProtocolError, match="event loop"):
                    asyncio.run(client.close())

            await asyncio.to_thread(elsewhere)
            assert await client.get(*STATE, "N2") == row(2)

        run(services, ask)

    def test_nothing_is_left(self, services: HAServices, proxy: ScriptedProxy) -> None:
        """A client leaves neither threads nor open files behind."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")

        for _ in range(2):
            run(services, ask)
        before = settled(process_figures)
        for _ in range(8):
            run(services, ask)
        assert_closed(before)

    def test_a_child_is_refused(
        self, services: HAServices, proxy: ScriptedProxy
    ) -> None:
        """After ``fork()`` a client is the parent's alone (rule E10)."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            await client.get(*STATE, "N1")

            def in_child(action: Callable[[], Coroutine[Any, Any, object]]) -> object:
                coroutine = action()
                try:
                    return coroutine.send(None)
                except StopIteration as result:
                    return result.value

            asked = run_in_child(lambda: in_child(lambda: client.get(*STATE, "N1")))
            assert asked == "ForkedClientError"
            assert run_in_child(lambda: in_child(client.close)) == "None"
            assert await client.get(*STATE, "N1") == row(1)

        run(services, ask)
