"""`ElectionSteps`: the election goes on, and its effects become messages (rule E2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never, final

from attrs import evolve

from election.core import ElectionCore
from election.effects import (
    AcceptConfirmation,
    AcceptRegistration,
    AcknowledgeHeartbeat,
    Affirmation,
    CloseSession,
    ElectionEffect,
    GrantLeadership,
    OpenSession,
    PublishLeader,
    RecordEpoch,
    RefuseConfirmation,
    RefuseEpoch,
    RefuseRegistration,
    RefuseSession,
    RegistrationRefusal,
    RevokeLeadership,
)
from election.events import ElectionEvent, RevokeRequested, TimePassed
from leaderserver.codec import publication_to_record
from leaderserver.message_parts import AffirmationRecord
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    DoneReply,
    Failure,
    Granted,
    Hindered,
    Published,
    RefusedHello,
    RegisteredReply,
    Revoked,
    SessionEnded,
)
from leaderserver.server.answering import Answering
from leaderserver.server.core.client_table import ClientTable, ServedClient
from leaderserver.server.core.held_effects import HeldEffects
from leaderserver.server.core.storage_queue import RecordEpochTask, StorageQueue
from leaderserver.server.core.subscriptions import Subscriptions
from leaderserver.server.core.turn import Broadcast, Send, Turn
from leaderserver.server.greeting import Greeting
from leaderserver.server.storage_work import perform_storage_work
from leaderserver.server.store_requests import StoreRequests
from nameservice import NameServiceError, StorageError, get_logger
from nameservice.clock import NS_PER_MS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from leaderserver.server.core.storage_queue import StorageWork
    from leaderserver.server.storage import LeaderStorage
    from leaderserver.server.storage_work import Outcome


__all__ = ["ElectionSteps"]

_HINDERED_COUNT_KEPT: Final = 100
"""Above this count, names of components that are gone are dropped."""

_STALL_LOGGED_NS_MIN: Final = 100 * NS_PER_MS
"""A busy machine has shorter ones all the time; they are counted."""


@final
class ElectionSteps:
    """
    Steps of the election, and what follows from them.

    An epoch that is granted is recorded first; so what waits for the storage is worked
    on here.

    Args:
        core: The election.
        recorded_epochs: The epochs on record.
        clients: Where clients are reached.
        subscriptions: Who hears of which component.
        answering: How clients are answered.
        greeting: How clients are welcomed.
        stores: Who asked what of the stores.
        storage: What outlives the service.
        queue: What waits for it.
        is_storage_apart: Whether the shell does what waits for the storage.
    """

    def __init__(
        self,
        core: ElectionCore,
        *,
        recorded_epochs: dict[str, int],
        clients: ClientTable,
        subscriptions: Subscriptions,
        answering: Answering,
        greeting: Greeting,
        stores: StoreRequests,
        storage: LeaderStorage,
        queue: StorageQueue,
        is_storage_apart: bool,
    ) -> None:
        self._core = core
        # Until claims are decided: what is on record need not be recorded again.
        self._recorded_epochs = recorded_epochs
        self._clients = clients
        self._subscriptions = subscriptions
        self._answering = answering
        self._counts = answering.counts
        self._greeting = greeting
        self._stores = stores
        self._storage = storage
        self._storage_queue = queue
        self._is_storage_apart = is_storage_apart
        # What names this server to its clients: the core's own moves on when somebody
        # reports an epoch above it.
        self._incarnation = core.incarnation
        self._held = HeldEffects()
        # Of each component that cannot be granted: which sessions know that.
        self._hindered: dict[str, frozenset[str]] = {}
        self._hindered_count_max = _HINDERED_COUNT_KEPT
        self._log = get_logger(component="leaderserver")

    def step(self, event: ElectionEvent, turn: Turn) -> None:
        """Take one step of the core and perform its effects, in their order."""
        was_undecided = self._core.is_undecided
        excused_ns = self._core.excused_ns
        effects = self._core.step(event, now_ns=turn.now_ns)
        stalled_ns = self._core.excused_ns - excused_ns
        is_long = stalled_ns >= _STALL_LOGGED_NS_MIN
        if is_long and self._answering.may_log("server.stalled", turn):
            self._log.warning("server.stalled", duration_ms=stalled_ns // NS_PER_MS)
        is_deciding = was_undecided and not self._core.is_undecided
        is_recording = False
        for effect in effects:
            if isinstance(effect, RecordEpoch):
                if self._record(effect):
                    is_recording = True
            elif not self._held.keep(effect):
                self.perform(effect, turn)
        if is_deciding:
            self._recorded_epochs.clear()
        if is_recording:
            self.work_on_storage(turn)

    def catch_up(self, turn: Turn) -> None:
        """
        Do what is due by now.

        For what asks of the election only who leads: that is as it would be after a
        step.
        """
        due_ns = self._core.next_deadline_ns()
        if due_ns is not None and due_ns <= turn.now_ns:
            self.step(TimePassed(), turn)

    def perform(self, effect: ElectionEffect, turn: Turn) -> None:
        """Tell clients what *effect* means for them."""
        match effect:
            case OpenSession(session_id=session_id):
                session = self._core.session(session_id)
                self._log.info(
                    "session.opened",
                    session_id=session_id,
                    client=None if session is None else session.client,
                    principal=self._client(session_id).principal.name,
                )
                self._greeting.welcome(self._client(session_id), turn)
            case RefuseSession(session_id=session_id):
                client = self._client(session_id)
                self._counts["sessions_refused"] += 1
                refused = RefusedHello(
                    nonce=client.nonce,
                    reason=Failure.LIMIT_REACHED,
                    detail="the server has as many sessions as it may have",
                )
                turn.outgoing.append(Send(peer=client.peer, message=refused))
                self._clients.remove(client)
            case CloseSession(session_id=session_id, reason=reason):
                self._log.info(
                    "session.closed", session_id=session_id, reason=reason.value
                )
                client = self._client(session_id)
                ended = SessionEnded(
                    session_id=session_id,
                    reason=reason.value,
                    incarnation=self._incarnation,
                )
                turn.outgoing.append(Send(peer=client.peer, message=ended))
                self._subscriptions.drop(session_id)
                self._stores.watches.drop(session_id)
                self._clients.remove(client)
            case AcknowledgeHeartbeat():
                self._acknowledge(effect, turn)
            case GrantLeadership(session_id=session_id, affirmation=affirmation):
                self._log.info(
                    "leadership.granted",
                    session_id=session_id,
                    component_id=affirmation.component_id,
                    epoch=affirmation.epoch,
                )
                granted = Granted(
                    session_id=session_id,
                    heartbeat_number=effect.heartbeat_number,
                    affirmation=_to_record(affirmation),
                )
                self._answering.push(session_id, granted, turn)
            case RevokeLeadership(session_id=session_id, affirmation=affirmation):
                self._log.info(
                    "leadership.revoked",
                    session_id=session_id,
                    component_id=affirmation.component_id,
                    epoch=affirmation.epoch,
                )
                revoked = Revoked(
                    session_id=session_id, affirmation=_to_record(affirmation)
                )
                self._answering.push(session_id, revoked, turn)
            case PublishLeader():
                self._publish(effect, turn)
            case AcceptRegistration(ticket=ticket):
                self._registered(effect.session_id, ticket, turn)
            case RefuseRegistration(reason=reason):
                self._answering.fail(_REGISTRATION_FAILURES[reason], reason.value, turn)
            case AcceptConfirmation():
                self._answering.answer(DoneReply(), turn)
            case RefuseConfirmation(is_undecided=is_undecided):
                reason_text = Failure.UNDECIDED if is_undecided else Failure.STALE
                self._answering.fail(reason_text, "the leadership is not yours", turn)
            case RefuseEpoch():
                self._counts["epochs_refused"] += 1
                if self._answering.may_log("epoch.refused", turn):
                    self._log.warning(
                        "epoch.refused",
                        component_id=effect.component_id,
                        epoch=effect.epoch,
                    )
            case RecordEpoch():
                raise AssertionError(effect)
            case _:
                assert_never(effect)

    def _acknowledge(self, effect: AcknowledgeHeartbeat, turn: Turn) -> None:
        session = self._core.session(effect.session_id)
        assert session is not None
        acknowledged = session.acknowledged_number
        revisions = self._subscriptions.changed(
            effect.session_id, number=effect.number, acknowledged=acknowledged
        )
        affirmations, is_claim_held = self._held.affirmable(effect.affirmations)
        self._answering.answer(
            AcknowledgedHeartbeat(
                affirmations=[_to_record(a) for a in affirmations],
                is_undecided=effect.is_undecided or is_claim_held,
                revisions=dict(revisions),
            ),
            turn,
        )

    def _publish(self, effect: PublishLeader, turn: Turn) -> None:
        leader = effect.publication.leader
        self._log.info(
            "leader.published",
            component_id=effect.component_id,
            epoch=effect.publication.epoch,
            address=None if leader is None else leader.address,
        )
        revision = self._subscriptions.publish(effect.component_id)
        if revision is not None:
            published = Published(
                component_id=effect.component_id,
                revision=revision,
                publication=publication_to_record(effect.publication),
                incarnation=self._incarnation,
            )
            turn.outgoing.append(Broadcast(message=published))
            for session_id in self._subscriptions.subscribers(effect.component_id):
                client = self._clients.get(session_id)
                if client is not None and not client.principal.observes_all:
                    # It may not hear what is broadcast, which is not for one alone.
                    turn.outgoing.append(Send(peer=client.peer, message=published))

    def _registered(self, session_id: str, ticket: int, turn: Turn) -> None:
        session = self._core.session(session_id)
        assert session is not None
        # Only what waits behind a batch, or in one, is overtaken by heartbeats.
        overtaken = session.heartbeat_number if turn.is_overtaken else 0
        self._answering.answer(
            RegisteredReply(ticket=ticket, heartbeat_number=overtaken), turn
        )

    def _client(self, session_id: str) -> ServedClient:
        client = self._clients.get(session_id)
        assert client is not None
        return client

    def storage_done(
        self, work: StorageWork, outcomes: Sequence[Outcome], turn: Turn
    ) -> None:
        """Take what came of *work*."""
        self._storage_queue.finished(work)
        if work.is_write and self._storage.is_durable:
            self._counts["storage_writes"] += len(work.jobs)
            self._counts["storage_batches"] += 1
        for job, outcome in zip(work.jobs, outcomes, strict=True):
            task = job.task
            if isinstance(task, RecordEpochTask):
                if isinstance(outcome, StorageError):
                    self._counts["storage_failures"] += 1
                assert outcome is None or isinstance(outcome, NameServiceError)
                self._epoch_recorded(task.component_id, task.epoch, outcome, turn)
            else:
                self._stores.done(job, outcome, turn)

    def work_on_storage(self, turn: Turn) -> None:
        """Do what waits for the storage, unless that is the shell's part."""
        while not self._is_storage_apart:
            work = self._storage_queue.next_work()
            if work is None:
                return
            outcomes = perform_storage_work(self._storage, work)
            self.storage_done(work, outcomes, turn)

    def _record(self, effect: RecordEpoch) -> bool:
        """Have an epoch recorded, and hold its grant until then; return if need be."""
        component_id, epoch = effect.component_id, effect.epoch
        is_on_record = self._recorded_epochs.get(component_id, 0) >= epoch
        if is_on_record and not self._storage_queue.is_writing(component_id):
            return False
        component = self._core.component(component_id)
        leadership = None if component is None else component.leadership
        is_reinstated = leadership is not None and leadership.is_reinstated
        self._held.begin(component_id, epoch, is_reinstated=is_reinstated)
        self._storage_queue.add(RecordEpochTask(component_id=component_id, epoch=epoch))
        return True

    def _epoch_recorded(
        self,
        component_id: str,
        epoch: int,
        error: NameServiceError | None,
        turn: Turn,
    ) -> None:
        if error is None:
            self._hindered.pop(component_id, None)
            self._release(self._held.release(component_id, epoch), turn)
            return
        self._counts["epochs_unrecorded"] += 1
        # An epoch that is not on record must not be granted: a restart could grant it
        # twice.  The core tries again in a lease.
        if self._answering.may_log("epoch.unrecorded", turn):
            self._log.error(
                "epoch.unrecorded", component_id=component_id, error=str(error)
            )
        self._tell_hindered(component_id, error, turn)
        if not self._held.is_newest(component_id, epoch):
            return  # a later one decides
        component = self._core.component(component_id)
        leadership = None if component is None else component.leadership
        if leadership is not None and leadership.epoch == epoch:
            # Held as its grant is, and dropped with it: no one has heard of either.
            self.step(RevokeRequested(component_id=component_id), turn)
        self._held.drop(component_id, epoch)

    def _tell_hindered(
        self, component_id: str, error: NameServiceError, turn: Turn
    ) -> None:
        """Tell who waits for *component_id* why in vain, each once (rule E8)."""
        component = self._core.component(component_id)
        contenders = () if component is None else component.in_order()
        told = self._hindered.get(component_id, frozenset())
        # A list without repetitions, in order.
        waiting = list(dict.fromkeys(c.session_id for c in contenders))
        if len(self._hindered) > self._hindered_count_max:  # some are gone, perhaps
            self._hindered = {
                name: told
                for name, told in self._hindered.items()
                if self._core.component(name) is not None
            }
            self._hindered_count_max = 2 * len(self._hindered) + _HINDERED_COUNT_KEPT
        self._hindered[component_id] = frozenset(waiting)
        for session_id in waiting:
            if session_id not in told:
                hindered = Hindered(
                    session_id=session_id,
                    component_id=component_id,
                    reason=Failure.STORAGE,
                    detail=str(error),
                )
                self._answering.push(session_id, hindered, turn)

    def _release(self, effects: Sequence[ElectionEffect], turn: Turn) -> None:
        """Perform what was held, but for the grants whose leaderships have ended."""
        ungranted: set[tuple[str, int]] = set()
        for effect in effects:
            match effect:
                case GrantLeadership(session_id=session_id, affirmation=affirmation):
                    session = self._core.session(session_id)
                    if session is None or not self._core.leads(
                        session_id,
                        affirmation.component_id,
                        affirmation.leader_session_id,
                        affirmation.epoch,
                    ):
                        ungranted.add((affirmation.component_id, affirmation.epoch))
                        continue
                    # It answers the newest heartbeat: in the answers to those that
                    # came meanwhile it was not affirmed (rule E4).
                    self.perform(
                        evolve(effect, heartbeat_number=session.heartbeat_number), turn
                    )
                case RevokeLeadership(affirmation=affirmation) if (
                    affirmation.component_id,
                    affirmation.epoch,
                ) in ungranted:
                    pass
                case _:
                    self.perform(effect, turn)


_REGISTRATION_FAILURES: Final = {
    RegistrationRefusal.UNKNOWN_SESSION: Failure.UNKNOWN_SESSION,
    RegistrationRefusal.TOO_MANY_CONTENDERS: Failure.LIMIT_REACHED,
    RegistrationRefusal.TOO_MANY_COMPONENTS: Failure.LIMIT_REACHED,
    RegistrationRefusal.TAKEN_BY_ANOTHER_SESSION: Failure.TAKEN,
}


def _to_record(affirmation: Affirmation) -> AffirmationRecord:
    return AffirmationRecord(
        component_id=affirmation.component_id,
        contender_id=affirmation.contender_id,
        leader_session_id=affirmation.leader_session_id,
        epoch=affirmation.epoch,
    )
