"""`Tally`: what a control plane has decided, and how long that took; pure."""

from __future__ import annotations

from typing import final

from attrs import define, field

from nameservice.observation import Latencies


__all__ = ["Tally"]


@final
@define
class Tally:
    """
    Counts for metrics; outlives the core of one leadership.

    Attributes:
        decided_count: Batches that were decided.
        latencies: From the request for a commit to the answer that it is applied, as
            ``commit``.
    """

    decided_count: int = 0
    latencies: Latencies = field(factory=Latencies)
