"""Clients that ask a node without the proxy: the shipped `DirectAnswerer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec

from nameservice.observation import Latencies
from queryablestate.node.direct import DirectAnswerer
from queryablestate.schema.key_groups import group_of
from queryablestate.wire.codec import decode_keys, decode_to_client
from queryablestate.wire.direct import AskNode, DirectTicket, ShowTicket
from queryablestate.wire.questions import Told
from zmqtransport import ConnectionId, Peer


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Struct

    from queryablestate.control.events import LinkId
    from queryablestate.node.core.core import Admission
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
class DirectPort:
    """
    Where clients ask one node.

    Args:
        world: Where it happens.
        node_id: Which node.
        disk: Its data directory.
        is_current: As of the node's core.
        admit: Likewise.
    """

    def __init__(
        self,
        world: World,
        node_id: str,
        disk: Disk,
        *,
        is_current: Callable[[DirectTicket], bool | None],
        admit: Callable[[Question, str | None], Admission],
    ) -> None:
        self._world = world
        self._node_id = node_id
        self._disk = disk
        self._peers: dict[LinkId, Peer] = {}
        self._tickets: dict[tuple[LinkId, int], DirectTicket] = {}
        self._reply: Callable[[Struct, bytes], None] | None = None
        self._asked: tuple[DirectTicket, Sequence[bytes]] | None = None
        self._answerer = DirectAnswerer(
            lambda: disk.reader.reader,
            answer_size_bytes_max=_ANSWER_SIZE_BYTES_MAX,
            clock=_Clock(world),
            wall_clock_us=lambda: world.wall_clock_us,
            is_current=is_current,
            admit=admit,
            send=self._send,
            latencies=Latencies(),
        )

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
        self._reply, self._asked = reply, (ticket, decode_keys(payload))
        self._answerer.ask(peer, message, payload)
        self._reply = self._asked = None

    def left(self, link: LinkId) -> None:
        """Take note that a client is gone."""
        peer = self._peers.pop(link, None)
        if peer is not None:
            self._answerer.forget(peer)

    def _send(self, routing_id: bytes, frames: Sequence[bytes]) -> bool:
        del routing_id
        assert self._reply is not None
        message = decode_to_client(frames[0])
        if isinstance(message, Told):
            self._check(message)
        else:
            self._world.counts[f"refused without the proxy: {message.code}"] += 1  # type: ignore[union-attr]  # a refusal
        self._reply(message, frames[1] if len(frames) > 1 else b"")
        return True

    def _check(self, told: Told) -> None:
        """Let the books know that an answer is given, at that moment."""
        assert self._asked is not None
        ticket, keys = self._asked
        world = self._world
        world.moves.answered(
            ticket.job_id,
            self._node_id,
            self._disk,
            version=ticket.assignment_version,
            key_groups=tuple(sorted({group_of(key) for key in keys})),
            lost=(),
        )
        world.checker.read(
            ticket.job_id,
            ticket.state_number,
            told.reading,
            now_us=world.wall_clock_us,
        )
