"""Takeovers of other queries, and on a cluster: nothing is lost or twice there, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from queryablestate import QueryableStateClient, QueryableStateError
from tests.recording import wait_until
from tests.sparkpipeline.standalone_cluster import StandaloneCluster
from tests.sparkpipeline.standby_drivers import WAIT_SECONDS, StandbyDriver
from tests.sparkpipeline.standby_totals import (
    check_database,
    check_files,
    check_operator,
    expected_totals,
    make_database,
)
from tests.sparkpipeline.state_cluster import StateCluster, state_cluster


pytestmark = [
    pytest.mark.spark,
    pytest.mark.shells,
    pytest.mark.nightly,
    pytest.mark.timeout(1_200),
]

JOB: Final = "standby-app"


@pytest.fixture
def cluster() -> Iterator[StateCluster]:
    """Yield a name service and the nodes of one test."""
    with state_cluster() as started:
        yield started


def take_over(
    cluster: StateCluster,
    directory: Path,
    sinks: Sequence[str],
    events: Sequence[str],
    **more: Any,
) -> None:
    """Kill a leading driver; return when its successor has written, and has ended."""
    make_database(directory)
    settings: dict[str, Any] = {"sinks": sinks, "batch_seconds": 1.0} | more
    with contextlib.ExitStack() as drivers:

        def start(name: str) -> StandbyDriver:
            return drivers.enter_context(
                StandbyDriver(cluster.config, directory, name, job_id=JOB, **settings)
            )

        killed = start("one")
        for event in events:
            killed.wait_for(event, 2)
        killed.wait_for("standby.started")
        wait_for_batches(cluster.client, dict.fromkeys(states(sinks), 0))
        batch_ids = {state: batch_of(cluster.client, state) for state in states(sinks)}
        successor = start("two")
        successor.wait_for("standby.warm")
        killed.kill()
        for event in events:
            successor.wait_for(event, 2)
        wait_for_batches(
            cluster.client,
            {state: batch_id + 2 for state, batch_id in batch_ids.items()},
        )
        successor.leave()


def states(sinks: Sequence[str]) -> list[str]:
    """Return the states that the queries of *sinks* publish."""
    published = {"lodestar": "totals", "attached": "attached"}
    return [published[sink] for sink in sinks if sink in published]


def batch_of(client: QueryableStateClient, state_name: str) -> int:
    """Return after which batch a state is answered."""
    try:
        batch_id = client.describe(JOB, state_name).batch_id
    except QueryableStateError:
        return -1  # there is no such state yet
    return -1 if batch_id is None else batch_id


def wait_for_batches(client: QueryableStateClient, batch_ids: dict[str, int]) -> None:
    """Return when each state is answered after its batch or a later one."""
    for state, batch_id in batch_ids.items():
        wait_until(
            lambda state=state, batch_id=batch_id: (  # type: ignore[misc]
                batch_of(client, state) >= batch_id
            ),
            timeout_seconds=WAIT_SECONDS,
        )


def check_state(cluster: StateCluster, state_name: str) -> None:
    """Compare a published state with what is computed at once."""
    rows = cluster.rows(JOB, state_name)
    totals = {key: row["total"] for key, row in rows.items()}
    batch_id = batch_of(cluster.client, state_name)
    assert totals == expected_totals(batch_id + 1)


@pytest.mark.proves("H1", "H3")
def test_operators_and_attached_states_are_taken_over(
    cluster: StateCluster, tmp_path: Path
) -> None:
    """H3: an operator goes on with its state; H1: two queries under one leadership."""
    take_over(
        cluster,
        tmp_path,
        ["operator", "attached"],
        ["operator.written", "attached.written"],
    )
    assert check_operator(tmp_path) > 2
    check_state(cluster, "attached")


@pytest.mark.proves("H6", "H3")
def test_a_driver_of_a_standalone_cluster_is_succeeded(
    cluster: StateCluster, tmp_path: Path
) -> None:
    """H6: with executors on two workers, all sinks are as they are on one machine."""
    with StandaloneCluster(tmp_path) as spark:
        take_over(
            cluster,
            tmp_path,
            ["sqlite", "lodestar", "file"],
            ["sink.written"],
            master=spark.url,
        )
        for worker in spark.workers:
            assert worker.exit_code is None
    assert check_database(tmp_path) > 2
    assert check_files(tmp_path) > 2
    check_state(cluster, "totals")
