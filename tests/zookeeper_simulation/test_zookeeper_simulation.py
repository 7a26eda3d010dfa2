from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import Mutation
from tests.tiers import nightly_after, nightly_repeats
from tests.zookeeper_simulation.command import render
from tests.zookeeper_simulation.mutations import STORE_MUTATIONS, ZOOKEEPER_MUTATIONS
from tests.zookeeper_simulation.runs import Outcome, run_seed


ROOT = Path(__file__).parent.parent.parent
SEEDS_PER_TEST = 10
STORE_SEEDS_PER_TEST = 20


@pytest.mark.proves("E4")
@pytest.mark.parametrize("first", nightly_after(1, range(0, 100, SEEDS_PER_TEST)))
def test_no_two_holders_believe_whatever_happens(first: int) -> None:
    """E4 on ZooKeeper: no seed has two believers; ``make simulate`` runs more."""
    outcome = Outcome()
    for seed in range(first, first + SEEDS_PER_TEST):
        outcome.add(run_seed(seed))
    assert outcome.failures == []
    assert outcome.counts["leaderships granted"] > SEEDS_PER_TEST
    assert outcome.counts["sessions expired"] > SEEDS_PER_TEST


@pytest.mark.proves("L1", "L2", "L3", "L4")
@pytest.mark.parametrize("first", nightly_after(1, range(0, 400, STORE_SEEDS_PER_TEST)))
def test_a_leader_store_holds_what_was_committed(first: int) -> None:
    """L1 to L4 on ZooKeeper, with cleanups, lost answers and threads side by side."""
    outcome = Outcome()
    for seed in range(first, first + STORE_SEEDS_PER_TEST):
        outcome.add(run_seed(seed, is_of_store=True))
    assert outcome.failures == []
    assert outcome.counts["commits acknowledged"] > STORE_SEEDS_PER_TEST
    assert outcome.counts["cleanups"] > 0
    assert outcome.counts["commits in doubt"] > 0


@pytest.mark.parametrize("is_of_store", [False, True])
def test_a_seed_replays(is_of_store: bool) -> None:
    """The same seed is the same run: a failure can be studied."""
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run_seed(7, trace.append, is_of_store=is_of_store)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10


@pytest.mark.parametrize(
    "mutation",
    nightly_repeats(
        (
            mutation
            for mutation in (*ZOOKEEPER_MUTATIONS, *STORE_MUTATIONS)
            if not mutation.is_rare
        ),
        lambda mutation: mutation.rules,
    ),
    ids=lambda mutation: mutation.name,
)
def test_what_is_broken_on_purpose_is_found(mutation: Mutation) -> None:
    """A simulation that cannot fail proves nothing; by day one fault of each rule."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.zookeeper_simulation"),
            *("--mutation", mutation.name, "--jobs", "1"),
            *("--first", str(mutation.seed), "--seeds", "100"),
            *(("--store",) if mutation in STORE_MUTATIONS else ()),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "replay: python -m tests.zookeeper_simulation" in done.stdout


def test_the_report_names_seeds_faults_and_checks() -> None:
    """What is committed of a long run says what was run, and how much."""
    outcome = run_seed(3)
    text = render(outcome, first=3, duration_seconds=1.0, jobs=1, commit="abc")
    assert "| commit | abc |" in text
    assert "| seeds | 1 (3 to 3) |" in text
    assert "| E4 no two holders believe at once |" in text
