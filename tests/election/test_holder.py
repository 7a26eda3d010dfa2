from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from election.contender import LeaderSession
from election.holder import (
    AcknowledgeRevocation,
    Affirmed,
    Claim,
    ConfirmRequested,
    DeliverGrant,
    DeliverRevoke,
    Ended,
    HolderCore,
    Lost,
    RefuseConfirm,
    RevokeDelivered,
    SendConfirm,
    Suspended,
)


if TYPE_CHECKING:
    from election.holder import HolderEvent


def session(epoch: int, identity: int | None = None) -> LeaderSession:
    """Return the leadership of *epoch*; its identity goes with it unless given."""
    return LeaderSession(
        leader_session_id=UUID(int=epoch if identity is None else identity),
        epoch=epoch,
    )


THIRD, FOURTH, FIFTH = session(3), session(4), session(5)


def core_after(*events: HolderEvent, clears_on_suspended: bool = False) -> HolderCore:
    """Return a core that has taken *events* at time 0."""
    core = HolderCore(clears_on_suspended=clears_on_suspended)
    for event in events:
        core.step(event, now_ns=0)
    return core


class TestGrant:
    @pytest.mark.proves("E3", "E4")
    def test_first_affirmation_grants(self) -> None:
        """E3, E4: what the name service affirms is told, and believed until then."""
        core = HolderCore(clears_on_suspended=False)
        assert core.claim is None
        assert core.step(Affirmed(session=THIRD, until_ns=10), now_ns=0) == (
            DeliverGrant(session=THIRD),
        )
        assert core.claim == Claim(session=THIRD, confirm_count=0, address=None)

    @pytest.mark.proves("E4")
    def test_belief_ends_by_the_clock_alone(self) -> None:
        """E4: believed up to the deadline, not at it and not after it."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        believed = [
            core.believes(THIRD.leader_session_id, now_ns=now_ns)
            for now_ns in (0, 9, 10, 11)
        ]
        assert believed == [True, True, False, False]

    @pytest.mark.proves("E4")
    def test_only_the_leadership_that_is_held_is_believed(self) -> None:
        """E4: another leadership's id is never believed; nor is any at first."""
        core = HolderCore(clears_on_suspended=False)
        assert not core.believes(THIRD.leader_session_id, now_ns=0)
        core.step(Affirmed(session=THIRD, until_ns=10), now_ns=0)
        assert not core.believes(FOURTH.leader_session_id, now_ns=0)

    @pytest.mark.proves("E4")
    def test_how_long_belief_lasts_is_what_believes_says(self) -> None:
        """E4: what is left counts down to the deadline, and is 0 from then on."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        left_ns = [
            core.belief_left_ns(THIRD.leader_session_id, now_ns=now_ns)
            for now_ns in (0, 9, 10, 11)
        ]
        assert left_ns == [10, 1, 0, 0]
        assert core.belief_left_ns(FOURTH.leader_session_id, now_ns=0) == 0
        core.step(Ended(epoch=3), now_ns=1)
        assert core.belief_left_ns(THIRD.leader_session_id, now_ns=1) == 0

    @pytest.mark.proves("E4")
    def test_affirmation_prolongs_belief_and_tells_nothing(self) -> None:
        """E4: each acknowledged heartbeat moves the deadline; nothing new is told."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        assert core.step(Affirmed(session=THIRD, until_ns=20), now_ns=5) == ()
        assert core.believes(THIRD.leader_session_id, now_ns=19)
        assert not core.believes(THIRD.leader_session_id, now_ns=20)

    @pytest.mark.proves("E4")
    def test_late_affirmation_does_not_shorten_belief(self) -> None:
        """E4: an acknowledgement that was overtaken takes nothing back."""
        core = core_after(Affirmed(session=THIRD, until_ns=20))
        assert core.step(Affirmed(session=THIRD, until_ns=10), now_ns=5) == ()
        assert core.believes(THIRD.leader_session_id, now_ns=19)

    @pytest.mark.proves("E4", "E5")
    def test_belief_that_lapsed_comes_back_untold(self) -> None:
        """E4, E5: under "keep" the contender is none the wiser."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        assert core.step(Affirmed(session=THIRD, until_ns=40), now_ns=30) == ()
        assert core.believes(THIRD.leader_session_id, now_ns=39)

    @pytest.mark.proves("E4")
    @pytest.mark.parametrize("until_ns", [29, 30])
    def test_affirmation_after_its_own_lease_is_ignored(self, until_ns: int) -> None:
        """E4: what arrives when it holds no longer grants nothing."""
        core = HolderCore(clears_on_suspended=False)
        assert core.step(Affirmed(session=THIRD, until_ns=until_ns), now_ns=30) == ()
        assert core.claim is None

    @pytest.mark.proves("E6")
    def test_newer_leadership_ends_the_older(self) -> None:
        """E6: revoke and grant alternate, even if the end itself was never heard."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        assert core.step(Affirmed(session=FOURTH, until_ns=20), now_ns=5) == (
            DeliverRevoke(session=THIRD),
            DeliverGrant(session=FOURTH),
        )
        assert core.claim == Claim(session=FOURTH)
        assert not core.believes(THIRD.leader_session_id, now_ns=5)
        assert core.believes(FOURTH.leader_session_id, now_ns=19)
        assert not core.believes(FOURTH.leader_session_id, now_ns=20)

    @pytest.mark.proves("E2")
    @pytest.mark.parametrize("stale", [session(3), session(4, identity=9)])
    def test_stale_affirmation_is_ignored(self, stale: LeaderSession) -> None:
        """E2: neither an older epoch nor the same one under another id is taken."""
        core = core_after(Affirmed(session=FOURTH, until_ns=10))
        assert core.step(Affirmed(session=stale, until_ns=20), now_ns=5) == ()
        assert core.claim == Claim(session=FOURTH)
        assert not core.believes(stale.leader_session_id, now_ns=5)
        assert not core.believes(FOURTH.leader_session_id, now_ns=10)


class TestEnd:
    @pytest.mark.proves("E4", "E6")
    def test_end_revokes_and_is_acknowledged_after_the_callback(self) -> None:
        """E4, E6: belief ends at once; the successor waits for the callback."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        assert core.step(Ended(epoch=3), now_ns=5) == (DeliverRevoke(session=THIRD),)
        assert core.claim is None
        assert not core.believes(THIRD.leader_session_id, now_ns=5)
        assert core.step(RevokeDelivered(), now_ns=6) == (
            AcknowledgeRevocation(session=THIRD),
        )

    @pytest.mark.proves("E2")
    def test_end_of_a_later_epoch_ends_it_too(self) -> None:
        """E2: who hears that a later leadership is over has missed one's own end."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        assert core.step(Ended(epoch=4), now_ns=5) == (DeliverRevoke(session=THIRD),)
        assert core.step(Affirmed(session=FOURTH, until_ns=20), now_ns=5) == ()
        assert core.claim is None

    @pytest.mark.proves("E2")
    def test_end_of_an_earlier_epoch_changes_nothing(self) -> None:
        """E2: late news of an earlier leadership does not touch this one."""
        core = core_after(Affirmed(session=FOURTH, until_ns=10))
        assert core.step(Ended(epoch=3), now_ns=5) == ()
        assert core.believes(FOURTH.leader_session_id, now_ns=9)
        assert core.claim == Claim(session=FOURTH)

    @pytest.mark.proves("E2")
    def test_what_has_ended_is_never_believed_again(self) -> None:
        """E2: an affirmation that was overtaken by the end is ignored."""
        core = core_after(Ended(epoch=3))
        assert core.step(Affirmed(session=THIRD, until_ns=20), now_ns=5) == ()
        assert core.claim is None
        assert core.step(Affirmed(session=FOURTH, until_ns=20), now_ns=5) == (
            DeliverGrant(session=FOURTH),
        )

    @pytest.mark.proves("E6")
    def test_second_end_tells_nothing(self) -> None:
        """E6: a revocation is told once."""
        core = core_after(Affirmed(session=THIRD, until_ns=10), Ended(epoch=3))
        assert core.step(Ended(epoch=3), now_ns=5) == ()

    @pytest.mark.proves("E4")
    def test_end_of_a_claim_untold_is_acknowledged_at_once(self) -> None:
        """E4: where no callback is under way none need be waited for."""
        core = core_after(Affirmed(session=THIRD, until_ns=10), Lost())
        assert core.step(RevokeDelivered(), now_ns=5) == ()
        assert core.step(Ended(epoch=3), now_ns=6) == (
            AcknowledgeRevocation(session=THIRD),
        )
        assert core.claim is None

    @pytest.mark.proves("E4")
    def test_end_during_the_callback_is_acknowledged_after_it(self) -> None:
        """E4: a callback that a loss began is waited for as well."""
        core = core_after(Affirmed(session=THIRD, until_ns=10), Lost())
        assert core.step(Ended(epoch=3), now_ns=6) == ()
        assert core.step(RevokeDelivered(), now_ns=7) == (
            AcknowledgeRevocation(session=THIRD),
        )

    @pytest.mark.proves("E4")
    def test_last_callback_acknowledges_the_last_leadership(self) -> None:
        """E4: two revocations under way are acknowledged once both have returned."""
        core = core_after(
            Affirmed(session=THIRD, until_ns=10),
            Ended(epoch=3),
            Affirmed(session=FOURTH, until_ns=10),
            Ended(epoch=4),
        )
        assert core.step(RevokeDelivered(), now_ns=5) == ()
        assert core.step(RevokeDelivered(), now_ns=6) == (
            AcknowledgeRevocation(session=FOURTH),
        )

    @pytest.mark.proves("E4")
    def test_end_is_acknowledged_once(self) -> None:
        """E4: a later revocation does not acknowledge an earlier end again."""
        core = core_after(
            Affirmed(session=THIRD, until_ns=10),
            Ended(epoch=3),
            RevokeDelivered(),
            Affirmed(session=FOURTH, until_ns=10),
            Lost(),
        )
        assert core.step(RevokeDelivered(), now_ns=5) == ()

    @pytest.mark.proves("E4")
    def test_acknowledgement_may_follow_the_next_grant(self) -> None:
        """E4: granted again meanwhile, the earlier end is acknowledged all the same."""
        core = core_after(
            Affirmed(session=THIRD, until_ns=10),
            Ended(epoch=3),
            Affirmed(session=FOURTH, until_ns=10),
        )
        assert core.step(RevokeDelivered(), now_ns=5) == (
            AcknowledgeRevocation(session=THIRD),
        )
        assert core.believes(FOURTH.leader_session_id, now_ns=5)


class TestContact:
    @pytest.mark.proves("E5")
    def test_keep_does_not_tell_of_a_suspension(self) -> None:
        """E5: under "keep" belief lapses by the clock, and no contender is told."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        assert core.step(Suspended(), now_ns=5) == ()
        assert core.believes(THIRD.leader_session_id, now_ns=9)

    @pytest.mark.proves("E5")
    def test_clear_revokes_and_grants_the_same_again(self) -> None:
        """E5: under "clear" a suspension revokes; contact grants the same again."""
        core = core_after(
            Affirmed(session=THIRD, until_ns=10), clears_on_suspended=True
        )
        assert core.step(Suspended(), now_ns=5) == (DeliverRevoke(session=THIRD),)
        assert not core.believes(THIRD.leader_session_id, now_ns=5)
        assert core.claim == Claim(session=THIRD)
        assert core.step(Affirmed(session=THIRD, until_ns=30), now_ns=20) == (
            DeliverGrant(session=THIRD),
        )
        assert core.believes(THIRD.leader_session_id, now_ns=29)

    @pytest.mark.proves("E6")
    def test_suspension_of_nobody_tells_nothing(self) -> None:
        """E6: no revoke without a grant."""
        core = core_after(clears_on_suspended=True)
        assert core.step(Suspended(), now_ns=5) == ()

    @pytest.mark.proves("E5")
    @pytest.mark.parametrize("clears_on_suspended", [False, True])
    def test_loss_revokes_and_keeps_the_claim(self, clears_on_suspended: bool) -> None:
        """E5: told under "keep" too; if the session survived, the same is granted."""
        core = core_after(
            Affirmed(session=THIRD, until_ns=10),
            ConfirmRequested(leader_session_id=THIRD.leader_session_id, address="a:1"),
            clears_on_suspended=clears_on_suspended,
        )
        claim = Claim(session=THIRD, confirm_count=1, address="a:1")
        assert core.step(Lost(), now_ns=5) == (DeliverRevoke(session=THIRD),)
        assert core.claim == claim
        assert core.step(RevokeDelivered(), now_ns=6) == ()
        assert core.step(Affirmed(session=THIRD, until_ns=30), now_ns=20) == (
            DeliverGrant(session=THIRD),
        )
        assert core.claim == claim

    @pytest.mark.proves("E6")
    def test_loss_after_a_suspension_tells_nothing_more(self) -> None:
        """E6: revoked once, there is nothing left to revoke."""
        core = core_after(
            Affirmed(session=THIRD, until_ns=10),
            Suspended(),
            clears_on_suspended=True,
        )
        assert core.step(Lost(), now_ns=5) == ()

    @pytest.mark.proves("E5")
    def test_newer_leadership_replaces_a_claim_untold(self) -> None:
        """E5: one that lost the claim meanwhile is granted the new one only."""
        core = core_after(Affirmed(session=THIRD, until_ns=10), Lost())
        core.step(RevokeDelivered(), now_ns=1)
        assert core.step(Affirmed(session=FIFTH, until_ns=30), now_ns=20) == (
            AcknowledgeRevocation(session=THIRD),
            DeliverGrant(session=FIFTH),
        )


class TestConfirm:
    @pytest.mark.proves("E3", "R3")
    def test_held_leadership_is_confirmed_and_counted(self) -> None:
        """E3, R3: each confirm carries its number within the leadership."""
        core = core_after(Affirmed(session=THIRD, until_ns=10))
        first = ConfirmRequested(
            leader_session_id=THIRD.leader_session_id, address="a:1"
        )
        again = ConfirmRequested(
            leader_session_id=THIRD.leader_session_id, address="b:1"
        )
        assert core.step(first, now_ns=1) == (
            SendConfirm(session=THIRD, confirm_count=1, address="a:1"),
        )
        assert core.step(again, now_ns=2) == (
            SendConfirm(session=THIRD, confirm_count=2, address="b:1"),
        )
        assert core.claim == Claim(session=THIRD, confirm_count=2, address="b:1")

    @pytest.mark.proves("E3")
    @pytest.mark.parametrize(
        "events",
        [
            (),
            (Affirmed(session=FOURTH, until_ns=10),),
            (Affirmed(session=THIRD, until_ns=10), Ended(epoch=3)),
            (Affirmed(session=THIRD, until_ns=10), Lost()),
        ],
    )
    def test_stale_confirm_is_refused_and_changes_nothing(
        self, events: tuple[HolderEvent, ...]
    ) -> None:
        """E3: never granted, replaced, ended or lost: it is not sent at all."""
        core = core_after(*events)
        claim = core.claim
        stale = ConfirmRequested(
            leader_session_id=THIRD.leader_session_id, address="a:1"
        )
        assert core.step(stale, now_ns=1) == (RefuseConfirm(),)
        assert core.claim == claim

    @pytest.mark.proves("R3")
    def test_counting_begins_anew_with_each_leadership(self) -> None:
        """R3: confirms are counted within one epoch."""
        core = core_after(
            Affirmed(session=THIRD, until_ns=10),
            ConfirmRequested(leader_session_id=THIRD.leader_session_id, address="a:1"),
            Affirmed(session=FOURTH, until_ns=10),
        )
        confirm = ConfirmRequested(
            leader_session_id=FOURTH.leader_session_id, address="a:1"
        )
        assert core.step(confirm, now_ns=1) == (
            SendConfirm(session=FOURTH, confirm_count=1, address="a:1"),
        )


class TestOurOwnMistakes:
    def test_time_never_goes_back(self) -> None:
        """A shell that steps with an earlier time is wrong."""
        core = HolderCore(clears_on_suspended=False)
        core.step(Suspended(), now_ns=5)
        with pytest.raises(AssertionError):
            core.step(Suspended(), now_ns=4)

    def test_no_callback_returns_that_was_not_begun(self) -> None:
        """A shell that reports a revoke callback twice is wrong."""
        with pytest.raises(AssertionError):
            core_after(RevokeDelivered())
