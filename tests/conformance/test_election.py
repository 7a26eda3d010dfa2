"""E1 to E3 and E6 to E8: who leads, in which order, and how it is told."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from haservices import Guarantee
from nameservice import (
    ConfigurationError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
)
from tests.conformance.candidates import (
    JOB,
    Candidate,
    ids_in_order,
    sessions_in_order,
    wait_for_queue,
)
from tests.conformance.harness import PATIENT
from tests.conformance.selection import requires
from tests.recording import (
    WAIT_SECONDS,
    ConfirmingContender,
    Failed,
    Granted,
    Record,
    RecordingContender,
    RecordingListener,
    Revoked,
    wait_until,
)


if TYPE_CHECKING:
    from election import LeaderElection, LeaderSession
    from tests.conformance.harness import Harness


def unconfirming(election: LeaderElection) -> RecordingContender:
    """Return a contender that confirms nothing."""
    return RecordingContender()


class TestE1Order:
    @pytest.mark.proves("E1")
    def test_granted_in_the_order_of_registration(self, harness: Harness) -> None:
        """E1: ten contenders closed one after another: each leads once, in order."""
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(10)]
        assert ids_in_order(candidates[0].election) == [
            candidate.contender_id for candidate in candidates
        ]
        sessions = []
        for index, candidate in enumerate(candidates):
            sessions.append(candidate.wait_for_confirm())
            for waiting in candidates[index + 1 :]:
                assert waiting.contender.calls == ()
            candidate.election.close()
        epochs = [session.epoch for session in sessions]
        assert epochs == sorted(set(epochs))
        for candidate, session in zip(candidates, sessions, strict=True):
            assert candidate.contender.calls == (Granted(session), Revoked())

    @pytest.mark.proves("E1")
    def test_contenders_of_one_service_queue_like_others(
        self, harness: Harness
    ) -> None:
        """E1: order is by registration, not by session."""
        ha = harness.open()
        first = Candidate(ha, "first:1")
        second = Candidate(ha, "second:1")
        assert first.contender_id != second.contender_id
        first.wait_for_confirm()
        first.election.close()
        second.wait_for_confirm()

    @pytest.mark.proves("E1")
    def test_each_component_has_its_own_leader(self, harness: Harness) -> None:
        """E1: one leader per component: components know nothing of each other."""
        ha = harness.open()
        one = Candidate(ha, "one:1", job_id="one")
        other = Candidate(harness.open(), "other:1", job_id="other")
        one.wait_for_confirm()
        other.wait_for_confirm()
        assert len(one.election.contenders()) == 1

    @pytest.mark.proves("E1")
    def test_clusters_are_separate(self, harness: Harness) -> None:
        """E1: deployments that share a name service do not see each other."""
        here = Candidate(harness.open(), "here:1")
        elsewhere = harness.open(cluster_id=harness.cluster_id + "-other")
        there = Candidate(elsewhere, "there:1")
        here.wait_for_confirm()
        there.wait_for_confirm()
        with harness.open().get_leader_retriever(JOB) as retriever:
            assert here.is_leader(retriever.wait_for_leader(WAIT_SECONDS))

    @pytest.mark.parametrize(
        "job_id", [".", "..", "zookeeper", "a b%2F", "Ünï 航班 ✈", "x" * 255, "~"]
    )
    def test_any_component_id_can_be_led(self, harness: Harness, job_id: str) -> None:
        """1 to 255 printable characters without a slash, on every backend."""
        candidate = Candidate(harness.open(), "a:1", job_id=job_id)
        session = candidate.wait_for_confirm()
        candidate.store.put("path", b"value", session=session)
        with harness.open().get_leader_retriever(job_id) as retriever:
            assert candidate.is_leader(retriever.wait_for_leader(WAIT_SECONDS))
        listed = [item.component_id for item in harness.operator.operations.leaders()]
        assert listed == [job_id]

    @pytest.mark.parametrize("job_id", ["", "a/b", "x" * 256, "a\n"])
    def test_other_component_ids_are_refused(
        self, harness: Harness, job_id: str
    ) -> None:
        """L4: what is no component id is an error at once."""
        ha = harness.open()
        for get in (
            ha.get_leader_election,
            ha.get_leader_retriever,
            ha.get_leader_store,
            ha.cleanup,
        ):
            with pytest.raises(ConfigurationError):
                get(job_id)

    @pytest.mark.proves("E1")
    @requires(Guarantee.PASSES_OVER_SILENT)
    def test_silent_contender_is_passed_over_and_keeps_its_place(
        self, harness: Harness
    ) -> None:
        """E1: not heard from, it is not granted; heard again, it is before others."""
        settings: dict[str, Any] = PATIENT | {"lease_seconds": 0.2}
        leader = Candidate(harness.open(**settings), "leader:1")
        silent = Candidate(harness.open(cuttable=True, **settings), "silent:1")
        heard = Candidate(harness.open(**settings), "heard:1")
        leader.wait_for_confirm()
        harness.cut(silent.ha)
        harness.wait_until_silent(silent)
        leader.election.close()
        heard.wait_for_confirm()
        assert silent.contender.calls == ()
        assert ids_in_order(heard.election) == [
            heard.contender_id,
            silent.contender_id,
        ]
        last = Candidate(harness.open(**settings), "last:1")
        harness.heal(silent.ha)
        harness.wait_until_heard(silent)
        heard.election.close()
        silent.wait_for_confirm()
        assert last.contender.calls == ()


@pytest.mark.proves("E2")
class TestE2Epochs:
    def test_rise_across_contenders_and_clients(self, harness: Harness) -> None:
        """E2: every leadership has an id of its own and a higher epoch."""
        sessions: list[LeaderSession] = []
        for n in range(5):
            ha = harness.open()
            candidate = Candidate(ha, f"c{n}:1")
            sessions.append(candidate.wait_for_confirm())
            ha.close()
        for earlier, later in itertools.pairwise(sessions):
            assert earlier.epoch < later.epoch
        assert len({session.leader_session_id for session in sessions}) == 5
        assert sessions[0].epoch >= 1

    def test_rise_when_the_same_contender_is_granted_again(
        self, harness: Harness
    ) -> None:
        """E2: a contender that is revoked and granted again has a new leadership."""
        candidate = Candidate(harness.open(), "a:1")
        sessions = [candidate.wait_for_confirm()]
        for count in range(2, 6):
            assert harness.operator.operations.revoke(JOB) == sessions[-1]
            sessions.append(candidate.wait_for_confirm(count))
        epochs = [session.epoch for session in sessions]
        assert epochs == sorted(set(epochs))
        assert len({session.leader_session_id for session in sessions}) == 5

    @pytest.mark.proves("L3")
    def test_cleanup_takes_no_epoch_back(self, harness: Harness) -> None:
        """E2, L3: what is stored goes; epochs go on rising."""
        ha = harness.open()
        first = Candidate(ha, "a:1")
        before = first.wait_for_confirm()
        first.election.close()
        ha.cleanup(JOB)
        after = Candidate(ha, "a:1").wait_for_confirm()
        assert after.epoch > before.epoch


@pytest.mark.proves("E3")
class TestE3Confirm:
    def test_nobody_sees_a_leader_that_has_not_confirmed(
        self, harness: Harness
    ) -> None:
        """E3: grant, confirm, publish: the first that is told is the confirmed one."""
        listener = RecordingListener()
        retriever = harness.open().get_leader_retriever(JOB)
        retriever.start(listener)
        candidate = Candidate(harness.open(), "-", make_contender=unconfirming)
        session = candidate.contender.wait_for_grant()
        with harness.open().get_leader_retriever(JOB) as late:
            assert late.leader is None
            assert retriever.leader is None
            candidate.election.confirm_leadership(session.leader_session_id, "a:1")
            leader = late.wait_for_leader(WAIT_SECONDS)
        assert leader.address == "a:1"
        assert leader.leader_session_id == session.leader_session_id
        assert leader.epoch == session.epoch
        listener.wait_for_leader(lambda found: found is not None)
        assert listener.leaders == (leader,)

    def test_confirming_again_updates_the_address(self, harness: Harness) -> None:
        """E3: under the same leadership and epoch."""
        listener = RecordingListener()
        retriever = harness.open().get_leader_retriever(JOB)
        retriever.start(listener)
        candidate = Candidate(harness.open(), "a:1")
        session = candidate.wait_for_confirm()
        listener.wait_for_leader(lambda found: found is not None)
        candidate.election.confirm_leadership(session.leader_session_id, "b:1")
        listener.wait_for_leader(
            lambda found: found is not None and found.address == "b:1"
        )
        epochs = [leader.epoch for leader in listener.leaders if leader is not None]
        assert epochs == [session.epoch] * 2
        wait_until(lambda: candidate.election.contenders()[0].address == "b:1")

    def test_revoked_contenders_confirm_has_no_effect(self, harness: Harness) -> None:
        """E3: a stale confirm raises, and changes nothing for anybody."""
        old = Candidate(harness.open(), "old:1")
        stale = old.wait_for_confirm()
        new = Candidate(harness.open(), "new:1")
        harness.operator.operations.revoke(JOB)
        current = new.wait_for_confirm()
        old.contender.wait_for_revoke()
        with pytest.raises(LeadershipLostError):
            old.election.confirm_leadership(stale.leader_session_id, "zombie:1")
        with harness.open().get_leader_retriever(JOB) as retriever:
            leader = retriever.wait_for_leader(WAIT_SECONDS)
        assert (leader.address, leader.epoch) == ("new:1", current.epoch)
        new.wait_for_belief(current)

    def test_confirm_without_a_grant_has_no_effect(self, harness: Harness) -> None:
        """E3: nor has one under somebody else's leadership."""
        leader = Candidate(harness.open(), "leader:1")
        session = leader.wait_for_confirm()
        waiting = Candidate(harness.open(), "waiting:1")
        with pytest.raises(LeadershipLostError):
            waiting.election.confirm_leadership(session.leader_session_id, "thief:1")
        with harness.open().get_leader_retriever(JOB) as retriever:
            assert leader.is_leader(retriever.wait_for_leader(WAIT_SECONDS))

    def test_unanswered_confirm_may_have_happened(self, harness: Harness) -> None:
        """E3: sent and not answered: the caller is told that it is not known."""
        candidate = Candidate(
            harness.open(cuttable=True, connect_timeout_seconds=2.0), "a:1"
        )
        session = candidate.wait_for_confirm()
        harness.cut(candidate.ha)
        with pytest.raises(MayHaveHappenedError):
            candidate.election.confirm_leadership(session.leader_session_id, "b:1")

    def test_unconfirmed_contender_is_revoked_and_queues_last(
        self, harness: Harness
    ) -> None:
        """E3: after `confirm_timeout_seconds` it is the next one's turn."""
        idle = Candidate(
            harness.open(confirm_timeout_seconds=0.3),
            "-",
            make_contender=unconfirming,
        )
        waiting = Candidate(harness.open(), "waiting:1")
        session = waiting.wait_for_confirm()
        idle.contender.wait_for_revoke()
        first = idle.contender.granted[0]
        assert first.epoch < session.epoch
        with pytest.raises(LeadershipLostError):
            idle.election.confirm_leadership(first.leader_session_id, "late:1")
        wait_until(
            lambda: (
                sessions_in_order(waiting.election)
                == [waiting.session_id, idle.session_id]
            )
        )

    def test_unconfirmed_contender_alone_gets_another_turn(
        self, harness: Harness
    ) -> None:
        """E3: last in a queue of one it is granted again, under a higher epoch."""
        idle = Candidate(
            harness.open(confirm_timeout_seconds=0.3),
            "-",
            make_contender=unconfirming,
        )
        first = idle.contender.wait_for_grant()
        second = idle.contender.wait_for_grant(2)
        assert first.epoch < second.epoch
        assert idle.contender.calls[:3] == (
            Granted(first),
            Revoked(),
            Granted(second),
        )

    @requires(Guarantee.PASSES_OVER_SILENT)
    def test_silent_and_unconfirmed_passes_on(self, harness: Harness) -> None:
        """E3: after one lease, however long the timeouts are."""
        settings: dict[str, Any] = PATIENT | {
            "confirm_timeout_seconds": 60.0,
            "lease_seconds": 0.2,
        }
        silent = Candidate(
            harness.open(cuttable=True, **settings), "-", make_contender=unconfirming
        )
        silent.contender.wait_for_grant()
        waiting = Candidate(harness.open(**settings), "waiting:1")
        harness.cut(silent.ha)
        waiting.wait_for_confirm()
        harness.heal(silent.ha)
        silent.contender.wait_for_revoke()


@pytest.mark.proves("E6")
class TestE6Callbacks:
    def test_grant_and_revoke_alternate_under_churn(self, harness: Harness) -> None:
        """E6: whatever happens, each contender hears grant, revoke, grant, …."""
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(3)]
        for count in range(12):
            turn, index = divmod(count, 3)
            candidates[index].wait_for_confirm(turn + 1)
            wait_for_queue(*candidates)
            harness.operator.operations.revoke(JOB)
        candidates[0].wait_for_confirm(5)
        for candidate in candidates[1:]:
            candidate.contender.wait_for_revoke(4)
        for candidate in candidates:
            kinds = [type(call) for call in candidate.contender.calls]
            assert kinds == [Granted, Revoked] * (len(kinds) // 2) + [Granted] * (
                len(kinds) % 2
            )

    def test_fault_of_a_contender_is_its_own(self, harness: Harness) -> None:
        """E6: an exception in a callback goes to that contender's handle_error."""

        class Faulty(ConfirmingContender):
            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                raise RuntimeError("mine")

        ha = harness.open()
        faulty = Candidate(
            ha, "faulty:1", make_contender=lambda election: Faulty(election, "faulty:1")
        )
        other = Candidate(ha, "other:1")
        faulty.wait_for_confirm()
        harness.operator.operations.revoke(JOB)
        other.wait_for_confirm()
        assert str(faulty.contender.wait_for_error()) == "mine"
        assert other.contender.errors == ()
        assert [type(call) for call in faulty.contender.calls] == [
            Granted,
            Revoked,
            Failed,
        ]

    def test_revoke_waits_for_run_if_leader(self, harness: Harness) -> None:
        """E6: what runs as the leader ends before the revoke callback begins."""
        candidate = Candidate(harness.open(), "a:1")
        session = candidate.wait_for_confirm()
        candidate.wait_for_belief(session)
        began, may_end = threading.Event(), threading.Event()

        def act() -> int:
            began.set()
            assert may_end.wait(WAIT_SECONDS)
            return candidate.contender.revoked_count

        future = candidate.election.run_if_leader(session.leader_session_id, act)
        assert began.wait(WAIT_SECONDS)
        harness.operator.operations.revoke(JOB)
        wait_until(lambda: not candidate.believes(session))
        may_end.set()
        assert future.result(WAIT_SECONDS) == 0
        candidate.contender.wait_for_revoke()

    def test_run_if_leader_does_not_begin_after_the_end(self, harness: Harness) -> None:
        """E6: it starts only while believing."""
        candidate = Candidate(harness.open(), "a:1")
        session = candidate.wait_for_confirm()
        harness.operator.operations.revoke(JOB)
        candidate.contender.wait_for_revoke()
        future = candidate.election.run_if_leader(session.leader_session_id, lambda: 7)
        with pytest.raises(LeadershipLostError):
            future.result(WAIT_SECONDS)

    @pytest.mark.proves("E7")
    def test_closed_inside_its_grant_it_resigns(self, harness: Harness) -> None:
        """E6, E7: close() in a callback does not wait; the next is granted."""

        class Resigning(RecordingContender):
            def __init__(self, election: LeaderElection) -> None:
                super().__init__()
                self._election = election

            def grant_leadership(self, session: LeaderSession) -> None:
                super().grant_leadership(session)
                self._election.close()

        leader = Candidate(harness.open(), "leader:1")
        leader.wait_for_confirm()
        resigning = Candidate(harness.open(), "-", make_contender=Resigning)
        last = Candidate(harness.open(), "last:1")
        leader.election.close()
        last.wait_for_confirm()
        resigning.election.close()
        assert [type(call) for call in resigning.contender.calls] == [Granted, Revoked]
        assert len(last.election.contenders()) == 1

    def test_nothing_is_delivered_after_close(self, harness: Harness) -> None:
        """E6: who left the queue is not granted, whatever becomes of the leader."""
        leader = Candidate(harness.open(), "leader:1")
        leader.wait_for_confirm()
        gone = Candidate(harness.open(), "gone:1")
        last = Candidate(harness.open(), "last:1")
        gone.election.close()
        leader.election.close()
        last.wait_for_confirm()
        assert gone.contender.calls == ()


@pytest.mark.proves("E7")
class TestE7Close:
    def test_revoke_finishes_before_the_next_is_granted(self, harness: Harness) -> None:
        """E7: callback, withdrawal, next grant; store writes work until then."""
        story: Record[str] = Record()
        is_leaving, may_leave = threading.Event(), threading.Event()
        leader_session: list[LeaderSession] = []

        class Leaving(ConfirmingContender):
            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                is_leaving.set()
                assert may_leave.wait(WAIT_SECONDS)
                leader.store.put("last", b"words", session=leader_session[0])
                story.add("left")

        class Following(ConfirmingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                story.add("granted")
                super().grant_leadership(session)

        leader = Candidate(
            harness.open(),
            "leader:1",
            make_contender=lambda election: Leaving(election, "leader:1"),
        )
        leader_session.append(leader.wait_for_confirm())
        follower = Candidate(
            harness.open(),
            "follower:1",
            make_contender=lambda election: Following(election, "follower:1"),
        )
        closer = threading.Thread(target=leader.election.close)
        closer.start()
        assert is_leaving.wait(WAIT_SECONDS)
        assert not leader.believes(leader_session[0])
        assert ids_in_order(follower.election)[0] == leader.contender_id
        may_leave.set()
        closer.join(WAIT_SECONDS)
        follower.wait_for_confirm()
        assert story.items == ("left", "granted")
        value = follower.store.get("last")
        assert value is not None
        assert value.value == b"words"

    @pytest.mark.proves("E5")
    def test_closing_the_services_closes_their_elections(
        self, harness: Harness
    ) -> None:
        """E7, E5: ha.close() is a clean close of everything: the next is granted."""
        leader = Candidate(harness.open(**PATIENT), "leader:1")
        session = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "follower:1")
        leader.ha.close()
        assert leader.contender.calls == (Granted(session), Revoked())
        follower.wait_for_confirm()
        leader.ha.close()

    def test_closing_a_waiting_contender_changes_nothing(
        self, harness: Harness
    ) -> None:
        """E7: no other is told anything, and the order of the rest stays."""
        first, second, third = (Candidate(harness.open(), f"c{n}:1") for n in range(3))
        session = first.wait_for_confirm()
        second.election.close()
        assert ids_in_order(first.election) == [first.contender_id, third.contender_id]
        assert first.contender.calls == (Granted(session),)
        assert third.contender.calls == ()
        first.election.close()
        third.wait_for_confirm()

    def test_whoever_leaves_at_once_is_not_left_behind(self, harness: Harness) -> None:
        """E7: not even if none had heard of it when it was closed."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        ha = harness.open()
        for _ in range(10):
            with ha.get_leader_election(JOB) as election:
                election.start(RecordingContender())
        assert ids_in_order(leader.election) == [leader.contender_id]

    def test_close_is_idempotent_and_final(self, harness: Harness) -> None:
        """E7: close again is nothing; a start after close, or a second, is an error."""
        candidate = Candidate(harness.open(), "a:1")
        with pytest.raises(LocalProtocolError):
            candidate.election.start(RecordingContender())
        candidate.election.close()
        candidate.election.close()
        with pytest.raises(LocalProtocolError):
            candidate.election.start(RecordingContender())
        never_started = candidate.ha.get_leader_election(JOB)
        never_started.close()
        with pytest.raises(LocalProtocolError):
            never_started.start(RecordingContender())

    def test_closed_services_are_of_no_more_use(self, harness: Harness) -> None:
        """E7, L4: one that uses them after close() is told so."""
        ha = harness.open()
        ha.close()
        ha.close()
        with pytest.raises(LocalProtocolError):
            ha.get_leader_election(JOB).start(RecordingContender())
        with pytest.raises(LocalProtocolError):
            ha.get_leader_retriever(JOB).start()
        with pytest.raises(LocalProtocolError):
            ha.get_leader_store(JOB).get("path")


class TestE8Registration:
    @pytest.mark.proves("E8")
    def test_expired_waiting_contender_registers_again_at_the_end(
        self, harness: Harness
    ) -> None:
        """E8: in turn, each waiting contender whose session is ended is back."""
        leader = Candidate(harness.open(), "leader:1")
        leader.wait_for_confirm()
        waiting = [Candidate(harness.open(), f"c{n}:1") for n in range(3)]
        for candidate in waiting[:2]:
            harness.expire(candidate.session_id)
            wait_until(lambda: len(leader.election.contenders()) == 4)
        # The third was not expired, so it is first now; then the two, as they left.
        leader.election.close()
        for candidate in (waiting[2], waiting[0], waiting[1]):
            candidate.wait_for_confirm()
            candidate.election.close()

    @pytest.mark.proves("E5", "E8")
    def test_expired_leader_is_revoked_and_registers_again(
        self, harness: Harness
    ) -> None:
        """E8, E5: the name service's word ends it; its turn comes again."""
        leader = Candidate(harness.open(), "leader:1")
        first = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "follower:1")
        harness.expire(leader.session_id)
        leader.contender.wait_for_revoke()
        second = follower.wait_for_confirm()
        wait_until(lambda: len(follower.election.contenders()) == 2)
        follower.election.close()
        third = leader.wait_for_confirm(2)
        assert first.epoch < second.epoch < third.epoch
        assert leader.contender.calls == (Granted(first), Revoked(), Granted(third))

    @pytest.mark.proves("E8")
    @requires(Guarantee.ACROSS_PROCESSES)
    def test_lost_answer_makes_no_second_entry(self, harness: Harness) -> None:
        """E8: registration is idempotent: repeated, it is the same entry."""
        ha = harness.open(cuttable=True, **PATIENT)
        observer = harness.open().get_leader_election(JOB)
        election = ha.get_leader_election(JOB)
        contender = ConfirmingContender(election, "a:1")
        harness.cut_replies(ha)
        election.start(contender)
        wait_until(lambda: len(observer.contenders()) == 1)
        harness.heal(ha, deliver=False)
        contender.wait_for_confirm()
        assert len(observer.contenders()) == 1
        election.close()
        assert list(observer.contenders()) == []

    @pytest.mark.proves("N6")
    def test_revoking_nobody_is_an_error(self, harness: Harness) -> None:
        """N6, L4: there must be a leadership to end."""
        with pytest.raises(NoLeaderError):
            harness.operator.operations.revoke("nobody-ever")
