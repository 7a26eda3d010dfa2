from __future__ import annotations

import pytest
from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from election.effects import CloseSession
from election.events import ConnectionClosed, TimePassed
from tests.election.stage import JOB, TICK_NS, Stage
from tests.tiers import machine_settings


LEASES_NS = (60, 100, 240)
TIMEOUT_NS = 500
# Of a client, and of what reads its messages once the core runs again.
BEAT_NS = 12


@define
class Dead:
    """A session whose client has died: when, and what of that we know."""

    died_ns: int
    lease_ns: int
    is_known: bool
    stalled_ns: int = 0

    def bound_ns(self) -> int:
        """Return when it is over at the latest, after the stalls that there were."""
        wait_ns = self.lease_ns if self.is_known else TIMEOUT_NS
        grace_ns = min(self.stalled_ns, self.lease_ns)
        # The last heartbeat was before the death; the core looks every tick.
        return self.died_ns + wait_ns + self.stalled_ns + grace_ns + TICK_NS


class StallMachine(RuleBasedStateMachine):
    """
    A core that stalls again and again, clients with any leases, some of which die.

    The living are heard from a moment after the core runs again, and never before what
    time does: so the worst that a shell may do.
    """

    @initialize()
    def begin(self) -> None:
        """Start with a leader and its successor."""
        self.stage = Stage(session_count_max=99, contender_count_max=99)
        self.session_count = 0
        self.living: dict[str, None] = {}
        self.dead: dict[str, Dead] = {}
        self.beaten_ns: dict[str, int] = {}
        for _ in range(2):
            self.arrive(lease_ns=100)

    @rule(lease_ns=st.sampled_from(LEASES_NS))
    def arrive(self, lease_ns: int) -> None:
        """A client comes, and contends."""
        session_id = f"s{self.session_count}"
        self.session_count += 1
        self.stage.open(session_id, lease_ns=lease_ns, session_timeout_ns=TIMEOUT_NS)
        self.stage.register(session_id)
        self.living[session_id] = None
        self.beaten_ns[session_id] = self.stage.now_ns

    @precondition(lambda self: len(self.living) > 1)
    @rule(data=st.data(), is_known=st.booleans())
    def die(self, data: st.DataObject, is_known: bool) -> None:
        """A client dies; its connection closes, or the server hears nothing of that."""
        session_id = data.draw(st.sampled_from(list(self.living)), label="who")
        session = self.stage.core.session(session_id)
        assert session is not None
        del self.living[session_id]
        self.dead[session_id] = Dead(
            died_ns=self.stage.now_ns, lease_ns=session.lease_ns, is_known=is_known
        )
        if is_known:
            self.take(self.stage.step(ConnectionClosed(session_id=session_id)))

    @rule(stalled_ns=st.one_of(st.integers(0, 60), st.integers(60, 3_000)))
    def stall(self, stalled_ns: int) -> None:
        """The core is not run, though it asked to be; then time comes first."""
        due_ns = self.stage.core.next_deadline_ns()
        assert due_ns is not None
        self.stage.now_ns = max(self.stage.now_ns, due_ns) + stalled_ns
        for dead in self.dead.values():
            dead.stalled_ns += stalled_ns
        self.take(self.stage.step(TimePassed()))
        self.run(BEAT_NS)

    @rule(duration_ns=st.integers(1, 200))
    def run(self, duration_ns: int) -> None:
        """The core runs as it asks to, and hears the living."""
        until_ns = self.stage.now_ns + duration_ns
        while self.stage.now_ns < until_ns:
            due_ns = self.stage.core.next_deadline_ns()
            assert due_ns is not None
            beats_ns = min(self.beaten_ns[name] + BEAT_NS for name in self.living)
            self.stage.now_ns = max(
                self.stage.now_ns, min(due_ns, max(beats_ns, 0), until_ns)
            )
            self.take(self.stage.step(TimePassed()))
            for session_id in self.living:
                if self.stage.now_ns >= self.beaten_ns[session_id] + BEAT_NS:
                    self.beaten_ns[session_id] = self.stage.now_ns
                    self.take(self.stage.beat(session_id))

    def take(self, effects: tuple[object, ...]) -> None:
        """E9: whose client lives keeps its session, however the core stalls."""
        for effect in effects:
            if isinstance(effect, CloseSession):
                assert effect.session_id in self.dead
                del self.dead[effect.session_id]

    @invariant()
    def the_dead_are_gone_in_time(self) -> None:
        """E5, E9: lease + stalls + a lease, or timeout + stalls + a lease."""
        for session_id, dead in self.dead.items():
            assert self.stage.now_ns < dead.bound_ns(), session_id

    @invariant()
    def somebody_leads(self) -> None:
        """E1: once the dead are gone and a lease has passed, a living one leads."""
        component = self.stage.core.component(JOB)
        assert component is not None
        if not self.dead and component.barrier_ns <= self.stage.core._now_ns:
            assert component.leadership is not None
            assert component.leadership.session_id in self.living


TestStallMachine = pytest.mark.proves("E1", "E5", "E9")(StallMachine.TestCase)
TestStallMachine.settings = machine_settings(examples=150, steps=40)
