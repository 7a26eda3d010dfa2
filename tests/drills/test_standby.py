"""
Standby drivers under SIGKILL, SIGSTOP, hand-overs and cuts: every batch once (H3).

``LODESTAR_STANDBY_ROUNDS`` says how often each happens, 20 times unless it is set.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from haservices.testing import ZooKeeperEnsemble
from sparkpipeline.standby.run import STOP_SECONDS
from tests.drills.standby_pair import BATCH_SECONDS, JOB, NameService, StandbyPair
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.drills.reporting import Report
    from tests.sparkpipeline.standby_totals import HoldPoint


pytestmark = [pytest.mark.drill, pytest.mark.timeout(3_600)]

ROUND_COUNT: Final = int(os.environ.get("LODESTAR_STANDBY_ROUNDS", "20"))

# One cut in five lasts until a driver that does not stop has ended itself.
LONG_CUT_INTERVAL: Final = 5

# None is any moment.
POINTS: Final[tuple[HoldPoint | None, ...]] = (
    "transaction",
    "written",
    "claimed",
    None,
)


@pytest.fixture(params=["leaderserver", "zookeeper"])
def name_service(request: pytest.FixtureRequest) -> Iterator[NameService]:
    """Yield a LeaderServer as a process, then a ZooKeeper ensemble of three."""
    if request.param == "leaderserver":
        yield NameService(request.getfixturevalue("server"))
        return
    with ZooKeeperEnsemble(3) as ensemble:
        yield NameService(ensemble)


def pause_at_random(drawn: random.Random) -> None:
    """Any moment of a batch may be hit: no event tells of all of them."""
    threading.Event().wait(drawn.uniform(0, 2 * BATCH_SECONDS))


def points() -> Iterator[HoldPoint | None]:
    """Yield where the leader is in each round."""
    return itertools.islice(itertools.cycle(POINTS), ROUND_COUNT)


@pytest.mark.proves("H1", "H3")
def test_a_killed_driver_is_succeeded(
    name_service: NameService, tmp_path: Path, report: Report
) -> None:
    """H3: leaders killed, also in the middle of a commit; no batch is lost or twice."""
    drawn = random.Random(15)
    seconds = []
    with StandbyPair(name_service, tmp_path) as pair:
        for point in points():
            pair.wait_for_batches(1)
            killed = pair.leader
            with contextlib.nullcontext() if point is None else pair.held(point):
                pause_at_random(drawn)
                since_seconds = time.monotonic()
                killed.kill()
            seconds.append(pair.wait_for_successor(since_seconds))
            pair.remove(killed)
            pair.check()
            pair.start()
        batch_count = pair.finish()
        repeated_count = pair.repeated_count()
    report.durations("seconds", "from SIGKILL to the first batch written", seconds)
    report.say(
        f"{batch_count} batches, totals of all sinks equal; {repeated_count} came "
        "again to a sink that had them"
    )


@pytest.mark.proves("H3")
def test_a_zombie_writes_nothing(
    name_service: NameService, tmp_path: Path, report: Report
) -> None:
    """
    H3: leaders stopped within and between transactions, woken under their successor.

    No call of a guarded function begins once its driver was stopped.  One that had
    begun goes on when it is woken: then its transaction finds the newer epoch, or was
    there before its successor's and is the one that counts.
    """
    drawn = random.Random(16)
    refused_count = 0
    with StandbyPair(name_service, tmp_path) as pair:
        for point in points():
            pair.wait_for_batches(1)
            zombie, standby = pair.leader, pair.standby
            with contextlib.nullcontext() if point is None else pair.held(point):
                pause_at_random(drawn)
                zombie.pause()
                stopped_seconds = time.time()
                # Not its first batch: the zombie may have the lock of the database.
                standby.wait_for("sink.called")
                if point in {"claimed", "written"}:
                    standby.wait_for("sink.written", 2)
            zombie.resume()
            assert zombie.wait_until_ended() != 0
            pair.wait_for_successor(time.monotonic())
            for call in zombie.wait_for("sink.called"):
                assert call["timestamp"] <= stopped_seconds
            refused_count += zombie.count("sink.refused")
            pair.remove(zombie)
            pair.check()
            pair.start()
        batch_count = pair.finish()
    report.say(
        f"{ROUND_COUNT} zombies, {batch_count} batches: no function was called after "
        "its driver was stopped, and totals of all sinks are equal"
    )
    report.say(f"{refused_count} transactions that were claimed before were refused")


@pytest.mark.proves("H1", "H3")
def test_a_hand_over_repeats_no_batch(
    name_service: NameService, tmp_path: Path, report: Report
) -> None:
    """H3: leaderships revoked at random moments; the two drivers take turns."""
    drawn = random.Random(17)
    seconds = []
    with StandbyPair(name_service, tmp_path) as pair:
        for _ in range(ROUND_COUNT):
            pair.wait_for_batches(1)
            standby = pair.standby
            standby.wait_for("standby.warm", standby.count("standby.leading") + 1)
            wait_until(lambda: len(pair.ha.operations.contenders(JOB)) == 2)
            pause_at_random(drawn)
            since_seconds = time.monotonic()
            pair.ha.operations.revoke(JOB)
            seconds.append(pair.wait_for_successor(since_seconds))
            pair.check()
        batch_count = pair.finish()
        assert pair.repeated_count() == 0
    report.durations(
        "seconds", "from the revocation to the first batch written", seconds
    )
    report.say(f"{batch_count} batches, each called once; totals of all sinks equal")


@pytest.mark.proves("H1", "H3")
def test_a_driver_that_is_cut_off_is_succeeded(
    name_service: NameService, tmp_path: Path, report: Report
) -> None:
    """H3: a leader without the name service begins no batch, and stands by after it."""
    drawn = random.Random(18)
    seconds = []
    with StandbyPair(name_service, tmp_path, is_cuttable=True) as pair:
        for number in range(ROUND_COUNT):
            pair.wait_for_batches(1)
            lonely, standby = pair.leader, pair.standby
            standby.wait_for("standby.warm", standby.count("standby.leading") + 1)
            pause_at_random(drawn)
            since_seconds = time.monotonic()
            with pair.cut(lonely):
                seconds.append(pair.wait_for_successor(since_seconds))
                (*_, granted) = standby.wait_for("standby.leading")
                pair.wait_for_batches(1)
                if number % LONG_CUT_INTERVAL == 0:
                    threading.Event().wait(STOP_SECONDS)
            for call in lonely.wait_for("sink.called"):
                if call["epoch"] < granted["epoch"]:
                    assert call["timestamp"] <= granted["timestamp"]
            pair.check()
        batch_count = pair.finish()
    report.durations("seconds", "from the cut to the first batch written", seconds)
    report.say(f"{batch_count} batches, totals of all sinks equal")
