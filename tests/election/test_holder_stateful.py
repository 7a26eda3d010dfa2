from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from election.contender import LeaderSession
from election.holder import (
    AcknowledgeRevocation,
    Affirmed,
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
from tests.tiers import machine_settings


if TYPE_CHECKING:
    from election.holder import HolderEffect, HolderEvent


LEASE_NS = 10


class HolderMachine(RuleBasedStateMachine):
    """
    A name service grants, affirms and ends; a network delays and repeats its words.

    The model keeps the history of what was said, and answers each question by looking
    through all of it.
    """

    @initialize(clears_on_suspended=st.booleans())
    def begin(self, clears_on_suspended: bool) -> None:
        """Start with a contender that was never granted anything."""
        self.clears_on_suspended = clears_on_suspended
        self.core = HolderCore(clears_on_suspended=clears_on_suspended)
        self.now_ns = 0
        self.granted: list[LeaderSession] = []
        self.said: list[Affirmed] = []
        # What the model concludes:
        self.over: set[int] = set()
        self.held: LeaderSession | None = None
        self.is_told = False
        self.until_ns = 0
        self.confirm_count = 0
        # What the contender and the name service were told:
        self.deliveries: list[DeliverGrant | DeliverRevoke] = []
        self.callbacks_under_way = 0
        self.acknowledged: list[LeaderSession] = []

    def step(self, event: HolderEvent) -> tuple[HolderEffect, ...]:
        """Hand *event* to the core; take note of whom it tells what."""
        effects = self.core.step(event, now_ns=self.now_ns)
        for effect in effects:
            match effect:
                case DeliverGrant():
                    self.deliveries.append(effect)
                case DeliverRevoke():
                    self.deliveries.append(effect)
                    self.callbacks_under_way += 1
                case AcknowledgeRevocation(session=session):
                    assert self.callbacks_under_way == 0
                    assert session.epoch in self.over
                    assert session not in self.acknowledged
                    self.acknowledged.append(session)
                case SendConfirm() | RefuseConfirm():
                    assert isinstance(event, ConfirmRequested)
        return effects

    def forget(self, epoch: int) -> None:
        """Conclude that every leadership up to *epoch* is over."""
        self.over |= set(range(epoch + 1))
        if self.held is not None and self.held.epoch in self.over:
            self.held = None
            self.is_told = False

    @rule(duration_ns=st.integers(0, 2 * LEASE_NS))
    def wait(self, duration_ns: int) -> None:
        """Time passes; the core is not even told."""
        self.now_ns += duration_ns

    @precondition(lambda self: self.is_told and self.until_ns > self.now_ns)
    @rule(early_ns=st.sampled_from([0, 1]))
    def wait_for_the_deadline(self, early_ns: int) -> None:
        """Time passes up to the end of belief, or to just before it."""
        self.now_ns = self.until_ns - early_ns

    @rule(gap=st.integers(1, 2))
    def grant(self, gap: int) -> None:
        """The name service grants a new leadership, and perhaps it is heard later."""
        last = self.granted[-1].epoch if self.granted else 0
        epoch = last + gap
        self.granted.append(
            LeaderSession(leader_session_id=UUID(int=epoch), epoch=epoch)
        )

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), sent_ago_ns=st.integers(0, LEASE_NS + 2))
    def affirm(self, data: st.DataObject, sent_ago_ns: int) -> None:
        """An acknowledgement arrives, naming any leadership that ever was."""
        session = data.draw(st.sampled_from(self.granted), label="which")
        self.said.append(
            Affirmed(session=session, until_ns=self.now_ns - sent_ago_ns + LEASE_NS)
        )
        self.hear(self.said[-1])

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def affirm_late_or_twice(self, data: st.DataObject) -> None:
        """What was said before arrives once more."""
        self.hear(data.draw(st.sampled_from(self.said), label="which"))

    def hear(self, event: Affirmed) -> None:
        """Tell the model and the core of *event*."""
        session = event.session
        is_news = (
            session.epoch not in self.over
            and event.until_ns > self.now_ns
            and (self.held is None or session.epoch >= self.held.epoch)
        )
        if is_news:
            if session != self.held:
                self.forget(session.epoch - 1)
                self.held = session
                self.confirm_count = 0
            if not self.is_told:
                self.until_ns = 0
            self.is_told = True
            self.until_ns = max(self.until_ns, event.until_ns)
        self.step(event)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """The name service says that some leadership is over."""
        newest = self.granted[-1].epoch if self.granted else 0
        epoch = data.draw(st.integers(0, newest + 1), label="epoch")
        if epoch > newest:
            # It was granted, and ended before this contender heard of it.
            self.grant(1)
        self.forget(epoch)
        self.step(Ended(epoch=epoch))

    @rule()
    def suspend(self) -> None:
        """The name service is not heard from."""
        if self.clears_on_suspended:
            self.is_told = False
        self.step(Suspended())

    @rule()
    def lose(self) -> None:
        """The session may be over."""
        self.is_told = False
        self.step(Lost())

    @precondition(lambda self: self.callbacks_under_way)
    @rule()
    def return_from_revoke(self) -> None:
        """The contender has left one leadership."""
        self.callbacks_under_way -= 1
        self.step(RevokeDelivered())

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        """The contender confirms what it was granted, now or earlier."""
        session = data.draw(st.sampled_from(self.granted), label="which")
        effects = self.step(
            ConfirmRequested(leader_session_id=session.leader_session_id, address="a:1")
        )
        if self.is_told and session == self.held:
            self.confirm_count += 1
            assert effects == (
                SendConfirm(
                    session=session, confirm_count=self.confirm_count, address="a:1"
                ),
            )
        else:
            assert effects == (RefuseConfirm(),)

    @invariant()
    def believes_what_the_history_says(self) -> None:
        """E4: belief is the clock, and the latest leadership that was not ended."""
        for session in self.granted:
            assert self.core.believes(
                session.leader_session_id, now_ns=self.now_ns
            ) == (self.is_told and session == self.held and self.now_ns < self.until_ns)
            assert self.core.believes(
                session.leader_session_id, now_ns=self.now_ns
            ) == (
                self.core.belief_left_ns(session.leader_session_id, now_ns=self.now_ns)
                > 0
            )

    @invariant()
    def keeps_the_claim_until_the_name_service_ends_it(self) -> None:
        """E5: a local loss revokes, and gives nothing up."""
        claim = self.core.claim
        assert (None if claim is None else claim.session) == self.held
        assert (0 if claim is None else claim.confirm_count) == (
            0 if self.held is None else self.confirm_count
        )

    @invariant()
    def grant_and_revoke_alternate(self) -> None:
        """E6: a grant first, then strictly in turn, each revoke of what was granted."""
        for index, delivery in enumerate(self.deliveries):
            if index % 2 == 0:
                assert isinstance(delivery, DeliverGrant)
            else:
                granted = self.deliveries[index - 1]
                assert delivery == DeliverRevoke(session=granted.session)
        assert len(self.deliveries) % 2 == int(self.is_told)

    @invariant()
    def epochs_never_fall(self) -> None:
        """E2: what is granted rises; only the same leadership is granted again."""
        granted = [
            delivery.session
            for delivery in self.deliveries
            if isinstance(delivery, DeliverGrant)
        ]
        epochs = [session.epoch for session in granted]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) == len(set(granted))


TestHolderMachine = pytest.mark.proves("E2", "E4", "E5", "E6")(HolderMachine.TestCase)
TestHolderMachine.settings = machine_settings()
