"""Key groups on disk: staged batches, applied batches, and what was applied (LMDB)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from queryablestate.node_messages import StageChunk, WriterFence
    from queryablestate.records import Entry, StageRecord
    from queryablestate.store_reader import StateView, StoreReader


__all__ = ["SIZE_BYTES_MAX", "StateStore"]

SIZE_BYTES_MAX: Final = 64 << 30


@final
class StateStore:
    """
    The rows of one node; one thread writes, any thread reads through its `reader`.

    All methods block.  Methods that write (`bind_control`, `fence`, `stage`, `apply`,
    `reset_job`, `drop_stages_older_than`, `sweep_expired`) are for one thread; the
    others may be called from any.  Every failure of the disk is a `StorageError`.
    """

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        node_id: str | None = None,
        size_bytes_max: int = SIZE_BYTES_MAX,
        is_durable: bool = True,
    ) -> StateStore:
        """Open the data directory of a node; make it if it is not there."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def node_id(self) -> str:
        """Return the name of the node that this directory belongs to."""
        raise NotImplementedError

    @property
    def store_id(self) -> str:
        """Return what was drawn when the directory was made."""
        raise NotImplementedError

    @property
    def control_id(self) -> str | None:
        """Return the control plane whose rows these are, or None before the first."""
        raise NotImplementedError

    def bind_control(self, control_id: str) -> None:
        """Keep *control_id* for good; `StorageError` if there is another one."""
        raise NotImplementedError

    def positions(self) -> dict[str, int]:
        """Return the last entry applied, for each job."""
        raise NotImplementedError

    def fences(self) -> dict[str, int]:
        """Return the least writer epoch that may still stage, for each query id."""
        raise NotImplementedError

    def state(self, state_number: int) -> StateView | None:
        """Return what is known of a state, or None."""
        raise NotImplementedError

    def reader(self) -> StoreReader:
        """Return a reader; one for each thread that reads."""
        raise NotImplementedError

    def fence(self, fences: Iterable[WriterFence]) -> None:
        """Refuse older runs from now on; a fence is never lowered."""
        raise NotImplementedError

    def stage(self, chunks: Sequence[tuple[StageChunk, bytes]], *, now_us: int) -> None:
        """
        Keep chunks, all in one transaction; what is there already is left alone.

        Args:
            chunks: Envelopes with their payloads (`StagedRows`), which the caller has
                decoded and checked (`queryablestate.store_rows.check_staged_rows`).
            now_us: When they arrived, for `drop_stages_older_than`.

        Raises:
            StaleWriterError: If one of them is of a run below its fence; nothing is
                kept then.  Look at `fences` first if chunks of several runs meet.
        """
        raise NotImplementedError

    def missing_stages(
        self,
        job_id: str,
        writer_epoch: int,
        batch_id: int,
        stages: Sequence[StageRecord],
    ) -> tuple[bytes, ...]:
        """Return the stage ids of which a chunk for this node is not there."""
        raise NotImplementedError

    def apply(self, job_id: str, entry: Entry) -> None:
        """
        Apply the next entry of a job's chain; one that was applied is passed over.

        Raises:
            LocalProtocolError: If entries before it are missing.
            StagedDataMissingError: If a chunk is not there.  Nothing is changed.
        """
        raise NotImplementedError

    def reset_job(
        self, job_id: str, sequence: int, state_numbers: Sequence[int]
    ) -> None:
        """Go on after *sequence* with nothing; these states are lost (rule W7)."""
        raise NotImplementedError

    def drop_stages_older_than(self, received_before_us: int) -> int:
        """Drop batches of which nothing came since; return how many."""
        raise NotImplementedError

    def sweep_expired(self, now_us: int, limit: int) -> int:
        """Look at up to *limit* more rows with TTL; return how many were removed."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything.  Idempotent; no thread may be reading or writing."""
        raise NotImplementedError
