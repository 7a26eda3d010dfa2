"""Which epoch of which component a server tells those who look for a leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from leaderserver.messages import (
    BatchReply,
    BatchRequest,
    Published,
    Reply,
    Request,
    SnapshotReply,
    SubscribeRequest,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leaderserver.messages import ToClient, ToServer


__all__ = ["ToldEpochs"]


@final
class ToldEpochs:
    """What one server tells; a snapshot is known by the request that it answers."""

    def __init__(self) -> None:
        self._subscribing: dict[tuple[str, int], Sequence[object]] = {}

    def asked(self, peer: str, message: ToServer) -> None:
        """Record a request of *peer*."""
        if isinstance(message, Request):
            body = message.body
            self._subscribing[peer, message.number] = (
                body.bodies if isinstance(body, BatchRequest) else (body,)
            )

    def told(self, peer: object, message: ToClient) -> Iterator[tuple[str, int]]:
        """Yield the components and epochs in *message* that its reader did not name."""
        if isinstance(message, Published):
            yield message.component_id, message.publication.epoch
        if not isinstance(message, Reply) or not isinstance(peer, str):
            return
        body = message.body
        answers = body.bodies if isinstance(body, BatchReply) else (body,)
        asked = self._subscribing.get((peer, message.number), ())
        for request, answer in zip(asked, answers, strict=False):
            if (
                isinstance(request, SubscribeRequest)
                and isinstance(answer, SnapshotReply)
                and answer.publication is not None
                and answer.publication.epoch != request.epoch_seen
            ):
                yield request.component_id, answer.publication.epoch
