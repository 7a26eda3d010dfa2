from __future__ import annotations

from itertools import count
from typing import Final

import pytest

from queryablestate.node.core.copies import JobCopies
from queryablestate.node.core.effects import (
    CancelFetch,
    FetchKeyGroups,
    FinishCopy,
    HoldKeyGroups,
    NodeEffect,
    SendToProxy,
)
from queryablestate.node.core.events import (
    CopyAdvanced,
    CopyFinished,
    KeyGroupsFetched,
    KeyGroupsHeld,
)
from queryablestate.node.core.limits import NodeLimits
from queryablestate.node.core.registration import NodeIdentity
from queryablestate.wire.job_assignment import CopySource, JobAssignment, JoiningGroup
from queryablestate.wire.node_messages import KeyGroupsCopied
from tests.queryablestate.node_entries import assignment, joining, source


MS: Final = 1_000_000
LIMITS: Final = NodeLimits(
    copy_retry_ns=100 * MS, copy_retry_ns_max=300 * MS, copy_report_ns=1_000 * MS
)
IDENTITY: Final = NodeIdentity(
    node_id="n", registration_id="r", address="tcp://10.0.0.9:1"
)
MOVE: Final = assignment(
    version=2,
    key_groups=(0,),
    copies=(3,),
    joining=joining({1: 7, 2: 9}),
    sources=(source("a", 1), source("b", 2)),
)
"""Key group 0 is answered for, 3 is kept, 1 and 2 are to be copied."""

NO_PART: Final = assignment(version=3, key_groups=())


class Copies:
    """The copies of ``job``, a clock, and the words that a test needs."""

    def __init__(self, job: JobAssignment) -> None:
        self.now_ns = 1_000 * MS
        self.position: int | None = 7
        self.is_heard = True
        self.job = JobCopies(job, IDENTITY, LIMITS, count(1))

    def advance(self) -> list[NodeEffect]:
        """Return what is due."""
        return self.job.advance(
            self.position, is_heard=self.is_heard, now_ns=self.now_ns
        )

    def wait(self, ms: int) -> list[NodeEffect]:
        """Move time on by *ms*."""
        self.now_ns += ms * MS
        return self.advance()

    def assign(self, job: JobAssignment) -> list[NodeEffect]:
        """Assign something else, and have all come that belongs to it."""
        effects = self.job.assign(job)
        self.job.missed_came()
        return effects + self.advance()

    def held(
        self,
        *missing: int,
        version: int = 2,
        copied: tuple[int, ...] = (),
        sequence_min: int = 9,
        failure: str | None = None,
    ) -> list[NodeEffect]:
        """Have the store done with what it was told to hold."""
        event = KeyGroupsHeld(
            job_id="job",
            assignment_version=version,
            copied=copied,
            missing=missing,
            sequence_min=sequence_min,
            failure=failure,
        )
        self.job.held(event, now_ns=self.now_ns)
        return self.advance()

    def fetched(
        self, fetch_id: int = 1, sequence: int = 12, failure: str | None = None
    ) -> list[NodeEffect]:
        """Have a fetch end."""
        event = KeyGroupsFetched(
            job_id="job", fetch_id=fetch_id, sequence=sequence, failure=failure
        )
        self.job.fetched(event, now_ns=self.now_ns)
        return self.advance()

    def finished(
        self, *key_groups: int, fetch_id: int = 1, failure: str | None = None
    ) -> list[NodeEffect]:
        """Have the store done with a copy."""
        event = CopyFinished(
            job_id="job", fetch_id=fetch_id, key_groups=key_groups, failure=failure
        )
        self.job.finished(event, now_ns=self.now_ns)
        return self.advance()

    def came(self, row_count: int) -> list[NodeEffect]:
        """Have rows come."""
        event = CopyAdvanced(
            job_id="job", row_count=row_count, size_bytes=10 * row_count
        )
        self.job.advanced(event)
        return self.advance()

    def come_to_fetch(self) -> None:
        """Come to where key group 1 is fetched from ``a``, as fetch 1."""
        self.job.missed_came()
        self.advance()
        assert self.held(1, 2) == [fetch(1, "a", 1), copied()]


def hold(
    version: int, key_groups: tuple[int, ...], joined: dict[int, int] | None = None
) -> HoldKeyGroups:
    """Return what the store is told."""
    return HoldKeyGroups(
        job_id="job",
        assignment_version=version,
        key_groups=key_groups,
        joining=joining(joined or {}),
    )


def fetch(
    fetch_id: int, node_id: str, *key_groups: int, sequence_min: int = 9
) -> FetchKeyGroups:
    """Return what is fetched."""
    return FetchKeyGroups(
        job_id="job",
        fetch_id=fetch_id,
        source=source(node_id, *key_groups),
        sequence_min=sequence_min,
    )


def finish(*key_groups: int, fetch_id: int = 1, sequence: int = 12) -> FinishCopy:
    """Return what the store is to complete."""
    return FinishCopy(
        job_id="job", fetch_id=fetch_id, key_groups=key_groups, sequence=sequence
    )


def copied(
    *key_groups: int,
    version: int = 2,
    row_count: int = 0,
    failure: str | None = None,
) -> SendToProxy:
    """Return what the proxy is told."""
    return SendToProxy(
        message=KeyGroupsCopied(
            registration_id="r",
            job_id="job",
            assignment_version=version,
            key_groups=key_groups,
            row_count=row_count,
            size_bytes=10 * row_count,
            failure=failure,
        )
    )


@pytest.fixture
def copies() -> Copies:
    """Return a node that is assigned `MOVE`, and has done nothing yet."""
    return Copies(MOVE)


class TestHolding:
    """S1: the store holds what is assigned, and knows what it has of it."""

    def test_the_store_is_told_all_that_is_assigned(self, copies: Copies) -> None:
        """In-sync copies, whether they are asked or not; and those to be made."""
        assert copies.advance() == [hold(2, (0, 3), {1: 7, 2: 9})]
        assert copies.advance() == []

    def test_no_part_holds_nothing(self) -> None:
        """Rows of a job that others have now are dropped; no node is told."""
        copies = Copies(NO_PART)
        copies.job.missed_came()
        assert copies.advance() == [hold(3, ())]
        assert copies.held(version=3) == []
        assert copies.job.held_count == 0

    def test_it_is_counted(self, copies: Copies) -> None:
        """As the store has said: before that nothing is known."""
        copies.advance()
        assert (copies.job.held_count, copies.job.missing_count) == (0, 0)
        copies.held(1, 2)
        assert (copies.job.held_count, copies.job.missing_count) == (2, 2)

    def test_the_store_is_told_again_when_it_has_answered(self, copies: Copies) -> None:
        """What it says is about what it was told last."""
        copies.advance()
        assert copies.assign(NO_PART) == []
        assert copies.held(2, copied=(1,)) == [hold(3, ())]

    @pytest.mark.proves("S1")
    def test_who_is_in_sync_at_once_is_held_at_once(self, copies: Copies) -> None:
        """S1: the next entry must find it held, though the store be at something."""
        copies.come_to_fetch()
        copies.position = 12
        assert copies.fetched() == [finish(1)]
        assert copies.assign(assignment(version=3, key_groups=(5,))) == [hold(3, (5,))]
        assert copies.assign(assignment(version=4, key_groups=(6,))) == [hold(4, (6,))]
        assert copies.held(version=3) == []
        assert copies.finished(1) == []
        assert copies.job.held_count == 2
        assert copies.held(version=4) == []
        assert copies.job.held_count == 1

    @pytest.mark.proves("S1", "W7")
    def test_what_was_to_be_copied_and_is_in_sync_is_held_at_once(
        self, copies: Copies
    ) -> None:
        """
        S1: of a job without any state nothing has to be copied.

        The store takes the key group for one that is being copied: it would keep the
        next batch aside, and take it for lost when it is told at last (W7).
        """
        assert copies.advance() == [hold(2, (0, 3), {1: 7, 2: 9})]
        in_sync = assignment(version=3, key_groups=(0, 1), copies=(3,))
        assert copies.assign(in_sync) == [hold(3, (0, 1, 3))]

    @pytest.mark.proves("S1")
    def test_what_was_copied_waits_for_the_store(self, copies: Copies) -> None:
        """The store knows that it is whole: it need not hear so twice."""
        copies.advance()
        copies.held(2, copied=(1,))
        assert copies.assign(
            assignment(
                version=3, key_groups=(0, 1), copies=(3,), joining=joining({2: 9})
            )
        ) == [hold(3, (0, 1, 3), {2: 9})]
        in_sync = assignment(version=4, key_groups=(0, 1), copies=(3,))
        assert copies.assign(in_sync) == []
        assert copies.held(2, version=3) == [hold(4, (0, 1, 3))]

    def test_an_answer_to_something_else_does_not_count(self, copies: Copies) -> None:
        """It cannot say what is held now."""
        copies.job.missed_came()
        copies.advance()
        assert copies.held(version=1, copied=(1, 2)) == []
        assert copies.held(2, copied=(1,))[-1] == copied(1)

    def test_what_was_not_asked_for_is_not_answered(self, copies: Copies) -> None:
        """An answer without a question changes nothing."""
        copies.job.missed_came()
        assert copies.held(1, 2) == [hold(2, (0, 3), {1: 7, 2: 9})]

    def test_a_failure_is_told_and_tried_again(self, copies: Copies) -> None:
        """After a pause that doubles up to a bound; then all is well again."""
        copies.job.missed_came()
        copies.advance()
        told = hold(2, (0, 3), {1: 7, 2: 9})
        for pause_ms in (100, 200, 300, 300):
            assert copies.held(failure="disk full") == [copied(failure="disk full")]
            assert copies.job.deadline_ns == copies.now_ns + pause_ms * MS
            assert copies.wait(pause_ms - 1) == []
            assert copies.wait(1) == [told]
        assert copies.held(1, 2) == [fetch(1, "a", 1), copied()]

    def test_a_new_assignment_is_tried_at_once(self, copies: Copies) -> None:
        """It may be one that needs no room."""
        copies.advance()
        copies.held(failure="disk full")
        assert copies.assign(NO_PART) == [hold(3, ())]


class TestCopying:
    """S2: what is missing is fetched, caught up with, and told of."""

    def test_one_source_after_the_other(self, copies: Copies) -> None:
        """The next is asked when the copies from the first are complete."""
        copies.come_to_fetch()
        copies.position = 12
        assert copies.fetched() == [finish(1)]
        assert copies.finished(1) == [fetch(2, "b", 2, sequence_min=12), copied(1)]
        assert copies.fetched(fetch_id=2) == [finish(2, fetch_id=2)]
        assert copies.finished(2, fetch_id=2) == [copied(1, 2)]
        assert copies.job.missing_count == 0

    def test_what_the_store_has_is_not_fetched(self, copies: Copies) -> None:
        """A copy that was complete before a restart is complete."""
        copies.job.missed_came()
        copies.advance()
        assert copies.held(2, copied=(1,)) == [fetch(1, "b", 2), copied(1)]

    @pytest.mark.proves("S2")
    def test_nothing_missing_is_told_too(self, copies: Copies) -> None:
        """S2: a proxy that leads anew learns what is complete."""
        copies.job.missed_came()
        copies.advance()
        assert copies.held(copied=(1, 2)) == [copied(1, 2)]

    def test_rows_that_are_ahead_are_caught_up_with(self, copies: Copies) -> None:
        """Not before the job is where they are does the store complete them."""
        copies.come_to_fetch()
        copies.position = 11
        assert copies.fetched(sequence=12) == []
        copies.position = 12
        assert copies.advance() == [finish(1)]
        assert copies.advance() == []

    def test_a_source_has_what_the_node_has_applied(self, copies: Copies) -> None:
        """Older rows would undo what a failed attempt has brought them through."""
        copies.position = 20
        copies.job.missed_came()
        copies.advance()
        effects = copies.held(1, 2, sequence_min=9)
        assert effects[0] == fetch(1, "a", 1, sequence_min=20)

    @pytest.mark.proves("S2")
    def test_rows_that_are_too_old_are_not_taken(self, copies: Copies) -> None:
        """S2: entries between them and what was kept would be lost."""
        copies.come_to_fetch()
        why = "a sent rows as they were after entry 8, and was asked for 9"
        effects = copies.fetched(sequence=8)
        assert effects == [fetch(2, "b", 2), copied(failure=why)]

    @pytest.mark.proves("W7")
    def test_before_all_has_come_nothing_is_fetched_or_told(
        self, copies: Copies
    ) -> None:
        """W7: among what follows the assignment may be a reset."""
        copies.advance()
        assert copies.held(2, copied=(1,)) == []
        copies.job.missed_came()
        assert copies.advance() == [fetch(1, "b", 2), copied(1)]

    def test_a_source_that_is_away_is_waited_for(self) -> None:
        """Others have their turn; the proxy says when it is back."""
        sources = (
            CopySource(node_id="a", address=None, key_groups=(1,)),
            source("b", 2),
        )
        away = assignment(
            version=2,
            key_groups=(0,),
            copies=(3,),
            joining=MOVE.joining,
            sources=sources,
        )
        copies = Copies(away)
        copies.job.missed_came()
        copies.advance()
        assert copies.held(1, 2)[0] == fetch(1, "b", 2)
        copies.position = 12
        copies.fetched()
        assert copies.finished(2) == [copied(2)]
        assert copies.job.deadline_ns is None
        assert copies.assign(MOVE) == [hold(2, (0, 3), {1: 7, 2: 9})]
        effects = copies.held(1, copied=(2,))
        assert effects == [fetch(2, "a", 1, sequence_min=12), copied(2)]


class TestFailures:
    """S2: a source or a disk that fails is tried again."""

    def test_the_others_have_their_turn(self, copies: Copies) -> None:
        """One source that cannot be reached does not hold up the rest."""
        copies.come_to_fetch()
        effects = copies.fetched(sequence=0, failure="unreachable")
        assert effects == [fetch(2, "b", 2), copied(failure="unreachable")]

    def test_a_source_is_left_alone_for_longer_each_time(self, copies: Copies) -> None:
        """Up to a bound, and not at all once it has answered."""
        only = assignment(
            version=2,
            key_groups=(0,),
            joining=joining({1: 7}),
            sources=(source("a", 1),),
        )
        copies = Copies(only)
        copies.job.missed_came()
        copies.advance()
        copies.held(1)
        for attempt, pause_ms in enumerate((100, 200, 300, 300), start=1):
            effects = copies.fetched(attempt, sequence=0, failure="unreachable")
            assert effects == [copied(failure="unreachable")]
            assert copies.job.deadline_ns == copies.now_ns + pause_ms * MS
            assert copies.wait(pause_ms - 1) == []
            assert copies.wait(1) == [fetch(attempt + 1, "a", 1)]

    def test_who_comes_back_elsewhere_is_asked_at_once(self, copies: Copies) -> None:
        """What failed was another address."""
        copies.come_to_fetch()
        copies.fetched(sequence=0, failure="unreachable")
        copies.fetched(2, sequence=0, failure="unreachable")
        back = CopySource(node_id="a", address="tcp://10.0.0.7:7", key_groups=(1,))
        again = assignment(
            version=2,
            key_groups=(0,),
            copies=(3,),
            joining=MOVE.joining,
            sources=(back, source("b", 2)),
        )
        copies.assign(again)
        effects = copies.held(1, 2)
        assert isinstance(effects[0], FetchKeyGroups)
        assert effects[0].source == back

    def test_a_copy_that_cannot_be_completed_is_fetched_anew(
        self, copies: Copies
    ) -> None:
        """What was kept for it may be gone; newer rows need less of it."""
        copies.come_to_fetch()
        copies.position = 12
        copies.fetched()
        effects = copies.finished(failure="disk full")
        expected = fetch(2, "b", 2, sequence_min=12)
        assert effects == [expected, copied(failure="disk full")]
        assert copies.job.missing_count == 2

    @pytest.mark.proves("S1")
    def test_what_the_store_leaves_out_is_not_copied(self, copies: Copies) -> None:
        """S1: what it does not call complete is fetched again, after a pause."""
        copies.come_to_fetch()
        copies.position = 12
        copies.fetched()
        why = "not all that was fetched could be completed"
        assert copies.finished()[-1] == copied(failure=why)
        assert copies.job.missing_count == 2

    def test_the_failure_is_over_when_something_succeeds(self, copies: Copies) -> None:
        """The proxy is told why the last attempt came to nothing, not an older one."""
        copies.come_to_fetch()
        copies.fetched(sequence=0, failure="unreachable")
        copies.position = 12
        copies.fetched(2)
        assert copies.finished(2, fetch_id=2)[-1] == copied(2)


class TestMoving:
    """S2: assignments change while something is copied."""

    @pytest.mark.parametrize("version", [2, 3])
    def test_what_is_still_wanted_goes_on(self, copies: Copies, version: int) -> None:
        """The same copies from the same source are not fetched twice."""
        copies.come_to_fetch()
        more = assignment(
            version=version,
            key_groups=(),
            joining=joining({0: 11, 1: 7}),
            sources=(source("a", 0, 1),),
        )
        told = hold(version, (), {0: 11, 1: 7})
        assert copies.assign(more) == [told]
        assert copies.held(0, 1, version=version) == [copied(version=version)]
        copies.position = 12
        assert copies.fetched() == [finish(1)]
        effects = copies.finished(1)
        assert effects == [
            fetch(2, "a", 0, sequence_min=12),
            copied(1, version=version),
        ]

    @pytest.mark.parametrize(
        "job",
        [
            NO_PART,
            assignment(version=3, key_groups=(0, 1)),
            assignment(version=3, joining=joining({1: 8}), sources=(source("a", 1),)),
            assignment(
                version=3,
                joining=(JoiningGroup(key_group=1, since=7, version=3),),
                sources=(source("a", 1),),
            ),
            assignment(version=3, joining=joining({1: 7}), sources=(source("b", 1),)),
            assignment(
                version=3,
                joining=joining({1: 7}),
                sources=(CopySource(node_id="a", address=None, key_groups=(1,)),),
            ),
        ],
        ids=["no part", "in sync", "another copy", "anew", "another source", "away"],
    )
    def test_what_is_not_wanted_is_cancelled(
        self, copies: Copies, job: JobAssignment
    ) -> None:
        """Before the store is told: nothing of it may be written after that."""
        copies.come_to_fetch()
        effects = copies.assign(job)
        assert effects[0] == CancelFetch(job_id="job")
        assert isinstance(effects[1], HoldKeyGroups)
        copies.position = 12
        assert copies.fetched() == []

    def test_rows_that_are_here_are_kept(self, copies: Copies) -> None:
        """Wherever the rest is to come from: they need only be completed."""
        copies.come_to_fetch()
        copies.position = 11
        copies.fetched()
        elsewhere = assignment(
            version=3, joining=joining({1: 7}), sources=(source("b", 1),)
        )
        assert copies.assign(elsewhere) == [hold(3, (0, 1), {1: 7})]
        copies.position = 12
        assert copies.held(1, version=3) == [finish(1), copied(version=3)]
        assert copies.finished(1) == [copied(1, version=3)]

    @pytest.mark.proves("S1")
    def test_rows_that_are_here_in_vain_are_forgotten(self, copies: Copies) -> None:
        """S1: another copy of the key group has nothing to do with them."""
        copies.come_to_fetch()
        copies.position = 11
        copies.fetched()
        another = assignment(
            version=3, joining=joining({1: 12}), sources=(source("a", 1),)
        )
        assert copies.assign(another) == [hold(3, (0, 1), {1: 12})]
        copies.position = 12
        assert copies.held(1, version=3, sequence_min=12)[0] == fetch(
            2, "a", 1, sequence_min=12
        )

    @pytest.mark.proves("S1")
    def test_what_is_being_completed_is_waited_for(self, copies: Copies) -> None:
        """S1: the store must not complete one copy when it is told of another."""
        copies.come_to_fetch()
        copies.position = 12
        copies.fetched()
        another = assignment(
            version=3,
            key_groups=(0,),
            joining=joining({1: 12}),
            sources=(source("a", 1),),
        )
        assert copies.assign(another) == []
        assert copies.finished(1) == [hold(3, (0,), {1: 12})]
        effects = copies.held(1, version=3, sequence_min=12)
        assert effects == [
            fetch(2, "a", 1, sequence_min=12),
            copied(version=3),
        ]

    def test_an_end_of_something_else_changes_nothing(self, copies: Copies) -> None:
        """Fetches and completions are told apart by their numbers."""
        copies.come_to_fetch()
        copies.position = 12
        assert copies.fetched(fetch_id=9) == []
        assert copies.finished(1, fetch_id=1) == []
        assert copies.fetched(fetch_id=1) == [finish(1)]
        assert copies.finished(1, fetch_id=9) == []


class TestReset:
    """W7: a job that begins anew has no copies."""

    def test_nothing_is_held_until_it_has_begun(self, copies: Copies) -> None:
        """What is fetched is cancelled first; then the store is told all again."""
        copies.come_to_fetch()
        assert copies.job.reset() == [CancelFetch(job_id="job")]
        copies.position = None
        assert copies.advance() == []
        assert copies.job.missing_count == 0
        copies.position = 20
        assert copies.advance() == [hold(2, (0, 3), {1: 7, 2: 9})]
        effects = copies.held(1, 2, sequence_min=20)
        assert effects == [fetch(2, "a", 1, sequence_min=20), copied()]

    @pytest.mark.proves("S1")
    def test_what_the_store_says_of_before_does_not_count(self, copies: Copies) -> None:
        """S1: copies that were complete are thrown away."""
        copies.job.missed_came()
        copies.advance()
        copies.job.reset()
        copies.position = None
        assert copies.held(copied=(1, 2)) == []
        copies.position = 20
        assert copies.advance() == [hold(2, (0, 3), {1: 7, 2: 9})]
        assert copies.held(1, 2)[-1] == copied()

    @pytest.mark.proves("S1")
    def test_what_was_being_completed_does_not_count(self, copies: Copies) -> None:
        """S1: the store is told again, and fetches when that is over."""
        copies.come_to_fetch()
        copies.position = 12
        copies.fetched()
        assert copies.job.reset() == []
        copies.position = 20
        assert copies.advance() == [hold(2, (0, 3), {1: 7, 2: 9})]
        assert copies.held(1, 2, sequence_min=20) == [copied()]
        assert copies.finished(1) == [fetch(2, "a", 1, sequence_min=20)]


class TestReporting:
    """What the proxy is told, and how often."""

    def test_rows_are_told_of_in_their_time(self, copies: Copies) -> None:
        """At most once in `NodeLimits.copy_report_ns`."""
        copies.come_to_fetch()
        assert copies.came(5) == []
        assert copies.job.deadline_ns == copies.now_ns + 1_000 * MS
        assert copies.wait(999) == []
        assert copies.came(6) == []
        assert copies.wait(1) == [copied(row_count=6)]
        assert copies.job.deadline_ns is None
        assert copies.came(7) == []

    def test_what_is_complete_is_told_at_once(self, copies: Copies) -> None:
        """With the rows that have come until then."""
        copies.come_to_fetch()
        copies.came(5)
        copies.position = 12
        copies.fetched()
        assert copies.finished(1)[-1] == copied(1, row_count=5)
        assert copies.wait(2_000) == []

    def test_nothing_is_told_while_nobody_hears(self, copies: Copies) -> None:
        """And nothing wakes up for it; it is told when something does."""
        copies.is_heard = False
        copies.job.missed_came()
        copies.advance()
        assert copies.held(2, copied=(1,)) == [fetch(1, "b", 2)]
        assert copies.job.deadline_ns is None
        copies.is_heard = True
        assert copies.advance() == [copied(1)]

    @pytest.mark.proves("S2")
    def test_while_something_else_is_held_nothing_is_told(self, copies: Copies) -> None:
        """S2: what is copied of the new assignment is not known yet."""
        copies.come_to_fetch()
        copies.position = 11
        copies.fetched()
        same = assignment(version=3, joining=joining({1: 7}), sources=(source("a", 1),))
        copies.assign(same)
        copies.position = 12
        assert copies.advance() == [finish(1)]
        assert copies.finished(1) == []
        assert copies.held(copied=(1,), version=3) == [copied(1, version=3)]

    def test_rows_that_come_for_nothing_are_not_told_of(self, copies: Copies) -> None:
        """A proxy that wants no copies waits for none."""
        copies.come_to_fetch()
        copies.assign(NO_PART)
        assert copies.held(version=3) == []
        assert copies.came(5) == []
        assert copies.job.row_count == 5
        assert copies.job.deadline_ns is None


@pytest.mark.proves("S2")
def test_joining_groups_are_said_as_they_came() -> None:
    """S2: which copy of a key group it is goes to the store as the proxy said it."""
    copies = Copies(MOVE)
    (effect,) = copies.advance()
    assert isinstance(effect, HoldKeyGroups)
    assert effect.joining == (JoiningGroup(1, 7), JoiningGroup(2, 9))
