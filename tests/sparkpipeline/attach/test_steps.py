"""What an attached state does next, for every relation of what is known."""

from __future__ import annotations

import pytest

from queryablestate import CheckpointRewoundError
from sparkpipeline.attach.steps import (
    FEED_BATCH_COUNT_MAX,
    FollowFeed,
    SnapshotReason,
    Step,
    TakeSnapshot,
    next_step,
    pending_batch_ids,
)


def snapshot(batch_id: int, reason: str, *, begins_anew: bool = False) -> TakeSnapshot:
    """Return that step."""
    return TakeSnapshot(
        batch_id=batch_id, reason=SnapshotReason(reason), begins_anew=begins_anew
    )


class TestNextStep:
    @pytest.mark.parametrize(
        ("published", "committed", "fed", "step"),
        [
            pytest.param(None, [], [], None, id="nothing is committed yet"),
            pytest.param(None, [7], [7], snapshot(7, "first"), id="first"),
            pytest.param(7, [6, 7], [6, 7], None, id="all is published"),
            pytest.param(7, [], [], None, id="nothing is left of the checkpoint"),
            pytest.param(7, [7, 8], [8], FollowFeed(first=8, last=8), id="one more"),
            pytest.param(
                7, [8, 9, 10], [8, 9, 10], FollowFeed(first=8, last=10), id="several"
            ),
            pytest.param(
                7, [7, 8], [7], snapshot(8, "no-feed"), id="no feed of the next"
            ),
            pytest.param(
                7, [8, 9, 10], [8, 10], snapshot(10, "no-feed"), id="no feed of one"
            ),
            pytest.param(
                7, [9, 10], [8, 9, 10], snapshot(10, "no-feed"), id="one is purged"
            ),
        ],
    )
    def test_what_is_known_decides(
        self,
        published: int | None,
        committed: list[int],
        fed: list[int],
        step: Step | None,
    ) -> None:
        """The feed is read where every batch has left one, else all that there is."""
        found = next_step("q", published=published, committed=committed, fed=fed)
        assert found == step

    @pytest.mark.parametrize(
        ("published", "step"),
        [
            (8, snapshot(9, "node-lost")),
            (9, snapshot(9, "node-lost", begins_anew=True)),
            (None, snapshot(9, "node-lost")),
        ],
    )
    def test_a_lost_node_needs_everything(
        self, published: int | None, step: Step
    ) -> None:
        """A batch that is published already is not applied twice: it begins anew."""
        found = next_step(
            "q", published=published, committed=[8, 9], fed=[8, 9], is_node_lost=True
        )
        assert found == step

    @pytest.mark.parametrize(
        ("published", "step"),
        [
            (8, snapshot(9, "rewound")),
            (9, snapshot(9, "rewound", begins_anew=True)),
        ],
    )
    @pytest.mark.parametrize("is_node_lost", [True, False])
    def test_a_batch_that_was_committed_again_is_read_again(
        self, published: int, step: Step, *, is_node_lost: bool
    ) -> None:
        """The feed tells what has changed, but not since what readers have (W4)."""
        found = next_step(
            "q",
            published=published,
            committed=[8, 9],
            fed=[8, 9],
            is_node_lost=is_node_lost,
            is_rewound=True,
        )
        assert found == step

    def test_a_feed_that_failed_is_not_read_again(self) -> None:
        """What cannot be read from the feed is read from the state."""
        found = next_step(
            "q", published=8, committed=[8, 9], fed=[8, 9], is_feed_failed=True
        )
        assert found == snapshot(9, "feed-failed")

    def test_a_long_way_is_gone_in_pieces(self) -> None:
        """One read has an upper bound, whatever there is to be caught up with."""
        batch_ids = range(1_000)
        found = next_step("q", published=0, committed=batch_ids, fed=batch_ids)
        assert found == FollowFeed(first=1, last=FEED_BATCH_COUNT_MAX)

    @pytest.mark.parametrize("is_rewound", [True, False])
    def test_an_older_checkpoint_is_refused(self, *, is_rewound: bool) -> None:
        """What was published and is not committed any more is not overwritten (W4)."""
        with pytest.raises(CheckpointRewoundError) as caught:
            next_step(
                "q",
                published=9,
                committed=[7, 8],
                fed=[7, 8],
                is_rewound=is_rewound,
            )
        error = caught.value
        assert (error.query_id, error.batch_id, error.batch_id_last) == ("q", 8, 9)


@pytest.mark.parametrize(
    ("published", "pending"), [(None, [6, 7]), (5, [6, 7]), (6, [7]), (7, [])]
)
def test_what_is_pending(published: int | None, pending: list[int]) -> None:
    """All that is committed after the last that is published."""
    assert pending_batch_ids([6, 7], published) == pending
