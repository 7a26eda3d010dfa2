"""SIGSTOP of a leader for longer than its session: what it believes when it wakes."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices.testing import TCPProxy
from nameservice import NS_PER_SECOND
from tests.drills.processes import Contender, now_ns


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from haservices.testing import ZooKeeperServer
    from tests.drills.beliefs import Span
    from tests.drills.processes import Server
    from tests.drills.reporting import Report


JOB: Final = "flights"
LEASE_SECONDS: Final = 0.4
CLIENT_HOST: Final = "127.0.77.2"

LINES = pytest.mark.parametrize("is_cut", [False, True], ids=["connected", "cut-off"])
"""Once with the line cut before it wakes: no traffic at all can have told it then."""


def stop_leader(
    directory: Path,
    report: Report,
    *,
    url: str,
    leader_url: str,
    proxies: Sequence[TCPProxy],
    is_cut: bool,
    session_timeout_seconds: float,
) -> None:
    """
    Stop the leader until long after its successor leads; ask it as it wakes.

    Args:
        directory: Where journals and logs go.
        report: The drill's.
        url: Where the successor finds the name service.
        leader_url: Where the leader does, through *proxies*.
        proxies: What stands between the leader and the name service.
        is_cut: Whether they pass nothing on while it wakes.
        session_timeout_seconds: The session timeout.
    """
    services: dict[str, Any] = {
        "job_ids": [JOB],
        "lease_seconds": LEASE_SECONDS,
        "session_timeout_seconds": session_timeout_seconds,
    }
    with contextlib.ExitStack() as resources:
        # Without a pause, what it asks next after waking, it asks at once.
        leader = resources.enter_context(
            Contender("leader", directory, url=leader_url, pause_seconds=0, **services)
        )
        epoch = leader.wait_for("confirmed").epoch
        successor = resources.enter_context(
            Contender("successor", directory, url=url, **services)
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
        due_ns = stopped_ns + round(1.8 * session_timeout_seconds * NS_PER_SECOND)
        time.sleep(max(0, due_ns - now_ns()) / NS_PER_SECOND)  # noqa: TID251
        resumed_ns = leader.resume()
        woke = leader.wait_for("woke", epoch=epoch, since_ns=resumed_ns)
        assert woke.believes is False
        assert woke.slept_ns >= session_timeout_seconds * NS_PER_SECOND

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
        f"{session_timeout_seconds} s",
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


@pytest.mark.proves("E4")
@pytest.mark.shells
@LINES
def test_stopped_leader_knows_when_it_wakes(
    server: Server, tmp_path: Path, report: Report, *, is_cut: bool
) -> None:
    """E4: stopped past its session, a leader's first answer after waking is no."""
    with contextlib.ExitStack() as resources:
        # Both ports of the server, on an address of the leader's own.
        proxies = [
            resources.enter_context(TCPProxy(port, host=CLIENT_HOST, port=port))
            for port in (server.port, server.publish_port)
        ]
        stop_leader(
            tmp_path,
            report,
            url=server.url,
            leader_url=f"leaderserver://{CLIENT_HOST}:{server.port}",
            proxies=proxies,
            is_cut=is_cut,
            session_timeout_seconds=1.0,
        )


@pytest.mark.proves("E4")
@pytest.mark.drill
@LINES
def test_stopped_leader_on_zookeeper_knows_when_it_wakes(
    zookeeper: ZooKeeperServer, tmp_path: Path, report: Report, *, is_cut: bool
) -> None:
    """E4: stopped past its session, a leader's first answer after waking is no."""
    with TCPProxy(zookeeper.port) as proxy:
        path = f"drills/stopped-{'cut' if is_cut else 'connected'}"
        stop_leader(
            tmp_path,
            report,
            url=f"{zookeeper.url}/{path}",
            leader_url=f"zookeeper://{proxy.address}/{path}",
            proxies=[proxy],
            is_cut=is_cut,
            session_timeout_seconds=3.0,
        )
