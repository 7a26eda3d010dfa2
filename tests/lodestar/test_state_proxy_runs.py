from __future__ import annotations

import json
import signal
import tomllib
from pathlib import Path

import pytest

from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.config_toml import parse_proxy_config
from tests.lodestar.running import LONG_LEASES, Running, ask_here, run


pytestmark = pytest.mark.shells

CALLER = """
[callers.dashboard]
token_sha256 = "{sha256}"
read = ["flights/*"]
"""


@pytest.fixture
def at(leader_server_url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", leader_server_url, "--cluster-id", cluster_id)


class TestServing:
    """``lodestar proxy`` as a process (N5)."""

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_it_says_what_it_serves_and_ends_cleanly(
        self, at: tuple[str, ...], number: signal.Signals
    ) -> None:
        """N5: one line when it is ready; it leads; a signal ends it with 0."""
        with Running("proxy", *at) as proxy:
            word, address = proxy.out.next().split(" ")
            assert word == "serving"
            assert address.startswith("tcp://127.0.0.1:")
            leader = ask_here("leader", "QUERY_PROXY", "--wait", "30", "--json", *at)
            assert json.loads(leader.out)["address"] == address
            result = proxy.end(number)
        assert (result.exit_code, result.out) == (0, "")
        assert "Traceback" not in result.err
        assert all("event" in json.loads(line) for line in result.err.splitlines())

    def test_a_name_service_that_forgets_is_refused(self) -> None:
        """W7: state would be unavailable when that is restarted; unless accepted."""
        options = ("--bind", "tcp://127.0.0.1:0", *LONG_LEASES)
        with Running("server", *options) as server:
            url = server.out.next().removeprefix("serving ")
            result = run("proxy", "--url", url)
            assert (result.exit_code, result.out) == (2, "")
            assert "--allow-volatile" in result.err
            with Running("proxy", "--allow-volatile", "--url", url) as proxy:
                assert proxy.out.next().startswith("serving tcp://")
                assert proxy.end().exit_code == 0
            server.end()

    def test_a_second_one_stands_by(self, at: tuple[str, ...]) -> None:
        """The second to come leads when the first is gone; one class, one verb."""
        with Running("proxy", *at) as first, Running("proxy", *at) as second:
            proxies = {
                proxy.out.next().removeprefix("serving "): proxy
                for proxy in (first, second)
            }
            assert len(proxies) == 2
            leader = ask_here("leader", "QUERY_PROXY", "--wait", "30", "--json", *at)
            leading = proxies.pop(json.loads(leader.out)["address"])
            ((address, waiting),) = proxies.items()
            assert leading.end().exit_code == 0
            line = json.loads(waiting.err.until("leadership.confirmed"))
            assert line["address"] == address
            assert waiting.end().exit_code == 0

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize(
        ("options", "saying"),
        [
            (["--bind", "tcp://0.0.0.0:0"], "lets other machines in"),
            (["--bind", "tcp://0.0.0.0:0", "--insecure"], "advertised_host"),
            (["--bind", "127.0.0.1:0"], "tcp://"),
            (["--config-file", "/dev/null/x"], "/dev/null/x"),
            (["extra"], "extra"),
        ],
    )
    def test_what_cannot_be_is_told_in_one_line(
        self, at: tuple[str, ...], options: list[str], saying: str
    ) -> None:
        """N5: bad settings are exit code 2 and a line that says what to change."""
        result = ask_here("proxy", *at, *options)
        assert (result.exit_code, result.out) == (2, "")
        assert saying in result.err
        assert len(result.err.splitlines()) == 1, result.err

    @pytest.mark.proves("N5")
    def test_a_name_service_that_is_not_there_is_told(self) -> None:
        """N5: exit code 5, in time."""
        result = run(
            *("proxy", "--url", "leaderserver://127.0.0.1:1"),
            *("--connect-timeout-seconds", "0.5"),
        )
        assert (result.exit_code, result.out) == (5, "")


class TestPrintConfig:
    """``--print-config`` writes the whole configuration (C4)."""

    def test_the_defaults(self) -> None:
        """C4: what is printed is a file that means the defaults; nothing is asked."""
        result = run("proxy", "--print-config")
        assert (result.exit_code, result.err) == (0, "")
        assert parse_proxy_config(result.out, source="stdout") == ProxyConfig()

    def test_what_a_file_means(self, tmp_path: Path) -> None:
        """C4: a file with one line is printed whole, options outweigh it."""
        file = tmp_path / "proxy.toml"
        file.write_text('job_count_max = 7\nbind = "tcp://127.0.0.1:1"\n')
        result = run(
            *("proxy", "--print-config", "--config-file", str(file)),
            *("--bind", "tcp://127.0.0.1:2"),
        )
        document = tomllib.loads(result.out)
        assert document["job_count_max"] == 7
        assert document["bind"] == "tcp://127.0.0.1:2"
        assert document["deadline_seconds_default"] == 5.0


class TestReload:
    """SIGHUP reads the file again (C4)."""

    def test_what_may_change_changes_and_a_mistake_does_nothing(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """C4: what may change, changes; of a bad file is told, and nothing ends."""
        file = tmp_path / "proxy.toml"
        file.write_text(CALLER.format(sha256="ab" * 32))
        with Running("proxy", "--config-file", str(file), *at) as proxy:
            proxy.out.next()
            file.write_text(CALLER.format(sha256="cd" * 32))
            proxy.process.send_signal(signal.SIGHUP)
            assert "proxy.reconfigured" in proxy.err.until("reconfigured")

            file.write_text("callers = ")
            proxy.process.send_signal(signal.SIGHUP)
            refused = json.loads(proxy.err.until("configuration.refused"))
            assert refused["level"] == "error"
            assert str(file) in refused["error"]

            file.write_text('bind = "tcp://127.0.0.1:1"\n')
            proxy.process.send_signal(signal.SIGHUP)
            refused = json.loads(proxy.err.until("configuration.refused"))
            assert "bind cannot change while the proxy runs" in refused["error"]
            assert proxy.process.poll() is None
            assert proxy.end().exit_code == 0
