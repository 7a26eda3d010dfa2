"""
Large buffers that were freed, and what the C library keeps of them.

glibc gives a buffer of 128 KiB pages of its own, and returns them when it is freed.
But with each such buffer that is freed it raises that threshold to the size of this
one, up to 32 MiB (mallopt(3), ``M_MMAP_THRESHOLD``).  From then on buffers of that size
are cut out of the heap of their thread, and stay there when they are freed, as long as
anything lies above them.  A process that passes on values of 10 MB keeps several of
them for each of its threads, for good.

Small ones are kept in any case.  libzmq has several of 16 KiB for each connection, so a
server that turns thousands of connections away keeps up to four times what those take
that are open (measured).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final


__all__ = ["return_freed", "return_large_buffers"]

# From malloc.h of glibc.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

_LARGE_SIZE_BYTES_MIN: Final = 2 << 20
"""More than pages of scans have, and answers to several keys: heaps are quicker."""
_FREE_TOP_SIZE_BYTES_MAX: Final = 4 << 20
_USERS_OWN: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def return_large_buffers() -> bool:
    """
    Have buffers of two mebibytes or more returned to the system when they are freed.

    For a process that is the project's own: it holds for all of the process, and cannot
    be undone.

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
        mallopt(_MMAP_THRESHOLD, _LARGE_SIZE_BYTES_MIN)
        and mallopt(_TRIM_THRESHOLD, _FREE_TOP_SIZE_BYTES_MAX)
    )


def return_freed() -> bool:
    """
    Return to the system what the C library has kept of all that was freed.

    Takes milliseconds, in which other threads may wait for memory.

    Returns:
        Whether that was possible: False if the C library is not glibc.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return False
    return True
