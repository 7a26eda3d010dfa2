"""The name service: who leads the proxies, and what only the leader may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from election import Delete, Put
from election.store import check_operations
from nameservice import StaleEpochError
from queryablestate.control.job import leader_paths as paths
from queryablestate.proxy.leader_store import StoredControl, _to_jobs


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import StoreOperation


__all__ = ["NameService"]


@final
class NameService:
    """
    Grants leadership under rising epochs; its store takes writes of the leader alone.

    Args:
        on_commit: Is told of every commit that took effect.

    Attributes:
        epoch: Of the present leadership, or of the last one if nobody leads.
        leader: Who leads, or None.
    """

    def __init__(self, on_commit: Callable[[Sequence[StoreOperation]], None]) -> None:
        self._on_commit = on_commit
        self._values: dict[str, bytes] = {}
        self.epoch = 0
        self.leader: str | None = None

    def grant(self, name: str) -> int:
        """Let *name* lead; return the epoch."""
        self.epoch += 1
        self.leader = name
        return self.epoch

    def depose(self) -> None:
        """Let nobody lead."""
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
        check_operations(operations)
        if not self.leads(name, epoch):
            raise StaleEpochError("query-proxy", epoch, self.epoch)
        for operation in operations:
            match operation:
                case Put(path=path, value=value):
                    self._values[path] = value
                case Delete(path=path):
                    self._values.pop(path, None)
        self._on_commit(operations)

    def load(self) -> StoredControl:
        """Return what a new leader reads, by the shipped code."""
        counters = self._values.get(paths.COUNTERS)
        job_paths = sorted(path for path in self._values if path.startswith("jobs/"))
        return StoredControl(
            counters=None if counters is None else paths.decode_counters(counters),
            jobs=_to_jobs(job_paths, [self._values[path] for path in job_paths]),
            nodes=[
                paths.decode_node(self._values[path])
                for path in sorted(self._values)
                if path.startswith("nodes/")
            ],
        )

    def store_id_of(self, node_id: str) -> str | None:
        """Return which data directory the control plane takes for the node's."""
        value = self._values.get(paths.node_path(node_id))
        return None if value is None else paths.decode_node(value).store_id
