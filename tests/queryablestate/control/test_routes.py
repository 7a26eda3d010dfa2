"""The route table."""

from __future__ import annotations

import pytest

from queryablestate.control.events import LinkId, LinksClosed
from queryablestate.control.job.job import Job
from queryablestate.control.node_table import NodeTable
from queryablestate.control.routes import KvStateLocation, RouteTable
from queryablestate.wire.records import JobRecord
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    LIST,
    VALUE,
    Plane,
    commit,
    drop,
    heartbeat,
    node_register,
)
from tests.queryablestate.moving_plane import MovingPlane, assignment


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
            sole_key_groups=((0, 1), (2, 3)),
        )
    }


def test_routes_follow_states_nodes_and_assignments() -> None:
    """Nothing is left of a state that is gone, a node that is away, an old version."""
    plane = Plane()
    plane.start_job(states={"aircraft": VALUE, "log": LIST})
    routes = plane.core.locations
    assert sorted(routes) == [1, 2]
    plane.settle(LinksClosed(links=(LINK_B,)))
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
    """No node has its key groups yet."""
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


class TestReplicas:
    """S4: who could answer in the place of a node."""

    def test_the_primary_is_asked(self) -> None:
        """A copy that is not the primary is asked for nothing."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab a b"))
        route = plane.control.routes.locations[1]
        assert route.key_groups == ((0, 1, 2), (3,))
        assert route.links == (LINK_A, LINK_B)

    def test_what_only_one_node_has(self) -> None:
        """It follows who is there: a copy on a node that is away answers none."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab a b"))
        assert _sole(plane) == ((2,), (3,))
        plane.leave("b")
        assert _sole(plane) == ((0, 1, 2), (3,))
        plane.come("b")
        assert _sole(plane) == ((2,), (3,))

    @pytest.mark.proves("S1")
    def test_a_copy_that_is_being_made_answers_nobody(self) -> None:
        """S1: only in-sync copies count."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "a a b b", joining="b b - -"))
        assert plane.control.routes.locations[1].sole_key_groups == ((0, 1), (2, 3))

    @pytest.mark.proves("W7")
    def test_another_disk_has_no_copies(self) -> None:
        """W7: a node that lost its rows is not asked while others have them."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab ab ba"))
        plane.leave("a")
        plane.come("a", store_id="another")
        plane.control.routes.locate(plane.control.job(APP))
        route = plane.control.routes.locations[1]
        assert route.links == (None, LINK_B)
        assert route.sole_key_groups == ((), (3,))

    @pytest.mark.proves("D4", "S1")
    def test_which_copies_may_be_asked(self) -> None:
        """D4, S1: in-sync ones, of nodes that are here and have lost nothing."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "a a b b", joining="b b - -"))
        route = plane.control.routes.locations[1]
        assert (route.owners, route.copy_links) == ((), ())
        plane.assign(assignment(3, "ab", "ab ab a ba"))
        route = plane.control.routes.locations[1]
        assert route.owners == ((0, 1), (0, 1), (0,), (1, 0))
        assert _copy_links(plane) == [LINK_A, LINK_B]
        plane.leave("a")
        assert _copy_links(plane) == [None, LINK_B]
        plane.come("a", store_id="another")
        assert _copy_links(plane) == [None, LINK_B]
        node = plane.control.nodes.present("b")
        assert node is not None
        node.lost_jobs.add(APP)
        assert _copy_links(plane) == [None, None]

    def test_another_disk_is_asked_for_what_nobody_else_has(self) -> None:
        """It says which states are lost, and answers for those that were replaced."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab a b"))
        plane.leave("a")
        plane.come("a", store_id="another")
        plane.control.routes.locate(plane.control.job(APP))
        assert None not in plane.control.routes.locations[1].links

    @pytest.mark.proves("S2", "S4", "W7")
    @pytest.mark.parametrize("store_id", ["another", None])
    def test_nothing_is_called_lost_that_another_may_bring_back(
        self, store_id: str | None
    ) -> None:
        """W7: who has lost its copy is not asked while who has not is away."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab a b"))
        plane.leave("a")
        plane.leave("b")
        plane.come("a", store_id=store_id)
        node = plane.control.nodes.present("a")
        assert node is not None
        node.lost_jobs.add(APP)
        plane.control.routes.locate(plane.control.job(APP))
        assert plane.control.routes.locations[1].links == (None, None)
        # Both have: there is nothing to be waited for.
        plane.come("b", store_id="another")
        plane.control.routes.locate(plane.control.job(APP))
        assert None not in plane.control.routes.locations[1].links


def _copy_links(plane: MovingPlane) -> list[LinkId | None]:
    """Return who may be asked for in-sync copies, as of now."""
    plane.control.routes.locate(plane.control.job(APP))
    return list(plane.control.routes.locations[1].copy_links)


def _sole(plane: MovingPlane) -> tuple[tuple[int, ...], ...]:
    """Return what only one node could answer for, by who is there now."""
    plane.control.routes.locate(plane.control.job(APP))
    return plane.control.routes.locations[1].sole_key_groups


class TestVersion:
    """Whether a route is another one is told without a look at each."""

    def test_what_is_as_it_was_has_the_same_version(self) -> None:
        """And stays the same object, so that who has seen it knows it."""
        plane = Plane()
        plane.start_job(states={"aircraft": VALUE, "log": LIST})
        job = plane.core._control.jobs[APP]
        routes = plane.core._control.routes
        version, before = routes.version, dict(routes.locations)
        routes.locate(job)
        assert routes.version == version
        assert all(routes.locations[number] is before[number] for number in before)
        assert list(routes.locations) == list(before)

    def test_what_is_another_has_another(self) -> None:
        """A batch, a node that goes, one that comes, a state that is dropped."""
        plane = Plane()
        epoch = plane.start_job(states={"aircraft": VALUE, "log": LIST})
        routes = plane.core._control.routes
        versions = [routes.version]
        log = routes.locations[2]
        plane.decide(commit(epoch, 6))
        versions.append(routes.version)
        assert routes.locations[2] is log  # the batch is none of it
        plane.settle(LinksClosed(links=(LINK_B,)))
        versions.append(routes.version)
        plane.hear(LINK_B, node_register("b"))
        versions.append(routes.version)
        plane.ask(drop())
        versions.append(routes.version)
        plane.ask(drop("log"))
        versions.append(routes.version)
        assert versions == sorted(set(versions))

    def test_strangers_change_nothing(self) -> None:
        """What they close, and what they say, is no news of any route."""
        plane = Plane()
        plane.start_job()
        reach = plane.core.reach(now_ns=plane.now_ns)
        plane.settle(LinksClosed(links=(LinkId(77), LinkId(78))))
        plane.hear(LinkId(79), heartbeat("x", 1))
        plane.hear(LINK_A, heartbeat("a", 1))
        assert plane.core.reach(now_ns=plane.now_ns) == reach
