"""
The public API as its users' type checkers see it; never run, but checked by mypy.

What stands here is what design and documentation promise.  A change that mypy refuses
here breaks somebody's type check, if not their program.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import assert_type
from uuid import UUID

from election import (
    ContenderInformation,
    Delete,
    LeaderContender,
    LeaderElection,
    LeaderSession,
    LeaderStore,
    Put,
    StoreChange,
    StoreWatch,
    VersionedValue,
)
from haservices import (
    AsyncLeadership,
    ComponentInformation,
    Guarantee,
    HAConfig,
    HAOperations,
    HAServices,
    Leadership,
    SessionInformation,
    campaign,
    campaign_async,
    open_ha_services,
)
from nameservice import (
    DISPATCHER,
    QUERY_PROXY,
    RESOURCE_MANAGER,
    REST_ENDPOINT,
    ConfigurationError,
    LeadershipLostError,
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
    StaleEpochError,
    UnreachableError,
)
from retrieval import LeaderInformation, LeaderRetrievalListener, LeaderRetriever


class Contender:
    """Needs no base class of ours."""

    def __init__(self, election: LeaderElection) -> None:
        self.election = election
        self.session: LeaderSession | None = None

    def grant_leadership(self, session: LeaderSession) -> None:
        """Confirm what was granted."""
        assert_type(session.leader_session_id, UUID)
        assert_type(session.epoch, int)
        self.session = session
        self.election.confirm_leadership(session.leader_session_id, "10.0.0.7:4040")

    def revoke_leadership(self) -> None:
        """Stop leading."""
        self.session = None

    def handle_error(self, error: Exception) -> None:
        """Take note."""


class Listener:
    """Needs no base class of ours."""

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Take note."""
        if leader is not None:
            assert_type(leader.address, str)
            assert_type(leader.leader_session_id, UUID)
            assert_type(leader.epoch, int)

    def handle_error(self, error: Exception) -> None:
        """Take note."""


def configure() -> None:
    """Every way to configure."""
    config = HAConfig(url="leaderserver://10.0.0.5:5170", cluster_id="prod")
    assert_type(HAConfig.load(), HAConfig)
    assert_type(HAConfig.load("lodestar.toml", url="embedded:"), HAConfig)
    HAConfig(
        url="zookeeper://h1:2181,h2:2181/chroot",
        session_timeout_seconds=10.0,
        lease_seconds=0.5,
        confirm_timeout_seconds=10.0,
        connect_timeout_seconds=5,
        on_suspended="clear",
        curve_public_key_file="own.public",
        curve_secret_key_file="own.secret",
        curve_server_key_file="server.public",
        zookeeper_auth_file="zookeeper.auth",
        zookeeper_tls_ca_file="ca.pem",
        zookeeper_tls_cert_file="own.pem",
        zookeeper_tls_key_file="own.key",
    )
    HAConfig(url="embedded:", on_suspended="panic")  # type: ignore[arg-type]
    HAConfig("embedded:")  # type: ignore[call-arg]
    config.url = "embedded:"  # type: ignore[misc]
    with open_ha_services(config) as ha:
        assert_type(ha, HAServices)
    with open_ha_services("embedded:suite") as ha:
        assert_type(ha.config, HAConfig)
        assert_type(ha.guarantees, frozenset[Guarantee])
        ha.cleanup("flights")
        ha.close()


def contend(ha: HAServices) -> None:
    """Become the leader."""
    election = ha.get_leader_election("flights")
    assert_type(election, LeaderElection)
    contender: LeaderContender = Contender(election)
    with election:
        election.start(contender)
    for component_id in (RESOURCE_MANAGER, DISPATCHER, REST_ENDPOINT, QUERY_PROXY):
        ha.get_leader_election(component_id)
    election.start(Listener())  # type: ignore[arg-type]


def lead(election: LeaderElection, session: LeaderSession) -> None:
    """Act as the leader."""
    identity = session.leader_session_id
    assert_type(election.component_id, str)
    assert_type(election.has_leadership(identity), bool)
    assert_type(election.run_if_leader(identity, lambda: 7), Future[int])
    assert_type(election.contenders(), Sequence[ContenderInformation])
    for contender in election.contenders():
        assert_type(contender.contender_id, str)
        assert_type(contender.address, str | None)
        assert_type(contender.is_leader, bool)
        assert_type(contender.session_age_seconds, float | None)
        assert_type(contender.last_heard_seconds, float | None)
    election.close()


def lead_for_a_while(ha: HAServices) -> None:
    """Lead for the length of a block."""
    with campaign(ha, "flights", "10.0.0.7:4040", timeout_seconds=30.0) as leadership:
        assert_type(leadership, Leadership)
        assert_type(leadership.leader_session_id, UUID)
        assert_type(leadership.epoch, int)
        assert_type(leadership.session, LeaderSession)
        assert_type(leadership.lost, threading.Event)
        leadership.check()


async def lead_async(ha: HAServices) -> None:
    """Lead without blocking an event loop."""

    async def act() -> int:
        return 7

    async with campaign_async(ha, "flights", "h:1", timeout_seconds=30.0) as leadership:
        assert_type(leadership, AsyncLeadership)
        assert_type(leadership.leader_session_id, UUID)
        assert_type(leadership.epoch, int)
        assert_type(leadership.session, LeaderSession)
        assert_type(leadership.lost, asyncio.Event)
        assert_type(await leadership.run_if_leader(act), int)
        leadership.check()
    election = ha.get_leader_election("flights")
    await election.confirm_leadership_async(leadership.leader_session_id, "h:1")
    assert_type(
        await election.run_if_leader_async(leadership.leader_session_id, act), int
    )
    assert_type(await election.contenders_async(), Sequence[ContenderInformation])
    await election.close_async()


def retrieve(ha: HAServices) -> None:
    """Find the leader."""
    listener: LeaderRetrievalListener = Listener()
    with ha.get_leader_retriever("flights") as retriever:
        assert_type(retriever, LeaderRetriever)
        assert_type(retriever.component_id, str)
        assert_type(retriever.leader, LeaderInformation | None)
        assert_type(retriever.wait_for_leader(), LeaderInformation)
        assert_type(retriever.wait_for_leader(timeout_seconds=5), LeaderInformation)
        assert_type(retriever.changes(), Iterator[LeaderInformation | None])
    other = ha.get_leader_retriever("flights")
    other.start(listener)
    other.close()


async def retrieve_async(retriever: LeaderRetriever) -> None:
    """Find the leader without blocking an event loop."""
    assert_type(await retriever.wait_for_leader_async(), LeaderInformation)
    assert_type(await retriever.wait_for_leader_async(5.0), LeaderInformation)
    assert_type(retriever.changes_async(), AsyncIterator[LeaderInformation | None])
    async for leader in retriever.changes_async():
        assert_type(leader, LeaderInformation | None)


def store(ha: HAServices, session: LeaderSession) -> None:
    """Keep what only the leader may write."""
    metadata = ha.get_leader_store("flights")
    assert_type(metadata, LeaderStore)
    value = metadata.get("totals/AA")
    assert_type(value, VersionedValue | None)
    if value is not None:
        assert_type(value.value, bytes)
        assert_type(value.version, int)
    assert_type(metadata.list("totals/"), list[str])
    metadata.commit(
        [Put("totals/AA", b"1"), Put("totals/UA", b"2", 0), Delete("old", version=3)],
        session=session,
    )
    metadata.put("totals/AA", b"2", session=session, version=1)
    metadata.delete("totals/AA", session=session)
    with metadata.watch("totals/AA") as watch:
        assert_type(watch, StoreWatch)
        for change in watch:
            assert_type(change, StoreChange)
            assert_type(change.path, str)
            assert_type(change.value, VersionedValue | None)
    metadata.watch_prefix("totals/").close()
    metadata.watch(None)  # type: ignore[arg-type]
    metadata.put("totals/AA", "text", session=session)  # type: ignore[arg-type]
    metadata.put("totals/AA", b"2")  # type: ignore[call-arg]


async def watch_async(store: LeaderStore) -> None:
    """Follow the store without blocking an event loop."""
    async for change in store.watch_prefix():
        assert_type(change, StoreChange)


def operate(operations: HAOperations) -> None:
    """Ask and do what operators may."""
    assert_type(operations.leaders(), Sequence[ComponentInformation])
    assert_type(operations.contenders("flights"), Sequence[ContenderInformation])
    assert_type(operations.sessions(), Sequence[SessionInformation])
    assert_type(operations.status(), Mapping[str, str | int | float])
    assert_type(operations.revoke("flights"), LeaderSession)
    assert_type(operations.transfer("flights", "c-1"), LeaderSession | None)
    operations.expire("session-1")


def handle(election: LeaderElection, session: LeaderSession) -> None:
    """Tell errors apart, and read their data."""
    try:
        election.confirm_leadership(session.leader_session_id, "10.0.0.7:4040")
    except LeadershipLostError as error:
        assert_type(error.component_id, str)
        assert_type(error.epoch, int | None)
    except StaleEpochError as error:
        assert_type(error.epoch, int)
        assert_type(error.epoch_max, int | None)
    except NoLeaderError as error:
        assert_type(error.waited_seconds, float)
    except UnreachableError as error:
        assert_type(error.target, str)
    except (ConfigurationError, MayHaveHappenedError) as error:
        assert_type(error, ConfigurationError | MayHaveHappenedError)
    except NameServiceError:
        raise
