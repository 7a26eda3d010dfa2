"""`campaign_async`: lead for the length of an ``async with`` block."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, TypeVar, final

from haservices.campaign import Campaigner
from nameservice import NoLeaderError
from nameservice.fields import check_address
from nameservice.parameters import check_timeout_seconds


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from uuid import UUID

    from election import LeaderElection, LeaderSession
    from haservices.campaign import Leadership
    from haservices.interface import HAServices


__all__ = ["AsyncLeadership", "campaign_async"]

T = TypeVar("T")


@final
class AsyncLeadership:
    """
    One confirmed leadership, from `campaign_async`.

    Attributes:
        session: The leadership, as the leader store takes it.
        lost: Set on the event loop once the leadership is revoked: ``await
            leadership.lost.wait()``.  Belief ends before that, and may lapse and come
            back: ask `check` where it matters.
    """

    def __init__(self, election: LeaderElection, leadership: Leadership) -> None:
        self._election = election
        self._leadership = leadership
        self.session: LeaderSession = leadership.session
        self.lost = asyncio.Event()

    @property
    def leader_session_id(self) -> UUID:
        """Return the identity of this leadership."""
        return self.session.leader_session_id

    @property
    def epoch(self) -> int:
        """Return the fencing token of this leadership."""
        return self.session.epoch

    def check(self) -> None:
        """
        Return while we lead; never blocks.

        Raises:
            LeadershipLostError: While we do not believe that we lead.
        """
        self._leadership.check()

    async def run_if_leader(self, action: Callable[[], Awaitable[T]]) -> T:
        """
        Await *action* in this task while we lead; a revocation waits for it.

        Raises:
            LeadershipLostError: If it was not begun because the leadership was over.
        """
        return await self._election.run_if_leader_async(self.leader_session_id, action)


@contextlib.asynccontextmanager
async def campaign_async(
    ha: HAServices,
    job_id: str,
    address: str,
    timeout_seconds: float | None = None,
) -> AsyncIterator[AsyncLeadership]:
    """
    Do as `haservices.campaign` does, without blocking the event loop.

    Args:
        ha: The name service.
        job_id: What to lead.
        address: Where we are reached while we lead.
        timeout_seconds: How long to wait for our turn; None waits as long as it takes.

    Raises:
        NoLeaderError: If our turn did not come within *timeout_seconds*.
        LocalProtocolError: If *ha* is closed, or is closed while we wait.
        AuthenticationError: If we may not contend for *job_id*.
        ConfigurationError: If an argument breaks its rule; nothing was sent.
    """
    address = check_address(address)
    timeout_seconds = check_timeout_seconds(timeout_seconds)
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    led: list[AsyncLeadership] = []

    def look() -> None:
        changed.set()
        if led and campaigner.is_lost:
            led[0].lost.set()

    def wake() -> None:
        # A loop that has closed meanwhile has no task left that waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(look)

    election = ha.get_leader_election(job_id)
    campaigner = Campaigner(election, address, on_changed=wake)
    try:
        election.start(campaigner)
        leadership = await _outcome(campaigner, changed, job_id, timeout_seconds)
        led.append(AsyncLeadership(election, leadership))
        look()
        yield led[0]
    finally:
        await election.close_async()


async def _outcome(
    campaigner: Campaigner,
    changed: asyncio.Event,
    job_id: str,
    timeout_seconds: float | None,
) -> Leadership:
    """Return the leadership that took, waiting for it."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                changed.clear()
                leadership = campaigner.outcome
                if leadership is not None:
                    return leadership
                await changed.wait()
    except TimeoutError:
        raise NoLeaderError(job_id, time.monotonic() - began) from None
