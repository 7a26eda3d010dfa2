"""What a session and a checkpoint need so that a standby can take over (rule H4)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, final

from py4j.protocol import Py4JError, Py4JJavaError

from nameservice import ConfigurationError
from sparkpipeline.checkpoint_files import checkpoint_file_manager
from sparkpipeline.java_classes import java_class
from sparkpipeline.standby.queries import active_queries, session_of


if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


__all__ = ["QueryChecks", "check_checkpoint", "check_query", "check_settings"]

FORMAT_SETTING: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PROVIDER_SETTING: Final = "spark.sql.streaming.stateStore.providerClass"
MANAGER_SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"

_FORMAT_VERSION: Final = 2
_ROCKSDB: Final = (
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
)
_NOT_ATOMIC_MANAGER: Final = "FileSystemBasedCheckpointFileManager"

# Where Spark's offset and commit logs are created if absent, by a rename that replaces
# nothing.  Object stores have no such rename.
_SCHEMES: Final = frozenset({"file", "hdfs", "viewfs", "abfs", "abfss"})
_PROBE_PREFIX: Final = ".lodestar-probe-"
_TEMPORARY_PREFIX: Final = "temporary-"
_WITH_BATCHES: Final = "MicroBatchExecution"


def check_settings(spark: SparkSession) -> None:
    """
    Refuse a session whose state stores two drivers could overwrite.

    Raises:
        ConfigurationError: Names the setting, and what to set.
    """
    version = spark.conf.get(FORMAT_SETTING)
    if version is None or int(version) < _FORMAT_VERSION:
        raise ConfigurationError(
            f"{FORMAT_SETTING} is {version}: with format 1 a driver that was replaced "
            "can overwrite state files of its successor.  Set "
            f"--conf {FORMAT_SETTING}={_FORMAT_VERSION}"
        )
    provider = spark.conf.get(PROVIDER_SETTING)
    if provider != _ROCKSDB:
        raise ConfigurationError(
            f"{PROVIDER_SETTING} is {provider}, which has no state store checkpoint "
            f"format {_FORMAT_VERSION}.  Set --conf {PROVIDER_SETTING}={_ROCKSDB}"
        )


def check_checkpoint(spark: SparkSession, location: str) -> str:
    """
    Refuse a checkpoint location in which a file cannot be created if absent.

    Returns:
        What Spark calls it: with its file system.

    Raises:
        ConfigurationError: Says what to set or where to put it.
    """
    _check_manager(spark)
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 (there is no other way to it)
    java_session: Any = spark._jsparkSession  # noqa: SLF001 (as above)
    try:
        hadoop_conf = java_session.sessionState().newHadoopConf()
        path_class = java_class(jvm, "org.apache.hadoop.fs.Path")
        path = path_class(location)
        # By the name alone where there is one: its file system may not be installed.
        scheme = path.toUri().getScheme()
        if scheme is None:
            scheme = path.getFileSystem(hadoop_conf).getUri().getScheme()
        _check_scheme(location, str(scheme))
        qualified = str(path.getFileSystem(hadoop_conf).makeQualified(path))
        manager = checkpoint_file_manager(jvm, path, hadoop_conf)
        manager.mkdirs(path)
        probe = path_class(path, _PROBE_PREFIX + secrets.token_hex(8))
        manager.mkdirs(probe)
        try:
            file = path_class(probe, "file")
            is_refused = _is_second_refused(manager, file)
        finally:
            manager.delete(probe)
    except Py4JJavaError as error:
        raise ConfigurationError(
            f"the checkpoint location {location!r} cannot be used: "
            f"{error.java_exception}"
        ) from error
    if not is_refused:
        raise ConfigurationError(
            f"the checkpoint location {location!r} lets a file be replaced that is "
            f"there already: use one of {_named_schemes()}"
        )
    return qualified


def check_query(
    spark: SparkSession, query: StreamingQuery, *, checked: Container[str] = ()
) -> str:
    """
    Check settings and checkpoint of a query that was started.

    Args:
        spark: Its session.
        query: The query.
        checked: Locations that need not be tried again: that takes a while, and Spark
            tells of each try as if something had gone wrong.

    Returns:
        Its checkpoint location.

    Raises:
        ConfigurationError: As `check_settings` and `check_checkpoint`, or if the query
            has a temporary checkpoint or no micro-batches.
    """
    check_settings(spark)
    java_query: Any = query._jsq  # noqa: SLF001 (there is no other way to it)
    try:
        execution = java_query.streamingQuery()
        kind = str(execution.getClass().getSimpleName())
        location = str(execution.resolvedCheckpointRoot())
    except (Py4JError, AttributeError) as error:
        raise ConfigurationError(
            "this version of Spark does not tell where a query keeps its checkpoint: "
            "use 4.0 to 4.3"
        ) from error
    if not kind.endswith(_WITH_BATCHES):
        raise ConfigurationError(
            f"a query of the application runs as {kind}, which has no batches that "
            "could be guarded: give it a trigger of micro-batches"
        )
    if location.rpartition("/")[2].startswith(_TEMPORARY_PREFIX):
        raise ConfigurationError(
            "a query of the application has a temporary checkpoint, which no standby "
            'can take over: set option("checkpointLocation", …)'
        )
    _check_manager(spark)
    return location if location in checked else check_checkpoint(spark, location)


@final
class QueryChecks:
    """
    The checks of the queries of one driver, each location once.

    Args:
        spark: Its session.
        locations: Those that were checked already.
    """

    def __init__(self, spark: SparkSession, locations: Iterable[str]) -> None:
        self._spark = spark
        self._locations = set(locations)

    def check(self, query: StreamingQuery, session: SparkSession | None = None) -> None:
        """
        Check *query*.

        Args:
            query: The query.
            session: Which runs its batches, if that is known; by default the one that
                it was started in.  Not any other: each has settings of its own.

        Raises:
            ConfigurationError: As `check_query`.
        """
        if session is None:
            session = session_of(self._spark, query)
        self._locations.add(check_query(session, query, checked=self._locations))

    def check_id(self, session: SparkSession, query_id: str) -> None:
        """Check a query before its first batch, while the application still starts."""
        for query in active_queries(self._spark):
            if str(query.id) == query_id:
                self.check(query, session)


def _check_scheme(location: str, scheme: str) -> None:
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"the checkpoint location {location!r} is on {scheme}://, where Spark "
            "cannot create a file only if it is absent, so that two drivers could "
            f"write one batch: use one of {_named_schemes()}"
        )


def _check_manager(spark: SparkSession) -> None:
    manager = spark.conf.get(MANAGER_SETTING, None)
    if manager is not None and manager.endswith(_NOT_ATOMIC_MANAGER):
        raise ConfigurationError(
            f"{MANAGER_SETTING} is {manager}, which replaces files: unset it"
        )


def _named_schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in sorted(_SCHEMES))


def _is_second_refused(manager: Any, file: Any) -> bool:
    """Create *file* twice at once; return whether only the first came to be."""
    first = manager.createAtomic(file, False)  # noqa: FBT003 (Spark's interface)
    second = manager.createAtomic(file, False)  # noqa: FBT003 (Spark's interface)
    first.close()
    try:
        second.close()
    except Py4JJavaError:
        return True
    return False
