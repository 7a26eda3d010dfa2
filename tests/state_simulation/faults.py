"""What goes wrong: faults by kind, at random times, until they must stop."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

from queryablestate.wire.clients import DropState
from tests.simulation.timeline import MS
from tests.state_simulation.calls import Call
from tests.state_simulation.move_faults import MoveFaults
from tests.state_simulation.scenario import FAULT_NAMES, SESSION_TIMEOUT_NS, Profile


if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.state_simulation.driver import Query
    from tests.state_simulation.node import Node
    from tests.state_simulation.world import World


__all__ = ["Faults"]

_SESSION: Final = b"session"
_STALL_NS_MAX: Final = SESSION_TIMEOUT_NS // 2
_SETTLED_NS: Final = 4 * SESSION_TIMEOUT_NS
_DEAF_NS_MAX: Final = SESSION_TIMEOUT_NS
_NEEDS_ALL: Final = (
    "kill node",
    "lose disk",
    "isolate node",
    "drain node",
    "leave node",
)
_CHANGES_LEADER: Final = ("change leader", "restart leader")


@final
class Faults:
    """Everything bad that happens in one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/faults")
        # Of their own: what else goes wrong in a run is not changed by them.
        self._stalls = Random(f"{world.seed}/stalls")
        self._cuts = Random(f"{world.seed}/cuts")
        self._takeovers = Random(f"{world.seed}/takeovers of states")
        self._put_backs = Random(f"{world.seed}/older states of disks")
        moves = MoveFaults(world, self._rng, self._within)
        self._leader_changed_at_ns = self._taken_away_at_ns = -_SETTLED_NS
        self._actions: dict[str, Callable[[], bool]] = {
            "change leader": self._change_leader,
            "restart leader": self._restart_leader,
            "suspend leader": self._suspend_leader,
            "lose store answers": self._lose_store_answers,
            "kill node": self._kill_node,
            "lose disk": self._lose_disk,
            "exchange disk": self._exchange_disk,
            "break connection": self._break_connection,
            "isolate node": self._isolate_node,
            "slow disk": self._slow_disk,
            "full queue": self._fill_queue,
            "kill driver": self._kill_driver,
            "split driver": self._split_driver,
            "pause driver": self._pause_driver,
            "restore checkpoint": self._restore_checkpoint,
            "replace query": self._replace_query,
            "return to query": self._return_to_query,
            "drop state": self._drop_state,
            "skip batch": self._skip_batch,
            "storm": self._storm,
            "rescale": moves.rescale,
            "drain node": moves.drain_node,
            "leave node": moves.leave_node,
            "join node": moves.join_node,
            "slow copies": moves.slow_copies,
            "cut off copies": moves.cut_off_copies,
        }
        assert tuple(self._actions) == FAULT_NAMES

    def begin(self) -> None:
        """Begin with faults."""
        self._stall_later()
        self._strike_later()
        if self._world.scenario.cuts_off:
            self._cut_off_later()
        if self._world.scenario.takes_over:
            self._take_over_later()
        if self._world.scenario.puts_back:
            self._put_back_later()

    def _strike_later(self) -> None:
        interval_ns = self._world.scenario.fault_interval_ns
        delay_ns = 1 + round(self._rng.expovariate(1.0) * interval_ns)
        self._world.timeline.after(delay_ns, self._strike)

    def _strike(self) -> None:
        world = self._world
        if world.network.is_calm:
            return
        (name,) = self._rng.choices(FAULT_NAMES, world.scenario.fault_weights)
        if self._may(name) and self._actions[name]():
            world.counts[f"fault: {name}"] += 1
            world.trace("world", f"fault: {name}")
        self._strike_later()

    def _stall_later(self) -> None:
        interval_ns = self._world.scenario.fault_interval_ns
        delay_ns = 1 + round(self._stalls.expovariate(1.0) * interval_ns)
        # One after the other: two of one node add up to more than its session.
        self._world.timeline.after(SESSION_TIMEOUT_NS + delay_ns, self._stall)

    def _stall(self) -> None:
        """Make a node silent, for less than it takes to be taken for away."""
        world = self._world
        if world.network.is_calm:
            return
        node = self._stalls.choice(world.hosts).node
        duration_ns = self._stalls.randrange(1, _STALL_NS_MAX)
        if node is not None and node.stall(duration_ns):
            world.counts["fault: stalled node"] += 1
            world.trace("world", f"fault: {node.node_id} stalls for {duration_ns} ns")
        self._stall_later()

    def _cut_off_later(self) -> None:
        least_ns = SESSION_TIMEOUT_NS
        if self._world.scenario.takes_over:
            least_ns //= 10  # all are there again sooner: little else goes wrong
        delay_ns = self._cuts.randrange(least_ns, 2 * least_ns)
        self._world.timeline.after(delay_ns, self._cut_off)

    def _cut_off(self) -> None:
        """Have a node lose the proxy, which notices, and the node does not for long."""
        world = self._world
        if world.network.is_calm:
            return
        node = self._cuts.choice(world.hosts).node
        if node is not None and world.is_whole() and self._may("isolate node"):
            if self._cuts.random() < 0.5:
                self._deafen(node)
            elif node.cut_off():
                world.counts["fault: node cut off"] += 1
                world.trace("world", f"fault: {node.node_id} is cut off")
        self._cut_off_later()

    def _deafen(self, node: Node) -> None:
        """Have others take over from a node, which does not hear of it for long."""
        world, duration_ns = self._world, self._cuts.randrange(_DEAF_NS_MAX)
        if node.is_leaving or not node.deafen(duration_ns):
            return
        world.counts["fault: node deafened"] += 1
        world.trace("world", f"fault: {node.node_id} is deaf for {duration_ns} ns")
        world.drain(node.node_id)
        undo = partial(world.drain, node.node_id, is_undone=True)
        world.timeline.after(2 * duration_ns + 1, undo)

    def _take_over_later(self) -> None:
        delay_ns = self._takeovers.randrange(20 * MS, 300 * MS)
        self._world.timeline.after(delay_ns, self._take_over)

    def _take_over(self) -> None:
        """Have another query take over what one writes that has written something."""
        world = self._world
        if world.network.is_calm:
            return
        query = self._takeovers.choice(world.queries)
        if query.checkpoint.commits:
            query.replace(self._takeovers.choice(("replace", "continue")))
            world.counts["fault: state taken over"] += 1
        self._take_over_later()

    def _put_back_later(self) -> None:
        interval_ns = 2 * self._world.scenario.fault_interval_ns
        delay_ns = 1 + round(self._put_backs.expovariate(1.0) * interval_ns)
        self._world.timeline.after(delay_ns, self._put_back)

    def _put_back(self) -> None:
        """Keep a copy of a data directory, or have one be what it was."""
        world = self._world
        if world.network.is_calm:
            return
        host = self._put_backs.choice(world.hosts)
        if not host.disk.has_backup or self._put_backs.random() < 0.3:
            world.trace("world", f"{host.disk} is backed up")
            host.disk.back_up()
        else:
            world.counts["fault: older state of a disk put back"] += 1
            world.trace("world", f"fault: an older state of {host.disk} is put back")
            host.stop()
            host.put_disk_back()
            left_ns = world.scenario.faults_end_ns - world.timeline.now_ns
            delay_ns = self._put_backs.randrange(1, SESSION_TIMEOUT_NS)
            world.timeline.after(max(0, min(delay_ns, left_ns)), host.start)
        self._put_back_later()

    def _may(self, name: str) -> bool:
        """Return whether that may happen now: see `Profile.ONE_AWAY`."""
        if self._world.scenario.profile is not Profile.ONE_AWAY:
            return True
        if name in _NEEDS_ALL:
            # What was begun a moment ago is not written down yet.
            now_ns = self._world.timeline.now_ns
            is_over = now_ns - self._taken_away_at_ns >= SESSION_TIMEOUT_NS
            if not is_over or not self._world.is_whole():
                return False
            self._taken_away_at_ns = now_ns
        if name in _CHANGES_LEADER:
            now_ns = self._world.timeline.now_ns
            if now_ns - self._leader_changed_at_ns < _SETTLED_NS:
                return False
            self._leader_changed_at_ns = now_ns
        return True

    def _within(self, duration_ns: int) -> int:
        """Return a random duration, over before faults must stop."""
        left_ns = self._world.scenario.faults_end_ns - self._world.timeline.now_ns
        return max(0, min(self._rng.randrange(1, duration_ns), left_ns))

    # -- proxies ---------------------------------------------------------------------

    def _change_leader(self) -> bool:
        self._world.change_leader()
        return True

    def _restart_leader(self) -> bool:
        world = self._world
        proxy = world.leader
        if proxy is None:
            return False
        world.restart_proxy(proxy)
        return True

    def _suspend_leader(self) -> bool:
        """Take a leader out of contact, and have it lead on; or depose it meanwhile."""
        proxy = self._world.leader
        if proxy is None or proxy.is_suspended:
            return False
        proxy.is_suspended = True

        def end() -> None:
            proxy.is_suspended = False

        self._world.timeline.after(self._within(SESSION_TIMEOUT_NS), end)
        return True

    def _lose_store_answers(self) -> bool:
        """Put the leader store in doubt more often for a while; see `Scenario`."""
        world = self._world
        if world.store_doubt:
            return False
        world.store_doubt = 0.4
        duration_ns = self._within(600 * MS)

        def end() -> None:
            world.store_doubt = 0.0

        world.timeline.after(duration_ns, end)
        return True

    # -- nodes -----------------------------------------------------------------------

    def _kill_node(self) -> bool:
        world = self._world
        host = self._rng.choice(world.hosts)
        if not host.is_up:
            return False
        host.stop()
        # Long enough for what it had staged to be older than the retention, or short.
        long_ns = self._rng.choice((100 * MS, 2 * SESSION_TIMEOUT_NS, 9_000 * MS))
        down_ns = self._within(long_ns)
        world.timeline.after(down_ns, host.start)
        if self._rng.random() < 0.3:  # and it does not find the proxy for a while
            world.isolated.add(host.node_id)
            back_ns = down_ns + self._within(SESSION_TIMEOUT_NS)
            world.timeline.after(back_ns, partial(world.isolated.discard, host.node_id))
        return True

    def _lose_disk(self) -> bool:
        host = self._rng.choice(self._world.hosts)
        if self._rng.random() < 0.5:
            return False  # half as often as other faults
        host.stop()
        host.replace_disk()
        self._world.timeline.after(self._within(SESSION_TIMEOUT_NS), host.start)
        return True

    def _exchange_disk(self) -> bool:
        host = self._rng.choice(self._world.hosts)
        if len(host.disks) < 2:
            return False
        host.stop()
        number = self._rng.randrange(len(host.disks))
        if host.disks[number] is not host.disk:
            host.exchange_disk(number)
        self._world.timeline.after(self._within(SESSION_TIMEOUT_NS), host.start)
        return True

    def _break_connection(self) -> bool:
        host = self._rng.choice(self._world.hosts)
        if host.node is None:
            return False
        host.node.isolate()
        return True

    def _isolate_node(self) -> bool:
        world = self._world
        host = self._rng.choice(world.hosts)
        if host.node is None or host.node_id in world.isolated:
            return False
        world.isolated.add(host.node_id)
        host.node.isolate()
        duration_ns = self._within(2 * SESSION_TIMEOUT_NS)
        world.timeline.after(duration_ns, partial(world.isolated.discard, host.node_id))
        return True

    def _slow_disk(self) -> bool:
        node = self._rng.choice(self._world.hosts).node
        if node is None or node.slowness > 1:
            return False
        node.slowness = self._rng.choice((5, 40))

        def end() -> None:
            node.slowness = 1

        self._world.timeline.after(self._within(1_000 * MS), end)
        return True

    def _fill_queue(self) -> bool:
        """Have a node take nothing for a moment: what is sent to it is dropped."""
        host = self._rng.choice(self._world.hosts)
        if host.node is None:
            return False
        return host.node.fill_queue(self._within(300 * MS))

    # -- drivers ---------------------------------------------------------------------

    def _query(self) -> Query:
        return self._rng.choice(self._world.queries)

    def _kill_driver(self) -> bool:
        query = self._query()
        if query.run is None or not query.run.is_alive:
            return False
        query.run.kill()
        query.start()
        return True

    def _split_driver(self) -> bool:
        query = self._query()
        if query.run is None or not query.run.is_alive:
            return False
        query.restart_beside()
        return True

    def _pause_driver(self) -> bool:
        """Have a driver sleep; its supervisor may take it for dead meanwhile."""
        query = self._query()
        run = query.run
        if run is None or not run.is_alive:
            return False
        run.pause(self._within(1_500 * MS))
        if self._rng.random() < 0.5:
            query.restart_beside()
        return True

    def _restore_checkpoint(self) -> bool:
        return self._query().restore()

    def _replace_query(self) -> bool:
        on_new_query = self._rng.choice(("refuse", "replace", "continue"))
        self._query().replace(on_new_query)
        return True

    def _return_to_query(self) -> bool:
        on_new_query = self._rng.choice(("replace", "continue", "continue"))
        return self._query().come_back(on_new_query)

    def _drop_state(self) -> bool:
        world = self._world
        job_id, state_name = self._rng.choice(world.state_names)
        Call(
            world,
            world.network.new_link(),
            lambda request_id, _: DropState(
                request_id=request_id,
                session=_SESSION,
                job_id=job_id,
                state_name=state_name,
            ),
            lambda _: None,
            timeout_ns=1_000 * MS,
            is_alive=lambda: True,
        )
        return True

    def _skip_batch(self) -> bool:
        query = self._query()
        run = query.run
        if run is None:
            return False
        run.kill()
        query.skip_batch()
        query.start()
        return True

    # -- the network -----------------------------------------------------------------

    def _storm(self) -> bool:
        network = self._world.network
        if network.storm_loss:
            return False
        network.storm_loss = 0.6

        def end() -> None:
            network.storm_loss = 0.0

        self._world.timeline.after(self._within(500 * MS), end)
        return True
