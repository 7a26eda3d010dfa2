"""`HAServices` over a `LeaderClient`, whatever its link: LeaderServer and embedded."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from election import (
    ContenderInformation,
    LeaderElection,
    LeaderSession,
    LeaderStore,
    Put,
    VersionedValue,
)
from haservices.client_store_feeds import ClientStoreFeeds
from haservices.interface import (
    ComponentInformation,
    Guarantee,
    HAOperations,
    SessionInformation,
)
from haservices.open_services import OpenServices
from leaderserver.codec import publication_from_record
from leaderserver.operator_messages import (
    ComponentsReply,
    ContendersReply,
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
    RevokedReply,
    RevokeRequest,
    SessionsReply,
    SessionsRequest,
    StatusReply,
    StatusRequest,
    TransferredReply,
    TransferRequest,
)
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
from nameservice import (
    NS_PER_SECOND,
    check_component_id,
    check_contender_id,
    seconds_to_ns,
)
from nameservice.fields import check_identifier
from nameservice.interruptible import InterruptibleEvent
from retrieval import LeaderRetriever


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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
        self._operations = _ClientOperations(client, config.cluster_id)
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
        operations: _ClientOperations,
    ) -> None:
        self._client = client
        self._component_id = component_id
        self._clock = clock
        self._confirm_timeout_ns = confirm_timeout_ns
        self._operations = operations
        self._contender_id: str | None = None
        self._holder: HolderCore | None = None
        self._is_added = InterruptibleEvent()

    def open(
        self,
        deliver: Callable[[DeliverGrant | DeliverRevoke], None],
        fail: Callable[[Exception], None],
    ) -> None:
        # Known at once: a `close` in the next moment withdraws what was entered.
        self._contender_id = self._client.add_contender(
            self._component_id,
            confirm_timeout_ns=self._confirm_timeout_ns,
            on_added=self._added,
            deliver=deliver,
            fail=fail,
        )

    def _added(self, contender_id: str, holder: HolderCore) -> None:
        self._contender_id = contender_id  # the grant may be here before `open` returns
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
        assert self._contender_id is not None
        self._client.confirm(self._contender_id, leader_session_id, address)

    def revoke_delivered(self) -> None:
        if self._contender_id is not None:
            self._client.revoke_returned(self._contender_id)

    def withdraw(self) -> None:
        if self._contender_id is not None:
            self._client.remove_contender(self._contender_id)

    def contenders(self) -> Sequence[ContenderInformation]:
        return self._operations.contenders_of(self._component_id)


@final
class _RetrievalDriver:
    """A `LeaderRetrievalDriver` over a `LeaderClient`."""

    def __init__(self, client: LeaderClient, component_id: str) -> None:
        self._client = client
        self._component_id = component_id
        self._retriever_id: int | None = None

    def open(
        self,
        deliver: Callable[[RetrieverEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._retriever_id = self._client.add_retriever(
            self._component_id, deliver=deliver, fail=fail
        )

    def close(self) -> None:
        if self._retriever_id is not None:
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


@final
class _ClientOperations:
    """`HAOperations` over a `LeaderClient`."""

    def __init__(self, client: LeaderClient, cluster_id: str) -> None:
        self._client = client
        self._prefix = f"{cluster_id}/"

    def leaders(self) -> Sequence[ComponentInformation]:
        """Return every component that has a contender or a leader, sorted by id."""
        components: list[ComponentInformation] = []
        after = ""
        while True:
            reply = self._client.call(
                LeadersRequest(prefix=self._prefix, after=after), is_repeatable=True
            )
            assert isinstance(reply, ComponentsReply)
            for record in reply.components:
                after = record.component_id
                publication = None
                if record.publication is not None:
                    publication = publication_from_record(record.publication)
                components.append(
                    ComponentInformation(
                        component_id=after.removeprefix(self._prefix),
                        leader=None if publication is None else publication.leader,
                        contender_count=record.contender_count,
                        epoch=record.epoch or None,
                    )
                )
            if reply.is_complete:
                return components

    def contenders(self, component_id: str) -> Sequence[ContenderInformation]:
        """Return the contenders of *component_id* in order, the leader first."""
        return self.contenders_of(self._prefix + check_component_id(component_id))

    def contenders_of(self, wire_id: str) -> Sequence[ContenderInformation]:
        """Return the contenders of a component as it is named on the wire."""
        reply = self._client.call(
            ContendersRequest(component_id=wire_id), is_repeatable=True
        )
        assert isinstance(reply, ContendersReply)
        return [
            ContenderInformation(
                contender_id=record.contender_id,
                session_id=record.session_id,
                address=record.address,
                is_leader=record.is_leader,
                session_age_seconds=record.session_age_ns / NS_PER_SECOND,
                last_heard_seconds=record.last_heard_ns / NS_PER_SECOND,
            )
            for record in reply.contenders
        ]

    def sessions(self) -> Sequence[SessionInformation]:
        """Return every session, sorted by id, with what it has in this cluster."""
        sessions: list[SessionInformation] = []
        after = ""
        while True:
            reply = self._client.call(SessionsRequest(after=after), is_repeatable=True)
            assert isinstance(reply, SessionsReply)
            for record in reply.sessions:
                after = record.session_id
                sessions.append(
                    SessionInformation(
                        session_id=record.session_id,
                        client=record.client,
                        component_ids=self._ours(record.component_ids),
                        leads_component_ids=self._ours(record.leads_component_ids),
                        age_seconds=record.age_ns / NS_PER_SECOND,
                        last_heard_seconds=record.last_heard_ns / NS_PER_SECOND,
                        timeout_seconds=record.timeout_ns / NS_PER_SECOND,
                    )
                )
            if reply.is_complete:
                return sessions

    def status(self) -> Mapping[str, str | int | float]:
        """Return the figures of the name service itself, by name."""
        reply = self._client.call(StatusRequest(), is_repeatable=True)
        assert isinstance(reply, StatusReply)
        return reply.figures | {
            "publisher_reached": int(self._client.is_publisher_reached)
        }

    def revoke(self, component_id: str) -> LeaderSession:
        """End the present leadership of *component_id*; its holder queues last."""
        wire_id = self._prefix + check_component_id(component_id)
        reply = self._client.call(
            RevokeRequest(component_id=wire_id),
            is_repeatable=False,
        )
        assert isinstance(reply, RevokedReply)
        return LeaderSession(
            leader_session_id=reply.leader_session_id, epoch=reply.epoch
        )

    def transfer(self, component_id: str, contender_id: str) -> LeaderSession | None:
        """Make *contender_id* lead *component_id* next; its holder queues last."""
        component_id = check_component_id(component_id)
        contender_id = check_contender_id(contender_id, component_id=component_id)
        reply = self._client.call(
            TransferRequest(
                component_id=self._prefix + component_id, contender_id=contender_id
            ),
            is_repeatable=False,
        )
        assert isinstance(reply, TransferredReply)
        if reply.leader_session_id is None:
            return None
        return LeaderSession(
            leader_session_id=reply.leader_session_id, epoch=reply.epoch
        )

    def expire(self, session_id: str) -> None:
        """End a session as if it had fallen silent."""
        checked = check_identifier(session_id, what="a session id")
        self._client.call(ExpireRequest(session_id=checked), is_repeatable=False)

    def _ours(self, component_ids: Sequence[str]) -> Sequence[str]:
        return [
            component_id.removeprefix(self._prefix)
            for component_id in component_ids
            if component_id.startswith(self._prefix)
        ]
