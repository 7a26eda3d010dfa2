"""`DirectReads`: whose turn pages take, how many there are, when they are dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from nameservice import StorageError
from queryablestate.node.core.read_schedule import DropReason, ReadId
from queryablestate.node.direct_reads import DirectReads, PageAsked
from queryablestate.node.reading import LongRead
from queryablestate.node.reads import Found
from queryablestate.store.reader import StoreReader
from queryablestate.store.state_view import StateView
from queryablestate.store.steps import ReadWork
from queryablestate.wire.direct import ASK_PROXY, NAMELESS_CALLER, NOT_DIRECTLY
from queryablestate.wire.questions import CountKeys, Operation, Question, ScanRows
from zmqtransport import ConnectionId, Peer


pytestmark = pytest.mark.proves("B1", "B2", "D2")

MS = 1_000_000
FOUND = Found(None, [], b"page", has_missing=False)


class Scripted:
    """A store that reads when a test says so."""

    def __init__(self) -> None:
        self.reads: list[LongRead] = []
        self.cancelled: list[ReadId] = []
        self.is_gone: list[ReadId] = []
        self.posted: list[Callable[[], None]] = []
        self.current = self

    def read(self, read: LongRead) -> None:
        """Have something read."""
        self.reads.append(read)

    def cancel(self, read_ids: Sequence[ReadId]) -> None:
        """Drop these."""
        self.cancelled += read_ids

    def gone(self, read_id: ReadId) -> None:
        """Note that an answer takes no memory any more."""
        self.is_gone.append(read_id)

    def reading(self) -> Scripted:
        """Return what reads at length."""
        return self.current

    def reader(self) -> StoreReader:
        """Return nothing that can be read from."""
        return cast("StoreReader", None)

    def state(self, state_number: int) -> StateView | None:
        """Return that there is no such state."""
        del state_number
        return None

    def post(self, action: Callable[[], None]) -> None:
        """Have something done by the loop."""
        self.posted.append(action)

    def run(self) -> None:
        """Let the loop do what was posted."""
        while self.posted:
            self.posted.pop(0)()


class Pages:
    """`DirectReads`, and what it says."""

    def __init__(self) -> None:
        self.store = Scripted()
        self.pages = DirectReads(
            self.store, answer_size_bytes_max=1 << 20, wall_clock_us=lambda: 0
        )
        self.told: list[Any] = []

    def ask(
        self,
        *,
        connection: int = 1,
        caller: str = NAMELESS_CALLER,
        operation: Operation | None = None,
        deadline_ms: int = 100,
    ) -> Peer:
        """Ask for a count, or for what *operation* says."""
        peer = Peer(connection, ConnectionId(connection), b"peer")
        question = Question(
            leader_epoch=1,
            question_id=1,
            state_number=1,
            assignment_version=1,
            operation=CountKeys() if operation is None else operation,
            deadline_ms=deadline_ms,
        )
        self.pages.read(
            PageAsked(
                peer=peer,
                caller=caller,
                question=question,
                key_groups=(0,),
                asked_at_ns=5 * MS,
                done=self.told.append,
                refused=self.told.append,
            )
        )
        return peer


class TestTurns:
    """Whose turn a read takes, and until when."""

    def test_by_caller(self) -> None:
        """B2: the name is that of questions that come by way of the proxy."""
        pages = Pages()
        pages.ask(caller="greedy")
        pages.ask(connection=2, caller="greedy")
        assert {one.asked.asker for one in pages.store.reads} == {"caller greedy"}

    def test_a_question_has_a_size(self) -> None:
        """B1: what it says of its page is kept until that is read."""
        pages = Pages()
        pages.ask(operation=ScanRows(start=bytes(100), stop=bytes(200), limit=1))
        pages.ask(operation=CountKeys(schema="x" * 50))
        assert [one.asked.size_bytes for one in pages.store.reads] == [300, 50]

    def test_by_connection(self) -> None:
        """B2: who has no name is known by the connection, not as all nameless ones."""
        pages = Pages()
        pages.ask(connection=1)
        pages.ask(connection=2)
        first, second = (one.asked.asker for one in pages.store.reads)
        assert first != second

    def test_deadlines(self) -> None:
        """B2: the asker's, and a minute at most."""
        pages = Pages()
        pages.ask(deadline_ms=100)
        pages.ask(deadline_ms=1 << 40)
        asked = [one.asked for one in pages.store.reads]
        assert [one.deadline_ns for one in asked] == [105 * MS, 60_005 * MS]

    def test_what_may_hold_rows(self) -> None:
        """B1: a page takes memory while it is read, a count does not."""
        pages = Pages()
        pages.ask()
        pages.ask(operation=ScanRows(start=b"", stop=None, limit=10))
        assert [one.asked.holds_rows for one in pages.store.reads] == [False, True]

    def test_names_are_not_those_of_the_proxys_reads(self) -> None:
        """B2: none is cancelled in place of another."""
        pages = Pages()
        pages.ask()
        pages.ask()
        names = [one.asked.read_id for one in pages.store.reads]
        assert len(set(names)) == 2
        assert all(first < 0 for first, _ in names)


class TestEnds:
    """What becomes of a read."""

    def test_an_answer(self) -> None:
        """B1: it is told in the loop, and is held by the reading thread no longer."""
        pages = Pages()
        pages.ask()
        (read,) = pages.store.reads
        read.done(FOUND)
        assert not pages.told
        pages.store.run()
        assert pages.told == [FOUND]
        assert pages.store.is_gone == [read.asked.read_id]
        assert len(pages.pages) == 0

    @pytest.mark.parametrize(
        ("reason", "code"),
        [
            (DropReason.LATE, NOT_DIRECTLY),
            (DropReason.NO_ROOM, ASK_PROXY),
            (DropReason.CANCELLED, ASK_PROXY),
        ],
    )
    def test_one_that_is_dropped(self, reason: DropReason, code: str) -> None:
        """D3: the client asks the proxy then, for this kind of question or for all."""
        pages = Pages()
        pages.ask()
        pages.store.reads[0].dropped(reason, ReadWork())
        pages.store.run()
        assert pages.told == [code]
        assert len(pages.pages) == 0

    def test_one_that_fails(self) -> None:
        """D3: the proxy says what is wrong."""
        pages = Pages()
        pages.ask()
        pages.store.reads[0].failed(StorageError("the disk"), ReadWork())
        pages.store.run()
        assert pages.told == [NOT_DIRECTLY]

    def test_a_connection_that_is_over(self) -> None:
        """B2: nothing more is read for it, and nothing is told or counted."""
        pages = Pages()
        peer = pages.ask()
        pages.ask(connection=2)
        first, second = pages.store.reads
        pages.pages.forget(peer)
        assert pages.store.cancelled == [first.asked.read_id]
        first.done(FOUND)
        first.dropped(DropReason.CANCELLED, ReadWork())
        pages.store.run()
        assert not pages.told
        assert pages.store.is_gone == [first.asked.read_id]
        second.done(FOUND)
        pages.store.run()
        assert pages.told == [FOUND]
        pages.pages.forget(peer)  # it is known no more
        assert len(pages.pages) == 0

    def test_another_store(self) -> None:
        """W7: what was read of the one before is no answer; what was begun is over."""
        pages = Pages()
        for _ in range(64):
            pages.ask()
        former = pages.store.reads[0]
        pages.store.current = Scripted()
        former.done(FOUND)
        pages.store.run()
        assert pages.told == [ASK_PROXY]
        pages.ask()
        assert len(pages.store.current.reads) == 1
        assert len(pages.pages) == 1


class TestBounds:
    """How many there may be."""

    def test_of_one_connection(self) -> None:
        """B2: what is more is asked of the proxy; others are not kept from asking."""
        pages = Pages()
        for _ in range(65):
            pages.ask()
        assert pages.told == [ASK_PROXY]
        assert len(pages.pages) == len(pages.store.reads) == 64
        pages.ask(connection=2)
        assert len(pages.pages) == 65
        pages.store.reads[0].done(FOUND)
        pages.store.run()
        pages.ask()
        assert pages.told == [ASK_PROXY, FOUND]
