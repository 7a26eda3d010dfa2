"""
``format("lodestar-log")``: a directory of append-only files as a stream (rule O4).

The partitions of the log are shared among subtasks as operator state is; see
`sparkpipeline.log.state`.  What reads is `sparkpipeline.log.reader`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import DataSource

from nameservice import ConfigurationError
from sparkpipeline.failures import through_spark
from sparkpipeline.log.records import LINE_SCHEMA, RecordDecoder


if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from sparkpipeline.log.reader import LogOptions


__all__ = ["LodestarLogSource"]

PARALLELISM_MAX: Final = 32_768
BYTES_PER_PARTITION_MAX_DEFAULT: Final = 64 * 1024 * 1024

_OPTIONS: Final = frozenset(
    {
        "path",
        "parallelism",
        "glob",
        "bytes_per_partition_max",
        "bad_records",
        "removed_partitions",
    }
)

Word = TypeVar("Word", bound=str)


class LodestarLogSource(DataSource):
    """
    A log as Spark reads it by ``format("lodestar-log")``, as a stream.

    Options: ``path``, the directory; ``parallelism`` (1), how many subtasks read;
    ``glob`` (``*.jsonl``), what partitions are called; ``bytes_per_partition_max`` (64
    MiB), how much of each one batch reads; ``bad_records`` and ``removed_partitions``,
    see `LogOptions`.

    Raises:
        ConfigurationError: If an option is not known, missing or wrong.
    """

    @through_spark
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in options.items()}
        for name in sorted(given):
            if name not in _OPTIONS:
                raise ConfigurationError(
                    f"unknown option {name}; known are {', '.join(sorted(_OPTIONS))}"
                )
        self._given = given

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lodestar-log"

    def schema(self) -> StructType:
        """Return what there is of each line, unless fields of the records are named."""
        return LINE_SCHEMA

    @through_spark
    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuse: a log has no end."""
        raise ConfigurationError(
            "lodestar-log is a stream: use spark.readStream, with "
            ".trigger(availableNow=True) to read what there is and stop"
        )

    @through_spark
    def streamReader(  # noqa: N802 (Spark's interface)
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Return what reads the log."""
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise ConfigurationError(
                "lodestar-log needs Spark 4.2 or newer: before, Spark did not tell a "
                "source where a batch begins"
            )
        # Spark finds this module by itself, at every start: it must not fail there.
        from sparkpipeline.log.reader import LogStreamReader  # noqa: PLC0415 (see above)

        RecordDecoder(schema)  # says now what it would say in the first task
        return LogStreamReader(self._options(), schema)

    def _options(self) -> LogOptions:
        from sparkpipeline.log.reader import LogOptions  # noqa: PLC0415 (see above)

        glob = self._given.get("glob", "*.jsonl")
        if not glob or "/" in glob:
            raise ConfigurationError(
                f"the option glob is a pattern for names in one directory, not {glob!r}"
            )
        bad: Literal["fail", "skip"] = self._word("bad_records", "fail", "skip")
        removed: Literal["fail", "forget"] = self._word(
            "removed_partitions", "fail", "forget"
        )
        return LogOptions(
            path=self._path(),
            parallelism=self._number("parallelism", 1, PARALLELISM_MAX),
            glob=glob,
            bytes_per_partition_max=self._number(
                "bytes_per_partition_max", BYTES_PER_PARTITION_MAX_DEFAULT
            ),
            bad_records=bad,
            removed_partitions=removed,
        )

    def _path(self) -> str:
        text = self._given.get("path", "")
        path = text
        if text.startswith("file:"):
            path = unquote(urlsplit(text).path)
        if not Path(path).is_absolute():
            raise ConfigurationError(
                "the option path must be a directory that the driver and all executors "
                f"have under the same absolute name, not {text!r}"
            )
        return path

    def _number(self, name: str, default: int, maximum: int | None = None) -> int:
        text = self._given.get(name, str(default))
        number = int(text) if text.isascii() and text.isdecimal() else 0
        if number < 1 or (maximum is not None and number > maximum):
            limits = "at least 1" if maximum is None else f"1 to {maximum}"
            raise ConfigurationError(
                f"the option {name} must be {limits}, not {text!r}"
            )
        return number

    def _word(self, name: str, default: Word, other: Word) -> Word:
        text = self._given.get(name, default)
        if text not in (default, other):
            raise ConfigurationError(
                f'the option {name} must be "{default}" or "{other}", not {text!r}'
            )
        return default if text == default else other
