"""The LeaderServer backend: one session with a LeaderServer, over ZeroMQ."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from haservices.client_name import client_name
from haservices.client_services import ClientHAServices
from haservices.interface import Guarantee
from leaderserver.client.client import LeaderClient
from leaderserver.client.core.config import ClientConfig
from leaderserver.client.link import ClientKeys, SocketLink
from nameservice import (
    AuthenticationError,
    SystemClock,
    UnreachableError,
    seconds_to_ns,
)
from zmqtransport import Endpoint, load_key_pair, load_public_keys


if TYPE_CHECKING:
    from haservices.config import HAConfig


__all__ = ["LEADERSERVER_GUARANTEES", "open_leaderserver"]

LEADERSERVER_GUARANTEES: Final = frozenset(
    {
        Guarantee.ACROSS_PROCESSES,
        Guarantee.SURVIVES_SERVER_PAUSE,
        Guarantee.FAILOVER_WITHIN_LEASE,
        Guarantee.PASSES_OVER_SILENT,
    }
)
"""What every LeaderServer promises; a data directory and CURVE add to it."""


def open_leaderserver(config: HAConfig) -> ClientHAServices:
    """
    Open a session with the LeaderServer that *config* names.

    Raises:
        ConfigurationError: If a key file cannot be used; says what to change.
        UnreachableError: If no server answered within the connect timeout.
        AuthenticationError: If we were refused.
    """
    keys = _load_keys(config)
    (address,) = config.server_addresses
    clock = SystemClock()
    client = LeaderClient(
        ClientConfig(
            target=config.url,
            client=client_name(),
            session_timeout_ns=seconds_to_ns(config.session_timeout_seconds),
            lease_ns=seconds_to_ns(config.lease_seconds),
            clears_on_suspended=config.on_suspended == "clear",
            seed=secrets.token_bytes(32),
        ),
        clock=clock,
        link_factory=lambda client: SocketLink(
            client,
            endpoint=Endpoint(host=address.host, port=address.port),
            target=config.url,
            keys=keys,
            session_timeout_seconds=config.session_timeout_seconds,
            clock=clock,
        ),
        connect_timeout_seconds=config.connect_timeout_seconds,
    )
    try:
        welcome = client.open()
    except UnreachableError as error:
        client.close()
        if isinstance(error.__cause__, AuthenticationError):
            # Somebody is there, and ended each of our attempts in the handshake.
            raise error.__cause__ from None
        raise
    except BaseException:
        client.close()
        raise
    guarantees = set(LEADERSERVER_GUARANTEES)
    if welcome.is_durable:
        guarantees.add(Guarantee.SURVIVES_SERVER_RESTART)
    if keys is not None:
        guarantees.add(Guarantee.ENCRYPTED)
    return ClientHAServices(
        config, client, clock=clock, guarantees=frozenset(guarantees)
    )


def _load_keys(config: HAConfig) -> ClientKeys | None:
    """Return the keys that *config* names, or None if it names none."""
    if config.curve_server_key_file is None:
        return None
    assert config.curve_public_key_file is not None
    assert config.curve_secret_key_file is not None
    server_key_file = Path(config.curve_server_key_file)
    return ClientKeys(
        key_pair=load_key_pair(
            Path(config.curve_secret_key_file), Path(config.curve_public_key_file)
        ),
        load_server_keys=lambda: load_public_keys(server_key_file),
    )
