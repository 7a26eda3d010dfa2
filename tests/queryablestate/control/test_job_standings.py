"""Key groups and copies of jobs, as metrics tell them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nameservice.observation import JobStanding
from queryablestate.control.events import LinksClosed
from queryablestate.wire.operation_messages import RescaleJob
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    SESSION,
    Plane,
    applied,
    commit,
    drop,
    node_register,
    stage,
)


pytestmark = pytest.mark.proves("F1")


def standing(plane: Plane) -> JobStanding:
    """Return how the one job stands."""
    (found,) = plane.view.standings(10)
    return found


def rescale(node_count: int | None, replica_count: int | None) -> RescaleJob:
    """Return an operator's request for other numbers."""
    return RescaleJob(
        request_id=5,
        session=SESSION,
        job_id=APP,
        node_count=node_count,
        replica_count=replica_count,
    )


def test_a_job_that_has_all_it_wants() -> None:
    """Each of its four key groups has one copy, and one is wanted."""
    plane = Plane()
    plane.start_job()
    assert standing(plane) == JobStanding(
        job_id=APP,
        key_groups=4,
        key_groups_unavailable=0,
        key_groups_short=0,
        copies=4,
        copies_left=0,
        nodes_stopped=0,
        entries_behind=0,
    )


def test_a_node_that_is_away() -> None:
    """What only it has is unavailable, until it is back on the same directory."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    plane.settle(LinksClosed(links=(LINK_B,)))
    found = standing(plane)
    assert (found.copies, found.key_groups_unavailable, found.key_groups_short) == (
        2,
        2,
        2,
    )
    plane.hear(LINK_B, node_register("b", positions={APP: 1}))
    assert standing(plane).key_groups_unavailable == 0


def test_a_directory_that_is_lost() -> None:
    """A node that is back without its rows has no copy that could be asked (W7)."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    plane.hear(LINK_B, node_register("b", store_id="another", control_id=None))
    plane.hear(LINK_B, replace(applied("b", 1), lost_state_numbers=(1,)))
    found = standing(plane)
    assert (found.copies, found.key_groups_unavailable) == (2, 2)


def test_copies_that_are_wanted() -> None:
    """A second copy of each is left to be made, and short until then."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    plane.ask(rescale(None, 2))
    found = standing(plane)
    assert (found.copies, found.copies_left, found.key_groups_short) == (4, 4, 4)
    assert found.key_groups_unavailable == 0


def test_a_node_that_cannot_go_on() -> None:
    """It is counted while it says so."""
    plane = Plane()
    epoch = plane.start_job()
    plane.ask(commit(epoch, 0, stage(1)))
    plane.hear(LINK_A, applied("a", 0, failure="the disk is full"))
    assert standing(plane).nodes_stopped == 1
    plane.hear(LINK_A, applied("a", 1))
    assert standing(plane).nodes_stopped == 0


def test_what_is_counted_is_kept() -> None:
    """Nothing is counted again while nothing has changed; nothing is kept of a job."""
    plane = Plane()
    plane.start_job()
    assert plane.view.standings(0) == []
    first, again = standing(plane), standing(plane)
    assert first == again
    plane.ask(drop())
    assert plane.view.standings(10) == []


def test_decided_batches_are_counted() -> None:
    """Once each, with how long it took until the writer was answered."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    plane.now_ns += 3_000_000_000
    plane.decide(commit(epoch, 1))
    plane.decide(commit(epoch, 1))  # a repetition
    assert plane.tally.decided_count == 2
    (buckets,) = plane.tally.latencies.buckets()
    assert (buckets.kind, sum(buckets.counts)) == ("commit", 3)


def test_how_far_nodes_are_behind() -> None:
    """The slowest that is there counts; one that is away is another matter."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    plane.decide(commit(epoch, 1))
    assert standing(plane).entries_behind == 0
    plane.settle(LinksClosed(links=(LINK_B,)))
    assert standing(plane).entries_behind == 0
    plane.hear(LINK_B, node_register("b", positions={APP: 1}))
    assert standing(plane).entries_behind == 1
