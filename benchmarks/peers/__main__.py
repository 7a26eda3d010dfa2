"""Ask all questions, or those named on the command line; ``--tiny`` in no time."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from benchmarks.peers import ask_reads
from benchmarks.peers._interface import Row
from benchmarks.peers._report import publish
from benchmarks.peers._sizes import FULL, TINY, Sizes


QUESTIONS: Final[dict[str, Callable[[Sizes, Callable[[str], bool]], list[Row]]]] = {
    "reads": ask_reads.ask,
}
TINY_QUESTIONS: Final = ("reads",)
NEED_NOTHING: Final = ("Lodestar", "floor")


def main(arguments: list[str]) -> int:
    """Measure; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("question", nargs="*", choices=[[], *QUESTIONS])
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="see that all of it works, with the peers that need not be installed",
    )
    parser.add_argument(
        "--peer", action="append", help="ask only peers whose names begin so"
    )
    options = parser.parse_args(arguments)
    wanted = tuple(options.peer or (NEED_NOTHING if options.tiny else ("",)))
    rows = []
    for name in options.question or (TINY_QUESTIONS if options.tiny else QUESTIONS):
        began = time.monotonic()
        rows += QUESTIONS[name](
            TINY if options.tiny else FULL, lambda peer: peer.startswith(wanted)
        )
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    publish(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
