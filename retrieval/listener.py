"""Who is told of leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from retrieval.information import LeaderInformation


__all__ = ["LeaderRetrievalListener"]


class LeaderRetrievalListener(Protocol):
    """
    Is told who leads; called one call at a time, on a thread of the retriever.

    A slow listener delays no other: values that are out of date when it
    returns are left out, the latest always arrives (rule R2).
    """

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Record *leader*; None means that there is none now."""

    def handle_error(self, error: Exception) -> None:
        """Record *error*: the retriever's, or one that `notify_leader` raised."""
