"""A data directory: the shipped `StateStore`, and what it has been through."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final, final

from queryablestate.store.groups import groups_in
from queryablestate.store.hold_marks import admitted
from queryablestate.store.layout import decode_kept, kept_prefix
from queryablestate.store.marks import hold_mark, job_states, records
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import decode_rows
from tests.queryablestate.whole_reads import WholeReader
from tests.state_simulation.interruptions import Interruption
from tests.state_simulation.scenario import MAX_PARALLELISM


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from queryablestate.node.core.effects import HoldKeyGroups, ResetJobRows
    from queryablestate.store.holdings import Held
    from queryablestate.wire.job_assignment import WriterFence
    from queryablestate.wire.job_plan import JobHolding
    from queryablestate.wire.records import Entry
    from queryablestate.wire.staging_messages import StageChunk, StagedRows
    from tests.state_simulation.model import JobModel
    from tests.state_simulation.scenario import StatePlan


__all__ = ["Disk"]

_SIZE_BYTES_MAX: Final = 64 << 20
"""
Of a data directory: more than any run fills.

A part of a snapshot that takes seconds, on a slow disk, keeps all pages of its moment.
"""
_DATA_FILE_NAME: Final = "data.mdb"
_INDEX_SIZE_BYTES: Final = 8
_SCAN_LIMIT: Final = 10_000


@final
class Disk:
    """
    One data directory of one node.

    Attributes:
        name: For traces: the node, and how many directories it had before.
        store: It is open while a process has it, and while the books are looked at.
        staged: Chunks that were ever made durable here, by stage id and index.
        has_backup: Whether there is an older state of it.
        vanished: Chunks that were gone when an older state was put back.
        interruption: What may come between the store and its files.
    """

    def __init__(self, directory: Path, node_id: str, number: int) -> None:
        self._is_suspect = number > 0
        self._cleared: set[str] = set()
        self.name = f"{node_id}/disk-{number}"
        self._directory = directory
        self._node_id = node_id
        self.staged: dict[tuple[bytes, int], StagedRows] = {}
        self.interruption = Interruption()
        self.store = self._open()
        self.reader = WholeReader(self.store)
        self._positions: dict[str, int] = {}
        self._passed: dict[str, int] = {}
        self.has_backup = False
        self.vanished: dict[tuple[bytes, int], StagedRows] = {}
        self._backed_up: set[tuple[bytes, int]] = set()

    def __repr__(self) -> str:
        return self.name

    @property
    def store_id(self) -> str:
        """Return what was drawn when it was made."""
        return self.store.store_id

    def _open(self) -> StateStore:
        store = StateStore.open(
            self._directory,
            node_id=self._node_id,
            size_bytes_max=_SIZE_BYTES_MAX,
            is_durable=False,
        )
        self.interruption.put_into(store)
        return store

    def reopen(self) -> bool:
        """Open it as a new process does; return whether it is as far as it was."""
        self.store.close()
        self.store = self._open()
        self.reader = WholeReader(self.store)
        found = self.store.positions()
        return all(found.get(job, -1) == at for job, at in self._positions.items())

    def close(self) -> None:
        """Release it."""
        self.store.close()

    def is_suspect(self, job_id: str) -> bool:
        """Return whether rows may be missing: not the disk of all the time."""
        return self._is_suspect and job_id not in self._cleared

    def suspect(self) -> None:
        """Take note that another disk was in its place."""
        self._is_suspect = True
        self._cleared.clear()

    def position(self, job_id: str) -> int:
        """Return the last entry applied, -1 for a job that it knows nothing of."""
        return self._positions.get(job_id, -1)

    def had_applied(self, job_id: str, sequence: int) -> bool:
        """Return whether it had an entry before an older state was put back."""
        return self._passed.get(job_id, -1) >= sequence

    # -- older states ----------------------------------------------------------------

    @property
    def _backup(self) -> Path:
        return self._directory.with_name(f"{self._directory.name}-backup")

    def back_up(self) -> None:
        """Keep a copy of it as it is now, in the place of an earlier one."""
        shutil.rmtree(self._backup, ignore_errors=True)
        self._backup.mkdir()
        self.store._environment.environment.copy(str(self._backup))
        self._backed_up = set(self.staged)
        self.has_backup = True

    def put_back(self) -> None:
        """Have it be as it was when it was backed up last; no process has it."""
        self.store.close()
        shutil.copy(self._backup / _DATA_FILE_NAME, self._directory / _DATA_FILE_NAME)
        self.store = self._open()
        self.reader = WholeReader(self.store)
        for job_id, position in self._positions.items():
            self._passed[job_id] = max(position, self._passed.get(job_id, -1))
        self._positions = self.store.positions()
        for key in self.staged.keys() - self._backed_up:
            self.vanished[key] = self.staged.pop(key)
        self.suspect()

    # -- what a node writes --------------------------------------------------------

    def stage(
        self, chunk: StageChunk, payload: bytes | memoryview, *, now_us: int
    ) -> None:
        """Keep a chunk."""
        commit_count = self.interruption.commit_count
        try:
            self.store.stage([(chunk, payload)], now_us)
        finally:
            if self.interruption.commit_count > commit_count:
                key = (chunk.stage_id, chunk.chunk_index)
                self.staged.setdefault(key, decode_rows(payload))

    def discard(
        self, job_id: str, writer_epoch: int, batch_id: int, stage_ids: Sequence[bytes]
    ) -> None:
        """Remove what was collected in an attempt that came to nothing."""
        self.store.discard_stages(job_id, writer_epoch, batch_id, stage_ids)
        for key in [key for key in self.staged if key[0] in stage_ids]:
            del self.staged[key]

    def fence(self, fences: Sequence[WriterFence]) -> None:
        """Refuse older runs."""
        self.store.fence(fences)

    def forget_left(self, kept: Sequence[str]) -> tuple[str, ...]:
        """Forget what is left of jobs but these; return which."""
        left = [job_id for job_id in self._positions if job_id not in kept]
        try:
            return self.store.forget_left(kept)
        finally:
            for job_id in left:
                self._look_at_position(job_id)

    def apply(self, job_id: str, entry: Entry) -> None:
        """Apply an entry."""
        try:
            self.store.apply(job_id, entry)
        finally:
            self._look_at_position(job_id)

    def reset(self, effect: ResetJobRows, job: JobModel) -> JobHolding:
        """Begin anew: whatever has rows by then has lost them."""
        job_id = effect.job_id
        commit_count = self.interruption.commit_count
        try:
            return self.store.reset_job(
                job_id,
                effect.sequence,
                effect.state_numbers,
                effect.restore_id,
                key_groups=effect.key_groups,
                joining=effect.joining,
                assignment_version=effect.assignment_version,
            )
        finally:
            self._look_at_position(job_id)
            is_done = self.interruption.commit_count > commit_count
            self._reset(job_id, job, is_done=is_done)

    def _look_at_position(self, job_id: str) -> None:
        """Take note of what is in the files; the process may have ended meanwhile."""
        self._positions[job_id] = self.store.positions().get(job_id, -1)

    def _reset(self, job_id: str, job: JobModel, *, is_done: bool) -> None:
        if is_done and self.position(job_id) == job.sequence:
            # From here on it has everything; an earlier beginning may still turn out
            # to lack what another disk has.
            self._cleared.add(job_id)

    def hold(self, effect: HoldKeyGroups) -> Held:
        """Hold the key groups that *effect* names."""
        return self.store.hold(
            effect.job_id,
            effect.key_groups,
            effect.joining,
            assignment_version=effect.assignment_version,
            copied_version=effect.copied_version,
        )

    # -- what the books look at ------------------------------------------------------

    def contents(
        self, number: int, plan: StatePlan, key_groups: Sequence[int], now_us: int
    ) -> dict[bytes, tuple[bytes, ...]] | None:
        """
        Return all rows of a state by storage key, or None if it is not there.

        Without those that have expired at *now_us*, and without their expiries.
        """
        found: dict[bytes, tuple[bytes, ...]] = {}
        is_there = False
        for group in key_groups:
            page = self.reader.scan(number, [group], b"", None, _SCAN_LIMIT, now_us)
            assert page.next_start is None
            is_there = is_there or page.view is not None
            for key, value in zip(page.rows[::2], page.rows[1::2], strict=True):
                bare = key[:-_INDEX_SIZE_BYTES] if plan.kind == "list" else key
                full = group.to_bytes(2, "big") + bare
                found[full] = (*found.get(full, ()), value)
        return found if is_there else None

    def has_states(self, job_id: str) -> bool:
        """
        Return whether readers find a state of a job.

        A state that has come with rows of another node has a mark, too; they do not
        find it before this node is as far as those rows are.
        """
        environment = self.store._environment
        with environment.reading() as transaction:
            numbers = list(job_states(transaction, environment.meta, job_id))
        groups = range(MAX_PARALLELISM)
        return any(
            self.reader.scan(number, groups, b"", None, 1, 1).view is not None
            for number in numbers
        )

    def lost(self, number: int, key_groups: Sequence[int]) -> tuple[int, ...]:
        """Return which of these key groups have lost the rows of a state."""
        page = self.reader.scan(number, key_groups, b"", None, 1, 1)
        return () if page.view is None else groups_in(page.view.lost, key_groups)

    def complete(self, job_id: str) -> tuple[int, ...]:
        """Return the key groups that are held, or copied completely."""
        environment = self.store._environment
        with environment.reading() as transaction:
            mark = hold_mark(transaction, environment.meta, job_id)
        return tuple(groups_in(admitted(mark), range(MAX_PARALLELISM)))

    def copying(self, job_id: str) -> int:
        """Return how many copies there are, begun or complete, that are not held."""
        environment = self.store._environment
        with environment.reading() as transaction:
            mark = hold_mark(transaction, environment.meta, job_id)
        return 0 if mark is None else len(mark.copies)

    def kept_entries(self, job_id: str) -> list[int]:
        """Return the entries that are kept for copies."""
        environment = self.store._environment
        with environment.reading() as transaction:
            return [
                decode_kept(stored).sequence
                for _, stored in records(
                    transaction, environment.meta, kept_prefix(job_id)
                )
            ]
