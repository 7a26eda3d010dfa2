"""
From the Arrow batches of a task to staged rows: what runs in Spark's Python workers.

Batches are gathered until there are enough of them to be worth sorting, and staged in
runs: so a task needs memory for one run, whatever the size of its partition and the
number of its states, and its first rows travel while the next ones are computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa
from attrs import define, field

from queryablestate.schema.schema import AtomicType, DecimalType
from queryablestate.writer.rows import StateRows
from queryablestate.writer.stager import Stager
from sparkpipeline.state.columns import (
    encoded_keys,
    encoded_rows,
    order_bytes,
    plain_values,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queryablestate.schema.schema import DataType
    from queryablestate.writer.batches import StageMessage
    from sparkpipeline.state.options import StateLayout


__all__ = ["stage_batches", "state_rows"]

RUN_ROW_COUNT_MAX: Final = 250_000
RUN_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024


@final
@define
class _Gathered:
    """Rows of one state that are not staged yet."""

    keys: list[bytes] = field(factory=list)
    values: list[bytes | None] = field(factory=list)
    orders: list[bytes] = field(factory=list)
    digested: list[bytes | None] = field(factory=list)

    def take(self, *, is_ordered: bool) -> StateRows:
        """Return what is gathered, and begin anew."""
        rows = StateRows(
            keys=self.keys,
            values=self.values,
            orders=self.orders if is_ordered else None,
            digested=self.digested or None,
        )
        self.keys, self.values, self.orders, self.digested = [], [], [], []
        return rows


def stage_batches(
    batches: Iterable[tuple[pa.RecordBatch, Sequence[pa.Array]]],
    stager: Stager,
    layouts: Sequence[StateLayout],
    state_numbers: Sequence[int],
) -> StageMessage:
    """
    Stage every row of *batches* in every state; return what the commit must know.

    Args:
        batches: The rows of one task; with each batch, for every state, the key group
            of each row.
        stager: Where to; it is finished here.
        layouts: The states.
        state_numbers: Their numbers, in the same order.

    Raises:
        KeyTooLargeError: If a key is too long to be stored.
        StaleWriterError: If a newer run of the query writes.
        StateUnavailableError: If a node did not take its rows.
        NameServiceError: What else a node refused them with.
    """
    gathered = [_Gathered() for _ in layouts]
    row_count, size_bytes = 0, 0

    def stage() -> None:
        for layout, number, rows in zip(layouts, state_numbers, gathered, strict=True):
            if rows.keys:
                stager.add(
                    number,
                    rows.take(is_ordered=bool(layout.order_by)),
                    is_list=layout.is_list,
                )

    for batch, groups in batches:
        for layout, groups_here, into in zip(layouts, groups, gathered, strict=True):
            rows = state_rows(batch, layout, groups_here)
            into.keys += rows.keys
            into.values += rows.values
            into.orders += rows.orders or ()
            into.digested += rows.digested or ()
            # Each state keeps what it makes of the batch: the run is all of theirs.
            row_count += batch.num_rows
            size_bytes += sum(batch.column(name).nbytes for name in layout.names_used)
        if row_count >= RUN_ROW_COUNT_MAX or size_bytes >= RUN_SIZE_BYTES_MAX:
            stage()
            row_count, size_bytes = 0, 0
    stage()
    return stager.finish()


def state_rows(
    batch: pa.RecordBatch, layout: StateLayout, groups: pa.Array
) -> StateRows:
    """
    Return the rows of *batch* as one state stores them, in their order.

    Args:
        batch: Holds at least the columns of *layout*.
        layout: The state.
        groups: The key group of each row.

    Raises:
        KeyTooLargeError: If a key is too long to be stored.
    """
    fields = (*layout.schema.key, *layout.schema.map_key)
    keys = encoded_keys(batch, fields, [one.name for one in fields], groups)
    values: list[Any] = encoded_rows(batch, [one.name for one in layout.schema.value])
    if layout.ttl is not None:
        expiries = _expiries(batch.column(layout.ttl))
        values = [
            expiry + value for expiry, value in zip(expiries, values, strict=True)
        ]
    if layout.delete is not None:
        deletes = plain_values(batch.column(layout.delete))
        if any(deletes):
            values = [
                None if is_deleted else value
                for is_deleted, value in zip(deletes, values, strict=True)
            ]
    return StateRows(
        keys=keys,
        values=values,
        orders=_orders(batch, layout.order_by),
        digested=_digested(batch, layout, values),
    )


def _digested(
    batch: pa.RecordBatch, layout: StateLayout, values: Sequence[bytes | None]
) -> list[bytes | None] | None:
    """
    Return what of the values is the same when Spark runs a batch again.

    That is not so of sums of floating point numbers, and of what is collected into
    arrays and maps: both depend on the order in which a shuffle is read.
    """
    exact = [one.name for one in layout.schema.value if _is_exact(one.type)]
    if len(exact) == len(layout.schema.value):
        return None
    digested = encoded_rows(batch, exact)
    return [
        None if value is None else row
        for value, row in zip(values, digested, strict=True)
    ]


def _is_exact(data_type: DataType) -> bool:
    if isinstance(data_type, AtomicType):
        return data_type not in {AtomicType.FLOAT, AtomicType.DOUBLE}
    return isinstance(data_type, DecimalType)


def _expiries(column: pa.Array) -> list[bytes]:
    """Return when rows expire as values begin with it: 0 is never."""
    return [
        (0 if moment is None else max(1, moment)).to_bytes(8, "big")
        for moment in plain_values(column)
    ]


def _orders(batch: pa.RecordBatch, names: Sequence[str]) -> list[bytes] | None:
    if not names:
        return None
    columns = [order_bytes(batch.column(name)) for name in names]
    if len(columns) == 1:
        return columns[0]
    return [b"".join(parts) for parts in zip(*columns, strict=True)]
