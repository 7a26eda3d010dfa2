from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from nameservice import StorageError
from queryablestate.store.store import StateStore
from tests.queryablestate.store_batches import NODE, chunk, expiring, key, state, write
from tests.queryablestate.whole_reads import WholeReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Yield an empty store."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as made:
        yield made


def row_count(store: StateStore, slot: int = 0) -> int:
    """Return how many rows take up space."""
    environment = store._environment
    with environment.reading() as transaction:
        return transaction.stat(environment.slots[slot])["entries"]


def rows(row_count: int, expires_at_us: int) -> list[tuple[bytes, bytes | None]]:
    """Return that many rows that expire then."""
    return [(key(0, f"{n:03}"), expiring(b"", expires_at_us)) for n in range(row_count)]


def stage_without_end(store: StateStore) -> NoReturn:
    """Stage batches of 20 rows of a kilobyte, one after the other."""
    staged: list[tuple[bytes, bytes | None]]
    staged = [(key(0, f"{n:06}"), bytes(1_000)) for n in range(20)]
    for batch_id in count(100):
        store.stage([chunk(staged, batch_id=batch_id)], 1)
    raise AssertionError


@pytest.mark.proves("W6")
def test_expired_rows_are_removed_and_others_stay(store: StateStore) -> None:
    """From their expiry on; 0 is never; states without TTL are not looked at (W6)."""
    mixed = [(key(0), expiring(b"", 0)), (key(1), expiring(b"", 10)), *rows(5, 20)]
    write(store, mixed, batch_state=state(1, has_ttl=True))
    write(store, [(key(0), bytes(8) + b"\1")], batch_state=state(2))
    assert store.sweep_expired(9, 100) == 0
    assert store.sweep_expired(10, 100) == 1
    assert row_count(store) == 6
    assert store.sweep_expired(20, 100) == 5
    assert store.sweep_expired(10**15, 100) == 0
    assert (row_count(store, 0), row_count(store, 1)) == (1, 1)


def test_a_sweep_looks_at_a_bounded_number_of_rows_and_goes_on(
    store: StateStore,
) -> None:
    """Every row of every state in turn, then from the beginning (rule 4)."""
    write(store, rows(5, 50), batch_state=state(1, has_ttl=True))
    write(store, rows(4, 50), batch_state=state(2, has_ttl=True))
    assert [store.sweep_expired(49, 3) for _ in range(3)] == [0, 0, 0]
    assert [store.sweep_expired(50, 3) for _ in range(4)] == [3, 3, 3, 0]
    assert (row_count(store, 0), row_count(store, 1)) == (0, 0)
    write(store, rows(1, 50), batch_state=state(1, has_ttl=True))
    assert store.sweep_expired(50, 3) == 1


def test_a_sweep_goes_on_in_what_has_changed_meanwhile(store: StateStore) -> None:
    """The row or the state where it stopped may be gone."""
    ttl = state(1, has_ttl=True)
    write(store, rows(6, 50), batch_state=ttl)
    assert store.sweep_expired(50, 2) == 2
    write(
        store,
        [(key(0, "002"), None), (key(0, "000"), expiring(b"", 50))],
        batch_state=ttl,
    )
    assert store.sweep_expired(50, 2) == 2
    replaced = state(1, has_ttl=True, is_replaced=True)
    write(store, rows(1, 50), batch_state=replaced)
    assert store.sweep_expired(50, 2) == 0
    assert store.sweep_expired(50, 2) == 1
    write(store, rows(6, 50), batch_state=ttl)
    assert store.sweep_expired(50, 2) == 2
    store.reset_job("flights", 99, [])
    assert store.sweep_expired(50, 2) == 0


@pytest.mark.proves("W6")
@pytest.mark.parametrize("kind", ["list", "map"])
def test_items_and_entries_are_removed_one_by_one(store: StateStore, kind: str) -> None:
    """A list goes on rising after its oldest items are gone (W6)."""
    batch_state = state(kind=kind, has_ttl=True)
    suffixes = (b"", b"") if kind == "list" else (b"\x01a", b"\x01b")
    brought = [
        (key(0) + suffix, expiring(b"%d" % n, 10 + n))
        for n, suffix in enumerate(suffixes)
    ]
    write(store, brought, batch_state=batch_state)
    assert store.sweep_expired(10, 100) == 1
    reader = WholeReader(store)
    if kind == "list":
        assert reader.get_items(1, [key(0)], 0, None, 1).values == [[b"1"]]
    else:
        assert reader.get_entries(1, [key(0)], 1).values == [[b"\x01b", b"1"]]
    assert store.sweep_expired(11, 100) == 1
    write(store, [(key(0), expiring(b"2", 0))], batch_state=batch_state)
    assert row_count(store) == 1


@pytest.mark.proves("W6")
def test_expired_rows_are_removed_from_a_full_store(tmp_path: Path) -> None:
    """They give room back, so they must not wait for room (W6)."""
    with StateStore.open(
        tmp_path, node_id=NODE, is_durable=False, size_bytes_max=4 << 20
    ) as store:
        expired = [(key(0, f"{n:06}"), expiring(bytes(1_000), 10)) for n in range(1080)]
        write(store, expired, batch_state=state(1, has_ttl=True))
        with pytest.raises(StorageError):
            stage_without_end(store)
        assert store.sweep_expired(20, 2_000) == 1_080
        store.stage([chunk([(key(0), bytes(1_000))], batch_id=400)], 1)
