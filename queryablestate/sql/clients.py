"""`CallerClients`: a client of states for each caller, and a bound for their number."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, final

from attrs import define

from queryablestate.client.async_client import AsyncQueryableStateClient
from queryablestate.connect.credentials import Credentials


if TYPE_CHECKING:
    from haservices import HAServices


__all__ = ["CallerClients"]


@final
@define
class _Kept:
    """A client, and how many use it now."""

    client: AsyncQueryableStateClient
    use_count: int = 0


@final
class CallerClients:
    """
    Clients by token.  For one event loop.

    A client is kept while it is used, and afterwards until too many others are.

    Args:
        ha: The name service; stays its owner's.
        count_max: How many that are not in use are kept.
        deadline_seconds: How long each question may take.
    """

    def __init__(
        self, ha: HAServices, *, count_max: int, deadline_seconds: float
    ) -> None:
        self._ha = ha
        self._count_max = count_max
        self._deadline_seconds = deadline_seconds
        self._kept: OrderedDict[str | None, _Kept] = OrderedDict()

    @contextlib.asynccontextmanager
    async def client_of(
        self, token: str | None
    ) -> AsyncIterator[AsyncQueryableStateClient]:
        """
        Return the client of the caller whose *token* it is; None shows nothing.

        Raises:
            ConfigurationError: If *token* is no token.
        """
        kept = self._kept.get(token)
        if kept is None:
            # Our own keys for the name service are not the caller's.
            credentials = Credentials(
                token, is_anonymous=token is None, lends_service_keys=False
            )
            kept = self._kept[token] = _Kept(
                AsyncQueryableStateClient(
                    self._ha, credentials, deadline_seconds=self._deadline_seconds
                )
            )
        self._kept.move_to_end(token)
        kept.use_count += 1
        try:
            yield kept.client
        finally:
            kept.use_count -= 1
            await self._discard()

    async def _discard(self) -> None:
        """Close those that have not been used for longest, if there are too many."""
        # Found anew each time: while one is closed, another may be used again.
        while idle := [
            token for token, kept in self._kept.items() if not kept.use_count
        ]:
            if len(self._kept) <= self._count_max:
                return
            await self._kept.pop(idle[0]).client.close()

    async def forget(self, token: str | None) -> None:
        """Close the client of a caller who was not admitted, unless others use it."""
        kept = self._kept.get(token)
        if kept is not None and not kept.use_count:
            del self._kept[token]
            await kept.client.close()

    async def close(self) -> None:
        """Close all.  Idempotent."""
        while self._kept:
            _, kept = self._kept.popitem()
            await kept.client.close()
