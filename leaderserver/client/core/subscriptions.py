"""
The retrievers of one client, and what is known of the components they ask for.

A part of `ClientCore`.  Several retrievers of one component share one subscription.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import Factory, define

from leaderserver.client.core.events import (
    DeliverToRetriever,
    JoinTopic,
    LeaveTopic,
    ReportToRetriever,
)
from leaderserver.client.core.exchanges import Purpose
from leaderserver.codec import publication_from_record
from leaderserver.messages import SubscribeRequest, UnsubscribeRequest
from nameservice.errors import EpochAheadError
from retrieval.core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    PublicationReceived,
)


if TYPE_CHECKING:
    from collections.abc import Mapping

    from leaderserver.client.core.events import RetrieverAdded
    from leaderserver.client.core.outbox import ClientOutbox
    from leaderserver.messages import Published, SnapshotReply
    from nameservice.errors import NameServiceError
    from retrieval import Publication
    from retrieval.core import RetrieverEvent


__all__ = ["ClientSubscriptions"]


@define(kw_only=True)
class _Subscription:
    """
    What is known of one component.

    Attributes:
        component_id: The component.
        retriever_ids: Who wants to hear of it.
        revision: The newest change known, as this session's server numbers them.
        newest: The highest publication known.
        is_current: Whether the server has told of it since contact was restored.
        refused: What was told of a leader that is older than what we know, or None.
        has_failed: Whether the server has refused to answer what was asked last.
    """

    component_id: str
    retriever_ids: dict[int, None] = Factory(dict)
    revision: int = 0
    newest: Publication | None = None
    is_current: bool = False
    refused: EpochAheadError | None = None
    has_failed: bool = False


@final
class ClientSubscriptions:
    """
    All retrievers of one client.

    Args:
        outbox: Where to put what follows.
    """

    def __init__(self, outbox: ClientOutbox) -> None:
        self._outbox = outbox
        self._subscriptions: dict[str, _Subscription] = {}
        self._retrievers: dict[int, str] = {}

    def add(self, event: RetrieverAdded, *, has_contact: bool) -> None:
        """Enter a retriever; it is told at once what others know already (R1)."""
        self._retrievers[event.retriever_id] = event.component_id
        subscription = self._subscriptions.get(event.component_id)
        if subscription is None:
            subscription = _Subscription(component_id=event.component_id)
            self._subscriptions[event.component_id] = subscription
            self._outbox.exchanges.end((Purpose.UNSUBSCRIBE, event.component_id))
            if self._outbox.has_session:
                self._outbox.emit(JoinTopic(component_id=event.component_id))
            if has_contact:
                self._begin_subscribe(subscription)
        elif subscription.has_failed and has_contact:
            # Why was told before it came, and may be so no more.
            self._begin_subscribe(subscription)
        subscription.retriever_ids[event.retriever_id] = None
        if subscription.is_current:
            restored = ContactRestored(publication=subscription.newest)
            self._tell(event.retriever_id, restored)
        if subscription.refused is not None:
            self._report(event.retriever_id, subscription.refused)

    def remove(self, retriever_id: int) -> None:
        """Remove a retriever, and unsubscribe after the last of a component."""
        component_id = self._retrievers.pop(retriever_id, None)
        if component_id is None:
            return
        subscription = self._subscriptions[component_id]
        del subscription.retriever_ids[retriever_id]
        if subscription.retriever_ids:
            return
        del self._subscriptions[component_id]
        self._outbox.exchanges.end((Purpose.SUBSCRIBE, component_id))
        self._outbox.emit(LeaveTopic(component_id=component_id))
        if self._outbox.has_session:
            body = UnsubscribeRequest(component_id=component_id)
            self._outbox.begin((Purpose.UNSUBSCRIBE, component_id), body)

    def session_begins(self) -> None:
        """Listen for broadcasts where the new session has them."""
        for component_id, subscription in self._subscriptions.items():
            # Its server may be another, which numbers changes from the beginning.
            subscription.revision = 0
            self._outbox.emit(JoinTopic(component_id=component_id))

    # -- contact -------------------------------------------------------------------

    def contact_restored(self) -> None:
        """Ask for everything anew; retrievers hear of contact with the answer."""
        for subscription in self._subscriptions.values():
            self._begin_subscribe(subscription)

    def contact_suspended(self) -> None:
        """Tell everybody that the server has not been heard from."""
        self._tell_all_without_contact(ContactSuspended())

    def contact_lost(self) -> None:
        """Tell everybody that the session is over, or may be."""
        self._tell_all_without_contact(ContactLost())

    def _tell_all_without_contact(self, event: RetrieverEvent) -> None:
        for subscription in self._subscriptions.values():
            subscription.is_current = False
            self._tell_each(subscription, event)

    # -- news ----------------------------------------------------------------------

    def subscribe_request(self, component_id: str) -> SubscribeRequest:
        """Return how to ask for a component, and say what was seen of it (E9)."""
        newest = self._subscriptions[component_id].newest
        return SubscribeRequest(
            component_id=component_id,
            epoch_seen=0 if newest is None else newest.epoch,
            is_ended_seen=newest is not None and newest.leader is None,
        )

    def take_snapshot(
        self, component_id: str, reply: SnapshotReply, *, has_contact: bool
    ) -> None:
        """Take the answer to a subscription; undecided, it is asked for again."""
        if reply.is_undecided:
            return
        subscription = self._subscriptions[component_id]
        subscription.has_failed = False
        self._outbox.exchanges.end((Purpose.SUBSCRIBE, component_id))
        publication = None
        if reply.publication is not None:
            publication = publication_from_record(reply.publication)
            self._check_not_behind(subscription, publication, reply.revision)
            self._keep_newest(subscription, publication)
        if not subscription.is_current and has_contact:
            # The first answer of a server numbers the changes from here on.
            subscription.revision = reply.revision
            subscription.is_current = True
            self._tell_each(subscription, ContactRestored(publication=publication))
            return
        subscription.revision = max(subscription.revision, reply.revision)
        if publication is not None:
            news = PublicationReceived(publication=publication)
            self._tell_each(subscription, news)

    def report(self, error: NameServiceError) -> None:
        """Tell every retriever of what concerns them all."""
        for retriever_id in self._retrievers:
            self._report(retriever_id, error)

    def _check_not_behind(
        self, subscription: _Subscription, publication: Publication, revision: int
    ) -> None:
        """Say, once, that a server has a leader older than what we know (R3)."""
        newest, refused = subscription.newest, subscription.refused
        if (
            newest is None
            or publication.leader is None
            or publication.rank >= newest.rank
            or (refused is not None and publication.epoch == refused.epoch_max)
        ):
            return
        if not subscription.is_current:
            # A broadcast may have overtaken this answer: the next one tells.
            self._begin_subscribe(subscription)
            return
        if revision < subscription.revision:
            return
        name = subscription.component_id.rpartition("/")[2]
        error = EpochAheadError(name, newest.epoch, publication.epoch)
        subscription.refused = error
        for retriever_id in subscription.retriever_ids:
            self._report(retriever_id, error)

    def subscribe_failed(self, component_id: str, error: NameServiceError) -> None:
        """Tell retrievers why they hear nothing."""
        subscription = self._subscriptions[component_id]
        subscription.has_failed = True
        for retriever_id in subscription.retriever_ids:
            self._report(retriever_id, error)

    def take_broadcast(self, message: Published, *, is_numbered: bool) -> None:
        """
        Take a change; a gap in the revisions means that another was lost (N1).

        Args:
            message: The change.
            is_numbered: Whether our session's server has numbered it: what a former
                one has sent may come late, and its number would hide later changes.
        """
        subscription = self._subscriptions.get(message.component_id)
        if subscription is None:
            return
        publication = publication_from_record(message.publication)
        # The first answer says where numbers begin.
        if subscription.is_current and is_numbered:
            self._check_not_behind(subscription, publication, message.revision)
            if message.revision > subscription.revision + 1:
                self._begin_subscribe(subscription)
            subscription.revision = max(subscription.revision, message.revision)
        elif subscription.is_current and publication.leader is not None:
            newest = subscription.newest
            if newest is None or publication.rank > newest.rank:
                # Our server need not know of that leader, and would never tell of its
                # end.  Asking tells the server, and the answer tells us.
                self._begin_subscribe(subscription)
        self._keep_newest(subscription, publication)
        self._tell_each(subscription, PublicationReceived(publication=publication))

    def take_revisions(self, revisions: Mapping[str, int]) -> None:
        """Ask for what the answer to a heartbeat says that we have missed (N1)."""
        for component_id, revision in revisions.items():
            subscription = self._subscriptions.get(component_id)
            if subscription is not None and revision > subscription.revision:
                self._begin_subscribe(subscription)

    def check_invariants(self, *, has_contact: bool) -> None:
        """Assert what holds between any two steps."""
        for retriever_id, component_id in self._retrievers.items():
            assert retriever_id in self._subscriptions[component_id].retriever_ids
        for subscription in self._subscriptions.values():
            assert subscription.retriever_ids
            assert has_contact or not subscription.is_current

    def _begin_subscribe(self, subscription: _Subscription) -> None:
        subscription.has_failed = False
        self._outbox.begin((Purpose.SUBSCRIBE, subscription.component_id), None)

    def _keep_newest(
        self, subscription: _Subscription, publication: Publication
    ) -> None:
        newest = subscription.newest
        if newest is None or publication.rank > newest.rank:
            subscription.newest = publication
            subscription.refused = None

    def _tell_each(self, subscription: _Subscription, event: RetrieverEvent) -> None:
        for retriever_id in subscription.retriever_ids:
            self._tell(retriever_id, event)

    def _report(self, retriever_id: int, error: NameServiceError) -> None:
        self._outbox.emit(ReportToRetriever(retriever_id=retriever_id, error=error))

    def _tell(self, retriever_id: int, event: RetrieverEvent) -> None:
        self._outbox.emit(DeliverToRetriever(retriever_id=retriever_id, event=event))
