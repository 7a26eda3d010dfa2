"""
ZeroMQ plumbing that servers and clients share: loop, sockets, CURVE, framing.

Use ``transport.framing`` under its own name (``framing.encode``, ``framing.decode``).
"""

from __future__ import annotations

from transport.access import (
    ANONYMOUS,
    PUBLIC_KEY_LENGTH,
    AllowList,
    Principal,
    is_z85_key,
    parse_allow_list,
)
from transport.authentication import Authenticator
from transport.connections import (
    ConnectFailed,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionId,
    ConnectionLimiter,
    ConnectionMonitor,
    ConnectionOpened,
    HandshakeFailed,
    HandshakeFailure,
    HandshakeSucceeded,
    connection_count_possible,
    connection_of,
    handshake_error,
)
from transport.curve import (
    CurveKeyPair,
    KeyFiles,
    load_allow_list,
    load_key_pair,
    load_public_key,
    write_key_pair,
)
from transport.endpoints import Endpoint, parse_endpoint
from transport.framing import (
    FRAME_COUNT,
    PROTOCOL_VERSION,
    MalformedFrameError,
    OversizedFrameError,
    TruncatedMessageError,
    WrongMagicError,
    WrongVersionError,
)
from transport.log_budget import LogBudget
from transport.loop import MessageHandler, PollLoop
from transport.sockets import (
    ZAP_DOMAIN,
    ZAP_DOMAIN_OPEN,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connect_socket,
    open_socket,
    receive_now,
    secure_client,
    secure_server,
    send_now,
    translate_zmq_errors,
)


__all__ = [
    "ANONYMOUS",
    "FRAME_COUNT",
    "PROTOCOL_VERSION",
    "PUBLIC_KEY_LENGTH",
    "ZAP_DOMAIN",
    "ZAP_DOMAIN_OPEN",
    "AllowList",
    "Authenticator",
    "ConnectFailed",
    "ConnectionAccepted",
    "ConnectionClosed",
    "ConnectionEvent",
    "ConnectionId",
    "ConnectionLimiter",
    "ConnectionMonitor",
    "ConnectionOpened",
    "CurveKeyPair",
    "Endpoint",
    "HandshakeFailed",
    "HandshakeFailure",
    "HandshakeSucceeded",
    "KeyFiles",
    "LogBudget",
    "MalformedFrameError",
    "MessageHandler",
    "OversizedFrameError",
    "PollLoop",
    "Principal",
    "SendOutcome",
    "SocketLimits",
    "TruncatedMessageError",
    "WrongMagicError",
    "WrongVersionError",
    "ZMQContext",
    "ZMQSocket",
    "bind_socket",
    "connect_socket",
    "connection_count_possible",
    "connection_of",
    "handshake_error",
    "is_z85_key",
    "load_allow_list",
    "load_key_pair",
    "load_public_key",
    "open_socket",
    "parse_allow_list",
    "parse_endpoint",
    "receive_now",
    "secure_client",
    "secure_server",
    "send_now",
    "translate_zmq_errors",
    "write_key_pair",
]
