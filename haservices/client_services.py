"""`HAServices` over a `LeaderClient`, whatever its link: LeaderServer and embedded."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, final

from election import (
    ContenderInformation,
    LeaderElection,
    LeaderSession,
    LeaderStore,
    Put,
    VersionedValue,
)
from haservices.client_operations import ClientOperations
from haservices.client_store_feeds import ClientStoreFeeds
from haservices.interface import Guarantee, HAOperations
from haservices.open_services import OpenServices
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    DeleteRecord,
    GetRequest,
    ListRequest,
    PathsReply,
    PutRecord,
    ValueReply,
)
from nameservice import check_component_id, seconds_to_ns
from nameservice.interruptible import InterruptibleEvent
from retrieval import LeaderRetriever


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from uuid import UUID

    from election import StoreOperation
    from election.holder import DeliverGrant, DeliverRevoke, HolderCore
    from haservices.config import HAConfig
    from leaderserver.client.client import LeaderClient
    from nameservice import Clock
    from retrieval import RetrieverEvent


__all__ = ["ClientHAServices", "commit_request"]


@final
class ClientHAServices:
    """
    One session with a LeaderServer, as the application sees it.

    Made by a backend, which has opened the client and knows its guarantees.
    """

    def __init__(
        self,
        config: HAConfig,
        client: LeaderClient,
        *,
        clock: Clock,
        guarantees: frozenset[Guarantee],
        on_closing: Callable[[], None] | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._client = client
        self._clock = clock
        self._guarantees = guarantees
        self._on_closing = on_closing
        self._on_closed = on_closed
        self._operations = ClientOperations(client, config.cluster_id)
        self._open = OpenServices(self._end)

    @property
    def config(self) -> HAConfig:
        """Return the configuration it was opened with."""
        return self._config

    @property
    def session_id(self) -> str | None:
        """Return the present session's id, or None while there is none."""
        return self._client.session_id

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Return what this backend, as it is configured, promises."""
        return self._guarantees

    @property
    def operations(self) -> HAOperations:
        """Return what operators may ask and do."""
        return self._operations

    def get_leader_retriever(self, job_id: str) -> LeaderRetriever:
        """Return a new retriever of the leader of *job_id*."""
        job_id, component_id = self._names(job_id)
        retriever = LeaderRetriever(
            job_id,
            _RetrievalDriver(self._client, component_id),
            clears_on_suspended=self._config.on_suspended == "clear",
            on_closed=self._open.forget,
        )
        self._open.keep(retriever)
        return retriever

    def get_leader_election(self, job_id: str) -> LeaderElection:
        """Return a new election for *job_id*."""
        job_id, component_id = self._names(job_id)
        driver = _ElectionDriver(
            self._client,
            component_id,
            clock=self._clock,
            confirm_timeout_ns=seconds_to_ns(
                self._config.effective_confirm_timeout_seconds
            ),
            operations=self._operations,
        )
        election = LeaderElection(job_id, driver, on_closed=self._open.forget)
        self._open.keep(election)
        return election

    def get_leader_store(self, job_id: str) -> LeaderStore:
        """Return the metadata of *job_id* that only its leader may write."""
        job_id, component_id = self._names(job_id)
        feeds = ClientStoreFeeds(
            self._client,
            component_id,
            self._open,
            refresh_seconds=self._config.session_timeout_seconds / 3,
        )
        driver = _StoreDriver(self._client, component_id)
        return LeaderStore(job_id, driver, feeds=feeds)

    def cleanup(self, job_id: str) -> None:
        """Remove what is stored for *job_id*; never contenders or epochs."""
        _, component_id = self._names(job_id)
        self._client.call(CleanupRequest(component_id=component_id), is_repeatable=True)

    def close(self) -> None:
        """Release everything, keep what is stored; see `HAServices`."""
        if self._client.fork_guard.is_inherited:
            return
        self._client.begin_closing()
        if self._on_closing is not None:
            self._on_closing()
        self._open.close()

    def _end(self) -> None:
        try:
            self._client.close()
        finally:
            if self._on_closed is not None:
                self._on_closed()

    def __enter__(self) -> ClientHAServices:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _names(self, job_id: str) -> tuple[str, str]:
        """Return *job_id*, checked, and what it is called on the wire."""
        self._client.fork_guard.check()
        checked = check_component_id(job_id, what="a job id")
        return checked, f"{self._config.cluster_id}/{checked}"


@final
class _ElectionDriver:
    """A `LeaderElectionDriver` over a `LeaderClient`."""

    def __init__(
        self,
        client: LeaderClient,
        component_id: str,
        *,
        clock: Clock,
        confirm_timeout_ns: int,
        operations: ClientOperations,
    ) -> None:
        self._client = client
        self._component_id = component_id
        self._clock = clock
        self._confirm_timeout_ns = confirm_timeout_ns
        self._operations = operations
        self._contender_id = uuid.uuid4().hex
        self._is_entered = False
        self._holder: HolderCore | None = None
        self._is_added = InterruptibleEvent()

    def open(
        self,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._is_entered = True  # first: it may be interrupted, and withdrawn then
        self._client.add_contender(
            self._contender_id,
            self._component_id,
            confirm_timeout_ns=self._confirm_timeout_ns,
            on_added=self._added,
            deliver=deliver,
            fail=fail,
        )

    def _added(self, holder: HolderCore) -> None:
        self._holder = holder
        self._is_added.set()

    def believes(self, leader_session_id: UUID) -> bool:
        holder = self._holder
        return holder is not None and holder.believes(
            leader_session_id, now_ns=self._clock.now_ns()
        )

    def belief_left_ns(self, leader_session_id: UUID) -> int:
        holder = self._holder
        if holder is None:
            return 0
        return holder.belief_left_ns(leader_session_id, now_ns=self._clock.now_ns())

    def confirm(self, leader_session_id: UUID, address: str) -> None:
        self._is_added.wait()
        self._client.confirm(self._contender_id, leader_session_id, address)

    def revoke_delivered(self) -> None:
        self._client.revoke_returned(self._contender_id)

    def withdraw(self) -> None:
        if self._is_entered:
            self._client.remove_contender(self._contender_id)

    def contenders(self) -> Sequence[ContenderInformation]:
        return self._operations.contenders_of(self._component_id)


@final
class _RetrievalDriver:
    """A `LeaderRetrievalDriver` over a `LeaderClient`."""

    def __init__(self, client: LeaderClient, component_id: str) -> None:
        self._client = client
        self._component_id = component_id
        self._retriever_id = client.new_retriever_id()

    def open(
        self,
        deliver: Callable[[RetrieverEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._client.add_retriever(
            self._retriever_id, self._component_id, deliver=deliver, fail=fail
        )

    def close(self) -> None:
        self._client.remove_retriever(self._retriever_id)


@final
class _StoreDriver:
    """A `LeaderStoreDriver` over a `LeaderClient`."""

    def __init__(self, client: LeaderClient, component_id: str) -> None:
        self._client = client
        self._component_id = component_id

    def get(self, path: str) -> VersionedValue | None:
        reply = self._client.call(
            GetRequest(component_id=self._component_id, path=path), is_repeatable=True
        )
        assert isinstance(reply, ValueReply)
        if reply.version == 0:
            return None
        return VersionedValue(value=reply.value, version=reply.version)

    def list(self, prefix: str) -> list[str]:
        paths: list[str] = []
        while True:
            after = paths[-1] if paths else ""
            reply = self._client.call(
                ListRequest(
                    component_id=self._component_id, prefix=prefix, after=after
                ),
                is_repeatable=True,
            )
            assert isinstance(reply, PathsReply)
            paths += reply.paths
            if reply.is_complete:
                return paths

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        self._client.call(
            commit_request(self._component_id, operations, session),
            is_repeatable=False,
        )


def commit_request(
    component_id: str, operations: Sequence[StoreOperation], session: LeaderSession
) -> CommitRequest:
    """Return the request that does *operations*, which are checked, under *session*."""
    return CommitRequest(
        component_id=component_id,
        leader_session_id=session.leader_session_id,
        epoch=session.epoch,
        operations=[
            PutRecord(
                path=operation.path, value=operation.value, version=operation.version
            )
            if isinstance(operation, Put)
            else DeleteRecord(path=operation.path, version=operation.version)
            for operation in operations
        ],
    )
