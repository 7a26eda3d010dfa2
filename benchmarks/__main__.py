"""Run all benchmarks, or those named on the command line; ``--tiny`` in no time."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks._harness import choose_tiny_sizes


NAMES: Final = (
    "core_step",
    "codec",
    "requests",
    "failover",
    "slow_disk",
    "many_contenders",
    "faces",
    "capacity",
    "state_reads",
    "state_readers",
    "gateway",
    "greedy_reads",
    "state_publish",
    "state_move",
    "large_batch",
    "sql",
    "standby",
)


def main(arguments: Sequence[str]) -> int:
    """Run what is named; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="all, if none is named"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="see that all of it works, in tiny sizes; keep no results",
    )
    options = parser.parse_args(arguments)
    names = options.names or NAMES
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(
            f"no such benchmark: {', '.join(unknown)}; known: {', '.join(NAMES)}",
            file=sys.stderr,
        )
        return 2
    if options.tiny:
        choose_tiny_sizes()  # before a benchmark is imported, which settles its sizes
    for name in names:
        importlib.import_module(f"benchmarks.bench_{name}").run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
