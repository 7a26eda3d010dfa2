from __future__ import annotations

from typing import Any

import pytest

from queryablestate.gateway.console.cluster_view import cluster_view
from queryablestate.gateway.console.pages import Pages
from queryablestate.operations.node_information import NodeInformation
from queryablestate.operations.rescaling_information import (
    MoveInformation,
    RescalingInformation,
)
from tests.queryablestate.gateway.console.reading import Page, request_for


def node(name: str, **changes: Any) -> NodeInformation:
    """Return a node that has a part of one job."""
    fields: dict[str, Any] = {
        "node_id": name,
        "address": f"tcp://{name}:1",
        "last_heard_seconds": 0.1,
        "key_group_counts": {"flights": 2},
        "behind_counts": {"flights": 0},
        "copy_counts": {"flights": 4},
    }
    return NodeInformation(**(fields | changes))


def rescaling(names: list[str], **changes: Any) -> RescalingInformation:
    """Return a job that is on these nodes, and does not move."""
    fields: dict[str, Any] = {
        "job_id": "flights",
        "assignment_version": 1,
        "node_count": len(names),
        "replica_count": 2,
        "key_group_counts": dict.fromkeys(names, 2),
        "copy_counts": dict.fromkeys(names, 4),
        "planned_count": 0,
        "left_count": 0,
        "surplus_count": 0,
        "missing_count": 0,
        "moves": (),
        "elapsed_seconds": None,
        "seconds_left": 0.0,
    }
    return RescalingInformation(**(fields | changes))


@pytest.mark.proves("F5")
class TestFiftyNodes:
    def test_all_of_them_are_on_the_page(self) -> None:
        """One is away, one is being emptied, and a move goes on."""
        names = [f"node-{number:02}" for number in range(50)]
        nodes = [node(name) for name in names]
        nodes[7] = node(names[7], address=None, behind_counts={})
        nodes[8] = node(names[8], is_draining=True)
        move = MoveInformation(
            node_id="node-03",
            source_ids=("node-01", "node-02"),
            waiting_count=5,
            copying_count=1,
            row_count=1_000,
            size_bytes=9,
            failure="the disk is full",
        )
        job = rescaling(
            names,
            planned_count=8,
            left_count=6,
            missing_count=4,
            moves=(move,),
            seconds_left=12.0,
        )
        view = cluster_view(nodes, [job])
        assert view.summary == "50 nodes, 1 away, 6 copies of key groups to be made"
        response = Pages().page(
            request_for("/console/nodes"), "nodes.html", cluster=view
        )
        page = Page(bytes(response.body))
        assert [name for name in names if page.texts("li h2").count(name) != 1] == []
        assert page.text.count("data directory") == 1
        assert "copies 1 key groups from node-01, node-02" in page.text
        assert "2 of 8 copies made, about 12.0 s to go" in page.text
        assert "node-03 cannot copy: the disk is full" in page.text
        assert "4 key groups have fewer copies than the 2" in page.text
        assert page.texts("progress") == ["25.0 %"]

    def test_shares_add_up(self) -> None:
        """A bar is as long as the node's part of the key groups."""
        view = cluster_view([node("a"), node("b")], [rescaling(["a", "b"])])
        (job,) = view.jobs
        assert [share.length for share in job.shares] == [50.0, 50.0]
        assert job.done is None

    def test_a_node_that_nobody_needs_can_be_forgotten(self) -> None:
        """It is not said that something is unavailable."""
        (one,) = cluster_view([node("a", address=None, key_group_counts={})], []).nodes
        assert one.status == "away"
        (problem,) = one.problems
        assert "forget-node a" in problem

    def test_rows_that_are_kept_aside_are_named(self) -> None:
        """With the verb that takes them over."""
        (one,) = cluster_view([node("a", kept_batches={"weather": 4})], []).nodes
        (problem,) = one.problems
        assert "up to batch 4" in problem
        assert "lodestar adopt weather" in problem
