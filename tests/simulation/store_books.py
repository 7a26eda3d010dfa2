"""L1 to L4: what must hold of the leader stores, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final
from uuid import UUID

from attrs import define

from election import Put
from leaderserver.store_messages import PutRecord
from nameservice import DidNotHappenError, StaleEpochError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election import StoreOperation
    from election.core import ElectionCore
    from leaderserver.message_parts import AffirmationRecord
    from leaderserver.store_messages import CommitRequest
    from nameservice import NameServiceError


__all__ = ["StoreBooks"]


class _Require(Protocol):
    def __call__(self, rule: str, holds: bool, what: str = "") -> None: ...


@define
class _Commit:
    """
    One commit that reached a server.

    Attributes:
        component_id: Whose store it was for.
        epoch: What it claimed to be of.
        is_leaders: Whether it was of the leader when it took its place in the queue.
        is_decided: Whether the disk is done with it.
    """

    component_id: str
    epoch: int
    is_leaders: bool
    is_decided: bool


@final
class StoreBooks:
    """
    What was asked of the leader stores, done and answered; by token.

    Args:
        require: Is told of every rule that was checked.
    """

    def __init__(self, require: _Require) -> None:
        self._require = require
        self._commits: dict[str, _Commit] = {}
        self._committed: set[str] = set()
        self._refused: set[str] = set()
        self._written_epochs: dict[str, int] = {}

    def asked(
        self,
        body: CommitRequest,
        client_session_id: str | None,
        core: ElectionCore,
        *,
        is_waiting: bool,
    ) -> None:
        """Take note that a commit took its place, or was refused, as things stood."""
        for record in body.operations:
            assert isinstance(record, PutRecord)
            token, leader_session_id, epoch = record.value.decode().split("|")
            if token in self._commits:
                continue  # the network brings it twice
            component = core.component(body.component_id)
            leadership = None if component is None else component.leadership
            self._commits[token] = _Commit(
                component_id=body.component_id,
                epoch=int(epoch),
                is_leaders=leadership is not None
                and leadership.epoch == int(epoch)
                and leadership.leader_session_id == UUID(leader_session_id)
                and leadership.session_id == client_session_id,
                is_decided=not is_waiting,
            )

    def written(self, value: bytes, *, is_durable: bool) -> None:
        """Take note of a commit that took effect."""
        token = value.decode().partition("|")[0]
        self._require(
            "L2 a commit takes effect once", token not in self._committed, token
        )
        self._require(
            "L4 what was refused is not done", token not in self._refused, token
        )
        self._committed.add(token)
        asked = self._commits[token]
        self._require(
            "L2 only the present leader writes, under its own session",
            asked.is_leaders,
            f"{token}: epoch {asked.epoch} wrote",
        )
        if is_durable:
            before = self._written_epochs.get(asked.component_id, 0)
            self._require(
                "L2 no older leader writes after a newer one",
                asked.epoch >= before,
                f"epoch {asked.epoch} after {before}",
            )
            self._written_epochs[asked.component_id] = asked.epoch

    def decided(self, operations: Sequence[StoreOperation]) -> None:
        """Take note that the disk is done with a commit, well or not."""
        for operation in operations:
            assert isinstance(operation, Put)
            self._commits[operation.value.decode().partition("|")[0]].is_decided = True

    def forgotten(self) -> None:
        """Take note that a server died, and with it all commits that waited."""
        for commit in self._commits.values():
            commit.is_decided = True

    def passed_on(self, record: AffirmationRecord) -> None:
        """L2: a successor is granted when its predecessors' commits are decided."""
        for token, asked in self._commits.items():
            if asked.component_id == record.component_id and asked.is_leaders:
                self._require(
                    "L2 a successor's grant follows its predecessors' commits",
                    asked.is_decided or asked.epoch >= record.epoch,
                    f"{token} of epoch {asked.epoch} before {record.epoch}",
                )

    def answered(self, token: str, error: NameServiceError | None) -> None:
        """L4: what a client heard of its commit."""
        if error is None:
            self._require(
                "L4 what was acknowledged is done", token in self._committed, token
            )
        elif isinstance(error, DidNotHappenError | StaleEpochError):
            self._require(
                "L4 what was refused is not done", token not in self._committed, token
            )
            self._refused.add(token)

    def lost(self) -> None:
        """Take note that everything stored is gone."""
        self._written_epochs.clear()
