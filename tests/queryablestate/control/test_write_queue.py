"""Whose change is written next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from election import Put
from nameservice import DidNotHappenError, NameServiceError
from queryablestate.control.changes import Change, Outcome, Turn, Write
from queryablestate.control.effects import ControlEffect, WriteStore
from queryablestate.control.large_writes import COMMIT_LIMITS, NOTHING_LEFT
from queryablestate.control.write_queue import WriteQueue


class Desk:
    """A queue, and what it has written and refused, by name."""

    def __init__(self) -> None:
        self.queue = WriteQueue(NOTHING_LEFT, COMMIT_LIMITS)
        self.refused: list[str] = []

    def add(self, turn: Turn, *names: str) -> None:
        """Have a change of each of *names* wait; *nothing* writes none."""
        for name in names:
            change = Change(
                prepare=partial(self._prepare, name),
                refuse=partial(self._refuse, name),
                turn=turn,
            )
            assert self.queue.add(change) == []

    def _prepare(self, name: str, now_ns: int) -> Write | Sequence[Outcome]:
        del now_ns
        if name == "nothing":
            return []
        return Write(operations=(Put(name, b""),), adopt=lambda now_ns: [])

    def _refuse(self, name: str, error: NameServiceError) -> Sequence[ControlEffect]:
        del error
        self.refused.append(name)
        return []

    def begin(self) -> str | None:
        """Begin the next write that there is, and return its name."""
        while (outcomes := self.queue.begin_next(0)) is not None:
            for outcome in outcomes:
                assert isinstance(outcome, WriteStore)
                (operation,) = outcome.operations
                return operation.path
        return None

    def written(self, count: int) -> str:
        """Write *count* changes, and return their names in order."""
        names = []
        for _ in range(count):
            name = self.begin()
            assert name is not None
            names.append(name)
            assert self.queue.written(0) == []
        return " ".join(names)


@pytest.fixture
def desk() -> Desk:
    """Return an empty one."""
    return Desk()


@pytest.mark.proves("S2", "B2")
def test_batches_take_turns_with_all_the_rest(desk: Desk) -> None:
    """S2, B2: many drains hold up no batch, and many batches hold up no move."""
    desk.add(Turn.OTHER, "drain-1", "drain-2", "drain-3")
    desk.add(Turn.WRITER, "batch-1", "batch-2")
    assert desk.written(4) == "batch-1 drain-1 batch-2 drain-2"
    desk.add(Turn.WRITER, "batch-3", "batch-4", "batch-5")
    assert desk.written(4) == "batch-3 drain-3 batch-4 batch-5"
    assert desk.begin() is None
    assert not desk.queue.is_stalled


@pytest.mark.proves("S4")
def test_nodes_are_taken_in_before_anything_else(desk: Desk) -> None:
    """S4: but for what is under way."""
    desk.add(Turn.OTHER, "move")
    assert desk.begin() == "move"
    desk.add(Turn.WRITER, "batch")
    desk.add(Turn.NODE, "node-1", "node-2")
    assert desk.begin() is None
    assert desk.queue.written(0) == []
    assert desk.queue.is_stalled
    assert desk.written(3) == "node-1 node-2 batch"


def test_what_writes_nothing_takes_no_turn(desk: Desk) -> None:
    """It costs no time, so that what comes after it has none to wait for."""
    desk.add(Turn.OTHER, "drain")
    desk.add(Turn.WRITER, "nothing", "batch")
    assert desk.written(2) == "batch drain"


def test_all_that_waits_is_refused(desk: Desk) -> None:
    """When the leadership is lost, say."""
    desk.add(Turn.WRITER, "batch")
    desk.add(Turn.OTHER, "drain")
    desk.add(Turn.NODE, "node")
    assert desk.queue.refuse_all(DidNotHappenError("over")) == []
    assert sorted(desk.refused) == ["batch", "drain", "node"]
    assert desk.begin() is None
