"""
SIGSTOP of the proxy that leads, while it is asked and written through; and its return.

Its end by SIGKILL is in ``test_state_proxy_failover.py``.
"""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from nameservice import NS_PER_SECOND
from queryablestate.wire.clients import DescribeState, ListJobs
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import NOT_LEADER
from tests.drills.processes import now_ns
from tests.drills.state_answers import judge
from tests.drills.state_processes import (
    SESSION_TIMEOUT_SECONDS,
    Driver,
    StateProcesses,
)
from tests.drills.state_readers import Readers, check_contents
from tests.drills.state_writing import JOB, ROWS, DrillQuery
from tests.queryablestate.proxy_peers import ScriptedPeer


if TYPE_CHECKING:
    from tests.drills.reporting import Report
    from tests.drills.state_processes import Service


DEADLINE_SECONDS: Final = 30.0
BATCHES_BETWEEN: Final = 5
QUESTION_COUNT: Final = 200


def stop_proxies(directory: Path, report: Report, *, rounds: int, seed: int) -> None:
    """Stop the leading proxy at random moments; have each go on."""
    drawn = random.Random(seed)
    answered_seconds, written_seconds = [], []
    stale_count = 0
    with contextlib.ExitStack() as resources:
        processes = resources.enter_context(StateProcesses(directory, proxy_count=2))
        driver = resources.enter_context(Driver(processes.config, directory))
        driver.wait_for("acknowledged")
        query = resources.enter_context(
            DrillQuery(processes.config, query_id="an onlooker")
        )
        with Readers(
            processes.config,
            query.keys_by_node(),
            seed=seed,
            deadline_seconds=DEADLINE_SECONDS,
        ) as readers:
            for _ in range(rounds):
                driver.wait_for(
                    "acknowledged",
                    batch_id=driver.batch_id_last + drawn.randint(1, BATCHES_BETWEEN),
                )
                leader = processes.leader()
                # Any moment of a batch may be hit: no event tells of all of them.
                threading.Event().wait(drawn.uniform(0, 0.3))
                lost_ns, told = stop(leader, driver)
                stale_count += told
                answered = readers.wait_for(
                    lambda answer: answer.is_answer, since_ns=lost_ns, count=20
                )
                answered_seconds.append((answered.answered_ns - lost_ns) / 1e9)
                written = driver.wait_for("acknowledged", since_ns=lost_ns)
                written_seconds.append((written.at_ns - lost_ns) / NS_PER_SECOND)
                processes.note_decisions()
        driver.end()
        assert driver.all("failed") == []
        check_contents(processes.config, driver.batch_id_last)
    report.say(
        f"the leading proxy was stopped for longer than its session {rounds} times, "
        f"while {driver.batch_id_last + 1} batches were written; none of them failed, "
        "none is missing, none was applied twice",
        rounds=rounds,
        batches=driver.batch_id_last + 1,
    )
    report.say(
        f"{stale_count} questions that a stopped proxy found when it woke: each "
        "answered not-leader",
        stale=stale_count,
    )
    report.durations(
        "answered_seconds",
        "from then until twenty questions asked since were answered",
        answered_seconds,
    )
    report.durations(
        "written_seconds", "from then until a batch was committed", written_seconds
    )
    report.check_answers(
        judge(readers.answers, driver.times(processes.decided_us), errors_allowed=())
    )


def stop(leader: Service, driver: Driver) -> tuple[int, int]:
    """
    Stop *leader* until another has led for a while; ask it as it wakes.

    Returns:
        When it was stopped, and how many questions it found when it woke.
    """
    with ScriptedPeer(leader.address) as peer:
        peer.hello()
        state = peer.describe(JOB, ROWS)
        assert state.batch_id is not None
        leader.process.pause()
        stopped_ns = now_ns()
        # They wait in its sockets, under a session that it has opened itself.
        numbers = [
            peer.begin(ListJobs)
            if number % 3 == 0
            else peer.begin(DescribeState, job_id=JOB, state_name=ROWS)
            if number % 3 == 1
            else peer.begin_get(state)
            for number in range(QUESTION_COUNT)
        ]
        driver.wait_for("acknowledged", since_ns=stopped_ns)
        # Time has to pass in fact: the stop is to be longer than the session.
        due_ns = stopped_ns + round(1.5 * SESSION_TIMEOUT_SECONDS * NS_PER_SECOND)
        threading.Event().wait(max(0, due_ns - now_ns()) / NS_PER_SECOND)
        leader.process.resume()
        for number in numbers:
            answer = peer.answer(number)
            assert isinstance(answer, Refusal), answer
            assert answer.code == NOT_LEADER, answer
    return stopped_ns, len(numbers)


@pytest.mark.proves("Q4")
@pytest.mark.shells
@pytest.mark.nightly
def test_stopped_proxy_answers_nothing_of_its_past(
    tmp_path: Path, report: Report
) -> None:
    """Q4: what it was asked while it stood still, it answers ``not-leader``."""
    stop_proxies(tmp_path, report, rounds=1, seed=2)


@pytest.mark.proves("Q4")
@pytest.mark.drill
def test_proxies_stopped_again_and_again_answer_nothing_of_their_past(
    tmp_path: Path, report: Report
) -> None:
    """Q4: at whatever moment of whatever batch."""
    stop_proxies(tmp_path, report, rounds=5, seed=5)
