"""
Requests to the leader store, and their answers (rules L1 to L3).

A request becomes a task of the storage, and the task's outcome an answer.  A commit is
checked against the election in the turn in which it takes its place in the queue.  From
there on its order is fixed: before the record of any later epoch, and so before any
successor's grant, and before every read of that component that is asked for later.
That is what makes check and write one (rule L2), however long the disk takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never, final

from election import Delete, Put, VersionedValue
from election.store import check_operations
from leaderserver.messages import (
    DoneReply,
    FailedReply,
    Failure,
    ReplyBody,
    UncertainReply,
)
from leaderserver.server.core.inspection import PAGE_SIZE
from leaderserver.server.core.storage_queue import (
    CleanupTask,
    CommitTask,
    GetTask,
    ListTask,
)
from leaderserver.server.core.store_sizes import StoreFullError
from leaderserver.server.storage import UncertainWriteError
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    GetRequest,
    ListRequest,
    PathsReply,
    PutRecord,
    ValueReply,
)
from nameservice import ConfigurationError, NameServiceError, VersionMismatchError


if TYPE_CHECKING:
    from election.core import ElectionCore
    from leaderserver.server.core.client_table import ServedClient
    from leaderserver.server.core.storage_queue import StorageTask
    from leaderserver.server.storage_work import Outcome


__all__ = ["StoreRequest", "StoreTasks"]


StoreRequest: TypeAlias = GetRequest | ListRequest | CommitRequest | CleanupRequest


@final
class StoreTasks:
    """
    Takes what clients ask of the leader stores, and answers it.

    Args:
        core: Who leads what.
    """

    def __init__(self, core: ElectionCore) -> None:
        self._core = core

    def take(
        self, client: ServedClient, body: StoreRequest
    ) -> StorageTask | FailedReply:
        """Return what to do for *body*, which *client* sent, or why not to."""
        match body:
            case GetRequest():
                return GetTask(component_id=body.component_id, path=body.path)
            case ListRequest():
                return ListTask(
                    component_id=body.component_id,
                    prefix=body.prefix,
                    after=body.after,
                    count_max=PAGE_SIZE,
                )
            case CommitRequest():
                return self._take_commit(client, body)
            case CleanupRequest():
                if client.principal.may_contend(body.component_id):
                    return CleanupTask(component_id=body.component_id)
                name = client.principal.name
                return FailedReply(
                    reason=Failure.NOT_ALLOWED,
                    detail=f"{name} may not clean up {body.component_id}",
                )
            case _:
                assert_never(body)

    def _take_commit(
        self, client: ServedClient, body: CommitRequest
    ) -> CommitTask | FailedReply:
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
        asked = [
            Put(record.path, record.value, record.version)
            if isinstance(record, PutRecord)
            else Delete(record.path, record.version)
            for record in body.operations
        ]
        try:
            operations = check_operations(asked)  # our clients have; others may not
        except ConfigurationError as error:
            return FailedReply(reason=Failure.INVALID, detail=str(error))
        return CommitTask(component_id=body.component_id, operations=operations)

    @staticmethod
    def answer(task: StorageTask, outcome: Outcome) -> ReplyBody:
        """Return what to answer to who asked for *task*."""
        match outcome:
            case None:  # first: it is what becomes of most
                if isinstance(task, GetTask):
                    return ValueReply(value=b"", version=0)
                return DoneReply()
            case VersionedValue():
                return ValueReply(value=outcome.value, version=outcome.version)
            case UncertainWriteError() if not isinstance(task, GetTask | ListTask):
                return UncertainReply(detail=str(outcome))
            case VersionMismatchError() as error:
                return FailedReply(
                    reason=Failure.VERSION_MISMATCH,
                    detail=str(error),
                    path=error.path,
                    version=error.version,
                    version_expected=error.version_expected,
                )
            case StoreFullError():
                return FailedReply(reason=Failure.LIMIT_REACHED, detail=str(outcome))
            case NameServiceError():
                return FailedReply(reason=Failure.STORAGE, detail=str(outcome))
            case tuple():
                is_complete = len(outcome) < PAGE_SIZE
                return PathsReply(paths=list(outcome), is_complete=is_complete)
            case _:
                assert_never(outcome)
