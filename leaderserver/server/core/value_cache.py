"""
`ValueCache`: values that were read from the data directory, kept in memory; pure.

Theory of operation.  A value is kept as it was read until a write of its component is
asked for; the next read finds it on disk.  A read takes its time, and a write that is
asked for meanwhile may be done before the read is told of.  So what a read has found is
kept only if no write at all was asked for after it.

Many watch one path, and all of them read it when it has changed: one of these reads
goes to the disk, and a slow disk delays no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from leaderserver.server.core.memory_plan import name_cost_bytes


if TYPE_CHECKING:
    from election import VersionedValue


__all__ = ["ValueCache"]

_ENTRY_COST_BYTES: Final = 512
"""What a value costs beside its bytes and its names."""


@final
class ValueCache:
    """
    Values by component and path; the one that was asked for longest ago goes first.

    Args:
        size_bytes_max: What they may cost in sum.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._values: dict[tuple[str, str], VersionedValue] = {}
        self._paths: dict[str, set[str]] = {}
        self._size_bytes = 0
        self._newest_write = 0

    @property
    def size_bytes(self) -> int:
        """Return what is kept costs, about."""
        return self._size_bytes

    def limit(self, size_bytes_max: int) -> None:
        """Set what they may cost from now on."""
        self._size_bytes_max = size_bytes_max
        self._make_room()

    def find(self, component_id: str, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None if that must be read."""
        value = self._values.pop((component_id, path), None)
        if value is not None:
            self._values[component_id, path] = value  # asked for just now
        return value

    def note_read(
        self, number: int, component_id: str, path: str, value: VersionedValue
    ) -> None:
        """Keep what the read that was asked for as *number* has found, if it may be."""
        if number < self._newest_write:
            return
        self._drop(component_id, path)
        self._values[component_id, path] = value
        self._paths.setdefault(component_id, set()).add(path)
        self._size_bytes += _cost_bytes(component_id, path, value)
        self._make_room()

    def note_write(self, number: int, component_id: str) -> None:
        """Forget a component: a write of it was asked for, as *number*."""
        self._newest_write = number
        for path in tuple(self._paths.get(component_id, ())):
            self._drop(component_id, path)

    def _make_room(self) -> None:
        while self._size_bytes > self._size_bytes_max:
            self._drop(*next(iter(self._values)))

    def _drop(self, component_id: str, path: str) -> None:
        value = self._values.pop((component_id, path), None)
        if value is None:
            return
        self._size_bytes -= _cost_bytes(component_id, path, value)
        paths = self._paths[component_id]
        paths.discard(path)
        if not paths:
            del self._paths[component_id]


def _cost_bytes(component_id: str, path: str, value: VersionedValue) -> int:
    names_bytes = name_cost_bytes(component_id) + name_cost_bytes(path)
    return _ENTRY_COST_BYTES + names_bytes + len(value.value)
