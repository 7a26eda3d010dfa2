from __future__ import annotations

import pytest

from election.store import (
    OPERATION_COUNT_MAX,
    STORE_PATH_LENGTH_MAX,
    STORE_SIZE_BYTES_MAX,
    Delete,
    LeaderStore,
    Put,
    StoreOperation,
    VersionedValue,
    check_operations,
    check_store_path,
)
from nameservice import ConfigurationError, ForkedClientError
from tests.election.fakes import FakeStoreDriver, session
from tests.forking import run_in_child


@pytest.fixture
def driver() -> FakeStoreDriver:
    """An empty store."""
    return FakeStoreDriver()


@pytest.fixture
def store(driver: FakeStoreDriver) -> LeaderStore:
    """A store over *driver*."""
    return LeaderStore("job", driver)


class TestLeaderStore:
    @pytest.mark.proves("L1")
    def test_reads_come_from_the_driver(
        self, store: LeaderStore, driver: FakeStoreDriver
    ) -> None:
        """L1: get gives value and version, or None; list gives sorted paths."""
        assert store.component_id == "job"
        assert store.get("a/1") is None
        assert store.list() == []
        store.put("a/2", b"two", session=session(1))
        store.put("b/1", b"", session=session(1))
        store.put("a/1", b"one", session=session(1))
        store.put("a/1", b"uno", session=session(1))
        assert store.get("a/1") == VersionedValue(value=b"uno", version=2)
        assert store.list() == ["a/1", "a/2", "b/1"]
        assert store.list("a/") == ["a/1", "a/2"]
        assert store.list("a") == ["a/1", "a/2"]
        assert store.list("c") == []

    @pytest.mark.proves("L1")
    def test_writes_reach_the_driver_as_one_commit(
        self, store: LeaderStore, driver: FakeStoreDriver
    ) -> None:
        """L1: put and delete are the one-operation cases of commit."""
        operations: list[StoreOperation] = [
            Put("a", b"1", 0),
            Delete("b"),
            Put("c", b"2"),
        ]
        store.commit(operations, session=session(7))
        store.put("a", b"3", session=session(7), version=1)
        store.delete("c", session=session(8), version=1)
        assert driver.commits == [
            (tuple(operations), session(7)),
            ((Put("a", b"3", 1),), session(7)),
            ((Delete("c", 1),), session(8)),
        ]

    @pytest.mark.proves("L1")
    def test_bad_paths_reach_no_driver(
        self, store: LeaderStore, driver: FakeStoreDriver
    ) -> None:
        """L1: a path that breaks the rule is refused before it is sent."""
        with pytest.raises(ConfigurationError):
            store.get("")
        with pytest.raises(ConfigurationError):
            store.list("a\n")
        with pytest.raises(ConfigurationError):
            store.put("x" * 256, b"", session=session(1))
        with pytest.raises(ConfigurationError):
            store.delete("a\0", session=session(1))
        assert driver.commits == []

    @pytest.mark.proves("E10")
    def test_child_is_told_that_it_may_not_use_it(self, store: LeaderStore) -> None:
        """E10: neither reading nor writing works in a forked child."""
        name = ForkedClientError.__name__
        assert run_in_child(lambda: store.get("a")) == name
        assert run_in_child(store.list) == name
        assert run_in_child(lambda: store.put("a", b"", session=session(1))) == name
        assert store.get("a") is None


@pytest.mark.proves("L1")
class TestCheckStorePath:
    @pytest.mark.parametrize(
        "path", ["a", "a/b", "/", "..", "Ünï ✈", "x" * STORE_PATH_LENGTH_MAX]
    )
    def test_printable_text_is_a_path(self, path: str) -> None:
        """L1: paths are flat keys: a slash means nothing."""
        check_store_path(path)

    @pytest.mark.parametrize(
        "path", ["", "x" * (STORE_PATH_LENGTH_MAX + 1), "a\tb", "\ud800", b"a", None, 7]
    )
    def test_anything_else_is_refused(self, path: str) -> None:
        """L1: the refusal says what a path is, and shows what was given."""
        with pytest.raises(ConfigurationError) as caught:
            check_store_path(path)
        shown = "256 of them" if path and len(str(path)) > 255 else repr(path)
        assert str(caught.value) == (
            f"a store path is 1 to 255 printable characters, not {shown}"
        )


@pytest.mark.proves("L3")
class TestCheckOperations:
    @pytest.mark.parametrize(
        "operations",
        [
            [Put("a", b"")],
            [Put("a", b"x" * STORE_SIZE_BYTES_MAX)],
            [Put("a", b"x" * 400_000), Put("b", b"x" * 600_000), Delete("c")],
            [Put("a", b"", 0), Delete("b", 0), Put("c", b"", 7)],
            [Delete(str(number)) for number in range(OPERATION_COUNT_MAX)],
        ],
    )
    def test_what_is_within_the_limits_passes(
        self, operations: list[StoreOperation]
    ) -> None:
        """L3: up to 1,000 operations with 1,000,000 bytes together."""
        check_operations(operations)

    @pytest.mark.parametrize(
        ("operations", "why"),
        [
            ([], "a commit has 1 to 1,000 operations, not 0"),
            (
                [Delete(str(number)) for number in range(OPERATION_COUNT_MAX + 1)],
                "a commit has 1 to 1,000 operations, not more",
            ),
            (["a"], "an operation is a Put or a Delete, not 'a'"),
            (
                [Put("", b"")],
                "a store path is 1 to 255 printable characters, not ''",
            ),
            (
                [Put("a", b""), Delete("a")],
                "a commit names a path once; 'a' is there twice",
            ),
            (
                [Put("a", b"", -1)],
                f"a version is a whole number from 0 to {2**63 - 1}, not -1",
            ),
            (
                [Delete("a", 1.0)],  # type: ignore[arg-type]
                f"a version is a whole number from 0 to {2**63 - 1}, not 1.0",
            ),
            (
                [Delete("a", version=True)],
                f"a version is a whole number from 0 to {2**63 - 1}, not True",
            ),
            ([Put("a", "text")], "a value is bytes, not str: encode it first"),  # type: ignore[arg-type]
            (
                [Put("a", b"x" * (STORE_SIZE_BYTES_MAX + 1))],
                (
                    "the values of a commit are at most 1,000,000 bytes together, "
                    "not 1,000,001: split it, or store a reference"
                ),
            ),
            (
                [Put("a", b"x" * 500_000), Put("b", b"x" * 500_001)],
                (
                    "the values of a commit are at most 1,000,000 bytes together, "
                    "not 1,000,001: split it, or store a reference"
                ),
            ),
        ],
    )
    def test_what_breaks_a_limit_is_refused(
        self, operations: list[StoreOperation], why: str
    ) -> None:
        """L3: the refusal says which limit is broken."""
        with pytest.raises(ConfigurationError) as caught:
            check_operations(operations)
        assert str(caught.value) == why
