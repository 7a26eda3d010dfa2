"""
`ZooKeeperHolding`: the time that one contender is first in the queue.

Theory of operation
-------------------
The holder writes its own node every tenth of the timeout.  Each write names the version
that it expects, so that it commits only while the node is there, under our session, and
untouched by an operator.  From the send of a write that committed the holder believes
for two thirds of the timeout (E4); nothing that is read ever counts.

A confirm is one such write, in one transaction with the leader's node.  A commit of the
leader store is one transaction with a check of the node's version: it fails once the
node is gone or marked, and no successor is granted before that.

Requests and heartbeats take turns on the contender's channel; the heartbeat goes first
when it is due.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final, assert_never, final

import msgspec

from election.holder import Affirmed, Lost, Suspended
from haservices.zookeeper_entry import Commit, Confirm, Entry, HolderRequest, Phase
from haservices.zookeeper_nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeExistsError,
    NodeMissingError,
    NodeOperation,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper_records import (
    ContenderRecord,
    LeaderRecord,
    decode_leader,
    encode_record,
)
from haservices.zookeeper_session import when_done
from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    RemoteProtocolError,
    SessionExpiredError,
    StaleEpochError,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from election.holder import HolderEvent
    from haservices.event_loop import Timer
    from haservices.zookeeper_channel import ZooKeeperChannel
    from haservices.zookeeper_nodes import Node, NodeStat
    from haservices.zookeeper_paths import ComponentPaths
    from haservices.zookeeper_session import ZooKeeperSession


__all__ = ["HEARTBEATS_PER_TIMEOUT", "ZooKeeperHolding", "refuse"]

HEARTBEATS_PER_TIMEOUT: Final = 10

_ATTEMPT_COUNT_MAX: Final = 10


class _Publishing(Enum):
    """How the next confirm writes the leader's node."""

    CREATE = "create"
    SET = "set"
    REPLACE = "replace"


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
        step: Tells the contender's core.
        end: Ends the entry.
        advance: Lets the contender do what comes next.
    """

    def __init__(
        self,
        entry: Entry,
        *,
        session: ZooKeeperSession,
        paths: ComponentPaths,
        channel: ZooKeeperChannel,
        confirm_timeout_ns: int,
        step: Callable[[HolderEvent], None],
        end: Callable[[], None],
        advance: Callable[[], None],
    ) -> None:
        self._entry = entry
        self._session = session
        self._paths = paths
        self._channel = channel
        self._confirm_timeout_ns = confirm_timeout_ns
        self._step = step
        self._end = end
        self._advance = advance
        self._requests: deque[HolderRequest] = deque()
        self._publishing = _Publishing.CREATE
        self._is_confirmed = False
        self._is_leader_watched = False
        self._heartbeat_due_ns = 0
        self._belief_timer: Timer | None = None
        self._wake_timer: Timer | None = None
        self._confirm_timer: Timer | None = None

    def request(self, request: HolderRequest) -> None:
        """Do *request* when its turn comes."""
        self._requests.append(request)

    def withdraw(self, request: HolderRequest) -> None:
        """Let *request* not be done, unless it is under way."""
        if request in self._requests and not request.is_sent:
            self._requests.remove(request)

    def forget_what_was_known(self) -> None:
        """Begin anew after a lost connection: write at once, watch again."""
        self._is_leader_watched = False
        self._heartbeat_due_ns = 0

    def close(self) -> None:
        """Stop everything; what is under way is still answered."""
        for timer in (self._belief_timer, self._wake_timer, self._confirm_timer):
            if timer is not None:
                timer.cancel()
        for request in tuple(self._requests):
            if not request.is_sent:
                self._requests.remove(request)
                refuse(request, self._paths.component_id, self._entry.epoch)
        if self._entry.may_have_published:
            self._session.unwatch(self._paths.leader, self._leader_changed)

    def abandon(self) -> None:
        """Stop everything after the end of the session: no answer will come."""
        for request in tuple(self._requests):
            if request.is_sent and isinstance(request, Commit):
                self._fail(request, _in_doubt(SessionExpiredError()))
            request.is_sent = False
        self.close()

    def advance(self) -> None:
        """Ask for what is due: a heartbeat first, then what was requested."""
        now_ns = self._session.clock.now_ns()
        entry = self._entry
        if self._is_confirmed and not self._is_leader_watched:
            self._watch_leader()
        if not entry.record.is_granted or now_ns >= self._heartbeat_due_ns:
            self._write(msgspec.structs.replace(entry.record, is_granted=True))
        elif self._requests:
            request = self._requests[0]
            match request:
                case Confirm():
                    self._confirm(request)
                case Commit():
                    self._commit(request)
                case _:
                    assert_never(request)
        elif self._wake_timer is None:
            self._wake_timer = self._session.loop.call_at(
                self._heartbeat_due_ns, self._wake
            )

    def _wake(self) -> None:
        self._wake_timer = None
        self._advance()

    # -- writes to our own node ------------------------------------------------------

    def _write(self, record: ContenderRecord) -> None:
        """Write *record*: a heartbeat, or the first of them, which takes the grant."""
        entry = self._entry
        sent_ns = self._session.clock.now_ns()

        def answered(stat: NodeStat) -> None:
            entry.record = record
            entry.version = stat.version
            self._committed(sent_ns)

        self._channel.ask(
            self._session.connection.set(
                entry.node, encode_record(record), entry.version
            ),
            answered,
            failed=self._own_node_failed,
        )

    def _own_node_failed(self, error: Exception) -> bool:
        """Return whether it was our own node that was not as expected."""
        if isinstance(error, NodeMissingError):
            self._end()
            return True
        if isinstance(error, NodeVersionError):
            # Marked by an operator, or an answer of ours was lost: it is looked at.
            self._entry.is_version_known = False
            return True
        return False

    def _committed(self, sent_ns: int) -> None:
        """Take note of a write to our own node, sent at *sent_ns*, that committed."""
        entry = self._entry
        timeout_ns = self._session.timeout_ns
        self._heartbeat_due_ns = sent_ns + timeout_ns // HEARTBEATS_PER_TIMEOUT
        entry.committed_ns = max(entry.committed_ns, sent_ns)
        self._session.acknowledge(sent_ns)
        if entry.phase is not Phase.HOLDING:
            return  # it was ended while the write was under way
        self._step(
            Affirmed(session=entry.leadership, until_ns=sent_ns + timeout_ns * 2 // 3)
        )
        if self._belief_timer is None:
            self._check_belief()
        if not self._is_confirmed and self._confirm_timer is None:
            self._confirm_timer = self._session.loop.call_at(
                self._session.clock.now_ns() + self._confirm_timeout_ns,
                self._confirm_is_overdue,
            )

    def _check_belief(self) -> None:
        """Tell the core when no write has committed for too long."""
        self._belief_timer = None
        timeout_ns = self._session.timeout_ns
        now_ns = self._session.clock.now_ns()
        due_ns = self._entry.committed_ns + timeout_ns * 2 // 3
        if now_ns >= due_ns:
            due_ns = self._entry.committed_ns + timeout_ns
            if now_ns >= due_ns:
                self._step(Lost())
                return  # the next write that commits begins anew
            self._step(Suspended())
        self._belief_timer = self._session.loop.call_at(due_ns, self._check_belief)

    def _confirm_is_overdue(self) -> None:
        if not self._is_confirmed:
            self._end()
            self._advance()

    # -- requests ----------------------------------------------------------------------

    def _confirm(self, request: Confirm) -> None:
        entry = self._entry
        leader = self._paths.leader
        record = msgspec.structs.replace(entry.record, address=request.address)
        publication = encode_record(
            LeaderRecord(
                epoch=entry.epoch,
                confirm_count=request.confirm_count,
                leader_session_id=request.leader_session_id,
                address=request.address,
            )
        )
        create: list[NodeOperation] = [
            CreateNode(path=leader, value=publication, is_ephemeral=True),
            # Counts the leaders, for whoever removes what another has left behind.
            SetNode(path=self._paths.node, value=b""),
        ]
        operations: list[NodeOperation] = [
            SetNode(path=entry.node, value=encode_record(record), version=entry.version)
        ]
        match self._publishing:
            case _Publishing.CREATE:
                operations += create
            case _Publishing.SET:
                operations.append(SetNode(path=leader, value=publication))
            case _Publishing.REPLACE:
                operations += [DeleteNode(path=leader), *create]
            case _:
                assert_never(self._publishing)
        entry.may_have_published = True
        sent_ns = self._session.clock.now_ns()

        def committed() -> None:
            entry.record = record
            entry.version += 1
            self._publishing = _Publishing.SET
            self._is_confirmed = True
            self._committed(sent_ns)

        self._transact(request, operations, committed)

    def _commit(self, request: Commit) -> None:
        check = CheckNode(path=self._entry.node, version=self._entry.version)
        self._transact(request, (check, *request.operations), lambda: None)

    def _transact(
        self,
        request: HolderRequest,
        operations: Sequence[NodeOperation],
        committed: Callable[[], None],
    ) -> None:
        """Do *operations*, the first of which concerns our own node, for *request*."""
        request.is_sent = True
        request.attempt_count += 1

        def answered(_: None) -> None:
            committed()
            self._drop(request)
            if not request.answer.done():
                request.answer.set_result(None)

        def failed(error: Exception) -> bool:
            if not isinstance(error, TransactionFailedError):
                self._fail(request, _in_doubt(error))
                return False
            # Nothing was done, and nothing is on its way any more.
            request.is_sent = False
            if self._entry.phase is not Phase.HOLDING:
                self._drop(request)
                refuse(request, self._paths.component_id, self._entry.epoch)
            elif request.attempt_count >= _ATTEMPT_COUNT_MAX:
                message = f"others interfered {_ATTEMPT_COUNT_MAX} times: {error}"
                self._fail(request, DidNotHappenError(message))
            elif error.index == 0:
                if not self._own_node_failed(error.error):
                    self._fail(request, error.error)
            elif isinstance(request, Commit):
                self._fail(
                    request, TransactionFailedError(error.index - 1, error.error)
                )
            else:
                self._confirm_failed(request, error.error)
            return True

        self._channel.ask(
            self._session.connection.transact(operations), answered, failed=failed
        )

    def _confirm_failed(self, request: Confirm, error: Exception) -> None:
        """Deal with a leader's node that is not as expected; *request* comes again."""
        if isinstance(error, NodeExistsError):
            self._look_at_leader()
        elif not isinstance(error, NodeMissingError):
            self._fail(request, error)
        elif self._publishing is _Publishing.SET:
            self._end()  # somebody has ended what we had published
        else:
            self._publishing = _Publishing.CREATE

    def _drop(self, request: HolderRequest) -> None:
        if request in self._requests:
            self._requests.remove(request)

    def _fail(self, request: HolderRequest, error: Exception) -> None:
        self._drop(request)
        if not request.answer.done():
            request.answer.set_exception(error)

    # -- the leader's node -------------------------------------------------------------

    def _look_at_leader(self) -> None:
        """Find out whose the leader's node is that is there already."""

        def answered(node: Node) -> None:
            self._publishing = (
                _Publishing.SET
                if is_published_by(self._entry, node)
                else _Publishing.REPLACE
            )

        def failed(error: Exception) -> bool:
            return isinstance(error, NodeMissingError)  # gone again

        self._channel.ask(
            self._session.connection.get(self._paths.leader), answered, failed=failed
        )

    def _watch_leader(self) -> None:
        """Hear of it if somebody deletes what we have published: that ends it."""

        def done(answer: Future[NodeStat | None]) -> None:
            if self._entry.phase is not Phase.HOLDING or answer.exception() is not None:
                return  # over, or asked again when contact is restored
            stat = answer.result()
            if stat is None or stat.owner_session_id != self._entry.session_id:
                self._end()
                self._advance()

        self._is_leader_watched = True
        when_done(self._session.watch(self._paths.leader, self._leader_changed), done)

    def _leader_changed(self) -> None:
        self._is_leader_watched = False
        self._advance()


def _in_doubt(error: Exception) -> Exception:
    """Return what a request is answered that was sent when *error* came."""
    if isinstance(error, SessionExpiredError):
        doubt = MayHaveHappenedError("the session ended before the answer came")
        doubt.__cause__ = error
        return doubt
    return error


def is_published_by(entry: Entry, node: Node) -> bool:
    """Return whether the leader's node *node* is what *entry* has published."""
    if node.stat.owner_session_id != entry.session_id:
        return False
    try:
        return decode_leader(node.value, path="leader").epoch == entry.epoch
    except RemoteProtocolError:
        return False


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
