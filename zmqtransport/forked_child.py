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
    ``epoll`` belongs to a context is seen when it is made (`zmqtransport.contexts`):
    those that are new, and have one ``eventfd`` and nothing else.
*   **Of locks.**  `close_in_child` names them.  ``flock`` belongs to all copies of the
    descriptor: the child must close its own, and must not unlock.
*   **Of sockets of Python's.**  `close_socket_in_child` names them.

What libzmq is binding or connecting in the very moment of the fork may escape: it is
registered a moment later.  Elsewhere than on Linux the descriptors of libzmq stay open.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    import socket as stdlib_socket


__all__ = [
    "close_in_child",
    "close_socket_in_child",
    "close_waiters_in_child",
    "keep_in_child",
    "keep_waiters_in_child",
    "waiting_descriptors",
]

_DESCRIPTORS: Final = "/proc/self/fd"
_DETAILS: Final = "/proc/self/fdinfo"
_EPOLL: Final = "anon_inode:[eventpoll]"
_EVENT: Final = "anon_inode:[eventfd]"

_waiters: Final[dict[int, dict[int, int]]] = {}
"""By the name of a context: its ``epoll`` descriptors, and the ``eventfd`` of each."""
_descriptors: Final[dict[int, None]] = {}
_sockets: Final[weakref.WeakSet[stdlib_socket.socket]] = weakref.WeakSet()


def waiting_descriptors() -> frozenset[int]:
    """Return the descriptors of each ``epoll`` of this process; none if unknown."""
    try:
        names = os.listdir(_DESCRIPTORS)  # noqa: PTH208 - names, not paths
    except OSError:
        return frozenset()  # no Linux
    return frozenset(int(name) for name in names if _target_of(int(name)) == _EPOLL)


def close_waiters_in_child(owner: int, *, before: frozenset[int]) -> None:
    """
    Have a forked child close what a new context of libzmq waits for, and with.

    Args:
        owner: Names the context; `keep_waiters_in_child` before it is ended.
        before: The `waiting_descriptors` of before it was made.
    """
    waiters: dict[int, int] = {}
    for descriptor in waiting_descriptors() - before:
        watched = _watched_by(descriptor)
        # Another thread may have made one of its own in this moment.
        if len(watched) == 1 and _target_of(watched[0]) == _EVENT:
            waiters[descriptor] = watched[0]
    _waiters[owner] = waiters


def keep_waiters_in_child(owner: int) -> None:
    """Forget what *owner* waits for and with: it is about to be ended."""
    _waiters.pop(owner, None)


def close_in_child(descriptor: int) -> None:
    """Have a forked child close *descriptor*; `keep_in_child` before closing it."""
    _descriptors[descriptor] = None


def keep_in_child(descriptor: int) -> None:
    """Forget *descriptor*: it is about to be closed."""
    _descriptors.pop(descriptor, None)


def close_socket_in_child(connection: stdlib_socket.socket) -> None:
    """Have a forked child close *connection*, for as long as that is open."""
    _sockets.add(connection)


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
