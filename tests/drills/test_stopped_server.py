"""SIGSTOP of the LeaderServer for twice the session timeout: it costs nothing."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import pytest

from haservices import open_ha_services
from tests.drills.processes import Contender
from tests.recording import wait_until


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.beliefs import Span
    from tests.drills.processes import Server
    from tests.drills.reporting import Report


LEASE_SECONDS: Final = 0.4
PROCESS_COUNT: Final = 3
JOB_COUNT: Final = 6


def stop_server(
    server: Server,
    directory: Path,
    report: Report,
    *,
    session_timeout_seconds: float,
    rounds: int,
) -> None:
    """Stop the server again and again; none is granted or revoked anything."""
    job_ids = [f"job-{number}" for number in range(JOB_COUNT)]
    leaders: dict[str, tuple[Contender, int, str]] = {}
    with contextlib.ExitStack() as resources:
        processes = []
        # Each process enters first for jobs of its own, and then for all others: so
        # leaderships are spread over the processes.
        for number in range(PROCESS_COUNT):
            process = resources.enter_context(
                Contender(
                    f"contender-{number}",
                    directory,
                    job_ids=job_ids,
                    enters=job_ids[number::PROCESS_COUNT],
                    url=server.url,
                    lease_seconds=LEASE_SECONDS,
                    session_timeout_seconds=session_timeout_seconds,
                )
            )
            processes.append(process)
        for number, process in enumerate(processes):
            for job_id in job_ids[number::PROCESS_COUNT]:
                event = process.wait_for("confirmed", job_id=job_id)
                leaders[job_id] = (process, event.epoch, event.leader_session_id)
        for number, process in enumerate(processes):
            for job_id in job_ids:
                if job_id not in job_ids[number::PROCESS_COUNT]:
                    process.enter(job_id)
        ha = resources.enter_context(open_ha_services(server.url))
        for job_id in job_ids:
            wait_until(
                lambda job_id=job_id: (  # type: ignore[misc]
                    len(ha.operations.contenders(job_id)) == PROCESS_COUNT
                )
            )
        for _ in range(rounds):
            for job_id, (process, epoch, _) in leaders.items():
                process.wait_until_believing(job_id, epoch)
            server.process.pause()
            # Twice the session timeout has to pass in fact: that is what is drilled.
            time.sleep(2 * session_timeout_seconds)  # noqa: TID251
            for job_id, (process, epoch, _) in leaders.items():
                process.wait_until_doubting(job_id, epoch)
            server.process.resume()
            for job_id, (process, epoch, _) in leaders.items():
                process.wait_until_believing(job_id, epoch)
        # What the pause could still cost would be due within a session timeout and a
        # lease of its end: that time has to pass, too.
        time.sleep(session_timeout_seconds + LEASE_SECONDS)  # noqa: TID251
        for job_id, (process, epoch, _) in leaders.items():
            process.wait_until_believing(job_id, epoch)
        spans: list[Span] = []
        for process in processes:
            process.kill()
            spans += process.spans()
        for job_id, (process, epoch, identity) in leaders.items():
            grants = {
                (other.name, event.epoch, event.leader_session_id)
                for other in processes
                for event in other.all("granted", job_id=job_id)
            }
            assert grants == {(process.name, epoch, identity)}
    report.say(
        f"stops of the server: {rounds}, each {2 * session_timeout_seconds} s; session "
        f"timeout {session_timeout_seconds} s, lease {LEASE_SECONDS} s",
        rounds=rounds,
    )
    report.say(
        f"{JOB_COUNT} jobs led by {PROCESS_COUNT} processes: each incumbent leads with "
        "its old id and epoch, nobody else was granted",
        jobs=JOB_COUNT,
        processes=PROCESS_COUNT,
    )
    report.check_beliefs(spans)


@pytest.mark.proves("E9")
@pytest.mark.shells
@pytest.mark.nightly
def test_a_pause_of_the_server_costs_nobody(
    server: Server, tmp_path: Path, report: Report
) -> None:
    """E9: after a stop of twice the session timeout everybody leads as before."""
    stop_server(server, tmp_path, report, session_timeout_seconds=1.0, rounds=1)


@pytest.mark.proves("E9")
@pytest.mark.drill
def test_no_pause_of_the_server_costs_anybody(
    server: Server, tmp_path: Path, report: Report
) -> None:
    """E9: after five stops of twice the session timeout everybody leads as before."""
    stop_server(server, tmp_path, report, session_timeout_seconds=4.0, rounds=5)
