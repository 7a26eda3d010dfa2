"""The server's machine: storage, a clock, and one process after the other on it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, final
from uuid import UUID

from election import Put
from election.core import ElectionConfig
from election.epochs import COUNTER_BITS, IncarnationEpochs
from leaderserver import codec
from leaderserver.messages import CommitRequest, Granted, Request, Welcome
from leaderserver.service import (
    Broadcast,
    LeaderService,
    Outgoing,
    ServiceConfig,
)
from leaderserver.storage import MemoryStorage
from nameservice import NS_PER_SECOND, StorageError
from tests.simulation.scenario import Storage
from tests.simulation.timeline import MS, Process
from transport.access import ANONYMOUS


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from election import StoreOperation, VersionedValue
    from election.events import ElectionEvent
    from tests.simulation.world import World


__all__ = ["DiskStorage", "ServerHost", "ServerProcess"]

_SPIN_COUNT_MAX: Final = 8


@final
class DiskStorage:
    """
    Storage that outlives its process if the scenario says so, and may fail.

    It does what `SQLiteStorage` does with one file, in memory.
    """

    def __init__(self, *, is_durable: bool, rng: Random) -> None:
        self._memory = MemoryStorage()
        self._is_durable = is_durable
        self._rng = rng
        self._incarnation = 0
        self.failure = 0.0
        self.writes: list[bytes] = []

    @property
    def is_durable(self) -> bool:
        """Return whether it outlives the process."""
        return self._is_durable

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""
        highest = max(
            (epoch >> COUNTER_BITS for epoch in self.recorded_epochs().values()),
            default=0,
        )
        self._incarnation = max(self._incarnation + 1, highest + 1, at_least)
        return self._incarnation

    def recorded_epochs(self) -> Mapping[str, int]:
        """Return the highest epoch recorded of each component."""
        return self._memory.recorded_epochs()

    def record_epoch(self, component_id: str, epoch: int) -> None:
        """Make *epoch* durable, or fail."""
        self._fail_perhaps()
        known = self.recorded_epochs().get(component_id, 0)
        self._memory.record_epoch(component_id, max(known, epoch))

    def get(self, component_id: str, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        return self._memory.get(component_id, path)

    def list(
        self, component_id: str, prefix: str, *, after: str, count_max: int
    ) -> Sequence[str]:
        """Return paths that begin with *prefix*, after *after*."""
        return self._memory.list(component_id, prefix, after=after, count_max=count_max)

    def commit(self, component_id: str, operations: Sequence[StoreOperation]) -> None:
        """Do all of *operations*, or fail."""
        self._fail_perhaps()
        self._memory.commit(component_id, operations)
        self.writes += [o.value for o in operations if isinstance(o, Put)]

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""
        self._memory.cleanup(component_id)

    def close(self) -> None:
        """Do nothing: the next process opens it again."""

    def _fail_perhaps(self) -> None:
        if self.failure and self._rng.random() < self.failure:
            raise StorageError("the disk is full")


@final
class ServerHost:
    """
    The machine that servers run on, one after the other.

    Attributes:
        clock: What it takes for time.
        process: The server that runs, or None.
        storage: What the next one will find.
        started_ns: When the latest one was started.
        count: How many were started.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.scenario.seed}/server")
        self.clock = world.make_clock()
        # Its wall clock is the same oscillator, and began in 2020 plus something.
        self._wall_offset_ns = (
            self._rng.randrange(10**9) * 10 + 10**6
        ) * MS - self.clock.now_ns()
        self.process: ServerProcess | None = None
        self.storage = self._new_storage()
        self.started_ns = 0
        self.count = 0
        self._incarnation = 0

    def _new_storage(self) -> DiskStorage:
        is_durable = self._world.scenario.storage != Storage.MEMORY
        return DiskStorage(is_durable=is_durable, rng=self._rng)

    @property
    def _wall_seconds(self) -> int:
        return (self.clock.now_ns() + self._wall_offset_ns) // NS_PER_SECOND

    @property
    def may_lose_storage(self) -> bool:
        """Return whether the wall clock alone can give a new incarnation (E2)."""
        return self._wall_seconds > self._incarnation

    def start(self) -> ServerProcess:
        """Start a server, as the shell of a LeaderServer does."""
        assert self.process is None
        scenario = self._world.scenario
        if not self.storage.is_durable:
            self.storage = self._new_storage()
            self._world.checker.store_lost()
        wall_ns = self.clock.now_ns() + self._wall_offset_ns
        undecided_ns = scenario.lease_ns_max
        if not self.storage.is_durable:
            undecided_ns = max(undecided_ns, NS_PER_SECOND - wall_ns % NS_PER_SECOND)
        self._incarnation = self.storage.next_incarnation(
            at_least=wall_ns // NS_PER_SECOND
        )
        self.count += 1
        self.started_ns = self._world.timeline.now_ns
        self.process = ServerProcess(
            self._world,
            self,
            number=self.count,
            incarnation=self._incarnation,
            undecided_ns=undecided_ns,
        )
        self.process.arm_service()
        return self.process

    def lose_storage(self) -> None:
        """Lose the data directory."""
        self.storage = self._new_storage()
        self._world.checker.store_lost()

    def kill(self) -> None:
        """Let the running server die."""
        if self.process is not None:
            self.process.kill()
            self.process = None


@final
class ServerProcess(Process):
    """
    One start of a LeaderServer: the shipped `LeaderService`, and a shell around it.

    Attributes:
        number: Which start this is.
        incarnation: As it began.
        service: The shipped service.
        dies_next: Whether it dies in its next step, before all of it was sent.
    """

    def __init__(
        self,
        world: World,
        host: ServerHost,
        *,
        number: int,
        incarnation: int,
        undecided_ns: int,
    ) -> None:
        rng = Random(f"{world.scenario.seed}/server/{number}")
        super().__init__(f"server{number}", world.timeline, rng)
        self._world = world
        self._host = host
        self.number = number
        self.incarnation = incarnation
        self.dies_next = False
        now_ns = host.clock.now_ns()
        self.service = LeaderService(
            ServiceConfig(
                lease_ns_min=10 * MS,
                lease_ns_max=world.scenario.lease_ns_max,
                session_timeout_ns_min=20 * MS,
                session_timeout_ns_max=3_600 * NS_PER_SECOND,
            ),
            ElectionConfig(
                namespace=UUID(bytes=rng.randbytes(16)), undecided_ns=undecided_ns
            ),
            epochs=IncarnationEpochs(incarnation, started_ns=now_ns),
            storage=host.storage,
            draw_secret=rng.randbytes,
            now_ns=now_ns,
        )
        self._stepped_ns = -1
        self._spin_count = 0
        self._heard_ns: dict[str, int] = {}
        self._stalled_ns = now_ns

    # -- the shell -----------------------------------------------------------------

    def receive(self, payload: bytes, peer: str) -> None:
        """Take what a client sent."""
        now_ns = self._host.clock.now_ns()
        message = codec.decode_to_server(payload)
        if isinstance(message, Request):
            session_id = self._world.session_ids.get(message.secret, "")
            self._heard_ns[session_id] = now_ns
        outgoing = self.service.receive(
            message, peer=peer, connection=peer, principal=ANONYMOUS, now_ns=now_ns
        )
        if self._host.storage.writes:
            self._check_writes(message)
        self._perform(message, outgoing)

    def _check_writes(self, message: object) -> None:
        assert isinstance(message, Request)
        assert isinstance(message.body, CommitRequest)
        client_session_id = self._world.session_ids.get(message.secret)
        for value in self._host.storage.writes:
            token, leader_session_id, epoch = value.decode().split("|")
            self._world.counts["commits accepted"] += 1
            self._world.checker.store_written(
                message.body.component_id,
                token=token.encode(),
                leader_session_id=UUID(leader_session_id),
                epoch=int(epoch),
                client_session_id=client_session_id,
                core=self.service.core,
                is_durable=self._host.storage.is_durable,
            )
        self._host.storage.writes.clear()

    def connection_closed(self, peer: str) -> None:
        """Hear, rightly or not, that a connection closed."""
        now_ns = self._host.clock.now_ns()
        self._perform(
            f"connection of {peer} closed",
            self.service.connection_closed(peer, now_ns=now_ns),
        )

    def inject(self, event: ElectionEvent) -> None:
        """Let leadership control do something."""
        now_ns = self._host.clock.now_ns()
        self._perform(event, self.service.inject(event, now_ns=now_ns))

    def on_timer(self) -> None:
        """Let time pass."""
        now_ns = self._host.clock.now_ns()
        due_ns = self.service.next_deadline_ns()
        if due_ns is None or due_ns > now_ns:
            self.arm_service()
            return
        self._spin_count = self._spin_count + 1 if now_ns == self._stepped_ns else 0
        self._stepped_ns = now_ns
        self._world.checker.require(
            "the server's deadlines move on",
            self._spin_count < _SPIN_COUNT_MAX,
            f"{self.name} spins at {now_ns}",
        )
        self._perform(None, self.service.advance(now_ns=now_ns))

    def resume(self) -> None:
        """Go on, and excuse everybody's silence for a while (E9)."""
        self._stalled_ns = self._host.clock.now_ns()
        super().resume()

    def _check_recorded(self, outgoing: Sequence[Outgoing]) -> None:
        """E2: what a crash forgets must not have been granted."""
        for item in outgoing:
            if isinstance(item.message, Granted):
                record = item.message.affirmation
                recorded = self._host.storage.recorded_epochs()
                self._world.checker.require(
                    "E2 an epoch is on record before its grant is sent",
                    recorded.get(record.component_id, 0) >= record.epoch,
                    str(record),
                )

    def _check_heard(self, outgoing: Sequence[Outgoing]) -> None:
        """E1: whoever is granted was heard from within its lease."""
        for item in outgoing:
            message = item.message
            if not isinstance(message, Granted):
                continue
            session = self.service.core.session(message.session_id)
            component = self.service.core.component(message.affirmation.component_id)
            if session is None or component is None or component.publication is None:
                continue
            if component.publication.epoch == message.affirmation.epoch:
                continue  # reinstated: it may be silent (E9)
            now_ns = self._host.clock.now_ns()
            heard_ns = self._heard_ns.get(message.session_id, session.opened_ns)
            self._world.checker.require(
                "E1 the silent are passed over",
                now_ns - heard_ns < session.lease_ns
                or now_ns - self._stalled_ns < 2 * self._world.scenario.lease_ns_max,
                f"{message} not heard from for {(now_ns - heard_ns) / 1e9:.3f} s",
            )

    def arm_service(self) -> None:
        """Ask to be woken at the service's deadline."""
        due_ns = self.service.next_deadline_ns()
        if due_ns is not None:
            self.arm(self._host.clock.real_ns(due_ns))

    def _perform(self, event: object, outgoing: Sequence[Outgoing]) -> None:
        world = self._world
        if world.is_traced and (event is not None or outgoing):
            world.trace_step(
                self.name,
                self._host.clock.now_ns(),
                event,
                [o.message for o in outgoing],
            )
        world.counts["leaderships granted"] += world.checker.server_did(
            self.number, self.service.core, outgoing
        )
        self._check_heard(outgoing)
        self._check_recorded(outgoing)
        if self.dies_next:
            outgoing = outgoing[: self.rng.randrange(len(outgoing) + 1)]
        for item in outgoing:
            if isinstance(item.message, Welcome):
                world.session_ids[item.message.secret] = item.message.session_id
            payload = codec.encode(item.message)
            if isinstance(item, Broadcast):
                world.broadcast(item.message.component_id, payload)
            else:
                assert isinstance(item.peer, str)
                world.send(item.peer, payload)
        if self.dies_next:
            self.dies_next = False
            world.server_dies()
        else:
            self.arm_service()
