"""Run the benchmarks: all of them, or those named on the command line."""

from __future__ import annotations

import importlib
import sys


_NAMES = (
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


def main() -> int:
    """Run what is named; return an exit code."""
    names = sys.argv[1:] or _NAMES
    unknown = sorted(set(names) - set(_NAMES))
    if unknown:
        print(
            f"no such benchmark: {', '.join(unknown)}; known: {', '.join(_NAMES)}",
            file=sys.stderr,
        )
        return 2
    for name in names:
        importlib.import_module(f"benchmarks.bench_{name}").run()
    return 0


sys.exit(main())
