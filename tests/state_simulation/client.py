"""A client of queryable state: the shipped `QueryCore` in a virtual shell."""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from attrs import evolve

from queryablestate.client.builder import QueryBuilder
from queryablestate.client.config import QueryConfig
from queryablestate.client.core import QueryCore
from queryablestate.client.events import (
    AskWhoLeads,
    CompleteRequests,
    ConnectionFailed,
    ConnectionMade,
    ConnectNode,
    ConnectTo,
    Disconnect,
    DisconnectNode,
    MessageCame,
    NodeConnected,
    NodeFailed,
    QueryEvent,
    RequestsAsked,
    SayHello,
    SendRequest,
    TimeWent,
)
from queryablestate.client.requests import KeysRead
from queryablestate.wire.clients import Hello
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.direct import AskNode, ShowTicket
from queryablestate.wire.questions import Ask, Refusal, Told
from tests.simulation.timeline import MS
from tests.state_simulation.direct import shown_state
from tests.state_simulation.network import Connection


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Struct

    from queryablestate.client.events import QueryEffect
    from queryablestate.client.requests import Request
    from queryablestate.wire.clients import ClientRequest
    from tests.simulation.timeline import Timeline
    from tests.state_simulation.node import Node
    from tests.state_simulation.proxy import Proxy
    from tests.state_simulation.world import World


__all__ = ["Client"]

_CONFIG: Final = QueryConfig(
    answer_timeout_ns=400 * MS,
    refused_pause_ns=200 * MS,
    route_refresh_ns=600 * MS,
    patience_ns=400 * MS,
)
_CONNECT_NS: Final = 20 * MS
_NEWS_NS: Final = 60 * MS
_UNREACHABLE: Final = 0.1

_Question: TypeAlias = "tuple[int, int, Sequence[bytes]]"
"""When it was asked, of which state, and for which keys."""


@final
class _Clock:
    """The time line as a clock."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def now_ns(self) -> int:
        """Return the time."""
        return self._timeline.now_ns


@final
class _End:
    """The client's end of one connection; `World` tells it what comes."""

    def __init__(
        self, heard: Callable[[Struct, bytes], None], lost: Callable[[], None]
    ) -> None:
        self.proxy_said = heard
        self._lost = lost

    def lost(self, connection: Connection) -> None:
        """Take note that the connection is over."""
        del connection
        self._lost()


@final
class Client:
    """
    What a process has one of, and asks everything by.

    Args:
        world: Where it happens.
        name: Its own.
        on_told: Is told of each answer of a node that came to a question for keys, once
            the core has seen it.
        on_done: Is told of each request that is done.

    Attributes:
        builder: Makes requests.
        open: What waits.
        sent_ns: When the question was sent of which the answer is being taken.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        on_told: Callable[[int, Sequence[bytes], Told, Sequence[KeysRead]], None],
        on_done: Callable[[Request], None],
    ) -> None:
        self._world = world
        self.name = name
        self._rng = Random(f"{world.seed}/{name}")
        self._on_told = on_told
        self._on_done = on_done
        address = world.any_address() if self._rng.random() < 0.3 else None
        self._core = QueryCore(
            evolve(_CONFIG, is_direct=world.scenario.is_direct),
            now_ns=world.timeline.now_ns,
            first_address=address,
        )
        self._listens = address is None
        self.builder = QueryBuilder(_Clock(world.timeline), deadline_seconds=1.0)
        self.open: dict[Request, None] = {}
        self._connection: Connection | None = None
        self._proxy: Proxy | None = None
        self._connect_count = 0
        self._asked: dict[int, _Question] = {}
        self._tickets: dict[int, int] = {}
        self._nodes: dict[int, tuple[Connection, Node]] = {}
        self._node_rng = Random(f"{world.seed}/nodes of {name}")
        self.sent_ns = 0
        self._events: deque[QueryEvent] = deque()
        self._is_stepping = False
        self._timer_ns: int | None = None
        self.leader_changed()

    # -- the application -------------------------------------------------------------

    def ask(self, *requests: Request) -> None:
        """Ask; what is given together is sent together."""
        (first, *others) = requests
        self.open.update(dict.fromkeys(requests))
        is_short = self._connection is not None and self._rng.random() < 0.5
        if isinstance(first, KeysRead) and not others and is_short:
            effect = self._core.ask_now(first)
            if effect is not None:
                self._world.counts["questions by the shortest way"] += 1
                self._perform(effect)
                self._core.check_invariants()
                self._arm()
                return
        self._step(RequestsAsked(requests))

    # -- the name service ------------------------------------------------------------

    def leader_changed(self) -> None:
        """Hear from the name service who leads, a moment later."""
        self._world.timeline.after(1 + self._rng.randrange(_NEWS_NS), self._hear)

    def _hear(self) -> None:
        if self._listens:
            self._step(self._world.leader_told())

    # -- the machine -----------------------------------------------------------------

    def _step(self, event: QueryEvent) -> None:
        """Have *event* happen, and what comes of it."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._events:
            event = self._events.popleft()
            effects = self._core.step(event, now_ns=self._world.timeline.now_ns)
            self._core.check_invariants()
            self._note(event)
            for effect in effects:
                self._perform(effect)
        self._is_stepping = False
        self._arm()

    def _note(self, event: QueryEvent) -> None:
        """Tell of an answer for keys, if that is what *event* is."""
        if not isinstance(event, MessageCame):
            return
        message = event.message
        if not isinstance(message, Told | Refusal):
            return
        asked = self._asked.get(message.request_id)
        if asked is None or not isinstance(message, Told):
            return
        self.sent_ns, number, keys = asked
        if not keys:
            return
        self._world.counts["answers without the proxy"] += event.link != 0
        # What the core has taken of it bears its reading.
        reads = [
            one
            for one in self.open
            if isinstance(one, KeysRead) and one.reading is message.reading
        ]
        self._world.counts["answers not taken"] += not reads
        self._on_told(number, keys, message, reads)

    def _arm(self) -> None:
        due_ns = self._core.next_deadline_ns()
        if due_ns is None or (self._timer_ns is not None and self._timer_ns <= due_ns):
            return
        due_ns = max(due_ns, self._world.timeline.now_ns)
        self._timer_ns = due_ns
        self._world.timeline.at(due_ns, partial(self._fire, due_ns))

    def _fire(self, due_ns: int) -> None:
        if self._timer_ns == due_ns:
            self._timer_ns = None
            self._step(TimeWent())

    def _perform(self, effect: QueryEffect) -> None:
        match effect:
            case CompleteRequests(requests):
                for request in requests:
                    del self.open[request]
                    self._on_done(request)
            case SendRequest(message, keys, link):
                self._send_request(message, keys, link)
            case SayHello(request_id=request_id):
                self._send(Hello(request_id=request_id), b"")
            case AskWhoLeads():
                self._listens = True
                self.leader_changed()
            case ConnectTo(address=address):
                self._connect_count += 1
                connect = partial(self._connect, self._connect_count, address)
                delay_ns = 1 + self._rng.randrange(_CONNECT_NS)
                self._world.timeline.after(delay_ns, connect)
            case Disconnect():
                self._connect_count += 1
                self._close()
            case ConnectNode(link=link, address=address):
                delay_ns = 1 + self._node_rng.randrange(_CONNECT_NS)
                connect = partial(self._connect_node, link, address)
                self._world.timeline.after(delay_ns, connect)
            case DisconnectNode(link=link):
                self._nodes.pop(link, None)
            case _:
                assert_never(effect)

    def _send_request(
        self,
        message: ClientRequest | ShowTicket | AskNode,
        keys: Sequence[bytes] | None,
        link: int,
    ) -> None:
        payload = encode_payload(keys) if keys else b""
        now_ns = self._world.timeline.now_ns
        if isinstance(message, Ask):
            # It may be of what a node was asked first.
            earlier = self._asked.get(message.request_id)
            sent_ns = now_ns if earlier is None else earlier[0]
            self._asked[message.request_id] = (
                sent_ns,
                message.state_number,
                keys or (),
            )
        if isinstance(message, ShowTicket):
            self._tickets[message.ticket_id] = shown_state(message.ticket)
        if isinstance(message, AskNode):
            number = self._tickets[message.ticket_id]
            self._asked[message.request_id] = (now_ns, number, keys or ())
        if isinstance(message, ShowTicket | AskNode):
            self._send_to_node(link, message, payload)
        else:
            self._send(message, payload)

    # -- nodes -----------------------------------------------------------------------

    def _connect_node(self, link: int, address: str) -> None:
        world = self._world
        node = world.node_at(address)
        if node is None or self._node_rng.random() < _UNREACHABLE:
            is_refused = self._node_rng.random() < 0.1
            self._step(NodeFailed(link=link, is_refused=is_refused))
            return
        connection = Connection(
            world.network, world.timeline, self._node_rng, world.network.client_delay_ns
        )
        self._nodes[link] = (connection, node)
        self._step(NodeConnected(link=link))

    def _send_to_node(
        self, link: int, message: ShowTicket | AskNode, payload: bytes
    ) -> None:
        connection, node = self._nodes.get(link, (None, None))
        if connection is None or node is None:
            return
        if self._world.network.breaks():
            self._lose_node(link)
            return

        def answer(told: Struct, payload: bytes) -> None:
            connection.to_node(partial(self._node_said, link, told, payload))

        def arrive() -> None:
            if not node.is_alive:
                self._lose_node(link)
            else:
                node.client_said(connection.link, message, payload, answer)

        connection.to_proxy(arrive)

    def _node_said(self, link: int, message: Struct, payload: bytes) -> None:
        if link not in self._nodes:
            return  # of a socket that is closed
        if self._world.network.breaks():
            self._lose_node(link)
            return
        self._world.trace(self.name, "<", link, message)
        self._step(MessageCame(message, payload, link))  # type: ignore[arg-type]  # what a node says

    def _lose_node(self, link: int) -> None:
        """Lose a connection, and notice it in a moment."""
        connection, node = self._nodes.pop(link, (None, None))
        if connection is None or node is None:
            return
        connection.sever()
        node.client_left(connection.link)
        failed = partial(self._step, NodeFailed(link=link))
        self._world.timeline.after(self._world.notice_ns(), failed)

    # -- the connection --------------------------------------------------------------

    def _connect(self, number: int, address: str) -> None:
        world = self._world
        if number != self._connect_count:
            return
        proxy = world.proxy_at(address)
        if proxy is None:
            self._step(ConnectionFailed())
            return
        connection = Connection(
            world.network, world.timeline, self._rng, world.network.client_delay_ns
        )
        self._connection, self._proxy = connection, proxy
        end = _End(partial(self._heard, connection), partial(self._lost, connection))
        world.connections[connection.link] = (end, proxy)
        proxy.connected(connection)
        self._step(ConnectionMade())

    def _send(self, message: ClientRequest, payload: bytes) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._world.network.breaks():
            self._world.sever(connection)
            return
        assert self._proxy is not None
        said = partial(self._proxy.client_said, connection.link, message, payload)
        connection.to_proxy(said)

    def _heard(self, connection: Connection, message: Struct, payload: bytes) -> None:
        if connection is not self._connection:
            return  # of a socket that is closed
        if self._world.network.breaks():
            self._world.sever(connection)
            return
        self._world.trace(self.name, "<", message)
        self._step(MessageCame(message, payload))  # type: ignore[arg-type]  # what a proxy says

    def _lost(self, connection: Connection) -> None:
        """Notice in a moment that the connection is over."""
        failed = partial(self._failed, connection)
        self._world.timeline.after(self._world.notice_ns(), failed)

    def _failed(self, connection: Connection) -> None:
        if connection is self._connection:
            self._close()
            self._step(ConnectionFailed())

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._asked.clear()
        if connection is not None and not connection.is_broken:
            self._world.sever(connection)
