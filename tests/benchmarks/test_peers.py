"""The comparison with other systems, in tiny sizes: it must not rot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers._interface import AbsentError, Rows, opened
from benchmarks.peers._report import table
from benchmarks.peers._sizes import TINY


pytestmark = [pytest.mark.shells, pytest.mark.tiny]


def needs_nothing(peer: str) -> bool:
    """Return whether what a peer needs is in the lock."""
    return peer.startswith(peers.NEED_NOTHING)


@pytest.mark.parametrize(
    "name",
    [
        "reads",
        "leaders",
        "failover",
        pytest.param("sessions", marks=pytest.mark.nightly),
        pytest.param("growth", marks=pytest.mark.nightly),
    ],
)
def test_a_question_is_answered_in_tiny_size(name: str) -> None:
    """Lodestar and the floors answer each question that needs no Spark."""
    rows = peers.QUESTIONS[name](TINY, needs_nothing)
    measured = [row for row in rows if row.figure is not None]
    assert any(row.peer == "Lodestar" for row in measured)
    assert not [row for row in rows if row.note.startswith("absent")]


def test_each_question_is_asked_in_tiny_size_but_those_of_spark() -> None:
    """Of a new one the list of tiny ones must say something."""
    assert set(peers.QUESTIONS) - set(peers.TINY_QUESTIONS) == {
        "publishing",
        "stored_state",
    }


def test_a_peer_that_is_absent_is_a_row_that_says_why() -> None:
    """It is not skipped in silence, and the others are asked."""

    @contextmanager
    def there() -> Iterator[str]:
        yield "there"

    @contextmanager
    def missing() -> Iterator[str]:
        raise AbsentError("install the Debian package x")
        yield

    rows = Rows()
    with ExitStack() as stack:
        found = opened(stack, [("a", missing), ("b", there)], rows, "get")
    rows.add("get", "b", "us", [1.0, 2.0])
    assert found == {"b": "there"}
    lines = table(rows.rows()).splitlines()
    assert lines[2:] == [
        "| get | b | 2 | 2 | 2 | us |  |",
        "| get | a | - | - | - | - | absent: install the Debian package x |",
    ]


def test_the_tail_is_the_bad_end() -> None:
    """For a time it is the longest, for a rate the lowest."""
    rows = Rows()
    values = [float(value) for value in range(1, 101)]
    rows.add("times", "a", "us", values)
    rows.add("rates", "a", "keys/s", values)
    assert [row.tail for row in rows.rows()] == [100.0, 1.0]
