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
from queryablestate.proxy_config import ProxyConfig
from queryablestate.proxy_config_file import load_proxy_config
from queryablestate.query_core import QueryConfig
from queryablestate.query_results import PartialResult, StateEntry, StateInformation
from queryablestate.rate_limit import RateLimitRule, RateLimitScope


__all__ = [
    "AccessList",
    "AsyncQueryableStateClient",
    "CacheRule",
    "CallerEntry",
    "Credentials",
    "PartialResult",
    "ProxyConfig",
    "QueryConfig",
    "QueryableStateClient",
    "RateLimitRule",
    "RateLimitScope",
    "StateEntry",
    "StateInformation",
    "load_proxy_config",
    "open_access",
    "token_sha256",
]
