"""The types of parameters that a tool leaves open, as the query tells them; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queryablestate.sql.analysis import Query, nodes_of
from queryablestate.sql.jobs import Parameter
from queryablestate.sql.protocol.parameter_values import decode_parameter
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.protocol.types import (
    BY_NAME,
    BY_OID,
    TEXT,
    UNKNOWN_OID,
    type_of_engine,
)
from queryablestate.sql.selection import Node
from queryablestate.sql.tables import Table, engine_type


__all__ = ["example_of", "parameter_types", "values_of"]

_BY_ENGINE_NAME: Final = {
    **{one.engine_name.lower(): one for one in reversed(list(BY_NAME.values()))},
    **BY_NAME,
    "timestamp with time zone": BY_NAME["timestamptz"],
    "varchar": BY_NAME["varchar"],
    "decimal": BY_NAME["numeric"],
    "regclass": TEXT,
}


def parameter_types(
    query: Query, tables: Sequence[Table], declared: Sequence[int]
) -> list[int]:
    """
    Return the type of each parameter of *query*.

    Args:
        query: The query.
        tables: The states that it names.
        declared: What the tool says; 0 for what it leaves open.
    """
    inferred = _inferred(query, tables)
    numbers = [int(name) for name in query.parameters]
    count = max([*numbers, len(declared)], default=0)
    if count > 1_000:
        raise SQLError("54000", f"there are no parameters as high as ${count}")
    found = []
    for number in range(1, count + 1):
        oid = declared[number - 1] if number <= len(declared) else 0
        if oid in {0, UNKNOWN_OID}:
            oid = inferred.get(str(number), TEXT.oid)
        found.append(oid)
    return found


def values_of(oids: Sequence[int], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """
    Return the values of parameters by their numbers.

    Raises:
        SQLError: If there are more or fewer than *oids*, or one is malformed.
    """
    if len(oids) != len(parameters):
        raise SQLError(
            "08P01", f"{len(oids)} parameters are wanted, {len(parameters)} were given"
        )
    return {
        str(number): decode_parameter(one.value, oid, is_binary=one.is_binary)
        for number, (oid, one) in enumerate(zip(oids, parameters, strict=True), start=1)
    }


def example_of(oid: int) -> Any:
    """Return some value of a type, to learn the types of columns by."""
    for raw in (b"0", b"2000-01-01", b"00:00:00", b"\\x", b"[]", _ZERO_UUID):
        try:
            return decode_parameter(raw, oid, is_binary=False)
        except SQLError:
            continue
    return None


_ZERO_UUID: Final = b"00000000-0000-0000-0000-000000000000"


def _inferred(query: Query, tables: Sequence[Table]) -> dict[str, int]:
    columns: dict[str, int] = {}
    for table in tables:
        for one in table.fields:
            found, is_array, _ = type_of_engine(engine_type(one.type))
            oid = found.array_oid if is_array else found.oid
            columns.setdefault(one.name.lower(), oid)
    types: dict[str, int] = {}

    def give(node: Any, oid: int | None) -> None:
        if oid is not None and node and node.get("class") == "PARAMETER":
            types.setdefault(node["identifier"], oid)

    for node in nodes_of(query.tree["statements"]):
        match node.get("class"):
            case "CAST":
                give(node["child"], _cast_oid(node["type_expr"]))
            case "COMPARISON":
                give(node["left"], _oid(node["right"], columns))
                give(node["right"], _oid(node["left"], columns))
            case "BETWEEN":
                give(node["lower"], _oid(node["input"], columns))
                give(node["upper"], _oid(node["input"], columns))
            case "OPERATOR" if node["type"] in {"COMPARE_IN", "COMPARE_NOT_IN"}:
                for child in node["children"][1:]:
                    give(child, _oid(node["children"][0], columns))
            case "SUBQUERY" if node["subquery_type"] == "ANY":
                for inner in node["subquery"]["node"].get("select_list", ()):
                    if inner.get("function_name") == "unnest":
                        element = BY_OID.get(_oid(node["child"], columns) or 0)
                        array = element and element.array_oid
                        give(inner["arguments"][0]["expression"], array)
        if node.get("type") == "LIMIT_MODIFIER":
            give(node["limit"], BY_NAME["int8"].oid)
            give(node["offset"], BY_NAME["int8"].oid)
    return types


def _cast_oid(kind: Node) -> int | None:
    name = kind.get("type_name", "").lower()
    if name == "list" and len(kind["children"]) == 1:
        element = _BY_ENGINE_NAME.get(kind["children"][0].get("type_name", "").lower())
        return None if element is None else element.array_oid
    found = _BY_ENGINE_NAME.get(name)
    return None if found is None else found.oid


def _oid(node: Node, columns: Mapping[str, int]) -> int | None:
    match node["class"]:
        case "COLUMN_REF":
            return columns.get(node["column_names"][-1].lower())
        case "CAST":
            return _cast_oid(node["type_expr"])
        case "CONSTANT" if node["literal"]["kind"] == "INTEGER":
            return BY_NAME["int8"].oid
        case "CONSTANT" if node["literal"]["kind"] == "NUMERIC":
            return BY_NAME["float8"].oid
        case _:
            return None
