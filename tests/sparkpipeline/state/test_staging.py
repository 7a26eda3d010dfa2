"""What of a task's rows is staged, and what a digest of them goes by (W4)."""

from __future__ import annotations

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
from sparkpipeline.state.options import StateLayout
from sparkpipeline.state.staging import state_rows


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
