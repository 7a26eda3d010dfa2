"""
Endpoints: ``tcp://HOST:PORT``, taken apart and judged; pure.

HOST is an IPv4 address, an IPv6 address in brackets, a host name, or ``*`` for every
interface (only to bind).  PORT is a number; 0 (only to bind) means any free one.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, final

import attrs

from nameservice import ConfigurationError


__all__ = ["Endpoint", "parse_endpoint"]

_ENDPOINT: Final = re.compile(r"tcp://(\[[^\[\]]+\]|[^\[\]:/]+):([0-9]{1,5})")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_NUMBERS_ONLY: Final = re.compile(r"[0-9.]+")
_PORT_MAX: Final = 65_535
_WILDCARD: Final = "*"


@final
@attrs.frozen(kw_only=True)
class Endpoint:
    """
    Where a socket binds or connects, over TCP; ``str()`` gives the text back.

    Attributes:
        host: An address (IPv6 without its brackets), a name, or ``*``.
        port: 0 to 65,535; 0 means any free one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """Return the address, or None if the host is a name or ``*``."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_ipv6(self) -> bool:
        """Return whether the host is an IPv6 address; a name never is."""
        return isinstance(self.address, IPv6Address)

    @property
    def is_loopback(self) -> bool:
        """
        Return whether only this machine can reach what is bound here.

        Of all names only ``localhost`` counts: what another name stands for may change.
        """
        address = self.address
        if address is None:
            return self.host.lower() == "localhost"
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return address.ipv4_mapped.is_loopback
        return address.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Return whether every interface is meant; no socket can connect to that."""
        address = self.address
        return self.host == _WILDCARD if address is None else address.is_unspecified

    def check_connectable(self) -> Endpoint:
        """
        Return this endpoint if one can connect to it.

        Raises:
            ConfigurationError: If it names no port, or every interface at once.
        """
        if self.is_wildcard:
            raise ConfigurationError(
                f"cannot connect to {self}: name the host, not every interface"
            )
        if self.port == 0:
            raise ConfigurationError(
                f"cannot connect to {self}: name the port that the server prints"
            )
        return self


def parse_endpoint(text: str) -> Endpoint:
    """
    Return *text* taken apart.

    Raises:
        ConfigurationError: If *text* is not ``tcp://HOST:PORT``.
    """
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"endpoint {text!r} must be tcp://HOST:PORT, e.g. tcp://127.0.0.1:5170 or "
            "tcp://[::1]:5170"
        )
    host, port = match[1], int(match[2])
    if port > _PORT_MAX:
        raise ConfigurationError(
            f"endpoint {text!r} has port {port}: it must be 0 to {_PORT_MAX}"
        )
    if host.startswith("["):
        endpoint = Endpoint(host=host[1:-1], port=port)
        if not endpoint.is_ipv6:
            raise ConfigurationError(
                f"endpoint {text!r} has no IPv6 address in its brackets"
            )
        return endpoint
    endpoint = Endpoint(host=host, port=port)
    if host == _WILDCARD or endpoint.address is not None:
        return endpoint
    if _NUMBERS_ONLY.fullmatch(host) or not _HOST_NAME.fullmatch(host):
        raise ConfigurationError(
            f"endpoint {text!r} has host {host!r}, which is neither an address nor a "
            "host name"
        )
    return endpoint
