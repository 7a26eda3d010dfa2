"""
`HoldingPublication`: the leader's node, which a confirm writes; without I/O.

What is there before the first confirm is not known.  So that confirm creates the node;
if it exists, it is looked at, and what a former leader has left behind is replaced.
Once we have published, each further confirm writes over that, and a node that is gone
was deleted by somebody else.

A confirm that was never answered is in doubt until the node was looked at.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, assert_never, final

from haservices.zookeeper.nodes import CreateNode, DeleteNode, NodeOperation, SetNode
from haservices.zookeeper.records import LeaderRecord, encode_record


if TYPE_CHECKING:
    from election.contender import LeaderSession
    from haservices.zookeeper.holding_events import ConfirmAsked
    from haservices.zookeeper.records import ContenderRecord


__all__ = ["HoldingPublication"]


class _Writing(Enum):
    """How the next confirm writes the leader's node."""

    CREATE = "create"
    SET = "set"
    REPLACE = "replace"


@final
class HoldingPublication:
    """
    What one leadership has published, as far as that is known.

    Args:
        session: The leadership.
        leader: The leader's node.
        component: The component's node.

    Attributes:
        is_confirmed: Whether retrievers may see us.
    """

    def __init__(self, session: LeaderSession, *, leader: str, component: str) -> None:
        self.is_confirmed = False
        self._session = session
        self._leader = leader
        self._component = component
        self._writing = _Writing.CREATE
        # What our own node says if the confirm that was not answered has happened.
        self._doubted: ContenderRecord | None = None

    @property
    def is_doubted(self) -> bool:
        """Return whether the node must be looked at: we may have published."""
        return self._doubted is not None

    def operations(self, asked: ConfirmAsked) -> list[NodeOperation]:
        """Return how to publish what is to be confirmed."""
        publication = encode_record(
            LeaderRecord(
                epoch=self._session.epoch,
                confirm_count=asked.confirm_count,
                leader_session_id=self._session.leader_session_id,
                address=asked.address,
            )
        )
        create: list[NodeOperation] = [
            CreateNode(path=self._leader, value=publication, is_ephemeral=True),
            # Counts the leaders, for the one that removes what another has left behind.
            SetNode(path=self._component, value=b""),
        ]
        match self._writing:
            case _Writing.CREATE:
                return create
            case _Writing.SET:
                return [SetNode(path=self._leader, value=publication)]
            case _Writing.REPLACE:
                return [DeleteNode(path=self._leader), *create]
            case _:
                assert_never(self._writing)

    def confirmed(self) -> None:
        """Heed that a confirm has happened."""
        self._writing = _Writing.SET
        self.is_confirmed = True

    def doubt(self, record: ContenderRecord) -> None:
        """Heed that a confirm was not answered, after which our node says *record*."""
        if not self.is_confirmed:
            self._doubted = record

    def seen(self, *, is_ours: bool) -> ContenderRecord | None:
        """
        Heed whose the leader's node is.

        Returns:
            What our own node says, if the confirm that was in doubt has happened.
        """
        doubted, self._doubted = self._doubted, None
        if not is_ours:
            self._writing = _Writing.REPLACE
            return None
        self._writing = _Writing.SET
        if doubted is not None:
            self.is_confirmed = True
        return doubted

    def unseen(self) -> None:
        """Heed that there is no leader's node to be looked at."""
        self._doubted = None

    def missed(self) -> bool:
        """Heed that a confirm found no node; return whether ours was deleted."""
        if self._writing is _Writing.SET:
            return True
        self._writing = _Writing.CREATE
        return False
