"""
`NodeStore`: the store of a node and the threads that touch it, as the loop sees them.

What `NodeCore` wants written is given to the writer's thread in that order; what came
of it goes back to the core as events, in the loop.  When the node must serve another
control plane, another store takes the place of this one, and what the threads of the
old one may still say counts no more.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    NameServiceError,
    StorageError,
    get_logger,
)
from queryablestate.node_directory import NodeDirectory
from queryablestate.node_effects import (
    ApplyEntry,
    BindStore,
    DropOldStages,
    RaiseFences,
    ResetJobRows,
    SwitchStore,
)
from queryablestate.node_events import (
    ChunkFinished,
    EntryFinished,
    ResetFinished,
    StoreOpened,
)
from queryablestate.node_threads import StageTask, StoreScanner, StoreWriter


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryablestate.node_config import NodeConfig
    from queryablestate.node_events import NodeEvent
    from queryablestate.store import StateStore
    from queryablestate.store_reader import StoreReader
    from transport import PollLoop


__all__ = ["NodeStore", "OpenStore", "StoreEffect"]

StoreEffect: TypeAlias = (
    ApplyEntry | ResetJobRows | RaiseFences | BindStore | SwitchStore | DropOldStages
)
"""What of a node's effects concerns the store."""

_NS_PER_US: Final = 1_000

_Staged: TypeAlias = "Sequence[tuple[StageTask, NameServiceError | None]]"


@final
class OpenStore:
    """
    A store with those who touch it.

    Attributes:
        store: For one thread to write, any to read.
        reader: The loop's.
        scanner: Reads at length.
        writer: Writes.
        control_id: Whose rows it holds, or is about to.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        on_staged: Callable[[OpenStore, _Staged], None],
        reads_waiting_max: int,
    ) -> None:
        self.store = store
        self.reader: StoreReader = store.reader()
        self.control_id = store.control_id
        self.scanner = StoreScanner(store, reads_waiting_max)
        self.writer = StoreWriter(store, partial(on_staged, self))

    def close(self) -> Sequence[StageTask]:
        """Let the threads end, close the store, return the chunks that are left."""
        self.scanner.close()
        left = self.writer.close()
        self.store.close()
        return left

    def bind(self) -> None:
        """See to it that the store says whose rows it holds; on the writer's thread."""
        if self.control_id is not None:
            self.store.bind_control(self.control_id)


@final
class NodeStore:
    """
    The store that is open, and what is done to it.  Belongs to the thread of *loop*.

    Args:
        config: Where it is, and how it is opened.
        loop: Where results come back.
        on_event: Is told, in the loop, what has been done.
        on_staged: Is told, in the loop, of each chunk that it is on disk, or why not.

    Attributes:
        opened: The store that is open now.

    Raises:
        StorageError: If the data directory cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        loop: PollLoop,
        on_event: Callable[[NodeEvent], None],
        on_staged: Callable[[StageTask, NameServiceError | None], None],
    ) -> None:
        self._config = config
        self._loop = loop
        self._on_event = on_event
        self._on_staged = on_staged
        self._log = get_logger(component="state-node")
        self._directory = NodeDirectory(config)
        self.opened = self._open(self._directory.open())

    def store_opened(self) -> StoreOpened:
        """Return what the core is to know of the store."""
        store = self.opened.store
        return StoreOpened(
            store_id=store.store_id,
            control_id=store.control_id,
            positions=store.positions(),
            fences=store.fences(),
            lost=store.lost_states(),
        )

    def close(self) -> None:
        """Let the threads end, and close the store."""
        self.opened.close()

    def stage(self, task: StageTask) -> None:
        """Stage a chunk."""
        self.opened.writer.stage(task)

    def perform(self, effect: StoreEffect) -> None:
        """Have the writer do what the core wants done."""
        opened = self.opened
        match effect:
            case ApplyEntry():
                opened.writer.run(partial(self._apply, opened, effect))
            case ResetJobRows():
                opened.writer.run(partial(self._reset, opened, effect))
            case BindStore(control_id=control_id):
                opened.control_id = control_id
                opened.writer.run(partial(self._write, opened.bind))
            case RaiseFences(fences=fences):
                raise_fences = partial(opened.store.fence, fences)
                opened.writer.run(partial(self._write, raise_fences))
            case DropOldStages():
                drop_old = partial(self._drop_old, opened)
                opened.writer.run(partial(self._write, drop_old))
            case SwitchStore(control_id=control_id):
                self._switch(control_id)
            case _:
                assert_never(effect)

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
            reads_waiting_max=self._config.questions_waiting_max,
        )

    def _switch(self, control_id: str) -> None:
        """
        Go on with the store of another control plane.

        Waits for what the threads are doing: nobody is answered meanwhile anyway.
        """
        try:
            store = self._directory.open_for(control_id, self.opened.store.node_id)
        except StorageError as error:
            self._log.error("store.switch_failed", error=str(error))
        else:
            left = self.opened.close()
            self.opened = self._open(store)
            refusal = DidNotHappenError("the node serves another control plane now")
            for task in left:
                self._on_staged(task, refusal)
        self._on_event(self.store_opened())

    def _acknowledge(self, opened: OpenStore, results: _Staged) -> None:
        for task, error in results:
            self._on_staged(task, error)
            if opened is self.opened:
                self._on_event(
                    ChunkFinished(writer=task.writer, size_bytes=len(task.rows))
                )

    def _finished(self, opened: OpenStore, event: NodeEvent) -> None:
        if opened is self.opened:
            self._on_event(event)

    # -- on the writer's thread ----------------------------------------------------

    def _staged(self, opened: OpenStore, results: _Staged) -> None:
        self.post(partial(self._acknowledge, opened, results))

    def _apply(self, opened: OpenStore, effect: ApplyEntry) -> None:
        apply = partial(opened.store.apply, effect.job_id, effect.entry)
        failure = self._write(opened.bind, apply)
        event = EntryFinished(job_id=effect.job_id, entry=effect.entry, failure=failure)
        self.post(partial(self._finished, opened, event))

    def _reset(self, opened: OpenStore, effect: ResetJobRows) -> None:
        job_id, sequence = effect.job_id, effect.sequence
        reset = partial(opened.store.reset_job, job_id, sequence, effect.state_numbers)
        failure = self._write(opened.bind, reset)
        event = ResetFinished(job_id=job_id, failure=failure)
        self.post(partial(self._finished, opened, event))

    def _drop_old(self, opened: OpenStore) -> None:
        before_us = time.time_ns() // _NS_PER_US - self._config.stage_retention_us
        batch_count = opened.store.drop_stages_older_than(before_us)
        if batch_count:
            self._log.info("stages.dropped", batch_count=batch_count)

    def _write(self, *actions: Callable[[], object]) -> str | None:
        """Do *actions*, and return why one of them failed, or None."""
        try:
            for action in actions:
                action()
        except NameServiceError as error:
            self._log.warning("store.write_failed", error=str(error))
            return str(error)
        except Exception as error:  # noqa: BLE001 (told to the proxy, not lost)
            self._log.error("loop.failed", where="writer", exc_info=error)
            return f"{type(error).__name__}: {error}"
        return None
