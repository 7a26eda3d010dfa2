"""`Walk`: every row once, whatever pages the nodes give and wherever rows move."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import RemoteProtocolError
from queryablestate.client.routes import Route
from queryablestate.client.scanning import ScannedRow
from queryablestate.client.walking import Walk
from queryablestate.schema.key_groups import group_of, group_start
from queryablestate.wire.questions import WalkRows
from tests.queryablestate.scripted_state import ScriptedState


GROUP_COUNT = 4


def route_of(owners: tuple[int, ...] = (0, 1, 0, 1)) -> Route:
    """Return a route to a state whose key groups are with these nodes."""
    state = ScriptedState(node_count=3, max_parallelism=GROUP_COUNT)
    state.owners = owners
    return Route(state.description, None)


def walk_of(*, is_serial: bool = False, limit: int | None = None) -> Walk:
    """Return a walk over all key groups, a few rows at a time."""
    return Walk(None, limit=limit, page_row_count_max=4, is_serial=is_serial)


def asked(walk: Walk) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Return which nodes are asked for which runs of key groups."""
    return [(index, operation.key_groups) for index, operation in walk.wanted()]


owner_tables = st.tuples(*[st.integers(0, 2)] * GROUP_COUNT)


@pytest.mark.proves("F7")
class TestWalk:
    """F7: a state is read whole, in the order in which it is stored."""

    @given(
        kept=st.lists(
            st.tuples(st.integers(0, GROUP_COUNT - 1), st.binary(max_size=2)),
            unique=True,
            max_size=40,
        ),
        is_serial=st.booleans(),
        limit=st.none() | st.integers(0, 30),
        wanted_groups=st.none() | st.sets(st.integers(0, GROUP_COUNT - 1)),
        tables=st.lists(st.none() | owner_tables, max_size=12),
        data=st.data(),
    )
    def test_every_row_once(  # noqa: PLR0917 (drawn by Hypothesis)
        self,
        kept: list[tuple[int, bytes]],
        is_serial: bool,
        limit: int | None,
        wanted_groups: set[int] | None,
        tables: list[tuple[int, ...] | None],
        data: st.DataObject,
    ) -> None:
        """Whatever pages nodes give, and however often key groups move meanwhile."""
        stored = sorted(group_start(group) + key for group, key in kept)
        expected = [
            key
            for key in stored
            if wanted_groups is None or group_of(key) in wanted_groups
        ]
        walk = Walk(
            wanted_groups, limit=limit, page_row_count_max=4, is_serial=is_serial
        )
        owners: tuple[int, ...] = (0, 1, 0, 1)
        walk.begin(route_of(owners))
        told: list[ScannedRow] = []
        moves = iter(tables)
        for _ in range(500):
            if walk.is_over:
                break
            wanted = walk.wanted()
            assert wanted, "it would never end"
            assert len(wanted) == 1 or not is_serial
            moved = next(moves, None)
            if moved is not None:  # the route is stale
                owners = moved
                walk.begin(route_of(owners))
                continue
            for node_index, operation in wanted:
                assert 1 <= operation.limit <= 4
                rows = [
                    key
                    for key in stored
                    if key >= operation.start
                    and any(a <= group_of(key) <= b for a, b in operation.key_groups)
                ]
                assert all(
                    owners[group] == node_index
                    for first, last in operation.key_groups
                    for group in range(first, last + 1)
                )
                count = data.draw(st.integers(0, operation.limit))
                if count == 0 and rows and rows[0] == operation.start:
                    count = 1  # it has to get on
                next_start = rows[count] if count < len(rows) else None
                walk.take(node_index, [(key, b"") for key in rows[:count]], next_start)
            told += walk.pop()
        assert walk.is_over
        found = [key for key, _ in told]
        if limit is not None and limit < len(expected):
            assert len(set(found)) == len(found) == limit
            assert set(found) <= set(expected)
        else:
            assert sorted(found) == expected
        if is_serial:  # what has a key group in common comes one behind the other
            groups = [group for group, _ in groupby(found, group_of)]
            assert len(set(groups)) == len(groups)

    def test_nodes_are_asked_at_once(self) -> None:
        """Each for what it has; one after the other where that is wanted."""
        walk = walk_of()
        walk.begin(route_of((0, 0, 1, 0)))
        assert walk.wanted() == [
            (0, WalkRows(key_groups=((0, 1), (3, 3)), start=b"", limit=4)),
            (1, WalkRows(key_groups=((2, 2),), start=b"", limit=4)),
        ]
        walk = walk_of(is_serial=True)
        walk.begin(route_of((0, 0, 1, 0)))
        assert asked(walk) == [(0, ((0, 1), (3, 3)))]

    def test_a_part_that_moves_goes_on_where_it_was(self) -> None:
        """Its new node is asked first for the key group in the midst of which it is."""
        walk = walk_of(is_serial=True)
        walk.begin(route_of((0, 0, 0, 0)))
        walk.take(0, [(group_start(1) + b"a", b"")], group_start(1) + b"b")
        walk.begin(route_of((0, 2, 0, 2)))
        assert walk.wanted() == [
            (
                2,
                WalkRows(
                    key_groups=((1, 1), (3, 3)), start=group_start(1) + b"b", limit=4
                ),
            )
        ]

    def test_no_rows_are_no_question(self) -> None:
        """A limit of zero is over before it begins."""
        walk = walk_of(limit=0)
        walk.begin(route_of())
        assert walk.is_over

    @pytest.mark.parametrize("next_start", [b"", group_start(0) + b"a"])
    def test_a_node_that_goes_round_in_circles(self, next_start: bytes) -> None:
        """A page that does not get on is an error, not a walk without end."""
        walk = walk_of()
        walk.begin(route_of())
        walk.take(0, [], group_start(0) + b"a")
        with pytest.raises(RemoteProtocolError):
            walk.take(0, [], next_start)
