"""Keyed state that can be asked from outside, and the routing to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from queryablestate.client.async_client import AsyncQueryableStateClient
    from queryablestate.client.client import QueryableStateClient
    from queryablestate.client.config import QueryConfig
    from queryablestate.client.operator_states import OperatorStateView
    from queryablestate.client.results import (
        PartialResult,
        StateEntry,
        StateInformation,
        StatePage,
    )
    from queryablestate.connect.credentials import Credentials
    from queryablestate.errors import (
        AccessDeniedError,
        CheckpointRewoundError,
        CommitTimeoutError,
        DeadlineExceededError,
        KeyTooLargeError,
        QueryableStateError,
        RateLimitedError,
        SchemaMismatchError,
        StagedDataMissingError,
        StagingQuotaError,
        StaleWriterError,
        StateOwnedError,
        StateUnavailableError,
        TableTooLargeError,
        UnknownJobError,
        UnknownKeyError,
        UnknownStateError,
        WrongKeyTypeError,
    )
    from queryablestate.local_cluster import LocalStateCluster
    from queryablestate.node.config import NodeConfig
    from queryablestate.node.node import StateNode
    from queryablestate.node.proxy_client import QueryStateProxyClient
    from queryablestate.node.server import QueryableStateServer
    from queryablestate.operations.move_progress import MoveFigures
    from queryablestate.operations.node_information import NodeInformation
    from queryablestate.operations.rescaling_information import (
        DrainInformation,
        MoveInformation,
        RescalingInformation,
    )
    from queryablestate.operations.snapshots import (
        RestoreInformation,
        SnapshotInformation,
    )
    from queryablestate.operations.state_operations import StateOperations
    from queryablestate.proxy.access import (
        AccessList,
        CallerEntry,
        open_access,
        token_sha256,
    )
    from queryablestate.proxy.cache import CacheRule
    from queryablestate.proxy.config import ProxyConfig
    from queryablestate.proxy.config_file import load_proxy_config
    from queryablestate.proxy.rate_limit import RateLimitRule, RateLimitScope
    from queryablestate.proxy.server import QueryStateProxyServer


__all__ = [
    "AccessDeniedError",
    "AccessList",
    "AsyncQueryableStateClient",
    "CacheRule",
    "CallerEntry",
    "CheckpointRewoundError",
    "CommitTimeoutError",
    "Credentials",
    "DeadlineExceededError",
    "DrainInformation",
    "KeyTooLargeError",
    "LocalStateCluster",
    "MoveFigures",
    "MoveInformation",
    "NodeConfig",
    "NodeInformation",
    "OperatorStateView",
    "PartialResult",
    "ProxyConfig",
    "QueryConfig",
    "QueryStateProxyClient",
    "QueryStateProxyServer",
    "QueryableStateClient",
    "QueryableStateError",
    "QueryableStateServer",
    "RateLimitRule",
    "RateLimitScope",
    "RateLimitedError",
    "RescalingInformation",
    "RestoreInformation",
    "SchemaMismatchError",
    "SnapshotInformation",
    "StagedDataMissingError",
    "StagingQuotaError",
    "StaleWriterError",
    "StateEntry",
    "StateInformation",
    "StateNode",
    "StateOperations",
    "StateOwnedError",
    "StatePage",
    "StateUnavailableError",
    "TableTooLargeError",
    "UnknownJobError",
    "UnknownKeyError",
    "UnknownStateError",
    "WrongKeyTypeError",
    "load_proxy_config",
    "open_access",
    "token_sha256",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "queryablestate.errors": (
            "AccessDeniedError",
            "CheckpointRewoundError",
            "CommitTimeoutError",
            "DeadlineExceededError",
            "KeyTooLargeError",
            "QueryableStateError",
            "RateLimitedError",
            "SchemaMismatchError",
            "StagedDataMissingError",
            "StagingQuotaError",
            "StaleWriterError",
            "StateOwnedError",
            "StateUnavailableError",
            "TableTooLargeError",
            "UnknownJobError",
            "UnknownKeyError",
            "UnknownStateError",
            "WrongKeyTypeError",
        ),
        "queryablestate.client.async_client": ("AsyncQueryableStateClient",),
        "queryablestate.client.client": ("QueryableStateClient",),
        "queryablestate.client.core": ("QueryConfig",),
        "queryablestate.client.operator_states": ("OperatorStateView",),
        "queryablestate.client.results": (
            "PartialResult",
            "StateEntry",
            "StateInformation",
            "StatePage",
        ),
        "queryablestate.connect.credentials": ("Credentials",),
        "queryablestate.local_cluster": ("LocalStateCluster",),
        "queryablestate.node.config": ("NodeConfig",),
        "queryablestate.node.node": ("StateNode",),
        "queryablestate.node.proxy_client": ("QueryStateProxyClient",),
        "queryablestate.node.server": ("QueryableStateServer",),
        "queryablestate.operations.move_progress": ("MoveFigures",),
        "queryablestate.operations.node_information": ("NodeInformation",),
        "queryablestate.operations.rescaling_information": (
            "DrainInformation",
            "MoveInformation",
            "RescalingInformation",
        ),
        "queryablestate.operations.snapshots": (
            "RestoreInformation",
            "SnapshotInformation",
        ),
        "queryablestate.operations.state_operations": ("StateOperations",),
        "queryablestate.proxy.access": (
            "AccessList",
            "CallerEntry",
            "open_access",
            "token_sha256",
        ),
        "queryablestate.proxy.cache": ("CacheRule",),
        "queryablestate.proxy.config": ("ProxyConfig",),
        "queryablestate.proxy.config_file": ("load_proxy_config",),
        "queryablestate.proxy.rate_limit": (
            "RateLimitRule",
            "RateLimitScope",
        ),
        "queryablestate.proxy.server": ("QueryStateProxyServer",),
    },
)
