from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from zmqtransport.endpoints import Endpoint, parse_endpoint


class TestParseEndpoint:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("tcp://127.0.0.1:5170", "127.0.0.1", 5170),
            ("tcp://127.0.0.1:0", "127.0.0.1", 0),
            ("tcp://[::1]:5170", "::1", 5170),
            ("tcp://[fe80::1%eth0]:1", "fe80::1%eth0", 1),
            ("tcp://*:65535", "*", 65535),
            ("tcp://localhost:5170", "localhost", 5170),
            ("tcp://leader-server.prod.svc:5170", "leader-server.prod.svc", 5170),
        ],
    )
    def test_takes_apart_and_gives_back(self, text: str, host: str, port: int) -> None:
        """``str`` gives the very text back."""
        endpoint = parse_endpoint(text)
        assert endpoint == Endpoint(host=host, port=port)
        assert str(endpoint) == text

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "127.0.0.1:5170",
            "tcp://127.0.0.1",
            "tcp://127.0.0.1:",
            "tcp://:5170",
            "tcp://127.0.0.1:65536",
            "tcp://127.0.0.1:-1",
            "tcp://127.0.0.1:99999999",
            "tcp://127.0.0.1:5170/",
            "tcp://127.0.0.1:5170 ",
            "tcp://127.0.0.1:5170\n",
            "tcp://127.0.0.1:\u0665",
            "tcp://256.0.0.1:5170",
            "tcp://127.0.1:5170",
            "tcp://::1:5170",
            "tcp://[127.0.0.1]:5170",
            "tcp://[]:5170",
            "tcp://[x]:5170",
            "tcp://a b:5170",
            "tcp://-a:5170",
            "tcp://eth0;127.0.0.1:5170",
            "ipc:///tmp/socket",
            "inproc://zeromq.zap.01",
            "udp://127.0.0.1:5170",
            "leaderserver://127.0.0.1:5170",
        ],
    )
    def test_refuses_anything_else(self, text: str) -> None:
        """A malformed endpoint is an error that shows it, raised before any socket."""
        with pytest.raises(ConfigurationError) as caught:
            parse_endpoint(text)
        assert repr(text) in str(caught.value)

    @given(st.text())
    def test_arbitrary_text_is_a_configuration_error_or_an_endpoint(
        self, text: str
    ) -> None:
        """No text raises anything else."""
        try:
            endpoint = parse_endpoint(text)
        except ConfigurationError:
            return
        assert str(endpoint) == text


class TestEndpoint:
    @pytest.mark.proves("N4")
    @pytest.mark.parametrize(
        ("host", "is_loopback"),
        [
            ("127.0.0.1", True),
            ("127.8.9.10", True),
            ("::1", True),
            ("::ffff:127.0.0.1", True),
            ("localhost", True),
            ("LocalHost", True),
            ("::ffff:10.0.0.1", False),
            ("10.0.0.5", False),
            ("0.0.0.0", False),
            ("::", False),
            ("*", False),
            ("localhost.example.com", False),
            ("myhost", False),
        ],
    )
    def test_is_loopback(self, host: str, is_loopback: bool) -> None:
        """Rule N4: only what no other machine can reach counts as loopback."""
        assert Endpoint(host=host, port=1).is_loopback is is_loopback

    @pytest.mark.parametrize("host", ["*", "0.0.0.0", "::"])
    def test_nobody_connects_to_every_interface(self, host: str) -> None:
        """What a server may bind to is no address for its clients."""
        endpoint = Endpoint(host=host, port=5170)
        assert endpoint.is_wildcard
        with pytest.raises(ConfigurationError, match="every interface"):
            endpoint.check_connectable()

    def test_nobody_connects_to_any_port(self) -> None:
        """Port 0 means "any free one", which only the server can choose."""
        with pytest.raises(ConfigurationError, match="name the port"):
            Endpoint(host="127.0.0.1", port=0).check_connectable()
        endpoint = Endpoint(host="127.0.0.1", port=1)
        assert endpoint.check_connectable() is endpoint
