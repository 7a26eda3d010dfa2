"""What operators ask and do over a `LeaderClient`: LeaderServer and embedded."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from election import ContenderInformation, LeaderSession
from haservices.interface import ComponentInformation, SessionInformation
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
from nameservice import NS_PER_SECOND, check_component_id, check_contender_id
from nameservice.fields import check_identifier


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leaderserver.client.client import LeaderClient


__all__ = ["ClientOperations"]


@final
class ClientOperations:
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
