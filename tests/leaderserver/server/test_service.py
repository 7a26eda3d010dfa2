"""`LeaderService` in conversation: what is said to it, and all that it answers."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from election.events import ContenderPreferred
from leaderserver.message_parts import AffirmationRecord, ClaimRecord, PublicationRecord
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    BatchedBody,
    BatchReply,
    BatchRequest,
    CloseSessionRequest,
    ConfirmRequest,
    DoneReply,
    Failure,
    Granted,
    HeartbeatRequest,
    Hello,
    RefusedHello,
    RegisteredReply,
    RegisterRequest,
    Reply,
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
from leaderserver.operator_messages import (
    ContendersReply,
    ContendersRequest,
    ExpireRequest,
    RevokedReply,
    RevokeRequest,
    StatusRequest,
    TransferredReply,
    TransferRequest,
)
from leaderserver.server.core.turn import Broadcast, Outgoing, Send
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.store_messages import (
    CleanupRequest,
    GetRequest,
    StoreRevisionReply,
    UnwatchStoreRequest,
    WatchStoreRequest,
)
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from tests.leaderserver.conversation import (
    CONTENDER,
    CONTENDER_OF_ANOTHER,
    EPOCH,
    JOB,
    OBSERVER,
    TICKET,
    Conversation,
    Talker,
    commit,
    confirm,
    failure,
    published,
    register,
    subscribe,
)
from zmqtransport import ANONYMOUS


def transfer_to(contender_id: str) -> TransferRequest:
    """Return how an operator hands leadership of `JOB` over."""
    return TransferRequest(component_id=JOB, contender_id=contender_id)


class TestStalls:
    @pytest.mark.proves("E9")
    def test_the_log_says_how_long_the_server_stood(self, alice: Talker) -> None:
        """An operator who wonders about a late failover finds the reason (E9)."""
        conversation = alice.conversation
        deadline_ns = conversation.service.next_deadline_ns()
        assert deadline_ns is not None
        with capture_logs() as logs:
            conversation.now_ns = deadline_ns + 99 * NS_PER_MS  # counted, that is all
            conversation.service.advance(now_ns=conversation.now_ns)
        assert logs == []
        assert conversation.service.core.stall_count == 1
        deadline_ns = conversation.service.next_deadline_ns()
        assert deadline_ns is not None
        with capture_logs() as logs:
            conversation.now_ns = deadline_ns + 100 * NS_PER_MS
            conversation.service.advance(now_ns=conversation.now_ns)
        (stalled,) = logs
        assert stalled["event"] == "server.stalled"
        assert stalled["log_level"] == "warning"
        assert stalled["duration_ms"] == 100

    def test_stalls_do_not_fill_the_log(self, alice: Talker) -> None:
        """A machine that is starved for hours says so now and then."""
        conversation = alice.conversation
        with capture_logs() as logs:
            for _ in range(100):
                deadline_ns = conversation.service.next_deadline_ns()
                assert deadline_ns is not None
                conversation.now_ns = deadline_ns + 100 * NS_PER_MS
                alice.heartbeat()
        assert 0 < len(logs) < 20
        assert conversation.service.core.stall_count == 100


class TestHello:
    @pytest.mark.proves("N1")
    def test_a_session_is_opened(self, conversation: Conversation) -> None:
        """The answer carries all that a client must know of the server (N1)."""
        alice = Talker(conversation, "alice")
        welcome = Welcome(
            nonce=b"alice...........",
            secret=(2).to_bytes(32, "big"),
            session_id="0000000000000001",
            session_timeout_ns=1_000,
            lease_ns=100,
            incarnation=7,
            publish_port=5171,
            publish_address="tcp://example.org:5171",
            is_durable=False,
        )
        assert alice.hello() == [Send(peer="alice", message=welcome)]
        assert conversation.service.session_count == 1

    def test_the_log_says_who_came(self, conversation: Conversation) -> None:
        """A session id alone tells an operator nothing."""
        with capture_logs() as logs:
            Talker(conversation, "carol").hello()
        (opened,) = [line for line in logs if line["event"] == "session.opened"]
        assert opened["client"] == "carol"
        assert opened["principal"] == ANONYMOUS.name

    @pytest.mark.proves("E8")
    def test_a_repeated_greeting_has_the_same_answer(self, alice: Talker) -> None:
        """A lost answer makes no second session (E8)."""
        assert alice.hello() == alice.hello()
        assert alice.conversation.service.session_count == 1

    def test_a_nonce_is_of_where_it_came_from(self, alice: Talker) -> None:
        """Who repeats another's greeting from elsewhere gets a session of his own."""
        thief = Talker(alice.conversation, "alice")
        thief.name = "thief"
        outgoing = alice.conversation.service.receive(
            Hello(
                nonce=b"alice...........",
                session_timeout_ns=1_000,
                lease_ns=100,
                client="x",
            ),
            peer="thief",
            connection="of a thief",
            principal=ANONYMOUS,
            now_ns=0,
        )
        (sent,) = outgoing
        assert isinstance(sent, Send)
        assert sent.peer == "thief"
        assert isinstance(sent.message, Welcome)
        assert sent.message.secret != alice.secret

    @pytest.mark.proves("N1")
    def test_a_greeting_is_of_who_sent_it(self, conversation: Conversation) -> None:
        """Under CURVE a repeated greeting tells a secret to its own key alone (N1)."""
        carl = Talker(conversation, "carl", CONTENDER)
        carl.hello()
        thief = Talker(conversation, "carl", OBSERVER)
        assert thief.hello() == []

    @pytest.mark.parametrize(
        ("asked", "agreed"),
        [
            ((1_000, 100), (1_000, 100)),
            ((1, 1), (50, 10)),
            ((9_999, 9_999), (2_000, 200)),
            ((100, 90), (100, 50)),
        ],
    )
    def test_times_are_agreed(
        self,
        conversation: Conversation,
        asked: tuple[int, int],
        agreed: tuple[int, int],
    ) -> None:
        """Within the server's limits, and a session outlives two leases (design §2)."""
        (sent,) = Talker(conversation, "alice").hello(
            session_timeout_ns=asked[0], lease_ns=asked[1]
        )
        assert isinstance(sent, Send)
        assert isinstance(sent.message, Welcome)
        assert (sent.message.session_timeout_ns, sent.message.lease_ns) == agreed

    @pytest.mark.proves("N3")
    def test_sessions_are_bounded(self) -> None:
        """One too many is refused and told why; the others stay (N3)."""
        conversation = Conversation(session_count_max=1)
        alice = Talker(conversation, "alice")
        alice.hello()
        refused = RefusedHello(
            nonce=b"bob.............",
            reason="limit-reached",
            detail="the server has as many sessions as it may have",
        )
        bob = Talker(conversation, "bob")
        assert bob.hello() == [Send(peer="bob", message=refused)]
        assert conversation.service.session_count == 1
        alice.say(CloseSessionRequest())
        bob.hello()
        assert bob.session_id

    @pytest.mark.proves("N3")
    def test_sessions_of_one_connection_are_bounded(self) -> None:
        """N3: one connection cannot take all the sessions; another goes on."""
        conversation = Conversation(session_count_max=100)

        def greet(number: int, connection: str) -> ToClient:
            (sent,) = conversation.service.receive(
                Hello(
                    nonce=number.to_bytes(16, "big"),
                    session_timeout_ns=1_000,
                    lease_ns=100,
                    client="x",
                ),
                peer=connection,
                connection=connection,
                principal=ANONYMOUS,
                now_ns=0,
            )
            assert isinstance(sent, Send)
            return sent.message

        for number in range(16):
            assert isinstance(greet(number, "greedy"), Welcome)
        refused = greet(16, "greedy")
        assert isinstance(refused, RefusedHello)
        assert refused.reason == "limit-reached"
        assert isinstance(greet(16, "modest"), Welcome)

    def test_a_name_is_shown_as_text(self, conversation: Conversation) -> None:
        """A client's name can not write to an operator's terminal."""
        Talker(conversation, "al\x1b[2J").hello()
        Talker(conversation, "carl", CONTENDER).hello()
        names = [session.client for session in conversation.service.core.sessions]
        assert names == ["'al\\x1b[2J'", "carl, carl"]


class TestSecrets:
    @pytest.mark.proves("N1")
    def test_an_unknown_secret_is_no_session(self, alice: Talker) -> None:
        """A forged secret is told so, and changes nothing (N1)."""
        thief = Talker(alice.conversation, "thief")
        thief.secret = bytes(32)
        unknown = SessionUnknown(number=1, incarnation=7)
        assert thief.say(HeartbeatRequest(acknowledged=0)) == [
            Send(peer="thief", message=unknown)
        ]
        assert (
            alice.conversation.service.figures(now_ns=0)[
                "requests_session_unknown_total"
            ]
            == 1
        )

    @pytest.mark.proves("N1")
    def test_a_stolen_secret_is_worth_nothing_under_another_key(
        self, conversation: Conversation
    ) -> None:
        """With CURVE a session is its secret *and* its key (N1)."""
        carl = Talker(conversation, "carl", CONTENDER)
        carl.hello()
        granted = carl.lead("x")
        thief = Talker(conversation, "thief", OBSERVER)
        thief.secret = carl.secret
        unknown = SessionUnknown(number=9, incarnation=7)
        with capture_logs() as logs:
            assert thief.say(CloseSessionRequest(), number=9) == [
                Send(peer="thief", message=unknown)
            ]
        assert logs == [
            {
                "component": "leaderserver",
                "event": "request.foreign-key",
                "log_level": "warning",
                "client": "olga",
                "session_id": carl.session_id,
            }
        ]
        assert carl.answer(confirm(granted.affirmation)) == DoneReply()

    def test_a_replayed_request_is_dropped(self, alice: Talker) -> None:
        """Only a number above all earlier ones is taken, wherever it comes from."""
        granted = alice.lead("x")
        assert (
            alice.say(WithdrawRequest(component_id=JOB, contender_id="x"), number=1)
            == []
        )
        assert alice.say(CloseSessionRequest(), number=1) == []
        figures = alice.conversation.service.figures(now_ns=0)
        assert figures["requests_repeated_total"] == 2
        assert alice.answer(confirm(granted.affirmation)) == DoneReply()

    @pytest.mark.proves("N1")
    def test_pushes_follow_the_session(self, alice: Talker, bob: Talker) -> None:
        """After a reconnection they go to where the newest request came from (N1)."""
        alice.lead("x")
        bob.say(register("y"))
        bob.name = "bob again"
        bob.heartbeat()
        granted, done = alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        assert isinstance(granted, Send)
        assert granted.peer == "bob again"
        assert done == alice.reply(DoneReply())

    @pytest.mark.proves("E5")
    def test_a_connection_that_closed_is_evidence(
        self, alice: Talker, bob: Talker
    ) -> None:
        """One that is not heard from within a lease of it is over (E5)."""
        conversation = alice.conversation
        granted = alice.lead("x")
        alice.say(confirm(granted.affirmation))
        bob.say(register("y"))
        assert conversation.service.connection_closed("no such", now_ns=0) == []
        conversation.service.connection_closed("connection of alice", now_ns=0)
        conversation.service.connection_closed("connection of alice", now_ns=0)
        ended: list[Outgoing] = []
        for _ in range(20):
            ended += conversation.advance(10)
            bob.heartbeat()
            if ended:
                break
        assert conversation.now_ns == 100
        assert isinstance(ended[0], Send)
        assert ended[0].message == SessionEnded(
            session_id=alice.session_id, reason="connection-closed", incarnation=7
        )
        assert alice.say(HeartbeatRequest(acknowledged=0)) == [
            Send(
                peer="alice",
                message=SessionUnknown(number=alice.number, incarnation=7),
            )
        ]

    @pytest.mark.proves("E5")
    def test_a_new_connection_clears_the_evidence(self, alice: Talker) -> None:
        """A heartbeat over another connection says that the process lives (E5)."""
        conversation = alice.conversation
        conversation.service.connection_closed("connection of alice", now_ns=0)
        alice.name = "alice again"
        alice.heartbeat()
        assert conversation.advance(500) == []
        assert conversation.service.session_count == 1

    @pytest.mark.proves("E5")
    def test_the_server_keeps_its_name(self, alice: Talker) -> None:
        """A reported epoch moves its epochs on, not how clients know it (E5)."""
        alice.answer(subscribe(epoch_seen=(8 << 32) + 1))
        assert alice.conversation.service.core.incarnation == 9
        thief = Talker(alice.conversation, "thief")
        thief.secret = bytes(32)
        assert thief.say(HeartbeatRequest(acknowledged=0)) == [
            Send(peer="thief", message=SessionUnknown(number=1, incarnation=7))
        ]

    def test_another_session_of_the_connection_stays(self, alice: Talker) -> None:
        """Sessions leave a connection one by one, or all together with it."""
        conversation = alice.conversation
        carl = Talker(conversation, "carl")
        carl.hello()
        carl.name = "alice"
        carl.heartbeat()
        alice.say(CloseSessionRequest())
        conversation.service.connection_closed("connection of alice", now_ns=0)
        (ended,) = conversation.advance(150)
        assert isinstance(ended, Send)
        assert isinstance(ended.message, SessionEnded)
        assert ended.message.session_id == carl.session_id


class TestHeartbeats:
    @pytest.mark.proves("E4")
    def test_leaderships_are_affirmed(self, alice: Talker, bob: Talker) -> None:
        """The answer names each leadership of the session, and no other (E4)."""
        granted = alice.lead("x")
        assert granted == Granted(
            session_id=alice.session_id,
            heartbeat_number=0,
            affirmation=AffirmationRecord(
                component_id=JOB,
                contender_id="x",
                leader_session_id=granted.affirmation.leader_session_id,
                epoch=EPOCH + 1,
            ),
        )
        assert alice.heartbeat() == [
            alice.reply(
                AcknowledgedHeartbeat(
                    affirmations=[granted.affirmation],
                    is_undecided=False,
                    revisions={},
                )
            )
        ]
        assert bob.heartbeat() == [
            bob.reply(
                AcknowledgedHeartbeat(affirmations=[], is_undecided=False, revisions={})
            )
        ]

    @pytest.mark.proves("E5")
    def test_silence_ends_a_session(self, alice: Talker) -> None:
        """At the very deadline, and not before (E5)."""
        conversation = alice.conversation
        assert conversation.advance(999) == []
        ended = SessionEnded(
            session_id=alice.session_id, reason="silent", incarnation=7
        )
        assert conversation.advance(1) == [Send(peer="alice", message=ended)]

    @pytest.mark.proves("E5")
    def test_a_late_heartbeat_revives_nothing(self, alice: Talker) -> None:
        """Time passes first: the session is over, and the heartbeat unanswered (E5)."""
        conversation = alice.conversation
        conversation.advance(995)
        conversation.now_ns = 1_001
        (ended,) = alice.heartbeat()
        assert isinstance(ended, Send)
        assert isinstance(ended.message, SessionEnded)

    @pytest.mark.proves("E5")
    @pytest.mark.parametrize(
        "body",
        [
            register("x"),
            subscribe(),
            ConfirmRequest(
                component_id=JOB,
                contender_id="x",
                leader_session_id=UUID(int=1),
                confirm_count=1,
                address="h:1",
            ),
            WithdrawRequest(component_id=JOB, contender_id="x"),
            GetRequest(component_id=JOB, path="a"),
            StatusRequest(),
            ContendersRequest(component_id=JOB),
            RevokeRequest(component_id=JOB),
            ExpireRequest(session_id="nobody"),
            CloseSessionRequest(),
        ],
        ids=lambda body: type(body).__name__,
    )
    def test_the_last_request_of_a_dying_session(
        self, alice: Talker, body: RequestBody
    ) -> None:
        """Whatever it asks while its time is over, nothing breaks and it ends (E5)."""
        conversation = alice.conversation
        conversation.advance(995)
        conversation.now_ns = 1_001
        outgoing = [*alice.say(body), *conversation.advance(0)]
        assert any(
            isinstance(item, Send) and isinstance(item.message, SessionEnded)
            for item in outgoing
        )
        assert conversation.service.session_count == 0


class TestElection:
    def test_grant_confirm_publish(self, alice: Talker, bob: Talker) -> None:
        """None hears of a leader that has not confirmed (E3)."""
        nobody = SnapshotReply(revision=0, is_undecided=False, publication=None)
        assert bob.answer(subscribe()) == nobody
        outgoing = alice.say(register("x"))
        accepted = alice.reply(RegisteredReply(ticket=TICKET + 1))
        assert outgoing[0] == accepted
        assert len(outgoing) == 2
        granted = outgoing[1]
        assert isinstance(granted, Send)
        assert isinstance(granted.message, Granted)
        assert bob.answer(subscribe()) == nobody
        affirmation = granted.message.affirmation
        # Everybody hears of it before the leader is told that everybody may have.
        assert alice.say(confirm(affirmation)) == [
            published(1, affirmation),
            alice.reply(DoneReply()),
        ]
        assert bob.answer(subscribe()) == SnapshotReply(
            revision=1,
            is_undecided=False,
            publication=published(1, affirmation).message.publication,
        )

    def test_nobody_leads_before_another_does(self, alice: Talker, bob: Talker) -> None:
        """Withdrawing publishes no leader, then grants, then answers (E7)."""
        bob.answer(subscribe())
        granted = alice.lead("x")
        alice.say(confirm(granted.affirmation))
        assert bob.say(register("y")) == [bob.reply(RegisteredReply(ticket=TICKET + 2))]
        outgoing = alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        assert outgoing[0] == published(2, None)
        assert isinstance(outgoing[1], Send)
        assert isinstance(outgoing[1].message, Granted)
        assert outgoing[1].message.affirmation.epoch == EPOCH + 2
        assert outgoing[2:] == [alice.reply(DoneReply())]

    @pytest.mark.proves("E5")
    def test_closing_hands_over_at_once(self, alice: Talker, bob: Talker) -> None:
        """A session that is closed says that everything of it has stopped (E5)."""
        alice.lead("x")
        bob.say(register("y"))
        done, ended, granted = alice.say(CloseSessionRequest())
        assert done == alice.reply(DoneReply())
        assert isinstance(ended, Send)
        assert ended.message == SessionEnded(
            session_id=alice.session_id, reason="closed", incarnation=7
        )
        assert isinstance(granted, Send)
        assert isinstance(granted.message, Granted)

    @pytest.mark.proves("E8")
    def test_registration_is_idempotent(self, alice: Talker) -> None:
        """A repeated request has the same ticket and makes no second entry (E8)."""
        alice.lead("x")
        again = alice.say(register("x"))
        assert again == [alice.reply(RegisteredReply(ticket=TICKET + 1))]
        reply = alice.answer(ContendersRequest(component_id=JOB))
        assert isinstance(reply, ContendersReply)
        assert len(reply.contenders) == 1

    def test_a_contender_is_of_its_session(self, alice: Talker, bob: Talker) -> None:
        """Another session can neither take its name nor speak for it."""
        granted = alice.lead("x")
        assert failure(bob.say(register("x"))) == "taken"
        assert failure(bob.say(confirm(granted.affirmation))) == "stale"
        bob.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        assert alice.answer(confirm(granted.affirmation)) == DoneReply()

    def test_a_stale_confirm_changes_nothing(self, alice: Talker) -> None:
        """Nor does one of a component that is not known (E3)."""
        granted = alice.lead("x")
        alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        assert failure(alice.say(confirm(granted.affirmation))) == "stale"
        assert alice.conversation.service.core.publication(JOB) is None

    @pytest.mark.proves("E4")
    def test_a_revoked_leader_says_when_it_has_stopped(
        self, alice: Talker, bob: Talker
    ) -> None:
        """Another is granted as soon as the holder has acknowledged (E4)."""
        granted = alice.lead("x")
        bob.say(register("y"))
        revoked_reply, revoked = bob.say(RevokeRequest(component_id=JOB))
        affirmation = granted.affirmation
        assert revoked_reply == bob.reply(
            RevokedReply(
                leader_session_id=affirmation.leader_session_id, epoch=EPOCH + 1
            )
        )
        assert revoked == Send(
            peer="alice",
            message=Revoked(session_id=alice.session_id, affirmation=affirmation),
        )
        finished = RevocationFinishedRequest(
            component_id=JOB, contender_id="x", epoch=EPOCH + 1
        )
        next_granted, done = alice.say(finished)
        assert isinstance(next_granted, Send)
        assert next_granted.peer == "bob"
        assert done == alice.reply(DoneReply())
        assert alice.answer(finished) == DoneReply()

    def test_leadership_is_handed_to_whom_an_operator_names(
        self, alice: Talker, bob: Talker
    ) -> None:
        """The holder is revoked, and the leadership that ends is named (N6)."""
        granted = alice.lead("x")
        bob.say(register("y"))
        transfer = transfer_to("y")
        reply, revoked = bob.say(transfer)
        affirmation = granted.affirmation
        assert reply == bob.reply(
            TransferredReply(
                leader_session_id=affirmation.leader_session_id, epoch=EPOCH + 1
            )
        )
        assert isinstance(revoked, Send)
        assert revoked.peer == "alice"
        # None leads until the holder has stopped: there is nothing more to end.
        nothing = TransferredReply(leader_session_id=None, epoch=0)
        assert bob.answer(transfer) == nothing
        next_granted, _ = alice.say(
            RevocationFinishedRequest(
                component_id=JOB, contender_id="x", epoch=EPOCH + 1
            )
        )
        assert isinstance(next_granted, Send)
        assert next_granted.peer == "bob"
        assert bob.answer(transfer) == nothing
        assert bob.conversation.service.core.grant_count == 2

    def test_leadership_is_not_handed_to_who_is_not_there(
        self, alice: Talker, bob: Talker
    ) -> None:
        """Unknown, of another component, or silent: the leader stays (N6)."""
        granted = alice.lead("x")
        bob.say(register("y"))
        bob.say(register("z", "c/other"))
        for component_id, contender_id in (
            (JOB, "nobody"),
            (JOB, "z"),
            ("c/nothing", "y"),
        ):
            body = TransferRequest(component_id=component_id, contender_id=contender_id)
            assert failure(alice.say(body)) == "unknown-contender"
        alice.say(confirm(granted.affirmation))
        alice.conversation.advance(100)
        assert failure(alice.say(transfer_to("y"))) == "not-heard"
        assert alice.answer(transfer_to("x")) == TransferredReply(
            leader_session_id=None, epoch=0
        )

    @pytest.mark.proves("N3")
    def test_the_limits_hold(self) -> None:
        """Contenders of a component and components are bounded (N3)."""
        conversation = Conversation(contender_count_max=1, component_count_max=1)
        alice = Talker(conversation, "alice")
        alice.hello()
        alice.lead("x")
        assert failure(alice.say(register("y"))) == "limit-reached"
        assert failure(alice.say(register("z", "c/other"))) == "limit-reached"

    def test_an_injected_event_is_performed(self, alice: Talker, bob: Talker) -> None:
        """Leadership control goes the way that everything goes."""
        alice.lead("x")
        bob.say(register("y"))
        (revoked,) = alice.conversation.service.inject(
            ContenderPreferred(component_id=JOB, contender_id="y"), now_ns=0
        )
        assert isinstance(revoked, Send)
        assert isinstance(revoked.message, Revoked)


class TestAfterAStart:
    @pytest.mark.proves("E9")
    def test_nothing_is_handed_over_before_it_is_decided(self) -> None:
        """Who leads, and so who is to be revoked, is not known (E9)."""
        alice = Talker(Conversation(undecided_ns=200), "alice")
        alice.hello()
        alice.say(register("x"))
        assert failure(alice.say(transfer_to("x"))) == "undecided"

    @pytest.mark.proves("E9")
    def test_nothing_is_granted_before_it_is_decided(self) -> None:
        """A predecessor's holders may believe for the longest lease (E9)."""
        conversation = Conversation(undecided_ns=200)
        alice = Talker(conversation, "alice")
        alice.hello()
        assert alice.say(register("x")) == [
            alice.reply(RegisteredReply(ticket=TICKET + 1))
        ]
        reply = alice.answer(subscribe())
        assert reply == SnapshotReply(revision=0, is_undecided=True, publication=None)
        assert alice.answer(HeartbeatRequest(acknowledged=0)) == AcknowledgedHeartbeat(
            affirmations=[], is_undecided=True, revisions={}
        )
        assert (
            failure(
                alice.say(
                    commit(
                        AffirmationRecord(
                            component_id=JOB,
                            contender_id="x",
                            leader_session_id=UUID(int=1),
                            epoch=1,
                        )
                    )
                )
            )
            == "undecided"
        )
        conversation.advance(150)
        alice.heartbeat()
        (granted,) = conversation.advance(50)
        assert isinstance(granted, Send)
        assert isinstance(granted.message, Granted)
        assert granted.message.affirmation.epoch == EPOCH + 1

    @pytest.mark.proves("E9")
    def test_who_asked_too_early_is_told_once(self) -> None:
        """Listeners need not ask again and again: its newest heartbeat is answered."""
        conversation = Conversation(undecided_ns=200)
        alice = Talker(conversation, "alice")
        bob = Talker(conversation, "bob")
        carol = Talker(conversation, "carol")
        for talker in (alice, bob, carol):
            talker.hello()
            talker.heartbeat()
        alice.answer(subscribe())
        alice.answer(subscribe("c/other"))
        bob.answer(subscribe())
        bob.say(CloseSessionRequest())
        decided = Reply(
            number=1,
            body=AcknowledgedHeartbeat(
                affirmations=[], is_undecided=False, revisions={}
            ),
        )
        assert conversation.advance(199) == []
        assert conversation.advance(100) == [Send(peer="alice", message=decided)]
        assert alice.answer(subscribe()) == SnapshotReply(
            revision=0, is_undecided=False, publication=None
        )
        assert conversation.advance(100) == []

    @pytest.mark.proves("E9")
    @pytest.mark.proves("E4")
    def test_who_contends_is_told_by_heartbeats(self) -> None:
        """An answer without affirmations would end what its session holds (E4)."""
        conversation = Conversation(undecided_ns=200)
        alice = Talker(conversation, "alice")
        alice.hello()
        alice.heartbeat()
        alice.say(register("x"))
        alice.answer(subscribe())
        conversation.advance(150)
        alice.heartbeat()
        (granted,) = conversation.advance(50)
        assert isinstance(granted, Send)
        assert isinstance(granted.message, Granted)

    @pytest.mark.proves("E9")
    def test_many_are_told_part_by_part(self) -> None:
        """What arrives meanwhile is taken in between: a heartbeat must not wait."""
        conversation = Conversation(undecided_ns=200, session_count_max=250)
        talkers = [Talker(conversation, f"t{n}") for n in range(250)]
        for talker in talkers:
            talker.hello()
            talker.heartbeat()
            talker.answer(subscribe())
        service = conversation.service
        counts = []
        conversation.advance(199)
        while (due_ns := service.next_deadline_ns()) is not None and due_ns <= 200:
            counts.append(len(service.advance(now_ns=200)))
        assert counts == [100, 100, 50]

    @pytest.mark.proves("E9")
    def test_a_claim_is_reinstated(self) -> None:
        """The incumbent has its epoch and its id back, and is published (E9)."""
        conversation = Conversation(undecided_ns=200)
        alice = Talker(conversation, "alice")
        alice.hello()
        claim = RegisterRequest(
            component_id=JOB,
            contender_id="x",
            confirm_timeout_ns=500,
            ticket=5,
            epoch_ended=0,
            claim=ClaimRecord(
                leader_session_id=UUID(int=9),
                epoch=6 << 32,
                confirm_count=3,
                address="h:1",
            ),
        )
        assert alice.answer(claim) == RegisteredReply(ticket=5)
        alice.answer(subscribe(epoch_seen=6 << 32))
        granted, broadcast = conversation.advance(200)
        assert isinstance(granted, Send)
        assert isinstance(granted.message, Granted)
        assert granted.message.affirmation.leader_session_id == UUID(int=9)
        assert granted.message.affirmation.epoch == 6 << 32
        assert isinstance(broadcast, Broadcast)
        assert broadcast.message.publication == PublicationRecord(
            epoch=6 << 32,
            confirm_count=3,
            address="h:1",
            leader_session_id=UUID(int=9),
        )

    @pytest.mark.proves("E2")
    def test_what_is_known_to_be_over_is_not_granted_again(self) -> None:
        """A contender reports its own ended epoch; the next is above it (E2)."""
        conversation = Conversation()
        alice = Talker(conversation, "alice")
        alice.hello()
        ended = RegisterRequest(
            component_id=JOB,
            contender_id="x",
            confirm_timeout_ns=500,
            ticket=None,
            epoch_ended=9 << 32,
            claim=None,
        )
        granted = alice.say(ended)[-1]
        assert isinstance(granted, Send)
        assert isinstance(granted.message, Granted)
        assert granted.message.affirmation.epoch > 9 << 32

    @pytest.mark.proves("N4")
    @pytest.mark.parametrize("ahead", [0, 1, 1 << 32])
    @pytest.mark.parametrize("is_ended", [False, True])
    @pytest.mark.parametrize("is_undecided", [False, True])
    def test_who_may_only_look_reports_nothing(
        self, ahead: int, is_ended: bool, is_undecided: bool
    ) -> None:
        """A key without the right to contend ends no leadership (N4)."""
        conversation = Conversation(undecided_ns=200 if is_undecided else 0)
        alice = Talker(conversation, "alice")
        alice.hello()
        olga = Talker(conversation, "olga", OBSERVER)
        olga.hello()
        carl = Talker(conversation, "carl", CONTENDER_OF_ANOTHER)
        carl.hello()
        epoch = 6 << 32
        if is_undecided:
            alice.answer(
                RegisterRequest(
                    component_id=JOB,
                    contender_id="x",
                    confirm_timeout_ns=500,
                    ticket=None,
                    epoch_ended=0,
                    claim=ClaimRecord(
                        leader_session_id=UUID(int=9),
                        epoch=epoch,
                        confirm_count=1,
                        address="h:1",
                    ),
                )
            )
        else:
            affirmation = alice.lead("x").affirmation
            alice.say(confirm(affirmation))
            epoch = affirmation.epoch
        for stranger in (olga, carl):
            answer = stranger.answer(
                SubscribeRequest(
                    component_id=JOB, epoch_seen=epoch + ahead, is_ended_seen=is_ended
                )
            )
            assert isinstance(answer, SnapshotReply)
        conversation.advance(200)
        component = conversation.service.core.component(JOB)
        assert component is not None
        assert component.leadership is not None
        assert component.leadership.epoch == epoch
        assert conversation.service.core.incarnation <= 7

    @pytest.mark.proves("N3")
    def test_session_that_ends_in_its_subscription_leaves_nothing(self) -> None:
        """N3: what has no subscription is not kept, and nothing is answered."""
        conversation = Conversation()
        olga = Talker(conversation, "olga", OBSERVER)
        olga.hello(session_timeout_ns=200)
        conversation.advance(199)
        conversation.now_ns += 1  # the very moment at which its session is over
        ended = olga.say(subscribe())
        assert [type(item.message) for item in ended] == [SessionEnded]
        figures = conversation.service.figures(now_ns=conversation.now_ns)
        assert (figures["sessions"], figures["subscriptions"]) == (0, 0)

    @pytest.mark.proves("L2")
    def test_who_has_ended_in_that_moment_writes_nothing(self) -> None:
        """L2: time comes before a request to the store, as before any other."""
        conversation = Conversation()
        alice = Talker(conversation, "alice")
        alice.hello(session_timeout_ns=200)
        affirmation = alice.lead("x").affirmation
        alice.say(confirm(affirmation))
        conversation.advance(199)
        conversation.now_ns += 1  # the very moment at which its session is over
        said = alice.say(commit(affirmation))
        answer = said[-1]
        assert isinstance(answer, Send)
        assert isinstance(answer.message, Reply)
        assert failure(answer.message.body) == Failure.STALE
        assert conversation.storage.get(JOB, "a") is None

    def test_who_may_only_look_is_told_that_nobody_leads(self) -> None:
        """R2: what it saw of an earlier server's time is over, for it alone."""
        conversation = Conversation()
        olga = Talker(conversation, "olga", OBSERVER)
        olga.hello()
        answer = olga.answer(subscribe(epoch_seen=5 << 32))
        assert isinstance(answer, SnapshotReply)
        assert answer.publication == PublicationRecord(
            epoch=5 << 32, confirm_count=0, address=None, leader_session_id=None
        )
        assert conversation.service.core.component(JOB) is None

    @pytest.mark.proves("E8")
    @pytest.mark.parametrize("has_claim", [False, True])
    @pytest.mark.parametrize("undecided_ns", [0, 200])
    def test_who_can_never_lead_is_told(
        self, has_claim: bool, undecided_ns: int
    ) -> None:
        """E8: seen more than a day ahead, it would take no grant of this server's."""
        conversation = Conversation(undecided_ns=undecided_ns)
        alice = Talker(conversation, "alice")
        alice.hello()
        epoch = 300_000 << 32
        claim = ClaimRecord(
            leader_session_id=UUID(int=9), epoch=epoch, confirm_count=1, address="h:1"
        )
        said = alice.say(
            RegisterRequest(
                component_id=JOB,
                contender_id="x",
                confirm_timeout_ns=500,
                ticket=None,
                epoch_ended=0 if has_claim else epoch,
                claim=claim if has_claim else None,
            )
        )
        assert failure(said[:1]) == Failure.EPOCH_AHEAD
        assert [type(item.message) for item in said[1:]] == [Revoked] * has_claim
        bob = Talker(conversation, "bob")
        bob.hello()
        bob.say(register("y"))
        conversation.advance(200)
        component = conversation.service.core.component(JOB)
        assert component is not None
        assert list(component.contenders) == ["y"]

    @pytest.mark.proves("E2")
    def test_an_impossible_epoch_is_refused(self, alice: Talker) -> None:
        """A report from more than a day ahead changes nothing (E2)."""
        granted = alice.lead("x")
        with capture_logs() as logs:
            alice.answer(subscribe(epoch_seen=2**62))
        assert [line["event"] for line in logs] == ["epoch.refused"]
        assert alice.say(confirm(granted.affirmation))[-1] == alice.reply(DoneReply())

    @pytest.mark.proves("E2")
    def test_epochs_rise_across_a_restart(self, tmp_path: Path) -> None:
        """A data directory remembers the epoch of each component (E2)."""
        storage = SQLiteStorage(tmp_path)
        first = Conversation(storage=storage)
        alice = Talker(first, "alice")
        alice.hello()
        epoch = alice.lead("x").affirmation.epoch
        assert storage.recorded_epochs() == {JOB: epoch}
        # The same incarnation again: only what is on record tells them apart.
        second = Conversation(storage=storage)
        bob = Talker(second, "bob")
        bob.hello()
        assert bob.lead("y").affirmation.epoch > epoch
        storage.close()

    @pytest.mark.proves("E2")
    def test_what_is_not_on_record_is_not_granted(self, tmp_path: Path) -> None:
        """A full disk grants nothing, and one lease later it is tried again (E2)."""
        storage = SQLiteStorage(tmp_path)
        conversation = Conversation(storage=storage)
        alice = Talker(conversation, "alice")
        alice.hello()
        storage._database._connection.execute("PRAGMA query_only = ON")
        with capture_logs() as logs:
            outgoing = alice.say(register("x"))
        assert "epoch.unrecorded" in [line["event"] for line in logs]
        assert not any(
            isinstance(item, Send) and isinstance(item.message, Granted)
            for item in outgoing
        )
        storage._database._connection.execute("PRAGMA query_only = OFF")
        granted: list[Outgoing] = []
        for _ in range(40):
            alice.heartbeat()
            granted += conversation.advance(10)
            if granted:
                break
        assert isinstance(granted[0], Send)
        assert isinstance(granted[0].message, Granted)
        assert storage.recorded_epochs() == {JOB: granted[0].message.affirmation.epoch}
        storage.close()


def say_batch(talker: Talker, bodies: list[BatchedBody]) -> list[Outgoing]:
    """Say *bodies* in one batch, and take its turn; return all that is sent."""
    outgoing = talker.say(BatchRequest(bodies=bodies))
    return outgoing + talker.conversation.advance(0)


class TestBatches:
    @pytest.mark.proves("N3")
    def test_requests_are_answered_together_and_in_order(self, alice: Talker) -> None:
        """N3: what one batch asks for is done as if each had come alone."""
        bodies: list[BatchedBody] = [
            register("a", "c/one"),
            register("b", "c/two"),
            subscribe("c/one"),
            UnsubscribeRequest(component_id="c/one"),
            WithdrawRequest(component_id="c/two", contender_id="b"),
        ]
        *pushed, answered = say_batch(alice, bodies)
        granted = [item.message for item in pushed if isinstance(item, Send)]
        assert [type(message) for message in granted] == [Granted, Granted]
        assert isinstance(answered, Send)
        assert isinstance(answered.message, Reply)
        assert isinstance(answered.message.body, BatchReply)
        first, second, snapshot, *done = answered.message.body.bodies
        assert isinstance(first, RegisteredReply)
        assert isinstance(second, RegisteredReply)
        assert isinstance(snapshot, SnapshotReply)
        assert done == [DoneReply(), DoneReply()]

    @pytest.mark.proves("N3")
    def test_what_is_refused_harms_nothing_else(self, alice: Talker) -> None:
        """N3: a bad name in a batch is answered in its place."""
        bodies: list[BatchedBody] = [register("a", "nonsense"), register("b", "c/two")]
        outgoing = say_batch(alice, bodies)
        (reply,) = [
            item.message
            for item in outgoing
            if isinstance(item, Send) and isinstance(item.message, Reply)
        ]
        assert isinstance(reply.body, BatchReply)
        refused, entered = reply.body.bodies
        assert failure(refused) == Failure.INVALID
        assert isinstance(entered, RegisteredReply)

    @pytest.mark.proves("E4")
    def test_a_heartbeat_is_answered_before_a_batch(
        self, alice: Talker, bob: Talker
    ) -> None:
        """E4: what a hundred others ask for stands in no leader's way."""
        assert alice.say(BatchRequest(bodies=[register("a")])) == []
        assert alice.say(BatchRequest(bodies=[subscribe()])) == []
        ours, theirs = alice.heartbeat(), bob.heartbeat()
        assert [len(ours), len(theirs)] == [1, 1]
        conversation = alice.conversation
        deadline_ns = conversation.service.next_deadline_ns()
        assert deadline_ns is not None
        assert deadline_ns <= conversation.now_ns
        first = conversation.service.advance(now_ns=conversation.now_ns)
        (reply,) = [
            item.message.body
            for item in first
            if isinstance(item, Send) and isinstance(item.message, Reply)
        ]
        # The answer says which heartbeats cannot have known of the contender.
        registered = RegisteredReply(ticket=TICKET + 1, heartbeat_number=3)
        assert reply == BatchReply(bodies=[registered])

    @pytest.mark.proves("E8")
    def test_a_withdrawal_stays_behind_the_registration(self, alice: Talker) -> None:
        """E7, E8: what is withdrawn while its registration waits does not stay."""
        both: list[BatchedBody] = [register("a"), register("b", "c/other")]
        assert alice.say(BatchRequest(bodies=both)) == []
        assert alice.say(WithdrawRequest(component_id=JOB, contender_id="a")) == []
        alice.conversation.advance(0)
        core = alice.conversation.service.core
        assert [
            contender_id
            for component in core.components
            for contender_id in component.contenders
        ] == ["b"]

    @pytest.mark.proves("E8")
    def test_a_registration_sent_twice_does_not_outlive_its_withdrawal(
        self, alice: Talker
    ) -> None:
        """E7, E8: the first of two waits in a batch, the second and the end come."""
        assert alice.say(BatchRequest(bodies=[register("a")])) == []
        alice.say(register("a"))
        alice.say(WithdrawRequest(component_id=JOB, contender_id="a"))
        replies = [
            item.message.body
            for item in alice.conversation.advance(0)
            if isinstance(item, Send) and isinstance(item.message, Reply)
        ]
        once = RegisteredReply(ticket=TICKET + 1)
        assert replies == [BatchReply(bodies=[once]), once, DoneReply()]
        component = alice.conversation.service.core.component(JOB)
        assert component is not None
        assert not component.contenders

    @pytest.mark.proves("N1")
    def test_subscriptions_stay_in_their_order(self, alice: Talker) -> None:
        """N1: the last word counts, whether it came in a batch or alone."""
        job = UnsubscribeRequest(component_id=JOB)
        assert alice.say(BatchRequest(bodies=[subscribe()])) == []
        alice.say(job)
        alice.conversation.advance(0)
        assert alice.conversation.service.figures(now_ns=0)["subscriptions"] == 0
        assert alice.say(BatchRequest(bodies=[job])) == []
        alice.say(subscribe())
        alice.conversation.advance(0)
        assert alice.conversation.service.figures(now_ns=0)["subscriptions"] == 1

    @pytest.mark.proves("E4")
    def test_what_names_a_leadership_does_not_wait(
        self, alice: Talker, bob: Talker
    ) -> None:
        """E4: a successor waits for no batch of the session that withdraws."""
        granted = alice.lead("a")
        bob.say(register("b"))
        assert alice.say(BatchRequest(bodies=[register("c", "c/other")])) == []
        done = alice.say(confirm(granted.affirmation))
        assert alice.reply(DoneReply()) in done

    @pytest.mark.proves("N3")
    def test_batches_that_wait_are_bounded(self, alice: Talker) -> None:
        """N3: what is too much is dropped and counted; it is asked for again."""
        for _ in range(9):
            assert alice.say(BatchRequest(bodies=[subscribe()])) == []
        answered = alice.conversation.advance(0)
        assert len(answered) == 8
        figures = alice.conversation.service.figures(now_ns=0)
        assert figures["batches_dropped_total"] == 1

    @pytest.mark.proves("E5")
    def test_a_batch_after_the_end_is_not_answered(self, alice: Talker) -> None:
        """E5: time ends the session first; it is told so, and nothing else."""
        alice.conversation.advance(999)
        alice.conversation.now_ns += 1  # in this very step
        bodies: list[BatchedBody] = [subscribe(), register("a")]
        outgoing = say_batch(alice, bodies)
        replies = [
            item.message
            for item in outgoing
            if isinstance(item, Send) and isinstance(item.message, Reply)
        ]
        assert replies == []
        assert len(alice.conversation.service.core.sessions) == 0


class TestSubscriptions:
    @pytest.mark.proves("N1")
    def test_a_lost_broadcast_is_noticed(self, alice: Talker, bob: Talker) -> None:
        """The answer to a heartbeat names what changed, until it is known (N1)."""
        bob.answer(subscribe())
        granted = alice.lead("x")
        alice.say(confirm(granted.affirmation))
        told = AcknowledgedHeartbeat(
            affirmations=[], is_undecided=False, revisions={JOB: 1}
        )
        assert bob.answer(HeartbeatRequest(acknowledged=0)) == told
        assert bob.answer(HeartbeatRequest(acknowledged=0)) == told
        assert bob.answer(HeartbeatRequest(acknowledged=2)) == AcknowledgedHeartbeat(
            affirmations=[], is_undecided=False, revisions={}
        )

    def test_nobody_listens_nothing_is_sent(self, alice: Talker, bob: Talker) -> None:
        """What has no subscription is not broadcast, and unsubscribing ends it."""
        bob.answer(subscribe())
        assert bob.answer(UnsubscribeRequest(component_id=JOB)) == DoneReply()
        granted = alice.lead("x")
        assert alice.answer(confirm(granted.affirmation)) == DoneReply()

    @pytest.mark.proves("N3")
    def test_subscriptions_are_bounded(self) -> None:
        """Of one session; another has its own (N3)."""
        conversation = Conversation(subscription_count_max=1)
        alice, bob = (Talker(conversation, name) for name in ("alice", "bob"))
        for talker in (alice, bob):
            talker.hello()
            talker.answer(subscribe())
            assert failure(talker.say(subscribe("c/other"))) == "limit-reached"

    def test_a_session_that_ends_takes_its_subscriptions(self, alice: Talker) -> None:
        """Nothing is left behind."""
        alice.answer(subscribe())
        alice.say(CloseSessionRequest())
        assert alice.conversation.service.figures(now_ns=0)["subscriptions"] == 0


def watch(number: int) -> WatchStoreRequest:
    """Return how a store is watched by a client that has seen nothing of it."""
    return WatchStoreRequest(
        component_id=f"c/{number}", incarnation_seen=0, revision_seen=None
    )


def state_bytes(conversation: Conversation) -> int:
    """Return what all that is kept costs."""
    return int(conversation.service.figures(now_ns=0)["state_bytes"])


class TestMemory:
    """N3: what clients have the server keep has a limit together."""

    @pytest.mark.proves("N3")
    def test_watches_of_stores_have_their_part_of_the_memory(self) -> None:
        """N3: each costs a kilobyte; a thousand of each session were not counted."""
        conversation = Conversation(state_bytes_max=16_000, subscription_count_max=99)
        alice = Talker(conversation, "alice")
        alice.hello()
        replies = [alice.answer(watch(number)) for number in range(50)]
        taken = [one for one in replies if isinstance(one, StoreRevisionReply)]
        assert 0 < len(taken) < 12
        assert failure(replies[-1]) == Failure.LIMIT_REACHED
        # To watch again, what it watches, costs nothing; and what it leaves is free.
        assert isinstance(alice.answer(watch(0)), StoreRevisionReply)
        alice.say(UnwatchStoreRequest(component_id="c/0"))
        conversation.now_ns += NS_PER_SECOND
        alice.hello()
        assert isinstance(alice.answer(watch(99)), StoreRevisionReply)

    @pytest.mark.proves("N3")
    def test_what_is_refused_takes_no_memory_from_others(self) -> None:
        """
        N3: a session at its own limit asks for more, again and again.

        What it did not get was counted, and others were refused for a second.
        """
        conversation = Conversation(
            state_bytes_max=30_000, subscription_count_max=2, contender_count_max=2
        )
        alice, bob = Talker(conversation, "alice"), Talker(conversation, "bob")
        alice.hello()
        bob.hello()
        for number in range(2):
            alice.say(subscribe(f"c/{number}"))
            alice.say(watch(number))
            alice.say(register(f"x-{number}"))
        cost_bytes = conversation.service.figures(now_ns=0)["state_bytes"]
        for number in range(2, 20):
            assert failure(alice.say(subscribe(f"c/{number}"))) == (
                Failure.LIMIT_REACHED
            )
            assert failure(alice.say(watch(number))) == Failure.LIMIT_REACHED
            assert failure(alice.say(register(f"x-{number}"))) == Failure.LIMIT_REACHED
        assert conversation.service.figures(now_ns=0)["state_bytes"] == cost_bytes
        assert isinstance(bob.answer(subscribe()), SnapshotReply)

    @pytest.mark.proves("N3")
    def test_what_was_refused_is_given_back_at_once(self) -> None:
        """N3: also where all was counted a moment ago, and so is not counted again."""
        conversation = Conversation(state_bytes_max=31_000, contender_count_max=1)
        alice = Talker(conversation, "alice")
        alice.hello()
        alice.say(register("x-0"))
        greeted = [Talker(conversation, f"other {n}").hello() for n in range(10)]
        (found,) = greeted[-1]  # there is no room for one more session
        assert isinstance(found, Send)
        assert isinstance(found.message, RefusedHello)
        cost_bytes = state_bytes(conversation)
        assert 2_200 < 31_000 - cost_bytes < 3_800  # for one contender, not for two
        for number in range(1, 3):
            assert failure(alice.say(register(f"x-{number}"))) == Failure.LIMIT_REACHED
        assert isinstance(alice.answer(watch(0)), StoreRevisionReply)

    @pytest.mark.proves("N3")
    def test_a_session_that_was_refused_is_given_back_at_once(self) -> None:
        """N3: as above; the election has no place for it."""
        conversation = Conversation(
            state_bytes_max=38_000, session_count_max=1, subscription_count_max=99
        )
        alice = Talker(conversation, "alice")
        alice.hello()
        number = 0
        while state_bytes(conversation) < 38_000 - 5_600:
            assert isinstance(alice.answer(watch(number)), StoreRevisionReply)
            number += 1
        cost_bytes = state_bytes(conversation)
        assert 38_000 - cost_bytes > 4_200  # for one session, and for no watch beside
        for index in range(2):
            (refused,) = Talker(conversation, f"other {index}").hello()
            assert isinstance(refused, Send)
            assert isinstance(refused.message, RefusedHello)
        assert isinstance(alice.answer(watch(number)), StoreRevisionReply)

    @pytest.mark.proves("N3")
    def test_sessions_that_are_refused_take_no_memory(self) -> None:
        """N3: there are as many as may be; who comes next costs nothing."""
        conversation = Conversation(state_bytes_max=30_000, session_count_max=1)
        alice = Talker(conversation, "alice")
        alice.hello()
        for number in range(20):
            (refused,) = Talker(conversation, f"other {number}").hello()
            assert isinstance(refused, Send)
            assert isinstance(refused.message, RefusedHello)
        assert isinstance(alice.answer(subscribe()), SnapshotReply)

    @pytest.mark.proves("N3")
    def test_what_comes_and_goes_takes_no_memory_from_others(self) -> None:
        """
        N3: one session subscribes and leaves, all the time, and holds nothing.

        What it had left was counted as long as others were refused for a second; and
        the figure stood at the limit for ever.
        """
        conversation = Conversation(state_bytes_max=30_000)
        alice, bob = Talker(conversation, "alice"), Talker(conversation, "bob")
        alice.hello()
        bob.hello()
        cost_bytes = conversation.service.figures(now_ns=0)["state_bytes"]
        for number in range(200):
            assert isinstance(alice.answer(subscribe(f"c/{number}")), SnapshotReply)
            alice.say(UnsubscribeRequest(component_id=f"c/{number}"))
        assert conversation.service.figures(now_ns=0)["state_bytes"] == cost_bytes
        assert isinstance(bob.answer(subscribe()), SnapshotReply)


class TestRights:
    @pytest.mark.proves("N4")
    def test_an_observer_observes(self, conversation: Conversation) -> None:
        """It asks who leads, and can change nothing (N4)."""
        olga = Talker(conversation, "olga", OBSERVER)
        olga.hello()
        assert olga.answer(subscribe()) is not None
        for body in (
            register("x"),
            CleanupRequest(component_id=JOB),
            RevokeRequest(component_id=JOB),
            transfer_to("x"),
            ExpireRequest(session_id=olga.session_id),
        ):
            assert failure(olga.say(body)) == "not-allowed"
        assert conversation.service.session_count == 1

    @pytest.mark.proves("N4")
    def test_a_contender_contends_for_what_it_may(
        self, conversation: Conversation
    ) -> None:
        """The glob of its role decides (N4)."""
        carl = Talker(conversation, "carl", CONTENDER)
        carl.hello()
        granted = carl.lead("x")
        assert carl.answer(commit(granted.affirmation)) == DoneReply()
        assert failure(carl.say(register("y", "c/other"))) == "not-allowed"
        assert carl.answer(CleanupRequest(component_id=JOB)) == DoneReply()

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize(
        "component_id", ["job", "/job", "c/", "c/a/b", "c/j\nb", "c\0/job"]
    )
    def test_a_component_has_a_proper_name(
        self, alice: Talker, component_id: str
    ) -> None:
        """Cluster and component, printable, one slash; whatever is asked (N3)."""
        for body in (
            register("x", component_id),
            subscribe(component_id),
            GetRequest(component_id=component_id, path="a"),
        ):
            assert failure(alice.say(body)) == "invalid"

    def test_an_address_is_printable(self, alice: Talker) -> None:
        """It will be shown to people and put into URLs."""
        granted = alice.lead("x")
        bad = confirm(granted.affirmation, address="h:1\n")
        assert failure(alice.say(bad)) == "invalid"
        assert alice.conversation.service.core.publication(JOB) is None
