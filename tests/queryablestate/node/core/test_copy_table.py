from __future__ import annotations

from typing import Final, TypeGuard

import pytest

from queryablestate.node.core.copy_table import CopyTable
from queryablestate.node.core.effects import (
    CancelFetch,
    FetchKeyGroups,
    FinishCopy,
    HoldKeyGroups,
    NodeEffect,
)
from queryablestate.node.core.events import (
    CopyAdvanced,
    CopyFinished,
    KeyGroupsFetched,
    KeyGroupsHeld,
)
from queryablestate.node.core.limits import NodeLimits
from queryablestate.node.core.registration import NodeIdentity
from queryablestate.wire.job_assignment import JobAssignment
from tests.queryablestate.node_entries import assignment, joining, source


IDENTITY: Final = NodeIdentity(
    node_id="n", registration_id="r", address="tcp://10.0.0.9:1"
)


def to_copy(job_id: str) -> JobAssignment:
    """Return an assignment by which key group 1 is to be copied."""
    return assignment(
        job_id,
        key_groups=(0,),
        joining=joining({1: 7}),
        sources=(source("a", 1),),
    )


class Copies:
    """The copies of a node, and the words that a test needs."""

    def __init__(self) -> None:
        self.table = CopyTable(IDENTITY, NodeLimits())

    def advance(self) -> list[NodeEffect]:
        """Return what is due; every job is at entry 7, and the node is not heard."""
        return self.table.advance(lambda _: 7, is_heard=False, now_ns=0)

    def begin(self, *job_ids: str) -> list[NodeEffect]:
        """Come to where these jobs fetch key group 1; return what is fetched."""
        self.table.assign_all([to_copy(job_id) for job_id in job_ids], ())
        self.table.missed_came()
        self.advance()
        for job_id in job_ids:
            self.held(job_id, 1)
        return self.advance()

    def held(self, job_id: str, *missing: int) -> None:
        """Have the store done with what it was told to hold."""
        event = KeyGroupsHeld(
            job_id=job_id,
            assignment_version=1,
            copied=(),
            missing=missing,
            sequence_min=7,
        )
        self.table.held(event, now_ns=0)


def hold(job_id: str, *key_groups: int, version: int = 1) -> HoldKeyGroups:
    """Return what the store is told, if nothing is to be copied."""
    return HoldKeyGroups(
        job_id=job_id, assignment_version=version, key_groups=key_groups, joining=()
    )


@pytest.fixture
def copies() -> Copies:
    """Return a node that holds nothing."""
    return Copies()


class TestAssigning:
    """S1: a node holds what it is assigned, and nothing else."""

    def test_jobs_in_which_it_has_no_part_are_dropped(self, copies: Copies) -> None:
        """Whatever the store still has of them, and whatever was assigned before."""
        copies.table.assign_all([assignment("b", version=4)], ["a", "b"])
        expected = [hold("a", version=0), hold("b", 0, 1, version=4)]
        assert copies.advance() == expected
        copies.table.assign_all([], [])
        copies.held("a")
        assert copies.advance() == []  # it was version 0 that the store was told of
        event = KeyGroupsHeld(
            job_id="b", assignment_version=4, copied=(), missing=(), sequence_min=0
        )
        copies.table.held(event, now_ns=0)
        assert copies.advance() == [hold("b", version=4)]

    def test_one_assignment_leaves_the_others(self, copies: Copies) -> None:
        """Each job has its own."""
        copies.table.assign(assignment("a"))
        copies.table.assign(assignment("b"))
        assert copies.advance() == [hold("a", 0, 1), hold("b", 0, 1)]
        copies.table.assign(assignment("b", key_groups=(1,)))
        copies.held("a")
        copies.held("b")
        assert copies.advance() == [hold("b", 1)]

    @pytest.mark.proves("W7")
    def test_what_is_void_is_left_alone(self, copies: Copies) -> None:
        """W7: while a job is about to begin anew, the others go on."""
        copies.table.assign_all([assignment("a"), assignment("b")], ())
        positions = {"a": None, "b": 7}
        effects = copies.table.advance(
            lambda job_id: positions[job_id], is_heard=False, now_ns=0
        )
        assert effects == [hold("b", 0, 1)]


class TestFetching:
    """S2: every job copies for itself."""

    def test_jobs_do_not_wait_for_each_other(self, copies: Copies) -> None:
        """One fetch of each is under way, and each has its own number."""
        effects = copies.begin("a", "b")
        assert [(e.job_id, e.fetch_id) for e in effects if is_fetch(e)] == [
            ("a", 1),
            ("b", 2),
        ]

    def test_a_fetch_is_followed_to_its_end(self, copies: Copies) -> None:
        """Rows that are here are completed; then they are not missing any more."""
        copies.begin("a")
        figures = copies.table.figures()
        assert figures["key_groups_held"] == 1
        assert figures["key_groups_copying"] == 1
        copies.table.advanced(CopyAdvanced(job_id="a", row_count=3, size_bytes=40))
        fetched = KeyGroupsFetched(job_id="a", fetch_id=1, sequence=7)
        copies.table.fetched(fetched, now_ns=0)
        finish = FinishCopy(job_id="a", fetch_id=1, key_groups=(1,), sequence=7)
        assert copies.advance() == [finish]
        finished = CopyFinished(job_id="a", fetch_id=1, key_groups=(1,))
        copies.table.finished(finished, now_ns=0)
        assert copies.table.figures() == {
            "key_groups_held": 1,
            "key_groups_copying": 0,
            "key_groups_copied_total": 1,
            "rows_copied_total": 3,
            "rows_copied_bytes_total": 40,
        }

    @pytest.mark.proves("W7")
    def test_a_reset_concerns_one_job(self, copies: Copies) -> None:
        """W7: of a job that the node knows nothing of there is nothing to cancel."""
        copies.begin("a", "b")
        assert copies.table.reset("b") == [CancelFetch(job_id="b")]
        assert copies.table.reset("c") == []
        assert copies.table.figures()["key_groups_copying"] == 1

    def test_another_store_knows_nothing(self, copies: Copies) -> None:
        """What is fetched for the one that is closed is cancelled, and forgotten."""
        copies.begin("a", "b")
        cancelled = [CancelFetch(job_id="a"), CancelFetch(job_id="b")]
        assert copies.table.forget() == cancelled
        assert copies.advance() == []
        assert copies.table.next_deadline_ns() is None
        (effect,) = copies.begin("a")
        assert isinstance(effect, FetchKeyGroups)
        assert effect.fetch_id == 3  # numbers of the old store are never used again

    def test_what_is_said_of_an_unknown_job_is_nothing(self, copies: Copies) -> None:
        """The store that said it may be closed."""
        copies.held("a", 1)
        copies.table.advanced(CopyAdvanced(job_id="a", row_count=3, size_bytes=40))
        fetched = KeyGroupsFetched(job_id="a", fetch_id=1, sequence=7)
        copies.table.fetched(fetched, now_ns=0)
        finished = CopyFinished(job_id="a", fetch_id=1, key_groups=(1,))
        copies.table.finished(finished, now_ns=0)
        assert copies.advance() == []

    def test_the_earliest_deadline_counts(self, copies: Copies) -> None:
        """Of all jobs that wait for a source."""
        copies.begin("a", "b")
        for fetch_id, (job_id, now_ns) in enumerate((("a", 50), ("b", 20)), start=1):
            failed = KeyGroupsFetched(
                job_id=job_id, fetch_id=fetch_id, sequence=0, failure="unreachable"
            )
            copies.table.fetched(failed, now_ns=now_ns)
        copies.advance()
        assert copies.table.next_deadline_ns() == 20 + NodeLimits().copy_retry_ns


def is_fetch(effect: NodeEffect) -> TypeGuard[FetchKeyGroups]:
    """Return whether something is to be fetched."""
    return isinstance(effect, FetchKeyGroups)
