"""One run: everything there is, from the first node until everything is applied."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, final

from election import Put
from nameservice import NameServiceError
from queryablestate import chains, paths
from queryablestate.assignment import key_groups_of
from queryablestate.failures import refusal_of
from tests.simulation.timeline import MS, Timeline
from tests.state_simulation.checkers import Checker
from tests.state_simulation.disk import Disk
from tests.state_simulation.driver import Query, Run
from tests.state_simulation.faults import Faults
from tests.state_simulation.leader_store import NameService
from tests.state_simulation.network import Connection, Network
from tests.state_simulation.node import Node
from tests.state_simulation.proxy import Proxy
from tests.state_simulation.reader import Reader
from tests.state_simulation.scenario import (
    COMMIT_TIMEOUT_NS,
    SESSION_TIMEOUT_NS,
    Scenario,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Struct

    from election import StoreOperation
    from queryablestate.control_events import Link
    from queryablestate.questions import Refusal
    from queryablestate.records import AssignmentRecord
    from tests.state_simulation.scenario import QueryPlan


__all__ = ["Host", "World"]

_WALL_CLOCK_US: Final = 1_700_000_000_000_000
_NOTICE_NS: Final = 80 * MS
_PROGRESS_COUNT: Final = 2
# A batch may fail a few times on what the faults have left behind: a commit that times
# out, a run that must be told that it is over, a node that must find out what it lost.
_BOUND_NS: Final = 3 * COMMIT_TIMEOUT_NS + 4 * SESSION_TIMEOUT_NS + 4_000 * MS
_STEP_NS: Final = 100 * MS
_KEPT: Final = "ENTRY_KEPT_COUNT"


@final
class Host:
    """
    A machine that a state node runs on, with its disks.

    Attributes:
        node_id: The node's name.
        disks: Every data directory that it ever had.
        node: The process, or None while there is none.
    """

    def __init__(self, world: World, node_id: str) -> None:
        self._world = world
        self.node_id = node_id
        self.disks: list[Disk] = []
        self.disk = self._new_disk()
        self.node: Node | None = None
        self._start_count = 0

    @property
    def is_up(self) -> bool:
        """Return whether the process runs."""
        return self.node is not None

    def _new_disk(self) -> Disk:
        number = len(self.disks)
        directory = self._world.directory / f"{self.node_id}-{number}"
        disk = Disk(directory, self.node_id, number)
        self.disks.append(disk)
        self._world.checker.disks[disk.store_id] = disk
        return disk

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.node is None:
            self._start_count += 1
            address = f"{self.node_id}:{self._start_count}"
            self._world.trace(self.node_id, f"starts on {self.disk}")
            self.node = Node(self._world, self.node_id, address, self.disk)
            self._world.tell_leader(self.node)

    def stop(self) -> None:
        """Kill the process, if one runs."""
        if self.node is not None:
            self._world.trace(self.node_id, "is killed")
            self.node.kill()
            self.node = None

    def replace_disk(self) -> None:
        """Lose the data directory: the next process begins with an empty one."""
        self.disk = self._new_disk()

    def exchange_disk(self, number: int) -> None:
        """Begin the next process with a data directory that it had before."""
        self.disk = self.disks[number]
        self.disk.suspect()


@final
class World:
    """
    All processes of one run and what lies between them.

    Args:
        scenario: What to run.
        write: Takes the lines of the trace; None for no trace.
    """

    def __init__(
        self, scenario: Scenario, write: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.seed = scenario.seed
        self._write = write
        self.rng = Random(f"{scenario.seed}/world")
        self.connection_rng = Random(f"{scenario.seed}/connections")
        self.timeline = Timeline()
        self.checker = Checker(scenario.seed)
        self.counts: Counter[str] = Counter()
        self.network = Network(
            scenario.network, self.timeline, Random(f"{scenario.seed}/network")
        )
        self.names = NameService(self._committed)
        self.connections: dict[Link, tuple[Node, Proxy]] = {}
        self.isolated: set[str] = set()
        self.plans: dict[str, QueryPlan] = {}
        self.zombies: list[Run | None] = []
        self.store_doubt = 0.0
        self.is_over = False
        self.directory = Path()
        self.hosts: list[Host] = []
        self.queries: list[Query] = []
        self.readers: list[Reader] = []
        self.state_names = sorted(
            {
                (plan.job_id, state.state_name)
                for plan in scenario.queries
                for state in plan.states
            }
        )
        self._numbers = itertools.count(1)
        self._proxies: list[Proxy] = []
        self._known_leader: Proxy | None = None
        self._assignments: dict[int, AssignmentRecord] = {}
        self._jobs: dict[int, str] = {}
        self.progress_after_ns = 0

    # -- the run -----------------------------------------------------------------------

    def run(self) -> None:
        """Run until everything is applied; raise if a rule does not hold."""
        root = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="state-simulation-", dir=root))
        kept_count = getattr(chains, _KEPT)
        # Few enough for a run to be long: what is not kept any more must not be needed.
        setattr(chains, _KEPT, self.scenario.entry_kept_count)
        try:
            self._run()
        finally:
            setattr(chains, _KEPT, kept_count)
            for host in self.hosts:
                for disk in host.disks:
                    disk.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self) -> None:
        scenario = self.scenario
        self._proxies = [Proxy(self, "proxy-a"), Proxy(self, "proxy-b")]
        self.change_leader()
        for number in range(scenario.node_count):
            host = Host(self, f"node-{number}")
            self.hosts.append(host)
            self.timeline.after(self.rng.randrange(20 * MS), host.start)
        for plan in scenario.queries:
            query = Query(self, plan)
            self.queries.append(query)
            self.timeline.after(40 * MS, query.start)
        for number in range(scenario.reader_count):
            reader = Reader(self, f"reader-{number}", pause_ns=25 * MS)
            self.readers.append(reader)
        self.timeline.run_until(300 * MS)
        Faults(self).begin()
        self.timeline.run_until(scenario.faults_end_ns)
        self._calm_down()
        self._await_progress()
        self._await_rest()
        self._compare()
        self.counts.update(self.network.counts)

    def _calm_down(self) -> None:
        self.trace("world", "faults stop")
        self.network.is_calm = True
        self.network.storm_loss = 0.0
        self.store_doubt = 0.0
        self.isolated.clear()
        for run in self.zombies:
            if run is not None:
                run.kill()
        for host in self.hosts:
            host.start()
            if host.node is not None:
                host.node.slowness = 1
        for proxy in self._proxies:
            proxy.is_suspended = False
        if self.leader is None:
            self.change_leader()

    def _await_progress(self) -> None:
        """Wait until every query has written a few more batches."""
        began_ns = self.timeline.now_ns
        due = {query: query.committed_count + _PROGRESS_COUNT for query in self.queries}
        while any(query.committed_count < count for query, count in due.items()):
            waited_ns = self.timeline.now_ns - began_ns
            self.checker.require(
                "W3 a running driver makes progress once faults have stopped",
                waited_ns <= _BOUND_NS,
                {q.query_id: (q.committed_count, count) for q, count in due.items()},
            )
            self.timeline.run_until(self.timeline.now_ns + _STEP_NS)
        self.progress_after_ns = self.timeline.now_ns - began_ns

    def _await_rest(self) -> None:
        """Stop the drivers, and wait until everything decided is applied."""
        for query in self.queries:
            if query.run is not None:
                query.run.kill()
            query.is_over = True
        began_ns = self.timeline.now_ns
        while True:
            self.timeline.run_until(self.timeline.now_ns + 10 * _STEP_NS)
            behind = [
                disk
                for job_id, disk, _ in self._owners()
                if disk is not None
                and disk.position(job_id) < self.checker.job(job_id).sequence
            ]
            if not behind:
                break
            self.checker.require(
                "W3 everything decided is applied once faults have stopped",
                self.timeline.now_ns - began_ns <= _BOUND_NS,
                behind,
            )
        self.timeline.run_until(self.timeline.now_ns + 10 * _STEP_NS)
        self.is_over = True

    def _compare(self) -> None:
        """Compare every node with the books, to the last row."""
        for job_id, disk, key_groups in self._owners():
            assert disk is not None
            self.checker.check_disk(disk, job_id, key_groups)

    # -- the leader store --------------------------------------------------------------

    def _committed(self, operations: Sequence[StoreOperation]) -> None:
        """Take note of what the leader store took: that is the truth."""
        entries: list[tuple[int, bytes]] = []
        for operation in operations:
            if not isinstance(operation, Put):
                continue
            match operation.path.split("/"):
                case ["jobs", number]:
                    job = paths.decode_job(operation.value)
                    self._jobs[int(number)] = job.job_id
                case ["jobs", number, "assignment"]:
                    self._assignments[int(number)] = paths.decode_assignment(
                        operation.value
                    )
                case ["jobs", number, "states", _]:
                    state = paths.decode_state(operation.value)
                    (plan,) = (
                        one
                        for query in self.scenario.queries
                        for one in query.states
                        if one.state_name == state.state_name
                        and query.job_id == self._jobs[int(number)]
                    )
                    self.checker.state_registered(
                        self._jobs[int(number)], state.state_number, plan
                    )
                case ["jobs", number, "entries", _]:
                    entries.append((int(number), operation.value))
                case _:
                    pass
        registered = {
            host.node_id: self.names.store_id_of(host.node_id) or ""
            for host in self.hosts
        }
        for job_number, value in entries:
            entry = paths.decode_entry(value)
            self.trace("store", entry)
            self.counts["entries decided"] += 1
            self.checker.entry_decided(self._jobs[job_number], entry, registered)

    def owners_of(self, job_id: str) -> list[Disk | None]:
        """Return the data directory of each node of a job, as the books have it."""
        return [disk for owned, disk, _ in self._owners() if owned == job_id]

    def _owners(self) -> list[tuple[str, Disk | None, tuple[int, ...]]]:
        found: list[tuple[str, Disk | None, tuple[int, ...]]] = []
        for number, assignment in self._assignments.items():
            job_id = self._jobs[number]
            for node_id in assignment.node_ids:
                disk = self.checker.disks.get(self.names.store_id_of(node_id) or "")
                found.append((job_id, disk, tuple(key_groups_of(assignment, node_id))))
        return found

    # -- leadership --------------------------------------------------------------------

    @property
    def leader(self) -> Proxy | None:
        """Return who leads."""
        for proxy in self._proxies:
            if proxy.is_alive and self.names.leader == proxy.name:
                return proxy
        return None

    def leader_as_known(self) -> Proxy | None:
        """Return whom clients take for the leader."""
        return self._known_leader

    def proxy_at(self, address: str) -> Proxy | None:
        """Return the proxy process at an address, if one runs."""
        for proxy in self._proxies:
            if proxy.name == address and proxy.is_alive:
                return proxy
        return None

    def change_leader(self) -> None:
        """Depose who leads, and grant somebody else, after a while."""
        before = self.leader
        self.names.depose()
        self.counts["leaders deposed"] += before is not None
        if before is not None:
            delay_ns = self.rng.choice((0, 30 * MS, 400 * MS))
            self.timeline.after(
                1 + delay_ns, partial(self._revoke, before, before.epoch)
            )
        self.timeline.after(
            self.rng.randrange(1, 250 * MS), partial(self._grant, before)
        )

    def _revoke(self, proxy: Proxy, epoch: int) -> None:
        if proxy.is_alive and proxy.epoch == epoch:
            proxy.stop_leading()

    def _grant(self, before: Proxy | None) -> None:
        if self.names.leader is not None:
            return
        others = [p for p in self._proxies if p is not before and p.is_alive]
        proxy = self.rng.choice(others or [p for p in self._proxies if p.is_alive])
        proxy.stop_leading()
        epoch = self.names.grant(proxy.name)
        self.counts["leaders granted"] += 1
        proxy.lead(epoch)
        delay_ns = self.rng.randrange(1, 100 * MS)
        self.timeline.after(delay_ns, partial(self._publish, proxy, epoch))

    def _publish(self, proxy: Proxy, epoch: int) -> None:
        if self.names.leads(proxy.name, epoch):
            self._known_leader = proxy
            for host in self.hosts:
                if host.node is not None:
                    self.tell_leader(host.node)

    def tell_leader(self, node: Node) -> None:
        """Let a node hear who leads, a moment later."""
        proxy = self._known_leader
        if proxy is not None:
            found = partial(node.proxy_found, proxy.name, proxy.epoch)
            self.timeline.after(self.rng.randrange(1, 60 * MS), found)

    def restart_proxy(self, proxy: Proxy) -> None:
        """Kill a proxy process; another one takes its place."""
        self.names.depose()
        proxy.kill()
        self._proxies.remove(proxy)
        self._proxies.append(Proxy(self, f"proxy-{self.next_number()}"))
        self.timeline.after(self.rng.randrange(1, 400 * MS), partial(self._grant, None))

    # -- what lies between -------------------------------------------------------------

    def sever(self, connection: Connection) -> None:
        """Break a connection; its proxy hears of it later, if ever."""
        last_ns = connection.sever()
        ends = self.connections.pop(connection.link, None)
        if ends is None:
            return
        node, proxy = ends
        node.lost(connection)
        if self.network.is_calm or self.rng.random() < 0.8:
            when_ns = max(last_ns, self.timeline.now_ns) + self.notice_ns()
            self.timeline.at(when_ns, partial(proxy.link_closed, connection.link))

    def link_closed(self, link: Link) -> None:
        """Let every proxy know that a writer is gone."""
        for proxy in self._proxies:
            proxy.link_closed(link)

    def carry_to_node(
        self, connection: Connection, message: Struct, payload: bytes
    ) -> None:
        """Carry what a proxy says."""
        ends = self.connections.get(connection.link)
        if ends is not None:
            connection.to_node(partial(ends[0].proxy_said, message, payload))

    def carry_to_proxy(
        self, connection: Connection, message: Struct, payload: bytes
    ) -> None:
        """Carry what a node says."""
        ends = self.connections.get(connection.link)
        if ends is not None:
            said = partial(ends[1].node_said, connection.link, message, payload)  # type: ignore[arg-type]  # what nodes say
            connection.to_proxy(said)

    def node_at(self, address: str) -> Node | None:
        """Return the node process at an address, if one runs."""
        for host in self.hosts:
            if host.node is not None and host.node.address == address:
                return host.node
        return None

    def find_node(self, node_id: str) -> str | None:
        """Return where a node is, as the proxy leader knows it."""
        proxy = self._known_leader
        if proxy is None or proxy.core is None:
            return None
        for node in proxy.core.node_summaries(now_ns=self.timeline.now_ns):
            if node.node_id == node_id:
                return node.address
        return None

    # -- small things ------------------------------------------------------------------

    @property
    def wall_clock_us(self) -> int:
        """Return what every wall clock shows."""
        return _WALL_CLOCK_US + self.timeline.now_ns // 1_000

    def next_number(self) -> int:
        """Return a number that was not given out before."""
        return next(self._numbers)

    def fails(self, probability: float) -> bool:
        """Return whether something goes wrong that may go wrong now."""
        return not self.network.is_calm and self.rng.random() < probability

    def notice_ns(self) -> int:
        """Return after how long an end notices that a connection is over."""
        return 1 + self.rng.randrange(_NOTICE_NS)

    def store_delay_ns(self) -> int:
        """Return how long a write to a node's store takes."""
        return 1 + round(self.rng.expovariate(1.0) * self.scenario.store_ns)

    def leader_store_delay_ns(self) -> int:
        """Return how long half of a write to the leader store takes."""
        return 1 + round(self.rng.expovariate(1.0) * self.scenario.leader_store_ns)

    def plan_of(self, query_id: str) -> QueryPlan:
        """Return what a query writes."""
        return self.plans[query_id]

    def kind_of(self, job_id: str, state_name: str) -> str:
        """Return the kind of a state."""
        (kind,) = {
            state.kind
            for plan in self.scenario.queries
            for state in plan.states
            if (plan.job_id, state.state_name) == (job_id, state_name)
        }
        return kind

    def refusal(self, error: NameServiceError, request_id: int) -> Refusal:
        """Return how a writer is told of an error."""
        return refusal_of(error, request_id)

    def trace(self, who: str, *what: object) -> None:
        """Write a line of the trace."""
        if self._write is not None:
            text = " ".join(str(part) for part in what)
            self._write(f"{self.timeline.now_ns / MS:10.3f} {who}: {text}")
