"""
``format("lodestar")``: states as a source and a sink of Spark.

Theory of operation.  Spark makes a data source anew in every process that has to do
with it, and none of these is the user's driver program: one plans (it calls ``writer``
or ``streamWriter`` and pickles the result), one after another runs ``write`` in a task,
and a third one, long-lived, calls ``commit``.  So nothing is kept in the objects here
but what was known when they were made:

*   the planner draws a ticket, which travels in the pickled writer (rule W1);
*   a task knows from its context of which query, run and batch it is, and binds them
    for now: when its run was born it cannot know;
*   Spark pickles the source once in a run, for all its commits: with it goes the epoch
    that the run was born with;
*   the committer is told by messages alone, and decides by them (rule W3);
*   an abort does nothing: it may arrive late, and name a newer run's work (rule W2).

The process that plans does not see the Spark session, nor its ``spark.lodestar.*``
settings: the name service is given as options, or in the environment of the driver.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING, Any, Final, final

from attrs import fields, frozen
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from haservices import Backend, HAConfig
from nameservice import ConfigurationError, LocalProtocolError
from queryablestate.connect.credentials import Credentials, credentials_of
from queryablestate.writer.connections import writer_connections
from queryablestate.writer.stager import StageLimits, Stager
from queryablestate.writer.writer import StateWriter
from sparkpipeline.failures import through_spark
from sparkpipeline.state.columns import key_groups
from sparkpipeline.state.options import (
    COMMIT_TIMEOUT_SECONDS_DEFAULT,
    WRITE_OPTION_NAMES,
    parse_write_options,
)
from sparkpipeline.state.reader import (
    READ_OPTION_NAMES,
    StateReader,
    parse_read_options,
)
from sparkpipeline.state.sink import QUERY_ID_PROPERTY, RUN_ID_PROPERTY
from sparkpipeline.state.staging import stage_batches


if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from queryablestate.writer.batches import (
        StageMessage,
        WriteOrigin,
        WritePlan,
        WriteRun,
    )
    from sparkpipeline.state.options import StateLayout, WriteOptions


__all__ = ["LodestarDataSource", "source_options"]

BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
"""The local property that is the batch id in a query's jobs (4.0 to 4.3)."""

_CONFIG_OPTIONS: Final = frozenset(one.name for one in fields(HAConfig))
_SECONDS_SUFFIX: Final = "_seconds"
_CREDENTIALS_OPTIONS: Final = {
    "token": "token",
    "token_file": "token_file",
    # Without "proxy_", they are those for the name service.
    "proxy_curve_public_key_file": "curve_public_key_file",
    "proxy_curve_secret_key_file": "curve_secret_key_file",
}
_OPTIONS: Final = (
    WRITE_OPTION_NAMES
    | READ_OPTION_NAMES
    | _CONFIG_OPTIONS
    | frozenset(_CREDENTIALS_OPTIONS)
)
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""What Spark puts there itself."""
_TABLE_OPTION_PREFIX: Final = "option."
"""How Spark's catalog gives options (Spark: ``TableCatalog.OPTION_PREFIX``)."""

_FIND_TIMEOUT_SECONDS: Final = 2.0
_QUERY_ID_LENGTH_MAX: Final = 255


def source_options(config: HAConfig | str) -> dict[str, str]:
    """
    Return *config* as options of ``format("lodestar")``, for ``.options(**…)``.

    With ``source_options(ha_config(spark))`` a source uses what the session does.
    """
    if isinstance(config, str):
        config = HAConfig(url=config)
    return {name: str(value) for name, value in config.to_settings().items()}


class LodestarDataSource(DataSource):
    """
    Queryable state as Spark reads and writes it by ``format("lodestar")``.

    Options are those of `publish_state` by the same names, several columns with commas
    between them; those of `HAConfig`, ``url`` above all; and for a proxy that wants to
    know who asks ``token``, ``token_file`` or ``proxy_curve_secret_key_file``.

    Raises:
        ConfigurationError: If an option is not known, or no name service is given.
    """

    @through_spark
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in options.items()}
        for name in sorted(given):
            if name.startswith(_TABLE_OPTION_PREFIX):
                raise ConfigurationError(
                    "lodestar cannot be a table of Spark's catalog, because Spark does "
                    "not keep the options of one for its readers: write CREATE "
                    "TEMPORARY VIEW … USING lodestar OPTIONS (…)"
                )
            if name not in _OPTIONS | _SPARK_OPTIONS:
                raise ConfigurationError(
                    f"unknown option {name}; known are {', '.join(sorted(_OPTIONS))}"
                )
        self._given = given
        self._born_epoch: int | None = None

    @through_spark
    def __getstate__(self) -> dict[str, Any]:
        """
        Return what travels: for a sink, with an epoch that the run was born with (W1).

        Spark pickles the source of a sink once in a run, before the first commit.
        """
        job_id = self._given.get("job_id")
        if "key" in self._given and job_id is not None and self._born_epoch is None:
            writer = StateWriter(
                writer_connections().proxy(self._config(), self._credentials())
            )
            name = "commit_timeout_seconds"
            text = self._given.get(name, str(COMMIT_TIMEOUT_SECONDS_DEFAULT))
            self._born_epoch = writer.draw_epoch(
                job_id, timeout_seconds=_seconds(name, text)
            )
        return self.__dict__.copy()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lodestar"

    @through_spark
    def schema(self) -> StructType:
        """Return the columns of the state that is to be read."""
        return self._reader().schema()

    @through_spark
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the state."""
        return self._reader(schema)

    @through_spark
    def writer(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 (Spark's interface)
    ) -> DataSourceArrowWriter:
        """Return what writes one DataFrame into a state."""
        return _BatchWriter(self._task(schema, is_complete=overwrite))

    @through_spark
    def streamWriter(  # noqa: N802 (Spark's interface)
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 (Spark's interface)
    ) -> DataSourceStreamArrowWriter:
        """Return what writes a micro-batch of a stream into a state."""
        return _StreamWriter(
            self._task(schema, is_complete=overwrite), self._born_epoch
        )

    def _reader(self, schema: StructType | None = None) -> StateReader:
        return StateReader(
            parse_read_options(self._given),
            self._config(),
            self._credentials(),
            schema,
        )

    def _task(self, schema: StructType, *, is_complete: bool) -> _WriteTask:
        """Plan a batch; on the driver's side, whatever the process."""
        options = parse_write_options(
            self._given, output_mode="complete" if is_complete else "append"
        )
        config = self._config()
        credentials = self._credentials()
        layouts = options.layouts(schema)
        writer = StateWriter(writer_connections().proxy(config, credentials))
        plan = writer.plan(
            options.job_id,
            {layout.state_name: layout.schema for layout in layouts},
            max_parallelism=options.max_parallelism,
            on_new_query=options.on_new_query,
            # The committer comes here, too, and needs no node to be there: tasks ask
            # where nodes are that are away now.
            waits_for_nodes=False,
            timeout_seconds=options.commit_timeout_seconds,
        )
        return _WriteTask(
            plan=plan,
            layouts=layouts,
            options=options,
            config=config,
            credentials=credentials,
        )

    def _config(self) -> HAConfig:
        settings: dict[str, Any] = {
            name: self._given[name] for name in _CONFIG_OPTIONS if name in self._given
        }
        for name, text in settings.items():
            if name.endswith(_SECONDS_SUFFIX):
                settings[name] = _seconds(name, text)
        if "url" in settings:
            config = HAConfig(**settings)
        else:
            try:
                config = HAConfig.load(**settings)
            except ConfigurationError as error:
                raise ConfigurationError(
                    'no name service is given: add .option("url", …), or '
                    ".options(**sparkpipeline.source_options(ha_config(spark))); the "
                    "settings of the session do not get to data sources"
                ) from error
        if config.backend is Backend.EMBEDDED:
            raise ConfigurationError(
                f"{config.url!r} does not leave the driver's process, and a data "
                "source runs in others: use a LeaderServer instead, which can run as a "
                "thread of the driver, or publish_state"
            )
        return config

    def _credentials(self) -> Credentials:
        return credentials_of(
            **{
                name: self._given[option]
                for option, name in _CREDENTIALS_OPTIONS.items()
                if option in self._given
            }
        )


@final
class StagedMessage(WriterCommitMessage):
    """
    What a task tells the committer.

    Attributes:
        message: What it has staged.
    """

    def __init__(self, message: StageMessage) -> None:
        self.message = message


@final
@frozen(kw_only=True)
class _WriteTask:
    """A planned batch, as it travels to the tasks that write it."""

    plan: WritePlan
    layouts: tuple[StateLayout, ...]
    options: WriteOptions
    config: HAConfig
    credentials: Credentials

    def writer(self) -> StateWriter:
        """Return this process's writer."""
        proxy = writer_connections().proxy(
            self.config, self.credentials, first_address=self.plan.proxy_address
        )
        return StateWriter(proxy)

    def bind(self, query_id: str, run_id: str, *, is_for_now: bool = False) -> WriteRun:
        """Bind the batch to the run that writes it."""
        return self.writer().bind(
            self.plan,
            query_id=query_id,
            run_id=run_id,
            is_for_now=is_for_now,
            timeout_seconds=self.options.commit_timeout_seconds,
        )

    def stage(
        self, run: WriteRun, batch_id: int, batches: Iterator[pa.RecordBatch]
    ) -> StagedMessage:
        """
        Stage the rows of one task.

        Spark does not tell how many tasks there are.  But a task has a number, and as
        many are before it: it stages nothing if these are too many (rule B3).
        """
        task = TaskContext.get()
        if task is not None:
            self.writer().check_task_count(run, task.partitionId() + 1)
        max_parallelism = self.plan.max_parallelism
        with_groups = (
            (
                batch,
                [
                    key_groups(
                        batch, layout.schema.key, max_parallelism=max_parallelism
                    )
                    for layout in self.layouts
                ],
            )
            for batch in batches
        )

        with Stager(
            run,
            batch_id,
            config=self.config,
            credentials=self.credentials,
            find_node=lambda node_id: self.writer().find_node(
                self.plan, node_id, timeout_seconds=_FIND_TIMEOUT_SECONDS
            ),
            renew_grant=lambda: self.writer().renew_grant(
                run, timeout_seconds=_FIND_TIMEOUT_SECONDS
            ),
            limits=StageLimits(timeout_seconds=self.options.commit_timeout_seconds),
        ) as stager:
            return StagedMessage(
                stage_batches(
                    with_groups, stager, self.layouts, run.origin.state_numbers
                )
            )

    def commit(
        self,
        origin: WriteOrigin,
        batch_id: int | None,
        staged: list[StageMessage],
        *,
        born_epoch: int | None = None,
    ) -> None:
        """Have the batch decided, and wait until it is applied."""
        self.writer().commit(
            origin,
            batch_id,
            staged,
            is_complete=self.options.is_complete,
            born_epoch=born_epoch,
            timeout_seconds=self.options.commit_timeout_seconds,
        )


@final
class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, task: _WriteTask, born_epoch: int | None) -> None:
        self._task = task
        self._born_epoch = born_epoch

    @through_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        run = self._task.bind(
            _local_property(QUERY_ID_PROPERTY),
            _local_property(RUN_ID_PROPERTY),
            is_for_now=True,
        )
        batch_id = int(_local_property(BATCH_ID_PROPERTY))
        return self._task.stage(run, batch_id, iterator)

    @through_spark
    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 (Spark's interface)
    ) -> None:
        staged = _messages(messages)
        if staged:  # else there was no task, and no row
            self._task.commit(
                staged[0].origin, batchId, staged, born_epoch=self._born_epoch
            )

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 (Spark's interface)
    ) -> None:
        """Do nothing: see the module docstring."""


@final
class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, task: _WriteTask) -> None:
        self._task = task
        self._run_id = str(uuid.uuid4())

    @through_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        run = self._bind()
        return self._task.stage(run, run.batch_id_next, iterator)

    @through_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = _messages(messages)
        origin = staged[0].origin if staged else self._bind().origin
        self._task.commit(origin, None, staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: see the module docstring."""

    def _bind(self) -> WriteRun:
        (layout,) = self._task.layouts
        query_id = batch_query_id(self._task.plan.job_id, layout.state_name)
        return self._task.bind(query_id, self._run_id)


def batch_query_id(job_id: str, state_name: str) -> str:
    """Return the query that owns what batch jobs write into a state (rule W5)."""
    text = f"batch:{job_id}/{state_name}"
    if len(text) <= _QUERY_ID_LENGTH_MAX:
        return text
    return f"batch:{hashlib.sha256(text.encode()).hexdigest()}"


def _messages(messages: Sequence[WriterCommitMessage | None]) -> list[StageMessage]:
    return [one.message for one in messages if isinstance(one, StagedMessage)]


def _local_property(name: str) -> str:
    task = TaskContext.get()
    value = None if task is None else task.getLocalProperty(name)
    if value is None:
        raise LocalProtocolError(
            f"Spark tells no {name} here: this is no task of a streaming query"
        )
    return value


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigurationError(
            f"the option {name} must be a number of seconds, not {text!r}"
        ) from error
