"""Clients that ask a node without the proxy: the shipped `DirectAnswerer`."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

import msgspec
from attrs import frozen

from nameservice import NameServiceError
from nameservice.observation import Latencies
from queryablestate.node.core.jobs import ServedJob
from queryablestate.node.direct import DirectAnswerer
from queryablestate.schema.key_groups import group_of
from queryablestate.store.steps import ReadWork
from queryablestate.wire.codec import decode_keys, decode_to_client
from queryablestate.wire.direct import AskNode, DirectTicket, ShowTicket
from queryablestate.wire.questions import Told
from tests.queryablestate.whole_reads import finish
from tests.simulation.timeline import MS
from zmqtransport import ConnectionId, Peer


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Struct

    from queryablestate.control.events import LinkId
    from queryablestate.node.core.core import Admission
    from queryablestate.node.core.read_schedule import ReadId
    from queryablestate.node.reading import LongRead
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.state_view import StateView
    from queryablestate.wire.questions import Question
    from tests.state_simulation.disk import Disk
    from tests.state_simulation.world import World


__all__ = ["DirectPort", "shown_state"]

_DIGEST_SIZE_BYTES: Final = 32
_ANSWER_SIZE_BYTES_MAX: Final = 1 << 20


def shown_state(sealed: bytes) -> int:
    """Return the number of the state that a ticket is for."""
    return _content(sealed).state_number


def _content(sealed: bytes) -> DirectTicket:
    return msgspec.msgpack.decode(sealed[_DIGEST_SIZE_BYTES:], type=DirectTicket)


@final
class _Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ns(self) -> int:
        """Return the time."""
        return self._world.timeline.now_ns


@final
class _Reading:
    """`ReadingThread`: a page is read at one moment, and is told at a later one."""

    def __init__(self, port: DirectPort, rng: Random) -> None:
        self._port = port
        self._rng = rng
        self._cancelled: set[ReadId] = set()

    def read(self, read: LongRead) -> None:
        """Have something read."""
        after = self._port.world.timeline.after
        after(1 + self._rng.randrange(10 * MS), partial(self._begin, read))

    def _begin(self, read: LongRead) -> None:
        port, work = self._port, ReadWork()
        if read.asked.read_id in self._cancelled or not port.is_alive():
            return
        try:
            found = finish(read.begin(port.reader(), work))
        except NameServiceError as error:
            read.failed(error, work)
            return
        told = partial(read.done, found)
        port.world.timeline.after(1 + self._rng.randrange(5 * MS), told)

    def cancel(self, read_ids: Sequence[ReadId]) -> None:
        """Drop these reads."""
        self._cancelled.update(read_ids)

    def gone(self, read_id: ReadId) -> None:
        """Nothing is counted here."""


@final
@frozen
class _Asked:
    """A question: by which ticket, for which keys if it is for keys, how to answer."""

    ticket: DirectTicket
    keys: Sequence[bytes] | None
    reply: Callable[[Struct, bytes], None]


@final
class DirectPort:
    """
    Where clients ask one node.

    Args:
        world: Where it happens.
        node_id: Which node.
        address: Where it listens.
        disk: Its data directory.
        is_current: As of the node's core.
        admit: Likewise.
        is_alive: Whether the process runs.

    Attributes:
        world: As above.
        is_alive: Likewise.
    """

    def __init__(
        self,
        world: World,
        node_id: str,
        address: str,
        disk: Disk,
        *,
        is_current: Callable[[DirectTicket], bool | None],
        admit: Callable[[Question, str | None], Admission],
        is_alive: Callable[[], bool],
    ) -> None:
        self.world = world
        self.is_alive = is_alive
        self._node_id = node_id
        self._disk = disk
        self._peers: dict[LinkId, Peer] = {}
        self._tickets: dict[tuple[LinkId, int], DirectTicket] = {}
        self._asked: dict[tuple[bytes, int], _Asked] = {}
        self._admit = admit
        self._key_groups: Sequence[int] = ()
        self._reading = _Reading(self, Random(f"{world.seed}/pages of {address}"))
        self._answerer = DirectAnswerer(
            self,
            answer_size_bytes_max=_ANSWER_SIZE_BYTES_MAX,
            clock=_Clock(world),
            wall_clock_us=lambda: world.wall_clock_us,
            is_current=is_current,
            admit=self._admitted,
            send=self._send,
            latencies=Latencies(),
        )

    def reader(self) -> StoreReader:
        """Return what reads the rows."""
        return self._disk.reader.reader

    def reading(self) -> _Reading:
        """Return what reads them at length."""
        return self._reading

    def state(self, state_number: int) -> StateView | None:
        """Return what the store knows of a state."""
        return self._disk.store.state(state_number)

    def post(self, action: Callable[[], None]) -> None:
        """Have *action* called in the loop, if the process still runs."""
        if self.is_alive():
            action()

    def _admitted(self, question: Question, job_id: str | None) -> Admission:
        admitted = self._admit(question, job_id)
        if isinstance(admitted, ServedJob):
            self._key_groups = admitted.key_groups
        return admitted

    def keep_secret(self, secret: bytes) -> None:
        """Take tickets of that leader."""
        self._answerer.keep_secret(secret)

    def said(
        self,
        link: LinkId,
        message: Struct,
        payload: bytes,
        reply: Callable[[Struct, bytes], None],
    ) -> None:
        """Hear a client."""
        peer = self._peers.get(link)
        if peer is None:
            routing_id = int(link).to_bytes(8, "big")
            peer = self._peers[link] = Peer(int(link), ConnectionId(0), routing_id)
        if isinstance(message, ShowTicket):
            self._tickets[link, message.ticket_id] = _content(message.ticket)
            self._answerer.show(peer, message, None)
            return
        assert isinstance(message, AskNode)
        ticket = self._tickets[link, message.ticket_id]
        keys = decode_keys(payload) if payload else None
        asked = _Asked(ticket, keys, reply)
        self._asked[peer.routing_id, message.request_id] = asked
        self._answerer.ask(peer, message, payload)

    def left(self, link: LinkId) -> None:
        """Take note that a client is gone."""
        peer = self._peers.pop(link, None)
        if peer is not None:
            self._answerer.forget(peer)

    def _send(self, routing_id: bytes, frames: Sequence[bytes]) -> bool:
        message = decode_to_client(frames[0])
        asked = self._asked.pop((routing_id, message.request_id))
        if isinstance(message, Told):
            self._check(message, asked)
        else:
            self.world.counts[f"refused without the proxy: {message.code}"] += 1  # type: ignore[union-attr]  # a refusal
        asked.reply(message, frames[1] if len(frames) > 1 else b"")
        return True

    def _check(self, told: Told, asked: _Asked) -> None:
        """Let the books know that an answer is given, at that moment."""
        ticket, keys, world = asked.ticket, asked.keys, self.world
        key_groups = tuple(self._key_groups)
        if keys is not None:
            key_groups = tuple(sorted({group_of(key) for key in keys}))
        world.counts["pages without the proxy"] += keys is None
        world.moves.answered(
            ticket.job_id,
            self._node_id,
            self._disk,
            version=ticket.assignment_version,
            key_groups=key_groups,
            lost=(),
        )
        world.checker.read(
            ticket.job_id,
            ticket.state_number,
            told.reading,
            now_us=world.wall_clock_us,
        )
