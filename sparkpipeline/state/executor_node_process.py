"""
A state node as a process of its own, beside a Spark executor; see `executor_nodes`.

Started as a module by a Python worker of the executor.  It takes its order as JSON on
standard input, puts itself into the background, says on standard output which process
it is by now, and then what it serves as one line of JSON (or why it does not), and runs
until it is told to end by SIGTERM or the executor's JVM is gone.

It must outlive the worker that started it, which is one of many, and must not outlive
the executor.  So it has a session of its own, has no parent (its first process ends
at once), and waits for the end of the JVM by a descriptor of that process.

*Slots.*  Under the directory that the user names, each node has a slot ``node-0``,
``node-1``, …, and takes the first one that no other process holds: so a node that is
started in place of a dead one finds that one's rows, and its name.  The slot is held by
a lock on a file, which the system releases when the process ends, however it ends.  The
file says which process that is: what else a slot has in it may be of one before, which
was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from attrs import asdict, frozen

from haservices import HAConfig, open_ha_services
from nameservice import ConfigurationError, NameServiceError, configure_logging
from nameservice.allocation import return_large_buffers
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = [
    "PID_PREFIX",
    "NodeOrder",
    "RunningNode",
    "holder_of",
    "machine",
    "processes_seen",
    "read_slots",
    "start_time_of",
]

PID_PREFIX: Final = "process "
"""Of the line that says which process the node is."""

SLOT_COUNT_MAX: Final = 1_000
_LOCK_NAME: Final = "slot.lock"
_RUNNING_NAME: Final = "running.json"
_PID_SIZE_MAX: Final = 20
_LOG_NAME: Final = "node.log"
_ROWS_NAME: Final = "rows"
_CHECK_MS: Final = 1_000
_STDIN, _STDOUT, _STDERR = 0, 1, 2


@final
@frozen(kw_only=True)
class NodeOrder:
    """
    What a node is to be.

    Attributes:
        data_dir: Where the slots are, on the executor's machine.
        settings: Those of `HAConfig`.
        node_settings: Those of `NodeConfig`, without *data_dir*.
        jvm_pid: The executor.
        jvm_started: When that process was started, as `start_time_of` tells.
        token: Names this start; drawn by the one that ordered it.
        timeout_seconds: How long the proxy may take to register the node.
    """

    data_dir: str
    settings: dict[str, str | float]
    node_settings: dict[str, Any]
    jvm_pid: int
    jvm_started: str
    token: str
    timeout_seconds: float


@final
@frozen(kw_only=True)
class RunningNode:
    """
    A node that serves.

    Attributes:
        node_id: Its name.
        address: Where writers reach it.
        slot: Its directory.
        pid: Its process.
        jvm_pid: The executor that it belongs to.
        jvm_started: When that was started.
        token: Of the start that made it.
        processes: Among which those numbers mean something: see `processes_seen`.
    """

    node_id: str
    address: str
    slot: str
    pid: int
    jvm_pid: int
    jvm_started: str
    token: str
    processes: str


def machine() -> str:
    """Return what tells this machine, or container, from others."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        return f"{socket.gethostname()} {boot.strip()}"
    return socket.gethostname()


def processes_seen() -> str:
    """
    Return what tells the processes that are seen from here from all others.

    Containers of one machine may bear its name, and each counts processes anew.
    """
    with contextlib.suppress(OSError):
        return f"{machine()} {Path('/proc/self/ns/pid').readlink()}"
    return machine()


def start_time_of(pid: int) -> str:
    """
    Return when a process was started: with its number it is one process for good.

    Empty where the system does not tell as Linux does.
    """
    return _state_of(pid)[1]


def _state_of(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it was started; empty if not told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]


def _is_running(pid: int, started: str) -> bool:
    """Return whether that process runs, where there is no descriptor of it."""
    state, started_now = _state_of(pid)
    # One that none has waited for keeps its number, and can be signalled.
    if started_now != started or state in {"Z", "X"}:
        return False
    try:
        os.kill(pid, 0)
    except OSError:  # it is gone, or another user's by now
        return False
    return True


def holder_of(slot: Path) -> int | None:
    """Return which process holds *slot*; None if none does, or it has not said yet."""
    try:
        descriptor = os.open(slot / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not _is_locked(descriptor):
            return None
        said = os.pread(descriptor, _PID_SIZE_MAX, 0)
    finally:
        os.close(descriptor)
    return int(said) if said.isdigit() else None


def _is_locked(descriptor: int) -> bool:
    """
    Return whether a process holds the slot of this file; it is looked at for a moment.

    Others may look at the same time: a slot is not held because they do.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def read_slots(data_dir: Path) -> list[RunningNode]:
    """Return the nodes that serve from slots of *data_dir*."""
    found = []
    for slot in sorted(data_dir.glob("node-*")):
        holder = holder_of(slot)
        if holder is None:
            continue
        with contextlib.suppress(OSError, ValueError, TypeError):
            text = (slot / _RUNNING_NAME).read_text(encoding="utf-8")
            node = RunningNode(**json.loads(text))
            # One that is being started in place of a dead one has not written its own.
            if node.pid == holder:
                found.append(node)
    return found


def main() -> int:
    """Do what standard input orders; return the exit code."""
    order = NodeOrder(**json.load(sys.stdin))
    if os.fork():
        os._exit(0)  # the parent has waited long enough
    os.setsid()
    # Who ordered it waits for us, and must be able to end us should we hang.
    os.write(_STDOUT, f"{PID_PREFIX}{os.getpid()}\n".encode())
    try:
        with _held_slot(Path(order.data_dir)) as slot:
            return _serve(order, slot)
    except (NameServiceError, OSError) as error:
        _say({"error": str(error), "type": type(error).__name__})
        return 1


@contextlib.contextmanager
def _held_slot(data_dir: Path) -> Iterator[Path]:
    """Hold the first free slot."""
    for number in range(SLOT_COUNT_MAX):
        slot = data_dir / f"node-{number}"
        slot.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            slot / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            if not _take(descriptor):
                continue
            yield slot
            return
        finally:
            os.close(descriptor)
    raise ConfigurationError(
        f"{data_dir} has no free slot among {SLOT_COUNT_MAX}: use another data_dir"
    )


def _take(descriptor: int) -> bool:
    """Take the slot of this file, and say so in it; return False if it is held."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _is_locked(descriptor):
                return False
            continue  # another process only looked at it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return True


def _serve(order: NodeOrder, slot: Path) -> int:
    log = os.open(
        slot / _LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
    )
    os.dup2(log, _STDERR)
    os.close(log)
    configure_logging()
    return_large_buffers()
    # Any thread may be running when a signal comes: it is only noted, in a pipe.
    stop_reader, stop_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(stop_writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    executor = _Executor(order)
    running_file = slot / _RUNNING_NAME
    config = NodeConfig(data_dir=slot / _ROWS_NAME, **order.node_settings)
    with (
        open_ha_services(HAConfig(**order.settings)) as ha,  # type: ignore[arg-type]  # HAConfig checks them
        StateNode(ha, config) as node,
    ):
        node.wait_until_registered(order.timeout_seconds)
        running = RunningNode(
            node_id=node.node_id,
            address=node.address,
            slot=str(slot),
            pid=os.getpid(),
            jvm_pid=order.jvm_pid,
            jvm_started=order.jvm_started,
            token=order.token,
            processes=processes_seen(),
        )
        new_file = running_file.with_suffix(".new")
        new_file.write_text(json.dumps(asdict(running)), encoding="utf-8")
        new_file.replace(running_file)
        try:
            _say(asdict(running))
            while not executor.wait_for_end(stop_reader):
                if node.join(0):  # it has failed, and said why in the log
                    return 1
        finally:
            running_file.unlink(missing_ok=True)
    return 0


def _say(answer: dict[str, object]) -> None:
    """Give the one answer, and release the process that waits for it."""
    os.write(_STDOUT, json.dumps(answer).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, _STDIN)
    os.dup2(null, _STDOUT)
    os.close(null)


@final
class _Executor:
    """The JVM that a node belongs to."""

    def __init__(self, order: NodeOrder) -> None:
        self._pid, self._started = order.jvm_pid, order.jvm_started
        self._descriptor: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it is gone, or the kernel before 5.3
                self._descriptor = os.pidfd_open(order.jvm_pid)
        # Only now is it certain that the number has not been given to another one.
        self._is_gone = start_time_of(order.jvm_pid) != order.jvm_started

    def wait_for_end(self, stop: int) -> bool:
        """Wait a little; return whether it has ended, or something came to *stop*."""
        if self._is_gone:
            return True
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        if self._descriptor is not None:
            poll.register(self._descriptor, select.POLLIN)
        if poll.poll(_CHECK_MS):
            return True
        return self._descriptor is None and not _is_running(self._pid, self._started)


if __name__ == "__main__":
    sys.exit(main())
