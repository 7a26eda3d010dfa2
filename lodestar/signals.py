"""How long-running verbs hear that they are to end."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final

from lodestar.streams import discard


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType


__all__ = ["STOP_SIGNALS", "stop_signals"]

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_READ_SIZE_BYTES: Final = 4_096
# What interrupts a write, and means nothing to us or, by default, to anybody.
_INTERRUPTION: Final = signal.SIGURG
# How long a reader of standard output may take to make room once we are to end.
_UNREAD_TIMEOUT_MS: Final = 1_000


@contextlib.contextmanager
def stop_signals(
    notify: Callable[[signal.Signals], None], *, takes_hangup: bool = False
) -> Iterator[None]:
    """
    Call *notify* for each signal that asks us to end, instead of dying of it.

    Enter it on the main thread, before anything is opened: no signal may then find
    something half open.

    Python runs handlers between two instructions of the main thread.  One that has just
    begun to wait runs none, and neither does one that waits while the kernel gives the
    signal to another thread: it would wait for ever.  So what counts is the byte that
    Python writes within the signal, and a thread that reads it.

    A thread that writes to a pipe whose reader hangs would never hear of it, nor end:
    what it has to say is lost then.

    Args:
        notify: Runs on that thread.
        takes_hangup: Whether SIGHUP has a meaning of its own here, and is wanted even
            where it was to be ignored.
    """
    before = {
        number: signal.getsignal(number) for number in (*STOP_SIGNALS, _INTERRUPTION)
    }
    # A parent such as nohup wants us to be left alone by SIGHUP.
    wanted = {
        number
        for number in STOP_SIGNALS
        if (takes_hangup and number is signal.SIGHUP)
        or before[number] is not signal.SIG_IGN
    }
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.settimeout(0)
        thread = threading.Thread(
            target=_tell,
            args=(reader, wanted, notify),
            kwargs={"takes_hangup": takes_hangup},
            name="signals",
            daemon=True,
        )
        thread.start()
        wakeup_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (*wanted, _INTERRUPTION):
            signal.signal(number, _handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)
            writer.shutdown(socket.SHUT_WR)
            thread.join()


def _handle(signal_number: int, frame: FrameType | None) -> None:
    """Do nothing: that there is a handler has Python write the byte."""


def _tell(
    reader: socket.socket,
    wanted: Collection[signal.Signals],
    notify: Callable[[signal.Signals], None],
    *,
    takes_hangup: bool,
) -> None:
    while numbers := reader.recv(_READ_SIZE_BYTES):
        for number in numbers:
            if number in wanted:
                notify(signal.Signals(number))
                if number != signal.SIGHUP or not takes_hangup:
                    _release_writers()


def _release_writers() -> None:
    """Have those go on who wait for room in standard output, if it stays full."""
    poll = select.poll()
    with contextlib.suppress(OSError, ValueError):  # it is no file, or closed
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        if poll.poll(_UNREAD_TIMEOUT_MS):
            return
        discard(sys.stdout)
        # A write that a signal interrupts is tried again: where there is room by now.
        for thread in threading.enumerate():
            if thread.ident is not None and thread is not threading.current_thread():
                signal.pthread_kill(thread.ident, _INTERRUPTION)
