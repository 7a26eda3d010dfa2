"""Who this process is, for the operators of a name service."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import PurePath
from typing import Final


__all__ = ["client_name"]

_LENGTH_MAX: Final = 255


def client_name() -> str:
    """Return program, process and machine as one short text."""
    program = PurePath(sys.argv[0] or "python").name
    return f"{program}[{os.getpid()}]@{socket.gethostname()}"[:_LENGTH_MAX]
