"""
`ZooKeeperHolding`: the time that one contender is first in the queue.

A thin shell: what is asked, when, and what follows is decided by `HoldingCore`
(holding_core.py).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeVar, assert_never, final

from haservices.zookeeper.entry import Commit, Confirm, Entry, HolderRequest
from haservices.zookeeper.holding_core import HoldingCore
from haservices.zookeeper.holding_effects import (
    AnswerRequest,
    EndEntry,
    FailRequest,
    ForgetVersion,
    KnowVersion,
    NoteWrite,
    ReadLeaderNode,
    RefuseRequest,
    SendSync,
    Stumble,
    Tell,
    Transact,
    WatchLeaderNode,
    WriteNode,
)
from haservices.zookeeper.holding_events import (
    CommitAsked,
    ConfirmAsked,
    ConnectionRestored,
    HoldingClosed,
    LeaderNodeChanged,
    LeaderNodeWatched,
    QuestionAnswered,
    QuestionFailed,
    RequestWithdrawn,
    SessionEnded,
    TimePassed,
    TurnCame,
)
from haservices.zookeeper.nodes import TransactionFailedError
from haservices.zookeeper.queue_events import (
    EntryEnded,
    HolderTold,
    PublicationSent,
    VersionForgotten,
    VersionKnown,
)
from haservices.zookeeper.records import encode_record
from nameservice import LeadershipLostError, StaleEpochError


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from haservices.event_loop import Timer
    from haservices.zookeeper.channel import ZooKeeperChannel
    from haservices.zookeeper.holding_effects import HoldingEffect
    from haservices.zookeeper.holding_events import HoldingEvent
    from haservices.zookeeper.nodes import NodeStat
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.queue_events import QueueEvent
    from haservices.zookeeper.session import ZooKeeperSession


__all__ = ["ZooKeeperHolding", "refuse"]

T = TypeVar("T")

_request_numbers: Final = itertools.count(1)


@final
class ZooKeeperHolding:
    """
    What one entry does while it is first; for the event loop alone.

    Args:
        entry: Which.
        session: Where it is registered.
        paths: For which component.
        channel: The contender's.
        confirm_timeout_ns: How long a grant waits to be confirmed.
        tell: Tells the contender's `QueueCore`.
        advance: Makes the contender do what comes next.
    """

    def __init__(
        self,
        entry: Entry,
        *,
        session: ZooKeeperSession,
        paths: ComponentPaths,
        channel: ZooKeeperChannel,
        confirm_timeout_ns: int,
        tell: Callable[[QueueEvent], None],
        advance: Callable[[], None],
    ) -> None:
        self._entry = entry
        self._session = session
        self._paths = paths
        self._channel = channel
        self._tell = tell
        self._advance = advance
        self._core = HoldingCore(
            session=entry.leadership,
            record=entry.record,
            node=entry.path,
            leader=paths.leader,
            component=paths.node,
            renewals=session.renewals,
            confirm_timeout_ns=confirm_timeout_ns,
        )
        self._requests: dict[int, HolderRequest] = {}
        self._may_have_published = False
        self._timer: Timer | None = None
        self._timer_due_ns: int | None = None

    def request(self, request: HolderRequest) -> None:
        """Do *request* when its turn comes."""
        number = next(_request_numbers)
        self._requests[number] = request
        match request:
            case Confirm(address=address, confirm_count=confirm_count):
                self._step(
                    ConfirmAsked(
                        number=number, address=address, confirm_count=confirm_count
                    )
                )
            case Commit(operations=operations):
                self._step(CommitAsked(number=number, operations=operations))
            case _:
                assert_never(request)

    def withdraw(self, request: HolderRequest) -> None:
        """Have *request* not done, unless it is under way."""
        for number, present in tuple(self._requests.items()):
            if present is request and not request.is_sent:
                del self._requests[number]
                self._step(RequestWithdrawn(number=number))

    def forget_what_was_known(self) -> None:
        """Begin anew after a lost connection: write at once, watch again."""
        self._step(ConnectionRestored())

    def close(self) -> None:
        """Stop everything; what is under way is still answered."""
        self._step(HoldingClosed())
        if self._may_have_published:
            self._session.watches.remove(self._paths.leader, self._leader_changed)

    def abandon(self) -> None:
        """Stop everything after the end of the session: no answer will come."""
        self._step(SessionEnded())
        self.close()

    def advance(self, version: int) -> None:
        """Ask for what is due; our own node is at *version*."""
        self._step(TurnCame(version=version))

    # -- the core ------------------------------------------------------------------

    def _step(self, event: HoldingEvent) -> bool:
        """Have the core decide, and do so; return whether it dealt with *event*."""
        effects = self._core.step(event, now_ns=self._session.clock.now_ns())
        for effect in effects:
            self._perform(effect)
        self._arm()
        return not any(isinstance(effect, Stumble) for effect in effects)

    def _arm(self) -> None:
        due_ns = self._core.next_deadline_ns()
        if due_ns == self._timer_due_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ns = due_ns
        self._timer = (
            None if due_ns is None else self._session.loop.call_at(due_ns, self._wake)
        )

    def _wake(self) -> None:
        self._timer = self._timer_due_ns = None
        self._step(TimePassed())
        self._advance()

    def _perform(self, effect: HoldingEffect) -> None:
        entry = self._entry
        connection = self._session.connection
        match effect:
            case SendSync():
                self._ask(self._session.witness(), lambda _: QuestionAnswered())
            case WriteNode(record=record, version=version):
                self._ask(
                    connection.set(entry.path, encode_record(record), version),
                    _version_of,
                )
            case Transact(number=number, operations=operations):
                if effect.is_publication:
                    self._may_have_published = True
                    self._tell(PublicationSent())
                request = self._requests[number]
                request.is_sent = True
                self._ask(
                    connection.transact(operations),
                    lambda _: QuestionAnswered(),
                    request,
                )
            case ReadLeaderNode():
                self._ask(
                    connection.get(self._paths.leader),
                    lambda node: QuestionAnswered(is_ours=entry.has_published(node)),
                )
            case WatchLeaderNode():
                self._watch_leader()
            case KnowVersion(version=version):
                self._tell(VersionKnown(version=version))
            case ForgetVersion():
                self._tell(VersionForgotten())
            case NoteWrite(sent_ns=sent_ns):
                self._session.acknowledge(sent_ns)
            case Tell(event=event):
                self._tell(HolderTold(event=event))
            case EndEntry():
                self._tell(EntryEnded())
            case AnswerRequest(number=number):
                request = self._requests.pop(number)
                if not request.answer.done():
                    request.answer.set_result(None)
            case FailRequest(number=number, error=error):
                request = self._requests.pop(number)
                if not request.answer.done():
                    request.answer.set_exception(error)
            case RefuseRequest(number=number):
                request = self._requests.pop(number)
                request.is_sent = False
                refuse(request, self._paths.component_id, entry.epoch)
            case Stumble():
                pass  # `_step` tells
            case _:
                assert_never(effect)

    def _ask(
        self,
        asked: Future[T],
        to_event: Callable[[T], QuestionAnswered],
        request: HolderRequest | None = None,
    ) -> None:
        """Tell the core what comes of a question, which *request* may be about."""

        def answered(answer: T) -> None:
            self._step(to_event(answer))

        def failed(error: Exception) -> bool:
            if request is not None and isinstance(error, TransactionFailedError):
                request.is_sent = False  # nothing was done
            return self._step(QuestionFailed(error=error))

        self._channel.ask(asked, answered, failed=failed)

    # -- the leader's node ---------------------------------------------------------

    def _watch_leader(self) -> None:
        """Hear of it if somebody deletes what we have published: that ends it."""

        def done(answer: Future[NodeStat | None]) -> None:
            if answer.exception() is not None:
                return  # asked again when contact is restored
            stat = answer.result()
            is_ours = (
                stat is not None and stat.owner_session_id == self._entry.session_id
            )
            self._step(LeaderNodeWatched(is_ours=is_ours))
            if not is_ours:
                self._advance()

        watched = self._session.watches.add(self._paths.leader, self._leader_changed)
        watched.add_done_callback(done)

    def _leader_changed(self) -> None:
        self._step(LeaderNodeChanged())
        self._advance()


def _version_of(stat: NodeStat) -> QuestionAnswered:
    return QuestionAnswered(version=stat.version)


def refuse(request: HolderRequest, component_id: str, epoch: int | None) -> None:
    """Answer that the leadership is over for which *request* was made."""
    if request.answer.done():
        return
    match request:
        case Confirm():
            request.answer.set_exception(LeadershipLostError(component_id, epoch))
        case Commit(session=session):
            request.answer.set_exception(
                StaleEpochError(component_id, session.epoch, None)
            )
        case _:
            assert_never(request)
