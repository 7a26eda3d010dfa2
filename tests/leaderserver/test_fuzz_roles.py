"""N4, by role: what a stranger may say changes nothing for who contends."""

from __future__ import annotations

import random
from typing import Final
from uuid import UUID

import pytest

from leaderserver.message_parts import AffirmationRecord, ClaimRecord
from leaderserver.messages import (
    BatchRequest,
    CloseSessionRequest,
    ConfirmRequest,
    Granted,
    HeartbeatRequest,
    Hello,
    RegisterRequest,
    RequestBody,
    RevocationFinishedRequest,
    SubscribeRequest,
    ToClient,
    UnsubscribeRequest,
    WithdrawRequest,
)
from leaderserver.operator_messages import (
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
    RevokeRequest,
    SessionsRequest,
    StatusRequest,
    TransferRequest,
)
from leaderserver.server.core.turn import Outgoing, Send
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    DeleteRecord,
    GetRequest,
    ListRequest,
    PutRecord,
    UnwatchStoreRequest,
    WatchStoreRequest,
)
from tests.leaderserver.conversation import (
    CONTENDER_OF_ANOTHER,
    JOB,
    OBSERVER,
    Conversation,
    Talker,
    confirm,
    register,
    subscribe,
)
from zmqtransport import ANONYMOUS, Principal


ROUND_NS: Final = 10
ROUND_COUNT: Final = 60
DEATH_ROUND: Final = 30


class Play:
    """
    Alice leads, dies, and Bob succeeds her; strangers do what they can.

    Args:
        principal: What the strangers are.
        rng: Draws what they say; None keeps them silent.
    """

    def __init__(self, principal: Principal, rng: random.Random | None) -> None:
        self.conversation = Conversation()
        self.principal = principal
        self.rng = rng
        # What Alice and Bob are told, and when.
        self.told: list[tuple[int, object, ToClient]] = []
        self.beaten: dict[str, int] = {}
        self.alice = self.arrive("alice", ANONYMOUS)
        self.bob = self.arrive("bob", ANONYMOUS)
        self.affirmation = self.lead(self.alice)
        self.take(self.bob.say(register("bob's")))
        self.take(self.bob.say(subscribe()))
        self.strangers = [self.arrive(f"stranger {i}", principal) for i in range(3)]

    def arrive(self, name: str, principal: Principal) -> Talker:
        """Return a client that has a session."""
        talker = Talker(self.conversation, name, principal)
        self.take(talker.hello(session_timeout_ns=300, lease_ns=100))
        return talker

    def lead(self, talker: Talker) -> AffirmationRecord:
        """Make *talker* lead, confirmed."""
        outgoing = talker.say(register("alice's"))
        self.take(outgoing)
        (granted,) = (o.message for o in outgoing if isinstance(o.message, Granted))
        self.take(talker.say(confirm(granted.affirmation)))
        return granted.affirmation

    def beat(self, talker: Talker) -> list[Outgoing]:
        """Send a heartbeat that names the one before."""
        before = self.beaten.get(talker.name, 0)
        outgoing = talker.say(HeartbeatRequest(acknowledged=before))
        self.beaten[talker.name] = talker.number
        return outgoing

    def take(self, outgoing: list[Outgoing]) -> None:
        """Write down what concerns those who contend."""
        for item in outgoing:
            peer = item.peer if isinstance(item, Send) else "everybody"
            if peer in ("alice", "bob", "everybody"):
                self.told.append((self.conversation.now_ns, peer, item.message))

    def run(self) -> Play:
        """Have everything happen."""
        for number in range(ROUND_COUNT):
            self.take(self.conversation.advance(ROUND_NS))
            if number < DEATH_ROUND:
                self.take(self.beat(self.alice))
            elif number == DEATH_ROUND:
                now_ns = self.conversation.now_ns
                self.take(
                    list(
                        self.conversation.service.connection_closed(
                            "connection of alice", now_ns=now_ns
                        )
                    )
                )
            self.take(self.beat(self.bob))
            if self.rng is not None:
                self.speak(self.rng)
        return self

    def speak(self, rng: random.Random) -> None:
        """Have strangers say something."""
        for index, stranger in enumerate(self.strangers):
            if rng.random() < 0.2:
                self.take(self.greet(stranger, rng))
            body = self.body(rng)
            if rng.random() < 0.2:
                body = BatchRequest(bodies=[self.register(rng), self.subscription(rng)])
            self.take(stranger.say(body))
            if rng.random() < 0.05:
                self.strangers[index] = self.arrive(
                    f"{stranger.name} again {self.conversation.now_ns}", self.principal
                )

    def greet(self, stranger: Talker, rng: random.Random) -> list[Outgoing]:
        """Ask for one more session, with the shortest times or the longest."""
        hello = Hello(
            nonce=rng.randbytes(16),
            session_timeout_ns=rng.choice((1, 2**62)),
            lease_ns=rng.choice((1, 2**62)),
            client="",
        )
        return stranger._receive(hello)

    def subscription(self, rng: random.Random) -> SubscribeRequest:
        """Return a report of any epoch."""
        epoch = self.affirmation.epoch
        return SubscribeRequest(
            component_id=JOB,
            epoch_seen=rng.choice((epoch - 1, epoch, epoch + 1, epoch + 2**32, 2**62)),
            is_ended_seen=rng.random() < 0.5,
        )

    def register(self, rng: random.Random) -> RegisterRequest:
        """Return a registration that claims any epoch, before everybody else."""
        epoch = self.affirmation.epoch
        claim = ClaimRecord(
            leader_session_id=UUID(int=rng.randrange(2**64)),
            epoch=epoch + rng.choice((0, 1, 2**32)),
            confirm_count=9,
            address="evil:666",
        )
        return RegisterRequest(
            component_id=JOB,
            contender_id=rng.choice(("alice's", "bob's", "evil")),
            confirm_timeout_ns=2**62,
            ticket=0,
            epoch_ended=rng.choice((0, epoch, epoch + 1)),
            claim=rng.choice((None, claim)),
        )

    def body(self, rng: random.Random) -> RequestBody:
        """Return any request, aimed at Alice, Bob and what they contend for."""
        contender_id = rng.choice(("alice's", "bob's"))
        session_id = rng.choice((self.alice.session_id, self.bob.session_id))
        epoch = self.affirmation.epoch
        leader_session_id = self.affirmation.leader_session_id
        bodies: list[RequestBody] = [
            HeartbeatRequest(acknowledged=rng.randrange(9)),
            self.register(rng),
            self.subscription(rng),
            UnsubscribeRequest(component_id=JOB),
            WithdrawRequest(component_id=JOB, contender_id=contender_id),
            RevocationFinishedRequest(
                component_id=JOB, contender_id=contender_id, epoch=epoch
            ),
            ConfirmRequest(
                component_id=JOB,
                contender_id=contender_id,
                leader_session_id=leader_session_id,
                confirm_count=1_000,
                address="evil:666",
            ),
            CommitRequest(
                component_id=JOB,
                leader_session_id=leader_session_id,
                epoch=epoch,
                operations=[
                    PutRecord(path="evil", value=b"evil", version=None),
                    DeleteRecord(path="good", version=None),
                ],
            ),
            CleanupRequest(component_id=JOB),
            CloseSessionRequest(),
            RevokeRequest(component_id=JOB),
            TransferRequest(component_id=JOB, contender_id=contender_id),
            ExpireRequest(session_id=session_id),
            ContendersRequest(component_id=JOB),
            GetRequest(component_id=JOB, path="good"),
            ListRequest(component_id=JOB, prefix="", after=""),
            WatchStoreRequest(component_id=JOB, incarnation_seen=0, revision_seen=None),
            UnwatchStoreRequest(component_id=JOB),
            LeadersRequest(prefix="", after=""),
            SessionsRequest(after=""),
            StatusRequest(),
        ]
        return rng.choice(bodies)


@pytest.mark.proves("N4")
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize(
    "principal", [OBSERVER, CONTENDER_OF_ANOTHER], ids=["observe", "contend:other"]
)
def test_strangers_change_nothing(principal: Principal, seed: int) -> None:
    """N4: no leadership ends, none begins later; all is told as if they were silent."""
    quiet = Play(principal, None).run()
    loud = Play(principal, random.Random(seed)).run()
    assert loud.told == quiet.told
    core = quiet.conversation.service.core
    component = core.component(JOB)
    assert component is not None
    assert component.leadership is not None
    assert component.leadership.contender_id == "bob's"
    assert loud.conversation.storage.list(JOB, "", after="", count_max=9) == []
