"""
Finding the leader of a component on ZooKeeper.

All retrievers of a component share one *subscription*, a thin shell: what is read,
when, and what follows is decided by `RetrievalCore` (retrieval_core.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never, final

from haservices.zookeeper.reading import or_none
from haservices.zookeeper.retrieval_core import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    LeaderNodeChanged,
    LeaderRead,
    ReadFailed,
    ReadLeader,
    RetrievalCore,
    RetrieverJoined,
    SessionRefused,
    Tell,
    TellError,
)
from nameservice import NameServiceError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from haservices.zookeeper.nodes import Node, NodeStat
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.retrieval_core import RetrievalEvent
    from haservices.zookeeper.session import ZooKeeperSession
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
        self._core = RetrievalCore(leader=paths.leader)
        self._is_stopped = False

    def start(self) -> None:
        self._session.add_listener(self)

    def stop(self) -> None:
        self._is_stopped = True
        self._session.remove_listener(self)
        self._session.watches.remove(self._paths.leader, self._leader_changed)

    def add(self, driver: ZooKeeperRetrievalDriver) -> None:
        self._drivers[driver] = None
        news, refusal = self._core.news_for_newcomer, self._core.refusal
        if news is not None:
            driver.deliver(news)
        if refusal is not None:
            driver.fail(refusal)
        self._step(RetrieverJoined())

    def remove(self, driver: ZooKeeperRetrievalDriver) -> bool:
        """Remove *driver*; return whether none is left."""
        self._drivers.pop(driver, None)
        return not self._drivers

    # -- what the session tells ------------------------------------------------------

    def contact_restored(self) -> None:
        """Ask anew; contact counts as restored when there is an answer."""
        self._step(ContactRestored())

    def contact_suspended(self) -> None:
        """Pass it on."""
        self._step(ContactSuspended())

    def contact_lost(self) -> None:
        """Pass it on."""
        self._step(ContactLost())

    def session_ended(self) -> None:
        """Pass it on: what the session knew may be out of date."""
        self._step(ContactLost())

    def session_refused(self, error: NameServiceError) -> None:
        """Pass it on."""
        self._step(SessionRefused(error=error))

    # -- the core --------------------------------------------------------------------

    def _step(self, event: RetrievalEvent) -> None:
        """Have the core decide, and do so."""
        if self._is_stopped:
            return
        for effect in self._core.step(event):
            match effect:
                case ReadLeader(number=number):
                    self._read(number)
                case Tell(event=news):
                    for driver in tuple(self._drivers):
                        driver.deliver(news)
                case TellError(error=error):
                    self._log.warning("retrieval.failed", error=str(error))
                    for driver in tuple(self._drivers):
                        driver.fail(error)
                case _:
                    assert_never(effect)

    def _leader_changed(self) -> None:
        self._step(LeaderNodeChanged())

    def _read(self, number: int) -> None:
        self._session.watches.add(self._paths.leader, self._leader_changed)
        leader = or_none(self._session.connection.get(self._paths.leader))
        component = self._session.connection.exists(self._paths.node)
        # Answers come in the order of the questions: the last one completes the set.
        component.add_done_callback(lambda answer: self._take(number, leader, answer))

    def _take(
        self,
        number: int,
        leader: Future[Node | None],
        component: Future[NodeStat | None],
    ) -> None:
        error = component.exception() or leader.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._step(ReadFailed(number=number, error=error))
        else:
            self._step(
                LeaderRead(
                    number=number, leader=leader.result(), component=component.result()
                )
            )
