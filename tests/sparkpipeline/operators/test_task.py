"""What one subtask does, without Spark around it (O3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rescaling import (
    OperatorOutputError,
    RedistributionMode,
    SnapshotTooLargeError,
    UnsupportedItemError,
)
from rescaling.operator_state import decode_snapshot, encode_snapshot
from sparkpipeline.operators.task import (
    OperatorContext,
    OperatorFunction,
    SubtaskPlan,
    file_schema,
    run_subtask,
)


SPLIT = RedistributionMode.SPLIT_DISTRIBUTE

OUTPUT = StructType().add("n", LongType()).add("who", StringType())


class Scripted(OperatorFunction):
    """Writes down what happens to it; counts what it sees."""

    def __init__(self, *, fails_in: str = "", leaves: Any = None) -> None:
        self.fails_in = fails_in
        self.leaves = leaves
        self.calls: list[str] = []

    def open(self, context: OperatorContext) -> None:
        """See `OperatorFunction`."""
        self.note("open")
        self.context = context
        self.seen = context.operator_state.list_state("seen")

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield the numbers."""
        for batch in batches:
            assert batch.schema.names == ["n.n"]
            numbers = batch.column("n.n").to_pylist()
            for number in numbers:
                self.seen.add((number, self.context.operator_index))
            yield pa.RecordBatch.from_pydict(
                {"n": numbers, "who": ["x"] * len(numbers)}
            )
        self.note("process")
        if self.leaves is not None:
            self.seen.add(self.leaves)

    def close(self) -> None:
        """See `OperatorFunction`."""
        self.note("close")

    def note(self, call: str) -> None:
        """Write down *call*, or fail in it."""
        self.calls.append(call)
        if call == self.fails_in:
            raise RuntimeError(f"{call} fails")


class Giving(OperatorFunction):
    """Gives what it was made with."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def process(self, batches: Iterator[pa.RecordBatch]) -> Any:
        """Return it."""
        return self.given


def plan(function: OperatorFunction, **others: Any) -> SubtaskPlan:
    """Return the plan of two subtasks, the second of which has seen something."""
    settings: dict[str, Any] = {
        "function": function,
        "parallelism": 2,
        "batch_id": 7,
        "snapshots": (
            encode_snapshot({}),
            encode_snapshot({"seen": (SPLIT, [(0, 1)]), "other": (SPLIT, ["kept"])}),
        ),
        "input_names": ("n.n",),
        "output_schema": OUTPUT,
        "snapshot_size_bytes_max": 10_000,
    }
    return SubtaskPlan(**settings | others)


def numbers(*batches: list[int]) -> list[pa.RecordBatch]:
    """Return batches as Spark gives them to a task."""
    return [pa.RecordBatch.from_pydict({"c0": batch}) for batch in batches]


def run(
    given: SubtaskPlan, batches: Iterable[pa.RecordBatch], operator_index: int = 1
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return output and report of a subtask."""
    rows = pa.Table.from_batches(
        run_subtask(given, operator_index, batches)
    ).to_pylist()
    *output, report = rows
    assert all(row["_lodestar_operator_index"] is None for row in output)
    return output, report


class TestSubtask:
    @pytest.mark.proves("O3")
    def test_output_and_snapshot_are_one_file(self) -> None:
        """O3: rows first, the report last; what was not asked for is kept, too."""
        function = Scripted()
        output, report = run(plan(function), numbers([1, 2], [], [3]))
        assert [(row["n"], row["who"]) for row in output] == [
            (1, "x"),
            (2, "x"),
            (3, "x"),
        ]
        assert report["_lodestar_operator_index"] == 1
        assert report["_lodestar_row_count"] == 3
        assert (report["n"], report["who"]) == (None, None)
        assert decode_snapshot(report["_lodestar_snapshot"]) == {
            "other": (SPLIT, ["kept"]),
            "seen": (SPLIT, [(0, 1), (1, 1), (2, 1), (3, 1)]),
        }
        assert function.calls == ["open", "process", "close"]
        assert function.context.parallelism == 2
        assert function.context.batch_id == 7

    @pytest.mark.proves("O3")
    def test_a_subtask_without_rows_leaves_its_state(self) -> None:
        """O3: it goes on with what it had."""
        output, report = run(plan(Scripted()), [], operator_index=0)
        assert output == []
        assert decode_snapshot(report["_lodestar_snapshot"]) == {"seen": (SPLIT, [])}

    @pytest.mark.proves("O3")
    def test_each_execution_is_another_attempt(self) -> None:
        """O3: attempt numbers of Spark repeat; these do not."""
        ids = {run(plan(Scripted()), [])[1]["_lodestar_attempt_id"] for _ in range(9)}
        assert len(ids) == 9

    @pytest.mark.proves("O3")
    @pytest.mark.parametrize("fails_in", ["open", "process", "close"])
    def test_a_function_that_fails_leaves_nothing(self, fails_in: str) -> None:
        """O3: no report; and it is closed in any case, once."""
        function = Scripted(fails_in=fails_in)
        rows: list[pa.RecordBatch] = []
        with pytest.raises(RuntimeError, match=f"{fails_in} fails"):
            rows.extend(run_subtask(plan(function), 1, numbers([1])))
        names = [batch.column("_lodestar_operator_index") for batch in rows]
        assert all(column.null_count == len(column) for column in names)
        assert function.calls.count("close") == 1

    def test_rows_that_nobody_wants_are_taken_all_the_same(self) -> None:
        """Spark must get rid of them."""
        batches = iter(numbers([1], [2], [3]))
        output, report = run(plan(Giving([])), batches)
        assert output == []
        assert report["_lodestar_row_count"] == 0
        assert list(batches) == []


class TestOutput:
    def given(self, given: Any, schema: StructType = OUTPUT) -> list[dict[str, Any]]:
        """Return the output of a function that gives *given*."""
        output, _ = run(plan(Giving(given), output_schema=schema), [])
        names = schema.names
        return [{name: row[name] for name in names} for row in output]

    def test_columns_may_come_in_any_order(self) -> None:
        """They are told by name, and of the types that Spark calls the same."""
        batch = pa.RecordBatch.from_arrays(
            [pa.array(["a"], pa.large_string()), pa.array([1], pa.int64())],
            names=["who", "n"],
        )
        assert self.given([batch]) == [{"n": 1, "who": "a"}]

    def test_every_batch_has_the_same_types(self) -> None:
        """Timestamps of any zone, and units, are one stream."""
        schema = (
            StructType()
            .add("t", TimestampType())
            .add("u", TimestampNTZType())
            .add("v", ArrayType(LongType()))
        )
        at = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
        batches = [
            pa.RecordBatch.from_arrays(
                [
                    pa.array([at], pa.timestamp(unit, zone)),
                    pa.array([at.replace(tzinfo=None)], pa.timestamp(unit)),
                    pa.array([[1]], pa.large_list(pa.int64())),
                ],
                names=["t", "u", "v"],
            )
            for unit, zone in (("us", "UTC"), ("ns", "Europe/Berlin"), ("s", "UTC"))
        ]
        rows = self.given(batches, schema)
        assert rows == [{"t": at, "u": at.replace(tzinfo=None), "v": [1]}] * 3

    @pytest.mark.parametrize(
        ("given", "detail"),
        [
            (None, "process returned None"),
            ([{"n": 1}], "process yielded a dict"),
            (
                [pa.RecordBatch.from_pydict({"n": [1]})],
                r"the columns \['n'\], and the output schema has \['n', 'who'\]",
            ),
            (
                [pa.RecordBatch.from_pydict({"n": ["1"], "who": ["a"]})],
                "the column 'n' is string, and bigint in the output schema",
            ),
            (
                [pa.RecordBatch.from_pydict({"n": [1.5], "who": ["a"]})],
                "cast it to int64",
            ),
        ],
    )
    def test_other_columns_are_refused(self, given: Any, detail: str) -> None:
        """What was given and what was expected is said, with the subtask."""
        with pytest.raises(OperatorOutputError, match=detail) as raised:
            self.given(given)
        assert raised.value.operator_index == 1

    def test_a_timestamp_without_a_zone_is_another_type(self) -> None:
        """It is not guessed of which zone it is."""
        batch = pa.RecordBatch.from_arrays(
            [pa.nulls(1, pa.timestamp("us"))], names=["t"]
        )
        with pytest.raises(OperatorOutputError, match="'t' is timestamp"):
            self.given([batch], StructType().add("t", TimestampType()))

    def test_a_file_has_all_columns(self) -> None:
        """Those of the output, which may be null, and the report."""
        assert file_schema(OUTPUT).names[:2] == ["n", "who"]
        assert all(one.nullable for one in file_schema(OUTPUT).fields)


@pytest.mark.proves("O2")
class TestLimits:
    def test_a_large_snapshot_is_refused_when_it_is_written(self) -> None:
        """O2: there is no report then, and the function has been closed."""
        function = Scripted(leaves="x" * 20_000)
        with pytest.raises(SnapshotTooLargeError, match="'seen'"):
            run(plan(function), numbers([1]))
        assert function.calls[-1] == "close"
        assert run(evolve(plan(function), snapshot_size_bytes_max=30_000), [])

    def test_what_would_not_come_back_is_refused(self) -> None:
        """O2: with the name of the state."""
        with pytest.raises(UnsupportedItemError, match="of the state 'seen'"):
            run(plan(Scripted(leaves={1})), [])
