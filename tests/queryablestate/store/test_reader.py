from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nameservice import LocalProtocolError, StorageError
from queryablestate.store import cursors as store_cursors
from queryablestate.store import pages as store_pages
from queryablestate.store import reader as store_reader
from queryablestate.store.groups import row_ranges
from queryablestate.store.pages import Page, ScanRead
from queryablestate.store.steps import ReadWork
from queryablestate.store.store import StateStore
from queryablestate.wire.records import StateDropped
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    NOW_US,
    chunk,
    decided,
    expiring,
    key,
    state,
    write,
)
from tests.queryablestate.whole_reads import WholeReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Yield an empty store."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as made:
        yield made


@pytest.fixture
def reader(store: StateStore) -> WholeReader:
    """Return a reader of it."""
    return WholeReader(store)


LIST = state(kind="list")
MAP = state(kind="map")
ODD_KEYS = [b"", b"\0", b"\0\0", b"\xff" * 400, b"k" * 512, b"k" * 100_000]
"""Keys that no row has, and of which LMDB takes only some."""


def pages(
    reader: WholeReader,
    groups: Sequence[int],
    *,
    start: bytes = b"",
    stop: bytes | None = None,
    limit: int = 10,
    now_us: int = NOW_US,
) -> list[ScanRead]:
    """Return all pages of a scan over state 1."""
    read = [reader.scan(1, groups, start, stop, limit, now_us)]
    while (next_start := read[-1].next_start) is not None:
        assert next_start > start
        start = next_start
        read.append(reader.scan(1, groups, start, stop, limit, now_us))
    return read


def scanned(read: list[ScanRead]) -> list[tuple[bytes, bytes]]:
    """Return key and value of all rows of *read*."""
    rows = [one for page in read for one in page.rows]
    return list(zip(rows[::2], rows[1::2], strict=True))


class TestAnyRead:
    @pytest.mark.proves("W7")
    def test_a_state_that_is_not_there_has_no_view(self, reader: WholeReader) -> None:
        """It is told apart from a state without rows, whatever is asked (W7)."""
        keys = [key(0), key(1)]
        for read in (
            reader.get_values(1, keys, NOW_US),
            reader.get_items(1, keys, 0, None, NOW_US),
            reader.get_entries(1, keys, NOW_US),
        ):
            assert (read.view, read.values, read.valid_until_us) == (
                None,
                [None, None],
                None,
            )
        assert reader.scan(1, [0], b"", None, 10, NOW_US) == ScanRead(
            view=None, rows=[], next_start=None, valid_until_us=None
        )
        assert reader.count(1, [0], NOW_US) == (None, 0)

    def test_a_state_without_rows_has_a_view(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Nothing is there, as of a batch."""
        store.apply(JOB, decided(1, {}))
        view = store.state(1)
        assert view is not None
        assert reader.get_values(1, [key(0)], NOW_US).view == view
        assert reader.get_values(1, [], NOW_US).values == []
        assert reader.get_items(1, [key(0)], 0, None, NOW_US).values == [None]
        assert reader.get_entries(1, [key(0)], NOW_US).values == [None]
        assert reader.scan(1, [0], b"", None, 10, NOW_US).view == view
        assert reader.scan(1, [], b"", None, 10, NOW_US).rows == []
        assert reader.count(1, [0], NOW_US) == (view, 0)
        assert reader.count(1, [], NOW_US) == (view, 0)

    @pytest.mark.proves("Q1")
    def test_the_view_is_as_new_as_the_rows(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """What a reader remembers of a state is never older than what it reads (Q1)."""
        for batch_id in range(1, 4):
            write(store, [(key(0), b"%d" % batch_id)])
            read = reader.get_values(1, [key(0)], NOW_US)
            assert read.view == store.state(1)
            assert read.view is not None
            assert read.view.batch_id == batch_id
            assert read.values == [b"%d" % batch_id]

    def test_what_is_remembered_of_states_is_bounded(
        self, store: StateStore, reader: WholeReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many states there have been."""
        monkeypatch.setattr(store_reader, "_KNOWN_COUNT_MAX", 2)
        for number in range(1, 6):
            write(store, [(key(0), b"%d" % number)], batch_state=state(number))
        for number in (1, 2, 3, 4, 5, 1):
            read = reader.get_values(number, [key(0)], NOW_US)
            assert read.values == [b"%d" % number]
            assert len(reader.reader._known) <= 2

    def test_a_closed_store_is_told(self, store: StateStore) -> None:
        """LMDB's errors do not escape (L4)."""
        write(store, [(key(0), b"")])
        reader = WholeReader(store)
        store.close()
        store.close()
        with pytest.raises(StorageError, match="cannot read"):
            reader.get_values(1, [key(0)], NOW_US)
        with pytest.raises(StorageError, match="cannot read"):
            reader.get_items(1, [key(0)], 0, None, NOW_US)
        with pytest.raises(StorageError, match="cannot read"):
            store.positions()
        with pytest.raises(StorageError, match="cannot write"):
            store.stage([chunk([])], NOW_US)


class TestValues:
    def test_they_come_in_the_order_of_the_keys(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Also those that are asked for twice, or are not there."""
        write(store, [(key(0, "a"), b"1"), (key(0, "b"), b""), (key(9), b"3")])
        keys = [key(9), key(0, "x"), key(0, "a"), key(9), key(0, "b"), key(0)]
        values = [b"3", None, b"1", b"3", b"", None]
        assert reader.get_values(1, keys, NOW_US).values == values

    def test_what_can_be_no_key_holds_nothing(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """It is an answer, not an error of LMDB."""
        write(store, [(key(0), b"1")])
        keys = [*ODD_KEYS, key(0)]
        expected = [None] * len(ODD_KEYS)
        assert reader.get_values(1, keys, NOW_US).values == [*expected, b"1"]
        assert reader.get_values(1, [b"k" * 512], NOW_US).values == [None]

    @pytest.mark.proves("W6")
    def test_a_later_batch_replaces_and_deletes(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Upsert by key; to delete what is not there is nothing (W6)."""
        write(store, [(key(0), b"1"), (key(1), b"1"), (key(2), b"1")])
        write(store, [(key(0), b"2"), (key(1), None), (key(3), None), (key(4), b"2")])
        keys = [key(group) for group in range(5)]
        values = [b"2", None, b"1", None, b"2"]
        assert reader.get_values(1, keys, NOW_US).values == values

    def test_the_longest_key_can_be_written_and_read(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Also as an item of a list, whose row key is longer still."""
        longest = b"\0\0" + b"k" * 480
        write(store, [(longest, b"1")])
        assert reader.get_values(1, [longest], NOW_US).values == [b"1"]
        write(store, [(longest, b"2")], batch_state=state(2, kind="list"))
        assert reader.get_items(2, [longest], 0, None, NOW_US).values == [[b"2"]]
        assert reader.count(2, [0], NOW_US)[1] == 1

    @pytest.mark.proves("Q3", "W6")
    def test_expired_values_are_absent(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """And an answer says until when it holds (W6, Q3)."""
        write(
            store,
            [
                (key(0), expiring(b"never", 0)),
                (key(1), expiring(b"100", 100)),
                (key(2), expiring(b"200", 200)),
            ],
            batch_state=state(has_ttl=True),
        )
        keys = [key(0), key(1), key(2), key(3)]
        read = reader.get_values(1, keys, 99)
        assert read.values == [b"never", b"100", b"200", None]
        assert read.valid_until_us == 100
        read = reader.get_values(1, keys, 100)
        assert read.values == [b"never", None, b"200", None]
        assert read.valid_until_us == 200
        assert reader.get_values(1, keys, 200).valid_until_us is None


class TestItems:
    @pytest.mark.proves("W6")
    def test_items_are_appended_and_cleared(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """A delete clears what came before it, within its batch too (W6)."""
        keys = [key(0), key(1)]

        def items() -> list[list[bytes] | None]:
            return reader.get_items(1, keys, 0, None, NOW_US).values

        write(store, [(keys[0], b"1"), (keys[0], b"2")], batch_state=LIST)
        write(store, [(keys[0], b"3"), (keys[1], b"4")], batch_state=LIST)
        assert items() == [[b"1", b"2", b"3"], [b"4"]]
        rows = [(keys[0], b"5"), (keys[0], None), (keys[0], b"6"), (keys[1], None)]
        write(store, rows, batch_state=LIST)
        assert items() == [[b"6"], None]
        write(store, [(keys[1], b"7"), (key(2), None)], batch_state=LIST)
        assert items() == [[b"6"], [b"7"]]

    @pytest.mark.proves("W6")
    def test_an_index_is_never_used_twice(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """A scan that is paged over a change meets no row a second time (W6)."""
        seen: list[bytes] = []
        for rows in ([b"1", b"2"], [None, b"3"], [None], [b"4"]):
            write(store, [(key(0), row) for row in rows], batch_state=LIST)
            seen += [row_key for row_key, _ in scanned(pages(reader, [0]))]
        assert len(set(seen)) == 4
        assert seen == sorted(seen)

    @pytest.mark.parametrize("has_ttl", [False, True])
    def test_any_slice_is_what_python_says(
        self, store: StateStore, reader: WholeReader, has_ttl: bool
    ) -> None:
        """Counted from either end, over it, and with items that have expired."""
        items = [b"%d" % number for number in range(5)]
        rows: list[tuple[bytes, bytes | None]] = [(key(0), item) for item in items]
        if has_ttl:
            rows = [
                (key(0), expiring(value, expires_at_us))
                for item in items
                for value, expires_at_us in ((b"gone", 5), (item, 50))
            ]
        neighbours: list[tuple[bytes, bytes | None]] = [
            (other, expiring(b"x", 0)) for other in (key(0, "a"), key(1))
        ]
        lists = state(kind="list", has_ttl=has_ttl)
        write(store, rows + neighbours, batch_state=lists)
        bounds = [*range(-7, 8), 2**70, -(2**70)]
        for start, stop in product(bounds, [*bounds, None]):
            read = reader.get_items(1, [key(0), key(2)], start, stop, 10)
            assert read.values == [items[start:stop], None], (start, stop)
            assert read.valid_until_us in ({50, None} if has_ttl else {None})

    @pytest.mark.proves("W6")
    def test_a_list_of_which_everything_has_expired_is_not_there(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Absent for every reader, in every slice (W6)."""
        lists = state(kind="list", has_ttl=True)
        write(store, [(key(0), expiring(b"", 5))], batch_state=lists)
        for start, stop in ((0, None), (-1, None), (0, -1), (3, 4)):
            assert reader.get_items(1, [key(0)], start, stop, 5).values == [None]
        assert reader.get_items(1, [key(0)], 0, None, 4).valid_until_us == 5

    def test_what_can_be_no_key_holds_nothing(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """It is an answer, not an error of LMDB."""
        write(store, [(key(0), b"1")], batch_state=LIST)
        # Less than a storage key is a prefix of some: it is not asked for.
        odd = [one for one in ODD_KEYS if one not in {b"\0", b"\0\0"}]
        for start, stop in ((0, None), (-1, None), (0, -1)):
            read = reader.get_items(1, [*odd, key(0)], start, stop, NOW_US)
            items = [b"1"][start:stop]
            assert read.values == [*[None] * len(odd), items]
        assert reader.get_entries(1, odd[2:], NOW_US).values == [None] * len(odd[2:])

    def test_the_last_list_of_a_database_is_read_from_its_end(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Whether or not there is a row after it."""
        write(store, [(key(0), b"1"), (key(0), b"2")], batch_state=LIST)
        last = reader.get_items(1, [key(0), key(1), b"\0\0\0"], -1, None, NOW_US)
        assert last.values == [[b"2"], None, None]
        write(store, [(key(1), b"3")], batch_state=LIST)
        assert reader.get_items(1, [key(0)], -1, None, NOW_US).values == [[b"2"]]

    def test_an_answer_has_a_limit(
        self, store: StateStore, reader: WholeReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A list may be larger than what can be sent; a slice of it need not be."""
        monkeypatch.setattr(store_reader, "ANSWER_SIZE_BYTES_MAX", 1_100)
        write(store, [(key(0), b"x" * 100)] * 11, batch_state=LIST)
        assert reader.get_items(1, [key(0)], 0, 10, NOW_US).values[0] is not None
        for keys in ([key(0)], [key(0, "none"), key(0)]):
            with pytest.raises(LocalProtocolError, match="slice"):
                reader.get_items(1, keys, 0, None, NOW_US)
        with pytest.raises(LocalProtocolError, match="slice"):
            reader.get_items(1, [key(0)] * 2, 0, 6, NOW_US)
        with pytest.raises(LocalProtocolError, match="scan_map"):
            reader.get_entries(1, [key(0)], NOW_US)


class TestEntries:
    def test_a_map_comes_in_the_order_of_its_keys(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Map key and value in turn, of this key only."""
        write(
            store,
            [
                (key(0) + b"\x01b", b"2"),
                (key(0) + b"\x01a", b"1"),
                (key(0) + b"\0", b"null"),
                (key(0, "x") + b"\x01a", b"other"),
            ],
            batch_state=MAP,
        )
        assert reader.get_entries(1, [key(0), key(5)], NOW_US).values == [
            [b"\0", b"null", b"\x01a", b"1", b"\x01b", b"2"],
            None,
        ]
        assert reader.get_values(1, [key(0) + b"\x01b"], NOW_US).values == [b"2"]

    @pytest.mark.proves("W6")
    def test_entries_are_deleted_and_expire_one_by_one(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """And a map without entries is not there (W6)."""
        maps = state(kind="map", has_ttl=True)
        entry_keys = [key(0) + b"\x01" + name for name in (b"a", b"b", b"c")]
        rows = [(one, expiring(one[-1:], 10 + one[-1])) for one in entry_keys]
        write(store, rows, batch_state=maps)
        write(store, [(entry_keys[1], None)], batch_state=maps)
        read = reader.get_entries(1, [key(0)], 10)
        assert read.values == [[b"\x01a", b"a", b"\x01c", b"c"]]
        assert read.valid_until_us == 10 + ord("a")
        read = reader.get_entries(1, [key(0)], 10 + ord("a"))
        assert read.values == [[b"\x01c", b"c"]]
        assert reader.get_entries(1, [key(0)], 1_000).values == [None]


BOUNDS = st.binary(max_size=4) | st.text("ab", max_size=3).map(
    lambda text: key(0, text)[2:]
)


class TestScan:
    @pytest.mark.proves("Q1")
    def test_groups_are_merged_in_the_order_of_keys(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Only those that are asked for, each row once, in pages of any size (Q1)."""
        rows = [(key(n % 7, f"{n * 37 % 100:03}"), b"%d" % n) for n in range(100)]
        write(store, rows)
        for groups in (range(7), [5], [6, 1, 3], [100]):
            expected = sorted(
                (row_key[2:], value)
                for row_key, value in rows
                if int.from_bytes(row_key[:2], "big") in groups
            )
            for limit in (1, 7, 100, 10_000):
                read = pages(reader, groups, limit=limit)
                assert scanned(read) == expected
                assert all(len(page.rows) <= 2 * limit for page in read)

    @given(
        texts=st.sets(st.text("ab", max_size=3), max_size=8),
        start=BOUNDS | st.just(b"\x01" * 600),
        stop=st.none() | BOUNDS | st.just(b"\xff" * 600),
        limit=st.integers(1, 4),
    )
    @settings(max_examples=150)
    def test_start_is_included_and_stop_is_not(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        texts: set[str],
        start: bytes,
        stop: bytes | None,
        limit: int,
    ) -> None:
        """Whatever they are: encoded keys compare as bytes."""
        path = tmp_path_factory.mktemp("store")
        with StateStore.open(path, node_id=NODE, is_durable=False) as store:
            rows = [(key(len(text), text), text.encode()) for text in texts]
            write(store, rows)
            read = pages(
                WholeReader(store), range(4), start=start, stop=stop, limit=limit
            )
            assert scanned(read) == sorted(
                (row_key[2:], value)
                for row_key, value in rows
                if start <= row_key[2:] and (stop is None or row_key[2:] < stop)
            )

    def test_a_page_looks_at_a_bounded_number_of_expired_rows(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """So it may be empty, and yet not be the last; no live row is left out."""
        rows = [
            (key(0, f"{n:03}"), expiring(b"x", 5 if n < 50 else 0)) for n in range(60)
        ]
        write(store, rows, batch_state=state(has_ttl=True))
        read = pages(reader, [0], limit=5)
        assert [len(page.rows) // 2 for page in read] == [0, 0, 5, 5]
        assert [value for _, value in scanned(read)] == [b"x"] * 10

    def test_a_page_says_until_when_it_holds(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """Until the first of its rows expires."""
        rows = [(key(0, "a"), expiring(b"", 70)), (key(1, "b"), expiring(b"", 60))]
        write(store, rows, batch_state=state(has_ttl=True))
        assert reader.scan(1, [0, 1], b"", None, 9, 10).valid_until_us == 60
        assert reader.scan(1, [0, 1], b"", None, 1, 10).valid_until_us == 70

    def test_a_page_ends_when_it_is_large(
        self, store: StateStore, reader: WholeReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many rows were asked for; one row always passes."""
        monkeypatch.setattr(store_pages, "PAGE_SIZE_BYTES_MAX", 1_300)
        rows = [(key(0, f"{n}"), b"x" * 600) for n in range(5)]
        write(store, rows)
        read = pages(reader, [0], limit=100)
        assert [len(page.rows) // 2 for page in read] == [2, 2, 1]
        write(store, [(key(0, "0"), b"x" * 5_000)])
        assert len(scanned(pages(reader, [0], limit=100))) == 5


class TestCount:
    def test_keys_are_counted_and_not_rows(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """A list and a map are one key each, however many rows they have."""
        rows = [(key(group, text), b"") for group in (0, 1) for text in ("a", "b")]
        write(store, rows * 3, batch_state=state(2, kind="list"))
        maps: list[tuple[bytes, bytes | None]] = [
            (row_key + b"\x01" + name, b"")
            for row_key, _ in rows
            for name in (b"x", b"y")
        ]
        write(store, maps, batch_state=state(3, kind="map"))
        assert reader.count(2, [0, 1], NOW_US)[1] == 4
        assert reader.count(2, [1], NOW_US)[1] == 2

        def key_size_of(encoded: bytes) -> int:
            return encoded.index(b"\0\0") + 2

        assert reader.count(3, [0, 1], NOW_US, key_size_of)[1] == 4
        assert reader.count(3, [0], NOW_US, key_size_of)[1] == 2
        assert reader.count(3, [0], NOW_US)[1] == 4

    def test_values_are_counted_with_and_without_other_groups(
        self, store: StateStore, reader: WholeReader
    ) -> None:
        """By walking, or by what LMDB knows where that is the same."""
        rows = [(key(n % 5, f"{n}"), b"") for n in range(23)]
        write(store, rows)
        sizes = [5, 5, 5, 4, 4]
        assert reader.count(1, range(5), NOW_US)[1] == 23
        assert reader.count(1, range(100), NOW_US)[1] == 23
        assert reader.count(1, [0xFFFF, *range(5)], NOW_US)[1] == 23
        assert reader.count(1, [7, 0xFFFF], NOW_US)[1] == 0
        for group in range(5):
            others = [other for other in range(5) if other != group]
            assert reader.count(1, [group], NOW_US)[1] == sizes[group]
            assert reader.count(1, others, NOW_US)[1] == 23 - sizes[group]

    @pytest.mark.parametrize("kind", ["value", "list", "map"])
    def test_what_has_expired_does_not_count(
        self, store: StateStore, reader: WholeReader, kind: str
    ) -> None:
        """A list or map counts as long as one row of it is there."""
        suffixes = [b""] if kind == "value" else [b"\x01a", b"\x01b"]
        rows: list[tuple[bytes, bytes | None]] = [
            (key(group) + suffix * (kind == "map"), expiring(b"", expires_at_us + n))
            for group, expires_at_us in ((0, 10), (1, 20), (0xFFFF, 30))
            for n, suffix in enumerate(suffixes)
        ]
        write(store, rows, batch_state=state(kind=kind, has_ttl=True))
        groups = [0, 1, 0xFFFF]

        def count(now_us: int) -> int:
            return reader.count(1, groups, now_us, lambda _: len(key(0)) - 2)[1]

        grace = len(suffixes) - 1
        assert [count(now_us) for now_us in (9, 10 + grace, 20 + grace, 99)] == [
            3,
            2,
            1,
            0,
        ]
        assert reader.count(1, [1], 9, lambda _: len(key(0)) - 2)[1] == 1


class TestThreads:
    @pytest.mark.proves("Q1")
    def test_an_answer_is_of_one_batch(self, store: StateStore) -> None:
        """While batches are applied, no reader sees half of one, nor goes back (Q1)."""
        keys = [key(group, f"{n}") for group in range(4) for n in range(50)]
        write(store, [(one, b"1") for one in keys])
        is_over = threading.Event()
        faults: list[object] = []
        read_count = [0, 0]

        def read(place: int) -> None:
            reader = WholeReader(store)
            last = 0
            while not is_over.is_set() or read_count[place] < 10:
                if place == 0:
                    got = reader.get_values(1, keys, NOW_US)
                    view, values = got.view, set(got.values)
                else:
                    page = reader.scan(1, range(4), b"", None, 1_000, NOW_US)
                    view, values = page.view, set(page.rows[1::2])
                if view is None or values != {b"%d" % (view.batch_id or 0)}:
                    faults.append((view, values))
                    return
                if (view.batch_id or 0) < last:
                    faults.append((view, last))
                    return
                last = view.batch_id or 0
                read_count[place] += 1

        threads = [threading.Thread(target=read, args=(place,)) for place in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            for batch_id in range(2, 60):
                write(
                    store,
                    [(one, b"%d" % batch_id) for one in keys],
                    batch_state=state(is_replaced=batch_id % 3 == 0),
                )
        finally:
            is_over.set()
            for thread in threads:
                thread.join(60)
        assert faults == []
        assert min(read_count) >= 10

    @pytest.mark.proves("W5")
    def test_no_reader_sees_rows_of_a_state_that_took_over_the_slot(
        self, store: StateStore
    ) -> None:
        """States come and go in one database, under readers that look at both (W5)."""
        is_over = threading.Event()
        faults: list[object] = []
        newest = [1]
        seen_count = [0]

        def read() -> None:
            reader = WholeReader(store)
            while not is_over.is_set():
                number = newest[0]
                for state_number in (number - 1, number, number + 1):
                    got = reader.get_values(state_number, [key(0)], NOW_US)
                    if got.view is None:
                        expected: list[bytes | None] = [None]
                    else:
                        expected = [b"%d" % state_number]
                        seen_count[0] += 1
                    if got.values != expected:
                        faults.append((state_number, got))
                        return

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(1, 5_000):
                if faults or (number > 150 and seen_count[0] > 10):
                    break
                value = b"%d" % number
                write(store, [(key(0), value)], batch_state=state(number))
                newest[0] = number
                sequence = store.positions()[JOB] + 1
                store.apply(JOB, StateDropped(sequence=sequence, state_number=number))
        finally:
            is_over.set()
            thread.join(60)
        assert faults == []
        assert seen_count[0] > 0
        assert len(store._environment.slots) == 1


class TestWalks:
    """Rows in the order in which they are stored."""

    @settings(max_examples=60)
    @given(
        rows=st.sets(st.tuples(st.integers(0, 9), st.text("ab", max_size=3))),
        wanted=st.sets(st.integers(0, 9)),
        limit=st.integers(1, 5),
    )
    def test_every_row_once(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        rows: set[tuple[int, str]],
        wanted: set[int],
        limit: int,
    ) -> None:
        """Of these key groups, page by page, whatever lies between them."""
        path = tmp_path_factory.mktemp("store")
        with StateStore.open(path, node_id=NODE, is_durable=False) as store:
            stored = {key(group, text): text.encode() for group, text in rows}
            if stored:
                write(store, list(stored.items()))
            reader = WholeReader(store)
            found: list[bytes] = []
            start: bytes | None = b""
            while start is not None:
                page = reader.walk(1, list(wanted), start, None, limit, NOW_US)
                assert len(page.rows) <= 2 * limit
                assert page.next_start is None or page.next_start > start
                found += page.rows
                start = page.next_start
            assert found == [
                part
                for one in sorted(stored)
                if int.from_bytes(one[:2], "big") in wanted
                for part in (one[2:], stored[one])
            ]

    @pytest.mark.proves("B2")
    @pytest.mark.parametrize("kind", ["scan", "walk"])
    def test_a_page_costs_what_it_returns(
        self, store: StateStore, reader: WholeReader, kind: str
    ) -> None:
        """B2: however many key groups there are; empty ones cost nothing."""
        write(store, [(key(group * 331, "x"), b"v") for group in range(99)])
        work = ReadWork()
        part = Page(b"", None, 10)
        if kind == "scan":
            steps = reader.reader.scan(1, range(32_768), part, NOW_US, work)
        else:
            ranges = row_ranges(((0, 32_767),))
            steps = reader.reader.walk(1, ranges, part, NOW_US, work)
        with pytest.raises(StopIteration) as done:
            next(steps)  # it pauses when it has looked at 256 of anything
        page: ScanRead = done.value.value
        assert len(page.rows) == 20
        assert page.next_start is not None
        assert work.row_count == 10

    def test_a_merge_needs_few_cursors(
        self, store: StateStore, reader: WholeReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Beyond a number of them, one is shared; the rows are the same."""
        rows = [
            (key(group, f"{number}"), b"%d" % group)
            for group in range(20)
            for number in range(3)
        ]
        write(store, rows)
        expected = reader.scan(1, range(20), b"", None, 100, NOW_US).rows
        assert len(expected) == 120
        monkeypatch.setattr(store_cursors, "_CURSOR_COUNT_MAX", 2)
        monkeypatch.setattr(store_cursors, "_LEAST_COUNT_MIN", 1)
        assert reader.scan(1, range(20), b"", None, 100, NOW_US).rows == expected
        small = reader.scan(1, range(20), b"", None, 1, NOW_US)
        assert small.rows == expected[:2]
        assert small.next_start == expected[2]
