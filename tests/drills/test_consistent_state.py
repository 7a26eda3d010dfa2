"""Whatever is killed, and whatever else meanwhile: each answer is one it may be."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from nameservice import NS_PER_SECOND
from tests.drills.processes import now_ns
from tests.drills.state_answers import Outage, judge
from tests.drills.state_processes import Driver, StateProcesses
from tests.drills.state_readers import Readers, check_contents
from tests.drills.state_writing import DrillQuery


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.drills.reporting import Report


DEADLINE_SECONDS: Final = 30.0
BATCHES_BETWEEN: Final = 4
BETWEEN_KILLS_SECONDS: Final = 0.5

NODE: Final = "a node"
PROXY: Final = "the leading proxy"
SERVER: Final = "the LeaderServer"
DRIVER: Final = "the driver"


def kill_at_random(
    directory: Path, report: Report, *, rounds: int, seed: int, at_once: Sequence[int]
) -> None:
    """
    Kill processes of every kind, start them again, and judge every answer.

    Args:
        directory: Where everything goes.
        report: Of the drill.
        rounds: How often.
        seed: Of what is drawn.
        at_once: How many processes may be killed in one round, one soon after another.
    """
    drawn = random.Random(seed)
    killed: Counter[str] = Counter()
    outages: list[Outage] = []
    recovered_seconds = []
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(StateProcesses(directory, proxy_count=2))
        driver = resources.enter_context(Driver(processes.config, directory))
        driver.wait_for("acknowledged")
        onlooker = resources.enter_context(
            DrillQuery(processes.config, query_id="an onlooker")
        )
        with Readers(
            processes.config,
            onlooker.keys_by_node(),
            seed=seed,
            waiting_count=8,
            deadline_seconds=DEADLINE_SECONDS,
        ) as readers:
            for _ in range(rounds):
                driver.wait_for(
                    "acknowledged",
                    batch_id=driver.batch_id_last + drawn.randint(1, BATCHES_BETWEEN),
                )
                leader = processes.leader()
                node_id = drawn.choice(sorted(processes.nodes))
                victims = drawn.sample(
                    [NODE, NODE, NODE, PROXY, PROXY, SERVER, DRIVER, DRIVER],
                    drawn.choice(at_once),
                )
                killed_ns = now_ns()
                for victim in dict.fromkeys(victims):
                    # Any moment may be hit: no event tells of all of them.
                    threading.Event().wait(drawn.uniform(0, BETWEEN_KILLS_SECONDS))
                    killed[victim] += 1
                    match victim:
                        case "a node":
                            processes.nodes[node_id].kill()
                        case "the leading proxy":
                            leader.kill()
                        case "the LeaderServer":
                            processes.server.process.kill()
                        case _:
                            driver.kill()
                # Dead proxies stay so until the end of the round: the other one leads.
                if SERVER in victims:
                    processes.server.start()
                if DRIVER in victims:
                    driver.start()
                if NODE in victims:
                    processes.nodes[node_id].start()
                    outages.append(
                        Outage(node_id=node_id, from_ns=killed_ns, until_ns=now_ns())
                    )
                acknowledged = driver.wait_for("acknowledged", since_ns=now_ns())
                recovered_seconds.append(
                    (acknowledged.at_ns - killed_ns) / NS_PER_SECOND
                )
                for one in processes.nodes:
                    readers.wait_for_rows(one, since_ns=killed_ns)
                if PROXY in victims:
                    leader.start()
                processes.note_decisions()
        driver.end()
        assert driver.all("failed") == []
        check_contents(processes.config, driver.batch_id_last)
    repeated = Counter(event.batch_id for event in driver.all("begun"))
    report.say(
        f"kills: {dict(sorted(killed.items()))} in {rounds} rounds; "
        f"{driver.batch_id_last + 1} batches were written, "
        f"{sum(count > 1 for count in repeated.values())} of them were committed again "
        "by the next driver; none failed, none is missing, none was applied twice",
        kills=dict(killed),
        batches=driver.batch_id_last + 1,
    )
    report.durations(
        "recovered_seconds",
        "from the first kill of a round until the next batch was acknowledged",
        recovered_seconds,
    )
    report.check_answers(
        judge(readers.answers, driver.times(processes.decided_us), outages=outages)
    )


@pytest.mark.proves("Q1", "Q2", "Q3", "Q4", "W1", "W3", "W4")
@pytest.mark.shells
@pytest.mark.nightly
def test_every_answer_is_one_that_it_may_be(tmp_path: Path, report: Report) -> None:
    """Q1 to Q4, W1, W3, W4: between the last acknowledged and the last decided."""
    kill_at_random(tmp_path, report, rounds=1, seed=7, at_once=[3])


@pytest.mark.proves("Q1", "Q2", "Q3", "Q4", "W1", "W3", "W4")
@pytest.mark.drill
@pytest.mark.parametrize("seed", [11, 12])
def test_every_answer_is_one_that_it_may_be_all_along(
    tmp_path: Path, report: Report, seed: int
) -> None:
    """Q1 to Q4, W1, W3, W4: between the last acknowledged and the last decided."""
    kill_at_random(tmp_path, report, rounds=15, seed=seed, at_once=[1, 2, 3])
