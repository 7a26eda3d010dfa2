"""
How many files a process may open still, asked before what ends it without them.

Libraries in C end the whole process where they find no file descriptor: libzmq (4.3.5)
for a poller or for looking up a host, DuckDB (2.0) for a parser of its own.
"""

from __future__ import annotations

import os
from typing import Final

from nameservice.errors import ConfigurationError


__all__ = ["OPEN_FILES_LEFT_MIN", "require_open_files"]

OPEN_FILES_LEFT_MIN: Final = 32
"""
Whatever has a poller needs as many: a LeaderServer takes 25 with its data directory.
"""


def require_open_files(count: int, *, what: str) -> None:
    """
    Raise an error where this process may not open *count* more files.

    Args:
        count: At least 1.
        what: How the error names what needs them.

    Raises:
        ConfigurationError: If it may not; says what to change.
    """
    taken: list[int] = []
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        taken += (os.dup(taken[0]) for _ in range(count - 1))
    except OSError as error:
        message = (
            f"{what} needs {count} more open files, {len(taken)} are left: "
            "raise ulimit -n"
        )
        raise ConfigurationError(message) from error
    finally:
        for descriptor in taken:
            os.close(descriptor)
