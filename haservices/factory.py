"""From a URL to the name service it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from haservices.config import Backend, HAConfig


if TYPE_CHECKING:
    from haservices.interface import HAServices


__all__ = ["open_ha_services"]


def open_ha_services(config: HAConfig | str) -> HAServices:
    """
    Open the name service that *config* names.

    Args:
        config: A configuration, or a URL alone.

    Raises:
        ConfigurationError: If a setting is wrong; says what to change.
        UnreachableError: If nobody answered within ``connect_timeout_seconds``; says
            what was tried.
        AuthenticationError: If we were refused.
    """
    if not isinstance(config, HAConfig):
        config = HAConfig(url=config)
    # Each backend is imported when it is asked for: whoever uses ZooKeeper loads no
    # ZeroMQ, and whoever does not use ZooKeeper loads no kazoo.
    match config.backend:
        case Backend.EMBEDDED:
            from haservices.embedded import open_embedded  # noqa: PLC0415

            return open_embedded(config)
        case Backend.LEADERSERVER:
            from haservices.leaderserver_backend import (  # noqa: PLC0415
                open_leaderserver,
            )

            return open_leaderserver(config)
        case Backend.ZOOKEEPER:
            from haservices.zookeeper_backend import (  # noqa: PLC0415
                ZooKeeperHAServices,
            )

            return ZooKeeperHAServices(config)
        case _:
            assert_never(config.backend)
