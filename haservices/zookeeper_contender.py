"""
One contender's place in the queue of a component, on ZooKeeper.

Theory of operation
-------------------
An *entry* is one registration: an ephemeral node whose name ends in a sequence number.
The first in the queue holds the component (zookeeper_holding.py); everybody else
watches only the one before.  A contender has one entry at a time:

::

    none ──created──► QUEUED ──is first──► HOLDING ──ended──► LEAVING ──deleted──► none
     ▲                  └─────────────deleted by others──────────┘                  │
     └────────────────────────── registers again, at the end ───────────────────────┘

An operator ends a leadership by *marking* the holder's node: its next write then fails.
The entry stays first until the contender has stopped leading, or a whole timeout has
passed since its last write, so that two holders never believe at once.  A node that
somebody deletes ends its entry likewise.

Whatever changes something is asked for one at a time; only watches are armed beside it.
After a lost connection nothing is taken for known: the node is looked up again, also
one whose creation was never answered, since a repeated request must make no second
entry (E8).

What the contender is told follows from the `HolderCore`.
"""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, assert_never, final

from election.holder import (
    AcknowledgeRevocation,
    ConfirmRequested,
    DeliverGrant,
    DeliverRevoke,
    Ended,
    HolderCore,
    RefuseConfirm,
    RevokeDelivered,
    SendConfirm,
    Suspended,
)
from haservices.zookeeper_channel import ZooKeeperChannel
from haservices.zookeeper_entry import Commit, Confirm, Entry, HolderRequest, Phase
from haservices.zookeeper_holding import (
    HEARTBEATS_PER_TIMEOUT,
    ZooKeeperHolding,
    is_published_by,
    refuse,
)
from haservices.zookeeper_nodes import (
    CheckNode,
    DeleteNode,
    NodeMissingError,
    NodeVersionError,
    TransactionFailedError,
)
from haservices.zookeeper_paths import in_order
from haservices.zookeeper_records import (
    ContenderRecord,
    decode_contender,
    encode_record,
)
from haservices.zookeeper_session import when_done
from nameservice import (
    AuthenticationError,
    MayHaveHappenedError,
    RemoteProtocolError,
    SessionExpiredError,
    get_logger,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from election.contender import LeaderSession
    from election.holder import HolderEvent
    from haservices.event_loop import Timer
    from haservices.zookeeper_nodes import Node, NodeStat
    from haservices.zookeeper_paths import ComponentPaths
    from haservices.zookeeper_session import ZooKeeperSession


__all__ = ["ZooKeeperContender"]

_NS_PER_MS: Final = 1_000_000


@final
class ZooKeeperContender:
    """
    One contender, from `start` until it is `closed`; for the event loop alone.

    Args:
        session: Where it is registered.
        paths: For which component.
        holder: What it believes and was told; shared with whoever asks that.
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
        self._holder = holder
        self._client = client
        self._confirm_timeout_ns = confirm_timeout_ns
        self._deliver = deliver
        self._fail = fail
        self._log = get_logger(component="contender", component_id=paths.component_id)
        self._contender_id = uuid.uuid4().hex
        self._channel = ZooKeeperChannel(self._advance, self._stumble)
        self._entry: Entry | None = None
        self._holding: ZooKeeperHolding | None = None
        self._told: LeaderSession | None = None
        self._pause_timer: Timer | None = None
        self._leave_timer: Timer | None = None
        self._is_closing = False
        self.closed: Final[Future[None]] = Future()

    # -- what it is asked ------------------------------------------------------------

    def start(self) -> None:
        """Enter the queue, and stay in it until `close`."""
        self._session.add_listener(self)

    @property
    def told(self) -> LeaderSession | None:
        """Return the leadership that the contender holds, as far as it was told."""
        return self._told

    def request(self, request: HolderRequest) -> None:
        """Do *request*, when its turn comes, while we hold the component."""
        holding = self._holding
        match request:
            case Confirm():
                is_accepted = self._accept(request)
            case Commit(session=session):
                is_accepted = session == self._told
            case _:
                assert_never(request)
        if is_accepted and holding is not None and not self._is_closing:
            holding.request(request)
            self._advance()
        else:
            claim = self._holder.claim
            epoch = None if claim is None else claim.session.epoch
            refuse(request, self._paths.component_id, epoch)

    def _accept(self, request: Confirm) -> bool:
        """Return whether the core lets *request* be sent."""
        is_accepted = False
        event = ConfirmRequested(
            leader_session_id=request.leader_session_id, address=request.address
        )
        for effect in self._holder.step(event, now_ns=self._session.clock.now_ns()):
            match effect:
                case SendConfirm(confirm_count=confirm_count):
                    request.confirm_count = confirm_count
                    is_accepted = True
                case RefuseConfirm():
                    is_accepted = False
                case DeliverGrant() | DeliverRevoke() | AcknowledgeRevocation():
                    self._perform(effect)
                case _:
                    assert_never(effect)
        return is_accepted

    def give_up(self, request: HolderRequest) -> bool:
        """Wait for *request* no more; return whether it may have had an effect."""
        if self._holding is not None:
            self._holding.withdraw(request)
        return request.is_sent

    def revoke_delivered(self) -> None:
        """Take note that the contender's revoke callback has returned."""
        self._step(RevokeDelivered())
        self._advance()

    def close(self) -> None:
        """Leave the queue as soon as the name service can be told."""
        if not self._is_closing:
            self._is_closing = True
            self._told = None
            self._stop_pausing()
            self._stop_holding()
            self._advance()

    # -- what the session tells ------------------------------------------------------

    def contact_restored(self) -> None:
        """Look everything up again, and go on."""
        self._stop_pausing()
        self._forget_what_was_known()
        self._advance()

    def contact_suspended(self) -> None:
        """Tell the core; belief goes by the clock all the same."""
        self._forget_what_was_known()
        self._step(Suspended())

    def contact_lost(self) -> None:
        """Do nothing: for a contender its own writes decide."""

    def session_ended(self) -> None:
        """Take our entry for deleted: it was ephemeral."""
        self._channel.forget()
        entry, self._entry = self._entry, None
        if entry is not None:
            if self._holding is not None:
                self._holding.abandon()
            self._stop_leading(entry)
            self._forget_watches(entry)
        self._advance()

    def session_refused(self, error: AuthenticationError) -> None:
        """Tell the contender, and give up."""
        self._fail(error)
        self.session_ended()

    # -- one thing at a time ---------------------------------------------------------

    def _advance(self) -> None:
        """Do what comes next, if nothing is under way."""
        if self._channel.is_busy:
            return
        entry = self._entry
        if entry is None and self._is_closing:
            self._finish()
        elif self._pause_timer is not None or not self._session.is_connected:
            return  # until it is over, or contact restored
        elif entry is None:
            self._register()
        elif entry.path is None:
            self._find(entry)
        elif self._is_closing or entry.may_leave:
            self._leave(entry)
        elif entry.phase is Phase.LEAVING:
            return  # until the contender has stopped leading
        elif not entry.is_version_known:
            self._look_at_own_node(entry)
        else:
            if not entry.is_watched:
                self._watch_own_node(entry)
            if self._holding is not None:
                self._holding.advance()
            elif not entry.is_place_known:
                self._look_at_queue(entry)

    def _stumble(self, error: Exception) -> None:
        """Try again later, whatever it was; tell the contender unless it is usual."""
        if self._entry is not None:
            self._entry.is_version_known = False
        pause_ns = self._session.timeout_ns
        if isinstance(error, MayHaveHappenedError | SessionExpiredError):
            pause_ns //= HEARTBEATS_PER_TIMEOUT
        else:
            self._log.warning("contender.failed", error=str(error))
            if not self._is_closing:
                self._fail(error)
        if self._pause_timer is None:
            self._pause_timer = self._session.loop.call_at(
                self._session.clock.now_ns() + pause_ns, self._resume
            )

    def _resume(self) -> None:
        self._pause_timer = None
        self._advance()

    def _stop_pausing(self) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None

    # -- entering the queue ----------------------------------------------------------

    def _register(self) -> None:
        session_id = self._session.session_id
        assert session_id is not None
        entry = Entry(
            session_id=session_id,
            record=ContenderRecord(
                leader_session_id=uuid.uuid4(),
                client=self._client,
                session_timeout_ms=self._session.timeout_ns // _NS_PER_MS,
            ),
        )
        self._entry = entry
        # Sent at once with what may be missing: one round trip, also the first time.
        self._session.create_parents(self._paths.contenders)
        sent_ns = self._session.clock.now_ns()
        created = self._session.connection.create_contender(
            self._paths.contender_prefix(self._contender_id),
            encode_record(entry.record),
        )
        when_done(created, lambda answer: self._clean_up_after(entry, answer))

        def answered(answer: tuple[str, NodeStat]) -> None:
            path, stat = answer
            if stat.owner_session_id != entry.session_id:
                # Asked for in the session that has just ended, done in the next one.
                self._session.connection.delete(path)
                self._entry = None
                return
            entry.path = path
            entry.epoch = stat.created_zxid
            entry.version = stat.version
            entry.is_version_known = True
            entry.committed_ns = sent_ns
            self._log.debug("contender.registered", path=path, epoch=entry.epoch)

        def failed(error: Exception) -> bool:
            if isinstance(error, MayHaveHappenedError):
                return False  # the entry stays, and is looked for
            self._entry = None
            if isinstance(error, NodeMissingError):
                self._make_parents()
                return True
            return False

        self._channel.ask(created, answered, failed=failed)

    def _clean_up_after(
        self, entry: Entry, created: Future[tuple[str, NodeStat]]
    ) -> None:
        """Delete a node that was created for an entry that is over."""
        if self._entry is not entry and created.exception() is None:
            self._session.connection.delete(created.result()[0])

    def _make_parents(self) -> None:
        """Create the nodes above ours, or find out why not; then register."""
        self._session.forget_parents(self._paths.contenders)
        self._channel.ask(
            self._session.create_parents(self._paths.contenders), lambda _: None
        )

    def _find(self, entry: Entry) -> None:
        """Look whether the node whose creation was not answered is there."""
        # The sync makes sure that what our former server passed on has arrived.
        self._session.connection.sync()

        def answered(names: list[str]) -> None:
            found = [
                name for name in in_order(names) if name.startswith(self._contender_id)
            ]
            if found:
                # An earlier one is of an earlier session, and about to go.
                self._adopt(entry, self._paths.contender(found[-1]))
            else:
                self._entry = None

        def failed(error: Exception) -> bool:
            if isinstance(error, NodeMissingError):
                self._entry = None
                return True
            return False

        self._channel.ask(
            self._session.connection.children(self._paths.contenders),
            answered,
            failed=failed,
        )

    def _adopt(self, entry: Entry, path: str) -> None:
        def answered(stat: NodeStat | None) -> None:
            if stat is None or stat.owner_session_id != entry.session_id:
                self._entry = None
            else:
                entry.path = path
                entry.epoch = stat.created_zxid

        self._channel.ask(self._session.connection.exists(path), answered)

    # -- looking ---------------------------------------------------------------------

    def _forget_what_was_known(self) -> None:
        entry = self._entry
        if entry is not None:
            entry.is_version_known = False
            entry.is_watched = False
            entry.is_place_known = False
        if self._holding is not None:
            self._holding.forget_what_was_known()

    def _look_at_own_node(self, entry: Entry) -> None:
        def answered(node: Node) -> None:
            entry.version = node.stat.version
            entry.is_version_known = True
            try:
                is_ended = decode_contender(node.value, path=entry.node).is_ended
            except RemoteProtocolError:
                is_ended = True  # overwritten by somebody
            if is_ended:
                self._end(entry)

        self._channel.ask(
            self._session.connection.get(entry.node),
            answered,
            failed=lambda error: self._ends_if_missing(entry, error),
        )

    def _ends_if_missing(self, entry: Entry, error: Exception) -> bool:
        if isinstance(error, NodeMissingError):
            self._end(entry)
            return True
        return False

    def _watch_own_node(self, entry: Entry) -> None:
        """Hear of the next change of our node; beside whatever else is under way."""

        def done(answer: Future[NodeStat | None]) -> None:
            if self._entry is not entry or answer.exception() is not None:
                return  # over, or asked again when contact is restored
            stat = answer.result()
            if stat is None:
                self._end(entry)
            elif stat.version != entry.version:
                # Answers come in order: no write of ours can be what makes it differ.
                entry.is_version_known = False
            self._advance()

        entry.is_watched = True
        when_done(self._session.watch(entry.node, self._own_node_changed), done)

    def _own_node_changed(self) -> None:
        # Most often by our own write: then the version will turn out to be right.
        if self._entry is not None:
            self._entry.is_watched = False
            self._advance()

    def _look_at_queue(self, entry: Entry) -> None:
        def answered(names: list[str]) -> None:
            if entry.phase is not Phase.QUEUED:
                return  # ended meanwhile
            queue = [self._paths.contender(name) for name in in_order(names)]
            if entry.path not in queue:
                self._end(entry)
                return
            place = queue.index(entry.path)
            self._forget_predecessor(entry)
            if place == 0:
                self._hold(entry)
            else:
                entry.predecessor = queue[place - 1]
                self._watch_predecessor(entry, entry.predecessor)

        self._channel.ask(
            self._session.connection.children(self._paths.contenders),
            answered,
            failed=lambda error: self._ends_if_missing(entry, error),
        )

    def _watch_predecessor(self, entry: Entry, predecessor: str) -> None:
        def answered(stat: NodeStat | None) -> None:
            entry.is_place_known = stat is not None

        self._channel.ask(
            self._session.watch(predecessor, self._predecessor_changed), answered
        )

    def _predecessor_changed(self) -> None:
        if self._entry is not None:
            self._entry.is_place_known = False
            self._advance()

    def _forget_predecessor(self, entry: Entry) -> None:
        if entry.predecessor is not None:
            self._session.unwatch(entry.predecessor, self._predecessor_changed)
            entry.predecessor = None

    def _forget_watches(self, entry: Entry) -> None:
        self._forget_predecessor(entry)
        if entry.path is not None:
            self._session.unwatch(entry.path, self._own_node_changed)

    # -- holding, and its end --------------------------------------------------------

    def _hold(self, entry: Entry) -> None:
        entry.phase = Phase.HOLDING
        self._holding = ZooKeeperHolding(
            entry,
            session=self._session,
            paths=self._paths,
            channel=self._channel,
            confirm_timeout_ns=self._confirm_timeout_ns,
            step=self._step,
            end=lambda: self._end(entry),
            advance=self._advance,
        )

    def _stop_holding(self) -> None:
        if self._holding is not None:
            self._holding.close()
            self._holding = None

    def _end(self, entry: Entry) -> None:
        """Stop leading; leave the queue as soon as the contender has noticed."""
        if entry.phase is Phase.LEAVING:
            return
        entry.phase = Phase.LEAVING
        claim = self._holder.claim
        is_held = claim is not None and claim.session.epoch == entry.epoch
        self._stop_leading(entry)
        if not is_held:
            entry.may_leave = True
        if not entry.may_leave:
            # However long its callback takes: others need not wait for ever.
            self._leave_timer = self._session.loop.call_at(
                entry.committed_ns + self._session.timeout_ns,
                lambda: self._let_leave(entry),
            )

    def _let_leave(self, entry: Entry) -> None:
        entry.may_leave = True
        self._advance()

    def _stop_leading(self, entry: Entry) -> None:
        self._stop_holding()
        if entry.epoch > 0:
            self._step(Ended(epoch=entry.epoch))

    def _leave(self, entry: Entry) -> None:
        """Delete our node, and what we have published."""
        operations = [DeleteNode(path=entry.node)]
        if entry.may_have_published:
            operations.append(DeleteNode(path=self._paths.leader))

        def failed(error: Exception) -> bool:
            if not isinstance(error, TransactionFailedError) or not isinstance(
                error.error, NodeMissingError
            ):
                return False
            if error.index > 0:
                entry.may_have_published = False
            elif entry.may_have_published:
                self._remove_publication(entry)
            else:
                self._left(entry)
            return True

        self._channel.ask(
            self._session.connection.transact(operations),
            lambda _: self._left(entry),
            failed=failed,
        )

    def _remove_publication(self, entry: Entry) -> None:
        """
        Delete the leader's node if it is ours, though our own node is gone.

        Our successor may replace it at the same time.  Each new leader counts up the
        version of the component's node, so that we do not delete its publication.
        """
        component = self._session.connection.exists(self._paths.node)

        def answered(node: Node) -> None:
            stat = component.result()
            if stat is None or not is_published_by(entry, node):
                self._left(entry)
                return
            operations = (
                CheckNode(path=self._paths.node, version=stat.version),
                DeleteNode(path=self._paths.leader),
            )
            self._channel.ask(
                self._session.connection.transact(operations),
                lambda _: self._left(entry),
                failed=is_replaced,
            )

        def is_replaced(error: Exception) -> bool:
            if isinstance(error, TransactionFailedError):
                error = error.error
            if isinstance(error, NodeMissingError | NodeVersionError):
                self._left(entry)
                return True
            return False

        self._channel.ask(
            self._session.connection.get(self._paths.leader),
            answered,
            failed=is_replaced,
        )

    def _left(self, entry: Entry) -> None:
        self._log.debug("contender.left", path=entry.path, epoch=entry.epoch)
        if self._leave_timer is not None:
            self._leave_timer.cancel()
            self._leave_timer = None
        self._forget_watches(entry)
        self._entry = None

    def _finish(self) -> None:
        self._stop_pausing()
        self._session.remove_listener(self)
        if not self.closed.done():
            self.closed.set_result(None)

    # -- the core --------------------------------------------------------------------

    def _step(self, event: HolderEvent) -> None:
        for effect in self._holder.step(event, now_ns=self._session.clock.now_ns()):
            assert not isinstance(effect, SendConfirm | RefuseConfirm)
            self._perform(effect)

    def _perform(
        self, effect: DeliverGrant | DeliverRevoke | AcknowledgeRevocation
    ) -> None:
        match effect:
            case DeliverGrant(session=session):
                if not self._is_closing:
                    self._told = session
                    self._deliver(effect)
            case DeliverRevoke():
                self._told = None
                if not self._is_closing:
                    self._deliver(effect)
            case AcknowledgeRevocation(session=session):
                if self._entry is not None and self._entry.epoch == session.epoch:
                    self._entry.may_leave = True
            case _:
                assert_never(effect)
