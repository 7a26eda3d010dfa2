from __future__ import annotations

import subprocess
import sys

import pytest

from haservices import Guarantee, HAConfig, campaign
from haservices.factory import open_ha_services
from haservices.testing import LeaderServer, ServerConfig
from nameservice import ConfigurationError, UnreachableError


class TestOpenHAServices:
    def test_takes_a_configuration_or_a_url_alone(self) -> None:
        """A URL alone means the defaults for everything else."""
        config = HAConfig(url="embedded:", cluster_id="prod")
        with open_ha_services(config) as ha:
            assert ha.config is config
        with open_ha_services("embedded:") as ha:
            assert ha.config == HAConfig(url="embedded:")

    def test_services_of_one_name_share_one_name_service(self) -> None:
        """`embedded:NAME` is shared by all services of that name in this process."""
        with (
            open_ha_services("embedded:shared") as one,
            open_ha_services("embedded:shared") as same,
            open_ha_services("embedded:other") as other,
            campaign(one, "job", "a:1", timeout_seconds=30.0) as leadership,
            same.get_leader_retriever("job") as retriever,
        ):
            assert retriever.wait_for_leader(30.0).epoch == leadership.epoch
            assert list(other.operations.leaders()) == []

    def test_nameless_services_are_private(self) -> None:
        """`embedded:` alone is not shared."""
        with (
            open_ha_services("embedded:") as one,
            open_ha_services("embedded:") as other,
            campaign(one, "job", "a:1", timeout_seconds=30.0),
        ):
            assert list(other.operations.leaders()) == []

    @pytest.mark.shells
    def test_switching_is_one_line(self) -> None:
        """The same program runs on another backend when its URL is another."""

        def program(url: str) -> str:
            with (
                open_ha_services(url) as ha,
                campaign(ha, "job", "a:1", timeout_seconds=30.0),
                ha.get_leader_retriever("job") as retriever,
            ):
                return retriever.wait_for_leader(30.0).address

        assert program("embedded:") == "a:1"
        with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
            assert program(server.url) == "a:1"

    @pytest.mark.parametrize("url", ["", "localhost", "etcd://h:1", "embedded:a/b"])
    def test_what_names_no_name_service_is_refused(self, url: str) -> None:
        """L4: unknown schemes and malformed URLs are errors that say what to change."""
        with pytest.raises(ConfigurationError):
            open_ha_services(url)

    @pytest.mark.shells
    @pytest.mark.parametrize("scheme", ["leaderserver", "zookeeper"])
    def test_scheme_decides_the_backend(self, scheme: str) -> None:
        """Each scheme leads to its own backend, which says whom it did not reach."""
        config = HAConfig(url=f"{scheme}://127.0.0.1:1", connect_timeout_seconds=0.2)
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
            open_ha_services(config)

    def test_guarantees_are_members_of_the_enum(self) -> None:
        """What a backend promises has a name that documentation can list."""
        with open_ha_services("embedded:") as ha:
            assert ha.guarantees <= set(Guarantee)

    def test_only_the_backend_that_is_used_is_imported(self) -> None:
        """A program without ZooKeeper loads no kazoo, and the interface no zmq."""
        program = (
            "import sys, haservices\n"
            "assert not {'zmq', 'kazoo', 'pyspark'} & set(sys.modules)\n"
            "haservices.open_ha_services('embedded:').close()\n"
            "assert not {'kazoo', 'pyspark'} & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
