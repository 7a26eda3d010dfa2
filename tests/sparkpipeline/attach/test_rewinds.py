"""O5: a checkpoint that was put back is told by the time of a commit."""

from __future__ import annotations

import pytest

from sparkpipeline.attach.rewinds import RewindWatch


@pytest.mark.proves("O5")
class TestRewindWatch:
    def test_a_commit_of_another_time_is_another_one(self) -> None:
        """O5: until all was read again."""
        commits = {4: 1_000}
        watch = RewindWatch(commits.get)
        watch.published(4, 1_000)
        assert watch.is_as_it_was(4)
        commits[4] = 1_001
        assert not watch.is_as_it_was(4)
        assert watch.is_rewound
        watch.published(4, 1_001)
        assert watch.is_as_it_was(4)
        assert not watch.is_rewound

    def test_what_is_seen_once_is_not_forgotten(self) -> None:
        """O5: the query may have gone on before it is read again."""
        commits = {4: 1_001, 5: 2_000}
        watch = RewindWatch(commits.get)
        watch.published(4, 1_000)
        assert not watch.is_as_it_was(4)
        commits[4] = 1_000
        assert not watch.is_as_it_was(4)

    def test_a_purged_batch_tells_nothing(self) -> None:
        """O5: it is not there to be compared, and that is no rewind."""
        commits: dict[int, int] = {}
        watch = RewindWatch(commits.get)
        watch.published(4, 1_000)
        assert not watch.is_as_it_was(4)
        assert not watch.is_rewound

    def test_one_that_was_purged_when_it_was_read_is_not_compared(self) -> None:
        """O5: as before the first batch."""
        commits = {4: 1_000}
        watch = RewindWatch(commits.get)
        assert watch.is_as_it_was(4)
        watch.published(4, None)
        assert watch.is_as_it_was(4)

    @pytest.mark.parametrize(
        ("committed_at_ms", "is_rewound"),
        [(1_000, False), (2_000, False), (2_001, True)],
    )
    def test_a_decision_comes_after_its_commit(
        self, committed_at_ms: int, *, is_rewound: bool
    ) -> None:
        """O5: but for the second by which clocks may differ."""
        watch = RewindWatch({4: committed_at_ms}.get)
        watch.compare_with_decision(4, 1_000)
        assert watch.is_rewound is is_rewound
        assert watch.is_as_it_was(4) is not is_rewound

    def test_a_decision_of_our_own_is_not_compared(self) -> None:
        """O5: clocks of others say less than the file that was read."""
        watch = RewindWatch({4: 9_000}.get)
        watch.published(4, 9_000)
        watch.compare_with_decision(4, 1_000)
        assert not watch.is_rewound
