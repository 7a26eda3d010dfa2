"""Rows of keys as they are, without the engine: the shortest way to an answer; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from attrs import frozen

from queryablestate.schema.schema import AtomicType, CollatedStringType, DecimalType
from queryablestate.sql.analysis import Query
from queryablestate.sql.protocol.messages import Formats, data_row
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.protocol.types import encoder_of
from queryablestate.sql.tables import Table, engine_type


__all__ = ["KEY_COUNT_MAX", "Projection", "encoded_rows", "projection_of"]

KEY_COUNT_MAX: Final = 100
"""Keys that are looked up without the engine: what it takes is no work to speak of."""


@final
@frozen
class Projection:
    """
    Columns of a table, in the order in which they are wanted.

    Attributes:
        places: Of each in the rows of the table.
        columns: Names, and types as the engine has them.
    """

    places: Sequence[int]
    columns: Sequence[tuple[str, str]]


def projection_of(query: Query, table: Table) -> Projection | None:
    """Return the columns that a simple query wants; None if the engine has to say."""
    assert query.simple is not None
    by_name = {one.name.lower(): place for place, one in enumerate(table.fields)}
    places: list[int] = []
    names: list[str] = []
    (statement,) = query.tree["statements"]
    chosen = statement["node"]["select_list"]
    has_star = any(node["class"] == "STAR" for node in chosen)
    for node in chosen:
        if node["class"] == "STAR":
            relation = str(node.get("relation_name") or "").lower()
            if relation and relation not in query.simple.names:
                return None
            places += range(len(table.fields))
            names += (one.name for one in table.fields)
            continue
        *qualifiers, name = node["column_names"]
        place = by_name.get(name.lower())
        if place is None or ".".join(qualifiers).lower() not in query.simple.names:
            return None
        places.append(place)
        # Next to a star the engine has each name as the table has it.
        names.append(node["alias"] or (table.fields[place].name if has_star else name))
    for place in places:
        kind = table.fields[place].type
        if not isinstance(kind, AtomicType | CollatedStringType | DecimalType):
            return None
    kinds = [engine_type(table.fields[place].type) for place in places]
    return Projection(places, list(zip(names, kinds, strict=True)))


def encoded_rows(
    projection: Projection, rows: Sequence[Sequence[Any]], formats: Formats
) -> list[bytes]:
    """
    Return *rows* of a table as messages.

    Raises:
        SQLError: If there are not as many formats as columns.
    """
    count = len(projection.columns)
    wanted = formats or [0]
    if len(wanted) == 1:
        wanted = [*wanted] * count
    if len(wanted) != count:
        raise SQLError("08P01", f"{count} columns have {len(wanted)} formats")
    encoders = [
        (place, encoder_of(kind, is_binary=bool(form)))
        for place, (_, kind), form in zip(
            projection.places, projection.columns, wanted, strict=True
        )
    ]
    return [
        data_row(
            [
                None if row[place] is None else encode(row[place])
                for place, encode in encoders
            ]
        )
        for row in rows
    ]


def limited(
    query: Query, rows: Sequence[Any], parameters: Mapping[str, Any]
) -> Sequence[Any] | None:
    """Return what LIMIT and OFFSET leave of *rows*; None if that is not known."""
    if query.limits is None:
        return rows
    bounds = query.bounds(parameters)
    if bounds is None:
        return None
    limit, offset = bounds
    return rows[offset : offset + limit]
