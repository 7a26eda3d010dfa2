"""E4, E6, E7: closing, from wherever it is called, never makes two believe at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from haservices import campaign
from nameservice import (
    ConfigurationError,
    LeadershipLostError,
    LocalProtocolError,
    StaleEpochError,
)
from tests.conformance.candidates import Candidate, ids_in_order
from tests.conformance.harness import PATIENT, QUICK
from tests.recording import (
    WAIT_SECONDS,
    ConfirmingContender,
    Record,
    RecordingContender,
    RecordingListener,
    Revoked,
    wait_until,
)


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from election import LeaderElection, LeaderSession
    from retrieval import LeaderInformation
    from tests.conformance.harness import Harness


class Following(ConfirmingContender):
    """Writes into a story that it was granted, and who else believed then."""

    def __init__(
        self,
        election: LeaderElection,
        story: Record[str],
        others_believe: Callable[[], bool],
    ) -> None:
        super().__init__(election, "follower:1")
        self._story = story
        self._others_believe = others_believe

    def grant_leadership(self, session: LeaderSession) -> None:
        """Write it down before anything else."""
        self._story.add(f"granted, two believe: {self._others_believe()}")
        super().grant_leadership(session)


def lead(harness: Harness, job_id: str = "flights") -> tuple[Candidate, LeaderSession]:
    """Return a leader that believes, and its leadership."""
    leader = Candidate(harness.open(**PATIENT), "leader:1", job_id=job_id)
    session = leader.wait_for_confirm()
    leader.wait_for_belief(session)
    return leader, session


def follow(
    harness: Harness, leader: Candidate, session: LeaderSession, story: Record[str]
) -> Candidate:
    """Return the next in the queue, which looks at *leader* when it is granted."""
    return Candidate(
        harness.open(**PATIENT),
        "follower:1",
        job_id=leader.job_id,
        make_contender=lambda election: Following(
            election, story, lambda: leader.believes(session)
        ),
    )


def run(
    candidate: Candidate, session: LeaderSession, action: Callable[[], object]
) -> Future[object]:
    """Run *action* as the leader."""
    return candidate.election.run_if_leader(session.leader_session_id, action)


class TestInsideAnAction:
    @pytest.mark.proves("E4", "E6", "E7")
    def test_services_end_after_the_action_that_closed_them(
        self, harness: Harness
    ) -> None:
        """E4, E6, E7: belief ends at once, the entry after the action has returned."""
        story: Record[str] = Record()
        leader, session = lead(harness)
        follower = follow(harness, leader, session, story)
        is_closed, may_end = threading.Event(), threading.Event()

        def act() -> None:
            leader.ha.close()
            is_closed.set()
            assert may_end.wait(WAIT_SECONDS)
            story.add("acted")

        future = run(leader, session, act)
        assert is_closed.wait(WAIT_SECONDS)
        assert not leader.believes(session)
        assert ids_in_order(follower.election)[0] == leader.contender_id
        assert leader.contender.revoked_count == 0
        may_end.set()
        future.result(WAIT_SECONDS)
        follower.wait_for_confirm()
        assert story.items == ("acted", "granted, two believe: False")
        assert leader.contender.calls[-1] == Revoked()

    @pytest.mark.proves("E4", "E6", "E7")
    def test_election_ends_after_the_action_that_closed_it(
        self, harness: Harness
    ) -> None:
        """E4, E6, E7: the same for one election: its services stay open."""
        story: Record[str] = Record()
        leader, session = lead(harness)
        follower = follow(harness, leader, session, story)
        is_closed, may_end = threading.Event(), threading.Event()

        def act() -> None:
            leader.election.close()
            is_closed.set()
            assert may_end.wait(WAIT_SECONDS)
            story.add("acted")

        run(leader, session, act)
        assert is_closed.wait(WAIT_SECONDS)
        assert not leader.believes(session)
        assert ids_in_order(follower.election)[0] == leader.contender_id
        may_end.set()
        follower.wait_for_confirm()
        assert story.items == ("acted", "granted, two believe: False")

    @pytest.mark.proves("E7")
    def test_services_wait_for_the_action_of_another_election(
        self, harness: Harness
    ) -> None:
        """E7: closed inside one election's action, the other's ends before its own."""
        story: Record[str] = Record()
        one, one_session = lead(harness, "one")
        two = Candidate(one.ha, "leader:1", job_id="two")
        two_session = two.wait_for_confirm()
        two.wait_for_belief(two_session)
        one_follower = follow(harness, one, one_session, Record())
        two_follower = follow(harness, two, two_session, story)
        is_acting, may_end = threading.Event(), threading.Event()

        def act() -> None:
            is_acting.set()
            assert may_end.wait(WAIT_SECONDS)
            story.add("acted")

        run(two, two_session, act)
        assert is_acting.wait(WAIT_SECONDS)
        run(one, one_session, one.ha.close).result(WAIT_SECONDS)
        one_follower.wait_for_confirm()
        assert not two.believes(two_session)
        assert ids_in_order(two_follower.election)[0] == two.contender_id
        assert two_follower.contender.calls == ()
        may_end.set()
        two_follower.wait_for_confirm()
        assert story.items == ("acted", "granted, two believe: False")

    @pytest.mark.proves("E6")
    def test_elections_that_close_each_other(self, harness: Harness) -> None:
        """E6: neither waits for the other for ever."""
        one, one_session = lead(harness, "one")
        two, two_session = lead(harness, "two")
        both = threading.Barrier(2)

        def close(election: LeaderElection) -> Callable[[], None]:
            def act() -> None:
                both.wait(WAIT_SECONDS)
                election.close()

            return act

        futures = [
            run(one, one_session, close(two.election)),
            run(two, two_session, close(one.election)),
        ]
        for future in futures:
            future.result(WAIT_SECONDS)
        one.contender.wait_for_revoke()
        two.contender.wait_for_revoke()
        one.election.close()
        two.election.close()

    @pytest.mark.proves("E6")
    def test_services_closed_by_what_waits_for_the_action(
        self, harness: Harness
    ) -> None:
        """E6: a future's callback runs on the election's thread: it waits for none."""
        leader, session = lead(harness)
        follower = Candidate(harness.open(), "follower:1")
        began, may_end = threading.Event(), threading.Event()

        def act() -> None:
            began.set()
            assert may_end.wait(WAIT_SECONDS)

        future = run(leader, session, act)
        future.add_done_callback(lambda _: leader.ha.close())
        assert began.wait(WAIT_SECONDS)
        may_end.set()
        follower.wait_for_confirm()
        assert not leader.believes(session)


@pytest.mark.proves("E7")
class TestInsideOtherCallbacks:
    @pytest.mark.proves("E6")
    def test_services_closed_inside_the_grant(self, harness: Harness) -> None:
        """E6, E7: what is granted is revoked before the next is granted."""
        story: Record[str] = Record()
        leader, _ = lead(harness)
        ha = harness.open(**PATIENT)
        is_closed, may_end = threading.Event(), threading.Event()

        class Resigning(RecordingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                super().grant_leadership(session)
                ha.close()
                is_closed.set()
                assert may_end.wait(WAIT_SECONDS)

            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                story.add("revoked")

        resigning = Candidate(ha, "-", make_contender=lambda _: Resigning())
        last = Candidate(
            harness.open(**PATIENT),
            "last:1",
            make_contender=lambda election: Following(
                election,
                story,
                lambda: resigning.believes(resigning.contender.granted[0]),
            ),
        )
        leader.election.close()
        assert is_closed.wait(WAIT_SECONDS)
        assert not resigning.believes(resigning.contender.granted[0])
        assert ids_in_order(last.election)[0] == resigning.contender_id
        may_end.set()
        last.wait_for_confirm()
        assert story.items == ("revoked", "granted, two believe: False")

    def test_services_closed_inside_the_revocation(self, harness: Harness) -> None:
        """E7: an operator ends a leadership, and its contender ends with it."""
        story: Record[str] = Record()
        ha = harness.open(**PATIENT)

        class Leaving(ConfirmingContender):
            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                ha.close()
                story.add("revoked")

        leader = Candidate(
            ha, "leader:1", make_contender=lambda election: Leaving(election, "a:1")
        )
        session = leader.wait_for_confirm()
        follower = follow(harness, leader, session, story)
        harness.operator.operations.revoke(leader.job_id)
        follower.wait_for_confirm()
        assert "granted, two believe: False" in story.items
        leader.contender.wait_for_revoke()
        # Now that the callback has returned, closing again waits for the end.
        ha.close()
        assert leader.contender.revoked_count == 1
        assert ids_in_order(follower.election) == [follower.contender_id]

    @pytest.mark.proves("R5")
    def test_services_closed_by_a_listener(self, harness: Harness) -> None:
        """R5, E7: a listener that closes everything ends the leadership properly."""
        story: Record[str] = Record()
        leader, session = lead(harness)
        follower = follow(harness, leader, session, story)
        is_acting, may_end = threading.Event(), threading.Event()

        def act() -> None:
            is_acting.set()
            assert may_end.wait(WAIT_SECONDS)
            story.add("acted")

        class Closing(RecordingListener):
            def notify_leader(self, notified: LeaderInformation | None) -> None:
                leader.ha.close()
                super().notify_leader(notified)

        run(leader, session, act)
        assert is_acting.wait(WAIT_SECONDS)
        listener = Closing()
        leader.ha.get_leader_retriever(leader.job_id).start(listener)
        listener.record.wait_for_count(1)
        assert ids_in_order(follower.election)[0] == leader.contender_id
        may_end.set()
        follower.wait_for_confirm()
        assert story.items == ("acted", "granted, two believe: False")


class TestRevocation:
    @pytest.mark.proves("E4", "E6")
    def test_successor_waits_a_lease_for_a_revocation_that_blocks(
        self, harness: Harness
    ) -> None:
        """E4, E6: belief is over at once; however long the callback takes."""
        story: Record[str] = Record()
        is_leaving, may_leave = threading.Event(), threading.Event()

        class Blocking(ConfirmingContender):
            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                is_leaving.set()
                assert may_leave.wait(2 * WAIT_SECONDS)

        leader = Candidate(
            harness.open(**PATIENT),
            "leader:1",
            make_contender=lambda election: Blocking(election, "leader:1"),
        )
        session = leader.wait_for_confirm()
        follower = follow(harness, leader, session, story)
        harness.operator.operations.revoke(leader.job_id)
        assert is_leaving.wait(WAIT_SECONDS)
        follower.wait_for_confirm()  # long before the session's timeout
        may_leave.set()
        assert story.items == ("granted, two believe: False",)


class TestAfterwards:
    @pytest.mark.proves("E3", "L4")
    def test_confirming_after_close_is_an_error_at_once(self, harness: Harness) -> None:
        """E3, L4: the leadership is over, on every backend, and no one is asked."""
        leader, session = lead(harness)
        leader.election.close()
        with pytest.raises(LeadershipLostError):
            leader.election.confirm_leadership(session.leader_session_id, "b:1")
        leader.ha.close()
        with pytest.raises(LeadershipLostError):
            leader.election.confirm_leadership(session.leader_session_id, "b:1")

    @pytest.mark.proves("L4")
    def test_storing_after_close_is_an_error(self, harness: Harness) -> None:
        """L4: typed, on every backend."""
        leader, session = lead(harness)
        store = leader.store
        leader.ha.close()
        with pytest.raises((LocalProtocolError, StaleEpochError)):
            store.put("path", b"value", session=session)

    @pytest.mark.proves("L4")
    def test_closed_while_a_campaign_waits(self, harness: Harness) -> None:
        """L4: a wait for a turn that cannot come any more ends with an error."""
        leader, _ = lead(harness)
        ha = harness.open(**PATIENT)
        errors: Record[Exception] = Record()

        def contend() -> None:
            try:
                with campaign(ha, leader.job_id, "waiting:1"):
                    pytest.fail("it leads")
            except LocalProtocolError as error:
                errors.add(error)

        waiting = threading.Thread(target=contend)
        waiting.start()
        wait_until(lambda: len(leader.election.contenders()) == 2)
        ha.close()
        errors.wait_for_count(1)
        waiting.join(WAIT_SECONDS)
        assert ids_in_order(leader.election) == [leader.contender_id]

    @pytest.mark.proves("E4")
    def test_closed_while_a_campaign_leads(self, harness: Harness) -> None:
        """E4: `lost` is set before the session ends; the next is granted after it."""
        story: Record[str] = Record()
        ha = harness.open(**PATIENT)
        with campaign(ha, "flights", "a:1", WAIT_SECONDS) as leadership:
            Candidate(
                harness.open(**PATIENT),
                "follower:1",
                make_contender=lambda election: Following(
                    election, story, lambda: not leadership.lost.is_set()
                ),
            )
            ha.close()
            assert leadership.lost.is_set()
            with pytest.raises(LeadershipLostError):
                leadership.check()
            assert story.wait_for_count(1) == ("granted, two believe: False",)


class TestCallbacksAreChecked:
    @pytest.mark.parametrize("wrong", [None, "x", RecordingContender, object()])
    def test_what_is_no_contender_is_refused(
        self, harness: Harness, wrong: object
    ) -> None:
        """It would be granted, and never be told."""
        ha = harness.open()
        election = ha.get_leader_election("flights")
        with pytest.raises(ConfigurationError):
            election.start(wrong)  # type: ignore[arg-type]
        assert list(election.contenders()) == []
        election.start(RecordingContender())  # nothing of it has stayed

    @pytest.mark.parametrize("wrong", ["x", RecordingListener, object()])
    def test_what_is_no_listener_is_refused(
        self, harness: Harness, wrong: object
    ) -> None:
        """It would never be told of a leader."""
        retriever = harness.open().get_leader_retriever("flights")
        with pytest.raises(ConfigurationError):
            retriever.start(wrong)  # type: ignore[arg-type]
        retriever.start(RecordingListener())


@pytest.mark.proves("E7")
class TestFromOtherThreads:
    @pytest.mark.parametrize("closes_inside", [False, True], ids=["outside", "inside"])
    def test_closed_at_once_by_many(
        self, harness: Harness, *, closes_inside: bool
    ) -> None:
        """E7: each close that waits returns when all is over, in whatever order."""
        story: Record[str] = Record()
        leader, session = lead(harness)
        follower = follow(harness, leader, session, story)
        is_acting, may_end = threading.Event(), threading.Event()

        def act() -> None:
            if closes_inside:
                leader.ha.close()
            is_acting.set()
            assert may_end.wait(WAIT_SECONDS)

        def close() -> None:
            leader.ha.close()
            story.add(f"closed after {leader.contender.revoked_count} revocations")

        run(leader, session, act)
        assert is_acting.wait(WAIT_SECONDS)
        closers = [threading.Thread(target=close) for _ in range(8)]
        for closer in closers:
            closer.start()
        assert ids_in_order(follower.election)[0] == leader.contender_id
        may_end.set()
        for closer in closers:
            closer.join(WAIT_SECONDS)
            assert not closer.is_alive()
        follower.wait_for_confirm()
        assert sorted(story.items) == [
            *["closed after 1 revocations"] * 8,
            "granted, two believe: False",
        ]

    @pytest.mark.proves("E5")
    @pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "unnoticed"])
    def test_closed_while_it_is_cut_off(
        self, harness: Harness, *, is_noticed: bool
    ) -> None:
        """E5, E7: what cannot be told ends with the session: nothing waits for it."""
        ha = harness.open(
            cuttable=True, on_suspended="clear", connect_timeout_seconds=60.0, **QUICK
        )
        leaders = [Candidate(ha, "a:1", job_id=f"job-{n}") for n in range(3)]
        for leader in leaders:
            leader.wait_for_confirm()
        harness.cut(ha)
        if is_noticed:
            for leader in leaders:
                leader.contender.wait_for_revoke()
        closer = threading.Thread(target=ha.close)
        closer.start()
        closer.join(WAIT_SECONDS)
        assert not closer.is_alive()

    @pytest.mark.proves("E6")
    def test_closed_while_it_is_granted(self, harness: Harness) -> None:
        """E6, E7: the grant callback, then the revocation, then the next one's turn."""
        story: Record[str] = Record()
        former, _ = lead(harness)
        is_granted, may_confirm = threading.Event(), threading.Event()

        class Slow(ConfirmingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                is_granted.set()
                assert may_confirm.wait(WAIT_SECONDS)
                super().grant_leadership(session)
                story.add("confirmed")

            def revoke_leadership(self) -> None:
                super().revoke_leadership()
                story.add("revoked")

        slow = Candidate(
            harness.open(**PATIENT),
            "slow:1",
            make_contender=lambda election: Slow(election, "slow:1"),
        )
        last = Candidate(
            harness.open(**PATIENT),
            "last:1",
            make_contender=lambda election: Following(
                election, story, lambda: slow.believes(slow.contender.granted[0])
            ),
        )
        former.election.close()
        assert is_granted.wait(WAIT_SECONDS)
        closer = threading.Thread(target=slow.ha.close)
        closer.start()
        assert ids_in_order(last.election)[0] == slow.contender_id
        may_confirm.set()
        closer.join(WAIT_SECONDS)
        assert not closer.is_alive()
        last.wait_for_confirm()
        assert story.items == ("confirmed", "revoked", "granted, two believe: False")
