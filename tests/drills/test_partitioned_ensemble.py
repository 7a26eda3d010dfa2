"""One member of a ZooKeeper ensemble cut off from the others, with the holder on it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing import ZooKeeperEnsemble
from nameservice import NS_PER_SECOND, seconds_to_ns
from tests.drills.processes import Contender, now_ns
from tests.recording import wait_until


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.beliefs import Span
    from tests.drills.reporting import Report


JOB: Final = "flights"
SESSION_TIMEOUT_SECONDS: Final = 2.0
TICK_SECONDS: Final = 0.1


@pytest.mark.proves("E4")
@pytest.mark.drill
@pytest.mark.parametrize(
    ("role", "synchronization_limit_ticks"),
    [
        # A follower that takes long to notice: it goes on serving reads to the holder
        # for five times the session timeout.
        pytest.param("follower", 100, id="follower"),
        # A leader: the others elect another one, which gives every session its whole
        # timeout anew.
        pytest.param("leader", 20, id="leader"),
    ],
)
def test_holder_on_the_wrong_side_stops_believing_first(
    tmp_path: Path, report: Report, role: str, synchronization_limit_ticks: int
) -> None:
    """E4: reads, pings and an open connection are no grounds for belief."""
    services: dict[str, Any] = {
        "session_timeout_seconds": SESSION_TIMEOUT_SECONDS,
        "connect_timeout_seconds": 30.0,
    }
    with contextlib.ExitStack() as resources:
        ensemble = resources.enter_context(
            ZooKeeperEnsemble(
                3,
                tick_time_ms=round(TICK_SECONDS * 1000),
                synchronization_limit_ticks=synchronization_limit_ticks,
            )
        )
        leading = ensemble.leader_index()
        lonely = leading if role == "leader" else (leading + 1) % 3
        healthy_addresses = ",".join(
            member.address
            for index, member in enumerate(ensemble.members)
            if index != lonely
        )
        healthy_url = f"zookeeper://{healthy_addresses}/drills"
        config = HAConfig(url=healthy_url, connect_timeout_seconds=30.0)
        holder = resources.enter_context(
            Contender(
                "holder",
                tmp_path,
                job_ids=[JOB],
                url=f"{ensemble.members[lonely].url}/drills",
                **services,
            )
        )
        epoch = holder.wait_for("confirmed").epoch
        ha = resources.enter_context(open_ha_services(config))
        others = []
        for number in range(2):
            other = resources.enter_context(
                Contender(
                    f"other-{number}",
                    tmp_path,
                    job_ids=[JOB],
                    url=healthy_url,
                    **services,
                )
            )
            others.append(other)
            wait_until(
                lambda number=number: (  # type: ignore[misc]
                    len(ha.operations.contenders(JOB)) == number + 2
                )
            )
        holder.wait_until_believing(JOB, epoch)

        ensemble.cut(lonely)
        cut_ns = now_ns()
        doubted = holder.wait_until_doubting(JOB, epoch)
        mode = ensemble.mode(lonely)  # what it thinks it is while it is cut off
        revoked = holder.wait_for("revoked", epoch=epoch)
        granted = others[0].wait_for("confirmed")
        others[0].wait_until_believing(JOB, granted.epoch)

        ensemble.heal(lonely)
        wait_until(lambda: len(ha.operations.contenders(JOB)) == 3)
        others[0].resign(JOB)
        second = others[1].wait_for_newer(JOB, epoch=granted.epoch)
        others[1].wait_until_believing(JOB, second.epoch)
        others[1].resign(JOB)
        again = holder.wait_for_newer(JOB, epoch=second.epoch)
        holder.wait_until_believing(JOB, again.epoch)
        spans: list[Span] = []
        for process in (holder, *others):
            process.kill()
            spans += process.spans()
    assert epoch < granted.epoch
    # Its last write that committed was sent before the cut, so this is exact.
    last_yes_ns = max(span.last_ns for span in spans if span.epoch == epoch)
    assert last_yes_ns <= cut_ns + seconds_to_ns(SESSION_TIMEOUT_SECONDS) * 2 // 3
    report.say(
        f"the {role} of three was cut off from the others; session timeout "
        f"{SESSION_TIMEOUT_SECONDS} s, they give each other up after "
        f"{synchronization_limit_ticks * TICK_SECONDS:.0f} s"
    )
    report.say(f"when the holder doubted, its server called itself {mode or 'nothing'}")
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
