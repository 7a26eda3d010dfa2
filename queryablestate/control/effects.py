"""What the control plane wants done: the effects of `ControlCore`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from attrs import frozen

from election import StoreOperation
from nameservice import NameServiceError
from queryablestate.control.events import LinkId
from queryablestate.wire.adoption_messages import AdoptionAnswer
from queryablestate.wire.clients import (
    BatchCommitted,
    RunBound,
    StateDropDone,
    TicketDrawn,
)
from queryablestate.wire.node_messages import ToNode
from queryablestate.wire.operation_messages import (
    AwayNodeForgotten,
    DrainStarted,
    JobForgotten,
    RescaleStarted,
)
from queryablestate.wire.snapshot_messages import SnapshotAnswer


__all__ = [
    "AnswerWriter",
    "ControlEffect",
    "ForgetNode",
    "NoteAssignment",
    "RefuseWriter",
    "SendToNode",
    "StartOver",
    "WriteStore",
]


@frozen(kw_only=True)
class WriteStore:
    """
    Commit these operations to the leader store, under the proxy's own leadership.

    The next one comes only after `StoreWritten` or `StoreFailed`.
    """

    operations: tuple[StoreOperation, ...]


@frozen(kw_only=True)
class AnswerWriter:
    """
    Tell a writer that what it asked for is done.

    Attributes:
        link: Over which link.
        message: The answer.
        not_before_ns: It is true from then on.  It is told then whatever becomes of the
            core, if only the leadership goes on.
    """

    link: LinkId
    message: (
        TicketDrawn
        | RunBound
        | BatchCommitted
        | StateDropDone
        | RescaleStarted
        | DrainStarted
        | JobForgotten
        | AwayNodeForgotten
        | SnapshotAnswer
        | AdoptionAnswer
    )
    not_before_ns: int = 0


@frozen(kw_only=True)
class RefuseWriter:
    """Tell a writer why not."""

    link: LinkId
    request_id: int
    error: NameServiceError


@frozen(kw_only=True)
class SendToNode:
    """
    Tell a node something.

    Nothing of this may be missing between two things that arrive.  What cannot be sent,
    because the node takes no more, ends the connection: the shell says `LinksClosed`,
    and the node will register again and be told what it lacks.
    """

    link: LinkId
    message: ToNode


@frozen(kw_only=True)
class ForgetNode:
    """
    A node is gone: whatever it was asked over this link stays unanswered.

    Attributes:
        link: Its connection, as it was.
        node_id: Its name.
    """

    link: LinkId
    node_id: str


@frozen(kw_only=True)
class NoteAssignment:
    """
    Tell the log that a job has another assignment; its operator wants to know.

    It comes once for each version, when the leader store has it, and before nodes are
    told of it.

    Attributes:
        job_id: The job.
        version: Of the assignment.
        replica_count: How many copies of each key group there are to be.
        key_group_counts: For each node that has a part in the job, of how many key
            groups it is asked.
        joined: Nodes that have a part now, and had none before; sorted.
        left: Nodes that had a part, and have none any more; sorted.
        joining_count: Copies that are being made.
        left_count: Copies that are still to be made, those among them.
    """

    job_id: str
    version: int
    replica_count: int
    key_group_counts: Mapping[str, int]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    joining_count: int
    left_count: int


@frozen(kw_only=True)
class StartOver:
    """
    Throw this core away, and make one from what the leader store holds.

    It may hold something that this core does not know.
    """

    reason: NameServiceError


ControlEffect: TypeAlias = (
    WriteStore
    | AnswerWriter
    | RefuseWriter
    | SendToNode
    | ForgetNode
    | NoteAssignment
    | StartOver
)
