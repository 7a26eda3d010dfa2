"""`AsyncQueryableStateClient` over real sockets; what differs from its twin."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from haservices import HAConfig, HAServices, open_ha_services
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DeadlineExceededError,
    LocalProtocolError,
    NoLeaderError,
    RemoteProtocolError,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
    UnreachableError,
    WrongKeyTypeError,
)
from queryablestate import AsyncQueryableStateClient, Credentials
from queryablestate.codec import encode
from queryablestate.questions import Ask, Reading, Told
from queryablestate.schema import AtomicType, Field, StateKind, StateSchema
from tests.forking import run_in_child
from tests.leaks import assert_closed, process_figures, settled
from tests.queryablestate.scripted_proxy import Lead, Reply, ScriptedProxy, error_frame
from tests.queryablestate.scripted_state import (
    LIST_SCHEMA,
    MAP_SCHEMA,
    ScriptedState,
)
from tests.recording import WAIT_SECONDS


pytestmark = pytest.mark.shells

STATE = ("flights", "aircraft")

T = TypeVar("T")

_names = itertools.count(1)


def row(number: int) -> dict[str, Any]:
    """Return the row that is kept under ``N<number>``."""
    return {"origin": f"A{number}", "delay": number}


@pytest.fixture
def services() -> Iterator[HAServices]:
    """A name service of this test's own, in this process."""
    with open_ha_services(f"embedded:async-client-{next(_names)}") as opened:
        yield opened


@pytest.fixture
def state() -> ScriptedState:
    """A value state with a hundred rows on two nodes."""
    return ScriptedState(rows={f"N{n}": (f"A{n}", n) for n in range(100)})


@pytest.fixture
def proxy(services: HAServices, state: ScriptedState) -> Iterator[ScriptedProxy]:
    """A proxy that leads, and answers about *state*."""
    with ScriptedProxy(state) as running, Lead(services, running.address):
        yield running


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


class TestTheSameQuestions:
    def test_keys(self, services: HAServices, proxy: ScriptedProxy) -> None:
        """Single keys, many keys, and keys that are not there."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            assert await client.get(*STATE, "N7") == row(7)
            assert await client.get(*STATE, "X", default=None) is None
            with pytest.raises(UnknownKeyError):
                await client.get(*STATE, "X")
            with pytest.raises(WrongKeyTypeError):
                await client.get(*STATE, 7)
            found = await client.get_many(*STATE, (f"N{n}" for n in range(120)))
            assert found == {f"N{n}": row(n) for n in range(100)}
            assert await client.get_many(*STATE, []) == {}
            assert await client.exists(*STATE, "N1")
            assert not await client.exists(*STATE, "X")
            entry = await client.lookup(*STATE, "N1", min_batch_id=1)
            assert (entry.value, entry.batch_id) == (row(1), 1)

        run(services, ask)

    def test_partial_results(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """What is unavailable is an error, or is named, as the caller wants it."""
        state.on_ask = lambda ask, _: (
            error_frame("state-unavailable", ask.request_id, "?", None, (), 0.5, "x")
            if ask.node_index == 1
            else None
        )
        keys = [f"N{n}" for n in range(20)]

        async def ask(client: AsyncQueryableStateClient) -> None:
            partial = await client.get_many(*STATE, keys, partial=True)
            assert {*partial.values, *partial.unavailable} == set(keys)
            assert partial.values
            assert partial.unavailable
            with pytest.raises(StateUnavailableError):
                await client.get_many(*STATE, keys)
            with pytest.raises(StateUnavailableError):
                await client.count(*STATE)
            with pytest.raises(StateUnavailableError):
                _ = [found async for found in client.scan(*STATE)]

        run(services, ask)

    def test_keys_that_cannot_be_hashed(self, services: HAServices) -> None:
        """They stand in the result in their normal form."""
        schema = StateSchema(
            kind=StateKind.VALUE,
            key=(Field("name", AtomicType.STRING), Field("day", AtomicType.INT)),
            value=(Field("delay", AtomicType.INT),),
        )
        state = ScriptedState(schema, {("N1", 3): (5,)})
        with ScriptedProxy(state) as proxy, Lead(services, proxy.address):

            async def ask(client: AsyncQueryableStateClient) -> None:
                asked = [{"name": "N1", "day": 3}]
                found = await client.get_many(*STATE, asked)
                assert found == {("N1", 3): {"delay": 5}}

            run(services, ask)

    def test_lists_and_maps(self, services: HAServices) -> None:
        """Lists by slices, maps by entries."""
        lists = ScriptedState(LIST_SCHEMA, {"N1": [(f"A{n}", n) for n in range(9)]})
        maps = ScriptedState(MAP_SCHEMA, {"N1": {"JFK": ("A1", 1)}}, job_id="maps")

        def answer(message: msgspec.Struct, payload: bytes) -> Reply:
            is_maps = (
                getattr(message, "job_id", None) == "maps"
                or getattr(message, "state_number", None) == maps.state_number
            )
            return (maps if is_maps else lists)(message, payload)

        async def ask(client: AsyncQueryableStateClient) -> None:
            assert await client.get_list(*STATE, "N1", start=-1) == [row(8)]
            with pytest.raises(UnknownKeyError):
                await client.get_list(*STATE, "X")
            in_maps = ("maps", "aircraft")
            assert await client.get(*in_maps, "N1") == {"JFK": row(1)}
            assert await client.get_map_entry(*in_maps, "N1", "JFK") == row(1)
            assert await client.get_map_entry(*in_maps, "N1", "X", None) is None
            with pytest.raises(UnknownKeyError):
                await client.get_map_entry(*in_maps, "N1", "X")

        with ScriptedProxy(answer) as proxy, Lead(services, proxy.address):
            run(services, ask)

    def test_whole_states(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """Scans and counts go on while key groups move."""
        proxy.keys_per_request_max = 8

        def move() -> None:
            state.version += 1
            state.owners = tuple(1 - owner for owner in state.owners)

        async def ask(client: AsyncQueryableStateClient) -> None:
            found: list[str] = []
            async for key, _ in client.scan(*STATE):
                if len(found) in {10, 40}:
                    await asyncio.to_thread(proxy.call, move)
                found.append(key)
            assert found == sorted(f"N{n}" for n in range(100))
            await asyncio.to_thread(proxy.call, move)
            assert await client.count(*STATE) == 100
            some = [key async for key, _ in client.scan(*STATE, prefix="N9", limit=2)]
            assert some == ["N9", "N90"]
            with pytest.raises(ConfigurationError):
                client.scan(*STATE, limit=-1)

        run(services, ask)

    def test_what_there_is(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """Jobs, states, descriptions; and what is not there."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            assert await client.jobs() == ["flights"]
            assert await client.states("flights") == ["aircraft"]
            assert await client.describe_all("flights") == [
                await client.describe(*STATE)
            ]
            with pytest.raises(UnknownJobError):
                await client.states("nothing")
            with pytest.raises(UnknownStateError):
                await client.get("flights", "nothing", "N1")
            with pytest.raises(UnknownStateError):
                await client.wait_for_state("flights", "nothing", 0.15)
            with pytest.raises(StateUnavailableError):
                await client.wait_for_state(*STATE, 0.15, min_batch_id=5)
            waiting = asyncio.create_task(
                client.wait_for_state(*STATE, WAIT_SECONDS, min_batch_id=5)
            )
            await client.get(*STATE, "N1")
            assert not waiting.done()
            state.batch_ids = [5, 5]
            assert (await waiting).batch_id == 5

        run(services, ask)

    def test_wrong_arguments(self, services: HAServices) -> None:
        """They are told before anything is sent."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            with pytest.raises(ConfigurationError, match="job_id"):
                await client.get("", "s", "k")
            with pytest.raises(ConfigurationError, match="deadline_seconds"):
                await client.get("j", "s", "k", deadline_seconds=0)
            with pytest.raises(ConfigurationError, match="min_batch_id"):
                await client.count("j", "s", min_batch_id=-1)

        run(services, ask)


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
        """Whoever is cancelled is forgotten; the others get their answers."""

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
    def test_nobody_leads(self, services: HAServices) -> None:
        """Without a proxy the error says so, in time."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            with pytest.raises(NoLeaderError):
                await client.get(*STATE, "N1", deadline_seconds=0.2)

        run(services, ask)

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

    def test_the_proxy_dies_with_questions(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """They are put to the successor, and nobody notices."""
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

    def test_the_proxy_restarts(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """A connection that closed is made again for the next question."""
        proxy = ScriptedProxy(state)

        async def ask(client: AsyncQueryableStateClient) -> None:
            assert await client.get(*STATE, "N1") == row(1)
            await asyncio.to_thread(proxy.close)
            again = ScriptedProxy(state, endpoint=proxy.endpoint)
            assert await client.get(*STATE, "N2") == row(2)
            await asyncio.to_thread(again.close)

        with Lead(services, proxy.address):
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

    def test_rubbish(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """Malformed messages are passed over, malformed answers are errors."""

        def spoil(ask: Ask, _: bytes) -> Reply:
            for rubbish in ([b""], [b"LDQ\x01\xc1"], [b"LDQ\x63"], [b"x"] * 5):
                proxy.send(proxy.last_routing_id, rubbish)
            return None

        def lie(ask: Ask, _: bytes) -> Reply:
            reading = Reading(generation=9, batch_id=9, age_ms=0)
            return [encode(Told(request_id=ask.request_id, reading=reading)), b"\xc1"]

        async def ask(client: AsyncQueryableStateClient) -> None:
            state.on_ask = spoil
            assert await client.get(*STATE, "N1") == row(1)
            state.on_ask = lie
            with pytest.raises(RemoteProtocolError):
                await client.get(*STATE, "N1")
            state.on_ask = None
            assert await client.get(*STATE, "N1") == row(1)

        run(services, ask)

    def test_a_flood_of_answers(
        self, services: HAServices, proxy: ScriptedProxy, state: ScriptedState
    ) -> None:
        """More messages than a burst are taken all the same."""

        def flood(ask: Ask, payload: bytes) -> Reply:
            reading = Reading(generation=1, batch_id=1, age_ms=0)
            late = [encode(Told(request_id=10**9, reading=reading)), b"\x90"]
            for _ in range(450):
                proxy.send(proxy.last_routing_id, late)
            return None

        async def ask(client: AsyncQueryableStateClient) -> None:
            state.on_ask = flood
            for number in range(5):
                assert await client.get(*STATE, f"N{number}") == row(number)

        run(services, ask)

    def test_who_is_not_let_in(
        self, services: HAServices, proxy: ScriptedProxy, tmp_path: Path
    ) -> None:
        """Credentials that are refused, or cannot be read, are told at once."""
        proxy.greet = lambda hello: error_frame(
            "not-authenticated", hello.request_id, "the proxy", "unknown token"
        )

        async def ask(client: AsyncQueryableStateClient) -> None:
            with pytest.raises(AuthenticationError):
                await client.get(*STATE, "N1")

        run(services, ask, credentials="wrong")

        async def ask_with_nothing(client: AsyncQueryableStateClient) -> None:
            with pytest.raises(ConfigurationError):
                await client.get(*STATE, "N1")

        gone = Credentials(token_file=tmp_path / "none")
        run(services, ask_with_nothing, credentials=gone)

    def test_a_published_address_that_is_none(self, services: HAServices) -> None:
        """Nobody connects to nonsense, and nobody waits for it."""

        async def ask(client: AsyncQueryableStateClient) -> None:
            with pytest.raises(ConfigurationError, match="nonsense"):
                await client.get(*STATE, "N1")

        with Lead(services, "nonsense"):
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
