"""
Messages between processes, as late and as often as the scenario says.

Writers send *letters*: each may be lost, late, or come twice, since a writer that gets
no answer asks again over another connection.  A node, or a client, has a *connection*
to the proxy: what it carries comes in order and once, until it breaks; then some of
what was under way comes late, over a connection that is no more, and the rest does not.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from queryablestate.control.events import LinkId
from tests.simulation.timeline import MS


if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.timeline import Timeline
    from tests.state_simulation.scenario import NetworkPlan


__all__ = ["Connection", "Network"]

_LATE_NS: Final = 1_500 * MS
_CALM_NS: Final = MS
_FAR_NS: Final = 210 * MS
"""There and back takes longer than clients wait before they ask again."""


@final
class Network:
    """
    Delays and losses.

    Attributes:
        counts: What happened to letters and connections.
        is_calm: Whether nothing bad happens any more.
        storm_loss: A loss that is worse for a while.
        links: Connections that were ever made.
    """

    def __init__(self, plan: NetworkPlan, timeline: Timeline, rng: Random) -> None:
        self._plan = plan
        self._timeline = timeline
        self._rng = rng
        self.counts: Counter[str] = Counter()
        self.is_calm = False
        self.storm_loss = 0.0
        self._link_count = 0

    def new_link(self) -> LinkId:
        """Return the number of a connection that was not there before."""
        self._link_count += 1
        return LinkId(self._link_count)

    def delay_ns(self) -> int:
        """Return how long one message takes."""
        mean_ns = _CALM_NS if self.is_calm else self._plan.latency_ns
        return MS // 10 + round(self._rng.expovariate(1.0) * mean_ns)

    @property
    def away_ns(self) -> int:
        """Return how far away clients are, while all else is well."""
        return _FAR_NS if self.is_calm and self._plan.is_slow_for_good else 0

    def client_delay_ns(self) -> int:
        """Return how long a message of a client takes, and all that follow it."""
        delay_ns = self.delay_ns() + self.away_ns
        if not self.is_calm and self._rng.random() < self._plan.late / 10:
            self.counts["messages of clients late"] += 1
            delay_ns += self._rng.randrange(_LATE_NS)
        return delay_ns

    def breaks(self) -> bool:
        """Return whether a connection of a client breaks with the next message."""
        loss = max(self._plan.loss, self.storm_loss) / 4
        return not self.is_calm and self._rng.random() < loss

    def letter(self, deliver: Callable[[], object]) -> None:
        """Have *deliver* happen once the letter has arrived, if ever, and how often."""
        rng, plan = self._rng, self._plan
        self.counts["letters"] += 1
        if self.is_calm:
            self._timeline.after(self.delay_ns(), deliver)
            return
        if rng.random() < max(plan.loss, self.storm_loss):
            self.counts["letters lost"] += 1
            return
        delay_ns = self.delay_ns()
        if rng.random() < plan.late:
            self.counts["letters late"] += 1
            delay_ns += rng.randrange(_LATE_NS)
        self._timeline.after(delay_ns, deliver)
        if rng.random() < plan.duplication:
            self.counts["letters duplicated"] += 1
            again_ns = rng.choice((self.delay_ns(), rng.randrange(_LATE_NS)))
            self._timeline.after(delay_ns + again_ns, deliver)


@final
class _Lane:
    """One direction of a connection."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.last_ns = 0
        self.cut_ns: int | None = None

    def send(self, delay_ns: int, deliver: Callable[[], object]) -> None:
        when_ns = max(self.last_ns, self._timeline.now_ns + delay_ns)
        self.last_ns = when_ns

        def arrive() -> None:
            if self.cut_ns is None or when_ns <= self.cut_ns:
                deliver()

        self._timeline.at(when_ns, arrive)

    def cut(self, cut_ns: int) -> None:
        if self.cut_ns is None:
            self.cut_ns = cut_ns


@final
class Connection:
    """
    What lies between a proxy and a node, or a client.

    Args:
        network: Of both ends.
        timeline: Likewise.
        rng: Decides what a break costs.
        delay_ns: How long a message takes, if not as long as any.

    Attributes:
        link: What the proxy calls it.
        is_broken: Whether it carries nothing new any more.
        is_full: Whether the proxy's queue for the node is full.
        is_full_up: Whether the node's queue for the proxy is.
    """

    def __init__(
        self,
        network: Network,
        timeline: Timeline,
        rng: Random,
        delay_ns: Callable[[], int] | None = None,
    ) -> None:
        self._delay_ns = network.delay_ns if delay_ns is None else delay_ns
        self.link = network.new_link()
        self.is_broken = False
        self.is_full = False
        self.is_full_up = False
        self._network = network
        self._timeline = timeline
        self._rng = rng
        self._up = _Lane(timeline)
        self._down = _Lane(timeline)

    def to_proxy(self, deliver: Callable[[], object]) -> None:
        """Carry something from the node to the proxy."""
        if not self.is_broken:
            self._up.send(self._delay_ns(), deliver)

    def to_node(self, deliver: Callable[[], object]) -> None:
        """Carry something from the proxy to the node."""
        if not self.is_broken:
            self._down.send(self._delay_ns(), deliver)

    def stall(self, duration_ns: int) -> None:
        """Carry nothing for a while, as if the node were stopped; lose nothing."""
        for lane in (self._up, self._down):
            lane.last_ns = max(lane.last_ns, self._timeline.now_ns + duration_ns)

    def hold_down(self, duration_ns: int) -> None:
        """Carry nothing to the node for a while; lose nothing."""
        lane = self._down
        lane.last_ns = max(lane.last_ns, self._timeline.now_ns + duration_ns)

    def sever(self) -> int:
        """
        Break it; of what is under way, each end gets the first part at the most.

        Returns:
            When the last of that has arrived.
        """
        now_ns = self._timeline.now_ns
        if not self.is_broken:
            self._network.counts["connections broken"] += 1
        self.is_broken = True
        last_ns = now_ns
        for lane in (self._up, self._down):
            cut_ns = now_ns
            if lane.last_ns > now_ns and self._rng.random() < 0.7:
                cut_ns = self._rng.randint(now_ns, lane.last_ns)
            lane.cut(cut_ns)
            last_ns = max(last_ns, cut_ns)
        return last_ns
