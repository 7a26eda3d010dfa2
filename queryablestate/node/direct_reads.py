"""
`DirectReads`: pages and counts for clients that ask the node without the proxy.

They are read by the thread that reads at length for the proxy, too: callers take turns
there, whichever way they come (rules B1, B2).  A caller without a name takes them as
the connection that it is.  What is read for a connection that is over is dropped.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

from attrs import frozen

from nameservice.clock import NS_PER_MS
from queryablestate.node.core.read_schedule import DropReason, ReadAsked, ReadId
from queryablestate.node.reading import LongRead
from queryablestate.node.reads import Found, holds_rows, read
from queryablestate.wire.direct import ASK_PROXY, NAMELESS_CALLER, NOT_DIRECTLY
from queryablestate.wire.questions import size_bytes_of


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import NameServiceError
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.state_view import StateView
    from queryablestate.store.steps import ReadWork, Steps
    from queryablestate.wire.questions import Question
    from zmqtransport import Peer


__all__ = ["DirectReads", "DirectStore", "PageAsked", "Reading"]

_PER_CONNECTION_MAX: Final = 64
_DEADLINE_MS_MAX: Final = 60_000
_DIRECT: Final = -1
"""The first part of the names of these reads: those of the proxy have its numbers."""


class Reading(Protocol):
    """What reads at length: `queryablestate.node.reading.ReadingThread`."""

    def read(self, read: LongRead) -> None:
        """Have something read; it is dropped if there is no room for it."""

    def cancel(self, read_ids: Sequence[ReadId]) -> None:
        """Drop these reads, those of them that are not over."""

    def gone(self, read_id: ReadId) -> None:
        """Note that what a read has returned takes no memory any more."""


class DirectStore(Protocol):
    """What clients are answered from, in the node's loop; see `NodeStore`."""

    def reader(self) -> StoreReader:
        """Return what reads in the loop."""

    def reading(self) -> Reading:
        """Return what reads at length: another one when the store is another."""

    def state(self, state_number: int) -> StateView | None:
        """
        Return what is known of a state, None if there is no such state.

        Raises:
            StorageError: If the store cannot be read.
        """

    def post(self, action: Callable[[], None]) -> None:
        """Have *action* called in the loop, from any thread; not while it ends."""


@final
@frozen(kw_only=True, eq=False)
class PageAsked:
    """
    What is to be read.

    Attributes:
        peer: Who asks.
        caller: As whom.
        question: What is asked.
        key_groups: What the node answers for.
        asked_at_ns: When it came.
        done: Is told what was found.
        refused: Is told why nothing was.
    """

    peer: Peer
    caller: str
    question: Question
    key_groups: Sequence[int]
    asked_at_ns: int
    done: Callable[[Found], None]
    refused: Callable[[str], None]


@final
class DirectReads:
    """
    Reads that clients wait for.  Belongs to the thread of the node's loop.

    Args:
        store: What reads the rows.
        answer_size_bytes_max: Of the second frame of an answer.
        wall_clock_us: What expiries are measured by; called by the reading thread.
    """

    def __init__(
        self,
        store: DirectStore,
        *,
        answer_size_bytes_max: int,
        wall_clock_us: Callable[[], int],
    ) -> None:
        self._store = store
        self._answer_size_bytes_max = answer_size_bytes_max
        self._wall_clock_us = wall_clock_us
        self._reading: Reading | None = None
        self._number = 0
        self._count = 0
        self._of_peers: dict[int, set[ReadId]] = {}

    def __len__(self) -> int:
        return self._count

    def read(self, asked: PageAsked) -> None:
        """Have something read in its turn; `done` or `refused` is told in the loop."""
        reading = self._store.reading()
        if reading is not self._reading:
            # The store is another one: what was read of the one before is never told.
            self._reading = reading
            self._of_peers.clear()
            self._count = 0
        own = self._of_peers.setdefault(asked.peer.number, set())
        if len(own) >= _PER_CONNECTION_MAX:
            asked.refused(ASK_PROXY)
            return
        self._number += 1
        read_id = (_DIRECT, self._number)
        own.add(read_id)
        self._count += 1
        question = asked.question

        def begin(reader: StoreReader, work: ReadWork) -> Steps[Found]:
            now_us = self._wall_clock_us()
            size_bytes_max = self._answer_size_bytes_max
            return read(
                reader,
                question,
                b"",
                asked.key_groups,
                now_us,
                size_bytes_max,
                work,
            )

        def done(found: Found) -> None:
            def tell() -> None:
                is_wanted = self._end(asked.peer, read_id)
                if is_wanted and reading is self._store.reading():
                    asked.done(found)
                elif is_wanted:
                    asked.refused(ASK_PROXY)
                # What is sent is counted by connection from here on.
                reading.gone(read_id)

            self._store.post(tell)

        def refuse(code: str) -> None:
            if self._end(asked.peer, read_id):
                asked.refused(code)

        def failed(error: NameServiceError, work: ReadWork) -> None:
            # The proxy, and the node when that asks, say what is wrong.
            del error, work
            self._store.post(partial(refuse, NOT_DIRECTLY))

        def dropped(reason: DropReason, work: ReadWork) -> None:
            del work
            code = NOT_DIRECTLY if reason is DropReason.LATE else ASK_PROXY
            self._store.post(partial(refuse, code))

        deadline_ms = min(question.deadline_ms, _DEADLINE_MS_MAX)
        reading.read(
            LongRead(
                asked=ReadAsked(
                    read_id=read_id,
                    asker=_asker_of(asked),
                    deadline_ns=asked.asked_at_ns + deadline_ms * NS_PER_MS,
                    holds_rows=holds_rows(question),
                    size_bytes=size_bytes_of(question.operation, b""),
                ),
                begin=begin,
                size_of=lambda found: len(found.payload),
                done=done,
                failed=failed,
                dropped=dropped,
            )
        )

    def forget(self, peer: Peer) -> None:
        """Read nothing more for a client whose connection is over."""
        own = self._of_peers.pop(peer.number, None)
        if own:
            self._count -= len(own)
            self._store.reading().cancel(sorted(own))

    def _end(self, peer: Peer, read_id: ReadId) -> bool:
        """Forget a read that is over; return whether its asker is still there."""
        own = self._of_peers.get(peer.number)
        if own is None or read_id not in own:
            return False
        own.remove(read_id)
        self._count -= 1
        if not own:
            del self._of_peers[peer.number]
        return True


def _asker_of(asked: PageAsked) -> str:
    """Return whose turn a read takes; by the proxy a caller has the same name."""
    if asked.caller == NAMELESS_CALLER:
        return f"client {asked.peer.number}"
    return f"caller {asked.caller}"
