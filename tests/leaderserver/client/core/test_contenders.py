from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from election import LeaderSession
from election.holder import (
    Claim,
    ConfirmRequested,
    DeliverGrant,
    DeliverRevoke,
    Ended,
    Lost,
    RevokeDelivered,
    Suspended,
)
from leaderserver.client.core.contenders import ClientContender, ClientContenders
from leaderserver.client.core.events import (
    CompleteCall,
    ConfirmAsked,
    ContenderAdded,
    ContenderRemoved,
    DeliverToContender,
    ReportToContender,
)
from leaderserver.client.core.exchanges import Purpose
from leaderserver.client.core.outbox import ClientOutbox
from leaderserver.message_parts import AffirmationRecord, ClaimRecord
from leaderserver.messages import (
    ConfirmRequest,
    RegisterRequest,
    RequestBody,
    RevocationFinishedRequest,
    WithdrawRequest,
)
from nameservice import (
    AuthenticationError,
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from leaderserver.client.core.events import ClientEffect


JOB = "c/job"


def session(epoch: int) -> LeaderSession:
    """Return the leadership of *epoch*, whose identity goes with its epoch."""
    return LeaderSession(leader_session_id=UUID(int=epoch), epoch=epoch)


def record(epoch: int, contender_id: str = "x") -> AffirmationRecord:
    """Return that leadership as the server speaks of it."""
    return AffirmationRecord(
        component_id=JOB,
        contender_id=contender_id,
        leader_session_id=UUID(int=epoch),
        epoch=epoch,
    )


class Contenders:
    """All contenders of one client, what they do, and what they ask the server."""

    def __init__(self, *, clears_on_suspended: bool = False) -> None:
        self.outbox = ClientOutbox(now_ns=0, lease_ns=100, session_timeout_ns=1_000)
        self.outbox.has_session = True
        self.all = ClientContenders(
            self.outbox, clears_on_suspended=clears_on_suspended
        )

    @property
    def asked(self) -> dict[str, RequestBody | None]:
        """Return what waits to be asked, by purpose."""
        return {e.key[0].value: e.body for e in self.outbox.exchanges}

    def add(self, contender_id: str = "x") -> ClientContender:
        """Enter a contender."""
        self.all.add(
            ContenderAdded(
                contender_id=contender_id, component_id=JOB, confirm_timeout_ns=500
            )
        )
        contender = self.all.get(contender_id)
        assert contender is not None
        return contender

    def enter(self, *, number: int = 2) -> ClientContender:
        """Enter a contender, and have the server take it by request *number*."""
        contender = self.add()
        self.outbox.exchanges.end((Purpose.REGISTER, "x"))
        self.all.registered("x", ticket=70, number=number)
        return contender

    def lead(self, epoch: int = 7) -> ClientContender:
        """Enter a contender and grant it *epoch* by the answer to heartbeat 3."""
        contender = self.enter()
        self.all.affirm(record(epoch), number=3, sent_ns=self.outbox.now_ns)
        assert self.outbox.take() == [granted(epoch)]
        return contender

    def remove(self, call_id: int = 1) -> Sequence[ClientEffect]:
        """Remove the contender."""
        self.all.remove(
            ContenderRemoved(contender_id="x", call_id=call_id, deadline_ns=900)
        )
        return self.outbox.take()

    def confirm(
        self, epoch: int = 7, *, call_id: int = 1, address: str = "a:1"
    ) -> Sequence[ClientEffect]:
        """Confirm the leadership of *epoch*."""
        self.all.confirm(
            ConfirmAsked(
                contender_id="x",
                leader_session_id=UUID(int=epoch),
                address=address,
                call_id=call_id,
                deadline_ns=900,
            )
        )
        return self.outbox.take()


def granted(epoch: int) -> DeliverToContender:
    """Return the grant of *epoch*."""
    return DeliverToContender(
        contender_id="x", effect=DeliverGrant(session=session(epoch))
    )


def revoked(epoch: int) -> DeliverToContender:
    """Return the end of *epoch*."""
    return DeliverToContender(
        contender_id="x", effect=DeliverRevoke(session=session(epoch))
    )


def answered(effects: Sequence[ClientEffect]) -> tuple[int, type | None]:
    """Return which call was answered, and with which kind of error."""
    (effect,) = effects
    assert isinstance(effect, CompleteCall)
    return effect.call_id, None if effect.error is None else type(effect.error)


@pytest.fixture
def contenders() -> Contenders:
    """Return a client that has a session and no contenders."""
    return Contenders()


class TestRegistration:
    def test_a_new_contender_has_no_past(self, contenders: Contenders) -> None:
        """It registers at the end of the queue, and claims nothing (E1)."""
        contenders.add()
        assert contenders.asked == {"register": None}
        assert contenders.all.register_request("x") == RegisterRequest(
            component_id=JOB,
            contender_id="x",
            confirm_timeout_ns=500,
            ticket=None,
            epoch_ended=0,
            claim=None,
        )
        assert len(contenders.all) == 1

    @pytest.mark.proves("E8")
    def test_without_a_session_it_waits_for_one(self, contenders: Contenders) -> None:
        """There is no server to ask; a session asks for all of them (E8)."""
        contenders.outbox.has_session = False
        contenders.add()
        assert contenders.asked == {}
        contenders.outbox.has_session = True
        contenders.all.session_begins()
        assert contenders.asked == {"register": None}

    @pytest.mark.proves("E9")
    def test_claim_and_ticket_are_put_to_a_new_server(
        self, contenders: Contenders
    ) -> None:
        """What another incarnation gave is told as it was (E9)."""
        contenders.lead()
        contenders.confirm(address="a:1")
        contenders.confirm(address="a:2", call_id=2)
        contenders.all.session_over(was_ended=False)
        assert contenders.all.register_request("x") == RegisterRequest(
            component_id=JOB,
            contender_id="x",
            confirm_timeout_ns=500,
            ticket=70,
            epoch_ended=0,
            claim=ClaimRecord(
                leader_session_id=UUID(int=7),
                epoch=7,
                confirm_count=2,
                address="a:2",
            ),
        )

    @pytest.mark.proves("E8")
    def test_a_session_that_was_ended_takes_everything_with_it(
        self, contenders: Contenders
    ) -> None:
        """Judged by its own server, a contender queues anew, at the end (E8)."""
        contender = contenders.lead()
        contenders.outbox.has_session = False
        contenders.all.session_over(was_ended=True)
        assert contenders.outbox.take() == [revoked(7)]
        assert contender.registered_number is None
        assert contender.affirmed_number == -1
        request = contenders.all.register_request("x")
        assert (request.ticket, request.epoch_ended, request.claim) == (None, 7, None)

    def test_who_led_nothing_loses_its_place_alone(
        self, contenders: Contenders
    ) -> None:
        """A waiting contender is told nothing when its session ends (E6)."""
        contender = contenders.enter()
        contenders.all.session_over(was_ended=True)
        assert contenders.outbox.take() == []
        assert contender.ticket is None

    @pytest.mark.proves("E8")
    def test_a_refusal_is_told_once_for_each_reason(
        self, contenders: Contenders
    ) -> None:
        """It never waits in silence, and is not told the same again (E8)."""
        contenders.add()
        refused = AuthenticationError("h", "no")
        limited = DidNotHappenError("too many")
        for reason, error in (
            ("not-allowed", refused),
            ("not-allowed", refused),
            ("limit-reached", limited),
        ):
            contenders.all.register_failed("x", reason=reason, error=error)
        assert contenders.outbox.take() == [
            ReportToContender(contender_id="x", error=refused),
            ReportToContender(contender_id="x", error=limited),
        ]
        contenders.all.registered("x", ticket=70, number=2)
        contenders.all.register_failed("x", reason="limit-reached", error=limited)
        assert contenders.outbox.take() == [
            ReportToContender(contender_id="x", error=limited)
        ]


class TestWithdrawal:
    def test_the_server_is_told(self, contenders: Contenders) -> None:
        """The call ends once the server knows that the contender has stopped (E7)."""
        contenders.enter()
        assert contenders.remove() == []
        assert contenders.asked == {
            "withdraw": WithdrawRequest(component_id=JOB, contender_id="x")
        }
        (exchange,) = contenders.outbox.exchanges
        assert (exchange.call_id, exchange.deadline_ns) == (1, 900)
        assert len(contenders.all) == 0

    def test_what_may_be_registered_is_withdrawn(self, contenders: Contenders) -> None:
        """An unanswered registration may have arrived: it must not come to lead."""
        contenders.add()
        (exchange,) = contenders.outbox.exchanges
        contenders.outbox.exchanges.sent([exchange], 2, now_ns=0)
        assert contenders.remove() == []
        assert list(contenders.asked) == ["withdraw"]

    def test_what_was_never_sent_is_simply_gone(self, contenders: Contenders) -> None:
        """The server knows nothing of it: there is nothing to wait for."""
        contenders.add()
        assert contenders.remove() == [CompleteCall(call_id=1)]
        assert contenders.asked == {}

    def test_without_a_session_it_is_simply_gone(self, contenders: Contenders) -> None:
        """The next session is told of those only that are there."""
        contenders.enter()
        contenders.outbox.has_session = False
        assert contenders.remove() == [CompleteCall(call_id=1)]

    def test_a_second_time_nothing_happens(self, contenders: Contenders) -> None:
        """Closing is idempotent (E7)."""
        assert contenders.remove() == [CompleteCall(call_id=1)]

    def test_a_confirmation_under_way_is_over(self, contenders: Contenders) -> None:
        """One that waits for one does not wait for an answer that is not asked for."""
        contenders.lead()
        contenders.confirm(call_id=5)
        assert answered(contenders.remove()) == (5, LeadershipLostError)
        assert list(contenders.asked) == ["withdraw"]


class TestAffirmation:
    @pytest.mark.proves("E4")
    def test_belief_runs_from_the_send(self, contenders: Contenders) -> None:
        """0.9 lease after the send of what was answered, to the nanosecond (E4)."""
        contender = contenders.enter()
        contenders.outbox.now_ns = 50
        contenders.all.affirm(record(7), number=3, sent_ns=30)
        assert contenders.outbox.take() == [granted(7)]
        believes = contender.holder.believes
        assert believes(UUID(int=7), now_ns=119)
        assert not believes(UUID(int=7), now_ns=120)
        assert not believes(UUID(int=8), now_ns=50)

    @pytest.mark.proves("E4")
    def test_an_older_answer_shortens_nothing(self, contenders: Contenders) -> None:
        """Answers may overtake each other (E4)."""
        contender = contenders.enter()
        contenders.all.affirm(record(7), number=5, sent_ns=40)
        contenders.all.affirm(record(7), number=4, sent_ns=20)
        assert contender.holder.believes(UUID(int=7), now_ns=129)
        assert contender.affirmed_number == 5

    def test_a_late_grant_is_no_grant(self, contenders: Contenders) -> None:
        """It came after its own lease: the answer to the next heartbeat decides."""
        contender = contenders.enter()
        contenders.outbox.now_ns = 90
        contenders.all.affirm(record(7), number=3, sent_ns=0)
        assert contenders.outbox.take() == []
        assert contender.holder.claim is None

    def test_one_who_has_left_is_not_granted(self, contenders: Contenders) -> None:
        """Nothing is delivered after close (E6)."""
        contenders.all.affirm(record(7), number=3, sent_ns=0)
        assert contenders.outbox.take() == []


class TestMissing:
    @pytest.mark.proves("E4")
    @pytest.mark.parametrize(
        ("number", "is_ended"), [(1, False), (2, False), (3, False), (4, True)]
    )
    def test_only_a_newer_answer_ends_it(
        self, contenders: Contenders, number: int, is_ended: bool
    ) -> None:
        """
        What does not affirm it must have been asked after what did (E4).

        Registered by request 2, affirmed by the answer to heartbeat 3.
        """
        contender = contenders.lead()
        contenders.all.miss(contender, number)
        assert contenders.outbox.take() == ([revoked(7)] if is_ended else [])
        assert (contender.holder.claim is None) == is_ended

    @pytest.mark.proves("E9")
    def test_one_that_is_not_registered_is_not_missed(
        self, contenders: Contenders
    ) -> None:
        """A new server that does not know it yet has judged nothing (E9)."""
        contender = contenders.lead()
        contenders.all.session_over(was_ended=False)
        contenders.all.miss(contender, 99)
        assert contenders.outbox.take() == []
        assert contender.holder.claim == Claim(session=session(7))

    @pytest.mark.proves("E9")
    def test_an_answer_from_before_it_was_registered_misses_nobody(
        self, contenders: Contenders
    ) -> None:
        """A new server could not affirm what it did not know of yet (E9)."""
        contender = contenders.lead()
        contenders.all.session_over(was_ended=False)
        contenders.all.registered("x", ticket=70, number=8)
        for number in (7, 8):
            contenders.all.miss(contender, number)
            assert contenders.outbox.take() == []
        contenders.all.miss(contender, 9)
        assert contenders.outbox.take() == [revoked(7)]

    def test_one_that_waits_has_nothing_to_miss(self, contenders: Contenders) -> None:
        """No leadership, no end of it."""
        contender = contenders.enter()
        contenders.all.miss(contender, 9)
        assert contenders.outbox.take() == []


class TestRevocation:
    @pytest.mark.proves("E4")
    def test_it_is_acknowledged_when_the_callback_has_returned(
        self, contenders: Contenders
    ) -> None:
        """The successor is granted once the holder has really stopped (E4)."""
        contender = contenders.lead()
        contenders.all.hold(contender, Ended(epoch=7))
        assert contenders.outbox.take() == [revoked(7)]
        assert contenders.asked == {}
        contenders.all.hold(contender, RevokeDelivered())
        assert contenders.asked == {
            "revocation": RevocationFinishedRequest(
                component_id=JOB, contender_id="x", epoch=7
            )
        }

    def test_without_a_session_nobody_waits_for_it(
        self, contenders: Contenders
    ) -> None:
        """What ended with the session needs no acknowledgement."""
        contender = contenders.lead()
        contenders.outbox.has_session = False
        contenders.all.hold(contender, Ended(epoch=7))
        contenders.all.hold(contender, RevokeDelivered())
        assert contenders.asked == {}

    @pytest.mark.proves("E3")
    def test_a_confirmation_under_way_is_answered_by_it(
        self, contenders: Contenders
    ) -> None:
        """One that confirms hears that the leadership is over (E3)."""
        contender = contenders.lead()
        contenders.confirm(call_id=5)
        contenders.all.hold(contender, Ended(epoch=7))
        told, completed = contenders.outbox.take()
        assert told == revoked(7)
        assert answered([completed]) == (5, LeadershipLostError)
        assert contenders.asked == {}

    def test_the_end_of_an_older_epoch_ends_nothing(
        self, contenders: Contenders
    ) -> None:
        """Late news of a leadership before this one says nothing of this one."""
        contender = contenders.lead()
        contenders.confirm()
        contenders.all.hold(contender, Ended(epoch=6))
        assert contenders.outbox.take() == []
        assert list(contenders.asked) == ["confirm"]

    @pytest.mark.proves("E5")
    def test_a_loss_is_told_and_not_acknowledged(self, contenders: Contenders) -> None:
        """The claim outlives the loss of contact, and is granted again (E5)."""
        contender = contenders.lead()
        contenders.all.hold_all(Lost())
        assert contenders.outbox.take() == [revoked(7)]
        contenders.all.hold(contender, RevokeDelivered())
        assert contenders.asked == {}
        contenders.all.affirm(record(7), number=4, sent_ns=0)
        assert contenders.outbox.take() == [granted(7)]

    @pytest.mark.proves("E5")
    @pytest.mark.parametrize("clears", [False, True])
    def test_a_suspension_is_told_under_clear(self, clears: bool) -> None:
        """Under ``"keep"`` the contender is not told (E5)."""
        contenders = Contenders(clears_on_suspended=clears)
        contenders.lead()
        contenders.all.hold_all(Suspended())
        assert contenders.outbox.take() == ([revoked(7)] if clears else [])


class TestConfirmation:
    @pytest.mark.proves("E3")
    def test_it_is_sent(self, contenders: Contenders) -> None:
        """It names the leadership, where it is reached, and its count (E3, R3)."""
        contenders.lead()
        assert contenders.confirm() == []
        assert contenders.asked == {
            "confirm": ConfirmRequest(
                component_id=JOB,
                contender_id="x",
                leader_session_id=UUID(int=7),
                confirm_count=1,
                address="a:1",
            )
        }
        (exchange,) = contenders.outbox.exchanges
        assert (exchange.call_id, exchange.deadline_ns) == (1, 900)

    @pytest.mark.proves("E3")
    def test_a_stale_one_is_refused_at_once(self, contenders: Contenders) -> None:
        """What is known to be over is not even sent (E3)."""
        contenders.lead()
        assert answered(contenders.confirm(6)) == (1, LeadershipLostError)
        assert contenders.asked == {}

    def test_one_of_a_contender_that_has_left_is_refused(
        self, contenders: Contenders
    ) -> None:
        """A confirmation after close changes nothing (E7)."""
        assert answered(contenders.confirm()) == (1, LeadershipLostError)

    def test_a_second_one_overtakes_the_first(self, contenders: Contenders) -> None:
        """One address is published under one count; the first caller hears of it."""
        contenders.lead()
        contenders.confirm(call_id=1)
        overtaken = contenders.confirm(call_id=2, address="a:2")
        assert answered(overtaken) == (1, DidNotHappenError)
        body = contenders.asked["confirm"]
        assert isinstance(body, ConfirmRequest)
        assert (body.confirm_count, body.address) == (2, "a:2")

    @pytest.mark.proves("E3")
    def test_one_that_was_sent_may_have_happened(self, contenders: Contenders) -> None:
        """Overtaken or not, it may be on its way: that is not denied (E3)."""
        contenders.lead()
        contenders.confirm(call_id=1)
        exchanges = contenders.outbox.exchanges
        (sent,) = [e for e in exchanges if e.key[0] is Purpose.CONFIRM]
        exchanges.sent([sent], 9, now_ns=contenders.outbox.now_ns)
        overtaken = contenders.confirm(call_id=2, address="a:2")
        assert answered(overtaken) == (1, MayHaveHappenedError)

    def test_there_is_one_way_to_confirm(self, contenders: Contenders) -> None:
        """Told to a holder beside `confirm`, the answer would not be waited for."""
        contender = contenders.lead()
        asked = ConfirmRequested(leader_session_id=UUID(int=7), address="a:1")
        with pytest.raises(AssertionError):
            contenders.all.hold(contender, asked)
