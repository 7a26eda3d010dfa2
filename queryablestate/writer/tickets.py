"""
`TicketDrawer`: how a batch gets a ticket, by which its rows reach their nodes.

A ticket comes with the assignment that its batch is pinned to.  While a node that alone
has some key groups is away, another ticket is drawn a moment later: the node may come
back, or lose its key groups to others.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar, final

import msgspec

from nameservice import (
    NS_PER_SECOND,
    RemoteProtocolError,
    SystemClock,
    get_logger,
    seconds_to_ns,
)
from queryablestate.errors import DeadlineExceededError, StateUnavailableError
from queryablestate.schema.schema import schema_json
from queryablestate.wire.clients import (
    DrawTicket,
    StateDeclaration,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.schema_digest import DeclarationWantedError


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queryablestate.client.calls import ProxyConnection
    from queryablestate.schema.schema import StateSchema
    from queryablestate.wire.clients import ToClient


__all__ = [
    "TicketDrawer",
    "as_registered",
    "declarations_of",
    "declared",
    "expect",
]

_REDRAW_PAUSE_SECONDS: Final = 0.25
_RETRY_AFTER_SECONDS: Final = 1.0


T = TypeVar("T", bound=msgspec.Struct)


@final
class TicketDrawer:
    """
    Draws tickets.  Thread-safe; owns nothing that must be closed.

    Args:
        proxy: The way to the proxy leader; stays its owner's.
    """

    def __init__(self, proxy: ProxyConnection) -> None:
        self._proxy = proxy
        self._clock = SystemClock()

    def draw(
        self,
        job_id: str,
        states: tuple[StateDeclaration, ...],
        *,
        max_parallelism: int,
        timeout_seconds: float,
    ) -> TicketDrawn:
        """Draw a ticket that is shown for no run yet."""
        return declared(
            states,
            lambda states: self.ask(
                job_id,
                states,
                max_parallelism=max_parallelism,
                run=None,
                timeout_seconds=timeout_seconds,
            ),
        )

    def ask(
        self,
        job_id: str,
        states: tuple[StateDeclaration, ...],
        *,
        max_parallelism: int,
        run: WriterRun | None,
        timeout_seconds: float,
    ) -> TicketDrawn:
        """Ask for a ticket, and show it for *run* unless that is None."""
        return expect(
            TicketDrawn,
            self._proxy.call(
                lambda request_id, session: DrawTicket(
                    request_id=request_id,
                    session=session,
                    job_id=job_id,
                    max_parallelism=max_parallelism,
                    states=states,
                    run=run,
                ),
                timeout_seconds=timeout_seconds,
            ),
        )

    def draw_for_nodes(
        self,
        job_id: str,
        draw: Callable[[float], TicketDrawn],
        *,
        waits_for_nodes: bool,
        timeout_seconds: float,
    ) -> TicketDrawn:
        """
        Return a ticket of which all rows can be brought to some node.

        Args:
            job_id: The job.
            draw: Draws one, within that many seconds.
            waits_for_nodes: Whether to draw again while a node is away that is needed.
            timeout_seconds: How long to try.

        Raises:
            StateUnavailableError: If nodes that own key groups stayed away.
        """
        deadline_ns = self._clock.now_ns() + seconds_to_ns(timeout_seconds)
        away: tuple[int, ...] = ()
        while True:
            try:
                drawn = draw(self._left_seconds(deadline_ns))
                if self._proxy.is_volatile:
                    _warn_of_volatile(self._proxy.name_service)
            except DeadlineExceededError as error:
                if away:  # what was told before says more
                    raise _stayed_away(job_id, away, timeout_seconds) from error
                raise
            except StateUnavailableError as error:
                # A new job needs nodes, and under a new leader they are still coming.
                left_seconds = (deadline_ns - self._clock.now_ns()) / NS_PER_SECOND
                if not waits_for_nodes or left_seconds <= error.retry_after_seconds:
                    raise
                threading.Event().wait(error.retry_after_seconds)
                continue
            away = _groups_away(drawn)
            if not away or not waits_for_nodes:
                return drawn
            if self._clock.now_ns() >= deadline_ns:
                raise _stayed_away(job_id, away, timeout_seconds)
            # A writer is not told when a node is back.
            threading.Event().wait(_REDRAW_PAUSE_SECONDS)

    def _left_seconds(self, deadline_ns: int) -> float:
        """Return how long is left, and enough for one try if nothing is."""
        left_ns = deadline_ns - self._clock.now_ns()
        return max(left_ns / NS_PER_SECOND, _REDRAW_PAUSE_SECONDS)


def declarations_of(states: Mapping[str, StateSchema]) -> tuple[StateDeclaration, ...]:
    """Return what a writer says of its states, schemas included."""
    return tuple(
        StateDeclaration(state_name=name, schema=schema_json(schema))
        for name, schema in states.items()
    )


def as_registered(
    states: tuple[StateDeclaration, ...],
) -> tuple[StateDeclaration, ...]:
    """Return what a writer says of states that the proxy knows: digests alone."""
    return tuple(state.as_registered() for state in states)


def declared(
    states: tuple[StateDeclaration, ...],
    ask: Callable[[tuple[StateDeclaration, ...]], T],
) -> T:
    """Return the answer to what declares *states*, without schemas if that will do."""
    # They are wanted for a state that is new: once, for all runs that there will be.
    with suppress(DeclarationWantedError):
        return ask(as_registered(states))
    return ask(states)


def expect(expected: type[T], answer: ToClient) -> T:
    """
    Return *answer*, which must be what was expected.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    if not isinstance(answer, expected):
        raise RemoteProtocolError(
            "unexpected",
            f"the proxy answered with {type(answer).__name__}, not {expected.__name__}",
        )
    return answer


def _groups_away(drawn: TicketDrawn) -> tuple[int, ...]:
    """
    Return the key groups whose rows can be sent to no node now.

    Of the others a node that is away is given up, unless it comes back (rule S4); see
    `queryablestate.writer.stager`.
    """
    away = {index for index, node in enumerate(drawn.nodes) if node.address is None}
    if not away:
        return ()
    return tuple(
        group for group, holders in enumerate(drawn.owners) if away.issuperset(holders)
    )


def _stayed_away(
    job_id: str, key_groups: Sequence[int], waited_seconds: float
) -> StateUnavailableError:
    detail = f"their nodes have been away for {waited_seconds:.3g} s: start them again"
    return StateUnavailableError(
        job_id, None, tuple(key_groups), _RETRY_AFTER_SECONDS, detail
    )


@lru_cache(maxsize=16)
def _warn_of_volatile(name_service: str) -> None:
    """Tell the log, once in a process, that state may have to be taken over again."""
    get_logger(component="state-writer").warning(
        "name_service.volatile",
        name_service=name_service,
        reason="state that is published is unavailable after a restart of the name "
        "service, until 'lodestar adopt': give the LeaderServer a data directory",
    )
