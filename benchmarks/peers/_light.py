"""
Many clients of a name service in one process with one thread.

Ordinary clients have three threads each: five thousand of them measure the scheduler
of the one machine that they share here and nowhere else.  Those of Lodestar are the
shipped `ClientCore` over the shipped sockets, so the server sees what it sees of
ordinary ones.  Those of ZooKeeper only keep their session alive, by the handshake and
the ping of its protocol.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, final

import zmq

from benchmarks.peers._names import COMPONENT, say
from leaderserver import codec
from leaderserver.client.core.config import ClientConfig
from leaderserver.client.core.core import ClientCore
from leaderserver.client.core.events import (
    AnnounceSession,
    BroadcastsReached,
    ClientEvent,
    DeliverToRetriever,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    RetrieverAdded,
    SendMessage,
    TimeWentBy,
)
from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from retrieval.core import RetrieverCore
from zmqtransport import (
    ConnectionClosed,
    ConnectionEvent,
    Dealer,
    Endpoint,
    HandshakeSucceeded,
    PollLoop,
    SocketLimits,
    framing,
    parse_endpoint,
    send_now,
)


__all__ = ["keep_zookeeper_sessions", "serve_leader_server_sessions"]

_TIMEOUT_SECONDS: Final = 10
_WIRE_ID: Final = f"default/{COMPONENT}"
_LOOK_INTERVAL_NS: Final = 100 * NS_PER_MS
_FRAME_SIZE_BYTES_MAX: Final = 1_000_000
_OPENING_COUNT: Final = 50
_SOCKETS_PER_SESSION: Final = 6
"""Two channels, each with its monitor's two."""


@final
class _Session:
    """One client of a LeaderServer: its core, and its channels on the loop of all."""

    def __init__(
        self,
        loop: PollLoop,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: Endpoint,
        on_told: Callable[[str], None] | None,
    ) -> None:
        self._loop = loop
        self._context = context
        self._endpoint = endpoint
        self._on_told = on_told
        self._is_open = False
        self._retriever = RetrieverCore(clears_on_suspended=True)
        self._publisher: Dealer | None = None
        self.core = ClientCore(
            ClientConfig(
                target="bench",
                client="bench",
                session_timeout_ns=_TIMEOUT_SECONDS * NS_PER_SECOND,
                lease_ns=NS_PER_SECOND // 2,
                clears_on_suspended=True,
                seed=os.urandom(32),
            ),
            now_ns=time.monotonic_ns(),
        )
        self._requests = self._open(zmq.DEALER, endpoint, self._request_event, 0)
        if on_told is not None:
            self.step(RetrieverAdded(retriever_id=1, component_id=_WIRE_ID))

    def _open(
        self,
        socket_type: int,
        endpoint: Endpoint,
        on_event: Callable[[ConnectionEvent], None],
        topic_count: int,
    ) -> Dealer:
        def take(frames: list[zmq.Frame]) -> None:
            payload = framing.decode(
                [frame.bytes for frame in frames[topic_count:]],
                size_bytes_max=_FRAME_SIZE_BYTES_MAX,
            )
            self.step(MessageReceived(message=codec.decode_to_client(payload)))

        dealer = Dealer(
            self._context,
            endpoint,
            SocketLimits(
                frame_size_bytes_max=_FRAME_SIZE_BYTES_MAX,
                silence_timeout_ms=_TIMEOUT_SECONDS * 1_000,
                reconnect_interval_ms=100,
            ),
            secure=lambda _: None,
            socket_type=socket_type,
        )
        dealer.serve(self._loop, on_event=on_event, on_message=take, frame_count_max=3)
        self._loop.at_end(dealer.close)
        return dealer

    def _request_event(self, event: ConnectionEvent) -> None:
        match event:
            case HandshakeSucceeded():
                self._is_open = True
                self.step(LinkOpened())
            case ConnectionClosed() if self._is_open:
                self._is_open = False
                self.step(LinkClosed())
            case _:
                pass

    def _publisher_event(self, event: ConnectionEvent) -> None:
        if isinstance(event, HandshakeSucceeded) and self._is_open:
            # What was published before now was not heard: the core asks.
            self.step(BroadcastsReached())

    def step(self, event: ClientEvent) -> None:
        """Take one step, and do what it says."""
        for effect in self.core.step(event, now_ns=time.monotonic_ns()):
            match effect:
                case SendMessage(message=message) if self._is_open:
                    frames = framing.encode(codec.encode(message))
                    send_now(self._requests.socket, frames)
                case AnnounceSession(welcome=welcome) if self._publisher is None:
                    if self._on_told is not None:
                        port = Endpoint(
                            host=self._endpoint.host, port=welcome.publish_port
                        )
                        self._publisher = self._open(
                            zmq.SUB, port, self._publisher_event, 1
                        )
                        topic = codec.publication_topic(_WIRE_ID)
                        self._publisher.socket.subscribe(topic)
                case DeliverToRetriever(event=news):
                    for told in self._retriever.step(news):
                        if told.leader is not None and self._on_told is not None:
                            self._on_told(told.leader.address)
                case _:
                    pass


def serve_leader_server_sessions(
    address: str, count: int, on_told: Callable[[str], None] | None = None
) -> None:
    """
    Open sessions, say ``idle`` when all are, and keep them until the input ends.

    Args:
        address: The server's URL.
        count: How many.
        on_told: Makes each a listener; is called with the address of each leader.
    """
    endpoint = parse_endpoint(address.replace("leaderserver://", "tcp://"))
    context = zmq.Context[zmq.Socket[bytes]]()
    context.set(zmq.MAX_SOCKETS, count * _SOCKETS_PER_SESSION + 100)
    loop = PollLoop(name="sessions")
    loop.at_end(lambda: context.destroy(linger=0))
    sessions: list[_Session] = []
    look_ns = time.monotonic_ns()
    has_said = False

    def look() -> None:
        nonlocal look_ns, has_said
        now_ns = time.monotonic_ns()
        look_ns = now_ns + _LOOK_INTERVAL_NS
        for session in sessions:
            deadline_ns = session.core.next_deadline_ns()
            if deadline_ns is not None and deadline_ns <= now_ns:
                session.step(TimeWentBy())
        if all(one.core.session_id for one in sessions[-_OPENING_COUNT:]):
            for _ in range(min(_OPENING_COUNT, count - len(sessions))):
                sessions.append(_Session(loop, context, endpoint, on_told))
                look_ns = now_ns
            if look_ns > now_ns and not has_said:
                has_said = True
                say("idle")

    def end_with_input() -> None:
        sys.stdin.read()
        loop.stop()

    loop.set_deadline(lambda: look_ns, look)
    threading.Thread(target=end_with_input, daemon=True).start()
    loop.run()


def keep_zookeeper_sessions(address: str, count: int) -> None:
    """Likewise: a handshake, and a ping every third of the session timeout."""
    host, _, port = address.partition(":")

    async def read(reader: asyncio.StreamReader) -> None:
        (size,) = struct.unpack("!i", await reader.readexactly(4))
        await reader.readexactly(size)

    async def session() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, int(port))
        # Protocol, last transaction seen, timeout, session, password, not read-only.
        greeting = struct.pack(
            "!iqiqi16sb", 0, 0, _TIMEOUT_SECONDS * 1_000, 0, 16, bytes(16), 0
        )
        writer.write(struct.pack("!i", len(greeting)) + greeting)
        await read(reader)
        return reader, writer

    async def ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(_TIMEOUT_SECONDS / 3)
            writer.write(struct.pack("!iii", 8, -2, 11))
            await read(reader)

    async def keep() -> None:
        pinging = []
        for first in range(0, count, _OPENING_COUNT):
            part = range(min(_OPENING_COUNT, count - first))
            opened = await asyncio.gather(*(session() for _ in part))
            pinging += [asyncio.create_task(ping(*one)) for one in opened]
        say("idle")
        await asyncio.to_thread(sys.stdin.read)
        for task in pinging:
            task.cancel()

    asyncio.run(keep())
