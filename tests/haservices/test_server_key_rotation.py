"""The server's key is replaced while it runs: leaders lead on (N4, E1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from nameservice import AuthenticationError, ConfigurationError
from tests.leaks import assert_closed, process_figures, settled
from tests.recording import ConfirmingContender, RecordingListener, wait_until
from zmqtransport import CurveKeyPair, KeyFiles, write_key_pair


pytestmark = pytest.mark.shells

LEASE_SECONDS = 1.0
SESSION_TIMEOUT_SECONDS = 3.0
CLIENT_COUNT = 5


class Keys:
    """Key files of a server, its next ones, and those of one client."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.current = self._new("server")
        self.next = self._new("server-2")
        self.client = self._new("client")
        self.known = directory / "known.key"
        self.tell_clients(self.current)
        self.allow_list = directory / "clients.toml"
        public_key = self.client.public_file.read_text().split('"')[-2]
        self.allow_list.write_text(
            f'[clients.one]\npublic_key = "{public_key}"\nroles = ["admin"]\n'
        )

    def _new(self, name: str) -> KeyFiles:
        return write_key_pair(CurveKeyPair.generate(), self._directory / name)

    def tell_clients(self, *files: KeyFiles) -> None:
        """Put the public keys of *files* into the file that clients read."""
        text = "".join(each.public_file.read_text() for each in files)
        written = self._directory / "known.new"
        written.write_text(text)
        written.replace(self.known)

    def replace(self) -> None:
        """Put the next keys where the server reads its own."""
        self.next.secret_file.replace(self.current.secret_file)
        self.next.public_file.replace(self.current.public_file)

    def server_config(self) -> ServerConfig:
        """Return the configuration of a server that uses them."""
        return ServerConfig(
            bind="tcp://127.0.0.1:0",
            curve_public_key_file=self.current.public_file,
            curve_secret_key_file=self.current.secret_file,
            allow_list_file=self.allow_list,
        )

    def client_config(self, url: str) -> HAConfig:
        """Return the configuration of a client."""
        return HAConfig(
            url=url,
            lease_seconds=LEASE_SECONDS,
            session_timeout_seconds=SESSION_TIMEOUT_SECONDS,
            connect_timeout_seconds=2.0,
            curve_public_key_file=str(self.client.public_file),
            curve_secret_key_file=str(self.client.secret_file),
            curve_server_key_file=str(self.known),
        )


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Return key files."""
    return Keys(tmp_path)


def lead(ha: HAServices, job_id: str) -> ConfirmingContender:
    """Return a contender of *job_id* that leads."""
    election = ha.get_leader_election(job_id)
    contender = ConfirmingContender(election, f"host:{job_id}")
    election.start(contender)
    contender.wait_for_confirm()
    return contender


def figure(server: LeaderServer, name: str) -> int:
    """Return a figure of *server*."""
    return int(server.status().get(name, 0))


def lead_on(server: LeaderServer) -> None:
    """Return when a lease has been renewed several times over."""
    before = figure(server, "frames_heartbeat_total")
    wait_until(
        lambda: figure(server, "frames_heartbeat_total") >= before + 12 * CLIENT_COUNT
    )


class TestRotation:
    @pytest.mark.proves("N4", "E1")
    @pytest.mark.parametrize("round_count", [1, 3])
    def test_leaders_lead_on(self, keys: Keys, round_count: int) -> None:
        """N4, E1: who knows both keys is back within its lease, in its own session."""
        with LeaderServer(keys.server_config()) as server:
            config = keys.client_config(server.url)
            services = [open_ha_services(config) for _ in range(CLIENT_COUNT)]
            contenders = [lead(ha, f"job-{n}") for n, ha in enumerate(services)]
            listener = RecordingListener()
            services[0].get_leader_retriever("job-1").start(listener)
            listener.wait_for_leader(lambda leader: leader is not None)
            before = services[0].operations.leaders()
            epoch = before[1].epoch
            assert epoch is not None
            sessions = {s.session_id for s in services[0].operations.sessions()}
            assert len(before) == CLIENT_COUNT
            for number in range(round_count):
                if number:
                    keys.next = keys._new(f"server-{number + 2}")
                keys.tell_clients(keys.current, keys.next)
                keys.replace()
                assert server.reload()
                lead_on(server)
                keys.tell_clients(keys.current)
            wait_until(lambda: figure(server, "subscribers") == CLIENT_COUNT)
            wait_until(lambda: figure(server, "connections") == CLIENT_COUNT)
            assert services[0].operations.leaders() == before
            assert {s.session_id for s in services[0].operations.sessions()} == sessions
            assert all(len(c.granted) == 1 and not c.revoked_count for c in contenders)
            # Broadcasts arrive again, and are not only asked for.
            wait_until(
                lambda: services[0].operations.status().get("publisher_reached", 1) == 1
            )
            services[1].operations.revoke("job-1")
            listener.wait_for_latest(
                lambda leader: leader is not None and leader.epoch > epoch
            )
            for ha in services:
                ha.close()

    @pytest.mark.proves("N4")
    def test_who_knows_the_old_key_only_is_told_what_to_change(
        self, keys: Keys
    ) -> None:
        """N4: in time, by type, and naming what to write where."""
        with LeaderServer(keys.server_config()) as server:
            config = keys.client_config(server.url)
            keys.replace()
            assert server.reload()
            with pytest.raises(AuthenticationError, match="put its present one into"):
                open_ha_services(config)
            keys.tell_clients(keys.current)
            with open_ha_services(config) as ha:
                assert ha.operations.leaders() == []

    def test_a_key_may_be_told_while_a_client_is_away(self, keys: Keys) -> None:
        """N4: a running client reads the file again, and is back without a restart."""
        with (
            LeaderServer(keys.server_config()) as server,
            open_ha_services(keys.client_config(server.url)) as ha,
        ):
            contender = lead(ha, "job")
            keys.replace()
            assert server.reload()
            contender.wait_for_revoke()
            keys.tell_clients(keys.current)
            contender.wait_for_confirm(2)
            (leader,) = ha.operations.leaders()
            assert leader.epoch == contender.granted[1].epoch

    def test_a_file_that_cannot_be_read_changes_nothing(self, keys: Keys) -> None:
        """N4: neither the key nor the allow-list, whichever of them is broken."""
        with (
            LeaderServer(keys.server_config()) as server,
            open_ha_services(keys.client_config(server.url)) as ha,
        ):
            contender = lead(ha, "job")
            allowed = keys.allow_list.read_text()
            keys.allow_list.write_text(allowed.replace("admin", "observe"))
            keys.current.secret_file.chmod(0o644)
            with pytest.raises(ConfigurationError, match="chmod 600"):
                server.reload()
            keys.current.secret_file.chmod(0o600)
            keys.allow_list.write_text("[clients.one]\n")
            keys.replace()
            with pytest.raises(ConfigurationError, match="public_key"):
                server.reload()
            keys.allow_list.write_text(allowed)
            assert not contender.revoked_count
            with open_ha_services(keys.client_config(server.url)) as other:
                assert len(other.operations.leaders()) == 1

    def test_nothing_is_left_of_the_former_key(self, keys: Keys) -> None:
        """Neither a connection on the books nor a file descriptor (N3)."""
        with LeaderServer(keys.server_config()) as server:
            port = server.endpoint

            def rotate() -> None:
                keys.tell_clients(keys.current, keys.next)
                keys.replace()
                keys.next = keys._new(
                    f"server-{len(list(keys.known.parent.iterdir()))}"
                )
                assert server.reload()

            with open_ha_services(keys.client_config(server.url)):
                rotate()
                wait_until(lambda: figure(server, "connections") == 1)
            wait_until(lambda: figure(server, "connections") == 0)
            before = settled(process_figures)
            for _ in range(10):
                with open_ha_services(keys.client_config(server.url)):
                    rotate()
            wait_until(lambda: figure(server, "connections") == 0)
            wait_until(lambda: figure(server, "subscribers") == 0)
            assert_closed(before)
            assert server.endpoint == port
            assert server._running is not None
            assert len(server._running._port.peers) == 0
