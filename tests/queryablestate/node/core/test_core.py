from __future__ import annotations

from typing import Final

import pytest
import zmq
from msgspec import structs

from queryablestate.node.core.core import Admission, NodeCore, NodeLimits
from queryablestate.node.core.effects import (
    ApplyEntry,
    AskAgain,
    BindStore,
    CancelFetch,
    CheckStages,
    CollectRows,
    ConnectProxy,
    DropFences,
    DropOldStages,
    EndProcess,
    FetchKeyGroups,
    FinishCopy,
    ForgetJobRows,
    ForgetLeftJobs,
    HoldKeyGroups,
    KeepCopySecret,
    NodeEffect,
    RaiseFences,
    ReportBehind,
    ReportRefused,
    ReportRegistered,
    ReportStale,
    ResetJobRows,
    SendToProxy,
    SendToWriter,
    StageRows,
    SwitchStore,
)
from queryablestate.node.core.events import (
    ChunkFinished,
    ChunkReceived,
    CommandReceived,
    CopyAdvanced,
    CopyFinished,
    EntryFinished,
    KeptChanged,
    KeyGroupsFetched,
    KeyGroupsHeld,
    LeaveAsked,
    LeftJobsForgotten,
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
from queryablestate.wire.job_assignment import JobAssignment, WriterFence
from queryablestate.wire.job_plan import JobHolding
from queryablestate.wire.kept_rows import KeptJob, KeptRows
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    CollectStages,
    EntriesApplied,
    FenceWriters,
    HeartbeatAcknowledged,
    JobPosition,
    KeyGroupsCopied,
    LeaveNode,
    NodeEmptied,
    NodeHeartbeat,
    NodeRefused,
    NodeRegistered,
    RegisterNode,
    ResetJob,
    ToNode,
    VerifyStages,
)
from queryablestate.wire.questions import Question, Refusal
from queryablestate.wire.records import Entry
from queryablestate.wire.refusals import NOT_LEADER, STALE_ROUTE, error_of
from queryablestate.wire.staging_messages import ChunkRefused, StageChunk
from tests.queryablestate.node_entries import (
    asked,
    assignment,
    batch,
    drop,
    joining,
    question,
    snapshot,
    source,
)


ROWS = zmq.Frame(bytes(60))
MS: Final = 1_000_000
EPOCH: Final = 3
SESSION_TIMEOUT_MS: Final = 10_000
LIMITS: Final = NodeLimits(
    entries_waiting_max=10,
    questions_waiting_max=2,
    chunks_per_writer_max=1,
    chunks_size_bytes_max=100,
)
ADDRESS: Final = "tcp://10.0.0.1:5000"


COLLECT: Final = CollectStages(
    leader_epoch=EPOCH,
    verify_id=1,
    job_id="job",
    query_id="q",
    writer_epoch=1,
    batch_id=1,
    assignment_version=1,
    stages=(),
    sources=(source("a", 2),),
    timeout_ms=1_000,
)
TO_COPY: Final = assignment(joining=joining({2: 7}), sources=(source("a", 2),))
"""Key groups 0 and 1 are answered for, 2 is to be copied."""


class Node:
    """A node, its clock, and the words that a test needs."""

    def __init__(
        self, positions: dict[str, int] | None = None, *, control_id: str | None = "c"
    ) -> None:
        self.now_ns = 1_000 * MS
        self.core = NodeCore(
            NodeIdentity(node_id="n", registration_id="r", address="tcp://10.0.0.9:1"),
            LIMITS,
            token="t",
            now_ns=self.now_ns,
        )
        opened = StoreOpened(
            store_id="s",
            control_id=control_id,
            positions={"job": 7} if positions is None else positions,
            fences={("job", "q"): 1},
            lost={},
        )
        assert self.step(opened) == ()

    def step(self, event: NodeEvent) -> tuple[NodeEffect, ...]:
        """Have *event* happen now."""
        return self.core.step(event, now_ns=self.now_ns)

    def wait(self, ms: int) -> tuple[NodeEffect, ...]:
        """Move time on by *ms*."""
        self.now_ns += ms * MS
        return self.step(TimePassed())

    def tell(self, command: ToNode) -> tuple[NodeEffect, ...]:
        """Give a command."""
        return self.step(CommandReceived(command=command))

    def connect(self) -> tuple[NodeEffect, ...]:
        """Come to where the node asks to be registered."""
        connect = ConnectProxy(address=ADDRESS)
        assert self.step(ProxyFound(address=ADDRESS, epoch=EPOCH)) == (connect,)
        return self.step(ProxyConnected())

    def register(
        self, *jobs: JobAssignment, control_id: str = "c", copy_secret: bytes = b""
    ) -> tuple[NodeEffect, ...]:
        """Answer what the node asks."""
        return self.tell(
            NodeRegistered(
                leader_epoch=EPOCH,
                control_id=control_id,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                jobs=jobs,
                copy_secret=copy_secret,
            )
        )

    def acknowledge(self) -> None:
        """Acknowledge the newest heartbeat."""
        number = self.core.figures(now_ns=self.now_ns)["heartbeats_total"]
        acknowledged = HeartbeatAcknowledged(leader_epoch=EPOCH, number=number)
        assert self.tell(acknowledged) == ()

    def wait_for_round(self) -> tuple[NodeEffect, ...]:
        """Be registered until old stages have been looked for once more."""
        effects: list[NodeEffect] = []
        for _ in range(LIMITS.drop_stages_ns // MS // 2_000):
            effects += self.wait(2_000)
            self.acknowledge()
        return tuple(effects)

    def serve(self, *jobs: JobAssignment) -> None:
        """Come to where the node answers."""
        self.connect()
        self.register(*(jobs or (assignment(),)))
        self.acknowledge()

    def send(
        self, *entries: Entry, leader_epoch: int = EPOCH
    ) -> tuple[NodeEffect, ...]:
        """Give the node entries of ``job``."""
        return self.tell(
            ApplyEntries(leader_epoch=leader_epoch, job_id="job", entries=entries)
        )

    def applied(
        self, entry: Entry, failure: str | None = None
    ) -> tuple[NodeEffect, ...]:
        """Have the store done with *entry*."""
        return self.step(EntryFinished(job_id="job", entry=entry, failure=failure))

    def held(
        self,
        *missing: int,
        version: int = 1,
        copied: tuple[int, ...] = (),
        holding: JobHolding | None = None,
    ) -> tuple[NodeEffect, ...]:
        """Have the store done with what it was told to hold."""
        event = KeyGroupsHeld(
            job_id="job",
            assignment_version=version,
            copied=copied,
            missing=missing,
            sequence_min=7,
            holding=holding,
        )
        return self.step(event)

    def copy(self) -> None:
        """Come to where key group 2 is copied, as fetch 1."""
        self.serve(TO_COPY)
        assert self.held(2) == (fetch(1), copied())

    def admit(self, one: Question, job_id: str | None = "job") -> Admission:
        """Return whether the node may answer."""
        return self.core.admit(one, job_id, now_ns=self.now_ns)

    def defer(
        self, one: Question, wait: Wait = Wait.BATCH, job_id: str | None = "job"
    ) -> tuple[NodeEffect, ...]:
        """Have a question wait."""
        deferred = QuestionDeferred(
            asked=asked(one, self.now_ns), job_id=job_id, wait=wait
        )
        return self.step(deferred)


def heartbeat(number: int) -> SendToProxy:
    """Return a heartbeat."""
    return SendToProxy(message=NodeHeartbeat(registration_id="r", number=number))


def reset_rows(job: JobAssignment, sequence: int, *lost: int) -> ResetJobRows:
    """Return what has the store begin anew with what the node is assigned."""
    return ResetJobRows(
        job_id="job",
        sequence=sequence,
        state_numbers=lost,
        restore_id=None,
        assignment_version=job.assignment_version,
        key_groups=job.key_groups + job.copies,
        joining=job.joining,
    )


def asking(
    *positions: JobPosition,
    store_id: str = "s",
    control_id: str | None = "c",
    kept: tuple[KeptRows, ...] = (),
    holdings: tuple[JobHolding, ...] = (),
) -> SendToProxy:
    """Return what a node asks the proxy."""
    return SendToProxy(
        message=RegisterNode(
            token="t",
            node_id="n",
            store_id=store_id,
            registration_id="r",
            address="tcp://10.0.0.9:1",
            positions=positions,
            control_id=control_id,
            kept=kept,
            holdings=holdings,
        )
    )


def position(sequence: int) -> JobPosition:
    """Return how far the node is."""
    return JobPosition(job_id="job", sequence=sequence)


def report(sequence: int, failure: str | None = None) -> SendToProxy:
    """Return what the proxy is told of ``job``."""
    return SendToProxy(
        message=EntriesApplied(
            registration_id="r", job_id="job", sequence=sequence, failure=failure
        )
    )


def apply(entry: Entry) -> ApplyEntry:
    """Return the effect that applies *entry*."""
    return ApplyEntry(job_id="job", entry=entry)


def hold(version: int = 1, key_groups: tuple[int, ...] = (0, 1)) -> HoldKeyGroups:
    """Return what the store is told to hold of ``job``."""
    return HoldKeyGroups(
        job_id="job", assignment_version=version, key_groups=key_groups, joining=()
    )


def fetch(fetch_id: int, sequence_min: int = 7) -> FetchKeyGroups:
    """Return what is fetched for `TO_COPY`."""
    return FetchKeyGroups(
        job_id="job",
        fetch_id=fetch_id,
        source=source("a", 2),
        sequence_min=sequence_min,
    )


def copied(*key_groups: int) -> SendToProxy:
    """Return what the proxy is told of copies of ``job``."""
    return SendToProxy(
        message=KeyGroupsCopied(
            registration_id="r",
            job_id="job",
            assignment_version=1,
            key_groups=key_groups,
            row_count=0,
            size_bytes=0,
        )
    )


def code(admission: Admission) -> str:
    """Return the code of a refusal."""
    assert isinstance(admission, Refusal)
    return admission.code


@pytest.fixture
def node() -> Node:
    """Return a node that knows no proxy yet, and has seven entries of ``job``."""
    return Node()


class TestRegistering:
    """How a node comes to serve."""

    def test_it_says_how_far_it_is(self, node: Node) -> None:
        """The proxy is told what the store has."""
        assert node.connect() == (asking(position(7)),)

    def test_a_first_registration_binds_the_store(self) -> None:
        """Before anything is written, the store learns whose rows it will hold."""
        node = Node({}, control_id=None)
        assert node.connect() == (asking(control_id=None),)
        assert node.register() == (
            heartbeat(1),
            ReportRegistered(leader_epoch=EPOCH),
            BindStore(control_id="c"),
        )
        assert node.core.is_registered

    @pytest.mark.proves("W1")
    def test_fences_come_with_it(self, node: Node) -> None:
        """W1: a node that was away learns which runs are over."""
        fence = WriterFence(job_id="job", query_id="q", writer_epoch=9)
        node.connect()
        effects = node.register(assignment(fences=(fence,)))
        assert effects[-2:] == (RaiseFences(fences=(fence,)), hold())

    def test_known_fences_are_not_written_again(self, node: Node) -> None:
        """What the store has it need not be told."""
        fence = WriterFence(job_id="job", query_id="q", writer_epoch=1)
        node.connect()
        assert RaiseFences(fences=()) not in node.register(assignment(fences=(fence,)))

    def test_a_refusal_is_told(self, node: Node) -> None:
        """Somebody may wait, and somebody reads the log."""
        node.connect()
        refused = NodeRefused(reason="name-taken", detail="why")
        reported = ReportRefused(reason="name-taken", detail="why")
        assert node.tell(refused) == (reported,)

    @pytest.mark.proves("S2")
    def test_an_older_leader_cannot_register_it(self, node: Node) -> None:
        """S2: what it says of jobs is not taken either."""
        node.connect()
        effects = node.tell(
            NodeRegistered(
                leader_epoch=EPOCH - 1,
                control_id="another",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                jobs=(assignment(),),
            )
        )
        assert effects == (ReportStale(leader_epoch=EPOCH - 1, leader_epoch_max=EPOCH),)
        assert not node.core.is_registered

    def test_each_leader_has_a_secret(self, node: Node) -> None:
        """C1: what nodes show each other is the newest one's; it is in no log."""
        node.connect()
        kept = KeepCopySecret(secret=b"of the first")
        assert kept in node.register(assignment(), copy_secret=b"of the first")
        assert "of the first" not in repr(kept)
        node.step(ProxyFound(address=ADDRESS, epoch=EPOCH + 1))
        node.wait(1_000)
        node.step(ProxyConnected())
        effects = node.tell(
            NodeRegistered(
                leader_epoch=EPOCH + 1,
                control_id="c",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                jobs=(assignment(),),
                copy_secret=b"of the second",
            )
        )
        assert KeepCopySecret(secret=b"of the second") in effects

    def test_heartbeats_go_on(self, node: Node) -> None:
        """The node asks to be called when the next is due."""
        node.serve()
        assert node.core.next_deadline_ns() == node.now_ns + 2_000 * MS
        assert node.wait(2_000) == (heartbeat(2),)

    def test_a_lost_connection_is_registered_over_again(self, node: Node) -> None:
        """What the proxy knew went with the connection."""
        node.serve()
        assert node.step(ProxyDisconnected()) == ()
        assert not node.core.is_registered
        node.wait(1_000)
        assert node.step(ProxyConnected()) == (asking(position(7)),)


class TestControlPlane:
    """Rows of another control plane are set aside, not mixed with new ones."""

    def test_another_control_plane_takes_another_store(self, node: Node) -> None:
        """The node registers with the other store, over another connection."""
        node.connect()
        assert node.register(assignment(), control_id="d") == (
            SwitchStore(control_id="d"),
        )
        assert not node.core.is_registered
        assert code(node.admit(question())) == "state-unavailable"
        kept = KeptRows(
            control_id="c",
            store_id="s",
            jobs=(
                KeptJob(
                    job_id="job",
                    sequence=7,
                    batch_id=3,
                    decided_at_us=5,
                    key_groups=((0, 1),),
                ),
            ),
        )
        opened = StoreOpened(
            store_id="z",
            control_id=None,
            positions={},
            fences={},
            lost={},
            kept=(kept,),
        )
        assert node.step(opened) == (ConnectProxy(address=ADDRESS),)
        node.wait(100)
        assert node.step(ProxyConnected()) == (
            asking(store_id="z", control_id=None, kept=(kept,)),
        )
        assert BindStore(control_id="d") in node.register(control_id="d")

    def test_meanwhile_nothing_is_asked_of_the_store(self, node: Node) -> None:
        """Until the other one is open, the node neither registers nor sweeps."""
        node.connect()
        node.register(control_id="d")
        node.step(ProxyConnected())
        effects = node.wait(LIMITS.drop_stages_ns // MS)
        assert effects == (ConnectProxy(address=ADDRESS),)


class TestForgetting:
    @pytest.mark.proves("B4")
    def test_a_job_is_forgotten_before_anything_else(self, node: Node) -> None:
        """B4: what is assigned of that name is another job; and the node says so."""
        node.connect()
        registered = NodeRegistered(
            leader_epoch=EPOCH,
            control_id="c",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            jobs=(),
            forgotten=("job", "none"),
        )
        effects = node.tell(registered)
        assert [one for one in effects if isinstance(one, ForgetJobRows)] == [
            ForgetJobRows(job_id="job"),
            ForgetJobRows(job_id="none"),
        ]
        assert not [one for one in effects if isinstance(one, HoldKeyGroups)]
        # An entry that the store was at says nothing of the job any more.
        assert node.applied(batch(8)) == ()
        node.now_ns += 10_000 * MS // 100
        assert asking() in node.step(KeptChanged(kept=()))

    @pytest.mark.proves("B4")
    def test_what_is_left_of_jobs_is_forgotten_in_its_time(self, node: Node) -> None:
        """B4: the node registers anew then, without them."""
        node.connect()
        node.register(assignment(job_id="other"))
        effects = node.wait_for_round()
        assert ForgetLeftJobs(kept=("other",)) in effects
        effects = node.step(LeftJobsForgotten(job_ids=("job",)))
        (asked_again,) = [
            one.message
            for one in effects
            if isinstance(one, SendToProxy) and isinstance(one.message, RegisterNode)
        ]
        assert [one.job_id for one in asked_again.positions] == []
        # Neither again, nor for nothing.
        node.register(assignment(job_id="other"))
        effects = node.wait_for_round()
        assert not [one for one in effects if isinstance(one, ForgetLeftJobs)]

    @pytest.mark.proves("B4", "S2")
    def test_a_job_that_comes_back_meanwhile_waits_for_the_answer(
        self, node: Node
    ) -> None:
        """The store may be forgetting it: what is said by what it had is not true."""
        node.connect()
        node.register()
        effects = node.wait_for_round()
        assert ForgetLeftJobs(kept=()) in effects
        told = assignment()
        assert node.tell(AssignJob(leader_epoch=EPOCH, job=told)) == ()
        entries = (batch(8),)
        apply = ApplyEntries(leader_epoch=EPOCH, job_id="job", entries=entries)
        assert node.tell(apply) == ()
        effects = node.step(LeftJobsForgotten(job_ids=()))
        assert any(
            isinstance(one, SendToProxy) and isinstance(one.message, RegisterNode)
            for one in effects
        )
        node.register(told)
        assert ApplyEntry(job_id="job", entry=batch(8)) in node.tell(apply)

    @pytest.mark.proves("W3", "S2")
    def test_nothing_is_applied_without_the_assignment_before_it(
        self, node: Node
    ) -> None:
        """W3: the store would pass over rows that it was not told to hold."""
        node.connect()
        node.register()
        for _ in range(LIMITS.drop_stages_ns // MS // 2_000 - 1):
            node.wait(2_000)
            node.acknowledge()
        node.wait(1_999)
        # It has asked a moment ago, and asks again only after a pause.
        ask = asking(JobPosition(job_id="job", sequence=7))
        assert ask in node.step(KeptChanged(kept=()))
        node.register()
        assert ForgetLeftJobs(kept=()) in node.wait(1)
        told = assignment(job_id="new", sequence=0)
        assert node.tell(AssignJob(leader_epoch=EPOCH, job=told)) == ()
        assert node.step(LeftJobsForgotten(job_ids=())) == ()
        entries = (batch(1),)
        apply = ApplyEntries(leader_epoch=EPOCH, job_id="new", entries=entries)
        assert node.tell(apply) == ()
        assert ask in node.wait(LIMITS.pause_ns_max // MS)
        node.register(told)
        assert ApplyEntry(job_id="new", entry=batch(1)) in node.tell(apply)

    @pytest.mark.proves("W7")
    def test_what_it_has_more_of_is_no_job_that_it_has_left(self, node: Node) -> None:
        """W7: it is not decided yet what those rows are."""
        node.connect()
        registered = NodeRegistered(
            leader_epoch=EPOCH,
            control_id="c",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            jobs=(),
            untouched=("job",),
        )
        node.tell(registered)
        effects = node.wait_for_round()
        assert ForgetLeftJobs(kept=("job",)) in effects

    @pytest.mark.proves("B4")
    def test_fences_of_queries_that_are_forgotten_go(self, node: Node) -> None:
        """B4: the proxy leader refuses their runs, for ever."""
        node.connect()
        fence = WriterFence(job_id="job", query_id="new", writer_epoch=5)
        effects = node.register(assignment(fences=(fence,)))
        assert DropFences(job_id="job", query_ids=("q",)) in effects
        assert RaiseFences(fences=(fence,)) in effects

    @pytest.mark.proves("W7")
    def test_what_it_has_more_of_stays_as_it_is(self, node: Node) -> None:
        """W7: neither rows nor copies of it are touched."""
        node.connect()
        registered = NodeRegistered(
            leader_epoch=EPOCH,
            control_id="c",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            jobs=(),
            untouched=("job",),
        )
        effects = node.tell(registered)
        assert not [one for one in effects if isinstance(one, HoldKeyGroups)]

    @pytest.mark.proves("W7")
    def test_what_it_served_until_now_stays_as_it_is(self, node: Node) -> None:
        """W7: a node that runs on knows what it held, and drops nothing of it."""
        node.serve()
        served = assignment()
        node.step(
            KeyGroupsHeld(
                job_id="job",
                assignment_version=served.assignment_version,
                copied=(),
                missing=(),
                sequence_min=0,
            )
        )
        unknown = NodeRefused(reason="unknown", detail="register first")
        node.tell(unknown)
        node.wait(200)
        registered = NodeRegistered(
            leader_epoch=EPOCH,
            control_id="c",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            jobs=(),
            untouched=("job",),
        )
        effects = [*node.tell(registered), *node.wait_for_round()]
        assert not [one for one in effects if isinstance(one, HoldKeyGroups)]
        # What it is assigned when that is settled, it holds as before.
        node.step(LeftJobsForgotten(job_ids=()))
        node.tell(unknown)
        node.wait(200)
        effects = [*node.register(assignment(version=9)), *node.wait_for_round()]
        held = [one for one in effects if isinstance(one, HoldKeyGroups)]
        assert [one.key_groups for one in held] == [served.key_groups]


class TestCommands:
    """S2, W3, W7: what the proxy leader has a node do."""

    @pytest.mark.proves("W3")
    def test_entries_are_applied_and_told_of(self, node: Node) -> None:
        """W3: in order, each when the one before it is applied."""
        node.serve()
        assert node.send(batch(8), batch(9)) == (apply(batch(8)),)
        assert node.applied(batch(8)) == (report(8), apply(batch(9)))
        assert node.applied(batch(9)) == (report(9),)

    def test_a_gap_makes_the_node_ask(self, node: Node) -> None:
        """The answer to the position brings what is missing."""
        node.serve()
        node.wait(200)
        assert node.send(batch(9)) == (asking(position(7)),)
        assert node.core.is_registered

    def test_while_it_asks_nothing_of_jobs_is_followed(self, node: Node) -> None:
        """What comes before the answer goes by another position than was told."""
        node.serve()
        node.wait(200)
        node.send(batch(9))
        assert node.send(batch(8)) == ()
        assert (
            node.tell(
                ResetJob(leader_epoch=EPOCH, job_id="job", sequence=3, state_numbers=())
            )
            == ()
        )
        assert node.tell(AssignJob(leader_epoch=EPOCH, job=assignment(version=9))) == ()
        assert isinstance(node.admit(question()), ServedJob)
        assert node.register(assignment()) == (heartbeat(2),)
        assert node.send(batch(8), batch(9)) == (apply(batch(8)),)

    def test_it_asks_when_what_came_is_applied(self, node: Node) -> None:
        """With work at hand a gap can wait: it would be told an old position."""
        node.serve()
        node.wait(200)
        assert node.send(batch(8), batch(10)) == (apply(batch(8)),)
        assert node.applied(batch(8)) == (report(8), asking(position(8)))

    @pytest.mark.proves("W7")
    def test_a_reset_is_told_when_it_is_done(self, node: Node) -> None:
        """W7: the node begins anew, and registers not before."""
        node.serve()
        reset = ResetJob(
            leader_epoch=EPOCH, job_id="job", sequence=20, state_numbers=(1,)
        )
        rows = reset_rows(assignment(), 20, 1)
        assert node.tell(reset) == (rows,)
        node.step(ProxyDisconnected())
        node.wait(200)
        assert node.step(ProxyConnected()) == ()
        holding = JobHolding(job_id="job", version=1, lost=((0, 0),))
        finished = ResetFinished(job_id="job", failure=None, holding=holding)
        lost = JobPosition(job_id="job", sequence=20, lost_state_numbers=(1,))
        assert node.step(finished) == (asking(lost, holdings=(holding,)),)

    @pytest.mark.proves("W1")
    def test_fences_hold_at_once(self, node: Node) -> None:
        """W1: the next chunk of the older run is refused, the disk may take time."""
        node.serve()
        fences = (WriterFence(job_id="job", query_id="q", writer_epoch=9),)
        command = FenceWriters(leader_epoch=EPOCH, fences=fences)
        assert node.tell(command) == (RaiseFences(fences=fences),)
        assert node.tell(command) == ()

    def test_stages_are_looked_for(self, node: Node) -> None:
        """The shell looks; nothing is decided here."""
        node.serve()
        command = VerifyStages(
            leader_epoch=EPOCH,
            verify_id=1,
            job_id="job",
            writer_epoch=1,
            batch_id=1,
            stages=(),
            query_id="q",
        )
        assert node.tell(command) == (CheckStages(command=command),)

    @pytest.mark.proves("S2")
    @pytest.mark.parametrize(
        "command",
        [
            FenceWriters(leader_epoch=EPOCH - 1, fences=()),
            ApplyEntries(leader_epoch=EPOCH - 1, job_id="job", entries=(batch(8),)),
            AssignJob(leader_epoch=EPOCH - 1, job=assignment(version=9)),
            ResetJob(
                leader_epoch=EPOCH - 1, job_id="job", sequence=0, state_numbers=()
            ),
            VerifyStages(
                leader_epoch=EPOCH - 1,
                verify_id=1,
                job_id="job",
                writer_epoch=1,
                batch_id=1,
                stages=(),
                query_id="q",
            ),
            structs.replace(COLLECT, leader_epoch=EPOCH - 1),
            NodeEmptied(leader_epoch=EPOCH - 1, reason="empty"),
        ],
        ids=lambda command: type(command).__name__,
    )
    def test_an_older_leader_commands_nothing(
        self, node: Node, command: ToNode
    ) -> None:
        """S2: each command of an older epoch is refused, and changes nothing."""
        node.serve()
        stale = ReportStale(leader_epoch=EPOCH - 1, leader_epoch_max=EPOCH)
        assert node.tell(command) == (stale,)
        assert isinstance(node.admit(question()), ServedJob)

    def test_nobody_commands_a_node_that_is_not_registered(self, node: Node) -> None:
        """What was applied before would not be told, and what is told would be old."""
        node.connect()
        assert node.send(batch(8)) == ()

    def test_a_failure_is_reported_and_tried_again(self, node: Node) -> None:
        """The job stops; after a while the node asks for the rest."""
        node.serve()
        node.send(batch(8))
        behind = ReportBehind(job_id="job", sequence=7, failure="disk full")
        assert node.applied(batch(8), "disk full") == (report(7, "disk full"), behind)
        for _ in range(3):
            node.wait(8_000)
            node.acknowledge()
        effects = node.wait(6_000)
        assert asking(position(7)) in effects

    def test_a_failed_job_answers_with_what_it_has(self, node: Node) -> None:
        """What was applied is answered from: the proxy decides who is asked."""
        node.serve()
        node.send(batch(8))
        node.applied(batch(8), "disk full")
        assert isinstance(node.admit(question()), ServedJob)

    def test_what_nobody_waits_for_is_not_reported(self, node: Node) -> None:
        """Without a registration the position is told by registering."""
        node.serve()
        node.send(batch(8))
        node.step(ProxyDisconnected())
        assert node.applied(batch(8)) == ()
        node.wait(200)
        assert node.step(ProxyConnected()) == (asking(position(8)),)


class TestMoving:
    """S1, S2: key groups come to a node, and go."""

    def test_a_copy_is_made(self, node: Node) -> None:
        """Held, fetched, caught up with and told of; it is not asked for meanwhile."""
        node.connect()
        effects = node.register(TO_COPY)
        assert effects[-1] == HoldKeyGroups(
            job_id="job",
            assignment_version=1,
            key_groups=(0, 1),
            joining=joining({2: 7}),
        )
        assert node.held(2) == ()
        acknowledged = HeartbeatAcknowledged(leader_epoch=EPOCH, number=1)
        assert node.tell(acknowledged) == (fetch(1), copied())
        node.send(batch(8))
        fetched = KeyGroupsFetched(job_id="job", fetch_id=1, sequence=8)
        assert node.step(fetched) == ()
        finish = FinishCopy(job_id="job", fetch_id=1, key_groups=(2,), sequence=8)
        assert node.applied(batch(8)) == (report(8), finish)
        finished = CopyFinished(job_id="job", fetch_id=1, key_groups=(2,))
        assert node.step(finished) == (copied(2),)
        admitted = node.admit(question())
        assert isinstance(admitted, ServedJob)
        assert admitted.key_groups == (0, 1)

    @pytest.mark.proves("S3")
    def test_what_moves_away_is_dropped(self, node: Node) -> None:
        """S3: it is not answered for from now on, and its rows go."""
        node.serve()
        node.held()
        job = assignment(version=2, key_groups=(0,))
        command = AssignJob(leader_epoch=EPOCH, job=job)
        assert node.tell(command) == (hold(2, (0,)), heartbeat(2))
        assert code(node.admit(question(version=1))) == STALE_ROUTE

    @pytest.mark.proves("S1")
    def test_a_job_that_is_not_assigned_is_dropped(self, node: Node) -> None:
        """S1: another node has it, or none: rows of before are never shown."""
        node.connect()
        assert node.register()[-1] == hold(0, ())

    @pytest.mark.proves("S3", "S4")
    def test_a_secondary_answers_nothing(self, node: Node) -> None:
        """S3, S4: it applies all that is decided, and is not the one to ask."""
        node.serve(assignment(key_groups=(), copies=(0, 1)))
        assert code(node.admit(question())) == STALE_ROUTE
        assert node.send(batch(8)) == (apply(batch(8)),)

    @pytest.mark.proves("S3")
    def test_it_answers_from_where_the_assignment_was_made(self, node: Node) -> None:
        """S3: the one that answered before may have shown that entry."""
        node.serve(assignment(sequence=8))
        assert node.admit(question()) is Wait.CATCHING_UP
        node.send(batch(8))
        assert node.admit(question()) is Wait.CATCHING_UP
        node.applied(batch(8))
        assert isinstance(node.admit(question()), ServedJob)

    @pytest.mark.proves("W7")
    def test_a_reset_cancels_what_is_fetched(self, node: Node) -> None:
        """W7: before the rows are thrown away; then the store is told all again."""
        node.copy()
        reset = ResetJob(leader_epoch=EPOCH, job_id="job", sequence=9, state_numbers=())
        rows = reset_rows(TO_COPY, 9)
        assert node.tell(reset) == (CancelFetch(job_id="job"), rows)
        effects = node.step(ResetFinished(job_id="job", failure=None))
        assert isinstance(effects[0], HoldKeyGroups)
        assert effects[1] == report(9)
        assert node.held(2) == (fetch(2, sequence_min=9), copied())

    @pytest.mark.proves("S1")
    def test_entries_after_a_reset_find_what_is_held(self, node: Node) -> None:
        """S1: rows of what is not held yet would be passed over, and lost."""
        node.serve()
        node.held()
        job = assignment(version=2, key_groups=(3,))
        node.tell(AssignJob(leader_epoch=EPOCH, job=job))
        node.tell(
            ResetJob(leader_epoch=EPOCH, job_id="job", sequence=9, state_numbers=())
        )
        node.held(version=2)
        assert node.send(batch(10)) == ()
        effects = node.step(ResetFinished(job_id="job", failure=None))
        assert effects == (hold(2, (3,)), report(9), apply(batch(10)))

    @pytest.mark.proves("W7")
    def test_a_reset_that_failed_leaves_nothing_to_hold(self, node: Node) -> None:
        """W7: what is there counts for nothing until the proxy says what holds."""
        node.copy()
        reset = ResetJob(leader_epoch=EPOCH, job_id="job", sequence=9, state_numbers=())
        node.tell(reset)
        effects = node.step(ResetFinished(job_id="job", failure="disk full"))
        assert not any(isinstance(effect, HoldKeyGroups) for effect in effects)

    def test_another_control_plane_cancels_what_is_fetched(self, node: Node) -> None:
        """The rows would go into a store that is set aside."""
        node.copy()
        node.step(ProxyDisconnected())
        node.wait(200)
        node.step(ProxyConnected())
        assert node.register(TO_COPY, control_id="d") == (
            CancelFetch(job_id="job"),
            SwitchStore(control_id="d"),
        )

    @pytest.mark.proves("S2")
    def test_copying_goes_on_while_nobody_leads(self, node: Node) -> None:
        """S2: and the next leader is told what is complete, when it is asked for."""
        node.copy()
        node.step(ProxyDisconnected())
        fetched = KeyGroupsFetched(job_id="job", fetch_id=1, sequence=7)
        finish = FinishCopy(job_id="job", fetch_id=1, key_groups=(2,), sequence=7)
        assert node.step(fetched) == (finish,)
        finished = CopyFinished(job_id="job", fetch_id=1, key_groups=(2,))
        assert node.step(finished) == ()
        node.wait(200)
        node.step(ProxyConnected())
        assert isinstance(node.register(TO_COPY)[-1], HoldKeyGroups)
        assert node.held(copied=(2,)) == ()
        acknowledged = HeartbeatAcknowledged(leader_epoch=EPOCH, number=2)
        assert node.tell(acknowledged) == (copied(2),)

    @pytest.mark.proves("W7")
    def test_while_it_asks_nothing_is_told(self, node: Node) -> None:
        """W7: the answer may throw away what is complete now."""
        node.copy()
        node.wait(200)
        holding = JobHolding(job_id="job", version=1, unfinished=(2,))
        node.held(2, holding=holding)
        expected = asking(position(7), holdings=(holding,))
        assert node.send(batch(9)) == (expected,)
        fetched = KeyGroupsFetched(job_id="job", fetch_id=1, sequence=7)
        node.step(fetched)
        finished = CopyFinished(job_id="job", fetch_id=1, key_groups=(2,))
        assert node.step(finished) == ()

    def test_progress_is_told_and_counted(self, node: Node) -> None:
        """The node asks to be called when the proxy is to hear of it."""
        node.copy()
        node.step(CopyAdvanced(job_id="job", row_count=3, size_bytes=40))
        assert node.core.next_deadline_ns() == node.now_ns + LIMITS.copy_report_ns
        (effect,) = node.wait(LIMITS.copy_report_ns // MS)
        assert isinstance(effect, SendToProxy)
        assert isinstance(effect.message, KeyGroupsCopied)
        assert effect.message.row_count == 3
        figures = node.core.figures(now_ns=node.now_ns)
        assert figures["key_groups_held"] == 2
        assert figures["key_groups_copying"] == 1
        assert figures["rows_copied_total"] == 3
        assert figures["rows_copied_bytes_total"] == 40

    @pytest.mark.proves("S2")
    def test_rows_are_collected(self, node: Node) -> None:
        """S2: the shell fetches them; also while the node asks to be registered."""
        node.serve()
        assert node.tell(COLLECT) == (CollectRows(command=COLLECT),)
        node.wait(200)
        node.send(batch(9))
        assert node.tell(COLLECT) == (CollectRows(command=COLLECT),)

    def test_a_snapshot_changes_nothing(self, node: Node) -> None:
        """It is an entry like others, and nothing is shown that was not before."""
        node.serve()
        assert node.send(snapshot(8)) == (apply(snapshot(8)),)
        assert node.applied(snapshot(8)) == (report(8),)


class TestLeaving:
    """S1, O6: a node that is to end is emptied first."""

    LEAVE = SendToProxy(message=LeaveNode(registration_id="r"))

    def test_it_asks_at_once(self, node: Node) -> None:
        """And goes on serving until it is empty."""
        node.serve()
        assert node.step(LeaveAsked()) == (self.LEAVE,)
        assert isinstance(node.admit(question()), ServedJob)

    def test_it_asks_when_it_is_registered(self, node: Node) -> None:
        """And the leader after that is asked again."""
        assert node.step(LeaveAsked()) == ()
        node.connect()
        assert self.LEAVE in node.register()
        node.step(ProxyDisconnected())
        node.wait(200)
        node.step(ProxyConnected())
        assert self.LEAVE in node.register()

    @pytest.mark.parametrize("reason", ["empty", "nobody"])
    def test_it_ends_when_it_is_told(self, node: Node, reason: str) -> None:
        """It is not asked any more, while it lingers."""
        node.serve()
        node.step(LeaveAsked())
        emptied = NodeEmptied(leader_epoch=EPOCH, reason=reason)
        assert node.tell(emptied) == (EndProcess(reason=reason),)
        node.wait(200)
        node.send(batch(9))
        assert self.LEAVE not in node.register()


class TestAnswering:
    """Q4, W3, W7, S2: which questions a node answers, and when."""

    def test_it_answers_for_what_it_was_assigned(self, node: Node) -> None:
        """The key groups come along."""
        node.serve(assignment(key_groups=(1, 3)))
        admitted = node.admit(question())
        assert isinstance(admitted, ServedJob)
        assert admitted.key_groups == (1, 3)

    @pytest.mark.proves("Q4")
    def test_it_answers_until_the_lease_is_over(self, node: Node) -> None:
        """Q4: at the very end of the lease it does not, one before it does."""
        node.serve()
        node.now_ns += SESSION_TIMEOUT_MS * MS - 1
        assert isinstance(node.admit(question()), ServedJob)
        node.now_ns += 1
        assert code(node.admit(question())) == "state-unavailable"

    @pytest.mark.proves("D4")
    def test_it_answers_for_in_sync_copies_that_it_is_asked_for(
        self, node: Node
    ) -> None:
        """D4: for these alone, also if it is the primary of nothing."""
        node.serve(assignment(key_groups=(), copies=(0, 1, 3)))
        admitted = node.admit(question(copies=((0, 1),)))
        assert isinstance(admitted, ServedJob)
        assert admitted.key_groups == (0, 1)
        assert admitted.prefixes == {b"\0\0", b"\0\1"}
        assert code(node.admit(question())) == STALE_ROUTE

    @pytest.mark.proves("D4", "S1")
    @pytest.mark.parametrize(
        "copies", [((2, 2),), ((0, 2),), ((4, 4),), ((0, 1 << 62),), ((1, 0),), ()]
    )
    def test_only_in_sync_copies_answer(
        self, node: Node, copies: tuple[tuple[int, int], ...]
    ) -> None:
        """D4, S1: not those that are being made, nor any that it has not."""
        copying = assignment(
            key_groups=(0,),
            copies=(1, 3),
            joining=joining({2: 7}),
            sources=(source("a", 2),),
        )
        node.serve(copying)
        assert code(node.admit(question(copies=copies))) == STALE_ROUTE
        assert isinstance(node.admit(question(copies=((0, 1), (3, 3)))), ServedJob)

    @pytest.mark.proves("D5", "Q4")
    def test_a_copy_answers_until_the_lease_is_over(self, node: Node) -> None:
        """D5, Q4: as a primary does, to the moment."""
        node.serve(assignment(key_groups=(), copies=(0,)))
        asked_as_copy = question(copies=((0, 0),))
        node.now_ns += SESSION_TIMEOUT_MS * MS - 1
        assert isinstance(node.admit(asked_as_copy), ServedJob)
        node.now_ns += 1
        assert code(node.admit(asked_as_copy)) == "state-unavailable"

    @pytest.mark.proves("D5", "S1")
    def test_a_copy_that_was_taken_out_answers_no_more(self, node: Node) -> None:
        """D5, S1: from the moment that it knows, by neither version."""
        node.serve(assignment(key_groups=(0,), copies=(1,)))
        without = AssignJob(
            leader_epoch=EPOCH, job=assignment(version=2, key_groups=(0,))
        )
        node.tell(without)
        for version in (1, 2):
            asked_as_copy = question(version=version, copies=((1, 1),))
            assert code(node.admit(asked_as_copy)) == STALE_ROUTE

    @pytest.mark.proves("D5", "S2")
    def test_a_copy_catches_up_first(self, node: Node) -> None:
        """D5, S2: what others may have shown by then is applied before it answers."""
        node.serve(assignment(key_groups=(), copies=(0,)))
        later = AssignJob(
            leader_epoch=EPOCH,
            job=assignment(version=2, key_groups=(), copies=(0,), sequence=8),
        )
        node.tell(later)
        asked_as_copy = question(version=2, copies=((0, 0),))
        assert node.admit(asked_as_copy) is Wait.CATCHING_UP

    @pytest.mark.proves("S2")
    def test_a_question_of_an_older_leader_is_refused(self, node: Node) -> None:
        """S2: the former leader is told that it leads no more."""
        node.serve()
        assert code(node.admit(question(leader_epoch=EPOCH - 1))) == NOT_LEADER

    def test_a_question_of_an_unknown_leader_is_not_answered(self, node: Node) -> None:
        """A leader that has not registered the node may not have told it all."""
        node.serve()
        assert code(node.admit(question(leader_epoch=9))) == "state-unavailable"

    def test_nothing_is_answered_before_it_is_registered(self, node: Node) -> None:
        """Not even what the store has: it may be behind."""
        node.connect()
        assert code(node.admit(question())) == "state-unavailable"

    @pytest.mark.proves("W7")
    def test_a_job_that_is_not_assigned_is_unavailable(self, node: Node) -> None:
        """W7: never as if its keys did not exist."""
        node.serve()
        refusal = node.admit(question(7), job_id="other")
        assert isinstance(refusal, Refusal)
        assert refusal.request_id == 7
        assert "other is unavailable" in str(error_of(refusal))

    @pytest.mark.parametrize("version", [1, 3])
    def test_another_assignment_is_a_stale_route(
        self, node: Node, version: int
    ) -> None:
        """An older route, and one that the node has not heard of, both are."""
        node.serve(assignment(version=2))
        assert code(node.admit(question(version=version))) == STALE_ROUTE

    def test_a_state_it_never_had_is_a_stale_route(self, node: Node) -> None:
        """The client asks what the state is, and where."""
        node.serve()
        assert code(node.admit(question(), job_id=None)) == STALE_ROUTE

    def test_a_state_that_is_about_to_come_is_waited_for(self, node: Node) -> None:
        """Its first batch may be what is being applied."""
        node.serve()
        node.send(batch(8))
        assert node.admit(question(), job_id=None) is Wait.UNKNOWN_STATE

    @pytest.mark.proves("W3")
    def test_what_was_missed_is_applied_first(self, node: Node) -> None:
        """W3: entries that follow the registration come before any answer."""
        node.connect()
        node.register(assignment())
        assert node.send(batch(8)) == (apply(batch(8)),)
        node.acknowledge()
        assert node.admit(question()) is Wait.CATCHING_UP
        node.applied(batch(8))
        assert isinstance(node.admit(question()), ServedJob)

    def test_until_a_heartbeat_is_answered_more_may_come(self, node: Node) -> None:
        """What the proxy sends at once has come when it answers: then it is judged."""
        node.connect()
        node.register(assignment())
        one = question()
        assert node.admit(one) is Wait.CATCHING_UP
        assert node.defer(one, Wait.CATCHING_UP) == ()
        again = AskAgain(asked=asked(one, node.now_ns))
        acknowledged = HeartbeatAcknowledged(leader_epoch=EPOCH, number=1)
        assert node.tell(acknowledged) == (again,)
        assert isinstance(node.admit(one), ServedJob)

    def test_what_is_decided_later_is_not_waited_for(self, node: Node) -> None:
        """After a heartbeat is acknowledged, what comes is new: the old is served."""
        node.serve()
        node.send(batch(8))
        assert isinstance(node.admit(question()), ServedJob)

    def test_only_a_heartbeat_of_its_own_ends_what_was_missed(self, node: Node) -> None:
        """An acknowledgement of nothing says nothing about what has been sent."""
        node.connect()
        node.register(assignment())
        assert node.tell(HeartbeatAcknowledged(leader_epoch=EPOCH, number=99)) == ()
        node.send(batch(8))
        assert node.admit(question()) is Wait.CATCHING_UP

    def test_while_it_asks_what_was_missed_is_still_to_come(self, node: Node) -> None:
        """What the node ignores because it asks has not come."""
        node.connect()
        node.register(assignment(), assignment("other"))
        node.wait(200)
        gap = ApplyEntries(leader_epoch=EPOCH, job_id="other", entries=(batch(9),))
        assert asking(position(7)) in node.tell(gap)
        assert node.tell(HeartbeatAcknowledged(leader_epoch=EPOCH, number=1)) == ()
        assert node.admit(question()) is Wait.CATCHING_UP

    def test_a_new_assignment_brings_what_it_needs(self, node: Node) -> None:
        """Entries that follow an assignment belong to it; a heartbeat ends them."""
        node.serve()
        command = AssignJob(leader_epoch=EPOCH, job=assignment(version=2))
        assert node.tell(command) == (heartbeat(2),)
        node.send(batch(8))
        node.acknowledge()
        assert node.admit(question(version=2)) is Wait.CATCHING_UP
        node.applied(batch(8))
        assert isinstance(node.admit(question(version=2)), ServedJob)

    @pytest.mark.proves("Q3", "S3")
    def test_a_question_by_an_assignment_that_is_over(self, node: Node) -> None:
        """Q3, S3: it does not wait for what only that assignment needed."""
        node.serve(assignment(sequence=8))
        one = question()
        assert node.admit(one) is Wait.CATCHING_UP
        asked_at_ns = node.now_ns
        assert node.defer(one, Wait.CATCHING_UP) == ()
        job = assignment(version=2, key_groups=())
        assert node.tell(AssignJob(leader_epoch=EPOCH, job=job))[-1] == heartbeat(2)
        effects = node.tell(HeartbeatAcknowledged(leader_epoch=EPOCH, number=2))
        assert effects[0] == AskAgain(asked=asked(one, asked_at_ns))
        assert code(node.admit(one)) == STALE_ROUTE

    @pytest.mark.proves("W7")
    def test_a_reset_is_waited_for(self, node: Node) -> None:
        """W7: from rows that are to be thrown away nothing is answered."""
        node.serve()
        node.tell(
            ResetJob(leader_epoch=EPOCH, job_id="job", sequence=3, state_numbers=())
        )
        assert node.admit(question()) is Wait.CATCHING_UP
        finished = ResetFinished(job_id="job", failure=None)
        assert node.step(finished) == (report(3),)
        assert isinstance(node.admit(question()), ServedJob)


class TestWaiting:
    """Q2: questions that wait for a batch, within their deadline."""

    def test_the_batch_that_is_applied_answers_it(self, node: Node) -> None:
        """The question is looked at again when the batch is there, not before."""
        node.serve()
        one = question(min_batch_id=9)
        assert node.defer(one) == ()
        node.send(batch(8), batch(9))
        assert node.applied(batch(8)) == (report(8), apply(batch(9)))
        again = AskAgain(asked=asked(one, node.now_ns))
        assert node.applied(batch(9)) == (report(9), again)

    def test_at_its_deadline_it_is_refused(self, node: Node) -> None:
        """One before, it waits; at the deadline it is told how long it waited."""
        node.serve()
        node.defer(question(7, min_batch_id=9, deadline_ms=500))
        assert node.core.next_deadline_ns() == node.now_ns + 500 * MS
        assert node.wait(499) == ()
        (effect,) = node.wait(1)
        assert isinstance(effect, SendToProxy)
        assert isinstance(effect.message, Refusal)
        assert effect.message.request_id == 7
        expected = "no answer within 0.5 s: batch 9 is not applied yet"
        assert str(error_of(effect.message)) == expected

    @pytest.mark.parametrize(
        ("wait", "expected"),
        [
            (Wait.CATCHING_UP, "state-unavailable"),
            (Wait.UNKNOWN_STATE, STALE_ROUTE),
            (Wait.BATCH, "deadline-exceeded"),
        ],
    )
    def test_what_it_is_told_depends_on_what_it_waited_for(
        self, node: Node, wait: Wait, expected: str
    ) -> None:
        """A node that is behind is unavailable, not late."""
        node.serve()
        node.defer(question(deadline_ms=500, min_batch_id=9), wait)
        (effect,) = node.wait(500)
        assert isinstance(effect, SendToProxy)
        assert isinstance(effect.message, Refusal)
        assert effect.message.code == expected

    def test_a_deadline_that_has_passed_is_told_at_once(self, node: Node) -> None:
        """Looking at it took too long: it does not wait any more."""
        node.serve()
        late = QuestionDeferred(
            asked=asked(question(deadline_ms=1), node.now_ns - MS),
            job_id="job",
            wait=Wait.BATCH,
        )
        (effect,) = node.step(late)
        assert isinstance(effect, SendToProxy)

    def test_those_that_wait_are_bounded(self, node: Node) -> None:
        """Beyond the limit a question is refused at once, to be asked again."""
        node.serve()
        for number in (1, 2):
            assert node.defer(question(number)) == ()
        (effect,) = node.defer(question(3))
        assert isinstance(effect, SendToProxy)
        assert isinstance(effect.message, Refusal)
        assert effect.message.code == "state-unavailable"

    def test_a_lost_connection_forgets_them(self, node: Node) -> None:
        """The asker cannot be answered over another connection."""
        node.serve()
        node.defer(question(deadline_ms=500))
        node.step(ProxyDisconnected())
        assert node.core.figures(now_ns=node.now_ns)["questions_waiting"] == 0

    def test_a_new_assignment_has_them_looked_at(self, node: Node) -> None:
        """By then their route may be stale."""
        node.serve()
        one = question()
        node.defer(one)
        command = AssignJob(leader_epoch=EPOCH, job=assignment(version=2))
        assert node.tell(command) == (heartbeat(2),)
        effects = node.tell(HeartbeatAcknowledged(leader_epoch=EPOCH, number=2))
        assert effects == (AskAgain(asked=asked(one, node.now_ns)),)

    def test_a_new_registration_has_them_looked_at(self, node: Node) -> None:
        """The same connection still waits for the answer."""
        node.serve()
        one = question()
        node.defer(one)
        asked_at_ns = node.now_ns
        node.wait(200)
        node.send(batch(9))
        assert node.register(assignment()) == (heartbeat(2),)
        effects = node.tell(HeartbeatAcknowledged(leader_epoch=EPOCH, number=2))
        assert effects == (AskAgain(asked=asked(one, asked_at_ns)),)

    def test_a_failure_has_them_looked_at(self, node: Node) -> None:
        """Who waits for a state that does not come is told so."""
        node.serve()
        one = question()
        node.send(batch(8))
        node.defer(one, Wait.UNKNOWN_STATE, None)
        effects = node.applied(batch(8), "disk full")
        assert effects[-1] == AskAgain(asked=asked(one, node.now_ns))
        assert code(node.admit(one, None)) == STALE_ROUTE

    def test_a_dropped_state_has_them_looked_at(self, node: Node) -> None:
        """There will be no such batch."""
        node.serve()
        one = question(min_batch_id=9)
        node.defer(one)
        node.send(drop(8))
        again = AskAgain(asked=asked(one, node.now_ns))
        assert node.applied(drop(8)) == (report(8), again)

    @pytest.mark.proves("W7")
    def test_a_reset_has_them_looked_at(self, node: Node) -> None:
        """W7: what they wait for may be lost."""
        node.serve()
        one = question()
        node.defer(one)
        node.tell(
            ResetJob(leader_epoch=EPOCH, job_id="job", sequence=9, state_numbers=())
        )
        finished = ResetFinished(job_id="job", failure=None)
        again = AskAgain(asked=asked(one, node.now_ns))
        assert node.step(finished) == (report(9), again)


class TestChunks:
    """W1, W2: what writers bring."""

    def chunk(self, writer_epoch: int = 1, writer: bytes = b"w") -> ChunkReceived:
        """Return a chunk of query ``q``."""
        return ChunkReceived(
            writer=writer,
            chunk=StageChunk(
                request_id=5,
                job_id="job",
                query_id="q",
                writer_epoch=writer_epoch,
                batch_id=1,
                stage_id=bytes(16),
                chunk_index=0,
                assignment_version=1,
            ),
            rows=ROWS,
        )

    def test_a_chunk_is_staged(self, node: Node) -> None:
        """Whether or not a proxy is there: rows count when they are decided."""
        event = self.chunk()
        assert node.step(event) == (
            StageRows(writer=b"w", chunk=event.chunk, rows=ROWS),
        )

    @pytest.mark.proves("W1")
    def test_an_older_run_is_refused(self, node: Node) -> None:
        """W1: by the fence of the store, and by the run whose batch was applied."""
        node.serve()
        node.send(batch(8, writer_epoch=4))
        node.applied(batch(8, writer_epoch=4))
        refused = ChunkRefused(request_id=5, code="stale-writer", data=("q", 3, 4))
        assert node.step(self.chunk(3)) == (SendToWriter(writer=b"w", message=refused),)

    def test_what_waits_is_bounded(self, node: Node) -> None:
        """A writer is told to bring it again, and has room when the disk has it."""
        node.step(self.chunk())
        (effect,) = node.step(self.chunk())
        assert isinstance(effect, SendToWriter)
        assert effect.message.code == "did-not-happen"
        node.step(ChunkFinished(writer=b"w", size_bytes=60))
        (effect,) = node.step(self.chunk())
        assert isinstance(effect, StageRows)


class TestTime:
    """What a node does by the clock alone."""

    EVERY_MS = LIMITS.drop_stages_ns // MS

    def drops_within(self, node: Node, ms: int, spared: tuple[str, ...] = ()) -> bool:
        """Move on by *ms*, heartbeats acknowledged; return whether stages dropped."""
        effects: list[NodeEffect] = []
        while ms > 0:
            effects += node.wait(min(ms, 1_000))
            ms -= 1_000
            if node.core.is_registered:
                node.acknowledge()
        return DropOldStages(spared=spared) in effects

    @pytest.mark.proves("W2")
    def test_old_stages_are_dropped_now_and_then(self, node: Node) -> None:
        """W2: staged rows do not stay for ever."""
        node.serve()
        assert not self.drops_within(node, self.EVERY_MS - 1)
        assert self.drops_within(node, 1)
        assert not self.drops_within(node, self.EVERY_MS - 1)
        assert self.drops_within(node, 1)

    @pytest.mark.proves("W3")
    def test_what_may_be_decided_is_not_dropped(self, node: Node) -> None:
        """W3: a batch that was decided meanwhile is applied first, however old."""
        soon_ms = self.EVERY_MS // 20
        assert not self.drops_within(node, self.EVERY_MS)
        node.connect()
        node.register(assignment())
        node.send(batch(8))
        assert not self.drops_within(node, soon_ms)
        node.applied(batch(8))
        assert self.drops_within(node, soon_ms)

    @pytest.mark.proves("W3")
    def test_what_cannot_be_applied_yet_is_not_dropped(self, node: Node) -> None:
        """W3: a disk that was full may not be any more; then its rows are needed."""
        node.serve()
        node.send(batch(8))
        node.applied(batch(8), failure="the disk is full")
        assert not self.drops_within(node, self.EVERY_MS)

    @pytest.mark.proves("B4")
    def test_a_stopped_job_does_not_keep_what_is_old_of_others(
        self, node: Node
    ) -> None:
        """B4: stages of others go as often as ever, the rest when it is applied."""
        node.serve()
        assert not self.drops_within(node, self.EVERY_MS - 5_000)
        node.send(batch(8))
        node.applied(batch(8), failure="the disk is full")
        assert self.drops_within(node, 5_000, spared=("job",))
        soon_ms = self.EVERY_MS // 20
        assert not self.drops_within(node, soon_ms, spared=("job",))
        node.send(batch(8))
        node.applied(batch(8))
        assert self.drops_within(node, soon_ms)
