"""How a driver hears that it is to end: by a signal, or from ``lodestar standby``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, TypeAlias

from haservices.config import STANDBY_CONTROL
from nameservice import get_logger
from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["TellState", "stop_requests"]

TellState: TypeAlias = "Callable[[str, int | None], None]"
"""Tells ``lodestar standby``, if we run under it, our state and epoch."""


@contextlib.contextmanager
def stop_requests(notify: Callable[[], None]) -> Iterator[TellState]:
    """
    Call *notify* for each request to end, within the block; yield what tells our state.

    A signal is for one process, and ``spark-submit`` is two: the JVM would end at once
    where Python finishes its batch.  So ``lodestar standby`` asks by closing a
    connection.

    Args:
        notify: Called on the main thread within a signal, or on a thread of ours.
    """
    with _signals(notify), _control(notify) as tell:
        yield tell


@contextlib.contextmanager
def _signals(notify: Callable[[], None]) -> Iterator[None]:
    """Call *notify* for SIGTERM and SIGINT, where handlers can be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, lambda _number, _frame: notify())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _control(notify: Callable[[], None]) -> Iterator[TellState]:
    """Call *notify* when ``lodestar standby``, if we run under it, says so or ends."""
    path = os.environ.get(STANDBY_CONTROL)
    if path is None:
        yield _tell_none
        return
    is_over = InterruptibleEvent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            # In cluster mode the driver is elsewhere; its cluster manager ends it.
            get_logger(component="standby").warning(
                "standby.uncontrolled", path=path, error=str(error)
            )
            yield _tell_none
            return

        def tell(state: str, epoch: int | None) -> None:
            line = json.dumps({"state": state, "epoch": epoch}).encode() + b"\n"
            # It is for people: rather lost than waited for.
            with contextlib.suppress(OSError):
                connection.send(line, socket.MSG_DONTWAIT)

        def wait() -> None:
            with contextlib.suppress(OSError):
                connection.recv(1)
            if not is_over.is_set():
                notify()

        thread = threading.Thread(target=wait, name="standby-control", daemon=True)
        thread.start()
        try:
            yield tell
        finally:
            is_over.set()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()


def _tell_none(_state: str, _epoch: int | None) -> None:
    """Do nothing: we do not run under ``lodestar standby``."""
