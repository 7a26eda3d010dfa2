"""The checker of the drills: it sees what it must, and raises no false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from election import LeaderSession
from tests.drills.beliefs import (
    Journal,
    Span,
    handovers_ns,
    overlaps,
    read_journal,
)


if TYPE_CHECKING:
    from pathlib import Path


def span(epoch: int, first_ns: int, last_ns: int, **values: Any) -> Span:
    """Return a span of a holder of its own."""
    defaults: dict[str, Any] = {
        "holder": f"holder-{epoch}",
        "job_id": "flights",
        "leader_session_id": UUID(int=epoch),
    }
    return Span(epoch=epoch, first_ns=first_ns, last_ns=last_ns, **defaults | values)


class TestOverlaps:
    @pytest.mark.proves("E1")
    def test_one_after_the_other_is_right(self) -> None:
        """E1: the next may begin at the very moment at which the last has ended."""
        spans = [span(1, 10, 20), span(2, 20, 30), span(5, 31, 40)]
        assert overlaps(spans) == []
        assert handovers_ns(spans) == [0, 1]

    @pytest.mark.proves("E4")
    def test_one_nanosecond_too_long_is_seen(self) -> None:
        """E4: two that believe at once are found, whatever the order of the spans."""
        assert len(overlaps([span(2, 20, 30), span(1, 10, 21)])) == 1

    @pytest.mark.proves("E4")
    def test_everybody_before_counts(self) -> None:
        """E4: a holder that outlasts several successors is found for each of them."""
        spans = [span(1, 10, 100), span(2, 20, 30), span(3, 40, 50)]
        assert len(overlaps(spans)) == 2

    @pytest.mark.proves("E2")
    def test_an_epoch_out_of_order_is_seen(self) -> None:
        """E2: an older epoch that is believed after a newer one is found."""
        assert len(overlaps([span(2, 10, 20), span(1, 30, 40)])) == 1

    @pytest.mark.proves("E2")
    def test_an_epoch_is_given_once(self) -> None:
        """E2: two holders of one epoch are found, even far apart."""
        spans = [span(1, 10, 20), span(1, 30, 40, holder="another")]
        assert len(overlaps(spans)) == 1

    def test_a_single_yes_is_a_moment(self) -> None:
        """A leadership seen once lies between two readings, and proves no overlap."""
        assert overlaps([span(1, 10, 9), span(2, 9, 30)]) == []
        assert len(overlaps([span(1, 10, 9), span(2, 8, 30)])) == 1

    @pytest.mark.proves("E1")
    def test_jobs_have_nothing_to_do_with_each_other(self) -> None:
        """E1: at most one leader for each job."""
        assert overlaps([span(1, 10, 20), span(2, 10, 20, job_id="trains")]) == []


class TestJournal:
    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        """A row has the first and the last yes, and how many there were."""
        journal = Journal(tmp_path / "journal")
        first = LeaderSession(leader_session_id=UUID(int=(7 << 64) + 9), epoch=2**62)
        second = LeaderSession(leader_session_id=UUID(int=11), epoch=2**62 + 1)
        journal.believed(0, first, before_ns=1, after_ns=2)
        journal.believed(1, second, before_ns=3, after_ns=4)
        journal.believed(0, first, before_ns=5, after_ns=6)
        spans = read_journal(tmp_path / "journal", holder="a", job_ids=["x", "y"])
        assert list(spans) == [
            Span(
                holder="a",
                job_id="x",
                epoch=2**62,
                leader_session_id=first.leader_session_id,
                first_ns=2,
                last_ns=5,
                count=2,
            ),
            Span(
                holder="a",
                job_id="y",
                epoch=2**62 + 1,
                leader_session_id=second.leader_session_id,
                first_ns=4,
                last_ns=3,
                count=1,
            ),
        ]
