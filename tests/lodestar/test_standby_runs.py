"""`lodestar standby` keeps a command running, and ends it without a signal."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.deploy.serving import metrics_url, status_of
from tests.lodestar.running import AS_REAPER, Running, on_both, run
from tests.recording import wait_until


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
# Tells its state as a driver does, step by step, when it is told to.
TELLING = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as control:
    control.connect(os.environ["LODESTAR_STANDBY_CONTROL"])
    for state, epoch in (("warming", None), ("warm", None), ("leading", 7)):
        control.send(json.dumps({"state": state, "epoch": epoch}).encode() + b"\\n")
        open(sys.argv[1]).read()
    control.send(b"no JSON\\n" + b"x" * 5_000)
    control.recv(1)
"""
LISTENING = shlex.join([sys.executable, "-c", PROGRAM])
DEAF = "trap 'echo TERM' TERM; echo running; while :; do sleep 600 & wait; done"

# Runs a verb in a process that may have no more threads when its command is started for
# the second time.
SECOND_THREAD_REFUSED = """
import sys, threading
from lodestar.__main__ import main

start, started = threading.Thread.start, []

def refuse(thread):
    if thread.name == "driver-control":
        started.append(thread)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = refuse
sys.exit(main())
"""


@pytest.fixture
def at(url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", url, "--cluster-id", cluster_id)


@pytest.mark.proves("H1")
class TestStandby:
    @on_both
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

    def test_a_driver_that_cannot_be_started_is_tried_again(
        self, at: tuple[str, ...]
    ) -> None:
        """H1: such as when it has filled the disk; it does not end the supervisor."""
        script = 'echo started; rm -r "$TMPDIR"; exit 3'
        arguments = ("standby", "flights", *at, "--", "sh", "-c", script)
        # Its path is short, for a socket is bound below it.
        with (
            tempfile.TemporaryDirectory() as directory,
            Running(
                *arguments, TMPDIR=(scratch := tempfile.mkdtemp(dir=directory))
            ) as one,
        ):
            one.out.until("started")
            one.err.until("sh cannot be started")
            Path(scratch).mkdir()
            one.out.until("started")
            assert one.end().exit_code == 0

    def test_a_driver_for_which_there_is_no_thread_is_tried_again(
        self, at: tuple[str, ...]
    ) -> None:
        """H1: a container that may have no more processes may have no more threads."""
        with Running(
            *("standby", "flights", *at, "--", "sh", "-c", "echo started; exit 3"),
            python_arguments=("-c", SECOND_THREAD_REFUSED),
        ) as one:
            one.out.until("started")
            one.err.until("sh cannot be started")
            one.out.until("started")
            assert one.end().exit_code == 0

    def test_a_driver_reads_the_file_that_was_named(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """H1: what the file does not set is not taken from another one."""
        named, other = tmp_path / "named.toml", tmp_path / "other.toml"
        named.write_text("")
        other.write_text("confirm_timeout_seconds = 7.0")
        script = "from haservices import HAConfig; print(HAConfig.load())"
        result = run(
            *("standby", "flights", *at, "--config", str(named)),
            *("--", sys.executable, "-c", script),
            LODESTAR_CONFIG=str(other),
        )
        assert "confirm_timeout_seconds=None" in result.out

    def test_nothing_of_a_driver_is_left_where_nothing_else_takes_it(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """H1: as a container's first process; no zombies gather."""
        pids = tmp_path / "pids"
        # The second one is in a group of its own, as Spark's Python workers are.
        script = (
            f"sleep 600 & echo $! >>{pids}; setsid sleep 0.1 & echo $! >>{pids}; exit 3"
        )
        with Running(
            *("standby", "flights", *at, "--", "sh", "-c", script),
            python_arguments=("-c", AS_REAPER),
        ) as one:
            one.err.until("starting it again")
            first = [int(pid) for pid in pids.read_text().split()]
            one.err.until("running sh")
            wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in first))
            assert one.end().exit_code == 0

    def test_there_must_be_a_command(self, at: tuple[str, ...]) -> None:
        """The line says where it goes."""
        result = run("standby", "flights", *at)
        assert result.exit_code == 2
        assert "write it last, after '--'" in result.err
        result = run("standby", "flights", *at, "--", "no-such-command")
        assert "there is no command 'no-such-command'" in result.err

    def test_it_is_seen_whether_a_driver_is_warm(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """H1: ``/readyz`` and standard error follow what the driver says."""
        go_on = tmp_path / "go-on"
        os.mkfifo(go_on)
        command = ("--", sys.executable, "-c", TELLING, str(go_on))
        with Running(
            *("standby", "flights", *at, "--metrics", "0", "--log-level", "info"),
            *("--restarts", "1", *command),
        ) as one:
            url = metrics_url(one)
            one.err.until("the driver is warming up")
            assert status_of(f"{url}/readyz") == 503
            assert status_of(f"{url}/healthz") == 200
            go_on.write_text("")
            one.err.until("the driver is warm, and contends for flights")
            wait_until(lambda: status_of(f"{url}/readyz") == 200)
            go_on.write_text("")
            one.err.until("the driver leads flights, epoch 7")
            with urllib.request.urlopen(f"{url}/metrics", timeout=60) as found:
                text = found.read().decode()
            assert 'lodestar_standby_info{job_id="flights"} 1.0' in text
            # What is no word of a driver ends its connection, and so the driver.
            go_on.write_text("")
            one.err.until("starting it again")
            assert one.end().exit_code == 0
