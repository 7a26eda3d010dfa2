from __future__ import annotations

from typing import Final

import pytest

from queryablestate.node.core.effects import (
    ConnectProxy,
    NodeEffect,
    ReportRefused,
    ReportRegistered,
    ReportStale,
    SendToProxy,
)
from queryablestate.node.core.registration import NodeIdentity, Registration
from queryablestate.wire.job_plan import JobHolding
from queryablestate.wire.node_messages import (
    HeartbeatAcknowledged,
    JobPosition,
    NodeHeartbeat,
    NodeRefused,
    NodeRegistered,
    RegisterNode,
)


MS: Final = 1_000_000
PAUSE: Final = 100 * MS
PAUSE_MAX: Final = 400 * MS
ANSWER_TIMEOUT: Final = 5_000 * MS
SESSION_TIMEOUT_MS: Final = 10_000
SESSION_TIMEOUT: Final = SESSION_TIMEOUT_MS * MS
ADDRESS: Final = "tcp://10.0.0.1:5000"


def refused(reason: str) -> NodeRefused:
    """Return a refusal."""
    return NodeRefused(reason=reason, detail="why")


class Talk:
    """A registration, and a clock that moves when it is told to."""

    def __init__(self) -> None:
        self.registration = Registration(
            NodeIdentity(node_id="n", registration_id="r", address="tcp://10.0.0.9:1"),
            pause_ns=PAUSE,
            pause_ns_max=PAUSE_MAX,
            answer_timeout_ns=ANSWER_TIMEOUT,
        )
        self.registration.store_id = "s"
        self.now_ns = 1_000 * MS
        self.positions = [JobPosition(job_id="job", sequence=7)]
        self.holdings = [JobHolding(job_id="job", version=2, unfinished=(5,))]
        self.is_held = False

    def advance(self, ms: int = 0) -> list[NodeEffect]:
        """Move time on by *ms*, and return what is due."""
        self.now_ns += ms * MS
        return self.registration.advance(
            lambda: self.positions,
            holdings=lambda: self.holdings,
            token="t",
            is_held=self.is_held,
            now_ns=self.now_ns,
        )

    def deadline_ms(self) -> int | None:
        """Return in how many milliseconds something is due."""
        deadline_ns = self.registration.next_deadline_ns(is_held=self.is_held)
        return None if deadline_ns is None else (deadline_ns - self.now_ns) // MS

    def ask(self) -> None:
        """Come to where the question has been asked."""
        self.registration.found(ADDRESS, 3, now_ns=self.now_ns)
        self.registration.connected(now_ns=self.now_ns)
        assert self.advance() == [self.question()]

    def question(self) -> SendToProxy:
        """Return what a node asks."""
        return SendToProxy(
            message=RegisterNode(
                token="t",
                node_id="n",
                store_id="s",
                registration_id="r",
                address="tcp://10.0.0.9:1",
                positions=tuple(self.positions),
                holdings=tuple(self.holdings),
            )
        )

    def heartbeat(self, number: int) -> SendToProxy:
        """Return a heartbeat."""
        return SendToProxy(message=NodeHeartbeat(registration_id="r", number=number))

    def answer(
        self,
        leader_epoch: int = 3,
        *,
        direct_lease_ms: int = 0,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> tuple[list[NodeEffect], bool]:
        """Answer the question."""
        message = NodeRegistered(
            leader_epoch=leader_epoch,
            control_id="c",
            session_timeout_ms=session_timeout_ms,
            jobs=(),
            direct_lease_ms=direct_lease_ms,
        )
        return self.registration.registered(message, now_ns=self.now_ns)

    def acknowledge(
        self, number: int, leader_epoch: int = 3, *, leader_ms: int = 0
    ) -> bool:
        """Acknowledge a heartbeat."""
        return self.registration.acknowledged(
            HeartbeatAcknowledged(
                leader_epoch=leader_epoch, number=number, leader_ms=leader_ms
            ),
            now_ns=self.now_ns,
        )

    def refuse(self, reason: str) -> list[NodeEffect]:
        """Refuse whatever was said last."""
        return self.registration.refused(refused(reason), now_ns=self.now_ns)

    def lease_ms(self) -> int:
        """Return for how long the node may answer."""
        return (self.registration.lease_until_ns - self.now_ns) // MS


@pytest.fixture
def talk() -> Talk:
    """Return a node that knows no proxy."""
    return Talk()


class TestFinding:
    """From the name service to a connection."""

    def test_without_a_proxy_there_is_nothing_to_do(self, talk: Talk) -> None:
        """A node that knows no proxy waits for the name service alone."""
        assert talk.registration.reconnect(now_ns=talk.now_ns) == []
        assert talk.deadline_ms() is None
        assert not talk.registration.is_registered

    def test_a_proxy_is_connected_to_and_asked(self, talk: Talk) -> None:
        """As soon as there is a connection the node says who it is and how far."""
        found = talk.registration.found(ADDRESS, 3, now_ns=talk.now_ns)
        assert found == [ConnectProxy(address=ADDRESS)]
        assert talk.advance() == []
        talk.registration.connected(now_ns=talk.now_ns)
        assert talk.deadline_ms() == 0
        assert talk.advance() == [talk.question()]
        assert talk.registration.is_asking

    def test_the_same_news_changes_nothing(self, talk: Talk) -> None:
        """A connection that stands is not given up for what is known already."""
        talk.ask()
        assert talk.registration.found(ADDRESS, 3, now_ns=talk.now_ns) == []

    @pytest.mark.proves("S2")
    def test_older_news_is_not_followed(self, talk: Talk) -> None:
        """S2: who was the leader is no matter once a later one is known."""
        talk.ask()
        assert talk.registration.found("tcp://old:1", 2, now_ns=talk.now_ns) == []

    @pytest.mark.parametrize(
        ("address", "epoch"), [("tcp://10.0.0.2:1", 3), (ADDRESS, 4)]
    )
    def test_a_new_leader_is_gone_to(
        self, talk: Talk, address: str, epoch: int
    ) -> None:
        """A new address or a new epoch ends the registration with the old one."""
        talk.ask()
        talk.answer()
        found = talk.registration.found(address, epoch, now_ns=talk.now_ns)
        assert found == [ConnectProxy(address=address)]
        assert not talk.registration.is_registered
        assert talk.registration.lease_until_ns == 0

    def test_a_connection_that_does_not_come_is_replaced(self, talk: Talk) -> None:
        """What ZeroMQ has given up is tried over another socket."""
        talk.registration.found(ADDRESS, 3, now_ns=talk.now_ns)
        assert talk.deadline_ms() == ANSWER_TIMEOUT // MS
        assert talk.advance(ANSWER_TIMEOUT // MS - 1) == []
        assert talk.advance(1) == [ConnectProxy(address=ADDRESS)]

    def test_an_answer_that_does_not_come_is_not_asked_for_again(
        self, talk: Talk
    ) -> None:
        """Two answers to one question never come: the connection ends instead."""
        talk.ask()
        assert talk.advance(ANSWER_TIMEOUT // MS - 1) == []
        assert talk.advance(1) == [ConnectProxy(address=ADDRESS)]
        assert not talk.registration.is_asking

    def test_asking_waits_while_it_is_held(self, talk: Talk) -> None:
        """Positions that are about to change altogether are not told."""
        talk.is_held = True
        talk.registration.found(ADDRESS, 3, now_ns=talk.now_ns)
        talk.registration.connected(now_ns=talk.now_ns)
        assert talk.advance() == []
        assert talk.deadline_ms() == ANSWER_TIMEOUT // MS
        talk.is_held = False
        assert talk.advance() == [talk.question()]


class TestLease:
    """Q4: a node answers only while the control plane counts on it."""

    def test_the_registration_begins_the_lease(self, talk: Talk) -> None:
        """The lease runs from the question on, not from the answer."""
        talk.ask()
        talk.now_ns += 40 * MS
        effects, counts = talk.answer()
        assert counts
        assert effects == [talk.heartbeat(1), ReportRegistered(leader_epoch=3)]
        assert talk.registration.is_registered
        assert talk.lease_ms() == SESSION_TIMEOUT_MS - 40

    def test_heartbeats_come_five_times_in_a_session_timeout(self, talk: Talk) -> None:
        """Heartbeats are numbered, and the next is due a fifth later."""
        talk.ask()
        talk.answer()
        assert talk.deadline_ms() == 2_000
        assert talk.advance(1_999) == []
        assert talk.advance(1) == [talk.heartbeat(2)]
        assert talk.deadline_ms() == 2_000

    def test_an_acknowledgement_extends_it_from_the_send(self, talk: Talk) -> None:
        """The lease runs from when the acknowledged heartbeat was sent."""
        talk.ask()
        talk.answer()
        talk.advance(2_000)
        talk.now_ns += 500 * MS
        assert talk.acknowledge(2)
        assert talk.lease_ms() == SESSION_TIMEOUT_MS - 500

    def test_one_can_be_had_at_once(self, talk: Talk) -> None:
        """Its answer tells that whatever was sent before has come."""
        talk.registration.hasten(now_ns=talk.now_ns)
        assert talk.deadline_ms() is None
        talk.ask()
        talk.answer()
        talk.registration.hasten(now_ns=talk.now_ns)
        assert talk.advance() == [talk.heartbeat(2)]
        assert talk.deadline_ms() == 2_000

    def test_only_a_heartbeat_of_this_registration_counts(self, talk: Talk) -> None:
        """A number never sent, acknowledged before, or of another epoch is nothing."""
        talk.ask()
        talk.answer()
        lease_ms = talk.lease_ms()
        assert not talk.acknowledge(2)
        assert not talk.acknowledge(1, leader_epoch=2)
        assert talk.acknowledge(1)
        assert not talk.acknowledge(1)
        assert talk.lease_ms() == lease_ms

    def test_an_older_acknowledgement_never_shortens_it(self, talk: Talk) -> None:
        """Acknowledging a later heartbeat settles the earlier ones."""
        talk.ask()
        talk.answer()
        talk.advance(2_000)
        assert talk.acknowledge(2)
        assert not talk.acknowledge(1)
        assert talk.lease_ms() == SESSION_TIMEOUT_MS

    def test_silence_for_the_session_timeout_ends_it(self, talk: Talk) -> None:
        """A proxy that acknowledges nothing is connected to anew."""
        talk.ask()
        talk.answer()
        talk.advance(2_000)
        assert talk.acknowledge(2)
        for _ in range(4):
            assert talk.advance(2_000) != [ConnectProxy(address=ADDRESS)]
        assert talk.advance(2_000) == [ConnectProxy(address=ADDRESS)]
        assert talk.registration.lease_until_ns == 0
        assert not talk.registration.is_registered

    def test_a_closed_connection_ends_it(self, talk: Talk) -> None:
        """Nothing can be asked over a connection that is closed; the node asks anew."""
        talk.ask()
        talk.answer()
        talk.registration.disconnected(now_ns=talk.now_ns)
        assert not talk.registration.is_registered
        assert talk.lease_ms() < 0
        talk.registration.connected(now_ns=talk.now_ns)
        assert talk.advance(PAUSE // MS) == [talk.question()]
        effects, _ = talk.answer()
        assert effects[0] == talk.heartbeat(2)

    def test_a_timeout_too_short_to_keep_is_lengthened(self, talk: Talk) -> None:
        """A proxy that says one millisecond does not make a node spin."""
        talk.ask()
        message = NodeRegistered(
            leader_epoch=3, control_id="c", session_timeout_ms=1, jobs=()
        )
        talk.registration.registered(message, now_ns=talk.now_ns)
        assert talk.registration.session_timeout_ns == 50 * MS


class TestRefusals:
    """What a node does that is not taken."""

    def test_it_asks_again_over_another_connection(self, talk: Talk) -> None:
        """A refused question is asked anew after a pause, over a new connection."""
        talk.ask()
        effects = talk.refuse("name-taken")
        assert effects == [ReportRefused(reason="name-taken", detail="why")]
        assert talk.deadline_ms() == PAUSE // MS
        assert talk.advance(PAUSE // MS) == [ConnectProxy(address=ADDRESS)]
        talk.registration.connected(now_ns=talk.now_ns)
        assert talk.advance() == [talk.question()]

    def test_the_pause_doubles_up_to_its_limit(self, talk: Talk) -> None:
        """A proxy that goes on refusing is asked less and less often."""
        talk.ask()
        pauses = []
        for _ in range(4):
            talk.refuse("not-allowed")
            pause_ms = talk.deadline_ms()
            assert pause_ms is not None
            pauses.append(pause_ms)
            talk.advance(pause_ms)
            talk.registration.connected(now_ns=talk.now_ns)
            talk.advance()
        assert pauses == [100, 200, 400, 400]

    @pytest.mark.proves("S2", "Q3")
    def test_a_leader_that_is_away_for_a_moment_is_asked_often(
        self, talk: Talk
    ) -> None:
        """
        S2, Q3: it may lead again, and waits for its nodes for one session timeout.

        While it had no contact with the name service it refused them, and they asked
        every five seconds at last.  When it led again, under the same epoch, none told
        them: its session timeout was over, they counted as away, and readers were told
        that state is unavailable.
        """
        talk.ask()
        talk.answer(session_timeout_ms=1_000)
        assert talk.acknowledge(1)
        talk.now_ns += PAUSE
        talk.registration.connected(now_ns=talk.now_ns)
        pauses = []
        for _ in range(5):
            talk.advance()
            talk.refuse("not-leader")
            pause_ms = talk.deadline_ms()
            assert pause_ms is not None
            pauses.append(pause_ms)
            talk.advance(pause_ms)
            talk.registration.connected(now_ns=talk.now_ns)
        assert pauses == [100, 200, 200, 200, 200]

    def test_an_acknowledgement_lets_it_begin_anew(self, talk: Talk) -> None:
        """Who has been taken is not made to wait for what was before."""
        talk.ask()
        talk.refuse("limit")
        talk.advance(PAUSE // MS)
        talk.registration.connected(now_ns=talk.now_ns)
        talk.advance()
        talk.answer()
        assert talk.acknowledge(1)
        talk.advance(1_000)
        talk.registration.want()
        assert talk.advance() == [talk.question()]
        talk.answer()
        talk.refuse("limit")
        assert talk.deadline_ms() == PAUSE // MS

    def test_a_proxy_that_has_forgotten_is_told_at_once(self, talk: Talk) -> None:
        """``unknown`` to a heartbeat: the node registers over the same connection."""
        talk.ask()
        talk.answer()
        talk.advance(2_000)
        assert talk.refuse("unknown") == []
        assert not talk.registration.is_registered
        assert talk.advance() == [talk.question()]

    def test_what_was_sent_before_the_question_does_not_end_it(
        self, talk: Talk
    ) -> None:
        """``unknown`` is never the answer to a question: that is still to come."""
        talk.ask()
        assert talk.refuse("unknown") == []
        assert talk.registration.is_asking
        assert talk.advance(1_000) == []
        _, counts = talk.answer()
        assert counts

    def test_an_answer_nobody_asked_for_counts_for_nothing(self, talk: Talk) -> None:
        """What the node has not asked cannot make it answer."""
        assert talk.answer() == ([], False)
        assert not talk.registration.is_registered


class TestEpochs:
    """S2: a node does nothing that an older leader says."""

    def test_an_older_leader_cannot_register_it(self, talk: Talk) -> None:
        """The answer of one that leads no more counts for nothing."""
        talk.ask()
        effects, counts = talk.answer(leader_epoch=2)
        assert not counts
        assert effects == [ReportStale(leader_epoch=2, leader_epoch_max=3)]
        assert talk.advance(PAUSE // MS) == [ConnectProxy(address=ADDRESS)]

    def test_a_newer_leader_than_was_known_counts(self, talk: Talk) -> None:
        """The proxy may know of its leadership before the name service has told."""
        talk.ask()
        effects, counts = talk.answer(leader_epoch=4)
        assert counts
        assert effects[-1] == ReportRegistered(leader_epoch=4)
        assert talk.registration.is_stale(3)

    def test_commands_of_its_leader_are_taken(self, talk: Talk) -> None:
        """The epoch of the registration is the one that may command."""
        talk.ask()
        talk.answer()
        assert talk.registration.takes(3) == ([], True)

    def test_commands_of_an_older_one_are_reported(self, talk: Talk) -> None:
        """They change nothing, and are told of."""
        talk.ask()
        talk.answer()
        stale = ReportStale(leader_epoch=2, leader_epoch_max=3)
        assert talk.registration.takes(2) == ([stale], False)

    def test_commands_of_a_newer_one_make_it_ask(self, talk: Talk) -> None:
        """A leader that has not heard how far the node is cannot command it."""
        talk.ask()
        talk.answer()
        assert talk.registration.takes(4) == ([], False)
        assert not talk.registration.is_registered
        assert talk.advance(PAUSE // MS) == [talk.question()]

    def test_while_it_asks_the_answer_is_waited_for(self, talk: Talk) -> None:
        """What comes before the answer does not make it ask twice."""
        talk.ask()
        assert talk.registration.takes(4) == ([], False)
        assert talk.registration.is_asking
        assert talk.advance(PAUSE // MS) == []

    def test_wanting_more_while_it_asks_is_wanting_the_answer(self, talk: Talk) -> None:
        """One question is enough."""
        talk.ask()
        talk.registration.want()
        talk.answer()
        assert talk.advance(PAUSE // MS) == []

    def test_asking_again_keeps_the_registration(self, talk: Talk) -> None:
        """A node that misses something goes on answering while it asks for it."""
        talk.ask()
        talk.answer()
        talk.registration.want()
        assert talk.advance(PAUSE // MS) == [talk.question()]
        assert talk.registration.is_registered
        effects, counts = talk.answer()
        assert counts
        assert effects == [talk.heartbeat(2)]
        assert talk.acknowledge(1)


@pytest.mark.proves("D2")
class TestDirectLease:
    """How long a node answers clients without the proxy, and by which clock."""

    LEASE_MS = 400

    def begin(self, talk: Talk) -> None:
        """Come to where the node is registered, and may answer clients."""
        talk.ask()
        talk.answer(direct_lease_ms=self.LEASE_MS)

    def until_ms(self, talk: Talk) -> int:
        """Return how long that is from now."""
        return (talk.registration.direct_until_ns - talk.now_ns) // MS

    def test_without_an_acknowledgement_there_is_none(self, talk: Talk) -> None:
        """D2: to be registered is not enough: the node knows no clock."""
        self.begin(talk)
        assert talk.registration.direct_until_ns == 0

    def test_it_counts_from_the_send(self, talk: Talk) -> None:
        """D2: for nine tenths of the lease, as the leader's clock may be faster."""
        self.begin(talk)
        talk.now_ns += 100 * MS
        assert talk.acknowledge(1)
        assert self.until_ms(talk) == self.LEASE_MS * 9 // 10 - 100

    def test_a_leader_that_grants_none(self, talk: Talk) -> None:
        """D2: direct reads are switched off at the proxy."""
        talk.ask()
        talk.answer()
        assert talk.acknowledge(1)
        assert talk.registration.direct_until_ns == 0

    def test_heartbeats_keep_it(self, talk: Talk) -> None:
        """D2: four in a lease."""
        self.begin(talk)
        assert talk.deadline_ms() == self.LEASE_MS // 4

    def test_it_is_over_with_the_registration(self, talk: Talk) -> None:
        """Q4: whoever lost the leader answers nobody, at once."""
        self.begin(talk)
        talk.acknowledge(1)
        talk.registration.disconnected(now_ns=talk.now_ns)
        assert talk.registration.direct_until_ns == 0

    def test_another_leader(self, talk: Talk) -> None:
        """S2: what the one before has acknowledged counts no more."""
        self.begin(talk)
        talk.acknowledge(1)
        talk.registration.takes(4)
        assert talk.registration.direct_until_ns == 0

    def test_while_it_asks_it_is_not_extended(self, talk: Talk) -> None:
        """S1: it does not follow what it is told then, and must not say that it has."""
        self.begin(talk)
        talk.acknowledge(1)
        until_ns = talk.registration.direct_until_ns
        talk.registration.hasten(now_ns=talk.now_ns)
        talk.advance()
        talk.now_ns += 200 * MS
        talk.registration.want()
        talk.advance()
        assert talk.registration.is_asking
        assert talk.acknowledge(2)
        assert talk.registration.direct_until_ns == until_ns

    def test_it_says_what_has_come(self, talk: Talk) -> None:
        """D5: a leader that waits is told at once that an assignment is followed."""
        self.begin(talk)
        talk.acknowledge(1)
        (echo,) = talk.advance()
        assert echo == SendToProxy(
            message=NodeHeartbeat(registration_id="r", number=2, acknowledged=1)
        )
        talk.acknowledge(2)
        assert talk.advance() == []
        talk.registration.hasten(now_ns=talk.now_ns)
        assert len(talk.advance()) == 1
        talk.acknowledge(3)
        (echo,) = talk.advance()
        assert echo == SendToProxy(
            message=NodeHeartbeat(registration_id="r", number=4, acknowledged=3)
        )

    def test_the_leaders_clock(self, talk: Talk) -> None:
        """D2: it is taken for as late as it can be, whatever the way has taken."""
        self.begin(talk)
        talk.now_ns += 100 * MS
        talk.acknowledge(1, leader_ms=5_000)
        registration = talk.registration
        # The leader may have said so as soon as the heartbeat was sent; 5 % faster.
        assert registration.leader_ms_max(now_ns=talk.now_ns) == 5_105
        later_ns = talk.now_ns + 100 * MS
        assert registration.leader_ms_max(now_ns=later_ns) == 5_210
