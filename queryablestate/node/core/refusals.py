"""What a node says instead of an answer; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from nameservice import DidNotHappenError
from nameservice.clock import NS_PER_SECOND
from queryablestate.errors import DeadlineExceededError, StateUnavailableError
from queryablestate.node.core.events import Wait
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import STALE_ROUTE, refusal_of


if TYPE_CHECKING:
    from queryablestate.node.core.events import QuestionDeferred
    from queryablestate.wire.questions import Question


__all__ = ["cancelled", "stale_route", "too_late", "unavailable"]

_RETRY_AFTER_SECONDS: Final = 0.1


def unavailable(question: Question, job_id: str | None, detail: str) -> Refusal:
    """Return what is told when the node cannot answer now; *detail* says why."""
    error = StateUnavailableError(job_id or "", None, (), _RETRY_AFTER_SECONDS, detail)
    return refusal_of(error, question.question_id)


def stale_route(question: Question) -> Refusal:
    """Return what is told when another node is to be asked, or may be."""
    return Refusal(request_id=question.question_id, code=STALE_ROUTE)


def cancelled(question: Question) -> Refusal:
    """Return what a question is told that is wanted no more."""
    error = DidNotHappenError("it is wanted no more")
    return refusal_of(error, question.question_id)


def too_late(waiting: QuestionDeferred, now_ns: int) -> Refusal:
    """Return what a question is told whose deadline came while it waited."""
    question = waiting.asked.question
    match waiting.wait:
        case Wait.CATCHING_UP:
            return unavailable(
                question,
                waiting.job_id,
                "the node has yet to apply what it missed while it was away",
            )
        case Wait.UNKNOWN_STATE:
            return stale_route(question)
        case Wait.BATCH:
            waited_seconds = (now_ns - waiting.asked.asked_at_ns) / NS_PER_SECOND
            generation = question.min_generation
            whose = "" if generation is None else f" of generation {generation}"
            error = DeadlineExceededError(
                waited_seconds,
                f"batch {question.min_batch_id}{whose} is not applied yet",
            )
            return refusal_of(error, question.question_id)
        case _:
            assert_never(waiting.wait)
