"""Schemas travel as Spark's JSON, and what no state can hold is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError, RemoteProtocolError
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
    fields_text,
)
from queryablestate.schema.schema_json import (
    NESTING_DEPTH_MAX,
    fields_json,
    parse_fields,
    parse_schema,
    schema_json,
)
from tests.queryablestate.schemas import DELAYS_BY_DAY, TAILNUM
from tests.queryablestate.typed_values import key_types, value_types


def struct_json(data_type: object, **metadata: object) -> str:
    """Return what Spark would write for a struct with one column named ``one``."""
    field = {"name": "one", "type": data_type, "nullable": True, "metadata": metadata}
    return json.dumps({"type": "struct", "fields": [field]})


def array_json(element: object) -> dict[str, object]:
    """Return what Spark writes for an array."""
    return {"type": "array", "elementType": element, "containsNull": True}


def map_json(key: object, value: object) -> dict[str, object]:
    """Return what Spark writes for a map."""
    return {
        "type": "map",
        "keyType": key,
        "valueType": value,
        "valueContainsNull": True,
    }


def columns(names: list[str], types: list[DataType]) -> tuple[Field, ...]:
    """Return as many fields as there are of both."""
    return tuple(map(Field, names, types))


class TestFields:
    """Columns from Spark's JSON and back."""

    @pytest.mark.parametrize(
        ("spark", "expected", "text"),
        [
            ("byte", AtomicType.TINYINT, "tinyint"),
            ("short", AtomicType.SMALLINT, "smallint"),
            ("integer", AtomicType.INT, "int"),
            ("long", AtomicType.BIGINT, "bigint"),
            ("float", AtomicType.FLOAT, "float"),
            ("double", AtomicType.DOUBLE, "double"),
            ("boolean", AtomicType.BOOLEAN, "boolean"),
            ("string", AtomicType.STRING, "string"),
            ("string collate UTF8_BINARY", AtomicType.STRING, "string"),
            ("char(3)", AtomicType.STRING, "string"),
            ("varchar(20)", AtomicType.STRING, "string"),
            ("binary", AtomicType.BINARY, "binary"),
            ("date", AtomicType.DATE, "date"),
            ("timestamp", AtomicType.TIMESTAMP, "timestamp"),
            ("timestamp_ntz", AtomicType.TIMESTAMP_NTZ, "timestamp_ntz"),
            ("decimal", DecimalType(10, 0), "decimal(10,0)"),
            ("decimal(38,6)", DecimalType(38, 6), "decimal(38,6)"),
            (
                "string collate UNICODE_CI",
                CollatedStringType("UNICODE_CI"),
                "string collate UNICODE_CI",
            ),
            (array_json("date"), ArrayType(AtomicType.DATE), "array<date>"),
            (
                map_json("string", array_json("byte")),
                MapType(AtomicType.STRING, ArrayType(AtomicType.TINYINT)),
                "map<string,array<tinyint>>",
            ),
            (
                json.loads(struct_json("long")),
                StructType((Field("one", AtomicType.BIGINT),)),
                "struct<one:bigint>",
            ),
        ],
    )
    def test_spark_s_types_are_ours(
        self, spark: object, expected: DataType, text: str
    ) -> None:
        """Every type that a state can hold is known by its name in Spark's JSON."""
        fields = parse_fields(struct_json(spark))
        assert fields == (Field("one", expected),)
        assert fields_text(fields) == f"one {text}"

    def test_the_json_is_that_of_pyspark(self) -> None:
        """Ours is what ``StructType.json()`` writes: equal schemas, equal texts."""
        assert fields_json((TAILNUM, Field("tags", ArrayType(AtomicType.INT)))) == (
            '{"fields":[{"metadata":{},"name":"tailnum","nullable":true,'
            '"type":"string"},{"metadata":{},"name":"tags","nullable":true,"type":'
            '{"containsNull":true,"elementType":"integer","type":"array"}}],'
            '"type":"struct"}'
        )

    @given(
        names=st.lists(st.text(min_size=1), unique=True, max_size=4),
        types=st.lists(value_types(), min_size=4, max_size=4),
    )
    def test_the_json_round_trips(
        self, names: list[str], types: list[DataType]
    ) -> None:
        """What is written is read back, whatever the names and the nesting."""
        fields = columns(names, types)
        assert parse_fields(fields_json(fields)) == fields

    @pytest.mark.parametrize(
        ("spark", "collations", "expected"),
        [
            ("string", {"one": "spark.UTF8_LCASE"}, CollatedStringType("UTF8_LCASE")),
            ("char(2)", {"one": "icu.UNICODE"}, CollatedStringType("UNICODE")),
            ("string", {"one": "spark.UTF8_BINARY"}, AtomicType.STRING),
            ("string", {}, AtomicType.STRING),
            (
                map_json("string", array_json("string")),
                {"one.value.element": "icu.UNICODE"},
                MapType(AtomicType.STRING, ArrayType(CollatedStringType("UNICODE"))),
            ),
            (
                map_json("string", "string"),
                {"one.key": "icu.UNICODE"},
                MapType(CollatedStringType("UNICODE"), AtomicType.STRING),
            ),
        ],
    )
    def test_collations_are_found_in_the_metadata(
        self, spark: object, collations: dict[str, str], expected: DataType
    ) -> None:
        """Spark notes a collation beside the column, by its path within it."""
        text = struct_json(spark, __COLLATIONS=collations)
        assert parse_fields(text) == (Field("one", expected),)

    def test_a_nested_field_notes_its_own_collations(self) -> None:
        """The metadata of a struct's field speaks of that field."""
        inner = json.loads(struct_json("string", __COLLATIONS={"one": "icu.UNICODE"}))
        assert parse_fields(struct_json(inner)) == (
            Field("one", StructType((Field("one", CollatedStringType("UNICODE")),))),
        )

    @pytest.mark.parametrize(
        ("spark", "column"),
        [
            ("variant", "'one' has type variant"),
            ("void", "'one' has type void"),
            ("time(6)", "'one' has type time"),
            ("interval day to second", "'one' has type interval day"),
            ("interval year to month", "'one' has type interval year"),
            ("calendarinterval", "'one' has type calendarinterval"),
            ("geography(4326)", "'one' has type geography"),
            (
                {"type": "udt", "class": "a.B", "sqlType": "double"},
                "'one' has type udt",
            ),
            (array_json("variant"), "'one.element' has type variant"),
            (map_json("void", "long"), "'one.key' has type void"),
            (map_json("long", "void"), "'one.value' has type void"),
            (json.loads(struct_json("variant")), "'one.one' has type variant"),
        ],
    )
    def test_what_no_state_can_hold_is_named(self, spark: object, column: str) -> None:
        """The error names the column, inside structs too, and says to cast it."""
        with pytest.raises(ConfigurationError, match=f"{column}.*cast it to"):
            parse_fields(struct_json(spark))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "not JSON"),
            ("[" * 100_000, "not JSON"),
            ("1", "no type"),
            ('"long"', "not a struct"),
            ("{}", "'the schema' has type None"),
            ('{"type":"struct"}', "lacks 'fields'"),
            ('{"type":"struct","fields":1}', "not a list"),
            ('{"type":"struct","fields":[1]}', "no field of a struct"),
            ('{"type":"struct","fields":[{"type":"long"}]}', "no field of a struct"),
            ('{"type":"struct","fields":[{"name":"one"}]}', "one has no type"),
            (struct_json({"type": "array"}), "one lacks 'elementType'"),
            (struct_json({"type": "map", "keyType": "long"}), "one lacks 'valueType'"),
            (struct_json("decimal(39,0)"), "'one': the precision"),
            (struct_json("decimal(0,0)"), "'one': the precision"),
            (struct_json("decimal(3,4)"), "'one': the scale"),
            (struct_json("decimal(3,-1)"), "'one': the scale"),
        ],
    )
    def test_other_texts_are_refused(self, text: str, message: str) -> None:
        """Whatever is not a struct's JSON is one error, never another exception."""
        with pytest.raises(ConfigurationError, match=message):
            parse_fields(text)

    def test_metadata_of_another_form_is_passed_over(self) -> None:
        """Metadata is the user's: only what Spark itself notes there is read."""
        field = {"name": "one", "type": "string", "metadata": 1}
        text = json.dumps({"type": "struct", "fields": [field]})
        assert parse_fields(text) == (Field("one", AtomicType.STRING),)

    def test_depth_has_a_limit(self) -> None:
        """Types nest as deep as NESTING_DEPTH_MAX, and no deeper."""
        tree: object = "long"
        for _ in range(NESTING_DEPTH_MAX - 1):
            tree = array_json(tree)
        assert parse_fields(struct_json(tree))
        with pytest.raises(ConfigurationError, match="nests deeper"):
            parse_fields(struct_json(array_json(tree)))


class TestStateSchema:
    """What a state was registered with, as text and back."""

    @given(
        kind=st.sampled_from(StateKind),
        keys=st.lists(key_types(), min_size=2, max_size=3),
        values=st.lists(value_types(), max_size=3),
        has_ttl=st.booleans(),
    )
    def test_the_json_round_trips(
        self,
        kind: StateKind,
        keys: list[DataType],
        values: list[DataType],
        has_ttl: bool,
    ) -> None:
        """What one process registers is what another one reads."""
        first, *others = columns(["k", "l", "m"], keys)
        schema = StateSchema(
            kind=kind,
            key=(first,),
            map_key=tuple(others) if kind is StateKind.MAP else (),
            value=columns(["v", "w", "x"], values),
            has_ttl=has_ttl,
        )
        assert parse_schema(schema_json(schema)) == schema

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"kind": "set"}, "StateKind"),
            ({"has_ttl": 1}, "has_ttl is true or false"),
            ({"key": "long"}, "key is of type bigint, not a struct"),
            ({"value": {"type": "struct", "fields": [1]}}, "no field"),
            ({"map_key": {"type": "struct", "fields": []}}, "needs map_key"),
        ],
    )
    def test_a_damaged_schema_is_the_peer_s_fault(
        self, change: dict[str, object], message: str
    ) -> None:
        """A text that no registration of ours has written is a protocol error."""
        tree = json.loads(schema_json(DELAYS_BY_DAY))
        with pytest.raises(RemoteProtocolError, match=message):
            parse_schema(json.dumps(tree | change))

    @pytest.mark.parametrize("part", ["kind", "key", "map_key", "value", "has_ttl"])
    def test_a_schema_is_complete(self, part: str) -> None:
        """Nothing is assumed for what is missing."""
        tree = json.loads(schema_json(DELAYS_BY_DAY))
        del tree[part]
        with pytest.raises(RemoteProtocolError, match=part):
            parse_schema(json.dumps(tree))

    @pytest.mark.parametrize("text", ["", "1", "[]", "{"])
    def test_other_texts_are_the_peer_s_fault(self, text: str) -> None:
        """So is what is no JSON object at all."""
        with pytest.raises(RemoteProtocolError):
            parse_schema(text)
