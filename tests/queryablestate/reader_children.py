"""The reader processes of a node, as the system sees them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from queryablestate.node.readers import process


__all__ = ["is_alive", "readers_of"]


def readers_of(process_id: int) -> Sequence[int]:
    """Return the reader processes that a process has started, sorted."""
    found = []
    for children in Path(f"/proc/{process_id}/task").glob("*/children"):
        try:
            ids = [int(word) for word in children.read_text(encoding="utf-8").split()]
        except OSError:
            continue  # the thread has ended meanwhile
        found += [child for child in ids if _is_reader(child)]
    return sorted(found)


def is_alive(process_id: int) -> bool:
    """Return whether a process runs; one that was not waited for does not."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _is_reader(process_id: int) -> bool:
    try:
        line = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return False
    return os.fsencode(process.__name__) in line.split(b"\0")
