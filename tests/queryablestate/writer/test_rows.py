from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.writer.rows import StateRows, cut_rows, settle_rows, split_rows


def key(group: int, text: str) -> bytes:
    """Return a storage key."""
    return group.to_bytes(2, "big") + text.encode()


KEYS = st.builds(key, st.integers(0, 5), st.sampled_from(["a", "b", "c", "dd"]))
VALUES = st.none() | st.sampled_from([b"", b"1", b"2", b"33"])
ORDERS = st.sampled_from([b"\x00", b"\x01\x01", b"\x01\x02"])
ROWS = st.lists(st.tuples(KEYS, VALUES, ORDERS), max_size=12)


def as_rows(
    rows: list[tuple[bytes, bytes | None, bytes]], *, is_ordered: bool
) -> StateRows:
    """Return *rows* column by column."""
    return StateRows(
        keys=[row[0] for row in rows],
        values=[row[1] for row in rows],
        orders=[row[2] for row in rows] if is_ordered else None,
    )


def rank(row: tuple[bytes, bytes | None, bytes]) -> tuple[bytes, bool, bytes]:
    """Return what decides between rows of one key."""
    return (row[2], row[1] is not None, row[1] or b"")


@pytest.mark.proves("W6")
class TestSettling:
    @given(ROWS)
    def test_the_last_row_of_a_key_stays(
        self, rows: list[tuple[bytes, bytes | None, bytes]]
    ) -> None:
        """Without an order, what came last is what holds; keys are sorted (W6)."""
        settled = settle_rows(as_rows(rows, is_ordered=False), is_list=False)
        expected = {row[0]: row[1] for row in rows}
        assert settled.keys == sorted(expected)
        assert settled.values == [expected[one] for one in sorted(expected)]
        assert settled.orders is None

    @given(ROWS)
    def test_the_greatest_row_of_a_key_stays(
        self, rows: list[tuple[bytes, bytes | None, bytes]]
    ) -> None:
        """With an order, it does not matter in which order rows came (W6)."""
        settled = settle_rows(as_rows(rows, is_ordered=True), is_list=False)
        best = {
            one: max((row for row in rows if row[0] == one), key=rank)
            for one in sorted({row[0] for row in rows})
        }
        assert settled.keys == list(best)
        assert settled.values == [row[1] for row in best.values()]
        assert settled.orders == [row[2] for row in best.values()]

    @given(ROWS)
    def test_a_list_keeps_all_in_their_order(
        self, rows: list[tuple[bytes, bytes | None, bytes]]
    ) -> None:
        """Items stay in the order of arrival, or in that of their orders (W6)."""
        settled = settle_rows(as_rows(rows, is_ordered=False), is_list=True)
        expected = sorted(rows, key=lambda row: row[0])
        assert settled.keys == [row[0] for row in expected]
        assert settled.values == [row[1] for row in expected]
        settled = settle_rows(as_rows(rows, is_ordered=True), is_list=True)
        expected = sorted(rows, key=lambda row: (row[0], row[2]))
        assert settled.keys == [row[0] for row in expected]
        assert settled.values == [row[1] for row in expected]
        assert settled.orders == [row[2] for row in expected]


class TestSplitting:
    @pytest.mark.proves("W2")
    @given(
        ROWS,
        st.lists(st.sampled_from([(0,), (1,), (2, 0), (1, 2)]), min_size=6, max_size=6),
        st.booleans(),
    )
    def test_every_owner_gets_every_row_of_its_groups(
        self,
        rows: list[tuple[bytes, bytes | None, bytes]],
        owners: list[tuple[int, ...]],
        is_ordered: bool,
    ) -> None:
        """Nothing goes elsewhere, nothing is lost, and the order is kept (W2)."""
        settled = settle_rows(as_rows(rows, is_ordered=is_ordered), is_list=True)
        dealt = split_rows(settled, owners)
        assert list(dealt) == sorted(dealt)
        for index in range(3):
            places = [
                place
                for place, one in enumerate(settled.keys)
                if index in owners[int.from_bytes(one[:2], "big")]
            ]
            if not places:
                assert index not in dealt
                continue
            assert dealt[index].keys == [settled.keys[place] for place in places]
            assert dealt[index].values == [settled.values[place] for place in places]
            if settled.orders is None:
                assert dealt[index].orders is None
            else:
                expected = [settled.orders[place] for place in places]
                assert dealt[index].orders == expected


class TestCutting:
    @given(ROWS, st.integers(1, 120), st.booleans())
    def test_pieces_are_small_and_make_the_whole(
        self,
        rows: list[tuple[bytes, bytes | None, bytes]],
        size_bytes_max: int,
        is_ordered: bool,
    ) -> None:
        """No piece exceeds the limit, unless it is one row; all of them are all."""
        whole = as_rows(rows, is_ordered=is_ordered)
        pieces = list(cut_rows(whole, size_bytes_max=size_bytes_max))
        assert [one for piece in pieces for one in piece.keys] == whole.keys
        assert [one for piece in pieces for one in piece.values] == whole.values
        if whole.orders is not None:
            found = [one for piece in pieces for one in piece.orders or ()]
            assert found == whole.orders
        for piece in pieces:
            assert piece.keys
            size_bytes = sum(
                12 + len(one) + len(value or b"")
                for one, value in zip(piece.keys, piece.values, strict=True)
            ) + sum(map(len, piece.orders or ()))
            assert size_bytes <= size_bytes_max or len(piece.keys) == 1

    def test_as_few_pieces_as_can_be(self) -> None:
        """A piece ends only where the next row would not fit."""
        rows = StateRows(keys=[b"00a"] * 5, values=[b"12345"] * 5)
        pieces = list(cut_rows(rows, size_bytes_max=40))
        assert [len(piece.keys) for piece in pieces] == [2, 2, 1]
        assert list(cut_rows(rows, size_bytes_max=100)) == [rows]
        assert list(cut_rows(StateRows(keys=[], values=[]), size_bytes_max=9)) == []
