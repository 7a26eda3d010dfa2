"""
Links between clients and the server, as bad as the scenario says.

Each client has one connection at a time for its requests, and hears broadcasts beside
it.  The network may lose, delay, repeat and reorder messages; a partition holds them
back or drops them, in one direction or in both.  A connection breaks on its own
account; either side learns of it late, and the server perhaps never.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from attrs import Factory, define

from tests.simulation.timeline import MS


if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.scenario import NetworkPlan
    from tests.simulation.timeline import Timeline


__all__ = ["DROP", "HOLD", "Lane", "Network", "Path"]

HOLD: Final = "hold"
DROP: Final = "drop"


@define(eq=False)
class Lane:
    """
    One direction of one connection, or the broadcasts to one client.

    Attributes:
        blocked: How a partition treats what is sent, or None.
        last_ns: When the latest message arrives, to keep order.
        held: What waits for the end of the partition.
    """

    blocked: str | None = None
    last_ns: int = 0
    held: list[Callable[[], object]] = Factory(list)


@define(eq=False)
class Path:
    """What lies between one client and the server."""

    to_server: Lane = Factory(Lane)
    to_client: Lane = Factory(Lane)
    broadcasts: Lane = Factory(Lane)

    @property
    def lanes(self) -> tuple[Lane, Lane, Lane]:
        """Return all lanes."""
        return (self.to_server, self.to_client, self.broadcasts)

    @property
    def is_open(self) -> bool:
        """Return whether a connection can be made."""
        return self.to_server.blocked is None and self.to_client.blocked is None


@final
class Network:
    """
    Delays and losses.

    Attributes:
        counts: What happened to messages.
        is_calm: Whether nothing bad happens any more.
    """

    def __init__(
        self,
        plan: NetworkPlan,
        timeline: Timeline,
        rng: Random,
        *,
        lease_ns_max: int,
        faults_end_ns: int,
    ) -> None:
        self._plan = plan
        self._timeline = timeline
        self._rng = rng
        self._lease_ns_max = lease_ns_max
        self._faults_end_ns = faults_end_ns
        self.counts: Counter[str] = Counter()
        self.is_calm = False
        self.storm_loss = 0.0

    def delay_ns(self) -> int:
        """Return how long one message takes."""
        plan = self._plan
        if self.is_calm:
            return MS // 2 + self._rng.randrange(MS)
        return plan.latency_ns + round(self._rng.expovariate(1.0) * plan.jitter_ns)

    def transmit(self, lane: Lane, deliver: Callable[[], object]) -> None:
        """Have *deliver* happen when the message arrives, if ever, and how often."""
        self.counts["messages sent"] += 1
        if lane.blocked is not None:
            if lane.blocked == HOLD:
                lane.held.append(deliver)
                self.counts["messages held back by a partition"] += 1
            else:
                self.counts["messages lost in a partition"] += 1
            return
        if self.is_calm:
            self._send(lane, deliver, self.delay_ns())
            return
        rng, plan = self._rng, self._plan
        if rng.random() < max(plan.loss, self.storm_loss):
            self.counts["messages lost"] += 1
            return
        delay_ns = self.delay_ns()
        if rng.random() < plan.late:
            self.counts["messages late"] += 1
            delay_ns += rng.randrange(2 * self._lease_ns_max)
        self._send(lane, deliver, delay_ns)
        if rng.random() < plan.duplication:
            self.counts["messages duplicated"] += 1
            self._send(lane, deliver, delay_ns + self.delay_ns())

    def _send(self, lane: Lane, deliver: Callable[[], object], delay_ns: int) -> None:
        when_ns = self._timeline.now_ns + delay_ns
        if not self.is_calm:
            # What is late is not later than the time in which the faults must pass.
            when_ns = min(when_ns, max(self._faults_end_ns, self._timeline.now_ns))
        if when_ns < lane.last_ns:
            if self._plan.is_ordered or self.is_calm:
                when_ns = lane.last_ns
            else:
                self.counts["messages overtaken"] += 1
        lane.last_ns = max(lane.last_ns, when_ns)
        self._timeline.at(when_ns, deliver)

    def heal(self, lane: Lane) -> None:
        """End the partition of *lane*; what was held back arrives in a burst."""
        if lane.blocked is None:
            return
        lane.blocked = None
        held, lane.held = lane.held, []
        for deliver in held:
            self._send(lane, deliver, self.delay_ns())
