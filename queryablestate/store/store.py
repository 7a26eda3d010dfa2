"""
Key groups on disk: staged batches, applied batches, and what was applied (LMDB).

Theory of operation
===================

A store is the data directory of one node.  One thread writes: it stages chunks, applies
the entries of the jobs' chains, and sweeps.  Any thread reads, through a `StoreReader`
of its own, and is never made to wait: LMDB keeps the pages of the snapshot that a
reader began with.  Rows that a reader can see are decided and applied (rule Q1).

*Durable* means that the disk has it when the call returns.  Without ``is_durable`` a
call returns earlier, and a crash of the machine may damage the directory; a killed
process loses nothing.

What lies where is told in `queryablestate.store.layout`, what an entry does to it in
`queryablestate.store.apply`, which key groups it is done to in
`queryablestate.store.holdings`, and how others are copied from another node in
`queryablestate.store.copies`.

**What it costs.**  A transaction keeps the pages that it has touched in memory, 4 KiB
each, and LMDB keeps that memory for the next one: a batch whose rows lie scattered over
a large state needs up to a page for each row.  Rows that have expired are found by
walking: `StateStore.sweep_expired` looks at every row with TTL in turn, a bounded
number at a time, so that an expired row takes up space for a round, and no index of
expiries need be kept for each write.

**Identity.**  The directory is made for one node, with a random ``store_id``: if it is
lost and made anew, the proxy sees another one and knows that the rows are gone (rule
W7).  It belongs to one control plane, because numbers of states are unique within one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from nameservice import StorageError
from queryablestate.errors import StaleWriterError
from queryablestate.store.apply import EntryApplier
from queryablestate.store.copies import CopyMaker
from queryablestate.store.copy_reader import CopyReader, staged_payloads
from queryablestate.store.environment import StoreEnvironment
from queryablestate.store.expiry import ExpirySweeper
from queryablestate.store.hold_marks import holding_of
from queryablestate.store.holdings import Held, HoldingKeeper
from queryablestate.store.kept_rows import kept_rows
from queryablestate.store.layout import (
    FENCE_PREFIX,
    JOB_PREFIX,
    batch_prefix,
    decode_fence,
    decode_job,
    fence_key,
)
from queryablestate.store.marks import (
    fence_of,
    forget_marks,
    hold_mark,
    hold_marks,
    job_states,
    marked_jobs,
    raise_fence,
    records,
    state_mark,
    state_marks,
)
from queryablestate.store.plans import PlanKeeper
from queryablestate.store.reader import StoreReader
from queryablestate.store.restores import RestoreArea
from queryablestate.store.room import RoomKeeper
from queryablestate.store.slots import drop_state
from queryablestate.store.staging import StagingArea
from queryablestate.store.state_view import StateView, view_of


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from queryablestate.store.plans import ToldPlan
    from queryablestate.store.room import StoreSizes
    from queryablestate.wire.copy_messages import CopiedRows, CopiedStates
    from queryablestate.wire.job_assignment import JoiningGroup, WriterFence
    from queryablestate.wire.job_plan import JobHolding, JobOrigin, JobPlan
    from queryablestate.wire.kept_rows import KeptRows
    from queryablestate.wire.records import BatchDecided, Entry, StageRecord
    from queryablestate.wire.staging_messages import StageChunk


__all__ = ["SIZE_BYTES_MAX", "StateStore"]

SIZE_BYTES_MAX: Final = 64 << 30
"""How much a store may grow by default; takes address space, and disk as it is used."""

_LEFT_COUNT_MAX: Final = 20
"""Jobs that are forgotten at once: batches of others wait meanwhile."""


@final
class StateStore:
    """
    The rows of one node; one thread writes, any thread reads through its `reader`.

    All methods block.  Methods that write (`bind_control`, `fence`, `stage`, `apply`,
    `reserve`, `reset_job`, `forget_job`, `forget_left`, `drop_fences`, `keep_plan`,
    `hold`, `remove_unheld`, `put_copied`, `finish_copy`, `drop_stages_older_than`,
    `sweep_expired`) are for one thread; the others may be called from any.  Every
    failure of the disk is a `StorageError`, and leaves everything as it was, or as what
    may be called again makes it.
    """

    def __init__(self, environment: StoreEnvironment) -> None:
        self._environment = environment
        self._meta = environment.meta
        self._staging = StagingArea(
            environment.staged,
            meta=environment.meta,
            node_id=environment.identity.node_id,
            page_size_bytes=environment.environment.stat()["psize"],
        )
        self._room = RoomKeeper(environment, self._staging)
        self._copies = CopyMaker(environment, self._staging, self._room)
        self._holdings = HoldingKeeper(environment, self._copies)
        self._restores = RestoreArea(environment, self._room)
        self._plans = PlanKeeper(environment)
        self._applier = EntryApplier(
            environment, self._staging, self._copies, self._restores, self._plans
        )
        self._sweeper = ExpirySweeper(environment)
        with environment.writing() as transaction:
            self._staging.recount(transaction)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        node_id: str | None = None,
        size_bytes_max: int = SIZE_BYTES_MAX,
        is_durable: bool = True,
    ) -> StateStore:
        """
        Open the data directory of a node; make it if it is not there.

        Args:
            node_id: The name of the node; None for the one that the directory belongs
                to, or for one that is drawn if it is new.
            size_bytes_max: How much it may grow; at least 1 MiB.
            is_durable: Whether what writes waits for the disk.

        Raises:
            StorageError: If another process has it, if it belongs to another node, or
                if it cannot be used.
            ConfigurationError: If *size_bytes_max* is too small.
        """
        environment = StoreEnvironment(
            directory,
            node_id=node_id,
            size_bytes_max=size_bytes_max,
            is_durable=is_durable,
        )
        try:
            return cls(environment)
        except BaseException:
            # A node may open it again once there is room, or what is wrong is mended.
            environment.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def node_id(self) -> str:
        """Return the name of the node that this directory belongs to."""
        return self._environment.identity.node_id

    @property
    def name(self) -> str:
        """Return the last part of the path of its directory."""
        return self._environment.name

    @property
    def store_id(self) -> str:
        """Return what was drawn when the directory was made."""
        return self._environment.identity.store_id

    @property
    def control_id(self) -> str | None:
        """Return the control plane whose rows these are, or None before the first."""
        return self._environment.identity.control_id

    @property
    def restores(self) -> RestoreArea:
        """Return what is loaded of snapshots, and not shown yet."""
        return self._restores

    def bind_control(self, control_id: str) -> None:
        """
        Keep *control_id* for good.

        Raises:
            StorageError: If the directory holds rows of another control plane.
        """
        identity = self._environment.identity
        if identity.control_id == control_id:
            return
        if identity.control_id is not None:
            raise StorageError(
                f"the data directory of node {identity.node_id!r} holds rows of "
                f"another control plane ({identity.control_id}, not {control_id}), "
                "whose store was lost: remove the directory, and run the queries again "
                "from new checkpoints"
            )
        self._environment.replace_identity(replace(identity, control_id=control_id))

    def positions(self) -> dict[str, int]:
        """Return the last entry applied, for each job."""
        with self._environment.reading() as transaction:
            marks = (
                decode_job(stored)
                for _, stored in records(transaction, self._meta, JOB_PREFIX)
            )
            return {mark.job_id: mark.sequence for mark in marks}

    def fences(self) -> dict[tuple[str, str], int]:
        """Return the least writer epoch that may stage, for each job and query id."""
        with self._environment.reading() as transaction:
            marks = (
                decode_fence(stored)
                for _, stored in records(transaction, self._meta, FENCE_PREFIX)
            )
            return {
                (mark.job_id, mark.query_id): mark.writer_epoch
                for mark in marks
                if mark.job_id
            }

    def lost_states(self) -> dict[str, list[int]]:
        """Return the states that have lost rows (rule W7), sorted, for each job."""
        lost: dict[str, list[int]] = {}
        with self._environment.reading() as transaction:
            for number, mark in state_marks(transaction, self._meta).items():
                if mark.lost:
                    lost.setdefault(mark.job_id, []).append(number)
        return lost

    def holdings(self) -> list[JobHolding]:
        """Return which copies there can be, for each job that it was told to hold."""
        with self._environment.reading() as transaction:
            states = state_marks(transaction, self._meta).values()
            return [
                holding_of(mark, [one for one in states if one.job_id == mark.job_id])
                for mark in hold_marks(transaction, self._meta)
            ]

    def holding(self, job_id: str) -> JobHolding | None:
        """Return which copies of a job there can be; None if it was told of none."""
        with self._environment.reading() as transaction:
            mark = hold_mark(transaction, self._meta, job_id)
            states = job_states(transaction, self._meta, job_id)
        return None if mark is None else holding_of(mark, states.values())

    def origins(self) -> dict[str, JobOrigin]:
        """Return what tells each job from others of its name, as `positions`."""
        return self._plans.origins()

    def told_plan(self, job_id: str) -> ToldPlan | None:
        """Return what is kept of the plan of a job; None for one it knows not."""
        return self._plans.told(job_id)

    def keep_plan(self, plan: JobPlan) -> None:
        """Keep what the leader store holds of a job, once its entry is applied."""
        self._plans.keep(plan)

    def kept_rows(self) -> KeptRows | None:
        """Return which jobs have rows here; None if none has."""
        return kept_rows(self._environment)

    def state(self, state_number: int) -> StateView | None:
        """Return what is known of a state, or None."""
        with self._environment.reading() as transaction:
            mark = state_mark(transaction, self._meta, state_number)
            return None if mark is None or mark.is_hidden else view_of(mark)

    def sizes(self) -> StoreSizes:
        """Return how large the store is; from any thread."""
        return self._room.sizes()

    def release_dead_readers(self) -> None:
        """Use pages again that processes kept which were killed while they read."""
        with self._environment.translated("read"):
            self._environment.environment.reader_check()

    def reader(self) -> StoreReader:
        """Return a reader; one for each thread that reads."""
        return StoreReader(self._environment)

    def fence(self, fences: Iterable[WriterFence]) -> None:
        """Refuse older runs from now on, durably; a fence is never lowered."""
        with self._environment.writing() as transaction:
            for one in fences:
                raise_fence(
                    transaction,
                    self._meta,
                    one.job_id,
                    one.query_id,
                    one.writer_epoch,
                )

    def stage(
        self,
        chunks: Sequence[tuple[StageChunk, bytes | memoryview]],
        now_us: int,
        job_size_bytes_max: int | None = None,
    ) -> None:
        """
        Keep chunks, all in one transaction; what is there already is left alone.

        Args:
            chunks: Envelopes with their payloads (`StagedRows`), which the caller has
                decoded and checked (`queryablestate.store.rows.check_chunk`).
            now_us: When they arrived, for `drop_stages_older_than`.
            job_size_bytes_max: How much of one job may be staged and not decided, with
                these; None for rows of other nodes, which a commit waits for.

        Raises:
            StagingQuotaError: If it would be more; nothing is kept then.
            StaleWriterError: If one of them is of a run below its fence; nothing is
                kept then.  Look at `fences` first if chunks of several runs meet.
        """
        with self._environment.writing() as transaction:
            for chunk, payload in chunks:
                fence = fence_of(transaction, self._meta, chunk.job_id, chunk.query_id)
                if chunk.writer_epoch < fence:
                    raise StaleWriterError(chunk.query_id, chunk.writer_epoch, fence)
                self._staging.add(
                    transaction, chunk, payload, now_us, job_size_bytes_max
                )
            self._room.check_promised(transaction)

    def discard_stages(
        self, job_id: str, writer_epoch: int, batch_id: int, stage_ids: Iterable[bytes]
    ) -> None:
        """Remove what is staged under these stage ids, which no decision names."""
        prefix = batch_prefix(job_id, writer_epoch, batch_id)
        with self._environment.writing() as transaction:
            for stage_id in stage_ids:
                self._staging.discard(transaction, prefix, stage_id)

    def missing_stages(
        self,
        job_id: str,
        writer_epoch: int,
        batch_id: int,
        stages: Sequence[StageRecord],
        *,
        received_since_us: int = 0,
    ) -> tuple[bytes, ...]:
        """
        Return the stage ids of which a chunk for this node is not there.

        Args:
            received_since_us: A batch of which nothing came since then is about to be
                dropped (`drop_stages_older_than`), and counts as not there.
        """
        prefix = batch_prefix(job_id, writer_epoch, batch_id)
        with self._environment.reading() as transaction:
            return self._staging.missing(transaction, prefix, stages, received_since_us)

    def reserve_ample(self, job_id: str, writer_epoch: int, batch_id: int) -> bool:
        """
        Keep room for a batch to be applied, if there is far more than it can need.

        From any thread, and quick.  If not, `reserve` finds out.
        """
        return self._room.promise_ample(batch_prefix(job_id, writer_epoch, batch_id))

    def reserve(self, job_id: str, entry: BatchDecided) -> None:
        """
        Keep room for a batch that is not decided yet; chunks that would take it wait.

        It takes as long as to apply it.  Its place in the chain may be any.

        Raises:
            StorageError: If there is no room for it, or the store holds as many states
                as it may.  Nothing is changed.
        """
        self._applier.rehearse(job_id, entry, self._room)

    def apply(self, job_id: str, entry: Entry) -> None:
        """
        Apply the next entry of a job's chain; one that was applied is passed over.

        Raises:
            LocalProtocolError: If entries before it are missing.
            StagedDataMissingError: If a chunk is not there.  Nothing is changed.
            StorageError: If the store is full, or holds as many states as it may.
        """
        self._applier.apply(job_id, entry)

    def reset_job(
        self,
        job_id: str,
        sequence: int,
        state_numbers: Sequence[int],
        restore_id: str | None = None,
        *,
        key_groups: Iterable[int] | None = None,
        joining: Sequence[JoiningGroup] = (),
        assignment_version: int = 0,
    ) -> JobHolding:
        """
        Go on after *sequence* with nothing (rule W7); return what there can be then.

        What there was of the job is removed; *state_numbers* are there, and lost in all
        key groups that are held from then on.  What was loaded for the job is removed,
        too, but for *restore_id*, if that is not None: an entry that would show it does
        not come any more.

        Args:
            key_groups: As of `hold`; None for all that are held, or copied completely.
            joining: As of `hold`.
            assignment_version: As of `hold`.
        """
        return self._applier.reset(
            job_id,
            sequence,
            state_numbers,
            restore_id,
            key_groups=key_groups,
            joining=joining,
            assignment_version=assignment_version,
        )

    def forget_job(self, job_id: str) -> None:
        """Remove all that there is of a job: rows, stages, marks, fences, its plan."""
        self._copies.release(job_id, None)
        with self._environment.writing() as transaction:
            for number in job_states(transaction, self._meta, job_id):
                drop_state(transaction, self._environment, number)
            self._staging.drop(transaction, lambda batch: batch.job_id == job_id)
            self._plans.forget(transaction, job_id)
            forget_marks(transaction, self._meta, job_id)

    def forget_left(self, kept: Collection[str]) -> tuple[str, ...]:
        """
        Remove what is left of jobs but *kept*, a limited number of rows with each call.

        A job of which rows are staged stays: a batch that was begun while it was here
        may be decided yet, and its rows are fetched from here then.

        Returns:
            The jobs of which there is nothing any more, sorted.
        """
        with self._environment.reading() as transaction:
            known = marked_jobs(transaction, self._meta)
            staged = self._staging.job_ids(transaction)
        gone = sorted(known - staged - set(kept))[:_LEFT_COUNT_MAX]
        for job_id in gone:
            self.forget_job(job_id)
        return tuple(gone)

    def drop_fences(self, job_id: str, query_ids: Iterable[str]) -> None:
        """Remember no fences of these queries of a job."""
        with self._environment.writing() as transaction:
            for query_id in query_ids:
                transaction.delete(fence_key(job_id, query_id), db=self._meta)

    def hold(
        self,
        job_id: str,
        key_groups: Iterable[int],
        joining: Sequence[JoiningGroup],
        *,
        assignment_version: int = 0,
        copied_version: int = 0,
    ) -> Held:
        """
        Hold these key groups of a job from now on, and no others, durably (S1, S2).

        Rows of key groups that are named in neither are for `remove_unheld`; the
        position stays.  A store that was never told holds all.  To be called again
        changes nothing.

        Args:
            key_groups: In-sync copies: what was held, or is copied completely.  One
                that is neither is lost from now on (rule W7).
            joining: Copies that are to be made.  One that was begun under the same
                *since* and *version* goes on as it is, others have nothing.
            assignment_version: The assignment that says so.
            copied_version: The newest one that began a copy which is in sync now.  A
                store that was not told of it, or has not completed what is in sync, is
                an older state of itself, and says so until it begins anew.
        """
        return self._holdings.hold(
            job_id,
            key_groups,
            joining,
            assignment_version=assignment_version,
            copied_version=copied_version,
        )

    def remove_unheld(self, job_id: str) -> bool:
        """
        Remove rows of a job that are of no key group that it holds or copies.

        Some with each call; no reader is shown them before.

        Returns:
            Whether there were none; if there were, it is to be called again.
        """
        return self._holdings.remove_unheld(job_id)

    def put_copied(self, job_id: str, header: CopiedStates, page: CopiedRows) -> None:
        """
        Put rows of key groups that are being copied; no reader sees them yet.

        A page of no state, number 0, begins a fetch, and so does the first page of
        another entry than before: it removes what there was of these key groups.  At
        least one page must be put, if it is without rows: `header` says what states
        there are.

        Args:
            header: What the source says (`CopyReader.states`).
            page: Rows of one state; those of key groups that are not being copied, or
                that the header does not name, are left out.

        Raises:
            StorageError: If the store is full, or holds as many states as it may.
        """
        self._copies.put(job_id, header, page)

    def finish_copy(
        self, job_id: str, key_groups: Sequence[int], sequence: int
    ) -> tuple[int, ...] | None:
        """
        Bring copies up to the position of the job, some kept entries with each call.

        Args:
            key_groups: Which; those that are held or complete have nothing to do.
            sequence: The entry of which their rows were put.

        Returns:
            None if it is to be called again, or which of *key_groups* are complete or
            held now, sorted: those that are not to be copied any more are left out.

        Raises:
            LocalProtocolError: If the job is not as far as *sequence*, or rows as of
                that entry were not put.
            StagedDataMissingError: If a chunk is not there.  Nothing is changed.
        """
        return self._copies.finish(job_id, key_groups, sequence)

    def copy_reader(self, job_id: str, key_groups: Iterable[int]) -> CopyReader:
        """
        Return what reads these key groups, as of now, for another node.

        From any thread.

        Raises:
            LocalProtocolError: If one of them is not held, nor copied completely.
        """
        return CopyReader(self._environment, job_id, key_groups)

    def staged_payloads(
        self,
        job_id: str,
        writer_epoch: int,
        batch_id: int,
        stage: StageRecord,
        key_groups: Iterable[int],
    ) -> Iterator[bytes]:
        """
        Yield what is staged here of these key groups, as encoded `StagedRows`.

        From any thread.  Chunks are in their order; those without such rows are left
        out.  Each is read when it is asked for: a stage may be larger than memory, and
        a slow taker keeps no snapshot.

        Args:
            stage: Of which only the count of this node is looked at.

        Raises:
            StagedDataMissingError: If a chunk for this node is not there.
        """
        return staged_payloads(
            self._environment,
            self._staging,
            job_id,
            writer_epoch,
            batch_id,
            stage,
            key_groups,
        )

    def drop_stages_older_than(
        self, received_before_us: int, spared: Sequence[str] = ()
    ) -> int:
        """Drop batches of which no chunk came since, not of *spared* jobs; how many."""
        with self._environment.writing() as transaction:
            return self._staging.drop(
                transaction,
                lambda batch: (
                    batch.received_at_us < received_before_us
                    and batch.job_id not in spared
                ),
            )

    def sweep_expired(self, now_us: int, limit: int) -> int:
        """
        Look at up to *limit* more rows with TTL, and remove those that have expired.

        Goes on where the last call ended, and begins anew after the last row.

        Returns:
            How many were removed.
        """
        return self._sweeper.sweep(now_us, limit)

    def close(self) -> None:
        """Release everything.  Idempotent; no thread may be reading or writing."""
        self._environment.close()
