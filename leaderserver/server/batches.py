"""`Batches`: what waits until the requests that arrived with it are taken."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias, final

from attrs import frozen

from leaderserver.messages import (
    BatchReply,
    BatchRequest,
    RegisterRequest,
    SubscribeRequest,
    UnsubscribeRequest,
    WithdrawRequest,
)
from leaderserver.server.answering import Answering
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.turn import Turn
from leaderserver.server.requests import Requests


__all__ = ["Batches", "Ordered"]


# What says what a session wants from now on: the last word counts, so the order does.
# What names a leadership is as true later, and a heartbeat must not wait.
Ordered: TypeAlias = (
    RegisterRequest | WithdrawRequest | SubscribeRequest | UnsubscribeRequest
)
# Batches of one session that may wait; our clients have no more under way.
_BATCH_COUNT_PER_SESSION_MAX: Final = 8
# And requests in batches of all sessions: some 160 MB, if they are as long as may be.
_BATCHED_COUNT_MAX: Final = 20_000


@frozen(kw_only=True)
class _Batch:
    """A batch that waits for its turn, or a request that must not overtake one."""

    client: ServedClient
    number: int
    body: BatchRequest | Ordered
    arrived_ns: int

    def __len__(self) -> int:
        return len(self.body.bodies) if isinstance(self.body, BatchRequest) else 1


@final
class Batches:
    """
    Batches that wait for their turn, and requests that must not overtake them.

    Args:
        requests: Takes the requests that they hold.
        clients: Who is there.
        answering: How clients are answered.
    """

    def __init__(
        self, requests: Requests, *, clients: ClientTable, answering: Answering
    ) -> None:
        self._requests = requests
        self._clients = clients
        self._answering = answering
        self._counts = answering.counts
        self._batches: deque[_Batch] = deque()
        self._batched_count = 0

    @property
    def first_arrived_ns(self) -> int | None:
        """Return when what waits longest came, or None if nothing waits."""
        return self._batches[0].arrived_ns if self._batches else None

    def put_off(
        self,
        client: ServedClient,
        number: int,
        body: BatchRequest | Ordered,
        turn: Turn,
    ) -> None:
        """
        Keep *body* until `take_next` is called.

        A hundred registrations take as long as some hundred heartbeats.  So whatever
        else has arrived is taken first, and one batch after each look at it.

        But what a session wants is taken in the order in which it said so.  If a
        withdrawal overtook the registration that it takes back, the contender would
        stay, and be granted again and again though it is gone (rules E7, E8).
        """
        batch = _Batch(client=client, number=number, body=body, arrived_ns=turn.now_ns)
        if (
            client.batch_count >= _BATCH_COUNT_PER_SESSION_MAX
            or self._batched_count + len(batch) > _BATCHED_COUNT_MAX
        ):
            self._counts["batches_dropped"] += 1  # it will be asked for again
            return
        client.batch_count += 1
        self._batched_count += len(batch)
        self._batches.append(batch)

    def take_next(self, turn: Turn) -> None:
        """
        Take what waits longest, if anything does.

        The requests of a batch are taken one after the other and answered together.
        """
        if not self._batches:
            return
        batch = self._batches.popleft()
        client, number = batch.client, batch.number
        client.batch_count -= 1
        self._batched_count -= len(batch)
        if self._clients.get(client.session_id) is not client:
            return  # the session that asks has ended
        turn.answer_to = (client, number)
        turn.is_overtaken = True
        if not isinstance(batch.body, BatchRequest):
            self._requests.take(client, number, batch.body, turn)
            return
        turn.batched = []
        for body in batch.body.bodies:
            if self._clients.get(client.session_id) is not client:
                return
            self._requests.take(client, number, body, turn)
        bodies, turn.batched = turn.batched, None
        if len(bodies) == len(batch):
            self._answering.answer(BatchReply(bodies=bodies), turn)
