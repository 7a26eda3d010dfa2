"""
Which chunks of rows a node takes; pure.

A run that is over stages nothing any more (rule W1), and what waits for the disk is
bounded: a writer that brings more than the disk takes is told to bring it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from nameservice import DidNotHappenError
from queryablestate.errors import StaleWriterError
from queryablestate.wire.refusals import refusal_of
from queryablestate.wire.staging_messages import ChunkRefused


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nameservice import NameServiceError
    from queryablestate.node.core.events import ChunkReceived
    from queryablestate.wire.job_assignment import WriterFence


__all__ = ["ChunkGate", "chunk_refused"]


def chunk_refused(error: NameServiceError, request_id: int) -> ChunkRefused:
    """Return how a writer is told that its chunk is not taken."""
    refusal = refusal_of(error, request_id)
    return ChunkRefused(
        request_id=request_id,
        code=refusal.code,
        data=tuple(item for item in refusal.data if not isinstance(item, tuple)),
    )


@final
class ChunkGate:
    """
    Admits chunks, or says why not.

    Args:
        chunks_per_writer_max: Chunks of one writer that may wait.
        size_bytes_max: Of all chunks that wait.

    Attributes:
        chunk_count: How many chunks wait.
        size_bytes: Of their rows.
    """

    def __init__(self, *, chunks_per_writer_max: int, size_bytes_max: int) -> None:
        self._chunks_per_writer_max = chunks_per_writer_max
        self._size_bytes_max = size_bytes_max
        self._fences: dict[tuple[str, str], int] = {}
        self._counts: dict[bytes, int] = {}
        self.chunk_count = 0
        self.size_bytes = 0

    def open(self, fences: Mapping[tuple[str, str], int]) -> None:
        """
        Go by the fences of a store that has just been opened: nothing waits.

        Args:
            fences: The least epoch that may stage, for each job and query.
        """
        self._fences = dict(fences)
        self._counts.clear()
        self.chunk_count = 0
        self.size_bytes = 0

    def raise_fences(self, fences: Iterable[WriterFence]) -> tuple[WriterFence, ...]:
        """Take note of fences; return those that are higher than what was known."""
        return tuple(
            fence
            for fence in fences
            if self.raise_fence(fence.job_id, fence.query_id, fence.writer_epoch)
        )

    def raise_fence(self, job_id: str, query_id: str, writer_epoch: int) -> bool:
        """Take note of one fence; return whether it is higher than what was known."""
        is_higher = writer_epoch > self._fences.get((job_id, query_id), 0)
        if is_higher:
            self._fences[job_id, query_id] = writer_epoch
        return is_higher

    def keep_fences(
        self, job_id: str, fences: Iterable[WriterFence]
    ) -> tuple[str, ...]:
        """Know of no other fences of a job; return the queries of those that go."""
        kept = {fence.query_id for fence in fences}
        query_ids = [query for job, query in self._fences if job == job_id]
        gone = tuple(sorted(query for query in query_ids if query not in kept))
        for query_id in gone:
            del self._fences[job_id, query_id]
        return gone

    def forget(self, job_id: str) -> None:
        """Know of no fence of a job any more."""
        self._fences = {key: at for key, at in self._fences.items() if key[0] != job_id}

    def admit(self, event: ChunkReceived) -> NameServiceError | None:
        """Queue a chunk for the disk and return None, or return why not."""
        chunk = event.chunk
        fence = self._fences.get((chunk.job_id, chunk.query_id), 0)
        if chunk.writer_epoch < fence:
            return StaleWriterError(chunk.query_id, chunk.writer_epoch, fence)
        count = self._counts.get(event.writer, 0)
        if count >= self._chunks_per_writer_max:
            return DidNotHappenError(
                f"{count} chunks of this writer wait for the disk: send it again when "
                "one of them is acknowledged"
            )
        if self.size_bytes + event.size_bytes > self._size_bytes_max:
            return DidNotHappenError(
                f"{self.size_bytes} bytes of rows wait for the disk: send it again in "
                "a moment"
            )
        self._counts[event.writer] = count + 1
        self.chunk_count += 1
        self.size_bytes += event.size_bytes
        return None

    def finished(self, writer: bytes, size_bytes: int) -> None:
        """Take note that a chunk waits no more."""
        count = self._counts[writer] - 1
        if count:
            self._counts[writer] = count
        else:
            del self._counts[writer]
        self.chunk_count -= 1
        self.size_bytes -= size_bytes
