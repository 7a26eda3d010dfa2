"""One registration in a queue, as far as its contender knows it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, assert_never, final

import attrs

from haservices.zookeeper.entry import Entry
from haservices.zookeeper.queue_effects import (
    QueueEffect,
    UnwatchOwnNode,
    UnwatchPredecessor,
)
from haservices.zookeeper.queue_events import (
    OwnNodeChanged,
    PredecessorChanged,
    PublicationSent,
    VersionForgotten,
    VersionKnown,
)
from haservices.zookeeper.records import decode_contender
from nameservice import RemoteProtocolError


if TYPE_CHECKING:
    from haservices.zookeeper.nodes import Node, NodeStat
    from haservices.zookeeper.records import ContenderRecord


__all__ = ["Phase", "QueueEntry"]


class Phase(Enum):
    """What becomes of an entry, in this order."""

    QUEUED = "queued"
    HOLDING = "holding"
    LEAVING = "leaving"


@final
@attrs.define(kw_only=True, eq=False)
class QueueEntry:
    """
    What is known of one entry; `QueueCore` says when, its methods what follows.

    Attributes:
        number: Which of ours.
        session_id: Whose ephemeral node it is.
        record: The node's value when it is created.
        phase: Whether it waits, holds the component, or leaves.
        path: The node, once it is known to exist.
        epoch: The transaction that created it.
        version: The node's version; *is_version_known* says whether for sure.
        is_version_known: False after a lost connection, or if somebody else wrote it.
        is_watched: Whether we will be told of its next change.
        predecessor: The node before it in the queue, whose end it waits for.
        is_place_known: Whether *predecessor* is watched, or there is none.
        may_have_published: Whether the leader's node may be its own.
        may_leave: Whether the contender has stopped leading.
        leave_due_ns: When it leaves all the same.
    """

    number: int
    session_id: int
    record: ContenderRecord
    phase: Phase = Phase.QUEUED
    path: str | None = None
    epoch: int = 0
    version: int = 0
    is_version_known: bool = False
    is_watched: bool = False
    predecessor: str | None = None
    is_place_known: bool = False
    may_have_published: bool = False
    may_leave: bool = False
    leave_due_ns: int | None = None

    @property
    def node(self) -> str:
        """Return *path*, which is known."""
        assert self.path is not None
        return self.path

    def known(self) -> Entry:
        """Return what does not change of it any more."""
        return Entry(
            session_id=self.session_id,
            record=self.record,
            path=self.node,
            epoch=self.epoch,
        )

    # -- what is known ---------------------------------------------------------------

    def exists(self, path: str, stat: NodeStat) -> None:
        """Heed that its node is *path*."""
        self.path = path
        self.epoch = stat.created_zxid

    def read(self, node: Node) -> bool:
        """Heed what its node says; return whether that ends it."""
        self.version = node.stat.version
        self.is_version_known = True
        try:
            return decode_contender(node.value, path=self.node).is_ended
        except RemoteProtocolError:
            return True  # overwritten by somebody

    def change(
        self,
        event: OwnNodeChanged
        | PredecessorChanged
        | VersionKnown
        | VersionForgotten
        | PublicationSent,
    ) -> None:
        """Heed news of it."""
        match event:
            case OwnNodeChanged():
                # Most often by our own write: then the version will turn out right.
                self.is_watched = False
            case PredecessorChanged():
                self.is_place_known = False
            case VersionKnown(version=version):
                self.version = version
            case VersionForgotten():
                self.is_version_known = False
            case PublicationSent():
                self.may_have_published = True
            case _:
                assert_never(event)

    def forget(self) -> None:
        """Take nothing for known: the connection was lost."""
        self.is_version_known = False
        self.is_watched = False
        self.is_place_known = False

    def forget_predecessor(self) -> tuple[QueueEffect, ...]:
        """Wait for the one before it no longer."""
        if self.predecessor is None:
            return ()
        predecessor, self.predecessor = self.predecessor, None
        return (UnwatchPredecessor(path=predecessor),)

    def forget_watches(self) -> tuple[QueueEffect, ...]:
        """Wait for nothing any more."""
        unwatched = self.forget_predecessor()
        if self.path is None:
            return unwatched
        return (*unwatched, UnwatchOwnNode(path=self.path))

    def pass_time(self, now_ns: int) -> None:
        """Note whether it is due to leave."""
        if self.leave_due_ns is not None and now_ns >= self.leave_due_ns:
            self.leave_due_ns = None
            self.may_leave = True
