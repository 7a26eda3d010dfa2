"""The benchmarks, each in tiny sizes: they must not rot."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.__main__ import NAMES, main
from benchmarks._harness import choose_tiny_sizes, sized
from benchmarks.against import main as against


ROOT: Final = Path(__file__).parent.parent.parent
WITH_SPARK: Final = ("state_publish", "standby")

# Generous: it bounds how long a broken benchmark takes, not how fast one must be.  It
# is less than the timeout of a test, which would leave the processes.
TIMEOUT_SECONDS: Final = 280.0

# Name, median, p99, maximum, count and unit.
FIGURE: Final = re.compile(r"^\S.*( +-?[\d,]+\.\d){3}  \d+  ", re.MULTILINE)


def run_tiny(name: str) -> str:
    """Run a benchmark, which must succeed; return what it has printed."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--tiny", name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            if process.poll() is None:
                # With the servers that it has started: they hold the pipe, too.
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    return printed


def results_of(name: str) -> set[Path]:
    """Return the results that are kept of a benchmark."""
    return set((ROOT / "benchmarks/results").glob(f"{name}-*.json"))


def check(name: str) -> None:
    """See that a benchmark prints figures, and keeps none."""
    kept = results_of(name)
    _, _, table = run_tiny(name).partition(f"\n{name}  (tiny sizes, ")
    assert FIGURE.search(table)
    assert results_of(name) == kept


@pytest.mark.shells
@pytest.mark.tiny
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITH_SPARK])
def test_one_without_spark(name: str) -> None:
    """It prints a table with figures."""
    check(name)


@pytest.mark.shells
@pytest.mark.tiny
def test_two_checkouts(capfd: pytest.CaptureFixture[str]) -> None:
    """One of them is as good as two: each question has a row of ratios."""
    assert against([str(ROOT), "--tiny"]) == 0
    printed = capfd.readouterr().out
    assert len(re.findall(r"^ +by +\d+\.\d{3} ", printed, re.MULTILINE)) == 5


@pytest.mark.shells
@pytest.mark.tiny
@pytest.mark.spark
@pytest.mark.parametrize("name", WITH_SPARK)
def test_one_with_spark(name: str) -> None:
    """It prints a table with figures."""
    check(name)


def test_each_benchmark_has_a_name() -> None:
    """What has none is neither measured by ``make bench`` nor run here."""
    files = (ROOT / "benchmarks").glob("bench_*.py")
    assert {path.stem for path in files} == {f"bench_{name}" for name in NAMES}
    assert set(WITH_SPARK) <= set(NAMES)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([str(ROOT / "docs")], "docs is no checkout with these benchmarks"),
        ([str(ROOT), "--rounds", "0"], "--starts and --rounds are 1 at least"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started, and what to change is told."""
    with pytest.raises(SystemExit):
        against(arguments)
    assert problem in capsys.readouterr().err


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is measured, and the names that there are are told."""
    assert main(["--tiny", "codec", "codecs"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("no such benchmark: codecs; known: core_step, codec, ")


def test_sizes_are_full_unless_tiny_ones_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Child processes inherit the choice."""
    monkeypatch.setenv("BENCHMARKS_TINY", "")  # what is set is as it was afterwards
    assert sized(1_000, tiny=1) == 1_000
    choose_tiny_sizes()
    assert sized(1_000, tiny=1) == 1
