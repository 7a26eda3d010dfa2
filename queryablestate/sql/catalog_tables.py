"""The tables of the system catalog that tools name, and their columns; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


__all__ = ["CATALOG", "SERVER_VERSION", "columns_of", "sql_name"]

SERVER_VERSION: Final = "15.0"

# Name, and "column type" pairs; a type is written as the engine has it.  A tool is told
# of an UINTEGER as an oid: asyncpg reads arrays of these without asking what they are.
CATALOG: Final[Mapping[str, str]] = {
    "pg_namespace": "oid BIGINT, nspname VARCHAR, nspowner BIGINT, nspacl VARCHAR[]",
    "pg_class": (
        "oid BIGINT, relname VARCHAR, relnamespace BIGINT, reltype BIGINT, "
        "reloftype BIGINT, relowner BIGINT, relam BIGINT, relfilenode BIGINT, "
        "reltablespace BIGINT, relpages INTEGER, reltuples FLOAT, "
        "relallvisible INTEGER, reltoastrelid BIGINT, relhasindex BOOLEAN, "
        "relisshared BOOLEAN, relpersistence VARCHAR, relkind VARCHAR, "
        "relnatts SMALLINT, relchecks SMALLINT, relhasrules BOOLEAN, "
        "relhastriggers BOOLEAN, relhassubclass BOOLEAN, relrowsecurity BOOLEAN, "
        "relforcerowsecurity BOOLEAN, relispopulated BOOLEAN, relreplident VARCHAR, "
        "relispartition BOOLEAN, relrewrite BIGINT, relfrozenxid BIGINT, "
        "relminmxid BIGINT, relacl VARCHAR[], reloptions VARCHAR[], "
        "relpartbound VARCHAR, relhasoids BOOLEAN"
    ),
    "pg_attribute": (
        "attrelid BIGINT, attname VARCHAR, atttypid UINTEGER, attstattarget INTEGER, "
        "attlen SMALLINT, attnum SMALLINT, attndims INTEGER, attcacheoff INTEGER, "
        "atttypmod INTEGER, attbyval BOOLEAN, attalign VARCHAR, attstorage VARCHAR, "
        "attcompression VARCHAR, attnotnull BOOLEAN, atthasdef BOOLEAN, "
        "atthasmissing BOOLEAN, attidentity VARCHAR, attgenerated VARCHAR, "
        "attisdropped BOOLEAN, attislocal BOOLEAN, attinhcount INTEGER, "
        "attcollation BIGINT, attacl VARCHAR[], attoptions VARCHAR[], "
        "attfdwoptions VARCHAR[]"
    ),
    "pg_type": (
        "oid BIGINT, typname VARCHAR, typnamespace BIGINT, typowner BIGINT, "
        "typlen SMALLINT, typbyval BOOLEAN, typtype VARCHAR, typcategory VARCHAR, "
        "typispreferred BOOLEAN, typisdefined BOOLEAN, typdelim VARCHAR, "
        "typrelid BIGINT, typsubscript VARCHAR, typelem BIGINT, typarray BIGINT, "
        "typinput VARCHAR, typoutput VARCHAR, typreceive VARCHAR, typsend VARCHAR, "
        "typmodin VARCHAR, typmodout VARCHAR, typalign VARCHAR, typstorage VARCHAR, "
        "typnotnull BOOLEAN, typbasetype BIGINT, typtypmod INTEGER, typndims INTEGER, "
        "typcollation BIGINT, typdefaultbin VARCHAR, typdefault VARCHAR, "
        "typacl VARCHAR[]"
    ),
    "pg_index": (
        "indexrelid BIGINT, indrelid BIGINT, indnatts SMALLINT, "
        "indnkeyatts SMALLINT, indisunique BOOLEAN, indnullsnotdistinct BOOLEAN, "
        "indisprimary BOOLEAN, indisexclusion BOOLEAN, indimmediate BOOLEAN, "
        "indisclustered BOOLEAN, indisvalid BOOLEAN, indcheckxmin BOOLEAN, "
        "indisready BOOLEAN, indislive BOOLEAN, indisreplident BOOLEAN, "
        "indkey SMALLINT[], indcollation BIGINT[], indclass BIGINT[], "
        "indoption SMALLINT[], indexprs VARCHAR, indpred VARCHAR"
    ),
    "pg_constraint": (
        "oid BIGINT, conname VARCHAR, connamespace BIGINT, contype VARCHAR, "
        "condeferrable BOOLEAN, condeferred BOOLEAN, convalidated BOOLEAN, "
        "conrelid BIGINT, contypid BIGINT, conindid BIGINT, conparentid BIGINT, "
        "confrelid BIGINT, confupdtype VARCHAR, confdeltype VARCHAR, "
        "confmatchtype VARCHAR, conislocal BOOLEAN, coninhcount INTEGER, "
        "connoinherit BOOLEAN, conkey SMALLINT[], confkey SMALLINT[], "
        "conpfeqop BIGINT[], conppeqop BIGINT[], conffeqop BIGINT[], "
        "confdelsetcols SMALLINT[], conexclop BIGINT[], conbin VARCHAR"
    ),
    "pg_database": (
        "oid BIGINT, datname VARCHAR, datdba BIGINT, encoding INTEGER, "
        "datlocprovider VARCHAR, datistemplate BOOLEAN, datallowconn BOOLEAN, "
        "datconnlimit INTEGER, datfrozenxid BIGINT, datminmxid BIGINT, "
        "dattablespace BIGINT, datcollate VARCHAR, datctype VARCHAR, "
        "daticulocale VARCHAR, datcollversion VARCHAR, datacl VARCHAR[]"
    ),
    "pg_roles": (
        "rolname VARCHAR, rolsuper BOOLEAN, rolinherit BOOLEAN, "
        "rolcreaterole BOOLEAN, rolcreatedb BOOLEAN, rolcanlogin BOOLEAN, "
        "rolreplication BOOLEAN, rolconnlimit INTEGER, rolpassword VARCHAR, "
        "rolvaliduntil TIMESTAMPTZ, rolbypassrls BOOLEAN, rolconfig VARCHAR[], "
        "oid BIGINT"
    ),
    "pg_user": (
        "usename VARCHAR, usesysid BIGINT, usecreatedb BOOLEAN, usesuper BOOLEAN, "
        "userepl BOOLEAN, usebypassrls BOOLEAN, passwd VARCHAR, "
        "valuntil TIMESTAMPTZ, useconfig VARCHAR[]"
    ),
    "pg_am": "oid BIGINT, amname VARCHAR, amhandler VARCHAR, amtype VARCHAR",
    "pg_tables": (
        "schemaname VARCHAR, tablename VARCHAR, tableowner VARCHAR, "
        "tablespace VARCHAR, hasindexes BOOLEAN, hasrules BOOLEAN, "
        "hastriggers BOOLEAN, rowsecurity BOOLEAN"
    ),
    "pg_settings": (
        "name VARCHAR, setting VARCHAR, unit VARCHAR, category VARCHAR, "
        "short_desc VARCHAR, context VARCHAR, vartype VARCHAR, source VARCHAR, "
        "min_val VARCHAR, max_val VARCHAR, boot_val VARCHAR, reset_val VARCHAR"
    ),
    "pg_tablespace": "oid BIGINT, spcname VARCHAR, spcowner BIGINT, spcacl VARCHAR[]",
    "pg_collation": (
        "oid BIGINT, collname VARCHAR, collnamespace BIGINT, collowner BIGINT, "
        "collprovider VARCHAR, collisdeterministic BOOLEAN, collencoding INTEGER, "
        "collcollate VARCHAR, collctype VARCHAR"
    ),
    # Without rows: there is nothing of the kind.
    "pg_views": (
        "schemaname VARCHAR, viewname VARCHAR, viewowner VARCHAR, definition VARCHAR"
    ),
    "pg_matviews": (
        "schemaname VARCHAR, matviewname VARCHAR, matviewowner VARCHAR, "
        "tablespace VARCHAR, hasindexes BOOLEAN, ispopulated BOOLEAN, "
        "definition VARCHAR"
    ),
    "pg_indexes": (
        "schemaname VARCHAR, tablename VARCHAR, indexname VARCHAR, "
        "tablespace VARCHAR, indexdef VARCHAR"
    ),
    "pg_attrdef": "oid BIGINT, adrelid BIGINT, adnum SMALLINT, adbin VARCHAR",
    "pg_description": (
        "objoid BIGINT, classoid BIGINT, objsubid INTEGER, description VARCHAR"
    ),
    "pg_shdescription": "objoid BIGINT, classoid BIGINT, description VARCHAR",
    "pg_inherits": (
        "inhrelid BIGINT, inhparent BIGINT, inhseqno INTEGER, inhdetachpending BOOLEAN"
    ),
    "pg_trigger": (
        "oid BIGINT, tgrelid BIGINT, tgparentid BIGINT, tgname VARCHAR, "
        "tgfoid BIGINT, tgtype SMALLINT, tgenabled VARCHAR, tgisinternal BOOLEAN, "
        "tgconstraint BIGINT, tgdeferrable BOOLEAN, tginitdeferred BOOLEAN"
    ),
    "pg_policy": (
        "oid BIGINT, polname VARCHAR, polrelid BIGINT, polcmd VARCHAR, "
        "polpermissive BOOLEAN, polroles BIGINT[], polqual VARCHAR, "
        "polwithcheck VARCHAR"
    ),
    "pg_rewrite": (
        "oid BIGINT, rulename VARCHAR, ev_class BIGINT, ev_type VARCHAR, "
        "ev_enabled VARCHAR, is_instead BOOLEAN"
    ),
    "pg_statistic_ext": (
        "oid BIGINT, stxrelid BIGINT, stxname VARCHAR, stxnamespace BIGINT, "
        "stxowner BIGINT, stxstattarget INTEGER, stxkeys SMALLINT[], "
        "stxkind VARCHAR[]"
    ),
    "pg_publication": (
        "oid BIGINT, pubname VARCHAR, pubowner BIGINT, puballtables BOOLEAN, "
        "pubviaroot BOOLEAN"
    ),
    "pg_publication_rel": (
        "oid BIGINT, prpubid BIGINT, prrelid BIGINT, prqual VARCHAR, prattrs SMALLINT[]"
    ),
    "pg_publication_namespace": "oid BIGINT, pnpubid BIGINT, pnnspid BIGINT",
    "pg_foreign_table": "ftrelid BIGINT, ftserver BIGINT, ftoptions VARCHAR[]",
    "pg_foreign_server": "oid BIGINT, srvname VARCHAR, srvowner BIGINT",
    "pg_partitioned_table": (
        "partrelid BIGINT, partstrat VARCHAR, partnatts SMALLINT, partdefid BIGINT"
    ),
    "pg_enum": ("oid BIGINT, enumtypid BIGINT, enumsortorder FLOAT, enumlabel VARCHAR"),
    "pg_range": (
        "rngtypid BIGINT, rngsubtype BIGINT, rngmultitypid BIGINT, "
        "rngcollation BIGINT, rngsubopc BIGINT, rngcanonical BIGINT, "
        "rngsubdiff BIGINT"
    ),
    "pg_sequence": (
        "seqrelid BIGINT, seqtypid BIGINT, seqstart BIGINT, seqincrement BIGINT, "
        "seqmax BIGINT, seqmin BIGINT, seqcache BIGINT, seqcycle BOOLEAN"
    ),
    "pg_depend": (
        "classid BIGINT, objid BIGINT, objsubid INTEGER, refclassid BIGINT, "
        "refobjid BIGINT, refobjsubid INTEGER, deptype VARCHAR"
    ),
    "pg_proc": (
        "oid BIGINT, proname VARCHAR, pronamespace BIGINT, proowner BIGINT, "
        "prolang BIGINT, prokind VARCHAR, prorettype BIGINT, proretset BOOLEAN, "
        "proargtypes BIGINT[], proargnames VARCHAR[], proargmodes VARCHAR[], "
        "proallargtypes BIGINT[], provolatile VARCHAR, proacl VARCHAR[], "
        "pronargs SMALLINT, prosrc VARCHAR"
    ),
    "pg_opclass": (
        "oid BIGINT, opcmethod BIGINT, opcname VARCHAR, opcnamespace BIGINT, "
        "opcintype BIGINT, opcdefault BOOLEAN"
    ),
    "pg_auth_members": (
        "roleid BIGINT, member BIGINT, grantor BIGINT, admin_option BOOLEAN"
    ),
    "pg_extension": (
        "oid BIGINT, extname VARCHAR, extnamespace BIGINT, extversion VARCHAR"
    ),
    "pg_language": "oid BIGINT, lanname VARCHAR",
    "pg_stat_user_tables": (
        "relid BIGINT, schemaname VARCHAR, relname VARCHAR, n_live_tup BIGINT"
    ),
    "information_schema.schemata": (
        "catalog_name VARCHAR, schema_name VARCHAR, schema_owner VARCHAR"
    ),
    "information_schema.tables": (
        "table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, "
        "table_type VARCHAR, is_insertable_into VARCHAR, is_typed VARCHAR"
    ),
    "information_schema.columns": (
        "table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, "
        "column_name VARCHAR, ordinal_position INTEGER, column_default VARCHAR, "
        "is_nullable VARCHAR, data_type VARCHAR, character_maximum_length INTEGER, "
        "character_octet_length INTEGER, numeric_precision INTEGER, "
        "numeric_precision_radix INTEGER, numeric_scale INTEGER, "
        "datetime_precision INTEGER, udt_catalog VARCHAR, udt_schema VARCHAR, "
        "udt_name VARCHAR, is_identity VARCHAR, is_generated VARCHAR, "
        "is_updatable VARCHAR, collation_name VARCHAR"
    ),
    "information_schema.table_constraints": (
        "constraint_catalog VARCHAR, constraint_schema VARCHAR, "
        "constraint_name VARCHAR, table_catalog VARCHAR, table_schema VARCHAR, "
        "table_name VARCHAR, constraint_type VARCHAR, is_deferrable VARCHAR, "
        "initially_deferred VARCHAR"
    ),
    "information_schema.key_column_usage": (
        "constraint_catalog VARCHAR, constraint_schema VARCHAR, "
        "constraint_name VARCHAR, table_catalog VARCHAR, table_schema VARCHAR, "
        "table_name VARCHAR, column_name VARCHAR, ordinal_position INTEGER"
    ),
    "information_schema.views": (
        "table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, "
        "view_definition VARCHAR"
    ),
}


def columns_of(name: str) -> list[str]:
    """Return the names of the columns of a table of `CATALOG`."""
    return [column.split()[0] for column in CATALOG[name].split(", ")]


_SQL_NAMES: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "varchar": "character varying",
    "bpchar": "character",
}


def sql_name(name: str) -> str:
    """Return what SQL calls the type that ``pg_type`` calls *name*."""
    return _SQL_NAMES.get(name, name)
