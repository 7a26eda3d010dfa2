"""One registration of a contender on ZooKeeper, and what its holder may ask for."""

from __future__ import annotations

import uuid
from typing import TypeAlias

import attrs

from election.contender import LeaderSession
from haservices.zookeeper.nodes import Node, NodeOperation
from haservices.zookeeper.records import ContenderRecord, decode_leader
from nameservice import RemoteProtocolError
from nameservice.answer import Answer


__all__ = ["Commit", "Confirm", "Entry", "HolderRequest"]


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
    answer: Answer[None] = attrs.field(factory=Answer)
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
    answer: Answer[None] = attrs.field(factory=Answer)
    is_sent: bool = False
    attempt_count: int = 0


HolderRequest: TypeAlias = Confirm | Commit


@attrs.frozen(kw_only=True)
class Entry:
    """
    One registration whose node is known.

    Attributes:
        session_id: Whose ephemeral node it is.
        record: The node's value when it was created.
        path: The node.
        epoch: The transaction that created it.
    """

    session_id: int
    record: ContenderRecord
    path: str
    epoch: int

    @property
    def leadership(self) -> LeaderSession:
        """Return what the contender is granted under this entry."""
        return LeaderSession(
            leader_session_id=self.record.leader_session_id, epoch=self.epoch
        )

    def has_published(self, node: Node) -> bool:
        """Return whether the leader's node *node* is what this entry has published."""
        if node.stat.owner_session_id != self.session_id:
            return False
        try:
            return decode_leader(node.value, path="leader").epoch == self.epoch
        except RemoteProtocolError:
            return False
