"""
Rows that a node keeps of another control plane than the one that it serves.

A name service that has lost its store begins a new control plane, and nodes set the
rows of the one before aside (`queryablestate.node.directory`).  They say so when they
register, and the proxy leader writes it down with the node: a job that nodes keep rows
of is unavailable, and not unknown (rule W7).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from queryablestate.wire.wire_struct import WireStruct


__all__ = ["KEPT_JOB_COUNT_MAX", "KeptJob", "KeptRows"]

KEPT_JOB_COUNT_MAX: Final = 1_000
"""Jobs that a node names of all control planes together, the newest directory first."""


class KeptJob(WireStruct, frozen=True, kw_only=True):
    """
    What is kept of one job.

    Attributes:
        job_id: The job.
        sequence: The last entry of its chain that was applied.
        batch_id: The batch that was applied last, or None while that is not told.
        decided_at_us: When that was decided, microseconds since 1970 UTC, or 0.
        key_groups: Of which rows are kept: the first and the last one of each run,
            sorted.
    """

    job_id: Annotated[str, Meta(min_length=1, max_length=255)]
    sequence: int
    batch_id: int | None
    decided_at_us: int
    key_groups: tuple[tuple[int, int], ...]


class KeptRows(WireStruct, frozen=True, kw_only=True):
    """
    What a node keeps of one control plane.

    Attributes:
        control_id: The control plane.
        store_id: The store that they are in.
        jobs: Those that have rows, sorted.
    """

    control_id: str
    store_id: str
    jobs: tuple[KeptJob, ...]
