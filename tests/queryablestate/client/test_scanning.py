"""`Scan`: every row once and in order, whatever pages the nodes give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import RemoteProtocolError
from queryablestate import KeyTooLargeError, WrongKeyTypeError
from queryablestate.client.routes import Route
from queryablestate.client.scanning import (
    Scan,
    ScanBounds,
    ScannedRow,
    bounds_of,
    map_bounds_of,
    prefix_end,
)
from queryablestate.wire.questions import ScanRows
from tests.queryablestate.scripted_state import MAP_SCHEMA, ScriptedState


def route_of(*, node_count: int = 2) -> Route:
    """Return a route to a state with one string key."""
    return Route(ScriptedState(node_count=node_count).description, None)


def is_within(bounds: ScanBounds, encoded: bytes) -> bool:
    """Return whether a scan within *bounds* comes to that key."""
    return bounds.start <= encoded and (bounds.stop is None or encoded < bounds.stop)


def row(key: bytes) -> ScannedRow:
    """Return a row as a page has it."""
    return (key, b"stored")


class TestBounds:
    def test_nothing_is_everything(self) -> None:
        """Without bounds a scan begins at the beginning, and has no end."""
        assert bounds_of(route_of(), prefix=None, start=None, stop=None) == ScanBounds(
            b"", None
        )

    def test_start_and_stop(self) -> None:
        """The first is included, the last is not."""
        route = route_of()
        encode = route.key_codec.encode
        found = bounds_of(route, prefix=None, start="b", stop="d")
        assert found == ScanBounds(encode("b"), encode("d"))

    def test_a_prefix_is_an_interval(self) -> None:
        """All keys that begin with it, and no others."""
        route = route_of()
        found = bounds_of(route, prefix="N1", start=None, stop=None)
        encode = route.key_codec.encode
        inside = ["N1", "N10", "N1\U0010ffff", "N1\0"]
        outside = ["N", "N0", "N0\U0010ffff", "N2", "", "n1"]
        assert all(is_within(found, encode(key)) for key in inside)
        assert not any(is_within(found, encode(key)) for key in outside)

    def test_both_together(self) -> None:
        """A prefix and a range leave what is in both."""
        route = route_of()
        encode = route.key_codec.encode
        whole = bounds_of(route, prefix="N", start=None, stop=None)
        found = bounds_of(route, prefix="N", start="N5", stop="Z")
        assert found == ScanBounds(encode("N5"), whole.stop)
        found = bounds_of(route, prefix="N", start="A", stop="N5")
        assert found == ScanBounds(whole.start, encode("N5"))

    def test_what_is_no_key(self) -> None:
        """Bounds are keys, and are checked as such."""
        route = route_of()
        for bounds in ({"prefix": 7}, {"start": 7}, {"stop": 7}):
            arguments = {"prefix": None, "start": None, "stop": None, **bounds}
            with pytest.raises(WrongKeyTypeError):
                bounds_of(route, **arguments)
        with pytest.raises(KeyTooLargeError):
            bounds_of(route, prefix=None, start="x" * 500, stop=None)

    @given(
        key=st.text(max_size=3),
        other=st.text(max_size=3),
        map_key=st.none() | st.text(max_size=3),
        start=st.none() | st.text(max_size=3),
        stop=st.none() | st.text(max_size=3),
    )
    def test_a_map_is_an_interval(
        self,
        key: str,
        other: str,
        map_key: str | None,
        start: str | None,
        stop: str | None,
    ) -> None:
        """All entries of the map within the bounds, and none of another one."""
        route = Route(ScriptedState(MAP_SCHEMA).description, None)
        codec = route.key_codec
        found = map_bounds_of(route, key, start=start, stop=stop)
        assert found.key_group == codec.key_group(key)
        row_key = codec.map_entry_key(other, map_key)[2:]
        encode = codec.encode_map_key
        is_inside = (
            key == other
            and (start is None or encode(start) <= encode(map_key))
            and (stop is None or encode(map_key) < encode(stop))
        )
        assert is_within(found, row_key) == is_inside

    @given(st.binary(), st.binary())
    def test_the_end_of_a_prefix(self, prefix: bytes, key: bytes) -> None:
        """What begins with a prefix is below its end, everything else is not inside."""
        end = prefix_end(prefix)
        is_inside = prefix <= key and (end is None or key < end)
        assert is_inside == key.startswith(prefix)


class TestScan:
    @given(
        placed=st.dictionaries(
            st.binary(min_size=1, max_size=3), st.integers(0, 2), max_size=40
        ),
        start=st.binary(max_size=2),
        stop=st.none() | st.binary(max_size=2),
        limit=st.none() | st.integers(0, 30),
        data=st.data(),
    )
    def test_every_row_once_and_in_order(
        self,
        placed: dict[bytes, int],
        start: bytes,
        stop: bytes | None,
        limit: int | None,
        data: st.DataObject,
    ) -> None:
        """Whatever pages nodes give, and however often the keys move meanwhile."""
        expected = sorted(
            key for key in placed if key >= start and (stop is None or key < stop)
        )[:limit]
        route = route_of(node_count=3)
        scan = Scan(ScanBounds(start, stop), limit=limit, page_row_count_max=4)
        scan.begin(route)
        told: list[bytes] = []
        moves = iter(data.draw(st.lists(st.booleans(), max_size=12)))
        for _ in range(500):
            if scan.is_over:
                break
            wanted = scan.wanted()
            assert wanted, "it would never end"
            if next(moves, False):
                # The route is stale: all keys are somewhere else.
                placed = {key: (node + 1) % 3 for key, node in placed.items()}
                scan.begin(route)
                continue
            for node_index, operation in wanted:
                assert 1 <= operation.limit <= 4
                rows = sorted(
                    key
                    for key, node in placed.items()
                    if node == node_index
                    and key >= operation.start
                    and (operation.stop is None or key < operation.stop)
                )
                # A page may be shorter than it might be, and empty, too.
                count = data.draw(st.integers(0, operation.limit))
                if count == 0 and rows and rows[0] == operation.start:
                    count = 1  # it has to get on
                next_start = rows[count] if count < len(rows) else None
                scan.take(node_index, [row(key) for key in rows[:count]], next_start)
            told += [key for key, _ in scan.pop()]
        assert scan.is_over
        assert told == expected

    def test_an_interval_without_keys(self) -> None:
        """Where the end is not behind the beginning, no node is asked."""
        for stop in (b"a", b"b"):
            scan = Scan(ScanBounds(b"b", stop), limit=None, page_row_count_max=10)
            scan.begin(route_of())
            assert scan.is_over

    def test_no_rows_are_no_question(self) -> None:
        """A limit of zero is over before it begins."""
        scan = Scan(ScanBounds(b"", None), limit=0, page_row_count_max=10)
        scan.begin(route_of())
        assert scan.is_over

    def test_pages_are_no_larger_than_needed(self) -> None:
        """Neither than the limit leaves, nor than the proxy allows."""
        scan = Scan(ScanBounds(b"", None), limit=3, page_row_count_max=10)
        scan.begin(route_of())
        assert scan.wanted() == [
            (index, ScanRows(start=b"", stop=None, limit=3)) for index in (0, 1)
        ]
        scan = Scan(ScanBounds(b"", None), limit=None, page_row_count_max=10_000)
        scan.begin(route_of())
        assert [operation.limit for _, operation in scan.wanted()] == [1_000] * 2

    def test_nodes_that_have_enough_are_not_asked(self) -> None:
        """Only who has less than half a page left is asked for more."""
        scan = Scan(ScanBounds(b"", None), limit=None, page_row_count_max=4)
        scan.begin(route_of())
        scan.take(0, [row(b"p"), row(b"q"), row(b"r"), row(b"s")], b"t")
        scan.take(1, [row(b"a"), row(b"b")], b"c")
        assert [key for key, _ in scan.pop()] == [b"a", b"b"]
        assert [index for index, _ in scan.wanted()] == [1]

    @pytest.mark.parametrize("next_start", [b"", b"a"])
    def test_a_node_that_goes_round_in_circles(self, next_start: bytes) -> None:
        """A page that does not get on is an error, not a scan without end."""
        scan = Scan(ScanBounds(b"a", None), limit=None, page_row_count_max=4)
        scan.begin(route_of())
        with pytest.raises(RemoteProtocolError):
            scan.take(0, [], next_start)
