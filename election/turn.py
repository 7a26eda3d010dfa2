"""
`run_in_turn`: an action of an event loop that runs among an election's callbacks.

Theory of operation
-------------------
`LeaderElection.run_if_leader` runs a function on a thread.  A coroutine has to run on
the event loop that it belongs to.  So the election's turn is held open instead: its
thread tells the loop that the turn has come, and waits until the coroutine has ended.
The coroutine runs in the task that asked for it, with its context and its cancellation;
a revocation waits for it, as it does for a function (E6).

While the turn is open its thread waits for the thread of the loop.  `CallbackWaits` is
told, so that a ``close()`` that blocks the loop does not wait for that turn, which
could not end.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Protocol, TypeVar, final

from nameservice import LeadershipLostError, callback_waits
from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future
    from uuid import UUID

    from nameservice import CallbackLane


__all__ = ["run_in_turn"]

T = TypeVar("T")


class _Election(Protocol):
    """What is needed of a `LeaderElection`."""

    @property
    def component_id(self) -> str:
        """Return what is being led."""

    @property
    def lane(self) -> CallbackLane | None:
        """Return where its callbacks run."""

    def run_if_leader(
        self, leader_session_id: UUID, action: Callable[[], None]
    ) -> Future[None]:
        """Run *action* among its callbacks."""

    def has_leadership(self, leader_session_id: UUID) -> bool:
        """Return whether we lead now."""


@final
class _LoopThread:
    """The thread of an event loop, as something that can be waited for."""

    def __init__(self) -> None:
        self.thread_id: int | None = threading.get_ident()


async def run_in_turn(
    election: _Election,
    leader_session_id: UUID,
    action: Callable[[], Awaitable[T]],
) -> T:
    """Do as `LeaderElection.run_if_leader_async` says."""
    loop = asyncio.get_running_loop()
    loop_thread = _LoopThread()
    has_come = asyncio.Event()
    is_over = InterruptibleEvent()

    def hold() -> None:
        if not callback_waits.wait(
            (loop_thread,),
            is_over,
            on_waiting=lambda: loop.call_soon_threadsafe(has_come.set),
        ):
            # The loop stands still in a close() that waits for us.
            raise LeadershipLostError(election.component_id, None)

    turn = election.run_if_leader(leader_session_id, hold)
    # Whatever ends the turn before it has come is to be noticed, too.
    turn.add_done_callback(lambda _: _tell(loop, has_come.set))
    try:
        await has_come.wait()
        if turn.done():
            turn.result()  # raises: it was refused
        if not election.has_leadership(leader_session_id):
            raise LeadershipLostError(election.component_id, None)
        lane = election.lane
        assert lane is not None
        with callback_waits.inside(lane):
            return await action()
    finally:
        turn.cancel()
        # From now on the turn waits for nothing here, though its thread may have yet to
        # wake: a close() that comes next can wait for it.
        loop_thread.thread_id = None
        is_over.set()


def _tell(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    """Have *action* done on *loop*, unless nothing runs there any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(action)
