"""
Rows of key groups as other nodes copy them, and staged rows as they collect them (S2).

A copy is read in one transaction: however many pages there are, all are of the same
moment, and of the same entry of the chain.  Pages hold keys and values as they lie on
disk, expired rows among them: no row is looked at for itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import ExitStack
from itertools import accumulate, islice
from operator import add
from typing import TYPE_CHECKING, Final, final

import lmdb

from nameservice import LocalProtocolError
from queryablestate.errors import StagedDataMissingError
from queryablestate.store.groups import (
    difference,
    intersection,
    row_ranges,
    runs_from,
    selected_rows,
)
from queryablestate.store.hold_marks import admitted
from queryablestate.store.layout import batch_prefix
from queryablestate.store.marks import hold_mark, job_states, position_of
from queryablestate.wire.codec import decode_rows, encode_payload
from queryablestate.wire.copy_messages import CopiedRows, CopiedState, CopiedStates


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from lmdb import Cursor

    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.groups import RowRanges
    from queryablestate.store.staging import StagingArea
    from queryablestate.wire.records import StageRecord


__all__ = ["COPY_PAGE_SIZE_BYTES", "CopyReader", "staged_payloads"]

COPY_PAGE_SIZE_BYTES: Final = 1 << 20
"""How big a page of copied rows is by default."""

_BLOCK_ROW_COUNT: Final = 128
"""
Rows taken from LMDB at once: a page is at most that many rows too large in memory.

Measured with rows of 120 bytes, packed for the wire: 3.8 million rows/s with blocks of
32, 4.7 with 128, 5.0 with 512, 2.6 with 2,048, which leave the processor's cache.
"""


@final
class CopyReader:
    """
    Rows of some key groups of a job, as of one entry; a context manager.

    For one thread at a time, not always the same one.  While it is open, LMDB keeps the
    pages of that moment: close it soon.

    Attributes:
        sequence: The last entry applied.
        states: The states of the job then, lost key groups only as far as asked for.
        is_told: Whether the store was told what it holds of the job.  If not, it holds
            all of it as far as it knows; what it has may be nothing.

    Raises:
        LocalProtocolError: If a key group is not held, and not completely copied.
        StorageError: If the store cannot be read.
    """

    def __init__(
        self, environment: StoreEnvironment, job_id: str, key_groups: Iterable[int]
    ) -> None:
        self._environment = environment
        self._groups = runs_from(key_groups)
        with ExitStack() as stack:
            with environment.translated("read"):
                self._transaction = stack.enter_context(environment.environment.begin())
                mark = hold_mark(self._transaction, environment.meta, job_id)
                marks = job_states(self._transaction, environment.meta, job_id)
                self.sequence = position_of(self._transaction, environment.meta, job_id)
            lacking = difference(self._groups, admitted(mark))
            if lacking:
                raise LocalProtocolError(
                    f"key group {lacking[0][0]} of job {job_id!r} is not held here: "
                    "ask a node that has an in-sync copy"
                )
            self._stack = stack.pop_all()
        self.is_told = mark is not None
        self._slots = {number: mark.slot for number, mark in marks.items()}
        self.states = CopiedStates(
            sequence=self.sequence,
            states=tuple(
                CopiedState(
                    state_number=number,
                    kind=state.kind,
                    has_ttl=state.has_ttl,
                    generation=state.generation,
                    batch_id=state.batch_id,
                    decided_at_us=state.decided_at_us,
                    lost=intersection(state.lost, self._groups),
                )
                for number, state in marks.items()
            ),
            key_groups=self._groups,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the moment.  Idempotent."""
        self._stack.close()

    def pages(self, size_bytes: int = COPY_PAGE_SIZE_BYTES) -> Iterator[CopiedRows]:
        """
        Yield all rows, each page of one state, in the order of states and row keys.

        Args:
            size_bytes: Of keys and values in a page, at most, unless a single row has
                more.

        Yields:
            At least one page, which is empty if there are no rows.

        Raises:
            StorageError: If the store cannot be read.
        """
        assert size_bytes >= 1
        is_empty = True
        ranges = row_ranges(self._groups)
        for number, slot in self._slots.items():
            try:
                cursor = self._transaction.cursor(self._environment.slots[slot])
                for keys, values in _pages(cursor, ranges, size_bytes):
                    is_empty = False
                    yield CopiedRows(number, keys, values)
            except lmdb.Error as error:
                raise self._environment.storage_error("read", error) from error
        if is_empty:
            yield CopiedRows(0, [], [])


def _pages(
    cursor: Cursor[bytes], ranges: RowRanges, size_bytes_max: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield the rows in *ranges*, cut by size."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size_left = size_bytes_max
    for block_keys, block_values in _blocks(cursor, ranges):
        size_bytes = sum(map(len, block_keys)) + sum(map(len, block_values))
        if size_bytes <= size_left:
            keys += block_keys
            values += block_values
            size_left -= size_bytes
            continue
        # Where each row of the block ends, counted in bytes from its beginning.
        ends = list(accumulate(map(add, map(len, block_keys), map(len, block_values))))
        begin = taken = 0
        while begin < len(ends):
            end = bisect_right(ends, taken + size_left, begin)
            if end == begin and keys:
                yield keys, values
                keys, values, size_left = [], [], size_bytes_max
                continue
            end = max(end, begin + 1)  # a row that is larger than a page
            keys += block_keys[begin:end]
            values += block_values[begin:end]
            size_left -= ends[end - 1] - taken
            begin, taken = end, ends[end - 1]
    if keys:
        yield keys, values


def _blocks(
    cursor: Cursor[bytes], ranges: RowRanges
) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
    """Yield keys and values in *ranges*, a few at a time."""
    for first, last in ranges:
        if not cursor.set_range(first):
            return
        if last is not None and cursor.key() >= last:
            continue
        rows = cursor.iternext()
        while block := list(islice(rows, _BLOCK_ROW_COUNT)):
            keys, values = zip(*block, strict=True)
            if last is None or keys[-1] < last:
                yield keys, values
                continue
            end = bisect_left(keys, last)
            if end:
                yield keys[:end], values[:end]
            break


def staged_payloads(  # noqa: PLR0917 (a stage of a batch of a run of a job)
    environment: StoreEnvironment,
    staging: StagingArea,
    job_id: str,
    writer_epoch: int,
    batch_id: int,
    stage: StageRecord,
    key_groups: Iterable[int],
) -> Iterator[bytes]:
    """See `queryablestate.store.store.StateStore.staged_payloads`."""
    ranges = row_ranges(runs_from(key_groups))
    prefix = batch_prefix(job_id, writer_epoch, batch_id)
    with environment.reading() as transaction:
        is_missing = bool(staging.missing(transaction, prefix, [stage]))
    for chunk in staging.chunks(prefix, stage):
        payload = b""
        if not is_missing:
            with environment.reading() as transaction:
                payload = staging.payload(transaction, chunk)
        if not payload:
            raise StagedDataMissingError(batch_id, (environment.identity.node_id,))
        rows = decode_rows(payload)
        some = selected_rows(rows, ranges)
        if some is not None:
            yield payload if some is rows else encode_payload(some)
