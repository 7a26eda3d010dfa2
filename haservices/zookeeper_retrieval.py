"""
Finding the leader of a component on ZooKeeper.

Theory of operation
-------------------
All retrievers of a component share one *subscription*: one watch of the leader's node,
armed again whenever it fires and whenever contact is restored.  Nothing is created
(R6), and a component that nobody ever contended for reads as one without a leader.

That nobody leads is told by a node that is not there, and absence carries no epoch.  A
new session may be served by a follower that lags behind, where the node is absent
because it does not exist *yet*; telling that would outrank the leader for good (R3).
So an absence is believed only if the children of the component's node have changed
since the publication that we know was created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from haservices.zookeeper_nodes import NodeMissingError
from haservices.zookeeper_records import decode_leader
from haservices.zookeeper_session import when_done
from nameservice import AuthenticationError, RemoteProtocolError, get_logger
from retrieval.core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    PublicationReceived,
)
from retrieval.information import Publication


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from haservices.zookeeper_nodes import Node, NodeStat
    from haservices.zookeeper_paths import ComponentPaths
    from haservices.zookeeper_session import ZooKeeperSession
    from retrieval.core import RetrieverEvent


__all__ = ["ZooKeeperRetrievalDriver", "ZooKeeperSubscriptions"]


@final
class ZooKeeperSubscriptions:
    """The subscriptions of one session; for the event loop alone."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._subscriptions: dict[str, _Subscription] = {}

    def add(self, driver: ZooKeeperRetrievalDriver, paths: ComponentPaths) -> None:
        """Bring *driver* what is published of the component of *paths*."""
        subscription = self._subscriptions.get(paths.component_id)
        if subscription is None:
            subscription = _Subscription(self._session, paths)
            self._subscriptions[paths.component_id] = subscription
            subscription.start()
        subscription.add(driver)

    def remove(self, driver: ZooKeeperRetrievalDriver, paths: ComponentPaths) -> None:
        """Bring *driver* nothing more; stop watching if it was the last."""
        subscription = self._subscriptions.get(paths.component_id)
        if subscription is not None and subscription.remove(driver):
            del self._subscriptions[paths.component_id]
            subscription.stop()


@final
class ZooKeeperRetrievalDriver:
    """A `LeaderRetrievalDriver` over a `ZooKeeperSession`."""

    def __init__(
        self,
        session: ZooKeeperSession,
        subscriptions: ZooKeeperSubscriptions,
        paths: ComponentPaths,
    ) -> None:
        self._session = session
        self._subscriptions = subscriptions
        self._paths = paths
        self._deliver: Callable[[RetrieverEvent], None] | None = None
        self._fail: Callable[[Exception], None] | None = None

    def open(
        self,
        deliver: Callable[[RetrieverEvent], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Begin to bring news; return without waiting for any."""
        self._deliver = deliver
        self._fail = fail
        self._session.loop.call(lambda: self._subscriptions.add(self, self._paths))

    def close(self) -> None:
        """Stop.  Idempotent."""
        self._session.loop.call(lambda: self._subscriptions.remove(self, self._paths))

    def deliver(self, event: RetrieverEvent) -> None:
        """Take news; on the loop."""
        assert self._deliver is not None
        self._deliver(event)

    def fail(self, error: Exception) -> None:
        """Take what the listener should hear of; on the loop."""
        assert self._fail is not None
        self._fail(error)


@final
class _Subscription:
    """One component's publications, and who wants them."""

    def __init__(self, session: ZooKeeperSession, paths: ComponentPaths) -> None:
        self._session = session
        self._paths = paths
        self._log = get_logger(
            component="subscription", component_id=paths.component_id
        )
        self._drivers: dict[ZooKeeperRetrievalDriver, None] = {}
        self._newest: Publication | None = None
        self._newest_zxid = 0
        self._is_current = False
        self._is_stopped = False

    def start(self) -> None:
        self._session.add_listener(self)

    def stop(self) -> None:
        self._is_stopped = True
        self._session.remove_listener(self)
        self._session.unwatch(self._paths.leader, self._read)

    def add(self, driver: ZooKeeperRetrievalDriver) -> None:
        self._drivers[driver] = None
        if self._is_current:
            driver.deliver(ContactRestored(publication=self._newest))

    def remove(self, driver: ZooKeeperRetrievalDriver) -> bool:
        """Remove *driver*; return whether nobody is left."""
        self._drivers.pop(driver, None)
        return not self._drivers

    # -- what the session tells ------------------------------------------------------

    def contact_restored(self) -> None:
        """Ask anew; contact counts as restored when there is an answer."""
        self._read()

    def contact_suspended(self) -> None:
        """Pass it on."""
        self._is_current = False
        self._tell(ContactSuspended())

    def contact_lost(self) -> None:
        """Pass it on."""
        self._is_current = False
        self._tell(ContactLost())

    def session_ended(self) -> None:
        """Pass it on: what the session knew may be out of date."""
        self._is_current = False
        self._tell(ContactLost())

    def session_refused(self, error: AuthenticationError) -> None:
        """Pass it on."""
        for driver in tuple(self._drivers):
            driver.fail(error)

    # -- reading ---------------------------------------------------------------------

    def _read(self) -> None:
        """Arm the watch, then look: whatever comes later is told by the watch."""
        if self._is_stopped or not self._session.is_connected:
            return  # read when contact is restored
        self._session.watch(self._paths.leader, self._read)
        leader = self._session.connection.get(self._paths.leader)
        component = self._session.connection.exists(self._paths.node)
        # Answers come in the order of the questions: the last one completes the set.
        when_done(component, lambda answer: self._take(leader, answer))

    def _take(self, leader: Future[Node], component: Future[NodeStat | None]) -> None:
        if self._is_stopped:
            return
        try:
            self._take_answers(leader, component)
        except (AuthenticationError, RemoteProtocolError) as error:
            self._log.warning("retrieval.failed", error=str(error))
            for driver in tuple(self._drivers):
                driver.fail(error)

    def _take_answers(
        self, leader: Future[Node], component: Future[NodeStat | None]
    ) -> None:
        error = component.exception()
        if error is not None and not isinstance(
            error, AuthenticationError | RemoteProtocolError
        ):
            return  # the connection is gone: read when contact is restored
        parent = component.result()
        try:
            node = leader.result()
        except NodeMissingError:
            publication = self._absence(parent)
        else:
            record = decode_leader(node.value, path=self._paths.leader)
            publication = record.to_publication()
        if publication is not None and (
            self._newest is None or publication.rank > self._newest.rank
        ):
            self._newest = publication
            if publication.leader is not None:
                self._newest_zxid = leader.result().stat.created_zxid
        if not self._is_current:
            self._is_current = True
            self._tell(ContactRestored(publication=self._newest))
        elif publication is not None:
            self._tell(PublicationReceived(publication=publication))

    def _absence(self, parent: NodeStat | None) -> Publication | None:
        """Return what the absence of the leader's node says, if it says anything."""
        newest = self._newest
        if newest is None or newest.leader is None:
            return None
        if parent is not None and parent.children_zxid <= self._newest_zxid:
            return None  # not deleted, but not there yet, where we look
        return Publication(
            epoch=newest.epoch, confirm_count=newest.confirm_count, leader=None
        )

    def _tell(self, event: RetrieverEvent) -> None:
        for driver in tuple(self._drivers):
            driver.deliver(event)
