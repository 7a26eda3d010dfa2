"""
What operators do to the contenders of a component on ZooKeeper, without I/O.

Theory of operation
-------------------
A leadership is ended by marking its holder's node (queue_core.py) and
deleting what it has published.  Waiting contenders lead nothing: their nodes are just
deleted, at the version that was read, since one may be granted this very moment.

The queue is ZooKeeper's own order of sequential nodes: no node can be put before one
that exists.  Leadership is therefore handed to a contender in one transaction that ends
the leadership and deletes every node between; their contenders queue again, at the end.

Each operation reads, attempts, and begins anew if something has changed meanwhile:

::

    Began ──► ReadQueues ──QueuesRead──► ReadPublication ──PublicationRead──► Attempt
                  ▲                          (or Fail)                           │
                  └────────────────────Attempted, not done───────────────────────┤
                                                              Attempted ──► Finish
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, assert_never, final

import msgspec
from attrs import frozen

from election.contender import LeaderSession
from haservices.zookeeper.nodes import (
    CheckNode,
    DeleteNode,
    NodeOperation,
    NodeStat,
    SetNode,
    format_session_id,
)
from haservices.zookeeper.records import ContenderRecord, encode_record
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    NoLeaderError,
    UnknownContenderError,
    UnknownSessionError,
    UnreachableError,
)


if TYPE_CHECKING:
    from collections.abc import Mapping

    from haservices.zookeeper.paths import ComponentPaths


__all__ = [
    "Attempt",
    "Attempted",
    "Began",
    "Contender",
    "ExpireCore",
    "Fail",
    "Finish",
    "Interrupted",
    "OperationCore",
    "OperationEffect",
    "OperationEvent",
    "PublicationRead",
    "Queue",
    "QueuesRead",
    "ReadPublication",
    "ReadQueues",
    "RevokeCore",
    "TransferCore",
]

_ATTEMPT_COUNT_MAX: Final = 10


@frozen(kw_only=True)
class Contender:
    """A contender's node, as it was read."""

    path: str
    contender_id: str
    stat: NodeStat
    record: ContenderRecord

    @property
    def is_leader(self) -> bool:
        """Return whether it leads, as far as its node says."""
        return self.record.is_granted and not self.record.is_ended

    @property
    def session_id(self) -> str:
        """Return its session as operators know it."""
        return format_session_id(self.stat.owner_session_id)

    @property
    def leadership(self) -> LeaderSession:
        """Return what it was granted, or would be."""
        return LeaderSession(
            leader_session_id=self.record.leader_session_id,
            epoch=self.stat.created_zxid,
        )


@frozen(kw_only=True)
class Queue:
    """The contenders of one component, in order."""

    paths: ComponentPaths
    contenders: tuple[Contender, ...]


# -- events --------------------------------------------------------------------------


@frozen
class Began:
    """An operator wants it."""


@frozen(kw_only=True)
class QueuesRead:
    """These are the queues that were asked for."""

    queues: tuple[Queue, ...]


@frozen(kw_only=True)
class PublicationRead:
    """The leader's node is there, or not."""

    is_published: bool


@frozen(kw_only=True)
class Attempted:
    """It was done, or nothing was: a node was not as it had been read."""

    is_done: bool


@frozen(kw_only=True)
class Interrupted:
    """What was asked for last came to nothing, as *error* tells."""

    error: Exception


OperationEvent: TypeAlias = (
    Began | QueuesRead | PublicationRead | Attempted | Interrupted
)


# -- effects -------------------------------------------------------------------------


@frozen
class ReadQueues:
    """Read the queues that the operation is about."""


@frozen(kw_only=True)
class ReadPublication:
    """Look whether the leader's node of the component of *paths* is there."""

    paths: ComponentPaths


@frozen(kw_only=True)
class Attempt:
    """Do all of *operations*, or none."""

    operations: tuple[NodeOperation, ...]


@frozen(kw_only=True)
class Finish:
    """
    It is done.

    Attributes:
        ended: The leadership that it has ended, if any.
        fields: What is written down of it; None if nothing was done.
    """

    ended: LeaderSession | None = None
    fields: Mapping[str, object] | None = None


@frozen(kw_only=True)
class Fail:
    """It was not done, or not wholly, as *error* tells."""

    error: Exception


OperationEffect: TypeAlias = ReadQueues | ReadPublication | Attempt | Finish | Fail


class OperationCore(Protocol):
    """One operation; not thread-safe."""

    def step(self, event: OperationEvent) -> OperationEffect:
        """Take *event* into account; return what to do."""


# -- the cores -----------------------------------------------------------------------


@final
class RevokeCore:
    """End the present leadership of a component; its holder queues last."""

    def __init__(self, *, component_id: str) -> None:
        self._component_id = component_id
        self._read_count = 0
        self._queue: Queue | None = None

    def step(self, event: OperationEvent) -> OperationEffect:
        """Take *event* into account; return what to do."""
        match event:
            case Began():
                return self._read()
            case QueuesRead(queues=(queue,)):
                self._queue = queue
                if not queue.contenders or not queue.contenders[0].is_leader:
                    return Fail(error=NoLeaderError(self._component_id, 0.0))
                return ReadPublication(paths=queue.paths)
            case PublicationRead(is_published=is_published):
                operations = _ending_of(
                    self._queue_read.paths, self._holder, is_published=is_published
                )
                return Attempt(operations=operations)
            case Attempted(is_done=False):
                return self._read()
            case Attempted():
                ended = self._holder.leadership
                fields = {"component_id": self._component_id, "epoch": ended.epoch}
                return Finish(ended=ended, fields=fields)
            case Interrupted(error=error):
                return Fail(error=error)
            case QueuesRead():
                raise AssertionError(event)  # it was one that was asked for
            case _:
                assert_never(event)

    @property
    def _queue_read(self) -> Queue:
        assert self._queue is not None
        return self._queue

    @property
    def _holder(self) -> Contender:
        return self._queue_read.contenders[0]

    def _read(self) -> OperationEffect:
        if self._read_count == _ATTEMPT_COUNT_MAX:
            message = (
                f"the leader of {self._component_id!r} changed each time it was revoked"
            )
            return Fail(error=DidNotHappenError(message))
        self._read_count += 1
        return ReadQueues()


@final
class TransferCore:
    """Make one contender lead a component next; all before it queue last."""

    def __init__(self, *, component_id: str, contender_id: str) -> None:
        self._component_id = component_id
        self._contender_id = contender_id
        self._read_count = 0
        self._queue: Queue | None = None
        self._place = 0

    def step(self, event: OperationEvent) -> OperationEffect:
        """Take *event* into account; return what to do."""
        match event:
            case Began():
                return self._read()
            case QueuesRead(queues=(queue,)):
                return self._take(queue)
            case PublicationRead(is_published=is_published):
                return Attempt(operations=self._operations(is_published=is_published))
            case Attempted(is_done=False):
                return self._read()
            case Attempted():
                return self._finish()
            case Interrupted(error=error):
                return Fail(error=error)
            case QueuesRead():
                raise AssertionError(event)  # it was one that was asked for
            case _:
                assert_never(event)

    @property
    def _queue_read(self) -> Queue:
        assert self._queue is not None
        return self._queue

    def _read(self) -> OperationEffect:
        if self._read_count == _ATTEMPT_COUNT_MAX:
            message = f"the contenders for {self._component_id!r} changed each time"
            return Fail(error=DidNotHappenError(message))
        self._read_count += 1
        return ReadQueues()

    def _take(self, queue: Queue) -> OperationEffect:
        self._queue = queue
        for place, contender in enumerate(queue.contenders):
            # One that is ended enters the queue again, as another node.
            if (
                contender.contender_id == self._contender_id
                and not contender.record.is_ended
            ):
                self._place = place
                return ReadPublication(paths=queue.paths) if place > 0 else Finish()
        error = UnknownContenderError(self._component_id, self._contender_id)
        return Fail(error=error)

    def _operations(self, *, is_published: bool) -> tuple[NodeOperation, ...]:
        """
        Return what takes all before the contender out of the queue.

        All or nothing, so that none between is granted meanwhile.  A holder stays first
        until it has stopped leading, however long ago it was marked.
        """
        queue = self._queue_read
        contender = queue.contenders[self._place]
        operations: list[NodeOperation] = [CheckNode(path=contender.path)]
        for each in queue.contenders[: self._place]:
            if not each.record.is_granted:
                operations.append(_removal_of(each))
            elif not each.record.is_ended:
                operations += _ending_of(queue.paths, each, is_published=is_published)
        return tuple(operations)

    def _finish(self) -> Finish:
        holder = self._queue_read.contenders[0]
        ended = holder.leadership if holder.is_leader else None
        return Finish(
            ended=ended,
            fields={
                "component_id": self._component_id,
                "contender_id": self._contender_id,
                "epoch": None if ended is None else ended.epoch,
            },
        )


@frozen(kw_only=True)
class _Left:
    """An entry of the session that is not ended yet."""

    paths: ComponentPaths
    contender: Contender


@frozen(kw_only=True)
class _Round:
    """What is left of what was read last, and whether all before it was done."""

    left: tuple[_Left, ...] = ()
    is_done: bool = True


@final
class ExpireCore:
    """
    End everything that a session contends for; each queues last again.

    There is no one transaction for all.  What changed meanwhile is looked at again.
    """

    def __init__(self, *, session_id: str) -> None:
        self._session_id = session_id
        self._read_count = 0
        self._round = _Round()
        self._ended: set[str] = set()
        self._epochs: dict[str, int] = {}

    def step(self, event: OperationEvent) -> OperationEffect:
        """Take *event* into account; return what to do."""
        match event:
            case Began():
                return self._read()
            case QueuesRead(queues=queues):
                return self._take(queues)
            case PublicationRead(is_published=is_published):
                first = self._round.left[0]
                operations = _ending_of(
                    first.paths, first.contender, is_published=is_published
                )
                return Attempt(operations=operations)
            case Attempted(is_done=is_done):
                return self._attempted(is_done=is_done)
            case Interrupted(error=error):
                return Fail(error=self._doubt(error))
            case _:
                assert_never(event)

    def _read(self) -> OperationEffect:
        if self._read_count == _ATTEMPT_COUNT_MAX:
            message = f"session {self._session_id!r} changed each time it was ended"
            return Fail(error=self._doubt(DidNotHappenError(message)))
        self._read_count += 1
        return ReadQueues()

    def _take(self, queues: tuple[Queue, ...]) -> OperationEffect:
        left = tuple(
            _Left(paths=queue.paths, contender=contender)
            for queue in queues
            for contender in queue.contenders
            if contender.session_id == self._session_id
            and contender.path not in self._ended
        )
        if not left and not self._ended:
            return Fail(error=UnknownSessionError(self._session_id))
        self._round = _Round(left=left)
        return self._next()

    def _next(self) -> OperationEffect:
        if not self._round.left:
            if not self._round.is_done:
                return self._read()
            fields = {"expired_session_id": self._session_id, "epochs": self._epochs}
            return Finish(fields=fields)
        first = self._round.left[0]
        if first.contender.record.is_granted:
            return ReadPublication(paths=first.paths)
        return Attempt(operations=(_removal_of(first.contender),))

    def _attempted(self, *, is_done: bool) -> OperationEffect:
        first, *rest = self._round.left
        if is_done:
            self._ended.add(first.contender.path)
            if first.contender.is_leader:
                epoch = first.contender.stat.created_zxid
                self._epochs[first.paths.component_id] = epoch
        self._round = _Round(left=tuple(rest), is_done=self._round.is_done and is_done)
        return self._next()

    def _doubt(self, error: Exception) -> Exception:
        """Return what is told when *error* came after a part was done."""
        if not self._ended or not isinstance(
            error, UnreachableError | DidNotHappenError
        ):
            return error
        message = (
            f"{len(self._ended)} of the session's entries were ended, then: {error}"
        )
        doubt = MayHaveHappenedError(message)
        doubt.__cause__ = error
        return doubt


def _removal_of(contender: Contender) -> NodeOperation:
    """Return what removes one that waits, unless it is granted meanwhile."""
    return DeleteNode(path=contender.path, version=contender.stat.version)


def _ending_of(
    paths: ComponentPaths, holder: Contender, *, is_published: bool
) -> tuple[NodeOperation, ...]:
    """Return what ends the leadership of *holder*."""
    record = msgspec.structs.replace(holder.record, is_ended=True)
    mark = SetNode(path=holder.path, value=encode_record(record))
    return (mark, DeleteNode(path=paths.leader)) if is_published else (mark,)
