"""`return_large_buffers`: what is freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.lodestar.running import environment


pytestmark = [
    pytest.mark.proves("B1"),
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="it is about glibc's allocator"
    ),
]

# The second buffer is of a size that was freed before, and something lies above it.
_KEPT = """
import sys
from pathlib import Path

from nameservice.allocation import return_large_buffers


def anonymous_kib():
    status = Path("/proc/self/status").read_text("ascii")
    (line,) = (one for one in status.splitlines() if one.startswith("RssAnon:"))
    return int(line.split()[1])


was_set = return_large_buffers() if sys.argv[1] == "set" else None
before = anonymous_kib()
buffer = bytearray(12 << 20)
del buffer
buffer = bytearray(12 << 20)
above = [bytes(1_000) for _ in range(200)]
del buffer
print(was_set, anonymous_kib() - before)
"""


def kept(how: str, **settings: str) -> tuple[str, int]:
    """Return what the function said in a process, and what that keeps, in KiB."""
    done = subprocess.run(
        [sys.executable, "-c", _KEPT, how],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**settings),
        check=True,
    )
    said, size = done.stdout.split()
    return said, int(size)


def test_a_large_buffer_is_returned() -> None:
    """B1: 12 MiB are given back, which glibc keeps otherwise."""
    assert kept("not")[1] > 8 << 10
    said, size = kept("set")
    assert (said, size < 4 << 10) == ("True", True)


def test_the_users_own_setting_stands() -> None:
    """B1: what the environment says about glibc's allocator is not overruled."""
    assert kept("set", MALLOC_MMAP_THRESHOLD_="2000000")[0] == "False"
    tunables = "glibc.malloc.mmap_threshold=2000000"
    assert kept("set", GLIBC_TUNABLES=tunables)[0] == "False"
