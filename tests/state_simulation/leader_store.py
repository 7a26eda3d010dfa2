"""The name service: who leads the proxies, and what only the leader may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from election import Delete, Put
from election.store import check_operations
from nameservice import StaleEpochError
from queryablestate.control.job import leader_paths as paths
from queryablestate.control.large_writes import LARGE, CommitLimits, with_large
from queryablestate.control.stored_control import StoredControl, stored_control


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from election import StoreOperation


__all__ = ["NameService"]


_NODES: Final = "nodes/"


@final
class NameService:
    """
    Grants leadership under rising epochs; its store takes writes of the leader alone.

    Args:
        on_commit: Is told of what has become true, with every commit that took effect.
        limits: How much one commit takes.

    Attributes:
        epoch: Of the present leadership, or of the last one if none leads.
        leader: Who leads, or None.
    """

    def __init__(
        self,
        on_commit: Callable[[Sequence[StoreOperation]], None],
        limits: CommitLimits,
    ) -> None:
        self._on_commit = on_commit
        self._limits = limits
        self._values: dict[str, bytes] = {}
        # Records of nodes as they were, of whose writes the leader has yet to hear.
        self._unheard: dict[str, bytes | None] = {}
        self.epoch = 0
        self.leader: str | None = None

    def grant(self, name: str) -> int:
        """Have *name* lead; return the epoch."""
        self.epoch += 1
        self.leader = name
        return self.epoch

    def depose(self) -> None:
        """Have none lead."""
        self.leader = None

    def leads(self, name: str, epoch: int) -> bool:
        """Return whether *name* leads, and under that epoch."""
        return self.leader == name and self.epoch == epoch

    def commit(
        self, operations: Sequence[StoreOperation], *, name: str, epoch: int
    ) -> None:
        """
        Do all of *operations*, or none (rule L2).

        Raises:
            StaleEpochError: If *name* does not lead under that epoch now.
        """
        checked = check_operations(operations)
        assert len(checked) <= self._limits.operation_count_max
        if not self.leads(name, epoch):
            raise StaleEpochError("query-proxy", epoch, self.epoch)
        before = with_large(self._values)
        self._values = dict(self._values)
        for operation in operations:
            match operation:
                case Put(path=path, value=value):
                    if path.startswith(_NODES):
                        self._unheard.setdefault(path, self._values.get(path))
                    self._values[path] = value
                case Delete(path=path):
                    self._values.pop(path, None)
        self._on_commit(_difference(before, with_large(self._values)))

    @property
    def is_within_large_write(self) -> bool:
        """Return whether some commits of a large write are there, and not all."""
        return any(path.startswith(LARGE) for path in self._values)

    def heard(self) -> None:
        """Take note that the leader knows of all that is written."""
        self._unheard.clear()

    def load(self) -> StoredControl:
        """Return what a new leader reads, by the shipped code."""
        self.heard()
        return stored_control(self._values, self._limits)

    def store_id_of(self, node_id: str) -> str | None:
        """Return which data directory the control plane takes for the node's."""
        return _store_id(with_large(self._values).get(paths.node_path(node_id)))

    def store_id_heard_of(self, node_id: str) -> str | None:
        """Return which one it was when the leader heard of its last write."""
        path = paths.node_path(node_id)
        if path in self._unheard:
            return _store_id(self._unheard[path])
        return self.store_id_of(node_id)


def _store_id(value: bytes | None) -> str | None:
    return None if value is None else paths.decode_node(value).store_id


def _difference(
    before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> Sequence[StoreOperation]:
    """Return what has become true: parts of a large write mean nothing before it is."""
    puts = [
        Put(path, value)
        for path, value in after.items()
        if not path.startswith(LARGE) and before.get(path) != value
    ]
    return [*puts, *(Delete(path) for path in before if path not in after)]
