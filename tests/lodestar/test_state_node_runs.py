from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lodestar.__main__ import make_parser
from lodestar.state_node import node_config, switching_often
from queryablestate.node.config import NodeConfig
from queryablestate.proxy.access import token_sha256
from tests.lodestar.running import WAIT_SECONDS, Running, ask_here, environment, run


ANY_URL = ("--url", "leaderserver://127.0.0.1:1")


@pytest.mark.proves("B2")
def test_a_node_does_not_wait_long_for_a_thread_that_reads() -> None:
    """B2: its threads take turns in less than a millisecond, as long as it runs."""
    before = sys.getswitchinterval()
    with switching_often():
        assert sys.getswitchinterval() < min(before, 0.001)
    assert sys.getswitchinterval() == before


@pytest.mark.proves("N5")
class TestOptions:
    """Every setting of a node has an option (N5)."""

    def test_what_is_not_given_is_the_default(self) -> None:
        """N5: the command line adds no defaults of its own."""
        arguments = make_parser().parse_args(["node", "--data-dir", "D", *ANY_URL])
        assert node_config(arguments) == NodeConfig(data_dir="D")

    def test_every_setting_can_be_given(self) -> None:
        """N5: credentials of the node and of the name service are told apart."""
        arguments = make_parser().parse_args(
            [
                *("node", "--data-dir", "D", "--bind", "tcp://127.0.0.1:7"),
                *("--advertised-host", "h", "--node-id", "n", "--token-file", "t"),
                *("--node-public-key-file", "p", "--node-secret-key-file", "s"),
                *("--allow-list", "a", "--insecure", "--size-bytes-max", "2000000"),
                *("--not-durable", "--stage-retention-seconds", "60"),
                *("--chunk-size-bytes-max", "70000", "--chunks-per-writer-max", "2"),
                *("--chunks-size-bytes-max", "2000000"),
                *("--answer-size-bytes-max", "70000", "--questions-waiting-max", "3"),
                *("--connections-max", "4", "--curve-public-key-file", "other"),
                *("--copies-max", "5", "--drain-timeout", "0"),
                *("--readers", "6"),
                *ANY_URL,
            ]
        )
        assert node_config(arguments) == NodeConfig(
            data_dir="D",
            bind="tcp://127.0.0.1:7",
            advertised_host="h",
            node_id="n",
            token_file="t",
            curve_public_key_file="p",
            curve_secret_key_file="s",
            allow_list_file="a",
            is_insecure_allowed=True,
            size_bytes_max=2_000_000,
            is_durable=False,
            stage_retention_seconds=60.0,
            chunk_size_bytes_max=70_000,
            chunks_per_writer_max=2,
            chunks_size_bytes_max=2_000_000,
            answer_size_bytes_max=70_000,
            questions_waiting_max=3,
            connections_max=4,
            copies_max=5,
            readers=6,
            drain_timeout_seconds=0.0,
        )


@pytest.mark.shells
class TestServing:
    """``lodestar node`` as a process (N5)."""

    @pytest.fixture
    def at(self, leader_server_url: str, cluster_id: str) -> tuple[str, ...]:
        """Return the options that name the name service, and the test's cluster."""
        return ("--url", leader_server_url, "--cluster-id", cluster_id)

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_says_when_it_is_registered_and_ends_cleanly(
        self, at: tuple[str, ...], tmp_path: Path, number: signal.Signals
    ) -> None:
        """N5: it waits for a proxy as long as it takes, then prints its one line."""
        node = ("node", "--data-dir", str(tmp_path / "d"), "--node-id", "n-1")
        with Running(*node, *at) as serving:
            serving.err.until("node.started")
            with Running("proxy", *at) as proxy:
                proxy.out.next()
                line = serving.out.next()
                assert line.startswith("serving n-1 at tcp://127.0.0.1:")
                result = serving.end(number)
                assert result.exit_code == 0
                assert result.out.splitlines() == (
                    []
                    if number is signal.SIGINT
                    else [
                        "leaving, 0 key groups left; a second signal ends it at once",
                        "left",
                    ]
                )
                assert "Traceback" not in result.err
                assert proxy.end().exit_code == 0

    @pytest.mark.proves("N5", "S1")
    def test_it_leaves_though_its_lines_are_read_no_more(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """N5, S1: who starts it may have waited for its first line only."""
        with (
            Running("proxy", *at) as proxy,
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "lodestar", "node"),
                    *("--data-dir", str(tmp_path / "d"), *at),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
            ) as node,
        ):
            try:
                assert node.stdout is not None
                assert node.stdout.readline().startswith(b"serving ")
                node.stdout.close()
                node.send_signal(signal.SIGTERM)
                assert node.wait(WAIT_SECONDS) == 0
            finally:
                node.kill()
            assert proxy.end().exit_code == 0

    @pytest.mark.proves("N5")
    def test_it_ends_cleanly_while_it_waits(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """N5: a node that no proxy has taken ends as well, and prints nothing."""
        with Running("node", "--data-dir", str(tmp_path / "d"), *at) as waiting:
            waiting.err.until("node.started")
            result = waiting.end()
        assert (result.exit_code, result.out) == (0, "")

    def test_its_name_stays_with_its_directory(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """A name that was not chosen is the same after a restart."""
        names: set[str] = set()
        with Running("proxy", *at) as proxy:
            proxy.out.next()
            for _ in range(2):
                with Running("node", "--data-dir", str(tmp_path / "d"), *at) as node:
                    names.add(node.out.next().split()[1])
                    assert node.end(signal.SIGINT).exit_code == 0
            assert proxy.end().exit_code == 0
        assert len(names) == 1

    def test_a_proxy_with_callers_wants_its_token(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """C1: without the token it is refused, and says so; with it, it is taken."""
        (tmp_path / "node.token").write_text("secret\n")
        (tmp_path / "node.token").chmod(0o600)
        file = tmp_path / "proxy.toml"
        file.write_text(
            f'[callers.node]\ntoken_sha256 = "{token_sha256("secret")}"\nnode = true\n'
        )
        with Running("proxy", "--config-file", str(file), *at) as proxy:
            proxy.out.next()
            with Running("node", "--data-dir", str(tmp_path / "a"), *at) as refused:
                line = json.loads(refused.err.until("node.refused"))
                assert line["reason"] == "not-allowed"
                assert refused.end().exit_code == 0
            token = ("--token-file", str(tmp_path / "node.token"))
            with Running(
                "node", "--data-dir", str(tmp_path / "b"), *token, *at
            ) as node:
                assert node.out.next().startswith("serving ")
                assert node.end(signal.SIGINT).exit_code == 0
            assert proxy.end().exit_code == 0

    def test_two_nodes_do_not_share_a_data_directory(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """W7: the second to come is told in one line that names the directory."""
        with Running("node", "--data-dir", str(tmp_path / "d"), *at) as node:
            node.err.until("node.started")
            result = run("node", "--data-dir", str(tmp_path / "d"), *at)
            assert result.exit_code == 1
            assert result.out == ""
            assert str(tmp_path / "d") in result.err.splitlines()[-1]
            assert "Traceback" not in result.err
            assert node.end().exit_code == 0

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize(
        ("options", "saying"),
        [
            ([], "--data-dir"),
            (["--data-dir", ""], "data_dir"),
            (["--data-dir", "D", "--bind", "tcp://0.0.0.0:0"], "lets other machines"),
            (["--data-dir", "D", "--size-bytes-max", "0"], "whole number from 1"),
            (["--data-dir", "D", "--size-bytes-max", "10"], "size_bytes_max"),
            (["--data-dir", "D", "--node-public-key-file", "p"], "CURVE needs all of"),
            (["--data-dir", "D", "extra"], "extra"),
        ],
    )
    def test_what_cannot_be_is_told_in_one_line(
        self, at: tuple[str, ...], options: list[str], saying: str
    ) -> None:
        """N5: bad settings are exit code 2 and a line that says what to change."""
        result = ask_here("node", *options, *at)
        assert (result.exit_code, result.out) == (2, "")
        assert saying in result.err
        assert len(result.err.splitlines()) == 1, result.err
