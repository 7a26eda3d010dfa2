"""
What a node refuses to be told, though it decodes; pure.

A proxy of ours sends no such thing; what we make of one that does, is nothing.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from nameservice import ConfigurationError, RemoteProtocolError
from queryablestate.wire.address import parse_address
from queryablestate.wire.node_messages import (
    AssignJob,
    CollectStages,
    NodeEmptied,
    NodeRegistered,
)
from queryablestate.wire.snapshot_messages import LoadSnapshot, WriteSnapshot


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.wire.job_assignment import CopySource, JobAssignment
    from queryablestate.wire.node_messages import ToNode


__all__ = ["check_command"]

_KEY_GROUP_COUNT_MAX: Final = 32_768
_EMPTIED_REASONS: Final = ("empty", "nobody")
_SNAPSHOT_DIRECTORY: Final = re.compile(r"data-[0-9a-f]{32}/at-[0-9]+/node-[0-9]+")


def check_command(command: ToNode) -> None:
    """Raise `RemoteProtocolError` if *command* decodes and yet makes no sense."""
    match command:
        case NodeRegistered(jobs=jobs, session_timeout_ms=session_timeout_ms):
            if session_timeout_ms < 1:
                raise _malformed("a session timeout below 1 ms")
            job_ids = [job.job_id for job in jobs]
            if len(set(job_ids)) != len(job_ids):
                raise _malformed("a job that is assigned twice")
            for job in jobs:
                _check_job(job)
        case AssignJob(job=job):
            _check_job(job)
        case CollectStages():
            _check_collect(command)
        case NodeEmptied(reason=reason):
            if reason not in _EMPTIED_REASONS:
                raise _malformed(f"a node that may end since {reason!r}")
        case WriteSnapshot(directory=directory, key_groups=key_groups):
            # It is written to, and removed again if that fails.
            if not _SNAPSHOT_DIRECTORY.fullmatch(directory):
                raise _malformed(f"a part of a snapshot in {directory[:200]!r}")
            _check_key_groups(key_groups, _KEY_GROUP_COUNT_MAX)
        case LoadSnapshot(key_groups=key_groups):
            _check_key_groups(key_groups, _KEY_GROUP_COUNT_MAX)
        case _:
            return


def _check_job(job: JobAssignment) -> None:
    count = job.max_parallelism
    if not 1 <= count <= _KEY_GROUP_COUNT_MAX:
        raise _malformed(f"a max parallelism of {count}")
    if job.assignment_version < 0 or job.sequence < 0:
        raise _malformed(
            f"version {job.assignment_version} of an assignment, "
            f"made after entry {job.sequence}"
        )
    joining = tuple(group.key_group for group in job.joining)
    for key_groups in (job.key_groups, job.copies, joining):
        _check_key_groups(key_groups, count)
    held = job.key_groups + job.copies + joining
    if len(set(held)) != len(held):
        raise _malformed("a key group that is held in two ways")
    for group in job.joining:
        if group.since < 0 or not 0 <= group.version <= job.assignment_version:
            raise _malformed(
                f"a copy of key group {group.key_group} since {group.since}, begun by "
                f"version {group.version}"
            )
    offered = _check_sources(job.sources, count)
    if offered != set(joining):
        raise _malformed(
            "sources that do not offer exactly the key groups that are to be copied"
        )


def _check_collect(command: CollectStages) -> None:
    if command.timeout_ms < 0:
        raise _malformed(f"a timeout of {command.timeout_ms} ms")
    if command.assignment_version < 0:
        raise _malformed(f"version {command.assignment_version} of an assignment")
    _check_sources(command.sources, _KEY_GROUP_COUNT_MAX)


def _check_sources(sources: Sequence[CopySource], count: int) -> set[int]:
    """Return the key groups that can be had at *sources*, each at one of them."""
    offered: set[int] = set()
    for source in sources:
        _check_key_groups(source.key_groups, count)
        if not offered.isdisjoint(source.key_groups):
            raise _malformed("a key group with two sources")
        offered.update(source.key_groups)
        if source.address is None:
            continue
        try:
            parse_address(source.address)
        except ConfigurationError as error:
            raise _malformed(f"the address of {source.node_id!r}: {error}") from error
    return offered


def _check_key_groups(key_groups: Sequence[int], count: int) -> None:
    """Key groups come sorted, each once, and are numbered from 0 to *count* - 1."""
    if not all(0 <= group < count for group in key_groups):
        raise _malformed(f"key groups outside 0 to {count - 1}")
    if not all(group < after for group, after in pairwise(key_groups)):
        raise _malformed("key groups that are not sorted")


def _malformed(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError("malformed", detail)
