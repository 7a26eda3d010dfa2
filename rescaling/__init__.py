"""How state is shared: key groups, and redistribution of operator state; pure."""

from __future__ import annotations

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
    "OperatorStateStore",
    "RedistributionMode",
    "default_max_parallelism",
    "key_group_ranges",
    "operator_index",
    "redistribute",
]
