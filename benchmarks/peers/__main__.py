"""Ask all questions, or those named on the command line; ``--tiny`` in no time."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final

from benchmarks.peers import (
    ask_failover,
    ask_growth,
    ask_leaders,
    ask_publishing,
    ask_reads,
    ask_sessions,
    ask_stored_state,
)
from benchmarks.peers._interface import Row
from benchmarks.peers._report import publish, table
from benchmarks.peers._sizes import FULL, TINY, Sizes


QUESTIONS: Final[dict[str, Callable[[Sizes, Callable[[str], bool]], list[Row]]]] = {
    "reads": ask_reads.ask,
    "leaders": ask_leaders.ask,
    "failover": ask_failover.ask,
    "sessions": ask_sessions.ask,
    "publishing": ask_publishing.ask,
    "stored_state": ask_stored_state.ask,
    "growth": ask_growth.ask,
}
TINY_QUESTIONS: Final = ("reads", "leaders", "failover", "sessions", "growth")
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
    rows: list[Row] = []
    failed = []
    sizes = TINY if options.tiny else FULL
    for name in options.question or (TINY_QUESTIONS if options.tiny else QUESTIONS):
        began = time.monotonic()
        try:
            found = QUESTIONS[name](sizes, lambda peer: peer.startswith(wanted))
        except Exception as error:  # noqa: BLE001 (the others' figures are kept)
            traceback.print_exc()
            failed.append(name)
            note = f"failed: {error}"
            found = [
                Row(question=name, peer="", figure=None, tail=None, note=note, at=None)
            ]
        rows += found
        # What is known so far is seen, whatever becomes of the rest.
        print(table(found), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    publish(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
