"""`Table`: a state as a tool sees it: schema, name and columns; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, assert_never, final

from attrs import frozen

from queryablestate.client.frames import FRESHNESS, frame_fields, row_columns
from queryablestate.client.results import StateEntry, StateInformation
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
)
from queryablestate.sql.protocol.refusals import SQLError


__all__ = ["Table", "engine_folded", "engine_type", "quoted"]

# Schemas that the engine has already, and one that we make in it.
_RESERVED: Final = frozenset(
    {"pg_catalog", "information_schema", "lodestar", "memory", "system", "temp"}
)

_ATOMIC: Final = {
    AtomicType.STRING: "VARCHAR",
    AtomicType.BINARY: "BLOB",
    AtomicType.INT: "INTEGER",
    AtomicType.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    AtomicType.TIMESTAMP_NTZ: "TIMESTAMP",
}


def quoted(name: str) -> str:
    """Return *name* as SQL has it, whatever characters it is made of."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


_UPPER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def engine_folded(name: str) -> str:
    """Return *name* with its case as the engine ignores it: that of A to Z alone."""
    return name.translate(_UPPER)


def engine_type(data_type: DataType) -> str:
    """Return what the engine calls a type of a column."""
    match data_type:
        case AtomicType():
            return _ATOMIC.get(data_type, data_type.value.upper())
        case CollatedStringType():
            return "VARCHAR"
        case DecimalType(precision=precision, scale=scale):
            return f"DECIMAL({precision},{scale})"
        case StructType(fields=fields):
            inner = ", ".join(
                f"{quoted(one.name)} {engine_type(one.type)}" for one in fields
            )
            return f"STRUCT({inner})"
        case ArrayType(element=element):
            return f"{engine_type(element)}[]"
        case MapType(key=key, value=value):
            return f"MAP({engine_type(key)}, {engine_type(value)})"
        case _:
            assert_never(data_type)


def _has_engine(column: Field) -> bool:
    """Return whether the engine can have *column*; Spark's may be of other kinds."""
    return bool(column.name) and _has_engine_type(column.type)


def _has_engine_type(data_type: DataType) -> bool:
    match data_type:
        case StructType(fields=fields):
            names = {engine_folded(one.name) for one in fields}
            is_told_apart = 0 < len(names) == len(fields)
            return is_told_apart and all(map(_has_engine, fields))
        case ArrayType(element=element):
            return _has_engine_type(element)
        case MapType(key=key, value=value):
            return _has_engine_type(key) and _has_engine_type(value)
        case _:
            return True


@final
@frozen
class Table:
    """
    One state.

    Attributes:
        job_id: The job; the schema.
        name: The state.
        schema: Its columns as they are registered.
        fields: Its columns as a tool sees them; those that tell freshness come last.
    """

    job_id: str
    name: str
    schema: StateSchema
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, state: StateInformation) -> Table:
        """
        Return the table that *state* is.

        Raises:
            SQLError: If it cannot be one.
        """
        if state.job_id.lower() in _RESERVED:
            raise SQLError(
                "0A000",
                f"a job called {state.job_id!r} cannot be asked with SQL: it is the "
                "name of a system schema",
                "read its states with 'lodestar export'",
            )
        schema = state.registered_schema
        fields = frame_fields(schema, has_freshness=True)
        lowered = [one.name.lower() for one in fields]
        twice = sorted({name for name in lowered if lowered.count(name) > 1})
        if twice:
            raise SQLError(
                "42701",
                f"{state.job_id}/{state.name} has columns that differ in case alone, "
                f"which SQL cannot tell apart: {', '.join(twice)}",
                "read it with 'lodestar export', or rename one in the query",
            )
        return cls(state.job_id, state.name, schema, fields)

    @property
    def key(self) -> Sequence[Field]:
        """Return the key columns."""
        return self.schema.key

    def columns(self, wanted: set[str] | None) -> list[str]:
        """
        Return which columns to read where *wanted* are named, in lower case.

        Raises:
            SQLError: If the engine cannot have one of them.
        """
        found = [
            one for one in self.fields if wanted is None or one.name.lower() in wanted
        ]
        for one in found:
            if not _has_engine(one):
                raise SQLError(
                    "0A000",
                    f"{self.job_id}/{self.name}: the column {one.name!r} of type "
                    f"{one.type} cannot be had with SQL",
                    "name the columns that are wanted, without it; 'lodestar export' "
                    "has them all",
                )
        # Where none is named, rows are counted: any column will do.
        found = found or [next(one for one in self.fields if _has_engine(one))]
        return [one.name for one in found]

    def rows_of(self, key: Any, entry: StateEntry) -> list[tuple[Any, ...]]:
        """
        Return what is kept under *key* as rows of all columns.

        Raises:
            SQLError: If it is not of this state: another has the name by now.
        """
        self._check(entry.value)
        freshness = self._freshness(entry)
        if self.schema.kind is StateKind.VALUE:
            rows = [row_columns(self.schema, key, entry.value)]
        elif self.schema.kind is StateKind.MAP:
            rows = [
                row_columns(self.schema, (key, map_key), value)
                for map_key, value in entry.value.items()
            ]
        else:
            columns = (key,) if len(self.key) == 1 else key
            lists = (
                [item.get(one.name) for item in entry.value]
                for one in self.schema.value
            )
            rows = [(*columns, *lists)]
        return [(*row, *freshness) for row in rows]

    def _check(self, value: Any) -> None:
        is_list = isinstance(value, list)
        is_map = self.schema.kind is StateKind.MAP
        rows = value if is_list else value.values() if is_map else (value,)
        # A column that is missing may have been added since; an unknown one was not.
        names = {one.name for one in self.schema.value}
        if is_list != (self.schema.kind is StateKind.LIST) or not all(
            isinstance(row, dict) and names.issuperset(row) for row in rows
        ):
            raise self.changed()

    def changed(self) -> SQLError:
        """Return what to raise where the state is another one by now."""
        return SQLError(
            "0A000", f"{self.job_id}/{self.name} has changed meanwhile", "ask again"
        )

    def _freshness(self, entry: StateEntry) -> tuple[Any, ...]:
        values = (entry.batch_id, entry.age_seconds, entry.generation)
        count = len(self.fields) - len(frame_fields(self.schema))
        if count == len(FRESHNESS):
            return values
        names = {one.name for one in self.fields[len(self.fields) - count :]}
        return tuple(
            value
            for one, value in zip(FRESHNESS, values, strict=True)
            if one.name in names
        )
