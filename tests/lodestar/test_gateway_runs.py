"""``lodestar gateway`` as a process."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request

import pytest

from haservices import open_ha_services
from lodestar.gateway import gateway_config
from nameservice import REST_ENDPOINT
from queryablestate.gateway import GatewayConfig
from tests.lodestar.running import WAIT_SECONDS, Running, ask_here, run


pytestmark = pytest.mark.shells


@pytest.fixture
def at(leader_server_url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", leader_server_url, "--cluster-id", cluster_id)


def fetch(url: str) -> bytes:
    """Return what is there."""
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as answer:
        body: bytes = answer.read()
        return body


class TestServing:
    """N5, F2: one line when it is ready; a signal ends it."""

    @pytest.mark.proves("N5", "F2")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_it_says_what_it_serves_and_ends_cleanly(
        self, at: tuple[str, ...], number: signal.Signals
    ) -> None:
        """It is found as everything else is; logs are JSON, without a traceback."""
        with Running("gateway", *at) as gateway:
            word, url = gateway.out.next().split(" ")
            assert word == "serving"
            assert url.startswith("http://127.0.0.1:")
            leader = ask_here("leader", REST_ENDPOINT, "--wait", "30", "--json", *at)
            assert json.loads(leader.out)["address"] == url
            assert b"openapi" in fetch(f"{url}/openapi.json")
            result = gateway.end(number)
        assert (result.exit_code, result.out) == (0, "")
        assert "Traceback" not in result.err
        assert all("event" in json.loads(line) for line in result.err.splitlines())

    @pytest.mark.proves("F4")
    def test_watches_end_with_it(self, at: tuple[str, ...]) -> None:
        """F4: SIGTERM ends a watch with a whole answer, at once."""
        with Running("gateway", *at) as gateway:
            url = gateway.out.next().removeprefix("serving ")
            request = f"{url}/v1/leaders/flights/watch"
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
                while not answer.readline().startswith(b"data:"):
                    pass
                gateway.process.send_signal(signal.SIGTERM)
                assert b"data:" not in answer.read()
            assert gateway.result().exit_code == 0

    @pytest.mark.proves("F1")
    def test_metrics(self, at: tuple[str, ...]) -> None:
        """F1: answers by status; ready until it is about to end."""
        with Running("gateway", "--metrics", "127.0.0.1:0", *at) as gateway:
            line = json.loads(gateway.err.until("metrics.serving"))
            url = gateway.out.next().removeprefix("serving ")
            fetch(f"{url}/v1/leaders")
            with pytest.raises(urllib.error.HTTPError):
                fetch(f"{url}/v1/leaders/nobody")
            assert fetch(f"{line['url']}/readyz") == b"ok\n"
            text = fetch(f"{line['url']}/metrics").decode()
            assert 'lodestar_gateway_answers_total{status="404"} 1.0' in text
            name = "lodestar_gateway_answer_duration_seconds_count"
            assert f'{name}{{kind="leaders"}} 2.0' in text
            assert gateway.end().exit_code == 0

    @pytest.mark.proves("N5", "F4")
    @pytest.mark.parametrize(
        ("options", "saying"),
        [
            (["--bind", "0.0.0.0:0"], "--insecure"),
            (["--bind", "*:0", "--insecure"], "advertised_url"),
            (["--bind", "tcp://127.0.0.1:0"], "HOST:PORT"),
            (["--bind", "127.0.0.1:99999"], "HOST:PORT"),
            (["--certificate-file", "x"], "certificate_key_file"),
            (
                ["--certificate-file", "/x/y", "--certificate-key-file", "/x/y"],
                "certificate_file",
            ),
            (["--advertised-url", "ftp://x"], "advertised_url"),
            (["--leaders", "some"], "callers"),
            (["--deadline-seconds", "90"], "deadline_seconds_max"),
            (["--bind", "192.0.2.1:80", "--insecure"], "cannot listen"),
            (["extra"], "extra"),
        ],
    )
    def test_what_cannot_be_is_told_in_one_line(
        self, at: tuple[str, ...], options: list[str], saying: str
    ) -> None:
        """Exit code 2, and what to change."""
        result = ask_here("gateway", *options, *at)
        assert (result.exit_code, result.out) == (2, "")
        assert saying in result.err.splitlines()[-1]
        assert "Traceback" not in result.err

    @pytest.mark.proves("N5")
    def test_bad_settings_end_the_process(self, at: tuple[str, ...]) -> None:
        """N5: with the exit code that the verb returns, and that one line."""
        result = run("gateway", "--bind", "tcp://127.0.0.1:0", *at)
        assert (result.exit_code, result.out) == (2, "")
        assert len(result.err.splitlines()) == 1, result.err

    def test_options_come_from_the_environment(self, at: tuple[str, ...]) -> None:
        """As those of every server do, for containers."""
        with Running(
            "gateway",
            *at,
            LODESTAR_GATEWAY_NO_ANNOUNCEMENT="true",
            LODESTAR_GATEWAY_ADVERTISED_URL="http://state.example.com",
        ) as gateway:
            url = gateway.out.next().removeprefix("serving ")
            assert json.loads(fetch(f"{url}/v1/leaders")) == {"leaders": []}
            assert "no setting" not in gateway.end().err


def test_a_gateway_is_an_address_among_others(leader_server_url: str) -> None:
    """F2: of two, the second is found when the first has ended."""
    at = ("--url", leader_server_url, "--cluster-id", "two-gateways")
    with (
        open_ha_services(leader_server_url) as _,
        Running("gateway", *at) as one,
        Running("gateway", *at) as two,
    ):
        urls = {
            gateway.out.next().removeprefix("serving "): gateway
            for gateway in (one, two)
        }
        leader = ask_here("leader", REST_ENDPOINT, "--wait", "30", "--json", *at)
        first = json.loads(leader.out)["address"]
        other = urls.pop(first)
        assert other.end().exit_code == 0
        ((second, gateway),) = urls.items()
        line = json.loads(gateway.err.until("announcement.published"))
        assert line["url"] == second
        assert gateway.end().exit_code == 0


def test_defaults_are_those_of_a_program() -> None:
    """The command line adds none of its own."""
    import argparse  # noqa: PLC0415

    assert gateway_config(argparse.Namespace()) == GatewayConfig()
