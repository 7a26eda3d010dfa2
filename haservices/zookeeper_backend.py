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
from haservices.zookeeper_election import ZooKeeperElectionDriver, ZooKeeperElections
from haservices.zookeeper_operations import ZooKeeperOperations
from haservices.zookeeper_paths import ZooKeeperPaths
from haservices.zookeeper_retrieval import (
    ZooKeeperRetrievalDriver,
    ZooKeeperSubscriptions,
)
from haservices.zookeeper_session import ZooKeeperSession
from haservices.zookeeper_store import (
    StoreGuesses,
    ZooKeeperStoreDriver,
    cleanup_store,
)
from nameservice import ForkGuard, SystemClock, check_component_id
from retrieval import LeaderRetriever


if TYPE_CHECKING:
    from types import TracebackType

    from haservices.config import HAConfig
    from haservices.zookeeper_paths import ComponentPaths


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
        UnreachableError: If nobody answered within the connect timeout.
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
        self._guesses = StoreGuesses()
        self._open = OpenServices()
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
        driver = ZooKeeperRetrievalDriver(
            self._session, self._subscriptions, self._component(job_id)
        )
        retriever = LeaderRetriever(
            job_id,
            driver,
            clears_on_suspended=self._config.on_suspended == "clear",
            on_closed=self._open.forget,
        )
        self._open.keep(retriever)
        return retriever

    def get_leader_election(self, job_id: str) -> LeaderElection:
        """Return a new election for *job_id*."""
        driver = ZooKeeperElectionDriver(
            self._session,
            self._component(job_id),
            self._elections,
            self._operations,
            client=client_name(),
        )
        election = LeaderElection(job_id, driver, on_closed=self._open.forget)
        self._open.keep(election)
        return election

    def get_leader_store(self, job_id: str) -> LeaderStore:
        """Return the metadata of *job_id* that only its leader may write."""
        driver = ZooKeeperStoreDriver(
            self._session, self._component(job_id), self._elections, self._guesses
        )
        return LeaderStore(job_id, driver)

    def cleanup(self, job_id: str) -> None:
        """Remove what is stored for *job_id*; never contenders or epochs."""
        cleanup_store(self._session, self._component(job_id))

    def close(self) -> None:
        """Release everything, keep what is stored.  Idempotent."""
        if self._fork_guard.is_inherited:
            return
        if not self._open.begin_closing():
            return
        self._session.begin_closing()
        try:
            self._open.close_all()
        finally:
            self._session.close()

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
        check_component_id(job_id, what="a job id")
        return self._paths.component(job_id)
