"""Who looks for a leader, while the storage hangs or fails, and after a crash."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from election.holder import Ended, HolderCore
from leaderserver.client.core.events import DeliverToRetriever, RetrieverAdded
from leaderserver.client.core.exchanges import Purpose
from leaderserver.client.core.outbox import ClientOutbox
from leaderserver.client.core.subscriptions import ClientSubscriptions
from leaderserver.message_parts import ClaimRecord, PublicationRecord
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    Published,
    RegisterRequest,
    Reply,
    Revoked,
    SnapshotReply,
    ToClient,
    WithdrawRequest,
)
from leaderserver.server.core.turn import Outgoing
from leaderserver.server.storage import MemoryStorage
from nameservice import StorageError
from retrieval.core import RetrieverCore
from tests.leaderserver.conversation import (
    JOB,
    OBSERVER,
    Talker,
    confirm,
    register,
    subscribe,
)
from tests.leaderserver.server.slow_conversation import (
    SlowConversation,
    granted,
    lead,
    talker,
)
from zmqtransport import ANONYMOUS
from zmqtransport.access import Principal


CLAIMED = 6 << 32 | 1
NO_ROOM = StorageError("no room")
LEASES_20 = 200


def claiming(contender_id: str, leader_session_id: UUID, epoch: int) -> RegisterRequest:
    """Return the request of one that led, at ``h:1``, under an earlier server."""
    return RegisterRequest(
        component_id=JOB,
        contender_id=contender_id,
        confirm_timeout_ns=500,
        ticket=None,
        epoch_ended=0,
        claim=ClaimRecord(
            leader_session_id=leader_session_id,
            epoch=epoch,
            confirm_count=1,
            address="h:1",
        ),
    )


def of_before(epoch: int) -> Published:
    """Return what an earlier server has said of a leader, at ``h:1``."""
    publication = PublicationRecord(
        epoch=epoch, confirm_count=1, address="h:1", leader_session_id=UUID(int=epoch)
    )
    return Published(
        component_id=JOB, revision=1, publication=publication, incarnation=epoch >> 32
    )


def news(sent: Iterable[Outgoing | ToClient]) -> list[Published]:
    """Return what is published in *sent*."""
    found = [getattr(item, "message", item) for item in sent]
    return [message for message in found if isinstance(message, Published)]


class Listener:
    """A retriever of the job, by the code of the client."""

    def __init__(self, who: Talker) -> None:
        self._who = who
        self._outbox = ClientOutbox(now_ns=0, lease_ns=100, session_timeout_ns=1_000)
        self._outbox.has_session = True
        self._all = ClientSubscriptions(self._outbox)
        self._core = RetrieverCore(clears_on_suspended=False)
        self._has_asked = False
        self._all.add(
            RetrieverAdded(retriever_id=1, component_id=JOB), has_contact=True
        )
        self._take()

    @property
    def address(self) -> str | None:
        """Where it takes the leader to be."""
        return None if self._core.told is None else self._core.told.address

    def ask(self) -> None:
        """Ask who leads; what is sent besides the answer comes later."""
        self._has_asked = True
        sent = self._who.say(self._all.subscribe_request(JOB))
        replies = [m.message for m in sent if isinstance(m.message, Reply)]
        (snapshot,) = [m.body for m in replies if isinstance(m.body, SnapshotReply)]
        self._all.take_snapshot(JOB, snapshot, has_contact=True)
        self._take()

    def hear(self, published: Iterable[Published], *, is_numbered: bool = True) -> None:
        """Take what was broadcast."""
        for message in published:
            self._all.take_broadcast(message, is_numbered=is_numbered)
        self._take()
        self._ask_if_due()

    def heartbeat(self) -> None:
        """Learn what was missed."""
        (sent,) = self._who.heartbeat()
        assert isinstance(sent.message, Reply)
        assert isinstance(sent.message.body, AcknowledgedHeartbeat)
        self._all.take_revisions(sent.message.body.revisions)
        self._ask_if_due()

    def _ask_if_due(self) -> None:
        """Ask if the client would; its first question is sent by `ask`."""
        is_due = self._outbox.exchanges.end((Purpose.SUBSCRIBE, JOB)) is not None
        if is_due and self._has_asked:
            self.ask()

    def _take(self) -> None:
        for effect in self._outbox.take():
            if isinstance(effect, DeliverToRetriever):
                self._core.step(effect.event)


@pytest.mark.proves("E2", "R3")
@pytest.mark.parametrize("principal", [ANONYMOUS, OBSERVER], ids=["contend", "observe"])
@pytest.mark.parametrize("disk", ["fails", "hangs", "works"])
def test_the_end_of_a_recorded_epoch_is_told(principal: Principal, disk: str) -> None:
    """Its broadcast is lost, and that of its beginning is late."""
    slow = SlowConversation()
    alice, carol, other = (talker(slow, name) for name in ("alice", "carol", "other"))
    other.say(subscribe())
    bob = Talker(slow, "bob", principal)
    bob.hello()
    listener = Listener(bob)  # its topic is joined, its question on the way
    first = lead(slow, alice, "x")
    late = news(alice.say(confirm(first.affirmation)))
    carol.say(register("y"))
    lost = news(alice.say(WithdrawRequest(component_id=JOB, contender_id="x")))
    assert len(late) == len(lost) == 1
    if disk == "fails":
        slow.work(NO_ROOM)
    listener.ask()
    listener.hear(late)
    if disk == "works":
        granted(slow.work())  # carol takes her time to confirm
    for _ in range(40):
        carol.heartbeat()
        other.heartbeat()
        slow.advance(10)
        if disk == "fails":
            slow.work(NO_ROOM)
        listener.heartbeat()
    assert listener.address is None


@pytest.mark.proves("E2", "E9")
@pytest.mark.parametrize("is_claim_recorded", [False, True])
def test_the_end_of_a_claim_is_told(is_claim_recorded: bool) -> None:
    """Its successor cannot be recorded."""
    slow = SlowConversation(undecided_ns=100)
    alice, carol, bob = (talker(slow, name) for name in ("alice", "carol", "bob"))
    alice.say(claiming("x", UUID(int=5), CLAIMED))
    carol.say(register("y"))
    while slow.service.core.is_undecided:
        for who in (alice, carol, bob):
            who.heartbeat()
        slow.advance(10)
    listener = Listener(bob)
    listener.ask()
    assert listener.address == "h:1", "a claim is known while it is being recorded"
    if is_claim_recorded:
        slow.take_work()
    listener.hear(news(alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))))
    if is_claim_recorded:
        listener.hear(news(slow.work_once()))
    for _ in range(LEASES_20):
        listener.hear(news(slow.work(NO_ROOM)))
        listener.hear(news([*carol.heartbeat(), *slow.advance(10)]))
        listener.heartbeat()
    assert listener.address is None


@pytest.mark.proves("E2", "R3")
def test_what_two_have_heard_of_earlier_leaders_is_over() -> None:
    """One reports a lower epoch than the other hears of, late."""
    slow = SlowConversation()
    alice, bob, dave = (talker(slow, name) for name in ("alice", "bob", "dave"))
    listener = Listener(dave)
    listener.ask()
    alice.say(register("x"))
    slow.work(NO_ROOM)
    other = Listener(bob)
    other.hear([of_before(CLAIMED)], is_numbered=False)
    other.ask()
    listener.hear([of_before(CLAIMED + 1)], is_numbered=False)
    assert other.address is None
    assert listener.address is None


@pytest.mark.proves("E2", "R3")
@pytest.mark.parametrize("disk", ["fails", "hangs"])
def test_what_comes_late_from_an_earlier_server_is_asked_about(disk: str) -> None:
    """Its own report was answered under a lower epoch: no revision tells of more."""
    slow = SlowConversation()
    alice, dave = talker(slow, "alice"), talker(slow, "dave")
    listener = Listener(dave)
    listener.hear([of_before(CLAIMED)], is_numbered=False)
    alice.say(register("x"))
    listener.ask()
    assert listener.address is None
    listener.hear([of_before(CLAIMED + 1)], is_numbered=False)
    for _ in range(LEASES_20):
        if disk == "fails":
            listener.hear(news(slow.work(NO_ROOM)))
        listener.hear(news([*alice.heartbeat(), *slow.advance(10)]))
        listener.heartbeat()
    assert listener.address is None


@pytest.mark.proves("E2", "E9")
@pytest.mark.parametrize("fails", [False, True])
def test_a_late_claim_is_refused_at_once(fails: bool) -> None:
    """Another's grant waits for its record."""
    slow = SlowConversation()
    alice, bob = talker(slow, "alice"), talker(slow, "bob")
    alice.say(register("x"))
    sent: list[Outgoing | ToClient] = [*bob.say(claiming("y", UUID(int=5), CLAIMED))]
    sent += slow.work(NO_ROOM if fails else None)
    told = [getattr(item, "message", item) for item in sent]
    revoked = [message for message in told if isinstance(message, Revoked)]
    assert [message.affirmation.epoch for message in revoked] == [CLAIMED]


@pytest.mark.proves("E2", "E9")
def test_who_is_granted_in_vain_is_told_nothing() -> None:
    """Its word would keep the leader of before a crash from being reinstated."""
    slow = SlowConversation()
    alice, bob = talker(slow, "alice"), talker(slow, "bob")
    first = lead(slow, bob, "y").affirmation
    bob.say(confirm(first))
    alice.say(register("x"))
    heard = HolderCore(clears_on_suspended=False)
    for _ in range(LEASES_20):  # bob is cut off
        alice.heartbeat()
        for message in [*slow.advance(10), *slow.work(NO_ROOM)]:
            revoked = getattr(message, "message", message)
            if isinstance(revoked, Revoked) and revoked.session_id == alice.session_id:
                heard.step(Ended(epoch=revoked.affirmation.epoch), now_ns=0)
    assert isinstance(slow.storage, MemoryStorage)
    assert slow.storage.recorded_epochs() == {JOB: first.epoch}
    assert heard.ended_epoch_max == 0
    again = SlowConversation(undecided_ns=100, storage=slow.storage, incarnation=8)
    bob = talker(again, "bob")
    bob.say(claiming("y", first.leader_session_id, first.epoch))
    while again.service.core.is_undecided:
        bob.heartbeat()
        again.advance(10)
    publication = again.service.core.publication(JOB)
    assert publication is not None
    assert publication.leader is not None


@pytest.mark.proves("N3")
def test_those_that_are_gone_do_not_gather() -> None:
    """N3: whose epochs could not be recorded, job after job, are forgotten."""
    slow = SlowConversation()
    alice = talker(slow, "alice")
    for number in range(500):
        name = f"c/job{number}"
        alice.say(register("x", name))
        slow.work(NO_ROOM)
        alice.say(WithdrawRequest(component_id=name, contender_id="x"))
        alice.heartbeat()
        slow.advance(10)
    assert len(slow.service._steps._hindered) < 250
