"""
`ReaderServer`: the port of a reader process, and what answers there.

Clients show tickets and ask, as at the node's own port (`queryablestate.node.server`).
Nothing else is taken here.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final

from nameservice import LocalProtocolError, RemoteProtocolError
from nameservice.clock import NS_PER_US
from nameservice.observation import Latencies
from queryablestate.node.core.read_schedule import ReadLimits
from queryablestate.node.direct import DirectAnswerer
from queryablestate.node.port import NodePort
from queryablestate.node.reading import ReadingThread
from queryablestate.wire.codec import (
    FRAME_COUNT_MAX,
    decode_at_node,
    decode_at_reader,
)
from queryablestate.wire.direct import AskNode, ShowTicket
from zmqtransport import (
    load_key_files,
    new_context,
    parse_endpoint,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from nameservice import Clock
    from queryablestate.node.config import NodeConfig
    from queryablestate.node.readers.gate import ReaderGate
    from queryablestate.store.read_only import ReadOnlyStore
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.state_view import StateView
    from zmqtransport import Peer, PollLoop


__all__ = ["ReaderServer"]

_FRAME_SIZE_BYTES_MAX: Final = 1 << 20
"""Of a question: a node answers small ones directly."""


@final
class ReaderServer:
    """
    Answers clients; all of it belongs to the thread of *loop*.

    Args:
        config: The limits, and the files of keys.
        bind: Where it listens.
        store: The rows.
        gate: Says what may be answered.
        loop: Serves the port.
        clock: What leases are measured by.

    Attributes:
        latencies: How long answers took.
        port_number: Where it listens.

    Raises:
        ConfigurationError: If the port or a key cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        bind: str,
        store: ReadOnlyStore,
        gate: ReaderGate,
        loop: PollLoop,
        clock: Clock,
    ) -> None:
        self.latencies = Latencies()
        self._resources = ExitStack()
        try:
            self._open(config, bind, store, gate=gate, loop=loop, clock=clock)
        except BaseException:
            self._resources.close()
            raise

    def _open(
        self,
        config: NodeConfig,
        bind: str,
        store: ReadOnlyStore,
        *,
        gate: ReaderGate,
        loop: PollLoop,
        clock: Clock,
    ) -> None:
        context = new_context()
        self._resources.callback(context.term)
        key_pair, allow_list = load_key_files(
            config.curve_secret_key_file,
            config.curve_public_key_file,
            config.allow_list_file,
        )
        self._gate = gate
        self._store = _DirectStore(store, loop, config, clock)
        self._resources.callback(self._store.close)
        self._direct = DirectAnswerer(
            self._store,
            answer_size_bytes_max=config.answer_size_bytes_max,
            clock=clock,
            wall_clock_us=lambda: time.time_ns() // NS_PER_US,
            is_current=lambda ticket: gate.is_current(ticket, now_ns=clock.now_ns()),
            admit=lambda question, job_id: gate.admit(
                question, job_id, now_ns=clock.now_ns()
            ),
            standing=gate.standing,
            send=self._send,
            latencies=self.latencies,
        )
        self._node_port = NodePort(
            config,
            parse_endpoint(bind),
            context=context,
            key_pair=key_pair,
            allow_list=allow_list,
            frame_size_bytes_max=_FRAME_SIZE_BYTES_MAX,
            loop=loop,
            clock=clock,
            component="state-reader",
            on_message=self._receive,
            on_closed=self._closed,
            in_flight=self._direct.in_flight,
        )
        self._resources.callback(self._node_port.close)
        self._port = self._node_port.port
        self.port_number = self._port.endpoint.port

    def close(self) -> None:
        """Close the port, and end the thread that reads."""
        self._resources.close()

    def keep_secret(self, secret: bytes) -> None:
        """Take tickets of the leader that has given *secret*, and of no other."""
        self._gate.keep_secret(secret)
        self._direct.keep_secret(secret)

    def figures(self) -> dict[str, int]:
        """Return what was done, by name."""
        errors = sorted(self._direct.errors.items())
        return {
            **self._direct.figures(),
            **self._node_port.figures(),
            **{f"{name}_total": count for name, count in errors},
        }

    def _receive(self, peer: Peer, frames: list[zmq.Frame]) -> None:
        """Take one message of a client."""
        try:
            self._hear(peer, frames)
        except RemoteProtocolError as error:
            self._port.drop(error)

    def _hear(self, peer: Peer, frames: Sequence[zmq.Frame]) -> None:
        if len(frames) == 1 + FRAME_COUNT_MAX:
            asked = decode_at_node(frames[1].bytes)
            if isinstance(asked, AskNode):
                self._direct.ask(peer, asked, frames[2].bytes)
                return
        elif len(frames) > 1:
            shown = decode_at_reader(frames[1].bytes)
            if isinstance(shown, ShowTicket):
                public_key = self._node_port.public_key_of(frames[0])
                state_number = self._direct.show(peer, shown, public_key)
                if state_number is not None:
                    self._store.prepare(state_number)
                return
        raise RemoteProtocolError("malformed", "clients alone are answered here")

    def _closed(self, peers: Sequence[Peer]) -> None:
        for peer in peers:
            self._direct.forget(peer)

    def _send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        return self._node_port.send(peer, *frames)


@final
class _DirectStore:
    """The store as `DirectAnswerer` sees it."""

    def __init__(
        self, store: ReadOnlyStore, loop: PollLoop, config: NodeConfig, clock: Clock
    ) -> None:
        self._store = store
        self._loop = loop
        self._reader = store.reader()
        self._reading = ReadingThread(
            store,
            clock=clock,
            limits=ReadLimits(waiting_count_max=config.questions_waiting_max),
        )

    def reader(self) -> StoreReader:
        return self._reader

    def reading(self) -> ReadingThread:
        return self._reading

    def state(self, state_number: int) -> StateView | None:
        return self._store.state(state_number)

    def prepare(self, state_number: int) -> None:
        self._store.prepare(state_number)

    def post(self, action: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except LocalProtocolError:
            return  # the process is ending

    def close(self) -> None:
        self._reading.close()
