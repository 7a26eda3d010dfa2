"""B1: what a read takes is bounded by what it may return, whatever is stored."""

from __future__ import annotations

import mmap
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nameservice import LocalProtocolError
from queryablestate.store.store import StateStore
from tests.queryablestate.store_batches import (
    NODE,
    NOW_US,
    expiring,
    key,
    state,
    write,
)
from tests.queryablestate.whole_reads import WholeReader


MIB = 1 << 20
VALUE = bytes(MIB)
ROW_COUNT = 24
KEYS = [key(group) for group in range(ROW_COUNT)]
LIMIT = 4 * MIB
SLACK = 2 * MIB  # one value beyond the limit, and what Python takes for itself


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Yield a store with a value, a list and a map state of 24 MiB each."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as made:
        for group, one in enumerate(KEYS):
            write(made, [(one, VALUE)])
            write(made, [(key(0), VALUE)], batch_state=state(2, kind="list"))
            entry = key(0) + b"%02d" % group
            write(made, [(entry, VALUE)], batch_state=state(3, kind="map"))
        yield made


def peak_of(read: Callable[[], object]) -> int:
    """Return how many bytes *read* had at most at one time."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.proves("B1")
@pytest.mark.parametrize(
    ("read", "advice"),
    [
        (lambda r: r.get_values(1, KEYS, NOW_US, size_bytes_max=LIMIT), "fewer keys"),
        (
            lambda r: r.get_values(1, KEYS[:1] * 600, NOW_US, size_bytes_max=LIMIT),
            "fewer keys",
        ),
        (
            lambda r: r.get_items(2, [key(0)], 0, None, NOW_US, size_bytes_max=LIMIT),
            "get_list",
        ),
        (
            lambda r: r.get_items(2, [key(0)], -20, None, NOW_US, size_bytes_max=LIMIT),
            "get_list",
        ),
        (
            lambda r: r.get_entries(3, [key(0)], NOW_US, size_bytes_max=LIMIT),
            r"scan_map.*get_map_entry",
        ),
    ],
    ids=["values", "one value", "list", "end of a list", "map"],
)
def test_reading_stops_at_the_limit(
    store: StateStore, read: Callable[[WholeReader], object], advice: str
) -> None:
    """B1: nothing is read that cannot be sent any more; what works is told."""
    reader = WholeReader(store)

    def refused() -> None:
        with pytest.raises(LocalProtocolError, match=advice):
            read(reader)

    assert peak_of(refused) <= LIMIT + SLACK


@pytest.mark.proves("B1")
def test_a_slice_from_both_ends_is_not_a_whole_list(store: StateStore) -> None:
    """B1: a small part of a list larger than any answer can be read."""
    reader = WholeReader(store)
    for start, stop in ((20, -2), (-4, 22)):

        def read(start: int = start, stop: int = stop) -> None:
            items = reader.get_items(
                2, [key(0)], start, stop, NOW_US, size_bytes_max=LIMIT
            )
            assert items.values == [[VALUE] * 2]

        assert peak_of(read) <= LIMIT


@pytest.mark.proves("B1")
def test_a_page_holds_no_more_than_it_returns(store: StateStore) -> None:
    """B1: the rows that come next in other key groups are not read before."""
    reader = WholeReader(store)

    def page() -> None:
        read = reader.scan(1, range(ROW_COUNT), b"", None, 2, NOW_US)
        assert [len(one) for one in read.rows[1::2]] == [MIB]  # it is full
        assert read.next_start is not None

    assert peak_of(page) <= 2 * MIB + SLACK

    def full() -> None:
        read = reader.scan(
            1, range(ROW_COUNT), b"", None, 1_000, NOW_US, size_bytes_max=LIMIT
        )
        assert sum(map(len, read.rows)) <= LIMIT
        assert read.next_start is not None

    assert peak_of(full) <= LIMIT + SLACK


@pytest.mark.proves("B1")
@pytest.mark.parametrize("has_ttl", [False, True])
def test_repeated_keys_are_read_once(tmp_path: Path, *, has_ttl: bool) -> None:
    """B1: however often a key stands in a question."""
    stored = expiring(b"x" * 1_000, NOW_US + 9) if has_ttl else b"x" * 1_000
    keys = [key(0), key(1), key(0), b"", key(0)]
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
        for number, kind in ((1, "value"), (2, "list"), (3, "map")):
            row_key = key(0) + b"\x01m" if kind == "map" else key(0)
            of = state(number, kind=kind, has_ttl=has_ttl)
            write(store, [(row_key, stored)], batch_state=of)
        reader = WholeReader(store)
        for read in (
            reader.get_values(1, keys, NOW_US),
            reader.get_items(2, keys, 0, None, NOW_US),
            reader.get_entries(3, keys, NOW_US),
        ):
            first, other, second, none, third = read.values
            assert first
            assert first is second is third
            assert other is none is None
        # Each is sent, so that each counts.
        assert reader.get_values(1, keys[:3], NOW_US, size_bytes_max=2_100).values
        with pytest.raises(LocalProtocolError):
            reader.get_values(1, keys, NOW_US, size_bytes_max=2_100)
        with pytest.raises(LocalProtocolError):
            reader.get_items(2, keys, 0, None, NOW_US, size_bytes_max=2_100)
        with pytest.raises(LocalProtocolError):
            reader.get_entries(3, keys, NOW_US, size_bytes_max=2_100)


@pytest.mark.proves("B1")
def test_short_values_are_those_that_need_no_bound(tmp_path: Path) -> None:
    """B1: few, and on average no more than the answer may be."""
    keys = [key(0), key(1), key(2)]
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
        write(store, [(one, VALUE[:1_000]) for one in keys])
        write(store, [(keys[0], bytes(mmap.PAGESIZE))], batch_state=state(2))
        read = store.reader().get_short_values
        enough = mmap.PAGESIZE  # all three rows are on one page
        found = read(1, [*keys[:2], key(9)], NOW_US, size_bytes_max=enough)
        assert found is not None
        assert found.values == [VALUE[:1_000], VALUE[:1_000], None]
        assert read(1, keys, NOW_US, size_bytes_max=enough - 1) is None
        assert read(1, [key(0), key(0)], NOW_US, size_bytes_max=enough) is None
        assert read(2, keys[:1], NOW_US, size_bytes_max=enough) is None
        many = [key(one) for one in range(1_025)]
        assert read(1, many[:-1], NOW_US, size_bytes_max=1 << 30) is not None
        assert read(1, many, NOW_US, size_bytes_max=1 << 30) is None
        none = read(3, keys, NOW_US, size_bytes_max=enough)
        assert none is not None
        assert none.view is None


@pytest.mark.proves("B1", "W6")
def test_existence_needs_no_value(tmp_path: Path) -> None:
    """B1, W6: a row that has not expired is enough, of whatever kind the state is."""
    dead, alive = expiring(VALUE, NOW_US), expiring(VALUE, NOW_US + 5)
    keys = [key(0), key(1), key(2), key(0), b"", b"k" * 600]
    found = [True, False, False, True, False, False]
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
        for number, kind in ((1, "value"), (2, "list"), (3, "map")):
            write(
                store,
                [(key(0), VALUE)] if kind != "map" else [(key(0) + b"m", VALUE)],
                batch_state=state(number, kind=kind),
            )
            names = (b"a", b"b") if kind == "map" else (b"", b"")
            stored = [dead, alive] if kind != "value" else [alive]
            write(
                store,
                [
                    *((key(0) + name, one) for name, one in zip(names, stored)),  # noqa: B905 (a value has one)
                    (key(1) + names[0], dead),
                ],
                batch_state=state(number + 3, kind=kind, has_ttl=True),
            )
        reader = WholeReader(store)

        def read() -> None:
            for number in range(1, 7):
                has = reader.has_rows(number, keys, NOW_US)
                assert has.values == found
                assert has.valid_until_us == (None if number <= 3 else NOW_US + 5)

        read()
        assert peak_of(read) <= MIB // 8
        assert reader.has_rows(9, keys[:1], NOW_US).view is None
