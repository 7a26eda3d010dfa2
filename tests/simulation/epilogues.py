"""One fault alone, when all is well: what a rule promises exactly."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from tests.simulation.network import DROP
from tests.simulation.scenario import Epilogue
from tests.simulation.stalls import Stalls
from tests.simulation.timeline import MS


if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from tests.simulation.client import ClientProcess
    from tests.simulation.world import World


__all__ = ["Epilogues"]

# Connecting, callbacks, a few messages and timers.
_SLACK_NS: Final = 500 * MS
# From its connection until a client's claim is there: four messages to the server.
_CLAIM_NS: Final = 20 * MS


@final
class Epilogues:
    """What may follow when everybody agrees."""

    def __init__(self, world: World) -> None:
        self._world = world

    def play(self, epilogue: str) -> None:
        """Have *epilogue* happen, and check what becomes of it."""
        world = self._world
        world.trace("world", "epilogue", epilogue)
        world.counts[f"epilogue: {epilogue}"] += 1
        match epilogue:
            case Epilogue.SERVER_PAUSED:
                self._pause_server()
            case Epilogue.SERVER_RESTARTED:
                self._restart_server()
            case Epilogue.LEADER_KILLED:
                self._kill_leader()
            case Epilogue.LEADER_DEAF:
                self._deafen_leader()
            case Epilogue.CONTENDERS_CLOSED:
                self._close_contenders()
            case Epilogue.SERVER_STALLS:
                self._stall_server()
            case Epilogue.LEADER_KILLED_IN_STALLS:
                self._kill_leader_in_stalls()
            case _:
                pass

    def _led(self) -> dict[str, UUID]:
        """Return which leadership each component has."""
        led = {}
        for component_id in self._world.scenario.components:
            leader = self._world.leader(component_id)
            if leader is not None and leader.held is not None:
                led[component_id] = leader.held.leader_session_id
        return led

    def _lease_ns(self) -> int:
        """Return the longest lease of all, on the slowest clock."""
        return self._world.scenario.lease_ns_max * 105 // 100

    def _pause_server(self) -> None:
        """Check E9: the server's own pause costs no contender a leadership."""
        world = self._world
        before = self._led()
        granted_count = world.counts["leaderships granted"]
        process = world.host.process
        assert process is not None
        process.pause()
        longest_ns = max(client.plan.session_timeout_ns for client in world.clients)
        pause_ns = round(world.rng.uniform(0.1, 2.5) * longest_ns)
        world.timeline.run_until(world.timeline.now_ns + pause_ns)
        process.resume()
        rule = "E9 the server's own pause costs no leadership"
        world.run_until_agreed(
            2 * self._lease_ns() + _SLACK_NS, settles=True, rule=rule
        )
        world.checker.require(
            rule,
            self._led() == before
            and world.counts["leaderships granted"] == granted_count,
            f"{before} became {self._led()} in {pause_ns / 1e9:.3f} s",
        )

    def _restart_server(self) -> None:
        """Check E9: after a restart, incumbents keep what they claim in time."""
        world = self._world
        before = self._led()
        incumbents = {}
        for component_id in before:
            leader = world.leader(component_id)
            assert leader is not None
            incumbents[component_id] = leader.client
        world.server_dies()
        down_ns = round(world.rng.random() * 2 * self._lease_ns())
        world.timeline.run_until(world.timeline.now_ns + down_ns)
        world.server_starts()
        rule = "E9 a restart of the server costs no leadership"
        # Undecided for a lease, and without a data directory to the end of a second.
        undecided_ns = max(self._lease_ns(), 1_050 * MS)
        world.run_until_agreed(
            undecided_ns + 2 * self._lease_ns() + _SLACK_NS, settles=True, rule=rule
        )
        after = self._led()
        for component_id, client in incumbents.items():
            if self._came_too_late(client):
                world.counts["incumbents that came back too late"] += 1
                continue
            world.checker.require(
                rule,
                after.get(component_id) == before[component_id],
                f"{before} became {after}",
            )

    def _came_too_late(self, client: ClientProcess) -> bool:
        """
        Return whether the server had to decide before *client* could claim.

        It waits for its longest lease, which may be shorter here than what a client
        takes to find the way back.
        """
        process = self._world.host.process
        assert process is not None
        decided_ns = self._world.host.started_ns + process.undecided_ns
        return client.connected_ns + _CLAIM_NS >= decided_ns

    def _kill_leader(self) -> None:
        """Check E5: a death that closes the connection costs about a lease."""
        world = self._world
        for component_id in world.scenario.components:
            leader = world.leader(component_id)
            if leader is not None:
                world.client_dies(leader.client, report_ns=2 * MS)
        world.run_until_agreed(
            self._lease_ns() + _SLACK_NS,
            settles=True,
            rule="E5 another leads within about a lease of a leader's death",
        )

    def _stall_server(self) -> None:
        """Check E9: stalls that come again and again cost no contender a leadership."""
        world = self._world
        before = self._led()
        granted_count = world.counts["leaderships granted"]
        stalls = Stalls.drawn(world.rng)
        until_ns = world.timeline.now_ns + round(
            world.rng.uniform(1.0, 8.0) * self._lease_ns()
        )
        stalls.begin(world, until_ns=until_ns)
        world.timeline.run_until(until_ns + stalls.stall_ns)
        rule = "E9 the server's own pause costs no leadership"
        world.run_until_agreed(
            2 * self._lease_ns() + _SLACK_NS, settles=True, rule=rule
        )
        world.checker.require(
            rule,
            self._led() == before
            and world.counts["leaderships granted"] == granted_count,
            f"{before} became {self._led()} in {stalls}",
        )

    def _kill_leader_in_stalls(self) -> None:
        """Check E5 and E9: a lease, the stalls, and a lease again, whatever recurs."""
        world = self._world
        shortest_ns = min(client.plan.lease_ns for client in world.clients)
        stalls = Stalls.drawn(world.rng).within(shortest_ns)
        running_ns = 2 * self._lease_ns() + _SLACK_NS
        bound_ns = stalls.real_ns(running_ns)
        stalls.begin(world, until_ns=world.timeline.now_ns + 2 * bound_ns)
        killed = {}
        for component_id in world.scenario.components:
            leader = world.leader(component_id)
            if leader is not None:
                assert leader.held is not None
                killed[component_id] = leader.held.epoch
                world.client_dies(leader.client, report_ns=2 * MS)
        world.run_until_agreed(
            bound_ns,
            settles=False,
            rule="E5 another leads in time however often the server stalls",
            problem=partial(self._unsucceeded, killed),
        )

    def _unsucceeded(self, killed: Mapping[str, int]) -> str | None:
        """
        Return of which component the epoch that was killed has no successor.

        Whether that one believes is no question here: stalls suspend all clients, in
        most of the moments at which anybody looks.
        """
        process = self._world.host.process
        assert process is not None
        for component_id, epoch in killed.items():
            if not self._world.elections(component_id):
                continue
            component = process.service.core.component(component_id)
            publication = None if component is None else component.publication
            if (
                publication is None
                or publication.leader is None
                or publication.epoch <= epoch
            ):
                return f"{component_id} has no leader after epoch {epoch}"
        return None

    def _deafen_leader(self) -> None:
        """Check E5: a client that hears no answers keeps no session by speaking."""
        world = self._world
        timeout_ns = 0
        for component_id in world.scenario.components:
            leader = world.leader(component_id)
            if leader is not None:
                client = leader.client
                client.is_deaf = True
                client.path.to_client.blocked = DROP
                client.path.broadcasts.blocked = DROP
                timeout_ns = max(timeout_ns, client.plan.session_timeout_ns)
        world.run_until_agreed(
            2 * timeout_ns * 105 // 100 + self._lease_ns() + _SLACK_NS,
            settles=True,
            rule="E5 a session without answers ends",
        )

    def _close_contenders(self) -> None:
        """Check E7 and R2: none is left, and everybody is told."""
        world = self._world
        for component_id in world.scenario.components:
            for election in world.elections(component_id):
                election.close(reopens=False)
        world.run_until_agreed(
            self._lease_ns() + _SLACK_NS,
            settles=True,
            rule="E7 there is no leader once all have closed",
        )
