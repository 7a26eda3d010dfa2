"""
A streaming DataFrame as queryable state: `publish_state` and `publish_states`.

Theory of operation.  Each micro-batch is written by ``foreachBatch`` in the three steps
of `queryablestate.writer.writer`: the driver begins it, by one message; Spark computes
the key group of every row, and hands the rows to Python workers as Arrow batches, which
stage them; the driver commits what they report.  The driver tells the tasks all that
they must know, so that a worker opens connections to nodes and nowhere else.

``foreachBatch`` is used although there is ``format("lodestar")``, because Spark gives
Python data sources no update mode, computes no key groups for them, and starts two
processes more for them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
from attrs import frozen
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from haservices import Backend, HAConfig, open_ha_services
from nameservice import ConfigurationError, LocalProtocolError, get_logger
from queryablestate.connect.credentials import Credentials, as_credentials
from queryablestate.writer.batches import StageMessage
from queryablestate.writer.connections import writer_connections
from queryablestate.writer.stager import StageLimits, Stager
from queryablestate.writer.writer import StateWriter
from sparkpipeline.failures import StateStreamWriter, through_spark
from sparkpipeline.run_births import draw_at_start
from sparkpipeline.spark_session import check_session
from sparkpipeline.state.options import (
    COMMIT_TIMEOUT_SECONDS_DEFAULT,
    MAX_PARALLELISM_DEFAULT,
    StateSpec,
    WriteOptions,
)
from sparkpipeline.state.staging import stage_batches
from sparkpipeline.state.windows import warn_of_lasting_windows


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from queryablestate.writer.batches import WriteRun
    from sparkpipeline.batch_guard import BatchFunction
    from sparkpipeline.run_births import DrawnEpoch
    from sparkpipeline.state.options import (
        Columns,
        Kind,
        OnNewQuery,
        OutputMode,
        StateLayout,
    )


__all__ = ["publish_state", "publish_states"]

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
"""The local property by which Spark tells a job which query it is of (4.0 to 4.3)."""

RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
"""The local property that is the run id in a streaming query's jobs (4.0 to 4.3)."""

_MESSAGE_SCHEMA: Final = "message binary"
_FIND_TIMEOUT_SECONDS: Final = 2.0


def publish_state(
    df: DataFrame,
    config: HAConfig | str,
    *,
    job_id: str,
    state_name: str,
    key: Columns,
    columns: Columns | None = None,
    kind: Kind = "value",
    map_key: Columns | None = None,
    output_mode: OutputMode,
    order_by: Columns | None = None,
    delete: str | None = None,
    ttl: str | None = None,
    max_parallelism: int = MAX_PARALLELISM_DEFAULT,
    on_new_query: OnNewQuery = "refuse",
    commit_timeout_seconds: float = COMMIT_TIMEOUT_SECONDS_DEFAULT,
    credentials: str | Credentials | None = None,
) -> DataStreamWriter:
    """
    Return what writes each micro-batch of *df* into one queryable state.

    Set a checkpoint location on it, a trigger if you like, and ``start`` it.  Each
    batch is applied exactly once; readers see a whole batch of a node or nothing of it.

    Args:
        df: A streaming DataFrame.
        config: The name service by which the proxy is found; its URL will do.
        job_id: The job that the state belongs to.
        state_name: Its name within the job.
        key: See `StateSpec`, as for the others down to *ttl*.
        columns: The value columns; by default all that have no other part here.
        kind: ``"value"``, ``"list"`` or ``"map"``.
        map_key: The columns that tell the entries of one key apart, in a map state.
        output_mode: ``"update"`` and ``"append"`` insert or replace by key (the latter
            needs *order_by*), ``"complete"`` replaces everything; list states want
            ``"append"``.
        order_by: Decides between rows of one key in one batch: the greatest stays.
        delete: A boolean column: where it is true, the key is deleted.
        ttl: A timestamp column: the row is absent from then on.
        max_parallelism: The number of key groups, the same for all states of a job and
            for life.
        on_new_query: Whether a state that belongs to another query is an error
            (``"refuse"``), begins anew (``"replace"``) or goes on (``"continue"``).
        commit_timeout_seconds: How long a batch may take to be applied by its nodes;
            after it the query fails, and goes on with the same batch when restarted.
        credentials: A token or CURVE keys, if the proxy wants to know who writes.

    Raises:
        ConfigurationError: If the query could not work like that; says what to change.
        UnreachableError: If the name service did not answer within its
            ``connect_timeout_seconds``.
        AuthenticationError: If it refused us.
    """
    spec = StateSpec(
        state_name=state_name,
        key=key,
        columns=columns,
        kind=kind,
        map_key=map_key,
        order_by=order_by,
        delete=delete,
        ttl=ttl,
    )
    return publish_states(
        df,
        config,
        [spec],
        job_id=job_id,
        output_mode=output_mode,
        max_parallelism=max_parallelism,
        on_new_query=on_new_query,
        commit_timeout_seconds=commit_timeout_seconds,
        credentials=credentials,
    )


def publish_states(
    df: DataFrame,
    config: HAConfig | str,
    states: Sequence[StateSpec],
    *,
    job_id: str,
    output_mode: OutputMode,
    max_parallelism: int = MAX_PARALLELISM_DEFAULT,
    on_new_query: OnNewQuery = "refuse",
    commit_timeout_seconds: float = COMMIT_TIMEOUT_SECONDS_DEFAULT,
    credentials: str | Credentials | None = None,
) -> DataStreamWriter:
    """
    Return what writes each micro-batch of *df* into several states at once.

    The batch is computed once, and all its states change together.

    Args:
        df: As in `publish_state`, like all but *states*.
        config: The name service.
        states: What to write; each takes the columns of *df* that it names.
        job_id: The job.
        output_mode: For all of them.
        max_parallelism: For all of them.
        on_new_query: For all of them.
        commit_timeout_seconds: For each batch.
        credentials: A token or CURVE keys.

    Raises:
        ConfigurationError: If the query could not work like that; says what to change.
        UnreachableError: If the name service did not answer in time.
        AuthenticationError: If it refused us.
    """
    check_session(df.sparkSession, "publish_state")
    if not df.isStreaming:
        raise ConfigurationError(
            "this DataFrame is no stream: write it with "
            'df.write.format("lodestar").option(…).save()'
        )
    options = WriteOptions(
        job_id=job_id,
        states=states,
        output_mode=output_mode,
        max_parallelism=max_parallelism,
        on_new_query=on_new_query,
        commit_timeout_seconds=commit_timeout_seconds,
    )
    if isinstance(config, str):
        config = HAConfig(url=config)
    layouts = options.layouts(df.schema)
    _check_name_service(config)
    if not options.is_complete:
        warn_of_lasting_windows(df, job_id, layouts)
    publisher = _Publisher(
        config=config,
        credentials=as_credentials(credentials),
        options=options,
        layouts=layouts,
    )
    return StateStreamWriter(df, publisher.begin).outputMode(output_mode)


def _check_name_service(config: HAConfig) -> None:
    """
    See that the name service is there, now: a batch would try for its whole timeout.

    Raises:
        UnreachableError: If it is not.
        AuthenticationError: If it refused us.
    """
    if config.backend is not Backend.EMBEDDED:
        open_ha_services(config).close()


@final
@frozen(kw_only=True)
class _Publisher:
    """Writes the micro-batches of one query; on the driver."""

    config: HAConfig
    credentials: Credentials
    options: WriteOptions
    layouts: tuple[StateLayout, ...]

    def begin(self) -> BatchFunction:
        """Return what writes the micro-batches of a run that is started now."""
        return functools.partial(self.publish, draw_at_start(self._draw_epoch))

    @through_spark
    def publish(self, drawn: DrawnEpoch, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, and wait until it is applied."""
        context = batch.sparkSession.sparkContext
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY)
        run_id = context.getLocalProperty(RUN_ID_PROPERTY)
        if query_id is None or run_id is None:
            raise LocalProtocolError(
                "this is no micro-batch of a streaming query: start the writer that "
                "publish_state returns"
            )
        timeout_seconds = self.options.commit_timeout_seconds
        writer = self._writer()
        # Before it waits: a run that is started later is the newer one.
        writer.begins(self.options.job_id, query_id=query_id, run_id=run_id)
        run = writer.begin(
            self.options.job_id,
            {layout.state_name: layout.schema for layout in self.layouts},
            query_id=query_id,
            run_id=run_id,
            max_parallelism=self.options.max_parallelism,
            on_new_query=self.options.on_new_query,
            born_epoch=drawn.result(),
            timeout_seconds=timeout_seconds,
        )
        writer.check_task_count(run, _partition_count(batch))
        messages = self._stage(batch, run, batch_id)
        committed = writer.commit(
            run.origin,
            batch_id,
            messages,
            is_complete=self.options.is_complete,
            timeout_seconds=timeout_seconds,
        )
        get_logger(component="sink", component_id=self.options.job_id).debug(
            "batch.committed",
            query_id=query_id,
            batch_id=batch_id,
            is_repeated=committed.is_repeated,
            row_count=sum(message.stage.row_count for message in messages),
        )

    def _writer(self) -> StateWriter:
        return StateWriter(writer_connections().proxy(self.config, self.credentials))

    def _draw_epoch(self) -> int:
        return self._writer().draw_epoch(
            self.options.job_id,
            # The first batch may wait for it, and then tries for as long as it may.
            timeout_seconds=self.options.commit_timeout_seconds / 2,
        )

    def _stage(
        self, batch: DataFrame, run: WriteRun, batch_id: int
    ) -> list[StageMessage]:
        """Have tasks stage the rows; return what they report, by partition."""
        names = tuple(
            dict.fromkeys(name for layout in self.layouts for name in layout.names_used)
        )
        # Under names of ours: mapInArrow cannot take every name (no dots), and Spark
        # does not find one that differs from another in case alone.
        columns = [f"c{number}" for number in range(len(batch.columns))]
        # Of several columns of one name none is used.
        numbered = dict(zip(batch.columns, columns, strict=True))
        frame = batch.toDF(*columns).select(
            *(numbered[name] for name in names),
            *(
                self._key_group(layout, numbered).alias(f"g{index}")
                for index, layout in enumerate(self.layouts)
            ),
        )
        task = stage_task(
            run,
            batch_id,
            self.layouts,
            names,
            # An embedded name service does not leave the driver; nodes are reached all
            # the same, unless they have moved meanwhile.
            config=None if self.config.backend is Backend.EMBEDDED else self.config,
            credentials=self.credentials,
            timeout_seconds=self.options.commit_timeout_seconds,
        )
        rows = frame.mapInArrow(task, _MESSAGE_SCHEMA).collect()
        return [StageMessage.from_bytes(bytes(row.message)) for row in rows]

    def _key_group(self, layout: StateLayout, numbered: Mapping[str, str]) -> Column:
        columns = [numbered[one.name] for one in layout.schema.key]
        count = F.lit(self.options.max_parallelism)
        return F.pmod(F.xxhash64(*columns), count).cast("int")


def stage_task(
    run: WriteRun,
    batch_id: int,
    layouts: Sequence[StateLayout],
    names: Sequence[str],
    *,
    config: HAConfig | None,
    credentials: Credentials,
    timeout_seconds: float,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """
    Return what a task runs to stage its rows, for ``mapInArrow``; picklable.

    It yields one row with one binary column: `StageMessage.to_bytes`.

    Args:
        run: The run that writes.
        batch_id: The batch.
        layouts: The states, in the order of *run*'s state numbers.
        names: What the columns are called; behind them, each state has a column with
            the key group of a row.
        config: The name service, where tasks can reach it; only asked when a node has
            moved, or goes by another proxy leader.
        credentials: Whom the nodes see.
        timeout_seconds: How long a node may be silent.
    """

    def find_node(node_id: str) -> str | None:
        if config is None:
            return None
        proxy = writer_connections().proxy(
            config, credentials, first_address=run.plan.proxy_address
        )
        return StateWriter(proxy).find_node(
            run.plan, node_id, timeout_seconds=_FIND_TIMEOUT_SECONDS
        )

    def renew_grant() -> bytes:
        assert config is not None
        proxy = writer_connections().proxy(
            config, credentials, first_address=run.plan.proxy_address
        )
        return StateWriter(proxy).renew_grant(
            run, timeout_seconds=_FIND_TIMEOUT_SECONDS
        )

    def split(
        batches: Iterable[pa.RecordBatch],
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[pa.Array]]]:
        count = len(names)
        for batch in batches:
            columns = batch.columns
            yield (
                pa.RecordBatch.from_arrays(columns[:count], names=list(names)),
                columns[count:],
            )

    @through_spark
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Stager(
            run,
            batch_id,
            config=config,
            credentials=credentials,
            find_node=find_node,
            renew_grant=None if config is None else renew_grant,
            limits=StageLimits(timeout_seconds=timeout_seconds),
        ) as stager:
            message = stage_batches(
                split(batches), stager, layouts, run.origin.state_numbers
            )
        yield pa.RecordBatch.from_pydict({"message": [message.to_bytes()]})

    return stage


def _partition_count(batch: DataFrame) -> int:
    """Return how many tasks will stage a micro-batch; nothing is computed for it."""
    # `DataFrame.rdd` says the same, and plans how to serialize rows for Python first.
    count: int = batch._jdf.queryExecution().toRdd().getNumPartitions()  # noqa: SLF001
    return count
