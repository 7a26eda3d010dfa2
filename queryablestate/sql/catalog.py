"""
Questions for the system catalog, in words that the engine understands; pure.

The engine's own catalog knows nothing of states, and its numbers of types are not those
that drivers know.  So names of the catalog are replaced by those of a schema
``lodestar`` in the engine, where `catalog_tables` has put what they are to find, and
where the functions below are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queryablestate.sql.analysis import Query, nodes_of
from queryablestate.sql.catalog_tables import CATALOG, SERVER_VERSION, sql_name
from queryablestate.sql.jobs import SessionFacts
from queryablestate.sql.protocol.types import BY_NAME
from queryablestate.sql.selection import Node


__all__ = [
    "SCHEMA",
    "definitions",
    "engine_table",
    "is_catalog_table",
    "needed_tables",
    "to_engine",
]

SCHEMA: Final = "lodestar"
_SYSTEM: Final = frozenset({"pg_catalog", "information_schema"})


def _formatted() -> str:
    cases: list[str] = []
    for one in BY_NAME.values():
        name = sql_name(one.name)
        cases += (
            f"WHEN {one.oid} THEN '{name}'",
            f"WHEN {one.array_oid} THEN '{name}[]'",
        )
    numeric = (
        "WHEN o = 1700 AND m >= 4 THEN 'numeric(' || ((m - 4) >> 16) || ',' || "
        "((m - 4) & 65535) || ')'"
    )
    return f"CASE {numeric} ELSE CASE o {' '.join(cases)} ELSE '???' END END"


_KEY_NAMES: Final = (
    "(SELECT string_agg(a.attname, ', ' ORDER BY a.attnum) "
    "FROM lodestar.pg_attribute a WHERE a.attrelid = {oid})"
)
_INDEX_OF: Final = "(SELECT c.conindid FROM lodestar.pg_constraint c WHERE c.oid = o)"
_OID_OF_CLASS: Final = (
    "coalesce(try_cast(x AS BIGINT), (SELECT min(c.oid) FROM lodestar.pg_class c JOIN "
    "lodestar.pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = "
    "replace(CAST(x AS VARCHAR), '\"', '') OR n.nspname || '.' || c.relname = "
    "replace(CAST(x AS VARCHAR), '\"', '')))"
)
_OID_OF_TYPE: Final = (
    "coalesce(try_cast(x AS BIGINT), (SELECT min(t.oid) FROM lodestar.pg_type t "
    "WHERE t.typname = CAST(x AS VARCHAR)))"
)
_OID_OF_SCHEMA: Final = (
    "coalesce(try_cast(x AS BIGINT), (SELECT min(n.oid) FROM lodestar.pg_namespace n "
    "WHERE n.nspname = CAST(x AS VARCHAR)))"
)
_NOTHING: Final = "CAST(NULL AS VARCHAR)"
_INDEX_DEFINITION: Final = (
    "'CREATE UNIQUE INDEX ON (' || " + _KEY_NAMES.format(oid="o") + " || ')'"
)

# What a function gives, by its arguments.
_MACROS: Final[Mapping[str, Mapping[str, str]]] = {
    "format_type": {"o, m": _formatted()},
    "pg_get_userbyid": {"o": "(SELECT min(r.rolname) FROM lodestar.pg_roles r)"},
    **{
        name: {"o": "true"}
        for name in [
            "pg_table_is_visible",
            "pg_type_is_visible",
            "pg_function_is_visible",
            "pg_operator_is_visible",
            "pg_collation_is_visible",
            "pg_statistics_obj_is_visible",
        ]
    },
    **{
        name: {"a, b": "true", "a, b, c": "true"}
        for name in [
            "has_schema_privilege",
            "has_table_privilege",
            "has_database_privilege",
            "has_any_column_privilege",
            "pg_has_role",
        ]
    },
    "has_column_privilege": {"a, b, c": "true", "a, b, c, d": "true"},
    **{
        name: {"a": _NOTHING, "a, b": _NOTHING, "a, b, c": _NOTHING}
        for name in [
            "pg_get_expr",
            "pg_get_viewdef",
            "pg_get_ruledef",
            "pg_get_triggerdef",
            "pg_get_functiondef",
            "pg_get_partkeydef",
            "pg_get_serial_sequence",
            "shobj_description",
            "pg_get_statisticsobjdef_columns",
            "pg_get_function_result",
            "pg_get_function_arguments",
            "pg_tablespace_location",
        ]
    },
    "col_description": {"o, n": _NOTHING},
    "obj_description": dict.fromkeys(
        ("o", "o, c"),
        "(SELECT min(d.description) FROM lodestar.pg_description d "
        "WHERE d.objoid = o AND d.objsubid = 0)",
    ),
    "pg_get_indexdef": {
        "o": _INDEX_DEFINITION,
        "o, n, p": "CASE WHEN n = 0 THEN "  # noqa: S608 (all of it is ours)
        + _INDEX_DEFINITION
        + " ELSE (SELECT a.attname FROM lodestar.pg_attribute a "
        "WHERE a.attrelid = o AND a.attnum = n) END",
    },
    "pg_get_constraintdef": {
        args: "'PRIMARY KEY (' || " + _KEY_NAMES.format(oid=_INDEX_OF) + " || ')'"
        for args in ("o", "o, p")
    },
    "pg_encoding_to_char": {"n": "'UTF8'"},
    "pg_char_to_encoding": {"n": "6"},
    "pg_is_in_recovery": {"": "false"},
    "pg_is_other_temp_schema": {"o": "false"},
    "pg_my_temp_schema": {"": "0"},
    "pg_relation_is_publishable": {"o": "false"},
    **{
        name: {"o": "CAST(0 AS BIGINT)"}
        for name in [
            "pg_relation_size",
            "pg_table_size",
            "pg_total_relation_size",
            "pg_indexes_size",
            "pg_database_size",
            "pg_stat_get_numscans",
        ]
    },
    "pg_size_pretty": {"n": "CAST(n AS VARCHAR) || ' bytes'"},
    "pg_postmaster_start_time": {"": "now()"},
    "pg_advisory_unlock_all": {"": _NOTHING},  # there are no locks
    "txid_current": {"": "CAST(0 AS BIGINT)"},
    "inet_server_addr": {"": _NOTHING},
    "inet_server_port": {"": "CAST(NULL AS INTEGER)"},
    "inet_client_addr": {"": _NOTHING},
    "quote_ident": {"s": "'\"' || replace(s, '\"', '\"\"') || '\"'"},
    "quote_literal": {"s": "'''' || replace(s, '''', '''''') || ''''"},
    "array_upper": {"a, n": "nullif(len(a), 0)"},
    "array_lower": {"a, n": "CASE WHEN len(a) > 0 THEN 1 END"},
    "_pg_expandarray": {"a": "unnest([{'x': x, 'n': n} for x, n in a])"},
    "current_setting": dict.fromkeys(
        ("n", "n, m"),
        "(SELECT min(s.setting) FROM lodestar.pg_settings s WHERE s.name = lower(n))",
    ),
    "set_config": {"n, v, l": "v"},
    "to_regclass": {"x": _OID_OF_CLASS},
    "to_regtype": {"x": _OID_OF_TYPE},
    "to_regnamespace": {"x": _OID_OF_SCHEMA},
}
_SESSION_FUNCTIONS: Final = frozenset(
    [
        "current_database",
        "current_catalog",
        "current_schema",
        "current_schemas",
        "current_user",
        "session_user",
        "version",
        "pg_backend_pid",
    ]
)
_FUNCTIONS: Final = _SESSION_FUNCTIONS | _MACROS.keys()
# What the engine has under another name.
_RENAMED: Final = {
    "json_build_object": "json_object",
    "json_agg": "json_group_array",
    "jsonb_agg": "json_group_array",
    "jsonb_build_object": "json_object",
}
_USER_COLUMNS: Final = frozenset(
    {"current_user", "session_user", "current_role", "current_catalog", "user"}
)

_TYPES: Final = {
    "oid": "BIGINT",
    "xid": "BIGINT",
    "regrole": "BIGINT",
    "name": "VARCHAR",
    "char": "VARCHAR",
    "regproc": "VARCHAR",
    "regprocedure": "VARCHAR",
    "unknown": "VARCHAR",
    "cstring": "VARCHAR",
    "aclitem": "VARCHAR",
    "sql_identifier": "VARCHAR",
    "character_data": "VARCHAR",
    "yes_or_no": "VARCHAR",
    "cardinal_number": "INTEGER",
}
_NUMBERS: Final = {
    "regclass": "to_regclass",
    "regtype": "to_regtype",
    "regnamespace": "to_regnamespace",
}


def is_catalog_table(schema: str, name: str) -> bool:
    """Return whether a table that is written so is one of the catalog."""
    lowered = schema.lower()
    if lowered in _SYSTEM:
        return True
    return not lowered and name.lower() in CATALOG


def engine_table(name: str) -> str:
    """Return what a table of `CATALOG` is called in the schema of the engine."""
    return name.replace(".", "_")


def needed_tables(query: Query) -> set[str]:
    """
    Return which of `CATALOG` a query reads, also by way of functions.

    Call it after `to_engine`.
    """
    names = {engine_table(name): name for name in CATALOG}
    found = set()
    for node in nodes_of(query.tree["statements"]):
        if node.get("type") == "BASE_TABLE" and node["schema_name"] == SCHEMA:
            found.add(node["table_name"])
        elif node.get("class") in {"FUNCTION", "WINDOW"}:
            for body in _MACROS.get(node["function_name"], {}).values():
                found |= {name for name in names if f"lodestar.{name} " in body}
    return {names[name] for name in found if name in names}


def definitions(query: Query, session: SessionFacts) -> Iterator[str]:
    """Yield what makes tables and functions that a query uses; after `to_engine`."""
    yield f"CREATE SCHEMA {SCHEMA}"
    for name in sorted(needed_tables(query)):
        yield f"CREATE TABLE {SCHEMA}.{engine_table(name)} ({CATALOG[name]})"
    used = {
        node["function_name"]
        for node in nodes_of(query.tree["statements"])
        if node.get("class") in {"FUNCTION", "WINDOW"}
    }
    for name in sorted(used & _MACROS.keys()):
        bodies = _MACROS[name]
        forms = ", ".join(f"({args}) AS {body}" for args, body in bodies.items())
        yield f"CREATE MACRO {SCHEMA}.{name} {forms}"
    for name, definition in _session_macros(session):
        if name in used:
            yield definition


def _session_macros(session: SessionFacts) -> Iterator[tuple[str, str]]:
    """Yield names and definitions of functions whose answers are about a session."""
    path = list(session.search_path)
    values = {
        "current_database()": _text(session.database),
        "current_catalog()": _text(session.database),
        "current_user()": _text(session.user),
        "session_user()": _text(session.user),
        "current_schema()": _text(path[0]) if path else _NOTHING,
        "current_schemas(b)": f"[{', '.join(map(_text, path))}]::VARCHAR[]",
        "version()": _text(f"PostgreSQL {SERVER_VERSION} (Lodestar)"),
        "pg_backend_pid()": str(session.process_id),
    }
    for call, value in values.items():
        yield call.partition("(")[0], f"CREATE MACRO {SCHEMA}.{call} AS {value}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''").replace("\0", "") + "'"


def to_engine(query: Query, session: SessionFacts) -> bool:
    """
    Replace the names of the catalog in the tree of *query*.

    Returns:
        Whether there were any: the text of the statement will not do then.
    """
    is_changed = False
    for node in nodes_of(query.tree["statements"]):
        match node.get("class") or node.get("type"):
            case "BASE_TABLE":
                is_changed |= _table(node)
            case "FUNCTION" | "WINDOW":
                is_changed |= _function(node)
            case "CAST":
                is_changed |= _cast(node)
            case "TYPE":
                is_changed |= _type(node)
            case "COLLATE":
                if "default" in node["collation"] or "pg_catalog" in node["collation"]:
                    _become(node, node["child"])
                    is_changed = True
            case "COLUMN_REF":
                is_changed |= _column(node, session, has_tables=bool(query.tables))
    return is_changed


def _table(node: Any) -> bool:
    schema, name = node["schema_name"].lower(), node["table_name"].lower()
    if not is_catalog_table(schema, name):
        return False
    is_information = schema == "information_schema"
    known = f"{schema}.{name}" if is_information else name
    node["alias"] = node["alias"] or name
    node["schema_name"] = SCHEMA
    node["table_name"] = engine_table(known)
    node["qualified_name"] = {"path": [SCHEMA, node["table_name"]]}
    return True


def _function(node: Any) -> bool:
    name = node["function_name"].lower()
    path = node["qualified_name"]["path"]
    is_ours = len(path) == 1 or path[0].lower() in _SYSTEM
    # The engine's own tells where the server's files are, whatever its schema is.
    if name in _FUNCTIONS and (is_ours or name == "current_setting"):
        node["schema"] = SCHEMA
        node["qualified_name"] = {"path": [SCHEMA, name]}
        node["function_name"] = name
        return True
    is_system = len(path) > 1 and path[0].lower() in _SYSTEM
    if not is_system and not (len(path) == 1 and name in _RENAMED):
        return False
    node["function_name"] = _RENAMED.get(name, node["function_name"])
    node["schema"] = ""
    node["qualified_name"] = {"path": [node["function_name"]]}
    return True


def _type_name(node: Node) -> str:
    return str(node["type_expr"].get("type_name", "")).lower()


def _cast(node: Any) -> bool:
    name = _type_name(node)
    if name in _NUMBERS:
        function = {
            "class": "FUNCTION",
            "type": "FUNCTION",
            "alias": node["alias"],
            "query_location": node["query_location"],
            "query_location_length": node.get("query_location_length", 0),
            "function_name": _NUMBERS[name],
            "schema": SCHEMA,
            "filter": None,
            "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
            "distinct": False,
            "is_operator": False,
            "export_state": False,
            "catalog": "",
            "arguments": [{"name": "", "expression": node["child"]}],
            "qualified_name": {"path": [SCHEMA, _NUMBERS[name]]},
        }
        _become(node, function)
        return True
    return False


def _type(kind: Any) -> bool:
    is_system = str(kind.get("schema", "")).lower() in _SYSTEM
    wanted = _TYPES.get(str(kind.get("type_name", "")).lower())
    if wanted is None and not is_system:
        return False
    kind["schema"] = ""
    kind["type_name"] = wanted or kind["type_name"]
    kind["qualified_name"] = {"path": [kind["type_name"]]}
    return True


def _column(node: Any, session: SessionFacts, *, has_tables: bool) -> bool:
    names = node["column_names"]
    is_word = len(names) == 1 and names[0].lower() in _USER_COLUMNS
    # "user" may well be a column of a state; the others are words of SQL.
    if is_word and not (has_tables and names[0].lower() == "user"):
        is_database = names[0].lower() == "current_catalog"
        _become(
            node,
            {
                "class": "CONSTANT",
                "type": "VALUE_CONSTANT",
                "alias": node["alias"] or names[0],
                "query_location": node["query_location"],
                "query_location_length": node.get("query_location_length", 0),
                "literal": {
                    "kind": "STRING",
                    "text": session.database if is_database else session.user,
                },
            },
        )
        return True
    if len(names) > 2 and names[0].lower() in _SYSTEM:
        del names[0]
        return True
    return False


def _become(node: Any, other: Mapping[str, Any]) -> None:
    """Put *other* in the place of *node*."""
    replaced = dict(other)
    if node.get("alias") and not replaced.get("alias"):
        replaced["alias"] = node["alias"]
    node.clear()
    node.update(replaced)
