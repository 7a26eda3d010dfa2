"""The vocabulary that every package shares: errors, ids, clock, logging."""

from __future__ import annotations

from nameservice.clock import (
    NS_PER_SECOND,
    Clock,
    ManualClock,
    SystemClock,
    seconds_to_ns,
)
from nameservice.errors import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    ForkedClientError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
    ProtocolError,
    RemoteProtocolError,
    SessionExpiredError,
    StaleEpochError,
    UnknownSessionError,
    UnreachableError,
    VersionMismatchError,
)
from nameservice.ids import (
    COMPONENT_ID_LENGTH_MAX,
    DISPATCHER,
    QUERY_PROXY,
    RESOURCE_MANAGER,
    REST_ENDPOINT,
    ComponentId,
    ContenderId,
    Epoch,
    LeaderSessionId,
    SessionId,
    check_component_id,
)
from nameservice.log import configure_logging, get_logger
from nameservice.process import ForkGuard


__all__ = [
    "COMPONENT_ID_LENGTH_MAX",
    "DISPATCHER",
    "NS_PER_SECOND",
    "QUERY_PROXY",
    "RESOURCE_MANAGER",
    "REST_ENDPOINT",
    "AuthenticationError",
    "Clock",
    "ComponentId",
    "ConfigurationError",
    "ContenderId",
    "DidNotHappenError",
    "Epoch",
    "ForkGuard",
    "ForkedClientError",
    "LeaderSessionId",
    "LeadershipLostError",
    "LocalProtocolError",
    "ManualClock",
    "MayHaveHappenedError",
    "NameServiceError",
    "NoLeaderError",
    "ProtocolError",
    "RemoteProtocolError",
    "SessionExpiredError",
    "SessionId",
    "StaleEpochError",
    "SystemClock",
    "UnknownSessionError",
    "UnreachableError",
    "VersionMismatchError",
    "check_component_id",
    "configure_logging",
    "get_logger",
    "seconds_to_ns",
]
