"""
`WriteQueue`: one write to the leader store at a time.

What changes the store waits in a queue.  The first of it is checked against what is
true then, written (`WriteStore`), and takes effect when the store has it, before the
next is looked at.  A write that is larger than one commit of the store takes several,
and is written before the next as well (`queryablestate.control.large_writes`); what an
earlier leader has left of one comes first.

Nodes are taken in before anything else is done (rule S4).  Batches take turns with all
the rest, one write each: what operators ask for, however often, holds up no batch, nor
do many batches hold up a move (rules S2 and B2).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from attrs import define

from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
)
from queryablestate.control.changes import Change, Turn, Write
from queryablestate.control.effects import ControlEffect, StartOver, WriteStore
from queryablestate.control.large_writes import (
    NOTHING_LEFT,
    CommitLimits,
    DividedWrite,
    divided,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.control.changes import Outcome


__all__ = ["WriteQueue"]

_COUNT_MAX: Final = 10_000


@define(kw_only=True)
class _UnderWay:
    """
    A write that is under way.

    Attributes:
        change: What it is of.
        write: The write.
        commits: The commits that it takes.
        index: Which of them is under way.
    """

    change: Change
    write: Write
    commits: DividedWrite
    index: int = 0


@final
class WriteQueue:
    """
    The changes that wait, and the write that is under way.

    Args:
        unfinished: What is to be written before anything else.
        commit_limits: How much one commit of the leader store takes.
    """

    def __init__(self, unfinished: DividedWrite, commit_limits: CommitLimits) -> None:
        self._unfinished = unfinished
        self._commit_limits = commit_limits
        self._waiting: dict[Turn, deque[Change]] = {turn: deque() for turn in Turn}
        self._had_last = Turn.OTHER
        self._under_way: _UnderWay | None = None

    @property
    def is_stalled(self) -> bool:
        """Return whether something waits, and nothing is under way."""
        return self._under_way is None and any(self._waiting.values())

    def add(self, change: Change) -> Sequence[ControlEffect]:
        """Have *change* wait for its turn; refuse it if too many wait."""
        queue = self._waiting[change.turn]
        if len(queue) < _COUNT_MAX:
            queue.append(change)
            return []
        error = DidNotHappenError(f"{_COUNT_MAX} changes wait already")
        return change.refuse(error)

    def begin_next(self, now_ns: int) -> Sequence[Outcome] | None:
        """
        Begin the next change, unless a write is under way.

        Returns:
            What follows from it; None if there is nothing to begin now.
        """
        if self._under_way is not None:
            return None
        if self._unfinished.commits:
            return self._begin_unfinished()
        change = self._next()
        if change is None:
            return None
        try:
            planned = change.prepare(now_ns)
            operations = planned.operations if isinstance(planned, Write) else ()
            commits = divided(operations, self._commit_limits)
        except NameServiceError as error:
            return change.refuse(error)
        if not isinstance(planned, Write):
            return planned
        if not commits.commits:
            return planned.adopt(now_ns)
        self._had_last = change.turn
        self._under_way = _UnderWay(change=change, write=planned, commits=commits)
        return [WriteStore(operations=commits.commits[0])]

    def _next(self) -> Change | None:
        """Take the change whose turn it is, or None if none waits."""
        first = Turn.OTHER if self._had_last is Turn.WRITER else Turn.WRITER
        turns = (Turn.NODE, first, Turn.WRITER, Turn.OTHER)
        queue = next(
            (self._waiting[turn] for turn in turns if self._waiting[turn]), None
        )
        return None if queue is None else queue.popleft()

    def _begin_unfinished(self) -> Sequence[Outcome]:
        self._under_way = _UnderWay(
            change=Change(prepare=_nothing, refuse=_nothing),
            write=Write(operations=(), adopt=_nothing),
            commits=self._unfinished,
        )
        self._unfinished = NOTHING_LEFT
        return [WriteStore(operations=self._under_way.commits.commits[0])]

    def written(self, now_ns: int) -> Sequence[Outcome]:
        """
        Take the commit that is under way for true.

        Returns:
            What follows: the next commit of a large write, or what the change has done.
        """
        under_way = self._under_way
        assert under_way is not None
        under_way.index += 1
        if under_way.index < len(under_way.commits.commits):
            commit = under_way.commits.commits[under_way.index]
            return [WriteStore(operations=commit)]
        self._under_way = None
        return under_way.write.adopt(now_ns)

    def failed(
        self, error: NameServiceError, *, is_certain: bool
    ) -> tuple[Sequence[Outcome], NameServiceError | None]:
        """
        Refuse the change that is under way.

        Args:
            error: What the store said.
            is_certain: Whether nothing was written.

        Returns:
            What follows, and, if the store may have the write or has a part of it, the
            doubt: the last that follows is a `StartOver` then.
        """
        under_way = self._under_way
        assert under_way is not None
        self._under_way = None
        change = under_way.change
        # Once a large write is decided, what is left of it comes before anything else.
        if is_certain and under_way.index <= under_way.commits.deciding_index:
            if isinstance(error, ConfigurationError):  # a limit: no use to try again
                return change.refuse(error), None
            refusal = DidNotHappenError(f"the leader store took no write: {error}")
            return change.refuse(refusal), None
        doubt = MayHaveHappenedError(f"the leader store did not answer: {error}")
        return [*change.refuse(doubt), StartOver(reason=error)], doubt

    def refuse_all(self, error: NameServiceError) -> Sequence[ControlEffect]:
        """Refuse what waits."""
        effects: list[ControlEffect] = []
        while change := self._next():
            effects += change.refuse(error)
        return effects


def _nothing(_: object) -> Sequence[ControlEffect]:
    """Tell no one: what an earlier leader has left is waited for by none."""
    return ()
