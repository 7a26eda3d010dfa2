"""The files that ``zookeeper_*`` settings name: credentials and TLS."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from haservices.config import HAConfig


__all__ = ["load_credentials", "load_tls_context"]


def load_credentials(config: HAConfig) -> tuple[str, str] | None:
    """Return scheme and credential as ``zookeeper_auth_file`` has them, if set."""
    if config.zookeeper_auth_file is None:
        return None
    path = config.zookeeper_auth_file
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - one file, read once
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read zookeeper_auth_file {path}: {error}"
        raise ConfigurationError(message) from error
    if mode & 0o077:
        message = f"zookeeper_auth_file {path} can be read by others: chmod 600 {path}"
        raise ConfigurationError(message)
    scheme, colon, credential = text.partition(":")
    if not (scheme and colon and credential) or not text.isprintable():
        message = (
            f"zookeeper_auth_file {path} must hold one line, scheme:credential, such "
            "as digest:user:password"
        )
        raise ConfigurationError(message)
    return scheme, credential


def load_tls_context(config: HAConfig) -> ssl.SSLContext | None:
    """Return how to speak TLS, if ``zookeeper_tls_ca_file`` is set."""
    if config.zookeeper_tls_ca_file is None:
        return None
    try:
        # Whom the machine trusts otherwise plays no part.
        context = ssl.create_default_context(cafile=config.zookeeper_tls_ca_file)
        if config.zookeeper_tls_cert_file is not None:
            context.load_cert_chain(
                config.zookeeper_tls_cert_file, config.zookeeper_tls_key_file
            )
    except OSError as error:  # ssl.SSLError among them
        message = f"the zookeeper_tls_* files cannot be used: {error}"
        raise ConfigurationError(message) from error
    return context
