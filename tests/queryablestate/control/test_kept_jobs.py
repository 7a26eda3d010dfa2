"""W7: jobs of which nodes keep rows of another control plane."""

from __future__ import annotations

import pytest

from queryablestate.control.effects import ForgetNode
from queryablestate.control.events import LinksClosed
from queryablestate.control.job.leader_paths import decode_node, node_path
from queryablestate.control.kept_jobs import KeptJobs
from queryablestate.control.limits import ControlLimits
from queryablestate.errors import StateUnavailableError, UnknownJobError
from queryablestate.wire.kept_rows import KeptJob, KeptRows
from queryablestate.wire.node_messages import NodeRegistered
from queryablestate.wire.records import NodeRecord
from queryablestate.wire.snapshot_messages import TakeSnapshot
from tests.queryablestate.control_plane import (
    APP,
    CONTROL_ID,
    EPOCH,
    LINK_A,
    LINK_B,
    SESSION,
    TIMEOUT_NS,
    Plane,
    bind,
    commit,
    draw,
    drop,
    node_register,
    refusal,
    sent,
)


def kept(
    *job_ids: str,
    control_id: str = "before",
    batch_id: int | None = 7,
    sequence: int = 9,
) -> KeptRows:
    """Return what a node keeps of these jobs."""
    return KeptRows(
        control_id=control_id,
        store_id="other-disk",
        jobs=tuple(
            KeptJob(
                job_id=job_id,
                sequence=sequence,
                batch_id=batch_id,
                decided_at_us=0 if batch_id is None else 5,
                key_groups=((0, 3),),
            )
            for job_id in job_ids
        ),
    )


def problem(plane: Plane, job_id: str = APP) -> StateUnavailableError | None:
    """Return what is said of a job now."""
    return plane.view.problem_of(job_id, now_ns=plane.now_ns)


class TestKept:
    @pytest.mark.proves("W7")
    def test_a_job_that_a_node_keeps_is_unavailable(self) -> None:
        """W7: not unknown, and the reason says who has its rows."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a", kept=(kept(APP),)))
        plane.hear(LINK_B, node_register("b"))
        found = problem(plane)
        assert found is not None
        assert "a keeps its rows as of batch 7 aside" in str(found)
        assert problem(plane, "trains") is None
        assert plane.view.kept_job_ids() == [APP]
        assert plane.view.job_ids() == []

    @pytest.mark.proves("W7")
    @pytest.mark.parametrize(
        "request_",
        [
            draw(),
            bind(1),
            commit(1, 0),
            drop(),
            TakeSnapshot(
                request_id=1,
                session=SESSION,
                job_id=APP,
                snapshot_id="0" * 32,
                uri="file:///tmp/s",
                timeout_ms=1_000,
            ),
        ],
        ids=lambda one: type(one).__name__,
    )
    def test_nothing_is_done_to_it(self, request_: object) -> None:
        """A batch that goes on would be all that there is of the state."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a", kept=(kept(APP),)))
        error = refusal(plane.ask(request_))  # type: ignore[arg-type]  # one of them
        assert isinstance(error, StateUnavailableError)
        assert error.job_id == APP

    @pytest.mark.proves("W7")
    def test_it_is_known_while_the_node_is_away_and_to_the_next_leader(self) -> None:
        """What nodes keep is written down with them."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a", kept=(kept(APP),)))
        plane.settle(LinksClosed(links=(LINK_A,)))
        assert problem(plane) is not None
        plane.next_leader()
        assert problem(plane) is not None

    def test_a_node_that_keeps_nothing_any_more_says_so(self) -> None:
        """Its directory was removed, or the rows are in use again."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a", kept=(kept(APP),)))
        plane.hear(LINK_A, node_register("a"))
        assert problem(plane) is None
        with pytest.raises(UnknownJobError):
            raise refusal(plane.ask(drop()))

    def test_a_job_that_has_state_is_that_job(self) -> None:
        """What is kept of an earlier control plane is in no one's way."""
        plane = Plane()
        plane.start_job()
        plane.hear(LINK_A, node_register("a", kept=(kept(APP),)))
        assert problem(plane) is None
        assert plane.view.kept_job_ids() == []

    def test_rows_of_this_control_plane_are_not_kept(self) -> None:
        """A node that has yet to open them says so, too."""
        plane = Plane()
        rows = kept(APP, control_id=CONTROL_ID)
        plane.hear(LINK_A, node_register("a", kept=(rows,)))
        assert problem(plane) is None
        record = decode_node(plane.store[node_path("a")])
        assert record == NodeRecord(node_id="a", store_id="disk-of-a")

    def test_a_node_with_rows_makes_room_for_no_other(self) -> None:
        """If it were forgotten, its jobs would be unknown."""
        plane = Plane()
        plane.core.limit(ControlLimits(node_count_max=1))
        plane.hear(LINK_A, node_register("a", kept=(kept(APP),)))
        plane.settle(LinksClosed(links=(LINK_A,)))
        (refused,) = sent(plane.hear(LINK_B, node_register("b")), LINK_B)
        assert getattr(refused, "reason", None) == "limit"


class TestServingAnother:
    """A node that registers with the rows of before, and has yet to set them aside."""

    @pytest.mark.proves("W7")
    def test_its_jobs_are_unavailable_from_then_on(self) -> None:
        """W7: between its two registrations no one says that it does not exist."""
        plane = Plane()
        message = node_register("a", control_id="before", positions={APP: 9, "new": 0})
        assert sent(plane.hear(LINK_A, message), LINK_A) == [
            NodeRegistered(
                leader_epoch=EPOCH,
                control_id=CONTROL_ID,
                session_timeout_ms=10_000,
                jobs=(),
            )
        ]
        found = problem(plane)
        assert found is not None
        assert "a keeps rows aside" in str(found)
        assert problem(plane, "new") is None

    def test_it_is_not_there_yet(self) -> None:
        """Its positions mean nothing here, and it closes the connection."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a"))
        effects = plane.hear(LINK_A, node_register("a", control_id="before"))
        assert ForgetNode(link=LINK_A, node_id="a") in effects
        assert plane.view.node_at(LINK_A) is None
        plane.hear(LINK_A, node_register("a", store_id="new", control_id=None))
        assert plane.view.node_at(LINK_A) == "a"


class TestNothingKnown:
    @pytest.mark.proves("W7", "Q3")
    def test_nobody_says_that_there_is_nothing_before_a_node_is_there(self) -> None:
        """W7, Q3: the name service may have lost its store a moment ago."""
        plane = Plane()
        plane.now_ns = TIMEOUT_NS - 1
        found = problem(plane)
        assert found is not None
        assert "may be coming" in str(found)
        plane.now_ns += 1
        assert problem(plane) is None

    def test_with_the_first_node_it_is_known(self) -> None:
        """It has said what it keeps."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a"))
        assert problem(plane) is None


class TestTable:
    def test_of_a_job_all_that_keep_it_are_told(self) -> None:
        """The newest batch among them is what can be had."""
        table = KeptJobs(
            [
                NodeRecord(node_id=name, store_id=name, kept=(kept(APP, "x"),))
                for name in "edcba"
            ]
        )
        assert table.job_ids == [APP, "x"]
        assert [one.node_id for one in table.of_job(APP)] == ["a", "b", "c", "d", "e"]
        assert "a, b, c and 2 more keep its rows" in str(table.problem(APP))
        for name in "abcd":
            table.forget(name)
        assert "e keeps its rows" in str(table.problem(APP))
        table.record(NodeRecord(node_id="e", store_id="e", kept=(kept("x"),)))
        assert table.problem(APP) is None
        assert table.of_node("e") == (kept("x"),)
        table.forget("e")
        assert table.job_ids == []
        assert table.of_node("e") == ()
