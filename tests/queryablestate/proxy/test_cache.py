from __future__ import annotations

import gc
import math
import tracemalloc
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from queryablestate.proxy.cache import (
    ENTRY_OVERHEAD_BYTES,
    CachedResult,
    CacheKey,
    CacheRule,
    ResultCache,
)
from queryablestate.wire.questions import GetEntries, GetItems, GetValues


SECOND = 1_000_000_000
TTL_NS = 10 * SECOND
KEY: CacheKey = (1, 3, "node-1", GetValues(), b"keys")
RULES = (CacheRule(ttl_seconds=10),)


def cache(size_bytes_max: int = 1_000_000) -> ResultCache:
    """Return an empty cache that keeps everything for ten seconds."""
    return ResultCache(RULES, size_bytes_max=size_bytes_max)


def put(kept: ResultCache, key: CacheKey = KEY, **settings: Any) -> bool:
    """Put an answer of batch 7 at the time 0, unless told otherwise."""
    return kept.put(
        key,
        **{
            "generation": key[1],
            "batch_id": 7,
            "age_ns": SECOND,
            "values": b"values",
            "has_missing": False,
            "ttl_ns": TTL_NS,
            "valid_ns": None,
            "batch_id_known": 7,
            "now_ns": 0,
            **settings,
        },
    )


def get(
    kept: ResultCache, key: CacheKey = KEY, *, known: int = 7, now_ns: int = 0
) -> CachedResult | None:
    """Return what is kept."""
    return kept.get(key, batch_id_known=known, now_ns=now_ns)


class TestFreshness:
    @pytest.mark.proves("Q2", "C3")
    def test_an_answer_is_given_again(self) -> None:
        """C3: the same question has the same answer, and says how old it is (Q2)."""
        kept = cache()
        assert put(kept)
        found = get(kept, now_ns=2 * SECOND)
        assert found == CachedResult(
            generation=3,
            batch_id=7,
            decided_ns=-SECOND,
            expires_ns=TTL_NS,
            values=b"values",
        )
        assert found.age_ns(now_ns=2 * SECOND) == 3 * SECOND
        assert (kept.hit_count, kept.miss_count, len(kept)) == (1, 0, 1)

    @pytest.mark.proves("C3")
    def test_the_ttl_is_kept_to_the_nanosecond(self) -> None:
        """C3: an answer is given until its TTL is over, and not at that moment."""
        kept = cache()
        assert put(kept)
        assert get(kept, now_ns=TTL_NS - 1) is not None
        assert get(kept, now_ns=TTL_NS) is None
        assert (kept.hit_count, kept.miss_count) == (1, 1)
        assert (len(kept), kept.size_bytes) == (0, 0)

    def test_a_row_that_expires_takes_its_answer_along(self) -> None:
        """W6: a row is absent for every reader from its expiry on, cached or not."""
        kept = cache()
        assert put(kept, valid_ns=SECOND)
        assert get(kept, now_ns=SECOND - 1) is not None
        assert get(kept, now_ns=SECOND) is None

    @pytest.mark.proves("C3")
    def test_a_row_that_outlives_the_ttl_changes_nothing(self) -> None:
        """C3: the sooner of the two counts."""
        kept = cache()
        assert put(kept, valid_ns=2 * TTL_NS)
        assert get(kept, now_ns=TTL_NS) is None

    @pytest.mark.proves("Q3", "C3")
    def test_a_commit_invalidates(self) -> None:
        """C3, Q3: nothing from before the last known commit is given."""
        kept = cache()
        assert put(kept)
        assert get(kept, known=6) is not None
        assert get(kept, known=7) is not None
        assert get(kept, known=8) is None
        # A caller may have asked for a batch of its own: others still get theirs.
        assert get(kept, known=7) is not None

    @pytest.mark.proves("C3")
    def test_an_answer_of_a_newer_batch_replaces(self) -> None:
        """C3: the first answer after a commit is kept in place of the one before."""
        kept = cache()
        assert put(kept)
        assert put(kept, batch_id=8, values=b"newer", batch_id_known=8)
        found = get(kept, known=8)
        assert found is not None
        assert found.values == b"newer"
        assert len(kept) == 1

    @pytest.mark.proves("C3")
    def test_an_answer_of_the_same_batch_renews(self) -> None:
        """C3: what was just asked again is as fresh as when it was first asked."""
        kept = cache()
        assert put(kept)
        assert put(kept, now_ns=SECOND)
        assert get(kept, now_ns=TTL_NS) is not None
        assert len(kept) == 1

    @pytest.mark.proves("Q1")
    def test_an_answer_of_an_older_batch_does_not(self) -> None:
        """Q1: an answer that was overtaken on its way takes none back in time."""
        kept = cache()
        assert put(kept, batch_id=8)
        assert not put(kept, batch_id=7, values=b"older")
        found = get(kept)
        assert found is not None
        assert found.batch_id == 8


class TestWhatIsNeverKept:
    @pytest.mark.proves("Q3")
    @pytest.mark.parametrize(
        "settings",
        [
            {"has_missing": True},
            {"batch_id": 6},
            {"generation": 2},
            {"generation": 4},
            {"ttl_ns": 0},
            {"valid_ns": 0},
            {"valid_ns": -1},
            {"values": bytes(1_000_000)},
        ],
    )
    def test_it_is_refused(self, settings: dict[str, Any]) -> None:
        """Q3: nothing negative, stale, of another generation, off, or too large."""
        kept = cache()
        assert not put(kept, **settings)
        assert (len(kept), kept.size_bytes) == (0, 0)
        assert get(kept, known=-1) is None

    @pytest.mark.proves("Q3")
    def test_a_refused_answer_leaves_the_one_before(self) -> None:
        """Q3: what was right when it was kept stays right until a commit."""
        kept = cache()
        assert put(kept)
        assert not put(kept, has_missing=True)
        assert get(kept) is not None

    @pytest.mark.proves("C3")
    @pytest.mark.parametrize(
        "other",
        [
            (2, 3, "node-1", GetValues(), b"keys"),
            (1, 4, "node-1", GetValues(), b"keys"),
            (1, 3, "node-2", GetValues(), b"keys"),
            (1, 3, "node-1", GetItems(), b"keys"),
            (1, 3, "node-1", GetEntries(), b"keys"),
            (1, 3, "node-1", GetValues(), b"other"),
        ],
    )
    def test_another_question_has_another_answer(self, other: CacheKey) -> None:
        """C3: all that an answer depends on is part of what it is kept under."""
        kept = cache()
        assert put(kept)
        assert get(kept, other) is None

    @pytest.mark.proves("C3")
    def test_slices_of_a_list_are_different_questions(self) -> None:
        """C3: so are the last ten items and the last twenty."""
        kept = cache()
        ten: CacheKey = (1, 3, "node-1", GetItems(start=-10), b"keys")
        twenty: CacheKey = (1, 3, "node-1", GetItems(start=-20), b"keys")
        assert put(kept, ten, values=b"ten")
        assert get(kept, twenty) is None
        assert get(kept, (1, 3, "node-1", GetItems(start=-10), b"keys")) is not None


class TestRules:
    @pytest.mark.proves("C3")
    def test_the_first_rule_that_matches_counts(self) -> None:
        """C3: an exception stands before what it is an exception from."""
        kept = ResultCache(
            [
                CacheRule(state="flights/log", ttl_seconds=0),
                CacheRule(state="flights/*", ttl_seconds=1.5),
                CacheRule(state="*/*", ttl_seconds=9),
            ],
            size_bytes_max=1_000,
        )
        for _ in range(2):
            assert kept.ttl_ns("flights", "log") == 0
            assert kept.ttl_ns("flights", "aircraft") == 1_500_000_000
            assert kept.ttl_ns("trains", "log") == 9 * SECOND

    @pytest.mark.proves("C3")
    def test_without_a_rule_nothing_is_kept(self) -> None:
        """C3: one that wants old answers says so."""
        kept = ResultCache(size_bytes_max=1_000)
        assert kept.ttl_ns("flights", "log") == 0

    def test_what_is_known_of_names_is_bounded(self) -> None:
        """A flood of names that match nothing costs no memory."""
        kept = cache()
        for index in range(10_001):
            assert kept.ttl_ns("j", str(index)) == TTL_NS
        assert len(kept._ttls_ns) == 1

    @pytest.mark.proves("C4")
    def test_other_rules_empty_the_cache(self) -> None:
        """C4: a shorter TTL holds for what is kept already, and so does none."""
        kept = cache()
        assert put(kept)
        kept.reconfigure(RULES, size_bytes_max=1_000_000)
        assert get(kept) is not None
        assert kept.ttl_ns("j", "x") == TTL_NS
        kept.reconfigure((), size_bytes_max=1_000_000)
        assert get(kept) is None
        assert kept.ttl_ns("j", "x") == 0
        assert (len(kept), kept.size_bytes) == (0, 0)

    @pytest.mark.proves("C4")
    def test_a_smaller_cache_keeps_less(self) -> None:
        """C4: the bound holds as soon as it is set."""
        kept = cache()
        other: CacheKey = (*KEY[:4], b"more")
        assert put(kept)
        assert put(kept, other)
        kept.reconfigure(RULES, size_bytes_max=kept.size_bytes - 1)
        assert get(kept) is None
        assert get(kept, other) is not None
        kept.reconfigure(RULES, size_bytes_max=0)
        assert len(kept) == 0
        assert not put(kept)

    @pytest.mark.proves("C4")
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"state": "flights"}, "must be JOB/STATE"),
            (
                {"ttl_seconds": "2s"},
                "ttl_seconds must be a number of seconds, not '2s'",
            ),
            ({"ttl_seconds": True}, "ttl_seconds must be a number of seconds"),
            ({"ttl_seconds": -1}, r"must be 0 \(off\) to 86,400 seconds, not -1"),
            ({"ttl_seconds": 86_401}, r"must be 0 \(off\) to 86,400 seconds"),
            ({"ttl_seconds": math.nan}, r"must be 0 \(off\) to 86,400 seconds"),
        ],
    )
    def test_a_mistake_is_named(self, settings: dict[str, Any], match: str) -> None:
        """C4: an error names the setting and says what it should be."""
        with pytest.raises(ConfigurationError, match=match):
            CacheRule(**{"ttl_seconds": 1, **settings})


class TestSize:
    @pytest.mark.proves("C3")
    def test_the_least_recently_used_goes_first(self) -> None:
        """C3: what is asked again stays."""
        entry_bytes = ENTRY_OVERHEAD_BYTES + len(b"key-0") + len(b"values")
        kept = cache(3 * entry_bytes)
        keys: list[CacheKey] = [(*KEY[:4], b"key-%d" % index) for index in range(4)]
        for key in keys[:3]:
            assert put(kept, key)
        assert kept.size_bytes == 3 * entry_bytes
        assert get(kept, keys[0]) is not None
        assert put(kept, keys[3])
        assert [get(kept, key) is not None for key in keys] == [True, False, True, True]
        assert kept.size_bytes == 3 * entry_bytes

    @pytest.mark.proves("C3")
    def test_an_answer_may_take_all_there_is(self) -> None:
        """C3: one that just fits throws out the others; one that does not, nothing."""
        room = 100_000 - ENTRY_OVERHEAD_BYTES - len(b"large")
        large: CacheKey = (*KEY[:4], b"large")
        kept = cache(100_000)
        assert put(kept)
        assert not put(kept, large, values=bytes(room + 1))
        assert get(kept) is not None
        assert put(kept, large, values=bytes(room))
        assert (len(kept), kept.size_bytes) == (1, 100_000)

    @pytest.mark.parametrize(
        ("count", "state_count"), [(1_000, 7), (22_000, 7), (22_000, 1)]
    )
    def test_what_is_counted_is_what_it_costs(
        self, count: int, state_count: int
    ) -> None:
        """Memory is bounded, and not only a number: dicts that just grew included."""
        kept = cache(1_000_000_000)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for index in range(count):
                key: CacheKey = (
                    1_000 + index % state_count,
                    100_000 + index,
                    "node-1",
                    GetItems(start=-1_000 - index),
                    b"keys of %d" % index,
                )
                put(kept, key, values=b"values of %d" % index, now_ns=10**15 + index)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(kept) == count
        assert after - before < kept.size_bytes < 2 * (after - before)


@frozen
class Kept:
    """What the model knows of an answer."""

    batch_id: int
    decided_ns: int
    expires_ns: int
    values: bytes

    @property
    def size_bytes(self) -> int:
        """Return what it counts for; keys have two bytes here."""
        return ENTRY_OVERHEAD_BYTES + 2 + len(self.values)


class NaiveCache:
    """The rules to the letter: a dict in the order of use."""

    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        self.entries: dict[int, Kept] = {}

    @property
    def size_bytes(self) -> int:
        """Return what all entries count for."""
        return sum(entry.size_bytes for entry in self.entries.values())

    def get(self, index: int, known: int, now_ns: int) -> Kept | None:
        """Return what may be given."""
        entry = self.entries.get(index)
        if entry is None:
            return None
        if entry.expires_ns <= now_ns:
            del self.entries[index]
            return None
        if entry.batch_id < known:
            return None
        self.entries[index] = self.entries.pop(index)
        return entry

    def put(self, index: int, entry: Kept, *, known: int, now_ns: int) -> bool:
        """Keep *entry* unless it is stale, expired, overtaken or too large."""
        if entry.batch_id < known or entry.expires_ns <= now_ns:
            return False
        if entry.size_bytes > self.size_bytes_max:
            return False
        if index in self.entries:
            if self.entries[index].batch_id > entry.batch_id:
                return False
            del self.entries[index]
        while self.size_bytes + entry.size_bytes > self.size_bytes_max:
            del self.entries[next(iter(self.entries))]
        self.entries[index] = entry
        return True


puts = st.fixed_dictionaries(
    {
        "index": st.integers(0, 3),
        "batches_ahead": st.integers(-1, 2),
        "age_ns": st.integers(0, 9),
        "values": st.sampled_from([b"", b"v", b"v" * 700]),
        "has_missing": st.sampled_from([False, False, False, True]),
        "ttl_ns": st.integers(0, 9),
        "valid_ns": st.one_of(st.none(), st.integers(0, 9)),
    }
)
others = st.one_of(
    st.tuples(st.just("get"), st.integers(0, 3)),
    st.tuples(st.just("get"), st.integers(0, 3)),
    st.tuples(st.just("commit"), st.integers(1, 2)),
    st.tuples(st.just("wait"), st.integers(0, 5)),
)


class TestAgainstADict:
    @pytest.mark.proves("Q3", "C3")
    @given(st.integers(0, 5), st.lists(st.one_of(puts, others), max_size=40))
    def test_it_gives_what_a_dict_would(
        self, room: int, steps: list[dict[str, Any] | tuple[str, int]]
    ) -> None:
        """C3, Q3: in every history what is fresh is given, and what was used kept."""
        size_bytes_max = room * (ENTRY_OVERHEAD_BYTES + 3)
        kept, model = cache(size_bytes_max), NaiveCache(size_bytes_max)
        now_ns = known = get_count = 0

        def key_of(index: int) -> CacheKey:
            return (index % 2, 1, "n", GetValues(), b"k%d" % index)

        for step in steps:
            match step:
                case ("commit", count):
                    known += count
                case ("wait", duration_ns):
                    now_ns += duration_ns
                case ("get", index):
                    get_count += 1
                    found = get(kept, key_of(index), known=known, now_ns=now_ns)
                    entry = model.get(index, known, now_ns)
                    assert (found is None) is (entry is None)
                    if found is not None and entry is not None:
                        assert found.batch_id == entry.batch_id
                        assert found.values == entry.values
                        assert found.decided_ns == entry.decided_ns
                case dict():
                    settings = {**step}
                    key = key_of(settings.pop("index"))
                    batch_id = known + settings.pop("batches_ahead")
                    valid_ns = step["valid_ns"]
                    lifetime_ns = min(
                        step["ttl_ns"], 9 if valid_ns is None else valid_ns
                    )
                    entry = Kept(
                        batch_id=batch_id,
                        decided_ns=now_ns - step["age_ns"],
                        expires_ns=now_ns + lifetime_ns,
                        values=step["values"],
                    )
                    assert put(
                        kept,
                        key,
                        batch_id=batch_id,
                        batch_id_known=known,
                        now_ns=now_ns,
                        **settings,
                    ) is (
                        not step["has_missing"]
                        and model.put(step["index"], entry, known=known, now_ns=now_ns)
                    )
            assert list(kept._entries) == [key_of(index) for index in model.entries]
            assert kept.size_bytes == model.size_bytes <= size_bytes_max
            assert kept.hit_count + kept.miss_count == get_count
