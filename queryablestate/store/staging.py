"""
Chunks that were brought and not yet decided (rule W2).

The chunks of one batch of one run lie side by side, after a head that says whose they
are; so a batch that is superseded goes with a few range deletions.

A decided batch stays, until it is released, if copies of key groups are being made that
have yet to get its rows (`queryablestate.store.copies`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from msgspec.structs import replace

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


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Transaction, _Database

    from queryablestate.wire.node_messages import StageChunk
    from queryablestate.wire.records import StageRecord


__all__ = ["StagingArea"]


@final
class StagingArea:
    """The staged chunks of a store; every method works within a transaction."""

    def __init__(
        self, database: _Database, *, node_id: str, page_size_bytes: int
    ) -> None:
        self._database = database
        self._node_id = node_id
        self._piece_size_bytes = page_size_bytes - PAGE_HEADER_SIZE_BYTES

    def add(
        self,
        transaction: Transaction[bytes],
        chunk: StageChunk,
        payload: bytes,
        now_us: int,
    ) -> None:
        """Keep one chunk; one that is there already is the same, and left alone."""
        prefix = batch_prefix(chunk.job_id, chunk.writer_epoch, chunk.batch_id)
        begin = chunk_prefix(prefix, chunk.stage_id, chunk.chunk_index)
        cursor = transaction.cursor(self._database)
        if cursor.set_key(piece_key(begin, 0)):
            return
        size_bytes = self._piece_size_bytes
        cursor.putmulti(
            (piece_key(begin, index), payload[start : start + size_bytes])
            for index, start in enumerate(range(0, len(payload), size_bytes))
        )
        old = self._head(transaction, prefix)
        kept_sequence = 0 if old is None else old.kept_sequence
        head = staged_batch_of(chunk, now_us, kept_sequence)
        transaction.put(prefix, encode_record(head), db=self._database)

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
        head = self._head(transaction, prefix)
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

    def _head(
        self, transaction: Transaction[bytes], prefix: bytes
    ) -> StagedBatch | None:
        stored = transaction.get(prefix, db=self._database)
        return None if stored is None else decode_staged_batch(stored)

    def keep(
        self, transaction: Transaction[bytes], prefix: bytes, sequence: int
    ) -> None:
        """Drop the batch with *prefix*, if it is there, only when `release` says."""
        head = self._head(transaction, prefix)
        if head is not None:
            head = replace(head, kept_sequence=sequence)
            transaction.put(prefix, encode_record(head), db=self._database)

    def release(
        self, transaction: Transaction[bytes], prefix: bytes, sequence: int
    ) -> int:
        """
        Remove the batch with *prefix* unless an entry after *sequence* keeps it.

        Returns:
            How many records that were.
        """
        count = 0
        head = self._head(transaction, prefix)
        if head is not None and head.kept_sequence <= sequence:
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
        cursor = transaction.cursor(self._database)
        is_there = cursor.set_range(stage)
        while is_there and cursor.key().startswith(stage):
            is_there = cursor.delete()

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
                while is_there and cursor.key().startswith(prefix):
                    cursor.delete()
                    is_there = bool(cursor.key())
            else:
                # Above all of its chunks, whatever the stage ids are.
                last = prefix + b"\xff" * (PIECE_KEY_SUFFIX_SIZE_BYTES + 1)
                is_there = cursor.set_range(last)
        return count
