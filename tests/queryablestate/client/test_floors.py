"""`ReadFloors`: what a client has seen, by node and by key group that moved (Q1)."""

from __future__ import annotations

import msgspec
import pytest

from queryablestate.client.floors import ReadFloors, floor_of_reading
from queryablestate.client.routes import Route
from queryablestate.wire.questions import Reading
from tests.queryablestate.scripted_state import ScriptedState


GROUP_0, GROUP_1 = 0, 1


def route(*owners: int) -> Route:
    """Return a route by which key group n belongs to node ``owners[n]``."""
    state = ScriptedState(node_count=3, max_parallelism=len(owners))
    return Route(msgspec.structs.replace(state.description, owners=owners), None)


def test_readings_are_ordered_by_generation_and_batch() -> None:
    """No batch at all comes before the first one."""
    readings = [(1, None), (1, 0), (1, 7), (2, None), (2, 0)]
    floors = [
        floor_of_reading(Reading(generation=generation, batch_id=batch_id, age_ms=0))
        for generation, batch_id in readings
    ]
    assert floors == sorted(floors)
    assert len(set(floors)) == len(floors)


class TestOneNode:
    def test_what_is_not_older_is_taken(self) -> None:
        """The same again is as good as something newer."""
        floors = ReadFloors()
        for seen in ((1, 0), (1, 0), (1, 5), (2, -1)):
            assert floors.check("a", [GROUP_0], seen) is None

    def test_what_is_older_is_not(self) -> None:
        """The answer is how new it should be, and nothing is forgotten by that."""
        floors = ReadFloors()
        floors.check("a", [GROUP_0], (2, 5))
        assert floors.check("a", [GROUP_1], (2, 4)) == (2, 5)
        assert floors.check("a", [], (1, 9)) == (2, 5)
        assert floors.check("b", [GROUP_0], (1, 0)) is None

    def test_clearing_forgets(self) -> None:
        """Another state of the same name begins anew."""
        floors = ReadFloors()
        floors.check("a", [GROUP_0], (2, 5))
        floors.move(route(0, 0), route(1, 1))
        floors.clear()
        assert floors.check("a", [GROUP_0], (1, 0)) is None


class TestMoves:
    def test_a_group_brings_its_floor(self) -> None:
        """Its new node must have it; the node's other groups are as they were."""
        floors = ReadFloors()
        floors.check("node-0", [GROUP_0], (1, 5))
        floors.move(route(0, 1), route(1, 1))
        assert floors.check("node-1", [GROUP_1], (1, 3)) is None
        assert floors.check("node-1", [GROUP_1, GROUP_0], (1, 4)) == (1, 5)
        assert floors.check("node-1", [GROUP_0], (1, 5)) is None

    def test_twice_moved_is_not_forgotten(self) -> None:
        """A group that goes on before it was asked still brings what it had."""
        floors = ReadFloors()
        floors.check("node-0", [GROUP_0], (1, 5))
        floors.move(route(0, 1), route(1, 1))
        floors.move(route(1, 1), route(2, 1))
        assert floors.check("node-2", [GROUP_0], (1, 4)) == (1, 5)

    def test_moved_back(self) -> None:
        """At home its own floor stands, and nothing besides is remembered."""
        floors = ReadFloors()
        floors.check("node-0", [GROUP_0], (1, 5))
        floors.move(route(0, 1), route(1, 1))
        floors.move(route(1, 1), route(0, 1))
        assert floors._by_group == {}
        assert floors.check("node-0", [GROUP_0], (1, 4)) == (1, 5)

    def test_a_node_that_has_caught_up(self) -> None:
        """What its own floor covers is not remembered for each group."""
        floors = ReadFloors()
        floors.check("node-0", [GROUP_0], (1, 5))
        floors.check("node-1", [GROUP_1], (1, 6))
        floors.move(route(0, 1), route(1, 1))
        assert floors._by_group == {}

    def test_nothing_seen_is_nothing_moved(self) -> None:
        """A group that was never asked for has no floor."""
        floors = ReadFloors()
        floors.move(route(0, 0), route(1, 1))
        assert floors.check("node-1", [GROUP_0], (1, 0)) is None


@pytest.mark.proves("Q1")
class TestLateAnswers:
    """Of a node that was asked by a route that is replaced by now."""

    def test_the_new_node_has_answered(self) -> None:
        """What it has shown of the key group is the floor, not what the old one had."""
        floors = ReadFloors()
        floors.check("node-0", [GROUP_0], (1, 1))
        present = route(1, 1)
        floors.move(route(0, 1), present)
        assert floors.check("node-1", [GROUP_0], (1, 2)) is None
        assert floors.check_late("node-0", [0], (1, 1), present) == (1, 2)
        assert floors.check_late("node-0", [0], (1, 2), present) is None

    def test_the_new_node_may_not_go_back_behind_it(self) -> None:
        """A late answer that is taken counts for the one that has the key group now."""
        floors = ReadFloors()
        present = route(1, 1)
        floors.move(route(0, 1), present)
        assert floors.check_late("node-0", [0], (1, 3), present) is None
        assert floors.check("node-1", [GROUP_0], (1, 2)) == (1, 3)
        assert floors.check("node-1", [GROUP_1], (1, 2)) is None
