"""One run: everything there is, from the first node until everything is applied."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, final

from structlog.testing import capture_logs

from election import Put
from nameservice import NameServiceError
from queryablestate.client.events import LeaderTold
from queryablestate.control import chains
from queryablestate.control.job import leader_paths as paths
from queryablestate.control.job.entry_parts import decode_entry
from queryablestate.store import copies as store_copies
from queryablestate.store import copy_reader as store_copy_reader
from queryablestate.wire.operation_messages import DrainNode, ListRescalings
from queryablestate.wire.refusals import refusal_of
from queryablestate.writer import core as writer_core
from tests.simulation.timeline import MS, Timeline
from tests.state_simulation.answer_checks import AnswerChecker
from tests.state_simulation.calls import Call
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
    MAX_PARALLELISM,
    SESSION_TIMEOUT_NS,
    Profile,
    Scenario,
)
from tests.state_simulation.snapshots import SnapshotOperators
from tests.state_simulation.wall_clock import wall_clock_us_at


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from msgspec import Struct

    from election import StoreOperation
    from queryablestate.control.events import LinkId
    from queryablestate.wire.questions import Refusal
    from tests.state_simulation.copying import CopyLink, NodeCopying
    from tests.state_simulation.scenario import QueryPlan


__all__ = ["Host", "World"]


class ProxyPeer(Protocol):
    """The other end of a connection to a proxy."""

    def proxy_said(self, message: Struct, payload: bytes, /) -> None:
        """Hear the proxy."""

    def lost(self, connection: Connection) -> None:
        """Take note that the connection is over."""


_LARGE_DEATH: Final = 0.05
_KILL_WITHIN_WRITE: Final = 0.01
_FAIL_WITHIN_WRITE: Final = 0.04
_BACKUP_AT_COPIES: Final = 0.3
_STEP_COUNT: Final = 8
_NOTICE_NS: Final = 80 * MS
_PROGRESS_COUNT: Final = 2
# A batch may fail a few times on what the faults have left behind: a commit that times
# out, a run that must be told that it is over, a node that must find out what it lost.
_BOUND_NS: Final = 3 * COMMIT_TIMEOUT_NS + 4 * SESSION_TIMEOUT_NS + 4_000 * MS
_TIMES_AWAY_MAX: Final = 200  # a reader asks for one group of one state at a time
_STEP_NS: Final = 100 * MS
_PAGE_DELAY_NS_MAX: Final = 300 * MS
# Of a write where no read may fail.  A disk is slow for a second at most, but a write
# that it had begun by then could take longer than a read may.  Rule Q2 lets a read that
# waits for its batch fail then, and rule S4 one of the only copy that there is as yet.
_STRICT_WRITE_NS_MAX: Final = 1_000 * MS
# Constants of the shipped code that are too large for runs of this size.
_KEPT: Final = (chains, "ENTRY_KEPT_COUNT")
_BLOCK: Final = (store_copy_reader, "_BLOCK_ROW_COUNT")
_REPLAYED: Final = (store_copies, "_REPLAYED_ENTRIES_MAX")
_GRACE: Final = (writer_core, "_ANSWER_GRACE_NS")


@final
class Host:
    """
    A machine that a state node runs on, with its disks.

    Attributes:
        node_id: The node's name.
        disks: Every data directory that it ever had.
        node: The process, or None while there is none.
        has_left: Whether the last one was emptied before it ended.
    """

    def __init__(self, world: World, node_id: str) -> None:
        self._world = world
        self.node_id = node_id
        self.disks: list[Disk] = []
        self.disk = self._new_disk()
        self.node: Node | None = None
        self.has_left = False
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
            self.has_left = False
            self._start_count += 1
            address = f"tcp://{self.node_id}:{self._start_count}"
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
        self._world.has_lost_disks = True
        self._world.moves.look_for_losses()

    def exchange_disk(self, number: int) -> None:
        """Begin the next process with a data directory that it had before."""
        self.disk = self.disks[number]
        self.disk.suspect()
        self._world.has_lost_disks = True
        self._world.moves.look_for_losses()

    def put_disk_back(self) -> None:
        """Begin the next process with an older state of its data directory."""
        self.disk.put_back()
        self._world.has_lost_disks = True
        self._world.moves.put_back(self.disk.store_id)


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
        self.checker = Checker(
            scenario.seed,
            self._is_in_use,
            self._has_come_back,
            lambda: self.wall_clock_us,
        )
        self.moves = self.checker.moves
        self.answers = AnswerChecker(self.checker)
        self.snapshots = SnapshotOperators(self)
        self.counts: Counter[str] = Counter()
        self.network = Network(
            scenario.network, self.timeline, Random(f"{scenario.seed}/network")
        )
        self._interruption_rng = Random(f"{scenario.seed}/interruptions")
        self._sweep_rng = Random(f"{scenario.seed}/sweeps")
        self._backup_rng = Random(f"{scenario.seed}/backups")
        self._large_rng = Random(f"{scenario.seed}/large writes")
        self.names = NameService(self._committed, scenario.commit_limits)
        self.connections: dict[LinkId, tuple[ProxyPeer, Proxy]] = {}
        self.isolated: set[str] = set()
        self.copy_links: dict[LinkId | None, CopyLink] = {}
        self.cut_off: set[str] = set()
        self.copy_slowness = 1
        self.has_lost_disks = False
        self.plans: dict[str, QueryPlan] = {}
        self.zombies: list[Run | None] = []
        self.store_doubt = 0.0
        self.write_began_ns = 0
        self.is_over = False
        self.is_resting = False
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
        self.numbers = itertools.count(1)
        self._proxies: list[Proxy] = []
        self._known_leader: Proxy | None = None
        self._jobs: dict[int, str] = {}
        self.progress_after_ns = 0
        self.moves_after_ns = 0
        self.answered_at: dict[tuple[int, int], int] = {}
        self._lines: Sequence[Mapping[str, object]] = ()

    # -- the run -----------------------------------------------------------------------

    def run(self) -> None:
        """Run until everything is applied; raise if a rule does not hold."""
        root = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="state-simulation-", dir=root))
        kept_count, block_count = getattr(*_KEPT), getattr(*_BLOCK)
        grace_ns, replayed_count = getattr(*_GRACE), getattr(*_REPLAYED)
        # Few enough for a run to be long: what is not kept any more must not be needed.
        setattr(*_KEPT, self.scenario.entry_kept_count)
        setattr(*_BLOCK, 2)  # a copy has more than one page
        setattr(*_REPLAYED, 4)  # a copy is caught up with in more than one step
        setattr(*_GRACE, 200 * MS)
        try:
            with capture_logs() as lines, ExitStack() as resources:
                self.snapshots.install(resources)
                self._lines = lines
                self._run()
        finally:
            setattr(*_KEPT, kept_count)
            setattr(*_BLOCK, block_count)
            setattr(*_REPLAYED, replayed_count)
            setattr(*_GRACE, grace_ns)
            for host in self.hosts:
                if host.node is not None:
                    host.node.snapshots.forget()
                    host.node.copying.end()
                for disk in host.disks:
                    disk.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self) -> None:
        scenario = self.scenario
        self._proxies = [Proxy(self, "proxy-a"), Proxy(self, "proxy-b")]
        self.change_leader()
        for number in range(scenario.host_count):
            host = Host(self, f"node-{number}")
            self.hosts.append(host)
            if number < scenario.node_count:
                self.timeline.after(self.rng.randrange(20 * MS), host.start)
        for plan in scenario.queries:
            query = Query(self, plan)
            self.queries.append(query)
            self.timeline.after(40 * MS, query.start)
        for number in range(scenario.reader_count):
            group = None
            if scenario.takes_over and number:
                # It asks no other nodes, so none of them tells it of a newer route.
                group = scenario.seed % MAX_PARALLELISM
            reader = Reader(
                self, f"reader-{number}", pause_ns=25 * MS, only_group=group
            )
            self.readers.append(reader)
        self.timeline.run_until(300 * MS)
        Faults(self).begin()
        if scenario.takes_snapshots:
            self.snapshots.begin()
        self.timeline.run_until(scenario.faults_end_ns)
        self._calm_down()
        self._await_progress()
        self._await_moves()
        self._await_answers()
        self._await_rest()
        self._compare()
        self.snapshots.check()
        self.counts.update(self.network.counts)
        self.counts.update(self.moves.counts)

    def write(self, plan: QueryPlan, on_new_query: str) -> None:
        """Have another query write from now on, unless all have stopped."""
        if self.is_resting:
            return
        query = Query(self, plan, on_new_query)
        self.queries.append(query)
        query.start()

    def _calm_down(self) -> None:
        self.trace("world", "faults stop")
        self.network.is_calm = True
        self.network.storm_loss = 0.0
        self.store_doubt = 0.0
        self.copy_slowness = 1
        self.isolated.clear()
        self.cut_off.clear()
        for run in self.zombies:
            if run is not None:
                run.kill()
        for host in self.hosts:
            # Who was emptied is not needed any more; everybody else comes back.
            if not host.has_left or self.rng.random() < 0.5:
                host.start()
            if host.node is not None:
                host.node.slowness = 1
        for proxy in self._proxies:
            proxy.is_suspended = False
        if self.leader is None:
            self.change_leader()
        # Somebody must be there who may have key groups.
        staying = [one for one in self.hosts if one.node and not one.node.is_leaving]
        if not staying:
            staying = self.hosts[:1]
            staying[0].stop()
            staying[0].start()
        for host in staying[: 1 if self.rng.random() < 0.5 else None]:
            self.drain(host.node_id, is_undone=True)

    def drain(self, node_id: str, *, is_undone: bool = False) -> None:
        """Have a node emptied, or have it take part again."""
        Call(
            self,
            self.network.new_link(),
            lambda request_id, _: DrainNode(
                request_id=request_id,
                session=b"session",
                node_id=node_id,
                is_undone=is_undone,
            ),
            lambda _: None,
            timeout_ns=COMMIT_TIMEOUT_NS,
            is_alive=lambda: True,
        )

    def _await_progress(self) -> None:
        """Wait until every query has written a few more batches."""
        due = {query: query.committed_count + _PROGRESS_COUNT for query in self.queries}
        self.progress_after_ns = self._await(
            "W3 a running driver makes progress once faults have stopped",
            lambda: [
                (query.query_id, query.committed_count, count)
                for query, count in due.items()
                if query.committed_count < count
            ],
        )

    def _await_moves(self) -> None:
        """Wait until nothing moves any more."""
        self.moves_after_ns = self._await(
            "S3 moves come to an end once faults have stopped", self._unfinished
        )

    def _unfinished(self) -> list[object]:
        """Return the jobs whose assignment is not what it should be."""
        proxy = self._known_leader
        if proxy is None or proxy.core is None or not proxy.leads:
            return ["nobody leads"]
        request = ListRescalings(request_id=0, session=b"s")
        listed = proxy.core.rescalings(request, now_ns=self.timeline.now_ns)
        if not listed.is_settled:
            return ["the leader is not settled"]
        ready_count = len(self.ready_ids())
        if not ready_count:
            return []  # all of them are to be emptied: everything stays where it is
        return [
            one
            for one in listed.rescalings
            if one.left_count
            or one.surplus_count
            or (
                one.missing_count
                and min(one.node_count, ready_count) >= one.replica_count
            )
            or len(one.copy_counts)
            != max(1, min(one.node_count, ready_count, MAX_PARALLELISM))
        ]

    def ready_ids(self) -> list[str]:
        """Return the nodes that can have key groups, as the control plane has it."""
        proxy = self._known_leader
        if proxy is None or proxy.core is None:
            return []
        return [
            node.node_id
            for node in proxy.core.view.node_summaries(now_ns=self.timeline.now_ns)
            if node.address is not None and not node.is_draining
        ]

    def _await_answers(self) -> None:
        """Wait until somebody has been answered for each key group that has rows."""
        began_ns = self.timeline.now_ns

        def unanswered() -> list[object]:
            return [
                (job_id, number, key_group)
                for job_id, record in self.moves.present.items()
                if self.snapshots.origin_of(job_id) == job_id  # others nobody reads
                for number, state in self.checker.job(job_id).states.items()
                if state.versions and state.dropped_at is None
                for key_group in range(len(record.owners))
                if (job_id, key_group) not in self.moves.losable
                and self.answered_at.get((number, key_group), -1) < began_ns
            ]

        self._await(
            "S3 every key group is answered for again once faults have stopped",
            unanswered,
        )

    def _await_rest(self) -> None:
        """Stop the drivers, and wait until everything decided is applied."""
        for query in self.queries:
            if query.run is not None:
                query.run.kill()
            query.is_over = True
        self.is_resting = True
        self.timeline.run_until(self.timeline.now_ns + 10 * _STEP_NS)
        rule = "W3 everything decided is applied once faults have stopped"
        self._await(rule, self._unapplied)
        self.timeline.run_until(self.timeline.now_ns + 10 * _STEP_NS)
        self._await(rule, self._unapplied)  # a restore may have been decided meanwhile
        self.is_over = True

    def _unapplied(self) -> list[object]:
        """Return the disks that lack something decided, and what is not finished."""
        # What a node is to let go of may wait behind what a slow disk left to do.
        busy = [host for host in self.hosts if host.node and host.node.is_writing]
        return [
            *busy,
            *(
                disk
                for job_id in self.moves.present
                for disk in self.owners_of(job_id).values()
                if disk is not None
                and disk.position(job_id) < self.checker.job(job_id).sequence
            ),
            *self._unfinished(),
        ]

    def _await(self, rule: str, left: Callable[[], Sequence[object]]) -> int:
        """Wait until nothing is *left*, and return how long that took."""
        began_ns = self.timeline.now_ns
        bound_ns = _BOUND_NS + _TIMES_AWAY_MAX * self.network.away_ns
        while missing := left():
            self.checker.require(
                rule, self.timeline.now_ns - began_ns <= bound_ns, missing
            )
            self.timeline.run_until(self.timeline.now_ns + _STEP_NS)
        return self.timeline.now_ns - began_ns

    def _compare(self) -> None:
        """Compare every node with the books, to the last row."""
        ready_count = len(self.ready_ids())
        for job_id in self.moves.present:
            if ready_count:
                self.moves.check_balance(job_id, ready_count)
            for host in self.hosts:
                if host.node is not None:
                    self.moves.check_disk(host.node_id, host.disk, job_id)
            for node_id, disk in self.owners_of(job_id).items():
                self.checker.require(
                    "S1 who has a copy is there",
                    disk is not None and self._is_in_use(disk.store_id),
                    node_id,
                    disk,
                )
        failed = [line for line in self._lines if line["event"] == "loop.failed"]
        self.checker.require("no thread meets a mistake of ours", not failed, failed)

    # -- the leader store --------------------------------------------------------------

    def _committed(self, operations: Sequence[StoreOperation]) -> None:
        """Take note of what the leader store took: that is the truth."""
        entries: list[tuple[int, bytes]] = []
        assignments: list[tuple[int, bytes]] = []
        for operation in operations:
            if not isinstance(operation, Put):
                continue
            match operation.path.split("/"):
                case ["jobs", number]:
                    job = paths.decode_job(operation.value)
                    self._jobs[int(number)] = job.job_id
                case ["jobs", number, "assignments", _]:
                    assignments.append((int(number), operation.value))
                case ["jobs", number, "states", _]:
                    state = paths.decode_state(operation.value)
                    job_id = self.snapshots.origin_of(self._jobs[int(number)])
                    (plan,) = (
                        one
                        for query in self.scenario.queries
                        for one in query.states
                        if one.state_name == state.state_name and query.job_id == job_id
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
            entry = decode_entry(value)
            self.trace("store", self._jobs[job_number], entry)
            self.counts["entries decided"] += 1
            self.checker.entry_decided(
                self._jobs[job_number],
                entry,
                registered,
                began_us=wall_clock_us_at(self.write_began_ns),
            )
        for job_number, value in assignments:
            record = paths.decode_assignment(value)
            self.trace("store", self._jobs[job_number], record)
            leader = self.leader
            self.moves.written(
                self._jobs[job_number],
                record,
                is_settled=leader is not None and leader.is_settled(registered),
                registered=registered,
            )

    def _is_in_use(self, store_id: str) -> bool:
        return any(host.disk.store_id == store_id for host in self.hosts)

    def _has_come_back(self, node_id: str) -> bool:
        (host,) = (host for host in self.hosts if host.node_id == node_id)
        leader = self.leader
        core = None if leader is None else leader.core
        if host.node is None or core is None:
            return False
        summaries = core.view.node_summaries(now_ns=self.timeline.now_ns)
        return (node_id, host.node.address) in [
            (o.node_id, o.address) for o in summaries
        ]

    def owners_of(
        self, job_id: str, store_id_of: Callable[[str], str | None] | None = None
    ) -> dict[str, Disk | None]:
        """
        Return who has in-sync copies, with the data directory in the books.

        Args:
            job_id: Of which job.
            store_id_of: Returns the id of that of a node; by default as it is stored.
        """
        store_id_of = store_id_of or self.names.store_id_of
        record = self.moves.present[job_id]
        indexes = sorted({index for owners in record.owners for index in owners})
        node_ids = [record.node_ids[index] for index in indexes]
        return {
            node_id: self.checker.disks.get(store_id_of(node_id) or "")
            for node_id in node_ids
        }

    def is_whole(self) -> bool:
        """Return whether each node is there, and each key group has two copies."""
        proxy = self._known_leader
        if proxy is None or proxy.core is None or not proxy.leads:
            return False
        nodes = [host.node for host in self.hosts if host.node is not None]
        if not all(node.is_connected for node in nodes):
            return False
        request = ListRescalings(request_id=0, session=b"s")
        listed = proxy.core.rescalings(request, now_ns=self.timeline.now_ns)
        if any(one.missing_count for one in listed.rescalings):
            return False  # it may not have heard yet that it is
        running = {node.node_id for node in nodes}
        summaries = proxy.core.view.node_summaries(now_ns=self.timeline.now_ns)
        present = {node.node_id for node in summaries if node.address is not None}
        return running <= present and all(
            len(set(owners)) > 1
            and not record.joining
            and all(record.node_ids[index] in running for index in owners)
            for record in self.moves.present.values()
            for owners in record.owners
        )

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

    def leader_told(self) -> LeaderTold:
        """Return what the name service says of the leader."""
        proxy = self._known_leader
        if proxy is None or not self.names.leads(proxy.name, proxy.epoch):
            return LeaderTold(address=None)
        return LeaderTold(address=proxy.name, epoch=proxy.epoch)

    def any_address(self) -> str:
        """Return where a proxy is, be it the leader or not."""
        return self.rng.choice(self._proxies).name

    def _leader_changed(self) -> None:
        """Have the name service tell clients."""
        for reader in self.readers:
            reader.leader_changed()

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
        self._leader_changed()
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
            self._leader_changed()
            for host in self.hosts:
                if host.node is not None:
                    self.tell_leader(host.node)

    def tell_leader(self, node: Node) -> None:
        """Tell a node who leads, a moment later."""
        proxy = self._known_leader
        if proxy is not None:
            found = partial(node.proxy_found, proxy.name, proxy.epoch)
            self.timeline.after(self.rng.randrange(1, 60 * MS), found)

    def restart_proxy(self, proxy: Proxy) -> None:
        """Kill a proxy process; another one takes its place."""
        self.names.depose()
        self._leader_changed()
        proxy.kill()
        self._proxies.remove(proxy)
        self._proxies.append(Proxy(self, f"proxy-{self.next_number()}"))
        self.timeline.after(self.rng.randrange(1, 400 * MS), partial(self._grant, None))

    def store_written(self, proxy: Proxy) -> None:
        """Kill a proxy between two commits of one large write, now and then."""
        if (
            self.names.is_within_large_write
            and not self.network.is_calm
            and self.scenario.profile is Profile.STORM
            and self._large_rng.random() < _LARGE_DEATH
        ):
            self.counts["fault: leader killed within a large write"] += 1
            self.timeline.after(1, partial(self._kill_if_alive, proxy))

    def _kill_if_alive(self, proxy: Proxy) -> None:
        if proxy.is_alive and self.leader is proxy:
            self.restart_proxy(proxy)

    def back_up_now(self, disk: Disk) -> None:
        """Back a directory up where its copies begin, now and then."""
        if (
            self.scenario.puts_back
            and not self.network.is_calm
            and self._backup_rng.random() < _BACKUP_AT_COPIES
        ):
            disk.back_up()

    # -- within a transaction ----------------------------------------------------------

    def _interrupts(self, probability: float) -> bool:
        is_storm = self.scenario.profile is Profile.STORM
        is_quiet = self.network.is_calm or not is_storm
        return not is_quiet and self._interruption_rng.random() < probability

    def kills_within_write(self) -> bool:
        """Return whether a node is killed while its store does what comes next."""
        return self._interrupts(_KILL_WITHIN_WRITE)

    def fails_within_write(self) -> bool:
        """Return whether the disk fails while a store does what comes next."""
        return self._interrupts(_FAIL_WITHIN_WRITE)

    def interruption_step(self) -> int:
        """Return at which step of the store that happens."""
        return self._interruption_rng.randint(1, _STEP_COUNT)

    def killed_within_write(self, node: Node) -> None:
        """End a process that was killed, and start another one in a while."""
        self.counts["fault: killed within a write"] += 1
        for host in self.hosts:
            if host.node is node:
                host.stop()
                delay_ns = self._interruption_rng.randrange(1, 600 * MS)
                self.timeline.after(delay_ns, partial(self._return, host))

    # -- what lies between -------------------------------------------------------------

    def sever(self, connection: Connection) -> None:
        """Break a connection; its proxy hears of it later, if ever."""
        last_ns = connection.sever()
        ends = self.connections.pop(connection.link, None)
        if ends is None:
            return
        peer, proxy = ends
        peer.lost(connection)
        if self.network.is_calm or self.rng.random() < 0.8:
            when_ns = max(last_ns, self.timeline.now_ns) + self.notice_ns()
            self.timeline.at(when_ns, partial(proxy.link_closed, connection.link))

    def link_closed(self, link: LinkId) -> None:
        """Tell every proxy that a writer is gone."""
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

    def copying_at(self, address: str | None) -> NodeCopying | None:
        """Return what copies at an address, if a process runs there."""
        node = None if address is None else self.node_at(address)
        return None if node is None else node.copying

    def emptied(self, node: Node, reason: str) -> None:
        """End a node in a while if it wants to end: it was told that it may."""
        if not node.is_leaving:
            return
        self.counts[f"nodes that may end: {reason}"] += 1
        delay_ns = self.rng.choice((MS, 300 * MS, 1_500 * MS))
        if self.scenario.profile is not Profile.STORM:
            delay_ns = 2 * COMMIT_TIMEOUT_NS  # what was begun before is over by then
        for host in self.hosts:
            if host.node is node:
                self.timeline.after(delay_ns, partial(self._end, host, node, reason))

    def _end(self, host: Host, node: Node, reason: str) -> None:
        if host.node is not node:
            return
        is_storm = self.scenario.profile is Profile.STORM and not self.network.is_calm
        if reason != "empty" and not is_storm:
            return  # only it has what it has
        records = self.moves.present.values()
        if not is_storm and any(node.node_id in one.node_ids for one in records):
            return  # an operator's late request has undone its drain since
        host.stop()
        host.has_left = reason == "empty"
        if not self.network.is_calm:
            delay_ns = self.rng.randrange(4_000 * MS)
            self.timeline.after(delay_ns, partial(self._return, host))

    def _return(self, host: Host) -> None:
        # Later `_calm_down` has said who comes back: who comes after what is awaited
        # then would be found in the middle of copying.
        if not self.network.is_calm:
            host.start()

    def find_node(self, node_id: str) -> str | None:
        """Return where a node is, as the proxy leader knows it."""
        proxy = self._known_leader
        if proxy is None or proxy.core is None:
            return None
        for node in proxy.core.view.node_summaries(now_ns=self.timeline.now_ns):
            if node.node_id == node_id:
                return node.address
        return None

    def look_at_nodes(self, stepped: Node | None = None) -> None:
        """Look at all nodes together: who answers now, after *stepped* has stepped."""
        nodes = (host.node for host in self.hosts if host.node is not None)
        leader = self.leader
        core = None if leader is None else leader.core
        locations = () if core is None else core.locations.values()
        self.answers.look(nodes, self.names.epoch, locations, stepped)

    # -- small things ------------------------------------------------------------------

    @property
    def wall_clock_us(self) -> int:
        """Return what every wall clock shows."""
        return wall_clock_us_at(self.timeline.now_ns)

    def next_number(self) -> int:
        """Return a number that was not given out before."""
        return next(self.numbers)

    def fails(self, probability: float) -> bool:
        """Return whether something goes wrong that may go wrong now."""
        return not self.network.is_calm and self.rng.random() < probability

    def notice_ns(self) -> int:
        """Return after how long an end notices that a connection is over."""
        return 1 + self.rng.randrange(_NOTICE_NS)

    def store_delay_ns(self, slowness: int = 1) -> int:
        """Return how long a write to a node's store takes."""
        delay_ns = 1 + round(self.rng.expovariate(1.0) * self.scenario.store_ns)
        delay_ns *= slowness
        if self.scenario.profile is Profile.STORM:
            return delay_ns  # no read is promised an answer
        return min(delay_ns, _STRICT_WRITE_NS_MAX)

    def sweep_delay_ns(self) -> int:
        """Return when a node looks for expired rows again."""
        return 1 + self._sweep_rng.randrange(400 * MS)

    def copy_delay_ns(self, node_id: str) -> int:
        """Return how long a node takes to read a page for another."""
        del node_id
        mean_ns = MS if self.network.is_calm else self.scenario.copy_ns
        delay_ns = round(self.rng.expovariate(1.0) * mean_ns * self.copy_slowness)
        return 1 + min(delay_ns, _PAGE_DELAY_NS_MAX)

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
            # Where it runs is drawn, and stands in what disks complain of.
            text = text.replace(str(self.directory), "directory")
            self._write(f"{self.timeline.now_ns / MS:10.3f} {who}: {text}")
