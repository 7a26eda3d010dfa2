"""
Operator state on its way out: from the snapshots of subtasks to rows; pure (rule O5).

A state that is published goes through the same steps as any other state of a query: so
writing, copies, moves, access and reading are those of any other state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec
from attrs import frozen

from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.operator_states import (
    OPERATOR_STATE_SCHEMA,
    PART_SIZE_BYTES_MAX,
)
from queryablestate.schema.values import ValueCodec
from queryablestate.writer.rows import StateRows
from rescaling.operator_state import encoded_states
from rescaling.redistribution import modes_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from rescaling.redistribution import RedistributionMode


__all__ = ["PublishedState", "published_rows", "published_states"]

_VALUES: Final = ValueCodec(OPERATOR_STATE_SCHEMA.value)


@final
@frozen(kw_only=True)
class PublishedState:
    """
    One operator state on its way out.

    Attributes:
        name: Its name within the operator.
        mode: How its items are shared among subtasks.
        subtasks: The items of each subtask in bytes; None where one has no such state.
    """

    name: str
    mode: RedistributionMode
    subtasks: tuple[bytes | None, ...]


def published_states(snapshots: Sequence[bytes]) -> list[PublishedState]:
    """
    Return every state of an operator, sorted by name.

    Args:
        snapshots: Of all subtasks, by operator index, as `encode_snapshot` made them.

    Raises:
        OperatorStateError: If one is no snapshot.
        ConfigurationError: If a name has two modes.
    """
    parts = [encoded_states(snapshot) for snapshot in snapshots]
    modes = modes_of(parts)
    return [
        PublishedState(
            name=name,
            mode=modes[name],
            subtasks=tuple(part[name][1] if name in part else None for part in parts),
        )
        for name in sorted(modes)
    ]


def published_rows(
    state: PublishedState, *, writer_epoch: int, batch_id: int, max_parallelism: int
) -> StateRows:
    """
    Return the rows that a batch puts in place of those of the batch before.

    Args:
        state: As it is after the batch.
        writer_epoch: Of the run that writes.
        batch_id: The batch.
        max_parallelism: The number of key groups of the job.
    """
    content = msgspec.msgpack.encode(state.subtasks)
    cuts = range(0, len(content), PART_SIZE_BYTES_MAX)
    values: list[bytes | None] = [
        _VALUES.encode_row(
            (
                writer_epoch,
                batch_id,
                state.mode.value,
                len(state.subtasks),
                len(cuts),
                content[cut : cut + PART_SIZE_BYTES_MAX],
            )
        )
        for cut in cuts
    ]
    keys = KeyCodec(OPERATOR_STATE_SCHEMA.key, max_parallelism=max_parallelism)
    return StateRows(keys=keys.storage_keys(range(len(cuts))), values=values)
