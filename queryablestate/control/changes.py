"""
Changes of what the leader store holds, as the machines of `ControlCore` plan them.

A machine cannot write: it returns a `Change`, and the core gives it its turn.  When the
turn has come the change is checked against what is true by then, and becomes a `Write`,
or turns out to need none.

Nor does a machine call another one.  Where what it did may matter to others it returns
a *notice* in that place, and the core asks them what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from election import StoreOperation
from nameservice import NameServiceError
from queryablestate.control.effects import ControlEffect


if TYPE_CHECKING:
    from queryablestate.control.job.job import Job


__all__ = [
    "AssignmentChanged",
    "Change",
    "JobRemoved",
    "NodeCame",
    "Outcome",
    "Turn",
    "Write",
]


@frozen(kw_only=True)
class Write:
    """
    Operations for the store, and what is true once it has them.

    Attributes:
        operations: All of them, or none; if there are none, nothing need be waited for.
        adopt: Is told the time, and returns what follows.
    """

    operations: Sequence[StoreOperation]
    adopt: Callable[[int], Sequence[Outcome]]


class Turn(Enum):
    """What a change is for, and so what it waits for."""

    NODE = "node"
    """Nodes are taken in before anything else is done, whatever clients want."""

    WRITER = "writer"
    """Batches take turns with what is for others, one write each."""

    OTHER = "other"
    """What operators ask for, moves, and clean-up."""


@frozen(kw_only=True)
class Change:
    """
    Something that waits for its turn.

    Attributes:
        prepare: Is told the time, and says what to write; what it raises goes to
            *refuse*.  A sequence says that there is nothing to write, and what follows.
        refuse: Returns how those who wait for it are told that it failed.
        turn: Before what it has its turn.
    """

    prepare: Callable[[int], Write | Sequence[Outcome]]
    refuse: Callable[[NameServiceError], Sequence[ControlEffect]]
    turn: Turn = Turn.OTHER


@frozen(kw_only=True)
class NodeCame:
    """A notice: a node was taken in, and was told what it answers for."""


@frozen(kw_only=True)
class AssignmentChanged:
    """A notice: *job* has another assignment, and its nodes were told of it."""

    job: Job


@frozen(kw_only=True)
class JobRemoved:
    """A notice: there is no job *job_id* any more, and nodes were told."""

    job_id: str


Outcome: TypeAlias = ControlEffect | Change | NodeCame | AssignmentChanged | JobRemoved
"""What a machine returns: things to do now, changes that wait, and notices."""
