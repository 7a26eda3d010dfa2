"""Tests for queryablestate.control.restore_control, through the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
    StorageError,
)
from queryablestate import (
    CheckpointRewoundError,
    DeadlineExceededError,
    StateUnavailableError,
)
from queryablestate.control.assignment.assignment import held_by
from queryablestate.control.effects import RefuseWriter, SendToNode, StartOver
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreFailed,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.limits import ControlLimits
from queryablestate.wire.clients import BatchCommitted
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    LeaveNode,
    NodeEmptied,
    ResetJob,
)
from queryablestate.wire.records import (
    QueryProgress,
    SnapshotRestored,
    StateProgress,
    StateRecord,
)
from queryablestate.wire.snapshot_manifest import SnapshotState
from queryablestate.wire.snapshot_messages import (
    DropLoaded,
    JobRestored,
    LoadSnapshot,
    RestoreJob,
    SnapshotLoaded,
)
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    LIST,
    OPERATOR,
    SECOND,
    SESSION,
    VALUE,
    WALL_US,
    Plane,
    applied,
    commit,
    drop,
    node_register,
    refusal,
    sent,
    told,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.control.effects import ControlEffect


ID: Final = "0b" * 16
LINKS: Final = {"a": LINK_A, "b": LINK_B}
SEQUENCE: Final = 40
"""The entry of the other chain at which the snapshot was taken."""


def state_of(
    number: int, name: str, schema: str, batch_id: int | None
) -> SnapshotState:
    """Return a state that a query wrote up to *batch_id*, in run 900."""
    queries: tuple[QueryProgress, ...] = ()
    if batch_id is not None:
        queries = (
            QueryProgress(
                query_id="query", batch_id=batch_id, writer_epoch=900, sequence=39
            ),
        )
    return SnapshotState(
        state=StateRecord(state_name=name, state_number=number, schema=schema),
        progress=StateProgress(
            state_number=number,
            query_id="query",
            owner_epoch=900,
            generation=3,
            batch_id=batch_id,
            decided_at_us=77,
            queries=queries,
        ),
    )


STATES: Final = (
    state_of(500, "aircraft", VALUE, 12),
    state_of(501, "delays", LIST, None),
)


def asked(
    states: tuple[SnapshotState, ...] = STATES,
    *,
    restore_id: str = ID,
    job_id: str = APP,
    link: LinkId = OPERATOR,
) -> WriterAsked:
    """Return that an operator wants a job restored, within ten seconds."""
    request = RestoreJob(
        request_id=6,
        session=SESSION,
        job_id=job_id,
        restore_id=restore_id,
        uri="/snapshots",
        manifest_checksum="00",
        max_parallelism=4,
        sequence=SEQUENCE,
        states=states,
        timeout_ms=10_000,
    )
    return WriterAsked(link=link, request=request, wall_clock_us=WALL_US)


def loaded(
    node_id: str,
    *,
    failure: str | None = None,
    restore_id: str = ID,
    attempt: int = 1,
) -> NodeSpoke:
    """Return that a node has loaded its part, or has not."""
    message = SnapshotLoaded(
        registration_id=f"process-{node_id}",
        restore_id=f"{restore_id}-{attempt}",
        row_count=3,
        failure=failure,
    )
    return NodeSpoke(link=LINKS[node_id], message=message)


@pytest.fixture
def plane() -> Plane:
    """Return a control plane with two nodes and no job."""
    plane = Plane()
    plane.start_nodes()
    return plane


def restore(
    plane: Plane, *, restore_id: str = ID, job_id: str = APP
) -> list[ControlEffect]:
    """Restore a job, and return what is done once both nodes have loaded."""
    effects = plane.settle(asked(restore_id=restore_id, job_id=job_id))
    attempt = attempt_of(effects)
    plane.settle(loaded("b", restore_id=restore_id, attempt=attempt))
    return plane.settle(loaded("a", restore_id=restore_id, attempt=attempt))


def attempt_of(effects: list[ControlEffect]) -> int:
    """Return the number of the attempt that node ``a`` is told of."""
    command = sent(effects, LINK_A)[-1]
    assert isinstance(command, LoadSnapshot)
    return int(command.restore_id.partition("-")[2])


def kinds_of(messages: Sequence[object]) -> list[type]:
    """Return the kinds of *messages*."""
    return [type(message) for message in messages]


@pytest.mark.proves("S6")
class TestRestoring:
    """First rows, out of sight; then the job, in one write."""

    @pytest.mark.proves("W4")
    def test_nodes_load_what_they_will_hold(self, plane: Plane) -> None:
        """Under numbers that are reserved durably, and only what has rows (W4)."""
        effects = plane.settle(asked())
        (command,) = sent(effects, LINK_A)
        (other,) = sent(effects, LINK_B)
        assert isinstance(command, LoadSnapshot)
        assert isinstance(other, LoadSnapshot)
        assert (command.key_groups, other.key_groups) == ((0, 1), (2, 3))
        (state,) = command.states
        assert (state.snapshot_number, state.state_number) == (500, 1)
        assert (state.kind, state.generation, state.batch_id) == ("value", 3, 12)
        plane.next_leader()
        assert plane.view.job_ids() == []
        plane.start_nodes()
        later = sent(plane.settle(asked(restore_id="0c" * 16)), LINK_A)[-1]
        assert isinstance(later, LoadSnapshot)
        assert [state.state_number for state in later.states] == [3]

    def test_nobody_sees_a_job_that_is_half_there(self, plane: Plane) -> None:
        """It is there when all have loaded, with all that belongs to it."""
        plane.settle(asked())
        plane.settle(loaded("a"))
        assert plane.view.job_ids() == []
        assert not any(path.startswith("jobs/") for path in plane.store)
        answer = told(JobRestored, plane.settle(loaded("b")))
        assert answer.node_ids == ("a", "b")
        assert plane.view.job_ids() == [APP]
        assert plane.view.state_names(APP) == ["aircraft", "delays"]
        described = plane.view.describe(APP, "aircraft", wall_clock_us=WALL_US)
        assert described is not None
        assert (described.generation, described.batch_id) == (3, 12)
        plane.next_leader()
        assert plane.view.state_names(APP) == ["aircraft", "delays"]

    def test_nodes_show_what_they_have_loaded_with_one_entry(
        self, plane: Plane
    ) -> None:
        """After it comes whatever comes later; its number is above the snapshot's."""
        effects = restore(plane)
        for link in (LINK_A, LINK_B):
            messages = sent(effects, link)
            assert kinds_of(messages) == [AssignJob, ResetJob, ApplyEntries]
            reset, entries = messages[1:]
            assert isinstance(reset, ResetJob)
            assert isinstance(entries, ApplyEntries)
            assert (reset.sequence, reset.state_numbers) == (SEQUENCE, ())
            assert entries.entries == (
                SnapshotRestored(
                    sequence=SEQUENCE + 1, restore_id=f"{ID}-1", state_numbers=(1,)
                ),
            )

    @pytest.mark.proves("W4")
    def test_a_batch_of_the_snapshot_is_not_decided_again(self, plane: Plane) -> None:
        """W4: it is acknowledged once the nodes have the rows; the next one is new."""
        restore(plane)
        epoch = plane.bind(plane.draw())
        assert epoch < 900, "runs begin anew"
        assert plane.ask(commit(epoch, 12)) == []  # until the nodes have applied
        plane.hear(LINK_A, applied("a", SEQUENCE + 1))
        effects = plane.hear(LINK_B, applied("b", SEQUENCE + 1))
        repeated = told(BatchCommitted, effects)
        assert (repeated.batch_id, repeated.is_repeated) == (12, True)
        older = refusal(plane.ask(commit(epoch, 11)))
        assert isinstance(older, CheckpointRewoundError)
        done = told(BatchCommitted, plane.decide(commit(epoch, 13)))
        assert (done.batch_id, done.is_repeated) == (13, False)

    @pytest.mark.proves("W4")
    def test_no_batch_is_left_out_between_a_snapshot_and_what_follows(
        self, plane: Plane
    ) -> None:
        """W4: a checkpoint of a later time would; a batch that replaces all may."""
        restore(plane)
        for name, link in LINKS.items():
            plane.hear(link, applied(name, SEQUENCE + 1))
        epoch = plane.bind(plane.draw())
        error = refusal(plane.ask(commit(epoch, 14)))
        assert isinstance(error, ConfigurationError)
        assert "what is numbered above 12" in str(error)
        assert told(BatchCommitted, plane.decide(commit(epoch, 13))).batch_id == 13
        assert told(BatchCommitted, plane.decide(commit(epoch, 15))).batch_id == 15
        restore(plane, restore_id="0c" * 16, job_id="other")
        for name, link in LINKS.items():
            plane.hear(link, applied(name, SEQUENCE + 1, job_id="other"))
        epoch = plane.bind(plane.draw(job_id="other"), job_id="other")
        complete = commit(
            epoch, 20, job_id="other", state_numbers=(3,), is_complete=True
        )
        plane.ask(complete)
        plane.hear(LINK_A, applied("a", SEQUENCE + 2, job_id="other"))
        effects = plane.hear(LINK_B, applied("b", SEQUENCE + 2, job_id="other"))
        assert told(BatchCommitted, effects).batch_id == 20

    @pytest.mark.proves("W5")
    @pytest.mark.proves("S1", "W7")
    def test_a_disk_is_lost_while_all_others_begin(self, plane: Plane) -> None:
        """S1, W7: those that begin with what they have loaded have lost nothing."""
        plane.core.limit(ControlLimits(replica_count=2))
        restore(plane)
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", store_id="another"))
        plane.hear(LINK_A, applied("a", SEQUENCE + 1))
        plane.hear(LINK_B, node_register("b"))
        assignment = plane.core._control.job(APP).assignment
        assert assignment is not None
        assert held_by(assignment, "a") == ()
        assert held_by(assignment, "b") == (0, 1, 2, 3)

    def test_another_query_may_take_over(self, plane: Plane) -> None:
        """The epochs of another control plane do not outrank those of this one (W5)."""
        restore(plane)
        for name, link in LINKS.items():
            plane.hear(link, applied(name, SEQUENCE + 1))
        epoch = plane.bind(plane.draw(), query_id="new", on_new_query="replace")
        request = commit(epoch, 0, query_id="new", on_new_query="replace")
        assert told(BatchCommitted, plane.decide(request)).batch_id == 0

    def test_a_job_whose_states_were_dropped_goes_on_above_its_own_chain(self) -> None:
        """Nodes have applied entries of it that the snapshot knows nothing of."""
        plane = Plane()
        epoch = plane.start_job()
        for batch_id in range(60):
            plane.decide(commit(epoch, batch_id))
        plane.ask(drop())
        for name, link in LINKS.items():
            plane.hear(link, applied(name, 61))
        effects = restore(plane)
        (entries,) = [m for m in sent(effects, LINK_A) if isinstance(m, ApplyEntries)]
        assert [entry.sequence for entry in entries.entries] == [62]
        plane.next_leader()  # the records fit each other
        assert plane.view.state_names(APP) == ["aircraft", "delays"]

    def test_whoever_asks_again_is_told_that_it_is_done(self, plane: Plane) -> None:
        """By another leader, too; under another id the job is simply there."""
        plane.settle(asked())
        plane.settle(LinksClosed(links=(OPERATOR,)))
        plane.settle(asked(link=LinkId(12)))
        plane.settle(loaded("a"))
        plane.settle(loaded("b"))
        assert told(JobRestored, plane.settle(asked())).node_ids == ("a", "b")
        plane.next_leader()
        assert told(JobRestored, plane.settle(asked())).sequence == SEQUENCE + 1
        error = refusal(plane.settle(asked(restore_id="0c" * 16)))
        assert isinstance(error, ConfigurationError)
        assert "has state already" in str(error)


@pytest.mark.proves("S1", "S6")
class TestDraining:
    """A node that is to be emptied has a part in what is being restored."""

    @pytest.fixture
    def plane(self, plane: Plane) -> Plane:
        """Return a control plane where node ``b`` loads a part, and wants to end."""
        plane.settle(asked())
        leave = LeaveNode(registration_id="process-b")
        effects = plane.settle(NodeSpoke(link=LINK_B, message=leave))
        assert NodeEmptied not in kinds_of(sent(effects, LINK_B))
        return plane

    def test_it_may_not_end_before_others_have_its_part(self, plane: Plane) -> None:
        """S1, S6: the job is not there yet, and it has the only copy of that part."""
        plane.settle(loaded("b"))
        told = sent(plane.settle(loaded("a")), LINK_B)
        (first, *_) = [one.job for one in told if isinstance(one, AssignJob)]
        assert first.key_groups == (2, 3)
        assert NodeEmptied not in kinds_of(told)

    def test_it_may_end_when_nothing_comes_of_it(self, plane: Plane) -> None:
        """Of the restore, say since another node has failed."""
        effects = plane.settle(loaded("a", failure="a damaged file"))
        assert NodeEmptied in kinds_of(sent(effects, LINK_B))


@pytest.mark.proves("B3", "B4")
class TestRoom:
    """Limits are those of the moment at which the job is made."""

    def test_a_job_that_is_not_used_makes_room(self, plane: Plane) -> None:
        """It goes: else every restore would be one job more."""
        plane.core.limit(ControlLimits(job_count_max=1))
        plane.draw(job_id="idle")
        told(JobRestored, restore(plane))
        assert list(plane.core._control.jobs) == [APP]
        plane.next_leader()
        assert list(plane.core._control.jobs) == [APP]

    def test_two_restores_do_not_get_the_same_room(self, plane: Plane) -> None:
        """There was room for each of them when it began."""
        plane.core.limit(ControlLimits(job_count_max=1))
        other_id = "0c" * 16
        attempt = attempt_of(plane.settle(asked()))
        other = attempt_of(plane.settle(asked(restore_id=other_id, job_id="other")))
        plane.settle(loaded("a", attempt=attempt))
        told(JobRestored, plane.settle(loaded("b", attempt=attempt)))
        plane.settle(loaded("a", restore_id=other_id, attempt=other))
        effects = plane.settle(loaded("b", restore_id=other_id, attempt=other))
        assert "job_count_max" in str(refusal(effects))
        assert kinds_of(sent(effects, LINK_A)) == [DropLoaded]
        assert list(plane.core._control.jobs) == [APP]

    def test_states_that_came_meanwhile_count(self, plane: Plane) -> None:
        """There was room for both of the snapshot when the restore began."""
        plane.core.limit(ControlLimits(state_count_max=2))
        plane.settle(asked())
        plane.bind(plane.draw(job_id="other"), job_id="other")
        plane.settle(loaded("a"))
        effects = plane.settle(loaded("b"))
        assert "state_count_max" in str(refusal(effects))
        assert plane.core._control.state_count == 1


@pytest.mark.proves("S6")
class TestFailing:
    """No job, and nodes that drop what they have loaded."""

    @pytest.mark.parametrize(
        ("event", "kind"),
        [
            (loaded("a", failure="a damaged file"), StorageError),
            (LinksClosed(links=(LINK_A,)), StateUnavailableError),
        ],
    )
    def test_a_part_that_fails_fails_the_whole(
        self, plane: Plane, event: NodeSpoke | LinksClosed, kind: type[NameServiceError]
    ) -> None:
        """Those who are there are told to drop it; and it can be tried again."""
        plane.settle(asked())
        plane.settle(loaded("b"))
        effects = plane.settle(event)
        assert isinstance(refusal(effects), kind)
        assert kinds_of(sent(effects, LINK_B)) == [DropLoaded]
        assert plane.view.job_ids() == []
        plane.hear(LINK_A, node_register("a"))
        answer = told(JobRestored, restore(plane, restore_id="0c" * 16))
        assert answer.sequence == SEQUENCE + 1

    def test_what_is_said_of_an_earlier_attempt_counts_for_nothing(
        self, plane: Plane
    ) -> None:
        """A node drops what it had loaded when it begins anew, and may say so late."""
        plane.settle(asked())
        plane.next_leader()
        plane.start_nodes()
        attempt = attempt_of(plane.settle(asked()))
        assert attempt != 1
        plane.settle(loaded("a", attempt=1))
        plane.settle(loaded("b", attempt=1))
        assert plane.view.job_ids() == []
        plane.settle(loaded("a", attempt=attempt))
        effects = plane.settle(loaded("b", attempt=attempt))
        assert told(JobRestored, effects).node_ids == ("a", "b")

    def test_a_node_that_begins_anew_has_left(self, plane: Plane) -> None:
        """Another process of it may have begun with another disk."""
        plane.settle(asked())
        plane.settle(loaded("a"))
        effects = plane.hear(LinkId(21), node_register("a", registration_id="other"))
        assert isinstance(refusal(effects), StateUnavailableError)

    def test_time_that_is_up(self, plane: Plane) -> None:
        """The core asks to be called then, and names who is missing."""
        plane.settle(asked())
        plane.now_ns = 9 * SECOND
        plane.settle(loaded("a"))
        plane.settle(loaded("b", restore_id="0c" * 16))
        plane.now_ns = 10 * SECOND
        error = refusal(plane.settle(TimePassed()))
        assert isinstance(error, DeadlineExceededError)
        assert "b has yet to load" in str(error)

    def test_a_store_that_takes_no_write(self, plane: Plane) -> None:
        """For sure: then nodes drop what they have loaded."""
        plane.settle(asked())
        plane.settle(loaded("a"))
        plane.step(loaded("b"))
        effects = plane.step(StoreFailed(error=StorageError("no"), is_certain=True))
        assert isinstance(refusal(effects), DidNotHappenError)
        assert kinds_of(sent(effects, LINK_A)) == [DropLoaded]

    @pytest.mark.proves("W3")
    def test_a_store_that_does_not_answer(self, plane: Plane) -> None:
        """It is not known: nodes keep it, since the job may need it (W3)."""
        plane.settle(asked())
        plane.settle(loaded("a"))
        plane.step(loaded("b"))
        doubt = MayHaveHappenedError("no answer")
        effects = plane.step(StoreFailed(error=doubt, is_certain=False))
        assert [type(effect) for effect in effects] == [RefuseWriter, StartOver]
        assert not any(isinstance(effect, SendToNode) for effect in effects)

    def test_a_job_that_begins_meanwhile(self, plane: Plane) -> None:
        """Its states are not written over."""
        plane.settle(asked())
        plane.bind(plane.draw())
        plane.settle(loaded("a"))
        effects = plane.settle(loaded("b"))
        assert "has state already" in str(refusal(effects))
        assert kinds_of(sent(effects, LINK_B)) == [DropLoaded]
        assert plane.view.state_names(APP) == ["aircraft"]

    def test_nodes_that_are_only_late_are_waited_for(self, plane: Plane) -> None:
        """A job is not given to the first that comes under a new leader."""
        plane.next_leader()
        plane.hear(LINK_A, node_register("a"))
        assert isinstance(refusal(plane.settle(asked())), DidNotHappenError)
        plane.hear(LINK_B, node_register("b"))
        assert told(JobRestored, restore(plane)).node_ids == ("a", "b")

    def test_nobody_to_load_it(self) -> None:
        """A job needs a node."""
        plane = Plane()
        assert isinstance(refusal(plane.settle(asked())), StateUnavailableError)

    def test_one_job_is_restored_once_at_a_time(self, plane: Plane) -> None:
        """Nodes drop what they had loaded for it when they begin anew."""
        plane.settle(asked())
        error = refusal(plane.settle(asked(restore_id="0c" * 16)))
        assert "is being restored already" in str(error)
        for number in range(3):
            plane.settle(asked(restore_id=f"{number:032x}", job_id=f"job-{number}"))
        error = refusal(plane.settle(asked(restore_id="0d" * 16, job_id="more")))
        assert "jobs are being restored already" in str(error)

    @pytest.mark.proves("B3")
    @pytest.mark.parametrize(
        ("limits", "number", "limit"),
        [
            (ControlLimits(schema_size_bytes_max=len(VALUE)), 2 * len(VALUE), None),
            (ControlLimits(key_group_count_max=15), 16, 15),
            (ControlLimits(state_count_max=1), 2, 1),
        ],
        ids=["schemas", "key groups", "states"],
    )
    def test_what_is_over_a_limit(
        self, plane: Plane, limits: ControlLimits, number: int, limit: int | None
    ) -> None:
        """B3: is refused before a row is loaded, with the number and the limit."""
        plane.core.limit(limits)
        states = tuple(
            state_of(500 + index, name, VALUE, 12)
            for index, name in enumerate(("aircraft", "delays"))
        )
        stored = dict(plane.store)
        effects = plane.settle(asked(states))
        error = refusal(effects)
        assert isinstance(error, ConfigurationError)
        assert f"{number:,}" in str(error)
        assert f"{len(VALUE) if limit is None else limit:,}" in str(error)
        assert [e for e in effects if isinstance(e, SendToNode)] == []
        assert plane.store == stored

    @pytest.mark.parametrize(
        ("states", "what"),
        [
            ((), "has states"),
            ((STATES[0], STATES[0]), "each of them once"),
            (
                (replace(STATES[0], state=replace(STATES[0].state, state_name="a/b")),),
                "name of a state",
            ),
            (
                (replace(STATES[0], state=replace(STATES[0].state, schema="{}")),),
                "schema",
            ),
        ],
    )
    def test_states_that_no_job_can_have(
        self, plane: Plane, states: tuple[SnapshotState, ...], what: str
    ) -> None:
        """They need not come from a file of ours."""
        error = refusal(plane.settle(asked(states)))
        assert isinstance(error, ConfigurationError)
        assert what in str(error)
