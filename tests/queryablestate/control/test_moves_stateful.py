"""Moves while nodes, disks, leaders and the leader store fail at random (S1 to S4)."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import TYPE_CHECKING, Final, final

import pytest
from attrs import define, field

from nameservice import DidNotHappenError
from queryablestate.control.effects import (
    ForgetNode,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.limits import ControlLimits
from queryablestate.wire.clients import TicketDrawn
from queryablestate.wire.job_assignment import JobAssignment
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    EntriesApplied,
    JobPosition,
    KeyGroupsCopied,
    LeaveNode,
    NodeHeartbeat,
    NodeRefused,
    NodeRegistered,
    RegisterNode,
    ResetJob,
)
from queryablestate.wire.operation_messages import DrainNode, RescaleJob
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    OPERATOR,
    SESSION,
    TIMEOUT_NS,
    WALL_US,
    Plane,
    bind,
    commit,
    draw,
    load,
    node_register,
    told,
)


if TYPE_CHECKING:
    from collections.abc import Iterable

    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import ControlEvent
    from queryablestate.wire.node_messages import FromNode, ToNode
    from queryablestate.wire.records import AssignmentRecord


NODE_IDS: Final = ("a", "b", "c", "d")
GROUP_COUNT: Final = 4


@final
@define
class Disk:
    """
    What a node has of the job; it outlives the node.

    Attributes:
        store_id: Its name.
        position: The last entry applied, None before the first word of the job.
        complete: The key groups that it has all rows of.
        lost: Those of which it says that it has lost the rows (rule W7).
        begun: Since when it copies what it does not have.
    """

    store_id: str
    position: int | None = None
    complete: set[int] = field(factory=set)
    lost: set[int] = field(factory=set)
    begun: dict[int, int] = field(factory=dict)


@final
@define
class Node:
    """
    A node as simple as can be.

    Attributes:
        node_id: Its name.
        disk: Its data directory.
        link: Its connection while it runs.
        process: Which process of it that is.
        inbox: What it has been told, and not heard yet.
        outbox: What it has said, and was not heard yet.
        part: What it was told of the job last.
    """

    node_id: str
    disk: Disk
    link: LinkId | None = None
    process: int = 0
    inbox: deque[ToNode] = field(factory=deque)
    outbox: deque[FromNode] = field(factory=deque)
    part: JobAssignment | None = None

    @property
    def registration_id(self) -> str:
        """Return what names the process."""
        return f"{self.node_id}-{self.process}"

    def registration(self) -> RegisterNode:
        """Return what it asks to be taken in with."""
        position = self.disk.position
        message = node_register(
            self.node_id,
            store_id=self.disk.store_id,
            registration_id=self.registration_id,
        )
        return RegisterNode(
            token=None,
            node_id=message.node_id,
            store_id=message.store_id,
            registration_id=message.registration_id,
            address=message.address,
            positions=()
            if position is None
            else (JobPosition(job_id=APP, sequence=position),),
        )

    def hear(self) -> None:
        """Do what it was told first."""
        message = self.inbox.popleft()
        match message:
            case NodeRegistered(jobs=jobs):
                self._hold(jobs[0] if jobs else None)
            case AssignJob(job=job):
                self._hold(job)
            case ResetJob(sequence=sequence, state_numbers=lost):
                self.disk.position = sequence
                held = set() if self.part is None else self._held(self.part)
                self.disk.complete = set(held)
                # Without anything lost it begins where everybody has nothing yet.
                self.disk.lost = set(held) if lost else set()
                self._say_position()
            case ApplyEntries(entries=entries):
                position = self.disk.position
                first = entries[0].sequence
                assert position is not None or first == 1
                assert first <= (position or 0) + 1, "an entry is missing"
                last = entries[-1].sequence
                self.disk.position = max(position or 0, last)
                self._say_position()
            case NodeRefused():
                self.part = None
                self.outbox.append(self.registration())
            case _:
                pass

    def _held(self, part: JobAssignment) -> set[int]:
        return {*part.key_groups, *part.copies}

    def _hold(self, part: JobAssignment | None) -> None:
        """Keep what it is to hold, and nothing else."""
        self.part = part
        held = set() if part is None else self._held(part)
        joining = {} if part is None else {g.key_group: g.since for g in part.joining}
        disk = self.disk
        if disk.position is None:
            disk.complete = set(held)  # an empty directory that was assigned empty
        begun = {g: since for g, since in joining.items() if disk.begun.get(g) == since}
        disk.complete &= held | set(begun)
        disk.lost &= disk.complete
        disk.begun = joining
        if part is not None and joining:
            self.say_copied()

    def _say_position(self) -> None:
        assert self.disk.position is not None
        self.outbox.append(
            EntriesApplied(
                registration_id=self.registration_id,
                job_id=APP,
                sequence=self.disk.position,
                failure=None,
            )
        )

    def say_copied(self) -> None:
        """Say what it has copied."""
        assert self.part is not None
        self.outbox.append(
            KeyGroupsCopied(
                registration_id=self.registration_id,
                job_id=APP,
                assignment_version=self.part.assignment_version,
                key_groups=tuple(sorted(self.disk.begun.keys() & self.disk.complete)),
                row_count=0,
                size_bytes=0,
            )
        )


@final
class World:
    """Nodes, a control plane, and what is on its way between them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.plane = Plane()
        self.limits = ControlLimits(
            replica_count=self.random.randint(1, 3), joining_key_groups_max=2
        )
        self.plane.core.limit(self.limits)
        self.nodes = {
            node_id: Node(node_id, Disk(f"disk-of-{node_id}")) for node_id in NODE_IDS
        }
        self.by_link: dict[LinkId, Node] = {}
        self.link_last = 100
        self.disk_last = 0
        self.writing: WriteStore | None = None
        self.version_last = 0
        for node_id in NODE_IDS[: self.random.randint(1, 4)]:
            self.start(self.nodes[node_id])
        self.settle()
        self.epoch = 0

    # -- what happens --------------------------------------------------------------

    def step(self, event: ControlEvent) -> None:
        """Tell the control plane of something."""
        self.perform(self.plane.step(event))

    def perform(self, effects: Iterable[ControlEffect]) -> None:
        """Bring nodes what they are told."""
        for effect in effects:
            match effect:
                case WriteStore():
                    assert self.writing is None
                    self.writing = effect
                case SendToNode(link=link, message=message):
                    node = self.by_link.get(link)
                    if node is not None:
                        node.inbox.append(message)
                case ForgetNode() | StartOver():
                    pass
                case _:
                    pass
        self.check()

    def write(self, *, is_taken: bool = True) -> None:
        """Have the leader store take what is to be written, or not."""
        if self.writing is None:
            return
        writing, self.writing = self.writing, None
        if is_taken:
            self.plane.write(writing)
            self.step(StoreWritten())
        else:
            error = DidNotHappenError("no")
            self.step(StoreFailed(error=error, is_certain=True))

    def start(self, node: Node) -> None:
        """Start a node, if it does not run."""
        if node.link is not None:
            return
        self.link_last += 1
        node.link = LinkId(self.link_last)
        node.process += 1
        self.by_link[node.link] = node
        node.outbox.append(node.registration())

    def stop(self, node: Node) -> None:
        """Kill a node: what is on its way is lost."""
        if node.link is None:
            return
        link, node.link = node.link, None
        del self.by_link[link]
        node.inbox.clear()
        node.outbox.clear()
        node.part = None
        self.step(LinksClosed(links=(link,)))

    def replace_disk(self, node: Node) -> None:
        """Give a node another disk, an empty one."""
        self.stop(node)
        self.disk_last += 1
        node.disk = Disk(f"disk-{self.disk_last}-of-{node.node_id}")

    def next_leader(self) -> None:
        """Have another proxy lead; a write on its way may have been taken."""
        if self.writing is not None and self.random.random() < 0.5:
            self.plane.write(self.writing)
        self.writing = None
        self.plane.core = load(
            self.plane.store, epoch=self.plane.now_ns + 10, now_ns=self.plane.now_ns
        )
        self.plane.core.limit(self.limits)
        for node in self.nodes.values():
            node.inbox.clear()
            node.outbox.clear()
            if node.link is not None:
                node.outbox.append(node.registration())

    def say(self, node: Node) -> None:
        """Tell the control plane what a node says."""
        if node.link is None or not node.outbox:
            return
        message = node.outbox.popleft()
        if isinstance(message, KeyGroupsCopied) and self.random.random() < 0.2:
            node.outbox.append(message)  # comes again, later
        self.step(NodeSpoke(link=node.link, message=message))

    def copy(self, node: Node) -> None:
        """Have a node copy a key group, if its source is there."""
        part = node.part
        if part is None or node.inbox or node.disk.position is None:
            return
        for source in part.sources:
            other = self.nodes[source.node_id]
            if source.address is None or other.link is None:
                continue
            for key_group in source.key_groups:
                is_done = key_group in node.disk.complete
                if is_done or key_group not in other.disk.complete:
                    continue
                node.disk.complete.add(key_group)
                if key_group in other.disk.lost:
                    node.disk.lost.add(key_group)
                node.say_copied()
                return

    def ask(self) -> None:
        """Have an operator or a driver ask for something."""
        random = self.random
        request: RescaleJob | DrainNode
        kind = random.randrange(3)
        if kind == 0:
            request = RescaleJob(
                request_id=1,
                session=SESSION,
                job_id=APP,
                node_count=random.choice([None, 1, 2, 3, 4]),
                replica_count=random.choice([None, 1, 2, 3]),
            )
        elif kind == 1:
            request = DrainNode(
                request_id=2,
                session=SESSION,
                node_id=random.choice(NODE_IDS),
                is_undone=random.random() < 0.5,
            )
        else:
            self.batch()
            return
        self.step(WriterAsked(link=OPERATOR, request=request, wall_clock_us=WALL_US))

    def batch(self) -> None:
        """Decide one more batch, without rows."""
        record = self.plane.core._control.job(APP).record
        request = commit(
            self.epoch,
            record.sequence,
            assignment_version=self.assignment().version,
            timeout_ms=600_000,
        )
        self.step(WriterAsked(link=DRIVER, request=request, wall_clock_us=WALL_US))

    def something(self) -> None:
        """Have anything happen."""
        random = self.random
        node = self.nodes[random.choice(NODE_IDS)]
        number = random.random()
        if number < 0.25:
            self.say(node)
        elif number < 0.5:
            if node.inbox:
                node.hear()
        elif number < 0.65:
            self.copy(node)
        elif number < 0.8:
            self.write(is_taken=random.random() < 0.9)
        elif number < 0.86:
            self.start(node)
        elif number < 0.89:
            self.stop(node)
        elif number < 0.9:
            self.replace_disk(node)
        elif number < 0.95:
            self.ask()
        elif number < 0.955:
            self.next_leader()
        elif number < 0.96:
            # The end of the node goes unseen: the new leader finds an empty disk.
            self.next_leader()
            self.replace_disk(node)
            self.start(node)
        elif number < 0.965:
            for one in self.nodes.values():
                self.start(one)
            self.settle()
            self.plane.now_ns += TIMEOUT_NS // 4  # a write that failed is tried again
            self.beat()
            self.settle()
        elif number < 0.98:
            self.plane.now_ns += random.choice([1, TIMEOUT_NS // 4])
            self.beat()
        elif node.link is not None:
            leave = LeaveNode(registration_id=node.registration_id)
            node.outbox.append(leave)

    def beat(self) -> None:
        """Hear of all nodes, and move time on."""
        for node in self.nodes.values():
            if node.link is not None:
                beat = NodeHeartbeat(registration_id=node.registration_id, number=1)
                event = NodeSpoke(link=node.link, message=beat)
                self.step(event)
        self.step(TimePassed())

    def settle(self) -> None:
        """Bring everything to its end, with nothing going wrong."""
        for _ in range(2_000):
            before = self.progress()
            self.write()
            for node in self.nodes.values():
                while node.outbox:
                    self.say(node)
                    self.write()
                while node.inbox:
                    node.hear()
                self.copy(node)
            if self.progress() == before:
                return
        raise AssertionError("it does not come to an end")

    def progress(self) -> object:
        """Return what changes as long as anything happens."""
        return (
            self.version_last,
            self.writing is None,
            [
                (len(n.inbox), len(n.outbox), sorted(n.disk.complete))
                for n in self.nodes.values()
            ],
        )

    # -- what must hold ------------------------------------------------------------

    def assignment(self) -> AssignmentRecord:
        """Return the present assignment."""
        assignment = self.plane.core._control.job(APP).assignment
        assert assignment is not None
        return assignment

    def check(self) -> None:
        """Check that none is asked for what it has not (S1, S3)."""
        job = self.plane.core._control.jobs.get(APP)
        if job is None or job.assignment is None:
            return
        assignment = job.assignment
        assert assignment.version >= self.version_last, "back in time"
        self.version_last = assignment.version
        for key_group, owners in enumerate(assignment.owners):
            for index in owners:
                node = self.nodes[assignment.node_ids[index]]
                if node.disk.store_id != assignment.store_ids[index]:
                    continue  # it knows nothing of the job, and says so (W7)
                if node.disk.position is None or node.inbox or node.part is None:
                    continue  # it has yet to hear
                assert key_group in node.disk.complete, (key_group, node)

    def check_done(self) -> None:
        """Check that everything is as it is wanted, on the nodes that there are."""
        assignment = self.assignment()
        assert assignment.wanted == ()
        assert assignment.joining == ()
        nodes = self.plane.core._control.nodes
        ready = [node for node in nodes if not nodes.is_draining(node.node_id)]
        count = min(assignment.node_count, len(ready), GROUP_COUNT)
        if not ready:
            return
        assert len(assignment.node_ids) == count
        copies = min(assignment.replica_count, count)
        assert {len(owners) for owners in assignment.owners} == {copies}
        asked = Counter(owners[0] for owners in assignment.owners)
        assert max(asked.values()) - min(asked[n] for n in range(count)) <= 1
        self.check_rows()

    def check_rows(self) -> None:
        """Check that every owner has what it is asked for, or says that it is lost."""
        assignment = self.assignment()
        for key_group, owners in enumerate(assignment.owners):
            disks = [self.nodes[assignment.node_ids[index]].disk for index in owners]
            assert all(key_group in disk.complete for disk in disks)


@pytest.mark.proves("S1", "S2", "S3", "S4")
@pytest.mark.parametrize("seed", range(150))
def test_whatever_fails_nobody_is_asked_for_what_he_has_not(seed: int) -> None:
    """
    S1 to S4: moves, with every participant killed and every disk replaced at random.

    A key group has one primary, which has all of it, or says that it is lost; versions
    only rise; no entry is missed.  When nothing fails any more, every key group has as
    many copies as it should, evenly, on as many nodes as it should.
    """
    world = World(seed)
    plane = world.plane
    effects = plane.ask(draw())
    world.perform(effects)
    world.epoch = told(TicketDrawn, effects).ticket
    world.perform(plane.ask(bind(world.epoch)))
    world.batch()
    world.settle()
    for _ in range(world.random.randint(50, 400)):
        world.something()
    for node in world.nodes.values():
        world.start(node)
    for _ in range(3):
        world.settle()
        plane.now_ns += TIMEOUT_NS
        world.beat()
    world.settle()
    world.check_done()
