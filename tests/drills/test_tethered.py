"""No process of a drill outlives it, however the drill ends."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest


TETHER = Path(__file__).with_name("tethered.py")
WAIT_MS = 30_000

# It starts a child that would wait for ever, stops it, says who it is, and waits.
PARENT = f"""
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-I", "-S", {str(TETHER)!r}, str(os.getpid()),
     sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
    stdout=subprocess.PIPE,
)
child.stdout.readline()
child.send_signal(signal.SIGSTOP)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.shells
def test_even_a_stopped_child_ends_with_its_parent() -> None:
    """SIGKILL of the parent, which can clean up nothing, ends a child under SIGSTOP."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as output:
        child = os.pidfd_open(int(output.readline()))
    try:
        parent.kill()
        parent.wait()
        poll = select.poll()
        poll.register(child, select.POLLIN)
        assert poll.poll(WAIT_MS), "the child lives on"
    finally:
        os.close(child)


@pytest.mark.shells
def test_a_child_whose_parent_has_gone_does_not_start() -> None:
    """One that asks for another parent than it has gets nothing at all."""
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            str(TETHER),
            "0",
            sys.executable,
            "-c",
            "print(1)",
        ],
        capture_output=True,
        check=True,
    )
    assert done.stdout == b""
