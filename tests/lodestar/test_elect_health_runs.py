from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.lodestar.running import (
    AS_REAPER,
    Running,
    ask_here,
    contenders_of,
    run,
)
from tests.recording import wait_until


pytestmark = pytest.mark.shells

# Says that it leads, and how it is ended: by TERM, which it takes its time over.
POLITE = """
trap 'echo asked; sleep 0.02; echo done; exit 5' TERM
echo leading $LODESTAR_EPOCH
while :; do sleep 600 & wait; done
"""
STUBBORN = """
trap 'echo asked' TERM
echo leading $LODESTAR_EPOCH
while :; do sleep 600 & wait; done
"""
OFTEN = ("--health-interval-seconds", "0.05", "--health-timeout-seconds", "10")


@pytest.fixture
def at(url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", url, "--cluster-id", cluster_id)


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """Return a file that is there as long as all is well."""
    flag = tmp_path / "well"
    flag.touch()
    return flag


def elect(
    at: tuple[str, ...], flag: Path, *options: str, script: str = POLITE
) -> Running:
    """Run ``elect`` with the check that *flag* is there."""
    return Running(
        *("elect", "flights", "a:1", "--health", f"test -e '{flag}'"),
        *(*OFTEN, *options, *at, "--", "sh", "-c", script),
    )


def leading_epoch(elected: Running) -> int:
    """Return the epoch under which the command runs, once it does."""
    return int(elected.out.until("leading").split()[1])


@pytest.mark.proves("N7")
class TestHealth:
    """N7: who is not well does not lead."""

    def test_who_is_not_well_does_not_contend(
        self, at: tuple[str, ...], flag: Path
    ) -> None:
        """N7: contending begins when the check passes; a signal ends the waiting."""
        flag.unlink()
        with elect(at, flag) as one:
            one.err.until("not contending for flights until the health check passes")
            assert ask_here("contenders", "flights", *at).exit_code == 3
            flag.touch()
            leading_epoch(one)
            assert one.end().exit_code == 0
        flag.unlink()
        with elect(at, flag) as one:
            one.err.until("not contending")
            result = one.end()
            assert (result.exit_code, result.out) == (0, "")
        result = run(
            *("elect", "flights", "a:1", "--health", "false", "--wait", "0.3"),
            *(*OFTEN, *at, "--", "echo", "ran"),
        )
        assert (result.exit_code, result.out) == (1, "")
        assert "did not come to lead flights in time" in result.err

    def test_who_is_ill_resigns_and_contends_again_when_well(
        self, at: tuple[str, ...], flag: Path
    ) -> None:
        """N7: the command is ended first; the next leads; the epoch rises each time."""
        with elect(at, flag) as one:
            first = leading_epoch(one)
            with Running(
                *("elect", "flights", "b:1", *at, "--", "sh", "-c", POLITE)
            ) as two:
                contenders_of("flights", at, count=2)
                flag.unlink()
                assert one.out.next() == "asked"
                assert one.out.next() == "done"
                second = leading_epoch(two)
                assert second > first
                one.err.until("the health check fails: resigned from flights")
                assert len(contenders_of("flights", at, count=1)) == 1
                flag.touch()
                contenders_of("flights", at, count=2)
                assert two.end().exit_code == 0
            assert leading_epoch(one) > second
            assert one.end().exit_code == 0

    def test_a_command_that_will_not_end_is_killed(
        self, at: tuple[str, ...], flag: Path
    ) -> None:
        """N7: KILL follows TERM; then we resign, and wait until we are well."""
        with elect(at, flag, "--grace-seconds", "0.2", script=STUBBORN) as one:
            leading_epoch(one)
            flag.unlink()
            one.err.until("the health check fails")
            assert ask_here("contenders", "flights", *at).exit_code == 3
            assert one.end().exit_code == 0

    def test_a_few_failures_are_borne(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """N7: only a number of them in a row end a leadership."""
        count = tmp_path / "count"
        count.touch()
        # Fails twice, passes once, and so on.
        check = f"echo x >>'{count}'; test $(($(wc -l <'{count}') % 3)) = 1"
        with Running(
            *("elect", "flights", "a:1", "--health", check, *OFTEN, *at),
            *("--", "sh", "-c", POLITE),
        ) as one:
            epoch = leading_epoch(one)
            seen = len(count.read_text().split())
            wait_until(lambda: len(count.read_text().split()) > seen + 12)
            result = ask_here("leader", "flights", "--field", "epoch", *at)
            assert int(result.out) == epoch
            assert one.end().exit_code == 0


class TestCheck:
    """What the check is given, and what becomes of one that does not end."""

    @pytest.mark.proves("N7")
    def test_it_knows_whether_we_lead(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """N7: LODESTAR_EPOCH is set while the command runs, and only then."""
        diary = tmp_path / "diary"
        check = f"echo epoch ${{LODESTAR_EPOCH:-none}} >>'{diary}'; echo noise; cat"
        with Running(
            *("elect", "flights", "a:1", "--health", check, *OFTEN, *at),
            *("--", "sh", "-c", POLITE),
        ) as one:
            epoch = leading_epoch(one)
            wait_until(lambda: f"epoch {epoch}\n" in diary.read_text())
            assert diary.read_text().startswith("epoch none\n")
            result = one.end()
        # Standard input and output are the command's.
        assert "noise" not in result.out
        assert "noise" in result.err

    @pytest.mark.proves("N7")
    def test_one_that_hangs_has_failed_and_leaves_nothing_behind(
        self, at: tuple[str, ...], flag: Path, tmp_path: Path
    ) -> None:
        """N7, N3: it is killed with all that it has started; no zombies gather."""
        pids = tmp_path / "pids"
        pids.touch()
        check = (
            f"test -e '{flag}' || {{ sleep 600 & echo $$ $! >>'{pids}'; sleep 600; }}"
        )
        arguments = (
            *("elect", "flights", "a:1", "--health", check, *at),
            *("--health-interval-seconds", "0.05", "--health-timeout-seconds", "0.3"),
            *("--health-failures", "2", "--", "sh", "-c", POLITE),
        )
        with Running(*arguments, python_arguments=("-c", AS_REAPER)) as one:
            leading_epoch(one)
            flag.unlink()
            one.err.until("the health check fails: resigned from flights")
            wait_until(lambda: len(pids.read_text().splitlines()) >= 6)
            flag.touch()
            leading_epoch(one)
            hung = [int(pid) for pid in pids.read_text().split()]
            wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in hung))
            assert one.end().exit_code == 0

    @pytest.mark.proves("N7")
    def test_it_dies_with_us(self, at: tuple[str, ...], tmp_path: Path) -> None:
        """N7: SIGKILL of elect ends a check that is under way."""
        with Running(
            *("elect", "flights", "a:1", "--health", "echo under way; sleep 600"),
            *(*at, "--health-timeout-seconds", "500", "--", "true"),
        ) as one:
            one.err.until("under way")
            one.process.kill()
            # The check holds our standard error: it ends with it.
            assert one.result().exit_code == -signal.SIGKILL

    def test_settings_of_no_check_are_bad_usage(self, at: tuple[str, ...]) -> None:
        """N5: exit code 2, before anything is asked of anybody."""
        result = run(
            *("elect", "flights", "a:1", "--health-failures", "2", *at, "--", "true")
        )
        assert result.exit_code == 2
        assert "--health" in result.err
