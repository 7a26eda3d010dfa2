"""A node as a writer sees it: it takes chunks and says so, as a test wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import zmq
from attrs import define, field

from queryablestate.wire.codec import decode_at_node, decode_rows, encode
from queryablestate.wire.staging_messages import (
    ChunkRefused,
    ChunkStaged,
    StageChunk,
    StagedRows,
)


Reply: TypeAlias = ChunkStaged | ChunkRefused | None
Answer: TypeAlias = Callable[[StageChunk], Reply]


def staged(chunk: StageChunk) -> Reply:
    """Take every chunk."""
    return ChunkStaged(request_id=chunk.request_id)


@define
class StagingNode:
    """What a node was told, in order; ``None`` as an answer is silence."""

    address: str
    chunks: list[tuple[StageChunk, StagedRows]] = field(factory=list)
    senders: set[bytes] = field(factory=set)

    @property
    def rows(self) -> dict[bytes, bytes | None]:
        """Return the rows of all chunks, the later ones outweighing."""
        return {
            key: value
            for _, rows in self.chunks
            for key, value in zip(rows.keys, rows.values, strict=True)
        }


@contextmanager
def staging_node(
    answer: Answer = staged, *, address: str = "tcp://127.0.0.1:0"
) -> Iterator[StagingNode]:
    """Yield a node that answers each chunk as *answer* says."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(address)
    node = StagingNode(address=router.getsockopt_string(zmq.LAST_ENDPOINT))
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            if not router.poll(20):
                continue
            sender, envelope, payload = router.recv_multipart()
            chunk = decode_at_node(envelope)
            assert isinstance(chunk, StageChunk)
            node.senders.add(sender)
            node.chunks.append((chunk, decode_rows(payload)))
            reply = answer(chunk)
            if reply is not None:
                router.send_multipart([sender, encode(reply)])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield node
    finally:
        stopping.set()
        thread.join()
        router.close()
        context.term()
