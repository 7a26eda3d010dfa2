"""
Contexts of libzmq: made so that no child keeps them, ended when all is over.

Make every context by `new_context` that connects, or is connected to.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice.open_files import OPEN_FILES_LEFT_MIN, require_open_files
from zmqtransport.forked_child import (
    close_waiters_in_child,
    keep_waiters_in_child,
    waiting_descriptors,
)
from zmqtransport.sockets import translate_zmq_errors


if TYPE_CHECKING:
    from collections.abc import Callable

    from zmqtransport.sockets import ZMQContext


__all__ = ["end_after", "new_context"]

_lock: Final = threading.Lock()  # guards making contexts; never taken in a child
_waited_for: Final[dict[int, list[Callable[[], bool]]]] = {}
"""By ``id`` of a context: what must be over before it is ended."""


@final
class _Context(zmq.Context[zmq.Socket[bytes]]):
    """A context whose descriptors a child closes, and which may be dropped."""

    _is_made = False

    def __init__(self) -> None:
        """Make it, which fails where a process has no more descriptors."""
        super().__init__()
        self._is_made = True

    def term(self) -> None:
        """Close it; what had its descriptors is forgotten first."""
        keep_waiters_in_child(id(self))
        waited_for = _waited_for.get(id(self), [])
        while waited_for:
            for is_over in tuple(waited_for):
                if is_over():
                    waited_for.remove(is_over)
        _waited_for.pop(id(self), None)
        super().term()

    def __del__(self) -> None:
        """
        Warn, and end it on a thread of its own.

        Ending it takes until its last socket is closed.  The sockets are collected
        with it, possibly after it, by the thread that this runs on.  pyzmq waits for
        them here, and so hangs the thread that happens to collect.
        """
        if not self._is_made or self.closed or self._shadow or sys.is_finalizing():
            return  # what libzmq has not made cannot be ended: the process would die
        # `threading` takes locks that the collecting thread may hold already.
        _thread.start_new_thread(self.term, ())
        warnings.warn(
            f"{self!r} was never closed: close the client or server that it is of",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


def new_context() -> ZMQContext:
    """
    Return a context whose connections do not live on in a forked child.

    Raises:
        ConfigurationError: If the process may have too few more open files.
    """
    require_open_files(OPEN_FILES_LEFT_MIN, what="a new client or server")
    with _lock:
        before = waiting_descriptors()
        with translate_zmq_errors("a new client or server"):
            context = _Context()
            # Its threads, and what they wait with, are made with the first socket.
            try:
                context.socket(zmq.PAIR).close()
            except BaseException:
                context.term()
                raise
        close_waiters_in_child(id(context), before=before)
    return context


def end_after(context: ZMQContext, is_over: Callable[[], bool]) -> None:
    """
    Have *context*, of `new_context`, end only after *is_over* has returned True.

    It is asked again and again, by turns with others, and may wait some milliseconds.
    """
    _waited_for.setdefault(id(context), []).append(is_over)


os.register_at_fork(after_in_child=_waited_for.clear)
