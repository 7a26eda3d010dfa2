"""
`StoreReports`: tells the proxy what the store of a node holds.

Which stages are complete, what was collected from other nodes, what is planned for a
job, and what became of snapshots.  What takes long is read on the reading thread.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, final

from nameservice import NameServiceError, StorageError, get_logger
from nameservice.clock import NS_PER_SECOND, NS_PER_US
from queryablestate.node.core.read_schedule import DropReason, ReadAsked
from queryablestate.node.reading import LongRead
from queryablestate.wire.node_messages import (
    PlanTold,
    StagesCollected,
    StagesVerified,
)
from queryablestate.wire.records import BatchDecided


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from nameservice import Clock
    from queryablestate.node.stores import NodeStore
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.steps import ReadWork, Steps
    from queryablestate.store.store import StateStore
    from queryablestate.wire.node_messages import CollectStages, VerifyStages
    from queryablestate.wire.snapshot_messages import SnapshotCommand


__all__ = ["StoreReports"]

_CHUNKS_CHECKED_HERE_MAX: Final = 1_000
_CONTROL: Final = "control"
"""The asker of what the control plane wants; the proxy names none like that."""

_CHECK_NS_MAX: Final = 60 * NS_PER_SECOND


@final
class StoreReports:
    """
    Answers what the control plane asks of a store.  Belongs to the node's loop.

    Args:
        store: Where the rows are.
        registration_id: For what the proxy is told.
        stage_retention_us: After so long, rows that no commit named are dropped.
        clock: What deadlines are measured by.
        tell: Sends a message to the proxy.
    """

    def __init__(
        self,
        store: NodeStore,
        *,
        registration_id: str,
        stage_retention_us: int,
        clock: Clock,
        tell: Callable[[msgspec.Struct], None],
    ) -> None:
        self._store = store
        self._registration_id = registration_id
        self._stage_retention_us = stage_retention_us
        self._clock = clock
        self._tell = tell
        self._check_number = 0
        self._log = get_logger(component="state-node")

    def handle_snapshot(self, command: SnapshotCommand) -> None:
        """Write, load or drop a part of a snapshot."""
        opened = self._store.opened
        self._store.snapshots.handle(
            command,
            registration_id=self._registration_id,
            store=opened.store,
            writer=opened.writer,
            on_report=self._tell,
        )

    def collect(self, command: CollectStages) -> None:
        """Collect staged rows from other nodes, and tell what is here then."""
        self._store.collect(command, partial(self._collected, command))

    def check(self, command: VerifyStages) -> None:
        """Tell the proxy which stages are not complete here."""
        opened = self._store.opened
        node_id = opened.store.node_id
        chunk_count = sum(
            stage.chunk_counts.get(node_id, 0) for stage in command.stages
        )

        if chunk_count <= _CHUNKS_CHECKED_HERE_MAX:
            self._verified(command, self._missing(opened.store, command))
            return

        def check(_: StoreReader, __: ReadWork) -> Steps[Sequence[bytes] | None]:
            yield
            return self._missing(opened.store, command)

        def done(missing: Sequence[bytes] | None) -> None:
            self._store.post(partial(self._verified, command, missing))

        def failed(error: NameServiceError, _: ReadWork) -> None:
            self._log.error("store.read_failed", error=str(error))

        def dropped(reason: DropReason, _: ReadWork) -> None:
            self._log.warning("stages.not_checked", reason=reason.value)

        self._check_number += 1
        opened.reading.read(
            LongRead(
                asked=ReadAsked(
                    read_id=(-1, self._check_number),
                    asker=_CONTROL,
                    deadline_ns=self._clock.now_ns() + _CHECK_NS_MAX,
                    holds_rows=False,
                ),
                begin=check,
                size_of=lambda _: 0,
                done=done,
                failed=failed,
                dropped=dropped,
            )
        )

    def _missing(
        self, store: StateStore, command: VerifyStages
    ) -> Sequence[bytes] | None:
        """Return the stages that are not complete, or None if that cannot be told."""
        # What is said to be here must not be dropped before the decision comes.
        now_us = time.time_ns() // NS_PER_US
        try:
            return store.missing_stages(
                command.job_id,
                command.writer_epoch,
                command.batch_id,
                command.stages,
                received_since_us=now_us - self._stage_retention_us // 2,
            )
        except StorageError as error:
            self._log.error("store.read_failed", error=str(error))
            return None

    def _verified(self, command: VerifyStages, missing: Sequence[bytes] | None) -> None:
        if missing is None:
            return  # after "missing" the proxy would give up what may well be there
        if missing or self._has_ample_room(command):
            self._tell_verified(command, missing)
            return
        opened = self._store.opened
        reserve = partial(self._reserve, opened.store, command)
        opened.writer.run(reserve, job_id=command.job_id)

    def _has_ample_room(self, command: VerifyStages) -> bool:
        store = self._store.opened.store
        try:
            return store.reserve_ample(
                command.job_id, command.writer_epoch, command.batch_id
            )
        except StorageError as error:
            self._log.error("store.read_failed", error=str(error))
            return False

    def _reserve(self, store: StateStore, command: VerifyStages) -> None:
        """Keep room for a batch, or tell that there is none; on the writer's thread."""
        failure = None
        try:
            store.reserve(command.job_id, _entry_of(store, command))
        except NameServiceError as error:
            failure = str(error)
            self._log.warning(
                "stages.refused",
                job_id=command.job_id,
                batch_id=command.batch_id,
                reason=failure,
            )
        self._store.post(partial(self._tell_verified, command, (), failure))

    def _tell_verified(
        self,
        command: VerifyStages,
        missing: Sequence[bytes],
        failure: str | None = None,
    ) -> None:
        message = StagesVerified(
            registration_id=self._registration_id,
            verify_id=command.verify_id,
            missing=tuple(missing),
            failure=failure,
        )
        self._tell(message)

    def _collected(
        self,
        command: CollectStages,
        chunk_counts: tuple[int, ...],
        missing: tuple[bytes, ...],
    ) -> None:
        message = StagesCollected(
            registration_id=self._registration_id,
            verify_id=command.verify_id,
            chunk_counts=chunk_counts,
            missing=missing,
        )
        self._tell(message)

    def tell_plan(self, job_id: str) -> None:
        """Tell the proxy what is kept of a job, once all is written that was to be."""
        opened = self._store.opened

        def tell() -> None:
            told, failure = None, None
            try:
                told = opened.store.told_plan(job_id)
            except StorageError as error:
                failure = str(error)
            message = PlanTold(
                registration_id=self._registration_id,
                job_id=job_id,
                sequence=0 if told is None else told.sequence,
                plan=None if told is None else told.plan,
                entries=() if told is None else told.entries,
                failure=failure,
            )
            self._store.post(partial(self._tell, message))

        opened.writer.run(tell, job_id=job_id)


def _entry_of(store: StateStore, command: VerifyStages) -> BatchDecided:
    """Return what the batch of *command* would be, were it decided now."""
    return BatchDecided(
        sequence=store.positions().get(command.job_id, 0) + 1,
        query_id=command.query_id,
        writer_epoch=command.writer_epoch,
        batch_id=command.batch_id,
        assignment_version=0,
        decided_at_us=0,
        states=command.states,
        stages=command.stages,
    )
