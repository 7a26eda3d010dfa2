"""A name service that comes back with an empty store: rows are not forgotten (W7)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from haservices import HAConfig, HAServices, open_ha_services
from haservices.interface import forgets_at_restart
from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from nameservice import DidNotHappenError
from queryablestate import (
    NodeConfig,
    QueryableStateClient,
    StateNode,
    StateOperations,
    StateUnavailableError,
    UnknownJobError,
)
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.store.store import StateStore
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import AIRCRAFT
from tests.recording import WAIT_SECONDS


pytestmark = pytest.mark.shells

STATE: Final = ("flights", "aircraft")
NAMES: Final = tuple(f"N{number:03}" for number in range(100))


class RestartedServer:
    """A LeaderServer on ports that stay its own; without a directory it forgets."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self._resources = ExitStack()
        request, publish = (
            self._resources.enter_context(closing(ReservedPort())) for _ in range(2)
        )
        self._config = ServerConfig(
            data_dir=data_dir,
            bind=f"tcp://127.0.0.1:{request.port}",
            publish_bind=f"tcp://127.0.0.1:{publish.port}",
            lease_seconds_max=0.5,
            lease_seconds_unrecorded_max=0.5,
        )
        self.server = LeaderServer(self._config)
        self.server.start()

    def restart(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Come back where it was; without a directory, knowing nothing."""
        self.server.close()
        meanwhile()
        self.server = LeaderServer(self._config)
        self.server.start()

    def close(self) -> None:
        """Close the server, and release its ports."""
        self.server.close()
        self._resources.close()


@pytest.fixture
def server() -> Iterator[RestartedServer]:
    """Return a name service that forgets at each restart."""
    with closing(RestartedServer()) as running:
        yield running


@pytest.fixture
def config(server: RestartedServer) -> HAConfig:
    """Return how to reach it."""
    return HAConfig(url=server.server.url, session_timeout_seconds=3.0)


def publish(
    config: HAConfig, delay: int, publisher: Publisher | None = None
) -> Publisher:
    """Write the same delay for every aircraft."""
    if publisher is None:
        publisher = Publisher(config, "flights", {"aircraft": AIRCRAFT})
    publisher.write({"aircraft": [(name, delay) for name in NAMES]})
    return publisher


class TestRowsThatNodesKeep:
    @pytest.mark.proves("W7")
    def test_a_job_is_unavailable_and_not_unknown(
        self, server: RestartedServer, config: HAConfig, tmp_path: Path
    ) -> None:
        """Nodes have the rows: to say that there is no such job would be false."""
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=2, data_dir=tmp_path),
        ):
            publish(config, 3)
        server.restart()
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=2, data_dir=tmp_path),
            QueryableStateClient(config, deadline_seconds=WAIT_SECONDS) as client,
        ):
            for ask in (
                lambda: client.get(*STATE, "N001"),
                lambda: client.states("flights"),
                lambda: client.describe(*STATE),
            ):
                with pytest.raises(StateUnavailableError, match="as of batch 0 aside"):
                    ask()
            with pytest.raises(UnknownJobError):
                client.states("trains")
            assert client.jobs() == ["flights"]
            with pytest.raises(StateUnavailableError, match="aside"):
                publish(config, 4)

    @pytest.mark.proves("W7")
    def test_it_is_so_for_programs_that_were_there_all_the_time(
        self, server: RestartedServer, config: HAConfig, tmp_path: Path
    ) -> None:
        """Proxy, nodes, writer and reader go on while the name service forgets."""
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=2, data_dir=tmp_path),
            QueryableStateClient(config, deadline_seconds=WAIT_SECONDS) as client,
        ):
            publisher = publish(config, 3)
            assert client.get(*STATE, "N001") == {"delay": 3}
            server.restart()
            with pytest.raises(StateUnavailableError):
                publish(config, 4, publisher)
            with pytest.raises(StateUnavailableError):
                client.get(*STATE, "N001")


class TestTakingOver:
    @pytest.mark.proves("W7", "W4")
    def test_what_nodes_kept_is_there_again(
        self, server: RestartedServer, config: HAConfig, tmp_path: Path
    ) -> None:
        """Rows, batches and the checkpoint of the query go on as they were."""
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=2, replicas=2, data_dir=tmp_path),
        ):
            publisher = publish(config, 3)
            publish(config, 4, publisher)
        server.restart()
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=2, replicas=2, data_dir=tmp_path),
            QueryableStateClient(config, deadline_seconds=WAIT_SECONDS) as client,
            StateOperations(config, deadline_seconds=WAIT_SECONDS) as operations,
        ):
            (kept,) = operations.kept()
            assert (kept.job_id, kept.batch_id, kept.is_ahead) == ("flights", 1, False)
            assert kept.node_ids == ("node-1", "node-2")
            (adopted,) = operations.adopt(kept.control_id)
            assert adopted.batch_ids == {"aircraft": 1}
            assert (adopted.away_ids, adopted.lost_ids) == ((), ())
            assert operations.kept() == []
            assert client.get(*STATE, "N001") == {"delay": 4}
            assert len(client.get_many(*STATE, NAMES)) == len(NAMES)
            # The query goes on from its checkpoint, and a repeated batch is repeated.
            publish(config, 5, publisher)
            assert client.lookup(*STATE, "N001", min_batch_id=2).value == {"delay": 5}

    @pytest.mark.proves("W7")
    def test_what_was_taken_over_before_an_error_is_told(
        self, server: RestartedServer, config: HAConfig, tmp_path: Path
    ) -> None:
        """
        One job is there again, a node of the other is away: the error says both.

        It told of the node alone, as if nothing had been taken over.
        """
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=1, data_dir=tmp_path) as cluster,
        ):
            publish(config, 3)
            cluster.add_node()
            Publisher(config, "trains", {"late": AIRCRAFT}).write({"late": [("a", 1)]})
        server.restart()
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=1, data_dir=tmp_path),
            QueryableStateClient(config, deadline_seconds=WAIT_SECONDS) as client,
            StateOperations(config, deadline_seconds=5.0) as operations,
        ):
            kept = operations.kept()
            assert [one.job_id for one in kept] == ["flights", "trains"]
            began = time.monotonic()
            with pytest.raises(DidNotHappenError, match="node-2 of job trains") as told:
                operations.adopt(kept[0].control_id, timeout_seconds=6.0)
            assert time.monotonic() - began < 50.0  # as long as was said, for each job
            assert told.value.__notes__ == ["taken over before that: flights"]
            assert client.get(*STATE, "N001") == {"delay": 3}


class TestOlderCopy:
    """The data of the name service were restored from a backup (W7)."""

    @pytest.mark.proves("W7")
    def test_it_is_found_out_and_mended(self, tmp_path: Path) -> None:
        """Rows stay, every verb says what is wrong, and nodes know the rest."""
        data_dir, backup = tmp_path / "names", tmp_path / "names.backup"
        with closing(RestartedServer(data_dir)) as server:
            config = HAConfig(url=server.server.url, session_timeout_seconds=3.0)

            def cluster(ha: HAServices) -> LocalStateCluster:
                return LocalStateCluster(
                    ha, nodes=2, replicas=2, data_dir=tmp_path / "nodes"
                )

            with open_ha_services(config) as ha, cluster(ha):
                publisher = publish(config, 3)
            server.restart(lambda: shutil.copytree(data_dir, backup))
            with open_ha_services(config) as ha, cluster(ha):
                for delay in (4, 5):
                    publish(config, delay, publisher)

            def restore() -> None:
                shutil.rmtree(data_dir)
                shutil.copytree(backup, data_dir)

            server.restart(restore)
            with (
                open_ha_services(config) as ha,
                cluster(ha),
                QueryableStateClient(config, deadline_seconds=WAIT_SECONDS) as client,
                StateOperations(config, deadline_seconds=WAIT_SECONDS) as operations,
            ):
                for ask in (
                    lambda: client.get(*STATE, "N001"),
                    lambda: client.states("flights"),
                    lambda: operations.rescalings("flights"),
                    lambda: operations.drop_state(*STATE),
                    lambda: publish(config, 6, publisher),
                ):
                    with pytest.raises(StateUnavailableError, match="older than what"):
                        ask()
                (kept,) = operations.kept()
                assert kept.is_ahead
                preview = operations.preview_adoption("flights")
                assert (preview.known_sequence, preview.sequence) == (1, 3)
                assert preview.batch_ids == {"aircraft": 2}
                known_before = operations.kept()
                assert operations.adopt() == [preview]
                assert client.get(*STATE, "N001") == {"delay": 5}
                # Another operator, who had asked before that, has nothing left to do.
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(operations, "kept", lambda: known_before)
                    assert operations.adopt() == []
                publish(config, 6, publisher)
                assert client.lookup(*STATE, "N001", min_batch_id=3).batch_id == 3


class TestWarning:
    """Who publishes over a name service that forgets is told (W7)."""

    @pytest.mark.proves("W7")
    def test_proxy_driver_and_operator_know_it(
        self, server: RestartedServer, config: HAConfig
    ) -> None:
        """Once for each process, not for each batch."""
        with (
            capture_logs() as logs,
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=1),
            StateOperations(config, deadline_seconds=WAIT_SECONDS) as operations,
        ):
            publish(config, 4, publish(config, 3))
            operations.nodes()
            assert operations.is_volatile
        told = [log for log in logs if log["event"] == "name_service.volatile"]
        assert sorted(log["component"] for log in told) == [
            "query-proxy",
            "state-writer",
        ]
        assert all("lodestar adopt" in log["reason"] for log in told)

    def test_one_that_lasts_is_not_warned_of(self, tmp_path: Path) -> None:
        """Nor is one that ends with everybody who uses it."""
        with closing(RestartedServer(tmp_path)) as server:
            for url in (server.server.url, "embedded:"):
                with (
                    capture_logs() as logs,
                    open_ha_services(url) as ha,
                    LocalStateCluster(ha, nodes=1),
                ):
                    assert not forgets_at_restart(ha)
                assert "name_service.volatile" not in {log["event"] for log in logs}


class TestForgetting:
    @pytest.mark.proves("B4")
    def test_a_job_is_gone_and_can_be_begun_anew(
        self, config: HAConfig, tmp_path: Path
    ) -> None:
        """B4: records, rows, marks and fences; also on a node that was away."""
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=2, data_dir=tmp_path) as cluster,
            QueryableStateClient(config, deadline_seconds=WAIT_SECONDS) as client,
            StateOperations(config, deadline_seconds=WAIT_SECONDS) as operations,
        ):
            publish(config, 3)
            cluster.node("node-2").close()
            assert operations.forget_job("flights") == ("node-1", "node-2")
            with pytest.raises(UnknownJobError):
                client.states("flights")
            with pytest.raises(UnknownJobError):
                operations.forget_job("flights")
            node = NodeConfig(data_dir=tmp_path / "node-2", node_id="node-2")
            with StateNode(ha, node) as back:
                back.wait_until_registered(WAIT_SECONDS)
                publish(config, 4)
                assert client.get(*STATE, "N001") == {"delay": 4}
                assert operations.kept() == []
        for name in ("node-1", "node-2"):
            with StateStore.open(tmp_path / name / "rows-1") as store:
                assert set(store.positions().values()) == {1}
                assert len({query for _, query in store.fences()}) == 1

    @pytest.mark.proves("B4", "W7")
    def test_what_nodes_keep_aside_can_be_given_up(
        self, server: RestartedServer, config: HAConfig, tmp_path: Path
    ) -> None:
        """B4: the job is unknown then, and a query may begin it anew."""
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=1, data_dir=tmp_path),
        ):
            publish(config, 3)
        server.restart()
        with (
            open_ha_services(config) as ha,
            LocalStateCluster(ha, nodes=1, data_dir=tmp_path),
            QueryableStateClient(config, deadline_seconds=WAIT_SECONDS) as client,
            StateOperations(config, deadline_seconds=WAIT_SECONDS) as operations,
        ):
            assert operations.forget_job("flights") == ("node-1",)
            assert operations.kept() == []
            with pytest.raises(UnknownJobError):
                client.states("flights")
            publish(config, 4)
            assert client.get(*STATE, "N001") == {"delay": 4}
