"""SIGKILL of a state node while it is asked and written to; and its return."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.sql import SparkSession

from nameservice import NS_PER_SECOND
from queryablestate import (
    CommitTimeoutError,
    QueryableStateClient,
    QueryableStateError,
    StateOperations,
    StateUnavailableError,
)
from queryablestate.writer.connections import close_writer_connections
from sparkpipeline import close_ha_services, publish_state
from tests.drills.processes import ROOT, now_ns
from tests.drills.state_answers import Outage, judge
from tests.drills.state_processes import Driver, StateProcesses
from tests.drills.state_readers import Readers, check_contents
from tests.drills.state_writing import JOB, KEYS, LOG, ROWS, DrillQuery
from tests.recording import wait_until
from tests.sparkpipeline.state_cluster import Feed


if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.drills.reporting import Report


DEADLINE_SECONDS: Final = 15.0
ANSWERS_PER_OUTAGE: Final = 100
BATCHES_BETWEEN: Final = 10
SPARK_TIMEOUT_SECONDS: Final = 120
SPARK_COMMIT_TIMEOUT_SECONDS: Final = 5.0


def kill_nodes(directory: Path, report: Report, *, rounds: int, seed: int) -> None:
    """Kill one node after the other at random moments; start each again."""
    drawn = random.Random(seed)
    outages: list[Outage] = []
    refused_seconds, back_seconds = [], []
    other_count = 0
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(StateProcesses(directory))
        driver = resources.enter_context(Driver(processes.config, directory))
        driver.wait_for("acknowledged")
        query = resources.enter_context(
            DrillQuery(processes.config, query_id="an onlooker")
        )
        keys_by_node = query.keys_by_node()
        with Readers(
            processes.config,
            keys_by_node,
            seed=seed,
            deadline_seconds=DEADLINE_SECONDS,
        ) as readers:
            for _ in range(rounds):
                driver.wait_for(
                    "acknowledged",
                    batch_id=driver.batch_id_last + drawn.randint(1, BATCHES_BETWEEN),
                )
                node_id = drawn.choice(sorted(processes.nodes))
                node = processes.nodes[node_id]
                # Any moment of a batch may be hit: no event tells of all of them.
                threading.Event().wait(drawn.uniform(0, 0.3))
                killed_ns = node.kill()
                refused = readers.wait_for(
                    lambda answer, node_id=node_id: (  # type: ignore[misc]
                        answer.node_id == node_id and not answer.is_answer
                    ),
                    since_ns=killed_ns,
                )
                refused_seconds.append(
                    (refused.answered_ns - killed_ns) / NS_PER_SECOND
                )
                readers.wait_for(
                    lambda answer, node_id=node_id: (  # type: ignore[misc]
                        answer.node_id not in {None, node_id}
                    ),
                    since_ns=killed_ns,
                    count=ANSWERS_PER_OUTAGE,
                )
                node.start()
                back_ns = now_ns()
                answered = readers.wait_for_rows(node_id, since_ns=killed_ns)
                back_seconds.append((answered.answered_ns - killed_ns) / NS_PER_SECOND)
                outages.append(
                    Outage(node_id=node_id, from_ns=killed_ns, until_ns=back_ns)
                )
                driver.wait_for("acknowledged", since_ns=back_ns)
                processes.note_decisions()
                other_count += sum(
                    answer.node_id not in {None, node_id}
                    and killed_ns <= answer.asked_ns <= back_ns
                    for answer in readers.answers
                )
        driver.end()
        assert driver.all("failed") == []
        check_contents(processes.config, driver.batch_id_last)
    report.say(
        f"kills of one of two nodes and restarts: {rounds}, while "
        f"{driver.batch_id_last + 1} batches were written; none of them failed, none "
        "is missing, none was applied twice",
        rounds=rounds,
        batches=driver.batch_id_last + 1,
    )
    report.durations(
        "refused_seconds", "from SIGKILL until a reader was refused", refused_seconds
    )
    report.durations(
        "back_seconds",
        "from SIGKILL, by way of a new process, until it answered again",
        back_seconds,
    )
    report.say(
        f"{other_count:,} questions to the other node meanwhile", others=other_count
    )
    report.check_answers(
        judge(readers.answers, driver.times(processes.decided_us), outages=outages)
    )


@pytest.mark.proves("Q1", "Q3", "Q4", "W3", "W7")
@pytest.mark.shells
@pytest.mark.nightly
def test_killed_node_fails_nobody_but_its_own_readers(
    tmp_path: Path, report: Report
) -> None:
    """W3, W7, Q1, Q3, Q4: the others are answered; it comes back with every batch."""
    kill_nodes(tmp_path, report, rounds=1, seed=1)


@pytest.mark.proves("Q1", "Q3", "Q4", "W3", "W7")
@pytest.mark.drill
@pytest.mark.parametrize("seed", [2, 3])
def test_nodes_killed_again_and_again_lose_nothing(
    tmp_path: Path, report: Report, seed: int
) -> None:
    """W3, W7, Q1, Q3, Q4: the others are answered; it comes back with every batch."""
    kill_nodes(tmp_path, report, rounds=10, seed=seed)


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    """Yield a local Spark of this drill's own."""
    session = (
        SparkSession.builder.appName("lodestar-drill")
        .master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", str(ROOT))
        .getOrCreate()
    )
    yield session
    session.stop()
    close_ha_services()


@pytest.mark.proves("W3")
@pytest.mark.drill
@pytest.mark.spark
def test_spark_waits_for_a_killed_node_and_then_says_so(
    tmp_path: Path, report: Report, spark: SparkSession
) -> None:
    """W3: within the commit timeout the query waits, then it fails; nothing is lost."""
    feed = Feed(spark, tmp_path / "input", "k string, n long")
    rows = [{"k": key, "n": 0} for key in KEYS]
    with (
        StateProcesses(tmp_path) as processes,
        QueryableStateClient(processes.config, deadline_seconds=30.0) as client,
    ):
        writer = publish_state(
            feed.frame(),
            processes.config,
            job_id=JOB,
            state_name=LOG,
            key="k",
            kind="list",
            output_mode="append",
            commit_timeout_seconds=SPARK_COMMIT_TIMEOUT_SECONDS,
        ).option("checkpointLocation", str(tmp_path / "checkpoint"))
        feed.add(*rows)
        query = writer.start()
        try:
            query.processAllAvailable()

            # Back in time: no reader notices but by the clock.
            killed_ns = processes.nodes["node-1"].kill()
            feed.add(*({"k": key, "n": 1} for key in KEYS))
            processes.nodes["node-1"].start()
            query.processAllAvailable()
            waited = (now_ns() - killed_ns) / NS_PER_SECOND
            assert client.describe(JOB, LOG).batch_id == 1
            report.say(
                f"a batch waited {waited:.2f} s for a node that was killed",
                waited_seconds=waited,
            )

            # Not back in time: the query fails.
            killed_ns = processes.nodes["node-1"].kill()
            feed.add(*({"k": key, "n": 2} for key in KEYS))
            with pytest.raises(QueryableStateError, match=r"start them again|node-1"):
                query.awaitTermination(SPARK_TIMEOUT_SECONDS)
            failed = (now_ns() - killed_ns) / NS_PER_SECOND
            report.say(
                f"the query failed {failed:.2f} s after SIGKILL "
                f"(commit timeout {SPARK_COMMIT_TIMEOUT_SECONDS} s)",
                failed_seconds=failed,
            )
            processes.nodes["node-1"].start()
            query = writer.start()
            query.processAllAvailable()
        finally:
            query.stop()
            close_writer_connections()
        assert client.describe(JOB, LOG).batch_id == 2
        for key in KEYS:
            items = client.get_list(JOB, LOG, key, min_batch_id=2)
            assert items == [{"n": number} for number in range(3)]


def wait_until_away(processes: StateProcesses, node_id: str) -> None:
    """Return once the proxy has noticed that a node is gone."""
    with StateOperations(processes.config) as operations:
        wait_until(
            lambda: any(
                node.node_id == node_id and node.address is None
                for node in operations.nodes()
            )
        )


@pytest.mark.proves("W3")
@pytest.mark.shells
@pytest.mark.nightly
def test_batch_waits_for_its_nodes_and_fails_clearly(
    tmp_path: Path, report: Report
) -> None:
    """W3: whenever a node goes, the batch says whom it waited for; nothing is lost."""
    timeout_seconds = 1.0
    waited = {}
    with (
        StateProcesses(tmp_path) as processes,
        DrillQuery(
            processes.config, query_id="query", commit_timeout_seconds=timeout_seconds
        ) as query,
    ):
        query.write(0)
        keys_by_node = query.keys_by_node()
        away, here = processes.nodes["node-1"], "node-2"

        # Before it is planned.
        away.kill()
        wait_until_away(processes, away.name)
        began_ns = now_ns()
        with pytest.raises(
            StateUnavailableError, match="start them again"
        ) as unplanned:
            query.begin()
        waited["planned"] = (now_ns() - began_ns) / NS_PER_SECOND
        assert unplanned.value.key_groups == query.key_groups(away.name)
        away.start()
        query.begin_run()
        query.write(1)

        # Before its rows are on the node.
        run = query.begin()
        away.kill()
        began_ns = now_ns()
        with pytest.raises(StateUnavailableError, match="node-1") as unstaged:
            query.stage(run, 2)
        waited["staged"] = (now_ns() - began_ns) / NS_PER_SECOND
        assert unstaged.value.key_groups == query.key_groups(away.name)
        away.start()
        query.begin_run()
        query.write(2)

        # Before it is decided: what was staged is still there afterwards.
        run = query.begin()
        messages = query.stage(run, 3)
        away.kill()
        began_ns = now_ns()
        with pytest.raises(CommitTimeoutError) as undecided:
            query.commit(run, 3, messages)
        waited["decided"] = (now_ns() - began_ns) / NS_PER_SECOND
        assert undecided.value.node_ids == ("node-1",)
        assert not undecided.value.is_decided
        away.start()
        query.commit(run, 3, messages)
        check_contents(processes.config, 3)

        # Before it is applied there: it is committed, and repeating it changes nothing.
        run = query.begin()
        messages = query.stage(run, 4, keys=keys_by_node[here])
        away.kill()
        began_ns = now_ns()
        with pytest.raises(CommitTimeoutError) as unapplied:
            query.commit(run, 4, messages)
        waited["applied"] = (now_ns() - began_ns) / NS_PER_SECOND
        assert unapplied.value.node_ids == ("node-1",)
        assert unapplied.value.is_decided
        with QueryableStateClient(processes.config) as client:
            rows = client.get_many(JOB, ROWS, keys_by_node[here])
            assert rows == {key: {"batch": 4} for key in keys_by_node[here]}
            with pytest.raises(StateUnavailableError):
                client.get_many(JOB, ROWS, keys_by_node[away.name])
            away.start()
            query.begin_run()
            query.write(4)
            rows = client.get_many(JOB, ROWS, KEYS, min_batch_id=4)
            assert rows == {
                key: {"batch": 4 if key in keys_by_node[here] else 3} for key in KEYS
            }
        query.write(5)
    for step, seconds in waited.items():
        assert seconds >= timeout_seconds * 0.9
        report.say(
            f"a batch that could not be {step} failed after {seconds:.2f} s "
            f"(commit timeout {timeout_seconds} s)",
            **{f"{step}_seconds": seconds},
        )
    report.say(str(undecided.value))
    report.say(str(unapplied.value))
