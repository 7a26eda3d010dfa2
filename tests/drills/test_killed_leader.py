"""SIGKILL of a leader: how long until the next one is confirmed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices import HAServices, open_ha_services
from nameservice import NS_PER_SECOND
from tests.drills.beliefs import Span
from tests.drills.processes import Contender
from tests.drills.watching import TimedListener
from tests.recording import wait_until


if TYPE_CHECKING:
    from pathlib import Path

    from haservices.testing import ZooKeeperServer
    from tests.drills.processes import Server
    from tests.drills.reporting import Report


JOB: Final = "flights"
LEASE_SECONDS: Final = 0.5
CONTENDER_COUNT: Final = 3


def kill_leaders(
    directory: Path, report: Report, *, rounds: int, **services: Any
) -> list[float]:
    """Kill one leader after the other; return after how long each had a successor."""
    failovers_seconds = []
    spans: list[Span] = []
    with contextlib.ExitStack() as resources:
        ha: HAServices = resources.enter_context(
            open_ha_services(services["url"])  # an observer, with the defaults
        )
        listener = TimedListener()
        ha.get_leader_retriever(JOB).start(listener)
        processes: dict[str, Contender] = {}

        def add(number: int) -> None:
            process = resources.enter_context(
                Contender(f"contender-{number}", directory, job_ids=[JOB], **services)
            )
            processes[process.address] = process
            process.wait_for("ready")

        for number in range(CONTENDER_COUNT):
            add(number)
        epoch = 0
        for number in range(CONTENDER_COUNT, CONTENDER_COUNT + rounds):
            _, leader = listener.wait_for_leader(above_epoch=epoch)
            # Everybody is in the queue, and the holder believes: all is quiet.
            wait_until(lambda: len(ha.operations.contenders(JOB)) == CONTENDER_COUNT)
            victim = processes.pop(leader.address)
            victim.wait_until_believing(JOB, leader.epoch)
            killed_ns = victim.kill()
            told_ns, successor = listener.wait_for_leader(above_epoch=leader.epoch)
            assert successor.address in processes
            failovers_seconds.append((told_ns - killed_ns) / NS_PER_SECOND)
            spans += victim.spans()
            epoch = leader.epoch
            add(number)
        for process in processes.values():
            process.kill()
            spans += process.spans()
    report.check_beliefs(spans)
    return failovers_seconds


@pytest.mark.proves("E5")
@pytest.mark.shells
def test_killed_leader_is_succeeded_long_before_its_session_is_over(
    server: Server, tmp_path: Path, report: Report
) -> None:
    """E5: three leaders killed; each has a successor, by the closed connection."""
    failovers_seconds = kill_leaders(
        tmp_path,
        report,
        rounds=3,
        url=server.url,
        lease_seconds=LEASE_SECONDS,
        session_timeout_seconds=60.0,
    )
    report.durations("failover_seconds", "from SIGKILL to told", failovers_seconds)
    assert max(failovers_seconds) < 30.0


@pytest.mark.proves("E5")
@pytest.mark.drill
def test_killed_leader_is_succeeded_within_its_lease(
    server: Server, tmp_path: Path, report: Report
) -> None:
    """E5: ten leaders killed; the median successor is confirmed within 0.2 s more."""
    failovers_seconds = kill_leaders(
        tmp_path,
        report,
        rounds=10,
        url=server.url,
        lease_seconds=LEASE_SECONDS,
    )
    median_seconds = report.durations(
        "failover_seconds",
        f"from SIGKILL until a retriever was told, lease {LEASE_SECONDS} s",
        failovers_seconds,
    )
    assert median_seconds <= LEASE_SECONDS + 0.2


@pytest.mark.proves("E5")
@pytest.mark.drill
def test_killed_leader_on_zookeeper_is_succeeded_after_its_session(
    zookeeper: ZooKeeperServer, tmp_path: Path, report: Report
) -> None:
    """E5: a dead process keeps its session to the end; then the next leads."""
    session_timeout_seconds = 2.0
    failovers_seconds = kill_leaders(
        tmp_path,
        report,
        rounds=5,
        url=f"{zookeeper.url}/drills/killed",
        session_timeout_seconds=session_timeout_seconds,
    )
    report.durations(
        "failover_seconds",
        f"from SIGKILL until a retriever was told, session {session_timeout_seconds} s",
        failovers_seconds,
    )
    assert max(failovers_seconds) < 30.0
