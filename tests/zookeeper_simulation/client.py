"""
A client that contends: a small shell around the rules that are shipped.

It asks as haservices' own shells do: one request of its contender at a time, and
``sync``s of its session beside them.  What it asks as a holder, and what it believes,
is up to the cores that are shipped: `HoldingCore`, `Renewals` and `HolderCore`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, final
from uuid import UUID

from election.contender import LeaderSession
from election.holder import DeliverGrant, DeliverRevoke, Ended, HolderCore
from haservices.zookeeper.holding_core import HoldingCore
from haservices.zookeeper.holding_effects import (
    EndEntry,
    KnowVersion,
    NoteWrite,
    ReadLeaderNode,
    SendSync,
    Tell,
    Transact,
    WriteNode,
)
from haservices.zookeeper.holding_events import (
    CommitAsked,
    ConfirmAsked,
    ConnectionRestored,
    QuestionAnswered,
    QuestionFailed,
    SessionEnded,
    TimePassed,
    TurnCame,
)
from haservices.zookeeper.nodes import NodeMissingError, TransactionFailedError
from haservices.zookeeper.records import ContenderRecord
from haservices.zookeeper.renewals import (
    ConnectionClosed,
    ConnectionOpened,
    Renewals,
    SyncAnswered,
    WriteCommitted,
)
from nameservice import MayHaveHappenedError
from tests.simulation.timeline import NodeClock
from tests.zookeeper_simulation.ensemble import Request


if TYPE_CHECKING:
    from collections.abc import Callable

    from election.holder import HolderEvent
    from haservices.zookeeper.holding_effects import HoldingEffect
    from haservices.zookeeper.holding_events import HoldingEvent
    from tests.zookeeper_simulation.ensemble import Server
    from tests.zookeeper_simulation.world import World


__all__ = ["Client", "Connection"]

_BEATS_PER_TIMEOUT: Final = 10


@final
class Connection:
    """One TCP connection of a client to a server; in order, both ways."""

    def __init__(
        self, world: World, client: Client, server: Server, *, number: int
    ) -> None:
        self._world = world
        self._client = client
        self.server = server
        self.number = number
        self.is_open = True
        self._to_server_ns = 0
        self._to_client_ns = 0

    def ask(self, request: Request) -> None:
        """Send *request*."""
        self._to_server_ns = self._next_ns(self._to_server_ns)
        self._world.timeline.at(self._to_server_ns, lambda: self._arrive(request))

    def _arrive(self, request: Request) -> None:
        if not self.is_open or self.server.is_dead:
            return
        if self.server.is_paused or self._world.is_cut_off(self._client, self.server):
            # Held up, in order: all that follows it is held up longer.
            self._to_server_ns = (
                max(self._to_server_ns, self._world.timeline.now_ns)
                + self._world.draw_delay_ns()
            )
            self._world.hold(lambda: self._arrive(request))
            return
        if request.number == 0:
            if not self.server.is_serving:
                self.close_by_server()
                return
            self.server.connections.add(self)
        self.server.ask(request)

    def answer(self, request: Request, answer: Any) -> None:
        """Send the answer to *request*."""
        self._to_client_ns = self._next_ns(self._to_client_ns)
        self._world.timeline.at(
            self._to_client_ns, lambda: self._return(request, answer)
        )

    def _return(self, request: Request, answer: Any) -> None:
        if not self.is_open:
            return
        if self._world.is_cut_off(self._client, self.server):
            self._world.hold(lambda: self._return(request, answer))
            return
        self._client.run(lambda: self._client.answered(self, request, answer))

    def close_by_server(self) -> None:
        """End it; the client is told, unless it is cut off."""
        self._to_client_ns = self._next_ns(self._to_client_ns)
        self._world.timeline.at(self._to_client_ns, self._tell_closed)

    def _tell_closed(self) -> None:
        if self._world.is_cut_off(self._client, self.server):
            self._world.hold(self._tell_closed)
            return
        self._client.run(lambda: self._client.closed(self))

    def close(self) -> None:
        """End it without a word."""
        self.is_open = False
        self.server.connections.discard(self)

    def _next_ns(self, former_ns: int) -> int:
        return max(former_ns, self._world.timeline.now_ns + self._world.draw_delay_ns())


@final
class Client:
    """One process with one contender."""

    def __init__(self, world: World, index: int, server_indexes: list[int]) -> None:
        self._world = world
        self.index: Final = index
        self.clock: Final = NodeClock(
            world.timeline,
            parts=world.draw_clock_parts(),
            offset_ns=world.rng.randrange(world.timeout_ns, 1000 * world.timeout_ns),
        )
        self._server_indexes = server_indexes
        self._renewals = Renewals()
        self._holder = HolderCore(clears_on_suspended=world.rng.random() < 0.5)
        self._connection: Connection | None = None
        self._is_connected = False
        self._session_id = 0
        self._handshake_ns = 0
        self._number = 0
        self._asked: dict[int, tuple[str, int]] = {}
        self._is_busy = False
        self._witness_number = 0
        self._beat_sent_ns: int | None = None
        self._node = 0
        self._holding: HoldingCore | None = None
        self._holding_due_ns = 0
        self._version = 0
        self._request_count = 0
        self._is_asking = False
        self._due_ns = 0
        self._told: UUID | None = None
        self.is_paused = False
        self._backlog: deque[Callable[[], None]] = deque()
        self._connection_count = 0
        self._after_next_request: Callable[[], None] | None = None

    # -- the process -----------------------------------------------------------------

    def run(self, action: Callable[[], None]) -> None:
        """Do *action* now, or in its turn after the wake-up."""
        if self.is_paused:
            self._backlog.append(action)
        else:
            action()

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do *action* when its own clock has advanced by *delay_ns*."""
        self._world.timeline.at(
            max(
                self.clock.real_ns(self.clock.now_ns() + max(delay_ns, 0)),
                self._world.timeline.now_ns,
            ),
            lambda: self.run(action),
        )

    def pause(self) -> None:
        """Stop the process; time goes on."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on with what has come and what is due, in one of their orders."""
        self.is_paused = False
        backlog, self._backlog = self._backlog, deque()
        while backlog:
            if self.is_paused:
                self._backlog.extendleft(reversed(backlog))
                return
            backlog.popleft()()

    @property
    def believes(self) -> bool:
        """Return what ``has_leadership`` would say at this moment."""
        return self._told is not None and self._holder.believes(
            self._told, now_ns=self.clock.now_ns()
        )

    def after_next_request(self, action: Callable[[], None]) -> None:
        """Do *action* when it has sent its next request, before the answer comes."""
        self._after_next_request = action

    @property
    def server(self) -> Server | None:
        """Return the server that it is connected to."""
        return None if self._connection is None else self._connection.server

    def break_connection(self) -> None:
        """Break its present connection, on both sides."""
        connection = self._connection
        if connection is not None:
            connection.server.connections.discard(connection)
            connection.close_by_server()

    # -- connections -----------------------------------------------------------------

    def connect(self) -> None:
        """Try one of the servers."""
        if self._connection is not None:
            return
        index = self._world.rng.choice(self._server_indexes)
        self._connection_count += 1
        connection = Connection(
            self._world,
            self,
            self._world.servers[index],
            number=self.index << 32 | self._connection_count,
        )
        self._connection = connection
        self._handshake_ns = self.clock.now_ns()
        connection.ask(
            Request(
                kind="revalidate" if self._session_id else "open",
                session_id=self._session_id,
                number=0,
                connection=connection,
                server=index,
            )
        )
        self.after(self._world.timeout_ns // 4, lambda: self._give_up(connection))

    def _give_up(self, connection: Connection) -> None:
        if connection is self._connection and not self._is_connected:
            self.closed(connection)

    def closed(self, connection: Connection) -> None:
        """Try another server soon."""
        if connection is not self._connection:
            return
        connection.close()
        self._connection = None
        self._is_connected = False
        is_holder_asking = self._is_busy and self._holding is not None
        self._asked.clear()
        self._is_busy = False
        self._beat_sent_ns = None
        self._renewals.step(ConnectionClosed(), now_ns=self.clock.now_ns())
        if is_holder_asking:
            self._take(QuestionFailed(error=MayHaveHappenedError("lost")))
        self._take(ConnectionRestored())
        self.after(
            self._world.rng.randrange(self._world.timeout_ns // 20), self.connect
        )

    def _opened(self, session_id: int) -> None:
        if session_id != self._session_id:
            self._end_entry()
        if session_id == 0:  # it has expired
            self._session_id = 0
            connection, self._connection = self._connection, None
            assert connection is not None
            connection.close()
            self.connect()
            return
        self._session_id = session_id
        self._is_connected = True
        self._due_ns = 0
        self._renewals.step(
            ConnectionOpened(
                session_id=session_id,
                session_timeout_ns=self._world.timeout_ns,
                sent_ns=self._handshake_ns,
            ),
            now_ns=self.clock.now_ns(),
        )
        self._world.count("sessions opened or revalidated")
        connection = self._connection
        assert connection is not None
        self._beat(connection)
        self._advance()
        if not self._is_asking:
            self._is_asking = True
            self._ask_for_something()

    def _beat(self, connection: Connection) -> None:
        """Send the session's own sync, unless one is under way."""
        if connection is not self._connection:
            return
        now_ns = self.clock.now_ns()
        if self._beat_sent_ns is None:
            self._beat_sent_ns = now_ns
            self._ask("sync")
        elif now_ns - self._beat_sent_ns >= self._world.timeout_ns * 2 // 3:
            self.closed(connection)
            return
        self.after(
            self._world.timeout_ns // _BEATS_PER_TIMEOUT, lambda: self._beat(connection)
        )

    # -- requests --------------------------------------------------------------------

    def _ask(self, kind: str) -> int:
        connection = self._connection
        assert connection is not None
        self._number += 1
        self._asked[self._number] = (kind, self.clock.now_ns())
        connection.ask(
            Request(
                kind=kind,
                session_id=self._session_id,
                number=self._number,
                connection=connection,
                server=connection.server.index,
            )
        )
        action, self._after_next_request = self._after_next_request, None
        if action is not None:
            action()
        return self._number

    def answered(self, connection: Connection, request: Request, answer: Any) -> None:
        """Take an answer."""
        if connection is not self._connection:
            return
        if request.number == 0:
            if not self._is_connected:
                self._opened(answer)
            return
        kind, sent_ns = self._asked.pop(request.number)
        now_ns = self.clock.now_ns()
        match kind:
            case "sync":
                self._renewals.step(SyncAnswered(sent_ns=sent_ns), now_ns=now_ns)
                if self._beat_sent_ns is not None and self._beat_sent_ns <= sent_ns:
                    self._beat_sent_ns = None
                if self._witness_number == request.number:
                    self._is_busy = False
                    self._take(QuestionAnswered())
            case "create":
                self._is_busy = False
                if answer is None:
                    self.closed(connection)  # the session is over: hear it from there
                    return
                self._node = answer
                self._renewals.step(WriteCommitted(sent_ns=sent_ns), now_ns=now_ns)
            case "first":
                self._is_busy = False
                if answer:
                    self._hold()
                else:
                    self._due_ns = now_ns + self._world.draw_lateness_ns()
            case "published":
                self._is_busy = False
                self._take(QuestionAnswered(is_ours=answer))
            case "set" | "publish" | "commit":
                self._is_busy = False
                self._take(
                    QuestionFailed(error=NodeMissingError("own"))
                    if answer is None and kind != "commit"
                    else QuestionFailed(
                        error=TransactionFailedError(0, NodeMissingError("own"))
                    )
                    if answer is None
                    else QuestionAnswered(version=self._version + 1)
                )
        self._advance()

    # -- the holder ------------------------------------------------------------------

    def _hold(self) -> None:
        self._holding = HoldingCore(
            session=LeaderSession(
                leader_session_id=UUID(int=self._node), epoch=self._node
            ),
            record=ContenderRecord(
                leader_session_id=UUID(int=self._node),
                client=str(self.index),
                session_timeout_ms=1,
            ),
            node="own",
            leader="leader",
            component="component",
            renewals=self._renewals,
            confirm_timeout_ns=self._world.timeout_ns * 1_000,
        )
        self._version = 0
        self._due_ns = 0

    def _take(self, event: HoldingEvent) -> None:
        """Have the shipped core decide, and do so."""
        holding = self._holding
        if holding is None:
            return
        for effect in holding.step(event, now_ns=self.clock.now_ns()):
            self._perform(effect)
        due_ns = holding.next_deadline_ns()
        if due_ns is not None and due_ns != self._holding_due_ns:
            self._holding_due_ns = due_ns
            self.after(due_ns - self.clock.now_ns(), lambda: self._wake(holding))

    def _wake(self, holding: HoldingCore) -> None:
        self._holding_due_ns = 0
        if self._holding is holding:
            self._take(TimePassed())
            self._advance()

    def _perform(self, effect: HoldingEffect) -> None:
        match effect:
            case SendSync():
                self._is_busy = True
                self._witness_number = self._ask("sync")
            case WriteNode():
                self._is_busy = True
                self._ask("set")
            case Transact(is_publication=is_publication):
                self._is_busy = True
                self._ask("publish" if is_publication else "commit")
            case ReadLeaderNode():
                self._is_busy = True
                self._ask("published")
            case KnowVersion(version=version):
                self._version = version
            case NoteWrite():
                self._world.count("writes committed")
            case Tell(event=event):
                self._step(event)
                self._world.check_belief(self)
            case EndEntry():
                self._end_entry()
            case _:
                pass

    def _ask_for_something(self) -> None:
        """Confirm, or commit to the store, now and then."""
        if self._holding is not None and self._told is not None:
            self._request_count += 1
            if self._request_count % 3 == 1:
                self._take(
                    ConfirmAsked(
                        number=self._request_count,
                        address="a:1",
                        confirm_count=self._request_count,
                    )
                )
            else:
                self._take(CommitAsked(number=self._request_count, operations=()))
            self._advance()
        self.after(
            self._world.rng.randrange(self._world.timeout_ns), self._ask_for_something
        )

    def _step(self, event: HolderEvent) -> None:
        for effect in self._holder.step(event, now_ns=self.clock.now_ns()):
            if isinstance(effect, DeliverGrant):
                self._told = effect.session.leader_session_id
                self._world.count("leaderships granted")
            elif isinstance(effect, DeliverRevoke):
                self._told = None

    def _end_entry(self) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.step(SessionEnded(), now_ns=self.clock.now_ns())
        if self._node:
            self._step(Ended(epoch=self._node))
        self._node = 0

    def _advance(self) -> None:
        """Ask for what comes next, if nothing of the contender is under way."""
        if not self._is_connected or self._is_busy:
            return
        now_ns = self.clock.now_ns()
        if not self._node:
            self._is_busy = True
            self._ask("create")
        elif self._holding is not None:
            self._take(TurnCame(version=self._version))
        elif now_ns < self._due_ns:
            self.after(self._due_ns - now_ns, self._advance)
        else:
            self._is_busy = True
            self._ask("first")
