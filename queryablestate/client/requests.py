"""
What the application waits for, from the question to the answer; pure.

A request is the one object that shell and core share: the shell makes it and hands it
to the core, which fills it in and gives it back done.  It stands for itself: two of
them are never equal.  They are mutable and bare because a client makes one for every
key that is asked for alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

from attrs import define, field

from nameservice.errors import NameServiceError
from queryablestate.client.floors import Floor
from queryablestate.client.routes import Asking, Route
from queryablestate.wire.clients import ClientRequest, ToClient
from queryablestate.wire.questions import CountKeys, Reading, ScanRows, WalkRows


__all__ = [
    "UNANSWERED",
    "Call",
    "KeysRead",
    "NodeRead",
    "Request",
    "RouteRead",
    "StaleRouteError",
    "StateName",
    "begin_anew",
]

StateName: TypeAlias = tuple[str, str]
"""Job id and state name."""

UNANSWERED: Final = object()
"""Stands in `KeysRead.rows` for what was not answered."""


@final
class StaleRouteError(NameServiceError):
    """A node was asked by a route that is the present one no more."""


@final
@define(eq=False)
class KeysRead:
    """
    A question for some keys of one state.

    Attributes:
        waiter: What the shell knows it by.
        state: Of which state.
        asking: What is wanted of each key.
        keys: As the user gave them; pairs with map keys for `ENTRY`.  At least one.
        asked_ns: When it was asked.
        deadline_ns: When its answer is worth nothing any more.
        least: Wait until this batch is applied (rule Q2), or None.
        is_partial: Whether key groups that are unavailable are no failure.
        is_done: Whether it was answered, failed, or given up.
        error: Why it failed, or None.
        rows: When done, for each key what was found: None if nothing is there,
            `UNANSWERED` if that is unknown (only if *is_partial*).
        reading: As of what it was read, by the last answer if there were several.
        partial_error: Why something is unknown, or None.
        open_count: Keys that have no answer yet; the core's.
        is_repeated: Whether it was asked again after an answer that made no sense; the
            core's.
    """

    waiter: Any
    state: StateName
    asking: Asking
    keys: Sequence[Any]
    asked_ns: int
    deadline_ns: int
    least: Floor | None = None
    is_partial: bool = False
    is_done: bool = False
    error: Exception | None = None
    rows: list[Any] = field(default=(), repr=False)
    reading: Reading | None = None
    partial_error: NameServiceError | None = None
    open_count: int = 0
    is_repeated: bool = False


@final
@define(eq=False)
class RouteRead:
    """
    A question for the route to a state.

    Attributes:
        waiter: What the shell knows it by.
        state: Of which state.
        asked_ns: When it was asked.
        deadline_ns: When its answer is worth nothing any more.
        stale: A route that is not wanted: it was found to be stale.
        is_new: Whether none is wanted that was asked for before *asked_ns*.
        is_done: Whether it was answered, failed, or given up.
        error: Why it failed, or None.
        route: The answer.
    """

    waiter: Any
    state: StateName
    asked_ns: int
    deadline_ns: int
    stale: Route | None = None
    is_new: bool = False
    is_done: bool = False
    error: Exception | None = None
    route: Route | None = None


@final
@define(eq=False)
class NodeRead:
    """
    A question for one node, about all that it holds of a state.

    Attributes:
        waiter: What the shell knows it by.
        state: Of which state.
        route: By which route.
        node_index: Which node of it.
        operation: What is asked.
        asked_ns: When it was asked.
        deadline_ns: When its answer is worth nothing any more.
        least: Wait until this batch is applied (rule Q2), or None.
        is_done: Whether it was answered, failed, or given up.
        error: Why it failed, or None; a `StaleRouteError` asks for a `RouteRead`.
        result: The answer: the rows of a page as they are stored, or a count.
        next_start: Where a scan goes on, or None at its end.
        reading: As of what it was read.
        hold_until_ns: Not to be sent before; the core's.
    """

    waiter: Any
    state: StateName
    route: Route
    node_index: int
    operation: ScanRows | WalkRows | CountKeys
    asked_ns: int
    deadline_ns: int
    least: Floor | None = None
    is_done: bool = False
    error: Exception | None = None
    result: Any = field(default=None, repr=False)
    next_start: bytes | None = None
    reading: Reading | None = None
    hold_until_ns: int = 0


@final
@define(eq=False)
class Call:
    """
    A request to the proxy itself.

    Attributes:
        waiter: What the shell knows it by.
        build: Makes the message from its number and the secret of the session; called
            again whenever it is sent again.
        asked_ns: When it was asked.
        deadline_ns: When its answer is worth nothing any more.
        is_done: Whether it was answered, failed, or given up.
        error: Why it failed, or None.
        reply: The answer.
        problem: Why the proxy could not do it when it was asked last, or None.
        hold_until_ns: Not to be sent before; the core's.
        pause_ns: How long it was held the last time; the core's.
    """

    waiter: Any
    build: Callable[[int, bytes], ClientRequest]
    asked_ns: int
    deadline_ns: int
    is_done: bool = False
    error: Exception | None = None
    reply: ToClient | None = None
    problem: NameServiceError | None = None
    hold_until_ns: int = 0
    pause_ns: int = 0


Request: TypeAlias = KeysRead | RouteRead | NodeRead | Call


def begin_anew(request: Request) -> None:
    """Have *request*, which is not done, be as it was when it was asked."""
    assert not request.is_done
    request.error = None
    match request:
        case KeysRead():
            request.reading = request.partial_error = None
            request.is_repeated = False
        case NodeRead():
            request.hold_until_ns = 0
        case Call():
            request.hold_until_ns = request.pause_ns = 0
        case RouteRead():
            pass
