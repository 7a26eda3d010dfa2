"""`PartitionScanner` over a real socket: every row once, also while key groups move."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from haservices import open_ha_services
from queryablestate import StateUnavailableError, UnknownStateError
from queryablestate.client.partition_scan import PartitionScanner
from queryablestate.schema.schema import StateSchema
from queryablestate.wire.questions import Ask, WalkRows
from tests.queryablestate.scripted_proxy import (
    Lead,
    Reply,
    ScriptedProxy,
    error_frame,
)
from tests.queryablestate.scripted_state import (
    DELAY,
    LIST_SCHEMA,
    MAP_SCHEMA,
    NAME,
    ORIGIN,
    VALUE_SCHEMA,
    WHERE,
    ScriptedState,
)


pytestmark = pytest.mark.shells

ROWS = {f"plane-{number:03}": (f"at {number % 7}", number) for number in range(200)}
EXPECTED = sorted((key, *row) for key, row in ROWS.items())


@contextmanager
def scanning(
    state: ScriptedState, *, state_name: str = "aircraft"
) -> Iterator[PartitionScanner]:
    """Yield a scanner of *state*."""
    with (
        ScriptedProxy(state) as proxy,
        open_ha_services("embedded:") as ha,
        Lead(ha, proxy.address),
        PartitionScanner(
            ha, job_id="flights", state_name=state_name, deadline_seconds=20.0
        ) as scanner,
    ):
        yield scanner


def all_rows(
    scanner: PartitionScanner, parts: Sequence[Sequence[int]]
) -> list[tuple[Any, ...]]:
    """Return the rows of all parts, sorted."""
    return sorted(row for part in parts for page in scanner.rows(part) for row in page)


def moving(
    state: ScriptedState, when: int, owners: Callable[[int], int]
) -> Callable[[Ask, bytes], Reply]:
    """Return what deals key groups anew before the page of that number."""

    def on_ask(ask: Ask, _: bytes) -> Reply:
        if isinstance(ask.operation, WalkRows) and state.ask_count == when:
            state.owners = tuple(map(owners, range(state.max_parallelism)))
            state.version += 1
        return None

    return on_ask


class TestParts:
    def test_they_are_nodes(self) -> None:
        """Disjoint and complete; what a node holds is read together."""
        with scanning(ScriptedState(VALUE_SCHEMA, ROWS, node_count=3)) as scanner:
            parts = scanner.parts()
            assert parts == [(0, 3, 6), (1, 4, 7), (2, 5)]
            assert scanner.columns() == (NAME, ORIGIN, DELAY)
            assert all_rows(scanner, parts) == EXPECTED

    def test_parts_of_parts_are_disjoint(self) -> None:
        """Any cut of the key groups will do: rows of others are passed over."""
        with scanning(ScriptedState(VALUE_SCHEMA, ROWS)) as scanner:
            assert all_rows(scanner, [(0, 1, 2), (7,), (3, 4, 5, 6)]) == EXPECTED
            assert 0 < len(all_rows(scanner, [(3,)])) < len(EXPECTED)

    @pytest.mark.parametrize(
        ("schema", "rows", "columns", "expected"),
        [
            (
                LIST_SCHEMA,
                {"a": [("x", 1), ("y", 2)], "b": [("z", 3)]},
                (NAME, ORIGIN, DELAY),
                [("a", "x", 1), ("a", "y", 2), ("b", "z", 3)],
            ),
            (
                MAP_SCHEMA,
                {"a": {"JFK": ("x", 1), "BOS": ("y", 2)}, "b": {}},
                (NAME, WHERE, ORIGIN, DELAY),
                [("a", "BOS", "y", 2), ("a", "JFK", "x", 1)],
            ),
        ],
    )
    def test_lists_and_maps_have_a_row_for_each_entry(
        self,
        schema: StateSchema,
        rows: dict[str, Any],
        columns: tuple[Any, ...],
        expected: list[tuple[Any, ...]],
    ) -> None:
        """The map key is a column of its own."""
        with scanning(ScriptedState(schema, rows)) as scanner:
            assert scanner.columns() == columns
            assert all_rows(scanner, scanner.parts()) == expected


class TestMoves:
    @pytest.mark.parametrize("seed", range(12))
    def test_no_row_is_lost_or_doubled(self, seed: int) -> None:
        """Key groups move to other nodes before some page, and once more later."""
        rng = random.Random(seed)
        state = ScriptedState(VALUE_SCHEMA, ROWS, node_count=3)
        state.page_row_count_max = 9
        first, second = rng.randrange(1, 12), rng.randrange(12, 20)
        table = [rng.randrange(3) for _ in range(state.max_parallelism)]
        again = [rng.randrange(3) for _ in range(state.max_parallelism)]
        move_first = moving(state, first, table.__getitem__)
        move_again = moving(state, second, again.__getitem__)

        def on_ask(ask: Ask, payload: bytes) -> Reply:
            move_first(ask, payload)
            move_again(ask, payload)
            return None

        with scanning(state) as scanner:
            parts = scanner.parts()
            state.ask_count = 0
            state.on_ask = on_ask
            assert all_rows(scanner, parts) == EXPECTED
            assert state.version == 3


class TestTrouble:
    def test_a_node_that_is_away_is_told(self) -> None:
        """With what the proxy says of it."""
        state = ScriptedState(VALUE_SCHEMA, ROWS)

        def on_ask(ask: Ask, _: bytes) -> Reply:
            if ask.node_index == 1:
                return error_frame(
                    "state-unavailable",
                    ask.request_id,
                    "flights",
                    "aircraft",
                    (1, 3, 5, 7),
                    1.0,
                    "node-1 is away",
                )
            return None

        state.on_ask = on_ask
        with scanning(state) as scanner:
            first, second = scanner.parts()
            assert all_rows(scanner, [first])
            with pytest.raises(StateUnavailableError, match="node-1 is away"):
                all_rows(scanner, [second])

    def test_a_state_that_is_not_there_is_told(self) -> None:
        """Before anything is read."""
        with (
            scanning(ScriptedState(VALUE_SCHEMA), state_name="other") as scanner,
            pytest.raises(UnknownStateError),
        ):
            scanner.parts()

    @pytest.mark.proves("F7")
    @pytest.mark.parametrize("max_parallelism", [2, 8])
    def test_another_state_of_the_same_name(self, max_parallelism: int) -> None:
        """
        Rows of two states are never told as those of one.

        A part went on in the new state; of key groups that this one has not, it ended
        with an IndexError.
        """
        state = ScriptedState(VALUE_SCHEMA, ROWS)
        state.page_row_count_max = 3
        with scanning(state) as scanner:
            first, second = scanner.parts()
            pages = scanner.rows(first)
            next(pages)
            state.state_number += 1_000_000
            state.max_parallelism = max_parallelism
            state.owners = (0, 1) * (max_parallelism // 2)
            with pytest.raises(StateUnavailableError, match="made anew"):
                list(pages)
            if max_parallelism < len(first + second):
                with pytest.raises(StateUnavailableError, match="made anew"):
                    list(scanner.rows(second))
