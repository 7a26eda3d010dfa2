"""
How long a component is without a leader, on the LeaderServer and on ZooKeeper.

Workload: two contenders; the leader's process is killed with SIGKILL, or resigns.
Unit: milliseconds from the signal, or from the beginning of ``close``, until a
retriever is told of the confirmed successor.  The configured lease and session timeout
stand next to the figures.  Bad: a kill above lease + 200 ms on the LeaderServer (on
ZooKeeper: above the session timeout by as much), a resignation above 50 ms.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from benchmarks._harness import Figure, figure, report, sized, wait_until
from haservices import HAConfig, campaign, open_ha_services
from haservices.testing import ZooKeeperServer
from leaderserver import LeaderServer, ServerConfig


_ROUNDS = sized(10, tiny=1)
_TIMEOUT_SECONDS = 60.0
_LEASE_SECONDS = 0.5
_SESSION_TIMEOUT_SECONDS = 2.0

# A process that leads until it is killed, or until its standard input ends.
_CONTENDER = """
import sys
from haservices import HAConfig, campaign, open_ha_services
config = HAConfig(
    url=sys.argv[1], session_timeout_seconds=float(sys.argv[3]), lease_seconds=0.5
)
with open_ha_services(config) as ha, campaign(ha, "bench", sys.argv[2]):
    sys.stdin.read()
"""


def _start(url: str, address: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _CONTENDER, url, address, str(_SESSION_TIMEOUT_SECONDS)],
        stdin=subprocess.PIPE,
    )


def _killed_ms(url: str) -> list[float]:
    """Return the failovers of a number of rounds, each of which kills the leader."""
    config = HAConfig(url=url, session_timeout_seconds=_SESSION_TIMEOUT_SECONDS)
    values = []
    with open_ha_services(config) as ha, ha.get_leader_retriever("bench") as retriever:
        processes = {"a0": _start(url, "a0")}
        try:
            for index in range(_ROUNDS):
                leader = retriever.wait_for_leader(_TIMEOUT_SECONDS)
                successor = f"a{index + 1}"
                processes[successor] = _start(url, successor)
                wait_until(lambda: len(ha.operations.contenders("bench")) == 2)
                changes = retriever.changes()
                began = time.perf_counter()
                victim = processes.pop(leader.address)
                victim.send_signal(signal.SIGKILL)
                for change in changes:
                    if change is not None and change.address == successor:
                        break
                values.append((time.perf_counter() - began) * 1_000)
                victim.wait()
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
    return values


def _resigned_ms(url: str) -> list[float]:
    """Return the handovers of a number of rounds, in which the leader resigns."""
    config = HAConfig(url=url, session_timeout_seconds=_SESSION_TIMEOUT_SECONDS)
    values = []
    with open_ha_services(config) as one, open_ha_services(config) as other:
        began = time.perf_counter()
        for index in range(_ROUNDS + 1):
            ha = (one, other)[index % 2]
            with campaign(ha, "bench", f"a{index}"):
                if index:
                    values.append((time.perf_counter() - began) * 1_000)
                began = time.perf_counter()
    return values


def run() -> list[Figure]:
    """Measure, and return the figures."""
    figures = []
    lease = f"lease {_LEASE_SECONDS} s"
    timeout = f"session timeout {_SESSION_TIMEOUT_SECONDS} s"
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        killed = _killed_ms(server.url)
        figures.append(figure(f"LeaderServer, SIGKILL ({lease})", "ms", killed))
        resigned = _resigned_ms(server.url)
        figures.append(figure("LeaderServer, resignation", "ms", resigned))
    with ZooKeeperServer() as zookeeper:
        killed = _killed_ms(zookeeper.url)
        figures.append(figure(f"ZooKeeper, SIGKILL ({timeout})", "ms", killed))
        resigned = _resigned_ms(zookeeper.url)
        figures.append(figure("ZooKeeper, resignation", "ms", resigned))
    report("failover", figures)
    return figures
