"""
The configuration file of a proxy, read from disk and read again (C4).

A file is read when the proxy starts and whenever it is told to (SIGHUP).  What cannot
be used changes nothing: a mistake in an edited file does no harm until the next start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias, final

from nameservice import ConfigurationError
from queryablestate.proxy.config import ProxyConfig, check_reloadable
from queryablestate.proxy.config_toml import parse_proxy_config


__all__ = ["ProxyConfigFile", "load_proxy_config"]

_FilePath: TypeAlias = str | os.PathLike[str]

_FILE_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024


def load_proxy_config(
    path: _FilePath, *, overrides: Mapping[str, object] | None = None
) -> ProxyConfig:
    """
    Return the configuration that the file at *path* describes.

    Args:
        path: A TOML file; see `queryablestate.proxy.config_toml`.
        overrides: Settings by name that outweigh those of the file: command line
            options.

    Raises:
        ConfigurationError: If the file cannot be read, or is wrong; says what is.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_SIZE_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except OSError as exc:
        raise ConfigurationError(
            f"cannot read the configuration {os.fspath(path)}: {exc.strerror}"
        ) from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(
            f"the configuration {os.fspath(path)} is not UTF-8: {exc.reason} at byte "
            f"{exc.start}"
        ) from exc
    if len(content) > _FILE_SIZE_BYTES_MAX:
        raise ConfigurationError(
            f"the configuration {os.fspath(path)} is above "
            f"{_FILE_SIZE_BYTES_MAX:,} bytes: use wildcards, and join callers"
        )
    return parse_proxy_config(text, source=os.fspath(path), overrides=overrides)


@final
class ProxyConfigFile:
    """
    A configuration file, and the last configuration that could be used of it.

    Not thread-safe: one thread reloads.

    Attributes:
        config: That configuration.
    """

    def __init__(
        self, path: _FilePath, *, overrides: Mapping[str, object] | None = None
    ) -> None:
        """Read the file; see `load_proxy_config`."""
        self._path = path
        self._overrides = dict(overrides or {})
        self.config = load_proxy_config(path, overrides=self._overrides)

    def reload(self) -> ProxyConfig:
        """
        Read the file again; return its configuration, which becomes *config*.

        Raises:
            ConfigurationError: If the file cannot be read, is wrong, or changes what
                takes a restart; *config* stays what it was.
        """
        config = load_proxy_config(self._path, overrides=self._overrides)
        try:
            check_reloadable(self.config, config)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{os.fspath(self._path)}: {exc}") from exc
        self.config = config
        return config
