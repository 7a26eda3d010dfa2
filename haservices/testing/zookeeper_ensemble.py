"""
`ZooKeeperEnsemble`: several real ZooKeeper servers whose traffic can be cut.

Theory of operation
-------------------
Every member has the same ``server.N=member-N:…`` lines, but a hosts file of its own
(``jdk.net.hosts.file``).  Its own name is the loopback interface; each other member's
name is a loopback address on which proxies stand for this ordered pair: one for the
quorum port, one for the election port.  So all traffic between two members passes
through proxies, also where a member calls back at the name that a peer told it, and a
member can be cut off while its clients, who connect directly, notice nothing.

Loopback addresses other than 127.0.0.1 exist without configuration on Linux alone.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from haservices.testing.reserved_port import LOOPBACK_HOST, ReservedPort
from haservices.testing.tcp_proxy import TCPProxy
from haservices.testing.zookeeper_server import ZooKeeperServer
from nameservice import LocalProtocolError


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType


__all__ = ["ZooKeeperEnsemble"]

_SIZE_MAX: Final = 9
# A follower that is refused tries again at once, one that is reset calls an election.
_PATIENCE_SECONDS: Final = 0.5


@frozen(kw_only=True)
class _PeerPorts:
    """Where one member listens for the others."""

    quorum: ReservedPort
    election: ReservedPort

    def __iter__(self) -> Iterator[ReservedPort]:
        return iter((self.quorum, self.election))


@final
class ZooKeeperEnsemble:
    """
    A quorum of real servers; a context manager that starts and closes them.

    Members are known by their index, from 0.  Whatever can be done to one server can
    be done to ``members[index]``.  Not thread-safe, but for what it runs.

    Args:
        size: How many members, 1 to 9.
        tick_time_ms: ZooKeeper's unit of time.
        synchronization_limit_ticks: After how much silence leader and followers give
            each other up (``syncLimit``).
        session_timeout_seconds_max: The longest session that it agrees to.
        start_timeout_seconds: How long each member may take to serve.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        tick_time_ms: int = 100,
        synchronization_limit_ticks: int = 20,
        session_timeout_seconds_max: float = 60.0,
        start_timeout_seconds: float = 60.0,
    ) -> None:
        assert 1 <= size <= _SIZE_MAX
        self._proxies: dict[tuple[int, int], list[TCPProxy]] = {}
        with contextlib.ExitStack() as resources:
            self._peer_ports = tuple(
                _PeerPorts(
                    quorum=resources.enter_context(ReservedPort()),
                    election=resources.enter_context(ReservedPort()),
                )
                for _ in range(size)
            )
            settings: dict[str, str | int] = {
                "initLimit": 100,
                "syncLimit": synchronization_limit_ticks,
                "standaloneEnabled": "false",
            }
            for index, ports in enumerate(self._peer_ports):
                settings[f"server.{index + 1}"] = (
                    f"{_host_name(index)}:{ports.quorum.port}:{ports.election.port}"
                )
            members = []
            for _ in range(size):
                member = ZooKeeperServer(
                    tick_time_ms=tick_time_ms,
                    session_timeout_seconds_max=session_timeout_seconds_max,
                    settings=settings,
                    start_timeout_seconds=start_timeout_seconds,
                    names_its_hosts=True,
                )
                resources.callback(member.close)
                members.append(member)
            self.members: Final[Sequence[ZooKeeperServer]] = tuple(members)
            for here in range(size):
                self._prepare(here, resources)
            self._resources = resources.pop_all()

    @property
    def url(self) -> str:
        """Return a URL with all members."""
        addresses = ",".join(member.address for member in self.members)
        return f"zookeeper://{addresses}"

    def start(self) -> None:
        """Start every member, and return when all of them serve."""
        for member in self.members:
            member.start(waits=False)
        for member in self.members:
            member.wait_until_serving()

    def leader_index(self) -> int:
        """
        Return which member leads the ensemble.

        Raises:
            LocalProtocolError: If none says so now.
        """
        for index in range(len(self.members)):
            if self.mode(index) == "leader":
                return index
        message = "no member of the ensemble leads now"
        raise LocalProtocolError(message)

    def mode(self, index: int) -> str:
        """Return ``leader``, ``follower``, or nothing while the member serves not."""
        for line in self.members[index].try_ask("srvr").splitlines():
            name, _, value = line.partition(": ")
            if name == "Mode":
                return value
        return ""

    def cut(self, index: int) -> None:
        """Cut a member off from all others; its clients stay connected to it."""
        for proxy in self._proxies_of(index):
            proxy.cut()

    def heal(self, index: int) -> None:
        """Reconnect a member to all others; what was held up is delivered."""
        for proxy in self._proxies_of(index):
            proxy.heal()

    def close(self) -> None:
        """Stop every member, and remove what they stored.  Idempotent."""
        for member in self.members:
            member.kill()  # the data goes anyway: no need to wait for a clean end
        self._resources.close()

    def __enter__(self) -> ZooKeeperEnsemble:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _proxies_of(self, index: int) -> Iterator[TCPProxy]:
        for pair, proxies in self._proxies.items():
            if index in pair:
                yield from proxies

    def _prepare(self, here: int, resources: contextlib.ExitStack) -> None:
        """Give member *here* its number, its hosts file and its proxies."""
        lines = [f"{LOOPBACK_HOST} {_host_name(here)}\n"]
        for there, ports in enumerate(self._peer_ports):
            if there == here:
                continue
            host = f"127.1.{here + 1}.{there + 1}"
            lines.append(f"{host} {_host_name(there)}\n")
            self._proxies[here, there] = [
                resources.enter_context(
                    TCPProxy(
                        reserved.port,
                        host=host,
                        port=reserved.port,
                        patience_seconds=_PATIENCE_SECONDS,
                    )
                )
                for reserved in ports
            ]
        member = self.members[here]
        member.hosts_file.write_text("".join(lines), encoding="utf-8")
        data = member.directory / "data"
        data.mkdir()
        (data / "myid").write_text(f"{here + 1}\n", encoding="ascii")


def _host_name(index: int) -> str:
    return f"member-{index + 1}"
