from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from retrieval.core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    PublicationReceived,
    RetrieverCore,
)
from retrieval.information import LeaderInformation, Publication
from tests.tiers import machine_settings


if TYPE_CHECKING:
    from retrieval.core import RetrieverEvent


class RetrieverMachine(RuleBasedStateMachine):
    """
    One holder after the other confirms; a network loses, repeats and reorders it.

    The model is a list of everything ever published, in order, and of everything
    that reached the core: what the core should hold is the latest of those.
    """

    @initialize(clears_on_suspended=st.booleans())
    def begin(self, clears_on_suspended: bool) -> None:
        """Start with a name service without a leader so far."""
        self.clears_on_suspended = clears_on_suspended
        self.core = RetrieverCore(clears_on_suspended=clears_on_suspended)
        self.history: list[Publication] = []
        self.arrived: set[int] = set()
        self.contact = "lost"
        self.notified: list[LeaderInformation | None] = []
        self.epoch = 0
        self.confirm_count = 0
        self.is_led = False

    def publish(self, leader: LeaderInformation | None) -> None:
        """Append to the history what the name service would publish now."""
        self.history.append(
            Publication(
                epoch=self.epoch,
                confirm_count=0 if leader is None else self.confirm_count,
                leader=leader,
            )
        )

    def step(self, event: RetrieverEvent) -> None:
        """Hand *event* to the core, and write down what it tells."""
        self.notified += [effect.leader for effect in self.core.step(event)]

    @rule(address=st.sampled_from(["a:1", "b:1"]), gap=st.integers(1, 3))
    def succeed(self, address: str, gap: int) -> None:
        """A new leader is granted and confirms."""
        self.epoch += gap
        self.confirm_count = 1
        self.is_led = True
        self.publish(self.leader(address))

    @rule(address=st.sampled_from(["a:1", "b:1"]))
    def confirm_again(self, address: str) -> None:
        """The leader confirms once more, perhaps under another address."""
        if self.is_led:
            self.confirm_count += 1
            self.publish(self.leader(address))

    @rule()
    def end(self) -> None:
        """The leadership ends."""
        if self.is_led:
            self.is_led = False
            self.publish(None)

    @rule(data=st.data())
    def receive_anything_ever_published(self, data: st.DataObject) -> None:
        """A broadcast arrives: late, repeated, or after others were lost."""
        if self.history:
            index = data.draw(st.integers(0, len(self.history) - 1), label="which")
            self.arrived.add(index)
            self.step(PublicationReceived(publication=self.history[index]))

    @rule(data=st.data())
    def restore_contact(self, data: st.DataObject) -> None:
        """The name service answers; its answer may be overtaken by newer news."""
        self.contact = "connected"
        if not self.history:
            self.step(ContactRestored(publication=None))
            return
        index = data.draw(st.integers(0, len(self.history) - 1), label="which")
        self.arrived.add(index)
        self.step(ContactRestored(publication=self.history[index]))

    @rule()
    def suspend_contact(self) -> None:
        """The name service is not heard from."""
        if self.contact == "connected":
            self.contact = "suspended"
        self.step(ContactSuspended())

    @rule()
    def lose_contact(self) -> None:
        """The session is over."""
        self.contact = "lost"
        self.step(ContactLost())

    @invariant()
    def holds_the_latest_that_arrived(self) -> None:
        """R3, R4: the core holds what a list with an index would hold."""
        is_hidden = self.contact == "lost" or (
            self.contact == "suspended" and self.clears_on_suspended
        )
        if is_hidden or not self.arrived:
            expected = None
        else:
            expected = self.history[max(self.arrived)].leader
        assert self.core.told == expected

    @invariant()
    def never_tells_the_same_twice(self) -> None:
        """R1, R2: each notification differs from the one before; None is not first."""
        previous: LeaderInformation | None = None
        for leader in self.notified:
            assert leader != previous
            previous = leader
        assert previous == self.core.told

    @invariant()
    def never_goes_back(self) -> None:
        """R3: the epochs it tells never fall."""
        epochs = [leader.epoch for leader in self.notified if leader is not None]
        assert epochs == sorted(epochs)

    def leader(self, address: str) -> LeaderInformation:
        """Return the leader of the present epoch."""
        return LeaderInformation(
            address=address,
            leader_session_id=UUID(int=self.epoch),
            epoch=self.epoch,
        )


TestRetrieverMachine = pytest.mark.proves("R1", "R2", "R3", "R4")(
    RetrieverMachine.TestCase
)
TestRetrieverMachine.settings = machine_settings()
