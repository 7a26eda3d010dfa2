"""`StoreTasks`: what the writing thread of a node does to its store, for its core."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, final

from attrs import evolve

from nameservice import NameServiceError, StorageError, get_logger
from nameservice.clock import NS_PER_US
from queryablestate.errors import StagedDataMissingError
from queryablestate.node.core.events import (
    ROWS_MISSING,
    CopyFinished,
    EntryFinished,
    KeyGroupsHeld,
    LeftJobsForgotten,
    ResetFinished,
)
from queryablestate.node.core.job import found_by
from queryablestate.wire.job_plan import entry_digest
from queryablestate.wire.records import SnapshotMarked


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryablestate.node.core.effects import (
        ApplyEntry,
        FinishCopy,
        HoldKeyGroups,
        ResetJobRows,
    )
    from queryablestate.node.core.events import NodeEvent
    from queryablestate.node.directory import NodeDirectory
    from queryablestate.node.open_store import OpenStore
    from queryablestate.node.snapshots import NodeSnapshots
    from queryablestate.wire.job_plan import JobHolding


__all__ = ["StoreTasks", "reason_of"]


@final
class StoreTasks:
    """
    What is done to one store, on its writing thread.

    Args:
        opened: The store, and its threads.
        directory: Of the other stores of the node.
        snapshots: What is written of it, and loaded into it.
        stage_retention_us: How long rows are kept that no commit has named.
        on_event: Is told what has been done, on this thread.
        on_kept_forgotten: Is told, likewise, that the other stores have less now.
    """

    def __init__(
        self,
        opened: OpenStore,
        *,
        directory: NodeDirectory,
        snapshots: NodeSnapshots,
        stage_retention_us: int,
        on_event: Callable[[NodeEvent], None],
        on_kept_forgotten: Callable[[], None],
    ) -> None:
        self._opened = opened
        self._directory = directory
        self._snapshots = snapshots
        self._stage_retention_us = stage_retention_us
        self._on_event = on_event
        self._on_kept_forgotten = on_kept_forgotten
        self._log = get_logger(component="state-node")

    def apply(self, effect: ApplyEntry) -> None:
        """Apply an entry."""
        opened = self._opened
        holding: JobHolding | None = None

        def apply() -> None:
            nonlocal holding
            opened.store.apply(effect.job_id, effect.entry)
            if found_by(effect.entry):
                holding = opened.store.holding(effect.job_id)

        failure, reason = self._written(opened.bind, apply)
        if failure is None and isinstance(effect.entry, SnapshotMarked):
            self._snapshots.marked(opened.store, effect.job_id, effect.entry)
        event = EntryFinished(
            job_id=effect.job_id,
            entry=effect.entry,
            failure=failure,
            digest=entry_digest(effect.entry) if failure is None else b"",
            reason=reason,
            holding=holding,
        )
        self._on_event(event)
        opened.copier.advance()

    def reset(self, effect: ResetJobRows) -> None:
        """Begin a job anew."""
        opened = self._opened
        job_id = effect.job_id
        holding: JobHolding | None = None

        def reset() -> None:
            nonlocal holding
            holding = opened.store.reset_job(
                job_id,
                effect.sequence,
                effect.state_numbers,
                effect.restore_id,
                key_groups=effect.key_groups,
                joining=effect.joining,
                assignment_version=effect.assignment_version,
            )

        failure, reason = self._written(opened.bind, reset)
        event = ResetFinished(
            job_id=job_id, failure=failure, reason=reason, holding=holding
        )
        self._on_event(event)

    def hold(self, effect: HoldKeyGroups) -> None:
        """Hold some key groups of a job, and remove the rows of others."""
        opened = self._opened
        copied: tuple[int, ...] = ()
        missing: tuple[int, ...] = ()
        sequence_min = 0

        def hold() -> None:
            nonlocal copied, missing, sequence_min
            held = opened.store.hold(
                effect.job_id,
                effect.key_groups,
                effect.joining,
                assignment_version=effect.assignment_version,
                copied_version=effect.copied_version,
            )
            copied, missing = held.copied, held.missing
            sequence_min = held.sequence_min

        failure = self.write(opened.bind, hold)
        event = KeyGroupsHeld(
            job_id=effect.job_id,
            assignment_version=effect.assignment_version,
            copied=copied,
            missing=missing,
            sequence_min=sequence_min,
            failure=failure,
        )
        self._remove_unheld(event)

    def _remove_unheld(self, event: KeyGroupsHeld) -> None:
        """Remove some rows, and come again; tell what is held when none is left."""
        is_done = True
        holding: JobHolding | None = None

        def remove() -> None:
            nonlocal is_done, holding
            is_done = self._opened.store.remove_unheld(event.job_id)
            # As it is when that is told: more may have been held in between.
            holding = self._opened.store.holding(event.job_id)

        if event.failure is None:
            failure = self.write(remove)
            if failure is not None:
                event = evolve(event, failure=failure)
            elif not is_done:
                again = partial(self._remove_unheld, event)
                self._opened.writer.run(again, job_id=event.job_id)
                return
        self._on_event(evolve(event, holding=holding))

    def finish_copy(self, effect: FinishCopy) -> None:
        """Replay some kept entries, and come again: others have turns meanwhile."""
        store = self._opened.store
        key_groups: tuple[int, ...] | None = None
        holding: JobHolding | None = None

        def finish() -> None:
            nonlocal key_groups, holding
            key_groups = store.finish_copy(
                effect.job_id, effect.key_groups, effect.sequence
            )
            holding = store.holding(effect.job_id)

        failure = self.write(finish)
        if failure is not None:
            key_groups = ()
        elif key_groups is None:
            again = partial(self.finish_copy, effect)
            self._opened.writer.run(again, job_id=effect.job_id)
            return
        event = CopyFinished(
            job_id=effect.job_id,
            fetch_id=effect.fetch_id,
            key_groups=key_groups or (),
            failure=failure,
            holding=holding,
        )
        self._on_event(event)

    def forget_job(self, job_id: str) -> None:
        """Remove a job; what fails is tried again when the node registers again."""
        opened = self._opened
        forget = partial(opened.store.forget_job, job_id)
        forget_kept = partial(self._directory.forget_kept, job_id, opened.store)
        if self.write(opened.bind, forget, forget_kept) is None:
            self._log.info("job.forgotten", job_id=job_id)
            self._on_kept_forgotten()

    def forget_left(self, kept: Sequence[str]) -> None:
        """Forget what is left of all jobs but these."""
        job_ids: tuple[str, ...] = ()

        def forget() -> None:
            nonlocal job_ids
            job_ids = self._opened.store.forget_left(kept)

        self.write(forget)
        if job_ids:
            self._log.info("jobs.left", job_ids=job_ids)
        event = LeftJobsForgotten(job_ids=job_ids)
        self._on_event(event)

    def drop_old_stages(self, spared: Sequence[str]) -> None:
        """Drop rows that no commit has named for long, but for those of some jobs."""
        before_us = time.time_ns() // NS_PER_US - self._stage_retention_us
        store = self._opened.store
        self._snapshots.drop_old(store, spared)
        batch_count = store.drop_stages_older_than(before_us, spared)
        if batch_count:
            self._log.info("stages.dropped", batch_count=batch_count)

    def write(self, *actions: Callable[[], object]) -> str | None:
        """Do *actions*, and return why one of them failed, or None."""
        failure, _ = self._written(*actions)
        return failure

    def _written(self, *actions: Callable[[], object]) -> tuple[str | None, str]:
        """Do *actions*, and return why one of them failed, or None; also in a word."""
        try:
            for action in actions:
                action()
        except NameServiceError as error:
            self._log.warning("store.write_failed", error=str(error))
            return str(error), reason_of(error)
        except Exception as error:  # noqa: BLE001 (told to the proxy, not lost)
            self._log.error("loop.failed", where="writer", exc_info=error)
            return f"{type(error).__name__}: {error}", "defect"
        return None, ""


def reason_of(error: NameServiceError) -> str:
    """Return why a job is stopped in a word of ours: metrics have it as a label."""
    if isinstance(error, StorageError):
        return error.reason
    return ROWS_MISSING if isinstance(error, StagedDataMissingError) else "failed"
