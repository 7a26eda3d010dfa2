"""
A proxy leader for one node under test: real sockets, real messages, no decisions.

It leads ``QUERY_PROXY`` of a real name service, and says to the node what the test has
it say.  A `Writer` brings chunks to the node's own port.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self, TypeVar

import zmq

from haservices import campaign
from nameservice import QUERY_PROXY
from queryablestate.connect.credentials import secure_to
from queryablestate.wire.address import StateAddress, parse_address
from queryablestate.wire.codec import (
    decode_from_node,
    decode_to_proxy,
    encode,
    encode_payload,
)
from queryablestate.wire.job_assignment import JobAssignment
from queryablestate.wire.node_messages import (
    ApplyEntries,
    EntriesApplied,
    HeartbeatAcknowledged,
    NodeHeartbeat,
    NodeRegistered,
    RegisterNode,
)
from queryablestate.wire.questions import Answer, Refusal
from queryablestate.wire.records import StageRecord
from queryablestate.wire.staging_grant import staging_grant
from queryablestate.wire.staging_messages import (
    ChunkRefused,
    ChunkStaged,
    StageChunk,
    StagedRows,
)
from zmqtransport import parse_endpoint


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    import msgspec

    from haservices import HAServices
    from queryablestate.wire.questions import Question
    from queryablestate.wire.records import Entry
    from zmqtransport import CurveKeyPair


TIMEOUT_SECONDS: Final = 30.0
COPY_SECRET: Final = b"only nodes know it"

T = TypeVar("T")


class NodeProxy:
    """
    Leads, and talks to the one node that registers.

    Heartbeats are acknowledged by itself, unless *acknowledges* is false.  What it
    publishes is made of its address by *published*.  It takes no more than that many
    messages in ahead of `receive`; 0 is any number.
    """

    def __init__(
        self,
        ha: HAServices,
        *,
        control_id: str = "c",
        session_timeout_ms: int = 10_000,
        published: Callable[[str], str] = str,
        key_pair: CurveKeyPair | None = None,
        receive_queue_count_max: int = 0,
    ) -> None:
        self.acknowledges = True
        self.control_id = control_id
        self.session_timeout_ms = session_timeout_ms
        self.leader_epoch = 0
        self.routing_id = b""
        self.heartbeats: list[int] = []
        self._resources = ExitStack()
        self._context = zmq.Context()
        self._resources.callback(self._context.term)
        self._router = self._context.socket(zmq.ROUTER)
        self._resources.callback(self._router.close, 0)
        if key_pair is not None:  # any keys may come in
            self._router.setsockopt(zmq.CURVE_SERVER, 1)
            self._router.setsockopt(zmq.CURVE_SECRETKEY, key_pair.secret_key.encode())
        self._router.setsockopt(zmq.RCVHWM, receive_queue_count_max)
        self._router.bind("tcp://127.0.0.1:0")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        if key_pair is not None:
            server = parse_endpoint(self.address)
            address = StateAddress(
                endpoint=server, server_public_key=key_pair.public_key
            )
            self.address = str(address)
        self._published = published(self.address)
        self._ha = ha

    def __enter__(self) -> Self:
        try:
            leadership = self._resources.enter_context(
                campaign(self._ha, QUERY_PROXY, self._published, TIMEOUT_SECONDS)
            )
        except BaseException:
            self._resources.close()
            raise
        self.leader_epoch = leadership.epoch
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def send(self, message: msgspec.Struct, payload: object = None) -> None:
        """Send to the node that registered last."""
        frames = [self.routing_id, encode(message)]
        if payload is not None:
            frames.append(encode_payload(payload))
        self._router.send_multipart(frames)

    def send_frames(self, *frames: bytes) -> None:
        """Send whatever it is."""
        self._router.send_multipart([self.routing_id, *frames])

    def receive(
        self, kind: type[T], timeout_seconds: float = TIMEOUT_SECONDS
    ) -> tuple[T, bytes]:
        """Return the next message of *kind* and its payload; pass over others."""
        deadline = time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._router.poll(round(left * 1_000)):
                break
            routing_id, envelope, *payload = self._router.recv_multipart()
            message = decode_to_proxy(envelope)
            if isinstance(message, RegisterNode):
                self.routing_id = routing_id
            if isinstance(message, NodeHeartbeat):
                self.heartbeats.append(message.number)
                if self.acknowledges:
                    self.send(
                        HeartbeatAcknowledged(
                            leader_epoch=self.leader_epoch, number=message.number
                        )
                    )
            if isinstance(message, kind):
                return message, payload[0] if payload else b""
        raise TimeoutError(kind.__name__)

    def register(self, *jobs: JobAssignment) -> RegisterNode:
        """Take the node in when it asks, and return what it asked."""
        asked, _ = self.receive(RegisterNode)
        self.take_in(*jobs)
        self.receive(NodeHeartbeat)
        return asked

    def take_in(self, *jobs: JobAssignment) -> None:
        """Answer a node that has asked."""
        self.send(
            NodeRegistered(
                leader_epoch=self.leader_epoch,
                control_id=self.control_id,
                session_timeout_ms=self.session_timeout_ms,
                jobs=jobs,
                copy_secret=COPY_SECRET,
            )
        )

    def apply(self, *entries: Entry, job_id: str = "job") -> EntriesApplied:
        """Have entries applied, and return what the node says of the last."""
        self.send(
            ApplyEntries(leader_epoch=self.leader_epoch, job_id=job_id, entries=entries)
        )
        while True:
            applied, _ = self.receive(EntriesApplied)
            if applied.failure is not None or (
                applied.sequence == entries[-1].sequence
            ):
                return applied

    def ask(
        self, question: Question, keys: list[bytes] | None = None
    ) -> tuple[Answer, bytes] | Refusal:
        """Ask the node, and return the answer with its payload, or the refusal."""
        self.put(question, keys)
        return self.answer()

    def put(self, question: Question, keys: list[bytes] | None = None) -> None:
        """Ask the node."""
        frames = [encode(question), b"" if keys is None else encode_payload(keys)]
        self.send_frames(*frames)

    def answer(self) -> tuple[Answer, bytes] | Refusal:
        """Return the next answer with its payload, or the next refusal."""
        message, payload = self.receive(Answer | Refusal)  # type: ignore[arg-type]  # isinstance takes unions
        if isinstance(message, Refusal):
            return message
        assert isinstance(message, Answer)
        return message, payload


class Writer:
    """A task that brings chunks to a node, all of one stage."""

    def __init__(
        self,
        address: str,
        *,
        stage_id: bytes = bytes(16),
        writer_epoch: int = 1,
        batch_id: int = 1,
        job_id: str = "job",
        query_id: str = "q",
        key_pair: CurveKeyPair | None = None,
    ) -> None:
        self.stage_id = stage_id
        self.writer_epoch = writer_epoch
        self.batch_id = batch_id
        self.job_id = job_id
        self.query_id = query_id
        self.chunk_count = 0
        self.row_count = 0
        self.request_id = 0
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        target = parse_address(address)
        secure_to(self.socket, target, key_pair)
        self.socket.connect(str(target.endpoint))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close(0)
        self._context.term()

    def put(self, rows: StagedRows | bytes) -> None:
        """Send one chunk."""
        self.request_id += 1
        chunk = StageChunk(
            request_id=self.request_id,
            job_id=self.job_id,
            query_id=self.query_id,
            writer_epoch=self.writer_epoch,
            batch_id=self.batch_id,
            stage_id=self.stage_id,
            chunk_index=self.chunk_count,
            assignment_version=1,
            grant=staging_grant(
                COPY_SECRET, self.job_id, self.query_id, self.writer_epoch
            ),
        )
        payload = rows if isinstance(rows, bytes) else encode_payload(rows)
        self.socket.send_multipart([encode(chunk), payload])
        self.chunk_count += 1
        if isinstance(rows, StagedRows):
            self.row_count += len(rows.keys)

    def reply(
        self, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> ChunkStaged | ChunkRefused:
        """Return what the node says next."""
        if not self.socket.poll(round(timeout_seconds * 1_000)):
            raise TimeoutError
        (envelope,) = self.socket.recv_multipart()
        return decode_from_node(envelope)

    def bring(self, rows: StagedRows | bytes) -> ChunkStaged | ChunkRefused:
        """Send one chunk, and return what the node says."""
        self.put(rows)
        return self.reply()

    def stage(self, node_id: str) -> StageRecord:
        """Return what the driver is told of this task."""
        return StageRecord(
            stage_id=self.stage_id,
            chunk_counts={node_id: self.chunk_count},
            row_count=self.row_count,
        )


def storage_key(name: str, key_group: int = 0) -> bytes:
    """Return the storage key of a string column."""
    return key_group.to_bytes(2, "big") + b"\1" + name.encode() + b"\0\0"


def rows(
    state_number: int = 1, key_group: int = 0, **values: bytes | None
) -> StagedRows:
    """Return rows of one key group, by the names of their keys."""
    return rows_of(values, state_number=state_number, key_group=key_group)


def rows_of(
    values: Mapping[str, bytes | None], *, state_number: int = 1, key_group: int = 0
) -> StagedRows:
    """Return rows of one key group, sorted."""
    pairs = sorted((storage_key(name, key_group), one) for name, one in values.items())
    return StagedRows(
        state_number=state_number,
        keys=[key for key, _ in pairs],
        values=[value for _, value in pairs],
    )
