"""
The server's machine is replaced by one whose clock is days behind (E8, R3).

Nothing on the new machine knows which epochs there were, and no report of them is
believed: they are more than a day ahead of its clock.  Its epochs begin below what was
seen.  Then those who have seen nothing go on, and all others are told why they wait.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, final

from election.epochs import incarnation_of
from tests.simulation.scenario import ClientPlan, Epilogue, Storage
from tests.simulation.timeline import MS


if TYPE_CHECKING:
    from tests.simulation.application import Election, Listener
    from tests.simulation.world import World


__all__ = ["Replacement"]

_SHARE: Final = 0.5
_DAYS_MIN: Final = 2
_DAYS_MAX: Final = 7
_SLACK_NS: Final = 500 * MS


@final
class Replacement:
    """
    The last epilogue of some runs in which the server remembers nothing.

    It draws from a source of its own: all that comes before is as if there were none.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.scenario.seed}/replaced")

    def play_perhaps(self) -> None:
        """Have the machine replaced in some runs, and check what becomes of it."""
        world = self._world
        days_max = min(_DAYS_MAX, world.host.wall_days)
        if (
            world.scenario.storage == Storage.MEMORY
            # There the server stalls on, and the bound below does not count that.
            and world.scenario.epilogue != Epilogue.LEADER_KILLED_IN_STALLS
            and days_max >= _DAYS_MIN
            and self._rng.random() < _SHARE
        ):
            self._replace(days=self._rng.randint(_DAYS_MIN, days_max))

    def _replace(self, *, days: int) -> None:
        world = self._world
        world.trace("world", "epilogue", f"server replaced, {days} days behind")
        world.counts["epilogue: server replaced"] += 1
        world.server_dies()
        world.host.replace(days=days)
        world.checker.epochs_begin_anew()
        world.client_joins(self._newcomer())
        world.timeline.run_until(
            world.timeline.now_ns + self._rng.randrange(world.scenario.lease_ns_max)
        )
        world.server_starts()
        end_ns = world.timeline.now_ns + self._bound_ns()
        for rule, problem in (
            ("E1 who is not ahead of a server that is behind leads", self._unled),
            ("R3 a retriever that is ahead of its server is told", self._untold),
            ("E8 a contender that is ahead of its server is told", self._unrefused),
        ):
            bound_ns = end_ns - world.timeline.now_ns
            world.run_until_agreed(bound_ns, settles=False, rule=rule, problem=problem)
        for client in world.living():
            for component_id in world.scenario.components:
                if not client.is_deaf and self._rng.random() < 0.5:
                    client.listen(component_id)
        world.run_until_agreed(
            world.scenario.lease_ns_max + _SLACK_NS,
            settles=False,
            rule="R3 a retriever that is opened later is told, too",
            problem=self._untold,
        )

    def _newcomer(self) -> ClientPlan:
        """Return a client that wants to lead everything, and has seen nothing."""
        scenario = self._world.scenario
        return ClientPlan(
            lease_ns=scenario.lease_ns_max,
            session_timeout_ns=3 * scenario.lease_ns_max,
            clears_on_suspended=self._rng.random() < 0.5,
            contends_for=scenario.components,
            retrieves=scenario.components,
            confirm_timeout_ns=2 * scenario.lease_ns_max,
            confirms=1.0,
            callback_ns=MS,
        )

    def _bound_ns(self) -> int:
        """
        Return how long it may take until all know where they are.

        A start without a data directory is undecided for a lease, and to the end of a
        second.  Two leases later somebody leads, as after any restart.  A retriever
        that missed the broadcast, since it was not connected yet, hears of it with its
        next heartbeat but one: each comes after a third of its session timeout.
        """
        world = self._world
        lease_ns = world.scenario.lease_ns_max
        timeout_ns = max(client.plan.session_timeout_ns for client in world.living())
        undecided_ns = max(lease_ns, 1_000 * MS)
        return (undecided_ns + 2 * lease_ns + timeout_ns) * 105 // 100 + _SLACK_NS

    # -- what is not as it must be -------------------------------------------------

    def _unled(self) -> str | None:
        """Return which component is not led under an epoch of the new machine."""
        world = self._world
        process = world.host.process
        assert process is not None
        incarnation = process.service.core.incarnation
        for component_id in world.scenario.components:
            elections = world.elections(component_id)
            leaders = [one for one in elections if one.has_leadership()]
            if len(leaders) != 1:
                return f"{len(leaders)} lead {component_id}"
            held = leaders[0].held
            if held is None or incarnation_of(held.epoch) > incarnation:
                return f"{held} leads {component_id} under incarnation {incarnation}"
            for election in elections:
                if election.held is not None and election not in leaders:
                    return f"{election.contender_id} was not told that it leads no more"
        return None

    def _untold(self) -> str | None:
        """Return which retriever knows neither who leads nor why it does not."""
        for client in self._world.living():
            if client.is_deaf:
                continue
            for listener in client.listeners.values():
                problem = self._untold_listener(listener)
                if problem is not None:
                    return f"{client.name}/{listener.retriever_id}: {problem}"
        return None

    def _untold_listener(self, listener: Listener) -> str | None:
        leader = self._world.leader(listener.component_id)
        if leader is None or leader.held is None:
            return f"nobody leads {listener.component_id}"
        held, newest, told = leader.held, listener.core.newest, listener.core.told
        if newest is not None and newest.epoch > held.epoch:
            error = listener.ahead
            if error is None or error.epoch_max != held.epoch:
                return f"knows epoch {newest.epoch}, {held} leads, was told {error}"
        elif told is None or told.leader_session_id != held.leader_session_id:
            return f"is told {told}, not {held}"
        return None

    def _unrefused(self) -> str | None:
        """Return which contender waits in vain without having been told."""
        process = self._world.host.process
        assert process is not None
        for component_id in self._world.scenario.components:
            for election in self._world.elections(component_id):
                known = _epoch_known(election)
                is_ahead = not process.service.core.admits(known)
                if is_ahead and election.ahead is None:
                    return f"{election.contender_id} knows epoch {known}"
        return None


def _epoch_known(election: Election) -> int:
    """Return the highest epoch that a contender has led under."""
    holder = election.client.core.holder(election.contender_id)
    claimed = 0 if holder.claim is None else holder.claim.session.epoch
    return max(holder.ended_epoch_max, claimed)
