"""From a URL to the name service it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from haservices.config import Backend, HAConfig
from haservices.recognition import reach_problem, wrong_service
from nameservice import AuthenticationError, ConfigurationError, UnreachableError
from nameservice.uninterrupted import detached


if TYPE_CHECKING:
    from haservices.interface import HAServices


__all__ = ["as_name_service", "check_services", "open_ha_services"]


def open_ha_services(config: HAConfig | str) -> HAServices:
    """
    Open the name service that *config* names.

    Args:
        config: A configuration, or a URL alone.

    Raises:
        ConfigurationError: If a setting is wrong; says what to change.
        UnreachableError: If no service answered within ``connect_timeout_seconds``;
            says what was tried.
        AuthenticationError: If we were refused.
        WrongServiceError: If another kind of server is there; says which.
    """
    if not isinstance(config, HAConfig):
        config = HAConfig(url=config)
    try:
        return detached(lambda: _open(config), undo=lambda opened: opened.close())
    except (AuthenticationError, UnreachableError) as error:
        if config.backend is Backend.EMBEDDED:
            raise  # it has no address that could be looked at
        wrong = wrong_service(config)
        if wrong is not None:
            raise wrong from error
        if isinstance(error, UnreachableError):
            # The words of the network, which are the same for every backend.
            problem = reach_problem(config)
            if problem:
                raise UnreachableError(
                    error.target, error.waited_seconds, problem
                ) from error
        raise


def as_name_service(
    config: HAConfig | HAServices | str,
) -> HAConfig | HAServices:
    """
    Return *config* as what names or is a name service; a URL becomes a configuration.

    Raises:
        ConfigurationError: If it is neither.
    """
    if isinstance(config, HAConfig):
        return config
    if isinstance(config, str):
        return HAConfig(url=config)
    check_services(
        config,
        what="config",
        otherwise="a URL (leaderserver://host:port), an HAConfig or ",
    )
    return config


def check_services(value: object, *, what: str, otherwise: str = "") -> None:
    """
    Return if *value* is open services.

    Args:
        value: What the caller passed.
        what: How the error names it.
        otherwise: What else it may be.

    Raises:
        ConfigurationError: If it is not.
    """
    if isinstance(value, type) or not hasattr(value, "get_leader_retriever"):
        shown = value.__name__ if isinstance(value, type) else type(value).__name__
        raise ConfigurationError(
            f"{what} must be {otherwise}what open_ha_services() returns, not {shown}"
        )


def _open(config: HAConfig) -> HAServices:
    # Each backend is imported when it is asked for: a program with ZooKeeper loads no
    # ZeroMQ, and one without ZooKeeper loads no kazoo.
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
            from haservices.zookeeper.backend import (  # noqa: PLC0415
                ZooKeeperHAServices,
            )

            return ZooKeeperHAServices(config)
        case _:
            assert_never(config.backend)
