"""
ZeroMQ plumbing that servers and clients share: loop, sockets, CURVE, framing.

Use `zmqtransport.framing` under its own name (``framing.encode``, ``framing.decode``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from zmqtransport.access import (
        ANONYMOUS,
        PUBLIC_KEY_LENGTH,
        AllowList,
        Principal,
        is_z85_key,
        parse_allow_list,
    )
    from zmqtransport.authentication import Authenticator
    from zmqtransport.connection_limiter import (
        ConnectionLimiter,
        connection_count_possible,
        connection_limit,
        open_files_bound,
    )
    from zmqtransport.connections import (
        ConnectFailed,
        ConnectionAccepted,
        ConnectionClosed,
        ConnectionEvent,
        ConnectionId,
        ConnectionMonitor,
        ConnectionOpened,
        HandshakeFailed,
        HandshakeFailure,
        HandshakeSucceeded,
        connection_of,
        handshake_error,
    )
    from zmqtransport.contexts import new_context
    from zmqtransport.curve import (
        CurveKeyPair,
        KeyFiles,
        load_allow_list,
        load_key_files,
        load_key_pair,
        load_public_key,
        load_public_keys,
        write_key_pair,
    )
    from zmqtransport.deaf_peers import DeafPeers
    from zmqtransport.dealer import Dealer
    from zmqtransport.endpoints import Endpoint, parse_endpoint
    from zmqtransport.forked_child import (
        close_in_child,
        close_socket_in_child,
        keep_in_child,
    )
    from zmqtransport.framing import (
        FRAME_COUNT,
        PROTOCOL_VERSION,
        MalformedFrameError,
        OversizedFrameError,
        TruncatedMessageError,
        WrongMagicError,
        WrongVersionError,
    )
    from zmqtransport.in_flight import BytesInFlight
    from zmqtransport.listeners import Listener
    from zmqtransport.log_budget import LogBudget
    from zmqtransport.loop import MessageHandler, PollLoop
    from zmqtransport.peers import Peer, PeerTable
    from zmqtransport.port import Port
    from zmqtransport.sockets import (
        ZAP_DOMAIN,
        ZAP_DOMAIN_OPEN,
        ZAP_DOMAIN_PUBLISHING,
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
    from zmqtransport.tcp_counters import TCPProgress, tcp_progress
    from zmqtransport.unread_answers import UnreadAnswers


__all__ = [
    "ANONYMOUS",
    "FRAME_COUNT",
    "PROTOCOL_VERSION",
    "PUBLIC_KEY_LENGTH",
    "ZAP_DOMAIN",
    "ZAP_DOMAIN_OPEN",
    "ZAP_DOMAIN_PUBLISHING",
    "AllowList",
    "Authenticator",
    "BytesInFlight",
    "ConnectFailed",
    "ConnectionAccepted",
    "ConnectionClosed",
    "ConnectionEvent",
    "ConnectionId",
    "ConnectionLimiter",
    "ConnectionMonitor",
    "ConnectionOpened",
    "CurveKeyPair",
    "DeafPeers",
    "Dealer",
    "Endpoint",
    "HandshakeFailed",
    "HandshakeFailure",
    "HandshakeSucceeded",
    "KeyFiles",
    "Listener",
    "LogBudget",
    "MalformedFrameError",
    "MessageHandler",
    "OversizedFrameError",
    "Peer",
    "PeerTable",
    "PollLoop",
    "Port",
    "Principal",
    "SendOutcome",
    "SocketLimits",
    "TCPProgress",
    "TruncatedMessageError",
    "UnreadAnswers",
    "WrongMagicError",
    "WrongVersionError",
    "ZMQContext",
    "ZMQSocket",
    "bind_socket",
    "close_in_child",
    "close_socket_in_child",
    "connect_socket",
    "connection_count_possible",
    "connection_limit",
    "connection_of",
    "handshake_error",
    "is_z85_key",
    "keep_in_child",
    "load_allow_list",
    "load_key_files",
    "load_key_pair",
    "load_public_key",
    "load_public_keys",
    "new_context",
    "open_files_bound",
    "open_socket",
    "parse_allow_list",
    "parse_endpoint",
    "receive_now",
    "secure_client",
    "secure_server",
    "send_now",
    "tcp_progress",
    "translate_zmq_errors",
    "write_key_pair",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "zmqtransport.access": (
            "ANONYMOUS",
            "PUBLIC_KEY_LENGTH",
            "AllowList",
            "Principal",
            "is_z85_key",
            "parse_allow_list",
        ),
        "zmqtransport.authentication": ("Authenticator",),
        "zmqtransport.connection_limiter": (
            "ConnectionLimiter",
            "connection_count_possible",
            "connection_limit",
            "open_files_bound",
        ),
        "zmqtransport.connections": (
            "ConnectFailed",
            "ConnectionAccepted",
            "ConnectionClosed",
            "ConnectionEvent",
            "ConnectionId",
            "ConnectionMonitor",
            "ConnectionOpened",
            "HandshakeFailed",
            "HandshakeFailure",
            "HandshakeSucceeded",
            "connection_of",
            "handshake_error",
        ),
        "zmqtransport.contexts": ("new_context",),
        "zmqtransport.curve": (
            "CurveKeyPair",
            "KeyFiles",
            "load_allow_list",
            "load_key_files",
            "load_key_pair",
            "load_public_key",
            "load_public_keys",
            "write_key_pair",
        ),
        "zmqtransport.deaf_peers": ("DeafPeers",),
        "zmqtransport.dealer": ("Dealer",),
        "zmqtransport.endpoints": (
            "Endpoint",
            "parse_endpoint",
        ),
        "zmqtransport.forked_child": (
            "close_in_child",
            "close_socket_in_child",
            "keep_in_child",
        ),
        "zmqtransport.framing": (
            "FRAME_COUNT",
            "PROTOCOL_VERSION",
            "MalformedFrameError",
            "OversizedFrameError",
            "TruncatedMessageError",
            "WrongMagicError",
            "WrongVersionError",
        ),
        "zmqtransport.in_flight": ("BytesInFlight",),
        "zmqtransport.listeners": ("Listener",),
        "zmqtransport.log_budget": ("LogBudget",),
        "zmqtransport.loop": (
            "MessageHandler",
            "PollLoop",
        ),
        "zmqtransport.peers": (
            "Peer",
            "PeerTable",
        ),
        "zmqtransport.port": ("Port",),
        "zmqtransport.sockets": (
            "ZAP_DOMAIN",
            "ZAP_DOMAIN_OPEN",
            "ZAP_DOMAIN_PUBLISHING",
            "SendOutcome",
            "SocketLimits",
            "ZMQContext",
            "ZMQSocket",
            "bind_socket",
            "connect_socket",
            "open_socket",
            "receive_now",
            "secure_client",
            "secure_server",
            "send_now",
            "translate_zmq_errors",
        ),
        "zmqtransport.tcp_counters": (
            "TCPProgress",
            "tcp_progress",
        ),
        "zmqtransport.unread_answers": ("UnreadAnswers",),
    },
)
