"""How long a state node waits, and how much may wait in it."""

from __future__ import annotations

from typing import final

from attrs import frozen

from nameservice.clock import NS_PER_SECOND


__all__ = ["NodeLimits"]


@final
@frozen(kw_only=True)
class NodeLimits:
    """
    How long a node waits, and how much may wait in it.

    Attributes:
        pause_ns: Between attempts to register, at first.
        pause_ns_max: Up to where that doubles.
        answer_timeout_ns: How long a connection to a proxy may take, and its answer.
        retry_ns: How long a job that cannot go on is left alone.
        copy_retry_ns: How long a source of copies that has failed is left alone, at
            first.
        copy_retry_ns_max: Up to where that doubles.
        copy_report_ns: How often the proxy is told how many rows have been copied.
        drop_stages_ns: How often old staged rows are looked for, by a node that has
            applied all that was decided; of other jobs as soon as it has.
        entries_waiting_max: Entries of one job that wait to be applied.
        questions_waiting_max: Questions that wait for a batch.
        questions_size_bytes_max: What they take in memory.
        chunks_per_writer_max: Chunks of one writer that wait for the disk.
        chunks_size_bytes_max: All that wait for the disk.
    """

    pause_ns: int = NS_PER_SECOND // 10
    pause_ns_max: int = 5 * NS_PER_SECOND
    answer_timeout_ns: int = 5 * NS_PER_SECOND
    retry_ns: int = 30 * NS_PER_SECOND
    copy_retry_ns: int = NS_PER_SECOND
    copy_retry_ns_max: int = 10 * NS_PER_SECOND
    copy_report_ns: int = NS_PER_SECOND
    drop_stages_ns: int = 300 * NS_PER_SECOND
    entries_waiting_max: int = 1_000
    questions_waiting_max: int = 10_000
    questions_size_bytes_max: int = 16 << 20
    chunks_per_writer_max: int = 64
    chunks_size_bytes_max: int = 256 * 1024 * 1024
