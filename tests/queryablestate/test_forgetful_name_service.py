"""A name service that comes back with an empty store: rows are not forgotten (W7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from queryablestate import (
    QueryableStateClient,
    StateUnavailableError,
    UnknownJobError,
)
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.recording import WAIT_SECONDS


pytestmark = pytest.mark.shells

SCHEMA: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("delay", AtomicType.INT),),
)
STATE: Final = ("flights", "aircraft")
NAMES: Final = tuple(f"N{number:03}" for number in range(100))


class ForgetfulServer:
    """A LeaderServer without a data directory, on ports that stay its own."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        request, publish = (
            self._resources.enter_context(closing(ReservedPort())) for _ in range(2)
        )
        self._config = ServerConfig(
            bind=f"tcp://127.0.0.1:{request.port}",
            publish_bind=f"tcp://127.0.0.1:{publish.port}",
            lease_seconds_max=0.5,
            lease_seconds_unrecorded_max=0.5,
        )
        self.server = LeaderServer(self._config)
        self.server.start()

    def restart(self) -> None:
        """Come back where it was, knowing nothing."""
        self.server.close()
        self.server = LeaderServer(self._config)
        self.server.start()

    def close(self) -> None:
        """Close the server, and let its ports go."""
        self.server.close()
        self._resources.close()


@pytest.fixture
def server() -> Iterator[ForgetfulServer]:
    """Return a name service that forgets at each restart."""
    with closing(ForgetfulServer()) as running:
        yield running


@pytest.fixture
def config(server: ForgetfulServer) -> HAConfig:
    """Return how to reach it."""
    return HAConfig(url=server.server.url, session_timeout_seconds=3.0)


def publish(
    config: HAConfig, delay: int, publisher: Publisher | None = None
) -> Publisher:
    """Write the same delay for every aircraft."""
    if publisher is None:
        publisher = Publisher(config, "flights", {"aircraft": SCHEMA})
    publisher.write({"aircraft": [(name, delay) for name in NAMES]})
    return publisher


class TestRowsThatNodesKeep:
    @pytest.mark.proves("W7")
    def test_a_job_is_unavailable_and_not_unknown(
        self, server: ForgetfulServer, config: HAConfig, tmp_path: Path
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
        self, server: ForgetfulServer, config: HAConfig, tmp_path: Path
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
