"""A state as a DataFrame: ``spark.read.format("lodestar")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec
from attrs import frozen
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from nameservice import ConfigurationError, RemoteProtocolError
from queryablestate.messages import DescribeState, StateDescribed
from queryablestate.schema import fields_json, parse_schema
from queryablestate.writer_links import writer_connections


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from haservices import HAConfig
    from queryablestate.credentials import Credentials
    from queryablestate.messages import StateDescription
    from queryablestate.schema import Field


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
    """

    def __init__(
        self, options: ReadOptions, config: HAConfig, credentials: Credentials
    ) -> None:
        self._options = options
        self._config = config
        self._credentials = credentials

    def schema(self) -> StructType:
        """Return the columns: key, map key, value."""
        fields = _columns(self._describe())
        return StructType.fromJson(msgspec.json.decode(fields_json(fields)))

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per node."""
        raise NotImplementedError

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one node."""
        raise NotImplementedError

    def _describe(self) -> StateDescription:
        proxy = writer_connections().proxy(self._config, self._credentials)
        answer = proxy.call(
            lambda request_id, session: DescribeState(
                request_id=request_id,
                session=session,
                job_id=self._options.job_id,
                state_name=self._options.state_name,
            ),
            timeout_seconds=self._options.timeout_seconds,
        )
        if not isinstance(answer, StateDescribed):
            raise RemoteProtocolError("unexpected", type(answer).__name__)
        return answer.description


def _columns(description: StateDescription) -> tuple[Field, ...]:
    schema = parse_schema(description.schema)
    return (*schema.key, *schema.map_key, *schema.value)
