from __future__ import annotations

from typing import Any

import pytest

from nameservice import ConfigurationError
from queryablestate.gateway import GatewayConfig


pytestmark = pytest.mark.proves("F4")


@pytest.mark.parametrize(
    ("settings", "saying"),
    [
        ({"bind": "127.0.0.1"}, "HOST:PORT"),
        ({"bind": "http://127.0.0.1:80"}, "HOST:PORT"),
        ({"bind": ""}, "printable"),
        ({"bind": 80}, "bind"),
        ({"certificate_file": "x"}, "certificate_key_file"),
        ({"leaders": "all"}, "open, callers, off"),
        ({"advertised_url": "state.example.com"}, "http://"),
        ({"advertised_url": "http://"}, "http://"),
        ({"advertised_url": "http://[x"}, "http://"),
        ({"advertised_url": "http://a\nb"}, "printable"),
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"deadline_seconds": 10, "deadline_seconds_max": 9}, "deadline_seconds_max"),
        ({"connection_count_max": 0}, "connection_count_max"),
        ({"header_size_bytes_max": 10}, "header_size_bytes_max"),
        ({"is_announced": 1}, "is_announced"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], saying: str) -> None:
    """It is told when it is made, by name, and with what to write."""
    with pytest.raises(ConfigurationError, match=saying):
        GatewayConfig(**settings)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "localhost:8080", "[::1]:8080"])
def test_this_machine_needs_nothing(bind: str) -> None:
    """Loopback is served over plain HTTP."""
    assert not GatewayConfig(bind=bind).uses_https


def test_every_interface_needs_a_name() -> None:
    """What is announced must be an address; or nothing is announced."""
    with pytest.raises(ConfigurationError, match="advertised_url"):
        GatewayConfig(bind="*:80", is_insecure_allowed=True)
    GatewayConfig(bind="*:80", is_insecure_allowed=True, is_announced=False)
