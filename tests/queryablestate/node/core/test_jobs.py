from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from queryablestate.node.core.effects import (
    ApplyEntry,
    NodeEffect,
    ReportBehind,
    ResetJobRows,
    SendToProxy,
)
from queryablestate.node.core.events import ROWS_MISSING, EntryFinished, ResetFinished
from queryablestate.node.core.jobs import JobTable
from queryablestate.wire.node_messages import (
    ApplyEntries,
    EntriesApplied,
    JobPosition,
    ResetJob,
)
from tests.queryablestate.node_entries import (
    assignment,
    batch,
    drop,
    restored,
    snapshot,
)


if TYPE_CHECKING:
    from queryablestate.wire.records import Entry


RETRY_NS: Final = 1_000
WAITING_MAX: Final = 3


class Jobs:
    """A table, and the words that a test needs."""

    def __init__(
        self, positions: dict[str, int], lost: dict[str, list[int]] | None = None
    ) -> None:
        self.table = JobTable(
            "r",
            positions,
            {} if lost is None else lost,
            entries_waiting_max=WAITING_MAX,
            retry_ns=RETRY_NS,
        )

    def send(
        self, *entries: Entry, job_id: str = "job"
    ) -> tuple[list[NodeEffect], bool]:
        """Give the node entries."""
        command = ApplyEntries(leader_epoch=1, job_id=job_id, entries=entries)
        return self.table.receive(command)

    def reset(self, sequence: int, *state_numbers: int) -> list[NodeEffect]:
        """Have the job begin anew."""
        return self.table.reset(
            ResetJob(
                leader_epoch=1,
                job_id="job",
                sequence=sequence,
                state_numbers=state_numbers,
            )
        )

    def applied(self, entry: Entry, failure: str | None = None) -> list[NodeEffect]:
        """Have the store done with *entry*."""
        event = EntryFinished(job_id="job", entry=entry, failure=failure)
        return self.table.entry_finished(event, now_ns=0)

    def was_reset(self, failure: str | None = None) -> list[NodeEffect]:
        """Have the store done with a reset."""
        event = ResetFinished(job_id="job", failure=failure)
        return self.table.reset_finished(event, now_ns=0)


def apply(entry: Entry) -> ApplyEntry:
    """Return the effect that applies *entry*."""
    return ApplyEntry(job_id="job", entry=entry)


def report(
    sequence: int,
    failure: str | None = None,
    lost: tuple[int, ...] = (),
    *,
    lacks_rows: bool = False,
) -> SendToProxy:
    """Return what the proxy is told."""
    return SendToProxy(
        message=EntriesApplied(
            registration_id="r",
            job_id="job",
            sequence=sequence,
            failure=failure,
            lost_state_numbers=lost,
            lacks_rows=lacks_rows,
        )
    )


def rows(sequence: int, *state_numbers: int) -> ResetJobRows:
    """Return the effect that resets the job."""
    return ResetJobRows(
        job_id="job",
        sequence=sequence,
        state_numbers=state_numbers,
        restore_id=None,
        assignment_version=0,
        key_groups=(),
        joining=(),
    )


@pytest.fixture
def jobs() -> Jobs:
    """Return a node that has applied seven entries of ``job``."""
    return Jobs({"job": 7})


class TestOrder:
    """W3: entries are applied strictly in their order."""

    def test_the_next_entry_goes_to_the_store(self, jobs: Jobs) -> None:
        """It is applied, and the proxy hears of it when that is so."""
        assert jobs.send(batch(8)) == ([apply(batch(8))], True)
        assert jobs.table.is_busy
        assert jobs.applied(batch(8)) == [report(8)]
        assert not jobs.table.is_busy
        assert jobs.table.positions() == [JobPosition(job_id="job", sequence=8)]

    def test_one_entry_of_a_job_is_applied_at_a_time(self, jobs: Jobs) -> None:
        """The second waits for the first, the third for the second."""
        assert jobs.send(batch(8), batch(9)) == ([apply(batch(8))], True)
        assert jobs.send(batch(10)) == ([], True)
        assert jobs.applied(batch(8)) == [report(8), apply(batch(9))]
        assert jobs.applied(batch(9)) == [report(9), apply(batch(10))]

    def test_jobs_do_not_wait_for_each_other(self, jobs: Jobs) -> None:
        """Each chain has its own order."""
        jobs.send(batch(8))
        effects, _ = jobs.send(batch(1), job_id="other")
        assert effects == [ApplyEntry(job_id="other", entry=batch(1))]

    def test_what_is_applied_is_passed_over(self, jobs: Jobs) -> None:
        """Entries may overlap with what the node has, applied or waiting."""
        assert jobs.send(batch(6), batch(7), batch(8)) == ([apply(batch(8))], True)
        assert jobs.send(batch(7), batch(8), batch(9)) == ([], True)
        assert jobs.applied(batch(8)) == [report(8), apply(batch(9))]

    def test_nothing_new_is_answered_with_the_position(self, jobs: Jobs) -> None:
        """The proxy hears how far the node is, though there was nothing to do."""
        assert jobs.send(batch(7)) == ([report(7)], True)

    def test_nothing_new_while_something_is_applied_is_not_answered(
        self, jobs: Jobs
    ) -> None:
        """The answer comes with the entry that is being applied."""
        jobs.send(batch(8))
        assert jobs.send(batch(8)) == ([], True)

    def test_a_gap_is_never_jumped(self, jobs: Jobs) -> None:
        """Nothing is applied above what is missing."""
        assert jobs.send(batch(9)) == ([], False)
        assert jobs.send(batch(8)) == ([apply(batch(8))], True)

    def test_what_comes_before_a_gap_is_applied(self, jobs: Jobs) -> None:
        """Of entries with a hole, those before the hole count."""
        assert jobs.send(batch(8), batch(10)) == ([apply(batch(8))], False)
        assert jobs.table.is_draining
        assert jobs.applied(batch(8)) == [report(8)]
        assert not jobs.table.is_draining

    def test_what_waits_is_bounded(self, jobs: Jobs) -> None:
        """Beyond the limit entries are dropped, to be asked for again."""
        entries = [batch(sequence) for sequence in range(8, 13)]
        effects, is_whole = jobs.send(*entries)
        assert not is_whole
        assert effects == [apply(batch(8))]
        for sequence in (8, 9):
            expected = [report(sequence), apply(batch(sequence + 1))]
            assert jobs.applied(batch(sequence)) == expected
        assert jobs.applied(batch(10)) == [report(10)]
        assert jobs.send(batch(11)) == ([apply(batch(11))], True)


class TestFailure:
    """An entry that cannot be applied stops its job, and says so."""

    def test_it_is_reported_and_what_waits_is_dropped(self, jobs: Jobs) -> None:
        """Nothing is applied above what failed."""
        jobs.send(batch(8), batch(9))
        behind = ReportBehind(job_id="job", sequence=7, failure="disk full")
        assert jobs.applied(batch(8), "disk full") == [report(7, "disk full"), behind]
        assert not jobs.table.is_busy
        assert jobs.table.failures() == {"job": "disk full"}
        assert jobs.table.positions() == [JobPosition(job_id="job", sequence=7)]

    @pytest.mark.proves("W7")
    def test_that_rows_are_not_there_is_told(self, jobs: Jobs) -> None:
        """W7: the proxy knows then that to wait does not help."""
        jobs.send(batch(8))
        event = EntryFinished(
            job_id="job", entry=batch(8), failure="no rows", reason=ROWS_MISSING
        )
        told, _ = jobs.table.entry_finished(event, now_ns=0)
        assert told == report(7, "no rows", lacks_rows=True)
        jobs.send(batch(8))
        assert jobs.applied(batch(8), "disk full")[0] == report(7, "disk full")

    def test_later_entries_are_answered_with_the_failure(self, jobs: Jobs) -> None:
        """The node does not ask for what it cannot apply each time one comes."""
        jobs.send(batch(8))
        jobs.applied(batch(8), "disk full")
        assert jobs.send(batch(9)) == ([report(7, "disk full")], True)

    def test_it_is_tried_again_when_it_comes_again(self, jobs: Jobs) -> None:
        """What failed may succeed later, and then all is well."""
        jobs.send(batch(8))
        jobs.applied(batch(8), "disk full")
        assert jobs.send(batch(8)) == ([apply(batch(8))], True)
        assert jobs.applied(batch(8)) == [report(8)]
        assert jobs.table.failures() == {}
        assert jobs.table.next_deadline_ns() is None

    def test_what_is_dropped_while_it_is_tried_again_is_missed(
        self, jobs: Jobs
    ) -> None:
        """A job that goes on again must not forget that something did not fit."""
        jobs.send(batch(8))
        jobs.applied(batch(8), "disk full")
        jobs.send(batch(8), batch(9), batch(10), batch(11))
        assert jobs.send(batch(12)) == ([], False)
        assert jobs.table.is_draining

    def test_the_same_failure_is_logged_once(self, jobs: Jobs) -> None:
        """The proxy hears of it each time, the log once."""
        jobs.send(batch(8))
        jobs.applied(batch(8), "disk full")
        jobs.send(batch(8))
        assert jobs.applied(batch(8), "disk full") == [report(7, "disk full")]

    def test_the_rest_is_wanted_after_a_while(self, jobs: Jobs) -> None:
        """A failed job asks for what it lacks, once in a while."""
        jobs.send(batch(8))
        jobs.applied(batch(8), "disk full")
        assert jobs.table.next_deadline_ns() == RETRY_NS
        assert not jobs.table.wants_more(now_ns=RETRY_NS - 1)
        assert jobs.table.wants_more(now_ns=RETRY_NS)
        assert not jobs.table.wants_more(now_ns=RETRY_NS)
        assert jobs.table.next_deadline_ns() == 2 * RETRY_NS


class TestReset:
    """W7: a job whose rows are lost begins anew, and says so."""

    def test_it_begins_where_it_is_told(self, jobs: Jobs) -> None:
        """After the reset the chain goes on from there."""
        assert jobs.reset(20, 1, 2) == [rows(20, 1, 2)]
        assert jobs.send(batch(21)) == ([], True)
        expected = [report(20, lost=(1, 2)), apply(batch(21))]
        assert jobs.was_reset() == expected

    def test_it_waits_for_what_is_being_applied(self, jobs: Jobs) -> None:
        """What waits is dropped; what the store is at, ends first."""
        jobs.send(batch(8), batch(9))
        assert jobs.reset(20) == []
        assert jobs.applied(batch(8)) == [report(8), rows(20)]
        assert jobs.was_reset() == [report(20)]

    def test_a_failure_before_it_does_not_matter(self, jobs: Jobs) -> None:
        """An entry that failed while a reset waits is no failure of the job."""
        jobs.send(batch(8))
        jobs.reset(20)
        assert jobs.applied(batch(8), "disk full") == [rows(20)]
        assert jobs.table.failures() == {}

    @pytest.mark.proves("W3")
    def test_what_another_table_has_asked_for_is_passed_over(self, jobs: Jobs) -> None:
        """W3: a store that was opened anew may still end what it was at before."""
        assert jobs.applied(batch(8)) == []
        assert jobs.was_reset() == []
        assert jobs.send(batch(8)) == ([apply(batch(8))], True)
        assert jobs.applied(batch(9)) == []
        assert jobs.was_reset() == []
        assert jobs.applied(batch(8)) == [report(8)]
        unknown = EntryFinished(job_id="unknown", entry=batch(1), failure=None)
        assert jobs.table.entry_finished(unknown, now_ns=0) == []
        assert not jobs.table.is_caught_up("unknown")

    def test_a_later_reset_replaces_one_that_is_under_way(self, jobs: Jobs) -> None:
        """The position of the earlier one is never told: it is void again."""
        jobs.reset(20)
        assert jobs.reset(30) == []
        assert jobs.was_reset() == [rows(30)]
        assert not jobs.table.is_caught_up("job")
        assert jobs.was_reset() == [report(30)]
        assert jobs.table.is_caught_up("job")

    def test_one_that_fails_leaves_the_job_void(self, jobs: Jobs) -> None:
        """Rows that were to be thrown away are answered from no more."""
        jobs.reset(3)
        jobs.was_reset("disk full")
        assert jobs.table.failures() == {"job": "disk full"}
        assert not jobs.table.is_caught_up("job")
        assert not jobs.table.is_unsettled
        assert jobs.reset(3) == [rows(3)]
        jobs.was_reset()
        assert jobs.table.is_caught_up("job")

    @pytest.mark.proves("S3")
    def test_one_that_fails_without_a_part_is_asked_for_with_one(
        self, jobs: Jobs
    ) -> None:
        """S3: what is to be copied then would never begin."""
        jobs.table.assign(assignment(key_groups=()))
        jobs.reset(3)
        assert jobs.was_reset("disk full") == []
        assert not jobs.table.wants_more(now_ns=9)
        assert jobs.table.applied("job") == 7
        jobs.table.assign(assignment())
        assert jobs.table.wants_more(now_ns=9)

    @pytest.mark.proves("W3")
    def test_entries_after_one_that_fails_are_not_applied(self, jobs: Jobs) -> None:
        """W3: what they would be applied to counts for nothing."""
        jobs.reset(7)
        jobs.was_reset("disk full")
        assert jobs.send(batch(8)) == ([], True)
        assert jobs.table.wants_more(now_ns=RETRY_NS)
        assert jobs.reset(8) == [rows(8)]

    def test_a_registration_that_mends_it_is_the_last(self, jobs: Jobs) -> None:
        """What was to be asked again has been."""
        jobs.table.assign(assignment(key_groups=()))
        jobs.reset(3)
        jobs.was_reset("disk full")
        jobs.table.assign(assignment())
        assert jobs.table.wants_more(now_ns=9)
        jobs.table.assign_all([assignment()])
        assert not jobs.table.wants_more(now_ns=10 * RETRY_NS)

    @pytest.mark.proves("S1")
    def test_a_node_that_leaves_after_it_has_failed_lets_go(self, jobs: Jobs) -> None:
        """S1: what the store holds of a job that is void stays as it is."""
        jobs.table.assign(assignment())
        jobs.reset(3)
        jobs.was_reset("disk full")
        assert jobs.table.applied("job") is None
        jobs.table.assign(assignment(key_groups=()))
        assert jobs.table.applied("job") == 7
        assert not jobs.table.wants_more(now_ns=RETRY_NS)
        jobs.table.assign(assignment())
        assert jobs.table.wants_more(now_ns=9)

    def test_a_new_registration_says_whether_the_rows_count(self, jobs: Jobs) -> None:
        """The answer to the position that was told is what holds."""
        jobs.reset(3)
        jobs.was_reset("disk full")
        jobs.table.assign_all([assignment()])
        jobs.table.missed_came()
        assert jobs.table.is_caught_up("job")

    def test_a_new_registration_does_not_call_off_a_reset(self, jobs: Jobs) -> None:
        """What the store is about to throw away does not count."""
        jobs.reset(3)
        jobs.table.assign_all([assignment()])
        jobs.table.missed_came()
        assert not jobs.table.is_caught_up("job")


class TestLoss:
    """W7: the proxy hears which states have lost rows, and when they are whole."""

    def test_it_is_told_with_the_position(self) -> None:
        """What the store says at its opening is told as well."""
        jobs = Jobs({"job": 7, "other": 1}, {"job": [3, 1]})
        assert jobs.table.positions() == [
            JobPosition(job_id="job", sequence=7, lost_state_numbers=(1, 3)),
            JobPosition(job_id="other", sequence=1),
        ]

    def test_a_batch_that_replaces_a_state_makes_it_whole(self) -> None:
        """Another batch adds to it, and what was lost is lost still."""
        jobs = Jobs({"job": 7}, {"job": [1]})
        jobs.send(batch(8), batch(9, is_replaced=True))
        assert jobs.applied(batch(8))[0] == report(8, lost=(1,))
        assert jobs.applied(batch(9, is_replaced=True)) == [report(9)]

    def test_a_state_that_is_dropped_is_not_missed(self) -> None:
        """What is gone for everybody is lost for none."""
        jobs = Jobs({"job": 7}, {"job": [1, 2]})
        jobs.send(drop(8))
        assert jobs.applied(drop(8)) == [report(8, lost=(2,))]

    def test_a_snapshot_leaves_lost_what_is_lost(self) -> None:
        """It changes nothing for anybody."""
        jobs = Jobs({"job": 7}, {"job": [1]})
        jobs.send(snapshot(8))
        assert jobs.applied(snapshot(8)) == [report(8, lost=(1,))]

    def test_what_is_restored_is_whole(self) -> None:
        """All rows of those states have come; other states are lost still."""
        jobs = Jobs({"job": 7}, {"job": [1, 2]})
        jobs.send(restored(8, 2))
        assert jobs.applied(restored(8, 2)) == [report(8, lost=(1,))]


class TestSettled:
    """When the position may be told to a proxy."""

    def test_a_reset_unsettles_it(self, jobs: Jobs) -> None:
        """Waiting or under way: the position is about to be another."""
        assert not jobs.table.is_unsettled
        jobs.send(batch(8))
        assert not jobs.table.is_unsettled
        jobs.reset(20)
        assert jobs.table.is_unsettled
        jobs.applied(batch(8))
        assert jobs.table.is_unsettled
        jobs.was_reset()
        assert not jobs.table.is_unsettled

    def test_a_first_entry_unsettles_a_new_job(self) -> None:
        """None told, the proxy would begin a job that has begun already."""
        jobs = Jobs({})
        jobs.send(batch(1))
        assert jobs.table.is_unsettled
        assert jobs.table.positions() == []
        jobs.applied(batch(1))
        assert not jobs.table.is_unsettled
        assert jobs.table.positions() == [JobPosition(job_id="job", sequence=1)]


class TestServing:
    """What the node answers for."""

    def test_it_is_what_was_assigned(self, jobs: Jobs) -> None:
        """Key groups come with the bytes that storage keys begin with."""
        assert jobs.table.served("job") is None
        assert jobs.table.served("other") is None
        jobs.table.assign(assignment(version=4, key_groups=(0, 258)))
        served = jobs.table.served("job")
        assert served is not None
        assert served.assignment_version == 4
        assert served.key_groups == (0, 258)
        assert served.prefixes == {b"\0\0", b"\1\2"}

    def test_all_that_is_assigned_is_all(self, jobs: Jobs) -> None:
        """A job that is not named any more is not answered for."""
        jobs.table.assign_all([assignment("job"), assignment("other")])
        jobs.table.assign_all([assignment("other")])
        assert jobs.table.served("job") is None
        assert jobs.table.served("other") is not None
        jobs.table.dismiss()
        assert jobs.table.served("other") is None

    @pytest.mark.proves("W3")
    def test_what_was_missed_is_applied_before_it_answers(self, jobs: Jobs) -> None:
        """W3: a node that was away fetches what it missed before it serves."""
        jobs.table.assign_all([assignment()])
        assert not jobs.table.is_caught_up("job")
        jobs.send(batch(8), batch(9))
        assert jobs.table.missed_came()
        assert not jobs.table.missed_came()
        assert not jobs.table.is_caught_up("job")
        jobs.applied(batch(8))
        assert not jobs.table.is_caught_up("job")
        jobs.applied(batch(9))
        assert jobs.table.is_caught_up("job")

    def test_what_is_decided_meanwhile_does_not_stop_it(self, jobs: Jobs) -> None:
        """While a batch is applied the one before it is answered from."""
        jobs.table.assign_all([assignment()])
        jobs.table.missed_came()
        jobs.send(batch(8))
        assert jobs.table.is_caught_up("job")

    def test_a_failure_while_it_catches_up_keeps_it_from_answering(
        self, jobs: Jobs
    ) -> None:
        """What it missed it has still missed."""
        jobs.table.assign_all([assignment()])
        jobs.send(batch(8))
        jobs.table.missed_came()
        jobs.applied(batch(8), "disk full")
        assert not jobs.table.is_caught_up("job")

    def test_no_entries_are_nothing_missed(self, jobs: Jobs) -> None:
        """An empty command changes nothing."""
        jobs.table.assign_all([assignment()])
        assert jobs.send() == ([report(7)], True)
        jobs.table.missed_came()
        assert jobs.table.is_caught_up("job")

    @pytest.mark.proves("S3")
    @pytest.mark.parametrize("is_reset", [False, True])
    def test_the_entry_of_the_assignment_is_promised(
        self, jobs: Jobs, is_reset: bool
    ) -> None:
        """S3: who answered before may have shown it; a reset does not change that."""
        jobs.table.assign_all([assignment(sequence=9)])
        if is_reset:
            jobs.reset(7)
            jobs.was_reset()
        jobs.table.missed_came()
        assert not jobs.table.is_caught_up("job")
        for sequence in (8, 9):
            assert not jobs.table.is_caught_up("job")
            jobs.send(batch(sequence))
            jobs.applied(batch(sequence))
        assert jobs.table.is_caught_up("job")

    @pytest.mark.proves("S3")
    def test_what_was_promised_before_is_not_taken_back(self, jobs: Jobs) -> None:
        """S3: another assignment may have been made earlier than the last entry."""
        jobs.table.assign_all([assignment(sequence=9)])
        jobs.table.assign(assignment(version=2, sequence=8))
        jobs.table.missed_came()
        jobs.send(batch(8))
        jobs.applied(batch(8))
        assert not jobs.table.is_caught_up("job")

    @pytest.mark.proves("W7")
    def test_how_far_a_job_is_counts_unless_it_is_void(self, jobs: Jobs) -> None:
        """W7: copies go by it, and wait while a reset does."""
        assert jobs.table.applied("job") == 7
        assert jobs.table.applied("other") == 0
        jobs.reset(20)
        assert jobs.table.applied("job") is None
        jobs.was_reset("disk full")
        assert jobs.table.applied("job") is None
        jobs.reset(20)
        jobs.was_reset()
        assert jobs.table.applied("job") == 20


class TestLeaving:
    """S1: a job in which the node has no part any more is no concern of it."""

    @pytest.mark.parametrize("is_named", [False, True])
    def test_nothing_of_it_is_waited_for(self, jobs: Jobs, is_named: bool) -> None:
        """What is decided goes to others; old stages may be dropped meanwhile."""
        jobs.table.assign_all([assignment(sequence=9)])
        jobs.table.missed_came()
        assert jobs.table.unapplied() == ("job",)
        if is_named:
            jobs.table.assign(assignment(version=2, key_groups=(), sequence=12))
        else:
            jobs.table.assign_all([])
        assert jobs.table.unapplied() == ()
        # That is news, once: what has waited for it is to be looked at.
        assert jobs.table.missed_came()
        assert not jobs.table.missed_came()

    def test_its_failure_is_forgotten(self, jobs: Jobs) -> None:
        """The rest of a chain that is not followed is not asked for."""
        jobs.send(batch(8))
        jobs.applied(batch(8), "disk full")
        jobs.table.assign_all([])
        assert jobs.table.failures() == {}
        assert jobs.table.next_deadline_ns() is None
        assert jobs.table.unapplied() == ()

    def test_a_failure_after_it_left_is_none(self, jobs: Jobs) -> None:
        """What the store was at when the node was told."""
        jobs.send(batch(8))
        jobs.table.assign_all([])
        assert jobs.applied(batch(8), "disk full") == []
        assert jobs.table.failures() == {}

    def test_one_that_comes_back_counts_again(self, jobs: Jobs) -> None:
        """Also one that only copies follows the chain."""
        jobs.table.assign_all([])
        jobs.table.assign(assignment(key_groups=(), copies=(1,), sequence=9))
        jobs.table.missed_came()
        assert jobs.table.unapplied() == ("job",)
