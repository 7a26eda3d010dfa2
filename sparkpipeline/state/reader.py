"""A state as a DataFrame: ``spark.read.format("lodestar")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec
from attrs import frozen
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from nameservice import ConfigurationError
from queryablestate.client.arrow_columns import arrow_rows
from queryablestate.client.partition_scan import PartitionScanner
from queryablestate.schema.schema import fields_text
from queryablestate.schema.schema_json import fields_json, parse_fields
from sparkpipeline.failures import through_spark


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from haservices import HAConfig
    from queryablestate.connect.credentials import Credentials


__all__ = ["READ_OPTION_NAMES", "ReadOptions", "StateReader", "parse_read_options"]

READ_OPTION_NAMES: Final = frozenset({"job_id", "state_name", "timeout_seconds"})
"""The names of `parse_read_options`."""

_TIMEOUT_SECONDS_DEFAULT: Final = 30.0


@final
@frozen(kw_only=True)
class ReadOptions:
    """
    What is to be read.

    Attributes:
        job_id: The job.
        state_name: The state.
        timeout_seconds: How long each question may take.
    """

    job_id: str
    state_name: str
    timeout_seconds: float = _TIMEOUT_SECONDS_DEFAULT


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """
    Return what options of ``format("lodestar")`` say.

    Raises:
        ConfigurationError: If one is missing or malformed.
    """
    for name in ("job_id", "state_name"):
        if name not in options:
            raise ConfigurationError(
                f'the option {name} is missing: add .option("{name}", …)'
            )
    text = options.get("timeout_seconds", str(_TIMEOUT_SECONDS_DEFAULT))
    try:
        timeout_seconds = float(text)
    except ValueError as error:
        raise ConfigurationError(
            f"the option timeout_seconds must be a number, not {text!r}"
        ) from error
    return ReadOptions(
        job_id=options["job_id"],
        state_name=options["state_name"],
        timeout_seconds=timeout_seconds,
    )


@final
class StateReader(DataSourceReader):
    """
    Reads one state, node by node.

    Args:
        options: What is to be read.
        config: The name service.
        credentials: Who asks.
        schema: The columns that Spark expects of `read`.
    """

    def __init__(
        self,
        options: ReadOptions,
        config: HAConfig,
        credentials: Credentials,
        schema: StructType | None = None,
    ) -> None:
        self._options = options
        self._config = config
        self._credentials = credentials
        self._schema = schema

    def schema(self) -> StructType:
        """Return the columns: key, map key, value."""
        with self._scanner() as scanner:
            text = fields_json(scanner.columns())
        return StructType.fromJson(msgspec.json.decode(text))

    @through_spark
    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each node that has key groups."""
        with self._scanner() as scanner:
            return [InputPartition(part) for part in scanner.parts()]

    @through_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of one partition.

        Raises:
            ConfigurationError: If the columns that Spark expects are not the state's.
        """
        assert self._schema is not None
        expected = parse_fields(self._schema.json())
        with self._scanner() as scanner:
            columns = scanner.columns()
            # The state may have got more of them since the query was planned.
            if columns[: len(expected)] != expected:
                raise ConfigurationError(
                    f"the state has the columns ({fields_text(columns)}), not "
                    f"({fields_text(expected)}): leave the schema out"
                )
            for rows in scanner.rows(partition.value):
                if rows:
                    yield arrow_rows(expected, [row[: len(expected)] for row in rows])

    def _scanner(self) -> PartitionScanner:
        return PartitionScanner(
            self._config,
            self._credentials,
            job_id=self._options.job_id,
            state_name=self._options.state_name,
            deadline_seconds=self._options.timeout_seconds,
        )
