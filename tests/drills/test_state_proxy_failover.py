"""SIGKILL of the leading proxy, of the name service and of both, while all is asked."""

from __future__ import annotations

import contextlib
import random
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, final

import pytest

from nameservice import NS_PER_SECOND, NameServiceError
from queryablestate import (
    QueryableStateClient,
    StateOperations,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
)
from tests.drills.processes import WAIT_SECONDS, now_ns
from tests.drills.state_answers import judge
from tests.drills.state_processes import Driver, StateProcesses
from tests.drills.state_readers import Readers, check_contents
from tests.drills.state_writing import JOB, KEYS, LOG, LOG_KEYS, ROWS, DrillQuery
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from haservices import HAConfig
    from tests.drills.reporting import Report
    from tests.drills.state_answers import Answer


OUTSTANDING_COUNT: Final = 64
DEADLINE_SECONDS: Final = 30.0
ANSWERS_BETWEEN: Final = 200
BATCHES_BETWEEN: Final = 4

PROXY: Final = "the leading proxy"
SERVER: Final = "the LeaderServer"
BOTH: Final = "both at once"


def longest_gap(answers: Sequence[Answer], from_ns: int, until_ns: int) -> float:
    """Return the longest time in which none was answered, in seconds."""
    moments = sorted(
        answer.answered_ns
        for answer in answers
        if answer.is_answer and from_ns <= answer.answered_ns <= until_ns
    )
    pairs = pairwise([from_ns, *moments, until_ns])
    return max(after - before for before, after in pairs) / NS_PER_SECOND


def fail_over(
    directory: Path, report: Report, victims: Sequence[str], *, seed: int
) -> None:
    """Kill *victims* one after the other; none is refused, nothing is lost."""
    drawn = random.Random(seed)
    kills: list[tuple[str, int, int]] = []
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
            waiting_count=OUTSTANDING_COUNT,
            deadline_seconds=DEADLINE_SECONDS,
        ) as readers:
            for victim in victims:
                driver.wait_for(
                    "acknowledged",
                    batch_id=driver.batch_id_last + drawn.randint(1, BATCHES_BETWEEN),
                )
                leader = processes.leader()
                # Any moment of a batch may be hit: no event tells of all of them.
                threading.Event().wait(drawn.uniform(0, 0.2))
                readers.wait_until_outstanding("waiting", OUTSTANDING_COUNT)
                killed_ns = now_ns()
                if victim != PROXY:
                    processes.server.process.kill()
                if victim != SERVER:
                    leader.kill()
                if victim != PROXY:
                    processes.server.start()
                driver.wait_for("acknowledged", since_ns=now_ns())
                readers.wait_for(
                    lambda answer: answer.is_answer and answer.client != "waiting",
                    since_ns=now_ns(),
                    count=ANSWERS_BETWEEN,
                )
                kills.append((victim, killed_ns, now_ns()))
                if victim != SERVER:
                    leader.start()
                processes.note_decisions()
        driver.end()
        assert driver.all("failed") == []
        check_contents(processes.config, driver.batch_id_last)
    report.say(
        f"{driver.batch_id_last + 1} batches were written meanwhile; none of them "
        "failed, none is missing, none was applied twice",
        batches=driver.batch_id_last + 1,
    )
    for victim in dict.fromkeys(victims):
        mine = [kill for kill in kills if kill[0] == victim]
        outstanding = [
            sum(one.asked_ns <= at <= one.answered_ns for one in readers.answers)
            for _, at, _ in mine
        ]
        report.say(
            f"kills of {victim}: {len(mine)}; questions outstanding at that moment: "
            f"{min(outstanding)} to {max(outstanding)}",
            **{f"outstanding {victim}": outstanding},
        )
        assert min(outstanding) >= OUTSTANDING_COUNT // 2
        report.durations(
            f"pause_seconds {victim}",
            f"longest pause between two answers, by a kill of {victim} "
            f"(lease 0.5 s, session timeout {processes.config.session_timeout_seconds} "
            "s)",
            [longest_gap(readers.answers, at, until) for _, at, until in mine],
        )
    report.check_answers(judge(readers.answers, driver.times(processes.decided_us)))


@pytest.mark.proves("Q1", "Q3", "W3")
@pytest.mark.shells
def test_no_read_fails_when_the_leading_proxy_is_killed(
    tmp_path: Path, report: Report
) -> None:
    """Q1, Q3, W3: a question is answered by the next leader, within its deadline."""
    fail_over(tmp_path, report, [PROXY], seed=1)


@pytest.mark.proves("E9", "Q1", "Q3", "W3")
@pytest.mark.drill
def test_no_read_fails_when_leaders_and_name_service_are_killed_in_turn(
    tmp_path: Path, report: Report
) -> None:
    """Q1, Q3, W3, E9: a question is answered, whichever of them went."""
    fail_over(
        tmp_path,
        report,
        [PROXY, SERVER, PROXY, BOTH, PROXY, SERVER, PROXY, BOTH, PROXY, SERVER],
        seed=2,
    )


@final
class Onlooker:
    """
    One client in a thread that asks all the time, and remembers what it was told.

    Attributes:
        seen: For each state the values that were told together, in order.
        errors: The types of the errors.
    """

    def __init__(self, config: HAConfig) -> None:
        self.seen: dict[str, list[frozenset[int]]] = {ROWS: [], LOG: []}
        self.errors: set[type[NameServiceError]] = set()
        self._config = config
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Onlooker:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()

    def _look(self) -> None:
        with QueryableStateClient(self._config, deadline_seconds=5.0) as client:
            while not self._is_over.wait(0.01):
                self._ask(ROWS, lambda: client.get_many(JOB, ROWS, KEYS).values())
                self._ask(LOG, lambda: client.get_list(JOB, LOG, LOG_KEYS[0]))

    def _ask(
        self, state_name: str, ask: Callable[[], Iterable[Mapping[str, Any]]]
    ) -> None:
        try:
            values = frozenset(row["batch"] for row in ask())
        except NameServiceError as error:
            self.errors.add(type(error))
        else:
            if values and values not in self.seen[state_name][-1:]:
                self.seen[state_name].append(values)


@pytest.mark.proves("W3", "W7")
@pytest.mark.shells
@pytest.mark.parametrize(
    "writes_on", [False, True], ids=["other-leader", "same-leader"]
)
@pytest.mark.nightly
def test_lost_name_service_is_no_mixture(
    tmp_path: Path, report: Report, *, writes_on: bool
) -> None:
    """
    W3, W7: what a lost control plane knew is unavailable until it is given up.

    Its rows are never seen again after that, and never beside later ones.
    """
    old, new, other = 0, 1_000, 2_000
    with (
        StateProcesses(tmp_path, proxy_count=2, is_durable=False) as processes,
        QueryableStateClient(processes.config, deadline_seconds=15.0) as sleeper,
    ):
        config = processes.config
        with DrillQuery(config, query_id="before", first_value=old) as before:
            for batch_id in range(3):
                before.write(batch_id)
            # It will ask by what it knows from now, and was told nothing in between.
            assert sleeper.lookup(JOB, ROWS, KEYS[0]).batch_id == 2
            assert len(sleeper.get_list(JOB, LOG, LOG_KEYS[0])) == 3
            with Onlooker(config) as onlooker:
                wait_until(lambda: all(onlooker.seen.values()))
                lost_ns = processes.server.process.kill()
                processes.server.start()
                if writes_on:
                    # The leader is still the same, and finds its store empty.
                    with pytest.raises(
                        (StateUnavailableError, UnknownJobError, UnknownStateError)
                    ):
                        before.write(3)
                else:
                    leader = processes.leader()
                    leader.kill()
                    wait_until(lambda: StateUnavailableError in onlooker.errors)
                    leader.start()
                # What was number 1 before is another job's state.
                with DrillQuery(
                    config, query_id="other", job_id="other", first_value=other
                ) as another:
                    another.write(0)
                with pytest.raises(StateUnavailableError, match="lodestar adopt"):
                    sleeper.get(JOB, ROWS, KEYS[0])
                with StateOperations(config) as operations:
                    assert operations.forget_job(JOB) == tuple(sorted(processes.nodes))
                half = KEYS[::2]
                with DrillQuery(
                    config, query_id="after", keys=half, first_value=new
                ) as after:
                    after.write(0)
                    after.write(1)
                    entry = sleeper.lookup(JOB, ROWS, half[0])
                    assert (entry.value, entry.batch_id) == ({"batch": new + 1}, 1)
                    assert sleeper.get_list(JOB, LOG, LOG_KEYS[0]) == [
                        {"batch": new},
                        {"batch": new + 1},
                    ]
                    assert sleeper.get_many(JOB, ROWS, KEYS) == {
                        key: {"batch": new + 1} for key in half
                    }
                    with pytest.raises(UnknownKeyError):
                        sleeper.get(JOB, ROWS, KEYS[1])
                    assert sleeper.count(JOB, ROWS) == len(half)
                    # The next leader finds a store that it can read.
                    processes.leader().kill()
                    after.write(2)
                    wait_until(lambda: frozenset({new + 2}) in onlooker.seen[ROWS])
            seconds = (now_ns() - lost_ns) / NS_PER_SECOND
    assert onlooker.errors <= {
        UnknownJobError,
        UnknownStateError,
        UnknownKeyError,
        StateUnavailableError,
    }
    assert onlooker.seen[ROWS][0] == {old + 2}
    assert onlooker.seen[LOG][0] == {old, old + 1, old + 2}
    for told in onlooker.seen.values():
        eras = [{value // new for value in values} for values in told]
        assert all(len(era) == 1 for era in eras), told
        # Each client goes from the old to the new once, and to no other job's.
        assert sorted(min(era) for era in eras) == [min(era) for era in eras]
        assert {min(era) for era in eras} == {0, 1}
    for node_id in processes.nodes:
        names = {path.name for path in processes.data_directory(node_id).iterdir()}
        assert {"rows-1", "rows-2"} <= names
    report.say(
        "a LeaderServer without a data directory was killed and started again: "
        f"{sum(len(told) for told in onlooker.seen.values())} different answers in "
        f"{seconds:.1f} s, none of them of old rows and new ones; the old ones are set "
        "aside"
    )
