"""Who is admitted, whom we trust, and what is said when there is no answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from haservices import Guarantee, HAConfig, HAServices, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from haservices.testing.tcp_proxy import TCPProxy
from haservices.testing.zookeeper_server import ZooKeeperServer, ZooKeeperServerTLS
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    UnreachableError,
)
from tests.recording import (
    WAIT_SECONDS,
    ConfirmingContender,
    RecordingContender,
    wait_until,
)


pytestmark = pytest.mark.shells

JOB = "flights"
TLS_DIRECTORY = Path(__file__).parents[1] / "tls"

Open = Callable[..., HAServices]


@pytest.fixture
def opening(zookeeper_url: str) -> Iterator[Open]:
    """Return what opens services of one chroot; all are closed in the end."""
    with contextlib.ExitStack() as resources:

        def open_services(**settings: Any) -> HAServices:
            config = HAConfig(**({"url": zookeeper_url} | settings))
            return resources.enter_context(open_ha_services(config))

        yield open_services


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    """Return a file with good credentials."""
    return write_auth_file(tmp_path / "auth", "digest:alice:secret\n")


@pytest.fixture(scope="module")
def tls_server() -> Iterator[ZooKeeperServer]:
    """Return a server that wants to see a certificate."""
    tls = ZooKeeperServerTLS(
        key_store_file=str(TLS_DIRECTORY / "server.pem"),
        trust_store_file=str(TLS_DIRECTORY / "ca.pem"),
        wants_client_certificate=True,
    )
    with ZooKeeperServer(tls=tls) as server:
        yield server


def write_auth_file(path: Path, text: str, *, mode: int = 0o600) -> Path:
    """Write *text* to *path*, which only its owner may read."""
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


class TestCredentials:
    """``zookeeper_auth_file``: who has them leads, everybody else may look."""

    def test_with_the_same_credentials_all_goes_on_as_without(
        self, opening: Open, auth_file: Path
    ) -> None:
        """E1, L1: two processes with the credentials contend and write in turn."""
        settings = {"zookeeper_auth_file": str(auth_file)}
        first, second = opening(**settings), opening(**settings)
        election = first.get_leader_election(JOB)
        contender = ConfirmingContender(election, "a:1")
        election.start(contender)
        session = contender.wait_for_confirm()
        first.get_leader_store(JOB).put("a", b"1", session=session)
        successor = second.get_leader_election(JOB)
        following = ConfirmingContender(successor, "b:1")
        successor.start(following)
        wait_until(lambda: len(election.contenders()) == 2)
        second.operations.revoke(JOB)
        session = following.wait_for_confirm()
        second.get_leader_store(JOB).put("a", b"2", session=session, version=1)

    @pytest.mark.proves("R6")
    def test_without_them_one_may_look_and_nothing_else(
        self, opening: Open, auth_file: Path
    ) -> None:
        """R6: retrieving needs no right to contend; what needs one says so."""
        leading = opening(zookeeper_auth_file=str(auth_file))
        election = leading.get_leader_election(JOB)
        contender = ConfirmingContender(election, "a:1")
        election.start(contender)
        session = contender.wait_for_confirm()
        leading.get_leader_store(JOB).put("a", b"1", session=session)
        looking = opening()
        with looking.get_leader_retriever(JOB) as retriever:
            assert retriever.wait_for_leader(WAIT_SECONDS).address == "a:1"
        assert looking.get_leader_store(JOB).list() == ["a"]
        assert len(looking.operations.contenders(JOB)) == 1
        with pytest.raises(AuthenticationError):
            looking.operations.revoke(JOB)
        with pytest.raises(AuthenticationError):
            looking.cleanup(JOB)
        for job_id in (JOB, "another-job"):
            refused = RecordingContender()
            looking.get_leader_election(job_id).start(refused)
            assert isinstance(refused.wait_for_error(), AuthenticationError)
            assert refused.granted == ()
        assert contender.revoked_count == 0

    def test_other_credentials_are_refused(
        self, opening: Open, auth_file: Path, tmp_path: Path
    ) -> None:
        """E8: a contender that may not register is told why; it does not just wait."""
        leading = opening(zookeeper_auth_file=str(auth_file))
        election = leading.get_leader_election(JOB)
        contender = ConfirmingContender(election, "a:1")
        election.start(contender)
        contender.wait_for_confirm()
        mallory = write_auth_file(tmp_path / "mallory", "digest:mallory:guess")
        refused = RecordingContender()
        opening(zookeeper_auth_file=str(mallory)).get_leader_election(JOB).start(
            refused
        )
        assert isinstance(refused.wait_for_error(), AuthenticationError)

    def test_a_scheme_that_the_server_does_not_know_is_refused_at_once(
        self, opening: Open, tmp_path: Path
    ) -> None:
        """L4: somebody answered, and refused us: that is not unreachable."""
        path = write_auth_file(tmp_path / "auth", "no-such-scheme:credential")
        with pytest.raises(AuthenticationError):
            opening(zookeeper_auth_file=str(path))

    @pytest.mark.parametrize(
        ("text", "mode", "said"),
        [
            ("digest:alice:secret", 0o644, "chmod 600"),
            ("digest", 0o600, "scheme:credential"),
            (":alice:secret", 0o600, "scheme:credential"),
            ("digest:", 0o600, "scheme:credential"),
            ("digest:alice:secret\ndigest:bob:secret", 0o600, "one line"),
            ("", 0o600, "scheme:credential"),
        ],
    )
    def test_a_file_that_will_not_do_is_a_setting_to_change(
        self, opening: Open, tmp_path: Path, text: str, mode: int, said: str
    ) -> None:
        """L4: the error says what to change, and does not show the secret."""
        path = write_auth_file(tmp_path / "auth", text, mode=mode)
        with pytest.raises(ConfigurationError, match=said) as caught:
            opening(zookeeper_auth_file=str(path))
        assert "secret" not in str(caught.value)

    def test_a_file_that_is_not_there_is_a_setting_to_change(
        self, opening: Open, tmp_path: Path
    ) -> None:
        """L4: the error names the setting and the file."""
        path = tmp_path / "missing"
        with pytest.raises(ConfigurationError, match=r"zookeeper_auth_file.*missing"):
            opening(zookeeper_auth_file=str(path))


class TestTLS:
    """``zookeeper_tls_*``."""

    @staticmethod
    def settings(server: ZooKeeperServer) -> dict[str, Any]:
        """Return what a client needs."""
        return {
            "url": server.tls_url,
            "zookeeper_tls_ca_file": str(TLS_DIRECTORY / "ca.pem"),
            "zookeeper_tls_cert_file": str(TLS_DIRECTORY / "client_certificate.pem"),
            "zookeeper_tls_key_file": str(TLS_DIRECTORY / "client_key.pem"),
        }

    def test_everything_works_over_tls(
        self, opening: Open, tls_server: ZooKeeperServer
    ) -> None:
        """Leading, writing 1,000,000 bytes, finding and asking; and it says so."""
        ha = opening(**self.settings(tls_server))
        assert Guarantee.ENCRYPTED in ha.guarantees
        election = ha.get_leader_election(JOB)
        contender = ConfirmingContender(election, "a:1")
        election.start(contender)
        session = contender.wait_for_confirm()
        value = bytes(range(250)) * 4_000
        ha.get_leader_store(JOB).put("a", value, session=session)
        other = opening(**self.settings(tls_server))
        stored = other.get_leader_store(JOB).get("a")
        assert stored is not None
        assert stored.value == value
        with other.get_leader_retriever(JOB) as retriever:
            assert retriever.wait_for_leader(WAIT_SECONDS).epoch == session.epoch
        assert other.operations.status()["zk_server_state"] == "standalone"

    def test_a_client_without_a_certificate_gets_nowhere(
        self, opening: Open, tls_server: ZooKeeperServer
    ) -> None:
        """The server's refusal ends in an error within the connect timeout."""
        with pytest.raises(UnreachableError):
            opening(
                url=tls_server.tls_url,
                zookeeper_tls_ca_file=str(TLS_DIRECTORY / "ca.pem"),
                connect_timeout_seconds=1.0,
            )

    def test_a_server_of_another_authority_is_not_trusted(
        self, opening: Open, tls_server: ZooKeeperServer
    ) -> None:
        """What the machine trusts otherwise plays no part; the error says why."""
        settings = self.settings(tls_server) | {
            "zookeeper_tls_ca_file": str(TLS_DIRECTORY / "client_certificate.pem"),
            "connect_timeout_seconds": 1.0,
        }
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            opening(**settings)

    def test_a_server_of_another_name_is_not_trusted(
        self, opening: Open, tls_server: ZooKeeperServer
    ) -> None:
        """A certificate of the right authority for another host will not do."""
        with TCPProxy(
            int(tls_server.tls_url.rpartition(":")[2]), host="127.0.0.2"
        ) as proxy:
            settings = self.settings(tls_server) | {
                "url": f"zookeeper://{proxy.address}",
                "connect_timeout_seconds": 1.0,
            }
            with pytest.raises(UnreachableError, match="not valid for"):
                opening(**settings)

    def test_files_that_will_not_do_are_settings_to_change(
        self, opening: Open, zookeeper_url: str, tmp_path: Path
    ) -> None:
        """L4: missing, or no certificate: raised before anything is sent."""
        rubbish = tmp_path / "rubbish.pem"
        rubbish.write_text("rubbish", encoding="utf-8")
        for path in (rubbish, tmp_path / "missing.pem"):
            with pytest.raises(ConfigurationError, match="zookeeper_tls"):
                opening(zookeeper_tls_ca_file=str(path))

    def test_plain_text_to_a_tls_port_gets_nowhere(
        self, opening: Open, tls_server: ZooKeeperServer
    ) -> None:
        """Forgetting the settings is an error within the connect timeout."""
        with pytest.raises(UnreachableError):
            opening(url=tls_server.tls_url, connect_timeout_seconds=1.0)


class TestReachability:
    """Opening, where servers are missing."""

    def test_nobody_there_is_said_with_what_was_tried(self, opening: Open) -> None:
        """L4: the URL, how long, and what was seen, within the connect timeout."""
        with ReservedPort() as nobody:
            began = time.monotonic()
            with pytest.raises(UnreachableError, match="nothing listens at") as caught:
                opening(
                    url=f"zookeeper://127.0.0.1:{nobody.port}",
                    connect_timeout_seconds=0.5,
                )
            assert time.monotonic() - began < 10.0
        assert str(nobody.port) in caught.value.target
        assert caught.value.waited_seconds == 0.5

    def test_a_name_that_is_nobodys_is_said(self, opening: Open) -> None:
        """L4: a host that does not resolve is no crash."""
        with pytest.raises(UnreachableError, match="no-such-host"):
            opening(url="zookeeper://no-such-host.invalid:1", connect_timeout_seconds=1)

    def test_a_silent_server_does_not_hide_the_others(
        self, opening: Open, zookeeper_server: ZooKeeperServer
    ) -> None:
        """Two of three accept and never answer; the third one is found in time."""
        with contextlib.ExitStack() as resources:
            silent = [
                resources.enter_context(TCPProxy(zookeeper_server.port))
                for _ in range(2)
            ]
            for proxy in silent:
                proxy.cut()
            addresses = [*(proxy.address for proxy in silent), zookeeper_server.address]
            ha = opening(
                url=f"zookeeper://{','.join(addresses)}",
                session_timeout_seconds=30.0,
                connect_timeout_seconds=6.0,
            )
            assert list(ha.operations.leaders()) == []
            ha.close()

    def test_a_server_that_comes_later_is_waited_for(self, opening: Open) -> None:
        """Opening retries until the connect timeout."""
        with ZooKeeperServer() as server:
            server.kill()
            server.start(waits=False)
            ha = opening(url=server.url, connect_timeout_seconds=WAIT_SECONDS)
            assert list(ha.operations.sessions()) == []
            ha.close()
