"""
What is in the system catalog: rows that states make; pure.

A schema for each job, a table for each state, a primary key of its key columns, with
the numbers by which tools join all that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from queryablestate.schema.schema import StateKind
from queryablestate.sql.catalog_tables import CATALOG, sql_name
from queryablestate.sql.jobs import SessionFacts
from queryablestate.sql.protocol.types import BY_NAME, type_of_engine
from queryablestate.sql.tables import Table, engine_type


__all__ = ["catalog_rows", "oid_of"]

_OWNER: Final = 10
_DATABASE: Final = 5
_CATALOG_OID: Final = 11
_INFORMATION_OID: Final = 13000
_HEAP: Final = 2


def oid_of(*names: str) -> int:
    """Return a number for a thing with *names*: the same at all times, for joins."""
    return 100_000 + crc32("\0".join(names).encode(errors="surrogatepass")) % 2**30


def catalog_rows(
    jobs: Sequence[str], tables: Sequence[Table], session: SessionFacts
) -> Mapping[str, list[dict[str, Any]]]:
    """
    Return what is in those tables of `CATALOG` that have rows, by column.

    Args:
        jobs: That the caller may see.
        tables: Likewise.
        session: Who asks.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in CATALOG}
    rows["pg_namespace"] = [
        {"oid": oid, "nspname": name, "nspowner": _OWNER}
        for name, oid in (
            ("pg_catalog", _CATALOG_OID),
            ("information_schema", _INFORMATION_OID),
            *((job_id, oid_of(job_id)) for job_id in jobs),
        )
    ]
    rows["pg_type"] = list(_types())
    rows["pg_am"] = [{"oid": _HEAP, "amname": "heap", "amtype": "t"}]
    rows["pg_tablespace"] = [{"oid": 1663, "spcname": "pg_default", "spcowner": _OWNER}]
    rows["pg_collation"] = [{"oid": 100, "collname": "default", "collnamespace": 11}]
    rows["pg_database"] = [_database(session)]
    rows["pg_roles"] = [_role(session)]
    rows["pg_user"] = [
        {
            "usename": session.user,
            "usesysid": _OWNER,
            "usecreatedb": False,
            "usesuper": False,
        }
    ]
    rows["pg_settings"] = [
        {"name": name, "setting": value, "context": "user", "vartype": "string"}
        for name, value in sorted(session.settings.items())
    ]
    rows["information_schema.schemata"] = [
        {
            "catalog_name": session.database,
            "schema_name": job_id,
            "schema_owner": session.user,
        }
        for job_id in ("pg_catalog", "information_schema", *jobs)
    ]
    for table in tables:
        _add_table(rows, table, session)
    return rows


def _types() -> Iterable[dict[str, Any]]:
    for one in BY_NAME.values():
        common = {
            "typnamespace": _CATALOG_OID,
            "typowner": _OWNER,
            "typtype": "b",
            "typisdefined": True,
            "typispreferred": False,
            "typdelim": ",",
            "typrelid": 0,
            "typbasetype": 0,
            "typtypmod": -1,
            "typndims": 0,
            "typcollation": 0,
            "typnotnull": False,
            "typbyval": one.size in {1, 2, 4, 8},
        }
        yield {
            **common,
            "oid": one.oid,
            "typname": one.name,
            "typlen": one.size,
            "typcategory": one.category,
            "typelem": 0,
            "typarray": one.array_oid,
            "typinput": f"{one.name}in",
        }
        yield {
            **common,
            "oid": one.array_oid,
            "typname": f"_{one.name}",
            "typlen": -1,
            "typcategory": "A",
            "typelem": one.oid,
            "typarray": 0,
            "typinput": "array_in",
        }


def _database(session: SessionFacts) -> dict[str, Any]:
    return {
        "oid": _DATABASE,
        "datname": session.database,
        "datdba": _OWNER,
        "encoding": 6,
        "datlocprovider": "c",
        "datistemplate": False,
        "datallowconn": True,
        "datconnlimit": -1,
        "dattablespace": 1663,
        "datcollate": "C",
        "datctype": "C",
    }


def _role(session: SessionFacts) -> dict[str, Any]:
    flags = (
        "rolsuper",
        "rolcreaterole",
        "rolcreatedb",
        "rolreplication",
        "rolbypassrls",
    )
    return {
        "oid": _OWNER,
        "rolname": session.user,
        "rolinherit": True,
        "rolcanlogin": True,
        "rolconnlimit": -1,
        **dict.fromkeys(flags, False),
    }


def _relation(table: Table, name: str, kind: str, column_count: int) -> dict[str, Any]:
    flags = [
        "relisshared",
        "relhasrules",
        "relhastriggers",
        "relhassubclass",
        "relrowsecurity",
        "relforcerowsecurity",
        "relispartition",
        "relhasoids",
    ]
    zeros = [
        "reltype",
        "reloftype",
        "relfilenode",
        "reltablespace",
        "relpages",
        "relallvisible",
        "reltoastrelid",
        "relchecks",
        "relrewrite",
        "relfrozenxid",
        "relminmxid",
    ]
    return {
        **dict.fromkeys(flags, False),
        **dict.fromkeys(zeros, 0),
        "oid": oid_of(table.job_id, table.name, kind),
        "relname": name,
        "relnamespace": oid_of(table.job_id),
        "relowner": _OWNER,
        "relam": _HEAP if kind == "r" else 403,
        "reltuples": -1.0,
        "relhasindex": kind == "r",
        "relpersistence": "p",
        "relkind": kind,
        "relnatts": column_count,
        "relispopulated": True,
        "relreplident": "d",
    }


def _attribute(oid: int, number: int, name: str, type_name: str) -> dict[str, Any]:
    found, is_array, modifier = type_of_engine(type_name)
    return {
        "attrelid": oid,
        "attname": name,
        "atttypid": found.array_oid if is_array else found.oid,
        "attstattarget": -1,
        "attlen": -1 if is_array else found.size,
        "attnum": number,
        "attndims": int(is_array),
        "attcacheoff": -1,
        "atttypmod": modifier,
        "attbyval": False,
        "attalign": "i",
        "attstorage": "p",
        "attcompression": "",
        "attnotnull": False,
        "atthasdef": False,
        "atthasmissing": False,
        "attidentity": "",
        "attgenerated": "",
        "attisdropped": False,
        "attislocal": True,
        "attinhcount": 0,
        "attcollation": 0,
    }


def _add_table(
    rows: Mapping[str, list[dict[str, Any]]], table: Table, session: SessionFacts
) -> None:
    oid = oid_of(table.job_id, table.name, "r")
    index_oid = oid_of(table.job_id, table.name, "i")
    index_name = f"{table.name}_key"
    # Of a map state a row is told apart by both; of a list state by the key.
    key = [*table.key, *table.schema.map_key]
    places = list(range(1, len(key) + 1))
    rows["pg_class"].append(_relation(table, table.name, "r", len(table.fields)))
    rows["pg_class"].append(_relation(table, index_name, "i", len(key)))
    rows["pg_tables"].append(
        {
            "schemaname": table.job_id,
            "tablename": table.name,
            "tableowner": session.user,
            "hasindexes": True,
            "hasrules": False,
            "hastriggers": False,
            "rowsecurity": False,
        }
    )
    rows["pg_indexes"].append(
        {"schemaname": table.job_id, "tablename": table.name, "indexname": index_name}
    )
    rows["information_schema.tables"].append(
        {
            "table_catalog": session.database,
            "table_schema": table.job_id,
            "table_name": table.name,
            "table_type": "BASE TABLE",
            "is_insertable_into": "NO",
            "is_typed": "NO",
        }
    )
    for number, one in enumerate(table.fields, start=1):
        type_name = engine_type(one.type)
        rows["pg_attribute"].append(_attribute(oid, number, one.name, type_name))
        rows["information_schema.columns"].append(
            _information_column(table, session, number, one.name, type_name)
        )
    for number, one in enumerate(key, start=1):
        rows["pg_attribute"].append(
            _attribute(index_oid, number, one.name, engine_type(one.type))
        )
        rows["information_schema.key_column_usage"].append(
            {
                "constraint_catalog": session.database,
                "constraint_schema": table.job_id,
                "constraint_name": index_name,
                "table_catalog": session.database,
                "table_schema": table.job_id,
                "table_name": table.name,
                "column_name": one.name,
                "ordinal_position": number,
            }
        )
    rows["information_schema.table_constraints"].append(
        {
            "constraint_catalog": session.database,
            "constraint_schema": table.job_id,
            "constraint_name": index_name,
            "table_catalog": session.database,
            "table_schema": table.job_id,
            "table_name": table.name,
            "constraint_type": "PRIMARY KEY",
            "is_deferrable": "NO",
            "initially_deferred": "NO",
        }
    )
    rows["pg_index"].append(
        {
            "indexrelid": index_oid,
            "indrelid": oid,
            "indnatts": len(key),
            "indnkeyatts": len(key),
            "indisunique": True,
            "indnullsnotdistinct": True,
            "indisprimary": True,
            "indisexclusion": False,
            "indimmediate": True,
            "indisclustered": False,
            "indisvalid": True,
            "indcheckxmin": False,
            "indisready": True,
            "indislive": True,
            "indisreplident": False,
            "indkey": places,
            "indcollation": [0] * len(key),
            "indclass": [0] * len(key),
            "indoption": [0] * len(key),
        }
    )
    rows["pg_constraint"].append(
        {
            "oid": oid_of(table.job_id, table.name, "c"),
            "conname": index_name,
            "connamespace": oid_of(table.job_id),
            "contype": "p",
            "condeferrable": False,
            "condeferred": False,
            "convalidated": True,
            "conrelid": oid,
            "contypid": 0,
            "conindid": index_oid,
            "conparentid": 0,
            "confrelid": 0,
            "conislocal": True,
            "coninhcount": 0,
            "connoinherit": True,
            "conkey": places,
        }
    )
    kind = table.schema.kind
    if kind is not StateKind.VALUE:
        rows["pg_description"].append(
            {
                "objoid": oid,
                "classoid": 1259,
                "objsubid": 0,
                "description": f"a {kind.value} state",
            }
        )


_PRECISIONS: Final = {"int2": 16, "int4": 32, "int8": 64, "float4": 24, "float8": 53}


def _information_column(
    table: Table, session: SessionFacts, number: int, name: str, type_name: str
) -> dict[str, Any]:
    found, is_array, modifier = type_of_engine(type_name)
    column: dict[str, Any] = {
        "table_catalog": session.database,
        "table_schema": table.job_id,
        "table_name": table.name,
        "column_name": name,
        "ordinal_position": number,
        "is_nullable": "YES",
        "data_type": "ARRAY" if is_array else sql_name(found.name),
        "udt_catalog": session.database,
        "udt_schema": "pg_catalog",
        "udt_name": f"_{found.name}" if is_array else found.name,
        "is_identity": "NO",
        "is_generated": "NEVER",
        "is_updatable": "NO",
    }
    if is_array:
        return column
    if found.name in _PRECISIONS:
        column["numeric_precision"] = _PRECISIONS[found.name]
        column["numeric_precision_radix"] = 2
        if found.name.startswith("int"):
            column["numeric_scale"] = 0
    elif modifier >= 0:
        column["numeric_precision"] = (modifier - 4) >> 16
        column["numeric_precision_radix"] = 10
        column["numeric_scale"] = (modifier - 4) & 0xFFFF
    elif found.category == "D":
        column["datetime_precision"] = 0 if found.name == "date" else 6
    return column
