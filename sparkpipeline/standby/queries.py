"""The queries that an application has started under one leadership."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkpipeline.standby.leadership import StandbyLeadership


__all__ = [
    "active_queries",
    "is_collision",
    "queries_of",
    "session_of",
    "stop_queries",
    "watch_queries",
]

_POLL_SECONDS: Final = 0.02
_COLLISIONS: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
    "another writer already committed this batch",
)


def queries_of(started: Any) -> Sequence[StreamingQuery]:
    """
    Return the queries of what an application has returned.

    Raises:
        ConfigurationError: If there is none.
    """
    queries = (started,) if isinstance(started, StreamingQuery) else started
    if (
        not isinstance(queries, Sequence)
        or not queries
        or not all(isinstance(query, StreamingQuery) for query in queries)
    ):
        raise ConfigurationError(
            "the application must return the streaming query that it has started, or "
            f"a list of them, not {started!r}"
        )
    return tuple(queries)


def active_queries(spark: SparkSession) -> list[StreamingQuery]:
    """
    Return the queries that run in any session of the application.

    ``spark.streams`` tells of those of one session, and an application may make more.
    """
    java_spark: Any = spark._jsparkSession  # noqa: SLF001 (Python has no way to all)
    running = java_spark.sharedState().activeStreamingQueries()
    found = []
    # Py4J reads one key after the other, and then its value: either may have ended.
    for execution in running.values():
        query = None
        if execution is not None:
            query = execution.sparkSession().streams().get(execution.id())
        if query is not None:
            found.append(StreamingQuery(query))
    return found


def session_of(spark: SparkSession, query: StreamingQuery) -> SparkSession:
    """Return the session of which *query* is, with *spark*'s or settings of its own."""
    java_query: Any = query._jsq  # noqa: SLF001 (Python has no way to it)
    return SparkSession(spark.sparkContext, java_query.sparkSession())


def watch_queries(
    queries: Sequence[StreamingQuery],
    *,
    on_failed: Callable[[Exception], None],
    on_all_ended: Callable[[], None],
) -> None:
    """
    Tell when one of *queries* fails, or all have ended; return at once.

    Args:
        queries: At least one.
        on_failed: Called on a thread of ours with what a query has failed with.
        on_all_ended: Called on a thread of ours when the last one has ended well.
    """
    left = _Countdown(len(queries))

    def watch(query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - it is handed on
            on_failed(error)
        else:
            if left.down():
                on_all_ended()

    for query in queries:
        threading.Thread(
            target=watch, args=(query,), name="standby-query", daemon=True
        ).start()


def stop_queries(
    queries: Sequence[StreamingQuery], leadership: StandbyLeadership
) -> None:
    """
    Stop *queries*, each after the batch that it is in, as far as that is guarded.

    *leadership* refuses batches by now.  A batch that no guard knows of is finished if
    Spark says so before it begins the next one; else it comes again.

    Raises:
        Exception: What the first of them could not be stopped for.
    """

    def stop(query: StreamingQuery) -> None:
        _finish_batch(query, leadership)
        query.stop()

    # At once: what no guard refuses would begin batches while others are waited for.
    with ThreadPoolExecutor(max(len(queries), 1), "standby-stop") as threads:
        for stopping in [threads.submit(stop, query) for query in queries]:
            stopping.result()
    leadership.wait_until_idle()


def is_collision(error: Exception) -> bool:
    """Return whether a query has failed because another driver runs it, too."""
    return any(words in str(error) for words in _COLLISIONS)


def _finish_batch(query: StreamingQuery, leadership: StandbyLeadership) -> None:
    """Return when the batch that *query* is in is committed, or was refused."""
    before = _last_batch(query)
    if leadership.is_guarded(str(query.id)):
        leadership.wait_until_idle()
    while query.isActive and query.status["isTriggerActive"]:
        done = _last_batch(query)
        finished = leadership.finished_batch(str(query.id))
        if finished is None:
            if done != before:
                return
        elif done is not None and done >= finished:
            return
        time.sleep(_POLL_SECONDS)  # noqa: TID251 (Spark tells of a commit too late)


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


@final
class _Countdown:
    """Counts the queries that still run; thread-safe."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count

    def down(self) -> bool:
        """Count one down; return whether it was the last."""
        with self._lock:
            self._count -= 1
            return self._count == 0
