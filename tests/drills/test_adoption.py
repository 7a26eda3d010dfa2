"""The name service loses what it knew, or goes back in time; nodes have kept it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.drills.processes import now_ns
from tests.drills.state_answers import Outage, judge
from tests.drills.state_processes import Driver, StateProcesses
from tests.drills.state_readers import Readers, check_contents
from tests.drills.state_writing import JOB, DrillQuery
from tests.lodestar.running import Result, run
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.drills.reporting import Report


pytestmark = pytest.mark.drill

BATCHES_BETWEEN: Final = 5
ANSWERS_BETWEEN: Final = 100
DEADLINE_SECONDS: Final = 5.0

# None of them says that something does not exist (rules W7, Q3).
ERRORS_ALLOWED: Final = (
    "DeadlineExceededError",
    "NoLeaderError",
    "StateUnavailableError",
    "UnreachableError",
)


def adopt(processes: StateProcesses) -> list[dict[str, Any]]:
    """Take over what nodes have, as an operator does; return what that was."""
    found: list[dict[str, Any]] = []

    def is_done() -> bool:
        done = verb(processes, "adopt", "--yes", "--json")
        if done.exit_code == 0:
            found.extend(json.loads(done.out))
        return bool(found)

    # Nodes are still coming: an operator repeats it after an error, too.
    wait_until(is_done)
    return found


def verb(processes: StateProcesses, *arguments: str) -> Result:
    """Run a verb of an operator to its end."""
    return run(*arguments, "--url", processes.config.url)


def lose_and_adopt(
    directory: Path,
    report: Report,
    *,
    is_durable: bool,
    replica_count: int,
    prepare: Callable[[StateProcesses], object],
    lose: Callable[[StateProcesses], object],
) -> None:
    """
    Lose what the name service knows while all is written and read; take it over.

    Args:
        directory: Where everything is.
        report: Of the drill.
        is_durable: Whether the LeaderServer has a data directory.
        replica_count: How many copies of each key group there are.
        prepare: Is called after some batches; more come after it.
        lose: Does the harm, and has all processes run again.
    """
    with contextlib.ExitStack() as resources:
        enter = resources.enter_context
        processes = enter(
            StateProcesses(
                directory, is_durable=is_durable, replica_count=replica_count
            )
        )
        driver = enter(Driver(processes.config, directory, commit_timeout_seconds=5.0))
        driver.wait_for("acknowledged", batch_id=BATCHES_BETWEEN)
        onlooker = enter(DrillQuery(processes.config, query_id="an onlooker"))
        with Readers(
            processes.config,
            onlooker.keys_by_node(),
            seed=7,
            deadline_seconds=DEADLINE_SECONDS,
        ) as readers:
            prepare(processes)
            driver.wait_for(
                "acknowledged", batch_id=driver.batch_id_last + BATCHES_BETWEEN
            )
            lost_ns = now_ns()
            lose(processes)
            # Whoever asks or writes is told, in words, and nothing of it goes on.
            readers.wait_for(
                lambda answer: answer.error == "StateUnavailableError",
                since_ns=now_ns(),
                count=1,
            )
            driver.wait_for("failed", since_ns=now_ns())
            wait_until(lambda: "lodestar adopt" in verb(processes, "nodes").out)
            last = driver.batch_id_last
            (adopted,) = adopt(processes)
            assert adopted["job"] == JOB
            driver.wait_for("acknowledged", since_ns=now_ns(), batch_id=last + 2)
            healed_ns = now_ns()
            readers.wait_for(
                lambda answer: answer.is_answer,
                since_ns=healed_ns,
                count=ANSWERS_BETWEEN,
            )
        driver.end()
        # Each batch that was acknowledged is there, and none twice.
        check_contents(processes.config, driver.batch_id_last)
        assert {event.error for event in driver.all("failed")} <= {
            *ERRORS_ALLOWED,
            "CommitTimeoutError",
        }
    verdict = judge(
        readers.answers,
        driver.times({}),
        outages=[Outage(node_id=None, from_ns=lost_ns, until_ns=healed_ns)],
        errors_allowed=ERRORS_ALLOWED,
    )
    report.check_answers(verdict)
    report.say(
        f"{driver.batch_id_last + 1} batches, {last + 1} of them before: all of them "
        "are there, each once"
    )


@pytest.mark.proves("W7", "Q3")
def test_lost_store_is_adopted(tmp_path: Path, report: Report) -> None:
    """W7, Q3: a LeaderServer without a data directory, and a node, are killed."""

    def lose(processes: StateProcesses) -> None:
        processes.server.process.kill()
        node = processes.nodes["node-1"]
        node.kill()
        processes.server.start()
        node.start()

    lose_and_adopt(
        tmp_path,
        report,
        is_durable=False,
        replica_count=1,
        prepare=lambda _: None,
        lose=lose,
    )


@pytest.mark.proves("W7", "Q3")
@pytest.mark.parametrize("replica_count", [1, 2])
def test_older_copy_is_adopted(
    tmp_path: Path, report: Report, replica_count: int
) -> None:
    """W7, Q3: a backup of the LeaderServer is restored, some batches old."""
    data, backup = tmp_path / "data", tmp_path / "backup"

    def back_up(_: StateProcesses) -> None:
        done = run("backup", "--data-dir", str(data), "--to", str(backup))
        assert done.exit_code == 0, done.err

    def lose(processes: StateProcesses) -> None:
        processes.server.process.kill()
        processes.leader().kill()
        data.rename(tmp_path / "lost")
        done = run("restore-backup", str(backup), "--data-dir", str(data))
        assert done.exit_code == 0, done.err
        processes.server.start()
        for proxy in processes.proxies:
            proxy.start()

    lose_and_adopt(
        tmp_path,
        report,
        is_durable=True,
        replica_count=replica_count,
        prepare=back_up,
        lose=lose,
    )
