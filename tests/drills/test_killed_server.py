"""SIGKILL of the LeaderServer, and its return with what it kept, or with nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pytest

from haservices import open_ha_services
from nameservice import NS_PER_SECOND, NameServiceError
from tests.drills.processes import Contender, Server
from tests.recording import wait_until
from tests.tiers import nightly_after


if TYPE_CHECKING:
    from pathlib import Path

    from haservices import HAServices
    from tests.drills.beliefs import Span
    from tests.drills.reporting import Report


STEADY: Final = "steady"
CHANGING: Final = "changing"
PROCESS_COUNT: Final = 4
LEASE_SECONDS: Final = 0.4


def ids_in_order(ha: HAServices, job_id: str) -> list[str]:
    """Return the ids of the contenders, the leader first; none without an answer."""
    try:
        return [item.contender_id for item in ha.operations.contenders(job_id)]
    except NameServiceError:
        return []


def restart_server(
    directory: Path, report: Report, *, is_durable: bool, rounds: int
) -> None:
    """
    Kill the server again and again; the one job's leader stays, the other's changes.

    Each round ends with a new leader of the second job: its epoch is to be above all
    that were granted before.
    """
    with contextlib.ExitStack() as resources:
        server = resources.enter_context(Server(directory, is_durable=is_durable))
        ha = resources.enter_context(
            open_ha_services(server.url)  # an operator, who also watches
        )
        processes = []
        for number in range(PROCESS_COUNT):
            process = resources.enter_context(
                Contender(
                    f"contender-{number}",
                    directory,
                    job_ids=[STEADY, CHANGING],
                    url=server.url,
                    lease_seconds=LEASE_SECONDS,
                    session_timeout_seconds=20.0,
                )
            )
            processes.append(process)
            # One after the other: the order of the queue is the order of the names.
            for job_id in (STEADY, CHANGING):
                wait_until(
                    lambda job_id=job_id, number=number: (  # type: ignore[misc]
                        len(ha.operations.contenders(job_id)) == number + 1
                    )
                )
        incumbent = processes[0].wait_for("confirmed", job_id=STEADY)
        changing = processes[0].wait_for("confirmed", job_id=CHANGING)
        queue = list(processes)
        epochs = [changing.epoch]
        returns_seconds = []
        for _ in range(rounds):
            processes[0].wait_until_believing(STEADY, incumbent.epoch)
            queue[0].wait_until_believing(CHANGING, epochs[-1])
            orders = {job_id: ids_in_order(ha, job_id) for job_id in (STEADY, CHANGING)}
            killed_ns = server.process.kill()
            # Belief ends before it can come back: what we wait for below is new.
            processes[0].wait_until_doubting(STEADY, incumbent.epoch)
            queue[0].wait_until_doubting(CHANGING, epochs[-1])
            server.start()
            again = processes[0].wait_until_believing(STEADY, incumbent.epoch)
            queue[0].wait_until_believing(CHANGING, epochs[-1])
            returns_seconds.append((again.at_ns - killed_ns) / NS_PER_SECOND)
            for job_id, order in orders.items():
                wait_until(
                    lambda job_id=job_id: (  # type: ignore[misc]
                        len(ids_in_order(ha, job_id)) == PROCESS_COUNT
                    )
                )
                assert ids_in_order(ha, job_id) == order
            # The queue moves on by one, and none has lost a place.
            queue[0].resign(CHANGING)
            granted = queue[1].wait_for_newer(CHANGING, epoch=max(epochs))
            epochs.append(granted.epoch)
            queue[0].enter(CHANGING)
            wait_until(lambda: len(ids_in_order(ha, CHANGING)) == PROCESS_COUNT)
            queue.append(queue.pop(0))
        spans: list[Span] = []
        for process in processes:
            process.kill()
            spans += process.spans()
        for process in processes:
            for event in process.all("granted", job_id=STEADY):
                assert (process, event.epoch) == (processes[0], incumbent.epoch)
            assert process.all("failed") == []
    kept = "with" if is_durable else "without"
    report.say(
        f"kills and restarts of the server, {kept} a data directory: {rounds}; "
        f"{PROCESS_COUNT} contenders for each of 2 jobs",
        rounds=rounds,
        is_durable=is_durable,
    )
    report.say(
        "one leader stayed under its epoch; the other job changed hands after each "
        f"restart, in the order of the queue: {len(epochs)} rising epochs"
    )
    report.durations(
        "return_seconds", "from SIGKILL until the incumbent led again", returns_seconds
    )
    report.check_beliefs(spans)


@pytest.mark.proves("E2", "E9")
@pytest.mark.shells
@pytest.mark.parametrize(
    "is_durable", nightly_after(1, [True, False]), ids=["data", "no-data"]
)
def test_restarted_server_finds_everybody_in_place(
    tmp_path: Path, report: Report, *, is_durable: bool
) -> None:
    """E2, E9: incumbents keep their epochs, contenders their order; epochs rise."""
    restart_server(tmp_path, report, is_durable=is_durable, rounds=2)


@pytest.mark.proves("E2", "E9")
@pytest.mark.drill
@pytest.mark.parametrize(
    "is_durable", nightly_after(1, [True, False]), ids=["data", "no-data"]
)
def test_server_restarted_five_times_finds_everybody_in_place(
    tmp_path: Path, report: Report, *, is_durable: bool
) -> None:
    """E2, E9: incumbents keep their epochs, contenders their order; epochs rise."""
    restart_server(tmp_path, report, is_durable=is_durable, rounds=5)
