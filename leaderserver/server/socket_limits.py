"""What the sockets of a server may hold and take, by its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leaderserver.server.core.reply_queues import QueueLimits
from zmqtransport import (
    SocketLimits,
    connection_limit,
    framing,
    open_files_bound,
)
from zmqtransport.memory_growth import CONNECTION_COST_BYTES


if TYPE_CHECKING:
    from leaderserver.server.config import ServerConfig
    from nameservice.log import Logger


__all__ = [
    "connections_per_port_max",
    "publishing_limits",
    "reply_limits",
    "request_limits",
]

# Frames above our limit by no more than this are seen, counted and answered by us;
# ZeroMQ ends the connection of a peer that sends a larger one.
_FRAME_SIZE_MARGIN_BYTES: Final = 64 * 1024
# The rest waits in the kernel, and then at the client.  libzmq takes up to a kilobyte
# for each of these, and `InflowGuard` needs time to end a connection.
_RECEIVE_QUEUE_COUNT_MAX: Final = 200
_KERNEL_BUFFER_BYTES: Final = 128 * 1024
# A subscription takes some thirty; CURVE's handshake takes more.
_SUBSCRIPTION_SIZE_BYTES_MAX: Final = 512
# libzmq enters all that it has of a subscriber before it reports the first of it.
_SUBSCRIPTIONS_QUEUED_MAX: Final = 100


def request_limits(config: ServerConfig) -> SocketLimits:
    """Return the limits of the request port."""
    return _limits(config, config.frame_size_bytes_max + _FRAME_SIZE_MARGIN_BYTES)


def publishing_limits(config: ServerConfig) -> SocketLimits:
    """Return the limits of the publishing port."""
    return _limits(
        config,
        _SUBSCRIPTION_SIZE_BYTES_MAX,
        send_queue_count_max=200,
        receive_queue_count_max=_SUBSCRIPTIONS_QUEUED_MAX,
    )


def _limits(
    config: ServerConfig,
    frame_size_bytes_max: int,
    *,
    send_queue_count_max: int = 1_000,
    receive_queue_count_max: int = _RECEIVE_QUEUE_COUNT_MAX,
) -> SocketLimits:
    return SocketLimits(
        send_queue_count_max=min(
            config.queued_replies_per_peer_max, send_queue_count_max
        ),
        receive_queue_count_max=receive_queue_count_max,
        kernel_buffer_bytes=_KERNEL_BUFFER_BYTES,
        frame_size_bytes_max=frame_size_bytes_max,
        # Above every session timeout: a paused client is no client that has died.
        silence_timeout_ms=max(
            60_000, 2 * round(config.session_timeout_seconds_max * 1_000)
        ),
    )


def reply_limits(config: ServerConfig) -> QueueLimits:
    """Return how many answers may wait."""
    plan = config.memory_plan
    return QueueLimits(
        bytes_per_peer_max=plan.replies_per_peer_bytes_max,
        bytes_max=plan.replies_bytes_max,
        count_per_peer_max=config.queued_replies_per_peer_max,
        overhead_bytes=framing.overhead_bytes(is_secured=config.uses_curve),
    )


def connections_per_port_max(config: ServerConfig, log: Logger) -> int:
    """Return how many connections each port takes; *log* says why not more."""
    return connection_limit(
        config.connections_max,
        # Two ports, and a quarter for those that have not spoken yet.
        open_files_bound(fifth_count=2),
        (
            config.memory_plan.connections_per_port_max,
            f"memory_limit_bytes: a connection takes {CONNECTION_COST_BYTES:,}",
        ),
        log=log,
    )
