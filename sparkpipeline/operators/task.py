"""
What one subtask of an operator runs, in a task of Spark.

Theory of operation.  A subtask restores its states, hands the batches of its partition
to the function, and gives on what comes out.  Behind the output stands one more row,
the report: its snapshot, and a number drawn for this very execution.  So output and
snapshot are one file, which Spark commits or not: an attempt that fails leaves nothing
that counts (rule O3).
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from attrs import frozen
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from rescaling import OperatorOutputError, OperatorStateStore
from rescaling.operator_state import decode_snapshot


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.types import DataType


__all__ = [
    "RESERVED_PREFIX",
    "OperatorContext",
    "OperatorFunction",
    "SubtaskPlan",
    "file_schema",
    "report_schema",
    "run_subtask",
]

RESERVED_PREFIX: Final = "_lodestar_"
INDEX_COLUMN: Final = RESERVED_PREFIX + "operator_index"
ATTEMPT_COLUMN: Final = RESERVED_PREFIX + "attempt_id"
ROW_COUNT_COLUMN: Final = RESERVED_PREFIX + "row_count"
SNAPSHOT_COLUMN: Final = RESERVED_PREFIX + "snapshot"

_REPORT_TYPES: Final[tuple[tuple[str, DataType], ...]] = (
    (INDEX_COLUMN, IntegerType()),
    (ATTEMPT_COLUMN, StringType()),
    (ROW_COUNT_COLUMN, LongType()),
    (SNAPSHOT_COLUMN, BinaryType()),
)
_ATTEMPT_ID_SIZE_BYTES: Final = 8


@frozen(kw_only=True)
class OperatorContext:
    """
    What an operator function is told of its subtask.

    Attributes:
        operator_index: Which one it is, ``0 <= operator_index < parallelism``.
        parallelism: How many there are in this batch.
        operator_state: Its states, as the last batch left them.
        batch_id: The batch; the same one when it is run again.
    """

    operator_index: int
    parallelism: int
    operator_state: OperatorStateStore
    batch_id: int


class OperatorFunction(ABC):
    """
    What is done with the rows of one subtask, batch after batch.

    Each subtask of each batch has a copy of its own, made by pickling: what must be
    remembered from batch to batch belongs into `OperatorContext.operator_state`, and
    nowhere else.  A copy is used once, by one thread: `open`, `process`, `close`.  As
    tasks may be run again, there may be more than one execution; the states of one
    alone count, and with them its output.
    """

    def open(self, context: OperatorContext) -> None:
        """Make ready; the states of *context* may be read and changed from now on."""
        return

    @abstractmethod
    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """
        Yield what comes of *batches*, with the columns of the output schema.

        Called once for each subtask and micro-batch, without rows too.  The states are
        taken for the snapshot when the last batch has been yielded.
        """

    def close(self) -> None:
        """
        Release what `open` has opened; called in any case.

        What is done to the states here is lost.
        """
        return


@frozen(kw_only=True)
class SubtaskPlan:
    """
    What all subtasks of one batch are told; picklable.

    Attributes:
        function: What they run.
        parallelism: How many there are.
        batch_id: The batch.
        snapshots: What each starts with, encoded, by operator index.
        input_names: What the columns of the input are called.
        output_schema: What the function gives.
        snapshot_size_bytes_max: The limit of what each may leave.
    """

    function: OperatorFunction
    parallelism: int
    batch_id: int
    snapshots: tuple[bytes, ...]
    input_names: tuple[str, ...]
    output_schema: StructType
    snapshot_size_bytes_max: int


def file_schema(output_schema: StructType) -> StructType:
    """Return the columns of a subtask's file: those of the output, and the report."""
    output = [StructField(one.name, one.dataType) for one in output_schema.fields]
    return StructType(output + report_schema().fields)


def report_schema() -> StructType:
    """Return the columns of the report alone."""
    return StructType([StructField(name, kind) for name, kind in _REPORT_TYPES])


def run_subtask(
    plan: SubtaskPlan, operator_index: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of a subtask's file, the report last.

    Raises:
        OperatorOutputError: If the function gives other columns than it should.
        SnapshotTooLargeError: If it leaves too much.
        UnsupportedItemError: If it leaves what would not come back.
    """
    store = OperatorStateStore(snapshot_size_bytes_max=plan.snapshot_size_bytes_max)
    store.restore(decode_snapshot(plan.snapshots[operator_index]))
    context = OperatorContext(
        operator_index=operator_index,
        parallelism=plan.parallelism,
        operator_state=store,
        batch_id=plan.batch_id,
    )
    fields = [
        (one.name, one.dataType, _arrow_type(one.dataType))
        for one in plan.output_schema.fields
    ]
    rest = _named(batches, plan.input_names)
    row_count = 0
    try:
        plan.function.open(context)
        given: Any = plan.function.process(rest)
        if given is None:
            raise OperatorOutputError(
                operator_index, "process returned None: yield record batches"
            )
        for batch in given:
            columns = _checked(operator_index, batch, fields)
            row_count += batch.num_rows
            yield _with_report(columns, batch.num_rows, plan.output_schema, None)
        for _ in rest:  # Spark wants to be rid of all rows, also of those unwanted
            pass
        snapshot = store.encoded_snapshot()
    finally:
        plan.function.close()
    attempt_id = secrets.token_hex(_ATTEMPT_ID_SIZE_BYTES)
    yield _with_report(
        [pa.nulls(1, arrow_type) for _, _, arrow_type in fields],
        1,
        plan.output_schema,
        (operator_index, attempt_id, row_count, snapshot),
    )


def _named(
    batches: Iterable[pa.RecordBatch], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, names=list(names))


def _checked(
    operator_index: int, batch: object, fields: Sequence[tuple[str, DataType, Any]]
) -> list[pa.Array]:
    """Return the columns of *batch* in the order of *fields*, and of their types."""
    if not isinstance(batch, pa.RecordBatch):
        raise OperatorOutputError(
            operator_index,
            f"process yielded a {type(batch).__qualname__}: yield pyarrow.RecordBatch",
        )
    names = [name for name, _, _ in fields]
    found = batch.schema.names
    if sorted(found) != sorted(names):
        raise OperatorOutputError(
            operator_index,
            f"process yielded the columns {found}, and the output schema has {names}: "
            "change one of them",
        )
    return [
        _as_type(operator_index, name, batch.column(name), data_type, arrow_type)
        for name, data_type, arrow_type in fields
    ]


def _as_type(
    operator_index: int, name: str, column: Any, data_type: DataType, arrow_type: Any
) -> Any:
    if column.type == arrow_type:
        return column
    if pa.types.is_null(column.type):  # of no rows, or without values: of any type
        return pa.nulls(len(column), arrow_type)
    try:
        # What Spark calls the same, such as timestamps of any time zone.
        if from_arrow_type(column.type).simpleString() == data_type.simpleString():
            return column.cast(arrow_type)
    except Exception:  # noqa: BLE001, S110 (Spark knows no such type, or Arrow cannot)
        pass
    raise OperatorOutputError(
        operator_index,
        f"the column {name!r} is {column.type}, and {data_type.simpleString()} in the "
        f"output schema: cast it to {arrow_type}, or change the schema",
    )


def _arrow_type(data_type: DataType) -> Any:
    try:
        return to_arrow_type(data_type, timezone="UTC")
    except TypeError:  # Spark before 4.2 knows no other zone
        return to_arrow_type(data_type)


def _with_report(
    columns: Sequence[Any],
    row_count: int,
    output_schema: StructType,
    report: tuple[int, str, int, bytes] | None,
) -> pa.RecordBatch:
    types = [_arrow_type(data_type) for _, data_type in _REPORT_TYPES]
    told = (
        [pa.nulls(row_count, arrow_type) for arrow_type in types]
        if report is None
        else [
            pa.array([value], arrow_type)
            for value, arrow_type in zip(report, types, strict=True)
        ]
    )
    return pa.RecordBatch.from_arrays(
        [*columns, *told], names=file_schema(output_schema).names
    )
