"""Nodes join, leave and die while batches are committed and everybody asks."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, Final

import pytest

from nameservice import NS_PER_SECOND
from queryablestate import QueryableStateClient, StateOperations
from tests.drills.processes import WAIT_SECONDS, now_ns
from tests.drills.state_answers import judge
from tests.drills.state_processes import Driver, StateProcesses, spark_command
from tests.drills.state_readers import Readers
from tests.drills.state_writing import JOB, KEYS, LOG, LOG_KEYS, ROWS, keys_by_group


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.drills.reporting import Report


DEADLINE_SECONDS: Final = 30.0
RESCALE_SECONDS: Final = 60.0
BATCHES_BETWEEN: Final = 3


def rescale_again_and_again(
    directory: Path, report: Report, *, driver: Callable[[StateProcesses], Driver]
) -> None:
    """1 -> 2 -> 4 -> 3 -> 1 nodes; judge every answer."""
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(
            StateProcesses(directory, node_count=4, started_count=1)
        )
        operations = resources.enter_context(StateOperations(processes.config))
        writing = resources.enter_context(driver(processes))
        writing.wait_for("acknowledged")
        seconds: dict[str, float] = {}

        def rescale(node_count: int) -> None:
            began_ns = now_ns()
            operations.rescale(JOB, node_count=node_count)
            operations.wait_until_rescaled(JOB, timeout_seconds=RESCALE_SECONDS)
            now_has = [node for node in operations.nodes() if node.key_group_counts]
            assert len([n for n in now_has if n.key_group_counts[JOB]]) == node_count
            seconds[f"to {node_count}"] = (now_ns() - began_ns) / NS_PER_SECOND
            go_on()

        def go_on() -> None:
            writing.wait_for(
                "acknowledged", batch_id=writing.batch_id_last + BATCHES_BETWEEN
            )
            processes.note_decisions()

        with Readers(
            processes.config, keys_by_group(), seed=1, deadline_seconds=DEADLINE_SECONDS
        ) as readers:
            go_on()
            processes.nodes["node-2"].start()
            rescale(2)
            for node_id in ("node-3", "node-4"):
                processes.nodes[node_id].launch()
            for node_id in ("node-3", "node-4"):
                assert processes.nodes[node_id].address
            rescale(4)
            began_ns = now_ns()
            leaver = processes.nodes["node-4"].process
            leaver.leave()
            seconds["node-4 left"] = (now_ns() - began_ns) / NS_PER_SECOND
            go_on()
            rescale(1)
        writing.end()
        processes.note_decisions()
        assert writing.all("failed") == []
        check_whole(processes, writing)
    report.say(
        "1 -> 2 -> 4 -> 3 -> 1 nodes while "
        f"{writing.batch_id_last + 1} batches were committed: "
        + ", ".join(f"{name} in {took:.2f} s" for name, took in seconds.items()),
        seconds=seconds,
        batches=writing.batch_id_last + 1,
    )
    verdict = judge(readers.answers, writing.times(processes.decided_us))
    assert verdict.error_count == 0
    report.say(
        f"the longest pause of a single read: {verdict.seconds_max:.3f} s",
        pause_seconds_max=verdict.seconds_max,
    )
    report.check_answers(verdict)


def kill_copies(directory: Path, report: Report, *, rounds: int, seed: int) -> None:
    """SIGKILL of a node at random moments, two copies of everything."""
    drawn = random.Random(seed)
    restored_seconds = []
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(
            StateProcesses(directory, node_count=3, replica_count=2)
        )
        operations = resources.enter_context(StateOperations(processes.config))
        driver = resources.enter_context(
            Driver(processes.config, directory, pause_seconds=0.2)
        )
        driver.wait_for("acknowledged")
        with Readers(
            processes.config,
            keys_by_group(),
            seed=seed,
            deadline_seconds=DEADLINE_SECONDS,
        ) as readers:
            for _ in range(rounds):
                driver.wait_for(
                    "acknowledged",
                    batch_id=driver.batch_id_last + drawn.randint(1, BATCHES_BETWEEN),
                )
                node = processes.nodes[drawn.choice(sorted(processes.nodes))]
                # Any moment of a batch may be hit: no event tells of all of them.
                threading.Event().wait(drawn.uniform(0, 0.5))
                killed_ns = node.kill()
                driver.wait_for("acknowledged", since_ns=now_ns())
                node.start()
                operations.wait_until_rescaled(JOB, timeout_seconds=RESCALE_SECONDS)
                (job,) = operations.rescalings(JOB)
                assert job.missing_count == 0
                restored_seconds.append((now_ns() - killed_ns) / NS_PER_SECOND)
                processes.note_decisions()
        driver.end()
        assert driver.all("failed") == []
        check_whole(processes, driver)
    report.durations(
        "restored_seconds",
        f"from SIGKILL of one of three nodes until there were two copies again, "
        f"{rounds} times",
        restored_seconds,
    )
    verdict = judge(readers.answers, driver.times(processes.decided_us))
    assert verdict.error_count == 0
    report.say(
        f"the longest pause of a single read: {verdict.seconds_max:.3f} s",
        pause_seconds_max=verdict.seconds_max,
    )
    report.check_answers(verdict)


def check_whole(processes: StateProcesses, driver: Driver) -> None:
    """Assert that every key has the same last batch, and that no list lacks one."""
    with QueryableStateClient(
        processes.config, deadline_seconds=WAIT_SECONDS
    ) as client:
        last = client.lookup(JOB, ROWS, KEYS[0]).value["batch"]
        # A batch may have been decided when its driver was told to end.
        assert driver.batch_id_last <= last <= driver.batch_id_last + 1
        assert dict(client.scan(JOB, ROWS)) == {key: {"batch": last} for key in KEYS}
        assert client.count(JOB, ROWS) == len(KEYS)
        whole = [{"batch": number} for number in range(last + 1)]
        for key in LOG_KEYS:
            assert client.get_list(JOB, LOG, key) == whole


@pytest.mark.proves("S1", "S2", "S3")
@pytest.mark.shells
@pytest.mark.nightly
def test_readers_do_not_notice_that_nodes_join_and_leave(
    tmp_path: Path, report: Report
) -> None:
    """S1, S2, S3: no read fails, none is wrong; no batch fails."""
    rescale_again_and_again(
        tmp_path,
        report,
        driver=lambda processes: Driver(
            processes.config, tmp_path, pause_seconds=0.2, commit_timeout_seconds=30.0
        ),
    )


@pytest.mark.proves("S1", "S2", "S3")
@pytest.mark.drill
@pytest.mark.spark
def test_spark_job_is_rescaled_while_it_runs(tmp_path: Path, report: Report) -> None:
    """S1, S2, S3: the same with Spark, which commits a batch a second."""
    rescale_again_and_again(
        tmp_path,
        report,
        driver=lambda processes: Driver(
            processes.config,
            tmp_path,
            command=spark_command(processes.config, tmp_path),
        ),
    )


@pytest.mark.proves("S4")
@pytest.mark.shells
@pytest.mark.nightly
def test_death_of_a_copy_fails_nobody(tmp_path: Path, report: Report) -> None:
    """S4: with two copies no read fails; the second copy is restored by itself."""
    kill_copies(tmp_path, report, rounds=1, seed=5)


@pytest.mark.proves("S4")
@pytest.mark.drill
def test_deaths_of_copies_fail_nobody(tmp_path: Path, report: Report) -> None:
    """S4: the same ten times, at random moments."""
    kill_copies(tmp_path, report, rounds=10, seed=6)
