"""
How a batch gets a ticket, by which its rows reach their nodes; pure.

A ticket comes with the assignment that its batch is pinned to.  While a node that alone
has some key groups is away, another ticket is drawn a moment later: the node may come
back, or lose its key groups to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from nameservice import NS_PER_SECOND, seconds_to_ns
from queryablestate.errors import DeadlineExceededError, StateUnavailableError
from queryablestate.wire.clients import (
    DrawTicket,
    StateDeclaration,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.schema_digest import DeclarationWantedError
from queryablestate.writer.conversations import AskProxy, Conversation, Heard, Pause


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.wire.clients import ClientRequest


__all__ = [
    "Declarations",
    "as_registered",
    "asking_for_ticket",
    "declare",
    "draw_for_nodes",
    "draw_ticket",
]

Declarations: TypeAlias = tuple[StateDeclaration, ...]
Draw: TypeAlias = Callable[[int], Conversation[Heard]]
"""Draws a ticket, until a deadline."""

_REDRAW_PAUSE_NS: Final = NS_PER_SECOND // 4
_RETRY_AFTER_SECONDS: Final = 1.0


def draw_ticket(
    job_id: str,
    declarations: Declarations,
    *,
    max_parallelism: int = 1,
    deadline_ns: int,
) -> Conversation[Heard]:
    """Draw a ticket that is shown for no run yet."""

    def ask(states: Declarations) -> AskProxy:
        return asking_for_ticket(
            job_id,
            states,
            max_parallelism=max_parallelism,
            run=None,
            deadline_ns=deadline_ns,
        )

    return (yield from declare(declarations, ask))


def asking_for_ticket(
    job_id: str,
    states: Declarations,
    *,
    max_parallelism: int,
    run: WriterRun | None,
    deadline_ns: int,
) -> AskProxy:
    """Return what asks for a ticket, and shows it for *run* unless that is None."""

    def build(request_id: int, session: bytes, _: int) -> ClientRequest:
        return DrawTicket(
            request_id=request_id,
            session=session,
            job_id=job_id,
            max_parallelism=max_parallelism,
            states=states,
            run=run,
        )

    return AskProxy(build, deadline_ns)


def declare(
    declarations: Declarations, ask: Callable[[Declarations], AskProxy]
) -> Conversation[Heard]:
    """Ask what declares states: without their schemas, if that will do."""
    # They are wanted for a state that is new: once, for all runs that there will be.
    heard = yield ask(as_registered(declarations))
    if isinstance(heard.answer, DeclarationWantedError):
        heard = yield ask(declarations)
    return heard


def as_registered(declarations: Declarations) -> Declarations:
    """Return what a writer says of states that the proxy knows: digests alone."""
    return tuple(state.as_registered() for state in declarations)


def draw_for_nodes(
    job_id: str,
    draw: Draw,
    *,
    waits_for_nodes: bool,
    timeout_ns: int,
    now_ns: int,
) -> Conversation[TicketDrawn]:
    """
    Return a ticket of which all rows can be brought to some node.

    Args:
        job_id: The job.
        draw: Draws one, until a deadline.
        waits_for_nodes: Whether to draw again while a node is away that is needed.
        timeout_ns: How long to try.
        now_ns: The time.

    Raises:
        StateUnavailableError: If nodes that own key groups stayed away.
    """
    deadline_ns = now_ns + timeout_ns
    away: tuple[int, ...] = ()
    while True:
        # Enough for one try, if nothing is left.
        heard = yield from draw(max(deadline_ns, now_ns + _REDRAW_PAUSE_NS))
        now_ns, answer = heard.now_ns, heard.answer
        if isinstance(answer, DeadlineExceededError) and away:
            # What was told before says more.
            raise _stayed_away(job_id, away, timeout_ns) from answer
        if isinstance(answer, StateUnavailableError):
            # A new job needs nodes, and under a new leader they are still coming.
            again_ns = now_ns + seconds_to_ns(answer.retry_after_seconds)
            if not waits_for_nodes or deadline_ns <= again_ns:
                raise answer
            now_ns = (yield Pause(again_ns)).now_ns
            continue
        drawn = heard.as_a(TicketDrawn)
        away = _groups_away(drawn)
        if not away or not waits_for_nodes:
            return drawn
        if now_ns >= deadline_ns:
            raise _stayed_away(job_id, away, timeout_ns)
        # A writer is not told when a node is back.
        now_ns = (yield Pause(now_ns + _REDRAW_PAUSE_NS)).now_ns


def _groups_away(drawn: TicketDrawn) -> tuple[int, ...]:
    """
    Return the key groups whose rows can be sent to no node now.

    Of the others a node that is away is given up, unless it comes back (rule S4); see
    `queryablestate.writer.stage_core`.
    """
    away = {index for index, node in enumerate(drawn.nodes) if node.address is None}
    if not away:
        return ()
    return tuple(
        group for group, holders in enumerate(drawn.owners) if away.issuperset(holders)
    )


def _stayed_away(
    job_id: str, key_groups: Sequence[int], waited_ns: int
) -> StateUnavailableError:
    waited_seconds = waited_ns / NS_PER_SECOND
    detail = f"their nodes have been away for {waited_seconds:.3g} s: start them again"
    return StateUnavailableError(
        job_id, None, tuple(key_groups), _RETRY_AFTER_SECONDS, detail
    )
