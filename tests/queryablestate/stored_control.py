"""Leader stores and elections of a test's own, which fail when they are told to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast, final
from uuid import UUID, uuid4

from attrs import define, field

from election import Delete, LeaderElection, LeaderSession, LeaderStore, VersionedValue
from nameservice import QUERY_PROXY, Epoch, LeaderSessionId, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import StoreOperation


__all__ = ["FakeElection", "FakeStore", "leader_session"]


def leader_session(epoch: int = 7) -> LeaderSession:
    """Return a leadership that no other has."""
    return LeaderSession(leader_session_id=LeaderSessionId(uuid4()), epoch=Epoch(epoch))


@final
class FakeStore:
    """
    The driver of a leader store in a dict.

    Attributes:
        values: What is stored.
        before_get: Called with each path before it is read; may raise.
        before_commit: Called before anything is written; may raise.
        after_commit: Called when it is written; may raise.
    """

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        self.values = {} if values is None else values
        self._versions: dict[str, int] = {}
        self.before_get: Callable[[str], None] = lambda path: None
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self.store = LeaderStore(QUERY_PROXY, self)
        self._lock = threading.Lock()

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        self.before_get(path)
        value = self.values.get(path)
        if value is None:
            return None
        return VersionedValue(value=value, version=self._version(path))

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*, sorted."""
        return sorted(path for path in self.values if path.startswith(prefix))

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        """Do all of *operations*."""
        self.before_commit()
        with self._lock:
            for operation in operations:
                present = self._version(operation.path)
                if operation.version not in {None, present}:
                    raise VersionMismatchError(
                        operation.path, operation.version or 0, present
                    )
            for operation in operations:
                self._versions[operation.path] = self._version(operation.path) + 1
                if isinstance(operation, Delete):
                    self.values.pop(operation.path, None)
                else:
                    self.values[operation.path] = operation.value
        self.after_commit()

    def _version(self, path: str) -> int:
        """Return the version of what a commit, or a test, has put there."""
        return self._versions.get(path, 1) if path in self.values else 0


@final
@define
class FakeElection:
    """
    An election of which a test says whether it believes.

    Attributes:
        believes: Whether it does.
    """

    believes: bool = True
    _asked: list[UUID] = field(factory=list)

    def has_leadership(self, leader_session_id: UUID) -> bool:
        """Return what was told."""
        self._asked.append(leader_session_id)
        return self.believes

    @property
    def as_election(self) -> LeaderElection:
        """Return itself, as the type that it stands for."""
        return cast("LeaderElection", self)
