"""
What a query asks of which states, as the engine's parser tells it; pure.

A `Query` is made of the parser's tree once, and serves for all values of its
parameters.  What is not understood here is no mistake: the whole state is read then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

from attrs import define, field, frozen

from queryablestate.schema.schema import Field
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.selection import (
    WHOLE,
    Node,
    Selection,
    conjuncts_of,
    select,
)


__all__ = ["Query", "TableUse", "analyse", "nodes_of"]

_TABLE_FUNCTIONS: Final = frozenset(
    [
        "generate_series",
        "range",
        "unnest",
        "generate_subscripts",
        "repeat_row",
        "json_each",
        "json_tree",
        "_pg_expandarray",
        "aclexplode",
        "pg_get_keywords",
    ]
)
_TABLES: Final = frozenset(
    [
        "BASE_TABLE",
        "JOIN",
        "SUBQUERY",
        "EMPTY",
        "EMPTY_FROM",
        "TABLE_FUNCTION",
        "EXPRESSION_LIST",
    ]
)
_QUERIES: Final = frozenset(
    {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
)
_DEPTH_MAX: Final = 200
_TABLE_COUNT_MAX: Final = 100


@final
@frozen
class TableUse:
    """
    A table that a query names.

    Attributes:
        schema: As it is written; "" if it is left out.
        name: As it is written.
        names: What stands before its columns, in lower case; "" if that may be left
            out.
        conjuncts: Conditions that all of its rows must satisfy.
    """

    schema: str
    name: str
    names: frozenset[str]
    conjuncts: Sequence[Node]


@final
@define
class Query:
    """
    A query, whatever its parameters are.

    Attributes:
        tree: What the parser made of it.
        tables: The tables that it names, each time that it does.
        column_names: The columns that it names, in lower case; None for all.
        parameters: The identifiers of its parameters, in the order of their numbers.
        output_names: What its columns are called; None for what the engine says.
        simple: Its only table, if it asks for rows of that as they are.
        limits: Limit and offset, if fewer rows of the only table will do; else None.
    """

    tree: Node
    tables: list[TableUse] = field(factory=list)
    column_names: set[str] | None = field(factory=set)
    parameters: list[str] = field(factory=list)
    output_names: list[str | None] = field(factory=list)
    simple: TableUse | None = None
    limits: tuple[Node | None, Node | None] | None = None

    def selection(
        self, key: Sequence[Field], use: TableUse, parameters: Mapping[str, Any]
    ) -> Selection:
        """Return what must be read of the table *use*, whose key columns are *key*."""
        if not use.conjuncts:
            return WHOLE
        return select(key, use.conjuncts, use.names, parameters)

    def bounds(self, parameters: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return limit and offset of the only table; None if they are not known."""
        if self.limits is None:
            return None
        limit, offset = (_whole(node, parameters) for node in self.limits)
        return None if limit is None or offset is None else (limit, offset)

    def row_limit(self, parameters: Mapping[str, Any]) -> int | None:
        """Return how many rows of the only table are enough, or None for all."""
        bounds = self.bounds(parameters)
        return None if bounds is None else sum(bounds)


def _whole(node: Node | None, parameters: Mapping[str, Any]) -> int | None:
    """Return the number that *node* is; 0 for none, None for what is no number."""
    if node is None:
        return 0
    if node["class"] == "CONSTANT" and node["literal"]["kind"] == "INTEGER":
        number: Any = int(node["literal"]["text"])
    elif node["class"] == "PARAMETER":
        number = parameters.get(node["identifier"])
    else:
        return None
    is_count = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    return number if is_count else None


def analyse(tree_text: str) -> Query:
    """
    Return what the statement of a parser's tree asks for.

    Raises:
        SQLError: If it does not parse, or asks for what is not supported.
    """
    try:
        tree = json.loads(tree_text)
    except RecursionError as error:
        raise _too_deep() from error
    if tree["error"]:
        raise _syntax_error(tree)
    if len(tree["statements"]) != 1:
        raise SQLError("42601", "one statement is expected")
    statement = tree["statements"][0]
    query = Query(tree)
    named = {
        pair["value"]: pair["key"] for pair in statement.get("named_param_map", ())
    }
    query.parameters = [named[number] for number in sorted(named)]
    if not all(name.isdecimal() for name in query.parameters):
        raise SQLError("42601", "parameters are written $1, $2, …")
    _Walk(query).statement(statement["node"])
    return query


def _too_deep() -> SQLError:
    return SQLError("54001", "the statement is nested too deeply")


def _syntax_error(tree: Node) -> SQLError:
    message = str(tree.get("error_message", "the statement cannot be read"))
    place = tree.get("position")
    where = int(place) + 1 if isinstance(place, str) and place.isdecimal() else 0
    if message.startswith("Only SELECT"):
        return SQLError("25006", "only queries are possible: states are read only")
    return SQLError("42601", message, position=where)


def nodes_of(tree: Any) -> Iterator[Node]:
    """Yield every object in *tree*, outer ones first."""
    pending = [tree]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield one
            pending += one.values()
        elif isinstance(one, list):
            pending += one


def _joins(table: Node) -> Iterator[Node]:
    """Yield the joins of one FROM."""
    if table["type"] == "JOIN":
        yield table
        yield from _joins(table["left"])
        yield from _joins(table["right"])


@final
class _Walk:
    """Finds the tables of a query, with the names that hide them."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def statement(self, node: Node) -> None:
        self._node(node, frozenset(), 0)
        self._columns(node)
        self._outputs(node)
        self._simple(node)

    # -- tables ------------------------------------------------------------------------

    def _node(self, node: Any, hidden: frozenset[str], depth: int) -> None:
        """Walk *node*, in which the names *hidden* are no tables."""
        if depth > _DEPTH_MAX:
            raise _too_deep()
        if isinstance(node, list):
            for one in node:
                self._node(one, hidden, depth + 1)
        if not isinstance(node, dict):
            return
        if "cte_map" in node:
            hidden = self._common_tables(node, hidden, depth)
        kind = node.get("type")
        is_statement = isinstance(kind, str) and kind.endswith("_NODE")
        if is_statement and kind not in _QUERIES:
            raise SQLError("25006", "only queries are possible: states are read only")
        if kind == "SELECT_NODE":
            self._select(node, hidden)
        for name, child in node.items():
            if name not in {"cte_map", "literal"}:
                self._node(child, hidden, depth + 1)

    def _common_tables(
        self, node: Node, hidden: frozenset[str], depth: int
    ) -> frozenset[str]:
        """Walk the queries of WITH; each sees those before it."""
        for pair in (node["cte_map"] or {}).get("map", ()):
            name = pair["key"].lower()
            inner = pair["value"].get("query_node") or pair["value"].get("query")
            is_recursive = any(
                one.get("type") == "RECURSIVE_CTE_NODE"
                and one.get("cte_name", "").lower() == name
                for one in nodes_of(inner)
            )
            seen = hidden | {name} if is_recursive else hidden
            self._node(inner, seen, depth + 1)
            hidden |= {name}
        return hidden

    def _select(self, node: Node, hidden: frozenset[str]) -> None:
        """Take the tables of one SELECT, with the conditions that bind their rows."""
        from_table = node["from_table"]
        bases = list(self._bases(from_table))
        # What these joins match depends on rows that a condition drops afterwards.
        is_matched = any(
            one.get("ref_type") in {"ASOF", "POSITIONAL"} for one in _joins(from_table)
        )
        conjuncts = conjuncts_of(node["where_clause"])
        for base in bases:
            schema, name = base["schema_name"], base["table_name"]
            if base.get("catalog_name"):
                raise SQLError(
                    "0A000", "a table is named SCHEMA.TABLE: the job and the state"
                )
            if base.get("at_clause"):
                raise SQLError("0A000", "a state has no former versions to ask for")
            if not schema and name.lower() in hidden:
                continue
            alias = (base["alias"] or name).lower()
            names = {alias}
            if not base["alias"] and schema:
                names.add(f"{schema}.{name}".lower())
            if from_table["type"] == "BASE_TABLE":
                names.add("")
            is_bound = not base["sample"] and not base["column_name_alias"]
            is_bound = is_bound and not node["sample"] and not is_matched
            # Of two tables of one name neither is meant for sure.
            is_bound = (
                is_bound
                and sum(
                    (one["alias"] or one.get("table_name", "")).lower() == alias
                    for one in bases
                )
                == 1
            )
            self._query.tables.append(
                TableUse(schema, name, frozenset(names), conjuncts if is_bound else ())
            )
            if len(self._query.tables) > _TABLE_COUNT_MAX:
                raise SQLError("54000", "a statement names too many tables")

    def _bases(self, table: Node) -> Iterator[Node]:
        kind = table["type"]
        if kind == "BASE_TABLE":
            yield table
        elif kind == "JOIN":
            yield from self._bases(table["left"])
            yield from self._bases(table["right"])
        elif kind == "TABLE_FUNCTION":
            name = table["function"].get("function_name", "").lower()
            if name not in _TABLE_FUNCTIONS:
                raise SQLError("0A000", f"the table function {name} is not supported")
        elif kind not in _TABLES:
            raise SQLError(
                "0A000", f"{kind.replace('_', ' ')} in FROM is not supported"
            )

    # -- columns -----------------------------------------------------------------------

    def _columns(self, node: Node) -> None:
        """Find the columns that are named."""
        aliases = {name for use in self._query.tables for name in use.names}
        names: set[str] = set()
        for one in nodes_of(node):
            match one.get("class", one.get("type")):
                case "STAR" | "POSITIONAL_REFERENCE":
                    self._query.column_names = None
                    return
                case "COLUMN_REF":
                    parts = [part.lower() for part in one["column_names"]]
                    if len(parts) == 1 and parts[0] in aliases:
                        self._query.column_names = None
                        return
                    names.update(parts)
                case "JOIN":
                    if one["ref_type"] == "NATURAL":
                        self._query.column_names = None
                        return
                    names.update(name.lower() for name in one["using_columns"])
        self._query.column_names = names

    def _outputs(self, node: Node) -> None:
        """Name columns as Postgres does; the engine writes out the expression."""
        while node["type"] == "SET_OPERATION_NODE":
            node = node["children"][0] if "children" in node else node["left"]
        if node["type"] == "SELECT_NODE":
            self._query.output_names = [_output(one) for one in node["select_list"]]

    def _simple(self, node: Node) -> None:
        """Find out whether rows of one table are wanted as they are."""
        if node["type"] != "SELECT_NODE" or len(self._query.tables) != 1:
            return
        if node["from_table"]["type"] != "BASE_TABLE" or node["from_table"]["sample"]:
            return
        is_plain = not any(
            node.get(name)
            for name in ("group_expressions", "group_sets", "having", "qualify")
        )
        # GROUP BY ALL names no expressions, and groups all the same.
        is_plain = is_plain and node["aggregate_handling"] == "STANDARD_HANDLING"
        is_plain = is_plain and not node["sample"] and not node["cte_map"].get("map")
        is_plain = is_plain and not node["from_table"]["column_name_alias"]
        is_plain = is_plain and all(
            one["class"] == "COLUMN_REF"
            or (
                one["class"] == "STAR"
                and not any(
                    one.get(name)
                    for name in (
                        "exclude_list",
                        "replace_list",
                        "rename_list",
                        "qualified_exclude_list",
                        "expr",
                        "columns",
                    )
                )
            )
            for one in node["select_list"]
        )
        modifiers = node["modifiers"]
        is_plain = is_plain and all(
            one["type"] == "LIMIT_MODIFIER" and one.get("limit_type") == "ROW_COUNT"
            for one in modifiers
        )
        if not is_plain or len(modifiers) > 1:
            return
        self._query.simple = self._query.tables[0]
        if modifiers and modifiers[0]["limit"]:
            self._query.limits = (modifiers[0]["limit"], modifiers[0]["offset"])
        elif modifiers:
            self._query.simple = None


_NAMED_BY_TYPE: Final = {
    "BOOLEAN": "bool",
    "INTEGER": "int4",
    "BIGINT": "int8",
    "SMALLINT": "int2",
    "DOUBLE": "float8",
    "FLOAT": "float4",
    "VARCHAR": "text",
}


def _output(node: Node) -> str | None:
    """Return what Postgres calls the column of an expression; None for a star."""
    if node.get("alias"):
        return str(node["alias"])
    match node["class"]:
        case "STAR":
            return None
        case "COLUMN_REF":
            return str(node["column_names"][-1])
        case "FUNCTION" | "WINDOW":
            name = str(node["function_name"])
            if node.get("is_operator") or not name[:1].isalpha():
                return "?column?"
            return {"count_star": "count", "list_value": "array"}.get(name, name)
        case "CAST":
            inner = _output(node["child"])
            if inner != "?column?":
                return inner
            name = node["type_expr"].get("type_name", "")
            return _NAMED_BY_TYPE.get(name.upper(), name.lower()) or "?column?"
        case "CASE":
            return "case"
        case "SUBQUERY" if node["subquery_type"] == "EXISTS":
            return "exists"
        case "OPERATOR" if node["type"] == "OPERATOR_COALESCE":
            return "coalesce"
        case _:
            return "?column?"
