"""
What ``lodestar standby`` has of its driver: its state, and a way to have it end.

The driver connects to a socket of ours.  It writes a line of JSON whenever it warms up,
is warm, leads or stops, and ends when its connection is closed.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, final

from lodestar.guarded_command import start_thread
from nameservice.observation import Observation


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["DriverControl", "DriverWatch"]

_LINE_SIZE_BYTES_MAX: Final = 1_024
_PAUSE_SECONDS: Final = 0.1
"""Before a connection that could not be taken is taken again."""

_STARTING: Final = "starting"
_ENDED: Final = "ended"
_SENTENCES: Final = {
    "warming": "the driver is warming up",
    "warm": "the driver is warm, and contends for {job}",
    "cold": "the driver contends for {job}, and is not warm: its warm-up was too long, "
    "or has failed",
    "leading": "the driver leads {job}, epoch {epoch}",
    "stopping": "the driver stops its queries",
}
_PROBLEMS: Final = {
    _STARTING: "the driver has been started, and has not said anything yet",
    "warming": "the driver is warming up, and does not contend yet",
    "stopping": "the driver stops its queries",
    _ENDED: "the driver has ended",
}


@final
class DriverWatch:
    """
    What is known of the driver, however often it is started.  Thread-safe.

    Args:
        job: What it contends for.
        say: Takes what a person is told.
    """

    def __init__(self, job: str, say: Callable[[str], None]) -> None:
        self._job = job
        self._say = say
        self._lock = threading.Lock()
        self._state = _ENDED
        self._epoch = 0
        self._start_count = 0

    def started(self) -> None:
        """Record that a driver was started."""
        with self._lock:
            self._state, self._epoch = _STARTING, 0
            self._start_count += 1

    def ended(self) -> None:
        """Record that it has ended."""
        with self._lock:
            self._state, self._epoch = _ENDED, 0

    def told(self, line: bytes) -> None:
        """Record what it says; what is not understood changes nothing."""
        try:
            told = json.loads(line)
            state, epoch = str(told["state"]), int(told["epoch"] or 0)
            sentence = _SENTENCES[state]
        except (ValueError, TypeError, KeyError):
            return  # a driver of another version
        with self._lock:
            self._state, self._epoch = state, epoch
        self._say(sentence.format(job=self._job, epoch=epoch))

    def observe(
        self, *, timeout_seconds: float = 0.0, state_count_max: int = 0
    ) -> Observation:
        """Return it for metrics and readiness; see `Observable`."""
        del timeout_seconds, state_count_max
        with self._lock:
            return Observation(
                role="standby",
                figures={
                    "job_id": self._job,
                    "warm": int(self._state in {"warm", "leading"}),
                    "leading": int(self._state == "leading"),
                    "epoch": self._epoch,
                    "drivers_started_total": self._start_count,
                },
                problem=_PROBLEMS.get(self._state),
            )


@final
class DriverControl:
    """
    Where a driver connects.  A context manager.

    Attributes:
        path: Of the socket.

    Args:
        told: Takes each line that it writes, on a thread of ours.

    Raises:
        OSError: If there cannot be one now.
    """

    def __init__(self, told: Callable[[bytes], None]) -> None:
        self._told = told
        self._directory = tempfile.TemporaryDirectory(prefix="lodestar-standby-")
        self.path = str(Path(self._directory.name) / "control")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.setblocking(False)  # noqa: FBT003 (a name would be refused)
        self._waker, self._wakee = socket.socketpair()
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(
            target=self._serve, name="driver-control", daemon=True
        )
        start_thread(self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waker.close()
        self._thread.join()
        for each in (self._wakee, self._listener, *self._connections):
            each.close()
        self._directory.cleanup()

    def stop(self) -> bool:
        """Tell the driver to end; return whether there is one that hears of it."""
        with self._lock:
            self._accept()
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            return bool(self._connections)

    def _accept(self) -> tuple[list[socket.socket], bool]:
        """Return who has connected since, and whether all have; with the lock."""
        accepted: list[socket.socket] = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return accepted, True
            except OSError:  # out of open files, or of memory
                return accepted, False
            accepted.append(connection)
            self._connections.append(connection)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakee, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            parts: dict[socket.socket, bytes] = {}
            is_listening = True
            while True:
                ready_now = selector.select(None if is_listening else _PAUSE_SECONDS)
                if not is_listening:
                    selector.register(self._listener, selectors.EVENT_READ)
                    is_listening = True
                for key, _ in ready_now:
                    if key.fileobj is self._wakee:
                        return
                    if key.fileobj is self._listener:
                        with self._lock:
                            accepted, is_listening = self._accept()
                        for connection in accepted:
                            selector.register(connection, selectors.EVENT_READ)
                            parts[connection] = b""
                        if not is_listening:
                            selector.unregister(self._listener)
                        continue
                    (ready,) = (each for each in parts if each is key.fileobj)
                    read = self._read(ready)
                    *lines, rest = (parts[ready] + read).split(b"\n")
                    if not read or len(rest) > _LINE_SIZE_BYTES_MAX:
                        selector.unregister(ready)
                        with self._lock:
                            self._connections.remove(ready)
                        ready.close()
                        del parts[ready]
                        continue
                    parts[ready] = rest
                    for line in lines:
                        self._told(line)

    def _read(self, connection: socket.socket) -> bytes:
        try:
            return connection.recv(_LINE_SIZE_BYTES_MAX)
        except OSError:
            return b""
