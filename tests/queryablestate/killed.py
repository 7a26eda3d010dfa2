"""A process that writes to a store, and is killed at some moment."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType


ROOT = Path(__file__).parents[2]


def said_until_killed(
    module: ModuleType,
    directory: Path,
    *,
    line_count: int,
    more_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """
    Run *module* on *directory*, kill it, and return the words of each line it wrote.

    Args:
        module: Its ``main`` writes lines, and does not end.
        directory: Of the store.
        line_count: How many lines it writes at least.
        more_seconds: How long it goes on after these.
        environment: Its variables; None for our own.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module.__name__, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as child:
        assert child.stdout is not None
        try:
            lines = [child.stdout.readline() for _ in range(line_count)]
            # Only time gets us into the middle of what it does next.
            threading.Event().wait(more_seconds)
        finally:
            child.kill()
        assert "" not in lines, "it ended by itself"
        # `communicate` would miss what was read ahead behind these lines.
        lines += child.stdout
    # It may have died within its last line: a write for each word, if unbuffered.
    return [line.split() for line in lines if line.endswith("\n")]
