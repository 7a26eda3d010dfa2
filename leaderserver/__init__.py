"""A name service for leaders over ZeroMQ: the server, and what its shells share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from leaderserver.server.config import ServerConfig
    from leaderserver.server.server import LeaderServer


__all__ = ["LeaderServer", "ServerConfig"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "leaderserver.server.config": ("ServerConfig",),
        "leaderserver.server.server": ("LeaderServer",),
    },
)
