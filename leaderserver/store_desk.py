"""
Requests to the leader store, and their answers (rules L1 to L3).

A write is checked against the election in the same turn in which it is made, and
nothing else happens in between: that is what makes the two atomic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never, final

from election import Delete, Put
from election.store import check_operations
from leaderserver.inspection import PAGE_SIZE
from leaderserver.messages import (
    CleanupRequest,
    CommitRequest,
    DoneReply,
    FailedReply,
    Failure,
    GetRequest,
    ListRequest,
    PathsReply,
    PutRecord,
    ReplyBody,
    ValueReply,
)
from nameservice import ConfigurationError, StorageError, VersionMismatchError


if TYPE_CHECKING:
    from election.core import ElectionCore
    from leaderserver.client_table import ServedClient
    from leaderserver.storage import LeaderStorage


__all__ = ["StoreDesk"]


@final
class StoreDesk:
    """
    Answers what clients ask of the leader stores.

    Args:
        core: Who leads what.
        storage: What is stored.
    """

    def __init__(self, core: ElectionCore, storage: LeaderStorage) -> None:
        self._core = core
        self._storage = storage

    def answer(
        self,
        client: ServedClient,
        body: GetRequest | ListRequest | CommitRequest | CleanupRequest,
    ) -> ReplyBody:
        """Return the answer to *body*, which *client* sent."""
        try:
            match body:
                case GetRequest():
                    return self._get(body)
                case ListRequest():
                    return self._list(body)
                case CommitRequest():
                    return self._commit(client, body)
                case CleanupRequest():
                    return self._cleanup(client, body)
                case _:
                    assert_never(body)
        except StorageError as error:
            return FailedReply(reason=Failure.STORAGE, detail=str(error))

    def _get(self, body: GetRequest) -> ReplyBody:
        found = self._storage.get(body.component_id, body.path)
        if found is None:
            return ValueReply(value=b"", version=0)
        return ValueReply(value=found.value, version=found.version)

    def _list(self, body: ListRequest) -> ReplyBody:
        paths = self._storage.list(
            body.component_id, body.prefix, after=body.after, count_max=PAGE_SIZE
        )
        return PathsReply(paths=list(paths), is_complete=len(paths) < PAGE_SIZE)

    def _commit(self, client: ServedClient, body: CommitRequest) -> ReplyBody:
        if self._core.is_undecided:
            return FailedReply(
                reason=Failure.UNDECIDED,
                detail="the server does not know yet who leads",
            )
        if not self._core.leads(
            client.session_id, body.component_id, body.leader_session_id, body.epoch
        ):
            component = self._core.component(body.component_id)
            return FailedReply(
                reason=Failure.STALE,
                detail=f"epoch {body.epoch} does not lead",
                epoch_max=None if component is None else component.epoch_max,
            )
        operations = [
            Put(record.path, record.value, record.version)
            if isinstance(record, PutRecord)
            else Delete(record.path, record.version)
            for record in body.operations
        ]
        try:
            check_operations(operations)  # our clients have; others may not
            self._storage.commit(body.component_id, operations)
        except ConfigurationError as error:
            return FailedReply(reason=Failure.INVALID, detail=str(error))
        except VersionMismatchError as error:
            return FailedReply(
                reason=Failure.VERSION_MISMATCH,
                detail=str(error),
                path=error.path,
                version=error.version,
                version_expected=error.version_expected,
            )
        return DoneReply()

    def _cleanup(self, client: ServedClient, body: CleanupRequest) -> ReplyBody:
        if not client.principal.may_contend(body.component_id):
            return FailedReply(
                reason=Failure.NOT_ALLOWED,
                detail=f"{client.principal.name} may not clean up {body.component_id}",
            )
        self._storage.cleanup(body.component_id)
        return DoneReply()
