"""Keyed state that can be asked from outside, and the routing to it."""

from __future__ import annotations

from queryablestate.access import (
    AccessList,
    CallerEntry,
    open_access,
    token_sha256,
)
from queryablestate.async_client import AsyncQueryableStateClient
from queryablestate.cache import CacheRule
from queryablestate.client import QueryableStateClient
from queryablestate.credentials import Credentials
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.move_progress import MoveFigures
from queryablestate.node import StateNode
from queryablestate.node_config import NodeConfig
from queryablestate.node_information import NodeInformation
from queryablestate.operator_states import OperatorStateView
from queryablestate.proxy_client import QueryStateProxyClient
from queryablestate.proxy_config import ProxyConfig
from queryablestate.proxy_config_file import load_proxy_config
from queryablestate.proxy_server import QueryStateProxyServer
from queryablestate.query_core import QueryConfig
from queryablestate.query_results import PartialResult, StateEntry, StateInformation
from queryablestate.rate_limit import RateLimitRule, RateLimitScope
from queryablestate.rescaling_information import (
    DrainInformation,
    MoveInformation,
    RescalingInformation,
)
from queryablestate.snapshots import RestoreInformation, SnapshotInformation
from queryablestate.state_operations import StateOperations
from queryablestate.state_server import QueryableStateServer


__all__ = [
    "AccessList",
    "AsyncQueryableStateClient",
    "CacheRule",
    "CallerEntry",
    "Credentials",
    "DrainInformation",
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
    "QueryableStateServer",
    "RateLimitRule",
    "RateLimitScope",
    "RescalingInformation",
    "RestoreInformation",
    "SnapshotInformation",
    "StateEntry",
    "StateInformation",
    "StateNode",
    "StateOperations",
    "load_proxy_config",
    "open_access",
    "token_sha256",
]
