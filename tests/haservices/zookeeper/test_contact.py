from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservices.zookeeper.contact import (
    Answered,
    BreakConnection,
    Closed,
    Contact,
    ContactCore,
    ContactEffect,
    ContactEvent,
    ContendingChanged,
    HeartbeatFailed,
    Opened,
    Over,
    SendHeartbeat,
    TellLost,
    TellRestored,
    TellSuspended,
    TimePassed,
)


TIMEOUT_NS = 900
PATIENCE_NS = 600
THIRD_NS = 300
TENTH_NS = 90


class Stage:
    """A core whose time is told."""

    def __init__(self) -> None:
        self.core = ContactCore()
        self.now_ns = 10_000

    def step(self, event: ContactEvent, *, after_ns: int = 0) -> list[ContactEffect]:
        """Tell the core; return what it wants."""
        self.now_ns += after_ns
        return list(self.core.step(event, now_ns=self.now_ns))

    def open(self, *, is_new: bool = True) -> list[ContactEffect]:
        """Answer a handshake at once."""
        return self.step(
            Opened(session_timeout_ns=TIMEOUT_NS, sent_ns=self.now_ns, is_new=is_new)
        )

    def pass_time(self, after_ns: int) -> list[ContactEffect]:
        """Move time on, and tell at each deadline in between."""
        end_ns = self.now_ns + after_ns
        effects: list[ContactEffect] = []
        while True:
            due_ns = self.core.next_deadline_ns()
            if due_ns is None or due_ns > end_ns:
                break
            self.now_ns = max(due_ns, self.now_ns)
            effects += self.step(TimePassed())
        self.now_ns = end_ns
        return effects


@pytest.fixture
def stage() -> Stage:
    """Return a core without a connection."""
    return Stage()


@pytest.fixture
def connected() -> Stage:
    """Return a core whose first heartbeat was answered at once, at 10,000."""
    stage = Stage()
    stage.open()
    stage.step(Answered(sent_ns=stage.now_ns, is_sync=True))
    return stage


@pytest.mark.proves("E5")
def test_a_handshake_alone_is_no_contact(stage: Stage) -> None:
    """E5: only a request that is answered shows that our credentials are taken."""
    assert stage.open() == [SendHeartbeat()]
    assert not stage.core.is_connected
    answered = Answered(sent_ns=stage.now_ns, is_sync=True)
    assert stage.step(answered) == [TellRestored()]
    assert stage.core.is_connected


@pytest.mark.proves("E5")
def test_a_heartbeat_goes_out_every_third_of_the_timeout(connected: Stage) -> None:
    """E5: one at a time."""
    assert connected.pass_time(THIRD_NS - 1) == []
    assert connected.pass_time(1) == [SendHeartbeat()]
    assert connected.pass_time(THIRD_NS - 1) == []


@pytest.mark.proves("E4")
def test_who_contends_sends_one_every_tenth(connected: Stage) -> None:
    """E4: at once, and then often enough that a grant finds renewals proven."""
    begins = ContendingChanged(is_contending=True)
    assert connected.step(begins, after_ns=5) == [SendHeartbeat()]
    assert connected.step(begins) == []
    connected.step(Answered(sent_ns=connected.now_ns, is_sync=True))
    assert connected.pass_time(TENTH_NS) == [SendHeartbeat()]
    connected.step(Answered(sent_ns=connected.now_ns, is_sync=True))
    connected.step(ContendingChanged(is_contending=False))
    connected.pass_time(TENTH_NS)
    connected.step(Answered(sent_ns=connected.now_ns, is_sync=True))
    assert connected.pass_time(THIRD_NS - 1) == []


@pytest.mark.proves("E5")
def test_nothing_is_sent_before_there_is_a_session(stage: Stage) -> None:
    """E5: somebody who contends waits for it."""
    assert stage.step(ContendingChanged(is_contending=True)) == []
    assert stage.core.next_deadline_ns() is None


@pytest.mark.proves("E5")
def test_silence_counts_from_the_send_of_what_was_answered(connected: Stage) -> None:
    """E5: an answer that comes late is an old sign of life."""
    sent_ns = connected.now_ns
    connected.step(Answered(sent_ns=sent_ns), after_ns=500)
    assert TellSuspended() not in connected.pass_time(PATIENCE_NS - 501)
    effects = connected.pass_time(1)
    assert effects == [BreakConnection(is_silent=True), TellSuspended()]
    assert connected.core.contact is Contact.SUSPENDED


@pytest.mark.proves("E5")
def test_lost_is_concluded_a_timeout_after_the_last_sign_of_life(
    connected: Stage,
) -> None:
    """E5: by the clock alone."""
    assert connected.step(Closed()) == [TellSuspended()]
    assert connected.pass_time(TIMEOUT_NS - 1) == []
    assert connected.pass_time(1) == [TellLost()]
    assert connected.core.contact is Contact.LOST
    assert connected.pass_time(10 * TIMEOUT_NS) == []


@pytest.mark.proves("E5")
def test_a_long_pause_ends_in_lost_at_once(connected: Stage) -> None:
    """E5: one that wakes from it hears of both."""
    effects = connected.step(TimePassed(), after_ns=2 * TIMEOUT_NS)
    assert [one for one in effects if not isinstance(one, SendHeartbeat)] == [
        TellSuspended(),
        TellLost(),
    ]


@pytest.mark.proves("E5")
def test_an_answer_restores_what_was_lost(connected: Stage) -> None:
    """E5: the session may have survived."""
    connected.step(Closed())
    connected.pass_time(2 * TIMEOUT_NS)
    connected.open(is_new=False)
    sent_ns = connected.now_ns
    assert connected.step(Answered(sent_ns=sent_ns, is_sync=True)) == [TellRestored()]


@pytest.mark.proves("E5")
def test_an_answer_that_is_too_old_restores_nothing(connected: Stage) -> None:
    """E5: what was sent more than two thirds of the timeout ago shows no contact."""
    connected.step(Closed())
    connected.open(is_new=False)
    sent_ns = connected.now_ns
    assert connected.step(Answered(sent_ns=sent_ns), after_ns=PATIENCE_NS) == []
    assert connected.core.contact is Contact.SUSPENDED


@pytest.mark.proves("E5")
def test_an_answer_after_the_connection_has_closed_restores_nothing(
    connected: Stage,
) -> None:
    """E5: nothing can be asked before there is another one."""
    sent_ns = connected.now_ns
    connected.step(Closed())
    assert connected.step(Answered(sent_ns=sent_ns)) == []
    assert not connected.core.is_open


@pytest.mark.proves("E5")
def test_a_server_that_never_answers_is_left(stage: Stage) -> None:
    """E5: two thirds of the timeout after the first heartbeat on its connection."""
    stage.open()
    assert BreakConnection(is_silent=False) not in stage.pass_time(PATIENCE_NS - 1)
    assert BreakConnection(is_silent=False) in stage.pass_time(1)


@pytest.mark.proves("E5")
def test_a_heartbeat_that_fails_makes_room_for_the_next(connected: Stage) -> None:
    """E5: one that was answered or failed is under way no more."""
    connected.pass_time(THIRD_NS)
    sent_ns = connected.now_ns
    connected.step(HeartbeatFailed(sent_ns=sent_ns - 1))
    assert SendHeartbeat() not in connected.pass_time(THIRD_NS - 1)
    connected.step(HeartbeatFailed(sent_ns=sent_ns))
    assert SendHeartbeat() in connected.pass_time(1)


@pytest.mark.proves("E8")
def test_the_end_of_a_session_is_told_by_the_name_service(connected: Stage) -> None:
    """E8: nothing is concluded from the time after that."""
    assert connected.step(Over()) == []
    assert connected.core.contact is Contact.LOST
    assert TellLost() not in connected.pass_time(3 * TIMEOUT_NS)
    connected.step(Answered(sent_ns=connected.now_ns))
    assert connected.core.contact is Contact.LOST


@pytest.mark.proves("E5")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "close", "answer", "over", "wait"]),
            st.integers(min_value=0, max_value=400),
        )
    )
)
def test_contact_follows_from_the_newest_answer(
    happenings: list[tuple[str, int]],
) -> None:
    """E5: connected within two thirds, and never lost before a whole timeout."""
    stage = Stage()
    newest_ns = 0
    for kind, passed_ns in happenings:
        sent_ns = stage.now_ns
        told = stage.pass_time(passed_ns)
        if TellLost() in told:
            assert stage.now_ns - newest_ns >= TIMEOUT_NS
        if newest_ns and stage.now_ns - newest_ns >= TIMEOUT_NS:
            assert stage.core.contact is Contact.LOST
        match kind:
            case "open":
                is_new = newest_ns == 0
                newest_ns = sent_ns if is_new else newest_ns
                stage.step(
                    Opened(
                        session_timeout_ns=TIMEOUT_NS, sent_ns=sent_ns, is_new=is_new
                    )
                )
            case "close":
                stage.step(Closed())
            case "answer":
                stage.step(Answered(sent_ns=sent_ns))
                newest_ns = max(newest_ns, sent_ns) if newest_ns else 0
            case "over":
                stage.step(Over())
                newest_ns = 0
        if stage.core.contact is Contact.CONNECTED:
            assert stage.now_ns - newest_ns < PATIENCE_NS
            assert stage.core.is_open
