"""
What the command line costs before it does anything: processor time of one process.

Workload: ``python -c pass`` as the floor, then ``lodestar --version``, ``--help``, and
``leader`` of a component that has one, against a LeaderServer in this process.  Each is
run 20 times after one to warm the disk.  Unit: milliseconds of user and system time of
the process, all its threads together.  Bad: above 100 for ``--version`` and ``--help``,
above 250 for ``leader``.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from benchmarks._harness import Figure, figure, report, rounds, sized
from haservices import campaign, open_ha_services
from leaderserver import LeaderServer, ServerConfig


if TYPE_CHECKING:
    from collections.abc import Sequence


_COUNT: Final = sized(20, tiny=1)
_JOB: Final = "flights"


def run() -> list[Figure]:
    """Measure, and return the figures."""
    config = ServerConfig(bind="tcp://127.0.0.1:0")
    with (
        LeaderServer(config) as server,
        open_ha_services(server.url) as ha,
        campaign(ha, _JOB, "127.0.0.1:8000"),
    ):
        commands = {
            "python -c pass": ["-c", "pass"],
            "lodestar --version": ["-m", "lodestar", "--version"],
            "lodestar --help": ["-m", "lodestar", "--help"],
            "lodestar leader": ["-m", "lodestar", "leader", _JOB, "--url", server.url],
        }
        figures = [
            figure(
                name,
                "ms",
                rounds(functools.partial(processor_ms, command), count=_COUNT),
            )
            for name, command in commands.items()
        ]
    report("faces", figures)
    return figures


def processor_ms(arguments: Sequence[str]) -> float:
    """Return user and system time of Python with *arguments*, which must succeed."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, list(arguments))
    return (used.ru_utime + used.ru_stime) * 1_000
