"""Keys as they change, as server-sent events (F3)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate import (
    QueryableStateClient,
    QueryStateProxyServer,
    StateOperations,
)
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from tests.lodestar.publishing import Publisher
from tests.lodestar.running import Running
from tests.queryablestate.gateway.asking import Asker, Event
from tests.queryablestate.gateway.conftest import AIRCRAFT, DELAYS


pytestmark = [pytest.mark.shells, pytest.mark.proves("F3")]

STATE = "/v1/jobs/flights/states/aircraft"
WATCH = f"{STATE}/keys/N1/watch"
_numbers = itertools.count(1)
CONFIG = GatewayConfig(heartbeat_seconds=0.3, park_seconds=3.0)


@pytest.fixture
def config() -> HAConfig:
    """Return how to open a name service of this test's own."""
    return HAConfig(url=f"embedded:watching-{next(_numbers)}")


@pytest.fixture
def ha(config: HAConfig) -> Iterator[HAServices]:
    """Return it, open."""
    with open_ha_services(config) as services:
        yield services


@pytest.fixture
def cluster(ha: HAServices) -> Iterator[LocalStateCluster]:
    """Return proxies and nodes; two of each, with two copies of all rows."""
    with LocalStateCluster(ha, nodes=2, replicas=2, proxies=2) as running:
        yield running


@pytest.fixture
def publisher(config: HAConfig, cluster: LocalStateCluster) -> Publisher:
    """Return what has written a first batch."""
    return published(config)


@pytest.fixture
def gateway(ha: HAServices, publisher: Publisher) -> Iterator[GatewayServer]:
    """Return a gateway in front of it."""
    with GatewayServer(ha, CONFIG) as serving:
        yield serving
        assert serving.observe().figures["failures_total"] == 0


@pytest.fixture
def ask(gateway: GatewayServer) -> Asker:
    """Return what asks it."""
    return Asker(gateway.url)


def published(config: HAConfig | HAServices) -> Publisher:
    """Return what has written a first batch."""
    publisher = Publisher(config, "flights", {"aircraft": AIRCRAFT, "delays": DELAYS})
    publisher.write({"aircraft": [("N1", 0, None), ("N2", 0, None)]})
    return publisher


def write(publisher: Publisher, name: str, delay: int) -> int:
    """Write a batch of one row; return its number."""
    return publisher.write({"aircraft": [(name, delay, None)]})


def delay(event: Event) -> int:
    """Return the value that *event* tells of."""
    assert event.name == "value", event
    value: int = event.data["value"]["delay"]
    return value


class TestKeys:
    """F3: the present value at once, then each change."""

    def test_each_change(self, ask: Asker, publisher: Publisher) -> None:
        """With its batch; in their order."""
        with ask.watch(WATCH) as watching:
            content_type = str(watching.response.getheader("Content-Type"))
            assert content_type.startswith("text/event-stream;")
            first = watching.next()
            assert (first.data["key"], delay(first)) == ("N1", 0)
            for number in range(1, 6):
                batch_id = write(publisher, "N1", number)
                event = watching.next()
                assert (delay(event), event.data["batch_id"]) == (number, batch_id)
                assert event.data["generation"] == 1

    def test_what_leaves_the_key_as_it_is(
        self, ask: Asker, publisher: Publisher
    ) -> None:
        """Batches of other keys are no events; comments say that it is there."""
        with ask.watch(WATCH) as watching:
            watching.next()
            for number in range(3):
                write(publisher, "N2", number)
                write(publisher, "N1", 0)
            assert watching.next_or_comment().name == ""
            write(publisher, "N1", 7)
            assert delay(watching.next()) == 7

    def test_a_key_that_is_not_there_yet(
        self, ask: Asker, publisher: Publisher
    ) -> None:
        """That is told, and then its first value."""
        with ask.watch(f"{STATE}/keys/{quote('new/ü', safe='')}/watch") as watching:
            absent = watching.next()
            assert absent.name == "absent"
            assert (absent.data["key"], absent.data["value"]) == ("new/ü", None)
            write(publisher, "new/ü", 1)
            assert delay(watching.next()) == 1

    def test_a_map_and_another_state(self, ask: Asker, publisher: Publisher) -> None:
        """A map is watched as a whole."""
        path = "/v1/jobs/flights/states/delays/keys/N1/watch"
        with ask.watch(path) as watching:
            assert watching.next().name == "absent"
            publisher.write({"delays": [("N1", "JFK", 3)]})
            assert watching.next().data["value"] == [
                {"map_key": "JFK", "value": {"minutes": 3}}
            ]

    def test_a_state_that_is_dropped(
        self, ask: Asker, config: HAConfig, publisher: Publisher
    ) -> None:
        """The watch ends with the problem that a new one would begin with."""
        with ask.watch(WATCH) as watching:
            watching.next()
            with StateOperations(config) as operations:
                operations.drop_state("flights", "aircraft")
            problem, *rest = [event for event in watching.rest() if event.name]
            assert problem.name == "problem"
            assert problem.data["type"].endswith(":unknown-state")
            assert problem.event_id is None
            assert rest == []
        assert ask.get(WATCH).problem == "unknown-state"

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/v1/jobs/x/states/y/keys/k/watch", 404),
            (f"{STATE}/keys/{'x' * 600}/watch", 200),
            (f"{STATE}/keys/N1/watch?min_batch_id=1", 400),
            ("/v1/jobs/flights/states/aircraft/keys/%5B/watch?json_key=1", 400),
        ],
    )
    def test_what_cannot_be_watched(self, ask: Asker, path: str, status: int) -> None:
        """It is refused at once; what only reading shows is an event."""
        if status == 200:
            with ask.watch(path) as watching:
                (problem,) = [event for event in watching.rest() if event.name]
                assert problem.data["type"].endswith(":wrong-key")
        else:
            assert ask.get(path).status == status

    def test_only_as_events(self, ask: Asker) -> None:
        """406 for who wants something else; HEAD is no watch."""
        assert ask.get(WATCH, Accept="application/json").status == 406
        assert ask.ask("HEAD", WATCH).status == 200


class TestSharing:
    """F3: many watchers of one key are one question."""

    def test_many_watchers_of_one_key(
        self, gateway: GatewayServer, ask: Asker, publisher: Publisher
    ) -> None:
        """Each hears of each change, and the key is read once for all of them."""
        watchings = [ask.watch(WATCH) for _ in range(100)]
        for watching in watchings:
            assert delay(watching.next()) == 0
        figures = gateway.observe().figures
        assert (figures["watches"], figures["watched_keys"]) == (100, 1)
        write(publisher, "N1", 1)
        assert {delay(watching.next()) for watching in watchings} == {1}
        for watching in watchings:
            watching.close()
        with ask.watch("/v1/leaders/other/watch") as other:
            while gateway.observe().figures["watches"] != 1:
                other.next_or_comment()
        assert gateway.observe().figures["watched_keys"] == 0
        assert ask.get(f"{STATE}/keys/N1").status == 200

    def test_many_keys(
        self, ask: Asker, cluster: LocalStateCluster, publisher: Publisher
    ) -> None:
        """What they wait for are a few questions for each node, not one for each."""
        names = [f"M{number}" for number in range(50)]
        publisher.write({"aircraft": [(name, 0, None) for name in names]})
        watchings = [ask.watch(f"{STATE}/keys/{name}/watch") for name in names]
        for watching in watchings:
            watching.next()
        for number in (1, 2):
            publisher.write({"aircraft": [(name, number, None) for name in names]})
            assert {delay(watching.next()) for watching in watchings} == {number}
        # All were answered at one moment, and asked again at one moment.
        waiting = sum(
            int(node.observe().figures["questions_waiting"]) for node in cluster.nodes
        )
        assert 1 <= waiting <= 4
        for watching in watchings:
            watching.close()

    def test_one_that_reads_slowly(self, ask: Asker, publisher: Publisher) -> None:
        """It finds the newest value; others are not held up by it."""
        with ask.watch(WATCH) as slow, ask.watch(WATCH) as quick:
            slow.next()
            quick.next()
            for number in range(1, 30):
                write(publisher, "N1", number)
                assert delay(quick.next()) == number
            seen = [delay(slow.next())]
            while seen[-1] != 29:
                seen.append(delay(slow.next()))
            assert seen == sorted(seen)


class TestComingBack:
    """F3: Last-Event-ID."""

    def test_nothing_is_new(self, ask: Asker, publisher: Publisher) -> None:
        """What was seen is not told again; the next change is."""
        with ask.watch(WATCH) as watching:
            event_id = watching.next().event_id
        for path in (WATCH, f"{WATCH}?last_event_id={event_id}"):
            shown = event_id if path == WATCH else None
            with ask.watch(path, shown) as watching:
                assert [watching.next_or_comment().name for _ in range(3)] == [""] * 3
        with ask.watch(WATCH, event_id) as watching:
            write(publisher, "N1", 4)
            assert delay(watching.next()) == 4

    def test_what_was_missed(self, ask: Asker, publisher: Publisher) -> None:
        """The newest of it, at once; there and back again is no change."""
        with ask.watch(WATCH) as watching:
            event_id = watching.next().event_id
        write(publisher, "N1", 1)
        with ask.watch(WATCH, event_id) as watching:
            assert delay(watching.next()) == 1
        write(publisher, "N1", 0)
        with ask.watch(WATCH, event_id) as watching:
            assert watching.next_or_comment().name == ""
            assert watching.next_or_comment().name == ""

    def test_never_older_than_what_was_seen(
        self, ask: Asker, publisher: Publisher
    ) -> None:
        """A batch that another gateway has told of is waited for."""
        later = "1.2.-"
        with ask.watch(WATCH, later) as watching:
            assert [watching.next_or_comment().name for _ in range(2)] == ["", ""]
            write(publisher, "N1", 1)  # batch 1
            write(publisher, "N1", 2)  # batch 2
            event = watching.next()
            assert (delay(event), event.data["batch_id"]) == (2, 2)

    @pytest.mark.parametrize("event_id", ["x", "1.2", "-1.-1.-", "9" * 30, "1.2.xyz"])
    def test_an_id_of_somebody_else(self, ask: Asker, event_id: str) -> None:
        """Is none: the watch begins anew."""
        with ask.watch(WATCH, event_id) as watching:
            assert delay(watching.next()) == 0


class TestFailover:
    """F3: a watcher goes on, whatever dies."""

    def test_a_proxy_that_ends(
        self, ask: Asker, cluster: LocalStateCluster, publisher: Publisher
    ) -> None:
        """The connection stays; what is written over the next proxy is told."""
        with ask.watch(WATCH) as watching:
            watching.next()
            (leading,) = [proxy for proxy in cluster.proxies if proxy.is_leader]
            leading.close()
            write(publisher, "N1", 5)
            event = watching.next()
            while event.name == "problem":
                event = watching.next()
            assert delay(event) == 5

    def test_a_node_that_ends(
        self, ask: Asker, cluster: LocalStateCluster, publisher: Publisher
    ) -> None:
        """The other copy is asked; nothing is lost, and nothing is told twice."""
        names = [f"M{number}" for number in range(10)]
        publisher.write({"aircraft": [(name, 0, None) for name in names]})
        watchings = [ask.watch(f"{STATE}/keys/{name}/watch") for name in names]
        for watching in watchings:
            watching.next()
        cluster.nodes[0].close()
        publisher.write({"aircraft": [(name, 1, None) for name in names]})
        for watching in watchings:
            event = watching.next()
            while event.name == "problem":
                event = watching.next()
            assert delay(event) == 1
            watching.close()

    def test_a_node_that_comes_back(self, tmp_path: Path) -> None:
        """What there is then is told, though no batch has come meanwhile."""
        node = ("node", "--node-id", "node-1", "--data-dir", str(tmp_path / "node-1"))
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            QueryStateProxyServer(ha),
            GatewayServer(ha, CONFIG) as gateway,
        ):
            with Running(*node, "--url", server.url) as first:
                first.out.until("serving ")
                publisher = published(ha)
                watching = Asker(gateway.url).watch(WATCH)
                assert delay(watching.next()) == 0
                first.process.kill()
                assert watching.next().name == "problem"
            with Running(*node, "--url", server.url) as second, watching:
                second.out.until("serving ")
                event = watching.next()
                while event.name == "problem":  # it may have another one meanwhile
                    event = watching.next()
                assert delay(event) == 0
                write(publisher, "N1", 1)
                event = watching.next()
                while event.name == "problem":
                    event = watching.next()
                assert delay(event) == 1

    def test_a_gateway_that_is_killed(self, tmp_path: object) -> None:
        """Its watchers go on at another one: no change is lost, none goes back."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            LocalStateCluster(ha, nodes=2),
            Running("gateway", "--url", server.url) as one,
            Running("gateway", "--url", server.url) as two,
        ):
            publisher = published(ha)
            askers = [
                Asker(gateway.out.next().removeprefix("serving "))
                for gateway in (one, two)
            ]
            last: str | None = None
            seen: list[int] = []
            kill = threading.Event()

            def write_all() -> None:
                for number in range(1, 200):
                    write(publisher, "N1", number)
                    if number == 50:
                        kill.set()

            def end() -> None:
                kill.wait()
                one.process.kill()

            threads = [threading.Thread(target=each) for each in (write_all, end)]
            for thread in threads:
                thread.start()
            for asker in askers:
                with asker.watch(WATCH, last) as watching:
                    try:
                        while not seen or seen[-1] < 199:
                            event = watching.next()
                            if event.name == "value":
                                seen.append(delay(event))
                                last = event.event_id
                    except (StopIteration, OSError, ValueError):
                        assert asker is askers[0]
            for thread in threads:
                thread.join()
            assert seen[-1] == 199
            assert seen == sorted(set(seen))
            assert any(number < 50 for number in seen)
            with QueryableStateClient(ha) as client:
                assert client.get("flights", "aircraft", "N1")["delay"] == 199
            # A reader of the dead gateway needs one more try, elsewhere.
            assert askers[1].get(f"{STATE}/keys/N1").document["value"]["delay"] == 199
            assert two.end().exit_code == 0
