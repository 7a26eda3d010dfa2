"""N4, L4: a URL that names another kind of server is told as what it is."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from haservices import HAConfig, open_ha_services
from haservices.config import ServerAddress
from haservices.recognition import Service, recognize_service
from leaderserver import LeaderServer, ServerConfig
from nameservice import UnreachableError, WrongServiceError


if TYPE_CHECKING:
    from haservices.testing.reserved_port import ReservedPort
    from haservices.testing.zookeeper_server import ZooKeeperServer


pytestmark = pytest.mark.shells


@pytest.fixture
def http_port() -> Iterator[int]:
    """Return the port of an HTTP server."""
    handler = http.server.BaseHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class _Speaking:
    """A server that says *text* to each client that connects, and closes."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                asked = connection.recv(100)
                if asked == b"the end":
                    return
                connection.sendall(self._text)

    def close(self) -> None:
        """End it."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"the end")
        self._thread.join()
        self._socket.close()


def open_at(url: str) -> None:
    """Open a name service that is not there."""
    open_ha_services(HAConfig(url=url, connect_timeout_seconds=2.0)).close()


class TestWrongService:
    @pytest.mark.parametrize("scheme", ["leaderserver", "zookeeper"])
    def test_http_server_is_named(self, http_port: int, scheme: str) -> None:
        """L4: it is no question of keys, nor of reach."""
        url = f"{scheme}://127.0.0.1:{http_port}"
        with pytest.raises(WrongServiceError, match="an HTTP server, not a") as caught:
            open_at(url)
        assert caught.value.target == url
        assert f"127.0.0.1:{http_port}" in caught.value.found

    def test_zookeeper_is_no_leaderserver(
        self, zookeeper_server: ZooKeeperServer
    ) -> None:
        """L4: the scheme is wrong, and the error says which is right."""
        address = urlsplit(zookeeper_server.url).netloc
        with pytest.raises(WrongServiceError, match="a ZooKeeper, not a LeaderServer"):
            open_at(f"leaderserver://{address}")

    def test_leaderserver_is_no_zookeeper(self) -> None:
        """L4: likewise, the other way around."""
        with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
            address = urlsplit(server.url).netloc
            with pytest.raises(WrongServiceError, match=r"ZeroMQ .* not a ZooKeeper"):
                open_at(f"zookeeper://{address}")

    @pytest.mark.parametrize("scheme", ["leaderserver", "zookeeper"])
    def test_what_does_not_tell_is_not_named(
        self, scheme: str, reserved: ReservedPort
    ) -> None:
        """L4: a port where none listens, or none speaks, is out of reach."""
        url = f"{scheme}://127.0.0.1:{reserved.port}"
        with reserved.listen(), pytest.raises(UnreachableError):
            open_at(url)
        with pytest.raises(UnreachableError):
            open_at(url)


@pytest.mark.parametrize("scheme", ["leaderserver", "zookeeper"])
class TestOutOfReach:
    def test_an_unknown_host_is_named(self, scheme: str) -> None:
        """L4: a misspelt host is no server that is down."""
        with pytest.raises(UnreachableError, match=r"no host 'no-such-host\.invalid'"):
            open_at(f"{scheme}://no-such-host.invalid:5170")

    def test_a_closed_port_is_named(self, scheme: str, reserved: ReservedPort) -> None:
        """L4: in the same words on every backend."""
        address = f"127.0.0.1:{reserved.port}"
        with pytest.raises(
            UnreachableError, match=f"nothing listens at {address}: start it"
        ):
            open_at(f"{scheme}://{address}")


class TestRecognizeService:
    @pytest.mark.parametrize(
        ("says", "service"),
        [
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", Service.HTTP),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Service.SSH),
            (b"\x15\x03\x03\0\x02\x02\x50", Service.TLS),
            (b"srvr is not executed because it is not in the", Service.ZOOKEEPER),
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x03", Service.ZEROMQ),
            (b"220 mail.example ESMTP\r\n", None),
            (b"", None),
        ],
    )
    def test_servers_are_known_by_how_they_answer(
        self, says: bytes, service: Service | None
    ) -> None:
        """L4: only what tells itself clearly is named."""
        with closing(_Speaking(says)) as server:
            address = ServerAddress(host="127.0.0.1", port=server.port)
            assert recognize_service(address) is service
