"""How a chain comes to nodes that were away, new, or have lost their rows (W3, W7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from queryablestate.control.assignment.assignment import copied_version, held_by
from queryablestate.control.chains import (
    catch_up,
    declare_lost,
    lagging_nodes,
    prunable_entries,
)
from queryablestate.control.events import LinkId, LinksClosed
from queryablestate.control.job.leader_paths import entry_path
from queryablestate.control.limits import ControlLimits
from queryablestate.control.stored_control import stored_control
from queryablestate.errors import StateUnavailableError
from queryablestate.wire.job_plan import JobHolding
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    KeyGroupsCopied,
    NodeRegistered,
    ResetJob,
)
from queryablestate.wire.records import AssignmentRecord, StageRecord
from tests.queryablestate.control_plane import (
    APP,
    EPOCH,
    KNOWS_ALL,
    LINK_A,
    LINK_B,
    LIST,
    VALUE,
    Plane,
    applied,
    commit,
    drop,
    node_register,
    refusal,
    sent,
    stage,
)
from tests.queryablestate.moving_plane import MovingPlane, assignment


AGAIN = LinkId(20)


def assignment_of(plane: Plane) -> AssignmentRecord:
    """Return the present assignment."""
    found = plane.core._control.job(APP).assignment
    assert found is not None
    return found


def reset(sequence: int, *lost: int) -> ResetJob:
    """Return what a node is told that begins anew."""
    return ResetJob(
        leader_epoch=EPOCH,
        job_id=APP,
        sequence=sequence,
        state_numbers=lost,
        restore_id="",
    )


def back(
    plane: Plane,
    position: int | None,
    *,
    store_id: str | None = None,
    holding: JobHolding | None = KNOWS_ALL,
) -> list[object]:
    """Have node ``a`` come back; return what it is told after it is registered."""
    for link in (LINK_A, AGAIN):
        plane.settle(LinksClosed(links=(link,)))
    positions = {} if position is None else {APP: position}
    message = node_register(
        "a", store_id=store_id, positions=positions, holding=holding
    )
    first, *rest = sent(plane.hear(AGAIN, message), AGAIN)
    assert isinstance(first, NodeRegistered)
    return [*rest]


def sequences(message: object) -> list[int]:
    """Return the sequences of the entries of a message."""
    assert isinstance(message, ApplyEntries)
    return [entry.sequence for entry in message.entries]


def batches(plane: Plane, count: int) -> None:
    """Decide that many batches, and have both nodes apply them."""
    epoch = plane.start_job()
    for batch_id in range(count):
        plane.decide(commit(epoch, batch_id))


class TestCatchUp:
    """What a node is told when it registers."""

    @pytest.mark.proves("W3")
    def test_what_it_missed(self) -> None:
        """W3: the entries after the last one that it has applied."""
        plane = Plane()
        batches(plane, 3)
        (message,) = back(plane, 1)
        assert sequences(message) == [2, 3]

    def test_nothing_if_it_missed_nothing(self) -> None:
        """A node that is as far as the chain goes on from there."""
        plane = Plane()
        batches(plane, 3)
        assert back(plane, 3) == []

    def test_everything_if_it_had_not_begun(self) -> None:
        """A directory that was assigned empty, and is, has missed all of it."""
        plane = Plane()
        batches(plane, 3)
        (message,) = back(plane, None)
        assert sequences(message) == [1, 2, 3]

    @pytest.mark.proves("W7")
    def test_that_its_rows_are_lost_if_its_directory_is_another(self) -> None:
        """W7: states with rows are unavailable, not empty; others are as before."""
        plane = Plane()
        states = {"aircraft": VALUE, "log": LIST}
        epoch = plane.start_job(states=states)
        plane.decide(commit(epoch, 0))
        assert back(plane, None, store_id="another") == [reset(1, 1)]

    @pytest.mark.proves("W7")
    def test_what_another_directory_missed_since(self) -> None:
        """W7: once it has begun anew, it is behind like any other."""
        plane = Plane()
        batches(plane, 3)
        message, assigned = back(plane, 2, store_id="another")
        assert sequences(message) == [3]
        assert isinstance(assigned, AssignJob)  # the directory is its own from now on

    @pytest.mark.proves("W7", "S1")
    @pytest.mark.parametrize("version", [None, 1, 3, 4])
    def test_another_directory_that_is_older_than_the_copies(
        self, version: int | None
    ) -> None:
        """
        W7, S1: a disk that the node had before lacks what others were brought.

        It is as far as where the node began to copy with another one.
        """
        plane = Plane()
        plane.core.limit(ControlLimits(replica_count=2))
        epoch = plane.start_job()
        plane.decide(commit(epoch, 0))
        plane.lose(LINK_A)
        plane.ask(commit(epoch, 1, assignment_version=assignment_of(plane).version))
        plane.hear(LINK_B, applied("b", 2))
        plane.hear(AGAIN, node_register("a", store_id="second"))
        copied = KeyGroupsCopied(
            registration_id="process-a",
            job_id=APP,
            assignment_version=assignment_of(plane).version,
            key_groups=(0, 1, 2, 3),
            row_count=0,
            size_bytes=0,
        )
        plane.hear(AGAIN, applied("a", 2))
        plane.hear(AGAIN, copied)
        assert held_by(assignment_of(plane), "a") == (0, 1, 2, 3)
        assert copied_version(assignment_of(plane), "a") == 4
        plane.lose(LINK_B)
        plane.settle(LinksClosed(links=(AGAIN,)))
        holding = None if version is None else JobHolding(job_id=APP, version=version)
        message = node_register(
            "a", store_id="first", positions={APP: 2}, holding=holding
        )
        told_a = sent(plane.hear(LINK_A, message), LINK_A)
        resets = [one for one in told_a if isinstance(one, ResetJob)]
        # That of version 4 has been told since to begin anew, and what it has lost.
        assert resets == ([] if version == 4 else [reset(2, 1)])

    @pytest.mark.proves("W7")
    def test_nothing_if_it_is_ahead(self) -> None:
        """W7: what it has is all that there is of what this control plane forgot."""
        plane = Plane()
        batches(plane, 3)
        plane.settle(LinksClosed(links=(LINK_A,)))
        message = node_register("a", positions={APP: 4})
        (registered,) = sent(plane.hear(AGAIN, message), AGAIN)
        assert isinstance(registered, NodeRegistered)
        assert (registered.jobs, registered.untouched) == ((), (APP,))
        assert isinstance(refusal(plane.ask(commit(1, 2))), StateUnavailableError)

    @pytest.mark.proves("W7")
    def test_that_its_rows_are_lost_if_entries_are_not_kept(self) -> None:
        """W7: an old directory that comes back after the chain was pruned."""
        plane = Plane()
        batches(plane, 103)
        assert back(plane, 1) == [reset(103, 1)]

    def test_where_it_joined_if_it_had_no_part_before(self) -> None:
        """What was decided before it joined has no rows for it."""
        plane = Plane()
        batches(plane, 2)
        plane.ask(drop())
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.hear(AGAIN, node_register("a", store_id="another"))
        ticket = plane.draw()
        plane.bind(ticket, run_id="run-2")
        request = commit(
            ticket, 2, run_id="run-2", state_numbers=(2,), assignment_version=2
        )
        plane.ask(request)
        plane.settle(LinksClosed(links=(AGAIN,)))
        message = node_register("a", store_id="another")
        _, first, second = sent(plane.hear(LINK_A, message), LINK_A)
        assert first == reset(3)
        assert sequences(second) == [4]
        # An older position says nothing, and another directory has lost its part.
        plane.settle(LinksClosed(links=(LINK_A,)))
        message = node_register("a", store_id="another", positions={APP: 1})
        assert sent(plane.hear(LINK_A, message), LINK_A)[1] == reset(3)
        plane.settle(LinksClosed(links=(LINK_A,)))
        message = node_register("a", store_id="third", positions={APP: 1})
        assert sent(plane.hear(LINK_A, message), LINK_A)[1:] == [reset(4, 2)]

    @pytest.mark.proves("W7")
    def test_that_it_lost_its_rows_if_they_are_older_than_what_is_kept(self) -> None:
        """W7: a directory of before it joined comes back after pruning."""
        plane = Plane()
        batches(plane, 1)
        record = plane.core._control.job(APP).record
        plane.core._control.job(APP).record = replace(
            record, sequence=9, sequence_first=10
        )
        plane.core._control.job(APP).entries.clear()
        assignment = plane.core._control.job(APP).assignment
        assert assignment is not None
        plane.core._control.job(APP).assignment = replace(
            assignment, since_sequences=(5, 5)
        )
        assert back(plane, 4) == [reset(9, 1)]

    @pytest.mark.proves("W7")
    @pytest.mark.parametrize(
        ("holding", "is_lost"),
        [
            (None, True),
            (JobHolding(job_id=APP, version=2), True),
            (JobHolding(job_id=APP, version=3, unfinished=(1, 2)), True),
            (JobHolding(job_id=APP, version=3, unfinished=(1,)), False),
            (JobHolding(job_id=APP, version=4), False),
        ],
    )
    def test_that_its_rows_are_lost_if_its_directory_is_older_than_its_copies(
        self, holding: JobHolding | None, *, is_lost: bool
    ) -> None:
        """
        W7: an older state of the same directory has all entries that it missed.

        What was decided while it had no copy was brought to others.
        """
        moving = MovingPlane()
        plane = moving.plane
        for batch_id in range(2):
            plane.decide(commit(1, batch_id))
        for record in (
            assignment(2, "b", "b b b b"),
            assignment(3, "ba", "b b b b", joining="- - a a", since=1, sequence=2),
            assignment(4, "ba", "b b a a", since=1, sequence=2, copied=(0, 3)),
        ):
            moving.assign(replace(record, node_count=2))
        told = back(plane, 2, holding=holding)
        assert (reset(2, 1) in told) == is_lost
        # It joined after what it has then: nothing of before is what it copied.
        assert back(plane, None, holding=KNOWS_ALL)[0] == reset(2, 1)

    @pytest.mark.proves("W7")
    def test_nothing_is_lost_where_nothing_was_copied(self) -> None:
        """W7: a job without rows is dealt while a node still copies others."""
        moving = MovingPlane()
        plane = moving.plane
        for batch_id in range(2):
            plane.decide(commit(1, batch_id))
        holding = JobHolding(job_id=APP, version=1, unfinished=(2, 3))
        assert back(plane, 1, holding=holding)[0] != reset(2, 1)

    @pytest.mark.proves("W7")
    def test_nothing_is_lost_of_what_it_has_had_since_there_were_no_rows(self) -> None:
        """
        W7: although it was to copy something just before.

        It was not able to begin anew then: its disk was full.
        """
        moving = MovingPlane()
        plane = moving.plane
        for batch_id in range(2):
            plane.decide(commit(1, batch_id))
        plane.ask(drop())
        moving.assign(
            assignment(2, "ba", "b b b b", joining="a a - -", since=3, sequence=3)
        )
        ticket = plane.draw()
        plane.bind(ticket, run_id="run-2")
        plane.decide(
            commit(ticket, 2, run_id="run-2", state_numbers=(2,), assignment_version=3)
        )
        begin, missed = back(plane, 1)[:2]
        assert begin == reset(3)
        assert sequences(missed) == [4]

    def test_messages_have_a_bounded_size(self) -> None:
        """A node that was away for long is not sent more than a frame may hold."""
        plane = Plane()
        batches(plane, 1)
        plane.settle(LinksClosed(links=(LINK_A,)))
        for batch_id in range(1, 121):
            plane.ask(commit(1, batch_id))
        first, second = back(plane, 1)
        assert (len(sequences(first)), sequences(second)[-1]) == (100, 121)

    def test_large_entries_go_alone(self) -> None:
        """A batch of very many tasks takes a message of its own."""
        plane = Plane()
        epoch = plane.start_job()
        for batch_id in range(3):
            stages = [_empty_stage(batch_id * 100_000 + n) for n in range(40_000)]
            plane.decide(commit(epoch, batch_id, *stages))
        assert [sequences(message) for message in back(plane, 0)] == [[1], [2], [3]]


def _empty_stage(number: int) -> StageRecord:
    return stage(number)


class TestPruning:
    """Entries are kept as long as somebody may need them (W3)."""

    def test_the_newest_hundred_are_kept(self) -> None:
        """Beyond that, only what not every owner has applied."""
        plane = Plane()
        batches(plane, 102)
        assert entry_path(1, 2) not in plane.store
        assert entry_path(1, 3) in plane.store
        record = plane.core._control.job(APP).record
        assert (record.sequence_first, record.sequence) == (3, 102)
        (stored,) = stored_control(plane.store).jobs
        assert stored.record == record

    def test_nothing_is_pruned_while_an_owner_is_away(self) -> None:
        """It is not known how far it is."""
        plane = Plane()
        batches(plane, 100)
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.ask(commit(1, 100))
        assert entry_path(1, 1) in plane.store

    def test_a_backlog_is_pruned_bit_by_bit(self) -> None:
        """A commit of the leader store has a bounded number of operations."""
        plane = Plane()
        batches(plane, 1)
        plane.settle(LinksClosed(links=(LINK_B,)))
        for batch_id in range(1, 200):
            plane.ask(commit(1, batch_id))
        plane.hear(LINK_A, applied("a", 200))
        plane.hear(LINK_B, node_register("b", positions={APP: 200}))
        plane.ask(commit(1, 200))
        record = plane.core._control.job(APP).record
        assert (record.sequence_first, record.sequence) == (51, 201)

    @pytest.mark.proves("W3")
    def test_what_an_owner_lacks_is_kept(self) -> None:
        """W3: decisions are kept until every owner has applied them."""
        plane = Plane()
        batches(plane, 1)
        plane.settle(LinksClosed(links=(LINK_B,)))
        for batch_id in range(1, 120):
            plane.ask(commit(1, batch_id))
        plane.hear(LINK_A, applied("a", 120))
        plane.hear(LINK_B, node_register("b", positions={APP: 4}))
        plane.ask(commit(1, 120))
        assert entry_path(1, 4) not in plane.store
        assert entry_path(1, 5) in plane.store


class TestCopies:
    """S1: members without an in-sync copy are none to wait for, or to mourn."""

    def start(self) -> MovingPlane:
        """Have ``c`` make copies of what ``a`` and ``b`` have, after one batch."""
        plane = MovingPlane()
        plane.ask()
        plane.assign(
            assignment(2, "abc", "a a b b", joining="c - c -", since=1, sequence=1)
        )
        plane.come("c")
        return plane

    def catch_up(self, plane: MovingPlane, position: int | None) -> list[object]:
        """Return what ``c`` is told that says it is so far."""
        node = plane.control.nodes.present("c")
        assert node is not None
        if position is not None:
            node.sequences[APP] = position
        job = plane.control.job(APP)
        return [*plane.sent(catch_up(plane.control, job, node), "c")]

    def test_who_only_joins_is_not_waited_for(self) -> None:
        """A copy that is being made is not asked for."""
        plane = self.start()
        job = plane.control.job(APP)
        assert lagging_nodes(plane.control, job, 1) == ["a", "b"]
        plane.applied("a", 1)
        plane.applied("b", 1)
        assert lagging_nodes(plane.control, job, 1) == []
        plane.assign(assignment(3, "abc", "c a c b", since=1, sequence=1))
        assert lagging_nodes(plane.control, job, 1) == ["c"]

    def test_entries_are_kept_for_who_only_joins(self) -> None:
        """It is to apply them like any other."""
        plane = self.start()
        for batch_id in range(1, 110):
            plane.ask(version=2, batch_id=batch_id)
        for node_id in "ab":
            plane.applied(node_id, 110)
        job = plane.control.job(APP)
        assert list(prunable_entries(plane.control, job)) == []
        plane.applied("c", 110)
        assert list(prunable_entries(plane.control, job))[-1] == 11
        plane.leave("c")
        assert list(prunable_entries(plane.control, job)) == []

    def test_it_begins_where_it_joined(self) -> None:
        """What was decided before it copies; what comes after is brought to it."""
        plane = self.start()
        plane.ask(version=2, batch_id=1)
        first, second = self.catch_up(plane, None)
        assert first == reset(1)
        assert sequences(second) == [2]

    def test_another_disk_begins_at_the_head_and_has_lost_nothing(self) -> None:
        """It has none of the rows that it was brought, and copies all of them."""
        plane = self.start()
        plane.ask(version=2, batch_id=1)
        plane.leave("c")
        plane.come("c", store_id="another")
        assert self.catch_up(plane, None) == [reset(2)]

    @pytest.mark.proves("W7")
    def test_another_disk_with_in_sync_copies_has_lost_rows(self) -> None:
        """W7: for what others do not have it is mourned as ever."""
        plane = self.start()
        plane.assign(assignment(3, "abc", "c a c b", since=1, sequence=1))
        plane.leave("c")
        plane.come("c", store_id="another")
        assert self.catch_up(plane, None) == [reset(1, 1)]

    def test_who_cannot_go_on_begins_anew_and_has_lost_nothing(self) -> None:
        """A copy that is being made can be made anew."""
        plane = self.start()
        node = plane.control.nodes.present("c")
        assert node is not None
        effects = declare_lost(plane.control, plane.control.job(APP), node)
        assert plane.sent(effects, "c") == [reset(1)]
