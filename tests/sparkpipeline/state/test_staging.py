"""What of a task's rows is staged, and what a digest of them goes by (W4)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    Field,
    StateKind,
    StateSchema,
)
from queryablestate.wire.batch_digest import sum_of_rows
from queryablestate.writer.rows import StateRows
from sparkpipeline.state import staging
from sparkpipeline.state.options import StateLayout
from sparkpipeline.state.staging import stage_batches, state_rows


def layout(*value: Field) -> StateLayout:
    """Return a value state with these columns."""
    schema = StateSchema(
        kind=StateKind.VALUE, key=(Field("k", AtomicType.STRING),), value=value
    )
    return StateLayout(
        state_name="s", schema=schema, order_by=(), delete="gone", ttl=None
    )


def digested(of: StateLayout, **columns: list[object]) -> int:
    """Return what rows with the keys ``a`` and ``b`` add to the digest."""
    batch = pa.RecordBatch.from_pydict(
        {"k": ["a", "b"], "gone": [False, False], **columns}
    )
    rows = state_rows(batch, of, pa.array([0, 1], pa.int32()))
    values = rows.values if rows.digested is None else rows.digested
    return sum_of_rows(rows.keys, values)


COUNT = Field("n", AtomicType.BIGINT)
MEAN = Field("mean", AtomicType.DOUBLE)
SEEN = Field("seen", ArrayType(AtomicType.STRING))


@pytest.mark.proves("W4")
class TestDigest:
    def test_it_goes_by_what_is_the_same_when_a_batch_is_run_again(self) -> None:
        """W4: sums of floats and what is collected depend on how a shuffle is read."""
        of = layout(COUNT, MEAN, SEEN)
        first = digested(of, n=[1, 2], mean=[0.1, 0.2], seen=[["x", "y"], []])
        again = digested(of, n=[1, 2], mean=[0.1, 0.3], seen=[["y", "x"], []])
        other = digested(of, n=[1, 3], mean=[0.1, 0.2], seen=[["x", "y"], []])
        assert first == again
        assert first != other

    def test_without_such_columns_it_goes_by_all(self) -> None:
        """W4: then nothing is encoded twice."""
        of = layout(COUNT)
        assert digested(of, n=[1, 2]) != digested(of, n=[2, 1])

    def test_a_delete_counts(self) -> None:
        """W4: also of a row of which only the key does."""
        of = layout(MEAN)
        kept = digested(of, mean=[0.1, 0.2])
        assert kept != digested(of, mean=[0.1, 0.2], gone=[True, False])


class Adding:
    """Takes note of how many rows a task brings at a time, for all states together."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add(self, state_number: int, rows: StateRows, *, is_list: bool) -> None:
        """Count the rows; those of the first state begin a run."""
        assert not is_list
        if state_number == 0:
            self.counts.append(0)
        self.counts[-1] += len(rows.keys)

    def finish(self) -> None:
        """Report nothing."""


@pytest.mark.parametrize("limit", ["RUN_ROW_COUNT_MAX", "RUN_SIZE_BYTES_MAX"])
def test_a_task_gathers_one_run_however_many_states_it_writes(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Each state keeps rows of its own until they are staged, and all are in memory."""
    batch = pa.RecordBatch.from_pydict(
        {"k": ["x" * 96] * 100, "gone": [False] * 100, "n": range(100)}
    )
    groups = pa.array([0] * 100, pa.int32())
    row_size_bytes = batch.nbytes / batch.num_rows
    row_count_max = 1_000
    monkeypatch.setattr(
        staging,
        limit,
        row_count_max
        if limit == "RUN_ROW_COUNT_MAX"
        else round(row_count_max * row_size_bytes),
    )
    state_count = 5
    stager: Any = Adding()
    stage_batches(
        ((batch, [groups] * state_count) for _ in range(20)),
        stager,
        [layout(COUNT)] * state_count,
        range(state_count),
    )
    assert sum(stager.counts) == 20 * 100 * state_count
    assert max(stager.counts) <= row_count_max
