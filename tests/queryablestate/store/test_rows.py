from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nameservice import RemoteProtocolError
from queryablestate import KeyTooLargeError
from queryablestate.schema.key_groups import group_start
from queryablestate.schema.keys import KEY_SIZE_BYTES_MAX
from queryablestate.store.rows import (
    LiveValues,
    OrderedRows,
    check_chunk,
    item_rows,
    joined_groups,
    successor,
)
from queryablestate.wire.staging_messages import StagedRows
from tests.queryablestate.store_batches import chunk, expiring, key


ENVELOPE, _ = chunk([])


def rows(
    keys: list[bytes],
    values: list[bytes | None] | None = None,
    orders: list[bytes] | None = None,
) -> StagedRows:
    """Return staged rows, with a value for each key unless *values* says otherwise."""
    return StagedRows(
        state_number=1,
        keys=keys,
        values=[b""] * len(keys) if values is None else values,
        orders=orders,
    )


class TestCheckChunk:
    @pytest.mark.parametrize(
        "staged",
        [
            rows([]),
            rows([b"\0\0"]),
            rows([b"\0\0" + b"k" * KEY_SIZE_BYTES_MAX]),
            rows([key(0, "a"), key(0, "a"), key(1)], [None, b"1", b""]),
            rows([key(0), key(1)], orders=[b"9", b"1"]),
        ],
    )
    def test_what_can_be_applied_passes(self, staged: StagedRows) -> None:
        """Sorted keys, also the same one again, with or without orders."""
        check_chunk(ENVELOPE, staged)

    @pytest.mark.proves("W3")
    @pytest.mark.parametrize(
        "staged",
        [
            rows([key(0)], []),
            rows([], [b"1"]),
            rows([key(0)], [b"1"], []),
            rows([key(0)], [b"1"], [b"", b""]),
            rows([b""]),
            rows([b"\0"]),
            rows([key(1), key(0)]),
            rows([key(0, "b"), key(0, "a"), key(0, "c")]),
        ],
    )
    def test_what_would_stop_the_chain_is_refused(self, staged: StagedRows) -> None:
        """A decided batch must be applicable: it is checked when it comes (W3)."""
        with pytest.raises(RemoteProtocolError):
            check_chunk(ENVELOPE, staged)

    @pytest.mark.parametrize("index", [-1, 2**32])
    def test_an_index_out_of_range_is_refused(self, index: int) -> None:
        """A chunk index has four bytes in a key."""
        with pytest.raises(RemoteProtocolError, match=str(index)):
            check_chunk(replace(ENVELOPE, chunk_index=index), rows([]))

    def test_a_key_that_is_too_long_is_refused_with_its_size(self) -> None:
        """The group's two bytes are not counted, as they are not in the codec."""
        too_long = b"\0\0" + b"k" * (KEY_SIZE_BYTES_MAX + 1)
        with pytest.raises(KeyTooLargeError) as caught:
            check_chunk(ENVELOPE, rows([b"\0\0", too_long]))
        assert caught.value.args == (KEY_SIZE_BYTES_MAX + 1, KEY_SIZE_BYTES_MAX)


_DEALT = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b"]),
        st.sampled_from([None, b"", b"1", b"2"]),
        st.sampled_from([b"", b"1", b"2"]),
    )
)


@pytest.mark.proves("W6")
class TestOrderedRows:
    def test_the_greatest_order_wins_over_all_chunks(self) -> None:
        """Whatever the order of chunks is, and a delete takes part (W6)."""
        chunks: list[tuple[list[bytes], list[bytes | None], list[bytes]]] = [
            ([b"a", b"b", b"c"], [b"old", None, b"x"], [b"1", b"2", b"1"]),
            ([b"a", b"b", b"c"], [b"new", b"old", None], [b"2", b"1", b"2"]),
        ]
        for ordered in (chunks, chunks[::-1]):
            winners = OrderedRows(is_list=False)
            for keys, values, orders in ordered:
                winners.add(keys, values, orders)
            assert winners.settled() == ([b"a", b"b", b"c"], [b"new", None, None])

    def test_between_equal_orders_the_greatest_value_wins_and_a_delete_loses(
        self,
    ) -> None:
        """So that the result does not depend on which task was faster (W6)."""
        for values in ([None, b"", b"a"], [b"a", b"", None], [b"", b"a", None]):
            winners = OrderedRows(is_list=False)
            for value in values:
                winners.add([b"k"], [value], [b"1"])
            assert winners.settled() == ([b"k"], [b"a"])
        winners = OrderedRows(is_list=False)
        winners.add([b"k", b"k"], [None, b""], [b"1", b"1"])
        assert winners.settled() == ([b"k"], [b""])

    def test_the_items_of_a_list_are_all_kept_in_their_orders(self) -> None:
        """Equal orders leave the items as they came; keys are sorted (W6)."""
        items = OrderedRows(is_list=True)
        items.add([b"b", b"b", b"c"], [b"b9", b"b1", b"c1"], [b"9", b"1", b"1"])
        items.add([b"a", b"b", b"b"], [b"a1", None, b"b9'"], [b"1", b"5", b"9"])
        assert items.settled() == (
            [b"a", b"b", b"b", b"b", b"b", b"c"],
            [b"a1", b"b1", None, b"b9", b"b9'", b"c1"],
        )

    @given(dealt=_DEALT, chunk_count=st.integers(1, 3))
    def test_no_order_of_arrival_matters(
        self, dealt: list[tuple[bytes, bytes | None, bytes]], chunk_count: int
    ) -> None:
        """However rows are dealt out to chunks, the same ones win (W6)."""
        settled = []
        for arrived in (dealt, dealt[::-1]):
            winners = OrderedRows(is_list=False)
            for part in range(chunk_count):
                some = arrived[part::chunk_count]
                winners.add(
                    [row[0] for row in some],
                    [row[1] for row in some],
                    [row[2] for row in some],
                )
            settled.append(winners.settled())
        assert settled[0] == settled[1]
        assert settled[0][0] == sorted({row[0] for row in dealt})


class TestItemRows:
    @pytest.mark.proves("W6")
    def test_items_are_counted_for_each_key_over_all_chunks(self) -> None:
        """Indexes rise in the order in which items come; a clear takes none (W6)."""
        counts: dict[bytes, int] = {}
        first = list(
            item_rows(
                [b"a", b"b", b"a"], [b"1", b"2", b"3"], index_first=512, counts=counts
            )
        )
        second = list(
            item_rows([b"a", b"a"], [None, b"4"], index_first=512, counts=counts)
        )
        index = [number.to_bytes(8, "big") for number in (512, 513, 514)]
        assert first == [
            (b"a" + index[0], b"1"),
            (b"b" + index[0], b"2"),
            (b"a" + index[1], b"3"),
        ]
        assert second == [(b"a", None), (b"a" + index[2], b"4")]


class TestRanges:
    @given(st.binary(max_size=4), st.binary(max_size=6))
    def test_a_successor_is_above_whatever_begins_with_the_prefix(
        self, prefix: bytes, text: bytes
    ) -> None:
        """And nothing that does not lies between them."""
        beyond = successor(prefix)
        if beyond is None:
            assert prefix.strip(b"\xff") == b""
        elif text.startswith(prefix):
            assert text < beyond
        else:
            assert text < prefix or text >= beyond

    def test_neighbouring_groups_are_one_range(self) -> None:
        """In any order; the last group of all has no end."""
        assert joined_groups([]) == []
        assert joined_groups([3, 1, 2, 7]) == [
            (b"\x00\x01", b"\x00\x04"),
            (b"\x00\x07", b"\x00\x08"),
        ]
        assert joined_groups([255, 256]) == [(b"\x00\xff", b"\x01\x01")]
        assert joined_groups([0xFFFE, 0xFFFF]) == [(b"\xff\xfe", None)]
        assert group_start(258) == b"\x01\x02"


class TestLiveValues:
    def test_without_ttl_values_are_as_they_are_stored(self) -> None:
        """Nothing is cut off, and nothing expires."""
        live = LiveValues(has_ttl=False, now_us=10)
        assert live.value_of(b"12345678value") == b"12345678value"
        assert live.valid_until_us is None

    @pytest.mark.proves("W6")
    @pytest.mark.parametrize(
        ("expires_at_us", "value"), [(0, b"v"), (9, None), (10, None), (11, b"v")]
    )
    def test_a_row_is_absent_from_its_expiry_on(
        self, expires_at_us: int, value: bytes | None
    ) -> None:
        """0 is never; at the very microsecond it is gone (W6)."""
        live = LiveValues(has_ttl=True, now_us=10)
        assert live.value_of(expiring(b"v", expires_at_us)) == value

    @pytest.mark.proves("Q3")
    def test_an_answer_is_valid_until_its_first_value_expires(self) -> None:
        """What has expired or never does has no say (Q3)."""
        live = LiveValues(has_ttl=True, now_us=10)
        live.value_of(expiring(b"", 5))
        live.value_of(expiring(b"", 0))
        assert live.valid_until_us is None
        live.value_of(expiring(b"", 700))
        live.value_of(expiring(b"", 300))
        live.value_of(expiring(b"", 500))
        assert live.valid_until_us == 300
