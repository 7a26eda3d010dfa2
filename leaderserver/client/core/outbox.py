"""
What the parts of a `ClientCore` share: effects, exchanges and the agreed times.

`ClientCore` sequences; its parts (contenders, subscriptions) put what follows from an
event in here, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from leaderserver.client.core.events import ClientEffect, CompleteCall
from leaderserver.client.core.exchanges import (
    Exchange,
    ExchangeKey,
    Exchanges,
    Purpose,
    Stream,
    stream_of,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from leaderserver.messages import ReplyBody, RequestBody
    from nameservice.errors import NameServiceError


__all__ = ["RETRY_DIVISOR", "ClientOutbox"]

RETRY_DIVISOR: Final = 5


@final
class ClientOutbox:
    """
    Effects in the making, and requests that wait for their answers.

    Attributes:
        exchanges: The requests.
        now_ns: When the present step happens.
        lease_ns: As agreed with the server, or as we will ask for.
        session_timeout_ns: Likewise.
        has_session: Whether there is a server to ask.
    """

    def __init__(self, *, now_ns: int, lease_ns: int, session_timeout_ns: int) -> None:
        self.exchanges = Exchanges()
        self.now_ns = now_ns
        self.lease_ns = lease_ns
        self.session_timeout_ns = session_timeout_ns
        self.has_session = False
        self._effects: list[ClientEffect] = []

    def emit(self, effect: ClientEffect) -> None:
        """Add *effect* to what is to be done."""
        self._effects.append(effect)

    def take(self) -> Sequence[ClientEffect]:
        """Return what is to be done, and begin anew."""
        effects, self._effects = self._effects, []
        return effects

    def begin(
        self,
        key: ExchangeKey,
        body: RequestBody | None,
        *,
        call_id: int | None = None,
        deadline_ns: int | None = None,
        is_repeatable: bool = True,
    ) -> None:
        """Ask the server for something, as soon as it can be asked."""
        # What leadership hangs on is asked for again within two leases at the latest,
        # however long there was no answer.
        is_urgent = stream_of(key[0]) is Stream.LEAVING or key[0] is Purpose.REGISTER
        # What is lost goes with its connection, mostly, and is asked anew with the next
        # one.  A server that thousands of listeners have come back to is only slow.
        is_patient = key[0] in (Purpose.SUBSCRIBE, Purpose.UNSUBSCRIBE)
        self.exchanges.begin(
            Exchange(
                key=key,
                body=body,
                call_id=call_id,
                began_ns=self.now_ns,
                deadline_ns=deadline_ns,
                retry_ns=self.lease_ns // (1 if is_patient else RETRY_DIVISOR),
                # An answer that takes long must not be asked for ever more often.
                retry_ns_max=2 * self.lease_ns
                if is_urgent
                else self.session_timeout_ns // 3,
                is_repeatable=is_repeatable,
                due_ns=self.now_ns,
            )
        )

    def complete(
        self,
        exchange: Exchange,
        *,
        reply: ReplyBody | None = None,
        error: NameServiceError | None = None,
    ) -> None:
        """Answer the caller that waits for *exchange*, if there is one."""
        if exchange.call_id is not None:
            self.complete_call(exchange.call_id, reply=reply, error=error)

    def complete_call(
        self,
        call_id: int,
        *,
        reply: ReplyBody | None = None,
        error: NameServiceError | None = None,
    ) -> None:
        """Answer a call."""
        self.emit(CompleteCall(call_id=call_id, reply=reply, error=error))
