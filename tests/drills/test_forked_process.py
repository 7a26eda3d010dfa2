"""fork() in a process that leads: the child may do nothing, and disturbs none."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices import HAConfig, open_ha_services
from nameservice import NS_PER_SECOND
from tests.drills.processes import Contender


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.processes import Server
    from tests.drills.reporting import Report


JOB: Final = "flights"
SESSION_TIMEOUT_SECONDS: Final = 1.0
EXIT_CODE: Final = 7
CLUSTER: Final = "forked"
CHILD_COUNT: Final = 3
LONG_SESSION_TIMEOUT_SECONDS: Final = 20.0


@pytest.mark.proves("E5", "E10")
@pytest.mark.shells
def test_a_leader_dies_though_a_child_of_it_lives(
    server: Server, tmp_path: Path, report: Report
) -> None:
    """E5, E10: its connection closes with it, so failover takes about one lease."""
    services: dict[str, Any] = {
        "url": server.url,
        "cluster_id": CLUSTER,
        "lease_seconds": 0.4,
        "session_timeout_seconds": LONG_SESSION_TIMEOUT_SECONDS,
    }
    with contextlib.ExitStack() as resources:
        leader = resources.enter_context(
            Contender("leader", tmp_path, job_ids=[JOB], **services)
        )
        granted = leader.wait_for("confirmed")
        second = resources.enter_context(
            Contender("second", tmp_path, job_ids=[JOB], **services)
        )
        second.wait_for("ready")
        leader.wait_until_believing(JOB, granted.epoch)
        child_pid = leader.leave_child(JOB)
        child = os.pidfd_open(child_pid)
        resources.callback(os.close, child)
        resources.callback(signal.pidfd_send_signal, child, signal.SIGKILL)
        killed_ns = leader.kill()
        confirmed = second.wait_for_newer(JOB, epoch=granted.epoch)
        took_seconds = (confirmed.at_ns - killed_ns) / NS_PER_SECOND
        signal.pidfd_send_signal(child, 0)  # it lives
    report.say(
        f"a leader killed while a child of it lived: succeeded after "
        f"{took_seconds:.2f} s, session timeout {LONG_SESSION_TIMEOUT_SECONDS:g} s",
        failover_seconds=took_seconds,
    )
    assert took_seconds < LONG_SESSION_TIMEOUT_SECONDS / 2


@pytest.mark.proves("E10")
@pytest.mark.shells
def test_child_of_a_leader_disturbs_nobody(
    any_url: str, tmp_path: Path, report: Report
) -> None:
    """E10: all that a child inherits raises, and its end costs its parent nothing."""
    is_embedded = any_url.startswith("embedded:")
    with Contender(
        "leader",
        tmp_path,
        job_ids=[JOB],
        url=any_url,
        cluster_id=CLUSTER,
        lease_seconds=0.4,
        session_timeout_seconds=SESSION_TIMEOUT_SECONDS,
    ) as leader:
        granted = leader.wait_for("confirmed")
        leader.wait_until_believing(JOB, granted.epoch)
        outcomes: dict[str, str] = {}
        for _ in range(CHILD_COUNT):
            forked = leader.fork(JOB)
            assert forked.exit_code == EXIT_CODE
            assert forked.outcomes is not None
            outcomes = dict(forked.outcomes)
            assert outcomes.pop("close") == "None"
            assert set(outcomes.values()) == {"ForkedClientError"}
        # Had a child closed or confused the session, its end would be due by then.
        time.sleep(1.5 * SESSION_TIMEOUT_SECONDS)  # noqa: TID251 (no event says "not")
        leader.wait_until_believing(JOB, granted.epoch)
        assert leader.all("revoked") == []
        assert len(leader.all("granted")) == 1
        if not is_embedded:
            config = HAConfig(url=any_url, cluster_id=CLUSTER)
            with open_ha_services(config) as ha:
                (entry,) = ha.operations.contenders(JOB)
                assert entry.is_leader
                assert entry.address == leader.address
        leader.end()
        assert leader.exit_code == 0
    report.say(
        f"{CHILD_COUNT} children on {any_url.partition(':')[0]}, each tried "
        f"{len(outcomes)} uses and ended with its own exit code",
        children=CHILD_COUNT,
    )
    report.say("the parent led on, under the same epoch, and then left cleanly")
