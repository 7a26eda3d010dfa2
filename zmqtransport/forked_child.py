"""
What a forked child must not keep: the connections and locks of its parent (rule E10).

Theory of operation.  After ``fork()`` a child holds each descriptor of its parent.  A
connection is closed when *all* that hold it have closed it.  So as long as a child of a
dead leader lives, its name service sees no death and waits for the whole session
timeout, and a dead server's port and data directory stay taken.  Close-on-exec helps
only where the child executes something; a child of ``multiprocessing`` does not.

So a child closes what it must not have, right after the fork and by ``close(2)`` alone:
neither libzmq nor SQLite may run there (their locks and threads are the parent's), and
closing a copy of a descriptor changes nothing for the parent.  Which descriptors:

*   **Of libzmq.**  It does not tell them.  But all that it waits for is registered with
    the ``epoll`` of one of its threads, and Linux lists that in ``/proc``.  Which
    ``epoll`` belongs to a context is seen when it is made (`new_context`): those that
    are new, and have one ``eventfd`` and nothing else.
*   **Of locks.**  `close_in_child` names them.  ``flock`` belongs to all copies of the
    descriptor: the child must close its own, and must not unlock.
*   **Of sockets of Python's.**  `close_socket_in_child` names them.

What libzmq is binding or connecting in the very moment of the fork may escape: it is
registered a moment later.  Elsewhere than on Linux the descriptors of libzmq stay open.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

import zmq

from zmqtransport.sockets import translate_zmq_errors


if TYPE_CHECKING:
    import socket as stdlib_socket

    from zmqtransport.sockets import ZMQContext


__all__ = [
    "close_in_child",
    "close_socket_in_child",
    "end_after",
    "keep_in_child",
    "new_context",
]

_DESCRIPTORS: Final = "/proc/self/fd"
_DETAILS: Final = "/proc/self/fdinfo"
_EPOLL: Final = "anon_inode:[eventpoll]"
_EVENT: Final = "anon_inode:[eventfd]"

_lock: Final = threading.Lock()  # guards making contexts; never taken in a child
_waiters: Final[dict[int, dict[int, int]]] = {}
"""By ``id`` of a context: its ``epoll`` descriptors, and the ``eventfd`` of each."""
_waited_for: Final[dict[int, list[Callable[[], bool]]]] = {}
"""By ``id`` of a context: what must be over before it is ended."""
_descriptors: Final[dict[int, None]] = {}
_sockets: Final[weakref.WeakSet[stdlib_socket.socket]] = weakref.WeakSet()


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
        _waiters.pop(id(self), None)
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

    Make every context by this function that connects, or is connected to.

    Raises:
        ConfigurationError: If the process may have no more sockets.
    """
    with _lock:
        before = _epolls()
        with translate_zmq_errors("a new client or server"):
            context = _Context()
            # Its threads, and what they wait with, are made with the first socket.
            try:
                context.socket(zmq.PAIR).close()
            except BaseException:
                context.term()
                raise
        new = _epolls() - before
        waiters: dict[int, int] = {}
        for descriptor in new:
            watched = _watched_by(descriptor)
            # Another thread may have made one of its own in this moment.
            if len(watched) == 1 and _target_of(watched[0]) == _EVENT:
                waiters[descriptor] = watched[0]
        _waiters[id(context)] = waiters
    return context


def end_after(context: ZMQContext, is_over: Callable[[], bool]) -> None:
    """
    Have *context*, of `new_context`, end only after *is_over* has returned True.

    It is asked again and again, by turns with others, and may wait some milliseconds.
    """
    _waited_for.setdefault(id(context), []).append(is_over)


def close_in_child(descriptor: int) -> None:
    """Have a forked child close *descriptor*; `keep_in_child` before closing it."""
    _descriptors[descriptor] = None


def keep_in_child(descriptor: int) -> None:
    """Forget *descriptor*: it is about to be closed."""
    _descriptors.pop(descriptor, None)


def close_socket_in_child(connection: stdlib_socket.socket) -> None:
    """Have a forked child close *connection*, for as long as that is open."""
    _sockets.add(connection)


def _epolls() -> set[int]:
    try:
        names = os.listdir(_DESCRIPTORS)  # noqa: PTH208 - names, not paths
    except OSError:
        return set()  # no Linux
    return {int(name) for name in names if _target_of(int(name)) == _EPOLL}


def _target_of(descriptor: int) -> str:
    try:
        return os.readlink(f"{_DESCRIPTORS}/{descriptor}")  # noqa: PTH115 - as text
    except OSError:
        return ""  # closed meanwhile


def _watched_by(epoll: int) -> list[int]:
    """Return the descriptors that are registered with *epoll*."""
    try:
        with open(f"{_DETAILS}/{epoll}", encoding="ascii") as details:  # noqa: PTH123 - this runs in children
            lines = details.readlines()
    except OSError:
        return []
    watched = []
    for line in lines:
        if line.startswith("tfd:"):
            fields = line.split()
            descriptor, inode = int(fields[1]), fields[-2].removeprefix("ino:")
            with contextlib.suppress(OSError):
                # A child shares the list, and its parent goes on changing it.
                if os.fstat(descriptor).st_ino == int(inode, 16):
                    watched.append(descriptor)
    return watched


def _close_inherited() -> None:
    """Close what this child must not have; no lock of the parent's is taken."""
    for waiters in tuple(_waiters.values()):
        for epoll, event in waiters.items():
            watched = _watched_by(epoll)
            if event not in watched:
                continue  # its context was just being closed
            for descriptor in (*watched, epoll):
                _close(descriptor)
    _waiters.clear()
    _waited_for.clear()
    for descriptor in tuple(_descriptors):
        _close(descriptor)
    _descriptors.clear()
    for connection in tuple(_sockets):
        with contextlib.suppress(OSError):
            connection.close()  # sends nothing, not even under TLS


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


os.register_at_fork(after_in_child=_close_inherited)
