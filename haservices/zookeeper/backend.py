"""
The ZooKeeper backend: one session with an ensemble, over kazoo.

::

    ZooKeeperHAServices
      ├── LeaderElection ── ZooKeeperElectionDriver ── ZooKeeperContender
      ├── LeaderRetriever ── ZooKeeperRetrievalDriver ── a subscription
      ├── LeaderStore ── ZooKeeperStoreDriver
      └── ZooKeeperSession (one event loop) ── ZooKeeperConnection (kazoo)

Application threads hand everything to the session's event loop, and wait for futures;
nothing else is shared but what a holder believes, which any thread may ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from election import LeaderElection, LeaderStore
from haservices.client_name import client_name
from haservices.interface import Guarantee, HAOperations
from haservices.open_services import OpenServices
from haservices.zookeeper.election import ZooKeeperElectionDriver, ZooKeeperElections
from haservices.zookeeper.operations import ZooKeeperOperations
from haservices.zookeeper.paths import ZooKeeperPaths
from haservices.zookeeper.retrieval import (
    ZooKeeperRetrievalDriver,
    ZooKeeperSubscriptions,
)
from haservices.zookeeper.session import ZooKeeperSession
from haservices.zookeeper.store import (
    OwnCommits,
    ZooKeeperStoreDriver,
    cleanup_store,
)
from haservices.zookeeper.store_feeds import ZooKeeperStoreFeeds
from nameservice import ForkGuard, SystemClock, check_component_id
from retrieval import LeaderRetriever


if TYPE_CHECKING:
    from types import TracebackType

    from haservices.config import HAConfig
    from haservices.zookeeper.paths import ComponentPaths


__all__ = ["ZOOKEEPER_GUARANTEES", "ZooKeeperHAServices"]

ZOOKEEPER_GUARANTEES: Final = frozenset(
    {
        Guarantee.ACROSS_PROCESSES,
        Guarantee.SURVIVES_SERVER_LOSS,
        Guarantee.SURVIVES_SERVER_RESTART,
    }
)
"""What every ensemble promises; TLS adds to it."""


@final
class ZooKeeperHAServices:
    """
    One session with a ZooKeeper ensemble; see `HAServices`.

    Args:
        config: Which ensemble, and how to live with it.

    Raises:
        ConfigurationError: If a file that *config* names cannot be used.
        UnreachableError: If no server answered within the connect timeout.
        AuthenticationError: If we were refused.
    """

    def __init__(self, config: HAConfig) -> None:
        self._config = config
        self._fork_guard = ForkGuard()
        self._session = ZooKeeperSession(config, SystemClock())
        self._paths = ZooKeeperPaths(config.chroot, config.cluster_id)
        self._elections = ZooKeeperElections(self._session)
        self._subscriptions = ZooKeeperSubscriptions(self._session)
        self._operations = ZooKeeperOperations(
            self._session, self._paths, self._fork_guard
        )
        self._own_commits = OwnCommits()
        self._open = OpenServices(self._session.close)
        self._session.open()

    @property
    def config(self) -> HAConfig:
        """Return the configuration it was opened with."""
        return self._config

    @property
    def session_id(self) -> str | None:
        """Return the present session's id, or None while there is none."""
        return self._session.session_id_text

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Return what this backend, as it is configured, promises."""
        if self._config.is_encrypted:
            return ZOOKEEPER_GUARANTEES | {Guarantee.ENCRYPTED}
        return ZOOKEEPER_GUARANTEES

    @property
    def operations(self) -> HAOperations:
        """Return what operators may ask and do."""
        return self._operations

    def get_leader_retriever(self, job_id: str) -> LeaderRetriever:
        """Return a new retriever of the leader of *job_id*."""
        paths = self._component(job_id)
        driver = ZooKeeperRetrievalDriver(self._session, self._subscriptions, paths)
        retriever = LeaderRetriever(
            paths.component_id,
            driver,
            clears_on_suspended=self._config.on_suspended == "clear",
            on_closed=self._open.forget,
        )
        self._open.keep(retriever)
        return retriever

    def get_leader_election(self, job_id: str) -> LeaderElection:
        """Return a new election for *job_id*."""
        paths = self._component(job_id)
        driver = ZooKeeperElectionDriver(
            self._session,
            paths,
            self._elections,
            self._operations,
            client=client_name(),
        )
        election = LeaderElection(
            paths.component_id, driver, on_closed=self._open.forget
        )
        self._open.keep(election)
        return election

    def get_leader_store(self, job_id: str) -> LeaderStore:
        """Return the metadata of *job_id* that only its leader may write."""
        paths = self._component(job_id)
        driver = ZooKeeperStoreDriver(
            self._session, paths, self._elections, self._own_commits
        )
        feeds = ZooKeeperStoreFeeds(self._session, paths, self._open)
        return LeaderStore(paths.component_id, driver, feeds=feeds)

    def cleanup(self, job_id: str) -> None:
        """Remove what is stored for *job_id*; never contenders or epochs."""
        cleanup_store(self._session, self._component(job_id))
        self._operations.performed("cleanup", component_id=job_id)

    def close(self) -> None:
        """Release everything, keep what is stored; see `HAServices`."""
        if not self._fork_guard.is_inherited:
            self._session.begin_closing()
            self._open.close()

    def __enter__(self) -> ZooKeeperHAServices:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _component(self, job_id: str) -> ComponentPaths:
        self._fork_guard.check()
        return self._paths.component(check_component_id(job_id, what="a job id"))
