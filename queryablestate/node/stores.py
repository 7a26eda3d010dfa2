"""
`NodeStore`: the store of a node and the threads that touch it, as the loop sees them.

What `NodeCore` wants written is given to the writer's thread, which does it in that
order for each job; what came of it goes back to the core as events, in the loop.  When
the node must serve another control plane, another store takes the place of this one,
and what the threads of the old one may still say counts no more.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import evolve

from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    NameServiceError,
    StorageError,
    get_logger,
)
from nameservice.clock import NS_PER_US
from queryablestate.errors import StagedDataMissingError
from queryablestate.node.copying.limits import CopyLimits
from queryablestate.node.copying.thread import CopyThread
from queryablestate.node.core.effects import (
    ApplyEntry,
    FetchKeyGroups,
    FinishCopy,
    HoldKeyGroups,
    ResetJobRows,
    StageRows,
)
from queryablestate.node.core.events import (
    ChunkFinished,
    CopyFinished,
    EntryFinished,
    KeptChanged,
    KeyGroupsHeld,
    LeftJobsForgotten,
    ResetFinished,
    StoreOpened,
)
from queryablestate.node.core.read_schedule import ReadLimits
from queryablestate.node.directory import NodeDirectory
from queryablestate.node.open_store import OpenStore, Staged
from queryablestate.node.snapshots import NodeSnapshots
from queryablestate.store.room import StoreSizes
from queryablestate.store.threads import StageTask
from queryablestate.wire.job_plan import entry_digest
from queryablestate.wire.records import SnapshotMarked
from zmqtransport import SocketLimits


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import Clock
    from queryablestate.node.config import NodeConfig
    from queryablestate.node.core.events import NodeEvent
    from queryablestate.node.reading import ReadingThread
    from queryablestate.store.reader import StateView, StoreReader
    from queryablestate.store.store import StateStore
    from queryablestate.wire.copy_messages import ToCopySource
    from queryablestate.wire.job_plan import JobPlan
    from queryablestate.wire.kept_rows import KeptRows
    from queryablestate.wire.node_messages import CollectStages, WriterFence
    from zmqtransport import CurveKeyPair, PollLoop, ZMQContext


__all__ = ["NodeStore"]

_COPY_FRAME_SIZE_BYTES_MAX: Final = 32 << 20
"""Room for a page and a row more than that, however small the chunks are here: the
row was brought to another node (rule B3)."""


@final
class NodeStore:
    """
    The store that is open, and what is done to it.  Belongs to the thread of *loop*.

    Args:
        config: Where it is, and how it is opened.
        loop: Where results come back.
        context: Of the connections to other nodes.
        key_pair: As whom the node speaks to them, or None.
        clock: What their silence is measured by.
        on_event: Is told, in the loop, what has been done.
        on_staged: Is told, in the loop, of each chunk that it is on disk, or why not.
        send_page: Sends rows to another node, in the loop; returns whether that one is
            there.

    Attributes:
        opened: The store that is open now.
        snapshots: What is written to snapshots, and loaded of them.

    Raises:
        StorageError: If the data directory cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        loop: PollLoop,
        context: ZMQContext,
        key_pair: CurveKeyPair | None,
        clock: Clock,
        on_event: Callable[[NodeEvent], None],
        on_staged: Callable[[StageTask, NameServiceError | None], None],
        send_page: Callable[[bytes, Sequence[bytes]], bool],
    ) -> None:
        self._config = config
        self._loop = loop
        self._on_event = on_event
        self._on_staged = on_staged
        self._send_page = send_page
        self._clock = clock
        self._copy_limits = CopyLimits(copies_max=config.copies_max)
        self._log = get_logger(component="state-node")
        self._directory = NodeDirectory(config)
        self.snapshots = NodeSnapshots(self.post)
        self.opened = self._open(self._directory.open())
        self._kept = self._kept_rows()
        try:
            self._copying = CopyThread(
                context,
                key_pair,
                socket_limits=SocketLimits(
                    frame_size_bytes_max=_COPY_FRAME_SIZE_BYTES_MAX
                ),
                clock=clock,
                limits=self._copy_limits,
                post=self.post,
            )
        except BaseException:
            self.opened.close()
            raise

    def store_opened(self) -> StoreOpened:
        """Return what the core is to know of the store."""
        store = self.opened.store
        return StoreOpened(
            store_id=store.store_id,
            control_id=store.control_id,
            positions=store.positions(),
            fences=store.fences(),
            lost=store.lost_states(),
            kept=self._kept,
            origins=store.origins(),
        )

    def close(self) -> None:
        """End the threads, and close the store."""
        self._copying.close()
        self.snapshots.forget()
        self.opened.close()

    def figures(self) -> dict[str, int]:
        """Return the figures of the store, and of what reads it, by name."""
        try:
            sizes = self.opened.store.sizes()
        except StorageError as error:
            self._log.warning("store.unmeasured", error=str(error))
            sizes = StoreSizes(used_bytes=0, size_bytes_max=0, staged_bytes=0)
        return {
            "store_used_bytes": sizes.used_bytes,
            "store_size_bytes_max": sizes.size_bytes_max,
            "staged_bytes": sizes.staged_bytes,
            "copies_served": len(self.opened.copier),
            "reads_waiting": len(self.opened.reading),
            "reads_held_bytes": self.opened.reading.held_size_bytes,
        }

    # -- what the core wants done --------------------------------------------------

    def stage(self, effect: StageRows) -> None:
        """Stage a chunk."""
        self.opened.writer.stage(
            StageTask(writer=effect.writer, chunk=effect.chunk, rows=effect.rows)
        )

    def apply(self, effect: ApplyEntry) -> None:
        """Apply an entry."""
        opened = self.opened
        opened.writer.run(partial(self._apply, opened, effect), job_id=effect.job_id)

    def reset(self, effect: ResetJobRows) -> None:
        """Begin a job anew."""
        opened = self.opened
        opened.writer.run(partial(self._reset, opened, effect), job_id=effect.job_id)

    def hold(self, effect: HoldKeyGroups) -> None:
        """Hold some key groups of a job, and no others."""
        opened = self.opened
        opened.writer.run(partial(self._hold, opened, effect), job_id=effect.job_id)

    def fetch(self, effect: FetchKeyGroups) -> None:
        """Fetch rows from another node."""
        opened = self.opened
        self._copying.fetch(
            effect,
            store=opened.store,
            writer=opened.writer,
            on_event=partial(self._finished, opened),
        )

    def cancel_fetch(self, job_id: str) -> None:
        """Fetch no more for a job."""
        self._copying.cancel(job_id)

    def finish_copy(self, effect: FinishCopy) -> None:
        """Bring copies as far as the rest of their job."""
        opened = self.opened
        opened.writer.run(
            partial(self._finish_copy, opened, effect), job_id=effect.job_id
        )

    def bind(self, control_id: str) -> None:
        """Say in the store whose rows it holds."""
        opened = self.opened
        opened.control_id = control_id
        opened.writer.run(partial(self._write, opened.bind))

    def raise_fences(self, fences: Sequence[WriterFence]) -> None:
        """Keep fences."""
        opened = self.opened
        raise_fences = partial(opened.store.fence, fences)
        opened.writer.run(partial(self._write, raise_fences))

    def drop_old_stages(self, spared: Sequence[str]) -> None:
        """Drop rows that no commit has named for long, but for those of some jobs."""
        opened = self.opened
        drop_old = partial(self._drop_old, opened, spared)
        opened.writer.run(partial(self._write, drop_old))

    def keep_plan(self, plan: JobPlan) -> None:
        """Keep what is planned for a job."""
        opened = self.opened
        keep_plan = partial(opened.store.keep_plan, plan)
        opened.writer.run(
            partial(self._write, opened.bind, keep_plan), job_id=plan.job_id
        )

    def forget_job(self, job_id: str) -> None:
        """Remove all that there is of a job, here and in the stores not in use."""
        opened = self.opened
        opened.writer.run(partial(self._forget_job, opened, job_id), job_id=job_id)

    def forget_left(self, kept: Sequence[str]) -> None:
        """Forget what is left of all jobs but these."""
        opened = self.opened
        opened.writer.run(partial(self._forget_left, opened, kept))

    def drop_fences(self, job_id: str, query_ids: Sequence[str]) -> None:
        """Remember these fences no more."""
        opened = self.opened
        drop_fences = partial(opened.store.drop_fences, job_id, query_ids)
        opened.writer.run(partial(self._write, drop_fences))

    # -- for clients ---------------------------------------------------------------

    def reader(self) -> StoreReader:
        """Return what reads in the loop."""
        return self.opened.reader

    def reading(self) -> ReadingThread:
        """Return what reads at length: another one when the store is another."""
        return self.opened.reading

    def state(self, state_number: int) -> StateView | None:
        """
        Return what is known of a state, None if there is no such state.

        Raises:
            StorageError: If the store cannot be read.
        """
        return self.opened.store.state(state_number)

    def release_dead_readers(self) -> None:
        """Use pages again that a reader process kept which has ended."""
        try:
            self.opened.store.release_dead_readers()
        except StorageError as error:
            self._log.warning("store.unreleased", error=str(error))

    # -- for others ----------------------------------------------------------------

    def collect(
        self,
        command: CollectStages,
        on_collected: Callable[[tuple[int, ...], tuple[bytes, ...]], None],
    ) -> None:
        """Collect staged rows from other nodes; see `CopyThread.collect`."""
        opened = self.opened

        def tell(counts: tuple[int, ...], missing: tuple[bytes, ...]) -> None:
            if opened is self.opened:
                on_collected(counts, missing)

        self._copying.collect(
            command, store=opened.store, writer=opened.writer, on_collected=tell
        )

    def show(self, secret: bytes) -> None:
        """Show *secret* to the nodes that are asked from now on."""
        self._copying.show(secret)

    def serve_copy(self, peer: bytes, message: ToCopySource) -> bool:
        """Take what another node asks for; return whether there is room for it."""
        return self.opened.copier.receive(peer, message)

    def post(self, action: Callable[[], None]) -> None:
        """Have *action* called in the loop, from any thread; not while it ends."""
        try:
            self._loop.call_soon_threadsafe(action)
        except LocalProtocolError:
            return  # the node is closing

    # -- in the loop ---------------------------------------------------------------

    def _open(self, store: StateStore) -> OpenStore:
        return OpenStore(
            store,
            on_staged=self._staged,
            read_limits=ReadLimits(
                waiting_count_max=self._config.questions_waiting_max
            ),
            clock=self._clock,
            send_page=self._send_there,
            copy_limits=self._copy_limits,
            staged_bytes_per_job_max=self._config.staged_bytes_per_job_max,
        )

    def switch(self, control_id: str) -> None:
        """
        Go on with the store of another control plane.

        Waits for what the threads are doing: no question is answered meanwhile anyway.
        """
        try:
            store = self._directory.open_for(control_id, self.opened.store.node_id)
        except StorageError as error:
            self._log.error("store.switch_failed", error=str(error))
            # The threads go on: what they were asked for before comes first, or the
            # positions would be of the middle of it.
            opened = self.opened
            opened.writer.run(partial(self.post, partial(self._reopened, opened)))
            return
        self._copying.forget()
        self.snapshots.forget()
        left = self.opened.close()
        self.opened = self._open(store)
        self._kept = self._kept_rows()
        refusal = DidNotHappenError("the node serves another control plane now")
        for task in left:
            self._on_staged(task, refusal)
        self._on_event(self.store_opened())

    def _kept_rows(self) -> tuple[KeptRows, ...]:
        """Return what the other stores of the node hold."""
        return self._directory.kept_rows(self.opened.store)

    def _reopened(self, opened: OpenStore) -> None:
        """Begin anew with the store that there was."""
        if opened is self.opened:
            self._on_event(self.store_opened())

    def _acknowledge(self, opened: OpenStore, results: Staged) -> None:
        for task, error in results:
            self._on_staged(task, error)
            if opened is self.opened:
                self._on_event(
                    ChunkFinished(writer=task.writer, size_bytes=len(task.rows))
                )

    def _send(self, opened: OpenStore, peer: bytes, frames: Sequence[bytes]) -> None:
        if opened is self.opened and not self._send_page(peer, frames):
            opened.copier.lose(peer)

    def _finished(self, opened: OpenStore, event: NodeEvent) -> None:
        if opened is self.opened:
            self._on_event(event)

    # -- on the copier's thread ----------------------------------------------------

    def _send_there(
        self, opened: OpenStore, peer: bytes, frames: Sequence[bytes]
    ) -> None:
        self.post(partial(self._send, opened, peer, frames))

    # -- on the writer's thread ----------------------------------------------------

    def _staged(self, opened: OpenStore, results: Staged) -> None:
        self.post(partial(self._acknowledge, opened, results))

    def _apply(self, opened: OpenStore, effect: ApplyEntry) -> None:
        apply = partial(opened.store.apply, effect.job_id, effect.entry)
        failure, reason = self._written(opened.bind, apply)
        if failure is None and isinstance(effect.entry, SnapshotMarked):
            self.snapshots.marked(opened.store, effect.job_id, effect.entry)
        event = EntryFinished(
            job_id=effect.job_id,
            entry=effect.entry,
            failure=failure,
            digest=entry_digest(effect.entry) if failure is None else b"",
            reason=reason,
        )
        self.post(partial(self._finished, opened, event))
        opened.copier.advance()

    def _reset(self, opened: OpenStore, effect: ResetJobRows) -> None:
        job_id, sequence = effect.job_id, effect.sequence
        reset = partial(
            opened.store.reset_job,
            job_id,
            sequence,
            effect.state_numbers,
            effect.restore_id,
        )
        failure, reason = self._written(opened.bind, reset)
        event = ResetFinished(job_id=job_id, failure=failure, reason=reason)
        self.post(partial(self._finished, opened, event))

    def _hold(self, opened: OpenStore, effect: HoldKeyGroups) -> None:
        copied: tuple[int, ...] = ()
        missing: tuple[int, ...] = ()
        sequence_min = 0

        def hold() -> None:
            nonlocal copied, missing, sequence_min
            held = opened.store.hold(effect.job_id, effect.key_groups, effect.joining)
            copied, missing = held.copied, held.missing
            sequence_min = held.sequence_min

        failure = self._write(opened.bind, hold)
        event = KeyGroupsHeld(
            job_id=effect.job_id,
            assignment_version=effect.assignment_version,
            copied=copied,
            missing=missing,
            sequence_min=sequence_min,
            failure=failure,
        )
        self._remove_unheld(opened, event)

    def _remove_unheld(self, opened: OpenStore, event: KeyGroupsHeld) -> None:
        """Remove some rows, and come again; tell what is held when none is left."""
        is_done = True

        def remove() -> None:
            nonlocal is_done
            is_done = opened.store.remove_unheld(event.job_id)

        if event.failure is None:
            failure = self._write(remove)
            if failure is not None:
                event = evolve(event, failure=failure)
            elif not is_done:
                opened.writer.run(
                    partial(self._remove_unheld, opened, event), job_id=event.job_id
                )
                return
        self.post(partial(self._finished, opened, event))

    def _finish_copy(self, opened: OpenStore, effect: FinishCopy) -> None:
        """Replay some kept entries, and come again: others have turns meanwhile."""
        key_groups: tuple[int, ...] | None = None

        def finish() -> None:
            nonlocal key_groups
            key_groups = opened.store.finish_copy(
                effect.job_id, effect.key_groups, effect.sequence
            )

        failure = self._write(finish)
        if failure is None and key_groups is None:
            opened.writer.run(
                partial(self._finish_copy, opened, effect), job_id=effect.job_id
            )
            return
        event = CopyFinished(
            job_id=effect.job_id,
            fetch_id=effect.fetch_id,
            key_groups=key_groups or (),
            failure=failure,
        )
        self.post(partial(self._finished, opened, event))

    def _forget_job(self, opened: OpenStore, job_id: str) -> None:
        """Remove a job; what fails is tried again when the node registers again."""
        forget = partial(opened.store.forget_job, job_id)
        forget_kept = partial(self._directory.forget_kept, job_id, opened.store)
        if self._write(opened.bind, forget, forget_kept) is None:
            self._log.info("job.forgotten", job_id=job_id)
            self.post(partial(self._kept_changed, opened))

    def _forget_left(self, opened: OpenStore, kept: Sequence[str]) -> None:
        job_ids: tuple[str, ...] = ()

        def forget() -> None:
            nonlocal job_ids
            job_ids = opened.store.forget_left(kept)

        self._write(forget)
        if job_ids:
            self._log.info("jobs.left", job_ids=job_ids)
        event = LeftJobsForgotten(job_ids=job_ids)
        self.post(partial(self._finished, opened, event))

    def _kept_changed(self, opened: OpenStore) -> None:
        if opened is self.opened:
            self._kept = self._kept_rows()
            self._on_event(KeptChanged(kept=self._kept))

    def _drop_old(self, opened: OpenStore, spared: Sequence[str]) -> None:
        before_us = time.time_ns() // NS_PER_US - self._config.stage_retention_us
        self.snapshots.drop_old(opened.store, before_us, spared)
        batch_count = opened.store.drop_stages_older_than(before_us, spared)
        if batch_count:
            self._log.info("stages.dropped", batch_count=batch_count)

    def _write(self, *actions: Callable[[], object]) -> str | None:
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
            return str(error), _reason_of(error)
        except Exception as error:  # noqa: BLE001 (told to the proxy, not lost)
            self._log.error("loop.failed", where="writer", exc_info=error)
            return f"{type(error).__name__}: {error}", "defect"
        return None, ""


def _reason_of(error: NameServiceError) -> str:
    """Return why a job is stopped in a word of ours: metrics have it as a label."""
    if isinstance(error, StorageError):
        return error.reason
    return "rows_missing" if isinstance(error, StagedDataMissingError) else "failed"
