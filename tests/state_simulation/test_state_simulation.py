from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import Mutation
from tests.state_simulation.command import render, run
from tests.state_simulation.kinds import Kind, seeds_of_every_kind
from tests.state_simulation.mutations import MUTATIONS
from tests.state_simulation.runs import Summary, run_seed
from tests.tiers import nightly_after, nightly_repeats


ROOT = Path(__file__).parent.parent.parent
SEEDS_PER_TEST = 10


@pytest.mark.proves(
    "D4",
    "D5",
    "Q1",
    "Q2",
    "W1",
    "W2",
    "W3",
    "W4",
    "W5",
    "W6",
    "W7",
    "S1",
    "S2",
    "S3",
    "S4",
    "S5",
    "S6",
)
@pytest.mark.parametrize("first", nightly_after(1, range(0, 200, SEEDS_PER_TEST)))
def test_every_rule_holds_whatever_happens(first: int) -> None:
    """W1 to W7, Q1, Q2, S1 to S6: no seed breaks a rule (``make simulate``)."""
    summary = Summary()
    for seed in range(first, first + SEEDS_PER_TEST):
        summary.add(run_seed(seed))
    assert summary.failures == []
    assert summary.counts["entries decided"] > SEEDS_PER_TEST
    assert summary.counts["readers told"] > SEEDS_PER_TEST
    assert summary.counts["copies asked instead of primaries"] > SEEDS_PER_TEST
    assert summary.counts["copies promoted"] > SEEDS_PER_TEST // 2
    assert summary.counts["primaries changed"] > SEEDS_PER_TEST // 2
    assert summary.counts["snapshots taken"] > SEEDS_PER_TEST // 5
    assert summary.counts["jobs restored"] > SEEDS_PER_TEST // 20


@pytest.mark.proves("D1", "D2", "D3", "D5", "Q1", "Q2", "S1", "S3")
def test_every_rule_holds_on_both_ways() -> None:
    """D5: where nodes are asked without the proxy, no seed breaks a rule either."""
    summary = Summary()
    for seed in range(10_000, 10_006):
        summary.add(run_seed(seed))
    assert summary.failures == []
    assert summary.counts["answers without the proxy"] > 100
    assert summary.counts["pages without the proxy"] > 100
    assert summary.counts["fault: connections half open"] > 0


@pytest.mark.proves("D2", "D5", "Q1", "Q4", "S1", "S4")
def test_every_rule_holds_while_nodes_are_cut_off() -> None:
    """D5: a node that does not know that others have its part tells nothing wrong."""
    summary = Summary()
    for seed in (20_062, 20_004):
        summary.add(run_seed(seed))
    assert summary.failures == []
    assert summary.counts["answers without the proxy"] > 100
    assert summary.counts["fault: node cut off"] > 1
    assert summary.counts["fault: node deafened"] > 1


@pytest.mark.proves("D2", "D5", "Q1", "W5")
def test_every_rule_holds_while_states_are_taken_over() -> None:
    """Q1: an earlier generation is older; D2: who is cut off answers no client."""
    summary = Summary()
    for seed in (30_002, 30_004):
        summary.add(run_seed(seed))
    assert summary.failures == []
    assert summary.counts["answers without the proxy"] > 100
    assert summary.counts["fault: state taken over"] > 10
    assert summary.counts["fault: node cut off"] > 2
    assert summary.counts["fault: node deafened"] > 2


@pytest.mark.proves("Q1", "S1", "S3", "W7")
def test_every_rule_holds_while_disks_become_what_they_were_before() -> None:
    """W7: an older state of a data directory answers nothing wrong, and mends."""
    summary = Summary()
    for seed in (654, 4_482, 22_841):
        summary.add(run_seed(seed))
    assert summary.failures == []
    assert summary.counts["fault: older state of a disk put back"] > 10


@pytest.mark.proves("S2")
@pytest.mark.parametrize("seed", [44_715, 92_632])
def test_no_batch_fails_because_answers_take_long(seed: int) -> None:
    """
    S2: where each answer takes longer than a writer's patience, one of them does.

    The leader store is slow in both, and what is asked again waits behind snapshots and
    restores: nothing failed but for what the simulated writer took no notice of.
    """
    assert run_seed(seed).failures == []


def test_seeds_are_of_every_kind() -> None:
    """No range of seeds is blind to what the others show, however far it goes."""
    assert seeds_of_every_kind(9_999, 6) == [
        *(9_999, 19_999, 29_999, 39_999),
        *(40_000, 50_000),
    ]
    assert [Kind.of(seed) for seed in seeds_of_every_kind(123_456, 5)] == [
        *(Kind.MIXED, Kind.DIRECT, Kind.CUT_OFF, Kind.TAKE_OVER),
        Kind.MIXED,
    ]


def test_a_seed_replays() -> None:
    """The same seed is the same run, to the last message: a failure can be studied."""
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run_seed(7, trace.append)
    assert _without_drawn(traces[0]) == _without_drawn(traces[1])
    assert len(traces[0]) > 100


def _without_drawn(trace: list[str]) -> list[str]:
    """Return the lines but for the names of data directories, which stores draw."""
    return [line for line in trace if "store_id" not in line]


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
            *(sys.executable, "-m", "tests.state_simulation"),
            *("--mutation", mutation.name, "--jobs", "1"),
            *("--first", str(mutation.seed), "--seeds", "300"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "replay: python -m tests.state_simulation --seed" in done.stdout


def test_the_report_names_seeds_faults_and_checks() -> None:
    """What is committed of a long run says what was run, and how much."""
    summary = run_seed(3)
    text = render(summary, seeds="3", duration_seconds=1.0, jobs=1, commit="abc")
    assert "| commit | abc |" in text
    assert "| seeds | 3 |" in text
    assert f"| entries decided | {summary.counts['entries decided']:,} |" in text
    assert "| W3 what is acknowledged is decided |" in text


def test_a_run_writes_its_report_where_it_is_told_to(tmp_path: Path) -> None:
    """``--report FILE`` makes the directory, and says what did not hold, if any."""
    path = tmp_path / "reports" / "state.md"
    assert run(["--first", "3", "--seeds", "1", "--jobs", "1", f"--report={path}"]) == 0
    text = path.read_text("utf-8")
    assert text.startswith("# What the simulation of queryable state has shown\n")
    assert "| seeds | 1 (3 to 3) |" in text
    assert "| seeds in which a rule did not hold | 0 |" in text
