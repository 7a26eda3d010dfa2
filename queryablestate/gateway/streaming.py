"""`HeldResponse`: an answer in pieces, and what is held for it until its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, final

from starlette.responses import Response


if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


__all__ = ["HeldResponse"]


@final
class HeldResponse(Response):
    """
    Sends pieces as they come, until they end, the client leaves, or all is to end.

    Args:
        pieces: What is sent; closed at the end.
        stack: Closed behind it, whatever happens.
        media_type: Of the answer.
        headers: Of the answer.
        ending: Ends the answer where it is, when it is set.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        stack: contextlib.AsyncExitStack,
        *,
        media_type: str,
        headers: Mapping[str, str],
        ending: asyncio.Event | None = None,
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.body = b""
        self.init_headers(headers)
        del self.headers["content-length"]  # it is not known yet
        self._pieces = pieces
        self._stack = stack
        self._ending = asyncio.Event() if ending is None else ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._stack, contextlib.aclosing(self._pieces):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            if scope["method"] != "HEAD":
                await self._send_pieces(receive, send)
            await send({"type": "http.response.body", "body": b""})

    async def _send_pieces(self, receive: Receive, send: Send) -> None:
        gone: asyncio.Future[Any] = asyncio.ensure_future(_left(receive))
        ending: asyncio.Future[Any] = asyncio.ensure_future(self._ending.wait())
        coming: asyncio.Future[Any] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(self._pieces, None))
                await asyncio.wait(
                    (coming, gone, ending), return_when=asyncio.FIRST_COMPLETED
                )
                if not coming.done():
                    if gone.done():
                        gone.result()  # what is wrong with the request breaks it off
                    return
                piece = coming.result()
                if piece is None:
                    return
                await send(
                    {"type": "http.response.body", "body": piece, "more_body": True}
                )
        finally:
            waiting = [one for one in (gone, ending, coming) if one is not None]
            for one in waiting:
                one.cancel()
            # The pieces can only be closed when none is waited for.
            await asyncio.wait(waiting)
            for one in waiting:
                if not one.cancelled():
                    one.exception()  # what is wrong with what was read last, was told


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
