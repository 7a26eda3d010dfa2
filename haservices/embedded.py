"""The embedded backend: the name service of one process, without a network."""

from __future__ import annotations

import os
import secrets
import threading
from typing import TYPE_CHECKING, Final, final

from election.epochs import ProcessEpochs
from haservices.client_name import client_name
from haservices.client_services import ClientHAServices
from haservices.embedded_hub import EmbeddedHub, EmbeddedLink
from haservices.interface import Guarantee
from leaderserver.client.client import LeaderClient
from leaderserver.client.core.config import ClientConfig
from nameservice import LocalProtocolError, seconds_to_ns


if TYPE_CHECKING:
    from haservices.config import HAConfig


__all__ = ["EMBEDDED_GUARANTEES", "forget_embedded", "link_of", "open_embedded"]

EMBEDDED_GUARANTEES: Final = frozenset(
    {
        Guarantee.SURVIVES_SERVER_PAUSE,
        Guarantee.FAILOVER_WITHIN_LEASE,
        Guarantee.PASSES_OVER_SILENT,
    }
)


@final
class _EmbeddedProcess:
    """All hubs of this process; a child of it begins with none."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._epochs = _SharedEpochs()
        self._hubs: dict[str, EmbeddedHub] = {}
        self.links: dict[ClientHAServices, EmbeddedLink] = {}

    def hub(self, name: str) -> EmbeddedHub:
        """Return the hub of *name*; a nameless one is private, and new."""
        with self._lock:
            if not name:
                return EmbeddedHub("private", epochs=self._epochs)
            hub = self._hubs.get(name)
            if hub is None:
                hub = EmbeddedHub(name, epochs=self._epochs)
                self._hubs[name] = hub
            return hub

    def forget(self, name: str) -> None:
        """Make the next service of *name* begin with nothing stored."""
        with self._lock:
            self._hubs.pop(name, None)

    @property
    def is_inherited(self) -> bool:
        return os.getpid() != self._pid


@final
class _SharedEpochs:
    """One counter for all hubs, each of which has a thread of its own."""

    def __init__(self) -> None:
        self._epochs = ProcessEpochs()
        self._lock = threading.Lock()

    @property
    def incarnation(self) -> int:
        return self._epochs.incarnation

    def draw(self, *, above: int) -> int:
        with self._lock:
            return self._epochs.draw(above=above)

    def admits(self, epoch: int, *, now_ns: int) -> bool:
        with self._lock:
            return self._epochs.admits(epoch, now_ns=now_ns)

    def observe(self, epoch: int) -> None:
        with self._lock:
            self._epochs.observe(epoch)


_process = _EmbeddedProcess()


def _this_process() -> _EmbeddedProcess:
    global _process  # noqa: PLW0603 - the registry is what "in this process" means
    if _process.is_inherited:
        _process = _EmbeddedProcess()
    return _process


def open_embedded(config: HAConfig) -> ClientHAServices:
    """Open the embedded name service that *config* names."""
    process = _this_process()
    hub = process.hub(config.embedded_name)
    links: list[EmbeddedLink] = []

    def link(client: LeaderClient) -> EmbeddedLink:
        links.append(EmbeddedLink(hub, client))
        return links[0]

    client = LeaderClient(
        ClientConfig(
            target=config.url,
            client=client_name(),
            session_timeout_ns=seconds_to_ns(config.session_timeout_seconds),
            lease_ns=seconds_to_ns(config.lease_seconds),
            clears_on_suspended=config.on_suspended == "clear",
            seed=secrets.token_bytes(32),
        ),
        clock=hub.clock,
        link_factory=link,
        connect_timeout_seconds=config.connect_timeout_seconds,
    )
    try:
        client.open()
    except BaseException:
        client.close()
        raise
    services = ClientHAServices(
        config,
        client,
        clock=hub.clock,
        guarantees=EMBEDDED_GUARANTEES,
        on_closing=links[0].release,
        on_closed=lambda: _forget(services),
    )
    process.links[services] = links[0]
    return services


def forget_embedded(name: str) -> None:
    """Forget what is stored under ``embedded:NAME``; services still open keep it."""
    _this_process().forget(name)


def link_of(services: ClientHAServices) -> EmbeddedLink:
    """
    Return the link of embedded *services*, for leadership control.

    Raises:
        LocalProtocolError: If they are closed.
    """
    link = _this_process().links.get(services)
    if link is None:
        message = "these services are closed: there is nothing left to control"
        raise LocalProtocolError(message)
    return link


def _forget(services: ClientHAServices) -> None:
    _this_process().links.pop(services, None)
