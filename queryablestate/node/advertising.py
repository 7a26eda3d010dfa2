"""The address of a node, as others are told it."""

from __future__ import annotations

import socket as stdlib_socket
from typing import TYPE_CHECKING

from attrs import evolve

from haservices import Backend
from zmqtransport import Endpoint


if TYPE_CHECKING:
    from haservices import HAConfig
    from queryablestate.node.config import NodeConfig
    from queryablestate.wire.address import StateAddress


__all__ = ["advertised_address"]


def advertised_address(
    listening: StateAddress, config: NodeConfig, ha_config: HAConfig
) -> StateAddress:
    """Return what others are told of where the node listens."""
    endpoint = listening.endpoint
    host = config.advertised_host
    if host is None:
        if not endpoint.is_wildcard:
            return listening
        host = _own_host(ha_config, is_ipv6=endpoint.is_ipv6)
    return evolve(listening, endpoint=Endpoint(host=host, port=endpoint.port))


def _own_host(ha_config: HAConfig, *, is_ipv6: bool) -> str:
    """Return the address of this machine that the name service is reached from."""
    loopback = "::1" if is_ipv6 else "127.0.0.1"
    if ha_config.backend is Backend.EMBEDDED:
        return loopback
    for server in ha_config.server_addresses:
        try:
            found = stdlib_socket.getaddrinfo(
                server.host, server.port, type=stdlib_socket.SOCK_DGRAM
            )
        except OSError:
            continue
        for family, kind, protocol, _, address in found:
            if family == stdlib_socket.AF_INET6 and not is_ipv6:
                continue
            try:
                # No datagram is sent: connecting one only chooses a route.
                with stdlib_socket.socket(family, kind, protocol) as probe:
                    probe.connect(address)
                    return str(probe.getsockname()[0])
            except OSError:
                continue
    return loopback
