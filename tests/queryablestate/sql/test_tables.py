"""States as tables: their columns, their rows, and what cannot be one."""

from __future__ import annotations

from typing import Any

import pytest

from queryablestate.client.results import StateEntry, StateInformation
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DecimalType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
)
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.tables import Table, engine_type, quoted


pytestmark = pytest.mark.proves("F6")

KEY = (Field("k", AtomicType.STRING),)


def information(job_id: str = "job", **schema: Any) -> StateInformation:
    """Return what a client tells of a state."""
    settings: dict[str, Any] = {"kind": StateKind.VALUE, "key": KEY, **schema}
    return StateInformation(
        job_id=job_id,
        name="s",
        kind="value",
        schema="",
        key_columns=(),
        map_key_columns=(),
        value_columns=(),
        has_ttl=False,
        generation=1,
        batch_id=2,
        owner="",
        max_parallelism=1,
        nodes=(),
        age_seconds=None,
        registered_schema=StateSchema(**settings),
    )


def entry(value: Any) -> StateEntry:
    """Return what a client has found."""
    return StateEntry(
        value=value, generation=1, batch_id=2, age_seconds=0.5, cached=False
    )


class TestOtherStates:
    """A state may have been dropped, and made anew with other columns, meanwhile."""

    N = (Field("n", AtomicType.INT),)

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (StateKind.VALUE, {"m": 1}),
            (StateKind.VALUE, [{"n": 1}]),
            (StateKind.VALUE, {"key": {"n": 1}}),
            (StateKind.LIST, {"n": 1}),
            (StateKind.LIST, [{"n": 1}, {"m": 1}]),
            (StateKind.MAP, {"n": 1}),
            (StateKind.MAP, [{"n": 1}]),
            (StateKind.MAP, {"key": {"m": 1}}),
        ],
    )
    def test_nothing_of_another_state_is_shown_as_null(
        self, kind: StateKind, value: Any
    ) -> None:
        """It is refused, and found when it is asked again."""
        map_key = (Field("m_k", AtomicType.STRING),) if kind is StateKind.MAP else ()
        table = Table.of(information(kind=kind, value=self.N, map_key=map_key))
        with pytest.raises(SQLError, match="has changed meanwhile"):
            table.rows_of("k", entry(value))

    def test_a_column_that_was_added_since_is_null(self) -> None:
        """A client learns of it later than a tool may have."""
        table = Table.of(information(value=(*self.N, Field("m", AtomicType.INT))))
        ((key, n, m, *_),) = table.rows_of("k", entry({"n": 1}))
        assert (key, n, m) == ("k", 1, None)


class TestTables:
    @pytest.mark.parametrize("job_id", ["system", "Memory", "lodestar", "pg_catalog"])
    def test_a_job_that_is_called_like_a_schema_of_the_engine(
        self, job_id: str
    ) -> None:
        """It is refused: a name would mean two things."""
        with pytest.raises(SQLError, match="lodestar export") as caught:
            raise_with_hint(information(job_id))
        assert caught.value.sqlstate == "0A000"

    def test_columns_that_differ_in_case_alone(self) -> None:
        """SQL cannot tell them apart."""
        value = (Field("a", AtomicType.INT), Field("A", AtomicType.INT))
        with pytest.raises(SQLError, match="differ in case") as caught:
            Table.of(information(value=value))
        assert caught.value.sqlstate == "42701"

    def test_a_column_of_the_state_comes_before_ours(self) -> None:
        """Of a name that tells freshness otherwise."""
        value = (Field("_batch_id", AtomicType.STRING),)
        table = Table.of(information(value=value))
        names = [one.name for one in table.fields]
        assert names == ["k", "_batch_id", "_age_seconds", "_generation"]
        assert table.rows_of("x", entry({"_batch_id": "own"})) == [("x", "own", 0.5, 1)]

    def test_rows_of_maps_and_lists(self) -> None:
        """One for each entry of a map, one for each list."""
        value = (Field("v", AtomicType.INT),)
        month = (Field("m", AtomicType.INT),)
        a_map = Table.of(information(kind=StateKind.MAP, map_key=month, value=value))
        found = a_map.rows_of("x", entry({1: {"v": 5}, 2: {"v": None}}))
        assert [row[:3] for row in found] == [("x", 1, 5), ("x", 2, None)]
        a_list = Table.of(information(kind=StateKind.LIST, value=value))
        found = a_list.rows_of("x", entry([{"v": 5}, {"v": 6}]))
        assert found == [("x", [5, 6], 2, 0.5, 1)]

    def test_columns_that_are_read(self) -> None:
        """Those that are named, and one at least: rows are counted by it."""
        table = Table.of(information(value=(Field("V", AtomicType.INT),)))
        assert table.columns({"v", "other"}) == ["V"]
        assert table.columns(set()) == ["k"]
        assert len(table.columns(None)) == len(table.fields)


def raise_with_hint(state: StateInformation) -> None:
    """Make a table; an error has its hint in its text."""
    try:
        Table.of(state)
    except SQLError as error:
        raise SQLError(error.sqlstate, f"{error.message}: {error.hint}") from error


@pytest.mark.parametrize(
    ("data_type", "expected"),
    [
        (AtomicType.STRING, "VARCHAR"),
        (AtomicType.TIMESTAMP, "TIMESTAMP WITH TIME ZONE"),
        (DecimalType(9, 2), "DECIMAL(9,2)"),
        (ArrayType(AtomicType.INT), "INTEGER[]"),
        (MapType(AtomicType.STRING, AtomicType.BIGINT), "MAP(VARCHAR, BIGINT)"),
        (StructType((Field('a"b', AtomicType.DATE),)), 'STRUCT("a""b" DATE)'),
    ],
)
def test_types_of_the_engine(data_type: Any, expected: str) -> None:
    """Whatever the names of fields are."""
    assert engine_type(data_type) == expected


def test_names_are_quoted() -> None:
    """So that none is a statement."""
    assert quoted('x"; DROP') == '"x""; DROP"'
