"""
The name services under test: each is started once, and serves the whole run.

What a backend promises is declared here, beside what starts it; test_guarantees.py
holds its services to the declaration, and selection.py picks its tests by it.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, final

from haservices import Guarantee, HAConfig, HAServices
from haservices.testing import (
    LeaderServer,
    LeadershipControl,
    ServerConfig,
    TCPProxy,
    ZooKeeperServer,
)
from haservices.testing.reserved_port import ReservedPort
from nameservice import LocalProtocolError
from tests.opening import open_patiently
from zmqtransport import CurveKeyPair, write_key_pair


if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["BACKENDS", "Backend", "LeaderServerBackend", "Line"]

LEASE_SECONDS_MAX: Final = 0.5
"""The longest lease: a LeaderServer grants nothing for so long after its start."""


class Line(Protocol):
    """What stands between a client and the name service."""

    def cut(self) -> None:
        """Pass nothing on, either way; neither side is told."""

    def cut_replies(self) -> None:
        """Pass nothing on from the name service to the client."""

    def reset(self) -> None:
        """Break the connections; new ones may be made."""

    def heal(self, *, deliver: bool = True) -> None:
        """Pass everything on; if not *deliver*, what was held back is lost."""


class Backend(abc.ABC):
    """A name service that is there for the whole run."""

    guarantees: ClassVar[frozenset[Guarantee]]

    @abc.abstractmethod
    def __init__(self, directory: Path) -> None:
        """Start it; what it keeps goes into *directory*."""

    def config(self, **settings: Any) -> HAConfig:
        """Return a configuration of one client with *settings*."""
        return HAConfig(**({"url": self.url(settings["cluster_id"])} | settings))

    def operator_settings(self) -> dict[str, Any]:
        """Return what an operator needs besides."""
        return {}

    @abc.abstractmethod
    def url(self, cluster_id: str) -> str:
        """Return where clients of the cluster *cluster_id* find it."""

    @abc.abstractmethod
    def open_cuttable(
        self, resources: contextlib.ExitStack, settings: dict[str, Any]
    ) -> tuple[HAServices, Line]:
        """Open a service whose line can be cut; *resources* keeps the line."""

    def restart(self) -> None:
        """End the name service, and begin it again where it was."""
        raise NotImplementedError

    def pause(self) -> None:
        """Make the name service stand still."""
        raise NotImplementedError

    def resume(self) -> None:
        """Make it go on."""
        raise NotImplementedError

    @abc.abstractmethod
    def close(self) -> None:
        """End it."""


@final
class _EmbeddedLine:
    """The line of an embedded service, under leadership control."""

    def __init__(self, ha: HAServices) -> None:
        self._ha = ha
        self._control = LeadershipControl(ha)

    def cut(self) -> None:
        self._control.cut(self._ha)

    def cut_replies(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError

    def heal(self, *, deliver: bool = True) -> None:
        with contextlib.suppress(LocalProtocolError):  # closed while it was cut off
            self._control.heal(self._ha)


@final
class EmbeddedBackend(Backend):
    """The name service of this process; each cluster has one of its own."""

    guarantees = frozenset(
        {
            Guarantee.SURVIVES_SERVER_PAUSE,
            Guarantee.FAILOVER_WITHIN_LEASE,
            Guarantee.PASSES_OVER_SILENT,
        }
    )

    def __init__(self, directory: Path) -> None:
        pass

    def url(self, cluster_id: str) -> str:
        """Return one name: the clusters that share it must be told apart."""
        return "embedded:conformance"

    def open_cuttable(
        self, resources: contextlib.ExitStack, settings: dict[str, Any]
    ) -> tuple[HAServices, Line]:
        """Open a service, and take control of it."""
        ha = open_patiently(self.config(**settings))
        return ha, _EmbeddedLine(ha)

    def close(self) -> None:
        """Do nothing: without services it is not there."""


@final
class _ProxiedLine:
    """One or more TCP connections that are cut together."""

    def __init__(self, *proxies: TCPProxy) -> None:
        self._proxies = proxies

    def cut(self) -> None:
        for proxy in self._proxies:
            proxy.cut()

    def cut_replies(self) -> None:
        for proxy in self._proxies:
            proxy.cut_replies()

    def reset(self) -> None:
        for proxy in self._proxies:
            proxy.reset()

    def heal(self, *, deliver: bool = True) -> None:
        for proxy in self._proxies:
            proxy.heal(deliver=deliver)


class LeaderServerBackend(Backend):
    """
    A LeaderServer in this process, over TCP, with a data directory.

    A client's connection is two sockets, and the second port is on the host of the
    first.  So each cuttable client is given a loopback address of its own (there are
    16 million), where a proxy listens on either port.
    """

    guarantees = frozenset(
        {
            Guarantee.ACROSS_PROCESSES,
            Guarantee.SURVIVES_SERVER_RESTART,
            Guarantee.SURVIVES_SERVER_PAUSE,
            Guarantee.FAILOVER_WITHIN_LEASE,
            Guarantee.PASSES_OVER_SILENT,
        }
    )

    def __init__(self, directory: Path) -> None:
        self._hosts = itertools.count(2)
        self._resources = contextlib.ExitStack()
        # Held while the server is away, so that it comes back where it was.
        ports = [
            self._resources.enter_context(contextlib.closing(ReservedPort())).port
            for _ in range(2)
        ]
        self.server_config = self.make_config(
            directory,
            bind=f"tcp://127.0.0.1:{ports[0]}",
            publish_bind=f"tcp://127.0.0.1:{ports[1]}",
            data_dir=directory / "data",
            lease_seconds_max=LEASE_SECONDS_MAX,
            # No server was there before, so there is nothing to wait for.
            lease_seconds_unrecorded_max=LEASE_SECONDS_MAX,
        )
        self.server = LeaderServer(self.server_config)
        self.server.start()

    def make_config(self, directory: Path, **settings: Any) -> ServerConfig:
        """Return the server's configuration; its files go into *directory*."""
        return ServerConfig(**settings)

    def url(self, cluster_id: str) -> str:
        """Return the server's own URL: clusters share it."""
        return self.server.url

    def open_cuttable(
        self, resources: contextlib.ExitStack, settings: dict[str, Any]
    ) -> tuple[HAServices, Line]:
        """Open a service behind two proxies."""
        number = next(self._hosts)
        host = f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        ports = (self.server_config.bind_endpoint.port, self.server.publish_port)
        proxies = [
            resources.enter_context(
                TCPProxy(port, host=host, port=port, patience_seconds=10.0)
            )
            for port in ports
        ]
        settings = {"url": f"leaderserver://{host}:{ports[0]}"} | settings
        return open_patiently(self.config(**settings)), _ProxiedLine(*proxies)

    def restart(self) -> None:
        """Close the server, and start another on its ports and its data."""
        self.server.close()
        self.server = LeaderServer(self.server_config)
        self.server.start()

    def pause(self) -> None:
        """Stop the server's thread."""
        self.server.pause()

    def resume(self) -> None:
        """Make the server's thread go on."""
        self.server.resume()

    def close(self) -> None:
        """Close the server."""
        self.server.close()
        self._resources.close()


@final
class CurveBackend(LeaderServerBackend):
    """The same with CURVE: contenders, an operator and an observer have their keys."""

    guarantees = LeaderServerBackend.guarantees | {Guarantee.ENCRYPTED}

    ROLES: ClassVar = {
        "contender": '"contend:*"',
        "flights-contender": '"contend:flights*"',
        "observer": '"observe"',
        "operator": '"admin"',
    }

    def make_config(self, directory: Path, **settings: Any) -> ServerConfig:
        """Write keys and the allow-list; configure the server to use them."""
        self._directory = directory
        clients = []
        for name in ("server", "stranger", *self.ROLES):
            pair = CurveKeyPair.generate()
            write_key_pair(pair, directory / name)
            if name in self.ROLES:
                clients.append(
                    f'[clients.{name}]\npublic_key = "{pair.public_key}"\n'
                    f"roles = [{self.ROLES[name]}]\n"
                )
        allow_list = directory / "allow.toml"
        allow_list.write_text("\n".join(clients))
        return ServerConfig(
            curve_public_key_file=directory / "server.key",
            curve_secret_key_file=directory / "server.key_secret",
            allow_list_file=allow_list,
            **settings,
        )

    def keys(self, name: str) -> dict[str, Any]:
        """Return the settings of the client called *name*."""
        return {
            "curve_public_key_file": str(self._directory / f"{name}.key"),
            "curve_secret_key_file": str(self._directory / f"{name}.key_secret"),
            "curve_server_key_file": str(self._directory / "server.key"),
        }

    def config(self, **settings: Any) -> HAConfig:
        """Return a configuration of a client that may contend for everything."""
        return super().config(**(self.keys("contender") | settings))

    def operator_settings(self) -> dict[str, Any]:
        """Return the operator's keys."""
        return self.keys("operator")


@final
class ZooKeeperBackend(Backend):
    """A real ZooKeeper."""

    guarantees = frozenset(
        {
            Guarantee.ACROSS_PROCESSES,
            Guarantee.SURVIVES_SERVER_LOSS,
            Guarantee.SURVIVES_SERVER_RESTART,
        }
    )

    def __init__(self, directory: Path) -> None:
        self.server = ZooKeeperServer(directory)
        self.server.start()

    def url(self, cluster_id: str) -> str:
        """Return the URL of a chroot that all clusters share."""
        return f"{self.server.url}/conformance"

    def open_cuttable(
        self, resources: contextlib.ExitStack, settings: dict[str, Any]
    ) -> tuple[HAServices, Line]:
        """Open a service behind a proxy."""
        proxy = resources.enter_context(
            TCPProxy(self.server.port, patience_seconds=10.0)
        )
        settings = {"url": f"zookeeper://{proxy.address}/conformance"} | settings
        return open_patiently(self.config(**settings)), _ProxiedLine(proxy)

    def restart(self) -> None:
        """Kill the server, and start it again on its data."""
        self.server.restart()

    def pause(self) -> None:
        """Stop the server's process."""
        self.server.pause()

    def resume(self) -> None:
        """Make the server's process go on."""
        self.server.resume()

    def close(self) -> None:
        """End the server."""
        self.server.close()


BACKENDS: Final[dict[str, type[Backend]]] = {
    "embedded": EmbeddedBackend,
    "leaderserver": LeaderServerBackend,
    "leaderserver-curve": CurveBackend,
    "zookeeper": ZooKeeperBackend,
}
