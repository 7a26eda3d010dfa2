"""
`Checkpoint`: what the checkpoint of a streaming query tells those who only read it.

Files are reached through Hadoop's own ``FileSystem`` in the driver's JVM, so that
whatever Spark can keep a checkpoint on, we can read: local disks, HDFS, object stores.

Theory of operation.  A batch is committed once ``commits/N`` is there.  The state after
batch N has the version N + 1, and each state partition has a file for what that batch
has changed: ``state/<operator>/<partition>/<version>.changelog`` with RocksDB where
changelog checkpointing is on (in newer checkpoints ``<version>_<unique id>.changelog``)
and ``<version>.delta`` with the provider that keeps state in memory.  RocksDB without
changelog checkpointing has no such file, and neither has the batch that an offline
repartition adds: that is how a feed that is missing is known before Spark fails to read
it.  One partition is looked at, since every batch writes all of them.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast, final

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from nameservice import ConfigurationError, LocalProtocolError, StorageError
from sparkpipeline.java_classes import java_class
from sparkpipeline.spark_session import check_session


if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row, SparkSession


__all__ = ["Checkpoint", "split_offsets"]

FORMAT_VERSION_SETTING: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"

_OFFSET_FORMAT_SETTING: Final = "spark.sql.streaming.offsetLog.formatVersion"
_SOURCE_NAMES_SETTING: Final = (
    "spark.sql.streaming.queryEvolution.enableSourceEvolution"
)

_BATCH_FILE: Final = re.compile(r".*/(\d+)")
_FEED_FILE: Final = re.compile(r".*/(\d+)(?:_[^/]*)?\.(?:changelog|delta)")
_DETAIL_LENGTH_MAX: Final = 400
_NOT_FOUND: Final = "java.io.FileNotFoundException"


@final
class _QueryMetadata(msgspec.Struct, frozen=True):
    """The file ``metadata``, as far as it matters here."""

    id: str


@final
class Checkpoint:
    """
    Reads one checkpoint.  For one thread at a time.

    Args:
        spark: A session of a driver.
        location: As it was given to the query.

    Raises:
        ConfigurationError: If *spark* has no driver in this process.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._spark = spark
        check_session(spark, "attach_state")
        # Spark has no other way to files than this one, which all of PySpark uses.
        jvm = cast("Any", spark._jvm)  # noqa: SLF001 (as above)
        with self._reading():
            self._path_class = java_class(jvm, "org.apache.hadoop.fs.Path")
            self._file_util = java_class(jvm, "org.apache.hadoop.fs.FileUtil")
            self._io_utils = java_class(jvm, "org.apache.commons.io.IOUtils")
            self._sequence = java_class(jvm, "scala.collection.immutable.ArraySeq")
            self._root = self._path_class(location)
            conf = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 (as above)
            self._files = self._root.getFileSystem(conf)

    # -- batches -----------------------------------------------------------------------

    def query_id(self) -> str | None:
        """
        Return the id of the query, or None if there is no checkpoint yet.

        Raises:
            StorageError: If it cannot be read.
        """
        text = self._text("metadata")
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=_QueryMetadata).id
        except msgspec.DecodeError as error:
            raise StorageError(
                f"{self.location}/metadata is not that of a streaming query: {error}"
            ) from error

    def committed(self) -> list[int]:
        """Return the batches that are committed and kept, sorted."""
        return sorted(self._numbers("commits", _BATCH_FILE))

    def is_committed(self, batch_id: int) -> bool:
        """Return whether a batch is committed, and kept."""
        with self._reading():
            return bool(self._files.exists(self._path(f"commits/{batch_id}")))

    def committed_at_ms(self, batch_id: int) -> int | None:
        """Return when a batch was committed, ms since 1970 UTC; None if purged."""
        with self._reading():
            try:
                # One call of the file system: whether it is there is not asked before.
                status = self._files.getFileStatus(self._path(f"commits/{batch_id}"))
            except Py4JJavaError as error:
                if str(error.java_exception.getClass().getName()) == _NOT_FOUND:
                    return None
                raise
            return int(status.getModificationTime())

    def fed(self, operator_id: int) -> set[int]:
        """Return the batches that have left a feed of what they changed."""
        versions = self._numbers(f"state/{operator_id}/0", _FEED_FILE)
        return {version - 1 for version in versions}

    def check_location(self) -> None:
        """
        Return if Spark's readers of state look where the query writes.

        They take the path as a URI has it, and look for a directory of that name: where
        it has a space, another one, which may even be there.  Offsets and commits are
        read in another way, so that only who reads state need ask.

        Raises:
            ConfigurationError: If they look elsewhere; says what to change.
            StorageError: If the file system cannot be asked.
        """
        with self._reading():
            files = self._files
            written = files.makeQualified(self._root)
            read = self._path_class(str(written.toUri().toString()))
            if bool(read.equals(written)):
                return
            read_text = str(read.toString())
        raise ConfigurationError(
            f"Spark's reader of state takes the checkpoint {self.location!r} for "
            f"{read_text!r}: have the query keep it at a path without spaces, %, #, ? "
            "and other characters that a URI escapes"
        )

    def check_readable(self, batch_id: int) -> None:
        """
        Return if this session can read the whole state after a batch.

        Raises:
            ConfigurationError: If the query has another format of checkpoints; says
                what to set.
        """
        text = self._text(f"commits/{batch_id}")
        if text is None:
            return
        version = text.partition("\n")[0].removeprefix("v")
        setting = self._spark.conf.get(FORMAT_VERSION_SETTING, "1") or "1"
        # Spark takes this from the session, unlike all else that the query had.
        if version.isdecimal() and int(version) > 1 and setting != version:
            raise ConfigurationError(
                f"{self.location} is a checkpoint of format {version}: set "
                f"{FORMAT_VERSION_SETTING} to {version} on this session, as the query "
                "has it"
            )

    def offsets(self, batch_id: int) -> list[str] | None:
        """
        Return where a batch ends: the offset of each source, as Spark wrote it.

        Returns:
            One text for each source, in their order; None if Spark keeps it no more.

        Raises:
            ConfigurationError: If it does not tell the order of the sources, or is of
                a version that is not known here.
            StorageError: If it cannot be read.
        """
        name = f"offsets/{batch_id}"
        text = self._text(name)
        return None if text is None else split_offsets(text, f"{self.location}/{name}")

    # -- state -------------------------------------------------------------------------

    def operators(self) -> list[Row]:
        """Return the rows of Spark's ``state-metadata`` reader."""
        with self._reading():
            return (
                self._spark.read.format("state-metadata").load(self.location).collect()
            )

    def snapshot(
        self, operator_id: int, state_var_name: str | None, batch_id: int
    ) -> DataFrame:
        """Return the state after a batch, as Spark's ``statestore`` reader gives it."""
        return self._state(operator_id, state_var_name, batchId=batch_id)

    def feed(
        self, operator_id: int, state_var_name: str | None, first: int, last: int
    ) -> DataFrame:
        """Return what batches *first* to *last*, included, have changed, in order."""
        return self._state(
            operator_id,
            state_var_name,
            readChangeFeed=True,
            changeStartBatchId=first,
            changeEndBatchId=last,
        )

    def collect(self, frame: DataFrame) -> list[Row]:
        """
        Return the rows of *frame*, which is made from the above.

        Raises:
            StorageError: If Spark could not read the state.
        """
        with self._reading():
            return frame.collect()

    def is_over(self) -> bool:
        """Return whether the Spark application has ended."""
        context = self._spark.sparkContext._jsc  # noqa: SLF001 (PySpark asks no other way)
        try:
            return context is None or bool(context.sc().isStopped())
        except (Py4JError, OSError):
            return True

    def check_running(self) -> None:
        """
        Return if there is an application that can read.

        Raises:
            LocalProtocolError: If it has ended.
        """
        if self.is_over():
            raise LocalProtocolError(
                "the Spark application has ended: attach the state in another one"
            )

    # -- parts -------------------------------------------------------------------------

    def _state(
        self, operator_id: int, state_var_name: str | None, **options: int
    ) -> DataFrame:
        reader = self._spark.read.format("statestore").option("operatorId", operator_id)
        if state_var_name is not None:
            reader = reader.option("stateVarName", state_var_name)
        with self._reading():
            return reader.options(**options).load(self.location)

    def _path(self, name: str) -> Any:
        return self._path_class(self._root, name)

    def _numbers(self, directory: str, pattern: re.Pattern[str]) -> set[int]:
        """Return the numbers that names in *directory* begin with, if there is one."""
        with self._reading():
            path = self._path(directory)
            if not self._files.exists(path):
                return set()
            statuses = self._files.listStatus(path)
            paths = self._file_util.stat2Paths(statuses)
            # One call in place of two for every file.
            text: str = self._sequence.unsafeWrapArray(paths).mkString("\n")
        found = map(pattern.fullmatch, text.splitlines())
        return {int(match[1]) for match in found if match is not None}

    def _text(self, name: str) -> str | None:
        """Return a small file, or None if it is not there."""
        with self._reading():
            path = self._path(name)
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                text: str = self._io_utils.toString(stream, "UTF-8")
            finally:
                stream.close()
        return text

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (Py4JError, PySparkException, OSError) as error:
            raise StorageError(
                f"the checkpoint {self.location} cannot be read: {_sentence(error)}"
            ) from error


def split_offsets(text: str, path: str) -> list[str]:
    """
    Return the offset of each source, in their order.

    Args:
        text: A file of Spark's offset log, in either format: one line for each source,
            or one in any order, behind ``id:``.  Ids are numbers, or names if Spark
            was told to go by them.
        path: Where the file is, for people.

    Raises:
        ConfigurationError: If there are several sources with names, so that their
            order is not known, or if it is another format.
        StorageError: If it is in neither format.
    """
    # Not at what else Python takes for a line end: JSON may hold that.
    version, *lines = text.split("\n")
    offsets = lines[1:]  # behind times and settings
    if version == "v1":
        return offsets
    if version != "v2":
        raise ConfigurationError(
            f"{path} is of the format {version[:20]!r}, which is not known here: have "
            f"the query begin with {_OFFSET_FORMAT_SETTING} 1 or 2"
        )
    by_id = {}
    for line in offsets:
        source_id, colon, offset = line.partition(":")
        if not colon:
            raise StorageError(f"{path} has a line without the id of a source")
        by_id[source_id] = offset
    order = [str(index) for index in range(len(by_id))]
    if by_id.keys() == set(order):
        return [by_id[source_id] for source_id in order]
    if len(by_id) > 1:
        raise ConfigurationError(
            f"{path} tells sources apart by their names ({', '.join(sorted(by_id))}), "
            "and does not tell their order: have the query begin without "
            f"{_SOURCE_NAMES_SETTING}"
        )
    return list(by_id.values())


def _sentence(error: Exception) -> str:
    """Return what *error* says, without the stacks of the JVM and of Python."""
    exception = getattr(error, "java_exception", None)
    try:
        text = str(error) if exception is None else str(exception.toString())
    except (Py4JError, OSError):
        text = type(error).__name__
    first, *others = text.strip().split("\n") or [""]
    if "Traceback" in text:
        # What Python raised stands below its stack, which is indented.
        raised = [line for line in others if line and not line[0].isspace()]
        first = raised[-1] if raised else first
    return first.strip()[:_DETAIL_LENGTH_MAX]
