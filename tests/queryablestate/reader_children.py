"""The processes that one of ours has started, as the system sees them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from queryablestate.node.readers import process


__all__ = ["children_of", "is_alive", "readers_of"]


def readers_of(process_id: int) -> Sequence[int]:
    """Return the reader processes that a node has started, sorted."""
    return children_of(process_id, process.__name__)


def children_of(process_id: int, module: str) -> Sequence[int]:
    """Return the processes that one has started and that run *module*, sorted."""
    found = []
    for children in Path(f"/proc/{process_id}/task").glob("*/children"):
        try:
            ids = [int(word) for word in children.read_text(encoding="utf-8").split()]
        except OSError:
            continue  # the thread has ended meanwhile
        found += [child for child in ids if _runs(child, module)]
    return sorted(found)


def is_alive(process_id: int) -> bool:
    """Return whether a process runs; one that was not waited for does not."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _runs(process_id: int, module: str) -> bool:
    try:
        line = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return False
    return os.fsencode(module) in line.split(b"\0")
