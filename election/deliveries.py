"""
`Deliveries`: what one contender is told and asks for, in order.

A grant that was not delivered before its revocation came is taken out together with
it: the contender hears of neither, and the queue stays short however slow it is.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, final

from attrs import frozen

from election.holder import DeliverGrant, DeliverRevoke


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from uuid import UUID


__all__ = ["Deliveries", "Delivery", "Fail", "Run", "Taken"]


@frozen(kw_only=True)
class Run:
    """What `run_if_leader` was asked to do."""

    leader_session_id: UUID
    action: Callable[[], Any]
    future: Future[Any]


@frozen(kw_only=True)
class Fail:
    """What the contender should hear of."""

    error: Exception


Delivery: TypeAlias = DeliverGrant | DeliverRevoke | Run | Fail


@frozen(kw_only=True)
class Taken:
    """What `Deliveries.take` has found."""

    delivery: Delivery | None
    """The oldest; None if there is none."""

    collapsed_count: int
    """Revocations that need not be delivered, since the last time."""

    has_more: bool


@final
class Deliveries:
    """
    A queue of one election.

    *Thread-safe*, but for signal handlers: its methods take a lock.  The flag may be
    set at any moment; what is put in after that is refused.
    """

    def __init__(self) -> None:
        self.is_closing = False
        self._lock = threading.Lock()
        self._queue: deque[Delivery] = deque()
        self._collapsed_count = 0

    def put(self, delivery: Delivery) -> bool:
        """Add *delivery*; return whether it will be looked at."""
        with self._lock:
            if self.is_closing:
                # Who closes revokes what was delivered, and delivers nothing else.
                return False
            if isinstance(delivery, DeliverRevoke):
                undelivered = DeliverGrant(session=delivery.session)
                if undelivered in self._queue:
                    self._queue.remove(undelivered)
                    self._collapsed_count += 1
                    return True
            self._queue.append(delivery)
            return True

    def take(self) -> Taken | None:
        """Remove and return what is next, or None if the election closes."""
        with self._lock:
            if self.is_closing:
                return None
            collapsed_count, self._collapsed_count = self._collapsed_count, 0
            delivery = self._queue.popleft() if self._queue else None
            return Taken(
                delivery=delivery,
                collapsed_count=collapsed_count,
                has_more=bool(self._queue),
            )

    def take_all(self) -> Sequence[Delivery]:
        """Remove and return all that is left."""
        with self._lock:
            left = tuple(self._queue)
            self._queue.clear()
        return left
