from __future__ import annotations

import pytest
import zmq

from nameservice import DidNotHappenError, NameServiceError
from queryablestate import KeyTooLargeError, StaleWriterError, StateUnavailableError
from queryablestate.node.core.chunks import ChunkGate, chunk_refused
from queryablestate.node.core.events import ChunkReceived
from queryablestate.wire.job_assignment import WriterFence
from queryablestate.wire.staging_messages import ChunkRefused, StageChunk


def chunk(
    *, writer: bytes = b"w", writer_epoch: int = 5, size_bytes: int = 10
) -> ChunkReceived:
    """Return a chunk of query ``q``."""
    return ChunkReceived(
        writer=writer,
        chunk=StageChunk(
            request_id=1,
            job_id="job",
            query_id="q",
            writer_epoch=writer_epoch,
            batch_id=1,
            stage_id=bytes(16),
            chunk_index=0,
            assignment_version=1,
        ),
        rows=zmq.Frame(bytes(size_bytes)),
    )


@pytest.fixture
def gate() -> ChunkGate:
    """Return a gate for two chunks of each writer, and a hundred bytes in all."""
    return ChunkGate(chunks_per_writer_max=2, size_bytes_max=100)


class TestFences:
    """W1: a run that is over stages nothing."""

    def test_an_unknown_query_may_stage(self, gate: ChunkGate) -> None:
        """Nothing was said against it."""
        assert gate.admit(chunk()) is None

    @pytest.mark.parametrize(("writer_epoch", "is_refused"), [(4, True), (5, False)])
    def test_below_the_fence_nothing_is_taken(
        self, gate: ChunkGate, writer_epoch: int, is_refused: bool
    ) -> None:
        """The run that the fence names may stage, an earlier one may not."""
        gate.open({("job", "q"): 5})
        error = gate.admit(chunk(writer_epoch=writer_epoch))
        assert isinstance(error, StaleWriterError) == is_refused

    def test_the_refusal_names_both_epochs(self, gate: ChunkGate) -> None:
        """A zombie is told which run is the newest."""
        gate.raise_fence("job", "q", 9)
        error = gate.admit(chunk(writer_epoch=3))
        assert error is not None
        assert error.args == ("q", 3, 9)

    def test_a_fence_is_never_lowered(self, gate: ChunkGate) -> None:
        """Only what is higher than what was known is news."""
        fences = (
            WriterFence(job_id="job", query_id="q", writer_epoch=5),
            WriterFence(job_id="job", query_id="p", writer_epoch=1),
        )
        assert gate.raise_fences(fences) == fences
        assert gate.raise_fences(fences) == ()
        assert not gate.raise_fence("job", "q", 4)
        assert isinstance(gate.admit(chunk(writer_epoch=4)), StaleWriterError)

    @pytest.mark.proves("C1")
    def test_a_fence_of_another_job_holds_there_alone(self, gate: ChunkGate) -> None:
        """C1: who writes one job says nothing about the queries of another."""
        gate.raise_fence("other", "q", 9)
        assert gate.admit(chunk(writer_epoch=3)) is None

    def test_another_store_has_its_own(self, gate: ChunkGate) -> None:
        """Fences of a store that is set aside do not hold for the next."""
        gate.open({("job", "q"): 9})
        gate.open({})
        assert gate.admit(chunk()) is None


class TestRoom:
    """What waits for the disk is bounded; the writer brings the rest again."""

    def test_each_writer_has_its_share(self, gate: ChunkGate) -> None:
        """A third chunk of one writer waits outside, a first of another does not."""
        assert gate.admit(chunk()) is None
        assert gate.admit(chunk()) is None
        assert isinstance(gate.admit(chunk()), DidNotHappenError)
        assert gate.admit(chunk(writer=b"v")) is None
        assert gate.chunk_count == 3

    @pytest.mark.parametrize(("size_bytes", "is_refused"), [(40, False), (41, True)])
    def test_all_together_have_so_many_bytes(
        self, gate: ChunkGate, size_bytes: int, is_refused: bool
    ) -> None:
        """The limit itself fits, one byte more does not."""
        assert gate.admit(chunk(size_bytes=60)) is None
        error = gate.admit(chunk(writer=b"v", size_bytes=size_bytes))
        assert isinstance(error, DidNotHappenError) == is_refused

    def test_what_is_on_disk_makes_room(self, gate: ChunkGate) -> None:
        """Counts fall as chunks are done, to nothing."""
        for _ in range(2):
            assert gate.admit(chunk()) is None
        gate.finished(b"w", 10)
        assert gate.admit(chunk()) is None
        for _ in range(2):
            gate.finished(b"w", 10)
        assert (gate.chunk_count, gate.size_bytes) == (0, 0)
        assert gate._counts == {}

    def test_another_store_has_room(self, gate: ChunkGate) -> None:
        """What waited for a store that is set aside waits no more."""
        gate.admit(chunk(size_bytes=100))
        gate.open({})
        assert (gate.chunk_count, gate.size_bytes) == (0, 0)
        assert gate.admit(chunk(size_bytes=100)) is None


@pytest.mark.parametrize(
    ("error", "code", "data"),
    [
        (StaleWriterError("q", 3, 9), "stale-writer", ("q", 3, 9)),
        (KeyTooLargeError(500, 480), "key-too-large", (500, 480)),
        (DidNotHappenError("later"), "did-not-happen", ("later",)),
        (
            StateUnavailableError("job", None, (1, 2), 0.5, "why"),
            "state-unavailable",
            ("job", None, 0.5, "why"),
        ),
    ],
)
def test_a_writer_is_told_why(
    error: NameServiceError, code: str, data: tuple[object, ...]
) -> None:
    """The refusal carries what the error carries, as far as a chunk's may."""
    assert chunk_refused(error, 7) == ChunkRefused(request_id=7, code=code, data=data)  # type: ignore[arg-type]  # parametrized
