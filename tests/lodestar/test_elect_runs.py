from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing.tcp_proxy import TCPProxy
from tests.lodestar.running import (
    WAIT_SECONDS,
    Running,
    ask_here,
    contenders_of,
    on_both,
    run,
)


pytestmark = pytest.mark.shells

# Says that it leads, and how it is ended: by TERM, which it takes its time over.
POLITE = """
trap 'echo asked; sleep 0.02; echo done; exit 5' TERM
echo leading $LODESTAR_EPOCH
while :; do sleep 600 & wait; done
"""
# Says that it leads, and does not end by itself.
STUBBORN = """
trap 'echo asked' TERM
echo leading $LODESTAR_EPOCH
while :; do sleep 600 & wait; done
"""


@pytest.fixture
def at(url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", url, "--cluster-id", cluster_id)


def leading_epoch(elected: Running) -> int:
    """Return the epoch under which the command runs, once it does."""
    return int(elected.out.until("leading").split()[1])


@pytest.mark.proves("N7")
class TestCommand:
    """What the command is given, and what becomes of its end (N7)."""

    @on_both
    def test_it_runs_under_the_epoch_that_everybody_sees(
        self, at: tuple[str, ...]
    ) -> None:
        """N7: LODESTAR_EPOCH and the leader session id are those of the leadership."""
        script = "echo $LODESTAR_EPOCH $LODESTAR_LEADER_SESSION_ID; exec sleep 600"
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", script) as one:
            epoch, session_id = one.out.next().split()
            result = ask_here("leader", "flights", "--field", "epoch", *at)
            assert result.out.strip() == epoch
            result = ask_here("leader", "flights", "--field", "session", *at)
            assert result.out.strip() == session_id
            one.end()

    @pytest.mark.parametrize(
        ("script", "exit_code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)]
    )
    def test_its_exit_code_is_ours(
        self, script: str, exit_code: int, at: tuple[str, ...]
    ) -> None:
        """N7: a command that ends by itself says how elect ends, and resigns."""
        result = run("elect", "flights", "a:1", *at, "--", "sh", "-c", script)
        assert result.exit_code == exit_code, result.err
        assert ask_here("contenders", "flights", *at).exit_code == 3

    def test_arguments_reach_it_as_they_are(self, at: tuple[str, ...]) -> None:
        """N7: what follows the first ``--`` is the command's alone."""
        result = run(
            *("elect", "flights", "a:1", *at),
            *("--", "printf", "%s|", "--url", "--", "a b", "--json"),
        )
        assert result.out == "--url|--|a b|--json|"

    def test_it_does_not_run_before_we_lead(self, at: tuple[str, ...]) -> None:
        """N7: the second waits for its turn, and runs when the first is over."""
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", POLITE) as one:
            epoch = leading_epoch(one)
            with Running(
                *("elect", "flights", "b:1", *at, "--", "sh", "-c", POLITE)
            ) as two:
                contenders_of("flights", at, count=2)
                assert two.out.seen == []
                assert one.end().exit_code == 0
                assert leading_epoch(two) > epoch
                two.end()

    def test_giving_up_waiting(self, at: tuple[str, ...]) -> None:
        """N7: --wait bounds how long we contend; the command was never run."""
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", POLITE) as one:
            leading_epoch(one)
            result = run(
                *("elect", "flights", "b:1", "--wait", "0.3", *at),
                *("--", "echo", "ran"),
            )
            assert (result.exit_code, result.out) == (1, "")
            assert "did not come to lead flights" in result.err
            one.end()


class TestStopped:
    """Our own end is the command's end first (N7)."""

    @pytest.mark.proves("N7")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_the_command_is_asked_and_then_we_resign(
        self, number: signal.Signals, at: tuple[str, ...]
    ) -> None:
        """N5, N7: TERM, the command's own end, resignation, exit code 0."""
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", POLITE) as one:
            leading_epoch(one)
            result = one.end(number)
        assert (result.exit_code, result.out) == (0, "asked\ndone")
        assert ask_here("contenders", "flights", *at).exit_code == 3

    @pytest.mark.proves("N7")
    def test_a_command_that_will_not_end_is_killed_after_its_grace(
        self, at: tuple[str, ...]
    ) -> None:
        """N7: KILL follows TERM."""
        with Running(
            *("elect", "flights", "a:1", "--grace-seconds", "1", *at),
            *("--", "sh", "-c", STUBBORN),
        ) as one:
            leading_epoch(one)
            result = one.end()
        assert (result.exit_code, result.out) == (0, "asked")

    def test_stopping_while_we_wait(self, at: tuple[str, ...]) -> None:
        """N5: who has not led yet ends as cleanly, and leaves the queue."""
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", POLITE) as one:
            leading_epoch(one)
            with Running("elect", "flights", "b:1", *at, "--", "true") as two:
                contenders_of("flights", at, count=2)
                assert two.end().exit_code == 0
            assert len(contenders_of("flights", at, count=1)) == 1
            one.end()


@pytest.mark.proves("N7")
class TestLost:
    """A leadership that is over is the command's end (N7)."""

    @on_both
    def test_a_revoked_leader_ends_its_command(self, at: tuple[str, ...]) -> None:
        """N7: TERM, then our exit code 1 and a line that says why."""
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", POLITE) as one:
            epoch = leading_epoch(one)
            assert ask_here("revoke", "flights", *at).exit_code == 0
            result = one.result()
        assert (result.exit_code, result.out) == (1, "asked\ndone")
        assert f"lost leadership of flights, epoch {epoch}" in result.err

    def test_with_repeat_it_contends_again(self, at: tuple[str, ...]) -> None:
        """N7: --repeat runs the command anew under the next, higher epoch."""
        with Running(
            *("elect", "flights", "a:1", "--repeat", *at),
            *("--", "sh", "-c", POLITE),
        ) as one:
            first = leading_epoch(one)
            assert ask_here("revoke", "flights", *at).exit_code == 0
            assert leading_epoch(one) > first
            assert one.end().exit_code == 0

    def test_a_successor_never_runs_beside_a_stubborn_command(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """N7: a revocation is acknowledged when the command is gone, not before."""
        # As long as anything of the first command lives, it holds this lock.
        lock = f"exec 9>'{tmp_path}/lock'; flock --nonblock 9"
        script = f"{lock}; {STUBBORN}"
        successor = f"{lock} && echo leading $LODESTAR_EPOCH"
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", script) as one:
            first = leading_epoch(one)
            with Running(
                *("elect", "flights", "b:1", *at, "--", "sh", "-c", successor)
            ) as two:
                contenders_of("flights", at, count=2)
                assert ask_here("revoke", "flights", *at).exit_code == 0
                assert leading_epoch(two) > first
                assert two.result().exit_code == 0
            assert one.result().exit_code == 1


class TestOutOfContact:
    # Writes down when it was asked, and every moment at which it was still alive.
    DIARY = """
import signal, sys, time
diary = open(sys.argv[1], "w", buffering=1)
signal.signal(signal.SIGTERM, lambda *_: diary.write(f"asked {time.monotonic()}\\n"))
print("leading 0", flush=True)
while True:
    diary.write(f"alive {time.monotonic()}\\n")
    time.sleep(0.001)
"""

    @pytest.mark.proves("E4", "N7")
    def test_the_command_is_over_before_belief_ends(
        self, leader_server_url: str, cluster_id: str, tmp_path: Path
    ) -> None:
        """N7, E4: cut off, a leader ends its command before 0.9 lease have passed."""
        server = HAConfig(url=leader_server_url).server_addresses[0]
        diary = tmp_path / "diary"
        lease_seconds = 1.0
        with TCPProxy((server.host, server.port)) as proxy:
            url = f"leaderserver://127.0.0.1:{proxy.port}"
            at = ("--url", url, "--cluster-id", cluster_id)
            lease = ("--lease-seconds", str(lease_seconds))
            command = (sys.executable, "-c", self.DIARY, str(diary))
            with Running("elect", "flights", "a:1", *at, *lease, "--", *command) as one:
                leading_epoch(one)
                proxy.cut()
                cut_seconds = time.monotonic()
                assert one.result().exit_code == 1
        entries = [line.split() for line in diary.read_text().splitlines()]
        asked = [float(each[1]) for each in entries if each[0] == "asked"]
        alive = [float(each[1]) for each in entries if each[0] == "alive"]
        assert len(asked) == 1
        assert asked[0] < alive[-1] < cut_seconds + 0.9 * lease_seconds


class TestKilled:
    @pytest.mark.proves("N7")
    def test_the_command_dies_with_us(self, at: tuple[str, ...]) -> None:
        """N7: SIGKILL of elect ends the command and what it has started."""
        with Running("elect", "flights", "a:1", *at, "--", "sh", "-c", STUBBORN) as one:
            leading_epoch(one)
            one.process.kill()
            # The command and its `sleep` hold our standard output: it ends with them.
            assert one.result().exit_code == -signal.SIGKILL


@on_both
@pytest.mark.proves("N7")
def test_services_of_a_program_and_the_command_line_meet(
    at: tuple[str, ...], cluster_id: str
) -> None:
    """N7: a program finds the leader that the command line has put there."""
    config = HAConfig(url=at[1], cluster_id=cluster_id)
    with (
        open_ha_services(config) as ha,
        ha.get_leader_retriever("flights") as retriever,
        Running("elect", "flights", "a:1", *at, "--", "sh", "-c", POLITE) as one,
    ):
        epoch = leading_epoch(one)
        leader = retriever.wait_for_leader(WAIT_SECONDS)
        assert (leader.address, leader.epoch) == ("a:1", epoch)
        one.end()
