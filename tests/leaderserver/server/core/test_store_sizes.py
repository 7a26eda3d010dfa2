"""How much leader stores may hold, in memory and in a data directory (N3)."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from election import Delete, Put
from leaderserver.server.core.store_sizes import StoreFullError, StoreLimits
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage import LeaderStorage, MemoryStorage
from nameservice import VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


LIMITS = StoreLimits(bytes_max=1_000_000, bytes_per_component_max=400_000)
PART = bytes(90_000)


@pytest.fixture(params=["memory", "directory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaderStorage]:
    """Yield a storage with small limits."""
    made: LeaderStorage
    if request.param == "memory":
        made = MemoryStorage(LIMITS)
    else:
        made = SQLiteStorage(tmp_path / "data", LIMITS)
    yield made
    made.close()


def put(storage: LeaderStorage, component_id: str, path: str) -> None:
    """Write one part."""
    with storage.batch():
        storage.commit(component_id, [Put(path, PART, None)])


def test_one_component_has_a_limit(storage: LeaderStorage) -> None:
    """N3: what is too much is refused and leaves nothing; others go on."""
    for index in range(4):
        put(storage, "c/greedy", f"p{index}")
    with pytest.raises(StoreFullError, match="c/greedy"):
        put(storage, "c/greedy", "p4")
    assert storage.get("c/greedy", "p4") is None
    put(storage, "c/other", "p")


def test_all_components_have_a_limit(storage: LeaderStorage) -> None:
    """N3: many small stores are not without bound, either."""
    for index in range(9):
        put(storage, f"c/{index}", "p")
    with pytest.raises(StoreFullError, match="all stores"):
        storage.commit("c/last", [Put("p", bytes(390_000), None)])


def test_what_is_deleted_makes_room(storage: LeaderStorage) -> None:
    """N3: deleting is never refused, and what it frees can be used."""
    for index in range(4):
        put(storage, "c/job", f"p{index}")
    with storage.batch():
        storage.commit("c/job", [Delete("p0", None), Delete("p1", None)])
    put(storage, "c/job", "p5")
    with storage.batch():
        storage.cleanup("c/job")
    for index in range(4):
        put(storage, "c/job", f"p{index}")


@pytest.mark.proves("N3")
def test_what_takes_the_place_of_a_value_needs_its_room_alone(
    storage: LeaderStorage,
) -> None:
    """N3: a store that is nearly full is written to, as long as it does not grow."""
    for index in range(4):
        put(storage, "c/job", f"p{index}")
    put(storage, "c/job", "p0")
    with storage.batch():
        storage.commit("c/job", [Delete("p1", None), Put("p4", PART, None)])
    with pytest.raises(StoreFullError, match="c/job"):
        storage.commit("c/job", [Put("p0", PART, None), Put("p5", PART, None)])
    assert storage.list("c/job", "", after="", count_max=9) == ["p0", "p2", "p3", "p4"]


@pytest.mark.proves("N3")
def test_a_job_goes_on_where_others_have_filled_all_stores(
    storage: LeaderStorage,
) -> None:
    """N3: also under a limit below what is there: to lower it ends nothing."""
    put(storage, "c/job", "p")
    for index in range(9):
        put(storage, f"c/{index}", "p")
    put(storage, "c/job", "p")
    storage.limit(StoreLimits(bytes_max=500_000, bytes_per_component_max=50_000))
    put(storage, "c/job", "p")
    with pytest.raises(StoreFullError):
        storage.commit("c/job", [Put("p", PART + b"more", None)])


def test_another_limit_holds_from_the_next_commit_on(storage: LeaderStorage) -> None:
    """N3: without a restart; what is there stays when less may be."""
    for index in range(4):
        put(storage, "c/job", f"p{index}")
    storage.limit(StoreLimits(bytes_max=1_000_000, bytes_per_component_max=500_000))
    put(storage, "c/job", "p4")
    storage.limit(LIMITS)
    with pytest.raises(StoreFullError, match="c/job"):
        put(storage, "c/job", "p5")
    assert storage.get("c/job", "p4") is not None


@pytest.mark.proves("N3")
@pytest.mark.parametrize("seed", range(20))
def test_what_all_hold_is_what_is_there(seed: int) -> None:
    """N3: whatever was written, replaced, deleted, cleaned up or refused before."""
    limits = StoreLimits(bytes_max=4_000, bytes_per_component_max=2_000)
    rng, storage = random.Random(seed), MemoryStorage(limits)
    for _ in range(300):
        component_id = f"c/{rng.randrange(5)}"
        if rng.random() < 0.05:
            storage.cleanup(component_id)
            continue
        paths = rng.sample("abcdef", rng.randint(1, 3))
        versions = (None, None, 0, 1)
        with contextlib.suppress(StoreFullError, VersionMismatchError):
            storage.commit(
                component_id,
                [
                    Put(path, bytes(rng.randrange(600)), rng.choice(versions))
                    if rng.random() < 0.7
                    else Delete(path, None)
                    for path in paths
                ],
            )
    copy = MemoryStorage(limits)
    for component_id, values in storage._values.items():
        copy.commit(component_id, [Put(p, v.value) for p, v in values.items()])
    assert storage._all_bytes == copy._all_bytes == sum(copy._sizes_bytes.values())
    assert storage._sizes_bytes == copy._sizes_bytes


@pytest.mark.proves("N3")
def test_small_values_take_no_more_memory_than_large_ones() -> None:
    """
    N3: what it takes to keep a value counts, too.

    Of empty values under short paths a store took 36 times its limit, and more than the
    limit of the whole server.
    """
    storage = MemoryStorage(LIMITS)

    def fill() -> None:
        for first in range(0, 20_000, 500):
            numbers = range(first, first + 500)
            storage.commit("c/greedy", [Put(f"{n:x}", b"", None) for n in numbers])

    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(StoreFullError, match="c/greedy"):
        fill()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < LIMITS.bytes_per_component_max


@pytest.mark.proves("N3")
def test_a_store_that_is_empty_again_takes_no_memory() -> None:
    """N3: jobs come and go, each under a name of its own."""
    storage = MemoryStorage(LIMITS)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1_000):
        storage.commit(f"c/{number}", [Put("p", b"", None)])
        storage.commit(f"c/{number}", [Delete("p", None)])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 50_000
