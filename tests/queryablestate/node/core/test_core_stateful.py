"""
A node, a store and a proxy that talk over connections that break.

The proxy here is the dumbest one that keeps to the contract: it has one job, answers a
registration with what the node has missed, and acknowledges heartbeats.  Messages are
delivered in order, late or, when the connection breaks, never.  The store does what it
is told, late, and fails now and then.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from queryablestate.node.core.core import NodeCore, NodeLimits
from queryablestate.node.core.effects import (
    ApplyEntry,
    AskAgain,
    ConnectProxy,
    FinishCopy,
    HoldKeyGroups,
    NodeEffect,
    ResetJobRows,
    SendToProxy,
)
from queryablestate.node.core.events import (
    CommandReceived,
    EntryFinished,
    NodeEvent,
    ProxyConnected,
    ProxyDisconnected,
    ProxyFound,
    QuestionDeferred,
    ResetFinished,
    StoreOpened,
    TimePassed,
    Wait,
)
from queryablestate.node.core.jobs import ServedJob
from queryablestate.node.core.registration import NodeIdentity
from queryablestate.wire.job_assignment import JobAssignment
from queryablestate.wire.node_messages import (
    ApplyEntries,
    EntriesApplied,
    FromNode,
    HeartbeatAcknowledged,
    NodeHeartbeat,
    NodeRefused,
    NodeRegistered,
    RegisterNode,
    ResetJob,
    StagesVerified,
    ToNode,
)
from queryablestate.wire.questions import Question, Refusal
from tests.queryablestate.node_entries import asked, assignment, batch, question
from tests.tiers import machine_settings


MS: Final = 1_000_000
SESSION_TIMEOUT_MS: Final = 1_000
ADDRESS: Final = "tcp://10.0.0.1:5000"
WAITING_MAX: Final = 3
CALM_COUNT: Final = 3


Work: TypeAlias = ApplyEntry | ResetJobRows | HoldKeyGroups | FinishCopy


class Proxy:
    """One leadership: what it knows of the node, and what it has sent it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_registered = False
        self.heard_at_ns = 0
        self.head_promised = 0


class NodeMachine(RuleBasedStateMachine):
    """Drives the core, and holds it against the dumbest model."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1_000 * MS
        self.calm_count = 0
        self.core = self.new_core()
        self.version = 1
        self.head = 0
        self.first_kept = 1
        self.since = 0
        self.proxy = Proxy(0)
        self.is_connecting = False
        self.is_connected = False
        self.to_node: deque[ToNode | Question] = deque()
        self.to_proxy: deque[FromNode] = deque()
        # The store: what it has, and what it has been told to do.
        self.position: int | None = None
        self.is_disk_lost = False
        self.work: deque[Work] = deque()
        self.waiting: dict[int, tuple[Question, int]] = {}
        self.question_id = 0
        self.promised: dict[int, int] = {}  # to whom asked: what the node was sent

    def new_core(self) -> NodeCore:
        """Return the core of a process that has just begun."""
        return NodeCore(
            NodeIdentity(node_id="n", registration_id="r", address="tcp://10.0.0.9:1"),
            NodeLimits(
                pause_ns=10 * MS,
                pause_ns_max=100 * MS,
                answer_timeout_ns=300 * MS,
                retry_ns=200 * MS,
                copy_retry_ns=20 * MS,
                copy_retry_ns_max=100 * MS,
                copy_report_ns=100 * MS,
                entries_waiting_max=4,
                questions_waiting_max=WAITING_MAX,
            ),
            now_ns=self.now_ns,
        )

    def assigned(self) -> JobAssignment:
        """Return what the node is to answer for."""
        return assignment()

    # -- the shell -----------------------------------------------------------------

    def step(self, event: NodeEvent) -> None:
        """Have *event* happen, and do what the core wants done."""
        for effect in self.core.step(event, now_ns=self.now_ns):
            self.perform(effect)
        if not self.core.is_registered:
            self.waiting.clear()

    def perform(self, effect: NodeEffect) -> None:
        """Do one thing."""
        match effect:
            case ConnectProxy():
                self.is_connecting = True
                self.break_connection()
            case SendToProxy(message=Refusal(request_id=request_id)):
                # Q2: a refusal of what waits comes at its deadline, not before.
                one, asked_at_ns = self.waiting.pop(request_id)
                assert self.now_ns >= asked_at_ns + one.deadline_ms * MS
            case SendToProxy(message=message):
                assert not isinstance(message, Refusal)
                assert self.is_connected
                self.to_proxy.append(message)
            case ApplyEntry(entry=entry):
                # W3: one at a time, in order, none left out.
                told = [w for w in self.work if isinstance(w, ResetJobRows)]
                last = told[-1].sequence if told else self.position or 0
                assert not any(isinstance(w, ApplyEntry) for w in self.work)
                assert entry.sequence == last + 1
                self.work.append(effect)
            case ResetJobRows():
                # W7: never what the store has applied in this chain.
                assert self.position is None or self.position + 1 < self.first_kept
                self.work.append(effect)
            case AskAgain(asked=one):
                _, asked_at_ns = self.waiting.pop(one.question.question_id)
                assert one.asked_at_ns == asked_at_ns
                self.look_at(one.question, asked_at_ns)
            case _:
                pass

    def arrive(self) -> None:
        """Bring the node the next message of the proxy."""
        if not self.to_node:
            return
        message = self.to_node.popleft()
        if isinstance(message, Question):
            self.look_at(message, self.now_ns)
        else:
            self.step(CommandReceived(command=message))

    def break_connection(self) -> None:
        """Lose what is on its way."""
        self.is_connected = False
        self.to_node.clear()
        self.to_proxy.clear()
        self.proxy.is_registered = False

    def look_at(self, one: Question, asked_at_ns: int) -> None:
        """Answer a question, or have it wait."""
        job_id = None if self.position is None else "job"
        admitted = self.core.admit(one, job_id, now_ns=self.now_ns)
        match admitted:
            case ServedJob():
                self.check_may_answer(one, admitted)
                if (self.position or 0) >= (one.min_batch_id or 0):
                    return
                wait = Wait.BATCH
            case Refusal():
                return
            case _:
                wait = admitted
        is_full = len(self.waiting) >= WAITING_MAX
        if not is_full:
            self.waiting[one.question_id] = (one, asked_at_ns)
        deferred = QuestionDeferred(
            asked=asked(one, asked_at_ns), job_id=job_id, wait=wait
        )
        effects = self.core.step(deferred, now_ns=self.now_ns)
        if is_full or asked_at_ns + one.deadline_ms * MS <= self.now_ns:
            self.waiting.pop(one.question_id, None)
            refused = [e for e in effects if isinstance(e, SendToProxy)]
            assert refused
            effects = tuple(e for e in effects if e is not refused[0])
        for effect in effects:
            self.perform(effect)

    def check_may_answer(self, one: Question, served: ServedJob) -> None:
        """Q4, S2, W3: the leader counts on the node, and the node has caught up."""
        assert served.assignment_version == one.assignment_version
        assert one.leader_epoch == self.proxy.epoch
        assert self.proxy.is_registered
        assert self.now_ns < self.proxy.heard_at_ns + SESSION_TIMEOUT_MS * MS
        assert self.position is not None
        assert self.position >= self.promised[one.question_id]
        assert not any(isinstance(work, ResetJobRows) for work in self.work)

    # -- the proxy -----------------------------------------------------------------

    def hear(self, message: FromNode) -> None:
        """Have the proxy leader answer what the node says."""
        proxy = self.proxy
        if isinstance(message, RegisterNode):
            self.take_in(message)
            return
        if not proxy.is_registered:
            self.to_node.append(NodeRefused(reason="unknown", detail=""))
            return
        proxy.heard_at_ns = self.now_ns
        match message:
            case NodeHeartbeat(number=number):
                self.to_node.append(
                    HeartbeatAcknowledged(leader_epoch=proxy.epoch, number=number)
                )
            case EntriesApplied() | StagesVerified():
                pass

    def take_in(self, message: RegisterNode) -> None:
        """Register the node, and send it what it has missed."""
        proxy = self.proxy
        proxy.is_registered = True
        proxy.heard_at_ns = self.now_ns
        proxy.head_promised = self.head
        self.to_node.append(
            NodeRegistered(
                leader_epoch=proxy.epoch,
                control_id="c",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                jobs=(self.assigned(),),
            )
        )
        told = {position.job_id: position.sequence for position in message.positions}
        start = told.get("job")
        is_reset = start is None and self.since > 0
        start = self.since if start is None else start
        if start + 1 < self.first_kept:
            start, is_reset = self.head, True
        if is_reset:
            self.to_node.append(
                ResetJob(
                    leader_epoch=proxy.epoch,
                    job_id="job",
                    sequence=start,
                    state_numbers=(),
                )
            )
        self.send_entries(start + 1)

    def send_entries(self, first: int) -> None:
        """Send the entries from *first* on, two in a message."""
        for sequence in range(first, self.head + 1, 2):
            last = min(sequence + 1, self.head)
            entries = tuple(batch(number) for number in range(sequence, last + 1))
            self.to_node.append(
                ApplyEntries(
                    leader_epoch=self.proxy.epoch, job_id="job", entries=entries
                )
            )

    # -- what happens --------------------------------------------------------------

    @initialize(head=st.integers(0, 6), data=st.data())
    def open(self, head: int, data: st.DataObject) -> None:
        """Begin with a chain, and a store that has some of it, or nothing."""
        self.head = head
        self.since = data.draw(st.integers(0, head))
        self.first_kept = self.since + 1
        self.position = data.draw(st.none() | st.integers(self.since, head))
        positions = {} if self.position is None else {"job": self.position}
        self.step(
            StoreOpened(
                store_id="s", control_id="c", positions=positions, fences={}, lost={}
            )
        )
        self.elect()

    @precondition(lambda self: self.is_calm)
    @rule()
    def elect(self) -> None:
        """Another proxy leads, and the name service tells."""
        self.calm_count = 0
        self.proxy = Proxy(self.proxy.epoch + 1)
        self.find()

    def find(self) -> None:
        """The name service tells who leads."""
        self.step(ProxyFound(address=ADDRESS, epoch=self.proxy.epoch))

    @precondition(lambda self: self.is_connecting)
    @rule()
    def connect(self) -> None:
        """The connection comes about."""
        self.is_connecting = False
        self.is_connected = True
        self.step(ProxyConnected())

    @precondition(lambda self: self.is_connected and self.is_calm)
    @rule()
    def disconnect(self) -> None:
        """The connection breaks; ZeroMQ tries it again."""
        self.calm_count = 0
        self.break_connection()
        self.is_connecting = True
        self.step(ProxyDisconnected())

    @precondition(lambda self: self.to_node)
    @rule(count=st.integers(1, 4))
    def deliver_to_node(self, count: int) -> None:
        """Messages of the proxy arrive."""
        for _ in range(count):
            self.arrive()

    @precondition(lambda self: self.to_proxy)
    @rule(count=st.integers(1, 4))
    def deliver_to_proxy(self, count: int) -> None:
        """Messages of the node arrive."""
        for _ in range(count):
            if self.to_proxy:
                self.hear(self.to_proxy.popleft())

    @rule()
    def decide(self) -> None:
        """A batch is decided, and sent to the node if it is there."""
        self.head += 1
        if self.proxy.is_registered:
            self.send_entries(self.head)

    @precondition(lambda self: self.is_calm)
    @rule()
    def lose(self) -> None:
        """A message that was never sent leaves a gap, which the next one shows."""
        self.calm_count = 0
        self.head += 1
        self.decide()

    @precondition(
        lambda self: (
            self.proxy.is_registered
            and self.now_ns >= self.proxy.heard_at_ns + SESSION_TIMEOUT_MS * MS
        )
    )
    @rule()
    def forget(self) -> None:
        """The proxy takes the node for away, which it has not heard from for long."""
        self.proxy.is_registered = False

    @rule(count=st.integers(1, 6))
    def talk(self, count: int) -> None:
        """For a while messages flow and nothing breaks; the store takes its time."""
        if self.is_connecting:
            self.connect()
        for _ in range(count):
            if self.to_proxy:
                self.hear(self.to_proxy.popleft())
            self.arrive()
        self.calm_count += 1

    @rule(count=st.integers(1, 3))
    def settle(self, count: int) -> None:
        """For a while everybody does what is to be done."""
        for _ in range(count):
            self.talk(count=4)
            if self.work:
                self.finish(is_failing=False)

    @property
    def is_calm(self) -> bool:
        """Return whether it is time for something to break."""
        return self.calm_count >= CALM_COUNT

    @precondition(lambda self: self.is_connected and self.proxy.epoch > 1)
    @rule()
    def speak_out_of_the_past(self) -> None:
        """A leader of before sends entries and a reset."""
        epoch = self.proxy.epoch - 1
        entries = (batch(max(1, self.head)),)
        self.to_node.append(
            ApplyEntries(leader_epoch=epoch, job_id="past", entries=entries)
        )
        self.to_node.append(
            ResetJob(leader_epoch=epoch, job_id="job", sequence=0, state_numbers=())
        )

    @precondition(lambda self: self.work)
    @rule(is_failing=st.sampled_from([False, False, False, True]))
    def finish(self, is_failing: bool) -> None:
        """The store is done with what it was told first."""
        self.do(self.work.popleft(), "disk full" if is_failing else None)

    def do(self, work: Work, failure: str | None) -> None:
        """Have the store do something, or fail."""
        match work:
            case ApplyEntry(entry=entry):
                assert work.job_id == "job"
                if failure is None:
                    self.position = entry.sequence
                self.step(EntryFinished(job_id="job", entry=entry, failure=failure))
            case ResetJobRows(sequence=sequence):
                if failure is None:
                    self.position = sequence
                self.step(ResetFinished(job_id="job", failure=failure))
            case _:
                pytest.fail("nothing is copied here")

    @precondition(lambda self: self.is_connected)
    @rule(
        ahead=st.none() | st.integers(-1, 2),
        deadline_ms=st.integers(1, 2_000),
        is_past=st.sampled_from([False, False, True]),
    )
    def ask(self, ahead: int | None, deadline_ms: int, is_past: bool) -> None:
        """The proxy asks, or one that led before does."""
        self.question_id += 1
        one = question(
            self.question_id,
            leader_epoch=self.proxy.epoch - is_past,
            min_batch_id=None if ahead is None else self.head + ahead,
            deadline_ms=deadline_ms,
            version=self.version,
        )
        if is_past:
            admitted = self.core.admit(one, "job", now_ns=self.now_ns)
            assert isinstance(admitted, Refusal)
        elif self.proxy.is_registered:
            self.promised[one.question_id] = self.proxy.head_promised
            self.to_node.append(one)

    @rule(ms=st.integers(0, 100) | st.integers(0, 1_500))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.now_ns += ms * MS
        self.step(TimePassed())

    @rule()
    def jump(self) -> None:
        """The core is called when it wanted to be."""
        self.now_ns = max(self.now_ns, self.core.next_deadline_ns())
        self.step(TimePassed())

    # -- what always holds ---------------------------------------------------------

    @invariant()
    def nobody_waits_beyond_the_deadline(self) -> None:
        """Q2: whatever happens, a question is looked at or refused in time."""
        for one, asked_at_ns in self.waiting.values():
            assert self.now_ns < asked_at_ns + one.deadline_ms * MS
        figures = self.core.figures(now_ns=self.now_ns)
        assert figures["questions_waiting"] == len(self.waiting)

    @invariant()
    def the_lease_ends_before_the_proxy_takes_it_for_away(self) -> None:
        """Q4: whenever the node may answer, its leader counts on it."""
        lease_until_ns = self.core._registration.lease_until_ns
        if lease_until_ns and self.proxy.is_registered:
            until_ns = self.proxy.heard_at_ns + SESSION_TIMEOUT_MS * MS
            assert lease_until_ns <= until_ns

    @invariant()
    def a_deadline_is_in_the_future(self) -> None:
        """The core never wants to be called again at once: that would spin."""
        assert self.core.next_deadline_ns() > self.now_ns or self.now_ns == 0

    def teardown(self) -> None:
        """When nothing breaks any more, the node serves all there is."""
        for _ in range(300):
            if self.is_served():
                return
            self.go_on()
        pytest.fail("the node does not come to serve")

    def go_on(self) -> None:
        """Have everybody do what is to be done, and nothing break."""
        if self.is_connecting:
            self.connect()
        self.deliver_to_proxy(100)
        self.deliver_to_node(100)
        while self.work:
            self.finish(is_failing=False)
        if not (self.to_node or self.to_proxy or self.is_connecting):
            self.jump()

    def is_served(self) -> bool:
        """Return whether the node answers from the head of the chain."""
        if self.head > 0 and (self.position or 0) < self.head:
            return False
        job_id = None if self.position is None else "job"
        one = question(leader_epoch=self.proxy.epoch, version=self.version)
        admitted = self.core.admit(one, job_id, now_ns=self.now_ns)
        if self.position is None:
            return self.core.is_registered
        return isinstance(admitted, ServedJob)


NodeMachine.TestCase.settings = machine_settings(examples=200, steps=60)
TestNode = pytest.mark.proves("Q2", "Q4", "W3")(NodeMachine.TestCase)
