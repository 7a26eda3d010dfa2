"""A state node comes back without its data directory: its rows are lost, and say so."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from nameservice import NS_PER_SECOND
from queryablestate import (
    QueryableStateClient,
    StagedDataMissingError,
    StateUnavailableError,
    UnknownKeyError,
)
from tests.drills.processes import now_ns
from tests.drills.state_answers import Outage, judge
from tests.drills.state_processes import Driver, StateProcesses
from tests.drills.state_readers import Readers
from tests.drills.state_writing import JOB, KEYS, LOG, LOG_KEYS, ROWS, DrillQuery
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.drills.reporting import Report


LOST: Final = "node-1"
KEPT: Final = "node-2"
DEADLINE_SECONDS: Final = 15.0
BATCH_COUNT: Final = 10

# None wrote these, but the node that has lost its rows cannot know.
UNKNOWN_KEYS: Final = tuple(f"unknown-{number}" for number in range(20))


def rows_of(batch_id: int, keys: Sequence[str] = KEYS) -> Mapping[str, object]:
    """Return what *keys* hold after a batch."""
    return {key: {"batch": batch_id} for key in keys}


def check_lost(
    client: QueryableStateClient, query: DrillQuery, batch_id: int, log: Sequence[int]
) -> None:
    """
    Assert that nothing of the lost node is told, and all of the other's.

    Args:
        client: Who asks.
        query: What wrote.
        batch_id: The last batch.
        log: What the lists of the other node hold.
    """
    keys = query.keys_by_node()
    unknown = query.keys_by_node(UNKNOWN_KEYS)
    lost_log, kept_log = (
        next(key for key in LOG_KEYS if key in keys[node_id])
        for node_id in (LOST, KEPT)
    )
    refused: Mapping[str, Callable[[], object]] = {
        "get": lambda: client.get(JOB, ROWS, keys[LOST][0]),
        "default": lambda: client.get(JOB, ROWS, keys[LOST][0], default=None),
        "unknown": lambda: client.get(JOB, ROWS, unknown[LOST][0]),
        "exists": lambda: client.exists(JOB, ROWS, keys[LOST][0]),
        "lookup": lambda: client.lookup(JOB, ROWS, keys[LOST][0]),
        "get_many": lambda: client.get_many(JOB, ROWS, KEYS),
        "get_list": lambda: client.get_list(JOB, LOG, lost_log),
        "count": lambda: client.count(JOB, ROWS),
        "scan": lambda: list(client.scan(JOB, ROWS)),
    }
    lost_groups = set(query.key_groups(LOST))
    for name, ask in refused.items():
        with pytest.raises(StateUnavailableError) as error:
            ask()
        assert error.value.key_groups, name
        assert set(error.value.key_groups) <= lost_groups, name
        assert error.value.retry_after_seconds > 0, name
    told = client.get_many(JOB, ROWS, KEYS, partial=True)
    assert told.values == rows_of(batch_id, keys[KEPT])
    assert sorted(told.unavailable) == sorted(keys[LOST])
    assert client.get(JOB, ROWS, keys[KEPT][0]) == {"batch": batch_id}
    assert client.get_list(JOB, LOG, kept_log) == [{"batch": one} for one in log]
    with pytest.raises(UnknownKeyError):
        client.get(JOB, ROWS, unknown[KEPT][0])
    wait_until(lambda: query.describe(ROWS).lost_node_ids == (LOST,))
    assert query.describe(LOG).lost_node_ids == (LOST,)


def check_whole(
    client: QueryableStateClient, query: DrillQuery, batch_id: int, log: Sequence[int]
) -> None:
    """Assert that everything of that batch is there, and each list holds *log*."""
    assert client.get_many(JOB, ROWS, KEYS, min_batch_id=batch_id) == rows_of(batch_id)
    assert dict(client.scan(JOB, ROWS)) == rows_of(batch_id)
    assert client.count(JOB, ROWS) == len(KEYS)
    for key in LOG_KEYS:
        assert client.get_list(JOB, LOG, key) == [{"batch": one} for one in log]
    for key in UNKNOWN_KEYS:
        with pytest.raises(UnknownKeyError):
            client.get(JOB, ROWS, key)
    wait_until(lambda: query.describe(ROWS).lost_node_ids == ())
    assert query.describe(LOG).lost_node_ids == ()


@pytest.mark.proves("W7")
@pytest.mark.shells
@pytest.mark.nightly
def test_lost_rows_are_unavailable_until_they_are_replaced(
    tmp_path: Path, report: Report
) -> None:
    """W7: never unknown, never empty; a batch of all rows, or a new query, heals."""
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(StateProcesses(tmp_path))
        config = processes.config
        client = resources.enter_context(
            QueryableStateClient(config, deadline_seconds=DEADLINE_SECONDS)
        )
        query = resources.enter_context(DrillQuery(config, query_id="first"))
        node = processes.nodes[LOST]
        for batch_id in range(3):
            query.write(batch_id)
        check_whole(client, query, 2, log=[0, 1, 2])

        node.kill()
        processes.lose_disk(LOST)
        node.start()
        check_lost(client, query, 2, log=[0, 1, 2])
        # It takes part in batches again, but what was there before is still missing;
        # and it remembers that.
        query.write(3)
        check_lost(client, query, 3, log=[0, 1, 2, 3])
        node.kill()
        node.start()
        check_lost(client, query, 3, log=[0, 1, 2, 3])
        query.write(4, is_complete=True)
        check_whole(client, query, 4, log=[4])
        report.say("lost with the disk; a batch of all rows made it whole")

        # What was staged is gone with the disk, too.
        run = query.begin()
        messages = query.stage(run, 5)
        node.kill()
        processes.lose_disk(LOST)
        node.start()
        with pytest.raises(StagedDataMissingError) as missing:
            query.commit(run, 5, messages)
        assert missing.value.node_ids == (LOST,)
        check_lost(client, query, 4, log=[4])
        second = resources.enter_context(
            DrillQuery(config, query_id="second", on_new_query="replace")
        )
        second.write(0)
        assert query.describe().generation == 2
        check_whole(client, query, 0, log=[0])
        report.say("lost with staged rows; a query that replaces made it whole")
        report.say(str(missing.value))

        # An older copy of its directory lacks what was staged since.
        node.kill()
        copy = tmp_path / "copy"
        shutil.copytree(processes.data_directory(LOST), copy)
        node.start()
        for batch_id in range(1, 4):
            second.write(batch_id)
        check_whole(client, query, 3, log=[0, 1, 2, 3])
        node.kill()
        processes.lose_disk(LOST)
        shutil.copytree(copy, processes.data_directory(LOST))
        node.start()
        check_lost(client, query, 3, log=[0, 1, 2, 3])
        second.write(4, is_complete=True)
        check_whole(client, query, 4, log=[4])
        report.say("exchanged for an older copy; a batch of all rows made it whole")


def lose_disks(directory: Path, report: Report, *, rounds: int, seed: int) -> None:
    """Lose one disk after the other under questions and batches of all rows."""
    outages: list[Outage] = []
    whole_seconds = []
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(StateProcesses(directory))
        driver = resources.enter_context(
            Driver(processes.config, directory, is_complete_every=BATCH_COUNT)
        )
        driver.wait_for("acknowledged")
        onlooker = resources.enter_context(
            DrillQuery(processes.config, query_id="an onlooker")
        )
        with Readers(
            processes.config,
            onlooker.keys_by_node(),
            seed=seed,
            deadline_seconds=DEADLINE_SECONDS,
            log_restarts_every=BATCH_COUNT,
        ) as readers:
            for number in range(rounds):
                driver.wait_for("acknowledged", batch_id=driver.batch_id_last + 2)
                node_id = (LOST, KEPT)[number % 2]
                killed_ns = processes.nodes[node_id].kill()
                processes.lose_disk(node_id)
                processes.nodes[node_id].start()
                answered = readers.wait_for_rows(node_id, since_ns=now_ns())
                outages.append(
                    Outage(
                        node_id=node_id,
                        from_ns=killed_ns,
                        until_ns=answered.answered_ns,
                    )
                )
                whole_seconds.append((answered.answered_ns - killed_ns) / NS_PER_SECOND)
                processes.note_decisions()
        driver.end()
        failures = driver.all("failed")
        assert {event.error for event in failures} <= {"StagedDataMissingError"}
    report.say(
        f"disks lost: {rounds}, while {driver.batch_id_last + 1} batches were written, "
        f"each {BATCH_COUNT}th of all rows; {len(failures)} had lost rows that were "
        "staged, and were run again",
        rounds=rounds,
        batches=driver.batch_id_last + 1,
    )
    report.durations(
        "whole_seconds", "from SIGKILL until its rows were told again", whole_seconds
    )
    report.check_answers(
        judge(readers.answers, driver.times(processes.decided_us), outages=outages)
    )


@pytest.mark.proves("Q1", "W7")
@pytest.mark.drill
def test_disks_lost_under_load_are_never_answered_from(
    tmp_path: Path, report: Report
) -> None:
    """W7, Q1: only a batch of all rows brings a node's answers back, with all rows."""
    lose_disks(tmp_path, report, rounds=6, seed=4)
