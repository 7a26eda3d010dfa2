"""E4, E5 and R4: what is believed and told while the name service is out of reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from haservices import Guarantee
from nameservice import DidNotHappenError, LeadershipLostError, MayHaveHappenedError
from tests.conformance.candidates import JOB, Candidate, wait_for_queue
from tests.conformance.harness import PATIENT, QUICK, SUSPENDING
from tests.conformance.selection import requires
from tests.recording import (
    ConfirmingContender,
    Granted,
    Notified,
    Record,
    RecordingListener,
    Revoked,
    wait_until,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import LeaderElection, LeaderSession
    from haservices import HAServices
    from tests.conformance.harness import Harness
    from tests.recording import ContenderCall


class Witness(ConfirmingContender):
    """Looks, when it is granted, whether *others* still believe."""

    def __init__(
        self, election: LeaderElection, others: list[Callable[[], bool]]
    ) -> None:
        super().__init__(election, "witness:1")
        self.saw: Record[list[bool]] = Record()
        self._others = others

    def grant_leadership(self, session: LeaderSession) -> None:
        """Look, then confirm."""
        self.saw.add([believes() for believes in self._others])
        super().grant_leadership(session)


def without_suspensions(calls: Sequence[ContenderCall]) -> tuple[ContenderCall, ...]:
    """
    Return *calls* without revocations that the same leadership followed.

    Under "clear" a stall of the machine is told as a suspension is, at any time.
    """
    kept: list[ContenderCall] = []
    for call in calls:
        if isinstance(call, Granted) and kept[-2:] == [call, Revoked()]:
            kept.pop()
        else:
            kept.append(call)
    return tuple(kept)


def end_by_cut(harness: Harness, leader: Candidate) -> None:
    """Make the leader fall silent."""
    harness.cut(leader.ha)


def end_by_expiry(harness: Harness, leader: Candidate) -> None:
    """End the leader's session."""
    harness.expire(leader.session_id)


def end_by_revocation(harness: Harness, leader: Candidate) -> None:
    """Revoke the leader."""
    harness.operator.operations.revoke(JOB)


def end_by_close(harness: Harness, leader: Candidate) -> None:
    """Make the leader resign."""
    leader.election.close()


def end_behind_a_cut(harness: Harness, leader: Candidate) -> None:
    """End the leader's session while it can not be told."""
    harness.cut(leader.ha)
    harness.expire(leader.session_id)


@pytest.mark.proves("E4")
class TestE4Belief:
    @pytest.mark.parametrize(
        "end",
        [end_by_cut, end_by_expiry, end_by_revocation, end_by_close, end_behind_a_cut],
    )
    def test_no_two_believe_at_once(
        self, harness: Harness, end: Callable[[Harness, Candidate], None]
    ) -> None:
        """E4: however a leadership ends, none believes when the next is granted."""
        leader = Candidate(harness.open(cuttable=True, **QUICK), "leader:1")
        session = leader.wait_for_confirm()
        witness = Candidate(
            harness.open(),
            "witness:1",
            make_contender=lambda election: Witness(
                election, [lambda: leader.believes(session)]
            ),
        )
        end(harness, leader)
        witness.wait_for_confirm()
        assert isinstance(witness.contender, Witness)
        assert witness.contender.saw.items == ([False],)
        assert not leader.believes(session)

    def test_belief_ends_by_the_clock_alone(self, harness: Harness) -> None:
        """E4: out of contact the holder stops believing, without being told."""
        leader = Candidate(
            harness.open(cuttable=True, **SUSPENDING, on_suspended="keep"), "a:1"
        )
        session = leader.wait_for_confirm()
        leader.wait_for_belief(session)
        harness.cut(leader.ha)
        wait_until(lambda: not leader.believes(session))
        assert leader.contender.calls == (Granted(session),)
        future = leader.election.run_if_leader(session.leader_session_id, lambda: 7)
        with pytest.raises(LeadershipLostError):
            future.result(30)

    def test_only_the_present_leadership_is_believed(self, harness: Harness) -> None:
        """E4: not an earlier one of its own, nor another's."""
        one = Candidate(harness.open(), "one:1")
        first = one.wait_for_confirm()
        other = Candidate(harness.open(), "other:1")
        assert not other.believes(first)
        harness.operator.operations.revoke(JOB)
        second = other.wait_for_confirm()
        wait_for_queue(one, other)
        harness.operator.operations.revoke(JOB)
        third = one.wait_for_confirm(2)
        one.wait_for_belief(third)
        assert not one.believes(first)
        assert not one.believes(second)
        assert not other.believes(second)
        assert not other.believes(third)


class TestE5Sessions:
    @pytest.mark.proves("E5")
    def test_clean_close_ends_it_at_once(self, harness: Harness) -> None:
        """E5: none waits for a timeout, however long it is."""
        leader = Candidate(harness.open(**PATIENT), "a:1")
        leader.wait_for_confirm()
        follower = Candidate(harness.open(**PATIENT), "b:1")
        leader.ha.close()
        follower.wait_for_confirm()
        assert len(follower.election.contenders()) == 1

    @pytest.mark.proves("E5")
    @pytest.mark.parametrize("on_suspended", ["keep", "clear"])
    def test_silence_for_the_session_timeout_ends_it(
        self, harness: Harness, on_suspended: str
    ) -> None:
        """E5: the next is granted; the silent one revokes itself, without any word."""
        leader = Candidate(
            harness.open(cuttable=True, **QUICK, on_suspended=on_suspended), "a:1"
        )
        session = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "b:1")
        harness.cut(leader.ha)
        follower.wait_for_confirm()
        expected = (Granted(session), Revoked())
        wait_until(lambda: without_suspensions(leader.contender.calls) == expected)
        with pytest.raises((LeadershipLostError, DidNotHappenError)):
            leader.election.confirm_leadership(session.leader_session_id, "zombie:1")
        harness.heal(leader.ha)
        wait_until(lambda: len(follower.election.contenders()) == 2)
        confirmed_count = leader.confirmed_count
        follower.election.close()
        again = leader.wait_for_confirm(confirmed_count + 1)
        assert again.epoch > session.epoch

    @pytest.mark.proves("E5")
    def test_keep_tells_nothing_and_has_the_same_leadership_again(
        self, harness: Harness
    ) -> None:
        """E5: suspended, not lost: the contender is none the wiser."""
        leader = Candidate(
            harness.open(cuttable=True, **SUSPENDING, on_suspended="keep"), "a:1"
        )
        session = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "b:1")
        harness.cut(leader.ha)
        wait_until(lambda: not leader.believes(session))
        harness.heal(leader.ha)
        leader.wait_for_belief(session)
        assert leader.contender.calls == (Granted(session),)
        assert follower.contender.calls == ()
        leader.election.confirm_leadership(session.leader_session_id, "b:1")

    @pytest.mark.proves("E5")
    def test_clear_revokes_at_once_and_grants_the_same_again(
        self, harness: Harness
    ) -> None:
        """E5: with "clear" a suspension is told: the same id and epoch come back."""
        # A confirmation that the cut keeps waiting keeps the news waiting, too: the
        # session has to outlast both.
        settings = SUSPENDING | {"session_timeout_seconds": 15.0}
        leader = Candidate(
            harness.open(cuttable=True, **settings, on_suspended="clear"), "a:1"
        )
        session = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "b:1")
        harness.cut(leader.ha)
        wait_until(
            lambda: (
                not leader.believes(session) and leader.contender.calls[-1] == Revoked()
            )
        )
        confirmed_count = leader.confirmed_count
        harness.heal(leader.ha)
        assert leader.wait_for_confirm(confirmed_count + 1) == session
        leader.wait_for_belief(session)
        assert without_suspensions(leader.contender.calls) in (
            (Granted(session),),
            (Granted(session), Revoked()),  # suspended once more just now
        )
        assert follower.contender.calls == ()

    @pytest.mark.proves("E5", "E8")
    @pytest.mark.parametrize("on_suspended", ["keep", "clear"])
    def test_end_that_was_missed_is_told_on_return(
        self, harness: Harness, on_suspended: str
    ) -> None:
        """E5, E8: expired behind its back, it is revoked and queues again."""
        leader = Candidate(
            harness.open(cuttable=True, **SUSPENDING, on_suspended=on_suspended), "a:1"
        )
        first = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "b:1")
        harness.cut(leader.ha)
        harness.expire(leader.session_id)
        second = follower.wait_for_confirm()
        harness.heal(leader.ha)
        leader.contender.wait_for_revoke()
        wait_until(lambda: len(follower.election.contenders()) == 2)
        confirmed_count = leader.confirmed_count
        follower.election.close()
        third = leader.wait_for_confirm(confirmed_count + 1)
        assert first.epoch < second.epoch < third.epoch
        calls = without_suspensions(leader.contender.calls)
        assert calls[:3] == (Granted(first), Revoked(), Granted(third))

    @pytest.mark.proves("E8")
    def test_waiting_contender_that_was_cut_off_is_back(self, harness: Harness) -> None:
        """E8: its session over, it registers again by itself as soon as it can."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        waiting = Candidate(harness.open(cuttable=True, **QUICK), "b:1")
        harness.cut(waiting.ha)
        wait_until(lambda: len(leader.election.contenders()) == 1)
        harness.heal(waiting.ha)
        wait_until(lambda: len(leader.election.contenders()) == 2)
        leader.election.close()
        waiting.wait_for_confirm()

    @pytest.mark.proves("E5", "E7")
    def test_close_while_cut_off_returns_and_leaves_nothing(
        self, harness: Harness
    ) -> None:
        """E7, E5: it cannot be told; the entry ends with the session."""
        leader = Candidate(
            harness.open(cuttable=True, **QUICK, connect_timeout_seconds=0.5), "a:1"
        )
        session = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "b:1")
        harness.cut(leader.ha)
        leader.ha.close()
        assert leader.contender.calls == (Granted(session), Revoked())
        follower.wait_for_confirm()
        assert len(follower.election.contenders()) == 1

    @pytest.mark.proves("E5")
    @requires(Guarantee.ACROSS_PROCESSES)
    def test_broken_connection_costs_nothing(self, harness: Harness) -> None:
        """E5: a reset is no death: the same session goes on over a new connection."""
        leader = Candidate(harness.open(cuttable=True, **PATIENT), "a:1")
        session = leader.wait_for_confirm()
        follower = Candidate(harness.open(), "b:1")
        _, listener = listening(leader.ha)
        listener.wait_for_leader(leader.is_leader)
        for _ in range(3):
            harness.reset(leader.ha)
            wait_until(lambda: is_confirmed_again(leader, session))
        assert leader.contender.calls == (Granted(session),)
        assert follower.contender.calls == ()
        assert len(listener.calls) == 1


@pytest.mark.proves("R4")
class TestR4Contact:
    def test_keep_tells_a_listener_only_of_a_lost_session(
        self, harness: Harness
    ) -> None:
        """R4: None once the session is lost, and the leader again afterwards."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        ha = harness.open(cuttable=True, **QUICK, on_suspended="keep")
        retriever, listener = listening(ha)
        found = listener.wait_for_leader(leader.is_leader)
        harness.cut(ha)
        listener.wait_for_latest(lambda latest: latest is None)
        assert retriever.leader is None
        harness.heal(ha)
        listener.wait_for_latest(leader.is_leader)
        # A stall of the machine is told in the same way, at any time.
        assert set(listener.calls[::2]) == {Notified(found)}
        assert set(listener.calls[1::2]) == {Notified(None)}

    def test_keep_tells_a_listener_nothing_of_a_suspension(
        self, harness: Harness
    ) -> None:
        """R4: what it missed meanwhile is the next thing it hears."""
        first = Candidate(harness.open(), "a:1")
        first.wait_for_confirm()
        second = Candidate(harness.open(), "b:1")
        ha = harness.open(cuttable=True, **SUSPENDING, on_suspended="keep")
        _, listener = listening(ha)
        listener.wait_for_leader(first.is_leader)
        harness.cut(ha)
        first.election.close()
        second.wait_for_confirm()
        assert len(listener.calls) == 1
        harness.heal(ha)
        listener.wait_for_latest(second.is_leader)

    def test_clear_tells_a_listener_at_once(self, harness: Harness) -> None:
        """R4: None as soon as contact is suspended; the same leader again after."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        ha = harness.open(cuttable=True, **QUICK, on_suspended="clear")
        retriever, listener = listening(ha)
        found = listener.wait_for_leader(leader.is_leader)
        harness.cut(ha)
        listener.wait_for_latest(lambda latest: latest is None)
        assert retriever.leader is None
        harness.heal(ha)
        listener.wait_for_latest(leader.is_leader)
        assert listener.calls == (Notified(found), Notified(None), Notified(found))

    @pytest.mark.proves("E8")
    def test_listener_of_a_session_that_was_ended_goes_on(
        self, harness: Harness
    ) -> None:
        """R4, E8: a retriever outlives its session: it subscribes again by itself."""
        ha = harness.open(cuttable=True, **QUICK)
        waiting = Candidate(ha, "w:1", job_id="other")
        _, listener = listening(ha)
        first = Candidate(harness.open(), "a:1")
        first.wait_for_confirm()
        listener.wait_for_leader(first.is_leader)
        harness.expire(waiting.session_id)
        second = Candidate(harness.open(), "b:1")
        first.election.close()
        second.wait_for_confirm()
        listener.wait_for_latest(second.is_leader)


def listening(ha: HAServices) -> tuple[Any, RecordingListener]:
    """Return a new retriever, started, and its listener."""
    listener = RecordingListener()
    retriever = ha.get_leader_retriever(JOB)
    retriever.start(listener)
    return retriever, listener


def is_confirmed_again(leader: Candidate, session: LeaderSession) -> bool:
    """Confirm once more; return whether the name service has answered."""
    try:
        leader.election.confirm_leadership(session.leader_session_id, leader.address)
    except (DidNotHappenError, MayHaveHappenedError):
        return False
    return True
