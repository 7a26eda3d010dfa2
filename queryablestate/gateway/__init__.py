"""
`lodestar gateway`: queryable state and leaders over HTTP.

* `GatewayServer`: the gateway as a thread of this process.
* `GatewayConfig`: where it listens, and its limits.

Needs ``pip install 'spark-lodestar[http]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from queryablestate.gateway.config import GatewayConfig
    from queryablestate.gateway.server import GatewayServer


__all__ = ["GatewayConfig", "GatewayServer"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "queryablestate.gateway.config": ("GatewayConfig",),
        "queryablestate.gateway.server": ("GatewayServer",),
    },
)
