"""
What readers were answered, and whether each answer may be what it is; without I/O.

Each batch writes its own number into every row, so an answer names its batch.  It may
be any batch from the last one that was *acknowledged before the question was asked* to
the last one that was *decided before the answer came*; and within one client and one
node, none before one that was answered earlier.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, final

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


__all__ = ["Answer", "BatchTimes", "Outage", "Verdict", "judge"]

_NOTHING: Final = -1
_NS_PER_US: Final = 1_000
_NS_PER_SECOND: Final = 1_000_000_000


@frozen(kw_only=True)
class Answer:
    """
    What one question to one node came to.

    Attributes:
        client: Who asked; what one client is told never goes back.
        state_name: About which state.
        node_id: The node that owns all that was asked for; None for several nodes.
        question: What was asked, for a person.
        asked_ns: Just before.
        answered_ns: Just after.
        answered_us: The same by the wall clock, microseconds since 1970.
        batch_ids: The batches that the answer shows, each once; empty if it shows none.
        error: The type of the error, or "".
        detail: Its sentence, or what is wrong with the answer by itself.
    """

    client: str
    state_name: str
    node_id: str | None
    question: str
    asked_ns: int
    answered_ns: int
    answered_us: int
    batch_ids: tuple[int, ...] = ()
    error: str = ""
    detail: str = ""

    @property
    def is_answer(self) -> bool:
        """Return whether it is no error."""
        return not self.error

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return (self.answered_ns - self.asked_ns) / _NS_PER_SECOND


@frozen(kw_only=True)
class BatchTimes:
    """
    When batches came about; each by number.

    Attributes:
        begun_ns: Before it could be decided.
        acknowledged_ns: After it was known to be applied by every owner.
        decided_us: What its decision says, by the wall clock, as far as it was read.
    """

    begun_ns: Mapping[int, int]
    acknowledged_ns: Mapping[int, int]
    decided_us: Mapping[int, int]


@frozen(kw_only=True)
class Outage:
    """
    While a node may refuse, or anything may if *node_id* is None.

    Attributes:
        node_id: Which node.
        from_ns: From before it was killed
        until_ns: to after it served again.
    """

    node_id: str | None
    from_ns: int
    until_ns: int

    def excuses(self, answer: Answer) -> bool:
        """Return whether *answer* may be an error because of it."""
        return (
            self.node_id in {None, answer.node_id} or answer.node_id is None
        ) and not (answer.answered_ns < self.from_ns or answer.asked_ns > self.until_ns)


@final
@frozen(kw_only=True)
class Verdict:
    """
    What all answers came to.

    Attributes:
        problems: What must not be, in words; empty is good.
        answer_count: How many were no errors.
        decision_count: How many of them were held to the time of the decision itself.
        error_count: How many were errors that an outage excuses.
        seconds_max: The longest that any of them took.
        error_seconds_max: The longest that an error took.
    """

    problems: Sequence[str]
    answer_count: int
    decision_count: int
    error_count: int
    seconds_max: float
    error_seconds_max: float


class _Latest:
    """The highest batch of all that happened until some time."""

    def __init__(self, times: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(times)
        self._at_ns = [at_ns for at_ns, _ in ordered]
        self._highest = list(accumulate((number for _, number in ordered), max))

    def until(self, at_ns: int) -> int:
        """Return the highest batch of what happened up to *at_ns*."""
        count = bisect_right(self._at_ns, at_ns)
        return self._highest[count - 1] if count else _NOTHING

    def before(self, at_ns: int) -> int:
        """Return the highest batch of what happened before *at_ns*."""
        count = bisect_left(self._at_ns, at_ns)
        return self._highest[count - 1] if count else _NOTHING


def judge(
    answers: Sequence[Answer],
    batches: BatchTimes,
    *,
    outages: Sequence[Outage] = (),
    errors_allowed: Sequence[str] = ("StateUnavailableError",),
) -> Verdict:
    """
    Hold every answer to what it may be.

    Args:
        answers: Of all clients.
        batches: When batches came about.
        outages: While which errors are excused.
        errors_allowed: The only errors that can be.
    """
    acknowledged = _Latest(
        (at, number) for number, at in batches.acknowledged_ns.items()
    )
    begun = _Latest((at, number) for number, at in batches.begun_ns.items())
    problems: list[str] = []
    good: list[Answer] = []
    bad: list[Answer] = []
    decision_count = 0
    for answer in answers:
        if not answer.is_answer:
            bad.append(answer)
            is_excused = any(outage.excuses(answer) for outage in outages)
            if answer.error not in errors_allowed or not is_excused:
                problems.append(f"must not fail: {answer}")
            continue
        good.append(answer)
        if answer.detail:
            problems.append(f"wrong by itself: {answer}")
            continue
        if answer.node_id is not None and len(answer.batch_ids) > 1:
            problems.append(f"half a batch of one node: {answer}")
        least = acknowledged.before(answer.asked_ns)
        most = begun.until(answer.answered_ns)
        for number in answer.batch_ids:
            if not least <= number <= most:
                problems.append(f"not from {least} to {most}: {answer}")
            decided_us = batches.decided_us.get(number)
            if decided_us is not None:
                decision_count += 1
                if answer.answered_us < decided_us:
                    problems.append(f"{number} was decided at {decided_us}: {answer}")
    problems += _steps_back(good)
    return Verdict(
        problems=problems,
        answer_count=len(good),
        decision_count=decision_count,
        error_count=len(bad),
        seconds_max=max((answer.seconds for answer in answers), default=0.0),
        error_seconds_max=max((answer.seconds for answer in bad), default=0.0),
    )


def _steps_back(answers: Sequence[Answer]) -> list[str]:
    """Return where one client was told something older than before (rule Q1)."""
    by_source: dict[tuple[str, str, str], list[Answer]] = {}
    for answer in answers:
        if answer.node_id is not None and answer.batch_ids:
            source = (answer.client, answer.state_name, answer.node_id)
            by_source.setdefault(source, []).append(answer)
    problems = []
    for told in by_source.values():
        known = _Latest((one.answered_ns, max(one.batch_ids)) for one in told)
        problems += [
            f"was told of {known.before(one.asked_ns)} before: {one}"
            for one in told
            if min(one.batch_ids) < known.before(one.asked_ns)
        ]
    return problems
