"""
How a node becomes known to the proxy leader, and how long it may answer; pure.

Theory of operation::

    no one known ──found──► CONNECTING ──connected──► ASKING ──registered──► REGISTERED
                               ▲  ▲                     │ │                     │
                               │  └──no answer, refused─┘ └◄──must know more────┤
                               └─────disconnected, or silence for the timeout───┘

**One question, one answer.**  A `RegisterNode` says how far the node is, and the answer
goes by that: it may tell the node to begin a job anew (`ResetJob`).  A second answer to
the same positions would throw away what was applied since the first.  So an attempt
that was refused, or not answered in time, ends with the connection it was made over;
and from the question to the answer the node follows no command about jobs
(`is_asking`): whatever they say, the answer says again.

**The lease** (rule Q4).  The proxy takes the node for away one session timeout after it
last heard from it.  Heartbeats are numbered, acknowledgements name them, and the node
answers until one session timeout after the *send* of the newest heartbeat that was
acknowledged: never longer than the proxy counts on it.  The registration is the first
heartbeat.

**The direct lease** (rule D2) is shorter, and for answers that do not pass the proxy.
The leader waits for its end before it acknowledges a batch that the node could lack
without knowing (docs/decisions/0032-direct-reads.md).  While the leader grants one,
heartbeats are as frequent as that takes.  An acknowledgement also tells the leader's
clock, by which tickets expire: by the node's clock it was told between the send of the
heartbeat and its acknowledgement, and counts as told at the send.

**Epochs** (rule S2).  The node remembers the highest epoch that it has heard of, from
the name service or from a proxy, and does nothing that a lower one says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from nameservice.clock import NS_PER_MS, earliest
from queryablestate.node.core.effects import (
    ConnectProxy,
    NodeEffect,
    ReportRefused,
    ReportRegistered,
    ReportStale,
    SendToProxy,
)
from queryablestate.wire.node_messages import NodeHeartbeat, RegisterNode
from queryablestate.wire.refusals import NOT_LEADER


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryablestate.wire.job_plan import JobHolding
    from queryablestate.wire.kept_rows import KeptRows
    from queryablestate.wire.node_messages import (
        HeartbeatAcknowledged,
        JobPosition,
        NodeRefused,
        NodeRegistered,
    )


__all__ = [
    "HEARTBEATS_PER_SESSION_TIMEOUT",
    "NodeIdentity",
    "Registration",
    "clock_max_ms",
]

HEARTBEATS_PER_SESSION_TIMEOUT: Final = 5

_SESSION_TIMEOUT_MS_MIN: Final = 50
_DOUBLINGS_MAX: Final = 20
_HEARTBEATS_PER_LEASE: Final = 4
_BELIEF_PERCENT: Final = 90
"""Of the direct lease: the leader's clock may be faster (as E4)."""
_CLOCK_RATE_PERCENT: Final = 105
_FORGOTTEN: Final = "unknown"
"""The reason of a `NodeRefused` that answers everything but a `RegisterNode`."""


@final
@frozen(kw_only=True)
class NodeIdentity:
    """
    Who registers.

    Attributes:
        node_id: Its name; unique in the cluster.
        registration_id: Drawn for this process.
        address: Where writers reach it.
        chunk_size_bytes_max: How large a chunk of rows it takes.
        reader_addresses: Where its reader processes answer clients.
    """

    node_id: str
    registration_id: str
    address: str
    chunk_size_bytes_max: int | None = None
    reader_addresses: tuple[str, ...] = ()


@final
class Registration:
    """
    The node's place with the proxy leader.

    Args:
        identity: Who registers.
        pause_ns: How long to wait after a first refusal; doubles with each attempt, up
            to *pause_ns_max*, until a heartbeat is acknowledged.  It is no longer than
            from one heartbeat to the next where a proxy does not lead for now.
        pause_ns_max: See above.
        answer_timeout_ns: How long a connection may take, and an answer.

    Attributes:
        store_id: The data directory, as it is told.
        control_id: The control plane whose rows the node serves, or None.
        kept: What it keeps of others, as it is told.
        leader_epoch: The epoch of the registration; 0 while there is none.
        leader_epoch_max: The highest that was heard of.
        lease_until_ns: Until when the node may answer; 0 while it may not.
        session_timeout_ns: What the proxy leader has told last, 0 before.
        heartbeat_number: The newest heartbeat, 0 before the first.
        direct_until_ns: Until when the node may answer clients without the proxy; 0
            while it may not.
        leader_ms: The leader's clock, as it was acknowledged last.
        leader_ms_at_ns: When that was told, at the earliest.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        *,
        pause_ns: int,
        pause_ns_max: int,
        answer_timeout_ns: int,
    ) -> None:
        self._identity = identity
        self._pause_ns = pause_ns
        self._pause_ns_max = pause_ns_max
        self._answer_timeout_ns = answer_timeout_ns
        self.store_id = ""
        self.control_id: str | None = None
        self.kept: tuple[KeptRows, ...] = ()
        self.leader_epoch = 0
        self.leader_epoch_max = 0
        self.lease_until_ns = 0
        self.session_timeout_ns = 0
        self.heartbeat_number = 0
        self.direct_until_ns = 0
        self._direct_lease_ns = 0
        self.leader_ms = 0
        self.leader_ms_at_ns = 0
        self._acknowledged_number = 0
        self._is_echo_due = False
        self._address: str | None = None
        self._is_connected = False
        self._is_wanted = False
        self._attempt_count = 0
        self._not_before_ns = 0
        self._asked_at_ns: int | None = None
        self._answer_due_ns: int | None = None  # of a connection, or of a question
        self._silence_due_ns: int | None = None  # while registered
        self._heartbeat_due_ns: int | None = None  # while registered
        self._sent: dict[int, int] = {}

    # -- questions -----------------------------------------------------------------

    @property
    def is_registered(self) -> bool:
        """Return whether the proxy leader has taken the node, as far as is known."""
        return self.leader_epoch != 0

    @property
    def is_asking(self) -> bool:
        """Return whether the node has asked to be registered and has no answer yet."""
        return self._asked_at_ns is not None

    def is_stale(self, leader_epoch: int) -> bool:
        """Return whether a higher epoch than that was heard of."""
        return leader_epoch < self.leader_epoch_max

    def leader_ms_max(self, *, now_ns: int) -> int:
        """Return the leader's clock, as late as it can be; while it is registered."""
        return clock_max_ms(self.leader_ms, since_ns=now_ns - self.leader_ms_at_ns)

    def next_deadline_ns(self, *, is_held: bool) -> int | None:
        """Return when `advance` must be called; *is_held* is what it will be told."""
        moments = [self._answer_due_ns, self._silence_due_ns, self._heartbeat_due_ns]
        if self._may_ask() and not is_held:
            moments.append(self._not_before_ns)
        return earliest(moments)

    # -- what happens --------------------------------------------------------------

    def found(self, address: str, epoch: int, *, now_ns: int) -> list[NodeEffect]:
        """Go where the proxy leader is, unless that is where the node is."""
        if self.is_stale(epoch):
            return []
        if address == self._address and epoch == self.leader_epoch_max:
            return []
        self.leader_epoch_max = epoch
        self._address = address
        self._attempt_count = 0
        self._not_before_ns = now_ns
        return self.reconnect(now_ns=now_ns)

    def reconnect(self, *, now_ns: int) -> list[NodeEffect]:
        """Begin anew over another connection; nothing if no proxy is known."""
        self.disconnected(now_ns=now_ns)
        if self._address is None:
            self._answer_due_ns = None
            return []
        return [ConnectProxy(address=self._address)]

    def connected(self, *, now_ns: int) -> None:
        """Take note that the connection is there."""
        self.disconnected(now_ns=now_ns)
        self._is_connected = True

    def disconnected(self, *, now_ns: int) -> None:
        """Take note that it is not."""
        self._end()
        self._is_connected = False
        self._is_wanted = True
        self._answer_due_ns = max(now_ns, self._not_before_ns) + self._answer_timeout_ns

    def want(self) -> None:
        """Ask once more, to be sent what is missing; unless that is under way."""
        if self._asked_at_ns is None:
            self._is_wanted = True

    def hasten(self, *, now_ns: int) -> None:
        """
        Send a heartbeat at once: its answer tells what has come before it.

        And another one at the answer, to say so to a leader that waits for it.
        """
        if self._heartbeat_due_ns is not None:
            self._heartbeat_due_ns = now_ns
            self._is_echo_due = self._direct_lease_ns > 0

    def registered(
        self, message: NodeRegistered, *, now_ns: int
    ) -> tuple[list[NodeEffect], bool]:
        """
        Take the answer of a proxy.

        Returns:
            What to do, and whether the answer counts: not if it was not asked for, or
            if its epoch is over.
        """
        asked_at_ns = self._asked_at_ns
        if asked_at_ns is None:
            return [], False
        if self.is_stale(message.leader_epoch):
            self._try_later(now_ns)
            return [self._stale(message.leader_epoch)], False
        is_news = message.leader_epoch != self.leader_epoch
        if is_news:
            self._end()
        self._asked_at_ns = None
        self._answer_due_ns = None
        self.leader_epoch = message.leader_epoch
        self.leader_epoch_max = message.leader_epoch
        timeout_ms = max(_SESSION_TIMEOUT_MS_MIN, message.session_timeout_ms)
        self.session_timeout_ns = timeout_ms * NS_PER_MS
        self._direct_lease_ns = max(0, message.direct_lease_ms) * NS_PER_MS
        self._is_echo_due = self._direct_lease_ns > 0
        self._extend_lease(asked_at_ns)
        self._silence_due_ns = now_ns + self.session_timeout_ns
        effects = [self._heartbeat(now_ns)]
        if is_news:
            effects.append(ReportRegistered(leader_epoch=message.leader_epoch))
        return effects, True

    def refused(self, message: NodeRefused, *, now_ns: int) -> list[NodeEffect]:
        """Ask again: over this connection if the proxy has only forgotten the node."""
        if message.reason == _FORGOTTEN:
            if not self.is_asking:
                self._end()
                self._is_wanted = True
                self._answer_due_ns = (
                    max(now_ns, self._not_before_ns) + self._answer_timeout_ns
                )
            return []
        if message.reason == NOT_LEADER and self.session_timeout_ns:
            # It may lead again at any moment, does not tell those it has refused, and
            # waits for its nodes for one session timeout: it is asked as often as it
            # would be sent heartbeats.
            often_ns = self.session_timeout_ns // HEARTBEATS_PER_SESSION_TIMEOUT
            soon_ns = now_ns + max(self._pause_ns, often_ns)
            self._not_before_ns = min(self._not_before_ns, soon_ns)
        self._try_later(now_ns)
        return [ReportRefused(reason=message.reason, detail=message.detail)]

    def acknowledged(self, message: HeartbeatAcknowledged, *, now_ns: int) -> bool:
        """Extend the leases; return whether *message* names a heartbeat of ours."""
        sent_ns = self._sent.get(message.number)
        if message.leader_epoch != self.leader_epoch or sent_ns is None:
            return False
        self._sent = {n: at for n, at in self._sent.items() if n > message.number}
        self._extend_lease(sent_ns)
        if not self.is_asking:  # what was told before this may not have been followed
            self._acknowledged_directly(message, sent_ns, now_ns)
        assert self._silence_due_ns is not None
        self._silence_due_ns = max(self._silence_due_ns, self.lease_until_ns)
        self._attempt_count = 0
        return True

    def takes(self, leader_epoch: int) -> tuple[list[NodeEffect], bool]:
        """
        Return what to do, and whether a command of *leader_epoch* is to be followed.

        A proxy that leads anew, under an epoch that the node has not registered with,
        does not know what the node has: the node asks first.
        """
        if self.is_stale(leader_epoch):
            return [self._stale(leader_epoch)], False
        if leader_epoch == self.leader_epoch:
            return [], True
        self.leader_epoch_max = leader_epoch
        if not self.is_asking and self.is_registered:
            self._end()
            self._is_wanted = True
        return [], False

    def advance(
        self,
        positions: Callable[[], Sequence[JobPosition]],
        *,
        holdings: Callable[[], Sequence[JobHolding]],
        token: str | None,
        is_held: bool,
        now_ns: int,
    ) -> list[NodeEffect]:
        """
        Do what is due.

        Args:
            positions: Tells how far the node is with each job.
            holdings: Tells which copies it can have.
            token: The credential.
            is_held: Whether asking has to wait: what would be said is not true yet.
            now_ns: The time.
        """
        for due_ns in (self._answer_due_ns, self._silence_due_ns):
            if due_ns is not None and due_ns <= now_ns:
                return self.reconnect(now_ns=now_ns)
        effects: list[NodeEffect] = []
        if self._may_ask() and not is_held and self._not_before_ns <= now_ns:
            effects.append(self._ask(positions(), holdings(), token, now_ns))
        if self._heartbeat_due_ns is not None and self._heartbeat_due_ns <= now_ns:
            effects.append(self._heartbeat(now_ns))
        return effects

    # -- parts ---------------------------------------------------------------------

    def _may_ask(self) -> bool:
        return self._is_connected and self._is_wanted and self._asked_at_ns is None

    def _ask(
        self,
        positions: Sequence[JobPosition],
        holdings: Sequence[JobHolding],
        token: str | None,
        now_ns: int,
    ) -> NodeEffect:
        self._is_wanted = False
        self._asked_at_ns = now_ns
        self._answer_due_ns = now_ns + self._answer_timeout_ns
        self._not_before_ns = now_ns + self._pause()
        self._attempt_count += 1
        return SendToProxy(
            message=RegisterNode(
                token=token,
                node_id=self._identity.node_id,
                store_id=self.store_id,
                registration_id=self._identity.registration_id,
                address=self._identity.address,
                positions=tuple(positions),
                control_id=self.control_id,
                kept=self.kept,
                chunk_size_bytes_max=self._identity.chunk_size_bytes_max,
                reader_addresses=self._identity.reader_addresses,
                holdings=tuple(holdings),
            )
        )

    def _heartbeat(self, now_ns: int) -> NodeEffect:
        self.heartbeat_number += 1
        self._sent[self.heartbeat_number] = now_ns
        pause_ns = self.session_timeout_ns // HEARTBEATS_PER_SESSION_TIMEOUT
        if self._direct_lease_ns:
            pause_ns = min(pause_ns, self._direct_lease_ns // _HEARTBEATS_PER_LEASE)
        self._heartbeat_due_ns = now_ns + max(1, pause_ns)
        return SendToProxy(
            message=NodeHeartbeat(
                registration_id=self._identity.registration_id,
                number=self.heartbeat_number,
                acknowledged=self._acknowledged_number,
            )
        )

    def _extend_lease(self, sent_ns: int) -> None:
        self.lease_until_ns = max(
            self.lease_until_ns, sent_ns + self.session_timeout_ns
        )

    def _acknowledged_directly(
        self, message: HeartbeatAcknowledged, sent_ns: int, now_ns: int
    ) -> None:
        """Extend the direct lease, and say that what came before has been followed."""
        if not self._direct_lease_ns:
            return
        self._acknowledged_number = message.number
        self.leader_ms, self.leader_ms_at_ns = message.leader_ms, sent_ns
        lease_ns = self._direct_lease_ns * _BELIEF_PERCENT // 100
        self.direct_until_ns = max(self.direct_until_ns, sent_ns + lease_ns)
        if self._is_echo_due:
            self._is_echo_due = False
            self._heartbeat_due_ns = now_ns

    def _try_later(self, now_ns: int) -> None:
        """Ask no more over this connection, but over the next, after a pause."""
        self._end()
        self._is_wanted = False
        self._answer_due_ns = max(now_ns, self._not_before_ns)

    def _end(self) -> None:
        """Be registered no more: what was acknowledged counts no more either."""
        self.leader_epoch = 0
        self.lease_until_ns = 0
        self.direct_until_ns = 0
        self._direct_lease_ns = 0
        self._acknowledged_number = 0
        self._is_echo_due = False
        self._asked_at_ns = None
        self._silence_due_ns = None
        self._heartbeat_due_ns = None
        self._sent.clear()

    def _pause(self) -> int:
        """Return how long to wait after that many attempts."""
        doublings = min(self._attempt_count, _DOUBLINGS_MAX)
        return min(self._pause_ns << doublings, self._pause_ns_max)

    def _stale(self, leader_epoch: int) -> NodeEffect:
        return ReportStale(
            leader_epoch=leader_epoch, leader_epoch_max=self.leader_epoch_max
        )


def clock_max_ms(told_ms: int, *, since_ns: int) -> int:
    """Return a clock as late as it can be, *since_ns* after it was told."""
    elapsed_ns = since_ns * _CLOCK_RATE_PERCENT // 100
    return told_ms + -(-elapsed_ns // NS_PER_MS)
