"""Keyed state that can be asked from outside, and the routing to it."""

from __future__ import annotations

from queryablestate.access import (
    AccessList,
    CallerEntry,
    open_access,
    token_sha256,
)
from queryablestate.cache import CacheRule
from queryablestate.proxy_config import ProxyConfig
from queryablestate.proxy_config_file import load_proxy_config
from queryablestate.rate_limit import RateLimitRule, RateLimitScope


__all__ = [
    "AccessList",
    "CacheRule",
    "CallerEntry",
    "ProxyConfig",
    "RateLimitRule",
    "RateLimitScope",
    "load_proxy_config",
    "open_access",
    "token_sha256",
]
