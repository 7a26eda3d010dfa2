"""
The limits of a LeaderServer that come from a file, and which change at run time.

The file is TOML, one setting a line, named as in `ServerConfig`::

    sessions_max = 20_000
    memory_limit_bytes = 536_870_912

It is read when the server starts and whenever it is told to (SIGHUP).  What cannot be
read, or does not fit together, changes nothing.

A limit that is lowered ends nothing: who is there stays, who comes next is refused.

Not at run time: leases and session timeouts, which the data directory has on record
from the start and which a successor waits for (rule E9); and what ZeroMQ was told when
the ports were bound.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import attrs

from leaderserver.server.config import ServerConfig
from nameservice import ConfigurationError
from nameservice.toml import parse_toml


__all__ = [
    "LIMITS",
    "RELOADABLE_LIMITS",
    "changed_settings",
    "load_limits",
    "with_reloadable",
]

_FilePath: TypeAlias = str | os.PathLike[str]

_FILE_SIZE_BYTES_MAX: Final = 64 * 1024

RELOADABLE_LIMITS: Final = (
    "connections_max",
    "sessions_max",
    "contenders_per_component_max",
    "contenders_per_session_max",
    "subscriptions_per_session_max",
    "components_max",
    "store_bytes_max",
    "store_bytes_per_component_max",
    "memory_limit_bytes",
)
"""What a running server can change."""

LIMITS: Final = (
    "lease_seconds_min",
    "lease_seconds_max",
    "lease_seconds_unrecorded_max",
    "session_timeout_seconds_min",
    "session_timeout_seconds_max",
    "frame_size_bytes_max",
    "queued_replies_per_peer_max",
    *RELOADABLE_LIMITS,
)
"""What a file may hold."""


def load_limits(
    path: _FilePath, *, overrides: Mapping[str, object] | None = None
) -> dict[str, object]:
    """
    Return the limits in the file at *path* by their names, each of them checked.

    Whether they fit together is seen when a `ServerConfig` is made of them.

    Args:
        path: A TOML file.
        overrides: Settings that outweigh those of the file: command line options.

    Raises:
        ConfigurationError: If the file cannot be read, or is wrong; says what is.
    """
    source = f"the limits in {os.fspath(path)}"
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_SIZE_BYTES_MAX + 1)
        if len(content) > _FILE_SIZE_BYTES_MAX:
            message = (
                f"{source}: the file is above {_FILE_SIZE_BYTES_MAX:,} bytes: is it "
                "the right one?"
            )
            raise ConfigurationError(message)
        limits = parse_toml(content)
    except OSError as error:
        message = f"{source} cannot be read: {error.strerror}"
        raise ConfigurationError(message) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigurationError(f"{source} cannot be read: {error}") from error
    unknown = sorted(set(limits) - set(LIMITS))
    if unknown:
        message = (
            f"{source}: {', '.join(unknown)} is no limit; known are "
            f"{', '.join(sorted(LIMITS))}"
        )
        raise ConfigurationError(message)
    fields = attrs.fields_dict(ServerConfig)
    for name, value in limits.items():
        field = fields[name]
        assert field.validator is not None
        try:
            field.validator(None, field, value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {error}") from error
    return {**limits, **(overrides or {})}


def changed_settings(old: ServerConfig, new: ServerConfig) -> tuple[str, ...]:
    """Return the names of the settings in which *new* differs, in their order."""
    names = (field.name for field in attrs.fields(ServerConfig))
    return tuple(n for n in names if getattr(old, n) != getattr(new, n))


def with_reloadable(old: ServerConfig, new: ServerConfig) -> ServerConfig:
    """Return *old* with those limits of *new* that a running server can change."""
    return attrs.evolve(old, **{name: getattr(new, name) for name in RELOADABLE_LIMITS})
