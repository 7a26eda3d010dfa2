"""`QuestionAnswerer`: as of when it says that a long read was (rules Q2, C3)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import zmq

from nameservice import ManualClock
from nameservice.observation import Latencies
from queryablestate.node import answering
from queryablestate.node.answering import QuestionAnswerer
from queryablestate.node.core.jobs import ServedJob
from queryablestate.node.core.read_schedule import ReadId
from queryablestate.node.reading import LongRead
from queryablestate.node.reads import Found
from queryablestate.node.stores import NodeStore
from queryablestate.store.reader import StoreReader
from queryablestate.store.state_view import StateView
from queryablestate.store.steps import ReadWork
from queryablestate.wire.questions import Answer, GetItems, Question, ScanRows


SECOND_US = 1_000_000
DECIDED_AT_US = 1_700_000_000 * SECOND_US
VIEW = StateView(
    job_id="flights",
    generation=1,
    batch_id=7,
    decided_at_us=DECIDED_AT_US,
    kind="list",
    has_ttl=True,
    lost=(),
)


class Reading:
    """What reads at length, when a test says so."""

    def __init__(self) -> None:
        self.reads: list[LongRead] = []

    def read(self, read: LongRead) -> None:
        """Have something read."""
        self.reads.append(read)

    def gone(self, read_id: ReadId) -> None:
        """Nothing is counted here."""


class Stage:
    """An answerer, the wall clock, and what is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = DECIDED_AT_US + SECOND_US
        self.reading = Reading()
        self.answers: list[msgspec.Struct] = []
        monkeypatch.setattr(
            answering, "time", SimpleNamespace(time_ns=lambda: self.now_us * 1_000)
        )
        opened = SimpleNamespace(
            store=SimpleNamespace(state=lambda _: VIEW), reading=self.reading
        )

        def post(action: Callable[[], None]) -> None:
            action()

        served = ServedJob(
            job_id="flights",
            assignment_version=1,
            key_groups=(0,),
            prefixes=frozenset(),
            in_sync=frozenset(),
        )
        self.answerer = QuestionAnswerer(
            cast("NodeStore", SimpleNamespace(opened=opened, post=post)),
            answer_size_bytes_max=1 << 20,
            clock=ManualClock(),
            admit=lambda _, __: served,
            reply=self.reply,
            is_congested=lambda: True,  # so that it is read at length
            defer=lambda _: None,
            latencies=Latencies(),
        )

    def reply(
        self,
        message: msgspec.Struct,
        payload: bytes | zmq.Frame | None,
        link: int,
        on_gone: Callable[[], None] | None = None,
        /,
    ) -> None:
        """Take an answer."""
        del payload, link, on_gone
        self.answers.append(message)


@pytest.mark.proves("Q2", "C3")
def test_a_long_read_is_as_old_as_when_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Q2, C3: reading takes time: the batch grows older, rows come nearer to expiry."""
    stage = Stage(monkeypatch)
    question = Question(
        leader_epoch=1,
        question_id=1,
        state_number=1,
        assignment_version=1,
        operation=GetItems(),
        deadline_ms=5_000,
    )
    stage.answerer.ask(question, b"\x90", asked_at_ns=0, link=1)
    (read,) = stage.reading.reads
    read.begin(cast("StoreReader", None), ReadWork())
    stage.now_us += 2 * SECOND_US
    found: Any = Found(
        VIEW,
        [],
        b"\x90",
        has_missing=False,
        valid_until_us=DECIDED_AT_US + 10 * SECOND_US,
    )
    read.done(found)
    (answer,) = stage.answers
    assert isinstance(answer, Answer)
    assert answer.reading.age_ms == 3_000
    assert answer.valid_ms == 7_000


@pytest.mark.proves("B1", "B4")
def test_a_question_that_waits_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """B1, B4: what its first frame says is kept like its keys."""
    stage = Stage(monkeypatch)
    question = Question(
        leader_epoch=1,
        question_id=1,
        state_number=1,
        assignment_version=1,
        operation=ScanRows(start=bytes(100), stop=bytes(200), limit=1),
        deadline_ms=5_000,
    )
    stage.answerer.ask(question, b"", asked_at_ns=0, link=1)
    (read,) = stage.reading.reads
    assert read.asked.size_bytes == 300
