from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from haservices import HAConfig, open_ha_services
from lodestar.operator_state import operator_state_document, operator_state_text
from queryablestate import OperatorStateView
from queryablestate.local_cluster import LocalStateCluster
from rescaling import RedistributionMode
from rescaling.operator_state import encode_snapshot
from sparkpipeline.operators.publication import (
    OperatorStatePublication,
    PublishedBatch,
    PublishingRun,
    publish_batch,
)
from tests.lodestar.running import call


OFFSETS = [("ewr.jsonl", 81734), ("jfk.jsonl", 90312)]


def view(mode: RedistributionMode, *subtasks: tuple[Any, ...]) -> OperatorStateView:
    """Return what a client would answer."""
    return OperatorStateView(
        job_id="flights",
        name="offsets",
        mode=mode,
        subtasks=subtasks,
        generation=1,
        batch_id=41,
        age_seconds=0.351,
        cached=False,
    )


class TestText:
    def test_a_row_for_each_item(self) -> None:
        """O5: which subtask holds what, and as of when."""
        shown = view(
            RedistributionMode.SPLIT_DISTRIBUTE, tuple(OFFSETS), (), ("a\x1b[2J",)
        )
        assert operator_state_text(shown, limit=9).splitlines() == [
            "mode         split-distribute",
            "parallelism  3",
            "items        3",
            "batch        41, 0.35 s ago",
            "",
            "SUBTASK  ITEM",
            '0        ["ewr.jsonl", 81734]',
            '0        ["jfk.jsonl", 90312]',
            '2        "a\\u001b[2J"',
        ]
        assert len(operator_state_text(shown, limit=1).splitlines()) == 7
        empty = view(RedistributionMode.UNION, ())
        assert len(operator_state_text(empty, limit=9).splitlines()) == 4

    def test_broadcast_state_has_keys(self) -> None:
        """O5: it is a table."""
        shown = view(RedistributionMode.BROADCAST, (("max", 3),), (("max", 3),))
        assert operator_state_text(shown, limit=9).splitlines()[5:] == [
            "SUBTASK  KEY    VALUE",
            '0        "max"  3',
            '1        "max"  3',
        ]

    def test_the_document(self) -> None:
        """O5: JSON has all items, in the forms that columns have."""
        item = (b"\xff", math.nan, -math.inf, {"a": [None, True]}, {1: "x"})
        document = operator_state_document(view(RedistributionMode.UNION, (item,)))
        assert json.loads(json.dumps(document, allow_nan=False)) == {
            "job": "flights",
            "name": "offsets",
            "mode": "union",
            "parallelism": 1,
            "subtasks": [
                [["/w==", "NaN", "-Infinity", {"a": [None, True]}, [[1, "x"]]]]
            ],
            "generation": 1,
            "batch_id": 41,
            "age_seconds": 0.351,
            "cached": False,
        }


@pytest.mark.shells
class TestVerb:
    """``lodestar operator-state`` (O5, N5)."""

    @pytest.fixture
    def at(self, leader_server_url: str) -> Iterator[tuple[str, ...]]:
        """Return the options that name a name service with published state."""
        config = HAConfig(
            url=leader_server_url, cluster_id="operator-state", lease_seconds=3.0
        )
        with open_ha_services(config) as ha, LocalStateCluster(ha, nodes=2):
            publish_batch(
                OperatorStatePublication(config=config, job_id="flights"),
                PublishedBatch(
                    run=PublishingRun(query_id="query", run_id="run"),
                    batch_id=0,
                    snapshots=[
                        encode_snapshot(
                            {"offsets": (RedistributionMode.SPLIT_DISTRIBUTE, [item])}
                        )
                        for item in OFFSETS
                    ],
                ),
            )
            yield ("--url", leader_server_url, "--cluster-id", "operator-state")

    def test_it_prints_items_and_subtasks(
        self, at: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """O5: for people, for programs; 3 if there is no such state, or job."""
        shown = call(capsys, "operator-state", *at, "flights", "offsets")
        assert (shown.exit_code, shown.err) == (0, "")
        assert shown.out.splitlines()[-2:] == [
            '0        ["ewr.jsonl", 81734]',
            '1        ["jfk.jsonl", 90312]',
        ]
        few = call(capsys, "operator-state", *at, "--limit", "1", "flights", "offsets")
        assert few.out.splitlines()[-1] == '0        ["ewr.jsonl", 81734]'
        assert few.err == ""
        told = call(capsys, "operator-state", *at, "--json", "flights", "offsets")
        document = json.loads(told.out)
        assert document["subtasks"] == [[list(item)] for item in OFFSETS]
        assert (document["batch_id"], document["parallelism"]) == (0, 2)
        for job, name in (("flights", "offset"), ("trains", "offsets")):
            missing = call(capsys, "operator-state", *at, job, name)
            assert (missing.exit_code, missing.out) == (3, "")
        late = call(
            capsys,
            "operator-state",
            *at,
            "--min-batch",
            "1",
            "--deadline",
            "0.2",
            "flights",
            "offsets",
        )
        assert late.exit_code == 5
