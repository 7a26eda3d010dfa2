"""`Route`: what nodes are asked for each kind of state, and how their answers read."""

from __future__ import annotations

import msgspec
import pytest

from nameservice import LocalProtocolError, RemoteProtocolError
from queryablestate.client.routes import (
    ENTRY,
    EXISTS,
    ROWS,
    Asking,
    Route,
    information_of,
)
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.values import ValueCodec
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.questions import (
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    HasRows,
)
from tests.queryablestate.scripted_state import (
    LIST_SCHEMA,
    MAP_SCHEMA,
    VALUE_SCHEMA,
    ScriptedState,
)


ROW = ValueCodec(VALUE_SCHEMA.value).encode_row(("JFK", 7))
READ = {"origin": "JFK", "delay": 7}


def route_of(schema: StateSchema) -> Route:
    """Return a route to a state of *schema*."""
    return Route(ScriptedState(schema).description, None)


class TestOperation:
    @pytest.mark.parametrize(
        ("schema", "asking", "operation"),
        [
            (VALUE_SCHEMA, ROWS, GetValues()),
            (VALUE_SCHEMA, EXISTS, HasRows()),
            (LIST_SCHEMA, ROWS, GetItems()),
            (LIST_SCHEMA, EXISTS, HasRows()),
            (LIST_SCHEMA, Asking.items(-3, None), GetItems(start=-3)),
            (LIST_SCHEMA, Asking.items(None, 5), GetItems(start=0, stop=5)),
            (MAP_SCHEMA, ROWS, GetEntries()),
            (MAP_SCHEMA, EXISTS, HasRows()),
            (MAP_SCHEMA, ENTRY, GetValues()),
        ],
    )
    def test_what_nodes_are_asked(
        self, schema: StateSchema, asking: Asking, operation: object
    ) -> None:
        """Each kind of state is asked in its own way."""
        assert route_of(schema).operation(asking) == operation

    def test_counting(self) -> None:
        """Only who counts a map needs to know where the key of an entry ends."""
        route = route_of(MAP_SCHEMA)
        assert route.counting() == CountKeys(schema=route.description.schema)
        assert route_of(VALUE_SCHEMA).counting() == CountKeys()
        assert route_of(LIST_SCHEMA).counting() == CountKeys()

    @pytest.mark.parametrize(
        ("schema", "asking", "said"),
        [
            (VALUE_SCHEMA, ENTRY, "a value state, and this is a question to a map"),
            (LIST_SCHEMA, ENTRY, "a list state, and this is a question to a map"),
            (VALUE_SCHEMA, Asking.items(0, 1), "to a list state: use get"),
            (MAP_SCHEMA, Asking.items(0, 1), "a map state"),
        ],
    )
    def test_what_makes_no_sense(
        self, schema: StateSchema, asking: Asking, said: str
    ) -> None:
        """A question to another kind of state says which kind it is."""
        with pytest.raises(LocalProtocolError, match=said):
            route_of(schema).operation(asking)


class TestDecoding:
    def test_rows(self) -> None:
        """A value state answers with rows, None for what is not there."""
        payload = encode_payload([ROW, None])
        assert route_of(VALUE_SCHEMA).decode(GetValues(), payload, 2) == [READ, None]

    def test_lists(self) -> None:
        """A list state answers with lists; an empty part is a list, too."""
        payload = encode_payload([[ROW, ROW], [], None])
        found = route_of(LIST_SCHEMA).decode(GetItems(), payload, 3)
        assert found == [[READ, READ], [], None]

    def test_maps(self) -> None:
        """A map state answers with maps, in the order of the node."""
        route = route_of(MAP_SCHEMA)
        keys = [route.key_codec.encode_map_key(name) for name in ("B", "A")]
        payload = encode_payload([[keys[0], ROW, keys[1], ROW], None])
        found = route.decode(GetEntries(), payload, 2)
        assert found == [{"B": READ, "A": READ}, None]
        assert list(found[0]) == ["B", "A"]

    def test_map_keys_of_several_columns_are_tuples(self) -> None:
        """One column is bare, several are a tuple."""
        number = Field("number", AtomicType.INT)
        schema = StateSchema(
            kind=StateKind.MAP,
            key=MAP_SCHEMA.key,
            map_key=(*MAP_SCHEMA.map_key, number),
            value=MAP_SCHEMA.value,
        )
        route = route_of(schema)
        key = route.key_codec.encode_map_key(("A", 3))
        found = route.decode(GetEntries(), encode_payload([[key, ROW]]), 1)
        assert found == [{("A", 3): READ}]

    @pytest.mark.parametrize(
        "payload", [[], [ROW, ROW], [7], [[ROW]], b"x", None, [[ROW, ROW, ROW]]]
    )
    def test_what_is_no_answer(self, payload: object) -> None:
        """Too little, too much or something else is an error of the peer."""
        data = encode_payload(payload)
        for operation in (GetValues(), GetEntries()):
            with pytest.raises(RemoteProtocolError):
                route_of(MAP_SCHEMA).decode(operation, data, 1)

    def test_pages(self) -> None:
        """A row of a page has its encoded key; its key and its value are read later."""
        route = route_of(VALUE_SCHEMA)
        encoded = route.key_codec.encode("N1")
        payload = encode_payload([encoded, ROW])
        rows = route.page_rows(payload)
        assert rows == [(encoded, ROW)]
        assert route.decode_page(rows) == [("N1", READ)]

    def test_pages_of_lists(self) -> None:
        """The index of an item is part of its place, not of its key."""
        route = route_of(LIST_SCHEMA)
        encoded = route.key_codec.encode("N1") + bytes(8)
        payload = encode_payload([encoded, ROW])
        rows = route.page_rows(payload)
        assert rows == [(encoded, ROW)]
        assert route.decode_page(rows) == [("N1", READ)]

    def test_pages_of_maps(self) -> None:
        """A row of a map has both keys."""
        route = route_of(MAP_SCHEMA)
        encoded = route.key_codec.map_entry_key("N1", "JFK")[2:]
        payload = encode_payload([encoded, ROW])
        rows = route.page_rows(payload)
        assert rows == [(encoded, ROW)]
        assert route.decode_page(rows) == [(("N1", "JFK"), READ)]

    @pytest.mark.parametrize("page", [[b"\1N1\0\0"], [b"", ROW], [b"\1N", ROW], 7])
    def test_what_is_no_page(self, page: object) -> None:
        """Half a row, or a key that is none, is an error of the peer."""
        route = route_of(VALUE_SCHEMA)
        with pytest.raises(RemoteProtocolError):
            route.decode_page(route.page_rows(encode_payload(page)))


class TestRoute:
    def test_codecs_are_made_once(self) -> None:
        """A new route to the same columns reads as the old one did."""
        state = ScriptedState()
        before = Route(state.description, None)
        state.version += 1
        after = Route(state.description, before)
        assert after.key_codec is before.key_codec
        assert after.value_codec is before.value_codec
        state.max_parallelism, state.owners = 4, (0, 1, 0, 1)
        assert Route(state.description, after).key_codec is not before.key_codec

    def test_what_is_the_same_route(self) -> None:
        """Whatever leads elsewhere, or reads otherwise, is another route."""
        state = ScriptedState()
        description = state.description
        route = Route(description, None)
        assert route.is_same_as(description)
        same = msgspec.structs.replace(description, batch_id=9, age_ms=1, generation=4)
        assert route.is_same_as(same)
        for changes in (
            {"state_number": 99},
            {"assignment_version": 9},
            {"owners": (1,) * 8},
            {"node_ids": ("a", "b")},
            {"max_parallelism": 9},
            {"schema": "{}"},
        ):
            other = msgspec.structs.replace(description, **changes)
            assert not route.is_same_as(other)

    def test_nodes_without_groups_are_not_asked(self) -> None:
        """Who holds nothing has nothing to say."""
        state = ScriptedState(node_count=3)
        state.owners = (2, 0, 2, 0, 2, 0, 2, 0)
        assert Route(state.description, None).node_indexes == (0, 2)

    def test_keys_that_cannot_be_hashed(self) -> None:
        """They stand in a dict in their normal form."""
        day = Field("day", AtomicType.INT)
        route = route_of(StateSchema(kind=StateKind.VALUE, key=(*MAP_SCHEMA.key, day)))
        assert route.hashable(("N1", 3)) == ("N1", 3)
        assert route.hashable({"name": "N1", "day": 3}) == ("N1", 3)


class TestInformation:
    def test_it_says_what_a_state_is(self) -> None:
        """Names and types for people, node names by what they hold."""
        state = ScriptedState(MAP_SCHEMA, node_count=3)
        state.owners = (2, 0, 2, 0, 2, 0, 2, 0)
        found = information_of(state.description)
        assert found.kind == "map"
        assert found.schema == (
            "name string; airport string -> origin string, delay bigint"
        )
        assert found.nodes == ("node-0", "node-2")
        assert found.key_columns == ("name",)
        assert found.map_key_columns == ("airport",)
        assert found.value_columns == ("origin", "delay")
        assert found.age_seconds == 0.005
        assert found.owner == "query"

    def test_before_the_first_batch(self) -> None:
        """There is no batch, and no age."""
        state = ScriptedState()
        state.batch_ids = [None, None]
        description = msgspec.structs.replace(state.description, age_ms=None)
        found = information_of(description)
        assert (found.batch_id, found.age_seconds) == (None, None)
        assert found.schema == "name string -> origin string, delay bigint"
