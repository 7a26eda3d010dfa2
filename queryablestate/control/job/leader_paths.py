"""
Where the control plane keeps its records in the leader store of ``QUERY_PROXY``.

::

    witness                         nothing; its version tells one store from another
    counters                        CountersRecord
    nodes/DIGEST                    NodeRecord, by a digest of the node's id
    jobs/NUMBER                     JobRecord without runs and progress
    jobs/NUMBER/queries/DIGEST      QueryRecord, by a digest of the query's id
    jobs/NUMBER/progress/NUMBER     StateProgress of one state, without its queries
    jobs/NUMBER/assignments/NUMBER  AssignmentRecord: the newest, and those before it
                                    that a batch may be pinned to
    jobs/NUMBER/states/NUMBER       StateRecord
    jobs/NUMBER/entries/SEQUENCE    Entry; its beginning, if it has parts
    jobs/NUMBER/entries/SEQUENCE/N  what goes on with it
    large, large/N                  a write that takes more than one commit: see
                                    `queryablestate.control.large_writes`

Names of jobs and nodes can be as long as a path may be, so records have numbers or
digests in their paths, and hold the names themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import msgspec

from nameservice import StorageError
from queryablestate.wire.records import (
    AssignmentRecord,
    CountersRecord,
    Entry,
    JobRecord,
    NodeRecord,
    StateProgress,
    StateRecord,
)
from queryablestate.wire.stored_records import PackedBatch, QueryRecord


__all__ = [
    "COUNTERS",
    "WITNESS",
    "assignment_path",
    "decode_assignment",
    "decode_counters",
    "decode_job",
    "decode_node",
    "decode_progress",
    "decode_query",
    "decode_state",
    "decode_stored_entry",
    "encode_record",
    "entry_path",
    "job_path",
    "node_path",
    "progress_path",
    "query_path",
    "state_path",
]

COUNTERS: Final = "counters"
WITNESS: Final = "witness"


_ENCODER: Final = msgspec.msgpack.Encoder()


def node_path(node_id: str) -> str:
    """Return where the node's `NodeRecord` is."""
    return f"nodes/{sha256(node_id.encode()).hexdigest()}"


def job_path(job_number: int) -> str:
    """Return where the job's `JobRecord` is."""
    return f"jobs/{job_number}"


def query_path(job_number: int, query_id: str) -> str:
    """Return where the `QueryRecord` is."""
    return f"jobs/{job_number}/queries/{sha256(query_id.encode()).hexdigest()}"


def progress_path(job_number: int, state_number: int) -> str:
    """Return where the `StateProgress` of that state is."""
    return f"jobs/{job_number}/progress/{state_number}"


def assignment_path(job_number: int, version: int) -> str:
    """Return where that version of the job's `AssignmentRecord` is."""
    return f"jobs/{job_number}/assignments/{version:016d}"


def state_path(job_number: int, state_number: int) -> str:
    """Return where the `StateRecord` is."""
    return f"jobs/{job_number}/states/{state_number}"


def entry_path(job_number: int, sequence: int) -> str:
    """Return where the `Entry` is; in the order of the chain, as far as 16 digits."""
    return f"jobs/{job_number}/entries/{sequence:016d}"


def encode_record(record: msgspec.Struct) -> bytes:
    """Return *record* as it is stored."""
    return _ENCODER.encode(record)


def _decoder(kind: object) -> Callable[[bytes], Any]:
    """Return what reads a record of *kind*; it raises `StorageError` if it is none."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_record(value: bytes) -> Any:
        try:
            return decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StorageError(
                f"the leader store of the proxies holds a record that cannot be read: "
                f"{error}; was it written by another version?"
            ) from error

    return decode_record


decode_counters: Final[Callable[[bytes], CountersRecord]] = _decoder(CountersRecord)
decode_node: Final[Callable[[bytes], NodeRecord]] = _decoder(NodeRecord)
decode_job: Final[Callable[[bytes], JobRecord]] = _decoder(JobRecord)
decode_assignment: Final[Callable[[bytes], AssignmentRecord]] = _decoder(
    AssignmentRecord
)
decode_state: Final[Callable[[bytes], StateRecord]] = _decoder(StateRecord)
decode_query: Final[Callable[[bytes], QueryRecord]] = _decoder(QueryRecord)
decode_progress: Final[Callable[[bytes], StateProgress]] = _decoder(StateProgress)
decode_stored_entry: Final[Callable[[bytes], Entry | PackedBatch]] = _decoder(
    Entry | PackedBatch
)
