"""
What a slow disk costs: grants by the hundred, and those who have nothing to do with it.

Workload: a LeaderServer with a data directory whose every sync takes longer (a library
loaded into it sees to that).  First 10 ms: the holder of 200 components is killed, and
another client contends for all of them.  Then 150 ms: one client puts one value after
another.  Meanwhile a leader in a process of its own asks itself every 2 ms whether it
believes.
Unit: milliseconds from the SIGKILL until the first and the last grant, of one put, of
one get of another component, and the longest time in which the unrelated leader did not
believe.  Bad: a first grant above lease + 300 ms, or any time without belief.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._harness import Figure, figure, report, sized, wait_until
from haservices import HAConfig, campaign, open_ha_services
from tests.faults.disk import FaultyDisk
from tests.faults.server import ServerOnFaultyDisk


if TYPE_CHECKING:
    from election import LeaderSession
    from haservices import HAServices


_ROUNDS = sized(5, tiny=1)
_COMPONENT_COUNT = sized(200, tiny=3)
_PUT_COUNT = sized(20, tiny=3)
_LEASE_SECONDS = 0.5
_TIMEOUT_SECONDS = 120.0

# Holds many components until it is killed.
_HOLDER = """
import sys, threading
from haservices import HAConfig, campaign, open_ha_services
from contextlib import ExitStack
config = HAConfig(url=sys.argv[1], lease_seconds=0.5)
with open_ha_services(config) as ha, ExitStack() as stack:
    for number in range(int(sys.argv[2])):
        stack.enter_context(campaign(ha, f"{sys.argv[3]}-{number}", "h:1"))
    print("leads", flush=True)
    sys.stdin.read()
"""

# Leads something else, and prints the longest time in which it did not believe.
_BYSTANDER = """
import sys, threading, time
from haservices import HAConfig, campaign, open_ha_services
from nameservice import LeadershipLostError
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
with open_ha_services(HAConfig(url=sys.argv[1], lease_seconds=0.5)) as ha:
    with campaign(ha, "bystander", "h:1") as leadership:
        print("leads", flush=True)
        longest, since = 0.0, None
        while not over.wait(0.002):
            now = time.perf_counter()
            try:
                leadership.check()
                since = None
            except LeadershipLostError:
                since = now if since is None else since
                longest = max(longest, now - since + 0.002)
        print(longest, flush=True)
"""


class _Waiting:
    """A contender that notes when it is granted."""

    def __init__(self, granted: list[float], all_granted: threading.Event) -> None:
        self._granted = granted
        self._all_granted = all_granted

    def grant_leadership(self, session: LeaderSession) -> None:
        self._granted.append(time.perf_counter())
        if len(self._granted) == _COMPONENT_COUNT:
            self._all_granted.set()

    def revoke_leadership(self) -> None:
        pass

    def handle_error(self, error: Exception) -> None:
        print(f"error: {error}", file=sys.stderr)


def _start(script: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "leads\n", line
    return process


def _grants_ms(url: str, ha: HAServices, number: int) -> tuple[float, float]:
    """Return when the first and the last component had a successor."""
    holder = _start(_HOLDER, url, str(_COMPONENT_COUNT), f"job{number}")
    granted: list[float] = []
    all_granted = threading.Event()
    elections = [
        ha.get_leader_election(f"job{number}-{index}")
        for index in range(_COMPONENT_COUNT)
    ]
    for election in elections:
        election.start(_Waiting(granted, all_granted))
    last = f"job{number}-{_COMPONENT_COUNT - 1}"
    wait_until(lambda: len(ha.operations.contenders(last)) == 2)
    began = time.perf_counter()
    holder.send_signal(signal.SIGKILL)
    assert all_granted.wait(_TIMEOUT_SECONDS)
    holder.wait()
    for election in elections:
        election.close()
    return (granted[0] - began) * 1_000, (granted[-1] - began) * 1_000


def _longest_ms(bystander: subprocess.Popen[str]) -> float:
    """End the bystander; return its longest time without belief."""
    out, _ = bystander.communicate(timeout=_TIMEOUT_SECONDS)
    return float(out) * 1_000


def _puts_and_gets_ms(ha: HAServices) -> tuple[list[float], list[float]]:
    """Return how long puts took, and gets of another component meanwhile."""
    puts: list[float] = []
    gets: list[float] = []
    over = threading.Event()

    def read() -> None:
        store = ha.get_leader_store("another")
        while not over.is_set():
            began = time.perf_counter()
            store.get("a")
            gets.append((time.perf_counter() - began) * 1_000)

    with campaign(ha, "writer", "h:1", timeout_seconds=_TIMEOUT_SECONDS) as leadership:
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(_PUT_COUNT):
            began = time.perf_counter()
            ha.get_leader_store("writer").put("a", b"v", session=leadership.session)
            puts.append((time.perf_counter() - began) * 1_000)
        over.set()
        reader.join()
    return puts, gets


def run() -> list[Figure]:
    """Measure, and return the figures."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="slow-disk-") as folder:
        disk = FaultyDisk(Path(folder) / "data", Path(folder) / "faults")
        with ServerOnFaultyDisk(disk, lease_seconds_max=_LEASE_SECONDS) as server:
            config = HAConfig(url=server.url, lease_seconds=_LEASE_SECONDS)
            with open_ha_services(config) as ha:
                bystander = _start(_BYSTANDER, server.url)
                disk.delay("sync", 0.010)
                grants = [_grants_ms(server.url, ha, n) for n in range(_ROUNDS)]
                many = f"{_COMPONENT_COUNT} components, sync 10 ms"
                figures += [
                    figure(
                        f"{many}: first grant", "ms", [first for first, _ in grants]
                    ),
                    figure(f"{many}: last grant", "ms", [last for _, last in grants]),
                    figure(
                        f"{many}: bystander without belief",
                        "ms",
                        [_longest_ms(bystander)],
                    ),
                ]
                bystander = _start(_BYSTANDER, server.url)
                disk.delay("sync", 0.150)
                puts, gets = _puts_and_gets_ms(ha)
                figures += [
                    figure("sync 150 ms: put", "ms", puts),
                    figure("sync 150 ms: get of another component", "ms", gets),
                    figure(
                        "sync 150 ms: bystander without belief",
                        "ms",
                        [_longest_ms(bystander)],
                    ),
                ]
    report("slow_disk", figures)
    return figures
