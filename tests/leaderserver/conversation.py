"""
A `LeaderService` to talk to: its clock is set by hand, its secrets are numbers.

Times are tens and hundreds of nanoseconds: a lease is 100 of them, a session 1,000.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from uuid import UUID

from election.config import ElectionConfig
from election.epochs import IncarnationEpochs
from leaderserver.message_parts import AffirmationRecord, PublicationRecord
from leaderserver.messages import (
    ConfirmRequest,
    FailedReply,
    Granted,
    HeartbeatRequest,
    Hello,
    Published,
    RegisterRequest,
    Reply,
    ReplyBody,
    Request,
    RequestBody,
    SubscribeRequest,
    Welcome,
)
from leaderserver.server.core.turn import Broadcast, Outgoing, Send
from leaderserver.server.service import LeaderService
from leaderserver.server.service_config import ServiceConfig
from leaderserver.server.storage import LeaderStorage, MemoryStorage
from leaderserver.store_messages import CommitRequest, PutRecord
from zmqtransport import ANONYMOUS, Principal


JOB = "c/job"
EPOCH = 7 << 32
TICKET = 7 << 32

OBSERVER = Principal(name="olga", roles=frozenset({"observe"}), public_key="o" * 40)
CONTENDER_OF_ANOTHER = Principal(
    name="cora", roles=frozenset({"contend:other*"}), public_key="a" * 40
)
CONTENDER = Principal(
    name="carl", roles=frozenset({"contend:job"}), public_key="c" * 40
)


class Conversation:
    """A service, a clock that is set by hand, and secrets that anybody can guess."""

    def __init__(
        self,
        *,
        undecided_ns: int = 0,
        storage: LeaderStorage | None = None,
        session_count_max: int = 9,
        contender_count_max: int = 9,
        component_count_max: int = 9,
        subscription_count_max: int = 9,
        state_bytes_max: int = 2**50,
        incarnation: int = 7,
        is_storage_apart: bool = False,
    ) -> None:
        self.now_ns = 0
        self._drawn = itertools.count(1)
        self.storage = MemoryStorage() if storage is None else storage
        self.service = LeaderService(
            ServiceConfig(
                lease_ns_min=10,
                lease_ns_max=200,
                session_timeout_ns_min=50,
                session_timeout_ns_max=2_000,
                subscription_count_max=subscription_count_max,
                state_bytes_max=state_bytes_max,
                publish_port=5171,
                publish_address="tcp://example.org:5171",
            ),
            ElectionConfig(
                namespace=UUID(int=1),
                undecided_ns=undecided_ns,
                session_count_max=session_count_max,
                contender_count_max=contender_count_max,
                component_count_max=component_count_max,
                tick_ns=20,
            ),
            epochs=IncarnationEpochs(incarnation, started_ns=0),
            storage=self.storage,
            draw_secret=lambda size: next(self._drawn).to_bytes(size, "big"),
            now_ns=0,
            is_storage_apart=is_storage_apart,
        )

    def advance(self, duration_ns: int) -> list[Outgoing]:
        """Move time on, deadline by deadline, as a shell would."""
        until_ns = self.now_ns + duration_ns
        outgoing: list[Outgoing] = []
        while True:
            deadline_ns = self.service.next_deadline_ns()
            if deadline_ns is None or deadline_ns > until_ns:
                self.now_ns = until_ns
                return outgoing
            self.now_ns = max(self.now_ns, deadline_ns)
            outgoing += self.service.advance(now_ns=self.now_ns)
            self.service.core.check_invariants()


class Talker:
    """One client: it says things, and gets back whatever the service sends."""

    def __init__(
        self, conversation: Conversation, name: str, principal: Principal = ANONYMOUS
    ) -> None:
        self.conversation = conversation
        self.name = name
        self.principal = principal
        self.secret = b""
        self.session_id = ""
        self.number = 0

    def hello(
        self, *, session_timeout_ns: int = 1_000, lease_ns: int = 100
    ) -> list[Outgoing]:
        """Ask for a session; keep what comes with it."""
        hello = Hello(
            nonce=self.name.encode().ljust(16, b"."),
            session_timeout_ns=session_timeout_ns,
            lease_ns=lease_ns,
            client=self.name,
        )
        outgoing = self._receive(hello)
        for item in outgoing:
            if isinstance(item, Send) and isinstance(item.message, Welcome):
                self.secret = item.message.secret
                self.session_id = item.message.session_id
        return outgoing

    def say(self, body: RequestBody, *, number: int | None = None) -> list[Outgoing]:
        """Say *body* under the next number; return all that is sent to anybody."""
        if number is None:
            self.number += 1
            number = self.number
        return self._receive(Request(secret=self.secret, number=number, body=body))

    def answer(self, body: RequestBody) -> ReplyBody:
        """Say *body*; return the one answer, which must be all that is sent."""
        (sent,) = self.say(body)
        assert isinstance(sent, Send)
        assert sent.peer == self.name
        assert isinstance(sent.message, Reply)
        assert sent.message.number == self.number
        return sent.message.body

    def reply(self, body: ReplyBody) -> Send:
        """Return *body* as the answer to what was said last."""
        return Send(peer=self.name, message=Reply(number=self.number, body=body))

    def heartbeat(self) -> list[Outgoing]:
        """Say that we are there, and that the answer before has arrived."""
        return self.say(HeartbeatRequest(acknowledged=self._last_heartbeat()))

    def lead(self, contender_id: str, component_id: str = JOB) -> Granted:
        """Register and return the grant, which must follow at once."""
        accepted, granted = self.say(register(contender_id, component_id))
        assert isinstance(accepted, Send)
        assert isinstance(granted, Send)
        assert isinstance(granted.message, Granted)
        return granted.message

    def _last_heartbeat(self) -> int:
        session = self.conversation.service.core.session(self.session_id)
        return 0 if session is None else session.heartbeat_number

    def _receive(self, message: Hello | Request) -> list[Outgoing]:
        service = self.conversation.service
        outgoing = service.receive(
            message,
            peer=self.name,
            connection=f"connection of {self.name}",
            principal=self.principal,
            now_ns=self.conversation.now_ns,
        )
        service.core.check_invariants()
        return list(outgoing)


def register(contender_id: str, component_id: str = JOB) -> RegisterRequest:
    """Return a registration without a past."""
    return RegisterRequest(
        component_id=component_id,
        contender_id=contender_id,
        confirm_timeout_ns=500,
        ticket=None,
        epoch_ended=0,
        claim=None,
    )


def subscribe(component_id: str = JOB, epoch_seen: int = 0) -> SubscribeRequest:
    """Return a subscription of somebody who has seen *epoch_seen*."""
    return SubscribeRequest(
        component_id=component_id, epoch_seen=epoch_seen, is_ended_seen=False
    )


def confirm(
    affirmation: AffirmationRecord, address: str = "h:1", count: int = 1
) -> ConfirmRequest:
    """Return the confirmation of what was granted."""
    return ConfirmRequest(
        component_id=affirmation.component_id,
        contender_id=affirmation.contender_id,
        leader_session_id=affirmation.leader_session_id,
        confirm_count=count,
        address=address,
    )


def commit(affirmation: AffirmationRecord, value: bytes = b"v") -> CommitRequest:
    """Return a write under what was granted."""
    return CommitRequest(
        component_id=affirmation.component_id,
        leader_session_id=affirmation.leader_session_id,
        epoch=affirmation.epoch,
        operations=[PutRecord(path="a", value=value, version=None)],
    )


def failure(outgoing: Sequence[Outgoing] | ReplyBody) -> str:
    """Return why something was refused."""
    if isinstance(outgoing, Sequence):
        (sent,) = outgoing
        assert isinstance(sent, Send)
        assert isinstance(sent.message, Reply)
        outgoing = sent.message.body
    assert isinstance(outgoing, FailedReply)
    return outgoing.reason


def published(revision: int, affirmation: AffirmationRecord | None) -> Broadcast:
    """Return the broadcast that names a leader under h:1, or that there is none."""
    return Broadcast(
        message=Published(
            component_id=JOB,
            revision=revision,
            publication=PublicationRecord(
                epoch=EPOCH + 1,
                confirm_count=0 if affirmation is None else 1,
                address=None if affirmation is None else "h:1",
                leader_session_id=None
                if affirmation is None
                else affirmation.leader_session_id,
            ),
            incarnation=7,
        )
    )
