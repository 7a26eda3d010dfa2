"""
What the leader store holds of the control plane, put together; pure.

Whatever is read is checked: the next leader goes by it.  Records of a job are written
together, so they fit each other, or somebody else was there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define, field, frozen

from nameservice import StorageError
from queryablestate.control.job import leader_paths as paths
from queryablestate.control.job.entry_parts import decode_entry
from queryablestate.control.job.job import Job
from queryablestate.control.job.job_records import whole_record
from queryablestate.control.large_writes import (
    COMMIT_LIMITS,
    NOTHING_LEFT,
    CommitLimits,
    DividedWrite,
    unfinished,
    with_large,
)


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.wire.records import (
        AssignmentRecord,
        CountersRecord,
        JobRecord,
        NodeRecord,
        StateProgress,
        StateRecord,
    )
    from queryablestate.wire.stored_records import QueryRecord


__all__ = ["StoredControl", "stored_control"]


@final
@frozen(kw_only=True)
class StoredControl:
    """
    What the leader store holds of the control plane.

    Attributes:
        counters: The numbers that were given out, or None before the first.
        jobs: In the order in which they were made.
        nodes: Every node that was ever taken in.
        unfinished: What is to be written before anything else.
    """

    counters: CountersRecord | None
    jobs: Sequence[Job]
    nodes: Sequence[NodeRecord]
    unfinished: DividedWrite = NOTHING_LEFT


@define
class _Parts:
    """The records of one job."""

    head: JobRecord | None = None
    queries: list[QueryRecord] = field(factory=list)
    progress: list[StateProgress] = field(factory=list)
    assignments: list[AssignmentRecord] = field(factory=list)
    states: list[StateRecord] = field(factory=list)
    entries: dict[str, bytes] = field(factory=dict)


def stored_control(
    values: Mapping[str, bytes], limits: CommitLimits = COMMIT_LIMITS
) -> StoredControl:
    """
    Return what *values*, all that the store holds, make up.

    Raises:
        StorageError: If a record cannot be read, or does not fit the others.
    """
    left = unfinished(values, limits)
    values = with_large(values)
    counters = values.get(paths.COUNTERS)
    jobs: dict[int, _Parts] = {}
    nodes = []
    for path in sorted(values):
        match path.split("/"):
            case ["nodes", _]:
                nodes.append(paths.decode_node(values[path]))
            case ["jobs", number_text, *rest]:
                if not (number_text.isascii() and number_text.isdecimal()):
                    raise _stray(path)
                parts = jobs.setdefault(int(number_text), _Parts())
                _add(parts, path, rest, values[path])
            case _:
                pass  # the counters, the witness, and parts of a large write
    return StoredControl(
        counters=None if counters is None else paths.decode_counters(counters),
        jobs=[_job(number, jobs[number]) for number in sorted(jobs)],
        nodes=nodes,
        unfinished=left,
    )


def _add(parts: _Parts, path: str, rest: Sequence[str], value: bytes) -> None:
    """Add the record at *path*, of which *rest* is what follows the job's number."""
    match rest:
        case []:
            parts.head = paths.decode_job(value)
        case ["queries", _]:
            parts.queries.append(paths.decode_query(value))
        case ["progress", _]:
            parts.progress.append(paths.decode_progress(value))
        case ["assignments", _]:
            parts.assignments.append(paths.decode_assignment(value))
        case ["states", _]:
            parts.states.append(paths.decode_state(value))
        case ["entries", sequence]:
            parts.entries[sequence] = value
        case ["entries", sequence, _] if sequence in parts.entries:
            parts.entries[sequence] += value  # paths are sorted, and so are parts
        case _:
            raise _stray(path)


def _job(number: int, parts: _Parts) -> Job:
    head = parts.head
    if head is None:
        raise StorageError(f"the leader store of the proxies lacks jobs/{number}")
    entries = [decode_entry(encoded) for encoded in parts.entries.values()]
    job = Job(
        record=whole_record(head, parts.queries, parts.progress),
        states={state.state_number: state for state in parts.states},
        entries={entry.sequence: entry for entry in entries},
        is_in_one_record=bool(head.runs or head.progress),
    )
    for assignment in parts.assignments:
        job.keep_assignment(assignment)
    try:
        job.check_invariants()
    except AssertionError as error:
        raise StorageError(
            f"the records under jobs/{number} in the leader store of the proxies do "
            "not fit each other: did somebody else write there?"
        ) from error
    if job.assignment is None:
        raise StorageError(f"the leader store lacks jobs/{number}/assignments")
    return job


def _stray(path: str) -> StorageError:
    return StorageError(f"{path!r} is nothing that proxies store")
