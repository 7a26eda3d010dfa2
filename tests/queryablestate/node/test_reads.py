from __future__ import annotations

from pathlib import Path

import pytest

from queryablestate import StateUnavailableError
from queryablestate.node.core.jobs import ServedJob
from queryablestate.node.reads import Found, is_too_early, problem_of, read_points
from queryablestate.store.layout import Runs
from queryablestate.store.state_view import StateView
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.questions import (
    CountKeys,
    GetValues,
    Operation,
    Question,
    Refusal,
    ScanRows,
)
from queryablestate.wire.refusals import error_of
from tests.queryablestate.node_entries import question
from tests.queryablestate.store_batches import JOB, NODE, NOW_US, key, write


SERVED = ServedJob(
    job_id=JOB,
    assignment_version=1,
    key_groups=(1, 2, 4),
    prefixes=frozenset(group.to_bytes(2, "big") for group in (1, 2, 4)),
    in_sync=frozenset(),
)


def problem(operation: Operation, lost: Runs, *asked: int) -> Refusal | None:
    """Return why a question for some key groups of a state cannot be answered."""
    question = Question(
        leader_epoch=1,
        question_id=7,
        state_number=1,
        assignment_version=1,
        operation=operation,
        deadline_ms=1_000,
    )
    view = StateView(
        job_id=JOB,
        generation=1,
        batch_id=3,
        decided_at_us=1,
        kind="value",
        has_ttl=False,
        lost=lost,
    )
    keys = [key(group) for group in asked]
    return problem_of(question, Found(view, keys, b"", has_missing=False), SERVED)


def unavailable(refusal: Refusal | None) -> tuple[int, ...]:
    """Return which key groups are unavailable."""
    assert refusal is not None
    error = error_of(refusal)
    assert isinstance(error, StateUnavailableError)
    return tuple(error.key_groups)


@pytest.mark.proves("Q2")
@pytest.mark.parametrize(
    ("generation", "batch_id", "is_early"),
    [(1, 29, True), (2, None, True), (2, 2, True), (2, 3, False), (3, 0, False)],
)
def test_a_batch_is_waited_for_in_its_generation(
    generation: int, batch_id: int | None, *, is_early: bool
) -> None:
    """Q2: batches of an earlier query are older, those of a later one newer."""
    view = StateView(
        job_id=JOB,
        generation=generation,
        batch_id=batch_id,
        decided_at_us=1,
        kind="value",
        has_ttl=False,
        lost=(),
    )
    found = Found(view, [], b"", has_missing=False)
    one = question(min_batch_id=3, min_generation=2)
    assert is_too_early(one, found) == is_early
    assert not is_too_early(question(), found)


@pytest.mark.proves("W7", "S1")
def test_only_lost_key_groups_are_unavailable() -> None:
    """Those that were asked for and are lost are named, others answered (W7, S1)."""
    lost = ((2, 3), (4, 9))
    assert problem(GetValues(), (), 1, 2) is None
    assert problem(GetValues(), lost, 1, 1) is None
    assert unavailable(problem(GetValues(), lost, 4, 1, 2, 2)) == (2, 4)
    assert problem(GetValues(), ((3, 3),), 1, 2, 4) is None


@pytest.mark.proves("W7", "S1")
@pytest.mark.parametrize(
    "operation", [CountKeys(), ScanRows(start=b"", stop=None, limit=1)]
)
def test_a_walk_needs_all_key_groups_of_the_node(operation: Operation) -> None:
    """What is lost of others, which the node does not serve, is no matter (W7, S1)."""
    assert unavailable(problem(operation, ((0, 2),))) == (1, 2)
    assert problem(operation, ((0, 0), (3, 3), (5, 2**16 - 1))) is None


@pytest.mark.proves("S2", "S3")
def test_another_nodes_key_groups_are_not_missing() -> None:
    """The route was an old one (S2, S3)."""
    refusal = problem(GetValues(), ((3, 3),), 1, 3)
    assert refusal is not None
    assert refusal.code == "stale-route"


@pytest.mark.proves("W7", "S1")
def test_a_walk_needs_the_key_groups_that_it_goes_over() -> None:
    """What is lost of others, also of the node's own, is no matter (W7, S1)."""
    found = Found(
        StateView(
            job_id=JOB,
            generation=1,
            batch_id=3,
            decided_at_us=1,
            kind="value",
            has_ttl=False,
            lost=((2, 3),),
        ),
        [],
        b"",
        has_missing=False,
        runs=((1, 1), (4, 4)),
    )
    assert problem_of(question(), found, SERVED) is None
    found.runs = ((1, 2),)
    assert unavailable(problem_of(question(), found, SERVED)) == (2,)


@pytest.mark.proves("B1")
def test_what_is_more_than_it_seemed_is_not_read_at_once(tmp_path: Path) -> None:
    """B1: the rows that are asked for may be larger than most."""
    large = [key(group) for group in range(3)]
    asked = question()
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
        write(store, [(key(group), b"small") for group in range(3, 500)])
        write(store, [(one, bytes(1_500)) for one in large])
        reader = store.reader()
        keys = encode_payload(large)
        assert read_points(reader, asked, keys, NOW_US, 4_500) is None
        found = read_points(reader, asked, keys, NOW_US, 5_000)
    assert found is not None
    assert found.row_count == 3
