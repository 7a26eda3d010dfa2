"""What operators do with nodes and key groups, and what goes wrong with copies."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from queryablestate.wire.operation_messages import DrainNode, RescaleJob
from tests.simulation.timeline import MS
from tests.state_simulation.calls import Call
from tests.state_simulation.scenario import Profile


if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.state_simulation.proxy import WriterRequest
    from tests.state_simulation.world import World


__all__ = ["MoveFaults"]

_SESSION: Final = b"session"
_LEAVE_NS: Final = 3_000 * MS


@final
class MoveFaults:
    """
    Makes key groups move, and disturbs that.

    Args:
        world: Where it happens.
        rng: Draws what, and for how long.
        within: Returns a random duration up to one, over before faults must stop.
    """

    def __init__(self, world: World, rng: Random, within: Callable[[int], int]) -> None:
        self._world = world
        self._rng = rng
        self._within = within

    def _ask(self, build: Callable[[int, int], WriterRequest]) -> None:
        network = self._world.network
        # Faults end when they must: a node that is drained later would stay drained.
        Call(
            self._world,
            network.new_link(),
            build,
            lambda _: None,
            timeout_ns=1_000 * MS,
            is_alive=lambda: not network.is_calm,
            arrives=lambda: not network.is_calm,
        )

    def rescale(self) -> bool:
        """Give a job another number of nodes, or of copies."""
        rng, scenario = self._rng, self._world.scenario
        job_id = rng.choice(scenario.queries).job_id
        least = 2 if scenario.profile is Profile.ONE_AWAY else 1
        node_count = rng.randint(least, max(least, scenario.host_count))
        replica_count = rng.choice((None, None, None, 1, 2))
        if scenario.profile is Profile.ONE_AWAY:
            replica_count = None
        self._ask(
            lambda request_id, _: RescaleJob(
                request_id=request_id,
                session=_SESSION,
                job_id=job_id,
                node_count=node_count,
                replica_count=replica_count,
            )
        )
        return True

    def drain_node(self) -> bool:
        """Have a node emptied, or have it take part again."""
        host = self._rng.choice(self._world.hosts)
        node_id, is_undone = host.node_id, self._rng.random() < 0.5
        if is_undone and host.node is not None and host.node.is_leaving:
            return False  # it would end with what it is given
        self._ask(
            lambda request_id, _: DrainNode(
                request_id=request_id,
                session=_SESSION,
                node_id=node_id,
                is_undone=is_undone,
            )
        )
        return True

    def leave_node(self) -> bool:
        """Have a node emptied, and end then; or a while later in any case."""
        world = self._world
        host = self._rng.choice(world.hosts)
        node = host.node
        if node is None:
            return False
        is_storm = world.scenario.profile is Profile.STORM
        if not is_storm and not any(
            one.node is not None and not one.node.is_leaving
            for one in world.hosts
            if one is not host
        ):
            return False  # none would be left in the end
        node.leave()

        def end() -> None:
            if host.node is node:
                host.stop()
                world.timeline.after(self._within(1_000 * MS), host.start)

        if is_storm:
            world.timeline.after(self._within(_LEAVE_NS), end)
        return True

    def join_node(self) -> bool:
        """Start a node on a machine where none runs."""
        down = [host for host in self._world.hosts if not host.is_up]
        if not down:
            return False
        self._rng.choice(down).start()
        return True

    def slow_copies(self) -> bool:
        """Make pages take long for a while."""
        world = self._world
        if world.copy_slowness > 1:
            return False
        is_storm = world.scenario.profile is Profile.STORM
        world.copy_slowness = self._rng.choice((10, 100)) if is_storm else 5

        def end() -> None:
            world.copy_slowness = 1

        world.timeline.after(self._within(1_500 * MS), end)
        return True

    def cut_off_copies(self) -> bool:
        """Break what nodes copy from each other; keep one from doing so for a while."""
        world = self._world
        links = list(world.copy_links.values())
        for link in links:
            if self._rng.random() < 0.7:
                link.sever()
        is_storm = world.scenario.profile is Profile.STORM
        duration_ns = self._within(1_500 * MS if is_storm else 200 * MS)
        node_id = self._rng.choice(world.hosts).node_id
        if self._rng.random() < 0.5 and node_id not in world.cut_off:
            world.cut_off.add(node_id)
            world.timeline.after(duration_ns, partial(world.cut_off.discard, node_id))
        return True
