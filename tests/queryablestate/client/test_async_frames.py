"""States as Arrow tables, over real sockets, against a proxy that is told its part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from haservices import HAServices
from nameservice import ConfigurationError
from queryablestate import (
    AsyncQueryableStateClient,
    StateUnavailableError,
    TableTooLargeError,
    UnknownStateError,
)
from queryablestate.schema.schema import StateSchema
from queryablestate.wire.questions import Ask
from tests.queryablestate.scripted_proxy import Lead, Reply, ScriptedProxy
from tests.queryablestate.scripted_state import (
    LIST_SCHEMA,
    MAP_SCHEMA,
    STATE,
    VALUE_SCHEMA,
    ScriptedState,
)


pytestmark = pytest.mark.shells


@contextmanager
def serving(services: HAServices, state: ScriptedState) -> Iterator[ScriptedProxy]:
    """Have a proxy answer about *state*, a few rows at a time."""
    with ScriptedProxy(state) as proxy, Lead(services, proxy.address):
        proxy.keys_per_request_max = 8
        yield proxy


def as_of(metadata: dict[bytes, bytes]) -> dict[str, str]:
    """Return what the metadata of a table say."""
    return {
        name.decode().removeprefix("lodestar."): value.decode()
        for name, value in metadata.items()
    }


@pytest.mark.proves("F7")
class TestTables:
    """F7: a state is an Arrow table."""

    async def test_a_value_state(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """A row for each key, in their order; the metadata say as of what."""
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                table = await client.table(*STATE)
        keys = sorted(f"N{n}" for n in range(100))
        assert table.schema.types == [pa.string(), pa.string(), pa.int64()]
        assert table.to_pydict() == {
            "name": keys,
            "origin": [f"A{key[1:]}" for key in keys],
            "delay": [int(key[1:]) for key in keys],
        }
        assert as_of(table.schema.metadata) == {
            "job": "flights",
            "state": "aircraft",
            "generation": "1",
            "batch_id": "1",
            "newest_generation": "1",
            "newest_batch_id": "1",
            "age_seconds": "0.007",
        }

    async def test_pages_of_two_batches(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """The metadata tell the oldest and the newest; none is left out as None."""
        state.batch_ids = [7, 5]
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                found = as_of((await client.table(*STATE)).schema.metadata)
        assert (found["batch_id"], found["newest_batch_id"]) == ("5", "7")

    async def test_before_the_first_batch(self, services: HAServices) -> None:
        """A state without rows is a table without rows, and has no batch yet."""
        state = ScriptedState()
        state.batch_ids = [None, None]
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                table = await client.table(*STATE)
                (batch,) = [one async for one in client.batches(*STATE)]
        assert table.num_rows == batch.num_rows == 0
        assert table.column_names == ["name", "origin", "delay"]
        assert as_of(table.schema.metadata).keys() == {
            "job",
            "state",
            "generation",
            "newest_generation",
            "age_seconds",
        }

    async def test_some_columns(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """In the order in which they are named; one that is not there is an error."""
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                table = await client.table(*STATE, columns=["delay", "name"])
                with pytest.raises(ConfigurationError, match="'name', 'origin'"):
                    await client.table(*STATE, columns=["nme"])
        assert table.column_names == ["delay", "name"]
        assert table.column("name").to_pylist()[:2] == ["N0", "N1"]

    @pytest.mark.parametrize("columns", ["name", [], ["name", "name"], [1]])
    async def test_columns_that_are_none(
        self, services: HAServices, columns: Any
    ) -> None:
        """They are refused before anything is asked."""
        async with AsyncQueryableStateClient(services) as client:
            with pytest.raises(ConfigurationError, match="columns"):
                await client.table(*STATE, columns=columns)
            with pytest.raises(ConfigurationError, match="columns"):
                client.batches(*STATE, columns=columns)

    async def test_a_map_state(self, services: HAServices) -> None:
        """A row for each entry."""
        rows = {"N1": {"JFK": ("A", 1), None: ("B", None)}, "N2": {"LGA": ("C", 3)}}
        with serving(services, ScriptedState(MAP_SCHEMA, rows)):
            async with AsyncQueryableStateClient(services) as client:
                table = await client.table(*STATE)
        assert table.to_pydict() == {
            "name": ["N1", "N1", "N2"],
            "airport": [None, "JFK", "LGA"],
            "origin": ["B", "A", "C"],
            "delay": [None, 1, 3],
        }

    @pytest.mark.parametrize("item_count", [1, 3, 50])
    async def test_a_list_state(self, services: HAServices, item_count: int) -> None:
        """A row for each list, whole, over however many pages it comes."""
        rows = {
            name: [(f"{name}-{n}", None if n == 2 else n) for n in range(item_count)]
            for name in ("N1", "N2", "N3")
        }
        with serving(services, ScriptedState(LIST_SCHEMA, rows)):
            async with AsyncQueryableStateClient(services) as client:
                table = await client.table(*STATE)
        assert table.schema.types == [
            pa.string(),
            pa.list_(pa.field("element", pa.string())),
            pa.list_(pa.field("element", pa.int64())),
        ]
        assert table.to_pydict() == {
            "name": list(rows),
            "origin": [[origin for origin, _ in items] for items in rows.values()],
            "delay": [[delay for _, delay in items] for items in rows.values()],
        }

    async def test_a_table_has_a_limit(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """More rows are an error that says what to do, and are not all read."""
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                assert (await client.table(*STATE, row_limit=100)).num_rows == 100
                with pytest.raises(TableTooLargeError, match="lodestar export") as all_:
                    await client.table(*STATE, row_limit=99)
                count = state.ask_count
                with pytest.raises(TableTooLargeError) as few:
                    await client.table(*STATE, row_limit=3)
        assert all_.value.args == (*STATE, 99)
        assert few.value.row_limit == 3
        assert state.ask_count == count + 2  # one page of each node

    @pytest.mark.parametrize("row_limit", [0, -1, True, 1.0, None])
    async def test_a_limit_that_is_none(
        self, services: HAServices, row_limit: Any
    ) -> None:
        """It is refused before anything is asked."""
        async with AsyncQueryableStateClient(services) as client:
            with pytest.raises(ConfigurationError, match="row_limit"):
                await client.table(*STATE, row_limit=row_limit)

    async def test_batches_come_page_by_page(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """They are fetched as they are needed; all of them are the table."""
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                batches = client.batches(*STATE, columns=["delay"])
                assert state.ask_count == 0
                first = await anext(batches)
                assert state.ask_count == 2
                others = [one async for one in batches]
                table = await client.table(*STATE, columns=["delay"])
        assert 0 < first.num_rows < 20
        assert pa.Table.from_batches([first, *others]).equals(table)

    async def test_batches_of_a_part(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """Of keys with a prefix or within bounds; columns tell their freshness."""
        columns = ["name", "_batch_id", "_generation", "_age_seconds"]
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                parts = [
                    [
                        row
                        async for batch in client.batches(
                            *STATE, columns=columns, freshness=True, **bounds
                        )
                        for row in batch.to_pylist()
                    ]
                    for bounds in (
                        {"prefix": "N9"},
                        {"start": "N2", "stop": "N22"},
                        {"limit": 3},
                    )
                ]
                with pytest.raises(ConfigurationError, match="limit"):
                    client.batches(*STATE, limit=-1)
                with pytest.raises(ConfigurationError, match="_batch_id"):
                    await client.table(*STATE, columns=["_batch_id"])
        names = [[row["name"] for row in part] for part in parts]
        assert names[0] == ["N9", *(f"N9{n}" for n in range(10))]
        assert names[1] == ["N2", "N20", "N21"]
        assert len(names[2]) == 3
        for row in parts[0]:
            assert isinstance(row["_batch_id"], int)
            assert isinstance(row["_generation"], int)
            assert row["_age_seconds"] >= 0

    @pytest.mark.parametrize(
        "bounds",
        [{"limit": 0}, {"start": "N5", "stop": "N2"}, {"prefix": "N1", "stop": "N"}],
    )
    async def test_a_part_that_has_nothing(
        self, services: HAServices, state: ScriptedState, bounds: dict[str, Any]
    ) -> None:
        """One batch without rows, that has the columns; no node is asked."""
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                (batch,) = [
                    batch
                    async for batch in client.batches(*STATE, freshness=True, **bounds)
                ]
        assert batch.num_rows == state.ask_count == 0
        assert batch.schema.names == [
            *("name", "origin", "delay"),
            *("_batch_id", "_age_seconds", "_generation"),
        ]
        assert as_of(batch.schema.metadata) == {"job": "flights", "state": "aircraft"}

    @pytest.mark.parametrize("schema", [VALUE_SCHEMA, LIST_SCHEMA, MAP_SCHEMA])
    async def test_in_any_order(
        self, services: HAServices, schema: StateSchema
    ) -> None:
        """The same rows, also while key groups move; lists are whole."""
        rows: dict[str, Any] = {f"N{n}": (f"A{n}", n) for n in range(60)}
        if schema is LIST_SCHEMA:
            rows = {name: [row] * (row[1] % 20 + 1) for name, row in rows.items()}
        elif schema is MAP_SCHEMA:
            rows = {name: {"JFK": row, None: row} for name, row in rows.items()}
        state = ScriptedState(schema, rows, node_count=3)

        def move(_ask: Ask, _payload: bytes) -> Reply:
            if state.ask_count in {5, 9}:
                state.version += 1
                state.owners = tuple((owner + 1) % 3 for owner in state.owners[::-1])
            return None

        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                table = await client.table(*STATE)
                state.on_ask, state.ask_count = move, 0
                found = [
                    row
                    async for batch in client.batches(*STATE, in_key_order=False)
                    for row in batch.to_pylist()
                ]
                part = [
                    batch.num_rows
                    async for batch in client.batches(
                        *STATE, in_key_order=False, limit=5
                    )
                ]
        assert state.version == 3
        assert sorted(found, key=repr) == sorted(table.to_pylist(), key=repr)
        assert 0 < sum(part) <= 5

    async def test_while_key_groups_move(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """Nothing comes twice, nothing is lost."""

        def move(_ask: Ask, _payload: bytes) -> Reply:
            if state.ask_count in {4, 9}:
                state.version += 1
                state.owners = tuple(1 - owner for owner in state.owners)
            return None

        state.on_ask = move
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                table = await client.table(*STATE)
        assert state.version == 3
        assert table.column("name").to_pylist() == sorted(f"N{n}" for n in range(100))

    async def test_another_state_of_the_same_name(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """Rows of two states are never one table."""

        def replace(_ask: Ask, _payload: bytes) -> Reply:
            if state.ask_count == 4:
                state.state_number += 1_000_000
            return None

        state.on_ask = replace
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                with pytest.raises(StateUnavailableError, match="made anew"):
                    await client.table(*STATE)

    async def test_a_state_that_is_not_there(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """It is the error that `get` has."""
        with serving(services, state):
            async with AsyncQueryableStateClient(services) as client:
                with pytest.raises(UnknownStateError):
                    await client.table("flights", "x")
