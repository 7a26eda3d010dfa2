from __future__ import annotations

from typing import Any

import pytest

from tests.drills.state_answers import Answer, BatchTimes, Outage, judge


# Batch n is begun at 100 n, decided at 100 n + 20, acknowledged at 100 n + 50.
BATCHES = BatchTimes(
    begun_ns={number: 100 * number for number in range(10)},
    acknowledged_ns={number: 100 * number + 50 for number in range(10)},
    decided_us={number: 100 * number + 20 for number in range(10)},
)


def answer(asked: int, answered: int, *batch_ids: int, **others: Any) -> Answer:
    """Return an answer about one node, whose clocks all show the same."""
    fields: dict[str, Any] = {
        "client": "reader",
        "state_name": "rows",
        "node_id": "node-1",
        "question": "?",
    }
    return Answer(
        **fields
        | {
            "asked_ns": asked,
            "answered_ns": answered,
            "answered_us": answered,
            "batch_ids": batch_ids,
        }
        | others
    )


class TestOneAnswer:
    @pytest.mark.parametrize(
        ("asked", "answered", "batch_id"),
        [
            (151, 160, 1),  # acknowledged before: the least that it may be
            (150, 160, 0),  # acknowledged at this very moment is not before
            (151, 220, 2),  # decided just now
            (0, 20, 0),
        ],
    )
    def test_may_be_of_the_interval(
        self, asked: int, answered: int, batch_id: int
    ) -> None:
        """From the last batch acknowledged before to the last one decided by then."""
        assert judge([answer(asked, answered, batch_id)], BATCHES).problems == []

    @pytest.mark.parametrize(
        ("asked", "answered", "batch_id", "problem"),
        [
            (151, 160, 0, "not from 1 to 1"),
            (151, 190, 2, "not from 1 to 1"),
            (151, 210, 2, "2 was decided at 220"),
            (151, 260, -1, "not from 1 to 2"),
        ],
    )
    def test_may_be_of_no_other(
        self, asked: int, answered: int, batch_id: int, problem: str
    ) -> None:
        """One batch older, one newer, one not decided yet, one that never won."""
        found = judge([answer(asked, answered, batch_id)], BATCHES).problems
        assert any(problem in line for line in found)

    def test_shows_a_whole_batch(self) -> None:
        """Two batches in one answer of one node are half of each."""
        half = answer(151, 260, 1, 2)
        assert "half a batch" in judge([half], BATCHES).problems[0]
        of_all_nodes = answer(151, 260, 1, 2, node_id=None)
        assert judge([of_all_nodes], BATCHES).problems == []

    def test_may_be_wrong_by_itself(self) -> None:
        """What the reader found wrong is told."""
        wrong = answer(151, 160, 1, detail="a list of [0, 0]")
        assert "a list of [0, 0]" in judge([wrong], BATCHES).problems[0]


class TestOneClient:
    def test_never_goes_back(self) -> None:
        """What was answered before the question was asked is the least."""
        first, second = answer(151, 230, 2), answer(231, 240, 1)
        found = judge([second, first], BATCHES).problems
        assert found == [f"was told of 2 before: {second}"]

    @pytest.mark.parametrize(
        "others", [{"client": "other"}, {"node_id": "node-2"}, {"state_name": "log"}]
    )
    def test_is_told_by_each_node_of_each_state(self, others: dict[str, str]) -> None:
        """Another client, another node and another state are no step back."""
        told = [answer(151, 230, 2), answer(231, 240, 1, **others)]
        assert judge(told, BATCHES).problems == []

    def test_may_be_told_late(self) -> None:
        """Of two questions at a time either answer may be the older one."""
        told = [answer(151, 230, 2), answer(230, 240, 1)]
        assert judge(told, BATCHES).problems == []


class TestErrors:
    OUTAGE = Outage(node_id="node-1", from_ns=200, until_ns=300)

    @pytest.mark.parametrize(
        ("asked", "answered"), [(150, 200), (300, 310), (210, 220)]
    )
    def test_are_excused_by_an_outage(self, asked: int, answered: int) -> None:
        """One that waited meanwhile may have been refused."""
        refused = answer(asked, answered, error="StateUnavailableError")
        verdict = judge([refused], BATCHES, outages=[self.OUTAGE])
        assert verdict.problems == []
        assert (verdict.answer_count, verdict.error_count) == (0, 1)

    @pytest.mark.parametrize(
        "others",
        [
            {"asked_ns": 150, "answered_ns": 199},
            {"asked_ns": 301, "answered_ns": 310},
            {"node_id": "node-2"},
            {"error": "UnknownKeyError"},
        ],
    )
    def test_are_not_excused_otherwise(self, others: dict[str, Any]) -> None:
        """Before it, after it, of another node, or of another type."""
        fields = {"error": "StateUnavailableError"} | others
        refused = answer(210, 220, **fields)
        found = judge([refused], BATCHES, outages=[self.OUTAGE]).problems
        assert found == [f"must not fail: {refused}"]
