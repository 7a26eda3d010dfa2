"""
Requests that wait for their answers: what to send when, and whose an answer is.

Every request of a client but its heartbeats is an *exchange*.  It is sent when it is
due and there is a session; unanswered, it is sent again under a new number, unless it
must not be repeated.  An answer to any of its numbers answers it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import Factory, define


if TYPE_CHECKING:
    from collections.abc import Iterator

    from leaderserver.messages import RequestBody


__all__ = ["Exchange", "ExchangeKey", "Exchanges", "Purpose"]

# Answers to older numbers than these are not worth remembering: their requests were
# dropped by the server as soon as it had taken a newer one.
_NUMBER_COUNT_MAX: Final = 16


class Purpose(Enum):
    """What an exchange is for; with a name it makes the exchange's key."""

    REGISTER = "register"
    WITHDRAW = "withdraw"
    REVOCATION = "revocation"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    CONFIRM = "confirm"
    CALL = "call"
    CLOSE = "close"


ExchangeKey: TypeAlias = tuple[Purpose, str]


@define(kw_only=True, eq=False)
class Exchange:
    """
    One request that waits for its answer.

    Attributes:
        key: What it is for.
        body: What to send; for some purposes made anew each time, and None here.
        call_id: Who waits for the answer, or None.
        began_ns: When it was asked for.
        deadline_ns: When its caller gives up, or None.
        retry_ns: How long to wait before it is sent again.
        retry_ns_max: Up to this the wait doubles each time.
        is_repeatable: Whether it may be sent again at all.
        due_ns: When to send it next, or None if it must not be sent (again).
        numbers: Under which numbers it was sent in this session, newest last.
        was_sent: Whether it ever was.
    """

    key: ExchangeKey
    body: RequestBody | None
    call_id: int | None
    began_ns: int
    deadline_ns: int | None
    retry_ns: int
    retry_ns_max: int
    is_repeatable: bool
    due_ns: int | None
    numbers: list[int] = Factory(list)
    was_sent: bool = False


@final
class Exchanges:
    """All exchanges of a client, in the order in which they were begun."""

    def __init__(self) -> None:
        self._exchanges: dict[ExchangeKey, Exchange] = {}
        self._by_number: dict[int, Exchange] = {}

    def __iter__(self) -> Iterator[Exchange]:
        return iter(tuple(self._exchanges.values()))

    def __len__(self) -> int:
        return len(self._exchanges)

    def get(self, key: ExchangeKey) -> Exchange | None:
        """Return the exchange for *key*, or None."""
        return self._exchanges.get(key)

    def begin(self, exchange: Exchange) -> None:
        """Enter *exchange*; one for the same key is replaced."""
        self.end(exchange.key)
        self._exchanges[exchange.key] = exchange

    def end(self, key: ExchangeKey) -> Exchange | None:
        """Take out and return the exchange for *key*, if there is one."""
        exchange = self._exchanges.pop(key, None)
        if exchange is not None:
            for number in exchange.numbers:
                del self._by_number[number]
            exchange.numbers.clear()
        return exchange

    def sent(self, exchange: Exchange, number: int, *, now_ns: int) -> None:
        """Take note that *exchange* was sent under *number*."""
        exchange.was_sent = True
        exchange.numbers.append(number)
        self._by_number[number] = exchange
        if len(exchange.numbers) > _NUMBER_COUNT_MAX:
            del self._by_number[exchange.numbers.pop(0)]
        if exchange.is_repeatable:
            exchange.due_ns = now_ns + exchange.retry_ns
            exchange.retry_ns = min(exchange.retry_ns * 2, exchange.retry_ns_max)
        else:
            exchange.due_ns = None

    def answered(self, number: int) -> Exchange | None:
        """Return the exchange that an answer to *number* answers, or None."""
        return self._by_number.get(number)

    def session_over(self) -> None:
        """Forget the numbers of a session that is over."""
        for exchange in self._exchanges.values():
            exchange.numbers.clear()
        self._by_number.clear()

    def earliest_ns(self, *, can_send: bool) -> int | None:
        """Return when the first exchange is due or given up, or None."""
        moments = [
            moment
            for exchange in self._exchanges.values()
            for moment in (
                exchange.due_ns if can_send else None,
                exchange.deadline_ns if exchange.call_id is not None else None,
            )
            if moment is not None
        ]
        return min(moments, default=None)
