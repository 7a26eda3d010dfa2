"""
How a `queryablestate.store.store.StateStore` lies on disk: names, keys and records.

Theory of operation
===================

One LMDB environment holds these databases:

=============  ==================================  ====================================
database       key                                 value
=============  ==================================  ====================================
``meta``       ``identity``                        `Identity`
``meta``       ``job/`` + digest of the job id     `JobMark`: the last entry applied
``meta``       ``fence/`` + digest of the query    `FenceMark`
``meta``       ``state/`` + state number           `StateMark`: where its rows are, and
                                                   as of which batch
``meta``       ``hold/`` + digest of the job id    `HoldMark`: which key groups are held
``meta``       ``load/`` + digest of the restore   what is loaded of a snapshot and not
                                                   shown yet
``meta``       ``kept/`` + digest of the job id +  an entry that copies which are being
               sequence                            made have yet to apply
``meta``       ``staged/`` + digest of the job id  `StagedMark`: how much is staged
``staged``     batch prefix                        `StagedBatch`
``staged``     batch prefix + stage id +           a piece of the chunk as it was
               chunk index + piece index           received
``rows-NNNN``  row key                             the stored value
=============  ==================================  ====================================

A *row key* is the storage key, which begins with the key group as two bytes, most
significant first; in a list state the *item index* of 8 bytes follows.  So **one key
group of a state is one contiguous range of one database**, from its two bytes to those
of the next group: to move a group to another node is to copy that range.

**The item index** of a list is the number of the entry that brought the item, times
2^32, plus the item's place among those that the entry brought for this key.  It rises
along the list, it is never used twice, also after the list was cleared or its last item
expired, and every copy of a key group has the same ones.  Nothing need be read to
append.

**Slots.** A state has a database of its own, so that to drop or to replace it is to
free the pages of one tree.  But the database is not named after the state: it is a
*slot*, and the mark of the state says which.  A slot that is free again is emptied, not
deleted, because LMDB closes the handle of a deleted database under the readers that are
using it.  A reader finds the slot and the rows in one snapshot, so that it never sees
the rows of another state that took over the slot.

**Pieces.** A chunk is cut so that each piece fills one page.  As one value it would
need pages in a row, which LMDB finds less and less among those that rows have freed:
over 180 batches of 50,000 rows the file was measured to grow from 126 to 359 MB and on;
with pieces it stayed at 180.

Job ids and query ids are as long as their owners like: in keys stands a digest, in the
record the id.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from nameservice import StorageError
from queryablestate.wire.copy_messages import CopiedState, KeyGroupRun
from queryablestate.wire.records import STAGE_ID_SIZE_BYTES, BatchDecided


if TYPE_CHECKING:
    from collections.abc import Callable

    from queryablestate.wire.staging_messages import StageChunk


__all__ = [
    "FENCE_PREFIX",
    "FORMAT",
    "HIDDEN_JOB_PREFIX",
    "HOLD_PREFIX",
    "IDENTITY_KEY",
    "JOB_PREFIX",
    "META_DATABASE",
    "PAGE_HEADER_SIZE_BYTES",
    "PIECE_KEY_SUFFIX_SIZE_BYTES",
    "SLOT_COUNT_MAX",
    "SLOT_PREFIX",
    "STAGED_DATABASE",
    "STAGED_PREFIX",
    "STATE_PREFIX",
    "AwaitedState",
    "CopyMark",
    "FenceMark",
    "HoldMark",
    "Identity",
    "JobMark",
    "Runs",
    "StagedBatch",
    "StagedMark",
    "StateMark",
    "batch_prefix",
    "chunk_prefix",
    "decode_fence",
    "decode_hold",
    "decode_identity",
    "decode_job",
    "decode_kept",
    "decode_staged",
    "decode_staged_batch",
    "decode_state",
    "encode_record",
    "fence_key",
    "former_fence_key",
    "hold_key",
    "item_index_first",
    "job_key",
    "kept_key",
    "kept_prefix",
    "piece_key",
    "slot_name",
    "staged_batch_of",
    "staged_key",
    "state_key",
    "state_number_of",
]

Runs: TypeAlias = tuple[KeyGroupRun, ...]
"""A set of key groups: sorted runs that do not touch."""

FORMAT: Final = 2
"""Of the data directory; one with another is not opened."""

META_DATABASE: Final = b"meta"
STAGED_DATABASE: Final = b"staged"
SLOT_PREFIX: Final = b"rows-"
HIDDEN_JOB_PREFIX: Final = "\0"
"""What jobs are called that there are not: no reader finds their states."""

SLOT_COUNT_MAX: Final = 1022
"""How many states a store may hold at once: LMDB is told the number when it opens."""

IDENTITY_KEY: Final = b"identity"
JOB_PREFIX: Final = b"job/"
FENCE_PREFIX: Final = b"fence/"
STATE_PREFIX: Final = b"state/"
HOLD_PREFIX: Final = b"hold/"
_KEPT_PREFIX: Final = b"kept/"
STAGED_PREFIX: Final = b"staged/"

_CHUNK_INDEX: Final = struct.Struct(">I")
_PIECE_INDEX: Final = struct.Struct(">I")
PIECE_KEY_SUFFIX_SIZE_BYTES: Final = (
    STAGE_ID_SIZE_BYTES + _CHUNK_INDEX.size + _PIECE_INDEX.size
)
"""How much longer the key of a piece is than the prefix of its batch."""

PAGE_HEADER_SIZE_BYTES: Final = 16
"""What LMDB needs of a page that is filled by one value."""

_DIGEST_SIZE_BYTES: Final = 16
_ENTRY_ITEMS_BITS: Final = 32


class Identity(Struct, frozen=True, array_like=True):
    """
    Whose directory this is.

    Attributes:
        format: `FORMAT` of the program that made it.
        node_id: The node it belongs to.
        store_id: Drawn when it was made.
        control_id: The control plane whose rows it holds, or None before the first.
    """

    format: int
    node_id: str
    store_id: str
    control_id: str | None


class JobMark(Struct, frozen=True, array_like=True):
    """
    The last entry of a job's chain that was applied.

    Attributes:
        job_id: The job.
        sequence: Its number.
        digest: What tells it from another one of that number; empty if that is not
            known.
    """

    job_id: str
    sequence: int
    digest: bytes = b""


class FenceMark(Struct, frozen=True, array_like=True):
    """
    The least writer epoch of a query of a job that may still stage.

    Attributes:
        query_id: The query.
        writer_epoch: The epoch.
        job_id: The job; empty in marks of before, which held for all jobs, and hold for
            none any more: the proxy leader tells a node the fences of its jobs.
    """

    query_id: str
    writer_epoch: int
    job_id: str = ""


class StateMark(Struct, frozen=True, array_like=True):
    """
    A state; see `queryablestate.store.reader.StateView`.

    Attributes:
        job_id: The job it belongs to.
        slot: Where its rows are.
        kind: ``value``, ``list`` or ``map``; empty before the first batch.
        has_ttl: Whether stored values begin with their expiry.
        generation: Of the last batch applied, 0 before.
        batch_id: The last batch applied, or None before.
        decided_at_us: When that was decided, 0 before.
        lost: Key groups whose rows were lost and not replaced yet: the first and the
            last one of each run, sorted.
    """

    job_id: str
    slot: int
    kind: str
    has_ttl: bool
    generation: int
    batch_id: int | None
    decided_at_us: int
    lost: Runs

    @property
    def is_hidden(self) -> bool:
        """Return whether there are but rows that no reader is to see yet."""
        is_unborn = not self.kind and not self.lost  # known from copies only
        return is_unborn or self.job_id.startswith(HIDDEN_JOB_PREFIX)


class CopyMark(Struct, frozen=True, array_like=True):
    """
    A copy of a key group that is being made, or that is made and not in sync yet.

    Attributes:
        key_group: Which key group.
        since: Names the copy, with *version*; see
            `queryablestate.wire.records.JoiningCopy`.
        began: The last entry that had been applied when keeping began.
        fetched: The entry up to which the rows that were put are, or None before the
            first.
        applied: The entry that the rows are at; rises as kept entries are applied.
        is_complete: Whether entries apply to it as to what is held.
        version: Names the copy, with *since*; 0 where an earlier release began it.
    """

    key_group: int
    since: int
    began: int
    fetched: int | None = None
    applied: int = 0
    is_complete: bool = False
    version: int = 0

    @property
    def sequence_min(self) -> int:
        """Return the least entry that what is fetched must be at."""
        return max(self.since, self.began)


class AwaitedState(Struct, frozen=True, array_like=True):
    """What a source says of a state as of an entry that is not applied here yet."""

    sequence: int
    state: CopiedState


class HoldMark(Struct, frozen=True, array_like=True):
    """
    Which key groups of a job are held; see `queryablestate.store.holdings`.

    Attributes:
        job_id: The job.
        held: In-sync copies: the first and the last one of each run, sorted.
        copies: The others, by key group.
        dropped: States that were dropped while copies were being made.
        awaited: States that are known from copies only.
        version: Of the assignment that it follows; 0 for a store that is older than its
            copies (`queryablestate.store.hold_marks.is_older_than`).
    """

    job_id: str
    held: Runs
    copies: tuple[CopyMark, ...] = ()
    dropped: tuple[int, ...] = ()
    awaited: tuple[AwaitedState, ...] = ()
    version: int = 0


class StagedBatch(Struct, frozen=True, array_like=True):
    """
    A batch of a run, of which chunks are staged.

    Attributes:
        job_id: The job.
        query_id: The streaming query.
        writer_epoch: The run.
        batch_id: Spark's number.
        received_at_us: When the last chunk of it came.
        kept_sequence: The last entry that names it and is kept, 0 if none is; until
            then it is not dropped.
        size_bytes: Of its chunks, as far as they count for the job; none of a batch
            that is decided, and kept.
    """

    job_id: str
    query_id: str
    writer_epoch: int
    batch_id: int
    received_at_us: int
    kept_sequence: int = 0
    size_bytes: int = 0


class StagedMark(Struct, frozen=True, array_like=True):
    """
    How much is staged of a job, and not decided; none if it is nothing.

    Attributes:
        job_id: The job.
        size_bytes: Of all its batches together.
    """

    job_id: str
    size_bytes: int


T = TypeVar("T")

_ENCODER: Final = msgspec.msgpack.Encoder()


def encode_record(record: Struct) -> bytes:
    """Return how *record* is stored."""
    return _ENCODER.encode(record)


def _decoder(kind: type[T], what: str) -> Callable[[bytes], T]:
    """Return what reads a stored *kind*; it raises `StorageError` if it is none."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_record(stored: bytes) -> T:
        try:
            return decode(stored)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageError(
                f"{what} in the data directory cannot be read ({error}): the directory "
                "is damaged, or a newer program wrote it; remove it, and the node is "
                "refilled"
            ) from error

    return decode_record


decode_identity: Final = _decoder(Identity, "the identity")
decode_job: Final = _decoder(JobMark, "the mark of a job")
decode_fence: Final = _decoder(FenceMark, "the fence of a query")
decode_state: Final = _decoder(StateMark, "the mark of a state")
decode_hold: Final = _decoder(HoldMark, "the key groups of a job")
decode_kept: Final = _decoder(BatchDecided, "an entry that was kept")
decode_staged: Final = _decoder(StagedMark, "what is staged of a job")
decode_staged_batch: Final = _decoder(StagedBatch, "the head of a staged batch")


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_DIGEST_SIZE_BYTES).digest()


def job_key(job_id: str) -> bytes:
    """Return where the mark of a job is, in ``meta``."""
    return JOB_PREFIX + _digest(job_id)


def fence_key(job_id: str, query_id: str) -> bytes:
    """Return where the fence of a query of a job is, in ``meta``."""
    return FENCE_PREFIX + _digest(f"{len(job_id)} {job_id} {query_id}")


def former_fence_key(query_id: str) -> bytes:
    """Return where the fence of a query over all jobs was; it means nothing now."""
    return FENCE_PREFIX + _digest(query_id)


def state_key(state_number: int) -> bytes:
    """Return where the mark of a state is, in ``meta``; sorts as the numbers do."""
    return STATE_PREFIX + state_number.to_bytes(8, "big")


def state_number_of(key: bytes) -> int:
    """Return the state number in a key of ``meta``."""
    return int.from_bytes(key[len(STATE_PREFIX) :], "big")


def hold_key(job_id: str) -> bytes:
    """Return where it says which key groups of a job are held, in ``meta``."""
    return HOLD_PREFIX + _digest(job_id)


def staged_key(job_id: str) -> bytes:
    """Return where it says how much is staged of a job, in ``meta``."""
    return STAGED_PREFIX + _digest(job_id)


def kept_prefix(job_id: str) -> bytes:
    """Return what the keys of all entries that are kept of a job begin with."""
    return _KEPT_PREFIX + _digest(job_id)


def kept_key(job_id: str, sequence: int) -> bytes:
    """Return where an entry is kept, in ``meta``; sorts as the entries do."""
    return kept_prefix(job_id) + sequence.to_bytes(8, "big")


def slot_name(slot: int) -> bytes:
    """Return the name of the database with that number."""
    return SLOT_PREFIX + b"%04d" % slot


def batch_prefix(job_id: str, writer_epoch: int, batch_id: int) -> bytes:
    """Return what all keys of a staged batch begin with; none is another's prefix."""
    return _digest(f"{writer_epoch} {batch_id} {job_id}")


def chunk_prefix(prefix: bytes, stage_id: bytes, chunk_index: int) -> bytes:
    """Return what the keys of all pieces of a chunk begin with."""
    return prefix + stage_id + _CHUNK_INDEX.pack(chunk_index)


def piece_key(chunk: bytes, piece_index: int) -> bytes:
    """Return where a piece of the chunk with the prefix *chunk* is."""
    return chunk + _PIECE_INDEX.pack(piece_index)


def staged_batch_of(
    chunk: StageChunk, received_at_us: int, kept_sequence: int, size_bytes: int = 0
) -> StagedBatch:
    """Return the head of the batch that *chunk* belongs to."""
    return StagedBatch(
        job_id=chunk.job_id,
        query_id=chunk.query_id,
        writer_epoch=chunk.writer_epoch,
        batch_id=chunk.batch_id,
        received_at_us=received_at_us,
        kept_sequence=kept_sequence,
        size_bytes=size_bytes,
    )


def item_index_first(sequence: int) -> int:
    """Return the index of the first item that entry *sequence* brings to a list."""
    return sequence << _ENTRY_ITEMS_BITS
