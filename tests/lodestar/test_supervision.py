from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodestar.supervision import (
    BeliefRead,
    CommandEnded,
    EndReason,
    HealthLost,
    Kill,
    LeadershipRevoked,
    StopRequested,
    SupervisionCore,
    SupervisionEffect,
    SupervisionEvent,
    Terminate,
)


# A belief of 0.9 s: TERM is due when half of it is left, KILL when a seventh is.
FULL_NS = 900_000_000
TERMINATE_NS = FULL_NS - FULL_NS // 2
KILL_NS = FULL_NS - FULL_NS // 7
GRACE_NS = 10_000_000_000


def core_at_zero(grace_ns: int = GRACE_NS) -> SupervisionCore:
    """Return a core whose belief was read at time 0."""
    return SupervisionCore(until_ns=FULL_NS, grace_ns=grace_ns, now_ns=0)


@pytest.mark.proves("N7")
class TestWhileBeliefLasts:
    def test_a_command_is_left_alone_while_belief_is_moved_forward(self) -> None:
        """N7: as long as heartbeats are answered, the command hears nothing."""
        core = core_at_zero()
        for now_ns in range(0, 100 * FULL_NS, FULL_NS // 5):
            read = BeliefRead(until_ns=now_ns + FULL_NS)
            assert core.step(read, now_ns=now_ns) == ()
        assert core.reason is None

    def test_the_first_deadline_is_when_half_of_belief_is_left(self) -> None:
        """N7: belief is read again before anything would have to be done."""
        assert core_at_zero().next_deadline_ns() == TERMINATE_NS

    def test_a_command_that_ends_by_itself_was_not_ended_by_us(self) -> None:
        """N7: then the exit code is the command's own."""
        core = core_at_zero()
        assert core.step(CommandEnded(), now_ns=5) == ()
        assert core.is_over
        assert core.reason is None
        assert core.next_deadline_ns() is None


@pytest.mark.proves("N7")
class TestWhenBeliefRunsOut:
    def test_term_goes_out_at_half_and_not_before(self) -> None:
        """N7: one before the deadline nothing, at the very deadline TERM."""
        core = core_at_zero()
        read = BeliefRead(until_ns=FULL_NS)
        assert core.step(read, now_ns=TERMINATE_NS - 1) == ()
        assert core.step(read, now_ns=TERMINATE_NS) == (Terminate(),)
        assert core.reason is EndReason.LEADERSHIP_LOST
        assert core.next_deadline_ns() == KILL_NS

    def test_kill_follows_while_belief_still_lasts(self) -> None:
        """N7: KILL goes out early enough to be over when belief ends."""
        core = core_at_zero()
        read = BeliefRead(until_ns=FULL_NS)
        core.step(read, now_ns=TERMINATE_NS)
        assert core.step(read, now_ns=KILL_NS - 1) == ()
        assert core.step(read, now_ns=KILL_NS) == (Kill(),)
        assert KILL_NS < FULL_NS
        assert core.next_deadline_ns() is None
        assert core.step(CommandEnded(), now_ns=KILL_NS + 1) == ()
        assert core.is_over

    def test_after_a_pause_of_our_own_both_go_out_at_once(self) -> None:
        """N7: one that wakes too late does not wait for the command's grace."""
        core = core_at_zero()
        woken_ns = 5 * FULL_NS
        assert core.step(BeliefRead(until_ns=woken_ns), now_ns=woken_ns) == (
            Terminate(),
            Kill(),
        )

    def test_belief_that_comes_back_gives_the_command_its_grace(self) -> None:
        """N7: once asked to end, a command ends; how soon follows belief."""
        core = core_at_zero(grace_ns=FULL_NS)
        core.step(BeliefRead(until_ns=FULL_NS), now_ns=TERMINATE_NS)
        later_ns = TERMINATE_NS + 1
        assert core.step(BeliefRead(until_ns=3 * FULL_NS), now_ns=later_ns) == ()
        assert core.reason is EndReason.LEADERSHIP_LOST
        assert core.next_deadline_ns() == TERMINATE_NS + FULL_NS


@pytest.mark.proves("N7")
class TestWhenRevoked:
    @pytest.mark.proves("E4")
    def test_the_command_has_as_long_as_belief_would_have_lasted(self) -> None:
        """N7, E4: no other is granted before belief, as last known, has ended."""
        core = core_at_zero()
        core.step(BeliefRead(until_ns=100 + FULL_NS), now_ns=100)
        assert core.step(LeadershipRevoked(), now_ns=200) == (Terminate(),)
        assert core.reason is EndReason.LEADERSHIP_LOST
        # What the election says from now on is that we do not lead.
        assert core.step(BeliefRead(until_ns=300), now_ns=300) == ()
        assert core.next_deadline_ns() == 100 + KILL_NS

    def test_a_read_that_precedes_the_news_is_not_taken_for_the_end(self) -> None:
        """N7: belief is gone before the revocation is told: the command keeps TERM."""
        core = core_at_zero()
        assert core.step(BeliefRead(until_ns=10), now_ns=10) == ()
        assert core.step(LeadershipRevoked(), now_ns=11) == (Terminate(),)

    def test_a_second_revocation_changes_nothing(self) -> None:
        """N7: TERM is sent once."""
        core = core_at_zero()
        core.step(LeadershipRevoked(), now_ns=1)
        assert core.step(LeadershipRevoked(), now_ns=2) == ()


@pytest.mark.proves("N7")
class TestWhenStopped:
    def test_the_command_is_asked_first_and_has_its_grace(self) -> None:
        """N7: our own SIGTERM ends the command; belief goes on meanwhile."""
        core = core_at_zero(grace_ns=FULL_NS)
        assert core.step(StopRequested(), now_ns=1) == (Terminate(),)
        assert core.reason is EndReason.STOPPED
        core.step(BeliefRead(until_ns=2 + 2 * FULL_NS), now_ns=2)
        assert core.next_deadline_ns() == 1 + FULL_NS
        read = BeliefRead(until_ns=1 + 3 * FULL_NS)
        assert core.step(read, now_ns=1 + FULL_NS) == (Kill(),)

    def test_belief_still_bounds_the_grace(self) -> None:
        """N7: a command that is being stopped does not outlive belief either."""
        core = core_at_zero()
        core.step(StopRequested(), now_ns=1)
        assert core.next_deadline_ns() == KILL_NS

    def test_asking_twice_means_at_once(self) -> None:
        """N7: a second signal does not wait for the grace to be over."""
        core = core_at_zero()
        core.step(StopRequested(), now_ns=1)
        assert core.step(StopRequested(), now_ns=2) == (Kill(),)
        assert core.step(StopRequested(), now_ns=3) == ()

    def test_the_reason_stays_the_first(self) -> None:
        """N7: who was stopped and is then revoked was stopped, and the reverse."""
        core = core_at_zero()
        core.step(StopRequested(), now_ns=1)
        core.step(LeadershipRevoked(), now_ns=2)
        assert core.reason is EndReason.STOPPED

        core = core_at_zero()
        core.step(LeadershipRevoked(), now_ns=1)
        assert core.step(StopRequested(), now_ns=2) == (Kill(),)
        assert core.reason is EndReason.LEADERSHIP_LOST


@pytest.mark.proves("N7")
@given(
    moves=st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=FULL_NS),
            st.sampled_from(["affirmed", "unanswered", "revoked", "stopped"]),
        ),
        max_size=30,
    )
)
def test_a_shell_that_keeps_deadlines_kills_before_belief_ends(
    moves: list[tuple[int, str]],
) -> None:
    """N7: whatever happens, no command is left running when belief has ended."""
    core = core_at_zero()
    now_ns = 0
    until_ns = FULL_NS
    done: list[SupervisionEffect] = []

    def step(event: SupervisionEvent) -> None:
        done.extend(core.step(event, now_ns=now_ns))

    def keep_deadlines(end_ns: int) -> None:
        nonlocal now_ns
        while (due_ns := core.next_deadline_ns()) is not None and due_ns <= end_ns:
            assert due_ns >= now_ns
            now_ns = due_ns
            step(BeliefRead(until_ns=until_ns))
        now_ns = end_ns

    for duration_ns, what in moves:
        keep_deadlines(now_ns + duration_ns)
        if Kill() in done:
            break
        match what:
            case "affirmed":
                until_ns = now_ns + FULL_NS
                step(BeliefRead(until_ns=until_ns))
            case "revoked":
                step(LeadershipRevoked())
            case "stopped":
                step(StopRequested())
    keep_deadlines(until_ns)

    assert done in ([Terminate(), Kill()], [Terminate()], [Kill()], [])
    assert Kill() in done
    assert done.count(Terminate()) == 1


@pytest.mark.proves("N7")
class TestWhenHealthIsLost:
    def test_the_command_is_asked_and_then_made_to_end(self) -> None:
        """N7: TERM at once, KILL after the grace; the reason is told."""
        core = core_at_zero(grace_ns=1_000)
        assert core.step(HealthLost(), now_ns=5) == (Terminate(),)
        assert core.reason is EndReason.UNHEALTHY
        assert core.step(HealthLost(), now_ns=6) == ()
        assert core.step(BeliefRead(until_ns=FULL_NS), now_ns=1_005) == (Kill(),)
        assert core.step(CommandEnded(), now_ns=1_006) == ()
        assert core.is_over

    def test_a_request_to_stop_meanwhile_is_the_first_of_its_kind(self) -> None:
        """N7: it means to end with the command; the second means at once."""
        core = core_at_zero()
        core.step(HealthLost(), now_ns=5)
        assert core.step(StopRequested(), now_ns=6) == ()
        assert core.reason is EndReason.STOPPED
        assert core.step(StopRequested(), now_ns=7) == (Kill(),)

    def test_what_is_being_ended_for_another_reason_keeps_it(self) -> None:
        """N7: a leadership that is lost is not resigned from."""
        core = core_at_zero()
        core.step(LeadershipRevoked(), now_ns=5)
        assert core.step(HealthLost(), now_ns=6) == ()
        assert core.reason is EndReason.LEADERSHIP_LOST


@pytest.mark.proves("N7")
def test_a_revoked_command_is_over_when_the_name_service_waits_no_longer() -> None:
    """N7: on ZooKeeper belief reaches further ahead than a revoke callback may take."""
    core = SupervisionCore(
        until_ns=100 * FULL_NS, grace_ns=GRACE_NS, now_ns=0, revoke_grace_ns=7
    )
    assert core.step(LeadershipRevoked(), now_ns=10) == (Terminate(),)
    assert core.next_deadline_ns() == 10 + 6
    assert core.step(BeliefRead(until_ns=16), now_ns=16) == (Kill(),)
