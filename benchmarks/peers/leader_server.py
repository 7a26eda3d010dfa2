"""Lodestar's LeaderServer, started by its command line, and its ordinary client."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, final

from benchmarks.peers._light import serve_leader_server_sessions
from benchmarks.peers._names import (
    COMPONENT,
    NamePeer,
    Setting,
    Tally,
    address_of,
)
from benchmarks.peers._processes import Guarded, guarded
from election import LeaderElection, LeaderSession
from haservices import HAConfig, HAServices, campaign, open_ha_services
from haservices.client_services import ClientHAServices
from haservices.testing.reserved_port import ReservedPort
from nameservice import NameServiceError
from retrieval import LeaderInformation
from zmqtransport import connection_count_possible


__all__ = ["LEADER_SERVER"]

_TIMEOUT_SECONDS: Final = 120.0
_INTERVAL_SECONDS: Final = 0.02
_ORDINARY_COUNT_MAX: Final = 25
"""Of ordinary clients in one process; more share a thread."""
# A connection is reckoned at 44 KiB of the server's limit; ten thousand must fit.
_MEMORY_LIMIT_BYTES: Final = 4 << 30
# Its own default is 10,000 of each, and our own client is one more.
_CLIENTS_MAX: Final = 20_000
# What it takes of the descriptors that it may have.  Further clients would wait for a
# place in vain.
_CLIENTS_POSSIBLE: Final = connection_count_possible() * 2 // 5 - 10
_CLIENTS_LIMIT: Final = (
    f"the limit of open files (ulimit -n) leaves room for {_CLIENTS_POSSIBLE:,}"
)
_SESSION_TIMEOUT_SECONDS: Final = 10.0


class _Grants:
    """A contender that counts down when it is granted."""

    def __init__(self, granted: threading.Semaphore) -> None:
        self._granted = granted
        self.session: LeaderSession | None = None

    def grant_leadership(self, session: LeaderSession) -> None:
        self.session = session
        self._granted.release()

    def revoke_leadership(self) -> None:
        self.session = None

    def handle_error(self, error: Exception) -> None:
        raise error


@final
class _Service:
    def __init__(self, address: str, server: Guarded, ha: HAServices) -> None:
        self.address = address
        self.server = server
        self._ha = ha
        granted = threading.Semaphore(0)
        self._grants = _Grants(granted)
        self._election = ha.get_leader_election(COMPONENT)
        self._election.start(self._grants)
        assert granted.acquire(timeout=_TIMEOUT_SECONDS)
        self.announce(address_of(0))

    def announce(self, value: str) -> None:
        """Confirm with another address; after a restart, as soon as that is granted."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            session = self._grants.session
            try:
                if session is not None:
                    self._election.confirm_leadership(session.leader_session_id, value)
                    return
            except NameServiceError:
                if time.monotonic() > deadline:
                    raise
            assert time.monotonic() < deadline, "no leadership was granted in time"
            # The server may not have heard of us yet, nor we of the server.
            time.sleep(_INTERVAL_SECONDS)  # noqa: TID251 (either may be late)

    def register(self, prefix: str, count: int) -> float:
        """Start contenders in one session; each is granted, as no other contends."""
        granted = threading.Semaphore(0)
        began = time.perf_counter()
        elections: list[LeaderElection] = []
        for index in range(count):
            election = self._ha.get_leader_election(f"{prefix}-{index}")
            election.start(_Grants(granted))
            elections.append(election)
        for _ in range(count):
            assert granted.acquire(timeout=_TIMEOUT_SECONDS)
        seconds = time.perf_counter() - began
        for election in elections:
            election.close()
        return seconds


@contextmanager
def _serve() -> Iterator[_Service]:
    # Held, or another process might be given a port before the server has it.
    with (
        ReservedPort() as requests,
        ReservedPort() as publications,
        tempfile.TemporaryDirectory() as directory,
    ):
        command = [
            *(sys.executable, "-m", "lodestar", "server"),
            *("--bind", f"tcp://127.0.0.1:{requests.port}"),
            *("--publish-bind", f"tcp://127.0.0.1:{publications.port}"),
            *("--memory-limit-bytes", str(_MEMORY_LIMIT_BYTES)),
            *("--log-level", "warning"),
            *("--connections-max", str(_CLIENTS_MAX)),
            *("--sessions-max", str(_CLIENTS_MAX)),
        ]
        address = f"leaderserver://127.0.0.1:{requests.port}"
        with (
            guarded(command, Path(directory) / "log") as server,
            open_ha_services(HAConfig(url=address, connect_timeout_seconds=30.0)) as ha,
        ):
            yield _Service(address, server, ha)


@final
class _Candidate:
    def __init__(self, ha: ClientHAServices) -> None:
        self._ha = ha

    def lead(
        self,
        component: str,
        name: str,
        on_leading: Callable[[], None],
        over: threading.Event,
    ) -> None:
        """Use `campaign`."""
        with campaign(self._ha, component, name):
            on_leading()
            over.wait()

    def is_queued(self, component: str, name: str) -> bool:
        """Ask for the contenders: ours has our session's id."""
        contenders = self._ha.operations.contenders(component)
        return any(one.session_id == self._ha.session_id for one in contenders)


@contextmanager
def _candidate(address: str, seconds: float) -> Iterator[_Candidate]:
    config = HAConfig(
        url=address,
        session_timeout_seconds=_SESSION_TIMEOUT_SECONDS,
        lease_seconds=seconds,
    )
    with open_ha_services(config) as ha:
        assert isinstance(ha, ClientHAServices)
        yield _Candidate(ha)


class _Listener:
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        if leader is not None:
            self._tally.told(leader.address)

    def handle_error(self, error: Exception) -> None:
        print(error, file=sys.stderr)


def _listen(address: str, count: int, tally: Tally) -> None:
    if count > _ORDINARY_COUNT_MAX:
        serve_leader_server_sessions(address, count, tally.told)
        return
    with ExitStack() as stack:
        config = HAConfig(url=address, connect_timeout_seconds=_TIMEOUT_SECONDS)
        for _ in range(count):
            ha = stack.enter_context(open_ha_services(config))
            ha.get_leader_retriever(COMPONENT).start(_Listener(tally))
        sys.stdin.read()


LEADER_SERVER: Final = NamePeer(
    serve=_serve,
    settings={
        "default": Setting(seconds=0.5, label="lease 0.5 s"),
        "short": Setting(seconds=0.2, label="lease 0.2 s"),
    },
    candidate=_candidate,
    listen=_listen,
    keep=serve_leader_server_sessions,
    kept="a connection for requests each, none for broadcasts",
    session_count_max=_CLIENTS_POSSIBLE,
    session_limit=_CLIENTS_LIMIT,
    listener_count_max=_CLIENTS_POSSIBLE,
    listener_limit=_CLIENTS_LIMIT,
)
