"""Leaders over HTTP: who leads, and each change (F2, F3)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import cast, final

import pytest
from attrs import evolve

from haservices import (
    ComponentInformation,
    HAServices,
    campaign,
    open_ha_services,
)
from nameservice import REST_ENDPOINT, NameServiceError, UnreachableError
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.gateway.leader_endpoints import who_sees_leaders
from queryablestate.gateway.leader_watching import Leaders
from retrieval import LeaderInformation, LeaderRetriever
from tests.queryablestate.gateway.asking import WAIT_SECONDS, Asker


pytestmark = pytest.mark.shells

_numbers = itertools.count(1)


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of this test's own."""
    with open_ha_services(f"embedded:leaders-{next(_numbers)}") as services:
        yield services


@pytest.fixture
def gateway(ha: HAServices) -> Iterator[GatewayServer]:
    """Return a gateway where there is no queryable state at all."""
    with GatewayServer(ha, GatewayConfig(heartbeat_seconds=0.3)) as serving:
        yield serving


@pytest.fixture
def ask(gateway: GatewayServer) -> Asker:
    """Return what asks it."""
    return Asker(gateway.url)


@pytest.mark.proves("F2")
class TestLeaders:
    """F2: who leads."""

    def test_a_leader(self, ha: HAServices, ask: Asker) -> None:
        """Address, epoch and identity; 404 before and after."""
        assert ask.get("/v1/leaders/flights").problem == "no-leader"
        with campaign(ha, "flights", "driver:7077") as leadership:
            document = ask.get("/v1/leaders/flights").document
            assert document["component"] == "flights"
            assert document["contender_count"] == 1
            assert document["leader"] == {
                "address": "driver:7077",
                "epoch": leadership.epoch,
                "leader_session_id": str(leadership.leader_session_id),
            }

    def test_a_gateway_is_found(self, gateway: GatewayServer, ask: Asker) -> None:
        """F2: its URL is that of REST_ENDPOINT; it is among all leaders."""
        with ask.watch(f"/v1/leaders/{REST_ENDPOINT}/watch") as watching:
            while (leader := watching.next().data["leader"]) is None:
                pass
        assert leader["address"] == gateway.url
        (found,) = ask.get("/v1/leaders").document["leaders"]
        assert found["leader"]["address"] == gateway.url

    def test_one_that_is_closed_while_it_starts(self, ha: HAServices) -> None:
        """F2: it is not found: no one would be there."""
        server = GatewayServer(ha)

        def start() -> None:
            with contextlib.suppress(NameServiceError):
                server.start()

        starting = threading.Thread(target=start)
        starting.start()
        while server._thread is None:
            pass
        server.close()
        starting.join()
        found = [one.component_id for one in ha.operations.leaders()]
        assert REST_ENDPOINT not in found

    def test_one_that_cannot_be_announced(self) -> None:
        """F2: it is not started, and answers nothing."""
        with open_ha_services(f"embedded:leaders-{next(_numbers)}") as services:
            server = GatewayServer(services)
        with pytest.raises(NameServiceError):
            server.start()
        assert server.join(WAIT_SECONDS)

    def test_without_a_proxy(self, ask: Asker) -> None:
        """503 says that no proxy leads, and when to ask again."""
        answer = ask.get("/v1/jobs?deadline=0.2")
        assert (answer.status, answer.problem) == (503, "no-proxy")
        assert answer.headers["retry-after"] == "1"

    @pytest.mark.parametrize("name", ["", "a%2Fb", "%07", "x" * 256])
    def test_what_nothing_is_called(self, ask: Asker, name: str) -> None:
        """A name that no component can have has no leader, and cannot be watched."""
        assert ask.get(f"/v1/leaders/{name}").status == 404
        assert ask.get(f"/v1/leaders/{name}/watch").status == 400


@pytest.mark.proves("F3")
class TestWatching:
    """F3: who leads now, at once, and each change."""

    PATH = "/v1/leaders/flights/watch"

    def test_from_nobody_to_nobody(self, ha: HAServices, ask: Asker) -> None:
        """That there is no leader is told, too."""
        with ask.watch(self.PATH) as watching:
            assert watching.next().data == {"component": "flights", "leader": None}
            with campaign(ha, "flights", "driver:7077") as leadership:
                leader = watching.next().data["leader"]
                assert leader["address"] == "driver:7077"
                assert leader["epoch"] == leadership.epoch
            assert watching.next().data["leader"] is None

    def test_comments_say_that_it_is_there(self, ha: HAServices, ask: Asker) -> None:
        """A reader knows a broken connection from a leader that stays."""
        with campaign(ha, "flights", "x:1"), ask.watch(self.PATH) as watching:
            while watching.next().data["leader"] is None:
                pass
            assert [watching.next_or_comment().name for _ in range(2)] == ["", ""]

    def test_one_that_comes_back(self, ha: HAServices, ask: Asker) -> None:
        """It is not told again what it knows, and is told what it has missed."""
        with campaign(ha, "flights", "x:1"):
            with ask.watch(self.PATH) as watching:
                while (known := watching.next()).data["leader"] is None:
                    pass
            with ask.watch(self.PATH, known.event_id) as watching:
                assert watching.next_or_comment().name == ""  # the first words
                assert watching.next_or_comment().name == ""  # nothing is new
        with (
            campaign(ha, "flights", "y:2"),
            ask.watch(self.PATH, known.event_id) as watching,
        ):
            while (leader := watching.next().data["leader"]) is None:
                pass
            assert leader["address"] == "y:2"

    def test_an_older_leader_is_not_told(self, ha: HAServices, ask: Asker) -> None:
        """What has seen a later epoch, perhaps elsewhere, hears of no earlier one."""
        with campaign(ha, "flights", "x:1") as leadership:
            later = f"{leadership.epoch + 1}.-"
            with ask.watch(self.PATH, later) as watching:
                names = [watching.next_or_comment().name for _ in range(4)]
                assert names == ["", "", "", ""]

    def test_many_watchers_have_one_retriever(
        self, ha: HAServices, gateway: GatewayServer, ask: Asker
    ) -> None:
        """And nothing is left of it when they are gone."""
        watchings = [ask.watch(self.PATH) for _ in range(20)]
        for watching in watchings:
            watching.next()
        figures = gateway.observe().figures
        assert (figures["watches"], figures["watched_components"]) == (20, 1)
        with campaign(ha, "flights", "x:1"):
            for watching in watchings:
                assert watching.next().data["leader"]["address"] == "x:1"
        for watching in watchings:
            watching.close()
        # A gateway finds out at the next heartbeat at the latest.
        with ask.watch("/v1/leaders/other/watch") as watching:
            while gateway.observe().figures["watches"] != 1:
                watching.next_or_comment()
        assert gateway.observe().figures["failures_total"] == 0

    def test_a_gateway_that_ends_says_so(
        self, gateway: GatewayServer, ask: Asker
    ) -> None:
        """F3: the answer is whole, so that its watcher comes back at once."""
        with ask.watch(self.PATH) as watching:
            watching.next()
            gateway.close()
            assert [event.name for event in watching.rest() if event.name] == []


@pytest.mark.proves("F4")
class TestWhoIsTold:
    """F4: the gateway does not lend what the name service tells it alone."""

    def test_by_how_the_name_service_knows_us(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """Everybody, where it asks for no keys; else no caller, unless it is said."""
        plain = ha.config
        with_keys = evolve(
            plain,
            url="leaderserver://127.0.0.1:1",
            curve_public_key_file=str(tmp_path / "key"),
            curve_secret_key_file=str(tmp_path / "key_secret"),
            curve_server_key_file=str(tmp_path / "server"),
        )
        assert who_sees_leaders(GatewayConfig(), plain) == "open"
        assert who_sees_leaders(GatewayConfig(), with_keys) == "off"
        assert who_sees_leaders(GatewayConfig(leaders="open"), with_keys) == "open"

    @pytest.mark.parametrize("path", ["", "/flights", "/flights/watch"])
    def test_nobody(self, ha: HAServices, path: str) -> None:
        """403, whether it exists or not."""
        with GatewayServer(ha, GatewayConfig(leaders="off")) as gateway:
            answer = Asker(gateway.url).get(f"/v1/leaders{path}")
            assert (answer.status, answer.problem) == (403, "not-allowed")


@final
class LateServices:
    """
    A name service whose retrievers hear nothing until they are told to.

    Args:
        services: The name service.
    """

    def __init__(self, services: HAServices) -> None:
        self.operations = services.operations
        self.may_hear = asyncio.Event()
        self._services = services

    def get_leader_retriever(self, component_id: str) -> LateRetriever:
        """Return a retriever that is not started by `start`."""
        return LateRetriever(
            self._services.get_leader_retriever(component_id), self.may_hear
        )


@final
class LateRetriever:
    """A retriever that begins to retrieve only when it may."""

    def __init__(self, retriever: LeaderRetriever, may_hear: asyncio.Event) -> None:
        self._retriever = retriever
        self._may_hear = may_hear
        self.close = retriever.close

    def start(self) -> None:
        """Begin, but hear nothing yet."""

    @property
    def leader(self) -> LeaderInformation | None:
        """Return what was heard."""
        return self._retriever.leader

    async def changes_async(self) -> AsyncIterator[LeaderInformation | None]:
        """Begin to hear when it may, and yield what is heard."""
        await self._may_hear.wait()
        self._retriever.start()
        async for leader in self._retriever.changes_async():
            yield leader


@pytest.mark.proves("F3")
def test_what_was_not_heard_yet_is_not_told(ha: HAServices) -> None:
    """F3: silence of a retriever that has just begun does not mean no leader."""

    async def watch() -> list[bytes | None]:
        late = LateServices(ha)
        leaders = Leaders(cast("HAServices", late), heartbeat_seconds=0.2)
        told = []
        async with contextlib.aclosing(leaders.events("flights", None)) as events:
            told += [await anext(events), await anext(events)]
            late.may_hear.set()
            told += [await anext(events), await anext(events)]
        leaders.end()
        return told

    with campaign(ha, "flights", "driver:7077"):
        first, *others = asyncio.run(watch())
    assert first is not None
    assert b"driver:7077" in first
    assert others == [None, None, None]


@final
class SlowOperations:
    """
    Says who led when it was asked, and takes its time to say so.

    Attributes:
        found: Who leads, or what is wrong.
        has_begun: Set when a question has come.
        may_answer: Set when answers may be given.
        count: Questions that have come.
    """

    def __init__(self) -> None:
        self.found: Sequence[ComponentInformation] | NameServiceError = ()
        self.has_begun = threading.Event()
        self.may_answer = threading.Event()
        self.count = 0

    @property
    def operations(self) -> SlowOperations:
        """Return itself: it stands for the name service, too."""
        return self

    def leaders(self) -> Sequence[ComponentInformation]:
        """Return who led at the beginning of this call."""
        found = self.found
        self.count += 1
        self.has_begun.set()
        assert self.may_answer.wait(WAIT_SECONDS)
        if isinstance(found, NameServiceError):
            raise found
        return found


@pytest.mark.proves("F2")
@pytest.mark.parametrize("before", [(), UnreachableError("x", 1.0)])
def test_no_answer_is_for_what_was_asked_after_it(
    before: Sequence[ComponentInformation] | NameServiceError,
) -> None:
    """
    A leader may have confirmed while the name service was asked for others.

    Those who come while it is asked share the next question.
    """
    leader = LeaderInformation(
        address="driver:7077", leader_session_id=uuid.uuid4(), epoch=7
    )
    after = ComponentInformation(
        component_id="flights", leader=leader, contender_count=1, epoch=7
    )

    async def ask() -> list[object]:
        slow = SlowOperations()
        slow.found = before
        leaders = Leaders(cast("HAServices", slow), heartbeat_seconds=0.2)
        early = asyncio.ensure_future(leaders.all())
        await asyncio.to_thread(slow.has_begun.wait, WAIT_SECONDS)
        slow.found = (after,)
        late = [asyncio.ensure_future(leaders.all()) for _ in range(3)]
        await asyncio.sleep(0)
        slow.may_answer.set()
        told = await asyncio.gather(early, *late, return_exceptions=True)
        assert slow.count == 2
        assert await leaders.all() == (after,)
        return list(told)

    assert asyncio.run(ask()) == [before, *[(after,)] * 3]
