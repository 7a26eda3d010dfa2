"""SIGSTOP of a leader for longer than its session: what it believes when it wakes."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices.testing import TCPProxy
from nameservice import NS_PER_SECOND
from tests.drills.beliefs import Span
from tests.drills.processes import Contender, now_ns


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.processes import Server
    from tests.drills.reporting import Report


JOB: Final = "flights"
SESSION_TIMEOUT_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 0.4
STOP_SECONDS: Final = 1.8
CLIENT_HOST: Final = "127.0.77.2"


@pytest.mark.shells
@pytest.mark.parametrize("is_cut", [False, True], ids=["connected", "cut-off"])
def test_stopped_leader_knows_when_it_wakes(
    server: Server, tmp_path: Path, report: Report, *, is_cut: bool
) -> None:
    """
    E4: stopped past its session, its first answer after waking is no.

    Once with the line cut before it wakes: no traffic at all can have told it.
    """
    services: dict[str, Any] = {
        "lease_seconds": LEASE_SECONDS,
        "session_timeout_seconds": SESSION_TIMEOUT_SECONDS,
    }
    with contextlib.ExitStack() as resources:
        # Both ports of the server, on an address of the leader's own.
        proxies = [
            resources.enter_context(TCPProxy(port, host=CLIENT_HOST, port=port))
            for port in (server.port, server.publish_port)
        ]
        leader = resources.enter_context(
            Contender(
                "leader",
                tmp_path,
                job_ids=[JOB],
                pause_seconds=0.0,  # what is asked next after waking is asked at once
                url=f"leaderserver://{CLIENT_HOST}:{server.port}",
                **services,
            )
        )
        epoch = leader.wait_for("confirmed").epoch
        successor = resources.enter_context(
            Contender("successor", tmp_path, job_ids=[JOB], url=server.url, **services)
        )
        successor.wait_for("ready")
        leader.wait_until_believing(JOB, epoch)

        leader.pause()
        stopped_ns = now_ns()
        if is_cut:
            for proxy in proxies:
                proxy.cut()
        granted = successor.wait_for("confirmed")
        successor.wait_until_believing(JOB, granted.epoch)
        # Time has to pass in fact: the stop is to be longer than the session.
        left_seconds = STOP_SECONDS - (now_ns() - stopped_ns) / NS_PER_SECOND
        time.sleep(max(0.0, left_seconds))  # noqa: TID251
        resumed_ns = leader.resume()
        woke = leader.wait_for("woke", epoch=epoch)
        assert woke.believes is False
        assert woke.slept_ns >= SESSION_TIMEOUT_SECONDS * NS_PER_SECOND

        for proxy in proxies:
            proxy.heal()
        leader.wait_for("revoked", epoch=epoch)
        # Back at the end of the queue: it leads again once the successor leaves.
        successor.resign(JOB)
        assert granted.epoch > epoch
        again = leader.wait_for_newer(JOB, epoch=granted.epoch)
        leader.wait_until_believing(JOB, again.epoch)
        spans: list[Span] = []
        for process in (leader, successor):
            process.kill()
            spans += process.spans()
    report.say(
        f"stopped for {(resumed_ns - stopped_ns) / 1e9:.3f} s; session timeout "
        f"{SESSION_TIMEOUT_SECONDS} s, lease {LEASE_SECONDS} s",
        stopped_seconds=(resumed_ns - stopped_ns) / 1e9,
    )
    report.say(
        f"the successor had confirmed {(granted.at_ns - stopped_ns) / 1e9:.3f} s after "
        "the stop",
        failover_seconds=(granted.at_ns - stopped_ns) / 1e9,
    )
    report.say(
        f"first answer {(woke.at_ns - resumed_ns) / 1e6:.3f} ms after waking: no",
        first_answer_ms=(woke.at_ns - resumed_ns) / 1e6,
    )
    report.check_beliefs(spans)
