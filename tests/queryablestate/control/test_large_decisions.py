"""Decisions of any size, as a leader writes them and the next one reads them (B3)."""

from __future__ import annotations

from typing import Final

import pytest

from election import Delete, Put
from election.store import check_operations
from nameservice import DidNotHappenError, MayHaveHappenedError, StorageError
from queryablestate.control.effects import (
    AnswerWriter,
    ControlEffect,
    RefuseWriter,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control.events import (
    LinkId,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.job.leader_paths import encode_record, job_path
from queryablestate.control.large_writes import LARGE, CommitLimits
from queryablestate.control.stored_control import stored_control
from queryablestate.wire.clients import BatchCommitted
from queryablestate.wire.node_messages import ApplyEntries, VerifyStages
from queryablestate.wire.records import StageRecord
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    LINK_A,
    LIST,
    VALUE,
    WALL_US,
    Plane,
    applied,
    bind,
    commit,
    draw,
    load,
    node_register,
    refusal,
    sent,
    told,
    verified,
)


pytestmark = pytest.mark.proves("B3")

LIMITS: Final = CommitLimits(operation_count_max=3, size_bytes_max=2_000)
STATES: Final = {f"state-{number}": VALUE for number in range(6)}


def small_plane() -> Plane:
    """Return a control plane whose store takes three operations at once."""
    return Plane(core=load({}, limits=LIMITS), limits=LIMITS)


def begin_commit(plane: Plane) -> list[ControlEffect]:
    """Ask for the commit of a batch without rows that writes six states."""
    request = commit(1, 0, state_numbers=(1, 2, 3, 4, 5, 6))
    asked = WriterAsked(link=DRIVER, request=request, wall_clock_us=WALL_US)
    return [*plane.step(asked)]


def write(plane: Plane, effects: list[ControlEffect], count: int) -> int:
    """Have the store take that many commits; return how many there were."""
    waiting = [effect for effect in effects if isinstance(effect, WriteStore)]
    done = 0
    while waiting and done < count:
        (one,) = waiting
        plane.write(one)
        done += 1
        waiting = [
            effect
            for effect in plane.step(StoreWritten())
            if isinstance(effect, WriteStore)
        ]
    return done


class TestThousandStates:
    def test_a_query_of_them_binds_commits_and_goes_on(self) -> None:
        """B3: one commit of the store takes 1,000 operations; this takes several."""
        plane = Plane()
        plane.start_nodes()
        states = {f"state-{number}": LIST for number in range(1_000)}
        plane.ask(draw(states=states))
        plane.ask(bind(1, states=states))
        numbers = tuple(range(1, 1_001))
        for batch_id in range(2):
            request = commit(1, batch_id, state_numbers=numbers)
            answer = plane.decide(request)[-1]
            assert isinstance(answer, AnswerWriter)
            assert isinstance(answer.message, BatchCommitted)
        before = plane.core._control.jobs
        plane.next_leader()
        after = plane.core._control.jobs
        assert after[APP].record == before[APP].record
        assert after[APP].entries == before[APP].entries
        # A batch of one of them costs as if there were no others.
        request = commit(1, 2, state_numbers=(7,))
        asked = WriterAsked(link=DRIVER, request=request, wall_clock_us=WALL_US)
        plane.hear(LINK_A, node_register("a", positions={APP: 2}))
        (only,) = [one for one in plane.step(asked) if isinstance(one, WriteStore)]
        assert len(only.operations) == 4


class TestManyTasks:
    def test_the_decision_fits_and_every_node_is_told(self) -> None:
        """B3: 10,000 tasks on 50 nodes; no commit of the store is too large."""
        plane = Plane()
        node_ids = [f"node-{number:02d}-of-the-cluster" for number in range(50)]
        links = {node_id: LinkId(100 + n) for n, node_id in enumerate(node_ids)}
        for node_id, link in links.items():
            plane.hear(link, node_register(node_id))
        plane.ask(draw(max_parallelism=64))
        plane.bind(1)
        stages = [
            StageRecord(
                stage_id=number.to_bytes(16, "big"),
                chunk_counts=dict.fromkeys(node_ids, 1),
                row_count=50,
            )
            for number in range(10_000)
        ]
        effects = plane.ask(commit(1, 0, *stages))
        answers = []
        for node_id, link in links.items():
            (question,) = sent(effects, link)
            assert isinstance(question, VerifyStages)
            answers.append((link, verified(node_id, question.verify_id)))
        waiting: list[ControlEffect] = []
        for link, answer in answers:
            assert waiting == []
            waiting = [*plane.step(NodeSpoke(link=link, message=answer))]
        told_nodes = []
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, WriteStore):
                check_operations([*effect.operations, Put("witness", b"")])
                plane.write(effect)
                waiting += plane.step(StoreWritten())
            elif isinstance(effect, SendToNode):
                told_nodes.append(effect.message)
        assert len(told_nodes) == len(node_ids)
        assert all(isinstance(message, ApplyEntries) for message in told_nodes)
        (job,) = stored_control(plane.store).jobs
        assert job.entries[1] == plane.core._control.job(APP).entries[1]


class TestKilled:
    """B3, W3: whenever a leader dies, the next one finds all of a decision or none."""

    def test_between_any_two_commits(self) -> None:
        """And it ends what is decided before it writes anything else."""
        plane = small_plane()
        plane.start_job(STATES)
        kept = dict(plane.store)
        total = write(plane, begin_commit(plane), 1_000)
        outcome = stored_control(plane.store).jobs
        assert total > 5
        decided = 0
        for count in range(total + 1):
            plane = Plane(core=load(kept, limits=LIMITS), limits=LIMITS)
            plane.store = dict(kept)
            assert write(plane, begin_commit(plane), count) == count
            plane.next_leader()
            job = plane.core._control.job(APP)
            is_decided = job.record.sequence == 1
            decided += is_decided
            assert [job] == (outcome if is_decided else stored_control(kept).jobs)
            plane.settle(TimePassed())
            assert not any(path.startswith(LARGE) for path in plane.store)
            # Asked again, it is a repetition, or is decided now.
            again = commit(1, 0, state_numbers=(1, 2, 3, 4, 5, 6))
            effects = plane.ask(again)
            assert not any(isinstance(effect, RefuseWriter) for effect in effects)
            assert stored_control(plane.store).jobs == outcome
            assert len(job.entries) == 1
        assert 1 < decided < total

    def test_the_rest_comes_before_anything_else(self) -> None:
        """What is left of a decision must not undo what is written after it."""
        plane = small_plane()
        plane.start_job(STATES)
        effects = begin_commit(plane)
        while LARGE not in plane.store:
            (effect,) = [one for one in effects if isinstance(one, WriteStore)]
            plane.write(effect)
            effects = [*plane.step(StoreWritten())]
        kept = dict(plane.store)
        plane = Plane(core=load(kept, limits=LIMITS), limits=LIMITS)
        plane.store = kept
        asked = WriterAsked(link=DRIVER, request=draw(), wall_clock_us=WALL_US)
        (rest, *more) = plane.step(asked)
        assert isinstance(rest, WriteStore)
        assert more == []
        paths = [one.path for one in rest.operations]
        assert paths[0] == job_path(1)
        assert "counters" not in paths
        plane.settle_rest([rest])
        assert any(path == "counters" for path in plane.store)


class TestFailing:
    def test_before_it_is_decided_nothing_has_happened(self) -> None:
        """The writer is told so, and the next decision is made as if it were first."""
        plane = small_plane()
        plane.start_job(STATES)
        assert write(plane, begin_commit(plane), 1) == 1
        failure = StoreFailed(error=StorageError("full"), is_certain=True)
        effects = plane.step(failure)
        assert isinstance(refusal(effects), DidNotHappenError)
        assert not any(isinstance(effect, StartOver) for effect in effects)
        assert stored_control(plane.store).jobs[0].record.sequence == 0
        write(plane, begin_commit(plane), 1_000)
        assert stored_control(plane.store).jobs[0].record.sequence == 1

    def test_after_it_is_decided_the_store_is_read_anew(self) -> None:
        """It is true by then; who waits cannot be told that it did not happen."""
        plane = small_plane()
        plane.start_job(STATES)
        effects = begin_commit(plane)
        while LARGE not in plane.store:
            (effect,) = [one for one in effects if isinstance(one, WriteStore)]
            plane.write(effect)
            effects = [*plane.step(StoreWritten())]
        failure = StoreFailed(error=StorageError("full"), is_certain=True)
        (refused, over) = plane.step(failure)
        assert isinstance(refused, RefuseWriter)
        assert isinstance(refused.error, MayHaveHappenedError)
        assert isinstance(over, StartOver)
        plane.next_leader()
        assert plane.core._control.job(APP).record.sequence == 1


class TestEarlierVersion:
    """What was stored before is read, and divided with the first change of a job."""

    def test_it_goes_on(self) -> None:
        """Nothing of it is lost, and nothing of it stays in one record."""
        plane = Plane()
        plane.start_job({"a": VALUE, "b": VALUE})
        plane.decide(commit(1, 0, state_numbers=(1, 2)))
        before = plane.core._control.job(APP).record
        plane.store = {
            path: value
            for path, value in plane.store.items()
            if "/queries/" not in path and "/progress/" not in path
        }
        plane.store[job_path(1)] = encode_record(before)
        plane.next_leader()
        assert plane.core._control.job(APP).record == before
        for link, name in ((LINK_A, "a"), (LinkId(2), "b")):
            plane.hear(link, node_register(name, positions={APP: 1}))
        effects = plane.ask(commit(1, 1, state_numbers=(1,)))
        for link, name in ((LINK_A, "a"), (LinkId(2), "b")):
            effects += plane.hear(link, applied(name, 2))
        told(BatchCommitted, effects)
        after = plane.core._control.job(APP).record
        plane.next_leader()
        assert plane.core._control.job(APP).record == after
        assert after.progress[1] == before.progress[1]
        assert len(plane.store[job_path(1)]) < 200


def test_whatever_is_removed_may_be_gone_already() -> None:
    """What is done twice deletes twice; the store takes that."""
    assert check_operations([Delete("large")]) == (Delete("large"),)
