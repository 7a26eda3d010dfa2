"""`DirectTickets`: who may ask nodes without the proxy (rules D1, D2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from nameservice import seconds_to_ns
from queryablestate.proxy.access import Right


if TYPE_CHECKING:
    from queryablestate.control.core import ControlCore
    from queryablestate.proxy.access import Caller
    from queryablestate.proxy.cache import ResultCache
    from queryablestate.proxy.config import ProxyConfig
    from queryablestate.proxy.rate_limit import RateLimiter
    from queryablestate.proxy.sessions import SessionTable
    from queryablestate.wire.clients import DescribeState, StateDescribed
    from queryablestate.wire.direct import DirectAccess


__all__ = ["DirectTickets"]


@final
class DirectTickets:
    """
    Gives tickets to those whose reads the proxy need not see.

    Args:
        config: Who may read, and how long a ticket lives.
        sessions: Who asks.
        limiter: Who has a rate limit, and so no ticket.
        cache: What is answered out of it, and so has no ticket.

    Attributes:
        config: See Args; may be replaced.
        count: Tickets that were given.
    """

    def __init__(
        self,
        config: ProxyConfig,
        *,
        sessions: SessionTable,
        limiter: RateLimiter,
        cache: ResultCache,
    ) -> None:
        self.config = config
        self._sessions = sessions
        self._limiter = limiter
        self._cache = cache
        self.count = 0

    def give(
        self,
        core: ControlCore,
        caller: Caller,
        asked: DescribeState,
        answer: StateDescribed,
        *,
        now_ns: int,
    ) -> DirectAccess | None:
        """Return a ticket for the state of *answer*, if *caller* may have one."""
        job_id, state_name = asked.job_id, asked.state_name
        session = self._sessions.get(asked.session)
        if (
            session is None
            or not self.config.direct_reads
            or not self.config.access.may(caller, Right.READ, job_id, state_name)
            or self._limiter.limits(caller.name, f"{job_id}/{state_name}")
            or self._cache.ttl_ns(job_id, state_name)
        ):
            return None
        direct = core.view.direct_access(
            answer.description.state_number,
            caller=caller.name,
            public_key=session.public_key,
            life_ns=seconds_to_ns(self.config.direct_ticket_seconds),
            now_ns=now_ns,
            turn=session.number,
        )
        if direct is not None:
            self.count += 1
        return direct
