from __future__ import annotations

from uuid import UUID

import pytest

from election.component import Component, Contender
from election.effects import Affirmation, PublishLeader, RevokeLeadership
from election.events import ClaimReported, LeadershipConfirmed
from election.patience import Moment
from election.sessions import Session
from retrieval.information import LeaderInformation, Publication


JOB = "c/job"
LEASE_NS = 100


def contender_of(
    session_id: str, *, ticket: int = 1, claim: ClaimReported | None = None
) -> Contender:
    """Return the one contender of *session_id*."""
    return Contender(
        contender_id=f"{session_id}/1",
        session_id=session_id,
        ticket=ticket,
        confirm_timeout_ns=500,
        claim=claim,
    )


def claim_of(epoch: int) -> ClaimReported:
    """Return the claim to *epoch*."""
    return ClaimReported(
        leader_session_id=UUID(int=epoch), epoch=epoch, confirm_count=0, address=None
    )


def component_of(*contenders: Contender) -> Component:
    """Return a component with *contenders* in its queue."""
    return Component(
        component_id=JOB,
        contenders={contender.contender_id: contender for contender in contenders},
    )


def led_by_alice(*, epoch: int = 3, now_ns: int = 10) -> Component:
    """Return a component that Alice was granted at *now_ns*."""
    alice = contender_of("alice")
    component = component_of(alice)
    session = Session(
        session_id="alice",
        client="",
        session_timeout_ns=1_000,
        lease_ns=LEASE_NS,
        opened_ns=0,
        last_contact=Moment(now_ns),
    )
    component.begin(
        alice,
        session,
        leader_session_id=UUID(int=epoch),
        epoch=epoch,
        now=Moment(now_ns),
    )
    return component


def confirmation(
    *,
    session_id: str = "alice",
    contender_id: str = "alice/1",
    leader_session_id: int = 3,
    confirm_count: int = 1,
    address: str = "a:1",
) -> LeadershipConfirmed:
    """Return Alice's confirmation of epoch 3, but for what is given."""
    return LeadershipConfirmed(
        session_id=session_id,
        component_id=JOB,
        contender_id=contender_id,
        leader_session_id=UUID(int=leader_session_id),
        confirm_count=confirm_count,
        address=address,
    )


def published(epoch: int, address: str, confirm_count: int = 1) -> PublishLeader:
    """Return the publication of the leader of *epoch*."""
    return PublishLeader(
        component_id=JOB,
        publication=Publication(
            epoch=epoch,
            confirm_count=confirm_count,
            leader=LeaderInformation(
                address=address, leader_session_id=UUID(int=epoch), epoch=epoch
            ),
        ),
    )


def nobody(epoch: int) -> PublishLeader:
    """Return the publication that *epoch* is over."""
    return PublishLeader(
        component_id=JOB,
        publication=Publication(epoch=epoch, confirm_count=0, leader=None),
    )


def affirmation_of(session_id: str, epoch: int) -> Affirmation:
    """Return how the contender of *session_id* hears of *epoch*."""
    return Affirmation(
        component_id=JOB,
        contender_id=f"{session_id}/1",
        leader_session_id=UUID(int=epoch),
        epoch=epoch,
    )


def revoked(session_id: str, epoch: int) -> RevokeLeadership:
    """Return how *session_id* hears that *epoch* is over."""
    return RevokeLeadership(
        session_id=session_id, affirmation=affirmation_of(session_id, epoch)
    )


class TestQueue:
    @pytest.mark.proves("E1")
    def test_goes_by_ticket_then_by_id(self) -> None:
        """E1: the order of registration; equal tickets of old come by their ids."""
        component = component_of(
            contender_of("dave", ticket=2),
            contender_of("carol", ticket=3),
            contender_of("bob", ticket=2),
            contender_of("alice", ticket=9),
        )
        assert [contender.session_id for contender in component.in_order()] == [
            "bob",
            "dave",
            "carol",
            "alice",
        ]


class TestBegin:
    @pytest.mark.proves("E2", "E3")
    def test_leadership_is_the_highest_epoch(self) -> None:
        """E2, E3: what is granted is the newest, is not over, and is not confirmed."""
        component = led_by_alice()
        assert component.affirmation() == affirmation_of("alice", 3)
        assert (component.epoch_max, component.is_epoch_max_ended) == (3, False)
        assert component.leadership is not None
        assert not component.leadership.is_confirmed
        assert component.leadership.barrier_ns == 110
        assert component.leadership.confirm_deadline_ns(Moment(10)) == 510
        assert component.publication is None

    @pytest.mark.proves("E1")
    def test_two_leaderships_at_once_are_a_mistake(self) -> None:
        """E1: there is never a second leadership beside the first."""
        component = led_by_alice()
        with pytest.raises(AssertionError):
            component.begin(
                contender_of("alice"),
                Session(
                    session_id="alice",
                    client="",
                    session_timeout_ns=1_000,
                    lease_ns=LEASE_NS,
                    opened_ns=0,
                    last_contact=Moment(0),
                ),
                leader_session_id=UUID(int=4),
                epoch=4,
                now=Moment(0),
            )


@pytest.mark.proves("E3")
class TestConfirm:
    def test_publishes(self) -> None:
        """E3: the first confirmation makes the leader known."""
        component = led_by_alice()
        assert component.confirm(confirmation()) == (published(3, "a:1"),)
        assert component.publication == component.present()
        assert component.leadership is not None
        assert component.leadership.is_confirmed

    @pytest.mark.proves("R3")
    def test_again_publishes_the_new_address(self) -> None:
        """E3, R3: the same epoch, the next count, another address."""
        component = led_by_alice()
        component.confirm(confirmation())
        again = confirmation(confirm_count=2, address="a:2")
        assert component.confirm(again) == (published(3, "a:2", confirm_count=2),)

    @pytest.mark.parametrize("confirm_count", [1, 2])
    def test_repetition_is_taken_and_changes_nothing(self, confirm_count: int) -> None:
        """E3: a confirmation that was overtaken, or came twice, is not refused."""
        component = led_by_alice()
        component.confirm(confirmation(confirm_count=2, address="a:2"))
        late = confirmation(confirm_count=confirm_count, address="a:1")
        assert component.confirm(late) == ()
        assert component.present().leader == LeaderInformation(
            address="a:2", leader_session_id=UUID(int=3), epoch=3
        )

    @pytest.mark.parametrize(
        "stale",
        [
            confirmation(session_id="bob"),
            confirmation(contender_id="alice/2"),
            confirmation(leader_session_id=2),
        ],
        ids=["another's session", "another contender", "another leadership"],
    )
    def test_stale_confirmation_changes_nothing(
        self, stale: LeadershipConfirmed
    ) -> None:
        """E3: only the holder confirms, and only what it was granted."""
        component = led_by_alice()
        assert component.confirm(stale) is None
        assert component.publication is None

    def test_nothing_to_confirm_without_a_leadership(self) -> None:
        """E3: after the end a confirmation is refused."""
        component = led_by_alice()
        component.end(has_stopped=True, is_told=False)
        assert component.confirm(confirmation()) is None


class TestEnd:
    @pytest.mark.proves("E3")
    def test_unconfirmed_end_is_told_to_nobody_else(self) -> None:
        """E3: retrievers that never heard of a leader need not hear of its end."""
        component = led_by_alice()
        assert component.end(has_stopped=False, is_told=True) == (revoked("alice", 3),)
        assert component.publication is None

    @pytest.mark.proves("R2")
    def test_confirmed_end_is_published_first(self) -> None:
        """R2: there is no leader, then the holder hears of it."""
        component = led_by_alice()
        component.confirm(confirmation())
        assert component.end(has_stopped=False, is_told=True) == (
            nobody(3),
            revoked("alice", 3),
        )
        assert (component.epoch_max, component.is_epoch_max_ended) == (3, True)

    @pytest.mark.proves("E7")
    def test_holder_that_said_so_is_not_told(self) -> None:
        """E7: one that withdrew knows; there is nothing to wait for either."""
        component = led_by_alice()
        component.confirm(confirmation())
        assert component.end(has_stopped=True, is_told=False) == (nobody(3),)
        assert (component.barrier_ns, component.barrier_epoch) == (0, 3)

    @pytest.mark.proves("E4")
    def test_barrier_stands_one_lease_after_the_last_affirmation(self) -> None:
        """E4: until then the old holder may believe."""
        component = led_by_alice(now_ns=10)
        assert component.leadership is not None
        component.leadership.last_affirmed_ns = 40
        component.end(has_stopped=False, is_told=False)
        assert (component.barrier_ns, component.barrier_epoch) == (140, 3)


class TestPublishNobody:
    @pytest.mark.proves("E9")
    def test_first_word_of_an_ended_epoch(self) -> None:
        """E9: retrievers of an earlier server's time hear that there is no leader."""
        component = component_of()
        component.epoch_max = 7
        assert component.publish_nobody(7) == (nobody(7),)
        assert component.publication == nobody(7).publication

    @pytest.mark.proves("R3")
    def test_says_nothing_twice(self) -> None:
        """R3: only what outranks the last publication is published."""
        component = component_of()
        component.epoch_max = 7
        component.publish_nobody(7)
        assert component.publish_nobody(7) == ()
        component.epoch_max = 8
        assert component.publish_nobody(8) == (nobody(8),)

    @pytest.mark.proves("R3")
    def test_does_not_outrank_a_leadership_to_be_confirmed(self) -> None:
        """R3: what an unconfirmed holder publishes next must still be taken."""
        component = led_by_alice(epoch=3)
        assert component.publish_nobody(4) == ()
        assert component.publish_nobody(3) == ()
        assert component.publish_nobody(2) == (nobody(2),)
        assert component.confirm(confirmation()) == (published(3, "a:1"),)

    @pytest.mark.proves("R3")
    def test_does_not_deny_a_confirmed_leader(self) -> None:
        """R3: while one is confirmed, no retriever is told that there is none."""
        component = led_by_alice()
        component.confirm(confirmation())
        assert component.publish_nobody(3) == ()
        assert component.publication == component.present()

    @pytest.mark.proves("E2")
    def test_names_no_epoch_that_may_not_be_on_record(self) -> None:
        """E2: of a leadership that begins, or has begun in vain, no one has heard."""
        component = led_by_alice(epoch=9)
        assert component.publish_nobody(2) == (nobody(2),)
        component.end(has_stopped=True, is_told=False)
        assert component.publish_nobody(3) == (nobody(3),)


class TestIdle:
    @pytest.mark.proves("E4")
    def test_idle_once_the_barrier_has_passed(self) -> None:
        """E4: what might still be believed in is not forgotten."""
        component = led_by_alice(now_ns=10)
        assert not component.is_idle(1_000)
        component.end(has_stopped=False, is_told=False)
        assert not component.is_idle(1_000)
        component.contenders.clear()
        assert [component.is_idle(now_ns) for now_ns in (109, 110, 111)] == [
            False,
            True,
            True,
        ]


@pytest.mark.proves("E9")
class TestStall:
    @pytest.mark.parametrize(
        ("excused_ns", "deadline_ns"), [(0, 510), (60, 570), (100, 610), (900, 610)]
    )
    def test_holder_has_more_time_to_confirm(
        self, excused_ns: int, deadline_ns: int
    ) -> None:
        """E9: our pause does not count against it; the grace is one lease at most."""
        component = led_by_alice(now_ns=10)
        assert component.leadership is not None
        now = Moment(400, excused_ns)
        assert component.leadership.confirm_deadline_ns(now) == deadline_ns

    @pytest.mark.proves("E4")
    def test_belief_is_not_prolonged(self) -> None:
        """E4, E9: a holder's belief ends however long the core did not run."""
        component = led_by_alice(now_ns=10)
        component.end(has_stopped=False, is_told=False)
        assert component.barrier_ns == 110


@pytest.mark.proves("E9")
class TestClaims:
    def test_are_taken_once_in_the_order_of_the_queue(self) -> None:
        """E9: claims are collected until the decision, and forgotten by it."""
        alice = contender_of("alice", ticket=2, claim=claim_of(5))
        bob = contender_of("bob", ticket=1, claim=claim_of(4))
        carol = contender_of("carol", ticket=0)
        component = component_of(alice, bob, carol)
        assert component.take_claims() == [(bob, claim_of(4)), (alice, claim_of(5))]
        assert component.take_claims() == []

    @pytest.mark.parametrize(
        ("epoch", "is_ended", "is_outranked"),
        [
            (4, False, False),
            (4, True, False),
            (5, False, False),
            (5, True, True),
            (6, False, True),
        ],
    )
    def test_higher_epoch_or_its_own_end_outranks(
        self, epoch: int, is_ended: bool, is_outranked: bool
    ) -> None:
        """E9: reinstated unless somebody knows better."""
        component = component_of()
        component.epoch_max = epoch
        component.is_epoch_max_ended = is_ended
        assert component.is_outranked(claim_of(5)) == is_outranked

    def test_claimant_hears_that_its_leadership_is_over(self) -> None:
        """E9: by the identity and epoch that it claimed."""
        bob = contender_of("bob")
        component = component_of(bob)
        assert component.refuse(bob, claim_of(4)) == revoked("bob", 4)
