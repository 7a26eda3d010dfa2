"""What a question and its peers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Protocol, TypeAlias, TypeVar

from attrs import frozen

from benchmarks._harness import Figure, figure
from benchmarks.peers._sizes import Sizes


__all__ = [
    "VALUE",
    "AbsentError",
    "NotOfferedError",
    "Question",
    "Reader",
    "Row",
    "Rows",
    "key_of",
    "opened",
]

VALUE: Final = "v" * 100


class AbsentError(Exception):
    """A peer cannot be started here; says what is missing."""


class NotOfferedError(Exception):
    """A system has no such thing; says what it has instead."""


Point: TypeAlias = tuple[str, str, int]


@frozen(kw_only=True)
class Row:
    """
    One line of the table.

    Attributes:
        question: What was asked, with its size.
        peer: Who answered.
        figure: What was measured, or None if nothing was.
        tail: 99 % of the values are better: p99 of times, p1 of rates.
        note: Why nothing was measured, or what to know about the figure.
        at: Where on which curve it is: what is asked, what grows, and how much of that.
    """

    question: str
    peer: str
    figure: Figure | None
    tail: float | None
    note: str
    at: Point | None


class Rows:
    """Collects values by question and peer; they become rows in the end."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], tuple[str, list[float]]] = {}
        self._notes: dict[tuple[str, str], str] = {}
        self._points: dict[str, Point] = {}

    def add(
        self,
        question: str,
        peer: str,
        unit: str,
        values: Iterable[float],
        *,
        at: Point | None = None,
    ) -> None:
        """Add *values* to those of *peer* for *question*."""
        entry = self._values.setdefault((question, peer), (unit, []))
        entry[1].extend(values)
        if at is not None:
            self._points[question] = at

    def note(self, question: str, peer: str, text: str) -> None:
        """Say why there is no figure, or what to know about it."""
        self._notes[question, peer] = text

    def rows(self) -> list[Row]:
        """Return a row for each question and peer, in the order of the questions."""
        known = list(dict.fromkeys([*self._values, *self._notes]))
        questions = list(dict.fromkeys(question for question, _ in known))
        found = []
        for question, peer in sorted(known, key=lambda one: questions.index(one[0])):
            unit, values = self._values.get((question, peer), ("", []))
            found.append(
                Row(
                    question=question,
                    peer=peer,
                    figure=figure(question, unit, values) if values else None,
                    tail=_tail(unit, values) if values else None,
                    note=self._notes.get((question, peer), ""),
                    at=self._points.get(question),
                )
            )
        return found


def _tail(unit: str, values: list[float]) -> float:
    ordered = sorted(values, reverse=unit.endswith("/s"))
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


Question: TypeAlias = Callable[[Sizes, Callable[[str], bool]], list[Row]]
"""Measures in these sizes, among the peers whose names are accepted."""


class Reader(Protocol):
    """A system that holds values by key, and a client of it."""

    def load(self, key_count: int) -> None:
        """Hold `VALUE` under the first *key_count* keys; return when they are read."""
        ...

    def get_each(self, first: int, count: int) -> list[float]:
        """Get keys one after the other; return the microseconds of each."""
        ...

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """Get keys, *limit* at the same time; return the seconds until all are had."""
        ...

    def get_many(self, first: int, count: int) -> float:
        """Get keys with one question; return the seconds it took."""
        ...


P = TypeVar("P")


def opened(
    stack: ExitStack,
    openings: Iterable[tuple[str, Callable[[], AbstractContextManager[P]]]],
    rows: Rows,
    question: str,
) -> dict[str, P]:
    """Start every peer that can be; those that cannot become rows that say why."""
    peers = {}
    for name, opening in openings:
        try:
            peers[name] = stack.enter_context(opening())
        except AbsentError as error:
            rows.note(question, name, f"absent: {error}")
    return peers


def key_of(number: int) -> str:
    """Return the key of a number."""
    return f"key-{number:09d}"
