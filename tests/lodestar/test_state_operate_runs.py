from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

from haservices import HAConfig
from queryablestate.proxy.access import token_sha256
from tests.lodestar.publishing import Publisher
from tests.lodestar.running import (
    WAIT_SECONDS,
    Ask,
    Running,
    environment,
    run,
)
from tests.queryablestate.schemas import NUMBERS


pytestmark = pytest.mark.shells

CALLERS = """
[callers.reader]
token_sha256 = "{reader}"
read = ["flights/open"]

[callers.job]
token_sha256 = "{job}"
write = ["flights/*"]

[callers.operator]
token_sha256 = "{operator}"
admin = true

[callers.node]
token_sha256 = "{node}"
node = true
"""
NAMES = ("reader", "job", "operator", "node")


@frozen
class Cluster:
    """A proxy with callers, and a node, each a process."""

    at: tuple[str, ...]
    config: HAConfig
    directory: Path

    def token(self, name: str) -> tuple[str, ...]:
        """Return the option by which *name* shows who it is."""
        return ("--token-file", str(self.directory / f"{name}.token"))

    def publish(self) -> None:
        """Write two states as the job."""
        token = (self.directory / "job.token").read_text().strip()
        publisher = Publisher(
            self.config, "flights", {"open": NUMBERS, "secret": NUMBERS}, token=token
        )
        publisher.write({"open": [(1, 10)], "secret": [(1, 11)]})


@pytest.fixture(scope="module")
def cluster(
    leader_server_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Return a cluster with state in it."""
    directory = tmp_path_factory.mktemp("cluster")
    digests: dict[str, str] = {}
    for name in NAMES:
        made = run("keygen", name, "--token", "--json", "--dir", str(directory))
        digests[name] = json.loads(made.out)["token_sha256"]
    (directory / "proxy.toml").write_text(CALLERS.format(**digests))
    cluster_id = f"operate-{uuid.uuid4()}"
    at = ("--url", leader_server_url, "--cluster-id", cluster_id)
    cluster = Cluster(
        at=at,
        config=HAConfig(url=leader_server_url, cluster_id=cluster_id),
        directory=directory,
    )
    with (
        Running("proxy", "--config-file", str(directory / "proxy.toml"), *at) as proxy,
        Running(
            *("node", "--data-dir", str(directory / "data"), "--node-id", "n-1"),
            *(*cluster.token("node"), *at),
        ) as node,
    ):
        assert proxy.out.next()
        assert node.out.next()
        cluster.publish()
        yield cluster
        assert node.end(signal.SIGINT).exit_code == 0
        assert proxy.end().exit_code == 0


@pytest.mark.proves("N5")
@pytest.mark.parametrize("name", ["", "\udc80", "a\nb", "x" * 256])
@pytest.mark.parametrize(
    "verb", [("drop-state", "--yes", "flights"), ("forget-node",), ("drain",)]
)
def test_a_name_that_nothing_can_have(
    ask: Ask, cluster: Cluster, verb: tuple[str, ...], name: str
) -> None:
    """
    N5: bad usage, in one line.

    A name that is no UTF-8 ended in a traceback of the encoder, and an empty one as
    if the proxy were of an earlier version.
    """
    result = ask(verb[0], *cluster.token("operator"), *cluster.at, *verb[1:], name)
    assert (result.exit_code, result.out) == (2, "")
    assert result.err.startswith(f"lodestar {verb[0]}: ")
    assert result.err.count("\n") == 1


class TestNodes:
    """``lodestar nodes`` (N6)."""

    def test_who_is_there(self, ask: Ask, cluster: Cluster) -> None:
        """N6: every node, with what it is asked for."""
        result = ask("nodes", "--json", *cluster.token("operator"), *cluster.at)
        assert (result.exit_code, result.err) == (0, "")
        (node,) = json.loads(result.out)
        assert node["node_id"] == "n-1"
        assert node["address"].startswith("tcp://127.0.0.1:")
        assert node["key_group_counts"] == {"flights": 128}
        text = ask("nodes", *cluster.token("operator"), *cluster.at).out
        assert "flights 128" in text


class TestForgetNode:
    """``lodestar forget-node`` (B4, N6)."""

    @pytest.mark.proves("N6")
    def test_one_that_is_there_is_refused_with_what_to_do(
        self, ask: Ask, cluster: Cluster
    ) -> None:
        """N6: one line, and the node stays; a name that is not known is bad usage."""
        operator = (*cluster.token("operator"), *cluster.at)
        result = ask("forget-node", "n-1", *operator)
        assert (result.exit_code, result.out) == (2, "")
        assert "'n-1' is registered" in result.err
        result = ask("forget-node", "n-2", *operator)
        assert (result.exit_code, result.out) == (2, "")
        assert "known are: n-1" in result.err

    def test_one_that_is_away_is_forgotten(
        self, ask: Ask, cluster: Cluster, tmp_path: Path
    ) -> None:
        """A node without key groups that has ended is listed until it is forgotten."""
        operator = (*cluster.token("operator"), *cluster.at)
        with Running(
            *("node", "--data-dir", str(tmp_path / "data"), "--node-id", "n-3"),
            *(*cluster.token("node"), *cluster.at),
        ) as node:
            assert node.out.next()
            assert node.end(signal.SIGINT).exit_code == 0
        while "n-3   away" not in ask("nodes", *operator).out:
            pass  # the proxy has yet to hear that its connection is closed
        result = ask("forget-node", "n-3", *operator)
        assert (result.exit_code, result.out) == (0, "forgot node n-3\n")
        listed = json.loads(ask("nodes", "--json", *operator).out)
        assert [each["node_id"] for each in listed] == ["n-1"]


class TestAccess:
    """Who may ask what (C1), and its exit code (N5)."""

    def test_a_reader_reads_what_it_may(self, ask: Ask, cluster: Cluster) -> None:
        """C1: its state is answered, and is all that it sees."""
        reader = (*cluster.token("reader"), *cluster.at)
        assert ask("get", "flights", "open", "1", *reader).out == "v  10\n"
        states = json.loads(ask("states", "--json", *reader).out)
        assert [each["state"] for each in states] == ["open"]

    @pytest.mark.proves("N5")
    def test_the_token_may_come_from_the_environment(
        self, ask: Ask, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N5: set once, as the URL is; an option outweighs it."""
        path = cluster.directory / "reader.token"
        monkeypatch.setenv("LODESTAR_TOKEN_FILE", str(path))
        result = ask("get", "flights", "open", "1", *cluster.at)
        assert (result.exit_code, result.out, result.err) == (0, "v  10\n", "")
        assert ask("nodes", *cluster.at).exit_code == 4
        operator = cluster.token("operator")
        assert ask("nodes", *operator, *cluster.at).exit_code == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            ("get", "flights", "secret", "1"),
            ("get", "flights", "no-such-state", "1"),
            ("get", "no-such-job", "open", "1"),
            ("count", "flights", "secret"),
            ("scan", "flights", "secret"),
            ("states", "no-such-job"),
            ("nodes",),
            ("forget-node", "n-1"),
            ("drop-state", "flights", "open", "--yes"),
            ("drop-state", "flights", "no-such-state", "--yes"),
        ],
    )
    def test_what_it_may_not_is_exit_code_4(
        self, ask: Ask, cluster: Cluster, arguments: tuple[str, ...]
    ) -> None:
        """C1, N5: 4 whether or not it exists: a refusal tells nothing."""
        result = ask(*arguments, *cluster.token("reader"), *cluster.at)
        assert (result.exit_code, result.out) == (4, ""), result.err
        assert "you are not allowed to" in result.err
        assert len(result.err.splitlines()) == 1

    def test_without_a_credential_nobody_is_let_in(
        self, ask: Ask, cluster: Cluster, tmp_path: Path
    ) -> None:
        """C1, N5: no token, or a wrong one, is 4 within the deadline."""
        result = ask("get", "flights", "open", "1", *cluster.at)
        assert result.exit_code == 4
        assert "refused access" in result.err
        assert result.err.endswith("give --token-file, or --caller-secret-key-file\n")
        assert ask("nodes", *cluster.at).err.endswith("--caller-secret-key-file\n")
        wrong = tmp_path / "wrong.token"
        wrong.write_text("wrong\n")
        wrong.chmod(0o600)
        result = ask("states", "--token-file", str(wrong), *cluster.at)
        assert result.exit_code == 4
        wrong.chmod(0o644)
        result = ask("states", "--token-file", str(wrong), *cluster.at)
        assert result.exit_code == 2
        assert f"chmod 600 {wrong}" in result.err


class TestDropState:
    """``lodestar drop-state`` (W5, N6)."""

    @pytest.fixture
    def name(self, cluster: Cluster) -> str:
        """Return a state that may be dropped."""
        name = f"spare-{uuid.uuid4()}"
        token = (cluster.directory / "job.token").read_text().strip()
        publisher = Publisher(cluster.config, "flights", {name: NUMBERS}, token=token)
        publisher.write({name: [(1, 1)]})
        return name

    def test_it_is_gone(self, ask: Ask, cluster: Cluster, name: str) -> None:
        """W5: with --yes it is dropped; afterwards it is not found, here or there."""
        operator = (*cluster.token("operator"), *cluster.at)
        result = ask("drop-state", "flights", name, "--yes", *operator)
        assert (result.exit_code, result.out) == (0, f"dropped flights/{name}\n")
        assert ask("get", "flights", name, "1", *operator).exit_code == 3
        result = ask("drop-state", "flights", name, "--yes", "--json", *operator)
        assert (result.exit_code, result.out) == (3, "")

    def test_without_yes_nobody_is_asked_in_a_script(
        self, ask: Ask, cluster: Cluster, name: str
    ) -> None:
        """N6: where there is no terminal, --yes must be said; nothing happens."""
        operator = (*cluster.token("operator"), *cluster.at)
        result = ask("drop-state", "flights", name, *operator)
        assert (result.exit_code, result.out) == (2, "")
        assert "--yes" in result.err
        assert ask("get", "flights", name, "1", *operator).exit_code == 0

    @pytest.mark.parametrize(("typed", "code"), [("yes", 0), ("y", 1), ("", 1)])
    def test_a_terminal_is_asked(
        self, ask: Ask, cluster: Cluster, name: str, typed: str, code: int
    ) -> None:
        """N6: only a whole "yes" drops it."""
        operator = (*cluster.token("operator"), *cluster.at)
        ours, theirs = pty.openpty()
        try:
            os.write(ours, f"{typed}\n".encode())
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "lodestar"),
                    *("drop-state", "flights", name, *operator),
                ],
                stdin=theirs,
                capture_output=True,
                text=True,
                timeout=WAIT_SECONDS,
                env=environment(),
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert done.returncode == code
        assert f"flights/{name}" in done.stderr
        there = 0 if code else 3
        assert ask("get", "flights", name, "1", *operator).exit_code == there


def test_the_hash_is_the_tokens(cluster: Cluster) -> None:
    """C1: what keygen printed is what the proxy compares with."""
    token = (cluster.directory / "reader.token").read_text().strip()
    assert token_sha256(token) in (cluster.directory / "proxy.toml").read_text()
