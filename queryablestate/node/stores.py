"""
`NodeStore`: the store of a node and the threads that touch it, as the loop sees them.

What `NodeCore` wants written is given to the writer's thread, which does it in that
order for each job (`queryablestate.node.store_tasks`); what came of it goes back to the
core as events, in the loop.  When the node must serve another control plane, another
store takes the place of this one, and what the threads of the old one may still say
counts no more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    NameServiceError,
    StorageError,
    get_logger,
)
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
    KeptChanged,
    StoreOpened,
)
from queryablestate.node.core.read_schedule import ReadLimits
from queryablestate.node.directory import NodeDirectory
from queryablestate.node.open_store import OpenStore, Staged
from queryablestate.node.snapshots import NodeSnapshots
from queryablestate.node.store_tasks import StoreTasks
from queryablestate.store.room import StoreSizes
from queryablestate.store.threads import StageTask
from zmqtransport import SocketLimits


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import Clock
    from queryablestate.node.config import NodeConfig
    from queryablestate.node.core.events import NodeEvent
    from queryablestate.node.reading import ReadingThread
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.state_view import StateView
    from queryablestate.store.store import StateStore
    from queryablestate.wire.copy_messages import ToCopySource
    from queryablestate.wire.job_assignment import WriterFence
    from queryablestate.wire.job_plan import JobPlan
    from queryablestate.wire.kept_rows import KeptRows
    from queryablestate.wire.node_messages import CollectStages
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
        self.snapshots = NodeSnapshots(self.post, clock=clock)
        self.opened = self._open(self._directory.open())
        self._tasks = self._tasks_of(self.opened)
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
            holdings=store.holdings(),
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
        self._run(partial(self._tasks.apply, effect), effect.job_id)

    def reset(self, effect: ResetJobRows) -> None:
        """Begin a job anew."""
        self._run(partial(self._tasks.reset, effect), effect.job_id)

    def hold(self, effect: HoldKeyGroups) -> None:
        """Hold some key groups of a job, and no others."""
        self._run(partial(self._tasks.hold, effect), effect.job_id)

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
        self._run(partial(self._tasks.finish_copy, effect), effect.job_id)

    def bind(self, control_id: str) -> None:
        """Say in the store whose rows it holds."""
        opened = self.opened
        opened.control_id = control_id
        self._run(partial(self._tasks.write, opened.bind))

    def raise_fences(self, fences: Sequence[WriterFence]) -> None:
        """Keep fences."""
        raise_fences = partial(self.opened.store.fence, fences)
        self._run(partial(self._tasks.write, raise_fences))

    def drop_old_stages(self, spared: Sequence[str]) -> None:
        """Drop rows that no commit has named for long, but for those of some jobs."""
        drop_old = partial(self._tasks.drop_old_stages, spared)
        self._run(partial(self._tasks.write, drop_old))

    def keep_plan(self, plan: JobPlan) -> None:
        """Keep what is planned for a job."""
        opened = self.opened
        keep_plan = partial(opened.store.keep_plan, plan)
        self._run(partial(self._tasks.write, opened.bind, keep_plan), plan.job_id)

    def forget_job(self, job_id: str) -> None:
        """Remove all that there is of a job, here and in the stores not in use."""
        self._run(partial(self._tasks.forget_job, job_id), job_id)

    def forget_left(self, kept: Sequence[str]) -> None:
        """Forget what is left of all jobs but these."""
        self._run(partial(self._tasks.forget_left, kept))

    def drop_fences(self, job_id: str, query_ids: Sequence[str]) -> None:
        """Remember these fences no more."""
        drop_fences = partial(self.opened.store.drop_fences, job_id, query_ids)
        self._run(partial(self._tasks.write, drop_fences))

    def _run(self, task: Callable[[], object], job_id: str | None = None) -> None:
        """Have the writer's thread do *task*, in its turn."""
        self.opened.writer.run(task, job_id=job_id)

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

    def _tasks_of(self, opened: OpenStore) -> StoreTasks:
        return StoreTasks(
            opened,
            directory=self._directory,
            snapshots=self.snapshots,
            stage_retention_us=self._config.stage_retention_us,
            on_event=partial(self._tell, opened),
            on_kept_forgotten=partial(self._kept_forgotten, opened),
        )

    def switch(self, control_id: str) -> None:
        """
        Go on with the store of another control plane.

        Waits for what the threads are doing: no question is answered meanwhile anyway.
        """
        try:
            store = self._directory.open_for(control_id, self.opened.store)
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
        self._tasks = self._tasks_of(self.opened)
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

    def _kept_changed(self, opened: OpenStore) -> None:
        if opened is self.opened:
            self._kept = self._kept_rows()
            self._on_event(KeptChanged(kept=self._kept))

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

    def _tell(self, opened: OpenStore, event: NodeEvent) -> None:
        self.post(partial(self._finished, opened, event))

    def _kept_forgotten(self, opened: OpenStore) -> None:
        self.post(partial(self._kept_changed, opened))
