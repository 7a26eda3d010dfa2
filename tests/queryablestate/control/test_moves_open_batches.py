"""Batches that are under way for longer than many moves take (S2)."""

from __future__ import annotations

import pytest

from queryablestate.control.job.job import ASSIGNMENT_KEPT_COUNT
from queryablestate.wire.clients import BatchCommitted
from queryablestate.wire.operation_messages import RescaleJob
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    SESSION,
    Plane,
    applied,
    commit,
    told,
)


def change_often(plane: Plane) -> None:
    """Write more versions of the assignment than are kept."""
    for number in range(ASSIGNMENT_KEPT_COUNT + 10):
        request = RescaleJob(
            request_id=5,
            session=SESSION,
            job_id=APP,
            node_count=2,
            replica_count=1 + (number + 1) % 2,
        )
        plane.ask(request)


@pytest.mark.proves("S2")
def test_a_batch_outlives_any_number_of_assignments() -> None:
    """S2: the assignment that its rows went by is kept until it is decided."""
    plane = Plane()
    epoch = plane.start_job()
    change_often(plane)
    plane.ask(commit(epoch, 0))
    plane.hear(LINK_A, applied("a", 1))
    effects = plane.hear(LINK_B, applied("b", 1))
    assert told(BatchCommitted, effects).batch_id == 0


def test_no_assignment_is_kept_without_a_batch() -> None:
    """What is not needed goes, also from the store."""
    plane = Plane()
    epoch = plane.start_job()
    change_often(plane)
    job = plane.core._control.job(APP)
    assert len(job.assignments) == ASSIGNMENT_KEPT_COUNT + 2
    plane.ask(commit(epoch, 0))
    change_often(plane)
    assert len(job.assignments) == ASSIGNMENT_KEPT_COUNT + 1
    past = [path for path in plane.store if "/assignments/" in path]
    assert len(past) == len(job.assignments)
