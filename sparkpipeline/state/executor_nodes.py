"""
`start_nodes`: a state node under every executor of a Spark application.

Theory of operation.  Under each executor (`sparkpipeline.state.each_executor`) the node
is started as a process of its own (`sparkpipeline.state.executor_node_process`), which
ends with the executor's JVM.

Nodes are stopped the same way, since signals do not cross machines, except those whose
files and processes are seen from the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

from attrs import asdict, evolve

from haservices import Backend, HAConfig
from nameservice import (
    NS_PER_SECOND,
    ConfigurationError,
    NameServiceError,
    SystemClock,
    UnreachableError,
    get_logger,
    seconds_to_ns,
)
from nameservice.interruptible import InterruptibleEvent
from queryablestate.node.config import NodeConfig
from sparkpipeline.spark_session import check_session
from sparkpipeline.state import executor_node_process
from sparkpipeline.state.each_executor import (
    POLL_SECONDS,
    Action,
    Place,
    executors_asked_for,
    is_local,
    on_each_executor,
    wait_for_executors,
)
from sparkpipeline.state.executor_node_process import (
    PID_PREFIX,
    NodeOrder,
    RunningNode,
    holder_of,
    processes_seen,
    read_slots,
    start_time_of,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from pyspark import SparkContext
    from pyspark.sql import SparkSession


__all__ = ["ExecutorNodes", "start_nodes"]

_SAID_LENGTH_MAX: Final = 500
_STOP_TIMEOUT_SECONDS: Final = 20.0
_KILL_TIMEOUT_SECONDS: Final = 5.0
_PID_LINE: Final = re.compile(rb"^%s(\d+)\n" % PID_PREFIX.encode(), re.MULTILINE)
_START_GRACE_SECONDS: Final = 30.0
"""What a process may take beside being registered: Python, imports, the store."""


def start_nodes(
    spark: SparkSession,
    config: HAConfig | str,
    *,
    data_dir: str | os.PathLike[str],
    nodes_per_executor: int = 1,
    executor_count: int | None = None,
    timeout_seconds: float = 60.0,
    **node_settings: Any,
) -> ExecutorNodes:
    """
    Start state nodes as processes of their own under every executor.

    Executors that have their nodes already keep them, so this may be called again after
    executors were replaced.  Needs every slot of the application for a moment.

    Args:
        spark: A session of the application.
        config: The name service, or its URL; an embedded one does not reach them.
        data_dir: Where they keep their rows, on the machine of each executor; a node
            that is started again there has the rows, and the name, of an earlier one.
        nodes_per_executor: How many each executor gets.
        executor_count: For how many executors to wait first; by default for
            ``spark.executor.instances``, or for one where that is not set.
        timeout_seconds: How long to wait, for these and then for the nodes to be
            registered with the proxy.
        node_settings: Others of `NodeConfig`: ``bind`` and what goes with it, if the
            executors are on several machines, ``token_file``, …

    Returns:
        A handle that stops them.  They end with their executors anyway.

    Raises:
        ConfigurationError: If a setting cannot be used; says what to change.
        UnreachableError: If there were not enough executors in time, or a node did not
            start; says why.  As after any other error, none that this call has started
            is left.
    """
    check_session(spark, "start_nodes")
    if isinstance(config, str):
        config = HAConfig(url=config)
    if config.backend is Backend.EMBEDDED:
        raise ConfigurationError(
            f"{config.url!r} does not leave the driver's process, and nodes run in "
            "others: use a LeaderServer, which can run as a thread of the driver"
        )
    if not Path(data_dir).is_absolute():
        raise ConfigurationError(
            f"data_dir must be an absolute path, not {os.fspath(data_dir)!r}: each "
            "executor has a working directory of its own"
        )
    if nodes_per_executor < 1:
        raise ConfigurationError(
            f"nodes_per_executor must be at least 1, not {nodes_per_executor}"
        )
    for name in ("node_id", "data_dir"):
        if name in node_settings:
            raise ConfigurationError(f"{name} is not for all nodes: leave it out")
    checked = NodeConfig(data_dir=data_dir, **node_settings)
    context = spark.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ConfigurationError(
            "nodes live as long as their executors, which come and go with "
            "spark.dynamicAllocation.enabled: turn that off, or run lodestar node "
            "beside Spark"
        )
    wanted_count = (
        1 if is_local(context) else executor_count or executors_asked_for(context)
    )
    order = NodeOrder(
        data_dir=os.fspath(data_dir),
        settings=config.to_settings(),
        node_settings={
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in node_settings.items()
        },
        jvm_pid=0,
        jvm_started="",
        token=secrets.token_hex(8),
        timeout_seconds=timeout_seconds,
    )
    start = _starting(
        order, nodes_per_executor, is_loopback=checked.bind_endpoint.is_loopback
    )
    wait_for_executors(context, wanted_count, timeout_seconds)
    try:
        nodes = _started(
            context, start, wanted_count, nodes_per_executor, timeout_seconds
        )
    except BaseException:
        # The caller gets no handle of them, whichever round they are of.
        _stop_started(context, order)
        raise
    return ExecutorNodes(context, nodes)


def _started(
    context: SparkContext,
    start: Action,
    executor_count: int,
    nodes_per_executor: int,
    timeout_seconds: float,
) -> list[RunningNode]:
    """Ask executors to *start* their nodes until as many as are wanted have them."""
    clock = SystemClock()
    deadline_ns = clock.now_ns() + seconds_to_ns(timeout_seconds)
    while True:
        answers = on_each_executor(context, start)
        for answer in answers:
            if "error" in answer:
                raise _error_of(answer, timeout_seconds)
        if len(answers) >= executor_count * nodes_per_executor:
            return [RunningNode(**answer) for answer in answers]
        if clock.now_ns() >= deadline_ns:
            raise UnreachableError(
                f"{executor_count} executors",
                timeout_seconds,
                f"only {len(answers) // nodes_per_executor} could start their nodes",
            )
        # An executor that has just died counts until Spark notices.  Those that have
        # their nodes keep them, so it can be asked again.
        InterruptibleEvent().wait(POLL_SECONDS)
        left_seconds = max(0.0, (deadline_ns - clock.now_ns()) / NS_PER_SECOND)
        wait_for_executors(context, executor_count, left_seconds)


@final
class ExecutorNodes:
    """
    Nodes that `start_nodes` has started.  A context manager; thread-safe.

    Attributes:
        nodes: What they are.
    """

    def __init__(self, context: SparkContext, nodes: Sequence[RunningNode]) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.node_id))
        self._context = context
        self._is_stopped = False

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Return their names, sorted."""
        return tuple(node.node_id for node in self.nodes)

    def stop(self) -> None:
        """
        Stop them, and wait until they have ended.  Idempotent.

        What a signal handler breaks off can be done again.  They keep their
        rows.  Needs every slot for a moment if they are on other machines; once the
        application has stopped, they end by themselves.
        """
        if not self._is_stopped:
            self._stop()
            self._is_stopped = True

    def _stop(self) -> None:
        elsewhere = [node for node in self.nodes if not _is_here(node)]
        _warn_of(_stop_here(self.nodes), "they do not end")
        if not elsewhere or self._context._jsc is None:  # noqa: SLF001 (None once stopped; there is no public way to ask)
            return
        try:
            left = on_each_executor(self._context, _stopping(elsewhere))
        except Exception as error:  # noqa: BLE001 (Py4J's, if the application ends)
            _warn_of(elsewhere, str(error))
        else:
            _warn_of([RunningNode(**one) for one in left], "they do not end")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _starting(order: NodeOrder, count: int, *, is_loopback: bool) -> Action:
    """Return what starts *count* nodes under a JVM that has none yet."""

    def start(place: Place) -> Iterator[dict[str, Any]]:
        if is_loopback and not place.is_alone:
            yield _failed(
                ConfigurationError(
                    "the executors are on several machines, and nodes that listen on "
                    'loopback are reached from one: give bind="tcp://*:0", and CURVE '
                    "keys or is_insecure_allowed=True"
                )
            )
            return
        mine = evolve(
            order, jvm_pid=place.jvm_pid, jvm_started=start_time_of(place.jvm_pid)
        )
        running = [
            node
            for node in read_slots(Path(order.data_dir))
            if (node.jvm_pid, node.jvm_started, node.processes)
            == (mine.jvm_pid, mine.jvm_started, processes_seen())
        ]
        yield from (asdict(node) for node in running)
        for _ in range(count - len(running)):
            yield _spawn(mine)

    return start


def _spawn(order: NodeOrder) -> dict[str, Any]:
    """Start one node, and return what it says."""
    process = subprocess.Popen(
        [sys.executable, "-m", executor_node_process.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Spark's daemon ends with its whole process group
    )
    timeout_seconds = order.timeout_seconds + _START_GRACE_SECONDS
    try:
        said, _ = process.communicate(
            json.dumps(asdict(order)).encode(), timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired as error:
        _end_hanging(process, error.output or b"")
        return _failed(UnreachableError("a new node", timeout_seconds, "it hangs"))
    text = _PID_LINE.sub(b"", said).decode(errors="replace").strip()
    try:
        answer: dict[str, Any] = json.loads(text.rpartition("\n")[2])
    except ValueError:
        what = text[-_SAID_LENGTH_MAX:] or "see node.log in its slot"
        return _failed(NameServiceError(f"a node did not start: {what}"))
    return answer


def _end_hanging(process: subprocess.Popen[bytes], said: bytes) -> None:
    """End a node that has said *said* so far, and the process that it began as."""
    process.kill()
    # The node holds our pipe: so it lives, and its number is not another's.
    if found := _PID_LINE.search(said):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(found[1]), signal.SIGKILL)
    # Where a disk hangs, it ends when that goes on.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_KILL_TIMEOUT_SECONDS)


def _failed(error: NameServiceError) -> dict[str, Any]:
    return {"error": str(error), "type": type(error).__name__}


def _error_of(answer: dict[str, Any], timeout_seconds: float) -> NameServiceError:
    """Return what to raise for what `_failed` has returned."""
    message = str(answer["error"])
    if answer["type"] == ConfigurationError.__name__:
        return ConfigurationError(message)
    return UnreachableError("the nodes of the executors", timeout_seconds, message)


def _stop_started(context: SparkContext, order: NodeOrder) -> None:
    """
    Stop all nodes that were started by *order*, also those that no answer told of.

    One that is still starting ends by itself: the worker that it would tell is gone.
    """

    def stop(_place: Place | None) -> Iterator[dict[str, Any]]:
        started = [
            node
            for node in read_slots(Path(order.data_dir))
            if node.token == order.token
        ]
        yield from map(asdict, _stop_here(started))

    try:
        answers = (
            list(stop(None)) if is_local(context) else on_each_executor(context, stop)
        )
        _warn_of([RunningNode(**one) for one in answers], "they do not end")
    except Exception as error:  # noqa: BLE001 (Py4J's; the caller gets the first error)
        get_logger(component="executor-nodes").warning(
            "nodes.left", error=str(error)[:200]
        )


def _stopping(nodes: Sequence[RunningNode]) -> Action:
    """Return what stops those of *nodes* that are where it is called."""

    def stop(_place: Place) -> Iterator[dict[str, Any]]:
        yield from map(asdict, _stop_here(nodes))

    return stop


def _is_here(node: RunningNode) -> bool:
    """Return whether *node* runs where we can see and stop it."""
    slot = Path(node.slot)
    # A container may share the directory, or a network disk its locks.
    return node.processes == processes_seen() and node in read_slots(slot.parent)


def _stop_here(nodes: Iterable[RunningNode]) -> list[RunningNode]:
    """
    Stop those of *nodes* that run here, and wait until they have ended.

    Returns:
        Those that did not end though they were killed, as where a disk hangs.
    """
    ending = [node for node in nodes if _is_here(node)]
    clock = SystemClock()
    for number, timeout_seconds in (
        (signal.SIGTERM, _STOP_TIMEOUT_SECONDS),
        (signal.SIGKILL, _KILL_TIMEOUT_SECONDS),
    ):
        for node in ending:
            _signal(node, number)
        deadline_ns = clock.now_ns() + seconds_to_ns(timeout_seconds)
        # Another node may take the slot as soon as one has ended.
        while ending := [
            node for node in ending if holder_of(Path(node.slot)) == node.pid
        ]:
            if clock.now_ns() >= deadline_ns:
                break
            # A process without a parent tells no other of its end.
            InterruptibleEvent().wait(POLL_SECONDS)
    return ending


def _warn_of(left: Sequence[RunningNode], reason: str) -> None:
    if left:
        get_logger(component="executor-nodes").warning(
            "nodes.left", node_ids=[node.node_id for node in left], error=reason[:200]
        )


def _signal(node: RunningNode, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(node.pid, number)
