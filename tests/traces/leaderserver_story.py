"""
Stories about a `LeaderService` and `ClientCore`s, and a link that takes no time.

Lines that begin with ``C`` are what a client sends, with the number of its request;
``S`` is what the server answers under that number, or tells by itself; ``S all`` is
what it broadcasts; all others are what an application hears.  A heartbeat and its
answer are shown if the answer says something else than the one before.  What may
happen, all of it about one component::

    alice connects
    alice contends
    alice confirms a:1                      what she was granted last
    alice withdraws
    alice retrieves                         and hears who leads from then on
    alice closes
    alice's connection closes               both ends hear of it
    alice reconnects
    alice is cut off                        neither end hears of it
    alice is reachable again
    the next answer to alice is lost        but for answers to heartbeats
    the next broadcast to alice is lost
    an operator revokes the leadership
    time passes
    the server restarts as incarnation 8    and clients reconnect at once

Clients ask for a lease of 500 ms and a session timeout of 1,500 ms.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, final
from uuid import UUID

import msgspec

from election.config import ElectionConfig
from election.epochs import IncarnationEpochs
from election.events import RevokeRequested
from election.holder import DeliverGrant, DeliverRevoke
from leaderserver.client.core.config import ClientConfig
from leaderserver.client.core.core import ClientCore
from leaderserver.client.core.events import (
    ClientEffect,
    ClientEvent,
    CloseAsked,
    CompleteCall,
    ConfirmAsked,
    ContenderAdded,
    ContenderRemoved,
    DeliverToContender,
    DeliverToRetriever,
    FailOpening,
    JoinTopic,
    LeaveTopic,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    ReportToContender,
    ReportToRetriever,
    RetrieverAdded,
    RevokeReturned,
    SendMessage,
    TimeWentBy,
)
from leaderserver.message_parts import AffirmationRecord, ClaimRecord, PublicationRecord
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    HeartbeatRequest,
    Hello,
    Reply,
    Request,
    SessionUnknown,
    ToClient,
    ToServer,
)
from leaderserver.server.core.turn import Broadcast, Outgoing
from leaderserver.server.service import LeaderService
from leaderserver.server.service_config import ServiceConfig
from leaderserver.server.storage import MemoryStorage
from retrieval import RetrieverCore
from tests.traces.story import MS, Names, Progress, epoch, time_of
from zmqtransport import ANONYMOUS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election import LeaderSession
    from tests.traces.story import Command


__all__ = ["LeaderServerStage"]

JOB: Final = "c/job"
LEASE_NS: Final = 500 * MS
SESSION_TIMEOUT_NS: Final = 1_500 * MS
CONFIRM_TIMEOUT_NS: Final = 1_000 * MS
PATIENCE_NS: Final = 4_000 * MS
# What differs from run to run of a real server, or is the same in every line.
_UNTOLD: Final = frozenset(
    ("client", "component_id", "is_durable", "nonce", "publish_port", "secret")
)

_Delivery: TypeAlias = Callable[[], None]


@final
class _Client:
    """A client's process: the shipped core, and the application above it."""

    def __init__(self, name: str, *, now_ns: int) -> None:
        self.name = name
        self.core = ClientCore(
            ClientConfig(
                target="leaderserver://story",
                client=name,
                session_timeout_ns=SESSION_TIMEOUT_NS,
                lease_ns=LEASE_NS,
                clears_on_suspended=False,
                seed=name.encode().ljust(32, b"."),
            ),
            now_ns=now_ns,
        )
        self.retriever = RetrieverCore(clears_on_suspended=False)
        self.topics: set[str] = set()
        self.peer: str | None = None
        self.connection_count = 0
        self.is_cut_off = False
        self.loses_answer = False
        self.loses_broadcast = False
        self.granted: LeaderSession | None = None
        self.calls: dict[int, str] = {}
        self.heartbeat_line = ""
        self.heartbeat_index = 0
        self.affirmed = ""


@final
class LeaderServerStage:
    """One server after the other, its clients, and the link between them."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._progress = Progress()
        self._names = Names()
        self._session_names = Names("s")
        self._drawn = itertools.count(1)
        self._call_ids = itertools.count(1)
        self._storage = MemoryStorage()
        self._clients: dict[str, _Client] = {}
        self._under_way: deque[_Delivery] = deque()
        self._told: list[str] = []
        self._service = self._start(incarnation=7, undecided_ns=0)

    def play(self, command: Command) -> Sequence[str]:
        """Move time on to *command*, have it happen; return lines of output."""
        self._advance(command.at_ns)
        self._happen(command.text)
        self._deliver_all()
        told, self._told = self._told, []
        return [line for line in told if line]

    def _tell(self, line: str) -> None:
        self._told.append(f"{time_of(self._now_ns)} {line}")

    # -- time ----------------------------------------------------------------------

    def _start(self, *, incarnation: int, undecided_ns: int) -> LeaderService:
        return LeaderService(
            ServiceConfig(
                lease_ns_min=MS,
                lease_ns_max=LEASE_NS,
                session_timeout_ns_min=MS,
                session_timeout_ns_max=SESSION_TIMEOUT_NS,
            ),
            ElectionConfig(
                namespace=UUID(int=incarnation),
                undecided_ns=undecided_ns,
                tick_ns=LEASE_NS // 5,
            ),
            epochs=IncarnationEpochs(incarnation, started_ns=self._now_ns),
            storage=self._storage,
            draw_secret=lambda size: next(self._drawn).to_bytes(size, "big"),
            now_ns=self._now_ns,
        )

    def _advance(self, until_ns: int) -> None:
        """Move time on, deadline by deadline; the first of equals by name."""
        assert until_ns >= self._now_ns, "a story does not go back in time"
        while True:
            clients = [client for _, client in sorted(self._clients.items())]
            due: list[tuple[int, _Client | None]] = [
                (due_ns, client)
                for client in clients
                if (due_ns := client.core.next_deadline_ns()) is not None
            ]
            service_ns = self._service.next_deadline_ns()
            if service_ns is not None:
                due.insert(0, (service_ns, None))
            due_ns, client = min(due, key=lambda pair: pair[0], default=(None, None))
            if due_ns is None or due_ns > until_ns:
                self._now_ns = until_ns
                return
            self._now_ns = max(self._now_ns, due_ns)
            self._progress.made(self._now_ns)
            if client is None:
                self._post(self._service.advance(now_ns=self._now_ns))
            else:
                self._step(client, TimeWentBy())
            self._deliver_all()

    # -- what happens --------------------------------------------------------------

    def _happen(self, text: str) -> None:
        for pattern, method in _COMMANDS.items():
            match = re.fullmatch(pattern, text)
            if match is not None:
                method(self, *match.groups())
                return
        raise AssertionError(f"nobody knows what it means that {text!r}")

    def _connect(self, name: str) -> None:
        if name not in self._clients:
            self._clients[name] = _Client(name, now_ns=self._now_ns)
        client = self._clients[name]
        client.connection_count += 1
        client.peer = f"{name}/{client.connection_count}"
        self._step(client, LinkOpened())

    def _disconnect(self, name: str) -> None:
        client = self._clients[name]
        peer, client.peer = client.peer, None
        self._step(client, LinkClosed())
        self._post(self._service.connection_closed(peer, now_ns=self._now_ns))

    def _cut_off(self, name: str) -> None:
        self._clients[name].is_cut_off = True

    def _reach_again(self, name: str) -> None:
        self._clients[name].is_cut_off = False

    def _lose_answer(self, name: str) -> None:
        self._clients[name].loses_answer = True

    def _lose_broadcast(self, name: str) -> None:
        self._clients[name].loses_broadcast = True

    def _contend(self, name: str) -> None:
        event = ContenderAdded(
            contender_id=name, component_id=JOB, confirm_timeout_ns=CONFIRM_TIMEOUT_NS
        )
        self._step(self._clients[name], event)

    def _confirm(self, name: str, address: str) -> None:
        client = self._clients[name]
        if client.granted is None:
            self._tell(f"{name} was never granted anything")
            return
        self._step(
            client,
            ConfirmAsked(
                contender_id=name,
                leader_session_id=client.granted.leader_session_id,
                address=address,
                call_id=self._call(client, f"{name} is confirmed at {address}"),
                deadline_ns=self._now_ns + PATIENCE_NS,
            ),
        )

    def _withdraw(self, name: str) -> None:
        client = self._clients[name]
        event = ContenderRemoved(
            contender_id=name,
            call_id=self._call(client, f"{name} has withdrawn"),
            deadline_ns=self._now_ns + PATIENCE_NS,
        )
        self._step(client, event)

    def _retrieve(self, name: str) -> None:
        event = RetrieverAdded(retriever_id=1, component_id=JOB)
        self._step(self._clients[name], event)

    def _close(self, name: str) -> None:
        client = self._clients[name]
        event = CloseAsked(
            call_id=self._call(client, f"{name} has closed"),
            deadline_ns=self._now_ns + PATIENCE_NS,
        )
        self._step(client, event)

    def _revoke(self) -> None:
        event = RevokeRequested(component_id=JOB)
        self._post(self._service.inject(event, now_ns=self._now_ns))

    def _let_time_pass(self) -> None:
        pass

    def _restart(self, incarnation: str) -> None:
        connected = [c for _, c in sorted(self._clients.items()) if c.peer is not None]
        for client in connected:
            client.peer = None
            self._step(client, LinkClosed())
        self._under_way.clear()
        self._service = self._start(incarnation=int(incarnation), undecided_ns=LEASE_NS)
        for client in connected:
            self._connect(client.name)

    def _call(self, client: _Client, done: str) -> int:
        call_id = next(self._call_ids)
        client.calls[call_id] = done
        return call_id

    # -- clients -------------------------------------------------------------------

    def _step(self, client: _Client, event: ClientEvent) -> None:
        effects = client.core.step(event, now_ns=self._now_ns)
        client.core.check_invariants()
        for effect in effects:
            self._perform(client, effect)

    def _perform(self, client: _Client, effect: ClientEffect) -> None:
        name = client.name
        match effect:
            case SendMessage(message=message):
                self._send(client, message)
            case JoinTopic(component_id=component_id):
                client.topics.add(component_id)
            case LeaveTopic(component_id=component_id):
                client.topics.discard(component_id)
            case DeliverToContender(effect=DeliverGrant(session=session)):
                client.granted = session
                self._tell(f"{name} is granted {epoch(session.epoch)}")
            case DeliverToContender(effect=DeliverRevoke(session=session)):
                self._tell(f"{name} is revoked {epoch(session.epoch)}")
                returned = RevokeReturned(contender_id=name)
                self._under_way.append(lambda: self._step(client, returned))
            case DeliverToRetriever(event=event):
                for notification in client.retriever.step(event):
                    leader = notification.leader
                    who = "nobody" if leader is None else leader.address
                    self._tell(f"{name} hears that {who} leads")
            case CompleteCall(call_id=call_id, error=None):
                self._tell(client.calls.pop(call_id))
            case CompleteCall(call_id=call_id, error=error):
                done = client.calls.pop(call_id)
                undone = re.sub(" (is|has) ", r" \1 not ", done, count=1)
                self._tell(f"{undone}: {type(error).__name__}")
            case (
                FailOpening(error=error)
                | ReportToContender(error=error)
                | ReportToRetriever(error=error)
            ):
                self._tell(f"{name} hears of a {type(error).__name__}")
            case _:
                pass

    def _send(self, client: _Client, message: ToServer) -> None:
        peer = client.peer
        if peer is None or client.is_cut_off:
            return
        line = f"C {client.name}: {self._line(message)}"
        if isinstance(message, Request) and isinstance(message.body, HeartbeatRequest):
            # Its place is kept until the answer says if it is worth a line.
            client.heartbeat_line = f"{time_of(self._now_ns)} {line}"
            client.heartbeat_index = len(self._told)
            self._told.append("")
        else:
            if isinstance(message, Hello):
                client.affirmed = ""
            self._tell(line)

        def receive() -> None:
            self._post(
                self._service.receive(
                    message,
                    peer=peer,
                    connection=peer,
                    principal=ANONYMOUS,
                    now_ns=self._now_ns,
                )
            )

        self._under_way.append(receive)

    # -- the server ----------------------------------------------------------------

    def _post(self, outgoing: Sequence[Outgoing]) -> None:
        """Put what the server sends on its way."""
        self._service.core.check_invariants()
        for item in outgoing:
            if isinstance(item, Broadcast):
                self._broadcast(item)
                continue
            for _, client in sorted(self._clients.items()):
                if client.peer == item.peer and not client.is_cut_off:
                    self._answer(client, item.message)

    def _broadcast(self, broadcast: Broadcast) -> None:
        message = broadcast.message
        self._tell(f"S all: {self._line(message)}")
        for _, client in sorted(self._clients.items()):
            is_reached = client.peer is not None and not client.is_cut_off
            if not is_reached or message.component_id not in client.topics:
                continue
            if client.loses_broadcast:
                client.loses_broadcast = False
                self._tell(f"lost on the way to {client.name}")
                continue
            self._hand_over(client, message)

    def _answer(self, client: _Client, message: ToClient) -> None:
        line = f"S {client.name}: {self._line(message)}"
        if isinstance(message, Reply) and isinstance(
            message.body, AcknowledgedHeartbeat
        ):
            affirmed = self._line(message.body)
            if affirmed != client.affirmed:
                client.affirmed = affirmed
                self._show_heartbeat(client)
                self._tell(line)
        elif client.loses_answer:
            client.loses_answer = False
            self._tell(f"{line} (lost)")
            return
        else:
            if isinstance(message, SessionUnknown):
                self._show_heartbeat(client)
            self._tell(line)
        self._hand_over(client, message)

    def _show_heartbeat(self, client: _Client) -> None:
        self._told[client.heartbeat_index] = client.heartbeat_line

    def _hand_over(self, client: _Client, message: ToClient) -> None:
        received = MessageReceived(message=message)
        self._under_way.append(lambda: self._step(client, received))

    def _deliver_all(self) -> None:
        while self._under_way:
            self._under_way.popleft()()

    # -- lines ---------------------------------------------------------------------

    def _line(self, message: msgspec.Struct) -> str:
        if isinstance(message, Request | Reply):
            return f"{message.number} {self._line(message.body)}"
        return " ".join([str(message.__struct_config__.tag), *self._words(message)])

    def _words(self, message: msgspec.Struct) -> list[str]:
        words: list[str] = []
        for field in message.__struct_fields__:
            value = getattr(message, field)
            if field not in _UNTOLD and value is not None:
                words += self._field(field, value)
        return words

    def _field(self, name: str, value: object) -> list[str]:
        match value:
            case ClaimRecord():
                return [f"{name}=({' '.join(self._words(value))})"]
            case AffirmationRecord():
                return self._words(value)
            case PublicationRecord():
                who = "nobody" if value.address is None else value.address
                return [
                    f"epoch={epoch(value.epoch)}",
                    f"confirm_count={value.confirm_count}",
                    f"leader={who}",
                ]
            case UUID():
                return [f"{name}={self._names.of(value)}"]
            case list():
                affirmed = [epoch(record.epoch) for record in value]
                return [f"{name}=[{' '.join(affirmed)}]"]
            case dict():
                changed = [f"{key}:{revision}" for key, revision in value.items()]
                return [f"{name}=[{' '.join(changed)}]"] if changed else []
            case bool():
                return [name] if value else []
            case int() if name.endswith("_ns"):
                return [f"{name.removesuffix('_ns')}={time_of(value)}"]
            case int() if name in ("epoch", "epoch_ended", "epoch_seen", "ticket"):
                return [f"{name}={epoch(value)}"] if value else []
            case _ if name == "session_id":
                return [f"{name}={self._session_names.of(str(value))}"]
            case _:
                return [f"{name}={value}"]


_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    r"(\w+) (?:re)?connects": LeaderServerStage._connect,
    r"(\w+) contends": LeaderServerStage._contend,
    r"(\w+) confirms (\S+)": LeaderServerStage._confirm,
    r"(\w+) withdraws": LeaderServerStage._withdraw,
    r"(\w+) retrieves": LeaderServerStage._retrieve,
    r"(\w+) closes": LeaderServerStage._close,
    r"(\w+)'s connection closes": LeaderServerStage._disconnect,
    r"(\w+) is cut off": LeaderServerStage._cut_off,
    r"(\w+) is reachable again": LeaderServerStage._reach_again,
    r"the next answer to (\w+) is lost": LeaderServerStage._lose_answer,
    r"the next broadcast to (\w+) is lost": LeaderServerStage._lose_broadcast,
    r"an operator revokes the leadership": LeaderServerStage._revoke,
    r"time passes": LeaderServerStage._let_time_pass,
    r"the server restarts as incarnation (\d+)": LeaderServerStage._restart,
}
