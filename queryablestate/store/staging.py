"""
Chunks that were brought and not yet decided (rule W2).

The chunks of one batch of one run lie side by side, after a head that says whose they
are; so a batch that is superseded goes with a few range deletions.

How much is staged of each job is counted in the same transaction, so that it is true
after a crash as well, and bounded (rule B4).  What is decided counts no more.

A decided batch stays, until it is released, if copies of key groups are being made that
have yet to get its rows (`queryablestate.store.copies`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from queryablestate.errors import StagingQuotaError
from queryablestate.store.cursors import prefix_rows
from queryablestate.store.layout import (
    PAGE_HEADER_SIZE_BYTES,
    PIECE_KEY_SUFFIX_SIZE_BYTES,
    StagedBatch,
    batch_prefix,
    chunk_prefix,
    decode_staged_batch,
    encode_record,
    piece_key,
    staged_batch_of,
)
from queryablestate.store.marks import (
    add_staged_size,
    put_staged_sizes,
    staged_size,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Cursor, Transaction, _Database

    from queryablestate.wire.records import StageRecord
    from queryablestate.wire.staging_messages import StageChunk


__all__ = ["StagingArea"]

_FILL_PREFIX: Final = b"\xff" * 16
"""Above every batch."""


@final
class StagingArea:
    """The staged chunks of a store; every method works within a transaction."""

    def __init__(
        self,
        database: _Database,
        *,
        meta: _Database,
        node_id: str,
        page_size_bytes: int,
    ) -> None:
        self._database = database
        self._meta = meta
        self._node_id = node_id
        self._piece_size_bytes = page_size_bytes - PAGE_HEADER_SIZE_BYTES

    def add(
        self,
        transaction: Transaction[bytes],
        chunk: StageChunk,
        payload: bytes | memoryview,
        now_us: int,
        job_size_bytes_max: int | None = None,
    ) -> None:
        """
        Keep one chunk; one that is there already is the same, and left alone.

        Raises:
            StagingQuotaError: If more than *job_size_bytes_max* of its job were staged.
        """
        prefix = batch_prefix(chunk.job_id, chunk.writer_epoch, chunk.batch_id)
        begin = chunk_prefix(prefix, chunk.stage_id, chunk.chunk_index)
        cursor = transaction.cursor(self._database)
        if cursor.set_key(piece_key(begin, 0)):
            return
        if job_size_bytes_max is not None:
            staged = staged_size(transaction, self._meta, chunk.job_id)
            if staged + len(payload) > job_size_bytes_max:
                raise StagingQuotaError(
                    self._node_id,
                    chunk.job_id,
                    staged + len(payload),
                    job_size_bytes_max,
                )
        size_bytes = self._piece_size_bytes
        cursor.putmulti(
            (piece_key(begin, index), payload[start : start + size_bytes])
            for index, start in enumerate(range(0, len(payload), size_bytes))
        )
        old = self.head(transaction, prefix)
        kept_sequence = 0 if old is None else old.kept_sequence
        head = staged_batch_of(
            chunk, now_us, kept_sequence, 0 if old is None else old.size_bytes
        )
        self._put(transaction, prefix, head, 0 if kept_sequence else len(payload))

    def missing(
        self,
        transaction: Transaction[bytes],
        prefix: bytes,
        stages: Sequence[StageRecord],
        received_since_us: int = 0,
    ) -> tuple[bytes, ...]:
        """
        Return the stages of the batch with *prefix* that lack a chunk here.

        If no chunk of the batch came since *received_since_us*, all of its chunks count
        as lacking: they may be dropped at any moment.
        """
        cursor = transaction.cursor(self._database)
        head = self.head(transaction, prefix)
        is_old = head is not None and head.received_at_us < received_since_us
        return tuple(
            stage.stage_id
            for stage in stages
            if not all(
                not is_old and cursor.set_key(piece_key(chunk, 0))
                for chunk in self.chunks(prefix, stage)
            )
        )

    def payloads(
        self,
        transaction: Transaction[bytes],
        prefix: bytes,
        stages: Sequence[StageRecord],
    ) -> Iterator[bytes]:
        """Yield the chunks of *stages*, none of which is missing, in their order."""
        for stage in stages:
            for chunk in self.chunks(prefix, stage):
                yield self.payload(transaction, chunk)

    def payload(self, transaction: Transaction[bytes], chunk: bytes) -> bytes:
        """Return the chunk with the prefix *chunk*; nothing if it is not there."""
        cursor = transaction.cursor(self._database)
        return b"".join(piece for _, piece in prefix_rows(cursor, chunk))

    def chunks(self, prefix: bytes, stage: StageRecord) -> Iterator[bytes]:
        """Yield the prefixes of the chunks of *stage* that are to be here."""
        for chunk_index in range(stage.chunk_counts.get(self._node_id, 0)):
            yield chunk_prefix(prefix, stage.stage_id, chunk_index)

    def head(
        self, transaction: Transaction[bytes], prefix: bytes
    ) -> StagedBatch | None:
        """Return what the batch with *prefix* is, or None if nothing of it is there."""
        stored = transaction.get(prefix, db=self._database)
        return None if stored is None else decode_staged_batch(stored)

    def _put(
        self,
        transaction: Transaction[bytes],
        prefix: bytes,
        head: StagedBatch,
        size_bytes: int,
    ) -> None:
        """Put the head of a batch that is *size_bytes* larger now, or smaller."""
        head = replace(head, size_bytes=head.size_bytes + size_bytes)
        transaction.put(prefix, encode_record(head), db=self._database)
        self._count(transaction, head, size_bytes)

    def job_ids(self, transaction: Transaction[bytes]) -> set[str]:
        """Return the jobs of which anything is here."""
        job_ids: set[str] = set()
        cursor = transaction.cursor(self._database)
        is_there = cursor.first()
        while is_there:
            prefix = cursor.key()
            job_ids.add(decode_staged_batch(cursor.value()).job_id)
            is_there = self._pass(cursor, prefix)
        return job_ids

    def recount(self, transaction: Transaction[bytes]) -> None:
        """
        Count all that is staged, when the store is opened.

        Another version of the program may have written here, which counts nothing.
        """
        sizes: dict[str, int] = {}
        unmeasured: list[tuple[bytes, StagedBatch, int]] = []
        cursor = transaction.cursor(self._database)
        is_there = cursor.first()
        while is_there:
            prefix, head = cursor.key(), decode_staged_batch(cursor.value())
            size_bytes = head.size_bytes
            if not size_bytes and not head.kept_sequence:
                pieces = prefix_rows(transaction.cursor(self._database), prefix)
                size_bytes = sum(len(piece) for key, piece in pieces if key != prefix)
                unmeasured.append((prefix, head, size_bytes))
            sizes[head.job_id] = sizes.get(head.job_id, 0) + size_bytes
            is_there = self._pass(cursor, prefix)
        for prefix, head, size_bytes in unmeasured:
            record = encode_record(replace(head, size_bytes=size_bytes))
            transaction.put(prefix, record, db=self._database)
        put_staged_sizes(transaction, self._meta, sizes)

    def _pass(self, cursor: Cursor, prefix: bytes) -> bool:
        """Go to the next batch; return whether there is one."""
        # Above all of its chunks, whatever the stage ids are.
        return cursor.set_range(prefix + b"\xff" * (PIECE_KEY_SUFFIX_SIZE_BYTES + 1))

    def _count(
        self, transaction: Transaction[bytes], head: StagedBatch, size_bytes: int
    ) -> None:
        add_staged_size(transaction, self._meta, head.job_id, size_bytes)

    def keep(
        self, transaction: Transaction[bytes], prefix: bytes, sequence: int
    ) -> None:
        """Drop the batch with *prefix*, if it is there, only when `release` says."""
        head = self.head(transaction, prefix)
        if head is not None:
            head = replace(head, kept_sequence=sequence)
            self._put(transaction, prefix, head, -head.size_bytes)

    def release(
        self, transaction: Transaction[bytes], prefix: bytes, sequence: int
    ) -> int:
        """
        Remove the batch with *prefix* unless an entry after *sequence* keeps it.

        Returns:
            How many records that were.
        """
        count = 0
        head = self.head(transaction, prefix)
        if head is not None and head.kept_sequence <= sequence:
            self._count(transaction, head, -head.size_bytes)
            cursor = transaction.cursor(self._database)
            is_there = cursor.set_key(prefix)
            while is_there and cursor.key().startswith(prefix):
                is_there = cursor.delete()
                count += 1
        return count

    def discard(
        self, transaction: Transaction[bytes], prefix: bytes, stage_id: bytes
    ) -> None:
        """Remove what is there of one stage of the batch with *prefix*."""
        stage = prefix + stage_id
        size_bytes = 0
        cursor = transaction.cursor(self._database)
        is_there = cursor.set_range(stage)
        while is_there and cursor.key().startswith(stage):
            size_bytes += len(cursor.value())
            is_there = cursor.delete()
        head = self.head(transaction, prefix)
        if head is not None:
            # Of a batch that is decided, and kept, nothing counts any more.
            self._put(transaction, prefix, head, -min(size_bytes, head.size_bytes))

    def fill(self, transaction: Transaction[bytes], page_count: int) -> None:
        """Put *page_count* pages of nothing; the transaction is to be given up."""
        empty = bytes(self._piece_size_bytes)
        transaction.cursor(self._database).putmulti(
            (_FILL_PREFIX + index.to_bytes(8, "big"), empty)
            for index in range(page_count)
        )

    def drop(
        self,
        transaction: Transaction[bytes],
        is_superseded: Callable[[StagedBatch], bool],
    ) -> int:
        """Remove batches that nothing keeps if *is_superseded*, return how many."""
        count = 0
        cursor = transaction.cursor(self._database)
        # The key of a head is shorter than those of its chunks, and so comes first.
        is_there = cursor.first()
        while is_there:
            prefix = cursor.key()
            head = decode_staged_batch(cursor.value())
            if not head.kept_sequence and is_superseded(head):
                count += 1
                self._count(transaction, head, -head.size_bytes)
                while is_there and cursor.key().startswith(prefix):
                    cursor.delete()
                    is_there = bool(cursor.key())
            else:
                is_there = self._pass(cursor, prefix)
        return count
