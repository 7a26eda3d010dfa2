"""
`Walk`: the rows of some key groups as nodes store them, page by page; pure.

Theory of operation.  Nodes keep rows key group by key group.  A page in this order
costs a node what it returns, where one in the order of keys (`Scan`) costs a look at
each key group, and a merge.

What is left to read is a list of *parts*: key groups of one node, and the storage key
to go on from.  If key groups move meanwhile, the parts are dealt to their new nodes,
each from the place where it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, final

from attrs import define

from nameservice.errors import RemoteProtocolError
from queryablestate.schema.key_groups import group_of
from queryablestate.wire.questions import WalkRows


if TYPE_CHECKING:
    from queryablestate.client.routes import Route
    from queryablestate.client.scanning import ScannedRow


__all__ = ["Walk", "groups_by_node"]

_PAGE_ROW_COUNT_MAX: Final = 10_000


@final
@define
class _Part:
    """Key groups of one node, sorted, and the storage key that is next."""

    node_index: int
    key_groups: tuple[int, ...]
    position: bytes


@final
class Walk:
    """
    One walk, from its first row to its last; used as a `Scan` is.

    Args:
        key_groups: Which; None for all.
        limit: How many rows at most, or None.
        page_row_count_max: How many rows a page may have.
        is_serial: Whether parts are read one after the other: then rows that have a
            key in common, as the items of a list, come one behind the other.
    """

    def __init__(
        self,
        key_groups: Iterable[int] | None,
        *,
        limit: int | None,
        page_row_count_max: int,
        is_serial: bool,
    ) -> None:
        self._key_groups = None if key_groups is None else sorted(key_groups)
        self._left = limit
        self._row_count_max = min(page_row_count_max, _PAGE_ROW_COUNT_MAX)
        self._is_serial = is_serial
        self._parts: list[_Part] | None = None
        self._rows: list[ScannedRow] = []

    @property
    def is_over(self) -> bool:
        """Return whether every row was told."""
        if self._left is not None and self._left <= 0:
            return True
        return not self._rows and not self._parts

    def begin(self, route: Route) -> None:
        """Ask the nodes of *route*, each part from where it was."""
        before = self._parts
        if before is None:
            wanted = self._key_groups
            groups = range(len(route.owners)) if wanted is None else wanted
            before = [_Part(0, tuple(groups), b"")]
        # Of a part that is divided, what goes on at its position comes first.
        self._parts = [
            _Part(node_index, groups, part.position)
            for part in before
            for node_index, groups in groups_by_node(
                route, _groups_from(part.key_groups, part.position)
            ).items()
        ]

    def wanted(self) -> Sequence[tuple[int, WalkRows]]:
        """Return which nodes are to be asked for what."""
        assert self._parts is not None
        count = self._row_count_max
        if self._left is not None:
            count = min(count, self._left)
        first: dict[int, _Part] = {}
        for part in self._parts[:1] if self._is_serial else self._parts:
            first.setdefault(part.node_index, part)
        return [
            (
                index,
                WalkRows(
                    key_groups=_runs(_groups_from(part.key_groups, part.position)),
                    start=part.position,
                    limit=count,
                ),
            )
            for index, part in first.items()
        ]

    def take(
        self, node_index: int, rows: Sequence[ScannedRow], next_start: bytes | None
    ) -> None:
        """
        Take a page.

        Raises:
            RemoteProtocolError: If the node goes on where it has been: it never ends.
        """
        assert self._parts is not None
        part = next(one for one in self._parts if one.node_index == node_index)
        if next_start is None:
            self._parts.remove(part)
        elif next_start <= part.position:
            raise RemoteProtocolError(
                "malformed", "a node goes on with a scan where it has been"
            )
        else:
            part.position = next_start
        self._rows += rows

    def pop(self) -> Sequence[ScannedRow]:
        """Return the rows that are next."""
        found, self._rows = self._rows, []
        if self._left is not None:
            del found[self._left :]
            self._left -= len(found)
        return found


def groups_by_node(
    route: Route, key_groups: Iterable[int]
) -> dict[int, tuple[int, ...]]:
    """Return those of *key_groups* that each node is asked for, as they come first."""
    found: dict[int, list[int]] = {}
    for group in key_groups:
        found.setdefault(route.owners[group], []).append(group)
    return {index: tuple(groups) for index, groups in found.items()}


def _groups_from(key_groups: tuple[int, ...], position: bytes) -> tuple[int, ...]:
    """Return which of *key_groups* are not done at a storage key."""
    if not position:
        return key_groups
    return key_groups[bisect_left(key_groups, group_of(position)) :]


def _runs(key_groups: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the first and the last one of each run of *key_groups*."""
    runs: list[tuple[int, int]] = []
    for group in key_groups:
        if runs and group == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], group)
        else:
            runs.append((group, group))
    return tuple(runs)
