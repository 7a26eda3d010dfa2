"""
Rows on their way to the nodes: sorted, reduced, dealt out and cut into chunks; pure.

A hundred thousand rows pass here in every micro-batch, so nothing in this file does
more per row than a comparison, a slice or a look into a dict.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from queryablestate.schema.key_groups import group_of, group_start


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["StateRows", "cut_rows", "rows_larger_than", "settle_rows", "split_rows"]

_ROW_OVERHEAD_BYTES: Final = 12
"""What MessagePack adds to a key, a value and an order, at most 5 bytes each."""


@final
@frozen(kw_only=True)
class StateRows:
    """
    Rows of one state, column by column.

    Attributes:
        keys: Storage keys, without a list index.
        values: Stored values; None for a delete.
        orders: With ``order_by``, one for each key.
        digested: What of the values the digest of the batch goes by, where that is not
            all of them: what may differ when a batch is run again is left out.
    """

    keys: list[bytes]
    values: list[bytes | None]
    orders: list[bytes] | None = None
    digested: list[bytes | None] | None = None


def settle_rows(rows: StateRows, *, is_list: bool) -> StateRows:
    """
    Return *rows* sorted by key, and each key once unless they are items of lists.

    Of rows with one key the one with the greatest order stays, then the one with the
    greatest value (a delete is less than any); without orders the last one.  Items of
    one list stay in the order in which they came, or are sorted by their orders.
    """
    keys, values, orders = rows.keys, rows.values, rows.orders
    if is_list:
        places: list[int] = list(range(len(keys)))
        if orders is not None:
            places.sort(key=orders.__getitem__)
        places.sort(key=keys.__getitem__)  # stable
        return StateRows(
            keys=[keys[place] for place in places],
            values=[values[place] for place in places],
            orders=None if orders is None else [orders[place] for place in places],
        )
    if orders is None:
        last = dict(zip(keys, values, strict=True))
        kept = sorted(last)
        return StateRows(keys=kept, values=list(map(last.__getitem__, kept)))
    ranked = dict(zip(keys, zip(orders, values, strict=True), strict=True))
    if len(ranked) < len(keys):
        _keep_greatest(rows, ranked)
    kept = sorted(ranked)
    return StateRows(
        keys=kept,
        values=[ranked[key][1] for key in kept],
        orders=[ranked[key][0] for key in kept],
    )


def _keep_greatest(
    rows: StateRows, ranked: dict[bytes, tuple[bytes, bytes | None]]
) -> None:
    """Put for each key of *rows* the greatest order and value into *ranked*."""
    assert rows.orders is not None
    ranked.clear()
    for key, order, value in zip(rows.keys, rows.orders, rows.values, strict=True):
        best = ranked.get(key)
        if (
            best is None
            or order > best[0]
            or (
                order == best[0]
                and value is not None
                and (best[1] is None or value > best[1])
            )
        ):
            ranked[key] = (order, value)


def split_rows(
    rows: StateRows, owners: Sequence[tuple[int, ...]]
) -> dict[int, StateRows]:
    """
    Return for each node what it is to get; a row goes to every owner of its group.

    Args:
        rows: Sorted by key.
        owners: For each key group the indexes of its nodes.

    Returns:
        By index, sorted; nodes that get nothing are left out.
    """
    keys = rows.keys
    stretches: dict[int, list[tuple[int, int]]] = {}
    start = 0
    while start < len(keys):
        group = group_of(keys[start])
        holders = owners[group]
        # Neighbours with the same owners go together: contiguous ranges are the rule.
        beyond = group + 1
        while beyond < len(owners) and owners[beyond] == holders:
            beyond += 1
        stop = len(keys)
        if beyond < len(owners):
            stop = bisect_left(keys, group_start(beyond), start)
        for index in holders:
            stretches.setdefault(index, []).append((start, stop))
        start = stop
    return {index: _joined(rows, stretches[index]) for index in sorted(stretches)}


def _joined(rows: StateRows, stretches: list[tuple[int, int]]) -> StateRows:
    if stretches == [(0, len(rows.keys))]:
        return rows
    keys: list[bytes] = []
    values: list[bytes | None] = []
    orders: list[bytes] | None = None if rows.orders is None else []
    for start, stop in stretches:
        keys += rows.keys[start:stop]
        values += rows.values[start:stop]
        if orders is not None and rows.orders is not None:
            orders += rows.orders[start:stop]
    return StateRows(keys=keys, values=values, orders=orders)


def cut_rows(rows: StateRows, *, size_bytes_max: int) -> Iterator[StateRows]:
    """
    Yield *rows* in pieces of at most *size_bytes_max* on the wire, in their order.

    A row that is larger than that makes a piece of its own.
    """
    if not rows.keys:
        return
    if _size_bytes(rows) <= size_bytes_max:  # as a rule; cheaper than size by size
        yield rows
        return
    ends = list(accumulate(_sizes_bytes(rows)))
    start, sent = 0, 0
    while start < len(ends):
        stop = max(start + 1, bisect_right(ends, sent + size_bytes_max, start))
        yield StateRows(
            keys=rows.keys[start:stop],
            values=rows.values[start:stop],
            orders=None if rows.orders is None else rows.orders[start:stop],
        )
        start, sent = stop, ends[stop - 1]


def rows_larger_than(rows: StateRows, size_bytes_max: int) -> Iterator[StateRows]:
    """Yield each row alone that may take more than *size_bytes_max* on the wire."""
    if _size_bytes(rows) <= size_bytes_max:
        return
    for place, size_bytes in enumerate(_sizes_bytes(rows)):
        if size_bytes > size_bytes_max:
            yield StateRows(
                keys=[rows.keys[place]],
                values=[rows.values[place]],
                orders=None if rows.orders is None else [rows.orders[place]],
            )


def _sizes_bytes(rows: StateRows) -> list[int]:
    """Return how much each row takes on the wire, at most."""
    sizes = [
        len(key) + _ROW_OVERHEAD_BYTES + (0 if value is None else len(value))
        for key, value in zip(rows.keys, rows.values, strict=True)
    ]
    if rows.orders is None:
        return sizes
    return [size + len(order) for size, order in zip(sizes, rows.orders, strict=True)]


def _size_bytes(rows: StateRows) -> int:
    return (
        len(rows.keys) * _ROW_OVERHEAD_BYTES
        + sum(map(len, rows.keys))
        + sum(map(len, filter(None, rows.values)))
        + sum(map(len, rows.orders or ()))
    )
