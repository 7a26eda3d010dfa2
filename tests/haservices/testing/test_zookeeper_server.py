from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from haservices.testing.zookeeper_ensemble import ZooKeeperEnsemble
from haservices.testing.zookeeper_server import ZooKeeperServer, ZooKeeperServerTLS
from nameservice import ConfigurationError, LocalProtocolError, UnreachableError


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 60.0
TLS_DIRECTORY = Path(__file__).parents[1] / "tls"


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """Return a server that each test leaves running."""
    with ZooKeeperServer() as server:
        yield server


def wait_for_death(pid: int) -> None:
    """Return when the process *pid*, which need not be our child, is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        readable, _, _ = select.select([descriptor], [], [], TIMEOUT_SECONDS)
    finally:
        os.close(descriptor)
    assert readable


def client_of(address: str, **settings: object) -> KazooClient:
    """Return a started client with a session of its own."""
    client = KazooClient(hosts=address, timeout=10.0, **settings)
    client.start(timeout=TIMEOUT_SECONDS)
    return client


def end(client: KazooClient) -> None:
    """End the session of *client*, and release its sockets."""
    client.stop()
    client.close()


class TestServer:
    """One real ZooKeeper."""

    def test_it_serves_and_says_where(self, server: ZooKeeperServer) -> None:
        """A started server answers clients and four-letter words at its URL."""
        assert server.url == f"zookeeper://127.0.0.1:{server.port}"
        assert "zk_version" in server.ask("mntr")
        client = client_of(server.address)
        try:
            client.create("/served", b"value")
            assert client.get("/served")[0] == b"value"
        finally:
            end(client)

    def test_data_and_port_survive_restart_and_kill(
        self, server: ZooKeeperServer
    ) -> None:
        """What was written is there again, in the same place, after any end."""
        client = client_of(server.address)
        try:
            client.create("/kept", b"value")
        finally:
            end(client)
        address = server.address
        pid = server.pid
        server.restart()
        assert server.address == address
        assert server.pid != pid
        server.kill()
        assert not server.is_running
        server.start()
        client = client_of(address)
        try:
            assert client.get("/kept")[0] == b"value"
        finally:
            end(client)

    def test_a_paused_server_is_silent_and_goes_on(
        self, server: ZooKeeperServer
    ) -> None:
        """Paused, it accepts and does not answer; resumed, it answers what waited."""
        server.pause()
        try:
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(b"ruok")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(4)
                server.resume()
                connection.settimeout(TIMEOUT_SECONDS)
                assert connection.recv(4) == b"imok"
        finally:
            server.resume()

    def test_short_sessions_are_admitted(self, server: ZooKeeperServer) -> None:
        """The limits of a session are the ones asked for, not twenty ticks."""
        configuration = dict(
            line.split("=", 1)
            for line in server.ask("conf").splitlines()
            if "=" in line
        )
        assert configuration["minSessionTimeout"] == "200"
        assert configuration["maxSessionTimeout"] == "60000"

    def test_a_second_start_is_refused(self, server: ZooKeeperServer) -> None:
        """Starting what runs is the caller's mistake, and does no harm."""
        with pytest.raises(LocalProtocolError):
            server.start()
        assert server.is_running

    def test_nothing_is_left_of_a_temporary_one(self) -> None:
        """Closing ends the process, frees the port and removes the directory."""
        with ZooKeeperServer() as server:
            pid = server.pid
            directory = server.directory
        server.close()
        wait_for_death(pid)
        assert not directory.exists()
        with socket.create_server(("127.0.0.1", server.port)):
            pass

    def test_a_directory_of_the_callers_is_kept(self, tmp_path: Path) -> None:
        """With a data directory, the data outlives the object."""
        created = []
        for _ in range(2):
            with ZooKeeperServer(tmp_path) as server:
                client = client_of(server.address)
                try:
                    client.ensure_path("/kept")
                    created.append(client.create("/kept/n-", sequence=True))
                finally:
                    end(client)
        assert created == ["/kept/n-0000000000", "/kept/n-0000000001"]

    def test_a_failed_start_shows_the_output(self) -> None:
        """The error carries what the server said before it ended."""
        server = ZooKeeperServer(settings={"tickTime": "soon"})
        try:
            with pytest.raises(UnreachableError, match="soon"):
                server.start()
            assert not server.is_running
        finally:
            server.close()

    def test_options_of_its_jvm_may_stand_in_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are read as a shell reads them, as zkServer.sh does, and come first."""
        flags = "-Dtests.words='two words' -Dtests.own=0"
        monkeypatch.setenv("SERVER_JVMFLAGS", flags)
        with ZooKeeperServer(java_options=("-Dtests.own=1",)) as server:
            command = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
        options = [word for word in command if word.startswith("-Dtests.")]
        assert options == ["-Dtests.words=two words", "-Dtests.own=0", "-Dtests.own=1"]

    def test_options_in_the_environment_that_are_none_are_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error names the variable; an option that Java lacks is in the output."""
        monkeypatch.setenv("SERVER_JVMFLAGS", "-Dopen='quote")
        with pytest.raises(ConfigurationError, match=r"SERVER_JVMFLAGS.*quot"):
            ZooKeeperServer()
        monkeypatch.setenv("SERVER_JVMFLAGS", "-XX:+NoSuchOption")
        server = ZooKeeperServer()
        try:
            with pytest.raises(UnreachableError, match="NoSuchOption"):
                server.start()
        finally:
            server.close()

    def test_no_java_is_said_with_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Without Java the error names a package, or the setting that is wrong."""
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(ConfigurationError, match="JAVA_HOME"):
            ZooKeeperServer()
        monkeypatch.delenv("JAVA_HOME")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigurationError, match="install it"):
            ZooKeeperServer()

    def test_no_pyspark_is_said_with_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without pyspark the error names the extra that brings it."""
        monkeypatch.delitem(sys.modules, "pyspark", raising=False)
        monkeypatch.setattr(sys, "path", [])
        with pytest.raises(ConfigurationError, match=r"lodestar\[spark\]"):
            ZooKeeperServer()

    def test_pyspark_is_not_imported(self) -> None:
        """Its jars are found without the seconds that importing it costs."""
        program = (
            "import sys; from haservices.testing import ZooKeeperServer; "
            "ZooKeeperServer().close(); sys.exit('pyspark' in sys.modules)"
        )
        assert (
            subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
        )


class TestParentsDeath:
    """What becomes of the JVM when the process that started it is gone."""

    PROGRAM = textwrap.dedent(
        """
        import sys, threading
        from haservices.testing.zookeeper_server import ZooKeeperServer
        server = ZooKeeperServer(sys.argv[1])
        starter = threading.Thread(target=server.start)
        starter.start()
        starter.join()
        print(server.pid, flush=True)
        sys.stdin.read()
        """
    )

    def test_it_dies_with_its_parent(self, tmp_path: Path) -> None:
        """SIGKILL of the parent takes the JVM along; the end of a thread does not."""
        with subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            os.kill(pid, 0)  # the thread that started it has ended, and it lives
            parent.kill()
        wait_for_death(pid)

    def test_it_dies_with_its_guard(self) -> None:
        """Killing the guard in between leaves no JVM either."""
        with ZooKeeperServer() as server:
            pid = server.pid
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            guard = next(
                int(line.split()[1])
                for line in status.splitlines()
                if line.startswith("PPid:")
            )
            os.kill(guard, signal.SIGKILL)
            wait_for_death(pid)


class TestTLS:
    """A server that offers TLS beside its plain port."""

    @pytest.fixture
    def tls_server(self) -> Iterator[ZooKeeperServer]:
        """Return a server that asks its clients for a certificate."""
        tls = ZooKeeperServerTLS(
            key_store_file=str(TLS_DIRECTORY / "server.pem"),
            trust_store_file=str(TLS_DIRECTORY / "ca.pem"),
            wants_client_certificate=True,
        )
        with ZooKeeperServer(tls=tls) as server:
            yield server

    def test_it_serves_those_with_a_certificate(
        self, tls_server: ZooKeeperServer
    ) -> None:
        """A client of the test authority reads and writes over TLS."""
        client = client_of(
            tls_server.tls_url.removeprefix("zookeeper://"),
            use_ssl=True,
            ca=str(TLS_DIRECTORY / "ca.pem"),
            certfile=str(TLS_DIRECTORY / "client_certificate.pem"),
            keyfile=str(TLS_DIRECTORY / "client_key.pem"),
        )
        try:
            with pytest.raises(NoNodeError):
                client.get("/nothing")
        finally:
            end(client)


class TestEnsemble:
    """Three real servers."""

    @pytest.fixture
    def ensemble(self) -> Iterator[ZooKeeperEnsemble]:
        """Return an ensemble of three that serves."""
        with ZooKeeperEnsemble() as ensemble:
            yield ensemble

    def test_it_has_one_leader_and_all_see_what_one_wrote(
        self, ensemble: ZooKeeperEnsemble
    ) -> None:
        """The members are one ensemble, known by one URL."""
        modes = sorted(ensemble.mode(index) for index in range(3))
        assert modes == ["follower", "follower", "leader"]
        assert ensemble.url.count(",") == 2
        leader = ensemble.leader_index()
        writer = client_of(ensemble.members[leader].address)
        reader = client_of(ensemble.members[(leader + 1) % 3].address)
        try:
            writer.create("/written", b"value")
            reader.sync("/written")
            assert reader.get("/written")[0] == b"value"
        finally:
            end(writer)
            end(reader)

    @pytest.mark.nightly
    def test_a_follower_that_is_cut_off_still_serves_its_clients_reads(
        self, ensemble: ZooKeeperEnsemble
    ) -> None:
        """Its client's connection stands, reads succeed, and a write waits."""
        follower = (ensemble.leader_index() + 1) % 3
        client = client_of(ensemble.members[follower].address)
        try:
            client.create("/before", b"value")
            ensemble.cut(follower)
            assert client.get("/before")[0] == b"value"
            writing = client.create_async("/during")
            writing.wait(0.3)
            assert not writing.ready()
            ensemble.heal(follower)
            assert writing.get(timeout=TIMEOUT_SECONDS) == "/during"
        finally:
            end(client)

    @pytest.mark.nightly
    def test_the_others_replace_a_leader_that_is_cut_off(
        self, ensemble: ZooKeeperEnsemble
    ) -> None:
        """No traffic passes by the proxies: the rest elects another leader."""
        cut_off = ensemble.leader_index()
        ensemble.cut(cut_off)
        other = client_of(ensemble.members[(cut_off + 1) % 3].address)
        try:
            other.create("/after", b"value")  # waits for the new leader
        finally:
            end(other)
        assert ensemble.leader_index() != cut_off
        ensemble.heal(cut_off)
        ensemble.members[cut_off].wait_until_serving()
        assert ensemble.mode(cut_off) == "follower"

    @pytest.mark.nightly
    def test_it_outlives_the_death_of_one_member(
        self, ensemble: ZooKeeperEnsemble
    ) -> None:
        """Two of three are a quorum; the third joins again with its data."""
        dead = ensemble.leader_index()
        ensemble.members[dead].kill()
        client = client_of(ensemble.url.removeprefix("zookeeper://"))
        try:
            client.create("/survived", b"value")
        finally:
            end(client)
        ensemble.members[dead].start()
        client = client_of(ensemble.members[dead].address)
        try:
            client.sync("/survived")
            assert client.get("/survived")[0] == b"value"
        finally:
            end(client)
