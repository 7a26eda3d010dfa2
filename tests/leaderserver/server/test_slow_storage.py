"""A service whose storage takes its time: what waits, and what goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderserver.messages import (
    AcknowledgedHeartbeat,
    CloseSessionRequest,
    DoneReply,
    FailedReply,
    Granted,
    HeartbeatRequest,
    Hindered,
    Published,
    Reply,
    Revoked,
    SnapshotReply,
    SubscribeRequest,
    ToClient,
    UncertainReply,
    WithdrawRequest,
)
from leaderserver.server.core.storage_queue import RecordEpochTask, StorageWork
from leaderserver.server.storage import MemoryStorage, UncertainWriteError
from leaderserver.server.storage_work import Outcome, perform_storage_work
from leaderserver.store_messages import CleanupRequest, GetRequest, ValueReply
from nameservice import StorageError
from tests.leaderserver.conversation import JOB, commit, register
from tests.leaderserver.server.slow_conversation import (
    SlowConversation,
    granted,
    lead,
    messages,
    talker,
)


@pytest.fixture
def slow() -> SlowConversation:
    """Return a service whose storage waits to be told."""
    return SlowConversation()


class TestGrants:
    @pytest.mark.proves("E2")
    def test_a_grant_waits_for_its_record(self, slow: SlowConversation) -> None:
        """E2: an epoch is durable before its grant is sent, and heartbeats go on."""
        alice = talker(slow, "alice")
        sent = messages(alice.say(register("x")))
        assert not any(isinstance(message, Granted) for message in sent)
        answer = alice.answer(HeartbeatRequest(acknowledged=0))
        assert answer == AcknowledgedHeartbeat(
            affirmations=[], is_undecided=False, revisions={}
        )
        assert isinstance(slow.storage, MemoryStorage)
        assert slow.storage.recorded_epochs() == {}
        grant = granted(slow.work())
        assert slow.storage.recorded_epochs() == {JOB: grant.affirmation.epoch}
        # The answers to heartbeats said nothing of it: it answers the newest.
        assert grant.heartbeat_number == alice.number
        affirmed = alice.answer(HeartbeatRequest(acknowledged=0))
        assert isinstance(affirmed, AcknowledgedHeartbeat)
        assert affirmed.affirmations == [grant.affirmation]

    @pytest.mark.proves("E2", "E9")
    @pytest.mark.parametrize("fails", [False, True])
    def test_who_looks_for_a_leader_is_told_of_no_epoch_before_its_record(
        self, slow: SlowConversation, fails: bool
    ) -> None:
        """
        That the leader it knows leads no longer it hears under the epoch it knows.

        After a crash no server knows the present epoch, and a claim below it may be
        reinstated: one that had heard of it would take no news of that leader.
        """
        alice, bob = talker(slow, "alice"), talker(slow, "bob")
        looking = SubscribeRequest(component_id=JOB, epoch_seen=5, is_ended_seen=False)

        def heard() -> int:
            snapshot = bob.answer(looking)
            assert isinstance(snapshot, SnapshotReply)
            assert snapshot.publication is not None
            assert snapshot.publication.address is None
            return snapshot.publication.epoch

        alice.say(register("x"))
        assert heard() == 5
        if fails:
            sent = slow.work(StorageError("no room"))
            assert not any(isinstance(message, Published) for message in sent)
            assert heard() == 5
        assert isinstance(slow.storage, MemoryStorage)
        for _ in range(40):
            if slow.storage.recorded_epochs():
                break
            alice.heartbeat()
            bob.heartbeat()
            slow.advance(10)
            slow.work()
        assert heard() == 5
        (recorded,) = slow.storage.recorded_epochs().values()
        leadership = slow.service.core.component(JOB).leadership  # type: ignore[union-attr]  # it is there
        assert leadership is not None
        assert leadership.epoch == recorded

    def test_a_leadership_that_ended_is_not_granted(
        self, slow: SlowConversation
    ) -> None:
        """What was over before it was on record is told to no one."""
        alice, bob = talker(slow, "alice"), talker(slow, "bob")
        alice.say(register("x"))
        bob.say(register("y"))
        alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        sent = slow.work()
        assert granted(sent).affirmation.contender_id == "y"
        assert not any(isinstance(message, Revoked) for message in sent)

    @pytest.mark.proves("N3")
    def test_a_disk_that_hangs_gathers_no_epochs(self, slow: SlowConversation) -> None:
        """
        N3: however many contenders come and go meanwhile, one epoch of a job waits.

        It is the newest, and behind one that is under way.
        """
        alice = talker(slow, "alice")
        for number in range(50):
            alice.say(register(f"x{number}"))
            slow.take_work()
            alice.say(WithdrawRequest(component_id=JOB, contender_id=f"x{number}"))
        alice.say(register("last"))
        assert slow.service.figures(now_ns=slow.now_ns)["storage_waiting"] == 2
        held = slow.service._steps._held._holds[JOB].effects
        assert len(held) == 1
        grant = granted(slow.work())
        assert grant.affirmation.contender_id == "last"
        assert slow.storage.recorded_epochs() == {JOB: grant.affirmation.epoch}
        assert slow.service.figures(now_ns=slow.now_ns)["storage_waiting"] == 0

    def test_many_grants_are_one_batch(self, slow: SlowConversation) -> None:
        """What one fsync can do is not done by two."""
        alice, bob = talker(slow, "alice"), talker(slow, "bob")
        names = [f"c/{number}" for number in range(8)]
        for name in names:
            alice.say(register(f"a{name}", name))
            bob.say(register(f"b{name}", name))
        slow.work()
        alice.say(CloseSessionRequest())
        slow.take_work()
        (work,) = slow.under_way
        assert [job.task.component_id for job in work.jobs] == names
        assert all(isinstance(job.task, RecordEpochTask) for job in work.jobs)

    @pytest.mark.proves("E2")
    def test_a_record_that_fails_grants_nothing(self, slow: SlowConversation) -> None:
        """It is tried again a lease later (E2)."""
        alice = talker(slow, "alice")
        alice.say(register("x"))
        sent = slow.work(StorageError("no room"))
        assert not any(isinstance(message, Granted) for message in sent)
        for _ in range(40):
            alice.heartbeat()
            slow.advance(10)
            sent = slow.work()
            if any(isinstance(message, Granted) for message in sent):
                break
        figures = slow.service.figures(now_ns=slow.now_ns)
        assert figures["storage_failures_total"] == 1
        assert (
            granted(sent).affirmation.epoch in slow.storage.recorded_epochs().values()
        )

    def test_who_waits_in_vain_is_told_once(self, slow: SlowConversation) -> None:
        """E8: each session with a contender, until an epoch is on record."""

        def told(sent: list[ToClient]) -> list[str]:
            return [m.session_id for m in sent if isinstance(m, Hindered)]

        alice, bob = talker(slow, "alice"), talker(slow, "bob")
        alice.say(register("x"))
        alice.say(register("x2"))
        error = StorageError("no room")
        assert told(slow.work(error)) == [alice.session_id]
        bob.say(register("y"))
        sent: list[ToClient] = []
        for _ in range(40):
            alice.heartbeat()
            bob.heartbeat()
            slow.advance(10)
            sent += slow.work(error)
        assert told(sent) == [bob.session_id]
        for _ in range(40):
            alice.heartbeat()
            bob.heartbeat()
            slow.advance(10)
            sent += slow.work()
        assert any(isinstance(message, Granted) for message in sent)


class TestCommits:
    @pytest.mark.proves("L2")
    def test_a_successor_waits_for_its_predecessors_commits(
        self, slow: SlowConversation
    ) -> None:
        """L2: what the leader wrote is decided before another is granted."""
        alice, bob = talker(slow, "alice"), talker(slow, "bob")
        grant = lead(slow, alice, "x")
        bob.say(register("y"))
        alice.say(commit(grant.affirmation))
        slow.take_work()
        assert len(slow.under_way) == 1, "the commit is on its way to the disk"
        withdrawal = alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        assert not any(isinstance(m, Granted) for m in messages(withdrawal))
        commit_work = slow.under_way[0]
        assert slow.service.next_storage_work() is None
        sent = slow.work()
        assert isinstance(sent[0], Reply)
        assert sent[0].body == DoneReply()
        assert granted(sent).affirmation.contender_id == "y"
        assert not any(isinstance(j.task, RecordEpochTask) for j in commit_work.jobs)

    @pytest.mark.proves("L1")
    def test_a_read_after_an_acknowledged_commit_sees_it(
        self, slow: SlowConversation
    ) -> None:
        """And one that comes while it is written waits for it (L1)."""
        alice, bob = talker(slow, "alice"), talker(slow, "bob")
        grant = lead(slow, alice, "x")
        alice.say(commit(grant.affirmation))
        slow.take_work()
        bob.say(GetRequest(component_id=JOB, path="a"))
        assert slow.service.next_storage_work() is None
        bodies = [message.body for message in slow.work() if isinstance(message, Reply)]
        assert bodies == [DoneReply(), ValueReply(value=b"v", version=1)]

    @pytest.mark.proves("L2")
    def test_a_deposed_leader_takes_no_place(self, slow: SlowConversation) -> None:
        """It is refused at once, whatever the disk does (L2)."""
        alice = talker(slow, "alice")
        grant = lead(slow, alice, "x")
        alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        refused = alice.answer(commit(grant.affirmation))
        assert isinstance(refused, FailedReply)
        assert refused.reason == "stale"

    def test_an_uncertain_commit_is_not_refused(self, slow: SlowConversation) -> None:
        """L4: "did not happen" is said only of what did not."""
        alice = talker(slow, "alice")
        grant = lead(slow, alice, "x")
        alice.say(commit(grant.affirmation))
        alice.say(CleanupRequest(component_id=JOB))
        alice.say(GetRequest(component_id=JOB, path="a"))
        bodies = [
            message.body
            for message in slow.work(UncertainWriteError("a sync failed"))
            if isinstance(message, Reply)
        ]
        uncertain = UncertainReply(detail="a sync failed")
        assert bodies[:2] == [uncertain, uncertain]
        assert isinstance(bodies[2], FailedReply)

    def test_who_has_left_is_not_answered(self, slow: SlowConversation) -> None:
        """The commit is done all the same."""
        alice, bob = talker(slow, "alice"), talker(slow, "bob")
        grant = lead(slow, alice, "x")
        alice.say(commit(grant.affirmation))
        alice.say(CloseSessionRequest())
        assert slow.work() == []
        bob.say(GetRequest(component_id=JOB, path="a"))
        (reply,) = slow.work()
        assert isinstance(reply, Reply)
        assert reply.body == ValueReply(value=b"v", version=1)


class _Reads:
    """
    One who leads, writes and reads, while each lane takes its own time.

    Writes put 1, 2, 3, …: what a read may answer follows from how many of them were
    acknowledged when it was asked, and how many were done when it was answered.
    """

    def __init__(self) -> None:
        self.slow = SlowConversation()
        self.alice = talker(self.slow, "alice")
        self.affirmation = lead(self.slow, self.alice, "x").affirmation
        self.performed: list[tuple[StorageWork, list[Outcome]]] = []
        self.asked_count = self.done_count = self.told_count = 0
        self.oldest: dict[int, int] = {}
        self.writes: set[int] = set()
        self.answer_count = 0

    def put(self) -> None:
        """Ask for the next write."""
        self.asked_count += 1
        value = str(self.asked_count).encode()
        sent = self.alice.say(commit(self.affirmation, value))
        self.writes.add(self.alice.number)
        self.take(messages(sent))

    def get(self) -> None:
        """Ask for what is there."""
        self.oldest[self.alice.number + 1] = self.told_count
        sent = self.alice.say(GetRequest(component_id=JOB, path="a"))
        self.take(messages(sent))

    def work(self) -> None:
        """Have the lane that began first do what it has begun."""
        self.slow.take_work()
        if self.slow.under_way:
            work = self.slow.under_way.pop(0)
            outcomes = [*perform_storage_work(self.slow.storage, work)]
            self.done_count += len(work.jobs) if work.is_write else 0
            self.performed.append((work, outcomes))

    def swap(self) -> None:
        """Have the other lane go first."""
        self.slow.take_work()
        self.slow.under_way.reverse()
        self.performed.reverse()

    def tell(self) -> None:
        """Tell the service what was done."""
        if self.performed:
            work, outcomes = self.performed.pop(0)
            now_ns = self.slow.now_ns
            sent = self.slow.service.storage_done(work, outcomes, now_ns=now_ns)
            self.take(messages([*sent]))

    def take(self, sent: list[ToClient]) -> None:
        """Check each answer."""
        for message in sent:
            assert isinstance(message, Reply)
            if message.number in self.writes:
                assert message.body == DoneReply()
                self.told_count += 1
                continue
            assert isinstance(message.body, ValueReply)
            found = int(message.body.value or b"0")
            assert self.oldest.pop(message.number) <= found <= self.done_count
            self.answer_count += 1


class TestReads:
    @pytest.mark.proves("L1")
    @given(
        st.lists(
            st.sampled_from([_Reads.put, _Reads.get, _Reads.get, _Reads.work])
            | st.sampled_from([_Reads.swap, _Reads.tell, _Reads.work]),
            max_size=60,
        )
    )
    def test_none_is_older_than_what_was_acknowledged(
        self, steps: list[Callable[[_Reads], None]]
    ) -> None:
        """L1: whichever lane is first, a read sees each write that was acknowledged."""
        reads = _Reads()
        for step in [_Reads.put, _Reads.work, _Reads.tell, *steps]:
            step(reads)
        while reads.oldest or reads.told_count < reads.asked_count:
            reads.work()
            reads.tell()
        reads.get()
        reads.work()
        reads.tell()
        assert not reads.oldest

    @pytest.mark.proves("L1")
    def test_what_was_read_is_not_read_again(self, slow: SlowConversation) -> None:
        """L1: who reads it next waits for no disk, until it is written again."""
        alice = talker(slow, "alice")
        affirmation = lead(slow, alice, "x").affirmation
        alice.say(commit(affirmation, b"1"))
        slow.work()
        get = GetRequest(component_id=JOB, path="a")
        assert not alice.say(get)
        slow.work()
        assert alice.answer(get) == ValueReply(value=b"1", version=1)
        alice.say(commit(affirmation, b"2"))
        assert not alice.say(get)
        slow.work()
        assert alice.answer(get) == ValueReply(value=b"2", version=2)
        alice.say(CleanupRequest(component_id=JOB))
        assert not alice.say(get)
        slow.work()
        assert not alice.say(get)  # that there is nothing is not kept

    @pytest.mark.proves("L1")
    @pytest.mark.parametrize(
        "error", [StorageError("no room"), UncertainWriteError("no answer")]
    )
    def test_what_a_failed_write_has_left_is_read(
        self, slow: SlowConversation, error: StorageError
    ) -> None:
        """L1: whether it was written after all, the disk says."""
        alice = talker(slow, "alice")
        affirmation = lead(slow, alice, "x").affirmation
        alice.say(commit(affirmation, b"1"))
        slow.work()
        get = GetRequest(component_id=JOB, path="a")
        alice.say(get)
        slow.work()
        alice.say(commit(affirmation, b"2"))
        slow.work(error)
        assert not alice.say(get)
        slow.work()
        assert alice.answer(get) == ValueReply(value=b"1", version=1)
