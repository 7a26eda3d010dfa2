"""
`HAConfig` from and to Spark's configuration, and retrievers wherever Spark runs Python.

Theory of operation
-------------------
Settings are called ``spark.lodestar.*``, after the fields of `HAConfig`.  Spark copies
every ``spark.*`` setting of a session into the local properties of the jobs that its
SQL engine starts, and a task sees the local properties of its job.  So for DataFrames,
Python functions in them, structured streaming, and whatever runs inside
``foreachBatch``, the configuration travels with the job and the user does nothing.

Jobs that go around the SQL engine (``sc.parallelize``, ``df.rdd``, and with it
``df.foreachPartition``) carry only the local properties of the thread that starts
them.  `use_ha_config` sets those too; or an `HAConfig` is pickled into the closure.
(Measured with pyspark 4.3.0; tests/sparkpipeline holds it.)

What a process opens, it opens once: one `HAServices` per configuration, and one
retriever per job on it, kept for the tasks to come.  Spark's daemon forks its
workers, so the child of a process that had opened something begins with nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Final, final

from attrs import fields
from pyspark import TaskContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from haservices import Backend, HAConfig, open_ha_services
from nameservice import ConfigurationError, LocalProtocolError, NoLeaderError
from nameservice.uninterrupted import detached
from queryablestate.writer.connections import close_writer_connections


if TYPE_CHECKING:
    from collections.abc import Mapping

    from haservices import HAServices
    from retrieval import LeaderRetriever


__all__ = [
    "close_ha_services",
    "get_leader_retriever",
    "ha_config",
    "to_spark_settings",
    "use_ha_config",
]

SPARK_PREFIX: Final = "spark.lodestar."

_FIELD_NAMES: Final = tuple(sorted(attribute.name for attribute in fields(HAConfig)))
_SECONDS_SUFFIX: Final = "_seconds"


def ha_config(spark: SparkSession) -> HAConfig:
    """
    Return the configuration that the ``spark.lodestar.*`` settings of *spark* describe.

    A setting given when the session was built, by ``spark-submit --conf`` or by
    ``spark.conf.set`` counts alike.

    Raises:
        ConfigurationError: If ``spark.lodestar.url`` is missing, a setting is wrong,
            or there is one that `HAConfig` does not have; names the setting.
    """
    return _from_spark_settings(spark.conf.getAll)


def to_spark_settings(config: HAConfig) -> dict[str, str]:
    """
    Return *config* as Spark settings, such as ``spark.lodestar.url``.

    Give them to a session's builder, or to ``spark-submit --conf``.  `ha_config` of
    that session is *config* again.  Settings that are None are left out.
    """
    return {
        SPARK_PREFIX + name: str(value) for name, value in config.to_settings().items()
    }


def use_ha_config(spark: SparkSession, config: HAConfig) -> None:
    """
    Make every job that this thread starts on *spark* carry *config*.

    Sets what `to_spark_settings` returns on the session, and on the present thread for
    the jobs that go around Spark's SQL engine.  Whatever ``spark.lodestar.*`` settings
    were there before are removed.  A streaming query keeps what the session had when
    the query was started.
    """
    settings = to_spark_settings(config)
    for name in _FIELD_NAMES:
        key = SPARK_PREFIX + name
        value = settings.get(key)
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
        # None removes a property: Spark's own way, though it is annotated as text.
        spark.sparkContext.setLocalProperty(key, value)  # type: ignore[arg-type]


def get_leader_retriever(
    job_id: str, config: HAConfig | None = None
) -> LeaderRetriever:
    """
    Return this process's retriever of the leader of *job_id*, already started.

    Works on the driver and inside Python tasks on executors.  All who ask for the same
    job in one process share one retriever, so a task pays a handshake only where it is
    the first of its worker.  There is no need to close it: that happens when the
    process ends.  If it was closed nevertheless, the next call makes a new one.

    Args:
        job_id: Whose leader is looked for.
        config: The name service; by default what the session (on the driver) or the
            job (in a task) was configured with, see `ha_config`.

    Raises:
        ConfigurationError: If no configuration was found here, or it cannot be used
            here; says what to do.
        UnreachableError: If the name service does not answer.
        AuthenticationError: If it refuses us.
    """
    task = TaskContext.get()
    if config is None:
        config = _config_of_session() if task is None else _config_of_task(task)
    _check_embedded(config, is_task=task is not None)
    return _opened.retriever(config, job_id)


def close_ha_services() -> None:
    """
    Close what retrieving and publishing have opened in this process.  Idempotent.

    For programs that outlive their Spark session; it is done at exit anyway.
    """
    try:
        _opened.close()
    finally:
        close_writer_connections()


def _from_spark_settings(settings: Mapping[str, str]) -> HAConfig:
    """Return the configuration among *settings*; what is not ours is passed over."""
    chosen: dict[str, Any] = {}
    for key in sorted(settings):
        if not key.startswith(SPARK_PREFIX):
            continue
        name = key.removeprefix(SPARK_PREFIX)
        if name not in _FIELD_NAMES:
            known = ", ".join(SPARK_PREFIX + known for known in _FIELD_NAMES)
            message = f"unknown Spark setting {key}; known are {known}"
            raise ConfigurationError(message)
        chosen[name] = _parse(key, settings[key])
    if "url" not in chosen:
        message = (
            f"no name service is configured: set {SPARK_PREFIX}url, for example to "
            "leaderserver://host:port, when the Spark session is built"
        )
        raise ConfigurationError(message)
    return HAConfig(**chosen)


def _parse(key: str, text: str) -> str | float:
    if not key.endswith(_SECONDS_SUFFIX):
        return text
    try:
        return float(text)
    except ValueError as error:
        message = f"{key} must be a number of seconds, not {text!r}"
        raise ConfigurationError(message) from error


def _config_of_session() -> HAConfig:
    try:
        session = SparkSession.active()
    except PySparkRuntimeError as error:
        message = (
            "there is neither a Spark session nor a Spark task here to take the name "
            "service from: pass config=…"
        )
        raise ConfigurationError(message) from error
    return ha_config(session)


def _config_of_task(task: TaskContext) -> HAConfig:
    settings = {}
    for name in _FIELD_NAMES:
        text = task.getLocalProperty(SPARK_PREFIX + name)
        if text is not None:
            settings[SPARK_PREFIX + name] = text
    if SPARK_PREFIX + "url" not in settings:
        message = (
            f"this task's job carries no {SPARK_PREFIX}url.  Set it on the Spark "
            "session; for RDD jobs, df.rdd and df.foreachPartition, which Spark starts "
            "without the session's settings, call sparkpipeline.use_ha_config(spark, "
            "config) before, or pass config=… in the function that the tasks run"
        )
        raise ConfigurationError(message)
    return _from_spark_settings(settings)


def _check_embedded(config: HAConfig, *, is_task: bool) -> None:
    if config.backend is not Backend.EMBEDDED:
        return
    if is_task:
        message = (
            f"{config.url!r} does not leave the driver's process, and a task runs in "
            "another: use a LeaderServer instead, which can run as a thread of the "
            f"driver ({SPARK_PREFIX}url=leaderserver://host:port)"
        )
        raise ConfigurationError(message)
    if not config.embedded_name:
        message = (
            "'embedded:' alone is private to the program that opens it, so there "
            "is never a leader: give it a name, as in 'embedded:flights'"
        )
        raise ConfigurationError(message)


@final
class _Opened:
    """What one process has opened; thread-safe, and for signal handlers, too."""

    def __init__(self) -> None:
        # Held while a service is opened too: the second to come waits for the
        # first instead of opening another.  Not taken by the main thread.
        self._lock = threading.Lock()
        self._services: dict[HAConfig, HAServices] = {}
        self._retrievers: dict[tuple[HAConfig, str], LeaderRetriever] = {}

    def retriever(self, config: HAConfig, job_id: str) -> LeaderRetriever:
        """Return the started retriever of *job_id*, opened now if need be."""
        held = self._retrievers.get((config, job_id))
        if held is not None and _is_open(held):
            return held
        return detached(lambda: self._retriever(config, job_id))

    def _retriever(self, config: HAConfig, job_id: str) -> LeaderRetriever:
        with self._lock:
            held = self._retrievers.get((config, job_id))
            if held is not None and _is_open(held):
                return held
            services = self._services.get(config)
            if services is None:
                services = self._services[config] = open_ha_services(config)
            retriever = services.get_leader_retriever(job_id)
            retriever.start()
            self._retrievers[config, job_id] = retriever
            return retriever

    def close(self) -> None:
        """Close all of it; what is asked for later is opened anew."""
        detached(self._close)

    def _close(self) -> None:
        with self._lock:
            services = tuple(self._services.values())
            self._services.clear()
            self._retrievers.clear()
        with contextlib.ExitStack() as closing:  # all of them, whatever one raises
            for service in services:
                closing.callback(service.close)


def _is_open(retriever: LeaderRetriever) -> bool:
    try:
        retriever.wait_for_leader(timeout_seconds=0)
    except NoLeaderError:
        return True
    except LocalProtocolError:
        return False
    return True


_opened = _Opened()
# What a child inherits is kept and never touched: were it collected, its sockets,
# which are the parent's, would be closed.
_inherited: list[_Opened] = []


def _forget() -> None:
    global _opened  # noqa: PLW0603 - a forked child begins anew, lock included
    _inherited.append(_opened)
    _opened = _Opened()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_ha_services)
