"""
The contenders of one client: registered, affirmed, missed, withdrawn.

A part of `ClientCore`.  What each of them believes is its `HolderCore`'s business;
here it is decided which answer of the server speaks of which leadership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never, final

from attrs import define

from election.contender import LeaderSession
from election.holder import (
    AcknowledgeRevocation,
    Affirmed,
    ConfirmRequested,
    DeliverGrant,
    DeliverRevoke,
    Ended,
    HolderCore,
    RefuseConfirm,
    SendConfirm,
)
from leaderserver.client.core.events import DeliverToContender, ReportToContender
from leaderserver.client.core.exchanges import Purpose
from leaderserver.message_parts import ClaimRecord
from leaderserver.messages import (
    ConfirmRequest,
    RegisterRequest,
    RevocationFinishedRequest,
    WithdrawRequest,
)
from nameservice.errors import (
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from election.holder import HolderEffect, HolderEvent
    from leaderserver.client.core.events import (
        ConfirmAsked,
        ContenderAdded,
        ContenderRemoved,
    )
    from leaderserver.client.core.outbox import ClientOutbox
    from leaderserver.message_parts import AffirmationRecord
    from nameservice.errors import NameServiceError


__all__ = ["ClientContender", "ClientContenders"]


@define(kw_only=True)
class ClientContender:
    """
    A contender as its own client knows it.

    Attributes:
        contender_id: Its id.
        component_id: What it wants to lead.
        confirm_timeout_ns: How long it may take to confirm.
        holder: What it believes.
        ticket: Its place in the queue, as the server named it; None for the end.
        registered_number: The request that entered it in this session, or None.
        affirmed_number: The newest heartbeat in whose answer it was affirmed.
        failure_told: The refusal that it was told of last.
    """

    contender_id: str
    component_id: str
    confirm_timeout_ns: int
    holder: HolderCore
    ticket: int | None = None
    registered_number: int | None = None
    affirmed_number: int = -1
    failure_told: str | None = None


@final
class ClientContenders:
    """
    All contenders of one client.

    Args:
        outbox: Where to put what follows.
        clears_on_suspended: Whether contenders are told of a suspension.
    """

    def __init__(self, outbox: ClientOutbox, *, clears_on_suspended: bool) -> None:
        self._outbox = outbox
        self._clears_on_suspended = clears_on_suspended
        self._contenders: dict[str, ClientContender] = {}

    def __len__(self) -> int:
        return len(self._contenders)

    def __iter__(self) -> Iterator[ClientContender]:
        return iter(tuple(self._contenders.values()))

    @property
    def has_claim(self) -> bool:
        """Return whether one of them leads, as far as it knows."""
        return any(one.holder.claim is not None for one in self._contenders.values())

    def get(self, contender_id: str) -> ClientContender | None:
        """Return a contender, or None if it has left."""
        return self._contenders.get(contender_id)

    def add(self, event: ContenderAdded) -> None:
        """Enter a contender, and register it if there is a session."""
        contender = ClientContender(
            contender_id=event.contender_id,
            component_id=event.component_id,
            confirm_timeout_ns=event.confirm_timeout_ns,
            holder=HolderCore(clears_on_suspended=self._clears_on_suspended),
        )
        self._contenders[event.contender_id] = contender
        if self._outbox.has_session:
            self._begin_register(contender)

    def remove(self, event: ContenderRemoved) -> None:
        """Remove a contender, and withdraw it if the server may know of it."""
        outbox = self._outbox
        contender = self._contenders.pop(event.contender_id, None)
        register = outbox.exchanges.end((Purpose.REGISTER, event.contender_id))
        outbox.exchanges.end((Purpose.REVOCATION, event.contender_id))
        confirm = outbox.exchanges.end((Purpose.CONFIRM, event.contender_id))
        if confirm is not None and contender is not None:
            outbox.complete(confirm, error=_lost(contender))
        is_known = contender is not None and (
            contender.registered_number is not None
            or (register is not None and register.was_sent)
        )
        if contender is None or not outbox.has_session or not is_known:
            outbox.complete_call(event.call_id)
            return
        outbox.begin(
            (Purpose.WITHDRAW, contender.contender_id),
            WithdrawRequest(
                component_id=contender.component_id,
                contender_id=contender.contender_id,
            ),
            call_id=event.call_id,
            deadline_ns=event.deadline_ns,
        )

    # -- sessions ------------------------------------------------------------------

    def session_begins(self) -> None:
        """Register everybody with the server of a new session."""
        for contender in self:
            self._begin_register(contender)

    def session_over(self, *, was_ended: bool) -> None:
        """
        Record that the session is over.

        Args:
            was_ended: Whether the server ended it, and our claims with it, rather
                than being another server that knows nothing of us (rule E9).
        """
        for contender in self:
            contender.registered_number = None
            contender.affirmed_number = -1
            if was_ended:
                contender.ticket = None
                claim = contender.holder.claim
                if claim is not None:
                    self.hold(contender, Ended(epoch=claim.session.epoch))

    def hold_all(self, event: HolderEvent) -> None:
        """Tell every holder what happened."""
        for contender in self:
            self.hold(contender, event)

    # -- registration --------------------------------------------------------------

    def _begin_register(self, contender: ClientContender) -> None:
        self._outbox.begin((Purpose.REGISTER, contender.contender_id), None)

    def register_request(self, contender_id: str) -> RegisterRequest:
        """Return how a contender registers as things stand."""
        contender = self._contenders[contender_id]
        claim = contender.holder.claim
        return RegisterRequest(
            component_id=contender.component_id,
            contender_id=contender.contender_id,
            confirm_timeout_ns=contender.confirm_timeout_ns,
            ticket=contender.ticket,
            epoch_ended=contender.holder.ended_epoch_max,
            claim=None
            if claim is None
            else ClaimRecord(
                leader_session_id=claim.session.leader_session_id,
                epoch=claim.session.epoch,
                confirm_count=claim.confirm_count,
                address=claim.address,
            ),
        )

    def registered(self, contender_id: str, *, ticket: int, number: int) -> None:
        """Record that request *number* entered a contender."""
        contender = self._contenders[contender_id]
        contender.ticket = ticket
        contender.registered_number = number
        contender.failure_told = None

    def register_failed(
        self, contender_id: str, *, reason: str, error: NameServiceError
    ) -> None:
        """Tell a contender why it is not in the queue, once for each reason (E8)."""
        contender = self._contenders[contender_id]
        if contender.failure_told != reason:
            contender.failure_told = reason
            self._outbox.emit(ReportToContender(contender_id=contender_id, error=error))

    def hindered(self, component_id: str, error: NameServiceError) -> None:
        """Tell contenders for *component_id* why none can be granted now (E8)."""
        for contender in self:
            if contender.component_id == component_id:
                self._outbox.emit(
                    ReportToContender(contender_id=contender.contender_id, error=error)
                )

    def report(self, error: NameServiceError) -> None:
        """Tell every contender of what concerns them all."""
        for contender_id in self._contenders:
            self._outbox.emit(ReportToContender(contender_id=contender_id, error=error))

    # -- leadership ----------------------------------------------------------------

    def affirm(self, record: AffirmationRecord, *, number: int, sent_ns: int) -> None:
        """
        Record that a leadership was granted or affirmed.

        Args:
            record: Which.
            number: The heartbeat that this answers.
            sent_ns: When that was sent.
        """
        contender = self._contenders.get(record.contender_id)
        if contender is None:
            return
        contender.affirmed_number = max(contender.affirmed_number, number)
        session = LeaderSession(
            leader_session_id=record.leader_session_id, epoch=record.epoch
        )
        # 0.9 of the lease: clocks that differ by 5 % still leave a gap before the
        # server, which waits for all of it, grants to another (rule E4).
        until_ns = sent_ns + self._outbox.lease_ns * 9 // 10
        self.hold(contender, Affirmed(session=session, until_ns=until_ns))

    def miss(self, contender: ClientContender, number: int) -> None:
        """Judge a leadership that the answer to heartbeat *number* does not affirm."""
        claim = contender.holder.claim
        if (
            claim is not None
            and contender.registered_number is not None
            and number > contender.registered_number
            and number > contender.affirmed_number
        ):
            self.hold(contender, Ended(epoch=claim.session.epoch))

    def confirm(self, event: ConfirmAsked) -> None:
        """Send a confirmation, or refuse it at once."""
        outbox = self._outbox
        contender = self._contenders.get(event.contender_id)
        if contender is None:
            outbox.complete_call(event.call_id, error=LeadershipLostError("", None))
            return
        (effect,) = contender.holder.step(
            ConfirmRequested(
                leader_session_id=event.leader_session_id, address=event.address
            ),
            now_ns=outbox.now_ns,
        )
        if isinstance(effect, RefuseConfirm):
            outbox.complete_call(event.call_id, error=_lost(contender))
            return
        assert isinstance(effect, SendConfirm)
        key = (Purpose.CONFIRM, contender.contender_id)
        superseded = outbox.exchanges.end(key)
        if superseded is not None:
            overtaken = "another confirmation overtook this one"
            error = (
                MayHaveHappenedError(overtaken)
                if superseded.was_sent
                else DidNotHappenError(overtaken)
            )
            outbox.complete(superseded, error=error)
        outbox.begin(
            key,
            ConfirmRequest(
                component_id=contender.component_id,
                contender_id=contender.contender_id,
                leader_session_id=effect.session.leader_session_id,
                confirm_count=effect.confirm_count,
                address=effect.address,
            ),
            call_id=event.call_id,
            deadline_ns=event.deadline_ns,
        )

    def hold(self, contender: ClientContender, event: HolderEvent) -> None:
        """Tell a holder what happened, and do what it says."""
        for effect in contender.holder.step(event, now_ns=self._outbox.now_ns):
            self._perform(contender, effect)
        if isinstance(event, Ended) and contender.holder.claim is None:
            # A confirmation that still waits is answered by the leadership's end.
            key = (Purpose.CONFIRM, contender.contender_id)
            exchange = self._outbox.exchanges.end(key)
            if exchange is not None:
                self._outbox.complete(exchange, error=_lost(contender))

    def _perform(self, contender: ClientContender, effect: HolderEffect) -> None:
        match effect:
            case DeliverGrant() | DeliverRevoke():
                self._outbox.emit(
                    DeliverToContender(
                        contender_id=contender.contender_id, effect=effect
                    )
                )
            case AcknowledgeRevocation(session=session):
                # Without a session there is no server that waits for it.
                if self._outbox.has_session:
                    self._outbox.begin(
                        (Purpose.REVOCATION, contender.contender_id),
                        RevocationFinishedRequest(
                            component_id=contender.component_id,
                            contender_id=contender.contender_id,
                            epoch=session.epoch,
                        ),
                    )
            case SendConfirm() | RefuseConfirm():
                raise AssertionError(effect)
            case _:
                assert_never(effect)


def _lost(contender: ClientContender) -> LeadershipLostError:
    """Return what a contender hears that confirms what it does not hold."""
    return LeadershipLostError(contender.component_id.rpartition("/")[2], None)
