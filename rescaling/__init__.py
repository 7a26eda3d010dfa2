"""How state is shared: key groups, and redistribution of operator state; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from rescaling.errors import (
        LogPartitionError,
        LogRecordError,
        OperatorCheckpointError,
        OperatorOutputError,
        OperatorStateError,
        SnapshotTooLargeError,
        UnsupportedItemError,
    )
    from rescaling.key_groups import (
        KeyGroupRange,
        default_max_parallelism,
        key_group_ranges,
        operator_index,
    )
    from rescaling.operator_state import BroadcastState, ListState, OperatorStateStore
    from rescaling.redistribution import RedistributionMode, redistribute


__all__ = [
    "BroadcastState",
    "KeyGroupRange",
    "ListState",
    "LogPartitionError",
    "LogRecordError",
    "OperatorCheckpointError",
    "OperatorOutputError",
    "OperatorStateError",
    "OperatorStateStore",
    "RedistributionMode",
    "SnapshotTooLargeError",
    "UnsupportedItemError",
    "default_max_parallelism",
    "key_group_ranges",
    "operator_index",
    "redistribute",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "rescaling.errors": (
            "LogPartitionError",
            "LogRecordError",
            "OperatorCheckpointError",
            "OperatorOutputError",
            "OperatorStateError",
            "SnapshotTooLargeError",
            "UnsupportedItemError",
        ),
        "rescaling.key_groups": (
            "KeyGroupRange",
            "default_max_parallelism",
            "key_group_ranges",
            "operator_index",
        ),
        "rescaling.operator_state": (
            "BroadcastState",
            "ListState",
            "OperatorStateStore",
        ),
        "rescaling.redistribution": (
            "RedistributionMode",
            "redistribute",
        ),
    },
)
