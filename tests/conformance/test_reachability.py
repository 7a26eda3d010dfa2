"""L4: what cannot be reached, or is no name service, is said in time and in words."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from haservices import Guarantee, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from nameservice import ConfigurationError, UnreachableError
from tests.conformance.selection import requires


if TYPE_CHECKING:
    from tests.conformance.harness import Harness


# What opening may take at most when it is told to give up after half a second.
GENEROUS_SECONDS = 15.0


def refusal(harness: Harness, port: int) -> UnreachableError:
    """Return what opening says of the loopback *port*, which is no name service."""
    scheme = harness.config().backend.value
    began = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        open_ha_services(
            harness.config(
                url=f"{scheme}://127.0.0.1:{port}", connect_timeout_seconds=0.5
            )
        )
    assert time.monotonic() - began < GENEROUS_SECONDS
    assert str(port) in str(caught.value)
    return caught.value


@pytest.mark.proves("L4")
@requires(Guarantee.ACROSS_PROCESSES)
class TestUnreachable:
    def test_nobody_listens(self, harness: Harness) -> None:
        """L4: a refused connection is UnreachableError, naming what was tried."""
        reserved = ReservedPort()
        error = refusal(harness, reserved.port)
        reserved.close()
        assert error.waited_seconds >= 0

    def test_nobody_answers(self, harness: Harness) -> None:
        """L4: so is a port that accepts, and stays silent."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            refusal(harness, silent.getsockname()[1])

    def test_host_is_unknown(self, harness: Harness) -> None:
        """L4: a name that stands for no host is no crash."""
        scheme = harness.config().backend.value
        with pytest.raises((UnreachableError, ConfigurationError), match="invalid"):
            open_ha_services(
                harness.config(
                    url=f"{scheme}://host.invalid:1", connect_timeout_seconds=0.5
                )
            )


@pytest.mark.proves("L4")
class TestMisconfigured:
    @pytest.mark.parametrize(
        "settings",
        [
            {"url": "consul://127.0.0.1:1"},
            {"url": "127.0.0.1:5170"},
            {"url": ""},
            {"url": "leaderserver://"},
            {"url": "zookeeper://h"},
            {"session_timeout_seconds": 0.0},
            {"session_timeout_seconds": -1.0},
            {"connect_timeout_seconds": float("nan")},
            {"confirm_timeout_seconds": 0.0},
            {"on_suspended": "maybe"},
            {"cluster_id": ""},
        ],
    )
    def test_is_an_error_at_construction(
        self, harness: Harness, settings: dict[str, Any]
    ) -> None:
        """L4: nothing is contacted with settings that cannot be meant."""
        with pytest.raises(ConfigurationError):
            harness.config(**settings)

    def test_url_alone_is_checked_too(self) -> None:
        """L4: `open_ha_services` takes a URL, and refuses one that is none."""
        with pytest.raises(ConfigurationError, match="names no known backend"):
            open_ha_services("redis://127.0.0.1:6379")
