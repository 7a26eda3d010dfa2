from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from haservices import HAConfig, HAServices, open_ha_services
from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    NoLeaderError,
    StorageError,
)
from queryablestate import (
    DeadlineExceededError,
    NodeConfig,
    QueryableStateClient,
    StateNode,
    StateOperations,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
)
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.forking import run_in_child
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import AIRCRAFT


pytestmark = pytest.mark.shells

DELAYS: Final = StateSchema(
    kind=StateKind.MAP,
    key=(Field("tailnum", AtomicType.STRING),),
    map_key=(Field("origin", AtomicType.STRING),),
    value=(Field("minutes", AtomicType.INT),),
)
STATE: Final = ("flights", "aircraft")
NAMES: Final = tuple(f"N{number:03}" for number in range(200))

_numbers = itertools.count(1)


@pytest.fixture
def config() -> HAConfig:
    """Return how to open a name service of this test's own, in this process."""
    return HAConfig(url=f"embedded:cluster-{next(_numbers)}")


@pytest.fixture
def ha(config: HAConfig) -> Iterator[HAServices]:
    """Return it, open."""
    with open_ha_services(config) as services:
        yield services


def publish(
    config: HAConfig, delay: int, publisher: Publisher | None = None
) -> Publisher:
    """Write the same delay for every aircraft; as another run unless one is given."""
    if publisher is None:
        publisher = Publisher(config, "flights", {"aircraft": AIRCRAFT})
    publisher.write({"aircraft": [(name, delay) for name in NAMES]})
    return publisher


class TestLife:
    def test_it_is_ready_when_it_has_started(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """Every node is registered with the one proxy that leads."""
        with LocalStateCluster(ha, nodes=3, proxies=2) as cluster:
            assert [node.node_id for node in cluster.nodes] == [
                "node-1",
                "node-2",
                "node-3",
            ]
            assert all(node.is_registered for node in cluster.nodes)
            assert [proxy.is_leader for proxy in cluster.proxies].count(True) == 1

    def test_what_is_published_can_be_asked(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """Points, scans and counts over all nodes."""
        with LocalStateCluster(ha), QueryableStateClient(config) as client:
            publish(config, 5)
            assert client.get(*STATE, "N007") == {"delay": 5}
            assert client.get_many(*STATE, NAMES) == {
                name: {"delay": 5} for name in NAMES
            }
            with pytest.raises(UnknownKeyError):
                client.get(*STATE, "N999")
            assert [key for key, _ in client.scan(*STATE)] == list(NAMES)
            assert client.count(*STATE) == len(NAMES)

    def test_maps_count_once_for_each_key(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """Nodes know no schema: the question tells where a key ends."""
        with LocalStateCluster(ha), QueryableStateClient(config) as client:
            Publisher(config, "flights", {"delays": DELAYS}).write(
                {
                    "delays": [
                        (name, origin, 1) for name in "abc" for origin in ("E", "J")
                    ]
                }
            )
            assert client.count("flights", "delays") == 3

    @pytest.mark.proves("B1")
    def test_a_map_larger_than_any_answer(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """B1: `get` says what works, and that works."""
        schema = evolve(DELAYS, value=(Field("text", AtomicType.STRING),))
        names = [f"A{number:02}" for number in range(20)]
        with LocalStateCluster(ha), QueryableStateClient(config) as client:
            publisher = Publisher(config, "flights", {"texts": schema})
            text = "x" * (1 << 20)
            publisher.write({"texts": [("N1", name, text) for name in names]})
            with pytest.raises(LocalProtocolError, match="scan_map"):
                client.get("flights", "texts", "N1")
            found = client.scan_map("flights", "texts", "N1")
            assert [(key, len(value["text"])) for key, value in found] == [
                (name, len(text)) for name in names
            ]
            entry = client.get_map_entry("flights", "texts", "N1", names[-1])
            assert entry == {"text": text}

    def test_nothing_is_left_of_it(self, ha: HAServices) -> None:
        """No thread, no directory; it starts once, and closing twice is nothing."""
        before = set(threading.enumerate())
        cluster = LocalStateCluster(ha, nodes=1)
        cluster.start()
        path = Path(str(cluster.nodes[0]._config.data_dir)).parent
        assert path.is_dir()
        with pytest.raises(LocalProtocolError):
            cluster.start()
        cluster.close()
        cluster.close()
        assert not path.exists()
        assert set(threading.enumerate()) <= before
        with pytest.raises(LocalProtocolError):
            cluster.start()

    @pytest.mark.proves("W7")
    def test_a_directory_that_was_given_stays(
        self, config: HAConfig, ha: HAServices, tmp_path: Path
    ) -> None:
        """W7: with the leader store, too, kept, everything is there again."""
        with LocalStateCluster(ha, data_dir=tmp_path):
            publish(config, 5)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["node-1", "node-2"]
        with (
            LocalStateCluster(ha, data_dir=tmp_path),
            QueryableStateClient(config) as client,
        ):
            assert client.get(*STATE, "N007") == {"delay": 5}

    def test_what_cannot_start_leaves_nothing(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """A directory that is in use ends the start, and all that was started."""
        before = set(threading.enumerate())
        settings = NodeConfig(data_dir=tmp_path / "node-2", node_id="node-2")
        other = StateNode(ha, settings)
        other.start()
        cluster = LocalStateCluster(ha, data_dir=tmp_path)
        with pytest.raises(StorageError):
            cluster.start()
        other.close()
        assert set(threading.enumerate()) <= before

    @pytest.mark.parametrize(("nodes", "proxies"), [(0, 1), (1, 0)])
    def test_it_has_at_least_one_of_each(
        self, ha: HAServices, nodes: int, proxies: int
    ) -> None:
        """A cluster of nothing would wait for ever."""
        with pytest.raises(ConfigurationError):
            LocalStateCluster(ha, nodes, proxies=proxies)

    @pytest.mark.parametrize(
        ("settings", "saying"),
        [
            ({"nodes": 1, "replicas": 3}, "replicas=3 needs as many nodes"),
            ({"replicas": 0}, "replicas must be a whole number from 1"),
            ({"nodes": "2"}, "nodes must be a whole number from 1"),
        ],
    )
    def test_copies_have_nodes_of_their_own(
        self, ha: HAServices, settings: dict[str, Any], saying: str
    ) -> None:
        """S4: fewer nodes than copies would be a silent loss of safety."""
        with pytest.raises(ConfigurationError, match=saying):
            LocalStateCluster(ha, **settings)

    def test_it_wants_open_services(self, config: HAConfig) -> None:
        """A configuration is not what it takes; the error says what is."""
        with pytest.raises(ConfigurationError, match="open_ha_services"):
            LocalStateCluster(config)  # type: ignore[arg-type]  # that is the point

    def test_a_forked_child_cannot_use_it(self, ha: HAServices) -> None:
        """E10: its use raises, its close is silent, the parent is not disturbed."""
        with LocalStateCluster(ha, nodes=1) as cluster:
            assert run_in_child(lambda: cluster.nodes) == "ForkedClientError"
            assert run_in_child(cluster.start) == "ForkedClientError"
            assert run_in_child(cluster.close) == "None"
            assert cluster.nodes[0].is_registered


class TestNodes:
    """Nodes that come and go (S1, S4)."""

    @pytest.mark.proves("S1")
    def test_one_comes_and_one_goes(self, config: HAConfig, ha: HAServices) -> None:
        """S1: what was on the one is on the other; numbers are not used again."""
        with (
            LocalStateCluster(ha, nodes=1) as cluster,
            QueryableStateClient(config, deadline_seconds=20.0) as client,
        ):
            publisher = publish(config, 5)
            assert cluster.add_node().node_id == "node-2"
            assert cluster.remove_node("node-1") == "empty"
            assert [node.node_id for node in cluster.nodes] == ["node-2"]
            assert client.get_many(*STATE, NAMES) == {
                name: {"delay": 5} for name in NAMES
            }
            publish(config, 6, publisher)
            assert client.get(*STATE, "N007") == {"delay": 6}
            assert cluster.add_node().node_id == "node-3"
            with pytest.raises(LocalProtocolError):
                cluster.remove_node("node-1")

    @pytest.mark.proves("S1")
    def test_the_last_one_keeps_what_it_has(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """S1: there is no node that could take it; it is not waited for."""
        with LocalStateCluster(ha, nodes=1) as cluster:
            publish(config, 5)
            assert cluster.remove_node("node-1") == "nobody"
            assert cluster.nodes == ()

    @pytest.mark.proves("S4")
    def test_the_death_of_one_of_two_copies_costs_nothing(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """S4: every key is answered, by the other copy; batches go on."""
        with (
            LocalStateCluster(ha, nodes=2, replicas=2) as cluster,
            StateOperations(ha) as operations,
            QueryableStateClient(config, deadline_seconds=20.0) as client,
        ):
            publisher = publish(config, 5)
            (job,) = operations.rescalings()
            assert job.copy_counts == {"node-1": 128, "node-2": 128}
            cluster.node("node-1").close()
            assert client.get_many(*STATE, NAMES) == {
                name: {"delay": 5} for name in NAMES
            }
            publish(config, 6, publisher)
            assert client.get(*STATE, "N007") == {"delay": 6}

    @pytest.mark.proves("S4")
    def test_a_node_that_comes_restores_the_copies(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """S4: by itself, when a job has fewer than it is to have."""
        with (
            LocalStateCluster(ha, nodes=2, replicas=2) as cluster,
            StateOperations(ha) as operations,
        ):
            publisher = publish(config, 5)
            assert cluster.remove_node("node-1", timeout_seconds=0.0) is None
            publish(config, 6, publisher)
            cluster.add_node()
            deadline = time.monotonic() + 30.0
            (job,) = operations.rescalings("flights")
            while job.copy_counts.get("node-3") != 128 and time.monotonic() < deadline:
                # It may ask before anything is planned; the next question waits.
                (job,) = operations.wait_until_rescaled("flights", timeout_seconds=30.0)
            assert job.key_group_counts["node-2"] == 64
            assert job.missing_count == 0

    @pytest.mark.proves("S1")
    def test_a_node_that_two_threads_remove_is_gone_for_both(
        self, ha: HAServices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S1: the later one hears of nothing that went wrong."""
        leave = StateNode.leave
        others: list[str | None] = []

        def leave_twice(node: StateNode, timeout_seconds: float | None) -> str | None:
            monkeypatch.setattr(StateNode, "leave", leave)
            others.append(cluster.remove_node("node-2", timeout_seconds=0.0))
            return leave(node, timeout_seconds)

        with LocalStateCluster(ha, nodes=2) as cluster:
            monkeypatch.setattr(StateNode, "leave", leave_twice)
            cluster.remove_node("node-2", timeout_seconds=0.0)
            assert len(others) == 1
            assert [node.node_id for node in cluster.nodes] == ["node-1"]

    def test_none_comes_or_goes_when_it_does_not_run(self, ha: HAServices) -> None:
        """Before the start and after the end there is nothing to add to."""
        cluster = LocalStateCluster(ha, nodes=1)
        with pytest.raises(LocalProtocolError):
            cluster.add_node()
        cluster.start()
        cluster.close()
        with pytest.raises(LocalProtocolError):
            cluster.add_node()


class TestFaults:
    @pytest.mark.proves("Q4")
    def test_the_others_go_on_when_a_node_ends(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """Q4: its key groups are unavailable, never unknown; the others answer."""
        with (
            LocalStateCluster(ha) as cluster,
            QueryableStateClient(config, deadline_seconds=2.0) as client,
        ):
            publish(config, 5)
            cluster.nodes[0].close()
            result = client.get_many(*STATE, NAMES, partial=True)
            assert set(result.values) | set(result.unavailable) == set(NAMES)
            assert result.values
            assert result.unavailable
            with pytest.raises(StateUnavailableError):
                client.get(*STATE, next(iter(result.unavailable)))

    @pytest.mark.proves("S2")
    def test_a_standby_takes_over(self, config: HAConfig, ha: HAServices) -> None:
        """S2: nodes register with the next proxy, and answer as before."""
        with (
            LocalStateCluster(ha, proxies=2) as cluster,
            QueryableStateClient(config, deadline_seconds=20.0) as client,
        ):
            publisher = publish(config, 5)
            assert client.get(*STATE, "N007") == {"delay": 5}
            leader = next(proxy for proxy in cluster.proxies if proxy.is_leader)
            leader.close()
            began = time.monotonic()
            assert client.get(*STATE, "N007") == {"delay": 5}
            assert time.monotonic() - began < 20.0
            publish(config, 6, publisher)
            assert client.get(*STATE, "N007") == {"delay": 6}

    @pytest.mark.proves("B3")
    @pytest.mark.nightly
    def test_a_query_of_a_thousand_states_commits(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """B3: and the next leader reads all of it, and commits their next batch."""
        states = {f"state-{number}": AIRCRAFT for number in range(1_000)}
        publisher = Publisher(config, "flights", states)
        with (
            LocalStateCluster(ha, proxies=2) as cluster,
            QueryableStateClient(config, deadline_seconds=20.0) as client,
        ):
            publisher.write({name: [("N1", 5)] for name in states})
            assert client.get("flights", "state-999", "N1") == {"delay": 5}
            leader = next(proxy for proxy in cluster.proxies if proxy.is_leader)
            leader.close()
            publisher.write({name: [("N1", 6)] for name in states})
            assert client.get("flights", "state-0", "N1") == {"delay": 6}

    def test_a_state_that_is_dropped_comes_back_with_the_next_batch(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """Its run has declared it before, and declares it anew when it is asked to."""
        with (
            LocalStateCluster(ha),
            QueryableStateClient(config, deadline_seconds=20.0) as client,
            StateOperations(ha) as operations,
        ):
            publisher = publish(config, 5)
            publish(config, 6, publisher)
            operations.drop_state(*STATE)
            with pytest.raises(UnknownJobError):
                client.describe(*STATE)
            publish(config, 7, publisher)
            assert client.get(*STATE, "N007") == {"delay": 7}

    @pytest.mark.proves("Q3")
    def test_nothing_is_answered_without_a_proxy(
        self, config: HAConfig, ha: HAServices
    ) -> None:
        """Q3: an error of ours, within the deadline."""
        with (
            LocalStateCluster(ha) as cluster,
            QueryableStateClient(config, deadline_seconds=1.0) as client,
        ):
            publish(config, 5)
            assert client.get(*STATE, "N007") == {"delay": 5}
            cluster.proxies[0].close()
            began = time.monotonic()
            with pytest.raises((NoLeaderError, DeadlineExceededError)):
                client.get(*STATE, "N007")
            assert time.monotonic() - began < 10.0
