from __future__ import annotations

from attrs import evolve

from lodestar.state_moves import (
    drain_document,
    drain_sentence,
    figures_document,
    rescaling_document,
    rescaling_sentence,
    rescalings_text,
    shortage_sentences,
    standstill_sentence,
)
from queryablestate.operations.move_progress import MoveFigures
from queryablestate.operations.node_information import NodeInformation
from queryablestate.operations.rescaling_information import (
    DrainInformation,
    MoveInformation,
    RescalingInformation,
)


MOVING = RescalingInformation(
    job_id="flights",
    assignment_version=3,
    node_count=2,
    replica_count=1,
    key_group_counts={"n-1": 96, "n-2": 32},
    copy_counts={"n-2": 32, "n-1": 96},
    planned_count=64,
    left_count=32,
    surplus_count=32,
    missing_count=0,
    moves=(
        MoveInformation(
            node_id="n-2",
            source_ids=("n-1",),
            waiting_count=16,
            copying_count=16,
            row_count=12_345,
            size_bytes=1_234_567,
            failure=None,
        ),
    ),
    elapsed_seconds=8.0,
    seconds_left=8.0,
)
DONE = evolve(
    MOVING,
    copy_counts={"n-2": 64, "n-1": 64},
    left_count=0,
    surplus_count=0,
    moves=(),
    elapsed_seconds=None,
    seconds_left=0.0,
)


class TestRescaling:
    """How far a job is."""

    def test_the_table(self) -> None:
        """Where key groups are, how many are moved, who copies what from whom."""
        assert rescalings_text([MOVING], has_bars=False).splitlines() == [
            "JOB      NODES  REPLICAS  KEY GROUPS      MOVED     TIME LEFT",
            "flights  2      1         n-1 96, n-2 32  32 of 64  8.00 s",
            "",
            "JOB      NODE  COPIES FROM  COPYING  WAITING  ROWS    SIZE    FAILURE",
            "flights  n-2   n-1          16       16       12,345  1.2 MB  -",
        ]
        assert rescalings_text([DONE], has_bars=True).splitlines() == [
            "JOB      NODES  REPLICAS  KEY GROUPS      MOVED  TIME LEFT",
            "flights  2      1         n-1 64, n-2 64  -      -",
        ]
        assert rescalings_text([], has_bars=True) == "there are no jobs"

    def test_a_terminal_gets_a_bar(self) -> None:
        """How far it is can be seen."""
        text = rescalings_text([MOVING], has_bars=True)
        assert f"[{'#' * 10}{'.' * 10}] 32 of 64" in text

    def test_the_sentence(self) -> None:
        """One line says what is to be done, or where everything is."""
        assert rescaling_sentence(MOVING) == (
            "flights: 32 copies of key groups to be made"
        )
        assert rescaling_sentence(evolve(MOVING, left_count=0)) == (
            "flights: 32 copies of key groups to be given up, n-1 96, n-2 32"
        )
        assert rescaling_sentence(DONE) == "flights: n-1 64, n-2 64"

    def test_what_is_missing_is_said(self) -> None:
        """S4: fewer nodes or copies than wanted, once nothing can be done."""
        assert shortage_sentences(MOVING) == []
        assert shortage_sentences(DONE) == []
        short = evolve(DONE, node_count=4, replica_count=2, missing_count=1)
        assert shortage_sentences(short) == [
            (
                "flights has 2 of 4 nodes: further ones take part as soon as they are "
                "started"
            ),
            "flights: 1 key group with fewer than 2 copies",
        ]
        assert shortage_sentences(evolve(short, left_count=1)) == []

    def test_who_is_missed_is_said(self) -> None:
        """O6: nodes that are away and have copies of what is to be moved."""

        def node(node_id: str, address: str | None, *job_ids: str) -> NodeInformation:
            return NodeInformation(
                node_id=node_id,
                address=address,
                last_heard_seconds=None,
                key_group_counts={},
                behind_counts={},
                copy_counts=dict.fromkeys(job_ids, 32),
            )

        there = node("n-1", "tcp://n-1:1", "flights")
        other = node("n-3", None, "orders")
        assert standstill_sentence([MOVING], [there, other]) is None
        away = [node("n-2", None, "flights"), node("n-4", None, "flights")]
        assert standstill_sentence([DONE], away) is None
        assert standstill_sentence([DONE, MOVING], [there, other, *away[:1]]) == (
            "flights: nothing moves; n-2 is away, and has copies of its key groups"
        )
        assert standstill_sentence([MOVING], away) == (
            "flights: nothing moves; n-2, n-4 are away, and have copies of its key "
            "groups"
        )

    def test_the_document(self) -> None:
        """--json has everything, with what only a watcher knows."""
        document = rescaling_document(MOVING)
        assert document["job"] == "flights"
        assert document["is_done"] is False
        assert document["moves"][0]["source_ids"] == ("n-1",)
        assert document["copy_counts"] == {"n-1": 96, "n-2": 32}
        figures = MoveFigures(
            planned_count=64,
            done_count=32,
            size_bytes=10,
            elapsed_seconds=1.0,
            size_bytes_per_second=2.4,
            seconds_left=None,
        )
        assert figures_document(figures) == {
            "planned_count": 64,
            "done_count": 32,
            "size_bytes": 10,
            "size_bytes_per_second": 2,
            "seconds_left": None,
        }


class TestDrain:
    """How far a node is from being empty."""

    DRAIN = DrainInformation(
        node_id="n-1",
        is_draining=True,
        is_away=False,
        copy_counts={"flights": 64, "orders": 1},
    )

    def test_the_sentence(self) -> None:
        """What it still has, or that it may end."""
        assert drain_sentence(self.DRAIN) == (
            "n-1 is being emptied: 64 key groups of flights, 1 key group of orders"
        )
        assert drain_sentence(evolve(self.DRAIN, copy_counts={})) == "n-1 is empty"
        undone = evolve(self.DRAIN, is_draining=False)
        assert drain_sentence(undone) == (
            "n-1 takes part, with 64 key groups of flights, 1 key group of orders"
        )
        assert drain_sentence(evolve(undone, copy_counts={})) == (
            "n-1 takes part, with no key groups yet"
        )
        needed = evolve(self.DRAIN, copy_counts={}, is_needed=True)
        assert drain_sentence(needed) == (
            "n-1 has no key groups, and waits for batches that were begun before"
        )

    def test_the_document(self) -> None:
        """--json has the same."""
        assert drain_document(self.DRAIN) == {
            "node_id": "n-1",
            "is_empty": False,
            "is_draining": True,
            "is_away": False,
            "copy_counts": {"flights": 64, "orders": 1},
            "left_count": 65,
            "is_needed": False,
        }
