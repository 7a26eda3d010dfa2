"""`return_large_buffers`: what is freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.lodestar.running import environment


pytestmark = [
    pytest.mark.proves("B1", "N3"),
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="it is about glibc's allocator"
    ),
]

# The last buffers are of a size that was freed before, and something lies above each.
_KEPT = """
import sys
from pathlib import Path

from nameservice.allocation import return_large_buffers


def anonymous_kib():
    status = Path("/proc/self/status").read_text("ascii")
    (line,) = (one for one in status.splitlines() if one.startswith("RssAnon:"))
    return int(line.split()[1])


size, count = int(sys.argv[2]), int(sys.argv[3])
was_set = return_large_buffers(size) if sys.argv[1] == "set" else None
before = anonymous_kib()
buffer = bytearray(size)
del buffer
buffers, above = [], []
for _ in range(count):
    buffers.append(bytearray(size))
    above.append([bytes(1_000) for _ in range(1 + 200 // count)])
del buffers
print(was_set, anonymous_kib() - before)
"""
_SIZES = [(12 << 20, 1), (16 << 10, 4_000)]


def kept(how: str, size: int, count: int, **settings: str) -> tuple[str, int]:
    """Return what the function said in a process, and what that keeps, in KiB."""
    done = subprocess.run(
        [sys.executable, "-c", _KEPT, how, str(size), str(count)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**settings),
        check=True,
    )
    said, kept_kib = done.stdout.split()
    return said, int(kept_kib)


@pytest.mark.parametrize(("size", "count"), _SIZES)
def test_buffers_are_returned(size: int, count: int) -> None:
    """B1, N3: all of 12 MiB; of 64 MiB what did not fit into the heap as it was."""
    _, kept_otherwise_kib = kept("not", size, count)
    said, kept_kib = kept("set", size, count)
    assert said == "True"
    assert kept_otherwise_kib > 8 << 10
    assert kept_kib < 0.6 * kept_otherwise_kib


def test_the_users_own_setting_stands() -> None:
    """B1: what the environment says about glibc's allocator is not overruled."""
    assert kept("set", *_SIZES[0], MALLOC_MMAP_THRESHOLD_="2000000")[0] == "False"
    tunables = "glibc.malloc.mmap_threshold=2000000"
    assert kept("set", *_SIZES[0], GLIBC_TUNABLES=tunables)[0] == "False"
