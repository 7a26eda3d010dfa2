from __future__ import annotations

from leaderserver.messages import DoneReply, SessionEnded
from leaderserver.operator_messages import (
    ComponentRecord,
    ComponentsReply,
    ContenderRecord,
    ContendersReply,
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
    RevokeRequest,
    SessionRecord,
    SessionsReply,
    SessionsRequest,
    StatusReply,
    StatusRequest,
)
from leaderserver.server.core.turn import Send
from tests.leaderserver.conversation import (
    EPOCH,
    JOB,
    Talker,
    confirm,
    failure,
    published,
    register,
)


class TestOperators:
    def test_components_contenders_and_sessions_are_listed(
        self, alice: Talker, bob: Talker
    ) -> None:
        """What there is, in order, the leader first (N6)."""
        granted = alice.lead("x")
        alice.say(confirm(granted.affirmation))
        bob.say(register("y"))
        alice.conversation.advance(50)
        alice.heartbeat()
        alice.conversation.advance(10)
        publication = published(1, granted.affirmation).message.publication
        assert bob.answer(LeadersRequest(prefix="c/", after="")) == ComponentsReply(
            components=[
                ComponentRecord(
                    component_id=JOB,
                    publication=publication,
                    contender_count=2,
                    epoch=EPOCH + 1,
                )
            ],
            is_complete=True,
        )
        nothing = ComponentsReply(components=[], is_complete=True)
        assert bob.answer(LeadersRequest(prefix="d/", after="")) == nothing
        assert bob.answer(LeadersRequest(prefix="c/", after=JOB)) == nothing
        assert bob.answer(ContendersRequest(component_id=JOB)) == ContendersReply(
            contenders=[
                ContenderRecord(
                    contender_id="x",
                    session_id=alice.session_id,
                    address="h:1",
                    is_leader=True,
                    session_age_ns=60,
                    last_heard_ns=10,
                ),
                ContenderRecord(
                    contender_id="y",
                    session_id=bob.session_id,
                    address=None,
                    is_leader=False,
                    session_age_ns=60,
                    last_heard_ns=60,
                ),
            ]
        )
        unknown = ContendersRequest(component_id="c/unknown")
        assert bob.answer(unknown) == ContendersReply(contenders=[])
        first, second = (
            SessionRecord(
                session_id=talker.session_id,
                client=talker.name,
                component_ids=[JOB],
                leads_component_ids=leads,
                age_ns=60,
                last_heard_ns=heard_ns,
                timeout_ns=1_000,
            )
            for talker, leads, heard_ns in ((alice, [JOB], 10), (bob, [], 60))
        )
        assert bob.answer(SessionsRequest(after="")) == SessionsReply(
            sessions=[first, second], is_complete=True
        )
        assert bob.answer(SessionsRequest(after=first.session_id)) == SessionsReply(
            sessions=[second], is_complete=True
        )

    def test_a_session_can_be_expired(self, alice: Talker, bob: Talker) -> None:
        """It is told, and so is the one that did it (N6)."""
        expire = ExpireRequest(session_id=alice.session_id)
        assert bob.say(expire) == [
            bob.reply(DoneReply()),
            Send(
                peer="alice",
                message=SessionEnded(
                    session_id=alice.session_id,
                    reason="expired-by-operator",
                    incarnation=7,
                ),
            ),
        ]
        assert failure(bob.say(expire)) == "unknown-session"

    def test_revoking_nobody_is_told(self, alice: Talker) -> None:
        """There is no leadership to be ended (N6)."""
        assert failure(alice.say(RevokeRequest(component_id=JOB))) == "no-leader"

    def test_figures_count_what_happens(self, alice: Talker) -> None:
        """The shell's own are among them (N6)."""
        alice.lead("x")
        alice.conversation.service.count("frames_malformed")
        reply = alice.answer(StatusRequest())
        assert isinstance(reply, StatusReply)
        figures = dict(reply.figures)
        assert (
            figures.pop("state_bytes") == alice.conversation.service._budget.counted()
        )
        assert figures == {
            "uptime_seconds": 0.0,
            "incarnation": 7,
            "is_undecided": 0,
            "is_durable": 0,
            "sessions": 1,
            "components": 1,
            "contenders": 1,
            "leaders": 1,
            "leaderless": 0,
            "store_watches": 0,
            "subscriptions": 0,
            "storage_waiting": 0,
            "storage_is_short": 0,
            "grants_total": 1,
            "stalls_total": 0,
            "stalled_seconds_total": 0.0,
            "frames_malformed_total": 1,
            "requests_total": 2,
        }
