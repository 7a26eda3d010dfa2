"""A name service for leaders over ZeroMQ: the server, and what its shells share."""

from __future__ import annotations

from leaderserver.config import ServerConfig
from leaderserver.server import LeaderServer


__all__ = ["LeaderServer", "ServerConfig"]
