"""
Windows that stay: what a watermark drops from Spark's state stays in a published one.

Spark forgets a window that the watermark has passed, and tells no sink (rule W6).
Without ``ttl=`` every window is kept for ever, which a query that has run for months
shows: so it is said when the query is defined.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from nameservice import get_logger
from queryablestate.schema.schema import AtomicType, StructType


if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from queryablestate.schema.schema import DataType
    from sparkpipeline.state.options import StateLayout


__all__ = ["warn_of_lasting_windows"]

_TIMES = frozenset({AtomicType.DATE, AtomicType.TIMESTAMP, AtomicType.TIMESTAMP_NTZ})


def warn_of_lasting_windows(
    df: DataFrame, job_id: str, layouts: Sequence[StateLayout]
) -> None:
    """
    Tell the log of each state whose keys are times of a stream with a watermark.

    Once in a process for each state, and not of one that has a TTL or deletes.

    Args:
        df: What is published, in update or append mode.
        job_id: The job.
        layouts: The states.
    """
    lasting = [
        (layout.state_name, column.name)
        for layout in layouts
        if layout.ttl is None and layout.delete is None
        for column in (*layout.schema.key, *layout.schema.map_key)
        if _is_time(column.type)
    ]
    # The schema tells of whole windows only, and not of their ends: the plan does.
    if lasting and "EventTimeWatermark" in _plan(df):
        for state_name, column in lasting:
            _warn(job_id, state_name, column)


def _plan(df: DataFrame) -> str:
    text: str = df._jdf.queryExecution().analyzed().toString()  # noqa: SLF001 (Python's explain prints)
    return text


def _is_time(data_type: DataType) -> bool:
    """Return whether a value is a time, or a window: a struct with a time in it."""
    if isinstance(data_type, StructType):
        return any(_is_time(one.type) for one in data_type.fields)
    return data_type in _TIMES


@lru_cache(maxsize=256)
def _warn(job_id: str, state_name: str, column: str) -> None:
    get_logger(component="sink", component_id=job_id).warning(
        "ttl.missing",
        state_name=state_name,
        column=column,
        reason="rows whose time the watermark has passed stay in the state for ever: "
        "name a timestamp column with ttl=, such as window.end and an interval",
    )
