"""`StoreRequests`: what clients ask of the leader stores (rules L1 to L3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from election import VersionedValue
from election.core import ElectionCore
from leaderserver.messages import FailedReply, Failure
from leaderserver.server.answering import Answering
from leaderserver.server.core.audit import AuditedRequest
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.memory_plan import WATCH_COST_BYTES, name_cost_bytes
from leaderserver.server.core.state_budget import StateBudget
from leaderserver.server.core.state_cost import NO_ROOM
from leaderserver.server.core.storage_queue import (
    CleanupTask,
    CommitTask,
    GetTask,
    StorageQueue,
)
from leaderserver.server.core.store_watches import StoreWatches
from leaderserver.server.core.turn import Turn
from leaderserver.server.core.value_cache import ValueCache
from leaderserver.server.storage import UncertainWriteError
from leaderserver.server.storage_work import perform_storage_task
from leaderserver.server.store_tasks import StoreTasks
from leaderserver.store_messages import (
    StoreChanged,
    StoreRevisionReply,
    WatchStoreRequest,
)
from nameservice import StorageError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from leaderserver.server.core.storage_queue import StorageJob, StorageTask
    from leaderserver.server.storage import LeaderStorage
    from leaderserver.server.storage_work import Outcome
    from leaderserver.server.store_tasks import StoreRequest


__all__ = ["StoreRequests"]


@final
class StoreRequests:
    """
    Requests to the leader stores, their answers, and who watches.

    Args:
        core: The election, to be read.
        clients: Where clients are reached.
        answering: How they are answered.
        budget: What watches may cost.
        queue: What waits for the storage.
        storage: Where it is done at once instead, or None.
        watch_count_max: How many stores one session may watch.
        cached_bytes_max: What values may cost in memory that *queue* has led to.

    Attributes:
        watches: Who watches what.
        cache: Those values.
    """

    def __init__(
        self,
        *,
        core: ElectionCore,
        clients: ClientTable,
        answering: Answering,
        budget: StateBudget,
        queue: StorageQueue,
        storage: LeaderStorage | None,
        watch_count_max: int,
        cached_bytes_max: int,
    ) -> None:
        self._clients = clients
        self._answering = answering
        self._counts = answering.counts
        self._budget = budget
        self._queue = queue
        self._storage = storage
        # What names this server to its clients: the core's own moves on when somebody
        # reports an epoch above it.
        self._incarnation = core.incarnation
        self._tasks = StoreTasks(core)
        self.watches = StoreWatches(count_max=watch_count_max)
        self.cache = ValueCache(cached_bytes_max)
        # Who waits for which task of the storage; epochs wait by their component.
        self._asked: dict[int, tuple[ServedClient, int, AuditedRequest | None]] = {}

    def ask(
        self, client: ServedClient, number: int, body: StoreRequest, turn: Turn
    ) -> bool:
        """Do what a client asks of a store, or queue it; return whether it waits."""
        task = self._tasks.take(client, body)
        if self._storage is not None and not isinstance(task, FailedReply):
            outcome = perform_storage_task(self._storage, task)
            self._conclude(client, task, outcome, turn)
            return False
        if isinstance(task, GetTask):
            known = self.cache.find(task.component_id, task.path)
            if known is not None:
                self._conclude(client, task, known, turn)
                return False
        if not isinstance(task, FailedReply) and not self._queue.admits(task):
            task = FailedReply(
                reason=Failure.LIMIT_REACHED,
                detail="too much waits for the data directory already",
            )
        if isinstance(task, FailedReply):
            self._answering.answer(task, turn)
            return False
        job_number = self._queue.add(task)
        if isinstance(task, CommitTask | CleanupTask):
            self.cache.note_write(job_number, task.component_id)
        self._asked[job_number] = (client, number, turn.audited)
        return True

    def done(self, job: StorageJob, outcome: Outcome, turn: Turn) -> None:
        """Answer who asked for *job*, and tell who watches what it changed."""
        task = job.task
        if isinstance(task, GetTask) and isinstance(outcome, VersionedValue):
            self.cache.note_read(job.number, task.component_id, task.path, outcome)
        client, number, audited = self._asked.pop(job.number)
        asked = Turn(
            now_ns=turn.now_ns,
            outgoing=turn.outgoing,
            answer_to=(client, number),
            is_overtaken=turn.is_overtaken,
            audited=audited,
        )
        self._conclude(client, task, outcome, asked)

    def _conclude(
        self, client: ServedClient, task: StorageTask, outcome: Outcome, turn: Turn
    ) -> None:
        """Answer *client*, and tell who watches what *task* changed."""
        if isinstance(outcome, StorageError):
            self._counts["storage_failures"] += 1
        elif isinstance(task, CommitTask) and outcome is None:
            self._counts["commits"] += 1
        if self._clients.get(client.session_id) is client:
            self._answering.answer(StoreTasks.answer(task, outcome), turn)
        self._changed(task, outcome, turn)

    def _changed(self, task: StorageTask, outcome: Outcome, turn: Turn) -> None:
        """Tell who watches a store that *task* changed it, or may have."""
        if outcome is not None and not isinstance(outcome, UncertainWriteError):
            return
        paths: Sequence[str] | None
        match task:
            case CommitTask(operations=operations):
                paths = [operation.path for operation in operations]
            case CleanupTask():
                paths = None
            case _:
                return
        for session_id in self.watches.changed(task.component_id, paths):
            changed = StoreChanged(
                session_id=session_id, component_id=task.component_id
            )
            self._answering.push(session_id, changed, turn)

    def watch(self, client: ServedClient, body: WatchStoreRequest, turn: Turn) -> None:
        """Have a session hear of a store, and tell what it may have missed."""
        watches, component_id = self.watches, body.component_id
        is_new = not watches.has(client.session_id, component_id)
        if is_new and not watches.is_full(client.session_id):
            cost_bytes = WATCH_COST_BYTES + name_cost_bytes(component_id)
            if not self._budget.admits(cost_bytes, now_ns=turn.now_ns):
                self._answering.fail(Failure.LIMIT_REACHED, NO_ROOM, turn)
                return
        is_ours = body.incarnation_seen == self._incarnation
        found = watches.watch(
            client.session_id,
            component_id,
            seen=body.revision_seen if is_ours else None,
        )
        if found is None:
            self._answering.fail(
                Failure.LIMIT_REACHED,
                "a session watches as many stores as it may",
                turn,
            )
            return
        revision, paths = found
        self._answering.answer(
            StoreRevisionReply(
                incarnation=self._incarnation,
                revision=revision,
                paths=None if paths is None else list(paths),
            ),
            turn,
        )
