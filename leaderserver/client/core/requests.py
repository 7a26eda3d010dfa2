"""
`ClientRequests`: the exchanges of a `ClientCore`, as messages and from answers.

When each is sent is `Exchanges`' business; here is what is sent, several in one
message where they fit, and whom an answer, a failure or silence is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

from leaderserver import codec
from leaderserver.client.core.exchanges import Exchange, Purpose
from leaderserver.client.core.failures import error_of_failure, error_of_silence
from leaderserver.messages import (
    BatchReply,
    BatchRequest,
    FailedReply,
    Failure,
    RegisteredReply,
    SnapshotReply,
    UncertainReply,
)
from nameservice.errors import LocalProtocolError, MayHaveHappenedError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leaderserver.client.core.contact import ServerContact
    from leaderserver.client.core.contenders import ClientContenders
    from leaderserver.client.core.outbox import ClientOutbox
    from leaderserver.client.core.subscriptions import ClientSubscriptions
    from leaderserver.messages import BatchedBody, ReplyBody, RequestBody
    from nameservice import NameServiceError


__all__ = ["ClientRequests"]

# A server takes frames of 64 KiB at the least; the rest is for what frames a batch.
_BATCH_SIZE_BYTES_MAX: Final = 60_000


@final
class ClientRequests:
    """
    Sends what is due, and settles what is answered.

    *on_snapshot* is called when a subscription is answered by a server that is decided.
    """

    def __init__(
        self,
        target: str,
        outbox: ClientOutbox,
        contenders: ClientContenders,
        subscriptions: ClientSubscriptions,
        contact: ServerContact,
        *,
        on_snapshot: Callable[[], None],
    ) -> None:
        self._target = target
        self._outbox = outbox
        self._contenders = contenders
        self._subscriptions = subscriptions
        self._contact = contact
        self._on_snapshot = on_snapshot

    def send_due(self, send: Callable[[RequestBody], int]) -> None:
        """Give to *send*, which returns the number of the message, what is due."""
        now_ns = self._outbox.now_ns
        while batch := self._outbox.exchanges.take_due(now_ns=now_ns):
            self._send_batch(send, batch)

    def give_up_overdue(self) -> None:
        """Release the callers whose deadlines are reached."""
        for exchange in self._outbox.exchanges.take_overdue(now_ns=self._outbox.now_ns):
            self.give_up(exchange)

    def answered(self, number: int, body: ReplyBody) -> None:
        """Take what the server answers to message *number*."""
        exchanges = self._outbox.exchanges.answered(number, now_ns=self._outbox.now_ns)
        bodies = body.bodies if isinstance(body, BatchReply) else [body]
        if len(bodies) == len(exchanges):
            for exchange, answer in zip(exchanges, bodies, strict=True):
                if exchange is not None:
                    self._take_answer(exchange, number, answer)
        else:
            # Something else than each of them was answered: ask one by one.
            for exchange in exchanges:
                if exchange is not None:
                    exchange.batch_count_max = 1

    def failed(self, number: int, error: NameServiceError) -> None:
        """Tell the asker of request *number* that it cannot be sent."""
        exchanges = self._outbox.exchanges.answered(number, now_ns=self._outbox.now_ns)
        for exchange in exchanges:
            if exchange is None:
                continue
            if len(exchanges) == 1:
                self._cannot_send(exchange, error)
            else:
                exchange.batch_count_max = 1  # one of them is to blame

    def give_up(self, exchange: Exchange) -> None:
        """Release the caller at its deadline; what must reach the server goes on."""
        if exchange.key[0] in (Purpose.WITHDRAW, Purpose.CLOSE):
            self._outbox.complete(exchange)
        else:
            error = error_of_silence(
                exchange,
                target=self._target,
                waited_ns=self._outbox.now_ns - exchange.began_ns,
            )
            self._outbox.complete(exchange, error=error)
        if exchange.key[0] is Purpose.WITHDRAW:
            exchange.call_id = None
        elif exchange.call_id is not None:
            self._outbox.exchanges.end(exchange.key)

    def session_over(self) -> None:
        """End what the end of the session has settled; the rest waits for another."""
        for exchange in self._outbox.exchanges:
            self._settle(exchange)
        self._outbox.exchanges.session_over()

    def _settle(self, exchange: Exchange) -> None:
        exchanges = self._outbox.exchanges
        purpose = exchange.key[0]
        if purpose in (Purpose.WITHDRAW, Purpose.CLOSE):
            exchanges.end(exchange.key)
            self._outbox.complete(exchange)
        elif purpose not in (Purpose.CONFIRM, Purpose.CALL):
            exchanges.end(exchange.key)  # what is still wished for is asked anew
        elif not exchange.is_repeatable and exchange.was_sent:
            self.give_up(exchange)

    def _send_batch(
        self, send: Callable[[RequestBody], int], exchanges: Sequence[Exchange]
    ) -> None:
        """Send as many of *exchanges* as fit into one message, one at the least."""
        bodies: list[RequestBody] = []
        size_bytes = 0
        for exchange in exchanges:
            body = self._body(exchange)
            if len(exchanges) > 1:
                try:
                    size_bytes += codec.size_bytes(body)
                except LocalProtocolError as error:
                    if bodies:
                        break  # it is the first of the next message
                    self._cannot_send(exchange, error)
                    return
                if bodies and size_bytes > _BATCH_SIZE_BYTES_MAX:
                    break
            bodies.append(body)
        body = bodies[0]
        if len(bodies) > 1:
            body = BatchRequest(bodies=cast("list[BatchedBody]", bodies))
        number = send(body)
        self._outbox.exchanges.sent(
            exchanges[: len(bodies)], number, now_ns=self._outbox.now_ns
        )

    def _body(self, exchange: Exchange) -> RequestBody:
        """Return what to send: some requests say what is so at the time."""
        purpose, name = exchange.key
        if purpose is Purpose.REGISTER:
            return self._contenders.register_request(name)
        if purpose is Purpose.SUBSCRIBE:
            return self._subscriptions.subscribe_request(name)
        assert exchange.body is not None
        return exchange.body

    def _take_answer(self, exchange: Exchange, number: int, body: ReplyBody) -> None:
        purpose, name = exchange.key
        if isinstance(body, FailedReply):
            self._take_failure(exchange, body)
        elif isinstance(body, UncertainReply):
            error = MayHaveHappenedError(f"{self._target}: {body.detail}")
            self._outbox.exchanges.end(exchange.key)
            self._outbox.complete(exchange, error=error)
        elif isinstance(body, SnapshotReply) and purpose is Purpose.SUBSCRIBE:
            if body.is_undecided:
                # The server tells when it is decided; it may be asked once in a while,
                # in case that was lost.
                later_ns = self._outbox.now_ns + 2 * self._outbox.lease_ns
                self._outbox.exchanges.set_due(exchange, later_ns)
                self._outbox.exchanges.park(exchange)
            else:
                self._on_snapshot()
            self._subscriptions.take_snapshot(
                name, body, has_contact=self._contact.is_connected
            )
        elif isinstance(body, RegisteredReply) and purpose is Purpose.REGISTER:
            self._outbox.exchanges.end(exchange.key)
            # Heartbeats may have overtaken the request.
            number = max(number, body.heartbeat_number)
            self._contenders.registered(name, ticket=body.ticket, number=number)
        else:
            self._outbox.exchanges.end(exchange.key)
            self._outbox.complete(exchange, reply=body)

    def _cannot_send(self, exchange: Exchange, error: NameServiceError) -> None:
        """Do as if the server had found *exchange* invalid."""
        failed = FailedReply(reason=Failure.INVALID, detail=str(error))
        self._take_failure(exchange, failed)

    def _take_failure(self, exchange: Exchange, body: FailedReply) -> None:
        purpose, name = exchange.key
        error = error_of_failure(body, self._body(exchange), self._target)
        if purpose in (Purpose.REGISTER, Purpose.SUBSCRIBE):
            # A wish stays a wish: what may change is asked for again, but not soon.
            is_final = body.reason in (Failure.NOT_ALLOWED, Failure.INVALID)
            later_ns = self._outbox.now_ns + self._outbox.session_timeout_ns // 3
            self._outbox.exchanges.set_due(exchange, None if is_final else later_ns)
            if purpose is Purpose.REGISTER:
                self._contenders.register_failed(name, reason=body.reason, error=error)
            else:
                self._subscriptions.subscribe_failed(name, error)
        elif purpose is Purpose.CONFIRM and body.reason == Failure.UNDECIDED:
            # Asked again when somebody knows who leads, or when it is due.
            self._outbox.exchanges.park(exchange)
        else:
            self._outbox.exchanges.end(exchange.key)
            self._outbox.complete(exchange, error=error)
