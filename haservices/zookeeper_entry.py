"""One registration of a contender on ZooKeeper, and what its holder may ask for."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from enum import Enum
from typing import TypeAlias

import attrs

from election.contender import LeaderSession
from haservices.zookeeper_nodes import NodeOperation
from haservices.zookeeper_records import ContenderRecord


__all__ = ["Commit", "Confirm", "Entry", "HolderRequest", "Phase"]


@attrs.define(kw_only=True, eq=False)
class Confirm:
    """
    Publish *address*.

    Attributes:
        leader_session_id: The leadership that is confirmed.
        address: Where it is reached.
        answer: Completed on the loop.
        is_sent: Whether it may have had an effect.
        attempt_count: How often it was sent.
        confirm_count: Which confirm of its leadership, once it is accepted.
    """

    leader_session_id: uuid.UUID
    address: str
    answer: Future[None] = attrs.field(factory=Future)
    is_sent: bool = False
    attempt_count: int = 0
    confirm_count: int = 0


@attrs.define(kw_only=True, eq=False)
class Commit:
    """
    Do *operations* while *session* holds the component.

    Attributes:
        session: The leadership under which it is done.
        operations: On the nodes of the store.
        answer: Completed on the loop; `TransactionFailedError` counts *operations*.
        is_sent: Whether it may have had an effect.
        attempt_count: How often it was sent.
    """

    session: LeaderSession
    operations: tuple[NodeOperation, ...]
    answer: Future[None] = attrs.field(factory=Future)
    is_sent: bool = False
    attempt_count: int = 0


HolderRequest: TypeAlias = Confirm | Commit


class Phase(Enum):
    """What becomes of an entry, in this order; see zookeeper_contender.py."""

    QUEUED = "queued"
    HOLDING = "holding"
    LEAVING = "leaving"


@attrs.define(kw_only=True, eq=False)
class Entry:
    """
    One registration: a node, as far as we know it.

    Attributes:
        session_id: Whose ephemeral node it is.
        record: The node's value, as we wrote it last.
        phase: Whether it waits, holds the component, or leaves.
        path: The node, once it is known to exist.
        epoch: The transaction that created it.
        version: The node's version; *is_version_known* says whether for sure.
        is_version_known: False after a lost connection, or if somebody else wrote it.
        is_watched: Whether we shall be told of its next change.
        predecessor: The node before it in the queue, whose end it waits for.
        is_place_known: Whether *predecessor* is watched, or there is none.
        may_have_published: Whether the leader's node may be its own.
        committed_ns: When the last write to it that committed was sent.
        may_leave: Whether the contender has stopped leading.
    """

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
    committed_ns: int = 0
    may_leave: bool = False

    @property
    def leadership(self) -> LeaderSession:
        """Return what the contender is granted under this entry."""
        return LeaderSession(
            leader_session_id=self.record.leader_session_id, epoch=self.epoch
        )

    @property
    def node(self) -> str:
        """Return *path*, which is known."""
        assert self.path is not None
        return self.path
