"""SIGSTOP and SIGKILL of one of three nodes, two copies of all: every read is told."""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import pytest
from attrs import frozen

from queryablestate import StateOperations
from tests.drills.processes import now_ns
from tests.drills.state_answers import BatchTimes, judge
from tests.drills.state_processes import StateProcesses
from tests.drills.state_readers import Readers
from tests.drills.state_writing import JOB, DrillQuery, keys_by_group
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.drills.reporting import Report
    from tests.drills.state_answers import Answer


NODE_COUNT: Final = 3
# As by default: a stopped node is among those that are asked for most of the time.
SESSION_TIMEOUT_SECONDS: Final = 10.0
DEADLINE_SECONDS: Final = 5.0
STOPPED_SECONDS: Final = 15.0
STOPPED_SECONDS_SHORT: Final = 2.0
BATCH_COUNT: Final = 3
ANSWER_COUNT: Final = 300
RESCALE_SECONDS: Final = 120.0


@contextlib.contextmanager
def reading(directory: Path, report: Report, *, seed: int) -> Iterator[Stage]:
    """Yield three nodes, some batches on them, and readers; judge all answers."""
    begun_ns, acknowledged_ns = {}, {}
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(
            StateProcesses(
                directory,
                node_count=NODE_COUNT,
                replica_count=2,
                session_timeout_seconds=SESSION_TIMEOUT_SECONDS,
            )
        )
        query = resources.enter_context(DrillQuery(processes.config, query_id="query"))
        for batch_id in range(BATCH_COUNT):
            begun_ns[batch_id] = now_ns()
            query.write(batch_id)
            acknowledged_ns[batch_id] = now_ns()
        processes.note_decisions()
        readers = resources.enter_context(
            Readers(
                processes.config,
                keys_by_group(),
                seed=seed,
                deadline_seconds=DEADLINE_SECONDS,
            )
        )
        readers.wait_for(_is_answer, since_ns=0, count=ANSWER_COUNT)
        yield Stage(processes, readers)
    times = BatchTimes(
        begun_ns=begun_ns,
        acknowledged_ns=acknowledged_ns,
        decided_us=processes.decided_us,
    )
    # No outage excuses a refusal: every read is answered.
    report.check_answers(judge(readers.answers, times, outages=()))


@final
@frozen
class Stage:
    """What a drill has to do with."""

    processes: StateProcesses
    readers: Readers

    def told_since(self, since_ns: int) -> list[float]:
        """Return how long each question took that was asked since then."""
        # One that went to all nodes is one question, whatever it is judged by.
        asked = {
            (answer.client, answer.asked_ns): answer.seconds
            for answer in self.readers.answers
            if answer.asked_ns >= since_ns
        }
        return list(asked.values())


def _is_answer(answer: Answer) -> bool:
    return answer.is_answer


def _say(report: Report, name: str, what: str, seconds: Sequence[float]) -> None:
    """Report how long reads took."""
    cuts = statistics.quantiles(seconds, n=100)
    figures = {"p50": cuts[49], "p99": cuts[98], "max": max(seconds)}
    text = ", ".join(f"{key} {value * 1_000:.1f} ms" for key, value in figures.items())
    report.say(
        f"{len(seconds):,} reads while {what}, none refused: {text}",
        **{f"{name}_{key}_seconds": value for key, value in figures.items()},
    )


def stop_nodes(
    directory: Path, report: Report, *, rounds: int, stopped_seconds: float, seed: int
) -> None:
    """Stop one node after the other for a while."""
    drawn = random.Random(seed)
    seconds: list[float] = []
    with reading(directory, report, seed=seed) as stage:
        before_ns = now_ns()
        stage.readers.wait_for(_is_answer, since_ns=before_ns, count=ANSWER_COUNT)
        _say(report, "all", "all nodes run", stage.told_since(before_ns))
        for _ in range(rounds):
            node_id = drawn.choice(sorted(stage.processes.nodes))
            process = stage.processes.nodes[node_id].process
            stopped_ns = now_ns()
            process.pause()
            threading.Event().wait(stopped_seconds)
            seconds += stage.told_since(stopped_ns)
            process.resume()
            _wait_until_whole(stage.processes)
    _say(
        report, "stopped", f"one was stopped for {stopped_seconds:g} s", sorted(seconds)
    )


def kill_nodes(directory: Path, report: Report, *, rounds: int, seed: int) -> None:
    """Kill one node after the other, and start it again."""
    drawn = random.Random(seed)
    seconds: list[float] = []
    with reading(directory, report, seed=seed) as stage:
        for _ in range(rounds):
            node = stage.processes.nodes[drawn.choice(sorted(stage.processes.nodes))]
            killed_ns = node.kill()
            stage.readers.wait_for(_is_answer, since_ns=killed_ns, count=ANSWER_COUNT)
            seconds += stage.told_since(killed_ns)
            node.start()
            _wait_until_whole(stage.processes)
    _say(report, "killed", f"one was killed, {rounds} times", seconds)


def _wait_until_whole(processes: StateProcesses) -> None:
    """Return once each key group has its two copies again, on three nodes."""
    with StateOperations(processes.config, deadline_seconds=30.0) as operations:
        wait_until(
            lambda: all(node.address is not None for node in operations.nodes()),
            timeout_seconds=RESCALE_SECONDS,
        )
        operations.wait_until_rescaled(JOB, timeout_seconds=RESCALE_SECONDS)


@pytest.mark.proves("D4", "D5", "Q1", "S4")
@pytest.mark.shells
@pytest.mark.nightly
def test_a_stopped_node_costs_no_read(tmp_path: Path, report: Report) -> None:
    """D4, S4: the other copies answer, and what they say is true."""
    stop_nodes(
        tmp_path, report, rounds=1, stopped_seconds=STOPPED_SECONDS_SHORT, seed=1
    )


@pytest.mark.proves("D4", "D5", "Q1", "S4")
@pytest.mark.drill
@pytest.mark.parametrize("seed", [2, 3])
def test_a_node_that_is_stopped_for_long_costs_no_read(
    tmp_path: Path, report: Report, seed: int
) -> None:
    """D4, S4: neither before it is taken for away, nor then, nor when it is back."""
    stop_nodes(tmp_path, report, rounds=1, stopped_seconds=STOPPED_SECONDS, seed=seed)


@pytest.mark.proves("D4", "D5", "Q1", "S4")
@pytest.mark.drill
def test_nodes_that_are_killed_cost_no_read(tmp_path: Path, report: Report) -> None:
    """D4, S4: ten times, whatever is under way."""
    kill_nodes(tmp_path, report, rounds=10, seed=4)
