"""
`wait_for`: ask the proxy that leads again and again, until the answer is the end.

There is no event to wait for: how far a move is, only the proxy that leads knows, and
it tells those who ask.  The pauses grow, up to half a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from nameservice import (
    NS_PER_SECOND,
    Clock,
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
    UnreachableError,
    seconds_to_ns,
)
from nameservice.interruptible import InterruptibleEvent
from queryablestate.errors import DeadlineExceededError, StateUnavailableError


__all__ = ["ask_until_it_happens", "ask_until_settled", "wait_for"]

_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 0.5
_SILENCE_SECONDS_MAX: Final = 60.0
"""How long there may be no answer: a proxy that ends is replaced sooner."""

_TRANSIENT_ERRORS: Final = (
    DeadlineExceededError,
    MayHaveHappenedError,
    NoLeaderError,
    StateUnavailableError,
    UnreachableError,
)
"""What a proxy that is being replaced looks like."""

T = TypeVar("T")


def wait_for(
    ask: Callable[[], T | None],
    *,
    clock: Clock,
    closed: InterruptibleEvent,
    timeout_seconds: float | None,
    missing: Callable[[], str],
) -> T:
    """
    Return what *ask* returns as soon as that is not None.

    Args:
        ask: Asks the proxy, and judges the answer.
        clock: Where time comes from.
        closed: Set when no thread may ask any more.
        timeout_seconds: How long to wait, or None.
        missing: Says what is still waited for.

    Raises:
        DeadlineExceededError: If it was None for *timeout_seconds*.
        NameServiceError: Whatever *ask* raises; what looks like a proxy that is being
            replaced, only after a minute without an answer.
    """
    began_ns = answered_ns = clock.now_ns()
    pause_seconds = _PAUSE_SECONDS
    while True:
        if closed.is_set():
            raise LocalProtocolError("these StateOperations are closed")
        problem: NameServiceError | None = None
        try:
            found = ask()
        except _TRANSIENT_ERRORS as error:
            problem = error
        else:
            if found is not None:
                return found
            answered_ns = clock.now_ns()
        now_ns = clock.now_ns()
        silence_ns = now_ns - answered_ns
        if problem is not None and silence_ns >= seconds_to_ns(_SILENCE_SECONDS_MAX):
            raise problem
        if timeout_seconds is not None:
            left_seconds = timeout_seconds - (now_ns - began_ns) / NS_PER_SECOND
            if left_seconds <= 0:
                if problem is not None and not isinstance(
                    problem, DeadlineExceededError
                ):
                    raise problem
                # What one question waited is not what the caller did.
                raise DeadlineExceededError(timeout_seconds, missing()) from problem
            pause_seconds = min(pause_seconds, left_seconds)
        closed.wait(pause_seconds)
        pause_seconds = min(1.5 * pause_seconds, _PAUSE_SECONDS_MAX)


def ask_until_it_happens(
    ask: Callable[[], T],
    *,
    clock: Clock,
    closed: InterruptibleEvent,
    timeout_seconds: float,
) -> T:
    """
    Return what *ask* returns; while nodes are only late, it is asked again.

    Raises:
        DidNotHappenError: If they are late after *timeout_seconds*; says which.
        NameServiceError: Whatever else *ask* raises.
    """
    deadline_ns = clock.now_ns() + seconds_to_ns(timeout_seconds)
    while True:
        try:
            return ask()
        except DidNotHappenError:
            left_seconds = (deadline_ns - clock.now_ns()) / NS_PER_SECOND
            if left_seconds <= 0 or closed.is_set():
                raise
        closed.wait(min(_PAUSE_SECONDS, left_seconds))


def ask_until_settled(
    ask: Callable[[], T],
    *,
    clock: Clock,
    closed: InterruptibleEvent,
    timeout_seconds: float,
) -> T:
    """
    Return what *ask* returns; a proxy that does not know the nodes yet is asked again.

    Args:
        ask: Asks the proxy.
        clock: Where time comes from.
        closed: Set when no thread may ask any more.
        timeout_seconds: How long to ask.

    Raises:
        StateUnavailableError: If the proxy does not know the nodes by then.
        NameServiceError: Whatever else *ask* raises.
    """
    deadline_ns = clock.now_ns() + seconds_to_ns(timeout_seconds)
    while True:
        try:
            return ask()
        except StateUnavailableError as error:
            left_seconds = (deadline_ns - clock.now_ns()) / NS_PER_SECOND
            if left_seconds <= 0:
                raise
            pause_seconds = max(error.retry_after_seconds, _PAUSE_SECONDS)
        closed.wait(min(pause_seconds, left_seconds, _PAUSE_SECONDS_MAX))
