"""
Operators with state of their own over the micro-batches of a stream (rule O3).

Theory of operation.  The state of a subtask goes from batch to batch as a snapshot.
Batch N is run in these steps, and each may be the last one before a crash:

1.  Is there a manifest of N?  Then N was run: go to 5.
2.  The snapshots of the last batch before N are redistributed, if the number of
    subtasks is another one now.
3.  A Spark job repartitions the batch and runs a subtask in every task.  It writes
    output and snapshots to a new directory with a random name.
4.  The manifest of N is created, unless there is one.  It names the files that count.
    From now on the function is never run for N again.
5.  The files that the manifest names go to the sink, as batch N; and a copy of its
    snapshots to the readers who may ask for them (`sparkpipeline.operators.publisher`).
6.  What is older than the last few batches is deleted.

So the function's output and its state change together, in step 4, once.  The sink may
be given a batch again, with the same id, and it is then the same to the last row.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from attrs import define, evolve, frozen
from pyspark import TaskContext
from pyspark.sql.types import StructType

from nameservice import ConfigurationError, LocalProtocolError, get_logger
from rescaling import OperatorCheckpointError
from rescaling.operator_state import (
    SNAPSHOT_SIZE_BYTES_MAX,
    check_takeover,
    decode_snapshot,
    encode_snapshot,
)
from rescaling.redistribution import carry_over
from sparkpipeline.failures import StateStreamWriter, through_spark
from sparkpipeline.operators.batch import (
    OperatorBatch,
    check_continuity,
    known_batch_ids,
    read_left,
    read_output,
    read_published,
    read_reports,
)
from sparkpipeline.operators.checkpoint import OperatorCheckpoint
from sparkpipeline.operators.manifest import (
    FORMAT_VERSION,
    OperatorManifest,
    SubtaskFile,
    choose_attempts,
)
from sparkpipeline.operators.publication import (
    PublishedBatch,
    PublishingRun,
    check_publishable,
)
from sparkpipeline.operators.publisher import OperatorStatePublisher
from sparkpipeline.operators.task import (
    RESERVED_PREFIX,
    OperatorContext,
    OperatorFunction,
    SubtaskPlan,
    file_schema,
    run_subtask,
)
from sparkpipeline.run_births import draw_at_start
from sparkpipeline.spark_session import check_session
from sparkpipeline.state.sink import QUERY_ID_PROPERTY, RUN_ID_PROPERTY


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from rescaling.redistribution import Assign
    from sparkpipeline.batch_guard import BatchFunction
    from sparkpipeline.operators.publication import OperatorStatePublication
    from sparkpipeline.run_births import DrawnEpoch


__all__ = ["OperatorContext", "OperatorFunction", "run_operator"]

OnMissingState: TypeAlias = Literal["refuse", "begin"]

PARALLELISM_MAX: Final = 32_768
BATCH_COUNT_KEPT: Final = 3
_PUBLISHING_QUERY: Final = ":operator-state"
_ON_MISSING_STATE: Final = ("refuse", "begin")
_start_numbers: Final = itertools.count(1)


def run_operator(
    df: DataFrame,
    function: OperatorFunction,
    *,
    parallelism: int | Callable[[], int],
    sink: Callable[[DataFrame, int], None],
    output_schema: StructType | str | None = None,
    assign: Mapping[str, Assign] | None = None,
    snapshot_size_bytes_max: int = SNAPSHOT_SIZE_BYTES_MAX,
    batch_count_kept: int = BATCH_COUNT_KEPT,
    on_missing_state: OnMissingState = "refuse",
    publication: OperatorStatePublication | None = None,
) -> DataStreamWriter:
    """
    Return what runs *function* on each micro-batch of *df*, with operator state.

    Set a checkpoint location on it, a trigger if you like, and ``start`` it.  Rows are
    dealt out evenly to *parallelism* subtasks.  Each row is counted once in the states
    and stands once in the output, whatever is run again.

    Args:
        df: A streaming DataFrame, of a classic session (not Spark Connect).
        function: What each subtask runs; it is pickled.
        parallelism: How many subtasks there are, 1 to 32,768; or a function that says
            so for each new batch.  It may change at any time: states are then
            redistributed.
        sink: Gets the output and the batch id, as in ``foreachBatch``: it may get a
            batch again, the very same, and must then recognize its id.
        output_schema: The columns that the function gives; by default those of *df*.
            In the output any of them may be null.
        assign: For some list states, a function of (item, parallelism) that returns
            the subtask where the item belongs.
        snapshot_size_bytes_max: How large the snapshot of one subtask may be, and
            what each would have to take over if there were more: the union states of
            all of them, and the broadcast states.
        batch_count_kept: For how many batches output and snapshots are kept.
        on_missing_state: Whether a query that has run before, and left no state, is an
            error (``"refuse"``) or begins without state (``"begin"``).
        publication: Where the states can be asked for, as they are after each batch;
            by default nowhere (rule O5).

    Raises:
        ConfigurationError: If the query could not work like that; says what to change.
    """
    check_session(df.sparkSession, "run_operator")
    if not df.isStreaming:
        raise ConfigurationError(
            "this DataFrame is no stream: operators run over spark.readStream"
        )
    if not isinstance(function, OperatorFunction):
        raise ConfigurationError(
            f"function must be an OperatorFunction, not {function!r}: derive from it, "
            "and pass an instance"
        )
    for name, count in (
        ("snapshot_size_bytes_max", snapshot_size_bytes_max),
        ("batch_count_kept", batch_count_kept),
    ):
        if count < 1:
            raise ConfigurationError(f"{name} must be at least 1, not {count}")
    if on_missing_state not in _ON_MISSING_STATE:
        raise ConfigurationError(
            f"on_missing_state must be one of {', '.join(_ON_MISSING_STATE)}, not "
            f"{on_missing_state!r}"
        )
    operator = _Operator(
        df=df,
        function=function,
        parallelism=parallelism if callable(parallelism) else _fixed(parallelism),
        sink=sink,
        output_schema=_schema(df, output_schema),
        assign=dict(assign or {}),
        snapshot_size_bytes_max=snapshot_size_bytes_max,
        batch_count_kept=batch_count_kept,
        on_missing_state=on_missing_state,
        publisher=None if publication is None else OperatorStatePublisher(publication),
    )
    return StateStreamWriter(df, operator.begin)


@final
@frozen(kw_only=True)
class _Left:
    """The snapshots in one directory, by operator index."""

    directory: str
    snapshots: tuple[bytes, ...]


@final
@define(kw_only=True)
class _Operator:
    """Runs the micro-batches of a query; on the driver."""

    df: DataFrame
    function: OperatorFunction
    parallelism: Callable[[], int]
    sink: Callable[[DataFrame, int], None]
    output_schema: StructType
    assign: Mapping[str, Assign]
    snapshot_size_bytes_max: int
    batch_count_kept: int
    on_missing_state: OnMissingState
    publisher: OperatorStatePublisher | None
    # What this driver has read or written before need not be read again.
    last: _Left | None = None

    def begin(self) -> BatchFunction:
        """Return what runs the micro-batches of a run that is started now."""
        publisher = self.publisher
        drawn = None if publisher is None else draw_at_start(publisher.draw_epoch)
        # What it remembers is its own: a run that was stopped may still be in a batch.
        run = evolve(self, last=None).run
        return functools.partial(run, drawn, next(_start_numbers))

    @through_spark
    def run(
        self,
        drawn: DrawnEpoch | None,
        start_number: int,
        frame: DataFrame,
        batch_id: int,
    ) -> None:
        """Run one micro-batch, or what there is of it already."""
        context = frame.sparkSession.sparkContext
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY)
        run_id = context.getLocalProperty(RUN_ID_PROPERTY)
        if query_id is None or run_id is None:
            raise LocalProtocolError(
                "this is no micro-batch of a streaming query: start the writer that "
                "run_operator returns"
            )
        checkpoint = OperatorCheckpoint.of_query(self.df.sparkSession, query_id)
        batch = OperatorBatch(
            frame=frame,
            batch_id=batch_id,
            query_id=query_id,
            run_id=run_id,
            checkpoint=checkpoint,
            offsets_digest=checkpoint.offsets_digest(batch_id),
        )
        publishing_run = PublishingRun(
            # Of its own, for the sink may write states of the job under Spark's.
            query_id=f"{query_id}{_PUBLISHING_QUERY}",
            run_id=run_id,
            drawn=drawn,
            start_number=start_number,
        )
        if self.publisher is not None:
            self.publisher.begin(publishing_run)
        known = known_batch_ids(batch)
        is_repeated = batch_id in known
        if is_repeated:
            manifest = read_published(batch)
            self._left(batch, manifest)  # a lost file is told here, not by the sink
        else:
            manifest = self._publish(batch, known)
            # A driver that was asleep may have made a manifest that was there before,
            # and deleted since: it must not go on with it.
            known = known_batch_ids(batch)
        get_logger(component="operator", query_id=query_id).debug(
            "batch.published",
            batch_id=batch_id,
            is_repeated=is_repeated,
            parallelism=manifest.parallelism,
            row_count=sum(one.row_count for one in manifest.subtasks),
        )
        # It travels while the sink works: the state after this batch is what the
        # manifest says, whatever the sink does.
        offer = None
        if self.publisher is not None:
            offer = self.publisher.offer(
                PublishedBatch(
                    run=publishing_run,
                    batch_id=batch_id,
                    snapshots=self._left(batch, manifest),
                )
            )
        self.sink(read_output(batch, manifest), batch_id)
        if self.publisher is not None and offer is not None:
            self.publisher.wait(offer)
        checkpoint.keep(known[-self.batch_count_kept :])

    def _publish(self, batch: OperatorBatch, known: Sequence[int]) -> OperatorManifest:
        """Run the function, and publish what it gives; return what counts."""
        parallelism = _checked_parallelism(self.parallelism())
        columns = batch.frame.columns
        plan = SubtaskPlan(
            function=self.function,
            parallelism=parallelism,
            batch_id=batch.batch_id,
            snapshots=self._starts(batch, known, parallelism),
            input_names=tuple(columns),
            output_schema=self.output_schema,
            snapshot_size_bytes_max=self.snapshot_size_bytes_max,
        )
        directory = batch.checkpoint.new_directory(batch.batch_id)
        path = batch.checkpoint.path(directory)
        (
            # Under names of ours, for mapInArrow cannot take every name (no dots).
            batch.frame.toDF(*(f"c{number}" for number in range(len(columns))))
            .repartition(parallelism)
            .mapInArrow(_subtask(plan), file_schema(self.output_schema))
            .write.option("maxRecordsPerFile", 0)  # one file for each task
            .parquet(path)
        )
        reports = choose_attempts(
            read_reports(batch, directory), parallelism, path=path
        )
        snapshots = tuple(one.snapshot for one in reports)
        check_takeover(snapshots, size_bytes_max=self.snapshot_size_bytes_max)
        if self.publisher is not None:
            check_publishable(snapshots)  # a manifest would be there for good
        self.last = _Left(directory=directory, snapshots=snapshots)
        batch.checkpoint.publish(
            OperatorManifest(
                format_version=FORMAT_VERSION,
                query_id=batch.query_id,
                run_id=batch.run_id,
                batch_id=batch.batch_id,
                directory=directory,
                offsets_digest=batch.offsets_digest,
                output_schema=self.output_schema.json(),
                subtasks=tuple(
                    SubtaskFile(
                        file=one.file,
                        attempt_id=one.attempt_id,
                        row_count=one.row_count,
                        snapshot_size_bytes=len(one.snapshot),
                    )
                    for one in reports
                ),
            )
        )
        return read_published(batch)

    def _starts(
        self, batch: OperatorBatch, known: Sequence[int], parallelism: int
    ) -> tuple[bytes, ...]:
        """Return what each subtask starts with."""
        if not known:
            if batch.batch_id and self.on_missing_state == "refuse":
                raise OperatorCheckpointError(
                    batch.checkpoint.path("manifests"),
                    f"there is none of a batch before {batch.batch_id}, so what the "
                    "operator knew is lost. Restore the directory from a copy of the "
                    "checkpoint, begin with a new checkpoint location, or say "
                    'on_missing_state="begin" to go on without state',
                )
            return (encode_snapshot({}),) * parallelism
        last = batch.checkpoint.read(known[-1])
        check_continuity(batch, last)
        left = self._left(batch, last)
        if len(left) == parallelism and not self.assign:
            return left
        shares = carry_over(
            [decode_snapshot(one) for one in left], parallelism, assign=self.assign
        )
        return tuple(encode_snapshot(share) for share in shares)

    def _left(
        self, batch: OperatorBatch, manifest: OperatorManifest
    ) -> tuple[bytes, ...]:
        """Return the snapshots that an earlier batch left."""
        if self.last is not None and self.last.directory == manifest.directory:
            return self.last.snapshots
        attempts = {
            report.attempt_id: report.snapshot for report in read_left(batch, manifest)
        }
        for one in manifest.subtasks:
            if one.attempt_id not in attempts:
                raise OperatorCheckpointError(
                    batch.checkpoint.path(manifest.directory, one.file),
                    f"it is not the file that batch {manifest.batch_id} left. Restore "
                    "it from a copy of the checkpoint, or begin with a new checkpoint "
                    "location",
                )
        snapshots = tuple(attempts[one.attempt_id] for one in manifest.subtasks)
        self.last = _Left(directory=manifest.directory, snapshots=snapshots)
        return snapshots


def _subtask(
    plan: SubtaskPlan,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task runs, for ``mapInArrow``."""

    @through_spark
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from run_subtask(plan, context.partitionId(), batches)

    return run


def _schema(df: DataFrame, given: StructType | str | None) -> StructType:
    if given is None:
        schema = df.schema
    elif isinstance(given, str):
        parsed = StructType.fromDDL(given)
        if not isinstance(parsed, StructType):
            raise ConfigurationError(f"{given!r} is no list of columns")
        schema = parsed
    else:
        schema = given
    names = [one.lower() for one in schema.names]
    if not names:
        raise ConfigurationError("the output has no columns: name one at least")
    for name in names:
        if names.count(name) > 1 or name.startswith(RESERVED_PREFIX):
            raise ConfigurationError(
                f"the output has a column {name!r} twice, or it begins with "
                f"{RESERVED_PREFIX!r}: give it another name"
            )
    return schema


def _fixed(parallelism: int) -> Callable[[], int]:
    _checked_parallelism(parallelism)
    return lambda: parallelism


def _checked_parallelism(parallelism: object) -> int:
    if (
        not isinstance(parallelism, int)
        or isinstance(parallelism, bool)
        or not 1 <= parallelism <= PARALLELISM_MAX
    ):
        raise ConfigurationError(
            f"parallelism must be 1 to {PARALLELISM_MAX}, not {parallelism!r}"
        )
    return parallelism
