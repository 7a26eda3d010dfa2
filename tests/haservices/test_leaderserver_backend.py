"""What only the LeaderServer backend does; the contract is the conformance suite's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haservices import Guarantee, HAConfig, open_ha_services
from haservices.leaderserver_backend import LEADERSERVER_GUARANTEES, open_leaderserver
from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from leaderserver.client.client import LeaderClient
from leaderserver.client.link import SocketLink
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    UnreachableError,
)
from tests.exhausted_threads import no_more_threads
from tests.leaks import assert_closed, process_figures, settled
from tests.recording import (
    WAIT_SECONDS,
    ConfirmingContender,
    RecordingContender,
    Revoked,
)
from zmqtransport import CurveKeyPair, KeyFiles, write_key_pair


pytestmark = pytest.mark.shells

ANY_PORT = "tcp://127.0.0.1:0"


class Keys:
    """Key files of a server and one client, and the allow-list."""

    def __init__(self, directory: Path) -> None:
        self.server, self.client = (
            write_key_pair(CurveKeyPair.generate(), directory / name)
            for name in ("server", "client")
        )
        self.allow_list = directory / "clients.toml"
        public_key = self.client.public_file.read_text().split('"')[-2]
        self.allow_list.write_text(
            f'[clients.one]\npublic_key = "{public_key}"\nroles = ["contend:*"]\n'
        )

    def server_config(self) -> ServerConfig:
        """Return the configuration of a server that uses them."""
        return ServerConfig(
            bind=ANY_PORT,
            curve_public_key_file=self.server.public_file,
            curve_secret_key_file=self.server.secret_file,
            allow_list_file=self.allow_list,
        )

    def client_config(
        self, url: str, *, own: KeyFiles | None = None, server: KeyFiles | None = None
    ) -> HAConfig:
        """Return the configuration of a client; other keys are wrong ones."""
        own = self.client if own is None else own
        server = self.server if server is None else server
        return HAConfig(
            url=url,
            connect_timeout_seconds=2.0,
            curve_public_key_file=str(own.public_file),
            curve_secret_key_file=str(own.secret_file),
            curve_server_key_file=str(server.public_file),
        )


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Return key files."""
    return Keys(tmp_path)


@pytest.fixture
def server() -> Iterator[LeaderServer]:
    """Yield a server without CURVE and without a data directory."""
    with LeaderServer(ServerConfig(bind=ANY_PORT)) as running:
        yield running


class TestGuarantees:
    def test_they_are_what_the_server_says_of_itself(
        self, server: LeaderServer, tmp_path: Path, keys: Keys
    ) -> None:
        """A data directory and CURVE add to them, and nothing else does."""
        with open_ha_services(server.url) as ha:
            assert ha.guarantees == LEADERSERVER_GUARANTEES
        config = ServerConfig(bind=ANY_PORT, data_dir=tmp_path / "data")
        with LeaderServer(config) as durable, open_ha_services(durable.url) as ha:
            assert ha.guarantees - LEADERSERVER_GUARANTEES == {
                Guarantee.SURVIVES_SERVER_RESTART
            }
        with (
            LeaderServer(keys.server_config()) as secured,
            open_ha_services(keys.client_config(secured.url)) as ha,
        ):
            assert ha.guarantees - LEADERSERVER_GUARANTEES == {Guarantee.ENCRYPTED}


class TestOpening:
    def test_a_client_says_who_it_is(self, server: LeaderServer) -> None:
        """Operators read program, process and machine (N6)."""
        with open_ha_services(server.url) as ha:
            (session,) = ha.operations.sessions()
            assert f"[{os.getpid()}]@" in session.client

    def test_wrong_keys_are_refused_in_time(self, keys: Keys, tmp_path: Path) -> None:
        """A key that is not listed, and a server's key that is not its own (N4)."""
        other = write_key_pair(CurveKeyPair.generate(), tmp_path / "other")
        with LeaderServer(keys.server_config()) as server:
            for config in (
                keys.client_config(server.url, own=other),
                keys.client_config(server.url, server=other),
                HAConfig(url=server.url, connect_timeout_seconds=2.0),
            ):
                with pytest.raises(AuthenticationError, match="refused access"):
                    open_ha_services(config)

    def test_keys_that_cannot_be_read_are_named(
        self, keys: Keys, server: LeaderServer
    ) -> None:
        """Before anything is sent, and saying which file it is."""
        keys.client.secret_file.chmod(0o644)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            open_ha_services(keys.client_config(server.url))

    def test_a_full_server_says_so(self) -> None:
        """At once: retrying is safe, and waiting would not help (N3)."""
        config = ServerConfig(bind=ANY_PORT, sessions_max=1)
        with (
            LeaderServer(config) as full,
            open_ha_services(full.url),
            pytest.raises(DidNotHappenError, match="as many sessions"),
        ):
            open_ha_services(full.url)

    def test_a_failed_opening_leaves_nothing(self, reserved: ReservedPort) -> None:
        """Neither thread nor file descriptor, however it failed."""
        nobody = HAConfig(
            url=f"leaderserver://127.0.0.1:{reserved.port}", connect_timeout_seconds=0.1
        )
        with pytest.raises(UnreachableError):
            open_leaderserver(nobody)
        before = settled(process_figures)
        for _ in range(2):
            with pytest.raises(UnreachableError):
                open_leaderserver(nobody)
        assert_closed(before)

    def test_a_process_that_may_have_no_more_threads_is_told_so(
        self, server: LeaderServer
    ) -> None:
        """E8: at once, and nothing is left; it hung where it closed what it had."""
        config = HAConfig(url=server.url, connect_timeout_seconds=0.1)
        with open_leaderserver(config):
            pass
        before = settled(process_figures)
        with (
            no_more_threads("leaderserver-client"),
            pytest.raises(RuntimeError, match="new thread"),
        ):
            open_leaderserver(config)
        assert_closed(before)


class TestMiddlebox:
    @pytest.mark.proves("E9")
    def test_a_leader_comes_back_in_time_where_something_accepts_for_the_server(
        self, tmp_path: Path, reserved: ReservedPort
    ) -> None:
        """E9: a load balancer that accepts and closes does not make a leader late."""
        config = ServerConfig(
            bind=f"tcp://127.0.0.1:{reserved.port}", data_dir=tmp_path / "data"
        )
        with LeaderServer(config) as server:
            url = server.url
            services = open_ha_services(url)
            election = services.get_leader_election("job")
            contender = ConfirmingContender(election, "tcp://10.0.0.1:1")
            election.start(contender)
            session = contender.wait_for_confirm()
        with reserved.listen() as middlebox:
            middlebox.settimeout(WAIT_SECONDS)
            for _ in range(8):
                connection, _ = middlebox.accept()
                connection.close()
        with (
            LeaderServer(config),
            open_ha_services(url) as others,
            services,
        ):
            retriever = others.get_leader_retriever("job")
            retriever.start()
            leader = retriever.wait_for_leader(WAIT_SECONDS)
            assert leader.epoch == session.epoch
            assert not contender.revoked_count
            election.close()


@pytest.mark.proves("L4")
def test_services_whose_loop_is_lost_can_be_closed(server: LeaderServer) -> None:
    """L4: each of them ends, and the error is told; nothing stays that waits."""
    ha = open_leaderserver(HAConfig(url=server.url))
    contender = RecordingContender()
    ha.get_leader_retriever("job").start()
    election = ha.get_leader_election("job")
    election.start(contender)
    contender.wait_for_grant()
    link = ha._client._link
    assert isinstance(link, SocketLink)
    link.loop.call_soon_threadsafe(lambda: link.loop.fail(OSError("lost")))
    link.loop.join()
    for _ in range(2):  # of the retriever, and of the session
        with pytest.raises(LocalProtocolError):
            ha.close()
    ha.close()
    assert isinstance(contender.calls[-1], Revoked)


@pytest.mark.proves("E6")
def test_a_grant_that_comes_before_the_start_has_returned_can_be_confirmed(
    server: LeaderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: the thread that starts an election may be held up for longer than a grant."""
    with open_ha_services(server.url) as ha:
        election = ha.get_leader_election("job")
        contender = ConfirmingContender(election, "host:1")
        enter = LeaderClient.add_contender

        def enter_and_wait(*args: Any, **kwargs: Any) -> None:
            enter(*args, **kwargs)
            contender.wait_for_confirm(1)

        monkeypatch.setattr(LeaderClient, "add_contender", enter_and_wait)
        election.start(contender)
        assert election.has_leadership(contender.granted[0].leader_session_id)
        assert not contender.revoked_count
        election.close()
