"""Values of the leader store that are kept in memory beside the data directory."""

from __future__ import annotations

import pytest

from election import VersionedValue
from leaderserver.server.core.value_cache import ValueCache


A = "c/a"
B = "c/b"
OLD = VersionedValue(value=b"old", version=1)
NEW = VersionedValue(value=b"new", version=2)


@pytest.mark.proves("L1")
class TestWhatIsKept:
    def test_what_was_read_is_found(self) -> None:
        """L1: the next reader gets the value that the last one has read."""
        cache = ValueCache(10_000)
        cache.note_read(1, A, "x", OLD)
        assert cache.find(A, "x") == OLD
        assert cache.find(A, "y") is None
        assert cache.find(B, "x") is None

    def test_a_write_forgets_its_component(self) -> None:
        """L1: after a write, whatever came of it, the next read goes to the disk."""
        cache = ValueCache(10_000)
        cache.note_read(1, A, "x", OLD)
        cache.note_read(2, A, "y", OLD)
        cache.note_read(3, B, "x", OLD)
        cache.note_write(4, A)
        assert cache.find(A, "x") is None
        assert cache.find(A, "y") is None
        assert cache.find(B, "x") == OLD

    def test_what_was_read_before_a_write_and_told_after_it_is_not_kept(self) -> None:
        """L1: the thread that reads may be told of later than the one that writes."""
        cache = ValueCache(10_000)
        cache.note_write(2, A)
        cache.note_read(1, A, "x", OLD)
        assert cache.find(A, "x") is None
        cache.note_read(3, A, "x", NEW)
        assert cache.find(A, "x") == NEW


@pytest.mark.proves("N3")
class TestLimits:
    def test_what_was_asked_for_longest_ago_goes_first(self) -> None:
        """N3: what is kept has a limit; what is asked for stays."""
        cache = ValueCache(3_000)
        large = VersionedValue(value=bytes(500), version=1)
        cache.note_read(1, A, "x", large)
        cache.note_read(2, B, "y", large)
        assert cache.find(A, "x") == large
        cache.note_read(3, A, "z", large)
        assert cache.find(B, "y") is None
        assert cache.find(A, "x") == large
        assert cache.size_bytes <= 3_000

    def test_what_is_larger_than_all_is_not_kept(self) -> None:
        """N3: the limit holds for one value as well."""
        cache = ValueCache(1_000)
        cache.note_read(1, A, "x", VersionedValue(value=bytes(1_000), version=1))
        assert cache.find(A, "x") is None
        assert cache.size_bytes == 0

    def test_reading_again_counts_once(self) -> None:
        """N3: two readers at once leave one value."""
        cache = ValueCache(10_000)
        cache.note_read(1, A, "x", OLD)
        size_bytes = cache.size_bytes
        cache.note_read(2, A, "x", NEW)
        assert cache.size_bytes == size_bytes
        assert cache.find(A, "x") == NEW
        cache.note_write(3, A)
        assert cache.size_bytes == 0

    def test_a_smaller_limit_makes_room_at_once(self) -> None:
        """N3: what a running server is told holds for what it has already."""
        cache = ValueCache(10_000)
        cache.note_read(1, A, "x", OLD)
        cache.limit(0)
        assert cache.find(A, "x") is None
        assert cache.size_bytes == 0
