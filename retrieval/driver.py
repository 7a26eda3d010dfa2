"""What a backend must provide so that a `LeaderRetriever` can work over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from collections.abc import Callable

    from retrieval.core import RetrieverEvent


__all__ = ["LeaderRetrievalDriver"]


class LeaderRetrievalDriver(Protocol):
    """
    One subscription of one retriever to one component.

    The driver brings news, judges contact with the name service, and never creates
    anything that could win an election (R6).
    """

    def open(
        self,
        deliver: Callable[[RetrieverEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """
        Begin to bring news; return without waiting for any.

        Args:
            deliver: Takes one event after the other, from a thread of the driver.
                Returns at once, and may be called while the driver holds a lock.
            fail: Takes what the retriever's listener should hear of, such as an
                `AuthenticationError`.  Returns at once likewise.
        """

    def close(self) -> None:
        """
        Stop.  Idempotent; a call of *deliver* may still be under way.

        May come before `open`, or amid it, and comes again after that then.
        """
