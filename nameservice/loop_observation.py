"""`observe_on_loop`: an `Observation` made on the event loop of a server's thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from nameservice.errors import LocalProtocolError, UnreachableError
from nameservice.uninterrupted import detached


if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from nameservice.observation import Observation


__all__ = ["observe_on_loop"]


def observe_on_loop(
    look: Callable[[], Coroutine[Any, Any, Observation]],
    loop: asyncio.AbstractEventLoop,
    *,
    target: str,
    timeout_seconds: float,
) -> Observation:
    """
    Return what *look* returns on *loop*, which is another thread's.

    Args:
        look: Looks at the server.
        loop: Runs, or ends at this moment.
        target: How an error names the server.
        timeout_seconds: How long to wait for it.

    Raises:
        LocalProtocolError: If the loop has ended, or ends before it is asked.
        UnreachableError: If its thread does not answer in time.
    """
    return detached(lambda: _observe(look, loop, target, timeout_seconds))


def _observe(
    look: Callable[[], Coroutine[Any, Any, Observation]],
    loop: asyncio.AbstractEventLoop,
    target: str,
    timeout_seconds: float,
) -> Observation:
    looking = look()
    try:
        coming = asyncio.run_coroutine_threadsafe(looking, loop)
    except RuntimeError:
        looking.close()
        raise _ended(target) from None
    try:
        return coming.result(timeout_seconds)
    except CancelledError:
        raise _ended(target) from None
    except TimeoutError:
        coming.cancel()
        raise UnreachableError(target, timeout_seconds) from None


def _ended(target: str) -> LocalProtocolError:
    return LocalProtocolError(f"the server at {target} is not running")
