"""
What can go wrong with operator state, and with a log that is read with it.

::

    NameServiceError
    └── OperatorStateError
        ├── UnsupportedItemError (also TypeError)    an item that would not come back
        ├── SnapshotTooLargeError       refused while it is written, not when restored
        ├── OperatorCheckpointError     what a batch left is not there, or not whole
        ├── OperatorOutputError         what a function gave is not what it said
        ├── LogPartitionError           a partition of a log lost what was there
        └── LogRecordError              a line of a log is no record
"""

from __future__ import annotations

from nameservice.errors import NameServiceError


__all__ = [
    "LogPartitionError",
    "LogRecordError",
    "OperatorCheckpointError",
    "OperatorOutputError",
    "OperatorStateError",
    "SnapshotTooLargeError",
    "UnsupportedItemError",
]


class OperatorStateError(NameServiceError):
    """The root of what users of operator state are told."""


class UnsupportedItemError(OperatorStateError, TypeError):
    """
    An item of a state is not of those that come back as they were.

    Attributes:
        state_name: The state that holds it.
        detail: What was found.
    """

    def __init__(self, state_name: str, detail: str) -> None:
        super().__init__(state_name, detail)
        self.state_name = state_name
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"an item of the state {self.state_name!r} cannot be kept: {self.detail}. "
            "Items are None, bool, int, float, str, bytes, and lists, tuples and dicts "
            "of them"
        )


class SnapshotTooLargeError(OperatorStateError):
    """
    What a subtask would leave, or would have to take over, is above the limit.

    Attributes:
        state_name: The largest state of it.
        state_size_bytes: How large that state is.
        size_bytes: How large all of it is.
        size_bytes_max: The limit.
        is_union: Whether it is the union states of all subtasks together, and the
            broadcast states, which each of them would have to take over.
    """

    def __init__(
        self,
        state_name: str,
        state_size_bytes: int,
        size_bytes: int,
        size_bytes_max: int,
        is_union: bool = False,  # noqa: FBT001, FBT002 (so that it can be pickled)
    ) -> None:
        super().__init__(
            state_name, state_size_bytes, size_bytes, size_bytes_max, is_union
        )
        self.state_name = state_name
        self.state_size_bytes = state_size_bytes
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max
        self.is_union = is_union

    def __str__(self) -> str:
        if self.is_union:
            return (
                "the union states of all subtasks, and the broadcast states, are "
                f"{self.size_bytes:,} bytes: each would have to take over all of it "
                f"when their number changes, above the limit of {self.size_bytes_max:,}"
                f"; the largest, {self.state_name!r}, is {self.state_size_bytes:,}. "
                "Keep less in it, use list_state, or raise the limit"
            )
        return (
            f"the snapshot of this subtask is {self.size_bytes:,} bytes, above its "
            f"limit of {self.size_bytes_max:,}; the largest state, "
            f"{self.state_name!r}, is {self.state_size_bytes:,}. Keep less in it, use "
            "more subtasks, or raise the limit"
        )


class OperatorCheckpointError(OperatorStateError):
    """
    What an earlier batch left under the checkpoint location cannot be gone on from.

    Attributes:
        path: What was looked for, or at.
        detail: What is wrong with it, and what to do.
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class OperatorOutputError(OperatorStateError):
    """
    An operator function gave rows that are not of its output schema.

    Attributes:
        operator_index: The subtask.
        detail: What was given, and what was expected.
    """

    def __init__(self, operator_index: int, detail: str) -> None:
        super().__init__(operator_index, detail)
        self.operator_index = operator_index
        self.detail = detail

    def __str__(self) -> str:
        return f"subtask {self.operator_index}: {self.detail}"


class LogPartitionError(OperatorStateError):
    """
    A partition of a log is not what it was: gone, shorter, or written anew.

    Attributes:
        path: The file.
        offset: Up to where it was read.
        detail: What was found.
    """

    def __init__(self, path: str, offset: int, detail: str) -> None:
        super().__init__(path, offset, detail)
        self.path = path
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"{self.path} was read up to byte {self.offset}, and now {self.detail}: "
            "records may be lost. Partitions of a log only grow"
        )


class LogRecordError(OperatorStateError):
    """
    A line of a log is not the record that was expected.

    Attributes:
        path: The file.
        offset: The byte where the line begins.
        detail: What is wrong with it.
        is_unended: Whether it is that its end was not found, so that it cannot be left
            out.
    """

    def __init__(
        self,
        path: str,
        offset: int,
        detail: str,
        is_unended: bool = False,  # noqa: FBT001, FBT002 (so that it can be pickled)
    ) -> None:
        super().__init__(path, offset, detail, is_unended)
        self.path = path
        self.offset = offset
        self.detail = detail
        self.is_unended = is_unended

    def __str__(self) -> str:
        option = '.option("bad_records", "skip")'
        if self.is_unended:
            option = '.option("bytes_per_partition_max", ...), above its length'
        return (
            f"{self.path}: the line at byte {self.offset} is no record: {self.detail}. "
            f"Read on with {option}"
        )
