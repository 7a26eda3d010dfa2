"""A connection on which nothing passes any more, and neither side is told."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices import open_ha_services
from haservices.testing import TCPProxy
from nameservice import NS_PER_SECOND, seconds_to_ns
from tests.drills.processes import Contender, now_ns
from tests.recording import wait_until


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.beliefs import Span
    from tests.drills.processes import Server
    from tests.drills.reporting import Report


JOB: Final = "flights"
SESSION_TIMEOUT_SECONDS: Final = 2.0
LEASE_SECONDS: Final = 0.5
CLIENT_HOST: Final = "127.0.77.3"


@pytest.mark.proves("E4", "E5", "E8")
@pytest.mark.shells
def test_black_holed_leader_stops_believing_before_the_next_begins(
    server: Server, tmp_path: Path, report: Report
) -> None:
    """E4, E5, E8: belief ends by the lease, the session by its timeout; back last."""
    services: dict[str, Any] = {
        "lease_seconds": LEASE_SECONDS,
        "session_timeout_seconds": SESSION_TIMEOUT_SECONDS,
    }
    with contextlib.ExitStack() as resources:
        proxies = [
            resources.enter_context(TCPProxy(port, host=CLIENT_HOST, port=port))
            for port in (server.port, server.publish_port)
        ]
        ha = resources.enter_context(open_ha_services(server.url))
        leader = resources.enter_context(
            Contender(
                "leader",
                tmp_path,
                job_ids=[JOB],
                url=f"leaderserver://{CLIENT_HOST}:{server.port}",
                **services,
            )
        )
        epoch = leader.wait_for("confirmed").epoch
        (entry,) = ha.operations.contenders(JOB)
        others = []
        for number in range(2):
            other = resources.enter_context(
                Contender(
                    f"other-{number}",
                    tmp_path,
                    job_ids=[JOB],
                    url=server.url,
                    **services,
                )
            )
            others.append(other)
            wait_until(
                lambda number=number: (  # type: ignore[misc]
                    len(ha.operations.contenders(JOB)) == number + 2
                )
            )
        leader.wait_until_believing(JOB, epoch)

        for proxy in proxies:
            proxy.cut()
        cut_ns = now_ns()
        doubted = leader.wait_until_doubting(JOB, epoch)
        revoked = leader.wait_for("revoked", epoch=epoch)
        granted = others[0].wait_for("confirmed")
        assert granted.epoch > epoch
        others[0].wait_until_believing(JOB, granted.epoch)
        sessions = {session.session_id for session in ha.operations.sessions()}
        assert entry.session_id not in sessions

        for proxy in proxies:
            proxy.heal()
        wait_until(lambda: len(ha.operations.contenders(JOB)) == 3)
        *_, last = ha.operations.contenders(JOB)
        assert last.contender_id == entry.contender_id
        others[0].resign(JOB)
        second = others[1].wait_for("confirmed")
        others[1].resign(JOB)
        again = leader.wait_for_newer(JOB, epoch=second.epoch)
        leader.wait_until_believing(JOB, again.epoch)
        spans: list[Span] = []
        for process in (leader, *others):
            process.kill()
            spans += process.spans()
    # What was acknowledged last was sent before the cut, so this is exact.
    last_yes_ns = max(span.last_ns for span in spans if span.epoch == epoch)
    assert last_yes_ns <= cut_ns + seconds_to_ns(LEASE_SECONDS) * 9 // 10
    assert last_yes_ns < granted.at_ns
    # The client's own clock ends the session, one timeout after such a send.
    assert revoked.at_ns < cut_ns + seconds_to_ns(SESSION_TIMEOUT_SECONDS + 30.0)
    report.say(
        f"cut both channels; lease {LEASE_SECONDS} s, session timeout "
        f"{SESSION_TIMEOUT_SECONDS} s"
    )
    for name, what, at_ns in (
        ("last_yes_seconds", "the last yes", last_yes_ns),
        ("first_no_seconds", "the first no", doubted.at_ns),
        ("revoked_seconds", "its contender revoked", revoked.at_ns),
        ("granted_seconds", "the next one confirmed", granted.at_ns),
    ):
        seconds = (at_ns - cut_ns) / NS_PER_SECOND
        report.say(f"{what} {seconds:.3f} s after the cut", **{name: seconds})
    report.say("healed: it is last in the queue, and leads again in its turn")
    report.check_beliefs(spans)
