"""Writes that are larger than one commit: all of them, or nothing, for every reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from election import Delete, Put, StoreOperation
from election.store import check_operations
from nameservice import ConfigurationError, StorageError
from queryablestate.control.large_writes import (
    COMMIT_LIMITS,
    LARGE,
    NOTHING_LEFT,
    CommitLimits,
    DividedWrite,
    divided,
    unfinished,
    with_large,
)


LIMITS: Final = CommitLimits(operation_count_max=3, size_bytes_max=300)
BEFORE: Final = {"counters": b"1", "jobs/1": b"old", "jobs/1/states/9": b"gone"}
OPERATIONS: Final[Sequence[StoreOperation]] = [
    Put("jobs/1", b"new"),
    *(Put(f"jobs/1/states/{number}", bytes([number]) * 90) for number in range(8)),
    Delete("jobs/1/states/9"),
]
AFTER: Final = {
    "counters": b"1",
    "jobs/1": b"new",
    **{f"jobs/1/states/{number}": bytes([number]) * 90 for number in range(8)},
}


def commit(values: dict[str, bytes], commits: DividedWrite, count: int) -> None:
    """Do the first commits of a write; each of them fits."""
    for operations in commits.commits[:count]:
        assert len(operations) <= LIMITS.operation_count_max
        puts = [operation for operation in operations if isinstance(operation, Put)]
        assert sum(len(put.value) for put in puts) <= LIMITS.size_bytes_max
        for operation in check_operations(operations):
            if isinstance(operation, Put):
                values[operation.path] = operation.value
            else:
                values.pop(operation.path, None)


class TestSmall:
    def test_what_fits_is_one_commit(self) -> None:
        """Most writes cost what they did."""
        assert divided(OPERATIONS) == DividedWrite(commits=(tuple(OPERATIONS),))

    def test_nothing_is_none(self) -> None:
        """There is nothing to wait for."""
        assert divided([]) == NOTHING_LEFT

    def test_the_limits_are_those_of_every_leader_store(self) -> None:
        """With room for the witness, which each commit counts up."""
        operations = [Put(f"jobs/{number}", b"x" * 1_000) for number in range(999)]
        (only,) = divided(operations).commits
        check_operations([*only, Put("witness", b"")])
        assert len(divided([*operations, Delete("jobs/x")]).commits) > 1
        assert COMMIT_LIMITS.size_bytes_max == 1_000_000


@pytest.mark.proves("B3")
class TestLarge:
    def test_all_of_it_or_nothing_wherever_it_ends(self) -> None:
        """B3: a reader takes half of it for not there, and what is decided for done."""
        write = divided(OPERATIONS, LIMITS)
        assert write.deciding_index > 1
        for count in range(len(write.commits) + 1):
            values = dict(BEFORE)
            commit(values, write, count)
            seen = {
                path: value
                for path, value in with_large(values).items()
                if not path.startswith(LARGE)
            }
            is_decided = count > write.deciding_index
            assert seen == (AFTER if is_decided else BEFORE)

    def test_whoever_reads_it_ends_it(self) -> None:
        """B3: and leaves nothing of it, though he dies again and again on the way."""
        write = divided(OPERATIONS, LIMITS)
        for count in range(len(write.commits) + 1):
            values = dict(BEFORE)
            commit(values, write, count)
            for done in range(len(unfinished(values, LIMITS).commits) + 1):
                again = dict(values)
                commit(again, unfinished(again, LIMITS), done)
                left = unfinished(again, LIMITS)
                assert left.deciding_index == -1 or not left.commits
                commit(again, left, len(left.commits))
                assert again == (AFTER if count > write.deciding_index else BEFORE)
                assert unfinished(again, LIMITS) == NOTHING_LEFT

    def test_parts_of_one_that_failed_are_no_part_of_the_next(self) -> None:
        """B3: the shorter one after it overwrites some of them, and counts its own."""
        values = dict(BEFORE)
        longer = divided(OPERATIONS, LIMITS)
        commit(values, longer, longer.deciding_index)
        shorter = divided(OPERATIONS[:6], LIMITS)
        assert shorter.deciding_index < longer.deciding_index
        commit(values, shorter, shorter.deciding_index + 1)
        assert with_large(values)["jobs/1"] == b"new"
        assert with_large(values)["jobs/1/states/9"] == b"gone"
        left = unfinished(values, LIMITS)
        commit(values, left, len(left.commits))
        assert not any(path.startswith(LARGE) for path in values)

    def test_a_value_beyond_a_commit_is_refused_by_name(self) -> None:
        """B3: with the number and the limit, and before anything is written."""
        with pytest.raises(ConfigurationError, match=r"301 bytes.*300 bytes.*jobs/1"):
            divided([Put("jobs/1", bytes(301))], LIMITS)


class TestUnreadable:
    @pytest.mark.parametrize("path", [LARGE, f"{LARGE}/0", f"{LARGE}/1"])
    @pytest.mark.parametrize("value", [b"rubbish", None])
    def test_a_decided_write_that_is_damaged_is_an_error(
        self, path: str, value: bytes | None
    ) -> None:
        """Somebody else was there; nothing is taken for true by halves."""
        write = divided(OPERATIONS, LIMITS)
        values = dict(BEFORE)
        commit(values, write, write.deciding_index + 1)
        if value is not None:
            values[path] = value
        elif path != LARGE:
            del values[path]
        else:
            values[LARGE] = b""
        with pytest.raises(StorageError):
            with_large(values)
        with pytest.raises(StorageError):
            unfinished(values, LIMITS)
