"""
What a running server tells of itself, for metrics and health; values only.

`LeaderServer`, `QueryStateProxyServer`, `StateNode` and `GatewayServer` have a method
``observe`` that returns an `Observation`.  What serves metrics (`haservices.metrics`)
knows no more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, final

from attrs import field, frozen

from nameservice.clock import NS_PER_SECOND


__all__ = [
    "JobStanding",
    "Latencies",
    "LatencyBuckets",
    "Observable",
    "Observation",
    "StateFreshness",
    "StoppedJob",
]


@final
@frozen(kw_only=True)
class StateFreshness:
    """
    How new one state is.

    Attributes:
        job_id: The job.
        state_name: The state.
        generation: The present ownership.
        batch_id: The last batch decided in it, or None before the first.
        age_seconds: How long ago that was, or None.
    """

    job_id: str
    state_name: str
    generation: int
    batch_id: int | None
    age_seconds: float | None


@final
@frozen(kw_only=True)
class JobStanding:
    """
    How the key groups of one job stand; a copy counts if its node is there.

    Attributes:
        job_id: The job.
        key_groups: How many it has.
        key_groups_unavailable: Those without a copy that could be asked.
        key_groups_short: Those with fewer copies than the job is to have.
        copies: Copies that could be asked.
        copies_left: Copies that are still to be made: moves, and repairs.
        nodes_stopped: Nodes that cannot go on with the job.
        entries_behind: Decided entries that the slowest node that is there has yet to
            apply.
    """

    job_id: str
    key_groups: int
    key_groups_unavailable: int
    key_groups_short: int
    copies: int
    copies_left: int
    nodes_stopped: int
    entries_behind: int


@final
@frozen(kw_only=True)
class StoppedJob:
    """
    Why a job is stopped on one node.

    Attributes:
        job_id: The job.
        reason: A word of ours; the log of the node has the sentence.
    """

    job_id: str
    reason: str


@final
@frozen(kw_only=True)
class LatencyBuckets:
    """
    How many questions of one kind took how long.

    Attributes:
        kind: Of question.
        counts: For each of `Latencies.BOUNDS_SECONDS` how many took at most as long,
            and more than the bound before; last, how many took longer than all.
        sum_seconds: How long all took together.
    """

    kind: str
    counts: Sequence[int]
    sum_seconds: float


@final
class Latencies:
    """
    Counts how long questions took, by their kind.  For one thread.

    Attributes:
        BOUNDS_SECONDS: From a tenth of a millisecond to ten seconds, about three for
            each power of ten.
    """

    BOUNDS_SECONDS: Final = (
        *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
        *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    )
    _BOUNDS_NS: Final = tuple(round(one * NS_PER_SECOND) for one in BOUNDS_SECONDS)

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums_ns: dict[str, int] = {}

    def add(self, kind: str, duration_ns: int) -> None:
        """Count one; the kinds are few, and names of ours."""
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = [0] * (len(self._BOUNDS_NS) + 1)
            self._sums_ns[kind] = 0
        counts[bisect_left(self._BOUNDS_NS, duration_ns)] += 1
        self._sums_ns[kind] += duration_ns

    def buckets(self) -> Sequence[LatencyBuckets]:
        """Return what was counted until now, by kind."""
        return [
            LatencyBuckets(
                kind=kind,
                counts=tuple(counts),
                sum_seconds=self._sums_ns[kind] / NS_PER_SECOND,
            )
            for kind, counts in sorted(self._counts.items())
        ]


@final
@frozen(kw_only=True)
class Observation:
    """
    One server at one moment.

    Attributes:
        role: ``server``, ``proxy``, ``node`` or ``gateway``.
        figures: As ``status`` returns them.
        problem: Why it would not answer now, for a person, or None.
        states: Of a proxy that leads, how new states are; no more than were asked for.
        states_left_out: How many states are not among them.
        jobs: Of a proxy that leads, how jobs stand; no more than *states* may be.
        stopped: Of a node, the jobs that are stopped there.
        latencies: Of a proxy, a node and a gateway, how long answers took.
    """

    role: str
    figures: Mapping[str, str | int | float]
    problem: str | None
    states: Sequence[StateFreshness] = ()
    states_left_out: int = 0
    jobs: Sequence[JobStanding] = ()
    stopped: Sequence[StoppedJob] = ()
    latencies: Sequence[LatencyBuckets] = field(default=())


class Observable(Protocol):
    """A server that can be observed from any thread."""

    def observe(
        self, *, timeout_seconds: float = ..., state_count_max: int = ...
    ) -> Observation:
        """
        Return what it tells of itself, from its own thread.

        Args:
            timeout_seconds: How long to wait for that thread.
            state_count_max: How many states, and how many jobs, to tell of at most.

        Raises:
            LocalProtocolError: If it is not running.
            UnreachableError: If its thread does not answer in time.
        """
        ...
