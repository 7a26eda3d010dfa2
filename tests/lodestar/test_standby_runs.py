"""`lodestar standby` keeps a command running, and ends it without a signal."""

from __future__ import annotations

import shlex
import sys

import pytest

from tests.lodestar.running import Running, run


pytestmark = pytest.mark.shells

# Connects as a driver does, and says how it hears that it is to end.
PROGRAM = """
import os, signal, socket
signal.signal(signal.SIGTERM, lambda *_: print("TERM", flush=True))
with socket.socket(socket.AF_UNIX) as control:
    control.connect(os.environ["LODESTAR_STANDBY_CONTROL"])
    print("connected", flush=True)
    print("closed", control.recv(1), flush=True)
"""
LISTENING = shlex.join([sys.executable, "-c", PROGRAM])
DEAF = "trap 'echo TERM' TERM; echo running; while :; do sleep 600 & wait; done"


@pytest.fixture
def at(url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", url, "--cluster-id", cluster_id)


@pytest.mark.proves("H1")
class TestStandby:
    def test_a_driver_finds_job_and_name_service(
        self, at: tuple[str, ...], url: str, cluster_id: str
    ) -> None:
        """H1: run_with_standby needs no argument but the application."""
        script = "echo $LODESTAR_STANDBY_JOB $LODESTAR_URL $LODESTAR_CLUSTER_ID"
        result = run("standby", "flights", *at, "--", "sh", "-c", script)
        assert result.out.split() == ["flights", url, cluster_id]
        assert result.exit_code == 0

    def test_a_driver_that_fails_is_started_again(self, at: tuple[str, ...]) -> None:
        """H1: after that many times its exit code is ours."""
        result = run(
            *("standby", "flights", *at, "--restarts", "1"),
            *("--", "sh", "-c", "echo started; exit 75"),
        )
        assert result.out.split() == ["started", "started"]
        assert result.exit_code == 75
        assert "ended with 75: starting it again in 1 s" in result.err

    def test_a_driver_is_asked_to_end_without_a_signal(
        self, at: tuple[str, ...]
    ) -> None:
        """H1: its JVM would end in the middle of a batch."""
        with Running("standby", "flights", *at, "--", "sh", "-c", LISTENING) as one:
            one.out.until("connected")
            result = one.end()
            assert result.exit_code == 0
            assert result.out.splitlines() == ["closed b''"]

    def test_a_command_that_does_not_listen_gets_the_signal(
        self, at: tuple[str, ...]
    ) -> None:
        """A driver that has not come so far, or another program; then it is killed."""
        with Running(
            *("standby", "flights", *at, "--grace-seconds", "0.5"),
            *("--", "sh", "-c", DEAF),
        ) as one:
            one.out.until("running")
            result = one.end()
            assert result.exit_code == 0
            assert "TERM" in result.out

    def test_there_must_be_a_command(self, at: tuple[str, ...]) -> None:
        """The line says where it goes."""
        result = run("standby", "flights", *at)
        assert result.exit_code == 2
        assert "write it last, after '--'" in result.err
        result = run("standby", "flights", *at, "--", "no-such-command")
        assert "there is no command 'no-such-command'" in result.err
