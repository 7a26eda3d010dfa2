"""The route table."""

from __future__ import annotations

from queryablestate.control_events import LinkClosed
from queryablestate.decisions import Job
from queryablestate.location import KvStateLocation, RouteTable
from queryablestate.node_table import NodeTable
from queryablestate.records import JobRecord
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    LIST,
    VALUE,
    Plane,
    commit,
    drop,
    node_register,
)


def test_a_route_says_whom_to_ask_for_what() -> None:
    """Connections by node, key groups by node, and as of which batch that is."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 6))
    assert plane.core.locations == {
        1: KvStateLocation(
            job_id=APP,
            state_name="aircraft",
            state_number=1,
            generation=1,
            batch_id=6,
            assignment_version=1,
            node_ids=("a", "b"),
            links=(LINK_A, LINK_B),
            key_groups=((0, 1), (2, 3)),
        )
    }


def test_routes_follow_states_nodes_and_assignments() -> None:
    """Nothing is left of a state that is gone, a node that is away, an old version."""
    plane = Plane()
    plane.start_job(states={"aircraft": VALUE, "log": LIST})
    routes = plane.core.locations
    assert sorted(routes) == [1, 2]
    plane.settle(LinkClosed(link=LINK_B))
    assert [route.links for route in routes.values()] == [(LINK_A, None)] * 2
    plane.hear(LINK_B, node_register("b"))
    plane.ask(drop())
    assert [route.links for route in routes.values()] == [(LINK_A, LINK_B)]
    plane.ask(drop("log"))
    assert routes == {}
    assert routes is plane.core.locations


def test_a_new_version_has_other_key_groups() -> None:
    """Key groups are kept by version, not by job alone."""
    plane = Plane()
    plane.hear(LINK_A, node_register("a"))
    plane.bind(plane.draw())
    assert plane.core.locations[1].key_groups == ((0, 1, 2, 3),)
    plane.ask(drop())
    plane.hear(LINK_B, node_register("b"))
    plane.bind(plane.draw(), run_id="run-2")
    assert plane.core.locations[2].key_groups == ((0, 1), (2, 3))
    assert plane.core.locations[2].assignment_version == 2


def test_a_job_without_assignment_has_no_routes() -> None:
    """Nobody has its key groups yet."""
    record = JobRecord(
        job_id=APP,
        job_number=1,
        max_parallelism=4,
        sequence=0,
        sequence_first=1,
        runs=(),
        progress=(),
    )
    routes = RouteTable(NodeTable([]))
    routes.locate(Job(record=record))
    assert routes.locations == {}
