"""Tests for queryablestate.control.snapshot_control, through the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
    StorageError,
)
from queryablestate import DeadlineExceededError, StateUnavailableError, UnknownJobError
from queryablestate.control.effects import (
    RefuseWriter,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreFailed,
    TimePassed,
    WriterAsked,
)
from queryablestate.wire.node_messages import ApplyEntries
from queryablestate.wire.records import SnapshotMarked
from queryablestate.wire.snapshot_manifest import SnapshotFile
from queryablestate.wire.snapshot_messages import (
    SnapshotTaken,
    SnapshotWritten,
    TakeSnapshot,
    WriteSnapshot,
)
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    OPERATOR,
    SECOND,
    SESSION,
    WALL_US,
    Plane,
    commit,
    node_register,
    refusal,
    told,
)


if TYPE_CHECKING:
    from queryablestate.control.effects import ControlEffect


ID: Final = "0a" * 16
LINKS: Final = {"a": LINK_A, "b": LINK_B}


def asked(
    *,
    snapshot_id: str = ID,
    job_id: str = APP,
    link: LinkId = OPERATOR,
    timeout_ms: int = 10_000,
) -> WriterAsked:
    """Return that an operator wants a snapshot, within ten seconds or another time."""
    request = TakeSnapshot(
        request_id=5,
        session=SESSION,
        job_id=job_id,
        snapshot_id=snapshot_id,
        uri="/snapshots",
        timeout_ms=timeout_ms,
    )
    return WriterAsked(link=link, request=request, wall_clock_us=WALL_US)


def written(
    node_id: str, sequence: int, *, failure: str | None = None, snapshot_id: str = ID
) -> NodeSpoke:
    """Return that a node has written its part, one file of it, or has not."""
    file = SnapshotFile(
        name=f"data-{snapshot_id}/at-{sequence}/node-{node_id}/0.arrow",
        state_number=1,
        key_group_first=0 if node_id == "a" else 2,
        key_group_last=1 if node_id == "a" else 3,
        row_count=3,
        size_bytes=100,
        checksum="00" * 32,
    )
    message = SnapshotWritten(
        registration_id=f"process-{node_id}",
        snapshot_id=snapshot_id,
        sequence=sequence,
        files=() if failure is not None else (file,),
        failure=failure,
    )
    return NodeSpoke(link=LINKS[node_id], message=message)


@pytest.fixture
def plane() -> Plane:
    """Return a control plane with a job on two nodes that has one batch."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 4))
    return plane


def told_nodes(effects: list[ControlEffect]) -> list[tuple[LinkId, type]]:
    """Return which kinds of messages go where, in order."""
    return [
        (effect.link, type(effect.message))
        for effect in effects
        if isinstance(effect, SendToNode)
    ]


@pytest.mark.proves("S5")
class TestTaking:
    """One entry of the chain is the moment of all nodes."""

    @pytest.mark.proves("W4")
    def test_nodes_are_told_what_to_write_before_the_entry_comes(
        self, plane: Plane
    ) -> None:
        """Each its own key groups, in a directory of its own (W4)."""
        effects = plane.settle(asked())
        assert told_nodes(effects) == [
            (LINK_A, WriteSnapshot),
            (LINK_B, WriteSnapshot),
            (LINK_A, ApplyEntries),
            (LINK_B, ApplyEntries),
        ]
        commands = [
            effect.message
            for effect in effects
            if isinstance(effect, SendToNode)
            and isinstance(effect.message, WriteSnapshot)
        ]
        assert [command.key_groups for command in commands] == [(0, 1), (2, 3)]
        assert len({command.directory for command in commands}) == 2
        assert {command.sequence for command in commands} == {2}
        entries = [
            effect.message.entries
            for effect in effects
            if isinstance(effect, SendToNode)
            and isinstance(effect.message, ApplyEntries)
        ]
        assert entries == 2 * [(SnapshotMarked(sequence=2, snapshot_id=ID),)]

    @pytest.mark.proves("W4")
    def test_it_is_taken_when_all_have_written(self, plane: Plane) -> None:
        """The manifest has what was true at the entry, whatever came after (W4)."""
        plane.settle(asked())
        assert plane.settle(written("b", 2)) == []
        plane.ask(commit(1, 5))  # the chain goes on meanwhile
        manifest = told(SnapshotTaken, plane.settle(written("a", 2))).manifest
        assert manifest.sequence == 2
        assert manifest.batch_ids == {"query": 4}
        assert manifest.taken_at_us == WALL_US
        assert manifest.max_parallelism == 4
        assert [each.state.state_name for each in manifest.states] == ["aircraft"]
        assert [file.key_group_first for file in manifest.files] == [0, 2]

    def test_whoever_asks_again_waits_for_the_same(self, plane: Plane) -> None:
        """Over another connection, before it is done or after."""
        plane.settle(asked())
        plane.settle(LinksClosed(links=(OPERATOR,)))
        plane.settle(written("a", 2))
        plane.settle(written("b", 2))
        effects = plane.settle(asked(link=LinkId(12)))
        assert told(SnapshotTaken, effects).manifest.sequence == 2

    def test_a_later_attempt_has_files_of_its_own(self, plane: Plane) -> None:
        """What an earlier one still writes is nowhere near, and counts for nothing."""
        plane.settle(asked())
        plane.settle(written("a", 2, failure="full"))
        plane.settle(asked())
        plane.settle(written("a", 2))
        plane.settle(written("b", 2))
        plane.settle(written("a", 3))
        manifest = told(SnapshotTaken, plane.settle(written("b", 3))).manifest
        assert {file.name.split("/")[1] for file in manifest.files} == {"at-3"}

    def test_nothing_waits_for_a_snapshot(self, plane: Plane) -> None:
        """The mark is an entry like any: the next leader has it in its chain."""
        plane.settle(asked())
        plane.next_leader()
        assert plane.settle(written("a", 2)) != []  # register first


class TestFailing:
    """An error, and nothing is left in the leader's memory."""

    def test_a_job_that_is_not_there(self, plane: Plane) -> None:
        """Nor one without a state: there is nothing to write."""
        assert isinstance(refusal(plane.settle(asked(job_id="x"))), UnknownJobError)
        plane.draw(job_id="empty")
        assert isinstance(refusal(plane.settle(asked(job_id="empty"))), UnknownJobError)

    @pytest.mark.proves("S5")
    def test_a_node_that_is_away(self, plane: Plane) -> None:
        """Its key groups cannot be written; no entry is made."""
        plane.settle(LinksClosed(links=(LINK_B,)))
        effects = plane.settle(asked())
        error = refusal(effects)
        assert isinstance(error, StateUnavailableError)
        assert error.key_groups == (2, 3)
        assert told_nodes(effects) == []

    def test_nodes_that_are_only_late_are_waited_for(self, plane: Plane) -> None:
        """Who asks tries again by itself until the new leader has heard of them."""
        plane.next_leader()
        assert isinstance(refusal(plane.settle(asked())), DidNotHappenError)
        plane.hear(LINK_A, node_register("a", positions={APP: 1}))
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        plane.settle(LinksClosed(links=(LINK_B,)))  # it changes its connection, too
        assert isinstance(refusal(plane.settle(asked())), DidNotHappenError)
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        assert (LINK_B, WriteSnapshot) in told_nodes(plane.settle(asked()))

    @pytest.mark.proves("S5")
    @pytest.mark.parametrize(
        ("event", "kind"),
        [
            (written("a", 2, failure="the disk is full"), StorageError),
            (LinksClosed(links=(LINK_A,)), StateUnavailableError),
        ],
    )
    def test_a_part_that_fails_fails_the_whole(
        self, plane: Plane, event: NodeSpoke | LinksClosed, kind: type[NameServiceError]
    ) -> None:
        """A node says so, or goes away."""
        plane.settle(asked())
        assert isinstance(refusal(plane.settle(event)), kind)
        assert plane.settle(written("b", 2)) == []

    def test_time_that_is_up(self, plane: Plane) -> None:
        """The core asks to be called then, and names who is missing."""
        plane.settle(asked())
        plane.settle(written("a", 2))
        for _ in range(3):
            plane.now_ns += 3 * SECOND
            plane.settle(written("a", 2))  # heard from, as by heartbeats
            plane.settle(written("b", 1))
        deadline_ns = plane.core.next_deadline_ns()
        assert deadline_ns is not None
        assert deadline_ns <= 10 * SECOND
        plane.now_ns = 10 * SECOND
        error = refusal(plane.settle(TimePassed()))
        assert isinstance(error, DeadlineExceededError)
        assert "b has yet to write" in str(error)

    def test_too_many_at_once(self, plane: Plane) -> None:
        """They cost the nodes a thread and old pages each."""
        for number in range(4):
            plane.settle(asked(snapshot_id=f"{number:032x}"))
        error = refusal(plane.settle(asked(snapshot_id=f"{9:032x}")))
        assert isinstance(error, StateUnavailableError)

    @pytest.mark.parametrize("is_written", [False, True])
    def test_those_whose_callers_have_left_make_room(
        self, plane: Plane, *, is_written: bool
    ) -> None:
        """
        S5: four that were interrupted kept every other from being taken for an hour.

        One caller is back in time, as after a cut: its snapshot goes on.
        """
        ids = [f"{number:032x}" for number in range(4)]
        for snapshot_id in ids:
            plane.settle(asked(snapshot_id=snapshot_id, timeout_ms=3_600_000))
        plane.settle(LinksClosed(links=(OPERATOR,)))
        for sequence, snapshot_id in enumerate(ids, start=2):
            if is_written:
                plane.settle(written("a", sequence, snapshot_id=snapshot_id))
                plane.settle(written("b", sequence, snapshot_id=snapshot_id))
        back = asked(snapshot_id=ids[0], link=LinkId(12), timeout_ms=3_600_000)
        effects = plane.settle(back)
        if not is_written:
            error = refusal(plane.settle(asked()))
            assert isinstance(error, StateUnavailableError)
        for _ in range(10):
            plane.now_ns += 3 * SECOND
            for node_id in LINKS:
                plane.settle(written(node_id, 99))  # heard from, as by heartbeats
        plane.settle(TimePassed())
        for number in range(4 if is_written else 3):
            later = plane.settle(asked(snapshot_id=f"{10 + number:032x}"))
            assert (LINK_A, WriteSnapshot) in told_nodes(later)
        if not is_written:
            plane.settle(written("a", 2, snapshot_id=ids[0]))
            effects = plane.settle(written("b", 2, snapshot_id=ids[0]))
        assert told(SnapshotTaken, effects).manifest.snapshot_id == ids[0]

    def test_a_store_that_does_not_answer(self, plane: Plane) -> None:
        """It is not known whether the mark is written: it does no harm if it is."""
        (write,) = plane.step(asked())
        assert isinstance(write, WriteStore)
        doubt = MayHaveHappenedError("no answer")
        effects = plane.step(StoreFailed(error=doubt, is_certain=False))
        assert [type(effect) for effect in effects] == [RefuseWriter, StartOver]
