"""Who this process is, for the operators of a name service."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import PurePath

from nameservice.fields import as_client_name


__all__ = ["client_name"]


def client_name() -> str:
    """Return program, process and machine as one short text."""
    program = PurePath(sys.argv[0] or "python").name
    return as_client_name(f"{program}[{os.getpid()}]@{socket.gethostname()}")
