"""
Large buffers that were freed, and what the C library keeps of them.

glibc gives a buffer of 128 KiB pages of its own, and returns them when it is freed.
But with each such buffer that is freed it raises that threshold to the size of this
one, up to 32 MiB (mallopt(3), ``M_MMAP_THRESHOLD``).  From then on buffers of that size
are cut out of the heap of their thread, and stay there when they are freed, as long as
anything lies above them.  A process that passes on values of 10 MB keeps several of
them for each of its threads, for good.

The same is true of small ones, if there are thousands: libzmq has several buffers of
16 KiB for each connection.  A server that turned thousands of connections away kept up
to four times what those took that were open (measured).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final


__all__ = ["CONNECTION_BUFFER_SIZE_BYTES", "return_large_buffers"]

CONNECTION_BUFFER_SIZE_BYTES: Final = 16 << 10
"""What libzmq takes at once for the messages of a connection: 256 slots, and more."""

# From malloc.h of glibc.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

_LARGE_SIZE_BYTES_MIN: Final = 2 << 20
"""More than pages of scans have, and answers to several keys: heaps are quicker."""
_FREE_TOP_SIZE_BYTES_MAX: Final = 4 << 20
_USERS_OWN: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def return_large_buffers(size_bytes_min: int = _LARGE_SIZE_BYTES_MIN) -> bool:
    """
    Have buffers of *size_bytes_min* or more returned to the system when they are freed.

    For a process that is the project's own: it holds for all of the process, and cannot
    be undone.

    Args:
        size_bytes_min: Each such buffer takes whole pages, and calls of the system.

    Returns:
        Whether that was set: False if the C library is not glibc, or the user has set
        the same by the environment.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(name in os.environ for name in _USERS_OWN) or "glibc.malloc" in tunables:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # To set one of them ends that glibc moves both by itself.
    return bool(
        mallopt(_MMAP_THRESHOLD, size_bytes_min)
        and mallopt(_TRIM_THRESHOLD, _FREE_TOP_SIZE_BYTES_MAX)
    )
