"""
An ensemble of ZooKeeper servers, as far as sessions and their renewal go.

What is here was read from ZooKeeper 3.9 (docs/explanation/election.md): the leader
alone keeps deadlines, rounded up to its tick; a follower keeps a table of sessions that
it has heard from, and gives it away with each answer to a ping; handshakes are
revalidated at the leader, which a deposed leader does, too; a new leader gives every
session a whole timeout; leader and follower speak in order over one stream.

Elections themselves are decided by the world, which knows everything: who may form a
majority, and whose log is the longest.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, final

from attrs import define, field, frozen

from tests.simulation.timeline import NodeClock


if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.zookeeper_simulation.client import Connection
    from tests.zookeeper_simulation.world import World


__all__ = ["Request", "Role", "Server", "Stream"]

_READS: Final = frozenset({"first", "published"})
"""What the server that is asked answers from its own tree."""


class Role(Enum):
    """What a server does for the ensemble."""

    LOOKING = "looking"
    FOLLOWING = "following"
    LEADING = "leading"


@frozen(kw_only=True, eq=False)
class Request:
    """
    What a client asks, and where the answer goes.

    Attributes:
        kind: ``create``, ``set``, ``commit``, ``sync``, ``first``, ``open`` or
            ``revalidate``.
        session_id: In which session; 0 for one that is to be opened.
        number: The client's own number for it.
        connection: Over which it came.
        server: The index of the server that it came to.
    """

    kind: str
    session_id: int
    number: int
    connection: Connection
    server: int


@frozen(kw_only=True, eq=False)
class Transaction:
    """
    One entry of the log.

    Attributes:
        zxid: Its place in the order of all.
        kind: ``open``, ``close``, ``create``, ``set``, ``publish``, ``commit`` or
            ``error``.
        session_id: Which session it concerns.
        request: What asked for it; None for the end of a session.
    """

    zxid: int
    kind: str
    session_id: int
    request: Request | None


@define
class Tree:
    """
    What a server has applied.

    Attributes:
        count: How many entries of its log.
        sessions: The open ones.
        nodes: The transaction that created each session's node.
        published: The sessions that have published a leader.
    """

    count: int = 0
    sessions: set[int] = field(factory=set)
    nodes: dict[int, int] = field(factory=dict)
    published: set[int] = field(factory=set)

    def apply(self, transaction: Transaction) -> Any:
        """Apply the next entry; return what the client is answered."""
        self.count += 1
        session_id = transaction.session_id
        match transaction.kind:
            case "open":
                self.sessions.add(session_id)
                return session_id
            case "close":
                self.sessions.discard(session_id)
                self.nodes.pop(session_id, None)
                self.published.discard(session_id)
                return None
            case "create":
                if session_id not in self.sessions:
                    return None
                return self.nodes.setdefault(session_id, transaction.zxid)
            case "set" | "publish" | "commit":
                node = self.nodes.get(session_id)
                if transaction.kind == "publish" and node is not None:
                    self.published.add(session_id)
                return node
            case _:
                return None


@final
class Stream:
    """Messages from one server to another, in order; a cut holds them up."""

    def __init__(self, world: World, sender: Server, receiver: Server) -> None:
        self._world = world
        self._sender = sender
        self._receiver = receiver
        self._queue: deque[tuple[int, int, str, Any]] = deque()
        self._is_scheduled = False
        self.is_cut = False

    def send(self, kind: str, content: Any = None) -> None:
        """Send something that belongs to the sender's present epoch."""
        due_ns = self._world.timeline.now_ns + self._world.draw_delay_ns()
        self._queue.append((due_ns, self._sender.epoch, kind, content))
        self.pump()

    def clear(self) -> None:
        """Lose everything that is under way: the connection is gone."""
        self._queue.clear()

    def pump(self) -> None:
        """Deliver the next message in its time, if anything can be delivered."""
        if self._is_scheduled or self.is_cut or not self._receiver.is_running:
            return
        if self._queue:
            self._is_scheduled = True
            now_ns = self._world.timeline.now_ns
            self._world.timeline.at(max(now_ns, self._queue[0][0]), self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        if self.is_cut or not self._receiver.is_running or not self._queue:
            return
        due_ns, epoch, kind, content = self._queue[0]
        if due_ns <= self._world.timeline.now_ns:
            self._queue.popleft()
            if epoch == self._receiver.epoch:
                self._receiver.receive(self._sender.index, kind, content)
        self.pump()


@final
class Server:
    """One member of the ensemble."""

    def __init__(self, world: World, index: int) -> None:
        self._world = world
        self.index: Final = index
        self.clock: Final = NodeClock(
            world.timeline, parts=world.draw_clock_parts(), offset_ns=0
        )
        self.role = Role.LOOKING
        self.epoch = 0
        self.leader: int | None = None
        self.log: list[Transaction] = []
        self.tree = Tree()
        self.connections: set[Connection] = set()
        self.is_paused = False
        self.is_dead = False
        self._missed: list[Callable[[], None]] = []
        # As a follower.
        self._touched: set[int] = set()
        self._heard_ns = 0
        self._next_acknowledgement_ns = 0
        # As a leader.
        self._deadlines: dict[int, int] = {}
        self._closing: set[int] = set()
        self._followers: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._syncs: deque[tuple[int, Request]] = deque()

    @property
    def is_running(self) -> bool:
        """Return whether it does anything now."""
        return not self.is_paused and not self.is_dead

    @property
    def is_serving(self) -> bool:
        """Return whether clients may talk to it."""
        return self.role is not Role.LOOKING

    # -- time ----------------------------------------------------------------------

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do *action* when its own clock has advanced by *delay_ns*, in this epoch."""
        epoch = self.epoch

        def fire() -> None:
            if self.is_dead or self.epoch != epoch:
                return
            if self.is_paused:
                self._missed.append(fire)
            else:
                action()

        self._world.timeline.at(
            max(
                self.clock.real_ns(self.clock.now_ns() + delay_ns),
                self._world.timeline.now_ns,
            ),
            fire,
        )

    def pause(self) -> None:
        """Stop the whole process."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on: overdue timers first, in any order; then what has arrived."""
        self.is_paused = False
        missed, self._missed = self._missed, []
        self._world.rng.shuffle(missed)
        for action in missed:
            action()
        self._world.pump_to(self)

    def kill(self) -> None:
        """End the process; the log stays."""
        self.is_dead = True
        self.is_paused = False
        self._missed.clear()
        self.look()

    def restart(self) -> None:
        """Come back, and look for a leader."""
        self.is_dead = False
        self._world.pump_to(self)

    # -- roles ---------------------------------------------------------------------

    def look(self) -> None:
        """Belong to no leader any more; all clients are sent away."""
        former = self.leader if self.role is Role.FOLLOWING else None
        was_leading = self.role is Role.LEADING
        self.role = Role.LOOKING
        self.leader = None
        self._world.left(self, former=former, was_leading=was_leading)
        for connection in sorted(self.connections, key=lambda one: one.number):
            connection.close_by_server()
        self.connections.clear()

    def lead(self, epoch: int, followers: list[Server]) -> None:
        """Lead from now on; everything in the log has committed."""
        self.epoch = epoch
        self.role = Role.LEADING
        self.leader = self.index
        self._followers.clear()
        self._acknowledged = {self.index: len(self.log)}
        self._syncs.clear()
        self._closing.clear()
        self._apply_to(len(self.log))
        self._deadlines = {
            session_id: self._deadline_ns() for session_id in self.tree.sessions
        }
        for follower in followers:
            self.admit(follower)
        self.after(self._world.tick_ns // 2, self._ping)
        self.after(self._world.tick_ns, self._expire)

    def admit(self, follower: Server) -> None:
        """Take *follower* in: it knows what has committed, and is told the rest."""
        follower.follow(self)
        self._followers[follower.index] = self.clock.now_ns()
        self._acknowledged[follower.index] = self.tree.count
        for place in range(self.tree.count, len(self.log)):
            self._tell(follower.index, "propose", (place, self.log[place]))

    def follow(self, leader: Server) -> None:
        """Follow *leader* from now on."""
        self.role = Role.FOLLOWING
        self.leader = leader.index
        self.epoch = leader.epoch
        self.log = leader.log[: leader.tree.count]
        self.tree = Tree()
        self._apply_to(len(self.log))
        self._touched = set()
        self._heard_ns = self.clock.now_ns()
        self._next_acknowledgement_ns = 0
        self.after(self._world.tick_ns // 2, self._watch_leader)

    def forget_follower(self, index: int) -> None:
        """Take note that a follower has gone."""
        self._followers.pop(index, None)

    def _watch_leader(self) -> None:
        if self.role is Role.FOLLOWING:
            if self.clock.now_ns() - self._heard_ns > self._world.patience_ns:
                self.look()
            else:
                self.after(self._world.tick_ns // 2, self._watch_leader)

    def _tell(self, index: int, kind: str, content: Any = None) -> None:
        self._world.stream(self.index, index).send(kind, content)

    # -- the leader ----------------------------------------------------------------

    def _ping(self) -> None:
        """Ping every follower twice a tick, a little late as threads are."""
        if self.role is not Role.LEADING:
            return
        now_ns = self.clock.now_ns()
        for index, heard_ns in sorted(self._followers.items()):
            if now_ns - heard_ns > self._world.patience_ns:
                del self._followers[index]
            else:
                self._tell(index, "ping")
        if len(self._followers) + 1 < self._world.majority:
            self.look()
        else:
            self.after(
                self._world.tick_ns // 2 + self._world.draw_lateness_ns(), self._ping
            )

    def _deadline_ns(self) -> int:
        """Return the deadline of a session that is touched now: rounded up."""
        tick_ns = self._world.tick_ns
        return ((self.clock.now_ns() + self._world.timeout_ns) // tick_ns + 1) * tick_ns

    def _touch(self, session_id: int) -> bool:
        if session_id not in self._deadlines or session_id in self._closing:
            return False
        self._deadlines[session_id] = self._deadline_ns()
        return True

    def _expire(self) -> None:
        """End every session whose deadline has come; look again at the next tick."""
        if self.role is not Role.LEADING:
            return
        now_ns = self.clock.now_ns()
        for session_id, deadline_ns in sorted(self._deadlines.items()):
            if deadline_ns <= now_ns and session_id not in self._closing:
                self._closing.add(session_id)
                self._world.count("sessions expired")
                self._propose("close", session_id, None)
        tick_ns = self._world.tick_ns
        self.after(tick_ns - now_ns % tick_ns, self._expire)

    def _submit(self, request: Request) -> None:
        """Handle what a client asked of us, or of a follower, which passed it on."""
        session_id = request.session_id
        match request.kind:
            case "sync":
                self._syncs.append((len(self.log), request))
                self._answer_syncs()
            case "open":
                session_id = self._world.new_session_id()
                self._deadlines[session_id] = self._deadline_ns()
                self._propose("open", session_id, request)
            case "revalidate":
                found = session_id if self._touch(session_id) else 0
                if request.server == self.index:
                    request.connection.answer(request, found)
                else:
                    self._tell(request.server, "revalidated", (request, found))
            case kind:
                is_alive = (
                    session_id in self._deadlines and session_id not in self._closing
                )
                self._propose(kind if is_alive else "error", session_id, request)

    def _propose(self, kind: str, session_id: int, request: Request | None) -> None:
        place = len(self.log)
        transaction = Transaction(
            zxid=self.epoch << 32 | place + 1,
            kind=kind,
            session_id=session_id,
            request=request,
        )
        self.log.append(transaction)
        for index in sorted(self._followers):
            self._tell(index, "propose", (place, transaction))
        self.after(
            self._world.draw_write_ns(),
            lambda: self._acknowledge(self.index, place + 1),
        )

    def _acknowledge(self, index: int, count: int) -> None:
        self._acknowledged[index] = max(count, self._acknowledged.get(index, 0))
        present = sorted(
            (
                acknowledged
                for index, acknowledged in self._acknowledged.items()
                if index == self.index or index in self._followers
            ),
            reverse=True,
        )
        if len(present) < self._world.majority:
            return
        committed = present[self._world.majority - 1]
        for place in range(self.tree.count, committed):
            for follower in sorted(self._followers):
                self._tell(follower, "commit", place)
            self._apply_to(place + 1)
            self._answer_syncs()

    def _answer_syncs(self) -> None:
        while self._syncs and self._syncs[0][0] <= self.tree.count:
            _, request = self._syncs.popleft()
            if request.server == self.index:
                request.connection.answer(request, 1)
            elif request.server in self._followers:
                self._tell(request.server, "synced", request)

    # -- what servers tell each other ----------------------------------------------

    def receive(self, sender: int, kind: str, content: Any) -> None:
        """Handle a message of the present epoch."""
        if self.role is Role.LEADING:
            if sender in self._followers:
                self._followers[sender] = self.clock.now_ns()
                self._receive_from_follower(sender, kind, content)
        elif self.role is Role.FOLLOWING and sender == self.leader:
            self._heard_ns = self.clock.now_ns()
            self._receive_from_leader(sender, kind, content)

    def _receive_from_follower(self, sender: int, kind: str, content: Any) -> None:
        match kind:
            case "touched":
                for session_id in sorted(content):
                    self._touch(session_id)
            case "acknowledge":
                self._acknowledge(sender, content)
            case "request":
                self._submit(content)

    def _receive_from_leader(self, leader: int, kind: str, content: Any) -> None:
        match kind:
            case "ping":
                touched, self._touched = self._touched, set()
                self._tell(leader, "touched", touched)
            case "propose":
                place, transaction = content
                assert place == len(self.log)
                self.log.append(transaction)
                # Written in order, and acknowledged when it is.
                self._next_acknowledgement_ns = max(
                    self._next_acknowledgement_ns,
                    self.clock.now_ns() + self._world.draw_write_ns(),
                )
                self.after(
                    self._next_acknowledgement_ns - self.clock.now_ns(),
                    lambda: self._tell(leader, "acknowledge", place + 1),
                )
            case "commit":
                self._apply_to(content + 1)
            case "synced":
                content.connection.answer(content, 1)
            case "revalidated":
                request, found = content
                request.connection.answer(request, found)

    def _apply_to(self, count: int) -> None:
        for place in range(self.tree.count, count):
            transaction = self.log[place]
            answer = self.tree.apply(transaction)
            if transaction.kind == "open":
                # Every learner notes a session that was just opened.
                self._touched.add(transaction.session_id)
            elif transaction.kind == "close":
                self._deadlines.pop(transaction.session_id, None)
                self._closing.discard(transaction.session_id)
            request = transaction.request
            if request is not None and request.server == self.index:
                request.connection.answer(request, answer)

    # -- what clients ask ----------------------------------------------------------

    def ask(self, request: Request) -> None:
        """Take what a client has sent us."""
        if request.connection not in self.connections:
            return
        session_id = request.session_id
        if self.role is Role.LEADING:
            if request.kind not in ("open", "revalidate"):
                self._touch(session_id)
            if request.kind not in _READS:
                self._submit(request)
        elif self.role is Role.FOLLOWING:
            if request.kind not in ("open", "revalidate"):
                self._touched.add(session_id)
            if request.kind not in _READS:
                assert self.leader is not None
                self._tell(self.leader, "request", request)
        if request.kind == "first":
            nodes = self.tree.nodes
            is_first = session_id in nodes and nodes[session_id] == min(nodes.values())
            request.connection.answer(request, is_first)
        elif request.kind == "published":
            is_published = session_id in self.tree.published
            request.connection.answer(request, is_published)
