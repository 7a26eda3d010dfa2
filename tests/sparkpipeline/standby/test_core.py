"""What a standby driver does next."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pytest

from election import LeaderSession
from sparkpipeline.standby.core import (
    COLLISION_COUNT_MAX,
    COLLISION_NS,
    AbandonWarmUp,
    ApplicationFailed,
    BeliefRead,
    Collided,
    Contend,
    EndProcess,
    EndReason,
    Fenced,
    Finish,
    Granted,
    JVMLost,
    LeadershipRevoked,
    QueriesEnded,
    QueriesStopped,
    StandbyCore,
    StandbyEffect,
    StandbyEvent,
    StandbyState,
    StartApplication,
    StopQueries,
    StopRequested,
    WarmedUp,
    Withdraw,
)


WARM_UP_NS: Final = 60_000
LAPSE_NS: Final = 1_000
STOP_NS: Final = 10_000
SESSION: Final = LeaderSession(leader_session_id=UUID(int=1), epoch=7)
BELIEVES: Final = BeliefRead(is_believing=True)
DOUBTS: Final = BeliefRead(is_believing=False)


def warming_core() -> StandbyCore:
    """Return a driver that has just been started, at time 0."""
    return StandbyCore(
        warm_up_ns=WARM_UP_NS, lapse_ns=LAPSE_NS, stop_ns=STOP_NS, now_ns=0
    )


def core_after(*events: StandbyEvent) -> StandbyCore:
    """Return a driver after *events*, all of them at time 0."""
    core = warming_core()
    for event in events:
        core.step(event, now_ns=0)
    return core


def leading_core() -> StandbyCore:
    """Return a driver that leads."""
    return core_after(WarmedUp(), Granted(session=SESSION))


@pytest.mark.proves("H1")
class TestWarmingUp:
    def test_a_driver_contends_when_it_is_warm(self) -> None:
        """H1: those that are granted leadership can begin at once."""
        core = warming_core()
        assert core.step(WarmedUp(), now_ns=5) == (Contend(),)
        assert core.state is StandbyState.WARM
        assert core.next_deadline_ns() is None

    def test_a_driver_contends_cold_when_warming_takes_too_long(self) -> None:
        """H1: the warm-up is bounded; the time alone ends it, and not before."""
        core = warming_core()
        assert core.next_deadline_ns() == WARM_UP_NS
        assert core.step(None, now_ns=WARM_UP_NS - 1) == ()
        assert core.step(None, now_ns=WARM_UP_NS) == (AbandonWarmUp(), Contend())
        assert core.step(WarmedUp(), now_ns=WARM_UP_NS) == ()

    def test_what_was_stopped_while_warming_ends(self) -> None:
        """A signal ends a driver that has not even contended."""
        core = warming_core()
        effects = core.step(StopRequested(), now_ns=1)
        assert effects == (AbandonWarmUp(), Finish(reason=None))
        assert core.state is StandbyState.ENDED
        assert core.step(WarmedUp(), now_ns=2) == ()

    def test_what_fails_while_warming_ends_with_it(self) -> None:
        """An error of the driver itself is no error of the warm-up."""
        effects = warming_core().step(ApplicationFailed(), now_ns=1)
        assert effects == (AbandonWarmUp(), Finish(reason=EndReason.FAILED))


@pytest.mark.proves("H1")
class TestWhileWarm:
    def test_a_grant_starts_the_application(self) -> None:
        """H1: the application is called with its leadership."""
        core = core_after(WarmedUp())
        effects = core.step(Granted(session=SESSION), now_ns=1)
        assert effects == (StartApplication(session=SESSION),)
        assert core.state is StandbyState.LEADING

    @pytest.mark.parametrize(
        "event", [WarmedUp(), LeadershipRevoked(), Fenced(), DOUBTS, QueriesStopped()]
    )
    def test_news_of_the_past_changes_nothing(self, event: StandbyEvent) -> None:
        """What an earlier leadership still tells is passed over."""
        core = core_after(WarmedUp())
        assert core.step(event, now_ns=1) == ()
        assert core.state is StandbyState.WARM

    def test_a_signal_withdraws(self) -> None:
        """A waiting driver leaves the election before it ends."""
        effects = core_after(WarmedUp()).step(StopRequested(), now_ns=1)
        assert effects == (Withdraw(), Finish(reason=None))

    def test_a_refused_election_ends_it_with_an_error(self) -> None:
        """A driver that may not contend does not wait for ever."""
        effects = core_after(WarmedUp()).step(ApplicationFailed(), now_ns=1)
        assert effects == (Withdraw(), Finish(reason=EndReason.FAILED))


@pytest.mark.proves("H3")
class TestWhileLeading:
    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            (LeadershipRevoked(), EndReason.LOST),
            (Fenced(), EndReason.LOST),
            (StopRequested(), EndReason.STOPPED),
            (QueriesEnded(), EndReason.COMPLETED),
            (ApplicationFailed(), EndReason.FAILED),
        ],
    )
    def test_queries_stop_with_the_leadership(
        self, event: StandbyEvent, reason: EndReason
    ) -> None:
        """H3: whatever ends it, its queries are stopped before we withdraw."""
        core = leading_core()
        assert core.step(event, now_ns=1) == (StopQueries(),)
        assert core.state is StandbyState.STOPPING
        assert core.reason is reason
        assert core.next_deadline_ns() == 1 + STOP_NS

    def test_belief_that_comes_back_stops_nothing(self) -> None:
        """A machine that is busy for less than the lapse costs no restart."""
        core = leading_core()
        assert core.step(DOUBTS, now_ns=1) == ()
        assert core.step(DOUBTS, now_ns=LAPSE_NS) == ()
        assert core.step(BELIEVES, now_ns=LAPSE_NS) == ()
        assert core.next_deadline_ns() is None
        assert core.step(DOUBTS, now_ns=9 * LAPSE_NS) == ()
        assert core.step(None, now_ns=10 * LAPSE_NS - 1) == ()

    def test_belief_that_is_gone_for_long_stops_the_queries(self) -> None:
        """H3: a driver that hears nothing does not lead for ever."""
        core = leading_core()
        core.step(DOUBTS, now_ns=1)
        assert core.step(DOUBTS, now_ns=LAPSE_NS) == ()
        assert core.step(DOUBTS, now_ns=1 + LAPSE_NS) == (StopQueries(),)
        assert core.reason is EndReason.LOST

    def test_a_second_grant_changes_nothing(self) -> None:
        """One leadership, one call of the application."""
        assert leading_core().step(Granted(session=SESSION), now_ns=1) == ()


@pytest.mark.proves("H3")
class TestCollisions:
    """Another driver runs our query, too: the one before us, or one of no election."""

    def test_a_driver_steps_aside_and_contends_again(self) -> None:
        """H3: a driver that still stops ends no other."""
        core = leading_core()
        collide(core, now_ns=1)
        assert core.state is StandbyState.WARM

    def test_a_driver_fails_with_the_last_of_several_within_a_minute(self) -> None:
        """H3: what shares its checkpoints for good is told of it, and not before."""
        core = leading_core()
        for count in range(1, COLLISION_COUNT_MAX):
            assert collide(core, now_ns=count) == (Withdraw(), Contend())
            core.step(Granted(session=SESSION), now_ns=count)
        effects = collide(core, now_ns=COLLISION_NS)
        assert effects == (Withdraw(), Finish(reason=EndReason.FAILED))

    def test_collisions_that_are_far_apart_do_not_add_up(self) -> None:
        """A driver that runs for months may meet its predecessor more than twice."""
        core = leading_core()
        for count in range(3 * COLLISION_COUNT_MAX):
            effects = collide(core, now_ns=count * (COLLISION_NS // 2))
            assert effects == (Withdraw(), Contend())
            core.step(Granted(session=SESSION), now_ns=count * (COLLISION_NS // 2))

    def test_queries_that_collide_together_count_once(self) -> None:
        """An application of many queries meets one driver with all of them."""
        core = leading_core()
        assert core.step(Collided(), now_ns=1) == (StopQueries(),)
        for _ in range(COLLISION_COUNT_MAX):
            assert core.step(Collided(), now_ns=1) == ()
        core.step(QueriesStopped(), now_ns=2)
        core.step(Granted(session=SESSION), now_ns=3)
        assert collide(core, now_ns=4) == (Withdraw(), Contend())


def collide(core: StandbyCore, *, now_ns: int) -> tuple[StandbyEffect, ...]:
    """Have a query of *core*, which leads, collide; return what its end comes to."""
    assert core.step(Collided(), now_ns=now_ns) == (StopQueries(),)
    return core.step(QueriesStopped(), now_ns=now_ns)


@pytest.mark.proves("H3")
class TestStopping:
    def test_a_driver_that_lost_contends_again(self) -> None:
        """H1: what was warm stays a standby."""
        core = leading_core()
        core.step(LeadershipRevoked(), now_ns=1)
        assert core.step(QueriesStopped(), now_ns=2) == (Withdraw(), Contend())
        assert core.state is StandbyState.WARM
        assert core.next_deadline_ns() is None

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            (StopRequested(), EndReason.STOPPED),
            (QueriesEnded(), EndReason.COMPLETED),
            (ApplicationFailed(), EndReason.FAILED),
        ],
    )
    def test_others_end(self, event: StandbyEvent, reason: EndReason) -> None:
        """The leadership is given up before the driver ends."""
        core = leading_core()
        core.step(event, now_ns=1)
        effects = core.step(QueriesStopped(), now_ns=2)
        assert effects == (Withdraw(), Finish(reason=reason))
        assert core.state is StandbyState.ENDED

    def test_a_signal_while_stopping_ends_it_afterwards(self) -> None:
        """A driver that was told to end does not contend again."""
        core = leading_core()
        core.step(LeadershipRevoked(), now_ns=1)
        assert core.step(StopRequested(), now_ns=2) == ()
        effects = core.step(QueriesStopped(), now_ns=3)
        assert effects == (Withdraw(), Finish(reason=EndReason.STOPPED))

    def test_news_while_stopping_does_not_hide_a_failure(self) -> None:
        """The first reason is the one that is told."""
        core = leading_core()
        core.step(ApplicationFailed(), now_ns=1)
        core.step(StopRequested(), now_ns=2)
        core.step(LeadershipRevoked(), now_ns=2)
        assert core.reason is EndReason.FAILED

    def test_what_does_not_stop_in_time_is_ended(self) -> None:
        """H3: at the deadline and not before, with all of its process."""
        core = leading_core()
        core.step(LeadershipRevoked(), now_ns=0)
        assert core.step(None, now_ns=STOP_NS - 1) == ()
        assert core.step(None, now_ns=STOP_NS) == (EndProcess(),)
        assert core.state is StandbyState.ENDED
        assert core.next_deadline_ns() is None
        assert core.step(QueriesStopped(), now_ns=STOP_NS) == ()


@pytest.mark.proves("H1")
class TestLostJVM:
    """A driver without its JVM is no standby: it ends, whatever else happens."""

    def test_it_ends_while_it_warms_up(self) -> None:
        """It never contends."""
        effects = warming_core().step(JVMLost(), now_ns=1)
        assert effects == (AbandonWarmUp(), Finish(reason=EndReason.FAILED))

    def test_it_ends_while_it_is_warm(self) -> None:
        """It is not granted what it could not lead."""
        effects = core_after(WarmedUp()).step(JVMLost(), now_ns=1)
        assert effects == (Withdraw(), Finish(reason=EndReason.FAILED))

    def test_it_ends_while_it_leads(self) -> None:
        """The next driver leads as soon as nothing of this one runs."""
        core = leading_core()
        assert core.step(JVMLost(), now_ns=1) == (StopQueries(),)
        assert core.reason is EndReason.FAILED

    def test_it_ends_while_it_stops(self) -> None:
        """A paused driver hears of the revocation first, and does not contend."""
        core = leading_core()
        core.step(LeadershipRevoked(), now_ns=1)
        assert core.step(JVMLost(), now_ns=2) == ()
        effects = core.step(QueriesStopped(), now_ns=3)
        assert effects == (Withdraw(), Finish(reason=EndReason.FAILED))
