"""What a state may be registered with, and what a writer may change of that."""

from __future__ import annotations

import pytest
from attrs import evolve

from nameservice import ConfigurationError
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
    check_compatible,
)
from tests.queryablestate.schemas import DAY, DELAY, DELAYS_BY_DAY, TAILNUM


FLIGHTS = Field("flights", AtomicType.BIGINT)


class TestStateSchema:
    """What a state may be registered with."""

    @pytest.mark.parametrize("kind", [StateKind.VALUE, StateKind.LIST])
    def test_a_key_is_enough(self, kind: StateKind) -> None:
        """Value columns, TTL and map key may be missing."""
        schema = StateSchema(kind=kind, key=(TAILNUM, DAY))
        assert schema.key_text() == "tailnum string, day date"

    def test_a_key_is_needed(self) -> None:
        """Without key columns there is nothing to ask for."""
        with pytest.raises(ConfigurationError, match="needs a key"):
            StateSchema(kind=StateKind.VALUE, key=(), value=(DELAY,))

    def test_a_map_state_has_a_map_key(self) -> None:
        """And is the only kind that has one."""
        with pytest.raises(ConfigurationError, match="needs map_key"):
            StateSchema(kind=StateKind.MAP, key=(TAILNUM,))
        with pytest.raises(ConfigurationError, match='belongs to kind="map"'):
            StateSchema(kind=StateKind.LIST, key=(TAILNUM,), map_key=(DAY,))

    @pytest.mark.parametrize("part", ["key", "map_key", "value"])
    def test_no_name_stands_twice(self, part: str) -> None:
        """Key, map key and value columns are different columns of one row."""
        more = (Field("day", AtomicType.INT), Field("tailnum", AtomicType.INT))
        with pytest.raises(ConfigurationError, match="two columns named"):
            StateSchema(
                kind=StateKind.MAP,
                key=(TAILNUM, *(more if part == "key" else ())),
                map_key=(DAY, *(more if part == "map_key" else ())),
                value=(DELAY, *(more if part == "value" else ())),
            )

    @pytest.mark.parametrize(
        ("data_type", "message"),
        [
            (MapType(AtomicType.INT, AtomicType.INT), "'one' has type map<int,int>"),
            (CollatedStringType("UNICODE"), "'one' has type string collate UNICODE"),
            (
                ArrayType(MapType(AtomicType.INT, AtomicType.INT)),
                "'one.element' has type map",
            ),
            (
                StructType((Field("two", CollatedStringType("UNICODE")),)),
                "'one.two' has type string collate",
            ),
        ],
    )
    def test_what_cannot_be_a_key_is_named(
        self, data_type: DataType, message: str
    ) -> None:
        """Maps and collated strings are refused in both keys, and taken as values."""
        one = Field("one", data_type)
        with pytest.raises(ConfigurationError, match=message):
            StateSchema(kind=StateKind.VALUE, key=(TAILNUM, one))
        with pytest.raises(ConfigurationError, match=message):
            StateSchema(kind=StateKind.MAP, key=(TAILNUM,), map_key=(one,))
        StateSchema(kind=StateKind.VALUE, key=(TAILNUM,), value=(one,))

    def test_two_fields_of_one_name_are_refused(self) -> None:
        """A dict of the columns could not hold both."""
        with pytest.raises(ConfigurationError, match="two columns named 'day'"):
            StructType((DAY, DAY))


class TestCompatible:
    """W5: what a writer may change of a registered schema."""

    def test_the_same_schema_goes_on(self) -> None:
        """Nothing differs."""
        assert check_compatible(DELAYS_BY_DAY, DELAYS_BY_DAY) is None

    @pytest.mark.proves("W5")
    def test_new_value_columns_go_on(self) -> None:
        """W5: columns may be added behind the others."""
        registered = StateSchema(kind=StateKind.VALUE, key=(TAILNUM,), value=(DELAY,))
        declared = StateSchema(
            kind=StateKind.VALUE, key=(TAILNUM,), value=(DELAY, FLIGHTS, DAY)
        )
        assert check_compatible(registered, declared) is None

    @pytest.mark.proves("W5")
    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_columns_at_the_end_may_be_left_out(self, count: int) -> None:
        """W5: the application of before goes on where a later one has added columns."""
        registered = StateSchema(
            kind=StateKind.VALUE, key=(TAILNUM,), value=(DELAY, FLIGHTS, DAY)
        )
        declared = evolve(registered, value=registered.value[:count])
        assert check_compatible(registered, declared) is None

    @pytest.mark.proves("W5")
    @pytest.mark.parametrize(
        ("declared", "difference"),
        [
            (
                StateSchema(kind=StateKind.LIST, key=(TAILNUM,), value=(DELAY,)),
                "it is a map state, not a list",
            ),
            (
                StateSchema(
                    kind=StateKind.MAP, key=(FLIGHTS,), map_key=(DAY,), has_ttl=True
                ),
                "its key is (tailnum string), not (flights bigint)",
            ),
            (
                StateSchema(
                    kind=StateKind.MAP, key=(TAILNUM,), map_key=(FLIGHTS,), has_ttl=True
                ),
                "its map_key is (day date), not (flights bigint)",
            ),
            (
                StateSchema(
                    kind=StateKind.MAP, key=(TAILNUM,), map_key=(DAY,), value=(DELAY,)
                ),
                "it was written with a ttl",
            ),
            (
                evolve(DELAYS_BY_DAY, value=(FLIGHTS, DELAY)),
                (
                    "its value column 1 is delay double, not flights bigint: columns "
                    "are added, and left out, at the end only; under another name it "
                    "is another column"
                ),
            ),
            (
                evolve(DELAYS_BY_DAY, value=(Field("delay", AtomicType.BIGINT),)),
                (
                    "its value column delay double cannot become delay bigint: cast "
                    "it, or add a column of another name at the end"
                ),
            ),
        ],
    )
    def test_other_changes_are_told(
        self, declared: StateSchema, difference: str
    ) -> None:
        """W5: the sentence says what was registered and what is declared."""
        assert check_compatible(DELAYS_BY_DAY, declared) == difference

    def test_a_ttl_cannot_be_added(self) -> None:
        """The rows that are stored have no place for it."""
        registered = StateSchema(kind=StateKind.VALUE, key=(TAILNUM,))
        declared = StateSchema(kind=StateKind.VALUE, key=(TAILNUM,), has_ttl=True)
        assert check_compatible(registered, declared) == "it was written without a ttl"
