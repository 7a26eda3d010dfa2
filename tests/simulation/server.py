"""The server's machine: storage, a clock, and one process after the other on it."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final
from uuid import UUID

from election.config import ElectionConfig
from election.epochs import COUNTER_BITS, IncarnationEpochs, incarnation_after
from leaderserver import codec
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    Granted,
    Hello,
    Reply,
    Request,
    SubscribeRequest,
    Welcome,
)
from leaderserver.server.core.storage_queue import CommitTask
from leaderserver.server.core.turn import Broadcast, Outgoing
from leaderserver.server.service import LeaderService
from leaderserver.server.service_config import ServiceConfig
from leaderserver.server.storage_work import perform_storage_work
from leaderserver.store_messages import CommitRequest
from nameservice import NS_PER_SECOND
from tests.simulation.disk import DiskStorage
from tests.simulation.scenario import Storage
from tests.simulation.timeline import MS, Process
from tests.simulation.told_epochs import ToldEpochs
from zmqtransport.access import ANONYMOUS, Principal


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election.events import ElectionEvent
    from leaderserver.message_parts import AffirmationRecord
    from leaderserver.messages import ToServer
    from leaderserver.server.core.storage_queue import StorageWork
    from leaderserver.server.storage_work import Outcome
    from tests.simulation.world import World


__all__ = ["ServerHost", "ServerProcess"]

_SPIN_COUNT_MAX: Final = 8
_OBSERVER: Final = Principal(
    name="observer", roles=frozenset({"observe"}), public_key="o" * 40
)
# How often a server is started again with another longest lease.
_OTHER_SETTINGS: Final = 0.4
# A process that goes on does so a little later than it might.
_WAKE_UP_NS: Final = 5 * MS
_DAY_SECONDS: Final = 24 * 60 * 60


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
        lease_ns_max: The longest lease that the present one admits.
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
        self.lease_ns_max = world.scenario.lease_ns_max
        self._incarnation = 0
        self._witnessed = 0

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
        self.storage.opened()
        if not self.storage.is_durable:
            self.storage = self._new_storage()
            self._world.checker.store_lost()
        if self.count and not self.storage.is_durable and self._rng.random() < 0.4:
            self._world.counts["fault: server's wall clock set"] += 1
            self._wall_offset_ns += self._rng.choice((-90, -5, 90)) * NS_PER_SECOND
        wall_ns = self.clock.now_ns() + self._wall_offset_ns
        at_least = wall_ns // NS_PER_SECOND
        if not self.storage.is_durable:
            # What `ClockWitness` keeps on a machine.
            at_least = incarnation_after(self._witnessed, at_least=max(1, at_least))
            self._witnessed = at_least
        self._incarnation = self.storage.next_incarnation(at_least=at_least)
        if self.count and self._rng.random() < _OTHER_SETTINGS:
            self._world.counts["fault: restarted with other leases"] += 1
            self.lease_ns_max = round(
                scenario.lease_ns_max * self._rng.choice((0.3, 0.6, 1.0))
            )
        undecided_ns = self.storage.admit_leases(
            self._incarnation,
            lease_ns=self.lease_ns_max,
            unrecorded_ns=scenario.lease_ns_max,
        )
        if not self.storage.is_durable:
            undecided_ns = max(undecided_ns, NS_PER_SECOND - wall_ns % NS_PER_SECOND)
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

    @property
    def wall_days(self) -> int:
        """Return how many days the wall clock can go back."""
        return self._wall_seconds // _DAY_SECONDS

    def replace(self, *, days: int) -> None:
        """Be another machine: nothing is remembered, and the clock is *days* behind."""
        assert self.process is None
        self.lose_storage()
        self._incarnation = 0
        self._witnessed = 0
        self._wall_offset_ns -= days * _DAY_SECONDS * NS_PER_SECOND

    def kill(self) -> None:
        """Kill the running server."""
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
        undecided_ns: How long it waits for claims.
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
        self.undecided_ns = undecided_ns
        self.dies_next = False
        now_ns = host.clock.now_ns()
        self.service = LeaderService(
            ServiceConfig(
                lease_ns_min=world.scenario.lease_ns_min,
                lease_ns_max=host.lease_ns_max,
                session_timeout_ns_min=2 * world.scenario.lease_ns_min,
                session_timeout_ns_max=3_600 * NS_PER_SECOND,
                server_id=f"server{number}",
            ),
            ElectionConfig(
                namespace=UUID(bytes=rng.randbytes(16)),
                undecided_ns=undecided_ns,
                is_durable=host.storage.is_durable,
                tick_ns=world.scenario.lease_ns_min // 5,
            ),
            epochs=IncarnationEpochs(incarnation, started_ns=now_ns),
            storage=host.storage,
            draw_secret=rng.randbytes,
            now_ns=now_ns,
            is_storage_apart=world.scenario.write_ns > 0,
        )
        self._disk_rng = Random(f"{world.scenario.seed}/disk/{number}")
        self._under_way: list[StorageWork] = []
        self._stepped_ns = -1
        self._spin_count = 0
        self._heard: dict[str, int] = {}
        self._told = ToldEpochs()
        self._paused_ns = 0
        # When each of its pauses was over, and what it took.
        self._stalls: list[tuple[int, int]] = []

    # -- the shell -----------------------------------------------------------------

    def receive(self, payload: bytes, peer: str) -> None:
        """Take what a client sent."""
        now_ns = self._host.clock.now_ns()
        message = codec.decode_to_server(payload)
        self._told.asked(peer, message)
        if isinstance(message, Request):
            session_id = self._world.session_ids.get(message.secret, "")
            self._heard[session_id] = now_ns
        waiting_count = self._waiting_count(now_ns)
        outgoing = self.service.receive(
            message, peer=peer, connection=peer, principal=ANONYMOUS, now_ns=now_ns
        )
        if isinstance(message, Request) and isinstance(message.body, CommitRequest):
            self._world.checker.store.asked(
                message.body,
                self._world.session_ids.get(message.secret),
                self.service.core,
                is_waiting=self._waiting_count(now_ns) > waiting_count,
            )
        self._check_writes()
        self._perform(message, outgoing)

    def _waiting_count(self, now_ns: int) -> int:
        return int(self.service.figures(now_ns=now_ns)["storage_waiting"])

    def _check_writes(self) -> None:
        for value in self._host.storage.writes:
            self._world.counts["commits accepted"] += 1
            self._world.checker.store.written(
                value, is_durable=self._host.storage.is_durable
            )
        self._host.storage.writes.clear()

    # -- the disk ------------------------------------------------------------------

    def _work_on_storage(self) -> None:
        """Hand work to the disk, which takes its time."""
        if self._world.scenario.write_ns == 0:
            return
        while (work := self.service.next_storage_work()) is not None:
            self._under_way.append(work)
            mean_ns = 0 if self._world.is_calm else self._world.scenario.write_ns
            delay_ns = round(self._disk_rng.random() * 2 * mean_ns)
            # The disk goes on while the process is stopped.
            self.timeline.after(delay_ns, partial(self._disk_did, work))

    def finish_writing(self) -> None:
        """Have the disk done with what it has begun: it is slow no more."""
        for work in tuple(self._under_way):
            self._disk_did(work)

    def _disk_did(self, work: StorageWork) -> None:
        if self.is_alive and work in self._under_way:
            self._under_way.remove(work)
            outcomes = perform_storage_work(self._host.storage, work)
            self._check_writes()
            self.run(partial(self._take_outcomes, work, outcomes))

    def _take_outcomes(self, work: StorageWork, outcomes: Sequence[Outcome]) -> None:
        now_ns = self._host.clock.now_ns()
        outgoing = self.service.storage_done(work, outcomes, now_ns=now_ns)
        for job in work.jobs:
            if isinstance(job.task, CommitTask):
                self._world.checker.store.decided(job.task.operations)
        self._perform("the disk has worked", outgoing)

    def kill(self) -> None:
        """Die; what was on its way to the disk may be there."""
        for work in self._under_way:
            if self._disk_rng.random() < 0.5:
                perform_storage_work(self._host.storage, work)
        self._under_way.clear()
        self._check_writes()
        self._world.checker.store.forgotten()
        super().kill()

    def connection_closed(self, peer: str) -> None:
        """Hear, rightly or not, that a connection closed."""
        now_ns = self._host.clock.now_ns()
        self._perform(
            f"connection of {peer} closed",
            self.service.connection_closed(peer, now_ns=now_ns),
        )

    def inject(self, event: ElectionEvent) -> None:
        """Have leadership control do something."""
        now_ns = self._host.clock.now_ns()
        self._perform(event, self.service.inject(event, now_ns=now_ns))

    def hear_observer(self, *, ahead: int, is_ended: bool) -> None:
        """N4: have a client that may only look report an epoch of every component."""
        now_ns = self._host.clock.now_ns()
        self._perform(None, self.service.advance(now_ns=now_ns))
        before = self._leaderships()
        name = f"observer#{now_ns}"
        hello = Hello(
            nonce=self.rng.randbytes(16), session_timeout_ns=1, lease_ns=1, client=name
        )
        for item in self._hear_observer(hello, name):
            if not isinstance(item.message, Welcome):
                continue
            for number, (component_id, (epoch, _)) in enumerate(before.items(), 1):
                report = SubscribeRequest(
                    component_id=component_id,
                    epoch_seen=max(0, epoch + ahead),
                    is_ended_seen=is_ended,
                )
                request = Request(
                    secret=item.message.secret, number=number, body=report
                )
                self._hear_observer(request, name)
        self._world.checker.require(
            "N4 who may only look changes no leadership",
            self._leaderships() == before,
            f"{before} became {self._leaderships()}",
        )

    def _hear_observer(self, message: ToServer, name: str) -> Sequence[Outgoing]:
        outgoing = self.service.receive(
            message,
            peer=name,
            connection=name,
            principal=_OBSERVER,
            now_ns=self._host.clock.now_ns(),
        )
        self._perform(message, outgoing)
        return outgoing

    def _leaderships(self) -> dict[str, tuple[int, UUID | None]]:
        return {
            component.component_id: (
                component.epoch_max,
                None
                if component.leadership is None
                else component.leadership.leader_session_id,
            )
            for component in self.service.core.components
        }

    def on_timer(self) -> None:
        """Take note of the time."""
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

    def pause(self) -> None:
        """Stop, and take note of when."""
        if not self.is_paused:
            self._paused_ns = self._host.clock.now_ns()
        super().pause()

    def resume(self) -> None:
        """Go on, and take note of how long no client was heard (E9)."""
        if self.is_paused:
            paused_ns = self._host.clock.now_ns() - self._paused_ns
            self._stalls.append((self._host.clock.now_ns(), paused_ns + _WAKE_UP_NS))
        super().resume()

    def _check_recorded(self, outgoing: Sequence[Outgoing]) -> None:
        """E2: what a crash forgets was not granted, nor affirmed, and no one knows."""
        recorded = self._host.storage.recorded_epochs()
        for item in outgoing:
            peer = None if isinstance(item, Broadcast) else item.peer
            for component_id, epoch in self._told.told(peer, item.message):
                self._world.checker.require(
                    "E2 an epoch is on record before anybody is told of it",
                    # What a former server has granted is known already.
                    epoch >> COUNTER_BITS != self.incarnation
                    or epoch <= recorded.get(component_id, 0),
                    f"{component_id}: {epoch} in {item.message}",
                )
            records: Sequence[AffirmationRecord] = ()
            if isinstance(item.message, Granted):
                records = [item.message.affirmation]
                self._world.checker.store.passed_on(records[0])
            elif isinstance(item.message, Reply) and isinstance(
                item.message.body, AcknowledgedHeartbeat
            ):
                records = item.message.body.affirmations
            for record in records:
                self._world.checker.require(
                    "E2 an epoch is on record before its grant is sent",
                    recorded.get(record.component_id, 0) >= record.epoch,
                    str(record),
                )

    def _check_heard(self, outgoing: Sequence[Outgoing]) -> None:
        """E1: one that is granted was heard from within its lease."""
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
            heard_ns = self._heard.get(message.session_id, session.opened_ns)
            # What the server's own pauses took since, and as much again: a lease.
            # A heartbeat is as old as the acknowledgement that it answers, so that
            # pauses of the lease before it count.
            since_ns = heard_ns - session.lease_ns
            stalled_ns = sum(
                stalled_ns for at_ns, stalled_ns in self._stalls if at_ns >= since_ns
            )
            excused_ns = stalled_ns + min(stalled_ns, session.lease_ns)
            self._world.checker.require(
                "E1 the silent are passed over",
                now_ns - heard_ns < session.lease_ns + excused_ns,
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
        if self.dies_next or self._host.storage.fatal_error is not None:
            self.dies_next = False
            world.server_dies()
        else:
            self._work_on_storage()
            self.arm_service()
