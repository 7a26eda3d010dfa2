from __future__ import annotations

import pytest

from haservices import HAConfig, open_ha_services
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.gateway.hosts import foreign_host, host_of
from tests.queryablestate.gateway.asking import Asker


OWN = {"state.example.com"}


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "10.0.0.7:80"),
        *("localhost", "LOCALHOST:8080", "localhost.:8080", "app.localhost:1"),
        *("gateway", "gateway:8080", ""),
        *("state.example.com", "State.Example.com.:443"),
    ],
)
def test_names_that_no_page_of_the_web_has(host: str) -> None:
    """Addresses, names of one part, and the gateway's own."""
    assert foreign_host(host, OWN) is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "127.0.0.1.evil.example"),
        *("localhost.evil.example", "state.example.com.evil.example"),
        *("x@evil.example", "[::1", "127.0.0.1x.example"),
    ],
)
def test_names_that_a_page_of_the_web_may_have(host: str) -> None:
    """Its own name can be made to mean this machine."""
    assert foreign_host(host, OWN) is not None


def test_the_host_of_a_url() -> None:
    """In lower case, without a port."""
    assert host_of("https://State.Example.com:443/x") == "state.example.com"
    assert host_of("") == ""


@pytest.mark.shells
@pytest.mark.proves("F4")
def test_a_page_of_the_web_reads_nothing_of_this_machine() -> None:
    """
    F4: DNS rebinding: its name means 127.0.0.1 by now, and its script asks.

    The browser took the answer for the page's own.
    """
    config = GatewayConfig(
        advertised_url="https://state.example.com", is_announced=False
    )
    with (
        open_ha_services(HAConfig(url="embedded:hosts")) as services,
        GatewayServer(services, config) as gateway,
    ):
        asker = Asker(gateway.url)
        for path in ("/v1/leaders", "/openapi.json", "/docs"):
            answer = asker.get(path, host="evil.example:8080")
            assert answer.status == 421
            assert b"--advertised-url" in answer.body
            assert asker.get(path).status == 200
            assert asker.get(path, host="state.example.com").status == 200
            page = asker.get("/console/", host="evil.example")
            assert page.status == 421
            assert page.headers["content-type"].startswith("text/html")
