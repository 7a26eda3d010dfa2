"""
`ZooKeeperContender`: one contender's place in the queue of a component, on ZooKeeper.

A thin shell: what is asked, when, and what follows is decided by `QueueCore`
(queue_core.py), and by `HoldingCore` while the contender is first.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, TypeVar, assert_never, final

from haservices.zookeeper.channel import ZooKeeperChannel
from haservices.zookeeper.entry import Commit, Confirm, Entry, HolderRequest
from haservices.zookeeper.holding import ZooKeeperHolding, refuse
from haservices.zookeeper.queue_core import QueueCore
from haservices.zookeeper.queue_effects import (
    AbandonHolding,
    AcceptRequest,
    BeginHolding,
    CreateContender,
    Deliver,
    EndHolding,
    ExistsNode,
    Finish,
    LetHoldingAsk,
    ListContenders,
    LogFailure,
    MakeParents,
    NoteLeft,
    NoteRegistered,
    ReadNode,
    ReadPublication,
    RefuseRequest,
    RemoveNode,
    TellError,
    Transact,
    UnwatchOwnNode,
    UnwatchPredecessor,
    WatchOwnNode,
    WatchPredecessor,
)
from haservices.zookeeper.queue_events import (
    CommitWanted,
    ConfirmWanted,
    ContactRestored,
    ContactSuspended,
    ContenderClosed,
    ContenderCreated,
    OwnNodeChanged,
    OwnNodeWatched,
    PredecessorChanged,
    QuestionAnswered,
    QuestionFailed,
    RevocationDelivered,
    SessionOver,
    SessionRefused,
    Stumbled,
    TimePassed,
    TurnCame,
)
from haservices.zookeeper.reading import after_sync
from haservices.zookeeper.records import encode_record
from nameservice import NameServiceError, get_logger, seconds_to_ns
from nameservice.answer import Answer


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from election.contender import LeaderSession
    from election.holder import DeliverGrant, DeliverRevoke, HolderCore
    from haservices.event_loop import Timer
    from haservices.zookeeper.nodes import NodeStat
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.queue_effects import Question, QueueEffect
    from haservices.zookeeper.queue_events import QueueEvent
    from haservices.zookeeper.session import ZooKeeperSession


__all__ = ["ZooKeeperContender"]

T = TypeVar("T")


@final
class ZooKeeperContender:
    """
    One contender, from `start` until it is `closed`; for the event loop alone.

    Args:
        session: Where it is registered.
        paths: For which component.
        holder: What it believes and was told; shared with the election.
        client: Who it is, for operators.
        confirm_timeout_ns: How long a grant waits to be confirmed.
        deliver: Takes grants and revocations.
        fail: Takes what the contender should hear of.

    Attributes:
        closed: Completed when nothing of it is left, nor will be.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        paths: ComponentPaths,
        holder: HolderCore,
        *,
        client: str,
        confirm_timeout_ns: int,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._session = session
        self._paths = paths
        self._confirm_timeout_ns = confirm_timeout_ns
        self._deliver = deliver
        self._fail = fail
        self._log = get_logger(component="contender", component_id=paths.component_id)
        self._contender_id = uuid.uuid4().hex
        self._core = QueueCore(
            paths=paths,
            holder=holder,
            contender_id=self._contender_id,
            client=client,
            lease_ns=seconds_to_ns(session.config.lease_seconds),
        )
        self._channel = ZooKeeperChannel(
            self._advance, lambda error: self._step(Stumbled(error=error))
        )
        self._holding: ZooKeeperHolding | None = None
        self._timer: Timer | None = None
        self._timer_due_ns: int | None = None
        self.closed: Final[Answer[None]] = Answer()

    # -- what it is asked ------------------------------------------------------------

    def start(self) -> None:
        """Enter the queue, and stay in it until `close`."""
        if not self.closed.done():  # it was not closed while it was being entered
            self._session.add_listener(self, is_contender=True)

    @property
    def told(self) -> LeaderSession | None:
        """Return the leadership that the contender holds, as far as it was told."""
        return self._core.told

    def request(self, request: HolderRequest) -> None:
        """Do *request*, when its turn comes, while we hold the component."""
        event: QueueEvent
        match request:
            case Confirm(leader_session_id=leader_session_id, address=address):
                event = ConfirmWanted(
                    leader_session_id=leader_session_id, address=address
                )
            case Commit(session=session):
                event = CommitWanted(session=session)
            case _:
                assert_never(request)
        for effect in self._core.step(event, now_ns=self._session.clock.now_ns()):
            match effect:
                case AcceptRequest(confirm_count=confirm_count):
                    assert self._holding is not None
                    if isinstance(request, Confirm):
                        request.confirm_count = confirm_count
                    self._holding.request(request)
                case RefuseRequest(epoch=epoch):
                    refuse(request, self._paths.component_id, epoch)
                case _:
                    self._perform(effect)
        self._advance()

    def give_up(self, request: HolderRequest) -> bool:
        """Wait for *request* no more; return whether it may have had an effect."""
        if self._holding is not None:
            self._holding.withdraw(request)
        return request.is_sent

    def revoke_delivered(self) -> None:
        """Record that the contender's revoke callback has returned."""
        self._step(RevocationDelivered())
        self._advance()

    def close(self) -> None:
        """Leave the queue as soon as the name service can be told."""
        self._step(ContenderClosed())
        self._advance()

    # -- what the session tells ------------------------------------------------------

    def contact_restored(self) -> None:
        """Look everything up again, and go on."""
        session_id = self._session.session_id
        assert session_id is not None
        self._step(
            ContactRestored(
                session_id=session_id, session_timeout_ns=self._session.timeout_ns
            )
        )
        self._forget_what_was_known()
        self._advance()

    def contact_suspended(self) -> None:
        """Tell the core; belief goes by the clock all the same."""
        self._forget_what_was_known()
        self._step(ContactSuspended())

    def _forget_what_was_known(self) -> None:
        if self._holding is not None:
            self._holding.forget_what_was_known()

    def contact_lost(self) -> None:
        """Do nothing: for a contender its own writes decide."""

    def session_ended(self) -> None:
        """Take our entry for deleted: it was ephemeral."""
        self._lose(SessionOver())

    def session_refused(self, error: NameServiceError) -> None:
        """Tell the contender, and give up."""
        self._lose(SessionRefused(error=error))

    def _lose(self, event: SessionOver | SessionRefused) -> None:
        self._channel.forget()
        self._step(event)
        self._advance()

    # -- the core --------------------------------------------------------------------

    def _advance(self) -> None:
        """Do what comes next, if nothing is under way."""
        if not self._channel.is_busy and not self.closed.done():
            self._step(
                TurnCame(
                    is_connected=self._session.is_connected,
                    leader_session_id=uuid.uuid4(),
                )
            )

    def _step(self, event: QueueEvent) -> None:
        """Have the core decide, and do so."""
        for effect in self._core.step(event, now_ns=self._session.clock.now_ns()):
            self._perform(effect)
        due_ns = self._core.next_deadline_ns()
        if due_ns != self._timer_due_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_due_ns = due_ns
            self._timer = (
                None
                if due_ns is None
                else self._session.loop.call_at(due_ns, self._wake)
            )

    def _wake(self) -> None:
        self._timer = self._timer_due_ns = None
        self._step(TimePassed())
        self._advance()

    def _perform(self, effect: QueueEffect) -> None:
        session = self._session
        match effect:
            case RemoveNode(path=path):
                session.connection.delete(path)
            case WatchOwnNode():
                self._watch_own_node(effect)
            case UnwatchOwnNode(path=path):
                session.watches.remove(path, self._own_node_changed)
            case UnwatchPredecessor(path=path):
                session.watches.remove(path, self._predecessor_changed)
            case NoteRegistered(path=path, epoch=epoch, sent_ns=sent_ns):
                session.write_committed(sent_ns)
                self._log.debug("contender.registered", path=path, epoch=epoch)
            case NoteLeft(path=path, epoch=epoch):
                self._log.debug("contender.left", path=path, epoch=epoch)
            case BeginHolding(entry=entry):
                self._hold(entry)
            case LetHoldingAsk(version=version):
                assert self._holding is not None
                self._holding.advance(version)
            case AbandonHolding():
                assert self._holding is not None
                self._holding.abandon()
            case EndHolding():
                assert self._holding is not None
                self._holding.close()
                self._holding = None
            case Deliver(news=news):
                self._deliver(news)
            case LogFailure(error=error):
                self._log.warning("contender.failed", error=str(error))
            case TellError(error=error):
                self._fail(error)
            case Finish():
                session.remove_listener(self)
                self.closed.set_result(None)
            case AcceptRequest() | RefuseRequest():
                raise AssertionError(effect)  # `request` takes them
            case _:
                self._ask(effect)

    def _hold(self, entry: Entry) -> None:
        self._holding = ZooKeeperHolding(
            entry,
            session=self._session,
            paths=self._paths,
            channel=self._channel,
            confirm_timeout_ns=self._confirm_timeout_ns,
            tell=self._step,
            advance=self._advance,
        )

    # -- questions -------------------------------------------------------------------

    def _ask(self, question: Question) -> None:
        """Ask *question*; the core hears what comes of it."""
        session = self._session
        connection = session.connection
        match question:
            case CreateContender():
                self._create(question)
            case MakeParents():
                session.parents.forget(self._paths.contenders)
                self._wait(
                    session.parents.create(self._paths.contenders),
                    lambda _: QuestionAnswered(),
                )
            case ListContenders(is_synced=is_synced):
                self._wait(
                    after_sync(session, self._list) if is_synced else self._list(),
                    lambda names: QuestionAnswered(names=tuple(names)),
                )
            case ExistsNode(path=path):
                self._wait(
                    connection.exists(path), lambda stat: QuestionAnswered(stat=stat)
                )
            case ReadNode(path=path):
                self._wait(
                    connection.get(path), lambda node: QuestionAnswered(node=node)
                )
            case WatchPredecessor(path=path):
                self._wait(
                    session.watches.add(path, self._predecessor_changed),
                    lambda stat: QuestionAnswered(stat=stat),
                )
            case ReadPublication():
                # Answers come in the order of the questions.
                component = connection.exists(self._paths.node)
                self._wait(
                    connection.get(self._paths.leader),
                    lambda node: QuestionAnswered(node=node, stat=component.result()),
                )
            case Transact(operations=operations):
                self._wait(
                    connection.transact(operations), lambda _: QuestionAnswered()
                )
            case _:
                assert_never(question)

    def _list(self) -> Future[list[str]]:
        return self._session.connection.children(self._paths.contenders)

    def _create(self, question: CreateContender) -> None:
        # Sent at once with what may be missing: one round trip, also the first time.
        self._session.parents.create(self._paths.contenders)
        created = self._session.connection.create_contender(
            self._paths.contender_prefix(self._contender_id),
            encode_record(question.record),
        )

        def done(answer: Future[tuple[str, NodeStat]]) -> None:
            # Also when it is no longer waited for.
            if answer.exception() is None:
                path, _ = answer.result()
                self._step(ContenderCreated(number=question.number, path=path))

        created.add_done_callback(done)
        self._wait(
            created, lambda answer: QuestionAnswered(path=answer[0], stat=answer[1])
        )

    def _wait(
        self, asked: Future[T], to_event: Callable[[T], QuestionAnswered]
    ) -> None:
        def answered(answer: T) -> None:
            self._step(to_event(answer))

        def failed(error: Exception) -> bool:
            self._step(QuestionFailed(error=error))
            return True  # the core has dealt with it

        self._channel.ask(asked, answered, failed=failed)

    # -- watches ---------------------------------------------------------------------

    def _watch_own_node(self, effect: WatchOwnNode) -> None:
        """Hear of the next change of our node; beside whatever else is under way."""

        def done(answer: Future[NodeStat | None]) -> None:
            if answer.exception() is not None:
                return  # over, or asked again when contact is restored
            self._step(OwnNodeWatched(number=effect.number, stat=answer.result()))
            self._advance()

        watched = self._session.watches.add(effect.path, self._own_node_changed)
        watched.add_done_callback(done)

    def _own_node_changed(self) -> None:
        self._step(OwnNodeChanged())
        self._advance()

    def _predecessor_changed(self) -> None:
        self._step(PredecessorChanged())
        self._advance()
