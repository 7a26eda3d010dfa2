from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights.children import ChildProcess
from examples.flights.name_service import NameServiceFailedError, name_service
from haservices import Backend


pytestmark = pytest.mark.shells

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 60.0

PARENT = """
import sys, threading
from pathlib import Path
from examples.flights.children import ChildProcess
from examples.flights.name_service import NameServiceFailedError, name_service
from haservices import Backend

child = ChildProcess(
    "examples.flights.name_service",
    ["--backend", "leaderserver", "--data-dir", sys.argv[1]],
    environment={},
    log_file=Path(sys.argv[1]) / "log",
    on_line=lambda line: print(child.pid, line, flush=True),
)
threading.Event().wait()
"""


def test_a_child_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """It says where it serves, ends when its parent closes it; twice is no error."""
    lines: queue.Queue[str | None] = queue.Queue()
    child = ChildProcess(
        "examples.flights.name_service",
        ["--backend", "leaderserver", "--data-dir", str(tmp_path / "data")],
        environment={},
        log_file=tmp_path / "log",
        on_line=lines.put,
    )
    with contextlib.closing(child):
        url = lines.get(timeout=TIMEOUT_SECONDS)
        assert url is not None
        assert url.startswith("leaderserver://127.0.0.1:")
    child.close()
    assert lines.get(timeout=TIMEOUT_SECONDS) is None
    # On a machine that is busy it may say that it stood still for a moment.
    told = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["event"] for line in told} <= {"server.stalled"}


def test_a_name_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    """What it wrote before it ended is in the error, without a wait."""
    (tmp_path / "names").write_text("a file where its directory should be")
    with (
        pytest.raises(NameServiceFailedError, match="names"),
        name_service(Backend.LEADERSERVER, tmp_path),
    ):
        pytest.fail("it serves")


@pytest.mark.skipif(sys.platform != "linux", reason="waits on a process descriptor")
def test_a_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """A parent that is killed leaves nothing behind, though it could do nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, _url = parent.stdout.readline().split()
        descriptor = os.pidfd_open(int(pid))
        parent.kill()
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(TIMEOUT_SECONDS * 1000)
    finally:
        os.close(descriptor)
