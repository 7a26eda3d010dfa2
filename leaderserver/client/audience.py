"""`ClientAudience`: the contenders and retrievers of a client, and what they hear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, assert_never, final

from attrs import frozen

from election.holder import DeliverGrant, DeliverRevoke
from leaderserver.client.core.events import (
    DeliverToContender,
    DeliverToRetriever,
    ReportToContender,
    ReportToRetriever,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retrieval import RetrieverEvent


__all__ = ["ClientAudience", "Telling"]

T = TypeVar("T")

Telling: TypeAlias = (
    DeliverToContender | ReportToContender | DeliverToRetriever | ReportToRetriever
)


@final
@frozen
class _Member(Generic[T]):
    """How one is told of news, and of what went wrong."""

    deliver: Callable[[T], None]
    fail: Callable[[Exception], None]


@final
class ClientAudience:
    """
    Who is told of what happens.

    Members come and go on any thread, and are told on the link's.
    """

    def __init__(self) -> None:
        self._contenders: dict[str, _Member[DeliverGrant | DeliverRevoke]] = {}
        self._retrievers: dict[int, _Member[RetrieverEvent]] = {}
        # Since when messages could flow last.
        self._told_of_refusal: set[str | int] = set()

    def add_contender(
        self,
        contender_id: str,
        *,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Tell a contender from now on."""
        self._contenders[contender_id] = _Member(deliver, fail)

    def remove_contender(self, contender_id: str) -> None:
        """Tell a contender nothing more."""
        self._contenders.pop(contender_id, None)

    def add_retriever(
        self,
        retriever_id: int,
        *,
        deliver: Callable[[RetrieverEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Tell a retriever from now on."""
        self._retrievers[retriever_id] = _Member(deliver, fail)

    def remove_retriever(self, retriever_id: int) -> None:
        """Tell a retriever nothing more."""
        self._retrievers.pop(retriever_id, None)

    def tell(self, telling: Telling) -> None:
        """Tell one member, if it is still there."""
        match telling:
            case DeliverToContender(contender_id=contender_id, effect=delivered):
                contender = self._contenders.get(contender_id)
                if contender is not None:
                    contender.deliver(delivered)
            case ReportToContender(contender_id=contender_id, error=error):
                contender = self._contenders.get(contender_id)
                if contender is not None:
                    contender.fail(error)
            case DeliverToRetriever(retriever_id=retriever_id, event=event):
                retriever = self._retrievers.get(retriever_id)
                if retriever is not None:
                    retriever.deliver(event)
            case ReportToRetriever(retriever_id=retriever_id, error=error):
                retriever = self._retrievers.get(retriever_id)
                if retriever is not None:
                    retriever.fail(error)
            case _:
                assert_never(telling)

    def all_failing(self) -> Sequence[Callable[[Exception], None]]:
        """Return how all of them hear of what went wrong."""
        members: list[_Member[Any]] = [
            *self._contenders.values(),
            *self._retrievers.values(),
        ]
        return [member.fail for member in members]

    def admitted(self) -> None:
        """Heed that messages can flow: all of them hear of the next refusal."""
        self._told_of_refusal.clear()

    def untold_of_refusal(self) -> Sequence[Callable[[Exception], None]]:
        """Return how those hear of a refusal who were not told of it before."""
        members: list[tuple[str | int, _Member[Any]]] = [
            *self._contenders.copy().items(),
            *self._retrievers.copy().items(),
        ]
        untold = [
            member.fail
            for member_id, member in members
            if member_id not in self._told_of_refusal
        ]
        self._told_of_refusal = {member_id for member_id, _ in members}
        return untold
