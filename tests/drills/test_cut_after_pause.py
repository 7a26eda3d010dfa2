"""A holder on a follower that wakes from a pause, writes, and is cut off at once."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing import ZooKeeperEnsemble
from nameservice import NS_PER_SECOND
from tests.drills.beliefs import overlaps
from tests.drills.processes import Contender, now_ns
from tests.recording import wait_until


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.reporting import Report


JOB: Final = "flights"
SESSION_TIMEOUT_SECONDS: Final = 2.0
SYNCHRONIZATION_LIMIT_SECONDS: Final = 2.0
CUT_SECONDS_MAX: Final = 0.2
ROUND_COUNT: Final = int(os.environ.get("LODESTAR_DRILL_ROUNDS", "50"))


def _wait(seconds: float) -> None:
    """Do nothing for so long: the moment of a fault is what is drawn."""
    threading.Event().wait(seconds)


@pytest.mark.proves("E4")
@pytest.mark.drill
@pytest.mark.parametrize(
    "tick_seconds",
    [
        pytest.param(0.1, id="many-ticks"),
        # The shortest timeout that ZooKeeper admits: pings come a quarter of it apart.
        pytest.param(1.0, id="two-ticks"),
    ],
)
def test_a_write_after_a_pause_is_no_ground_for_a_whole_belief(
    tmp_path: Path, report: Report, tick_seconds: float
) -> None:
    """
    E4: what committed through a follower may not have renewed the session.

    The holder pauses for anything up to its timeout and wakes.  Its next write commits
    through a follower, which is cut off 0 to 200 ms later: perhaps before the follower
    has told the leader that the session lives.
    """
    services: dict[str, Any] = {
        "session_timeout_seconds": SESSION_TIMEOUT_SECONDS,
        "connect_timeout_seconds": 30.0,
    }
    draw = random.Random(9)
    unled_seconds: list[float] = []
    with contextlib.ExitStack() as resources:
        ensemble = resources.enter_context(
            ZooKeeperEnsemble(
                3,
                tick_time_ms=round(tick_seconds * 1000),
                synchronization_limit_ticks=round(
                    SYNCHRONIZATION_LIMIT_SECONDS / tick_seconds
                ),
            )
        )
        lonely = (ensemble.leader_index() + 1) % 3
        healthy_addresses = ",".join(
            member.address
            for index, member in enumerate(ensemble.members)
            if index != lonely
        )
        healthy_url = f"zookeeper://{healthy_addresses}/drills"
        holder, other = (
            resources.enter_context(
                Contender(name, tmp_path, job_ids=[JOB], enters=[], url=url, **services)
            )
            for name, url in (
                ("holder", f"{ensemble.members[lonely].url}/drills"),
                ("other", healthy_url),
            )
        )
        ha = resources.enter_context(
            open_ha_services(HAConfig(url=healthy_url, connect_timeout_seconds=30.0))
        )
        holder.enter(JOB)
        epoch = holder.wait_for("confirmed").epoch
        for _ in range(ROUND_COUNT):
            other.enter(JOB)
            wait_until(lambda: len(ha.operations.contenders(JOB)) == 2)
            holder.wait_until_believing(JOB, epoch)
            _wait(draw.uniform(0.0, SESSION_TIMEOUT_SECONDS / 5))
            holder.pause()
            _wait(draw.uniform(0.0, SESSION_TIMEOUT_SECONDS))
            holder.resume()
            _wait(draw.uniform(0.0, CUT_SECONDS_MAX))
            ensemble.cut(lonely)
            cut_ns = now_ns()
            granted = other.wait_for_newer(JOB, epoch=epoch)
            other.wait_until_believing(JOB, granted.epoch)
            unled_seconds.append((granted.at_ns - cut_ns) / NS_PER_SECOND)
            holder.wait_for("revoked", epoch=epoch)
            ensemble.heal(lonely)
            wait_until(lambda: len(ha.operations.contenders(JOB)) == 2)
            other.resign(JOB)
            epoch = holder.wait_for_newer(JOB, epoch=granted.epoch).epoch
        for process in (holder, other):
            process.kill()
        spans = [*holder.spans(), *other.spans()]
    report.say(
        f"{ROUND_COUNT} times: paused for 0 to {SESSION_TIMEOUT_SECONDS} s, its "
        f"follower cut off 0 to {CUT_SECONDS_MAX} s after it woke; two believed at "
        f"once in {len(overlaps(spans))} of them",
        rounds=ROUND_COUNT,
    )
    report.durations("granted_seconds", "from the cut to the next grant", unled_seconds)
    report.check_beliefs(spans)
