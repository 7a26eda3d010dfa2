"""
What an attached state does next; pure.

Theory of operation.  There is the last batch that is published, the batches that the
query has committed, and those of them that have left a change feed.  From these follows
one of three steps: nothing, if all is published; the feed of everything since, if there
is a feed for each batch of it; else a snapshot of the newest batch, which replaces all
that is there.  A snapshot is always right and costs a reading of the whole state, a
feed costs what has changed.

Where a node has lost its rows, a snapshot brings them back.  If the newest batch is
published already, it could not be applied a second time (rule W4): it then begins a new
generation of the state.

Where the checkpoint was put back to an older batch, and the query has run again to the
same number or past it, the numbers tell nothing: what is published was of rows that the
query does not have any more.  A snapshot replaces them, in the same way.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import frozen

from queryablestate import CheckpointRewoundError


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


__all__ = [
    "FollowFeed",
    "SnapshotReason",
    "Step",
    "TakeSnapshot",
    "next_step",
    "pending_batch_ids",
]

FEED_BATCH_COUNT_MAX: Final = 100
"""Batches that are read from the feed at once, as many as Spark retains by default."""


@final
class SnapshotReason(Enum):
    """Why a whole state is read."""

    FIRST = "first"
    NO_FEED = "no-feed"
    FEED_FAILED = "feed-failed"
    NODE_LOST = "node-lost"
    REWOUND = "rewound"


@final
@frozen(kw_only=True)
class FollowFeed:
    """
    Publish what batches have changed, as one batch of the number of the last of them.

    Attributes:
        first: The first of them.
        last: The last of them, included.
    """

    first: int
    last: int


@final
@frozen(kw_only=True)
class TakeSnapshot:
    """
    Publish all that is there after a batch, in place of whatever was before.

    Attributes:
        batch_id: The batch.
        reason: Why the feed will not do.
        begins_anew: Whether that batch is published already, so that it needs another
            query id to be applied.
    """

    batch_id: int
    reason: SnapshotReason
    begins_anew: bool = False


Step: TypeAlias = FollowFeed | TakeSnapshot


def pending_batch_ids(committed: Sequence[int], published: int | None) -> list[int]:
    """Return the batches among *committed* that are yet to be published."""
    return [one for one in committed if published is None or one > published]


def next_step(
    query_id: str,
    *,
    published: int | None,
    committed: Sequence[int],
    fed: Collection[int],
    is_feed_failed: bool = False,
    is_node_lost: bool = False,
    is_rewound: bool = False,
) -> Step | None:
    """
    Return what to do now, or None if all is published.

    Args:
        query_id: Who publishes, for errors.
        published: The last batch that is published, or None before the first.
        committed: The batches that the query has committed and not purged, sorted.
        fed: The batches that have left a feed.
        is_feed_failed: Whether the feed was there the last time, but of no use.
        is_node_lost: Whether a node has lost its rows.
        is_rewound: Whether the query has committed the batch that is published once
            more, from an older copy of its checkpoint.

    Raises:
        CheckpointRewoundError: If what is published was never committed.
    """
    if not committed:
        return None
    newest = committed[-1]
    if published is not None and published > newest:
        raise CheckpointRewoundError(query_id, newest, published)
    if is_rewound or is_node_lost:
        reason = SnapshotReason.REWOUND if is_rewound else SnapshotReason.NODE_LOST
        return TakeSnapshot(
            batch_id=newest,
            reason=reason,
            begins_anew=published == newest,
        )
    if published is None:
        return TakeSnapshot(batch_id=newest, reason=SnapshotReason.FIRST)
    if published == newest:
        return None
    if is_feed_failed:
        return TakeSnapshot(batch_id=newest, reason=SnapshotReason.FEED_FAILED)
    usable = set(committed).intersection(fed)
    if not usable.issuperset(range(published + 1, newest + 1)):
        return TakeSnapshot(batch_id=newest, reason=SnapshotReason.NO_FEED)
    return FollowFeed(
        first=published + 1, last=min(newest, published + FEED_BATCH_COUNT_MAX)
    )
