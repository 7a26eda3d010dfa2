"""
Requests that wait for their answers: what to send when, and whose an answer is; pure.

Theory of operation.  Every request of a client but its heartbeats is an *exchange*.  It
is sent when it is due, there is a session, and its *stream* has room: of each stream
only a few messages are under way at once, so that a thousand contenders do not stand
between the server and the next heartbeat.  What waits meanwhile is sent many to a
message.  Unanswered, an exchange is sent again under a new number, later each time,
unless it must not be repeated.  An answer to any of its numbers answers it.

A message that was not answered may have been too large for somebody on its way, or the
server may be one that takes no batches.  So what it held is sent again in smaller ones,
in the end one by one.

No step costs more because more exchanges wait: what is due next is on top of a heap.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import Factory, define, field

from leaderserver.messages import BATCH_COUNT_MAX


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leaderserver.messages import RequestBody


__all__ = [
    "Exchange",
    "ExchangeKey",
    "Exchanges",
    "Purpose",
    "Stream",
    "stream_of",
]

# Answers to older numbers than these are not worth remembering: their requests were
# dropped by the server as soon as it had taken a newer one.
_NUMBER_COUNT_MAX: Final = 16
_BATCH_DIVISOR: Final = 4
# What is not answered within that many times what answers took lately is asked again.
_PATIENCE: Final = 4
# Entries of a heap that are out of date are swept out when they are this many more
# than the others.
_STALE_COUNT_MAX: Final = 256


class Purpose(StrEnum):
    """What an exchange is for; with a name it makes the exchange's key."""

    REGISTER = "register"
    WITHDRAW = "withdraw"
    REVOCATION = "revocation"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    CONFIRM = "confirm"
    CALL = "call"
    CLOSE = "close"


class Stream(StrEnum):
    """
    What takes turns with what; the first is served first.

    Of *leaving*, somebody else waits for the answer: a successor, a caller of confirm.
    """

    LEAVING = "leaving"
    CALLS = "calls"
    WISHES = "wishes"


ExchangeKey: TypeAlias = tuple[Purpose, str]

_STREAMS: Final = {
    Purpose.REGISTER: Stream.WISHES,
    Purpose.SUBSCRIBE: Stream.WISHES,
    Purpose.UNSUBSCRIBE: Stream.WISHES,
    Purpose.WITHDRAW: Stream.LEAVING,
    Purpose.REVOCATION: Stream.LEAVING,
    Purpose.CONFIRM: Stream.LEAVING,
    Purpose.CLOSE: Stream.LEAVING,
    Purpose.CALL: Stream.CALLS,
}
_MESSAGE_COUNTS_MAX: Final = {Stream.LEAVING: 4, Stream.CALLS: 64, Stream.WISHES: 2}
_SINGLE: Final = (Purpose.CALL, Purpose.CLOSE)


def stream_of(purpose: Purpose) -> Stream:
    """Return the stream of what is for *purpose*."""
    return _STREAMS[purpose]


@define(kw_only=True, eq=False)
class _Message:
    """
    What was sent under one number.

    Attributes:
        stream: Whose message it is.
        exchanges: What it held.
        sent_ns: When it was sent.
        newest_count: For how many of them it is the newest, and not answered.
        known_count: How many of them would take an answer to it.
    """

    stream: Stream
    exchanges: tuple[Exchange, ...]
    sent_ns: int
    newest_count: int
    known_count: int


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
        due_ns: When to send it next, or None if it must not be sent (again); set by
            `Exchanges.set_due` once it has begun.
        batch_count_max: How many may go into one message with it.
        numbers: Under which numbers it was sent in this session, newest last.
        was_sent: Whether it ever was.
        order: Its place among those that are due at once.
        stream: What it takes turns with.
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
    batch_count_max: int = BATCH_COUNT_MAX
    numbers: list[int] = Factory(list)
    was_sent: bool = False
    order: int = 0
    message: _Message | None = None
    retry_ns_first: int = 0
    stream: Stream = field(init=False)

    @stream.default
    def _default_stream(self) -> Stream:
        return stream_of(self.key[0])


_Entry: TypeAlias = tuple[int, int, int, Exchange]
"""When, its place among those of that moment, a number that makes it unique, what."""


@final
class Exchanges:
    """All exchanges of a client, in the order in which they were begun."""

    def __init__(self) -> None:
        self._exchanges: dict[ExchangeKey, Exchange] = {}
        self._by_number: dict[int, _Message] = {}
        self._order = 0
        self._ticks = itertools.count()
        self._due: list[_Entry] = []
        self._deadlines: list[_Entry] = []
        self._ready: dict[Stream, OrderedDict[ExchangeKey, Exchange]] = {
            stream: OrderedDict() for stream in Stream
        }
        self._under_way = dict.fromkeys(Stream, 0)
        self._parked: dict[ExchangeKey, None] = {}
        self._answer_ns = 0

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
        self._order += 1
        exchange.order = self._order
        exchange.retry_ns_first = exchange.retry_ns
        if exchange.key[0] in _SINGLE:
            exchange.batch_count_max = 1
        if exchange.deadline_ns is not None and exchange.call_id is not None:
            self._push(self._deadlines, exchange.deadline_ns, exchange)
        self.set_due(exchange, exchange.due_ns)

    def end(self, key: ExchangeKey) -> Exchange | None:
        """Take out and return the exchange for *key*, if there is one."""
        exchange = self._exchanges.pop(key, None)
        if exchange is not None:
            self._leave_message(exchange)
            self._ready[exchange.stream].pop(key, None)
            self._parked.pop(key, None)
            for number in exchange.numbers:
                self._forget(number)
            exchange.numbers.clear()
            self._sweep()
        return exchange

    # -- sending -------------------------------------------------------------------

    def set_due(self, exchange: Exchange, due_ns: int | None) -> None:
        """Send *exchange* next at *due_ns*, or not again if that is None."""
        exchange.due_ns = due_ns
        self._ready[exchange.stream].pop(exchange.key, None)
        if due_ns is not None:
            self._push(self._due, due_ns, exchange)

    def _push(self, heap: list[_Entry], moment_ns: int, exchange: Exchange) -> None:
        heapq.heappush(heap, (moment_ns, exchange.order, next(self._ticks), exchange))

    def hurry(self, *, now_ns: int) -> None:
        """
        Send at *now_ns* whatever may be repeated, as if for the first time.

        What was under way over a connection that is no more does not count as such.
        """
        for exchange in tuple(self._exchanges.values()):
            if exchange.is_repeatable:
                self._leave_message(exchange)
                exchange.retry_ns = exchange.retry_ns_first
                if exchange.key[0] not in _SINGLE:
                    exchange.batch_count_max = BATCH_COUNT_MAX
                self.set_due(exchange, now_ns)

    def park(self, exchange: Exchange) -> None:
        """Send *exchange* when it is due, or earlier, as soon as `unpark` is called."""
        self._parked[exchange.key] = None

    def unpark(self, *, now_ns: int) -> None:
        """Send at *now_ns* what was parked."""
        parked, self._parked = self._parked, {}
        for key in parked:
            self.set_due(self._exchanges[key], now_ns)

    def take_due(self, *, now_ns: int) -> Sequence[Exchange]:
        """
        Return what goes into the next message: several exchanges, one, or none.

        The caller tells what it has sent of them by `sent`, before it asks again; the
        rest is due still.
        """
        self._admit(now_ns)
        for stream, ready in self._ready.items():
            if not ready or self._under_way[stream] >= _MESSAGE_COUNTS_MAX[stream]:
                continue
            batch: list[Exchange] = []
            count_max = BATCH_COUNT_MAX
            for exchange in ready.values():
                count_max = min(count_max, exchange.batch_count_max)
                if len(batch) >= max(1, count_max):
                    break
                batch.append(exchange)
            return batch
        return ()

    def _admit(self, now_ns: int) -> None:
        """Queue up what is due by now for its stream."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, _, exchange = heapq.heappop(self._due)
            if (
                exchange.due_ns != due_ns
                or self._exchanges.get(exchange.key) is not exchange
            ):
                continue  # it has ended, or is due at another time
            if exchange.message is not None:
                # Not answered in time: others may have their turn before it is.
                self._leave_message(exchange)
                exchange.batch_count_max = max(
                    1, exchange.batch_count_max // _BATCH_DIVISOR
                )
            self._ready[exchange.stream][exchange.key] = exchange

    def sent(self, exchanges: Sequence[Exchange], number: int, *, now_ns: int) -> None:
        """Record that *exchanges* were sent in one message under *number*."""
        stream = exchanges[0].stream
        message = _Message(
            stream=stream,
            exchanges=tuple(exchanges),
            sent_ns=now_ns,
            newest_count=len(exchanges),
            known_count=len(exchanges),
        )
        self._by_number[number] = message
        self._under_way[stream] += 1
        for exchange in exchanges:
            self._leave_message(exchange)
            exchange.message = message
            exchange.was_sent = True
            exchange.numbers.append(number)
            if len(exchange.numbers) > _NUMBER_COUNT_MAX:
                self._forget(exchange.numbers.pop(0))
            if exchange.is_repeatable:
                wait_ns = max(exchange.retry_ns, _PATIENCE * self._answer_ns)
                self.set_due(exchange, now_ns + min(wait_ns, exchange.retry_ns_max))
                exchange.retry_ns = min(exchange.retry_ns * 2, exchange.retry_ns_max)
            else:
                self.set_due(exchange, None)

    # -- answers -------------------------------------------------------------------

    def answered(self, number: int, *, now_ns: int) -> Sequence[Exchange | None]:
        """
        Return whom an answer to *number* answers, in the order of the message.

        It has room for another message then.

        Returns:
            None for each that has ended meanwhile; nothing at all if none waits.
        """
        message = self._by_number.get(number)
        if message is None:
            return ()
        took_ns = now_ns - message.sent_ns
        self._answer_ns = max(took_ns, (self._answer_ns + took_ns) // 2)
        found = [
            exchange
            if self._exchanges.get(exchange.key) is exchange
            and number in exchange.numbers
            else None
            for exchange in message.exchanges
        ]
        for exchange in found:
            if exchange is not None and exchange.message is message:
                self._leave_message(exchange)
        return found

    def session_over(self) -> None:
        """Forget the numbers of a session that is over."""
        self._answer_ns = 0
        for exchange in self._exchanges.values():
            self._leave_message(exchange)
            exchange.numbers.clear()
        self._by_number.clear()

    # -- time ----------------------------------------------------------------------

    def take_overdue(self, *, now_ns: int) -> Sequence[Exchange]:
        """Return those whose callers give up now; each is returned once."""
        overdue = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            exchange = heapq.heappop(self._deadlines)[3]
            if self._waits_for_answer(exchange):
                overdue.append(exchange)
        return overdue

    def earliest_ns(self, *, can_send: bool) -> int | None:
        """Return when the first exchange is due or given up, or None."""
        deadlines = self._deadlines
        while deadlines and not self._waits_for_answer(deadlines[0][3]):
            heapq.heappop(deadlines)
        earliest_ns = deadlines[0][0] if deadlines else None
        if can_send:
            due = self._due
            while due and not self._is_due(due[0]):
                heapq.heappop(due)
            if due and (earliest_ns is None or due[0][0] < earliest_ns):
                earliest_ns = due[0][0]
        return earliest_ns

    def _waits_for_answer(self, exchange: Exchange) -> bool:
        return (
            exchange.call_id is not None
            and self._exchanges.get(exchange.key) is exchange
        )

    def _is_due(self, entry: _Entry) -> bool:
        due_ns, _, _, exchange = entry
        return (
            exchange.due_ns == due_ns
            and self._exchanges.get(exchange.key) is exchange
            and exchange.key not in self._ready[exchange.stream]
        )

    def _leave_message(self, exchange: Exchange) -> None:
        """Have *exchange* wait no more for the message that it went with."""
        message, exchange.message = exchange.message, None
        if message is not None:
            message.newest_count -= 1
            if not message.newest_count:
                self._under_way[message.stream] -= 1

    def _forget(self, number: int) -> None:
        """Have an exchange take no answer to *number* any more."""
        message = self._by_number[number]
        message.known_count -= 1
        if not message.known_count:
            del self._by_number[number]

    def _sweep(self) -> None:
        """Drop what is out of date once there is much of it."""
        if len(self._due) > 2 * len(self._exchanges) + _STALE_COUNT_MAX:
            self._due = [entry for entry in self._due if self._is_due(entry)]
            heapq.heapify(self._due)
        if len(self._deadlines) > 2 * len(self._exchanges) + _STALE_COUNT_MAX:
            self._deadlines = [
                entry for entry in self._deadlines if self._waits_for_answer(entry[3])
            ]
            heapq.heapify(self._deadlines)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps."""
        counts = dict.fromkeys(Stream, 0)
        newest = {id(e.message): e.message for e in self if e.message is not None}
        for message in newest.values():
            counts[message.stream] += 1
            waiting = [exchange for exchange in self if exchange.message is message]
            assert len(waiting) == message.newest_count
        assert counts == self._under_way
        for number, message in self._by_number.items():
            known = [e for e in self if number in e.numbers]
            assert len(known) == message.known_count
