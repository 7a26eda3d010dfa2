"""
Something that is done once under every executor of a Spark application.

Theory of operation.  Spark has no way to say "once on each executor".  A barrier stage
comes close: its tasks run all at once or not at all, so one with as many tasks as there
are slots has a task on every executor.  The tasks tell each other which JVM they run
under, and the first one of each JVM acts for it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from attrs import frozen
from pyspark import BarrierTaskContext

from nameservice import (
    NS_PER_SECOND,
    LocalProtocolError,
    SystemClock,
    UnreachableError,
    seconds_to_ns,
)
from nameservice.interruptible import InterruptibleEvent
from sparkpipeline.state.executor_node_process import machine, processes_seen


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import SparkContext


__all__ = [
    "POLL_SECONDS",
    "Action",
    "Place",
    "executors_asked_for",
    "is_local",
    "on_each_executor",
    "wait_for_executors",
]

POLL_SECONDS: Final = 0.1
"""How often to look for what tells of no event."""

_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,.*\]")


@final
@frozen(kw_only=True)
class Place:
    """
    Where an action runs.

    Attributes:
        jvm_pid: The executor.
        is_alone: Whether all executors are on this machine.
    """

    jvm_pid: int
    is_alone: bool


Action: TypeAlias = "Callable[[Place], Iterable[dict[str, Any]]]"


def executors_asked_for(context: SparkContext) -> int:
    """Return how many executors the application has asked for, as far as it says."""
    if found := _LOCAL_CLUSTER.fullmatch(str(context.master)):
        return int(found[1])
    return int(context.getConf().get("spark.executor.instances", "1"))


def is_local(context: SparkContext) -> bool:
    """Return whether the driver's JVM is the one executor."""
    master = str(context.master)
    return master == "local" or master.startswith("local[")


def wait_for_executors(
    context: SparkContext, executor_count: int, timeout_seconds: float
) -> None:
    """Wait until the application has that many executors; in local mode it has one."""
    if is_local(context):
        return
    clock = SystemClock()
    deadline_ns = clock.now_ns() + seconds_to_ns(timeout_seconds)
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 (Python's has no executors)
    while True:
        # One of them is the driver.
        found = len(tracker.getExecutorInfos()) - 1
        if found >= executor_count:
            return
        left_ns = deadline_ns - clock.now_ns()
        if left_ns <= 0:
            raise UnreachableError(
                f"{executor_count} executors",
                timeout_seconds,
                f"the application has {found}: give it more, or wait for fewer",
            )
        # Spark does not tell Python when an executor comes.
        InterruptibleEvent().wait(min(POLL_SECONDS, left_ns / NS_PER_SECOND))


def on_each_executor(context: SparkContext, action: Action) -> list[dict[str, Any]]:
    """Return what *action* yields, called once under each executor's JVM."""
    java_context = context._jsc.sc()  # noqa: SLF001 (Python has no way to count slots)
    profile = java_context.resourceProfileManager().defaultResourceProfile()
    slot_count = java_context.maxNumConcurrentTasks(profile)

    def run(_: Iterable[int]) -> Iterator[str]:
        task = BarrierTaskContext.get()
        jvm_pid = _jvm_pid()
        here = [processes_seen(), jvm_pid]
        told = json.dumps([*here, task.partitionId(), machine()])
        everybody = [json.loads(text) for text in task.allGather(told)]
        if min(one[2] for one in everybody if one[:2] == here) != task.partitionId():
            return  # another one sees to this JVM
        is_alone = {one[3] for one in everybody} == {machine()}
        for answer in action(Place(jvm_pid=jvm_pid, is_alone=is_alone)):
            yield json.dumps(answer)

    tasks = context.parallelize(range(slot_count), slot_count).barrier()
    return [json.loads(text) for text in tasks.mapPartitions(run).collect()]


def _jvm_pid() -> int:
    """
    Return the JVM that the present Python worker works for.

    Raises:
        LocalProtocolError: If it works for none.
    """
    pid = os.getpid()
    while pid > 1:
        name, parent_pid = _process(pid)
        if name == "java":
            return pid
        pid = parent_pid
    raise LocalProtocolError("this is no Python worker of a Spark executor")


def _process(pid: int) -> tuple[str, int]:
    """Return the name of a process and its parent; ("", 0) if it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        said = subprocess.run(
            ["ps", "-o", "ppid=,comm=", "-p", str(pid)],  # noqa: S607 (wherever it is)
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split(maxsplit=1)
        return (Path(said[1].strip()).name, int(said[0])) if len(said) == 2 else ("", 0)
    before, _, after = stat.rpartition(")")
    return before.partition("(")[2], int(after.split()[1])
