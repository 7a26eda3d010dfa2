"""A driver that says what a test tells it to say."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final
from uuid import UUID

from retrieval import (
    ContactRestored,
    LeaderInformation,
    Publication,
    PublicationReceived,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from retrieval import RetrieverEvent


def leader(epoch: int, address: str = "a:1") -> LeaderInformation:
    """Return the leader of *epoch*, whose identity goes with its epoch."""
    return LeaderInformation(
        address=address, leader_session_id=UUID(int=epoch), epoch=epoch
    )


@final
class FakeRetrievalDriver:
    """
    A name service of one component in memory.

    It delivers under a lock of its own, as a driver may: a retriever that called it
    back from there would hang.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self._deliver: Callable[[RetrieverEvent], None] | None = None
        self._fail: Callable[[Exception], None] | None = None
        self._confirm_count = 0
        self._publication: Publication | None = None

    def open(
        self,
        deliver: Callable[[RetrieverEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Answer at once with what was published so far."""
        with self._lock:
            self.calls.append("open")
            self._deliver = deliver
            self._fail = fail
            deliver(ContactRestored(publication=self._publication))

    def close(self) -> None:
        """Write it down; what is told afterwards is delivered all the same."""
        with self._lock:
            self.calls.append("close")

    def publish(self, leader: LeaderInformation | None, epoch: int = 0) -> None:
        """Publish *leader*, or that the leadership of *epoch* is over."""
        with self._lock:
            self._confirm_count += 1
            self._publication = Publication(
                epoch=epoch if leader is None else leader.epoch,
                confirm_count=self._confirm_count,
                leader=leader,
            )
            if self._deliver is not None:
                self._deliver(PublicationReceived(publication=self._publication))

    def deliver(self, event: RetrieverEvent) -> None:
        """Deliver *event* as it is."""
        with self._lock:
            assert self._deliver is not None
            self._deliver(event)

    def fail(self, error: Exception) -> None:
        """Report *error*."""
        with self._lock:
            assert self._fail is not None
            self._fail(error)
