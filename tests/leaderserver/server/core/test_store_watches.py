"""L5, N3: who watches which store, and what has changed since."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderserver.server.core.store_watches import StoreWatches


A, B = "c/a", "c/b"


def watches() -> StoreWatches:
    """Return watches of few stores."""
    return StoreWatches(count_max=2)


class TestStoreWatches:
    @pytest.mark.proves("L5")
    def test_first_answer_knows_nothing_of_before(self) -> None:
        """L5: what was stored before anybody watched is to be listed."""
        store_watches = watches()
        assert store_watches.changed(A, ["x"]) == ()
        assert store_watches.watch("s1", A, seen=None) == (1, None)
        assert store_watches.watch("s1", A, seen=1) == (1, ())

    @pytest.mark.proves("L5")
    def test_session_is_told_once_until_it_asks_again(self) -> None:
        """L5, N3: never is more than one notice on its way to a watch."""
        store_watches = watches()
        store_watches.watch("s1", A, seen=None)
        assert store_watches.changed(A, ["x"]) == ["s1"]
        assert store_watches.changed(A, ["y", "x"]) == []
        assert store_watches.watch("s1", A, seen=0) == (2, ("x", "y"))
        assert store_watches.watch("s1", A, seen=1) == (2, ("y", "x"))
        assert store_watches.changed(A, ["z"]) == ["s1"]

    @pytest.mark.proves("L5")
    def test_sessions_are_told_in_order_and_each_of_its_own_stores(self) -> None:
        """L5: the same history tells the same sessions in the same order."""
        store_watches = watches()
        for session_id in ("s2", "s1"):
            store_watches.watch(session_id, A, seen=None)
        store_watches.watch("s2", B, seen=None)
        assert store_watches.changed(A, ["x"]) == ["s1", "s2"]
        assert store_watches.changed(B, ["x"]) == ["s2"]
        assert len(store_watches) == 3

    @pytest.mark.proves("L5")
    def test_cleanup_may_have_changed_anything(self) -> None:
        """L5: then the paths are to be listed."""
        store_watches = watches()
        store_watches.watch("s1", A, seen=None)
        store_watches.changed(A, ["x"])
        assert store_watches.changed(A, None) == []
        assert store_watches.watch("s1", A, seen=0) == (2, None)
        assert store_watches.watch("s1", A, seen=2) == (2, ())

    @pytest.mark.proves("L5")
    def test_revision_of_another_history_is_not_ours(self) -> None:
        """L5: above the present one nothing is known."""
        assert watches().watch("s1", A, seen=7) == (0, None)

    @pytest.mark.proves("L5")
    def test_who_leaves_is_told_no_more(self) -> None:
        """L5: by itself, or with its session; the last takes the journal along."""
        store_watches = watches()
        store_watches.watch("s1", A, seen=None)
        store_watches.watch("s2", A, seen=None)
        store_watches.changed(A, ["x"])
        store_watches.unwatch("s1", A)
        store_watches.unwatch("s1", A)
        store_watches.unwatch("never", B)
        assert store_watches.watch("s2", A, seen=0) == (1, ("x",))
        store_watches.drop("s2")
        store_watches.drop("s2")
        assert len(store_watches) == 0
        assert store_watches.changed(A, ["x"]) == ()
        assert store_watches.watch("s2", A, seen=0) == (2, None)

    def test_stores_of_a_session_are_bounded(self) -> None:
        """N3: one too many is refused; those that are watched may be asked about."""
        store_watches = watches()
        for component_id in (A, B):
            assert store_watches.watch("s1", component_id, seen=None) == (0, None)
        assert store_watches.watch("s1", "c/c", seen=None) is None
        assert store_watches.watch("s1", A, seen=0) == (0, ())
        store_watches.unwatch("s1", B)
        assert store_watches.watch("s1", "c/c", seen=None) == (0, None)

    def test_journal_of_a_store_is_bounded(self) -> None:
        """N3: who has seen too little lists the paths anew."""
        store_watches = watches()
        store_watches.watch("s1", A, seen=None)
        for number in range(1_000):
            store_watches.changed(A, [str(number)])
        found = store_watches.watch("s1", A, seen=0)
        assert found is not None
        assert found[1] is not None
        assert len(found[1]) == 1_000
        store_watches.changed(A, ["one more"])
        assert store_watches.watch("s1", A, seen=1_000) == (1_001, None)

    def test_journals_together_are_bounded(self) -> None:
        """N3: of many stores, too."""
        store_watches = StoreWatches(count_max=20)
        for store in range(11):
            store_watches.watch("s1", str(store), seen=None)
        for store in range(11):
            store_watches.changed(str(store), map(str, range(950)))
        assert store_watches.watch("s1", "0", seen=0) == (11, None)
        assert store_watches.watch("s1", "10", seen=11) == (11, ())

    @pytest.mark.proves("L5")
    @given(
        st.lists(
            st.one_of(
                st.tuples(
                    st.just("change"), st.sets(st.sampled_from("xyz"), min_size=1)
                ),
                st.just(("cleanup", None)),
                st.just(("ask", None)),
            ),
            max_size=30,
        )
    )
    def test_whoever_asks_misses_nothing(
        self, steps: list[tuple[str, set[str] | None]]
    ) -> None:
        """L5: every change since the last answer is in the next, or all are."""
        store_watches = watches()
        seen, _ = store_watches.watch("s1", A, seen=None) or (0, None)
        due: set[str] = set()
        is_any = is_told = False
        for kind, paths in steps:
            if kind == "ask":
                answer = store_watches.watch("s1", A, seen=seen)
                assert answer is not None
                seen, found = answer
                assert (found is None) == is_any
                assert found is None or set(found) == due
                due, is_any, is_told = set(), False, False
                continue
            told = store_watches.changed(A, paths)
            assert list(told) == ([] if is_told else ["s1"])
            is_told = True
            if paths is None:
                is_any = True
            else:
                due |= paths
