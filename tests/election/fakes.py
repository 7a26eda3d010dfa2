"""Drivers that say what a test tells them to say."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final
from uuid import UUID

from election import (
    ContenderInformation,
    LeaderSession,
    Put,
    StoreOperation,
    VersionedValue,
)
from election.holder import DeliverGrant, DeliverRevoke
from nameservice import NS_PER_SECOND, LeadershipLostError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def session(epoch: int) -> LeaderSession:
    """Return the leadership of *epoch*, whose identity goes with its epoch."""
    return LeaderSession(leader_session_id=UUID(int=epoch), epoch=epoch)


@final
class FakeElectionDriver:
    """
    A name service with one contender, in memory.

    It delivers under a lock of its own, as a driver may: an election that called it
    back from there would hang.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.published: list[tuple[LeaderSession, str]] = []
        self._lock = threading.Lock()
        self._deliver: Callable[[DeliverGrant | DeliverRevoke], None] | None = None
        self._fail: Callable[[Exception], None] | None = None
        self._held: LeaderSession | None = None

    def open(
        self,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Register; grant nothing before `grant` is called."""
        with self._lock:
            self.calls.append("open")
            self._deliver = deliver
            self._fail = fail

    def believes(self, leader_session_id: UUID) -> bool:
        """Return whether that leadership is held."""
        held = self._held
        return held is not None and held.leader_session_id == leader_session_id

    def belief_left_ns(self, leader_session_id: UUID) -> int:
        """Return a second, as long as that leadership is held."""
        return NS_PER_SECOND if self.believes(leader_session_id) else 0

    def confirm(self, leader_session_id: UUID, address: str) -> None:
        """Publish, if that leadership is held."""
        with self._lock:
            if self._held is None or not self.believes(leader_session_id):
                raise LeadershipLostError("job", None)
            self.published.append((self._held, address))

    def revoke_delivered(self) -> None:
        """Write it down."""
        with self._lock:
            self.calls.append("revoke_delivered")

    def withdraw(self) -> None:
        """Write it down; what is told afterwards is delivered all the same."""
        with self._lock:
            self.calls.append("withdraw")

    def contenders(self) -> Sequence[ContenderInformation]:
        """Return the one contender."""
        return (
            ContenderInformation(
                contender_id="c1",
                session_id="s1",
                address=None,
                is_leader=self._held is not None,
                session_age_seconds=None,
                last_heard_seconds=None,
            ),
        )

    def grant(self, session: LeaderSession) -> None:
        """Make the contender lead."""
        with self._lock:
            assert self._deliver is not None
            self._held = session
            self._deliver(DeliverGrant(session=session))

    def revoke(self) -> None:
        """Make the contender lead no more."""
        with self._lock:
            assert self._deliver is not None
            assert self._held is not None
            revoked = self._held
            self._held = None
            self._deliver(DeliverRevoke(session=revoked))

    def lapse(self) -> None:
        """End belief without telling anybody, as the clock does."""
        self._held = None

    def fail(self, error: Exception) -> None:
        """Report *error*."""
        with self._lock:
            assert self._fail is not None
            self._fail(error)


@final
class FakeStoreDriver:
    """The store of a component that its caller always leads."""

    def __init__(self) -> None:
        self.commits: list[tuple[tuple[StoreOperation, ...], LeaderSession]] = []
        self._values: dict[str, VersionedValue] = {}

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        return self._values.get(path)

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*, sorted."""
        return sorted(path for path in self._values if path.startswith(prefix))

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        """Do all of *operations*."""
        self.commits.append((tuple(operations), session))
        for operation in operations:
            before = self._values.pop(operation.path, None)
            if isinstance(operation, Put):
                version = 0 if before is None else before.version
                self._values[operation.path] = VersionedValue(
                    value=operation.value, version=version + 1
                )
