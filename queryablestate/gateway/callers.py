"""
`Callers`: a client of queryable state for each caller, by what it shows.

Theory of operation.  The gateway has no rights: each caller speaks to the proxy as
itself, over a client of its own, and shares that with no other.  Clients cost a socket
and two threads, so their number is limited: one that is not used goes after a while, or
when another caller comes.  Whether a token is good is for the proxy to say.  Until it
has, a caller is a newcomer, and there is room for a few of those alone: who tries
tokens takes no place from those whom the proxy knows.

Callers are told apart by the hash of their token.  The token itself is in the client's
credentials and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Final, final

from nameservice import AuthenticationError, SystemClock, get_logger
from nameservice.clock import NS_PER_SECOND
from queryablestate.client.async_client import AsyncQueryableStateClient
from queryablestate.connect.credentials import Credentials
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.watching import KeyWatches


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from haservices import HAServices
    from nameservice import Clock
    from queryablestate.client.results import StateInformation
    from queryablestate.gateway.config import GatewayConfig


__all__ = ["Caller", "Callers"]

_DESCRIBED_COUNT_MAX: Final = 1_000
_DESCRIBED_SECONDS: Final = 5.0
_BUSY_SECONDS: Final = 1.0


@final
class Caller:
    """
    One caller: its client, and what is shared between its requests.

    Attributes:
        name: The hash of its token.
        client: Speaks to the proxy as this caller.
        watches: The keys that it watches.
        is_known: Whether the proxy has taken it.
        is_refused: Whether the proxy has refused it.
        use_count: Requests and watches that use it now.
        idle_since_ns: When the last one ended.
        large_read_count: Pages, whole states and the like that it reads now.
    """

    def __init__(
        self,
        name: bytes,
        client: AsyncQueryableStateClient,
        config: GatewayConfig,
        clock: Clock,
    ) -> None:
        self.name = name
        self.client = client
        self.is_known = False
        self.is_refused = False
        self.use_count = 0
        self.idle_since_ns = 0
        self.large_read_count = 0
        self.watches = KeyWatches(self, config)
        self._clock = clock
        self._checked_until_ns = 0
        self._described: OrderedDict[tuple[str, str], tuple[StateInformation, int]] = (
            OrderedDict()
        )

    async def describe(
        self, job_id: str, state_name: str, *, deadline_seconds: float, is_new: bool
    ) -> tuple[StateInformation, bool]:
        """
        Return what is known of a state, and whether that was asked for just now.

        Args:
            job_id: The job.
            state_name: The state.
            deadline_seconds: How long it may take.
            is_new: Whether what was known a moment ago will not do.
        """
        name = (job_id, state_name)
        known = self._described.get(name)
        if known is not None and not is_new and self._clock.now_ns() < known[1]:
            return known[0], False
        found = await self.client.describe(*name, deadline_seconds=deadline_seconds)
        self.is_known = True
        until_ns = self._clock.now_ns() + round(_DESCRIBED_SECONDS * NS_PER_SECOND)
        self._described[name] = (found, until_ns)
        self._described.move_to_end(name)
        while len(self._described) > _DESCRIBED_COUNT_MAX:
            self._described.popitem(last=False)
        return found, True

    async def check(self, deadline_seconds: float) -> None:
        """
        Return if the proxy takes this caller.

        Raises:
            AuthenticationError: If it does not.
            NameServiceError: If it cannot be asked.
        """
        if self._clock.now_ns() >= self._checked_until_ns:
            await self.client.jobs(deadline_seconds=deadline_seconds)
            self.is_known = True
            self._checked_until_ns = self._clock.now_ns() + round(
                _DESCRIBED_SECONDS * NS_PER_SECOND
            )


@final
class Callers:
    """
    The callers that are connected.  Belongs to one event loop.

    Args:
        services: The name service; stays its owner's.
        config: Limits.
        clock: What idle times are measured by.
    """

    def __init__(
        self, services: HAServices, config: GatewayConfig, clock: Clock | None = None
    ) -> None:
        self._services = services
        self._config = config
        self._clock = SystemClock() if clock is None else clock
        self._log = get_logger(component="gateway")
        # The one that was used least recently comes first.
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self.refused_count = 0

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def watched_key_count(self) -> int:
        """Return how many keys are watched, by all callers."""
        return sum(len(caller.watches) for caller in self._callers.values())

    @contextlib.asynccontextmanager
    async def using(
        self, token: str | None, end_with_client: Callable[[], None] | None = None
    ) -> AsyncIterator[Caller]:
        """
        Yield the caller that shows *token*, for as long as a request takes.

        Args:
            token: What it shows.
            end_with_client: Has the answer end when the client leaves.  A newcomer's
                does not: who tries tokens, and leaves, has no more room than who stays.

        Raises:
            GatewayError: If there are too many callers.
        """
        name = b"" if token is None else sha256(token.encode()).digest()
        caller = self._callers.get(name)
        if caller is None or caller.is_refused:
            caller = self._callers[name] = self._new(name, token)
        self._callers.move_to_end(name)
        if caller.is_known and end_with_client is not None:
            end_with_client()
        with self.keeping(caller):
            try:
                yield caller
            except AuthenticationError:
                caller.is_refused = True
                self.refused_count += 1
                raise
            else:
                caller.is_known = True

    @contextlib.contextmanager
    def keeping(self, caller: Caller) -> Iterator[None]:
        """Keep *caller* for as long as its answer takes; then, if refused, close it."""
        caller.use_count += 1
        try:
            yield
        finally:
            caller.use_count -= 1
            caller.idle_since_ns = self._clock.now_ns()
            if caller.is_refused and not caller.use_count:
                if self._callers.get(caller.name) is caller:
                    del self._callers[caller.name]
                self._close_later(caller)

    def end_idle(self) -> None:
        """Close what was not used for a while."""
        since_ns = self._clock.now_ns() - round(
            self._config.caller_idle_seconds * NS_PER_SECOND
        )
        for name, caller in list(self._callers.items()):
            if not caller.use_count and caller.idle_since_ns <= since_ns:
                del self._callers[name]
                self._close_later(caller)

    async def close(self) -> None:
        """Close all of them."""
        callers, self._callers = list(self._callers.values()), OrderedDict()
        for caller in callers:
            self._close_later(caller)
        while self._closing:
            await asyncio.wait(self._closing)

    def _new(self, name: bytes, token: str | None) -> Caller:
        newcomers = sum(
            not caller.is_known and caller.use_count > 0
            for caller in self._callers.values()
        )
        if newcomers >= self._config.newcomer_count_max:
            raise _busy("too many callers come at once that the proxy does not know")
        if len(self._callers) >= self._config.caller_count_max:
            self._make_room()
        credentials = Credentials(
            token, is_anonymous=token is None, lends_service_keys=False
        )
        client = AsyncQueryableStateClient(
            self._services,
            credentials,
            deadline_seconds=self._config.deadline_seconds,
        )
        return Caller(name, client, self._config, self._clock)

    def _make_room(self) -> None:
        """Close the idle caller that was used least recently; newcomers go first."""
        idle = [
            (caller.is_known, place, name)
            for place, (name, caller) in enumerate(self._callers.items())
            if not caller.use_count
        ]
        if not idle:
            raise _busy("as many callers as it can serve are asking now")
        _, _, name = min(idle)
        self._close_later(self._callers.pop(name))

    def _close_later(self, caller: Caller) -> None:
        task = asyncio.ensure_future(self._close(caller))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, caller: Caller) -> None:
        caller.watches.end()
        try:
            await caller.client.close()
        except Exception as error:  # noqa: BLE001 (others are to be closed, too)
            self._log.warning("caller.unclosed", error=type(error).__name__)


def _busy(detail: str) -> GatewayError:
    return GatewayError("busy", detail, retry_after_seconds=_BUSY_SECONDS)
