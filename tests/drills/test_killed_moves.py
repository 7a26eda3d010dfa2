"""Whatever is killed while key groups move: each answer is one that it may be."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from nameservice import NS_PER_SECOND
from queryablestate import StateOperations
from tests.drills.processes import now_ns
from tests.drills.state_answers import Outage, judge
from tests.drills.state_processes import Driver, StateProcesses
from tests.drills.state_readers import Readers, check_contents
from tests.drills.state_writing import JOB, keys_by_group


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.reporting import Report


DEADLINE_SECONDS: Final = 40.0
RESCALE_SECONDS: Final = 90.0
NODE_COUNT: Final = 4

NODE: Final = "a node"
PROXY: Final = "the leading proxy"
SERVER: Final = "the LeaderServer"
DRIVER: Final = "the driver"


def kill_in_moves(
    directory: Path, report: Report, *, rounds: int, seed: int, replica_count: int
) -> None:
    """
    Change the number of nodes again and again; kill somebody in the middle of it.

    Args:
        directory: Where everything goes.
        report: Of the drill.
        rounds: How often.
        seed: Of what is drawn.
        replica_count: Copies of each key group; with two, the death of one node fails
            none.
    """
    drawn = random.Random(seed)
    killed: Counter[str] = Counter()
    outages: list[Outage] = []
    done_seconds = []
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(
            StateProcesses(
                directory,
                proxy_count=2,
                node_count=NODE_COUNT,
                replica_count=replica_count,
            )
        )
        operations = resources.enter_context(
            StateOperations(processes.config, deadline_seconds=DEADLINE_SECONDS)
        )
        driver = resources.enter_context(Driver(processes.config, directory))
        driver.wait_for("acknowledged")
        with Readers(
            processes.config,
            keys_by_group(),
            seed=seed,
            deadline_seconds=DEADLINE_SECONDS,
        ) as readers:
            for _ in range(rounds):
                driver.wait_for("acknowledged", batch_id=driver.batch_id_last + 2)
                began_ns = now_ns()
                node_count = drawn.randint(replica_count, NODE_COUNT)
                operations.rescale(JOB, node_count=node_count)
                # A few key groups are moved in a tenth of a second: any moment of it.
                threading.Event().wait(drawn.uniform(0, 0.2))
                victim = drawn.choice([NODE, NODE, PROXY, SERVER, DRIVER])
                killed[victim] += 1
                killed_ns = now_ns()
                match victim:
                    case "a node":
                        node = processes.nodes[drawn.choice(sorted(processes.nodes))]
                        node.kill()
                        node.start()
                    case "the leading proxy":
                        leader = processes.leader()
                        leader.kill()
                        leader.start()
                    case "the LeaderServer":
                        processes.server.process.kill()
                        processes.server.start()
                    case _:
                        driver.kill()
                        driver.start()
                operations.wait_until_rescaled(JOB, timeout_seconds=RESCALE_SECONDS)
                done_seconds.append((now_ns() - began_ns) / NS_PER_SECOND)
                driver.wait_for("acknowledged", since_ns=now_ns())
                if victim is NODE and replica_count == 1:
                    outages.append(
                        Outage(node_id=None, from_ns=killed_ns, until_ns=now_ns())
                    )
                processes.note_decisions()
        driver.end()
        processes.note_decisions()
        assert driver.all("failed") == []
        check_contents(processes.config, driver.batch_id_last)
    report.say(
        f"kills in the middle of {rounds} changes of the number of nodes, "
        f"{replica_count} copies of each key group: {dict(sorted(killed.items()))}; "
        f"{driver.batch_id_last + 1} batches were written, none failed, none is "
        "missing, none was applied twice",
        kills=dict(killed),
        batches=driver.batch_id_last + 1,
    )
    report.durations(
        "done_seconds", "until all was as wanted, with the kill", done_seconds
    )
    report.check_answers(
        judge(readers.answers, driver.times(processes.decided_us), outages=outages)
    )


@pytest.mark.proves("Q1", "W3", "S1", "S2", "S3")
@pytest.mark.drill
@pytest.mark.parametrize("seed", [21, 22])
def test_moves_outlive_whoever_is_killed(
    tmp_path: Path, report: Report, seed: int
) -> None:
    """S1 to S3, Q1, W3: one owner answers, no half copy does, no batch is lost."""
    kill_in_moves(tmp_path, report, rounds=12, seed=seed, replica_count=1)


@pytest.mark.proves("S1", "S2", "S3", "S4")
@pytest.mark.drill
@pytest.mark.parametrize("seed", [23, 24])
def test_moves_of_two_copies_fail_nobody(
    tmp_path: Path, report: Report, seed: int
) -> None:
    """S1 to S4: with two copies no question fails either."""
    kill_in_moves(tmp_path, report, rounds=12, seed=seed, replica_count=2)
