"""
`QueryableStateServer`: serves the key groups of one node.

It has the store (`NodeStore`), answers questions about it (`QuestionAnswerer`), and
listens on a ROUTER of its own.  Writers bring chunks of rows there, which go to the
disk before they are acknowledged (rule W2); other nodes copy rows that they are to have
(rule S2), and show that they are nodes: who may bring rows may not read them for that
(rule C1).  Writers show that they may write the job: to be on the allow-list is no
right to fill the disk (`queryablestate.wire.staging_grant`).  Clients that ask without
the proxy show a ticket (`queryablestate.node.direct`).
Whatever else comes in there is counted, logged within a budget, and answered.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final, final

from nameservice import (
    DidNotHappenError,
    RemoteProtocolError,
    StorageError,
    get_logger,
)
from queryablestate.errors import AccessDeniedError
from queryablestate.node.core.chunks import chunk_refused
from queryablestate.node.core.events import ChunkReceived
from queryablestate.node.port import NodePort
from queryablestate.store.threads import StageTask
from queryablestate.wire.address import StateAddress
from queryablestate.wire.codec import (
    ENVELOPE_SIZE_BYTES_MAX,
    FRAME_COUNT_MAX,
    Head,
    decode_at_node,
    decode_head,
    decode_to_copy_source,
    encode,
)
from queryablestate.wire.copy_messages import CopyRefused, OpenCopy, ReadStages
from queryablestate.wire.direct import AskNode, ShowTicket
from queryablestate.wire.refusals import error_label
from queryablestate.wire.staging_grant import is_granted
from queryablestate.wire.staging_messages import ChunkStaged


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import msgspec
    import zmq

    from nameservice import Clock, NameServiceError
    from queryablestate.node.config import NodeConfig
    from queryablestate.node.core.events import NodeEvent
    from queryablestate.node.direct import DirectAnswerer
    from queryablestate.wire.copy_messages import ToCopySource
    from queryablestate.wire.staging_messages import ChunkRefused, StageChunk
    from zmqtransport import AllowList, CurveKeyPair, Peer, PollLoop, ZMQContext


__all__ = ["QueryableStateServer"]

# What lies between our limit and this multiple of it is refused with a reason; ZeroMQ
# ends the connection of a client that sends more.
_FRAME_SIZE_FACTOR: Final = 2


@final
class QueryableStateServer:
    """
    The port of one node that writers and other nodes connect to.

    All of it belongs to the thread of *loop*.

    Args:
        config: Where it listens, and its limits.
        key_pair: The node's own keys, or None.
        allow_list: Who may connect, or None for all.
        loop: Serves the port.
        context: Of the port.
        clock: For what may be logged.
        on_event: Is told of each chunk.
        serve_copy: Takes what another node asks for; returns whether there is room.
        direct: Takes what clients show and ask.

    Attributes:
        address: Where it listens.

    Raises:
        ConfigurationError: If the port or a key cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        key_pair: CurveKeyPair | None,
        allow_list: AllowList | None,
        loop: PollLoop,
        context: ZMQContext,
        clock: Clock,
        on_event: Callable[[NodeEvent], None],
        serve_copy: Callable[[bytes, ToCopySource], bool],
        direct: DirectAnswerer,
    ) -> None:
        self._config = config
        self._on_event = on_event
        self._serve = serve_copy
        self._direct = direct
        self._log = get_logger(component="state-node")
        self._copy_secret = b""
        self._former_secret = b""
        self._node_port = NodePort(
            config,
            config.bind_endpoint,
            context=context,
            key_pair=key_pair,
            allow_list=allow_list,
            frame_size_bytes_max=config.chunk_size_bytes_max * _FRAME_SIZE_FACTOR,
            loop=loop,
            clock=clock,
            component="state-node",
            on_message=self._receive,
            on_closed=self._closed,
            in_flight=direct.in_flight,
        )
        self._port = self._node_port.port
        self.address = StateAddress(
            endpoint=self._port.endpoint,
            server_public_key=None if key_pair is None else key_pair.public_key,
        )

    def close(self) -> None:
        """Close the port, when the loop ends."""
        self._node_port.close()

    def figures(self) -> Mapping[str, int]:
        """Return the figures of the port by name."""
        return self._node_port.figures()

    def keep_secret(self, secret: bytes) -> None:
        """Send rows to nodes that show *secret*, from now on, and take granted ones."""
        if secret != self._copy_secret:
            # A batch may be under way that was begun with the leader before.
            self._former_secret, self._copy_secret = self._copy_secret, secret
            self._direct.keep_secret(secret)

    def refuse(self, writer: bytes, message: ChunkRefused) -> None:
        """Tell a writer why its chunk is not taken."""
        self._port.count("chunks_refused")
        self._port.count(f"chunk_errors_{error_label(message.code)}")
        self._tell(writer, message)

    # -- writers and other nodes ---------------------------------------------------

    def _receive(self, peer: Peer, frames: list[zmq.Frame]) -> None:
        """Take one message of a writer, or of another node."""
        writer = peer.routing_id
        try:
            if len(frames) < 1 + FRAME_COUNT_MAX:
                self._hear(peer, frames)
                return
            chunk = self._decoded(frames)
            if isinstance(chunk, AskNode):
                self._direct.ask(peer, chunk, frames[2].bytes)
                return
        except RemoteProtocolError as error:
            self._port.drop(error)
            self._tell(writer, chunk_refused(error, 0))
            return
        refusal = self._why_not(chunk, len(frames[2]))
        if refusal is not None:
            self.refuse(writer, chunk_refused(refusal, chunk.request_id))
            return
        self._port.admit(peer)  # as a writer: those bring much at once
        self._on_event(ChunkReceived(writer=writer, chunk=chunk, rows=frames[2]))

    def _why_not(self, chunk: StageChunk, size_bytes: int) -> NameServiceError | None:
        """Return why a writer may not stage a chunk, or None (rules B3, C1)."""
        size_bytes_max = self._config.chunk_size_bytes_max
        if size_bytes > size_bytes_max:
            oversized = RemoteProtocolError(
                "oversized",
                f"a chunk has {size_bytes:,} bytes, at most {size_bytes_max:,} are "
                "taken: bring fewer rows at once",
            )
            self._port.drop(oversized)
            return oversized
        if not self._copy_secret:
            return DidNotHappenError(
                "the node was not taken in by a proxy yet: send it again in a moment"
            )
        if is_granted(
            chunk.grant,
            (self._copy_secret, self._former_secret),
            job_id=chunk.job_id,
            query_id=chunk.query_id,
            writer_epoch=chunk.writer_epoch,
        ):
            return None
        if self._port.may_log("unauthorized"):
            self._log.warning("chunk.not_granted", job_id=chunk.job_id)
        return AccessDeniedError(
            f"stage rows of {chunk.job_id} under epoch {chunk.writer_epoch}"
        )

    def _decoded(self, frames: Sequence[zmq.Frame]) -> StageChunk | AskNode:
        if len(frames) != 1 + FRAME_COUNT_MAX:
            raise RemoteProtocolError(
                "malformed",
                f"a message has {len(frames) - 1} frames, a chunk {FRAME_COUNT_MAX}",
            )
        return decode_at_node(frames[1].bytes)

    def _hear(self, sender: Peer, frames: Sequence[zmq.Frame]) -> None:
        """Take what another node says of rows that it copies, or a client's ticket."""
        peer = sender.routing_id
        envelope = frames[1].bytes if len(frames) > 1 else b""
        if len(envelope) > ENVELOPE_SIZE_BYTES_MAX:
            head = decode_head(envelope)
            if not self._is_shown(head):
                self._refuse_copy(peer, head.copy_id)
                return
        message = decode_to_copy_source(envelope)
        if isinstance(message, ShowTicket):
            public_key = self._node_port.public_key_of(frames[0])
            self._direct.show(sender, message, public_key)
        elif isinstance(message, OpenCopy | ReadStages) and not self._is_shown(message):
            self._refuse_copy(peer, message.copy_id)
        elif self._serve(peer, message):
            self._port.count("copy_requests")
        else:
            # The asker hears nothing, and asks again.
            self._drop("limit", "too many requests of other nodes wait")

    def _refuse_copy(self, peer: bytes, copy_id: int) -> None:
        detail = "it does not show what the proxy gives to nodes"
        self._drop("unauthorized", detail)
        refused = CopyRefused(copy_id=copy_id, reason="not-allowed", detail=detail)
        self._tell(peer, refused)

    def _is_shown(self, message: OpenCopy | ReadStages | Head) -> bool:
        """Return whether the asker was taken in by the proxy leader, as we were."""
        secret = self._copy_secret
        return bool(secret) and compare_digest(secret, message.secret)

    def _closed(self, peers: Sequence[Peer]) -> None:
        for peer in peers:
            self._direct.forget(peer)

    def send_page(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send rows to another node, now; return whether that was possible."""
        return self._node_port.send_page(peer, frames)

    def answer(self, client: bytes, frames: Sequence[bytes]) -> bool:
        """Answer a client that asks directly, now; return whether that was possible."""
        return self._node_port.send(client, *frames)

    def staged(self, task: StageTask, error: NameServiceError | None) -> None:
        """Tell a writer what became of its chunk."""
        request_id = task.chunk.request_id
        if error is None:
            self._port.count("chunks_staged")
            self._tell(task.writer, ChunkStaged(request_id=request_id))
        else:
            if isinstance(error, StorageError) and self._port.may_log("storage"):
                self._log.error("stage.failed", error=str(error))
            self.refuse(task.writer, chunk_refused(error, request_id))

    def _tell(self, writer: bytes, message: msgspec.Struct) -> None:
        """Answer a writer, or another node; one that does not read is ended (B1)."""
        self._node_port.tell(writer, encode(message))

    # -- what comes to nothing -----------------------------------------------------

    def _drop(self, reason: str, detail: str) -> None:
        self._port.drop(RemoteProtocolError(reason, detail))
