"""
`ClientCore` against a server that says what a test tells it to say.

A lease is 100 ns and a session 1,000: requests are repeated after 20, heartbeats come
every 20 with a contender and every 333 without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
import pytest

from election import LeaderSession
from election.holder import DeliverGrant, DeliverRevoke
from leaderserver.client.core.config import ClientConfig
from leaderserver.client.core.core import ClientCore
from leaderserver.client.core.events import (
    AnnounceSession,
    BroadcastsReached,
    CallAsked,
    ClientEffect,
    ClientEvent,
    CloseAsked,
    CompleteCall,
    ConfirmAsked,
    ContenderAdded,
    ContenderRemoved,
    DeliverToContender,
    DeliverToRetriever,
    FailOpening,
    JoinTopic,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    ReportToContender,
    ReportToRetriever,
    RetrieverAdded,
    RetrieverRemoved,
    RevokeReturned,
    SendMessage,
    TimeWentBy,
)
from leaderserver.codec import publication_from_record
from leaderserver.message_parts import AffirmationRecord, ClaimRecord, PublicationRecord
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    BatchRequest,
    CloseSessionRequest,
    ConfirmRequest,
    DoneReply,
    FailedReply,
    Failure,
    Granted,
    HeartbeatRequest,
    Hello,
    Published,
    RefusedHello,
    RegisteredReply,
    RegisterRequest,
    Reply,
    ReplyBody,
    Request,
    RequestBody,
    RevocationFinishedRequest,
    Revoked,
    SessionEnded,
    SessionUnknown,
    SnapshotReply,
    SubscribeRequest,
    ToClient,
    UnsubscribeRequest,
    Welcome,
    WithdrawRequest,
)
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    DeleteRecord,
    GetRequest,
    ValueReply,
)
from nameservice import (
    AuthenticationError,
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    NameServiceError,
    UnreachableError,
)
from retrieval import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    PublicationReceived,
)


if TYPE_CHECKING:
    from retrieval import RetrieverEvent


JOB = "c/job"
L7 = UUID(int=7)
GET = GetRequest(component_id=JOB, path="p")
COMMIT = CommitRequest(
    component_id=JOB,
    leader_session_id=L7,
    epoch=7,
    operations=[DeleteRecord(path="p", version=None)],
)
SESSION = LeaderSession(leader_session_id=L7, epoch=7)
AFFIRMATION = AffirmationRecord(
    component_id=JOB, contender_id="x", leader_session_id=L7, epoch=7
)
LEADS = PublicationRecord(epoch=7, confirm_count=1, address="a:1", leader_session_id=L7)
NOBODY = PublicationRecord(
    epoch=7, confirm_count=0, address=None, leader_session_id=None
)
GRANTED = DeliverToContender(contender_id="x", effect=DeliverGrant(session=SESSION))
REVOKED = DeliverToContender(contender_id="x", effect=DeliverRevoke(session=SESSION))


class Client:
    """One core, its clock, and the server's half of the conversation."""

    def __init__(self, *, clears_on_suspended: bool = False) -> None:
        self.now_ns = 0
        self.core = ClientCore(
            ClientConfig(
                target="leaderserver://h:1",
                client="alice",
                session_timeout_ns=1_000,
                lease_ns=100,
                clears_on_suspended=clears_on_suspended,
                seed=b"s" * 32,
            ),
            now_ns=0,
        )
        self.hello: Hello | None = None
        self.secret = b""
        self.numbers: list[int] = []

    def step(self, event: ClientEvent) -> list[ClientEffect]:
        """Have *event* happen now."""
        effects = list(self.core.step(event, now_ns=self.now_ns))
        self.core.check_invariants()
        for effect in effects:
            if isinstance(effect, SendMessage):
                if isinstance(effect.message, Hello):
                    self.hello = effect.message
                else:
                    self.numbers.append(effect.message.number)
        return effects

    def wait(self, until_ns: int) -> list[tuple[int, ClientEffect]]:
        """Move time on, deadline by deadline; return what was done, and when."""
        done: list[tuple[int, ClientEffect]] = []
        while True:
            due_ns = self.core.next_deadline_ns()
            if due_ns is None or due_ns > until_ns:
                self.now_ns = until_ns
                return done
            assert due_ns > self.now_ns, "a deadline that has passed was not met"
            self.now_ns = due_ns
            effects = self.step(TimeWentBy())
            assert effects or self.core.next_deadline_ns() != due_ns
            done += [(self.now_ns, effect) for effect in effects]

    def tell(self, message: ToClient) -> list[ClientEffect]:
        """Have the server say *message*."""
        return self.step(MessageReceived(message=message))

    def answer(self, body: ReplyBody, number: int = -1) -> list[ClientEffect]:
        """Answer request *number*, by default the newest."""
        number = self.numbers[-1] if number < 0 else number
        return self.tell(Reply(number=number, body=body))

    def acknowledge(
        self,
        *affirmations: AffirmationRecord,
        number: int = -1,
        is_undecided: bool = False,
        revisions: dict[str, int] | None = None,
    ) -> list[ClientEffect]:
        """Answer heartbeat *number*, by default the newest request."""
        body = AcknowledgedHeartbeat(
            affirmations=list(affirmations),
            is_undecided=is_undecided,
            revisions=revisions or {},
        )
        return self.answer(body, number)

    def welcome(self, *, incarnation: int = 1, lease_ns: int = 100) -> Welcome:
        """Return the answer to the newest greeting, with a secret of its own."""
        assert self.hello is not None
        return Welcome(
            nonce=self.hello.nonce,
            secret=self.hello.nonce * 2,
            session_id=f"s{incarnation}",
            session_timeout_ns=1_000,
            lease_ns=lease_ns,
            incarnation=incarnation,
            publish_port=5171,
            publish_address=None,
            is_durable=False,
        )

    def open(self, *, incarnation: int = 1) -> list[ClientEffect]:
        """Have the server answer the newest greeting."""
        welcome = self.welcome(incarnation=incarnation)
        self.secret = welcome.secret
        return self.tell(welcome)

    def sent(self, number: int, body: RequestBody) -> SendMessage:
        """Return that *body* is sent under *number*."""
        return SendMessage(
            message=Request(secret=self.secret, number=number, body=body)
        )

    def beat(self, number: int, acknowledged: int) -> SendMessage:
        """Return that heartbeat *number* is sent."""
        return self.sent(number, HeartbeatRequest(acknowledged=acknowledged))

    def add_contender(self) -> list[ClientEffect]:
        """Enter contender x."""
        return self.step(
            ContenderAdded(contender_id="x", component_id=JOB, confirm_timeout_ns=500)
        )

    def add_retriever(self, retriever_id: int = 1) -> list[ClientEffect]:
        """Enter a retriever."""
        return self.step(RetrieverAdded(retriever_id=retriever_id, component_id=JOB))

    def call(
        self,
        body: RequestBody = GET,
        *,
        call_id: int = 1,
        deadline_ns: int = 500,
        is_repeatable: bool = True,
    ) -> list[ClientEffect]:
        """Ask something on somebody's behalf."""
        return self.step(
            CallAsked(
                call_id=call_id,
                body=body,
                deadline_ns=deadline_ns,
                is_repeatable=is_repeatable,
            )
        )

    def confirm(self, *, call_id: int = 5) -> list[ClientEffect]:
        """Confirm what was granted."""
        return self.step(
            ConfirmAsked(
                contender_id="x",
                leader_session_id=L7,
                address="a:1",
                call_id=call_id,
                deadline_ns=500,
            )
        )

    def remove(self, *, deadline_ns: int = 500) -> list[ClientEffect]:
        """Remove contender x."""
        return self.step(
            ContenderRemoved(contender_id="x", call_id=6, deadline_ns=deadline_ns)
        )

    def close(self, *, deadline_ns: int = 500) -> list[ClientEffect]:
        """End the session."""
        return self.step(CloseAsked(call_id=9, deadline_ns=deadline_ns))

    def believes(self, at_ns: int | None = None) -> bool:
        """Return whether contender x believes that it leads, now or then."""
        holder = self.core.holder("x")
        return holder.believes(L7, now_ns=self.now_ns if at_ns is None else at_ns)


def register(
    *,
    ticket: int | None = None,
    epoch_ended: int = 0,
    claim: ClaimRecord | None = None,
) -> RegisterRequest:
    """Return how contender x registers."""
    return RegisterRequest(
        component_id=JOB,
        contender_id="x",
        confirm_timeout_ns=500,
        ticket=ticket,
        epoch_ended=epoch_ended,
        claim=claim,
    )


def subscribe(epoch_seen: int = 0, *, is_ended_seen: bool = False) -> SubscribeRequest:
    """Return how retrievers of the job subscribe."""
    return SubscribeRequest(
        component_id=JOB, epoch_seen=epoch_seen, is_ended_seen=is_ended_seen
    )


def snapshot(
    revision: int, record: PublicationRecord | None, *, is_undecided: bool = False
) -> SnapshotReply:
    """Return the answer to a subscription."""
    return SnapshotReply(
        revision=revision, is_undecided=is_undecided, publication=record
    )


def heard(event: RetrieverEvent) -> DeliverToRetriever:
    """Return that retriever 1 hears of *event*."""
    return DeliverToRetriever(retriever_id=1, event=event)


def restored(record: PublicationRecord) -> DeliverToRetriever:
    """Return that retriever 1 hears of contact."""
    return heard(ContactRestored(publication=publication_from_record(record)))


def received(record: PublicationRecord) -> DeliverToRetriever:
    """Return that retriever 1 hears of a change."""
    return heard(PublicationReceived(publication=publication_from_record(record)))


def failed(reason: str) -> FailedReply:
    """Return a refusal."""
    return FailedReply(reason=reason, detail="why")


def outcome(effects: Sequence[ClientEffect]) -> list[tuple[int, type | None]]:
    """Return which calls were completed, and with which kinds of error."""
    return [
        (effect.call_id, None if effect.error is None else type(effect.error))
        for effect in effects
        if isinstance(effect, CompleteCall)
    ]


def times(done: Sequence[tuple[int, ClientEffect]], body: type) -> list[int]:
    """Return when requests of a kind were sent."""
    return [
        at_ns
        for at_ns, effect in done
        if isinstance(effect, SendMessage)
        and isinstance(effect.message, Request)
        and isinstance(effect.message.body, body)
    ]


@pytest.fixture
def client() -> Client:
    """Return a client that has greeted, and has no answer yet."""
    client = Client()
    client.step(LinkOpened())
    return client


@pytest.fixture
def opened(client: Client) -> Client:
    """Return a client whose first heartbeat is under way."""
    client.open()
    return client


@pytest.fixture
def leading(opened: Client) -> Client:
    """Return a client whose contender leads: by heartbeat 3, sent at 0."""
    lead(opened)
    return opened


def lead(client: Client) -> None:
    """Make contender x lead: heartbeats 1 and 2, registered by 3."""
    client.acknowledge(number=1)
    assert client.add_contender() == [client.beat(2, 1), client.sent(3, register())]
    assert client.acknowledge(number=2) == []
    assert client.answer(RegisteredReply(ticket=70), 3) == []
    granted = Granted(session_id="s1", heartbeat_number=2, affirmation=AFFIRMATION)
    assert client.tell(granted) == [GRANTED]


class TestOpening:
    def test_a_greeting_is_repeated_unchanged(self) -> None:
        """After a lease, then every two: one nonce, one session."""
        client = Client()
        (sent,) = client.step(TimeWentBy())
        assert isinstance(sent, SendMessage)
        assert isinstance(sent.message, Hello)
        assert (sent.message.session_timeout_ns, sent.message.lease_ns) == (1_000, 100)
        assert sent.message.client == "alice"
        assert client.wait(600) == [(at_ns, sent) for at_ns in (100, 300, 500)]
        assert client.step(LinkOpened()) == [sent]
        assert client.wait(700) == [(700, sent)]
        assert client.core.session_id is None

    @pytest.mark.proves("E9")
    def test_what_is_claimed_is_put_in_time(self) -> None:
        """A greeting with a contender is repeated every fifth of the lease (E9)."""
        client = Client()
        client.step(LinkOpened())
        client.wait(50)
        client.add_contender()
        assert [at_ns for at_ns, _ in client.wait(120)] == [70, 90, 110]

    def test_a_welcome_opens_the_session(self, client: Client) -> None:
        """Then everything else is asked, the first heartbeat before all."""
        client.add_contender()
        client.add_retriever()
        client.call()
        welcome = client.welcome()
        client.secret = welcome.secret
        assert client.tell(welcome) == [
            AnnounceSession(welcome=welcome),
            JoinTopic(component_id=JOB),
            client.beat(1, 0),
            client.sent(2, GET),
            client.sent(3, BatchRequest(bodies=[register(), subscribe()])),
        ]
        assert client.core.session_id == "s1"
        assert client.tell(welcome) == []

    @pytest.mark.proves("E4")
    def test_the_session_counts_from_the_first_greeting(self, client: Client) -> None:
        """The server may have opened it then, and answered only a repetition (E4)."""
        client.add_contender()
        client.wait(60)
        client.open()
        granted = Granted(session_id="s1", heartbeat_number=0, affirmation=AFFIRMATION)
        assert client.tell(granted) == [GRANTED]
        assert client.believes(89)
        assert not client.believes(90)
        client.wait(99)
        assert client.core.has_contact
        client.wait(100)
        assert not client.core.has_contact

    def test_the_agreed_lease_counts(self, client: Client) -> None:
        """The server may agree on other times than were asked for."""
        client.add_contender()
        client.tell(client.welcome(lease_ns=50))
        assert times(client.wait(20), HeartbeatRequest) == [10, 20]

    @pytest.mark.proves("N1")
    def test_an_answer_to_another_greeting_is_none(self, client: Client) -> None:
        """What was recorded of somebody else opens nothing (N1)."""
        welcome = client.welcome()
        client.step(LinkClosed())
        assert client.tell(welcome) == []
        assert client.core.session_id is None

    @pytest.mark.proves("N1")
    def test_a_new_connection_is_greeted_anew(self, client: Client) -> None:
        """The server knows a nonce by where it came from (N1)."""
        first = client.hello
        client.step(LinkClosed())
        client.step(LinkOpened())
        assert first is not None
        assert client.hello is not None
        assert client.hello.nonce != first.nonce

    def test_a_refusal_is_told(self, client: Client) -> None:
        """The opener of the client hears why; it is tried again later (N4)."""
        first = client.hello
        assert first is not None
        refused = RefusedHello(
            nonce=first.nonce, reason=Failure.NOT_ALLOWED, detail="no"
        )
        (effect,) = client.tell(refused)
        assert isinstance(effect, FailOpening)
        assert isinstance(effect.error, AuthenticationError)
        (again,) = client.wait(333)
        assert again[0] == 333
        assert client.hello is not None
        assert client.hello.nonce != first.nonce
        assert client.tell(refused) == []

    def test_an_unreadable_greeting_is_refused_too(self, client: Client) -> None:
        """A server of another version cannot name the nonce."""
        refused = RefusedHello(nonce=b"", reason=Failure.WRONG_VERSION, detail="v2")
        (effect,) = client.tell(refused)
        assert isinstance(effect, FailOpening)

    def test_a_session_is_not_refused_afterwards(self, opened: Client) -> None:
        """A late refusal of a repeated greeting ends nothing."""
        assert opened.hello is not None
        refused = RefusedHello(nonce=b"", reason=Failure.LIMIT_REACHED, detail="full")
        assert opened.tell(refused) == []
        assert opened.core.session_id == "s1"


class TestHeartbeats:
    def test_they_are_frequent_with_contenders(self, leading: Client) -> None:
        """Every fifth of the lease, and each names the newest that was answered."""
        assert leading.wait(40) == [
            (20, leading.beat(4, 2)),
            (40, leading.beat(5, 2)),
        ]
        leading.acknowledge(AFFIRMATION, number=5)
        leading.acknowledge(AFFIRMATION, number=4)
        assert leading.wait(60) == [(60, leading.beat(6, 5))]

    @pytest.mark.proves("N1")
    def test_they_are_rare_without(self, opened: Client) -> None:
        """Every third of the session timeout, once the first one is answered (N1)."""
        opened.wait(10)
        opened.acknowledge()
        assert times(opened.wait(400), HeartbeatRequest) == [343]
        opened.acknowledge()
        assert times(opened.wait(700), HeartbeatRequest) == [676]

    def test_a_first_one_that_is_lost_is_followed_soon(self, opened: Client) -> None:
        """Each comes after twice the time of the one before: a server may be slow."""
        sent = times(opened.wait(1_000), HeartbeatRequest)
        assert sent == [20, 60, 140, 300, 620, 953]
        opened.acknowledge()
        opened.wait(1_100)
        assert times(opened.wait(1_340), HeartbeatRequest) == [1_333]

    @pytest.mark.proves("N1")
    def test_broadcasts_that_are_reached_hurry_them(self, opened: Client) -> None:
        """What was published before was missed: one answer tells of it (N1)."""
        opened.acknowledge()
        opened.wait(30)
        assert opened.step(BroadcastsReached()) == [opened.beat(2, 1)]
        assert times(opened.wait(60), HeartbeatRequest) == [50]
        assert opened.step(BroadcastsReached()) == [opened.beat(4, 1)]
        assert times(opened.wait(300), HeartbeatRequest) == [140, 300]

    @pytest.mark.proves("N1")
    def test_a_new_retriever_hurries_them(self, opened: Client) -> None:
        """
        A subscription takes its time; what is missed meanwhile is noticed (N1).

        Meanwhile is from its answer on: what was published before that is in there.
        Each comes after twice the time of the one before: all clients of a server may
        have come back at once.
        """
        opened.acknowledge()
        opened.wait(200)
        assert opened.add_retriever()[0] == JoinTopic(component_id=JOB)
        assert opened.answer(snapshot(0, None, is_undecided=True)) == []
        assert times(opened.wait(300), HeartbeatRequest) == []
        opened.answer(snapshot(0, None))
        sent = times(opened.wait(900), HeartbeatRequest)
        assert sent == [320, 340, 380, 460, 620]

    @pytest.mark.proves("E4")
    def test_an_answer_to_what_was_never_sent_is_none(self, leading: Client) -> None:
        """Only what we sent, and when, tells how long we may believe (E4)."""
        assert leading.acknowledge(number=99) == []
        assert leading.believes(89)

    @pytest.mark.proves("E5")
    def test_what_was_sent_long_ago_is_forgotten(self, opened: Client) -> None:
        """The answer to a heartbeat of before a session timeout says nothing (E5)."""
        opened.wait(1_400)
        assert opened.acknowledge(number=1) == []
        assert opened.core._heartbeats.acknowledged == 0

    def test_without_a_session_they_are_answered_in_vain(self, client: Client) -> None:
        """A late answer of a session that is over says nothing."""
        assert client.acknowledge(number=1) == []


class TestLeadership:
    @pytest.mark.proves("E4")
    def test_belief_runs_from_the_send(self, leading: Client) -> None:
        """0.9 lease from the send of the heartbeat that the grant answers (E4)."""
        assert leading.believes(89)
        assert not leading.believes(90)

    @pytest.mark.proves("E4")
    def test_affirmations_prolong_it(self, leading: Client) -> None:
        """From the send of the affirmed heartbeat, not from its answer (E4)."""
        leading.wait(45)
        leading.acknowledge(AFFIRMATION, number=5)
        assert leading.believes(129)
        assert not leading.believes(130)

    @pytest.mark.proves("E4")
    def test_a_late_grant_is_ignored(self, opened: Client) -> None:
        """It is delivered only while the lease of its heartbeat runs (E4)."""
        opened.acknowledge(number=1)
        opened.add_contender()
        opened.answer(RegisteredReply(ticket=70), 3)
        opened.wait(90)
        late = Granted(session_id="s1", heartbeat_number=2, affirmation=AFFIRMATION)
        assert opened.tell(late) == []
        newer = Granted(session_id="s1", heartbeat_number=5, affirmation=AFFIRMATION)
        assert opened.tell(newer) == [GRANTED]
        assert opened.believes(129)

    @pytest.mark.parametrize(("session_id", "number"), [("s0", 2), ("s1", 99)])
    def test_a_grant_of_another_time_is_ignored(
        self, leading: Client, session_id: str, number: int
    ) -> None:
        """One of a session that is over, or that answers nothing we have sent."""
        other = AffirmationRecord(
            component_id=JOB, contender_id="x", leader_session_id=UUID(int=8), epoch=8
        )
        granted = Granted(
            session_id=session_id, heartbeat_number=number, affirmation=other
        )
        assert leading.tell(granted) == []
        assert leading.believes()

    @pytest.mark.proves("E4")
    def test_it_ends_when_it_is_affirmed_no_more(self, leading: Client) -> None:
        """A newer answer without it means that it has ended (E4)."""
        leading.wait(20)
        assert leading.acknowledge() == [REVOKED]
        assert not leading.believes()
        # Acknowledged once the contender has really stopped.
        assert leading.step(RevokeReturned(contender_id="x")) == [
            leading.sent(
                5,
                RevocationFinishedRequest(component_id=JOB, contender_id="x", epoch=7),
            )
        ]
        assert leading.answer(DoneReply()) == []

    @pytest.mark.proves("E9")
    def test_an_undecided_answer_ends_nothing(self, leading: Client) -> None:
        """A server that does not know who leads affirms none (E9)."""
        leading.wait(20)
        assert leading.acknowledge(is_undecided=True) == []
        assert leading.believes()
        assert not leading.believes(90)

    def test_a_revocation_ends_it(self, leading: Client) -> None:
        """And it is not granted again by an answer that was under way (E6)."""
        leading.wait(20)
        revoked = Revoked(session_id="s1", affirmation=AFFIRMATION)
        assert leading.tell(revoked) == [REVOKED]
        assert leading.tell(revoked) == []
        assert leading.acknowledge(AFFIRMATION) == []

    def test_a_revocation_of_another_time_is_ignored(self, leading: Client) -> None:
        """One of another session, or of a contender that has left."""
        revoked = Revoked(session_id="s0", affirmation=AFFIRMATION)
        assert leading.tell(revoked) == []
        assert leading.believes()
        leading.remove()
        assert leading.tell(Revoked(session_id="s1", affirmation=AFFIRMATION)) == []
        assert leading.step(RevokeReturned(contender_id="x")) == []

    @pytest.mark.proves("E3")
    def test_a_confirmation_is_answered(self, leading: Client) -> None:
        """The caller waits for the server's word (E3)."""
        body = ConfirmRequest(
            component_id=JOB,
            contender_id="x",
            leader_session_id=L7,
            confirm_count=1,
            address="a:1",
        )
        assert leading.confirm() == [leading.sent(4, body)]
        assert leading.answer(DoneReply()) == [
            CompleteCall(call_id=5, reply=DoneReply())
        ]

    @pytest.mark.proves("E9")
    def test_an_undecided_confirmation_is_asked_again(self, leading: Client) -> None:
        """It is not known yet who leads: its caller goes on waiting (E9)."""
        leading.confirm()
        assert leading.answer(failed(Failure.UNDECIDED), 4) == []
        assert times(leading.wait(20), ConfirmRequest) == [20]
        assert outcome(leading.answer(failed(Failure.STALE))) == [
            (5, LeadershipLostError)
        ]

    @pytest.mark.proves("E3")
    def test_an_unanswered_confirmation_may_have_happened(
        self, leading: Client
    ) -> None:
        """It was sent; it is not known whether it is published (E3)."""
        leading.confirm()
        ended = [(at, e) for at, e in leading.wait(600) if isinstance(e, CompleteCall)]
        assert [at for at, _ in ended] == [500]
        assert outcome([e for _, e in ended]) == [(5, MayHaveHappenedError)]

    @pytest.mark.proves("E8")
    def test_a_refused_registration_is_told(self, opened: Client) -> None:
        """It never waits in silence, and asks again, but not soon (E8)."""
        opened.add_contender()
        (told,) = opened.answer(failed(Failure.LIMIT_REACHED))
        assert isinstance(told, ReportToContender)
        assert isinstance(told.error, DidNotHappenError)
        assert times(opened.wait(400), RegisterRequest)[:1] == [333]
        assert opened.answer(failed(Failure.LIMIT_REACHED), opened.numbers[-2]) == []

    def test_what_is_not_allowed_is_not_asked_again(self, opened: Client) -> None:
        """Rights do not change by asking (N4)."""
        opened.add_contender()
        (told,) = opened.answer(failed(Failure.NOT_ALLOWED))
        assert isinstance(told, ReportToContender)
        assert isinstance(told.error, AuthenticationError)
        assert times(opened.wait(900), RegisterRequest) == []

    def test_a_withdrawal_lets_its_caller_go_and_goes_on(self, leading: Client) -> None:
        """The caller waits to its deadline; the server must hear of it (E7)."""
        withdraw = WithdrawRequest(component_id=JOB, contender_id="x")
        assert leading.remove(deadline_ns=50) == [leading.sent(4, withdraw)]
        done = leading.wait(100)
        assert outcome([e for at, e in done if at <= 50]) == [(6, None)]
        assert times(done, WithdrawRequest) == [20, 60]
        last = next(
            message.number
            for _, effect in reversed(done)
            if isinstance(effect, SendMessage)
            and isinstance(message := effect.message, Request)
            and message.body == withdraw
        )
        assert leading.answer(DoneReply(), last) == []
        assert times(leading.wait(200), WithdrawRequest) == []


class TestContact:
    @pytest.mark.proves("E4", "E5")
    def test_silence_of_a_lease_suspends(self, leading: Client) -> None:
        """
        Retrievers hear of it, the contender does not; the clock ends belief (E4, E5).

        The heartbeat sent at 0 is the last that was answered.
        """
        leading.add_retriever()
        leading.answer(snapshot(0, LEADS))
        told = [(at, e) for at, e in leading.wait(120) if not sends(e)]
        assert told == [(100, heard(ContactSuspended()))]
        assert not leading.believes()

    @pytest.mark.proves("E5")
    def test_the_same_leadership_is_back_with_the_session(
        self, leading: Client
    ) -> None:
        """Suspended, the contender was not told, and need not be granted (E5)."""
        leading.wait(120)
        leading.acknowledge(AFFIRMATION)
        assert leading.believes(209)

    @pytest.mark.proves("E5")
    def test_under_clear_it_is_revoked_and_granted_again(self) -> None:
        """The same leadership, id and epoch (E5)."""
        client = Client(clears_on_suspended=True)
        client.step(LinkOpened())
        client.open()
        lead(client)
        told = [(at, e) for at, e in client.wait(120) if not sends(e)]
        assert told == [(100, REVOKED)]
        # Not ended: nothing to acknowledge.
        assert client.step(RevokeReturned(contender_id="x")) == []
        assert client.acknowledge(AFFIRMATION) == [GRANTED]

    @pytest.mark.proves("E5")
    def test_without_contenders_silence_is_longer(self, opened: Client) -> None:
        """Two thirds of the session timeout (E5)."""
        opened.add_retriever()
        opened.answer(snapshot(0, LEADS))
        told = [(at, e) for at, e in opened.wait(700) if not sends(e)]
        assert told == [(666, heard(ContactSuspended()))]

    def test_a_first_contender_is_not_suspended_by_an_earlier_silence(
        self, opened: Client
    ) -> None:
        """Heartbeats were rare before it; silence counts from its start."""
        opened.acknowledge()
        opened.wait(400)
        opened.add_contender()
        assert opened.core.has_contact
        opened.wait(499)
        assert opened.core.has_contact
        opened.wait(500)
        assert not opened.core.has_contact

    @pytest.mark.proves("E5")
    def test_a_second_contender_excuses_no_silence(self, leading: Client) -> None:
        """Heartbeats were frequent already: silence counts on (E5)."""
        leading.wait(90)
        leading.step(
            ContenderAdded(
                contender_id="y", component_id="c/other", confirm_timeout_ns=500
            )
        )
        leading.wait(100)
        assert not leading.core.has_contact

    @pytest.mark.proves("E5")
    def test_a_closed_link_suspends_at_once(self, leading: Client) -> None:
        """Nothing is sent over it; the session may exist still (E5)."""
        leading.add_retriever()
        leading.answer(snapshot(0, LEADS))
        assert leading.step(LinkClosed()) == [heard(ContactSuspended())]
        assert leading.step(LinkClosed()) == []
        leading.call()
        assert times(leading.wait(20), GetRequest) == []
        # What is asked under way is asked anew over the next.
        done = leading.step(LinkOpened())
        assert times([(20, e) for e in done], GetRequest) == [20]
        assert times([(20, e) for e in done], HeartbeatRequest) == [20]

    def test_contact_is_back_with_an_answer(self, leading: Client) -> None:
        """Everything is asked anew, and retrievers hear with the answer (R4)."""
        leading.add_retriever()
        leading.answer(snapshot(0, LEADS))
        leading.wait(120)
        (asked,) = leading.acknowledge(AFFIRMATION)
        assert asked == leading.sent(leading.numbers[-1], subscribe(7))
        assert leading.answer(snapshot(0, LEADS)) == [restored(LEADS)]

    @pytest.mark.proves("E5")
    def test_an_old_answer_is_no_contact(self, leading: Client) -> None:
        """What answers a heartbeat of a lease ago says nothing of now (E5)."""
        leading.wait(150)
        assert leading.acknowledge(AFFIRMATION, number=5) == []
        assert not leading.core.has_contact
        assert not leading.believes()

    @pytest.mark.proves("E5")
    def test_a_session_timeout_loses_it(self, leading: Client) -> None:
        """From the send of the last answered; the claim is kept (E5)."""
        leading.add_retriever()
        leading.answer(snapshot(0, LEADS))
        told = [(at, e) for at, e in leading.wait(1_100) if not sends(e)]
        assert told == [
            (100, heard(ContactSuspended())),
            (1_000, REVOKED),
            (1_000, heard(ContactLost())),
        ]
        # It turns out to have survived: the same leadership is granted again.
        effects = leading.acknowledge(AFFIRMATION)
        assert [e for e in effects if not sends(e)] == [GRANTED]
        assert leading.core.session_id == "s1"

    @pytest.mark.proves("E4", "E5")
    def test_a_process_that_slept_has_lost_it_at_once(self, leading: Client) -> None:
        """Suspension and loss in one step: the clock decides (E4, E5)."""
        leading.now_ns = 5_000
        assert not leading.believes()
        effects = leading.step(TimeWentBy())
        assert [e for e in effects if not sends(e)] == [REVOKED]


def sends(effect: ClientEffect) -> bool:
    """Return whether *effect* is a message to the server."""
    return isinstance(effect, SendMessage)


class TestSessionOver:
    @pytest.mark.proves("E5", "E8")
    def test_its_own_server_ended_it(self, leading: Client) -> None:
        """Every claim ends with it; the contender queues anew, at the end (E5, E8)."""
        leading.add_retriever()
        leading.answer(snapshot(0, LEADS))
        ended = SessionEnded(session_id="s1", reason="silent", incarnation=1)
        told = leading.tell(ended)
        assert told == [
            REVOKED,
            heard(ContactLost()),
            SendMessage(message=hello_of(leading)),
        ]
        leading.step(RevokeReturned(contender_id="x"))
        effects = leading.open()
        assert effects[-1] == leading.sent(
            6, BatchRequest(bodies=[register(epoch_ended=7), subscribe(7)])
        )

    @pytest.mark.proves("E9")
    def test_another_server_knows_nothing_of_it(self, leading: Client) -> None:
        """Nothing is judged: the claim and the place are put to it (E9)."""
        leading.add_retriever()
        leading.answer(snapshot(0, LEADS))
        leading.confirm()
        unknown = SessionUnknown(number=leading.numbers[-1], incarnation=2)
        assert leading.tell(unknown) == [
            heard(ContactSuspended()),
            SendMessage(message=hello_of(leading)),
        ]
        assert leading.believes()  # until its lease has run, as the server counts
        effects = leading.open(incarnation=2)
        claim = ClaimRecord(
            leader_session_id=L7, epoch=7, confirm_count=1, address="a:1"
        )
        assert effects[2:] == [
            leading.beat(6, 0),
            leading.sent(
                7,
                ConfirmRequest(
                    component_id=JOB,
                    contender_id="x",
                    leader_session_id=L7,
                    confirm_count=1,
                    address="a:1",
                ),
            ),
            leading.sent(
                8,
                BatchRequest(bodies=[register(ticket=70, claim=claim), subscribe(7)]),
            ),
        ]
        # It reinstates what was claimed: the contender is none the wiser.
        assert leading.acknowledge(number=6, is_undecided=True) == []
        assert leading.answer(RegisteredReply(ticket=70), 8) == []
        assert leading.answer(snapshot(0, None, is_undecided=True), 9) == []
        granted = Granted(session_id="s2", heartbeat_number=6, affirmation=AFFIRMATION)
        assert leading.tell(granted) == []
        assert leading.believes()

    @pytest.mark.proves("E9")
    def test_another_server_refuses_the_claim(self, leading: Client) -> None:
        """Its verdict is what the contender hears of (E9)."""
        unknown = SessionUnknown(number=leading.numbers[-1], incarnation=2)
        leading.tell(unknown)
        leading.open(incarnation=2)
        refused = Revoked(session_id="s2", affirmation=AFFIRMATION)
        assert leading.tell(refused) == [REVOKED]

    @pytest.mark.proves("E5")
    def test_the_same_server_may_know_it_no_more(self, leading: Client) -> None:
        """Its end was told, and the telling was lost (E5)."""
        unknown = SessionUnknown(number=leading.numbers[-1], incarnation=1)
        assert leading.tell(unknown)[0] == REVOKED

    def test_news_of_an_earlier_session_is_ignored(self, leading: Client) -> None:
        """What was said of the one before says nothing of this one."""
        leading.tell(SessionUnknown(number=leading.numbers[-1], incarnation=2))
        leading.open(incarnation=2)
        assert leading.tell(SessionUnknown(number=3, incarnation=2)) == []
        ended = SessionEnded(session_id="s1", reason="silent", incarnation=1)
        assert leading.tell(ended) == []
        assert leading.core.session_id == "s2"

    def test_news_without_a_session_is_ignored(self, client: Client) -> None:
        """There is nothing that could be over."""
        assert client.tell(SessionUnknown(number=1, incarnation=1)) == []
        ended = SessionEnded(session_id="s1", reason="silent", incarnation=1)
        assert client.tell(ended) == []
        granted = Granted(session_id="s1", heartbeat_number=0, affirmation=AFFIRMATION)
        assert client.tell(granted) == []

    @pytest.mark.parametrize(
        ("is_repeatable", "was_sent", "error"),
        [
            (True, True, None),
            (True, False, None),
            (False, False, None),
            (False, True, MayHaveHappenedError),
        ],
    )
    def test_calls_go_on_if_they_may(
        self,
        opened: Client,
        is_repeatable: bool,
        was_sent: bool,
        error: type[NameServiceError] | None,
    ) -> None:
        """Only a write that was sent is given up: it may have happened (L4)."""
        if not was_sent:
            opened.step(LinkClosed())
        opened.call(COMMIT, is_repeatable=is_repeatable)
        unknown = SessionUnknown(number=1, incarnation=2)
        told = opened.tell(unknown)
        if error is not None:
            assert outcome(told) == [(1, error)]
            return
        assert outcome(told) == []
        opened.step(LinkOpened())
        effects = opened.open(incarnation=2)
        assert effects[-1] == opened.sent(opened.numbers[-1], COMMIT)
        assert outcome(opened.answer(DoneReply())) == [(1, None)]

    def test_a_withdrawal_is_done_by_it(self, leading: Client) -> None:
        """A contender does not outlive its session (E7)."""
        leading.remove()
        ended = SessionEnded(session_id="s1", reason="silent", incarnation=1)
        assert outcome(leading.tell(ended)) == [(6, None)]

    def test_so_is_what_it_was_told_and_not_asked(self, leading: Client) -> None:
        """Unsubscriptions and acknowledgements end with what they are about."""
        leading.add_retriever()
        leading.step(RetrieverRemoved(retriever_id=1))
        assert times(leading.wait(100), UnsubscribeRequest) == [100]
        leading.tell(SessionUnknown(number=leading.numbers[-1], incarnation=2))
        effects = leading.open(incarnation=2)
        assert [
            e.message.body
            for e in effects
            if isinstance(e, SendMessage) and isinstance(e.message, Request)
        ] == [
            HeartbeatRequest(acknowledged=0),
            register(
                ticket=70,
                claim=ClaimRecord(
                    leader_session_id=L7, epoch=7, confirm_count=0, address=None
                ),
            ),
        ]


def hello_of(client: Client) -> Hello:
    """Return the newest greeting."""
    assert client.hello is not None
    return client.hello


class TestRetrieval:
    def test_changes_are_handed_on(self, opened: Client) -> None:
        """A snapshot, then what is broadcast (R1)."""
        assert opened.add_retriever() == [
            JoinTopic(component_id=JOB),
            opened.sent(2, subscribe()),
        ]
        assert opened.answer(snapshot(3, LEADS)) == [restored(LEADS)]
        change = Published(component_id=JOB, revision=4, publication=NOBODY)
        assert opened.tell(change) == [received(NOBODY)]

    @pytest.mark.proves("N1")
    def test_a_gap_is_asked_about(self, opened: Client) -> None:
        """A revision too far on means that another was lost (N1)."""
        opened.add_retriever()
        opened.answer(snapshot(3, LEADS))
        change = Published(component_id=JOB, revision=5, publication=NOBODY)
        assert opened.tell(change) == [
            received(NOBODY),
            opened.sent(3, subscribe(7, is_ended_seen=True)),
        ]

    @pytest.mark.proves("N1")
    def test_a_lost_last_change_is_asked_about(self, opened: Client) -> None:
        """The answer to a heartbeat tells of it (N1)."""
        opened.add_retriever()
        opened.answer(snapshot(3, LEADS))
        opened.wait(20)
        assert opened.acknowledge(revisions={JOB: 4}) == [opened.sent(4, subscribe(7))]
        assert opened.answer(snapshot(4, NOBODY)) == [received(NOBODY)]
        opened.wait(40)
        assert opened.acknowledge(revisions={JOB: 4}) == []

    @pytest.mark.proves("N1")
    def test_the_next_server_counts_from_the_beginning(self, opened: Client) -> None:
        """A change that overtook the first snapshot is asked about (N1)."""
        opened.add_retriever()
        opened.answer(snapshot(4, NOBODY))
        opened.tell(SessionUnknown(number=opened.numbers[-1], incarnation=2))
        opened.open(incarnation=2)
        heartbeat, overtaken = opened.numbers[-2:]
        # What the former server broadcast arrives late, and is numbered by it.
        opened.tell(Published(component_id=JOB, revision=4, publication=NOBODY))
        assert opened.acknowledge(number=heartbeat, revisions={JOB: 2}) == [
            opened.sent(overtaken + 1, subscribe(7, is_ended_seen=True))
        ]
        assert opened.answer(snapshot(1, NOBODY), overtaken) == []
        leads = msgspec.structs.replace(LEADS, epoch=8)
        assert opened.answer(snapshot(2, leads)) == [restored(leads)]

    @pytest.mark.proves("N1")
    def test_a_former_server_numbers_nothing(self, opened: Client) -> None:
        """What it has broadcast may come after the first snapshot (N1)."""
        opened.add_retriever()
        opened.answer(snapshot(4, NOBODY))
        opened.tell(SessionUnknown(number=opened.numbers[-1], incarnation=2))
        opened.open(incarnation=2)
        heartbeat, asked = opened.numbers[-2:]
        opened.answer(snapshot(1, NOBODY), asked)
        opened.tell(
            Published(component_id=JOB, revision=4, publication=NOBODY, incarnation=1)
        )
        assert opened.acknowledge(number=heartbeat, revisions={JOB: 2}) == [
            opened.sent(asked + 1, subscribe(7, is_ended_seen=True))
        ]

    @pytest.mark.proves("E9")
    def test_an_undecided_server_is_asked_again(self, opened: Client) -> None:
        """As soon as it says that it knows who leads, and else once in a while (E9)."""
        opened.add_retriever()
        assert opened.answer(snapshot(0, None, is_undecided=True)) == []
        assert times(opened.wait(200), SubscribeRequest) == [200]
        assert opened.answer(snapshot(0, None, is_undecided=True)) == []
        assert opened.acknowledge(number=1, is_undecided=True) == []
        (asked,) = opened.acknowledge(number=1)
        assert times([(opened.now_ns, asked)], SubscribeRequest) == [200]

    def test_a_refused_subscription_is_told(self, opened: Client) -> None:
        """And asked again later, if that may help (N3)."""
        opened.add_retriever()
        (told,) = opened.answer(failed(Failure.LIMIT_REACHED))
        assert isinstance(told, ReportToRetriever)
        assert isinstance(told.error, DidNotHappenError)
        assert times(opened.wait(340), SubscribeRequest) == [333]


class TestCalls:
    def test_it_is_answered(self, opened: Client) -> None:
        """The caller gets what the server said, once."""
        assert opened.call() == [opened.sent(2, GET)]
        value = ValueReply(value=b"v", version=1)
        assert opened.answer(value) == [CompleteCall(call_id=1, reply=value)]
        assert opened.answer(value) == []

    @pytest.mark.proves("N1")
    def test_a_lost_answer_is_asked_for_again(self, opened: Client) -> None:
        """Under a new number, less and less often; a late answer will do (N1)."""
        opened.call(deadline_ns=900)
        assert times(opened.wait(300), GetRequest) == [20, 60, 140, 300]
        assert outcome(opened.answer(DoneReply(), 2)) == [(1, None)]
        assert times(opened.wait(900), GetRequest) == []

    def test_a_refusal_is_told(self, opened: Client) -> None:
        """As the error that it is (L4)."""
        opened.call(CleanupRequest(component_id=JOB))
        refused = opened.answer(failed(Failure.NOT_ALLOWED))
        assert outcome(refused) == [(1, AuthenticationError)]

    @pytest.mark.parametrize(
        ("is_repeatable", "was_sent", "error"),
        [
            (True, True, UnreachableError),
            (True, False, UnreachableError),
            (False, True, MayHaveHappenedError),
            (False, False, DidNotHappenError),
        ],
    )
    def test_it_is_given_up_at_its_deadline(
        self,
        opened: Client,
        is_repeatable: bool,
        was_sent: bool,
        error: type[NameServiceError],
    ) -> None:
        """Out of reach, may have happened and did not are different answers (L4)."""
        if not was_sent:
            opened.step(LinkClosed())
        opened.call(COMMIT, deadline_ns=50, is_repeatable=is_repeatable)
        assert outcome([e for _, e in opened.wait(49)]) == []
        assert outcome([e for _, e in opened.wait(50)]) == [(1, error)]

    def test_a_write_is_sent_once(self, opened: Client) -> None:
        """Sending it twice might do it twice."""
        opened.call(COMMIT, is_repeatable=False)
        assert times(opened.wait(400), CommitRequest) == []
        opened.step(LinkClosed())
        effects = opened.step(LinkOpened())
        assert times([(0, e) for e in effects], CommitRequest) == []

    def test_a_write_is_not_lost_with_its_greeting(self, client: Client) -> None:
        """What waits for a session is sent to it, once."""
        client.call(COMMIT, is_repeatable=False)
        effects = client.open()
        assert effects[-1] == client.sent(2, COMMIT)


class TestClosing:
    @pytest.mark.proves("E5")
    def test_the_session_is_ended(self, leading: Client) -> None:
        """What waits is given up, the server told, and nothing sent after it (E5)."""
        leading.call()
        leading.wait(10)
        effects = leading.close()
        assert outcome(effects) == [(1, UnreachableError)]
        assert effects[-1] == leading.sent(5, CloseSessionRequest())
        assert outcome(leading.answer(DoneReply())) == [(9, None)]
        assert leading.core.next_deadline_ns() is None

    def test_it_is_asked_again_until_the_deadline(self, opened: Client) -> None:
        """A lost request does not keep the entry for a session timeout."""
        opened.close(deadline_ns=50)
        done = opened.wait(100)
        assert times(done, CloseSessionRequest) == [20]
        assert [(at, e) for at, e in done if not sends(e)] == [
            (50, CompleteCall(call_id=9))
        ]

    def test_the_end_of_the_session_is_what_was_wanted(self, opened: Client) -> None:
        """Whichever server says it; and it is not opened again."""
        opened.close()
        ended = SessionEnded(session_id="s1", reason="closed", incarnation=1)
        assert opened.tell(ended) == [CompleteCall(call_id=9)]
        assert opened.core.next_deadline_ns() is None

    def test_without_a_session_there_is_none_to_end(self, client: Client) -> None:
        """It is done at once, and a late welcome opens nothing."""
        assert client.close() == [CompleteCall(call_id=9)]
        assert client.open() == []
        assert client.core.session_id is None

    @pytest.mark.proves("E5")
    def test_without_a_link_it_is_left_to_time(self, opened: Client) -> None:
        """The server ends the session by itself (E5)."""
        opened.step(LinkClosed())
        assert opened.close() == [CompleteCall(call_id=9)]

    def test_a_wish_under_way_is_dropped(self, opened: Client) -> None:
        """None waits for it but ourselves."""
        opened.add_retriever()
        assert opened.close() == [opened.sent(3, CloseSessionRequest())]
        assert times(opened.wait(60), SubscribeRequest) == []

    def test_a_withdrawal_under_way_is_done(self, leading: Client) -> None:
        """Closing the session withdraws everybody."""
        leading.remove()
        assert outcome(leading.close()) == [(6, None)]
