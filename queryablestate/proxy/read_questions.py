"""What a `ReadRouter` makes of a client's question: what nodes are asked; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.clock import NS_PER_MS
from queryablestate.errors import StateUnavailableError
from queryablestate.wire.questions import Question, Refusal
from queryablestate.wire.refusals import error_of


if TYPE_CHECKING:
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.proxy.copy_reads import CopyPart
    from queryablestate.proxy.read_parking import ParkedQuestion
    from queryablestate.wire.questions import Ask, Reading


__all__ = [
    "generation_asked",
    "is_awaited",
    "names_nothing",
    "question_of",
]


def question_of(
    question_id: int,
    asked: ParkedQuestion,
    location: KvStateLocation,
    *,
    leader_epoch: int,
    now_ns: int,
    part: CopyPart | None = None,
    newest: Reading | None = None,
) -> Question:
    """
    Return what a node is asked.

    Args:
        question_id: Under which number.
        asked: The question as it came in.
        location: The route that it came by.
        leader_epoch: Of the proxy.
        now_ns: The time.
        part: What a node with another copy is asked of it; None for the primary.
        newest: As of what another part was answered: this one is to be no older.
    """
    ask = asked.ask
    min_batch_id = ask.min_batch_id
    min_generation = None
    if min_batch_id is not None:
        min_generation = generation_asked(location, ask)
    if newest is not None:
        # Other parts were answered as of that, so it is what was wanted, or newer.
        min_batch_id, min_generation = newest.batch_id, newest.generation
    return Question(
        leader_epoch=leader_epoch,
        question_id=question_id,
        state_number=ask.state_number,
        assignment_version=ask.assignment_version,
        operation=ask.operation if part is None else part.operation,
        deadline_ms=max(1, (asked.deadline_ns - now_ns) // NS_PER_MS),
        asker=_asker_of(asked),
        min_batch_id=min_batch_id,
        min_generation=min_generation,
        copies=None if part is None else part.runs,
    )


def generation_asked(location: KvStateLocation, ask: Ask) -> int | None:
    """Return whose batch *ask* waits for, or None if it waits for none (rule Q2)."""
    if ask.min_batch_id is None:
        return None
    return location.generation if ask.min_generation is None else ask.min_generation


def is_awaited(location: KvStateLocation, ask: Ask) -> bool:
    """Return whether *ask* waits for a batch that is not decided yet."""
    if ask.min_batch_id is None:
        return False
    generation = generation_asked(location, ask)
    assert generation is not None
    known = -1 if location.batch_id is None else location.batch_id
    return (generation, ask.min_batch_id) > (location.generation, known)


def names_nothing(refusal: Refusal) -> bool:
    """Return whether a node's `StateUnavailableError` names no key groups."""
    error = error_of(refusal)
    return isinstance(error, StateUnavailableError) and not error.key_groups


def _asker_of(asked: ParkedQuestion) -> str:
    """Return whose turn a question takes: a caller's, or a nameless connection's."""
    owner = asked.owner
    return f"caller {owner}" if isinstance(owner, str) else f"connection {owner}"
