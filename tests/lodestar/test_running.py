"""How a verb that went wrong is told in one line."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodestar.running import run
from nameservice import NameServiceError, RemoteProtocolError
from tests.lodestar.running import WAIT_SECONDS, Lines, ask_here, environment
from tests.recording import wait_until


def told(error: NameServiceError | OSError, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a verb that ends with *error*; return what is printed."""

    def verb(_: Namespace) -> int:
        raise error

    assert run(Namespace(run=verb, verb="leaders", log_level="error")) == 1
    return capsys.readouterr().err


@pytest.mark.proves("N5")
def test_what_the_other_side_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """N5: a verb that is newer than a proxy names what is to be done."""
    error = RemoteProtocolError("malformed", "Invalid value 'forget-node'")
    assert told(error, capsys) == (
        "lodestar leaders: Invalid value 'forget-node' (malformed); the other side may "
        "run an earlier version: upgrade it first\n"
    )


@pytest.mark.parametrize("reason", ["oversized", "no-python-value"])
def test_another_mistake_of_a_peer(
    reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has nothing to do with versions."""
    error = RemoteProtocolError(reason, "too much")
    assert told(error, capsys) == f"lodestar leaders: too much ({reason})\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (
            OSError(errno.EACCES, "Permission denied", "a.csv"),
            "a.csv: Permission denied",
        ),
        (OSError(errno.EACCES, "Permission denied", b"a"), "a: Permission denied"),
        (OSError("what a library says"), "what a library says"),
    ],
)
def test_an_error_of_the_system(
    error: OSError, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told in words; "[Errno 28]" helps few."""
    assert told(error, capsys) == f"lodestar leaders: {text}\n"


@pytest.mark.proves("N5")
@pytest.mark.shells
class TestClosedStreams:
    """A script may close what it does not want: ``lodestar … 2>&-`` (N5)."""

    def end(self, redirection: str, *arguments: str) -> tuple[int, str]:
        """Return the exit code of a verb in a shell, and all that was printed."""
        command = [sys.executable, "-m", "lodestar", *arguments]
        ended = subprocess.run(
            ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *command],
            check=False,
            env=environment(
                LODESTAR_URL="leaderserver://127.0.0.1:1",
                PYTHONUNBUFFERED="",  # as users have it
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT_SECONDS,
        )
        return ended.returncode, ended.stdout

    def test_errors_that_are_not_wanted(self, tmp_path: Path) -> None:
        """N5: the answer is printed; before, every verb failed with nothing said."""
        verb = ("keygen", "a", "--dir", str(tmp_path))
        exit_code, printed = self.end("2>&-", *verb)
        assert exit_code == 0
        assert str(tmp_path / "a.key_secret") in printed
        assert self.end("2>&-", *verb) == (2, "")  # the files are there by now

    def test_an_answer_that_is_not_wanted(self, tmp_path: Path) -> None:
        """N5: only the exit code tells how it went."""
        verb = ("keygen", "a", "--dir", str(tmp_path))
        assert self.end(">&-", *verb) == (0, "")
        assert (tmp_path / "a.key_secret").exists()

    @pytest.mark.parametrize("option", ["--help", "--version"])
    def test_an_answer_that_no_disk_takes(self, option: str) -> None:
        """N5: "failed", in one line; it was 120, and an exception of Python's own."""
        assert self.end(">/dev/full", option) == (
            1,
            "lodestar: No space left on device\n",
        )

    def test_a_reader_that_is_gone(self) -> None:
        """N5: who reads no more has what was wanted: no exception is told at exit."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "lodestar", "--help"],
                check=False,
                env=environment(PYTHONUNBUFFERED=""),
                stdout=writer,
                stderr=subprocess.PIPE,
                timeout=WAIT_SECONDS,
            )
        finally:
            os.close(writer)
        assert (ended.returncode, ended.stderr) == (0, b"")

    def test_an_error_that_no_disk_takes(self) -> None:
        """N5: the exit code still says what was wrong; it was 120."""
        assert self.end("2>/dev/full", "no-such-verb") == (2, "")
        assert self.end("2>/dev/full", "keygen", "a/b", "--dir", "/") == (2, "")

    def test_a_command_whose_log_no_disk_takes(self, leader_server_url: str) -> None:
        """N5: it runs while we lead; `elect` ended over a line of its own."""
        verb = ("elect", "job", "h:1", "--url", leader_server_url)
        assert self.end("2>/dev/full", *verb, "--", "echo", "ran") == (0, "ran\n")

    def test_a_question_that_no_one_can_answer(self) -> None:
        """N5: a verb that asks says what to do instead, and shows no traceback."""
        exit_code, printed = self.end("<&-", "drop-state", "flights", "aircraft")
        assert exit_code == 2
        assert printed == (
            "lodestar drop-state: say --yes to drop flights/aircraft: standard input "
            "is not a terminal\n"
        )


@pytest.fixture
def unread() -> Iterator[int]:
    """Yield what writes to a full pipe, whose reader hangs."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4_096)
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)))
    yield writer
    os.close(writer)
    os.close(reader)


@pytest.mark.shells
@pytest.mark.proves("N5")
@pytest.mark.parametrize("verb", ["watch", "watch-store"])
def test_a_verb_ends_whose_answers_are_not_read(
    verb: str, unread: int, leader_server_url: str
) -> None:
    """N5: at SIGTERM, with 0; it waited for its reader, and only SIGKILL ended it."""
    before = sessions_at(leader_server_url)
    with subprocess.Popen(
        [*(sys.executable, "-m", "lodestar", verb, "job"), "--url", leader_server_url],
        env=environment(),
        stdout=unread,
    ) as watch:
        try:
            # Its signals are heeded before it has a session.
            wait_until(lambda: bool(sessions_at(leader_server_url) - before))
            watch.terminate()
            assert watch.wait(WAIT_SECONDS) == 0
        finally:
            watch.kill()


def sessions_at(url: str) -> set[str]:
    """Return the sessions of a server, but for that of the question."""
    sessions = json.loads(ask_here("sessions", "--json", "--url", url).out)
    return {each["session_id"] for each in sessions if each["age_seconds"] > 0.1}


@pytest.mark.shells
class TestUnreadLog:
    """Who reads the log may hang (``lodestar … 2>&1 | logger``); we do not (N5, N7)."""

    @pytest.mark.proves("N5")
    def test_a_server_goes_on(self, unread: int) -> None:
        """N5: it serves, and ends at SIGTERM; the first line of its log stopped it."""
        with subprocess.Popen(
            [sys.executable, "-m", "lodestar", "server", "--bind", "tcp://127.0.0.1:0"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=unread,
            text=True,
        ) as server:
            try:
                assert server.stdout is not None
                url = Lines(server.stdout).next().removeprefix("serving ")
                for _ in range(2):
                    assert ask_here("leaders", "--url", url).exit_code == 0
                server.terminate()
                assert server.wait(WAIT_SECONDS) == 0
            finally:
                server.kill()

    @pytest.mark.proves("N7")
    def test_a_leader_runs_its_command(
        self, unread: int, leader_server_url: str
    ) -> None:
        """N7: it says nothing then, and ends the command when it is asked to."""
        at = ("--url", leader_server_url, "--cluster-id", "unread")
        with subprocess.Popen(
            [
                *(sys.executable, "-m", "lodestar", "elect", "job", "h:1", *at),
                *("--", "sh", "-c", "echo leading; exec sleep 600"),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=unread,
            text=True,
        ) as elected:
            try:
                assert elected.stdout is not None
                assert Lines(elected.stdout).next() == "leading"
                assert ask_here("revoke", "job", *at).exit_code == 0
                assert elected.wait(WAIT_SECONDS) == 1
            finally:
                elected.kill()
