"""
What a log source has read: the state of its subtasks, as Spark's offset log keeps it.

Theory of operation.  A partition of a log is an item of a list state, (name, offset),
and one subtask holds it.  An offset of Spark is the snapshot of all subtasks: it says
everything, and nothing else says anything.  So planning a batch
is a pure function: of the offset where it begins, of what the log holds now, and of
how many subtasks there are to be.  This is FLIP-8's own example of operator state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from attrs import frozen

from rescaling import OperatorCheckpointError, OperatorStateStore, RedistributionMode
from rescaling.redistribution import carry_over


if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["LogOffset", "LogRange", "plan_offset", "plan_ranges"]

STATE_NAME: Final = "partitions"
SNAPSHOT_SIZE_BYTES_MAX: Final = 1024 * 1024
"""Of one subtask: every batch writes all of it into Spark's offset log."""

_FORMAT_VERSION: Final = 1


class _OffsetMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in Spark's offset log."""

    format_version: int
    subtasks: tuple[tuple[tuple[str, int], ...], ...]


@final
@frozen
class LogOffset:
    """
    How far a log has been read.

    Attributes:
        subtasks: For each subtask the partitions that it holds: (name, offset in
            bytes).  Before the first batch there are none.
    """

    subtasks: tuple[tuple[tuple[str, int], ...], ...] = ()

    @property
    def positions(self) -> dict[str, int]:
        """The offset of each partition."""
        return {name: at for subtask in self.subtasks for name, at in subtask}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> LogOffset:
        """
        Return the offset that `to_json` made *content* of.

        Raises:
            OperatorCheckpointError: If it is of another source, or of a version that
                is not known here.
        """
        try:
            message = msgspec.convert(content, _OffsetMessage)
        except msgspec.ValidationError as error:
            raise OperatorCheckpointError(
                "Spark's offset log",
                f"it holds no offset of a lodestar-log ({error}): use another "
                "checkpoint location for another source",
            ) from error
        offset = cls(message.subtasks)
        held = sum(len(subtask) for subtask in offset.subtasks)
        if message.format_version != _FORMAT_VERSION or held != len(offset.positions):
            raise OperatorCheckpointError(
                "Spark's offset log",
                f"an offset of format version {message.format_version} that holds "
                f"{len(offset.positions)} partitions in {held} places is not known "
                "here: restore it from a copy, or use another checkpoint location",
            )
        return offset

    def to_json(self) -> dict[str, Any]:
        """Return what Spark is to write into its offset log."""
        return {
            "format_version": _FORMAT_VERSION,
            "subtasks": [[list(item) for item in subtask] for subtask in self.subtasks],
        }


@final
@frozen(kw_only=True)
class LogRange:
    """
    What is to be read of one partition: whole lines.

    Attributes:
        name: The partition.
        begin: The offset of the first line.
        end: Behind the last line.
    """

    name: str
    begin: int
    end: int


def plan_offset(
    start: LogOffset, ends: Mapping[str, int], *, parallelism: int
) -> LogOffset:
    """
    Return up to where the next batch reads, and which subtask reads what.

    The states of the last batch are redistributed if there were more or fewer
    subtasks.  A partition that is new goes to the subtask that holds the fewest.

    Args:
        start: Where the batch begins.
        ends: For each partition that there is, up to where it can be read; those of
            *start* that are not in it are forgotten.
        parallelism: How many subtasks there are to be; at least 1.

    Returns:
        *start* itself, if there is nothing to read, and nothing to forget.

    Raises:
        SnapshotTooLargeError: If a subtask holds more partitions than the offset log
            should have in every batch.
    """
    positions = start.positions
    # To forget a partition is a batch too, with nothing in it: until it is written that
    # it is gone, a new file of its name would be taken for the one that was read.
    is_all_there = positions.keys() <= ends.keys()
    if is_all_there and all(positions.get(name, 0) == at for name, at in ends.items()):
        return start
    left = [
        {STATE_NAME: (RedistributionMode.SPLIT_DISTRIBUTE, subtask)}
        for subtask in start.subtasks
    ]
    stores = []
    for share in carry_over(left, parallelism):
        store = OperatorStateStore(snapshot_size_bytes_max=SNAPSHOT_SIZE_BYTES_MAX)
        store.restore(share)
        held = store.list_state(STATE_NAME)
        held.update((name, ends[name]) for name, _ in held.get() if name in ends)
        stores.append(store)
    for name in sorted(ends.keys() - positions.keys()):
        if ends[name]:
            states = [store.list_state(STATE_NAME) for store in stores]
            min(states, key=len).add((name, ends[name]))
    return LogOffset(tuple(tuple(store.snapshot()[STATE_NAME][1]) for store in stores))


def plan_ranges(start: LogOffset, end: LogOffset) -> tuple[tuple[LogRange, ...], ...]:
    """
    Return what each subtask of a batch reads, by its index.

    Args:
        start: Where the batch begins.
        end: Where it ends; who holds a partition there reads it.
    """
    positions = start.positions
    return tuple(
        tuple(
            LogRange(name=name, begin=positions.get(name, 0), end=at)
            for name, at in subtask
            if at > positions.get(name, 0)
        )
        for subtask in end.subtasks
    )
