"""
How fast this checkout is next to another one: ``python -m benchmarks.against OTHER``.

OTHER is the directory of another checkout, whose dependencies this one's environment
has.  Workload: for each a LeaderServer, a proxy, a node with 10,000 keys and a client,
each a process of its own, on loopback.  Both are asked by turns, in random order, so
that they meet the same machine.  All reads of state go through the proxy.

Prints for each question the median time and processor time of one call, by process, and
what this checkout's are by the other's.  Unit: microseconds.  Bad: a ratio above 1.05.
One start of a process differs from the next by up to a tenth, so there are several.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks._turns import PROCESSES


if TYPE_CHECKING:
    from collections.abc import Sequence


_QUESTIONS: Final = {
    "put": ("put to a leader store", 400),
    "get": ("get from a leader store", 400),
    "get_state": ("get of state, one at a time", 1_000),
    "get_outstanding": ("get of state, 64 outstanding", 8_000),
    "get_many": ("get_many of 1,000 keys", 40),
}
_START_COUNT: Final = 5
_ROUND_COUNT: Final = 8


class _Found(defaultdict[tuple[str, str], list[list[float]]]):
    """What calls took, by the question and by which side was asked."""

    def __init__(self) -> None:
        super().__init__(list)


class _Side:
    """The processes of one checkout."""

    def __init__(self, directory: Path, opened: ExitStack) -> None:
        self._process = opened.enter_context(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("_turns.py"))],
                cwd=directory,
                env=os.environ | {"PYTHONPATH": str(directory)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def read(self) -> str:
        """Return the next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("one of the checkouts does not work: see above")
        return line

    def ask(self, question: str, count: int) -> list[float]:
        """Return how long each call took, and the processor time of each process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question} {count}\n")
        self._process.stdin.flush()
        return [float(value) for value in self.read().split()]


def main(arguments: Sequence[str]) -> int:
    """Measure, and print; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against")
    parser.add_argument("other", metavar="OTHER", type=Path, help="another checkout")
    parser.add_argument("--starts", type=int, default=_START_COUNT, metavar="N")
    parser.add_argument("--rounds", type=int, default=_ROUND_COUNT, metavar="N")
    parser.add_argument(
        "--tiny", action="store_true", help="see that it works, in a single short round"
    )
    options = parser.parse_args(arguments)
    if not (options.other / "benchmarks" / "_state_cluster.py").is_file():
        parser.error(f"{options.other} is no checkout with these benchmarks")
    if min(options.starts, options.rounds) < 1:
        parser.error("--starts and --rounds are 1 at least")
    directories = {"this": Path(__file__).parents[1], "other": options.other.resolve()}
    found = _Found()
    for _ in range(1 if options.tiny else options.starts):
        with ExitStack() as opened:
            sides = {
                name: _Side(directory, opened)
                for name, directory in directories.items()
            }
            for side in sides.values():
                assert side.read() == "ready\n"
            if options.tiny:
                _ask(sides, found, is_tiny=True)
                break
            _ask(sides, _Found())  # to warm up
            for _ in range(options.rounds):
                _ask(sides, found)
    _print(found)
    return 0


def _ask(sides: dict[str, _Side], found: _Found, *, is_tiny: bool = False) -> None:
    """Ask both sides each question once, and add to what was found."""
    for question, (_, count) in _QUESTIONS.items():
        for name in random.sample(list(sides), len(sides)):
            took = sides[name].ask(question, 1 if is_tiny else count)
            found[question, name].append(took)


def _print(found: _Found) -> None:
    columns = ("time", *PROCESSES)
    print(f"{'':38}" + "".join(f"{column:>10}" for column in columns))
    for question, (text, _) in _QUESTIONS.items():
        this, other = (
            [median(column) for column in zip(*found[question, name], strict=True)]
            for name in ("this", "other")
        )
        for name, row in (("this", this), ("other", other)):
            print(f"{text:31} {name:6}" + "".join(f"{one:10.1f}" for one in row))
        ratios = [
            one / two if two else 0.0 for one, two in zip(this, other, strict=True)
        ]
        print(f"{'':31} {'by':6}" + "".join(f"{one:10.3f}" for one in ratios))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
