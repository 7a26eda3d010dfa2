from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from election.config import ElectionConfig
from election.effects import (
    Affirmation,
    OpenSession,
    RefuseEpoch,
    RefuseSession,
    RegistrationRefusal,
    RevokeLeadership,
    SessionEnd,
)
from election.epochs import EVERY_COMPONENT
from election.events import (
    ConnectionClosed,
    ContenderPreferred,
    ContenderRegistered,
    ContenderWithdrawn,
    ElectionEvent,
    EpochReported,
    HeartbeatReceived,
    LimitsChanged,
    RevocationAcknowledged,
    RevokeRequested,
    SessionCloseRequested,
    SessionExpireRequested,
    TimePassed,
    TransferRequested,
)
from tests.election.stage import (
    INCARNATION,
    JOB,
    LEASE_NS,
    TICK_NS,
    TIMEOUT_NS,
    Stage,
    accepted,
    acknowledged,
    affirmation,
    claim_of,
    closed,
    confirmation_accepted,
    confirmation_refused,
    epoch_of,
    granted,
    identity_of,
    nobody,
    published,
    refused,
    revoked,
)


FIRST, SECOND, THIRD = epoch_of(1), epoch_of(2), epoch_of(3)
# What was granted by the server before this one.
OLD = epoch_of(4, INCARNATION - 1)
OLDER = epoch_of(3, INCARNATION - 1)
# What some server ahead of this one may have granted, and what none can have.
AHEAD = epoch_of(3, INCARNATION + 1)
IMPOSSIBLE = epoch_of(1, INCARNATION + 24 * 60 * 60 + 1)
UNDECIDED_NS = 90
# How Alice may leave.
DEPARTURES: tuple[ElectionEvent, ...] = (
    SessionCloseRequested(session_id="alice"),
    SessionExpireRequested(session_id="alice"),
    ContenderWithdrawn(session_id="alice", component_id=JOB, contender_id="alice/1"),
)


def reported(
    epoch: int, *, is_ended: bool = False, component_id: str = JOB
) -> EpochReported:
    """Return the report of somebody who has seen *epoch*."""
    return EpochReported(component_id=component_id, epoch=epoch, is_ended=is_ended)


def revocation_acknowledged(
    session_id: str,
    epoch: int,
    *,
    component_id: str = JOB,
    contender_id: str | None = None,
) -> RevocationAcknowledged:
    """Return how a contender says that it has stopped."""
    return RevocationAcknowledged(
        session_id=session_id,
        component_id=component_id,
        contender_id=contender_id or f"{session_id}/1",
        epoch=epoch,
    )


def led_by_alice(*others: str) -> Stage:
    """Return a stage where Alice leads, confirmed, and *others* wait, all at 0."""
    stage = Stage()
    stage.gather("alice", *others)
    stage.confirm("alice", FIRST)
    return stage


class TestConfig:
    @pytest.mark.parametrize(
        "name",
        [
            "session_count_max",
            "contender_count_max",
            "contender_count_per_session_max",
            "component_count_max",
        ],
    )
    def test_limits_are_at_least_one(self, name: str) -> None:
        """A core that admits no session is a mistake of its configuration."""
        limits: dict[str, Any] = {"undecided_ns": 0, name: 1}
        ElectionConfig(namespace=UUID(int=1), **limits)
        limits[name] = 0
        with pytest.raises(ValueError, match=name):
            ElectionConfig(namespace=UUID(int=1), **limits)

    def test_undecided_time_is_not_negative(self) -> None:
        """E9: a core is decided at once at the earliest."""
        with pytest.raises(ValueError, match="undecided_ns"):
            ElectionConfig(namespace=UUID(int=1), undecided_ns=-1)


class TestQueries:
    def test_empty_core_knows_nothing_and_waits_for_nothing(self) -> None:
        """Without sessions there is nothing to be called for."""
        core = Stage().core
        assert core.next_deadline_ns() is None
        assert (core.sessions, core.components) == ((), [])
        assert core.session("alice") is None
        assert core.component(JOB) is None
        assert core.publication(JOB) is None
        assert not core.leads("alice", JOB, identity_of(FIRST), FIRST)
        assert (core.is_undecided, core.incarnation) == (False, INCARNATION)
        assert (core.grant_count, core.stall_count) == (0, 0)

    def test_shows_what_there_is(self) -> None:
        """Sessions come oldest first, components by id, with what was published."""
        stage = Stage()
        stage.open("bob", "alice")
        stage.register("bob", component_id="c/z")
        stage.register("alice", component_id="c/a")
        core = stage.core
        assert [session.session_id for session in core.sessions] == ["bob", "alice"]
        assert [component.component_id for component in core.components] == [
            "c/a",
            "c/z",
        ]
        assert core.publication("c/z") is None
        stage.confirm("bob", FIRST, component_id="c/z")
        leader = published(FIRST, component_id="c/z").publication
        assert core.publication("c/z") == leader
        assert core.session("bob") is core.sessions[0]
        assert core.component("c/z") is core.components[1]
        assert core.grant_count == 2

    @pytest.mark.proves("L2")
    def test_leads_only_as_granted(self) -> None:
        """L2: that session, that component, that identity and that epoch, and now."""
        stage = led_by_alice("bob")
        identity = identity_of(FIRST)
        assert stage.core.leads("alice", JOB, identity, FIRST)
        assert not stage.core.leads("bob", JOB, identity, FIRST)
        assert not stage.core.leads("alice", "c/other", identity, FIRST)
        assert not stage.core.leads("alice", JOB, identity_of(SECOND), FIRST)
        assert not stage.core.leads("alice", JOB, identity, SECOND)
        stage.step(RevokeRequested(component_id=JOB))
        assert not stage.core.leads("alice", JOB, identity, FIRST)

    def test_time_does_not_go_back(self) -> None:
        """The shell's clock is monotonic: anything else is a mistake of ours."""
        stage = Stage()
        stage.open("alice")
        with pytest.raises(AssertionError):
            stage.core.step(TimePassed(), now_ns=-1)


class TestSessionCount:
    def test_no_more_than_the_limit(self) -> None:
        """One session too many is refused; one that has ended makes room."""
        stage = Stage(session_count_max=2)
        assert stage.open("alice", "bob", "carol") == (
            OpenSession(session_id="alice"),
            OpenSession(session_id="bob"),
            RefuseSession(session_id="carol"),
        )
        assert stage.core.session("carol") is None
        stage.step(SessionCloseRequested(session_id="alice"))
        assert stage.open("carol") == (OpenSession(session_id="carol"),)

    @pytest.mark.parametrize(
        "event",
        [
            HeartbeatReceived(session_id="alice", number=9, acknowledged=0),
            ConnectionClosed(session_id="alice"),
            SessionCloseRequested(session_id="alice"),
            SessionExpireRequested(session_id="alice"),
        ],
        ids=lambda event: type(event).__name__,
    )
    def test_session_that_is_over_is_nobody(self, event: ElectionEvent) -> None:
        """What still comes in of a session that has ended changes nothing."""
        stage = Stage()
        stage.open("alice")
        stage.step(SessionCloseRequested(session_id="alice"))
        assert stage.step(event) == ()
        assert stage.core.next_deadline_ns() is None


@pytest.mark.proves("E1")
class TestE1OneLeaderInOrder:
    def test_first_contender_is_granted_the_others_wait(self) -> None:
        """E1: one leader per component; tickets say in which order they queue."""
        stage = Stage()
        stage.open("alice", "bob")
        assert stage.register("alice") == (
            accepted("alice", epoch_of(1)),
            *granted("alice", FIRST),
        )
        assert stage.register("bob") == (accepted("bob", epoch_of(2)),)

    def test_next_in_order_is_granted(self) -> None:
        """E1: the order of registration, not of sessions, ids or heartbeats."""
        stage = Stage()
        stage.open("alice", "bob", "carol")
        stage.register("carol")
        stage.register("bob")
        stage.register("alice")
        stage.beat("alice")
        assert stage.withdraw("carol") == granted("bob", SECOND)
        assert stage.withdraw("bob") == granted("alice", THIRD, heartbeat_number=1)

    @pytest.mark.parametrize(
        ("now_ns", "successor"),
        [(LEASE_NS - 1, "bob"), (LEASE_NS, "carol"), (LEASE_NS + 1, "carol")],
    )
    def test_silent_contender_is_passed_over(self, now_ns: int, successor: str) -> None:
        """E1: heard from within its lease, which is over at its very end."""
        stage = led_by_alice("bob", "carol")
        stage.pass_until(LEASE_NS - 1)
        stage.beat("carol")
        stage.pass_until(now_ns)
        heartbeat_number = 1 if successor == "carol" else 0
        assert stage.withdraw("alice") == (
            nobody(FIRST),
            *granted(successor, SECOND, heartbeat_number=heartbeat_number),
        )

    def test_silent_contender_keeps_its_place(self) -> None:
        """E1: passed over once, it is still before those who came later."""
        stage = led_by_alice("bob", "carol", "dave")
        stage.pass_until(LEASE_NS, heard=("carol", "dave"))
        stage.withdraw("alice")
        stage.beat("bob")
        stage.beat("dave")
        assert stage.withdraw("carol") == granted("bob", THIRD, heartbeat_number=1)

    def test_first_to_be_heard_again_is_granted(self) -> None:
        """E1: where all are silent none leads, until a heartbeat comes."""
        stage = led_by_alice("bob", "carol")
        stage.pass_until(LEASE_NS)
        assert stage.withdraw("alice") == (nobody(FIRST),)
        assert stage.beat("carol") == (
            acknowledged("carol", 1),
            *granted("carol", SECOND, heartbeat_number=1),
        )

    def test_two_contenders_of_one_session_lead_in_turn(self) -> None:
        """E1: a session may contend twice; the leader is still one."""
        stage = Stage()
        stage.open("alice")
        stage.register("alice", 1)
        assert stage.register("alice", 2) == (accepted("alice", epoch_of(2), 2),)
        assert stage.beat("alice") == (
            acknowledged("alice", 1, affirmation("alice", FIRST, 1)),
        )
        assert stage.withdraw("alice", 1) == granted(
            "alice", SECOND, 2, heartbeat_number=1
        )

    @pytest.mark.proves("E5")
    def test_two_contenders_of_one_session_leave_together(self) -> None:
        """E1, E5: none of them is granted in passing as their session ends."""
        stage = Stage()
        stage.open("alice", "bob")
        stage.register("alice", 1)
        stage.register("alice", 2)
        stage.register("bob")
        stage.confirm("alice", FIRST)
        assert stage.step(SessionCloseRequested(session_id="alice")) == (
            nobody(FIRST),
            closed("alice", SessionEnd.CLOSED),
            *granted("bob", SECOND),
        )

    def test_components_do_not_concern_each_other(self) -> None:
        """E1: a session may lead one component and wait for another."""
        stage = Stage()
        stage.open("alice", "bob")
        stage.register("alice")
        stage.register("bob", component_id="c/other")
        stage.register("bob")
        stage.register("alice", component_id="c/other")
        assert stage.withdraw("alice") == granted("bob", THIRD)
        assert stage.beat("bob") == (
            acknowledged(
                "bob",
                1,
                affirmation("bob", SECOND, component_id="c/other"),
                affirmation("bob", THIRD),
            ),
        )

    def test_preferred_contender_goes_first(self) -> None:
        """E1: a test may say who is next; the leader is revoked and keeps its place."""
        stage = led_by_alice("bob", "carol")
        event = ContenderPreferred(component_id=JOB, contender_id="carol/1")
        assert stage.step(event) == (nobody(FIRST), revoked("alice", FIRST))
        assert stage.step(revocation_acknowledged("alice", FIRST)) == granted(
            "carol", SECOND
        )
        assert stage.withdraw("carol") == granted("alice", THIRD)

    @pytest.mark.proves("E4")
    def test_preferred_contender_goes_first_where_nobody_leads(self) -> None:
        """E1, E4: preference does not lift the barrier."""
        stage = led_by_alice("bob", "carol")
        stage.step(RevokeRequested(component_id=JOB))
        event = ContenderPreferred(component_id=JOB, contender_id="carol/1")
        assert stage.step(event) == ()
        assert stage.step(revocation_acknowledged("alice", FIRST)) == granted(
            "carol", SECOND
        )

    @pytest.mark.parametrize(
        ("component_id", "contender_id"),
        [("c/other", "bob/1"), (JOB, "carol/1"), (JOB, "alice/1")],
        ids=["unknown component", "unknown contender", "the leader"],
    )
    def test_preference_of_nobody_changes_nothing(
        self, component_id: str, contender_id: str
    ) -> None:
        """E1: neither what is not there, nor who leads already."""
        stage = led_by_alice("bob")
        event = ContenderPreferred(component_id=component_id, contender_id=contender_id)
        assert stage.step(event) == ()


@pytest.mark.proves("E1")
class TestLeadershipIsHandedOver:
    """N6: an operator names who leads next."""

    @pytest.mark.proves("E4")
    def test_the_one_named_leads_next_and_the_holder_queues_last(self) -> None:
        """E1, E4: the holder stops first; then carol, before bob; then bob, alice."""
        stage = led_by_alice("bob", "carol")
        event = TransferRequested(component_id=JOB, contender_id="carol/1")
        assert stage.step(event) == (nobody(FIRST), revoked("alice", FIRST))
        assert stage.step(revocation_acknowledged("alice", FIRST)) == granted(
            "carol", SECOND
        )
        assert stage.withdraw("carol") == granted("bob", THIRD)

    @pytest.mark.proves("E4")
    def test_where_nobody_leads_it_goes_first(self) -> None:
        """E1, E4: the barrier stands; a revocation and a transfer go together."""
        stage = led_by_alice("bob", "carol")
        stage.step(RevokeRequested(component_id=JOB))
        event = TransferRequested(component_id=JOB, contender_id="carol/1")
        assert stage.step(event) == ()
        assert stage.step(revocation_acknowledged("alice", FIRST)) == granted(
            "carol", SECOND
        )
        assert stage.withdraw("carol") == granted("bob", THIRD)

    def test_the_last_of_two_counts(self) -> None:
        """E1: who is named later goes before who was named first."""
        stage = led_by_alice("bob", "carol")
        stage.step(TransferRequested(component_id=JOB, contender_id="bob/1"))
        stage.step(TransferRequested(component_id=JOB, contender_id="carol/1"))
        stage.step(TransferRequested(component_id=JOB, contender_id="carol/1"))
        assert stage.step(revocation_acknowledged("alice", FIRST)) == granted(
            "carol", SECOND
        )
        assert stage.withdraw("carol") == granted("bob", THIRD)

    def test_one_that_falls_silent_is_passed_over_and_keeps_its_place(self) -> None:
        """E1: a leader is better than none."""
        stage = led_by_alice("bob", "carol")
        stage.step(TransferRequested(component_id=JOB, contender_id="carol/1"))
        effects = stage.pass_until(LEASE_NS, heard=("bob",))
        assert effects == granted(
            "bob", SECOND, heartbeat_number=stage.heartbeat_number("bob") - 1
        )
        stage.beat("carol")
        assert stage.withdraw("bob") == granted("carol", THIRD, heartbeat_number=1)

    @pytest.mark.parametrize(
        ("component_id", "contender_id"),
        [("c/other", "bob/1"), (JOB, "carol/1"), (JOB, "alice/1")],
        ids=["unknown component", "unknown contender", "the leader"],
    )
    def test_to_nobody_changes_nothing(
        self, component_id: str, contender_id: str
    ) -> None:
        """E1: neither what is not there, nor who leads already."""
        stage = led_by_alice("bob")
        event = TransferRequested(component_id=component_id, contender_id=contender_id)
        assert stage.step(event) == ()


@pytest.mark.proves("E2")
class TestE2EpochsRise:
    def test_across_contenders_and_components(self) -> None:
        """E2: each grant has a fresh identity and a higher epoch, recorded first."""
        stage = Stage()
        stage.open("alice")
        assert stage.register("alice")[1:] == granted("alice", FIRST)
        other = granted("alice", SECOND, component_id="c/other")
        assert stage.register("alice", component_id="c/other")[1:] == other
        stage.withdraw("alice")
        assert stage.register("alice")[1:] == granted("alice", THIRD)
        identities = {
            identity_of(FIRST),
            identity_of(SECOND, "c/other"),
            identity_of(THIRD),
        }
        assert len(identities) == 3

    @pytest.mark.parametrize(
        ("recorded", "first"),
        [(OLD, FIRST), (AHEAD, epoch_of(1, INCARNATION + 2))],
        ids=["before us", "ahead of us"],
    )
    def test_above_what_is_on_record(self, recorded: int, first: int) -> None:
        """E2: across restarts, even if the clock has gone back meanwhile."""
        stage = Stage(recorded_epochs={"c/other": recorded})
        stage.open("alice")
        assert stage.register("alice")[1:] == granted("alice", first)

    def test_above_what_is_reported(self) -> None:
        """E2: the highest reported one, of whatever component."""
        stage = Stage()
        stage.open("alice")
        report = reported(AHEAD, component_id="c/other")
        assert stage.step(report) == (nobody(AHEAD, component_id="c/other"),)
        incarnation = INCARNATION + 2
        assert stage.register("alice") == (
            accepted("alice", epoch_of(1, incarnation)),
            *granted("alice", epoch_of(1, incarnation)),
        )
        assert stage.core.incarnation == incarnation

    def test_impossible_report_is_refused(self) -> None:
        """E2: more than a day ahead no clock can be: it raises nothing."""
        stage = led_by_alice()
        assert stage.step(reported(IMPOSSIBLE)) == (
            RefuseEpoch(component_id=JOB, epoch=IMPOSSIBLE),
        )
        assert stage.core.incarnation == INCARNATION
        assert stage.core.leads("alice", JOB, identity_of(FIRST), FIRST)


@pytest.mark.proves("E3")
class TestE3GrantConfirmPublish:
    def test_confirmation_publishes(self) -> None:
        """E3: no retriever hears of a leader before it has confirmed."""
        stage = Stage()
        stage.gather("alice")
        assert stage.core.publication(JOB) is None
        assert stage.confirm("alice", FIRST) == (
            published(FIRST),
            confirmation_accepted("alice"),
        )

    def test_confirming_again_updates_the_address(self) -> None:
        """E3: under the same epoch; a repetition is accepted and changes nothing."""
        stage = led_by_alice()
        again = stage.confirm("alice", FIRST, confirm_count=2, address="h:2")
        assert again == (
            published(FIRST, confirm_count=2, address="h:2"),
            confirmation_accepted("alice"),
        )
        assert stage.confirm("alice", FIRST) == (confirmation_accepted("alice"),)

    def test_stale_confirmation_is_refused(self) -> None:
        """E3: it changes nothing for anybody."""
        stage = led_by_alice("bob")
        assert stage.confirm("bob", FIRST) == (confirmation_refused("bob"),)
        stage.withdraw("alice")
        assert stage.confirm("alice", FIRST) == (confirmation_refused("alice"),)
        assert stage.core.publication(JOB) == nobody(FIRST).publication

    def test_confirmation_of_nothing_is_refused(self) -> None:
        """E3: of a component that has no contender, by none."""
        assert Stage().confirm("alice", FIRST) == (confirmation_refused("alice"),)

    @pytest.mark.parametrize("late_ns", [0, 1])
    def test_unconfirmed_in_time_is_revoked_and_queues_last(self, late_ns: int) -> None:
        """E3: at the very deadline, not before; the next waits for the barrier."""
        stage = Stage()
        stage.gather("alice", "bob")
        everybody = ("alice", "bob")
        assert stage.pass_until(499, heard=everybody) == ()
        stage.now_ns = 500 + late_ns
        assert stage.step(TimePassed()) == (revoked("alice", FIRST),)
        # Alice was affirmed last at 499.
        assert stage.pass_until(598, heard=everybody) == ()
        stage.now_ns = 599
        assert stage.step(TimePassed()) == granted(
            "bob", SECOND, heartbeat_number=stage.heartbeat_number("bob")
        )
        assert [
            contender.contender_id for contender in stage.core.components[0].in_order()
        ] == ["bob/1", "alice/1"]

    def test_confirmed_just_in_time_stays(self) -> None:
        """E3: one before the deadline is in time, and the deadline is gone with it."""
        stage = Stage()
        stage.gather("alice")
        stage.pass_until(499, heard=("alice",))
        stage.confirm("alice", FIRST)
        assert stage.pass_until(700, heard=("alice",)) == ()
        assert stage.core.leads("alice", JOB, identity_of(FIRST), FIRST)

    @pytest.mark.parametrize("late_ns", [0, 1])
    def test_silent_and_unconfirmed_passes_on_after_a_lease(self, late_ns: int) -> None:
        """E3: it is revoked, keeps its place, and the next is granted at once."""
        stage = Stage()
        stage.gather("alice", "bob")
        assert stage.pass_until(LEASE_NS - 1, heard=("bob",)) == ()
        stage.now_ns = LEASE_NS + late_ns
        assert stage.step(TimePassed()) == (
            revoked("alice", FIRST),
            *granted("bob", SECOND, heartbeat_number=stage.heartbeat_number("bob")),
        )
        stage.beat("alice")
        assert stage.withdraw("bob") == granted("alice", THIRD, heartbeat_number=1)

    @pytest.mark.proves("E5")
    def test_silent_but_confirmed_stays_until_its_session_ends(self) -> None:
        """E3, E5: a confirmed leader is not passed over for a lease of silence."""
        stage = led_by_alice("bob")
        assert stage.pass_until(TIMEOUT_NS - 1, heard=("bob",)) == ()


@pytest.mark.proves("E4")
class TestE4Affirmation:
    def test_answer_affirms_every_leadership_held(self) -> None:
        """E4: each that the session holds, in the order of registration, no other's."""
        stage = Stage()
        stage.open("alice", "bob")
        for component_id in ("c/z", "c/a"):
            stage.register("alice", component_id=component_id)
        stage.register("bob", component_id="c/z")
        assert stage.beat("alice") == (
            acknowledged(
                "alice",
                1,
                affirmation("alice", FIRST, component_id="c/z"),
                affirmation("alice", SECOND, component_id="c/a"),
            ),
        )
        assert stage.beat("bob") == (acknowledged("bob", 1),)

    def test_ended_leadership_is_affirmed_no_more(self) -> None:
        """E4: from the decision to end it on, while its holder may still believe."""
        stage = led_by_alice()
        stage.step(RevokeRequested(component_id=JOB))
        assert stage.beat("alice") == (acknowledged("alice", 1),)

    @pytest.mark.proves("E5")
    def test_repeated_heartbeat_is_not_answered(self) -> None:
        """E4, E5: neither the same number nor one before it."""
        stage = led_by_alice()
        stage.beat("alice")
        again = HeartbeatReceived(session_id="alice", number=1, acknowledged=0)
        assert stage.step(again) == ()

    @pytest.mark.parametrize("late_ns", [0, 1])
    def test_next_grant_waits_for_a_lease(self, late_ns: int) -> None:
        """E4: one lease after the last affirmation: at that moment, not before."""
        stage = led_by_alice("bob")
        stage.pass_until(40, heard=("alice", "bob"))
        assert stage.step(RevokeRequested(component_id=JOB)) == (
            nobody(FIRST),
            revoked("alice", FIRST),
        )
        assert stage.pass_until(139, heard=("alice", "bob")) == ()
        stage.now_ns = 140 + late_ns
        assert stage.step(TimePassed()) == granted(
            "bob", SECOND, heartbeat_number=stage.heartbeat_number("bob")
        )

    def test_deadlines_lead_straight_to_the_grant(self) -> None:
        """E4: the core asks to be called when the barrier falls, at the latest."""
        stage = led_by_alice("bob")
        stage.step(RevokeRequested(component_id=JOB))
        stage.pass_until(90)
        stage.beat("bob")
        assert stage.core.next_deadline_ns() == LEASE_NS
        assert stage.jump() == granted("bob", SECOND, heartbeat_number=1)

    def test_acknowledged_revocation_lets_the_barrier_fall(self) -> None:
        """E4: a holder that says it has stopped need not be waited for."""
        stage = led_by_alice("bob")
        stage.step(RevokeRequested(component_id=JOB))
        event = revocation_acknowledged("alice", FIRST)
        assert stage.step(event) == granted("bob", SECOND)
        assert stage.step(event) == ()

    @pytest.mark.parametrize(
        "event",
        [
            revocation_acknowledged("alice", SECOND),
            revocation_acknowledged("bob", FIRST),
            revocation_acknowledged("bob", FIRST, contender_id="alice/1"),
            revocation_acknowledged("alice", FIRST, contender_id="alice/2"),
            revocation_acknowledged("alice", FIRST, component_id="c/other"),
        ],
        ids=[
            "another epoch",
            "another contender",
            "another session",
            "no contender",
            "no component",
        ],
    )
    def test_other_acknowledgements_leave_the_barrier(
        self, event: RevocationAcknowledged
    ) -> None:
        """E4: only the holder's word on that very leadership counts."""
        stage = led_by_alice("bob")
        stage.step(RevokeRequested(component_id=JOB))
        assert stage.step(event) == ()

    def test_acknowledgement_while_leading_ends_nothing(self) -> None:
        """E4: what was not revoked cannot be acknowledged."""
        stage = led_by_alice("bob")
        assert stage.step(revocation_acknowledged("alice", FIRST)) == ()
        assert stage.core.leads("alice", JOB, identity_of(FIRST), FIRST)

    def test_revoked_leader_queues_last(self) -> None:
        """E4: an operator revokes so that another leads; alone, it leads again."""
        stage = led_by_alice("bob")
        stage.step(RevokeRequested(component_id=JOB))
        stage.step(revocation_acknowledged("alice", FIRST))
        assert stage.withdraw("bob") == granted("alice", THIRD)

    def test_nobody_to_revoke(self) -> None:
        """E4: revoking where there is no leader changes nothing."""
        stage = led_by_alice()
        stage.step(RevokeRequested(component_id=JOB))
        assert stage.step(RevokeRequested(component_id=JOB)) == ()
        assert stage.step(RevokeRequested(component_id="c/other")) == ()

    def test_newcomer_waits_for_the_barrier_of_one_who_is_gone(self) -> None:
        """E4: an expired holder may believe, though none waits for its place yet."""
        stage = led_by_alice()
        expire = SessionExpireRequested(session_id="alice")
        assert stage.step(expire) == (
            nobody(FIRST),
            closed("alice", SessionEnd.EXPIRED_BY_OPERATOR),
        )
        stage.pass_until(50)
        stage.open("bob")
        assert stage.register("bob") == (accepted("bob", epoch_of(2)),)
        assert stage.pass_until(LEASE_NS - 1) == ()
        assert stage.jump() == granted("bob", SECOND)

    def test_longer_lease_is_waited_for(self) -> None:
        """E4: the old holder's lease counts, not its successor's."""
        stage = Stage()
        stage.open("alice", lease_ns=400)
        stage.open("bob")
        stage.register("alice")
        stage.register("bob")
        stage.step(RevokeRequested(component_id=JOB))
        assert stage.pass_until(399, heard=("bob",)) == ()
        effects = stage.pass_until(400)
        assert [type(effect).__name__ for effect in effects] == [
            "RecordEpoch",
            "GrantLeadership",
        ]


@pytest.mark.proves("E5")
class TestE5SessionEnds:
    @pytest.mark.proves("E4")
    def test_closed_at_once(self) -> None:
        """E5: a clean close is an end, and there is nothing to wait for (E4)."""
        stage = led_by_alice("bob")
        assert stage.step(SessionCloseRequested(session_id="alice")) == (
            nobody(FIRST),
            closed("alice", SessionEnd.CLOSED),
            *granted("bob", SECOND),
        )

    @pytest.mark.parametrize("late_ns", [0, 1])
    def test_silence_ends_it_at_the_timeout(self, late_ns: int) -> None:
        """E5: at the very deadline; retrievers hear of it before the next grant."""
        stage = led_by_alice("bob")
        assert stage.pass_until(TIMEOUT_NS - 1, heard=("bob",)) == ()
        stage.now_ns = TIMEOUT_NS + late_ns
        assert stage.step(TimePassed()) == (
            nobody(FIRST),
            closed("alice", SessionEnd.SILENT),
            *granted("bob", SECOND, heartbeat_number=stage.heartbeat_number("bob")),
        )

    def test_heartbeat_at_the_deadline_is_too_late(self) -> None:
        """E5: time comes first: what has ended is not revived by the same step."""
        stage = Stage()
        stage.open("alice", "bob")
        stage.pass_until(TIMEOUT_NS - 1)
        stage.beat("bob")
        stage.now_ns = TIMEOUT_NS
        assert stage.beat("alice") == (closed("alice", SessionEnd.SILENT),)
        assert stage.beat("bob") == (acknowledged("bob", 2),)

    def test_heartbeat_before_the_deadline_is_in_time(self) -> None:
        """E5: one before, and the session has another timeout."""
        stage = Stage()
        stage.open("alice")
        stage.pass_until(TIMEOUT_NS - 1)
        stage.beat("alice")
        assert stage.pass_until(2 * TIMEOUT_NS - 2) == ()
        assert stage.jump() == (closed("alice", SessionEnd.SILENT),)
        assert stage.core.next_deadline_ns() is None

    @pytest.mark.parametrize("late_ns", [0, 1])
    def test_closed_connection_ends_it_after_a_lease(self, late_ns: int) -> None:
        """E5: the process died: failover within one lease of the evidence."""
        stage = led_by_alice("bob")
        stage.pass_until(40, heard=("alice", "bob"))
        assert stage.step(ConnectionClosed(session_id="alice")) == ()
        assert stage.pass_until(139, heard=("bob",)) == ()
        stage.now_ns = 140 + late_ns
        assert stage.step(TimePassed()) == (
            nobody(FIRST),
            closed("alice", SessionEnd.CONNECTION_CLOSED),
            *granted("bob", SECOND, heartbeat_number=stage.heartbeat_number("bob")),
        )

    def test_evidence_counts_from_the_first(self) -> None:
        """E5: hearing of the same end again does not put it off."""
        stage = Stage()
        stage.open("alice")
        stage.step(ConnectionClosed(session_id="alice"))
        stage.pass_until(50)
        stage.step(ConnectionClosed(session_id="alice"))
        assert stage.pass_until(99) == ()
        assert stage.jump() == (closed("alice", SessionEnd.CONNECTION_CLOSED),)

    def test_newer_heartbeat_refutes_the_evidence(self) -> None:
        """E5: over another connection the client is there: nothing has happened."""
        stage = led_by_alice("bob")
        stage.step(ConnectionClosed(session_id="alice"))
        stage.pass_until(99, heard=("bob",))
        assert stage.beat("alice") == (
            acknowledged("alice", 1, affirmation("alice", FIRST)),
        )
        assert stage.pass_until(99 + TIMEOUT_NS - 1, heard=("bob",)) == ()

    def test_last_heartbeat_of_the_dead_refutes_nothing(self) -> None:
        """E5: read after the end of its connection, sent before it."""
        stage = Stage()
        stage.open("alice")
        stage.step(ConnectionClosed(session_id="alice"))
        stage.pass_until(50)
        assert stage.beat("alice", is_late=True) == (acknowledged("alice", 1),)
        assert stage.pass_until(99) == ()
        assert stage.jump() == (closed("alice", SessionEnd.CONNECTION_CLOSED),)

    def test_heartbeat_that_names_no_recent_answer_keeps_nothing_alive(self) -> None:
        """E5: it is answered, for its client is there, and the session ends anyway."""
        stage = Stage()
        stage.open("alice")
        stage.pass_until(500)
        old = HeartbeatReceived(session_id="alice", number=1, acknowledged=9)
        assert stage.step(old) == (acknowledged("alice", 1),)
        assert stage.pass_until(TIMEOUT_NS - 1) == ()
        assert stage.jump() == (closed("alice", SessionEnd.SILENT),)

    def test_nobody_is_granted_while_its_connection_is_closed(self) -> None:
        """E5: it may be dead: the next is granted, and it keeps its place."""
        stage = led_by_alice("bob", "carol")
        stage.step(ConnectionClosed(session_id="bob"))
        assert stage.withdraw("alice") == (nobody(FIRST), *granted("carol", SECOND))
        stage.beat("bob")
        assert stage.withdraw("carol") == granted("bob", THIRD, heartbeat_number=1)

    @pytest.mark.proves("E1")
    def test_successor_that_expires_in_the_same_instant_is_not_granted(self) -> None:
        """E1, E5: the dead are not granted on their way out; the living are."""
        stage = led_by_alice("bob", "carol")
        stage.pass_until(TIMEOUT_NS - 1, heard=("carol",))
        assert stage.jump() == (
            nobody(FIRST),
            closed("alice", SessionEnd.SILENT),
            *granted("carol", SECOND, heartbeat_number=stage.heartbeat_number("carol")),
            closed("bob", SessionEnd.SILENT),
        )

    def test_successor_that_was_heard_and_expires_is_not_granted(self) -> None:
        """E5: its last heartbeat was read after its end, within its lease."""
        stage = led_by_alice("bob")
        stage.pass_until(50)
        stage.step(ConnectionClosed(session_id="alice"))
        stage.step(ConnectionClosed(session_id="bob"))
        stage.pass_until(100)
        stage.beat("bob", is_late=True)
        assert stage.pass_until(149) == ()
        assert stage.jump() == (
            nobody(FIRST),
            closed("alice", SessionEnd.CONNECTION_CLOSED),
            closed("bob", SessionEnd.CONNECTION_CLOSED),
        )

    @pytest.mark.proves("E4")
    def test_operator_ends_a_session(self) -> None:
        """E4, E5: its holder was not asked, so its successor waits for a lease."""
        stage = led_by_alice("bob")
        assert stage.step(SessionExpireRequested(session_id="alice")) == (
            nobody(FIRST),
            closed("alice", SessionEnd.EXPIRED_BY_OPERATOR),
        )
        stage.pass_until(LEASE_NS - 1)
        stage.beat("bob")
        assert stage.jump() == granted("bob", SECOND, heartbeat_number=1)


@pytest.mark.proves("E7")
class TestE7Withdrawal:
    def test_leader_withdraws_and_the_next_is_granted(self) -> None:
        """E7: it has stopped before it says so: none waits for a lease."""
        stage = led_by_alice("bob")
        assert stage.withdraw("alice") == (nobody(FIRST), *granted("bob", SECOND))

    @pytest.mark.proves("E3")
    def test_unconfirmed_leader_withdraws_in_silence(self) -> None:
        """E3, E7: retrievers never heard of it."""
        stage = Stage()
        stage.gather("alice", "bob")
        assert stage.withdraw("alice") == granted("bob", SECOND)

    def test_waiting_contender_withdraws_unnoticed(self) -> None:
        """E7: it changes nothing for the others."""
        stage = led_by_alice("bob", "carol")
        assert stage.withdraw("bob") == ()
        assert stage.withdraw("alice") == (nobody(FIRST), *granted("carol", SECOND))

    def test_withdrawal_is_idempotent(self) -> None:
        """E7: what is not there, or is another's, cannot be withdrawn."""
        stage = led_by_alice("bob")
        stage.withdraw("bob")
        assert stage.withdraw("bob") == ()
        assert stage.withdraw("bob", component_id="c/other") == ()
        another = ContenderWithdrawn(
            session_id="bob", component_id=JOB, contender_id="alice/1"
        )
        assert stage.step(another) == ()
        assert stage.core.leads("alice", JOB, identity_of(FIRST), FIRST)

    @pytest.mark.proves("E4")
    def test_barrier_stands_though_its_holder_is_revoked_and_withdraws(self) -> None:
        """E4, E7: withdrawing says nothing of a leadership that was ended before."""
        stage = led_by_alice("bob")
        stage.step(RevokeRequested(component_id=JOB))
        assert stage.withdraw("alice") == ()
        assert stage.pass_until(LEASE_NS - 1, heard=("bob",)) == ()
        assert len(stage.jump()) == 2


class TestE8Registration:
    @pytest.mark.proves("E8")
    def test_repetition_makes_no_second_entry(self) -> None:
        """E8: the same answer, and the same place."""
        stage = Stage()
        stage.open("alice", "bob")
        stage.register("alice")
        stage.register("bob")
        assert stage.register("alice") == (accepted("alice", epoch_of(1)),)
        assert stage.register("bob") == (accepted("bob", epoch_of(2)),)
        assert len(stage.core.components[0].contenders) == 2

    @pytest.mark.proves("E8")
    def test_unknown_session_is_told_so(self) -> None:
        """E8: a client whose session has ended must open another, and hears of it."""
        stage = Stage()
        unknown = refused("alice", RegistrationRefusal.UNKNOWN_SESSION)
        assert stage.register("alice") == (unknown,)
        stage.open("bob")
        stage.register("bob")
        assert stage.register("alice") == (unknown,)
        assert len(stage.core.components) == 1

    @pytest.mark.proves("E8")
    def test_id_of_another_session_is_refused(self) -> None:
        """E8: none enters, or leads, under another's id."""
        stage = led_by_alice()
        stage.open("bob")
        event = ContenderRegistered(
            session_id="bob",
            component_id=JOB,
            contender_id="alice/1",
            confirm_timeout_ns=500,
        )
        refusal = refused("bob", RegistrationRefusal.TAKEN_BY_ANOTHER_SESSION)
        (effect,) = stage.step(event)
        assert type(effect) is type(refusal)
        assert effect.session_id == "bob"
        assert effect.contender_id == "alice/1"
        assert effect.reason is refusal.reason

    @pytest.mark.proves("E8")
    def test_new_entry_queues_last(self) -> None:
        """E8: a ticket of old gives none a place before those who are there."""
        stage = led_by_alice("bob")
        stage.withdraw("alice")
        assert stage.register("alice", ticket=1) == (accepted("alice", epoch_of(3)),)

    @pytest.mark.proves("N3")
    def test_component_has_so_many_contenders(self) -> None:
        """N3: one too many is told; who is in may say so again; leaving makes room."""
        stage = Stage(contender_count_max=2)
        stage.gather("alice", "bob")
        stage.open("carol")
        assert stage.register("carol") == (
            refused("carol", RegistrationRefusal.TOO_MANY_CONTENDERS),
        )
        assert stage.register("bob") == (accepted("bob", epoch_of(2)),)
        stage.withdraw("bob")
        assert stage.register("carol") == (accepted("carol", epoch_of(3)),)

    @pytest.mark.proves("N3")
    def test_limits_may_change(self) -> None:
        """N3: more come in once more may; fewer end nothing, and keep others out."""

        def limits(count: int) -> LimitsChanged:
            return LimitsChanged(
                session_count_max=count,
                contender_count_max=count,
                contender_count_per_session_max=count,
                component_count_max=count,
            )

        stage = Stage(session_count_max=2, contender_count_max=1)
        stage.gather("alice")
        stage.open("bob")
        assert stage.register("bob") == (
            refused("bob", RegistrationRefusal.TOO_MANY_CONTENDERS),
        )
        assert stage.step(limits(2)) == ()
        assert stage.register("bob") == (accepted("bob", epoch_of(2)),)
        assert stage.step(limits(1)) == ()
        assert stage.register("bob") == (accepted("bob", epoch_of(2)),)
        assert stage.open("carol") == (RefuseSession(session_id="carol"),)
        assert stage.core.session("alice") is not None

    @pytest.mark.proves("N3")
    def test_session_has_so_many_contenders(self) -> None:
        """N3: of all components together; the answer to its heartbeats is bounded."""
        stage = Stage(contender_count_per_session_max=2)
        stage.gather("alice")
        stage.register("alice", component_id="c/other")
        assert stage.register("alice", 2) == (
            refused("alice", RegistrationRefusal.TOO_MANY_CONTENDERS, 2),
        )
        assert stage.register("alice", component_id="c/third") == (
            refused(
                "alice",
                RegistrationRefusal.TOO_MANY_CONTENDERS,
                component_id="c/third",
            ),
        )
        assert stage.register("alice") == (accepted("alice", epoch_of(1)),)

    @pytest.mark.proves("N3")
    def test_there_are_so_many_components(self) -> None:
        """N3, E4: one is forgotten once none contends and none may believe."""
        stage = Stage(component_count_max=2)
        stage.gather("alice")
        stage.open("bob")
        stage.register("bob", component_id="c/other")
        refusal = refused(
            "bob", RegistrationRefusal.TOO_MANY_COMPONENTS, component_id="c/third"
        )
        assert stage.register("bob", component_id="c/third") == (refusal,)
        stage.step(SessionExpireRequested(session_id="alice"))
        stage.pass_until(LEASE_NS - 1)
        assert stage.register("bob", component_id="c/third") == (refusal,)
        stage.pass_until(LEASE_NS)
        stage.beat("bob")
        assert stage.register("bob", component_id="c/third") == (
            accepted("bob", epoch_of(3), component_id="c/third"),
            *granted("bob", epoch_of(4), heartbeat_number=1, component_id="c/third"),
        )
        assert stage.core.component(JOB) is None


@pytest.mark.proves("E9")
class TestE9Stall:
    @pytest.mark.parametrize(
        ("stalled_ns", "stall_count", "excused_ns"),
        [
            (2 * TICK_NS - 1, 0, 0),
            (2 * TICK_NS, 0, 0),
            (2 * TICK_NS + 1, 1, TICK_NS + 1),
            (TICK_NS + LEASE_NS + 40, 1, LEASE_NS + 40),
        ],
    )
    def test_late_by_more_than_a_tick_is_excused(
        self, stalled_ns: int, stall_count: int, excused_ns: int
    ) -> None:
        """E9: deadlines move by the lateness and as much again, a lease at most."""
        stage = Stage()
        stage.open("alice")
        assert stage.stall_until(stalled_ns) == ()
        assert (stage.core.stall_count, stage.core.excused_ns) == (
            stall_count,
            excused_ns,
        )
        ends_ns = TIMEOUT_NS + excused_ns + min(excused_ns, LEASE_NS)
        assert stage.pass_until(ends_ns - 1) == ()
        assert stage.stall_until(ends_ns) == (closed("alice", SessionEnd.SILENT),)

    def test_lease_of_one_client_changes_nothing_for_another(self) -> None:
        """E9: neither what is taken for a stall, nor what one gives to anybody else."""
        ends_ns = []
        for others in ((), (TICK_NS // 2,), (40 * LEASE_NS,)):
            stage = Stage()
            stage.open("alice")
            for number, lease_ns in enumerate(others):
                stage.open(f"other {number}", lease_ns=lease_ns)
            stage.stall_until(2 * TICK_NS)  # no stall, but by the tick of the shortest
            stage.stall_until(stage.now_ns + 5 * LEASE_NS)
            assert stage.core.stall_count == 1
            session = stage.core.session("alice")
            while session is not None:
                stage.jump()
                session = stage.core.session("alice")
            ends_ns.append(stage.now_ns)
        assert ends_ns == [TIMEOUT_NS + 480 + LEASE_NS] * 3

    def test_long_pause_costs_nobody_a_leadership(self) -> None:
        """E9: after hours the leader leads, and has a lease to be heard in."""
        stage = led_by_alice("bob")
        assert stage.stall_until(5_000) == ()
        assert stage.beat("alice") == (
            acknowledged("alice", 1, affirmation("alice", FIRST)),
        )
        assert stage.core.stall_count == 1

    def test_closed_connection_is_given_time_too(self) -> None:
        """E9: the heartbeat that refutes it may be waiting unread."""
        stage = Stage()
        stage.open("alice")
        stage.step(ConnectionClosed(session_id="alice"))
        stage.stall_until(41)
        ends_ns = LEASE_NS + 21 + 21
        assert stage.pass_until(ends_ns - 1) == ()
        assert stage.jump() == (closed("alice", SessionEnd.CONNECTION_CLOSED),)

    def test_unconfirmed_leader_is_given_time_too(self) -> None:
        """E9: its confirmation may be waiting unread."""
        stage = Stage()
        stage.gather("alice")
        stage.stall_until(41)
        ends_ns = 500 + 21 + 21
        assert stage.pass_until(ends_ns - 1, heard=("alice",)) == ()
        assert stage.pass_until(ends_ns) == (revoked("alice", FIRST),)

    @pytest.mark.proves("E1")
    def test_silent_and_unconfirmed_leader_is_given_time_too(self) -> None:
        """E1, E9: its heartbeat may be waiting unread."""
        stage = Stage()
        stage.gather("alice")
        stage.stall_until(41)
        ends_ns = LEASE_NS + 21 + 21
        assert stage.pass_until(ends_ns - 1) == ()
        assert stage.pass_until(ends_ns) == (revoked("alice", FIRST),)

    @pytest.mark.proves("E4")
    def test_barrier_is_not_put_off(self) -> None:
        """E4, E9: a holder's belief ends however long the core did not run."""
        stage = led_by_alice("bob")
        stage.step(RevokeRequested(component_id=JOB))
        assert stage.stall_until(90) == ()
        stage.beat("bob")
        assert stage.jump() == granted("bob", SECOND, heartbeat_number=1)
        assert stage.now_ns == LEASE_NS

    @pytest.mark.proves("E5")
    def test_stalls_that_come_again_and_again_end(self) -> None:
        """E5, E9: a dead leader is succeeded however often the core stalls."""
        stage = led_by_alice("bob")
        stage.beat("bob")
        stage.step(ConnectionClosed(session_id="alice"))
        stalled_ns = 0
        while stage.core.session("alice") is not None:
            stage.beat("bob")
            stage.stall_until(stage.now_ns + 3 * TICK_NS)  # 60 of every 80
            stalled_ns += 3 * TICK_NS
            stage.now_ns += TICK_NS
            stage.step(TimePassed())
            assert stage.now_ns <= LEASE_NS + stalled_ns + LEASE_NS + 2 * TICK_NS
        component = stage.core.component(JOB)
        assert component is not None
        assert component.leadership is not None
        assert component.leadership.session_id == "bob"

    def test_nobody_is_there_to_suffer(self) -> None:
        """E9: without sessions time may pass unseen."""
        stage = Stage()
        stage.now_ns = 10**9
        assert stage.open("alice") == (OpenSession(session_id="alice"),)
        assert stage.core.stall_count == 0


class TestE2RestoredFromABackup:
    """E2, E9: what was granted after the backup is not on record, and is over."""

    def restored(self) -> Stage:
        """Return a stage on which everything up to the last incarnation is over."""
        floor = epoch_of(0) - 1
        return Stage(
            undecided_ns=UNDECIDED_NS,
            recorded_epochs={EVERY_COMPONENT: floor, JOB: OLDER},
        )

    def test_no_claim_is_reinstated(self) -> None:
        """One that led may have written what is not there any more: it begins anew."""
        stage = self.restored()
        stage.open("alice", "bob")
        stage.register("alice", claim=claim_of(OLD))
        stage.register("bob", component_id="c/other", claim=claim_of(OLD))
        effects = stage.pass_until(UNDECIDED_NS)
        assert effects == (
            nobody(epoch_of(0) - 1),
            revoked("alice", OLD),
            *granted("alice", FIRST),
            nobody(epoch_of(0) - 1, component_id="c/other"),
            RevokeLeadership(
                session_id="bob",
                affirmation=Affirmation(
                    component_id="c/other",
                    contender_id="bob/1",
                    leader_session_id=claim_of(OLD).leader_session_id,
                    epoch=OLD,
                ),
            ),
            *granted("bob", SECOND, component_id="c/other"),
        )

    @pytest.mark.proves("R3")
    def test_who_has_seen_the_last_leader_is_told_that_it_is_over(self) -> None:
        """R3: what is published outranks all that was published after the backup."""
        stage = self.restored()
        stage.pass_until(UNDECIDED_NS)
        assert stage.step(reported(OLD, component_id="c/other")) == (
            nobody(epoch_of(0) - 1, component_id="c/other"),
        )

    @pytest.mark.proves("E2")
    def test_epochs_are_above_whatever_is_over(self) -> None:
        """E2: though the incarnation of the server were not."""
        stage = Stage(recorded_epochs={EVERY_COMPONENT: epoch_of(7)})
        stage.open("alice")
        assert stage.register("alice")[1:] == granted(
            "alice", epoch_of(1, INCARNATION + 1)
        )


@pytest.mark.proves("E9")
class TestE9Undecided:
    def test_neither_grants_nor_affirms(self) -> None:
        """E9: up to the decision; then the first in the queue is granted."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice")
        assert stage.register("alice") == (accepted("alice", epoch_of(1)),)
        assert stage.beat("alice") == (acknowledged("alice", 1, is_undecided=True),)
        assert stage.confirm("alice", FIRST) == (
            confirmation_refused("alice", is_undecided=True),
        )
        assert stage.pass_until(UNDECIDED_NS - 1) == ()
        assert stage.core.is_undecided
        assert stage.jump() == granted("alice", FIRST, heartbeat_number=1)
        assert not stage.core.is_undecided
        assert stage.now_ns == UNDECIDED_NS

    def test_decides_where_there_is_nothing_to_decide(self) -> None:
        """E9: without anybody the time passes, and then nothing is waited for."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        assert stage.pass_until(UNDECIDED_NS) == ()
        assert not stage.core.is_undecided
        assert stage.core.next_deadline_ns() is None

    @pytest.mark.parametrize(
        ("stalled_ns", "decided_ns"),
        [(40, 90), (41, 90 + 21 + 21), (500, 90 + 480 + 90)],
    )
    def test_stall_puts_the_decision_off(
        self, stalled_ns: int, decided_ns: int
    ) -> None:
        """E9: claims may be waiting unread, though no session could be opened yet."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        assert stage.core.next_deadline_ns() == TICK_NS
        stage.stall_until(stalled_ns)
        stage.pass_until(decided_ns - 1)
        assert stage.core.is_undecided
        stage.pass_until(decided_ns)
        assert not stage.core.is_undecided

    def test_stalls_in_a_row_do_not_put_it_off_for_ever(self) -> None:
        """E9: it is settled after the whole time twice, not counting the stalls."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stalled_ns = 0
        while stage.core.is_undecided:
            stage.stall_until(stage.now_ns + 3 * TICK_NS)
            stalled_ns += 2 * TICK_NS
            assert stage.now_ns <= 2 * UNDECIDED_NS + stalled_ns + TICK_NS

    def test_recorded_epoch_is_over_unless_it_is_claimed(self) -> None:
        """E9: one that asks hears that there is no leader, of what is contended for."""
        stage = Stage(undecided_ns=UNDECIDED_NS, recorded_epochs={JOB: OLD, "c/2": 1})
        stage.gather("alice")
        assert stage.pass_until(UNDECIDED_NS) == (
            nobody(OLD),
            *granted("alice", FIRST),
        )
        assert stage.core.component("c/2") is None

    def test_earlier_order_is_kept(self) -> None:
        """E9: tickets of the earlier server come first, in their order."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob", "carol")
        stage.register("alice")
        stage.register("bob", ticket=epoch_of(9, INCARNATION - 1))
        old = epoch_of(8, INCARNATION - 1)
        assert stage.register("carol", ticket=old) == (accepted("carol", old),)
        assert stage.pass_until(UNDECIDED_NS) == granted("carol", FIRST)
        assert stage.withdraw("carol") == granted("bob", SECOND)


@pytest.mark.proves("E9")
class TestE9Claims:
    def test_claim_is_reinstated(self) -> None:
        """E9: the same identity and epoch, before anybody in the queue."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob")
        stage.register("bob", ticket=1)
        stage.register("alice", ticket=2, claim=claim_of(OLD, confirm_count=2))
        assert stage.pass_until(UNDECIDED_NS) == (
            *granted("alice", OLD),
            published(OLD, confirm_count=2),
        )
        assert stage.core.leads("alice", JOB, identity_of(OLD), OLD)
        assert stage.withdraw("alice") == (nobody(OLD), *granted("bob", FIRST))

    def test_highest_claim_wins_and_the_others_are_revoked(self) -> None:
        """E9: the one granted last; the others queue in their earlier order."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob", "carol")
        stage.register("carol", ticket=3, claim=claim_of(OLDER - 1))
        stage.register("bob", ticket=2, claim=claim_of(OLDER))
        stage.register("alice", ticket=9, claim=claim_of(OLD))
        assert stage.pass_until(UNDECIDED_NS) == (
            *granted("alice", OLD),
            published(OLD),
            revoked("bob", OLDER),
            revoked("carol", OLDER - 1),
        )
        assert stage.withdraw("alice") == (nobody(OLD), *granted("bob", FIRST))

    @pytest.mark.proves("E1")
    def test_equal_claims_go_to_the_earlier_in_the_queue(self) -> None:
        """E1, E9: one of two who claim the same; a client that lies gains nothing."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob")
        stage.register("alice", ticket=2, claim=claim_of(OLD))
        stage.register("bob", ticket=1, claim=claim_of(OLD))
        assert stage.pass_until(UNDECIDED_NS) == (
            *granted("bob", OLD),
            published(OLD),
            revoked("alice", OLD),
        )

    @pytest.mark.proves("E3")
    def test_unconfirmed_claim_is_not_published(self) -> None:
        """E3, E9: it is reinstated, and has its time to confirm again."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice")
        claim = claim_of(OLD, confirm_count=0, address=None)
        stage.register("alice", claim=claim)
        stage.pass_until(UNDECIDED_NS - 1)
        stage.beat("alice")
        assert stage.jump() == granted("alice", OLD, heartbeat_number=1)
        assert stage.core.publication(JOB) is None
        assert stage.pass_until(UNDECIDED_NS + 499, heard=("alice",)) == ()
        assert stage.jump() == (revoked("alice", OLD),)

    @pytest.mark.proves("E3")
    def test_silent_and_unconfirmed_claim_passes_on(self) -> None:
        """E3, E9: none waits for a claimant that has gone, but for the barrier."""
        stage = Stage(undecided_ns=150)
        stage.open("alice", "bob")
        claim = claim_of(OLD, confirm_count=0, address=None)
        stage.register("alice", claim=claim)
        stage.register("bob")
        assert stage.pass_until(150, heard=("bob",)) == (
            *granted("alice", OLD),
            revoked("alice", OLD),
        )
        assert stage.pass_until(249, heard=("bob",)) == ()
        assert stage.jump() == granted(
            "bob", FIRST, heartbeat_number=stage.heartbeat_number("bob")
        )

    def test_recorded_epoch_that_is_claimed_is_reinstated(self) -> None:
        """E9: what is on record is the claimant's own."""
        stage = Stage(undecided_ns=UNDECIDED_NS, recorded_epochs={JOB: OLD})
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLD))
        assert stage.pass_until(UNDECIDED_NS) == (
            *granted("alice", OLD),
            published(OLD),
        )

    def test_claim_below_the_record_is_revoked(self) -> None:
        """E9: somebody was granted a higher epoch, and may have written under it."""
        stage = Stage(undecided_ns=UNDECIDED_NS, recorded_epochs={JOB: OLD})
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLDER))
        assert stage.pass_until(UNDECIDED_NS) == (
            nobody(OLD),
            revoked("alice", OLDER),
            *granted("alice", FIRST),
        )

    @pytest.mark.parametrize(
        "report",
        [reported(OLD), reported(OLDER, is_ended=True)],
        ids=["higher", "ended"],
    )
    def test_claim_that_a_report_outranks_is_revoked(
        self, report: EpochReported
    ) -> None:
        """E9: retrievers have heard of a newer leader, or of this one's end."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLDER))
        assert stage.step(report) == ()
        assert stage.pass_until(UNDECIDED_NS) == (
            nobody(report.epoch),
            revoked("alice", OLDER),
            *granted("alice", FIRST),
        )

    @pytest.mark.parametrize(
        "report",
        [reported(OLD), reported(OLDER, is_ended=True)],
        ids=["the same", "an earlier one's end"],
    )
    def test_claim_that_no_report_outranks_is_reinstated(
        self, report: EpochReported
    ) -> None:
        """E9: having seen a leader does not end it."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        assert stage.step(report) == ()
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLD))
        assert stage.pass_until(UNDECIDED_NS) == (
            *granted("alice", OLD),
            published(OLD),
        )

    @pytest.mark.proves("E2")
    def test_impossible_claim_hides_no_other(self) -> None:
        """E2, E9: it is refused, and the highest possible one is reinstated."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob")
        stage.register("alice", claim=claim_of(OLD))
        stage.register("bob", claim=claim_of(IMPOSSIBLE))
        assert stage.pass_until(UNDECIDED_NS) == (
            *granted("alice", OLD),
            published(OLD),
            revoked("bob", IMPOSSIBLE),
        )

    @pytest.mark.proves("E2")
    def test_impossible_claim_alone_is_refused(self) -> None:
        """E2, E9: none is reinstated, nothing is published."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("bob")
        stage.register("bob", claim=claim_of(IMPOSSIBLE))
        assert stage.pass_until(UNDECIDED_NS) == (
            revoked("bob", IMPOSSIBLE),
            *granted("bob", FIRST),
        )

    @pytest.mark.proves("E2")
    def test_claim_ahead_of_us_raises_our_epochs(self) -> None:
        """E2, E9: a server whose clock was ahead granted it; we go on above it."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice")
        stage.register("alice", claim=claim_of(AHEAD))
        assert stage.pass_until(UNDECIDED_NS)[:2] == granted("alice", AHEAD)
        assert stage.register("alice", component_id="c/other")[1:] == granted(
            "alice", epoch_of(1, INCARNATION + 2), component_id="c/other"
        )

    @pytest.mark.parametrize("departure", DEPARTURES)
    def test_claimant_that_has_left_claims_nothing(
        self, departure: ElectionEvent
    ) -> None:
        """E9: its place is gone; that there was a leader, and is none, is known."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob")
        stage.register("bob")
        stage.register("alice", claim=claim_of(OLD))
        stage.step(departure)
        assert stage.pass_until(UNDECIDED_NS) == (nobody(OLD), *granted("bob", FIRST))

    @pytest.mark.parametrize("departure", DEPARTURES)
    def test_claim_below_that_of_one_who_has_left_is_revoked(
        self, departure: ElectionEvent
    ) -> None:
        """E2, E9: what was claimed was granted, whoever is there to be reinstated."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob")
        stage.register("bob", claim=claim_of(OLDER))
        stage.register("alice", claim=claim_of(OLD))
        stage.step(departure)
        assert stage.pass_until(UNDECIDED_NS) == (
            nobody(OLD),
            revoked("bob", OLDER),
            *granted("bob", FIRST),
        )

    @pytest.mark.proves("E2")
    @pytest.mark.parametrize("departure", DEPARTURES)
    def test_epochs_are_above_the_claim_of_one_who_has_left(
        self, departure: ElectionEvent
    ) -> None:
        """E2, E9: a server whose clock was ahead granted it."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob")
        stage.register("bob")
        stage.register("alice", claim=claim_of(AHEAD))
        stage.step(departure)
        assert stage.pass_until(UNDECIDED_NS) == (
            nobody(AHEAD),
            *granted("bob", epoch_of(1, INCARNATION + 2)),
        )

    @pytest.mark.proves("E2")
    def test_impossible_claim_of_one_who_has_left_is_no_report(self) -> None:
        """E2, E9: no clock can have made it."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice", "bob")
        stage.register("bob", claim=claim_of(OLD))
        stage.register("alice", claim=claim_of(IMPOSSIBLE))
        assert stage.withdraw("alice") == (
            RefuseEpoch(component_id=JOB, epoch=IMPOSSIBLE),
        )
        assert stage.pass_until(UNDECIDED_NS) == (
            *granted("bob", OLD),
            published(OLD),
        )

    def test_late_claim_is_refused_and_taken_as_a_report(self) -> None:
        """E9: one that claims after the decision hears so, and may lead afresh."""
        stage = Stage()
        stage.open("alice")
        assert stage.register("alice", claim=claim_of(OLD)) == (
            accepted("alice", epoch_of(1)),
            revoked("alice", OLD),
            nobody(OLD),
            *granted("alice", FIRST),
        )

    def test_late_claim_below_the_leader_disturbs_nobody(self) -> None:
        """E9: it queues; the leader that was granted meanwhile stays."""
        stage = led_by_alice()
        stage.open("bob")
        assert stage.register("bob", claim=claim_of(OLD)) == (
            accepted("bob", epoch_of(2)),
            revoked("bob", OLD),
        )

    @pytest.mark.proves("E8")
    def test_repeated_late_claim_is_not_refused_again(self) -> None:
        """E8, E9: the registration was taken; it may lead by now."""
        stage = Stage()
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLD))
        assert stage.register("alice", claim=claim_of(OLD)) == (
            accepted("alice", epoch_of(1)),
        )


class TestE9LateReports:
    @pytest.mark.proves("E9")
    def test_higher_epoch_revokes_and_grants_afresh(self) -> None:
        """E9: none that has seen a higher epoch takes news of this leader."""
        stage = led_by_alice("bob")
        assert stage.step(reported(AHEAD)) == (
            nobody(FIRST),
            revoked("alice", FIRST),
            nobody(AHEAD),
        )
        assert stage.step(revocation_acknowledged("alice", FIRST)) == granted(
            "alice", epoch_of(1, INCARNATION + 2)
        )

    @pytest.mark.proves("E9")
    def test_end_of_a_reinstated_epoch_revokes_and_grants_afresh(self) -> None:
        """E9: none that was told by an earlier server takes news of this leader."""
        stage = Stage(undecided_ns=UNDECIDED_NS)
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLD))
        stage.pass_until(UNDECIDED_NS)
        assert stage.step(reported(OLD, is_ended=True)) == (
            nobody(OLD),
            revoked("alice", OLD),
        )
        barrier_ns = UNDECIDED_NS + LEASE_NS
        assert stage.pass_until(barrier_ns - 1, heard=("alice",)) == ()
        assert stage.jump()[0] == granted("alice", FIRST)[0]

    @pytest.mark.proves("E9")
    @pytest.mark.parametrize("is_confirmed", [False, True])
    def test_end_of_what_we_granted_is_ours_to_say(self, is_confirmed: bool) -> None:
        """E9, N4: a report cannot know of it; it ends nothing."""
        stage = Stage()
        stage.gather("alice")
        if is_confirmed:
            stage.confirm("alice", FIRST)
        stage.step(reported(FIRST, is_ended=True))
        assert stage.core.leads("alice", JOB, identity_of(FIRST), FIRST)
        assert stage.core.stall_count == 0

    @pytest.mark.proves("E9")
    def test_higher_epoch_ends_nothing_where_all_are_on_record(self) -> None:
        """E9, N4: it raises the next epoch only."""
        stage = Stage(is_durable=True)
        stage.gather("alice", "bob")
        stage.confirm("alice", FIRST)
        for report in (reported(AHEAD), reported(AHEAD, is_ended=True)):
            assert stage.step(report) == ()
        assert stage.core.leads("alice", JOB, identity_of(FIRST), FIRST)
        assert stage.withdraw("alice") == (
            nobody(FIRST),
            *granted("bob", epoch_of(1, INCARNATION + 2)),
        )

    @pytest.mark.proves("E9")
    def test_higher_epoch_ends_what_is_not_on_record(self) -> None:
        """E9: the data directory was lost, and only an earlier holder came in time."""
        stage = Stage(undecided_ns=UNDECIDED_NS, is_durable=True)
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLDER))
        stage.pass_until(UNDECIDED_NS)
        assert stage.step(reported(OLD)) == (
            nobody(OLDER),
            revoked("alice", OLDER),
            nobody(OLD),
        )
        barrier_ns = UNDECIDED_NS + LEASE_NS
        assert stage.pass_until(barrier_ns - 1, heard=("alice",)) == ()
        assert stage.jump()[0] == granted("alice", FIRST)[0]

    @pytest.mark.proves("E9")
    def test_higher_epoch_does_not_end_what_is_on_record(self) -> None:
        """E9, N4: none was granted a higher one, whatever is reported."""
        stage = Stage(
            undecided_ns=UNDECIDED_NS, is_durable=True, recorded_epochs={JOB: OLDER}
        )
        stage.open("alice")
        stage.register("alice", claim=claim_of(OLDER))
        stage.pass_until(UNDECIDED_NS)
        assert stage.step(reported(OLD)) == ()

    @pytest.mark.proves("E9")
    @pytest.mark.parametrize(
        "report",
        [reported(FIRST), reported(OLD), reported(OLD, is_ended=True)],
        ids=["the present", "an earlier", "an earlier end"],
    )
    def test_nothing_new_changes_nothing(self, report: EpochReported) -> None:
        """E9: the confirmed leader outranks what was seen."""
        stage = led_by_alice()
        assert stage.step(report) == ()
        assert stage.core.leads("alice", JOB, identity_of(FIRST), FIRST)

    @pytest.mark.proves("R2", "R3")
    def test_unconfirmed_leader_does_not_keep_an_old_one_in_mind(self) -> None:
        """R2, R3: who holds an earlier leader hears of its end, then of the new one."""
        stage = Stage()
        stage.gather("alice")
        assert stage.step(reported(OLD)) == (nobody(OLD),)
        assert stage.step(reported(OLD)) == ()
        assert stage.confirm("alice", FIRST) == (
            published(FIRST),
            confirmation_accepted("alice"),
        )

    @pytest.mark.proves("E9")
    def test_report_of_what_nobody_contends_for(self) -> None:
        """E9: it is remembered, and the reporter hears that there is no leader."""
        stage = Stage()
        assert stage.step(reported(OLD)) == (nobody(OLD),)
        assert stage.step(reported(OLD)) == ()
        stage.open("alice")
        assert stage.register("alice")[1:] == granted("alice", FIRST)

    @pytest.mark.proves("E2", "E9")
    def test_report_where_there_is_no_room(self) -> None:
        """E2, E9: strangers fill no memory; what we draw is above it all the same."""
        stage = Stage(component_count_max=1)
        stage.gather("alice")
        assert stage.step(reported(OLD, component_id="c/other")) == ()
        assert stage.core.component("c/other") is None
        stage.withdraw("alice")
        assert stage.step(reported(OLD, component_id="c/other")) == (
            nobody(OLD, component_id="c/other"),
        )
        assert stage.core.component(JOB) is None
