from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.report import render
from tests.simulation.runs import Summary, run_seed
from tests.tiers import nightly_after, nightly_repeats


ROOT = Path(__file__).parent.parent.parent
SEEDS_PER_TEST = 25


@pytest.mark.proves(
    "E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "E9", "R1", "R2", "R3", "R4", "L2"
)
@pytest.mark.parametrize("first", nightly_after(1, range(0, 500, SEEDS_PER_TEST)))
def test_every_rule_holds_whatever_happens(first: int) -> None:
    """E1 to E9, R1 to R4, L2: no seed breaks a rule; ``make simulate`` runs more."""
    summary = Summary()
    for seed in range(first, first + SEEDS_PER_TEST):
        summary.add(run_seed(seed))
    assert summary.failures == []
    assert summary.counts["leaderships granted"] > SEEDS_PER_TEST


def test_a_seed_replays() -> None:
    """The same seed is the same run, to the last message: a failure can be studied."""
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run_seed(7, trace.append)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


@pytest.mark.parametrize(
    "mutation",
    nightly_repeats(
        (mutation for mutation in MUTATIONS if not mutation.is_rare),
        lambda mutation: mutation.rules,
    ),
    ids=lambda mutation: mutation.name,
)
def test_what_is_broken_on_purpose_is_found(mutation: Mutation) -> None:
    """A simulation that cannot fail proves nothing; by day one fault of each rule."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.simulation"),
            *("--mutation", mutation.name, "--jobs", "1"),
            *("--first", str(mutation.seed), "--seeds", "400"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "replay: python -m tests.simulation --seed" in done.stdout


def test_the_report_names_seeds_faults_and_checks() -> None:
    """What is committed of a long run says what was run, and how much."""
    summary = run_seed(3)
    text = render(summary, first=3, duration_seconds=1.0, jobs=1, commit="abc")
    assert "| commit | abc |" in text
    assert "| seeds | 1 (3 to 3) |" in text
    assert "| E4 no two holders believe at once |" in text
