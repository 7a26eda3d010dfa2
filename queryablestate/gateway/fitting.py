"""Whether what was read can be of a state as it is known; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from queryablestate.client.results import StateEntry, StatePage


if TYPE_CHECKING:
    from queryablestate.client.results import StateInformation


__all__ = ["fits"]


def fits(known: StateInformation, found: object) -> bool:
    """Return whether *found* can be of the state as it is *known*."""
    match found:
        case StateEntry(generation=int(generation), value=value):
            return generation == known.generation and _has_columns(known, value)
        case StatePage(generation=int(generation), rows=rows):
            values = [value for _, value in rows[:1]]
            is_known = all(_has_columns(known, value) for value in values)
            return generation == known.generation and is_known
        case list():  # keys, and what was found under each
            return all(fits(known, one) for _, one in found)
        case _:
            return True


def _has_columns(known: StateInformation, value: Any) -> bool:
    """
    Return whether *value*, a row or several, has the columns that are *known*.

    One that is missing would be shown as null, whatever it holds.
    """
    columns = frozenset(known.value_columns)
    rows = value if isinstance(value, list) else [value]
    if known.kind == "map" and isinstance(value, Mapping):
        rows = [value, *value.values()]  # an entry alone, or all of them
    rows = [row for row in rows[:2] if isinstance(row, Mapping) and row]
    return not rows or any(columns == frozenset(row) for row in rows)
