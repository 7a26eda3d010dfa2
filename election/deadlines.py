"""
Many deadlines, of which the earliest counts.

Heartbeats move deadlines later all the time, and few are ever reached.  So the heap
holds one entry per key that may be *too early*, never too late; an entry that comes
up before its deadline is put back.  Moving a deadline later is a store into a dict.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias, final


__all__ = ["DeadlineKey", "Deadlines"]

DeadlineKey: TypeAlias = tuple[str, str]


@final
class Deadlines:
    """At most one deadline per key; equal deadlines come in the order of their keys."""

    def __init__(self) -> None:
        self._deadlines: dict[DeadlineKey, int] = {}
        self._entries: dict[DeadlineKey, int] = {}
        self._heap: list[tuple[int, DeadlineKey]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: DeadlineKey, deadline_ns: int | None) -> None:
        """Set the deadline of *key*, or take it away with None."""
        if deadline_ns is None:
            self._deadlines.pop(key, None)
            return
        self._deadlines[key] = deadline_ns
        entry_ns = self._entries.get(key)
        if entry_ns is None or deadline_ns < entry_ns:
            self._push(key, deadline_ns)

    def earliest_ns(self) -> int | None:
        """Return the earliest deadline, or None if there is none."""
        while self._heap:
            entry_ns, key = self._heap[0]
            deadline_ns = self._deadlines.get(key)
            if self._entries.get(key) != entry_ns:
                heapq.heappop(self._heap)  # an earlier entry has replaced it
            elif deadline_ns is None:
                heapq.heappop(self._heap)
                del self._entries[key]
            elif deadline_ns > entry_ns:
                heapq.heappop(self._heap)
                self._push(key, deadline_ns)
            else:
                return entry_ns
        return None

    def pop_due(self, now_ns: int) -> DeadlineKey | None:
        """Take out and return the key of the earliest deadline that is reached."""
        earliest_ns = self.earliest_ns()
        if earliest_ns is None or earliest_ns > now_ns:
            return None
        _, key = heapq.heappop(self._heap)
        del self._entries[key]
        del self._deadlines[key]
        return key

    def _push(self, key: DeadlineKey, deadline_ns: int) -> None:
        self._entries[key] = deadline_ns
        heapq.heappush(self._heap, (deadline_ns, key))
