from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DayTimeIntervalType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from nameservice import ConfigurationError
from queryablestate.schema.schema import AtomicType, Field, StateKind
from sparkpipeline.state.options import (
    StateLayout,
    StateSpec,
    WriteOptions,
    parse_write_options,
)


SCHEMA = (
    StructType()
    .add("tailnum", StringType())
    .add("dest", StringType())
    .add("flights", LongType())
    .add("seen", TimestampType())
    .add("seen_ntz", TimestampNTZType())
    .add("is_gone", BooleanType())
    .add("by_day", MapType(StringType(), LongType()))
    .add("delays", ArrayType(LongType()))
)


def options(spec: StateSpec | None = None, **others: Any) -> WriteOptions:
    """Return options with what a test does not care about filled in."""
    settings: dict[str, Any] = {"job_id": "flights", "output_mode": "update"} | others
    return WriteOptions(states=(spec or state(),), **settings)


def state(**settings: Any) -> StateSpec:
    """Return a state with what a test does not care about filled in."""
    return StateSpec(**({"state_name": "aircraft", "key": "tailnum"} | settings))


def layout(**settings: Any) -> StateLayout:
    """Return where the parts of a state are."""
    mode = "append" if settings.get("kind") == "list" else "update"
    (found,) = options(state(**settings), output_mode=mode).layouts(SCHEMA)
    return found


def names(fields: tuple[Field, ...]) -> list[str]:
    """Return what the columns are called."""
    return [one.name for one in fields]


class TestLayouts:
    def test_what_has_no_other_part_is_value(self) -> None:
        """Keys, delete and ttl are no values; what decides the order is."""
        found = layout(
            key=["dest", "tailnum"], order_by="seen", delete="is_gone", ttl="seen"
        )
        assert names(found.schema.key) == ["dest", "tailnum"]
        assert names(found.schema.value) == ["flights", "seen_ntz", "by_day", "delays"]
        assert found.schema.has_ttl
        assert (found.order_by, found.delete, found.ttl) == (
            ("seen",),
            "is_gone",
            "seen",
        )
        found = layout(order_by="seen")
        assert "seen" in names(found.schema.value)
        assert not found.schema.has_ttl

    def test_value_columns_can_be_chosen(self) -> None:
        """In the order that is given; nothing else is sent to the tasks."""
        found = layout(columns=["flights", "dest"], order_by=["seen", "flights"])
        assert names(found.schema.value) == ["flights", "dest"]
        assert found.names_used == ("tailnum", "flights", "dest", "seen")

    def test_kinds(self) -> None:
        """A map has two keys, a list only grows."""
        found = layout(kind="map", map_key=["dest"], columns=["flights"])
        assert found.schema.kind is StateKind.MAP
        assert names(found.schema.map_key) == ["dest"]
        assert not found.is_list
        assert layout(kind="list").is_list

    def test_types_are_those_of_the_columns(self) -> None:
        """And what is not used may be what no state can hold."""
        schema = StructType([*SCHEMA.fields]).add("pause", DayTimeIntervalType())
        (found,) = options(state(columns="flights")).layouts(schema)
        assert found.schema.key == (Field("tailnum", AtomicType.STRING),)
        assert found.schema.value == (Field("flights", AtomicType.BIGINT),)
        with pytest.raises(ConfigurationError, match="pause"):
            options(state()).layouts(schema)

    def test_a_layout_travels_to_tasks(self) -> None:
        """It is picklable, and comes out as it went in."""
        found = layout(kind="map", map_key="dest", ttl="seen")
        assert pickle.loads(pickle.dumps(found)) == found


class TestMistakes:
    """Each is an error where the query is defined, and says what to change (W6)."""

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"key": []}, "at least one column"),
            (
                {"key": "Tailnum"},
                r"is 'tailnum' meant\?.*the columns are tailnum, dest",
            ),
            ({"key": "x"}, "which is not there: the columns"),
            ({"key": [1]}, "is no name of a column"),
            ({"key": "by_day"}, "cannot hash a map"),
            ({"columns": ["flight"]}, r"is 'flights' meant"),
            ({"columns": ["flights", "flights"]}, "two columns named 'flights'"),
            ({"columns": ["tailnum"]}, "two columns named 'tailnum'"),
            ({"kind": "set"}, "kind must be one of value, list, map"),
            ({"kind": "map"}, "a map state needs map_key"),
            ({"map_key": "dest"}, 'map_key belongs to kind="map"'),
            ({"order_by": "delays"}, "one value per row"),
            ({"order_by": "by_day"}, "one value per row"),
            ({"delete": "flights"}, "delete of aircraft must have type boolean"),
            ({"ttl": "flights"}, "ttl of aircraft must have type timestamp"),
            ({"ttl": "seen_ntz"}, "cast it to timestamp"),
            ({"state_name": "a/b"}, "state_name"),
            ({"state_name": "operator-state:x"}, "published operator state"),
        ],
    )
    def test_in_a_state(self, settings: dict[str, Any], words: str) -> None:
        """Unknown columns, types and choices are named."""
        with pytest.raises(ConfigurationError, match=words):
            layout(**settings)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"job_id": ""}, "job_id"),
            ({"output_mode": "overwrite"}, "output_mode must be one of append, update"),
            ({"on_new_query": "drop"}, "on_new_query must be one of refuse, replace"),
            ({"max_parallelism": 0}, "1 to 32768, not 0"),
            ({"max_parallelism": 40_000}, "1 to 32768, not 40000"),
            ({"commit_timeout_seconds": 0}, "commit_timeout_seconds must be above 0"),
            ({"output_mode": "append"}, 'say with order_by .* or use output_mode="up'),
        ],
    )
    def test_in_a_query(self, settings: dict[str, Any], words: str) -> None:
        """What does not go together is said together."""
        with pytest.raises(ConfigurationError, match=words):
            options(**settings)

    @pytest.mark.parametrize("output_mode", ["update", "complete"])
    def test_a_list_only_grows(self, output_mode: str) -> None:
        """An item cannot be updated: list states want append mode (W6)."""
        with pytest.raises(ConfigurationError, match='use output_mode="append"'):
            options(state(kind="list"), output_mode=output_mode)

    def test_names_of_states_differ(self) -> None:
        """Two states of one name would overwrite each other."""
        with pytest.raises(ConfigurationError, match="both be called 'aircraft'"):
            WriteOptions(
                job_id="flights", output_mode="update", states=[state(), state()]
            )
        with pytest.raises(ConfigurationError, match="at least one state"):
            WriteOptions(job_id="flights", output_mode="update", states=[])

    def test_columns_of_one_name(self) -> None:
        """Which of two columns is meant cannot be guessed."""
        schema = StructType([*SCHEMA.fields]).add("flights", LongType())
        with pytest.raises(
            ConfigurationError, match="several columns called 'flights'"
        ):
            options(state(columns="flights")).layouts(schema)


class TestOfFormat:
    """``format("lodestar")`` has the same options, as text."""

    def test_everything_can_be_said(self) -> None:
        """Several columns have commas between them; case of values counts."""
        found = parse_write_options(
            {
                "job_id": "Flights",
                "state_name": "aircraft",
                "key": "tailnum, dest",
                "columns": "flights",
                "kind": "map",
                "map_key": "seen",
                "order_by": "seen,flights",
                "delete": "is_gone",
                "ttl": "seen",
                "max_parallelism": "64",
                "on_new_query": "replace",
                "commit_timeout_seconds": "2.5",
                "url": "is for somebody else",
            },
            output_mode="append",
        )
        spec = StateSpec(
            state_name="aircraft",
            key=["tailnum", "dest"],
            columns=["flights"],
            kind="map",
            map_key=["seen"],
            order_by=["seen", "flights"],
            delete="is_gone",
            ttl="seen",
        )
        assert found == WriteOptions(
            job_id="Flights",
            states=[spec],
            output_mode="append",
            max_parallelism=64,
            on_new_query="replace",
            commit_timeout_seconds=2.5,
        )

    def test_nothing_can_be_said_too(self) -> None:
        """No value columns: a key is there, or it is not."""
        given = {"job_id": "flights", "state_name": "aircraft", "key": "tailnum"}
        found = parse_write_options({**given, "columns": ""}, output_mode="complete")
        assert found.states[0].columns == ()

    @pytest.mark.parametrize("name", ["job_id", "state_name", "key"])
    def test_what_is_missing_is_named(self, name: str) -> None:
        """And how to give it."""
        given = {"job_id": "flights", "state_name": "aircraft", "key": "tailnum"}
        del given[name]
        with pytest.raises(ConfigurationError, match=f"the option {name} is missing"):
            parse_write_options(given, output_mode="complete")

    @pytest.mark.parametrize("name", ["max_parallelism", "commit_timeout_seconds"])
    def test_a_number_is_a_number(self, name: str) -> None:
        """Not whatever Python makes of it."""
        given = {"job_id": "flights", "state_name": "aircraft", "key": "tailnum"}
        with pytest.raises(ConfigurationError, match=f"{name} must be a number"):
            parse_write_options({**given, name: "many"}, output_mode="complete")
