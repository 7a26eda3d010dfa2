"""One run: everything there is, from the first hello until everybody agrees."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from tests.simulation.application import Election
from tests.simulation.checkers import Checker
from tests.simulation.client import ClientProcess
from tests.simulation.epilogues import Epilogues
from tests.simulation.faults import Faults
from tests.simulation.leftovers import find_leftover
from tests.simulation.network import Network
from tests.simulation.prose import describe
from tests.simulation.replacement import Replacement
from tests.simulation.scenario import ClientPlan, Scenario, Storage, clock_parts
from tests.simulation.server import ServerHost
from tests.simulation.timeline import MS, NodeClock, Timeline


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


__all__ = ["Result", "World"]

_RECONNECT_NS: Final = 100 * MS
# Connecting, callbacks, a few messages and timers: what the bound leaves out.
_SLACK_NS: Final = 500 * MS


@frozen(kw_only=True)
class Result:
    """
    What came of one run.

    Attributes:
        counts: What happened, by kind.
        checks: How often each rule was checked.
        agreed_after_ns: How long after the last fault everybody agreed.
        bound_ns: How long that might have taken.
    """

    counts: Counter[str]
    checks: Counter[str]
    agreed_after_ns: int
    bound_ns: int


@final
class World:
    """
    All nodes of one run and what lies between them.

    Args:
        scenario: What to run.
        write: Takes the lines of the trace; None for no trace.
    """

    def __init__(
        self, scenario: Scenario, write: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.is_traced = write is not None
        self._write = write
        self.rng = Random(f"{scenario.seed}/world")
        self.timeline = Timeline()
        self.checker = Checker()
        self.counts: Counter[str] = Counter()
        self.network = Network(
            scenario.network,
            self.timeline,
            self.rng,
            lease_ns_max=scenario.lease_ns_max,
            faults_end_ns=scenario.faults_end_ns,
        )
        self.session_ids: dict[bytes, str] = {}
        self.clients: list[ClientProcess] = []
        self._plans: list[ClientPlan] = []
        self._peers: dict[str, ClientProcess] = {}
        self._connection_count = itertools.count(1)
        self.host = ServerHost(self)
        self._faults = Faults(self)

    # -- the run -------------------------------------------------------------------

    @property
    def is_calm(self) -> bool:
        """Return whether nothing bad happens any more."""
        return self.network.is_calm

    def run(self) -> Result:
        """Run until everybody agrees; raise if a rule does not hold."""
        scenario = self.scenario
        self.server_starts()
        for plan in scenario.clients:
            delay_ns = self.rng.randrange(scenario.lease_ns_max)
            self.timeline.after(delay_ns, partial(self.client_joins, plan))
        self._faults.begin()
        self.timeline.run_until(scenario.faults_end_ns)
        self._calm_down()
        bound_ns = self._bound_ns()
        agreed_ns = self.run_until_agreed(
            bound_ns, settles=True, rule="everybody agrees in time"
        )
        self._finish_what_began(bound_ns)
        Epilogues(self).play(scenario.epilogue)
        Replacement(self).play_perhaps()
        self.counts.update(self.network.counts)
        return Result(
            counts=self.counts,
            checks=self.checker.counts,
            agreed_after_ns=agreed_ns,
            bound_ns=bound_ns,
        )

    def make_clock(self) -> NodeClock:
        """Return the clock of a new node."""
        return NodeClock(
            self.timeline,
            parts=clock_parts(self.rng),
            offset_ns=self.rng.randrange(10**9) * MS,
        )

    def within_faults(self, duration_ns: int) -> int:
        """Return *duration_ns*, or less so that it is over when faults stop."""
        left_ns = self.scenario.faults_end_ns - self.timeline.now_ns
        return max(0, min(duration_ns, left_ns))

    def _calm_down(self) -> None:
        self.trace("world", "faults stop")
        self.network.is_calm = True
        self._faults.end()
        for client in self.clients:
            for lane in client.path.lanes:
                self.network.heal(lane)
            client.resume()
            client.flush()
        self.host.storage.failure = 0.0
        self.host.storage.is_breaking = False
        if self.host.process is None:
            self.server_starts()
        else:
            self.host.process.dies_next = False
            self.host.process.resume()
            self.host.process.flush()
            self.host.process.finish_writing()
        for client in self.clients:
            if client.is_alive and client.peer is None:
                self._notice(client, None)

    def _bound_ns(self) -> int:
        """Return how long after the last fault everybody must agree."""
        leases, timeouts, confirm_timeouts = [], [], []
        for plan in self._plans:
            timeouts.append(plan.session_timeout_ns)
            confirm_timeouts.append(plan.confirm_timeout_ns)
            leases.append(min(plan.lease_ns, self.scenario.lease_ns_max))
        bound_ns = (
            max(timeouts) + max(confirm_timeouts) + 2 * max(leases)
        ) * 105 // 100 + _SLACK_NS
        process = self.host.process
        assert process is not None
        if process.service.core.is_undecided:
            # It was started just now; what the bound is about begins with its verdict.
            bound_ns += max(self.scenario.lease_ns_max, 1_000 * MS) * 105 // 100
        return bound_ns

    def run_until_agreed(
        self,
        bound_ns: int,
        *,
        settles: bool,
        rule: str,
        problem: Callable[[], str | None] | None = None,
    ) -> int:
        """
        Run on until everybody agrees.

        Args:
            bound_ns: How long that may take.
            settles: Whether everybody must go on agreeing for a while.
            rule: What is broken otherwise.
            problem: Returns what they do not agree about, or None; without it who
                leads is what counts.

        Returns:
            After how long everybody agreed.
        """
        find_problem = self._disagreement if problem is None else problem
        lease_ns = self.scenario.lease_ns_max
        begin_ns = self.timeline.now_ns
        end_ns = begin_ns + bound_ns
        settling_ns = 2 * lease_ns if settles else 0
        agreed_ns: int | None = None
        while True:
            now_ns = self.timeline.now_ns
            found = find_problem()
            if found is not None:
                agreed_ns = None
                self.checker.require(
                    rule,
                    now_ns < end_ns,
                    f"{found} {(now_ns - begin_ns) / 1e9:.3f} s after the last fault",
                )
            else:
                agreed_ns = now_ns if agreed_ns is None else agreed_ns
                is_settled = now_ns - agreed_ns >= settling_ns
                if now_ns >= end_ns or (
                    is_settled and not self.scenario.checks_whole_bound
                ):
                    self.checker.counts[rule] += 1
                    return agreed_ns - begin_ns
            next_ns = now_ns + lease_ns // 4
            self.timeline.run_until(
                min(next_ns, end_ns) if now_ns < end_ns else next_ns
            )

    def _finish_what_began(self, bound_ns: int) -> None:
        """
        Run on until nothing is under way that began before faults stopped.

        Everybody may agree meanwhile, but not for long: a leadership that is never
        confirmed is revoked, and a contender that waits for a lost answer to its
        withdrawal enters anew.  No epilogue is to blame for either.
        """
        if self._unfinished() is None:
            return
        timeout_ns = max(plan.session_timeout_ns for plan in self._plans)
        # Two calls in turn, a confirmation and a withdrawal, take two timeouts each.
        end_ns = self.timeline.now_ns + bound_ns + 4 * timeout_ns * 105 // 100
        while (problem := self._unfinished()) is not None:
            now_ns = self.timeline.now_ns
            self.checker.require(
                "what began before faults stopped ends", now_ns < end_ns, problem
            )
            self.timeline.run_until(now_ns + self.scenario.lease_ns_max // 4)
        self.run_until_agreed(bound_ns, settles=True, rule="everybody agrees in time")

    def _unfinished(self) -> str | None:
        """Return what may yet change who leads though nothing else happens."""
        process = self.host.process
        assert process is not None
        core = process.service.core
        if core.is_undecided:
            return f"{process.name} is undecided"
        for component in core.components:
            leadership = component.leadership
            if leadership is not None and not leadership.is_confirmed:
                return f"{leadership.contender_id} has not confirmed"
        for client in self.living():
            if client.is_busy:
                return f"{client.name} waits for an answer or closes an election"
        return None

    def _disagreement(self) -> str | None:
        for component_id in self.scenario.components:
            problem = self._disagreement_about(component_id)
            if problem is not None:
                return problem
        return find_leftover(self)

    def elections(self, component_id: str) -> list[Election]:
        """Return the elections of living clients that are not cut off."""
        return [
            election
            for client in self.living()
            for election in client.elections.values()
            if election.component_id == component_id
            and not election.is_closing
            and not client.is_deaf
        ]

    def leader(self, component_id: str) -> Election | None:
        """Return who leads, once everybody agrees."""
        for election in self.elections(component_id):
            if election.has_leadership():
                return election
        return None

    def _disagreement_about(self, component_id: str) -> str | None:
        elections = self.elections(component_id)
        leaders = [election for election in elections if election.has_leadership()]
        if len(leaders) != min(1, len(elections)):
            return f"{len(leaders)} of {len(elections)} lead {component_id}"
        held = leaders[0].held if leaders else None
        known = self._highest_known(component_id)
        if held is not None and held.epoch < known:
            if self.scenario.storage == Storage.LOSSY:
                # A report of what a lost data directory forgot ends nothing (E9): who
                # knows better is told, and hears of the next leader.
                return None
            return f"epoch {held.epoch} leads {component_id}, epoch {known} is known"
        for election in elections:
            if election.held is not None and election not in leaders:
                return f"{election.contender_id} was not told that it leads no more"
        for client in self.living():
            if client.is_deaf:
                continue
            for listener in client.listeners.values():
                if listener.component_id != component_id:
                    continue
                told = listener.core.told
                told_id = None if told is None else told.leader_session_id
                if told_id != (None if held is None else held.leader_session_id):
                    return f"{client.name} is told {told} of {component_id}, not {held}"
        return None

    def _highest_known(self, component_id: str) -> int:
        """Return the highest epoch that anybody has seen, whom the server can hear."""
        known = 0
        for client in self.living():
            if client.is_deaf:
                continue
            for election in client.elections.values():
                if election.component_id == component_id:
                    holder = client.core.holder(election.contender_id)
                    known = max(known, holder.ended_epoch_max)
            for listener in client.listeners.values():
                if listener.component_id == component_id and listener.core.newest:
                    known = max(known, listener.core.newest.epoch)
        return known

    # -- clients -------------------------------------------------------------------

    def living(self) -> list[ClientProcess]:
        """Return the clients that have not died."""
        return [client for client in self.clients if client.is_alive]

    def client_joins(self, plan: ClientPlan) -> None:
        """Start a client."""
        client = ClientProcess(self, f"client{len(self.clients) + 1}", plan)
        self.clients.append(client)
        self._plans.append(plan)
        self.trace(client.name, "joins", str(plan))
        client.start()
        self._connect(client)
        self._attach(client)

    def client_dies(self, client: ClientProcess, *, report_ns: int | None) -> None:
        """Kill a client; its server hears of the closed connection, late or never."""
        self.trace(client.name, "dies")
        self._break(client, report_ns=report_ns)
        client.kill()

    # -- connections ---------------------------------------------------------------

    def _connect(self, client: ClientProcess) -> None:
        """Connect a client, or try again later."""
        if not client.is_alive or client.peer is not None:
            return
        server = self.host.process
        can_connect = (
            server is not None
            and not server.is_paused
            and not client.is_paused
            and client.path.is_open
        )
        if not can_connect or server is None:
            delay_ns = _RECONNECT_NS // 2 + self.rng.randrange(_RECONNECT_NS // 2)
            self.timeline.after(delay_ns, lambda: self._connect(client))
            return
        peer = f"{client.name}#{next(self._connection_count)}"
        client.peer, client.server = peer, server
        self._peers[peer] = client

        def opened() -> None:
            if client.peer == peer:
                client.connected_ns = self.timeline.now_ns
                client.link_opened()

        client.after(2 * self.network.delay_ns(), opened)

    def break_link(
        self, client: ClientProcess, *, notice_ns: int, report_ns: int | None
    ) -> None:
        """Break a connection; either side hears of it later, or the server never."""
        if client.peer is None:
            return
        peer = client.peer
        self._break(client, report_ns=report_ns)
        self.timeline.after(
            self.within_faults(notice_ns), lambda: self._notice(client, peer)
        )

    def _break(self, client: ClientProcess, *, report_ns: int | None) -> None:
        peer, server = client.peer, client.server
        if peer is None or server is None:
            return
        client.peer, client.server = None, None
        del self._peers[peer]
        if report_ns is not None:
            self.timeline.after(
                self.within_faults(report_ns),
                lambda: server.run(lambda: server.connection_closed(peer)),
            )

    def _notice(self, client: ClientProcess, peer: str | None) -> None:
        """Tell a client that its connection broke, and have it connect anew."""
        if client.is_alive and client.peer is None:
            client.run(client.link_closed)
            delay_ns = self.rng.randrange(_RECONNECT_NS)
            self.timeline.after(delay_ns, lambda: self._connect(client))

    def send(self, peer: str, payload: bytes) -> None:
        """Send what the server answers; to a connection that is gone it is lost."""
        client = self._peers.get(peer)
        if client is None:
            self.network.counts["messages to clients that are gone"] += 1
            return
        self.network.transmit(
            client.path.to_client,
            lambda: client.run(lambda: client.receive(payload)),
        )

    def broadcast(self, component_id: str, payload: bytes) -> None:
        """Send a change to everybody who hears broadcasts of *component_id*."""
        for client in self._hearing(component_id):
            self.network.transmit(
                client.path.broadcasts,
                partial(client.run, partial(client.receive, payload)),
            )

    def _hearing(self, component_id: str) -> Iterable[ClientProcess]:
        for client in self.living():
            if component_id in client.topics and client.is_attached:
                yield client

    # -- the server ----------------------------------------------------------------

    def server_starts(self) -> None:
        """Start a server; broadcasts are heard a little later."""
        process = self.host.start()
        self.counts["servers started"] += 1
        self.trace(process.name, "starts", f"incarnation {process.incarnation}")
        for client in self.living():
            self._attach(client)

    def server_dies(self) -> None:
        """Kill the server."""
        process = self.host.process
        assert process is not None
        self.trace(process.name, "dies")
        self.host.kill()
        for client in self.living():
            client.is_attached = False
            if client.server is process:
                notice_ns = self.rng.choice((0, 20 * MS, self.scenario.lease_ns_max))
                self.break_link(client, notice_ns=notice_ns, report_ns=None)

    def _attach(self, client: ClientProcess) -> None:
        process = self.host.process

        def attached() -> None:
            if self.host.process is not process:
                return
            client.is_attached = True
            if client.is_link_known and self.rng.random() < 0.5:
                # The shell says so when its broadcast socket is connected.
                client.run(client.link_opened)

        self.timeline.after(self.rng.randrange(2 * _RECONNECT_NS), attached)

    # -- traces --------------------------------------------------------------------

    def trace(self, node: str, what: str, detail: str = "") -> None:
        """Write a line of the trace."""
        if self._write is not None:
            seconds = self.timeline.now_ns / 1e9
            self._write(f"{seconds:10.6f} {node:10} {what} {detail}".rstrip())

    def trace_step(
        self, node: str, shown_ns: int, event: object, effects: Iterable[object]
    ) -> None:
        """Write what happened to a core and what follows."""
        if self._write is None:
            return
        seconds = self.timeline.now_ns / 1e9
        what = "time" if event is None else describe(event)
        self._write(f"{seconds:10.6f} {node:10} {shown_ns / 1e9:.6f} {what}")
        for effect in effects:
            self._write(f"{'':22}-> {describe(effect)}")
